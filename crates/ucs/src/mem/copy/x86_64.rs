//! The copy and fill kernels of x86_64.
//!
//! | bytes | instructions |
//! |---|---|
//! | 0 to 16 | general registers, inlined into the caller |
//! | 17 to 64 | two or four SSE registers, head and tail overlapping, inlined into the caller |
//! | 65 to 8 or 16 vectors | four, eight or sixteen vectors, head and tail overlapping |
//! | more | a loop of four vectors with aligned stores, between an unaligned head and tail |
//! | [`REP_MIN`] and more, if both are aligned alike | `rep movsb` |
//!
//! A vector is AVX's 32 bytes where the processor and the operating system have them, else SSE2's 16. AVX-512 is not
//! used: on Zen 4 it gains nothing in cache and loses a fifth out of L2.
//!
//! Facts every block here relies on, with the titles of the sections of Intel's Software Developer's Manual (SDM):
//! - An access to a byte is atomic ("Guaranteed Atomic Operations"). Nothing is promised for vectors and nothing is
//!   needed: the specification is byte-wise.
//! - Stores are not reordered with earlier loads or stores ("Memory Ordering in P6 and More Recent Processor
//!   Families"), nor with an earlier string instruction as a whole, however its own stores are ordered ("Fast-String
//!   Operation and Out-of-Order Stores"). So a flag stored after a copy is seen after it. That would not hold for
//!   non-temporal stores, and there are none here.
//! - The direction flag is clear on entry (System V psABI for x86-64, "Registers"; the Rust reference says the same of
//!   `asm!`), so `rep movsb` counts upwards.
//! - `vzeroupper` follows AVX code, or SSE code run later pays for the dirty upper halves (Intel's optimization manual,
//!   "Mixing AVX Code with SSE Code"). It changes all sixteen vector registers, so all are declared clobbered.

use core::arch::asm;
use core::arch::x86_64::__cpuid_count;
// std's atomics: loom's cannot lie in memory somebody else allocated.
use std::sync::atomic::{AtomicU8, Ordering};

pub(super) use vector::{avx, sse2};

/// From here on `rep movsb` may be used: about where source and destination outgrow a last-level cache, and not reading
/// the lines about to be overwritten begins to pay.
const REP_MIN: usize = 16 << 20;

/// Loads and stores are matched by the low twelve bits of their addresses before the rest is compared.
const ALIAS_PERIOD: usize = 4096;

/// How far, modulo [`ALIAS_PERIOD`], a destination ahead of its source makes a loop that counts upwards wait: its loads
/// then have the low address bits of stores that are still in the store queue, and are held back for them.
const ALIAS_REACH: usize = 1024;

/// The unaligned 16-byte move that is inlined: the VEX one in code compiled for AVX, where an SSE instruction would
/// meet upper halves the compiler left dirty.
#[cfg(target_feature = "avx")]
macro_rules! movu {
    () => {
        "vmovups"
    };
}
#[cfg(not(target_feature = "avx"))]
macro_rules! movu {
    () => {
        "movups"
    };
}

/// The instructions that put the word {p}, every byte of which is the one to write, all over vector 0.
macro_rules! spread {
    (sse) => {
        "movq xmm0, {p}\npunpcklqdq xmm0, xmm0"
    };
    (vex) => {
        "vmovq xmm0, {p}\nvpunpcklqdq xmm0, xmm0, xmm0"
    };
    (avx) => {
        concat!(spread!(vex), "\nvinsertf128 ymm0, ymm0, xmm0, 1")
    };
}

/// As `movu`.
#[cfg(target_feature = "avx")]
macro_rules! spread_inlined {
    () => {
        spread!(vex)
    };
}
#[cfg(not(target_feature = "avx"))]
macro_rules! spread_inlined {
    () => {
        spread!(sse)
    };
}

// Behind the macros, which it uses.
mod vector;

/// The bits of [`FEATURES`]: that it was asked for, AVX.
const KNOWN: u8 = 1;
const AVX: u8 = 2;
/// Enhanced `rep movsb`.
const ERMS: u8 = 4;

/// Zero until somebody has asked. Relaxed, because every thread computes the same value and nothing else is published
/// by it.
static FEATURES: AtomicU8 = AtomicU8::new(0);

/// What [`detect`] found; 0 if nobody has asked yet. A caller that finds 0 goes on out of line, so that a short copy
/// keeps no register for the sake of the first one.
#[inline]
fn features() -> u8 {
    FEATURES.load(Ordering::Relaxed)
}

#[cold]
#[inline(never)]
fn detect() {
    let mut found = KNOWN;
    if std::is_x86_feature_detected!("avx") {
        found |= AVX;
    }
    if erms() {
        found |= ERMS;
    }
    FEATURES.store(found, Ordering::Relaxed);
}

/// CPUID leaf 7, subleaf 0: EBX bit 9 (SDM vol. 2A, CPUID).
#[allow(unused_unsafe, reason = "the intrinsic is unsafe up to Rust 1.93")]
fn erms() -> bool {
    // SAFETY: every x86_64 processor has CPUID and its leaf 0.
    let highest = unsafe { __cpuid_count(0, 0) }.eax;
    if highest < 7 {
        return false;
    }
    // SAFETY: as above, and leaf 7 is there.
    let leaf = unsafe { __cpuid_count(7, 0) };
    leaf.ebx & (1 << 9) != 0
}

/// Copies `len` bytes.
///
/// # Safety
/// As [`copy`](super::copy()).
#[inline]
pub(super) unsafe fn copy(dst: *mut u8, src: *const u8, len: usize) {
    if len == 8 {
        // SAFETY: reads src[0..8] and writes dst[0..8], which is all of both; the caller keeps them mapped meanwhile.
        unsafe {
            asm!(
                "mov {a}, qword ptr [{s}]",
                "mov qword ptr [{d}], {a}",
                s = in(reg) src, d = in(reg) dst, a = out(reg) _,
                options(nostack, preserves_flags),
            );
        }
    } else if len <= 16 {
        // SAFETY: the caller's promise, and len <= 16.
        unsafe { copy_to_16(dst, src, len) }
    } else if len <= 32 {
        // SAFETY: reads src[0..16] and src[len-16..len], writes the same of dst; 16 < len, so both lie within. The
        // caller keeps them mapped meanwhile.
        unsafe {
            asm!(
                concat!(movu!(), " {a}, xmmword ptr [{s}]"),
                concat!(movu!(), " {b}, xmmword ptr [{s} + {n} - 16]"),
                concat!(movu!(), " xmmword ptr [{d}], {a}"),
                concat!(movu!(), " xmmword ptr [{d} + {n} - 16], {b}"),
                s = in(reg) src, d = in(reg) dst, n = in(reg) len, a = out(xmm_reg) _, b = out(xmm_reg) _,
                options(nostack, preserves_flags),
            );
        }
    } else if len <= 64 {
        // SAFETY: reads src[0..32] and src[len-32..len], writes the same of dst; 32 < len, so both lie within. The
        // caller keeps them mapped meanwhile.
        unsafe {
            asm!(
                concat!(movu!(), " {a}, xmmword ptr [{s}]"),
                concat!(movu!(), " {b}, xmmword ptr [{s} + 16]"),
                concat!(movu!(), " {e}, xmmword ptr [{s} + {n} - 32]"),
                concat!(movu!(), " {f}, xmmword ptr [{s} + {n} - 16]"),
                concat!(movu!(), " xmmword ptr [{d}], {a}"),
                concat!(movu!(), " xmmword ptr [{d} + 16], {b}"),
                concat!(movu!(), " xmmword ptr [{d} + {n} - 32], {e}"),
                concat!(movu!(), " xmmword ptr [{d} + {n} - 16], {f}"),
                s = in(reg) src, d = in(reg) dst, n = in(reg) len,
                a = out(xmm_reg) _, b = out(xmm_reg) _, e = out(xmm_reg) _, f = out(xmm_reg) _,
                options(nostack, preserves_flags),
            );
        }
    } else {
        // SAFETY: the caller's promise, and 64 < len.
        unsafe { copy_long(dst, src, len) }
    }
}

/// # Safety
/// As [`copy`], and `len <= 16`.
#[inline]
unsafe fn copy_to_16(dst: *mut u8, src: *const u8, len: usize) {
    if len >= 8 {
        // SAFETY: reads src[0..8] and src[len-8..len], writes the same of dst; 8 <= len, so both lie within. The caller
        // keeps them mapped meanwhile.
        unsafe {
            asm!(
                "mov {a}, qword ptr [{s}]",
                "mov {b}, qword ptr [{s} + {n} - 8]",
                "mov qword ptr [{d}], {a}",
                "mov qword ptr [{d} + {n} - 8], {b}",
                s = in(reg) src, d = in(reg) dst, n = in(reg) len, a = out(reg) _, b = out(reg) _,
                options(nostack, preserves_flags),
            );
        }
    } else if len >= 4 {
        // SAFETY: reads src[0..4] and src[len-4..len], writes the same of dst; 4 <= len, so both lie within. The caller
        // keeps them mapped meanwhile.
        unsafe {
            asm!(
                "mov {a:e}, dword ptr [{s}]",
                "mov {b:e}, dword ptr [{s} + {n} - 4]",
                "mov dword ptr [{d}], {a:e}",
                "mov dword ptr [{d} + {n} - 4], {b:e}",
                s = in(reg) src, d = in(reg) dst, n = in(reg) len, a = out(reg) _, b = out(reg) _,
                options(nostack, preserves_flags),
            );
        }
    } else if len >= 2 {
        // SAFETY: reads src[0..2] and src[len-2..len], writes the same of dst; 2 <= len, so both lie within. The caller
        // keeps them mapped meanwhile.
        unsafe {
            asm!(
                "movzx {a:e}, word ptr [{s}]",
                "movzx {b:e}, word ptr [{s} + {n} - 2]",
                "mov word ptr [{d}], {a:x}",
                "mov word ptr [{d} + {n} - 2], {b:x}",
                s = in(reg) src, d = in(reg) dst, n = in(reg) len, a = out(reg) _, b = out(reg) _,
                options(nostack, preserves_flags),
            );
        }
    } else if len == 1 {
        // SAFETY: reads src[0] and writes dst[0]; len is 1. The caller keeps them mapped meanwhile.
        unsafe {
            asm!(
                "movzx {a:e}, byte ptr [{s}]",
                "mov byte ptr [{d}], {a:l}",
                s = in(reg) src, d = in(reg) dst, a = out(reg) _,
                options(nostack, preserves_flags),
            );
        }
    }
}

/// # Safety
/// As [`copy`], and `64 < len`.
#[inline(never)]
unsafe fn copy_long(dst: *mut u8, src: *const u8, len: usize) {
    if avx::is_straight(dst, len) && features() & AVX != 0 {
        // SAFETY: the caller's promise, 64 < len, len is at most sixteen vectors, and AVX is there.
        unsafe { avx::copy_straight(dst, src, len) }
    } else {
        // SAFETY: the caller's promise, and 64 < len.
        unsafe { copy_longer(dst, src, len) }
    }
}

/// # Safety
/// As [`copy`], and `64 < len`.
#[inline(never)]
unsafe fn copy_longer(dst: *mut u8, src: *const u8, len: usize) {
    let features = features();
    if features == 0 {
        // SAFETY: the caller's promise, and 64 < len.
        unsafe { copy_detecting(dst, src, len) }
    } else if len >= REP_MIN && features & ERMS != 0 && rep_pays(dst, src) {
        // SAFETY: the caller's promise, and 64 < len.
        unsafe { copy_rep(dst, src, len) }
    } else if features & AVX != 0 {
        // SAFETY: the caller's promise, 64 < len, and AVX is there.
        unsafe { avx::copy(dst, src, len) }
    } else {
        // SAFETY: the caller's promise, and 64 < len.
        unsafe { sse2::copy(dst, src, len) }
    }
}

/// The first long copy.
///
/// # Safety
/// As [`copy`], and `64 < len`.
#[cold]
#[inline(never)]
unsafe fn copy_detecting(dst: *mut u8, src: *const u8, len: usize) {
    detect();
    // SAFETY: the caller's promise, and 64 < len.
    unsafe { copy_longer(dst, src, len) }
}

/// Whether a loop that counts upwards would wait for its own stores; see [`ALIAS_REACH`].
#[inline]
fn store_aliases_load(dst: *const u8, src: *const u8) -> bool {
    let ahead = dst.addr().wrapping_sub(src.addr()) % ALIAS_PERIOD;
    ahead != 0 && ahead < ALIAS_REACH
}

/// Whether `rep movsb` moves whole cache lines, and does not wait for its own stores: otherwise it is slower than a loop
/// of vectors, down to a tenth.
#[inline]
fn rep_pays(dst: *const u8, src: *const u8) -> bool {
    dst.addr() % 64 == src.addr() % 64 && !store_aliases_load(dst, src)
}

/// Copies by `rep movsb`, the destination aligned to a cache line first.
///
/// # Safety
/// As [`copy`], and `64 <= len`.
unsafe fn copy_rep(dst: *mut u8, src: *const u8, len: usize) {
    // SAFETY: the first 64 bytes, and 64 <= len.
    unsafe { copy(dst, src, 64) };
    let head = 64 - dst.addr() % 64;
    // SAFETY: the bytes from head to len, and head <= 64 <= len. The direction flag is clear: both count upwards. The
    // caller keeps them mapped meanwhile.
    unsafe {
        asm!(
            "rep movsb",
            inout("rdi") dst.wrapping_add(head) => _,
            inout("rsi") src.wrapping_add(head) => _,
            inout("rcx") len - head => _,
            options(nostack, preserves_flags),
        );
    }
}

/// A word of which every byte is `byte`.
#[inline]
fn spread(byte: u8) -> u64 {
    u64::from(byte) * 0x0101_0101_0101_0101
}

/// Writes `byte` to `len` bytes.
///
/// # Safety
/// As [`fill`](super::fill()).
#[inline]
pub(super) unsafe fn fill(dst: *mut u8, byte: u8, len: usize) {
    let word = spread(byte);
    if len <= 16 {
        // SAFETY: the caller's promise, and len <= 16.
        unsafe { fill_to_16(dst, word, len) }
    } else if len <= 32 {
        // SAFETY: writes dst[0..16] and dst[len-16..len]; 16 < len, so both lie within. The caller keeps them mapped
        // meanwhile.
        unsafe {
            asm!(
                spread_inlined!(),
                concat!(movu!(), " xmmword ptr [{d}], xmm0"),
                concat!(movu!(), " xmmword ptr [{d} + {n} - 16], xmm0"),
                d = in(reg) dst, n = in(reg) len, p = in(reg) word, out("xmm0") _,
                options(nostack, preserves_flags),
            );
        }
    } else if len <= 64 {
        // SAFETY: writes dst[0..32] and dst[len-32..len]; 32 < len, so both lie within. The caller keeps them mapped
        // meanwhile.
        unsafe {
            asm!(
                spread_inlined!(),
                concat!(movu!(), " xmmword ptr [{d}], xmm0"),
                concat!(movu!(), " xmmword ptr [{d} + 16], xmm0"),
                concat!(movu!(), " xmmword ptr [{d} + {n} - 32], xmm0"),
                concat!(movu!(), " xmmword ptr [{d} + {n} - 16], xmm0"),
                d = in(reg) dst, n = in(reg) len, p = in(reg) word, out("xmm0") _,
                options(nostack, preserves_flags),
            );
        }
    } else {
        // SAFETY: the caller's promise, and 64 < len.
        unsafe { fill_long(dst, byte, len) }
    }
}

/// # Safety
/// As [`fill`], and `len <= 16`; every byte of `word` is the one to write.
#[inline]
unsafe fn fill_to_16(dst: *mut u8, word: u64, len: usize) {
    if len >= 8 {
        // SAFETY: writes dst[0..8] and dst[len-8..len]; 8 <= len, so both lie within. The caller keeps them mapped
        // meanwhile.
        unsafe {
            asm!(
                "mov qword ptr [{d}], {p}",
                "mov qword ptr [{d} + {n} - 8], {p}",
                d = in(reg) dst, n = in(reg) len, p = in(reg) word,
                options(nostack, preserves_flags),
            );
        }
    } else if len >= 4 {
        // SAFETY: writes dst[0..4] and dst[len-4..len]; 4 <= len, so both lie within. The caller keeps them mapped
        // meanwhile.
        unsafe {
            asm!(
                "mov dword ptr [{d}], {p:e}",
                "mov dword ptr [{d} + {n} - 4], {p:e}",
                d = in(reg) dst, n = in(reg) len, p = in(reg) word,
                options(nostack, preserves_flags),
            );
        }
    } else if len >= 1 {
        // SAFETY: writes dst[0], dst[len/2] and dst[len-1], which is all of one to three bytes; 1 <= len, so they lie
        // within. The caller keeps them mapped meanwhile.
        unsafe {
            asm!(
                "mov byte ptr [{d}], {p:l}",
                "mov byte ptr [{d} + {h}], {p:l}",
                "mov byte ptr [{d} + {n} - 1], {p:l}",
                d = in(reg) dst, n = in(reg) len, h = in(reg) len / 2, p = in(reg) word,
                options(nostack, preserves_flags),
            );
        }
    }
}

/// # Safety
/// As [`fill`], and `64 < len`.
#[inline(never)]
unsafe fn fill_long(dst: *mut u8, byte: u8, len: usize) {
    let features = features();
    if features == 0 {
        // SAFETY: the caller's promise, and 64 < len.
        unsafe { fill_detecting(dst, byte, len) }
    } else if features & AVX != 0 {
        // SAFETY: the caller's promise, 64 < len, and AVX is there.
        unsafe { avx::fill(dst, byte, len) }
    } else {
        // SAFETY: the caller's promise, and 64 < len.
        unsafe { sse2::fill(dst, byte, len) }
    }
}

/// The first long fill.
///
/// # Safety
/// As [`fill`], and `64 < len`.
#[cold]
#[inline(never)]
unsafe fn fill_detecting(dst: *mut u8, byte: u8, len: usize) {
    detect();
    // SAFETY: the caller's promise, and 64 < len.
    unsafe { fill_long(dst, byte, len) }
}

/// The kernels this processor has, each with the least length it is made for.
#[cfg(test)]
pub(super) fn kernels() -> Vec<super::tests::Kernel> {
    detect();
    let mut all: Vec<super::tests::Kernel> =
        vec![("sse2", 65, sse2::copy, sse2::fill), ("rep", 64, copy_rep, fill)];
    if features() & AVX != 0 {
        all.push(("avx", 65, avx::copy, avx::fill));
    }
    all
}
