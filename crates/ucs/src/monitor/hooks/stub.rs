//! Where a function of the C library names its system call.

/// How far into a function it is looked for.
pub(super) const REACH: usize = 64;
/// Bytes of the instruction that is replaced, `mov $number, %eax`, and of a jump.
pub(super) const LEN: usize = 5;
/// Bytes of it and of `syscall`, which follows.
pub(super) const CALL_LEN: usize = LEN + 2;

/// `mov $imm32, %eax` (Intel SDM, MOV: B8+rd id).
const MOV_EAX: u8 = 0xB8;
/// `syscall` (Intel SDM: 0F 05).
const SYSCALL: [u8; 2] = [0x0F, 0x05];

/// Where in `code`, which lies at `address`, system call `number` is named just before it is made: once, and so that the instruction can
/// be replaced by one aligned store of eight bytes.
pub(super) fn find(code: &[u8], address: usize, number: u32) -> Option<usize> {
    let [a, b, c, d] = number.to_le_bytes();
    let wanted = [MOV_EAX, a, b, c, d, SYSCALL[0], SYSCALL[1]];
    let mut found = code.windows(CALL_LEN).enumerate().filter(|(_, bytes)| **bytes == wanted);
    let (at, _) = found.next()?;
    let fits = (address.checked_add(at)? % 8) + LEN <= 8;
    (found.next().is_none() && fits).then_some(at)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `munmap` of Debian's glibc 2.36.
    const MUNMAP: [u8; 16] =
        [0xb8, 0x0b, 0, 0, 0, 0x0f, 0x05, 0x48, 0x3d, 0x01, 0xf0, 0xff, 0xff, 0x73, 0x01, 0xc3];
    /// `process_madvise` of the same: an argument is moved first.
    const PROCESS_MADVISE: [u8; 10] = [0x49, 0x89, 0xca, 0xb8, 0xb8, 0x01, 0, 0, 0x0f, 0x05];
    /// `mmap` of the same, from its beginning.
    const MMAP: [u8; 19] =
        [0x41, 0x89, 0xca, 0x41, 0xf7, 0xc1, 0xff, 0x0f, 0, 0, 0x75, 0x14, 0xb8, 0x09, 0, 0, 0, 0x0f, 0x05];

    #[test]
    fn where_it_is_and_fits_a_store() {
        assert_eq!(find(&MUNMAP, 0x1000, 11), Some(0));
        assert_eq!(find(&MUNMAP, 0x1003, 11), Some(0));
        assert_eq!(find(&MUNMAP, 0x1004, 11), None, "it lies across two words");
        assert_eq!(find(&PROCESS_MADVISE, 0x2000, 440), Some(3));
        assert_eq!(find(&MMAP, 0x19a0, 9), None, "it lies across two words");
        assert_eq!(find(&MMAP, 0x19a4, 9), Some(12));
    }

    #[test]
    fn not_what_looks_otherwise() {
        assert_eq!(find(&MUNMAP, 0x1000, 9), None, "another number");
        assert_eq!(find(&[], 0, 11), None);
        assert_eq!(find(&MUNMAP[..6], 0x1000, 11), None, "cut off");
        let twice = [MUNMAP, MUNMAP].concat();
        assert_eq!(find(&twice, 0x1000, 11), None, "two of them");
        let mut other = MUNMAP;
        other[0] = 0xb9; // %ecx
        assert_eq!(find(&other, 0x1000, 11), None);
        assert_eq!(find(&MUNMAP, usize::MAX - 3, 11), None);
    }
}
