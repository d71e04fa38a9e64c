//! What happens instead of a system call of the C library's: it is announced, and made.
//!
//! It runs wherever such a call is made: in an allocator, in a signal handler, on a thread that is about to end and has given most of its
//! stack back. So it neither allocates nor takes a lock that is held across such calls, and uses little stack.
//!
//! # Safety
//! The code is entered by a jump from the C library, with the arguments of a system call in its registers; it makes that system call with
//! exactly those, once, and answers what the kernel answers. It adds nothing to what the caller asked for.

#![allow(unsafe_code)]

use std::arch::{asm, naked_asm};

use super::{CALLS, FUNCTIONS, HookError};
use crate::mem::page::{PageRange, page_size};
use crate::monitor::{Window, process};
use crate::sync::Ordering;

/// The registers of a system call, in the order of its arguments, as [`entry`] has pushed them.
#[repr(C)]
struct Call {
    arguments: [usize; 6],
    _return: usize,
    number: usize,
}

/// Where the pieces of code jump to.
pub(super) fn entry_address() -> usize {
    (entry as unsafe extern "C" fn() as *const ()).addr()
}

/// Called with the number of a system call on the stack, its arguments in their registers. Answers in `%rax`; keeps all other registers
/// but `%rcx` and `%r11`, which the kernel does not keep either. Vector registers hold nothing there: the functions that are replaced
/// do nothing but the call.
///
/// # Safety
/// By the pieces of code of `patch.rs` only.
#[unsafe(naked)]
unsafe extern "C" fn entry() {
    naked_asm!(
        "push r9",
        "push r8",
        "push r10",
        "push rdx",
        "push rsi",
        "push rdi",
        "mov rdi, rsp",
        "push rbp",
        "mov rbp, rsp",
        "and rsp, -16",
        "call {around}",
        "mov rsp, rbp",
        "pop rbp",
        "pop rdi",
        "pop rsi",
        "pop rdx",
        "pop r10",
        "pop r8",
        "pop r9",
        "ret",
        around = sym around,
    )
}

/// Makes the call, within windows over the memory that it changes.
extern "C" fn around(call: &Call) -> isize {
    if let Some(index) = FUNCTIONS.iter().position(|function| function.number as usize == call.number) {
        CALLS[index].fetch_add(1, Ordering::Relaxed);
    }
    // Not one that would have to be made: in a fork's child, the parent's means nothing.
    let Some(monitor) = process::published() else { return call.make() };
    monitor.counters.hooked.add(1);
    let [first, second] = call.changes();
    let windows = [first, second].map(|range| range.map(|range| monitor.begin(range)));
    let answer = call.make();
    if windows.iter().any(Option::is_some) {
        monitor.settle();
    }
    drop::<[Option<Window<'_>>; 2]>(windows);
    answer
}

// Values from `include/uapi/asm-generic/mman-common.h` that the `libc` crate has not everywhere.
/// `MADV_DONTNEED_LOCKED` (Linux 5.18).
const DONTNEED_LOCKED: usize = 24;
/// `MADV_GUARD_INSTALL` (Linux 6.13).
const GUARD_INSTALL: usize = 102;

/// An `int` that was passed in a register, whose upper half is nobody's (System V ABI, 3.2.3).
fn int(register: usize) -> usize {
    register & u32::MAX as usize
}

/// Whether advice drops pages (`madvise(2)`).
fn drops(advice: usize) -> bool {
    let advice = int(advice);
    let dropping = [libc::MADV_DONTNEED, libc::MADV_FREE, libc::MADV_REMOVE];
    dropping.iter().any(|other| usize::try_from(*other) == Ok(advice))
        || matches!(advice, DONTNEED_LOCKED | GUARD_INSTALL)
}

/// Pages from `start` on; none where the kernel will refuse that.
fn pages(start: usize, len: usize) -> Option<PageRange> {
    PageRange::containing(start, len).filter(|_| start.is_multiple_of(page_size()))
}

impl Call {
    /// Memory whose pages it changes, as far as it succeeds.
    fn changes(&self) -> [Option<PageRange>; 2] {
        let [a, b, c, d, e, _] = self.arguments;
        let is = |number: libc::c_long| usize::try_from(number) == Ok(self.number);
        let has = |flags: usize, flag: libc::c_int| flags & usize::try_from(flag).unwrap_or(0) != 0;
        if is(libc::SYS_munmap) {
            [pages(a, b), None]
        } else if is(libc::SYS_madvise) {
            [pages(a, b).filter(|_| drops(c)), None]
        } else if is(libc::SYS_mmap) {
            [pages(a, b).filter(|_| has(int(d), libc::MAP_FIXED)), None]
        } else if is(libc::SYS_mremap) {
            let onto = pages(e, c).filter(|_| has(d, libc::MREMAP_FIXED));
            [pages(a, b), onto]
        } else if is(libc::SYS_brk) {
            // SAFETY: asks for the break, which stays where it is: 0 is below every break.
            let now = unsafe { system_call(self.number, [0; 6]) }.cast_unsigned();
            let shrinks = a != 0 && a < now;
            [shrinks.then(|| PageRange::containing(a, now - a)).flatten(), None]
        } else if is(libc::SYS_shmat) {
            // Where it comes to lie is the kernel's to say: rounded, and as long as the segment is in its pages.
            [Some(PageRange::everything()).filter(|_| has(int(c), libc::SHM_REMAP)), None]
        } else {
            // process_madvise: what it names is the kernel's to read.
            [Some(PageRange::everything()).filter(|_| drops(d)), None]
        }
    }

    /// Makes it.
    fn make(&self) -> isize {
        // SAFETY: it is what the caller of the C library's function asked for.
        unsafe { system_call(self.number, self.arguments) }
    }
}

/// A system call, without the C library's `errno`: a negative answer is an error.
///
/// # Safety
/// As that call.
unsafe fn system_call(number: usize, arguments: [usize; 6]) -> isize {
    let [a, b, c, d, e, f] = arguments;
    let answer: isize;
    // SAFETY: the caller's promise; `syscall` changes no other registers (System V ABI, A.2.1).
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") number => answer,
            in("rdi") a, in("rsi") b, in("rdx") c, in("r10") d, in("r8") e, in("r9") f,
            lateout("rcx") _, lateout("r11") _,
            options(nostack),
        );
    }
    answer
}

/// Whether calls of the C library's come through here: tried with some that change nothing. Not `brk`: even one that asks only has the C
/// library note what it found, over what another thread has noted since.
pub(super) fn prove() -> Result<(), HookError> {
    let number = |name: &str| {
        let index = FUNCTIONS.iter().position(|function| function.name.to_str() == Ok(name));
        index.map_or(0, |index| CALLS[index].load(Ordering::Relaxed))
    };
    let tries: [(&'static str, fn()); 4] = [
        ("munmap", || {
            // SAFETY: no bytes: the kernel answers EINVAL.
            unsafe { libc::munmap(std::ptr::null_mut(), 0) };
        }),
        ("madvise", || {
            // SAFETY: no bytes: nothing is done.
            unsafe { libc::madvise(std::ptr::null_mut(), 0, libc::MADV_NORMAL) };
        }),
        ("mremap", || {
            // SAFETY: no new bytes: the kernel answers EINVAL.
            unsafe { libc::mremap(std::ptr::null_mut(), 0, 0, 0) };
        }),
        ("shmat", || {
            // SAFETY: there is no such segment: the kernel answers EINVAL.
            unsafe { libc::shmat(-1, std::ptr::null(), 0) };
        }),
    ];
    for (function, call) in tries {
        let before = number(function);
        call();
        if number(function) == before {
            return Err(HookError::Silent { function });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: usize = 0x7000_0000_0000;

    fn changes(number: libc::c_long, arguments: [usize; 6]) -> [Option<PageRange>; 2] {
        Call { arguments, _return: 0, number: usize::try_from(number).unwrap() }.changes()
    }

    fn range(at: usize, len: usize) -> PageRange {
        PageRange::containing(at, len).unwrap()
    }

    #[test]
    fn what_each_call_changes() {
        let page = page_size();
        let high = 0xABCD_0000_0000_usize; // of an int, nobody's
        let flags = |flags: libc::c_int| usize::try_from(flags).unwrap();
        let one = |range: PageRange| [Some(range), None];
        let none = [None, None];
        assert_eq!(changes(libc::SYS_munmap, [START, 100, 0, 0, 0, 0]), one(range(START, page)));
        assert_eq!(changes(libc::SYS_munmap, [START + 1, 100, 0, 0, 0, 0]), none, "refused");
        assert_eq!(changes(libc::SYS_munmap, [START, 0, 0, 0, 0, 0]), none);
        assert_eq!(changes(libc::SYS_munmap, [START, usize::MAX, 0, 0, 0, 0]), none);
        for advice in [4, 8, 9, 24, 102] {
            let dropped = changes(libc::SYS_madvise, [START, page, high | advice, 0, 0, 0]);
            assert_eq!(dropped, one(range(START, page)), "{advice}");
        }
        assert_eq!(changes(libc::SYS_madvise, [START, page, 3, 0, 0, 0]), none);
        let fixed = high | flags(libc::MAP_FIXED | libc::MAP_PRIVATE);
        assert_eq!(changes(libc::SYS_mmap, [START, page, 3, fixed, 0, 0]), one(range(START, page)));
        assert_eq!(changes(libc::SYS_mmap, [START, page, 3, flags(libc::MAP_PRIVATE), 0, 0]), none);
        let moved =
            [START, 2 * page, page, flags(libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED), START + 8 * page, 0];
        assert_eq!(
            changes(libc::SYS_mremap, moved),
            [Some(range(START, 2 * page)), Some(range(START + 8 * page, page))]
        );
        // Rounded by the kernel, and as long as it says.
        let over = high | flags(libc::SHM_REMAP | libc::SHM_RND);
        assert_eq!(changes(libc::SYS_shmat, [7, START + 1, over, 0, 0, 0]), one(PageRange::everything()));
        assert_eq!(changes(libc::SYS_shmat, [7, START, 0, 0, 0, 0]), none);
        let by_pidfd = [3, START, 1, high | 4, 0, 0];
        assert_eq!(changes(libc::SYS_process_madvise, by_pidfd), one(PageRange::everything()));
        assert_eq!(changes(libc::SYS_brk, [0; 6]), none, "asks only");
        assert_eq!(changes(libc::SYS_brk, [usize::MAX >> 1, 0, 0, 0, 0, 0]), none, "grows, or is refused");
    }
}
