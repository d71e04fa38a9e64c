//! Every kernel against a naive model: all sizes and misalignments, guard pages, and threads that copy in and out.
//!
//! ThreadSanitizer sees the atomics of the fallback, so that is what is built for it:
//!
//! ```text
//! RUSTC_BOOTSTRAP=1 RUSTFLAGS="-Zsanitizer=thread -Cunsafe-allow-abi-mismatch=sanitizer --cfg rucx_sanitizer" \
//!     TSAN_OPTIONS="suppressions=$PWD/ci/tsan.supp" \
//!     setarch -R cargo test -p ucs --lib --target x86_64-unknown-linux-gnu mem::copy
//! ```
//!
//! With `RUCX_TSAN_GUARD=1` the same command must fail: [`guard_plain_copies_race`] then copies without atomics. The address
//! sanitizer (`-Zsanitizer=address`) sees the fallback, too; with `RUCX_ASAN_GUARD=1` it must find what
//! [`guard_a_copy_beyond_the_end`] does.

#![allow(clippy::cast_possible_truncation, reason = "low bytes of counters make patterns")]

use proptest::prelude::*;

use super::*;

/// A name, the least length the following are made for, a copy, a fill.
pub(super) type Kernel =
    (&'static str, usize, unsafe fn(*mut u8, *const u8, usize), unsafe fn(*mut u8, u8, usize));

/// The public functions and every kernel this processor has.
fn kernels() -> Vec<Kernel> {
    #[allow(unused_mut, reason = "where there is no other kernel")]
    let mut all: Vec<Kernel> =
        vec![("public", 0, copy, fill), ("fallback", 0, fallback::copy, fallback::fill)];
    #[cfg(all(target_arch = "x86_64", target_feature = "sse2", not(any(loom, rucx_sanitizer, miri))))]
    all.extend(x86_64::kernels());
    all
}

/// Every byte differs from its neighbours, and from those 256 away.
fn pattern(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|i| ((i.wrapping_mul(167) + (i >> 8) * 59 + seed) % 251) as u8).collect()
}

const CANARY: u8 = 0xfd;

/// A place to copy to with room before and after what is written, and one to copy from; both of one alignment.
struct Bench {
    dst: Vec<u64>,
    src: Vec<u64>,
}

impl Bench {
    const ROOM: usize = 128;

    fn new(most: usize) -> Self {
        let words = (most + 2 * Self::ROOM) / 8 + 1;
        let src =
            pattern(words * 8, 7).chunks(8).map(|c| u64::from_ne_bytes(c.try_into().unwrap())).collect();
        Self { dst: vec![u64::from_ne_bytes([CANARY; 8]); words], src }
    }

    fn dst_bytes(&mut self) -> &mut [u8] {
        let len = self.dst.len() * 8;
        // SAFETY: the vector's own memory, exclusively borrowed; any u64 is eight bytes.
        unsafe { std::slice::from_raw_parts_mut(self.dst.as_mut_ptr().cast(), len) }
    }

    fn src_bytes(&self) -> &[u8] {
        // SAFETY: the vector's own memory; any u64 is eight bytes.
        unsafe { std::slice::from_raw_parts(self.src.as_ptr().cast(), self.src.len() * 8) }
    }

    /// Runs `write` on the place at `to`, checks all of it against `expected`, and restores the canaries.
    fn check(&mut self, what: &str, to: usize, expected: &[u8], write: impl FnOnce(*mut u8, *const u8)) {
        let src = self.src.as_ptr().cast::<u8>();
        let place = self.dst_bytes();
        write(place.as_mut_ptr().wrapping_add(to), src);
        let (before, rest) = place.split_at(to);
        let (written, after) = rest.split_at(expected.len());
        assert!(before.iter().all(|&b| b == CANARY), "{what}: wrote before the destination");
        assert!(after.iter().all(|&b| b == CANARY), "{what}: wrote behind the destination");
        assert!(written == expected, "{what}: wrote something else");
        self.dst_bytes()[to..to + expected.len()].fill(CANARY);
    }
}

/// Misalignments by each of 0 to 8 and around the vectors' sizes; fewer where an access is slow.
fn misalignments() -> &'static [usize] {
    if cfg!(any(miri, rucx_sanitizer)) {
        &[0, 1, 3, 8]
    } else {
        &[0, 1, 2, 3, 4, 5, 6, 7, 8, 15, 16, 17, 31, 32, 33, 63]
    }
}

fn sizes() -> impl Iterator<Item = usize> {
    (0..=1100).step_by(if cfg!(miri) { 37 } else { 1 })
}

#[test]
fn copies_every_size_at_every_misalignment() {
    let mut bench = Bench::new(1100);
    let src = bench.src_bytes().to_vec();
    for (name, least, copy, _) in kernels() {
        for size in sizes().skip_while(|&s| s < least) {
            for &d in misalignments() {
                for &s in misalignments() {
                    bench.check(name, 32 + d, &src[s..s + size], |dst, src| {
                        // SAFETY: both have room for size bytes at these offsets, and are two vectors.
                        unsafe { copy(dst, src.wrapping_add(s), size) }
                    });
                }
            }
        }
    }
}

#[test]
fn fills_every_size_at_every_misalignment() {
    let mut bench = Bench::new(1100);
    for (name, least, _, fill) in kernels() {
        for size in sizes().skip_while(|&s| s < least) {
            for &d in misalignments() {
                for byte in [0, 0x80 | d as u8] {
                    bench.check(name, 32 + d, &vec![byte; size], |dst, _| {
                        // SAFETY: there is room for size bytes at this offset.
                        unsafe { fill(dst, byte, size) }
                    });
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: if cfg!(miri) { 4 } else { 256 },
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    /// Longer ones, at every distance modulo a page, on which the direction of the loops depends.
    #[test]
    fn copies_as_the_model_does(size in 0_usize..20_000, d in 0_usize..4200, s in 0_usize..4200) {
        let mut bench = Bench::new(25_000);
        let src = bench.src_bytes().to_vec();
        for (name, least, copy, _) in kernels() {
            if size >= least {
                bench.check(name, d, &src[s..s + size], |dst, src| {
                    // SAFETY: both have room for size bytes at these offsets, and are two vectors.
                    unsafe { copy(dst, src.wrapping_add(s), size) }
                });
            }
        }
    }

    #[test]
    fn fills_as_the_model_does(size in 0_usize..20_000, d in 0_usize..4200, byte: u8) {
        let mut bench = Bench::new(25_000);
        for (name, least, _, fill) in kernels() {
            if size >= least {
                bench.check(name, d, &vec![byte; size], |dst, _| {
                    // SAFETY: there is room for size bytes at this offset.
                    unsafe { fill(dst, byte, size) }
                });
            }
        }
    }
}

/// Where the public function may take to string instructions.
#[test]
#[cfg(not(any(miri, rucx_sanitizer)))]
fn copies_and_fills_the_largest() {
    for size in [(16 << 20) - 1, 16 << 20, (16 << 20) + 4099] {
        let mut bench = Bench::new(size);
        let src = bench.src_bytes().to_vec();
        for (d, s) in [(0, 0), (1, 0), (0, 3), (29, 93)] {
            bench.check("public", d, &src[s..s + size], |dst, src| {
                // SAFETY: both have room for size bytes at these offsets, and are two vectors.
                unsafe { copy(dst, src.wrapping_add(s), size) }
            });
            bench.check("public", d, &vec![0x5a; size], |dst, _| {
                // SAFETY: there is room for size bytes at this offset.
                unsafe { fill(dst, 0x5a, size) }
            });
        }
    }
}

#[test]
fn copying_nothing_looks_at_nothing() {
    let nowhere = std::ptr::without_provenance_mut::<u8>(1);
    for (_, least, copy, fill) in kernels() {
        if least == 0 {
            // SAFETY: no bytes.
            unsafe { copy(nowhere, nowhere, 0) };
            // SAFETY: no bytes.
            unsafe { fill(nowhere, 1, 0) };
        }
    }
}

/// Some pages with an inaccessible one on either side.
#[cfg(not(miri))]
struct Guarded {
    map: *mut u8,
    len: usize,
}

#[cfg(not(miri))]
impl Guarded {
    /// At least the size of a page wherever the tests run.
    const PAGE: usize = 65536;

    fn new(len: usize) -> Self {
        use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect};
        assert_eq!(len % Self::PAGE, 0);
        let all = len + 2 * Self::PAGE;
        // SAFETY: a new mapping, wherever the kernel likes.
        let map = unsafe { mmap_anonymous(std::ptr::null_mut(), all, ProtFlags::empty(), MapFlags::PRIVATE) }
            .unwrap();
        let map = map.cast::<u8>();
        // SAFETY: within the mapping just made, which nobody refers to yet.
        unsafe {
            mprotect(map.wrapping_add(Self::PAGE).cast(), len, MprotectFlags::READ | MprotectFlags::WRITE)
        }
        .unwrap();
        Self { map, len }
    }

    fn start(&self) -> *mut u8 {
        self.map.wrapping_add(Self::PAGE)
    }

    fn end(&self) -> *mut u8 {
        self.start().wrapping_add(self.len)
    }
}

#[cfg(not(miri))]
impl Drop for Guarded {
    fn drop(&mut self) {
        // SAFETY: the mapping made by new, of which no pointer outlives self.
        unsafe { rustix::mm::munmap(self.map.cast(), self.len + 2 * Self::PAGE) }.unwrap();
    }
}

/// A copy that ends where a mapping ends, or starts where it starts, touches nothing beyond: it would die by SIGSEGV.
#[test]
#[cfg(not(miri))]
fn stays_within_the_mapping() {
    let (a, b) = (Guarded::new(Guarded::PAGE), Guarded::new(Guarded::PAGE));
    for (_, least, copy, fill) in kernels() {
        for size in (0..=1100).chain([2048, 4095, 4097, 8192, 20_001, Guarded::PAGE]).filter(|&s| s >= least)
        {
            for slack in [0, 1, 7, 16, 33] {
                let slack = slack.min(Guarded::PAGE - size);
                let (a_low, b_low) = (a.start(), b.start());
                let (a_high, b_high) = (a.end().wrapping_sub(size), b.end().wrapping_sub(size));
                for (dst, src) in [
                    (a_low, b_low),
                    (a_low.wrapping_add(slack), b_low),
                    (a_low, b_low.wrapping_add(slack)),
                    (a_high, b_high),
                    (a_high.wrapping_sub(slack), b_high),
                    (a_high, b_high.wrapping_sub(slack)),
                    (a_low, b_high),
                    (a_high, b_low),
                ] {
                    // SAFETY: size bytes within two mappings.
                    unsafe { copy(dst, src, size) };
                    // SAFETY: size bytes within a mapping.
                    unsafe { fill(dst, 1, size) };
                }
            }
        }
    }
}

#[test]
fn loads_what_was_stored() {
    let mut words = [0_u64; 2];
    let at = words.as_mut_ptr();
    for load in [LoadOrder::Relaxed, LoadOrder::Acquire, LoadOrder::SeqCst] {
        for store in [StoreOrder::Relaxed, StoreOrder::Release, StoreOrder::SeqCst] {
            // SAFETY: aligned, in the array.
            unsafe { store_u64(at, 0x0102_0304_0506_0708, store) };
            // SAFETY: aligned, in the array.
            assert_eq!(unsafe { load_u64(at, load) }, 0x0102_0304_0506_0708);
            // SAFETY: aligned, in the array.
            unsafe { store_u32(at.cast(), 0x1112_1314, store) };
            // SAFETY: aligned, in the array.
            assert_eq!(unsafe { load_u32(at.cast(), load) }, 0x1112_1314);
            // SAFETY: aligned, in the array.
            unsafe { store_u16(at.cast(), 0x2122, store) };
            // SAFETY: aligned, in the array.
            assert_eq!(unsafe { load_u16(at.cast(), load) }, 0x2122);
            // SAFETY: aligned, in the array.
            unsafe { store_u8(at.cast(), 0x31, store) };
            // SAFETY: aligned, in the array.
            assert_eq!(unsafe { load_u8(at.cast(), load) }, 0x31);
            // SAFETY: aligned, in the array.
            assert_eq!(unsafe { load_u64(at.wrapping_add(1), load) }, 0);
        }
    }
}

/// Memory for several threads, which have it by address.
#[derive(Clone, Copy)]
struct Shared(*mut u8);
// SAFETY: the tests access it by this module only, and join their threads before it is freed.
unsafe impl Send for Shared {}

impl Shared {
    const LEN: usize = 4096;

    /// The address, by a method so that closures capture the whole.
    fn at(self) -> *mut u8 {
        self.0
    }
}

/// Runs both at the same time. By `join`, whose order ThreadSanitizer knows of: that of `std::thread::scope` is made by
/// atomics of the standard library, which is not built for it.
fn at_the_same_time(a: impl FnOnce() + Send + 'static, b: impl FnOnce() + Send + 'static) {
    let (a, b) = (std::thread::spawn(a), std::thread::spawn(b));
    let (a, b) = (a.join(), b.join());
    a.unwrap();
    b.unwrap();
}

/// Two threads copy in and out of one region, at other alignments each, with nothing that orders them.
#[test]
fn copies_in_and_out_do_not_race() {
    let mut memory = vec![0_u64; Shared::LEN / 8];
    let region = Shared(memory.as_mut_ptr().cast());
    let rounds = if cfg!(miri) { 2 } else { 200 };
    let in_and_out = move |thread: u8| {
        let region = region.at();
        let mut own = vec![thread; Shared::LEN];
        for round in 0..rounds {
            let offset = (round * 13 + usize::from(thread) * 5) % 64;
            let len = (round * 97) % (Shared::LEN - 64);
            // SAFETY: into a region that outlives the threads, out of a vector of the same length.
            unsafe { copy(region.wrapping_add(offset), own.as_ptr(), len) };
            // SAFETY: as above, the other way.
            unsafe { copy(own.as_mut_ptr(), region.wrapping_add(offset), len) };
            // SAFETY: in the region.
            unsafe { fill(region.wrapping_add(offset), thread, len / 2) };
            assert!(own.iter().all(|&b| b < 2), "a byte that nobody wrote");
        }
    };
    at_the_same_time(move || in_and_out(0), move || in_and_out(1));
}

/// What a release store follows is seen behind the acquire load that reads from it.
#[test]
fn a_flag_publishes_what_was_copied() {
    let mut memory = vec![0_u64; Shared::LEN / 8];
    let region = Shared(memory.as_mut_ptr().cast());
    let rounds: u64 = if cfg!(miri) { 4 } else { 2000 };
    // The first word holds the number of the last message written, the second that of the last one read.
    let write = move || {
        let region = region.at();
        for round in 1..=rounds {
            // SAFETY: aligned, in the region.
            while unsafe { load_u64(region.cast::<u64>().wrapping_add(1), LoadOrder::Acquire) } != round - 1 {
                std::thread::yield_now();
            }
            let message = [round as u8; 1000];
            // SAFETY: into the region, out of an array.
            unsafe { copy(region.wrapping_add(65), message.as_ptr(), message.len()) };
            // SAFETY: aligned, in the region.
            unsafe { store_u64(region.cast(), round, StoreOrder::Release) };
        }
    };
    let read = move || {
        let region = region.at();
        for round in 1..=rounds {
            // SAFETY: aligned, in the region.
            while unsafe { load_u64(region.cast(), LoadOrder::Acquire) } != round {
                std::thread::yield_now();
            }
            let mut message = [0; 1000];
            // SAFETY: out of the region, into an array.
            unsafe { copy(message.as_mut_ptr(), region.wrapping_add(65), message.len()) };
            assert!(message == [round as u8; 1000], "round {round}: the flag came before the message");
            // SAFETY: aligned, in the region.
            unsafe { store_u64(region.cast::<u64>().wrapping_add(1), round, StoreOrder::Release) };
        }
    };
    at_the_same_time(write, read);
}

/// The guard of [`copies_in_and_out_do_not_race`]: the same by plain accesses, which ThreadSanitizer must report.
#[test]
#[cfg(rucx_sanitizer)]
fn guard_plain_copies_race() {
    /// # Safety
    /// As [`copy`], and nobody else accesses the bytes: which is what the guard breaks.
    unsafe fn plain(dst: *mut u8, src: *const u8, len: usize) {
        for i in 0..len {
            // SAFETY: i < len, within src.
            let byte = unsafe { src.wrapping_add(i).read() };
            // SAFETY: i < len, within dst.
            unsafe { dst.wrapping_add(i).write(byte) };
        }
    }

    if std::env::var_os("RUCX_TSAN_GUARD").is_none() {
        return;
    }
    let mut memory = vec![0_u64; Shared::LEN / 8];
    let region = Shared(memory.as_mut_ptr().cast());
    let in_and_out = move |thread: u8| {
        let region = region.at();
        let mut own = vec![thread; Shared::LEN];
        for _ in 0..200 {
            // SAFETY: none, for the race; the addresses are in the region and in the vector.
            unsafe { plain(region, own.as_ptr(), Shared::LEN) };
            // SAFETY: as above.
            unsafe { plain(own.as_mut_ptr(), region, Shared::LEN) };
        }
    };
    at_the_same_time(move || in_and_out(0), move || in_and_out(1));
}

/// What the address sanitizer must report, if it sees what this crate does.
#[test]
#[cfg(rucx_sanitizer)]
fn guard_a_copy_beyond_the_end() {
    if std::env::var_os("RUCX_ASAN_GUARD").is_none() {
        return;
    }
    let (from, mut to) = (vec![1_u8; 17], vec![0_u8; 16]);
    // SAFETY: none, for the last byte: that is the guard.
    unsafe { copy(to.as_mut_ptr(), from.as_ptr(), 17) };
    assert_eq!(to, [1; 16]);
}
