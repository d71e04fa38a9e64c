//! The vector kernels of x86_64: one text for SSE2 and AVX.
//!
//! In short copies, all loads come before all stores, the last ones overlapping the first ones so that no remainder is
//! left. Above that a loop of four vectors stores aligned, between an unaligned head and tail; it counts upwards unless
//! its stores would then hold back its loads.

/// Declares the kernels over vectors of one kind: `$any` moves one from or to any address, `$aligned` to an aligned
/// one, `$reg` begins its registers' names, `$w` is its size in bytes, `$spread` names its arm of `spread!`, `$clean`
/// ends a block. `$d` is a dollar sign, for the macros within.
macro_rules! vector_kernel {
    ($d:tt $(#[$doc:meta])* $name:ident, $any:literal, $aligned:literal, $reg:literal, $w:literal, $spread:tt, $clean:literal) => {
        $(#[$doc])*
        pub(in super::super) mod $name {
            use core::arch::asm;

            use super::super::{spread, store_aliases_load};

            const W: usize = $w;

            /// Whether a copy takes no loop: up to eight vectors; up to sixteen where stores do not lie across cache
            /// lines, which costs more than the loop that aligns them.
            #[inline]
            pub(in super::super) fn is_straight(dst: *const u8, len: usize) -> bool {
                len <= 8 * W || len <= 16 * W && dst.addr() % W == 0
            }

            macro_rules! load {
                ($n:literal, $at:literal) => {
                    concat!($any, " ", $reg, $n, ", [", $at, "]")
                };
            }
            macro_rules! store {
                ($at:literal, $n:literal) => {
                    concat!($any, " [", $at, "], ", $reg, $n)
                };
            }
            macro_rules! store_aligned {
                ($at:literal, $n:literal) => {
                    concat!($aligned, " [", $at, "], ", $reg, $n)
                };
            }
            /// The lines of a kernel, its end, its operands, and every vector register.
            macro_rules! kernel {
                ([$d($line:expr),* $d(,)?], $d($operand:tt)*) => {
                    asm!(
                        $d($line,)*
                        $clean,
                        w = const W,
                        $d($operand)*
                        out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _,
                        out("xmm4") _, out("xmm5") _, out("xmm6") _, out("xmm7") _,
                        out("xmm8") _, out("xmm9") _, out("xmm10") _, out("xmm11") _,
                        out("xmm12") _, out("xmm13") _, out("xmm14") _, out("xmm15") _,
                        options(nostack),
                    )
                };
            }

            /// # Safety
            /// As [`copy`](super::super::copy), `64 < len`, and the processor has the instructions.
            #[inline]
            pub(in super::super::super) unsafe fn copy(dst: *mut u8, src: *const u8, len: usize) {
                if is_straight(dst, len) {
                    // SAFETY: the caller's promise, and len <= 16 * W.
                    unsafe { copy_straight(dst, src, len) }
                } else if store_aliases_load(dst, src) {
                    // SAFETY: the caller's promise, and 8 * W < len.
                    unsafe { copy_downwards(dst, src, len) }
                } else {
                    // SAFETY: the caller's promise, and 8 * W < len.
                    unsafe { copy_upwards(dst, src, len) }
                }
            }

            /// # Safety
            /// As [`copy`], and `len <= 16 * W`.
            #[inline]
            pub(in super::super) unsafe fn copy_straight(dst: *mut u8, src: *const u8, len: usize) {
                if len <= 4 * W {
                    // SAFETY: reads the first two and the last two vectors of src, writes the same of dst; 2 * W <= 64
                    // < len, so all lie within. The caller keeps both mapped meanwhile.
                    unsafe {
                        kernel!(
                            [
                                load!(0, "{s}"),
                                load!(1, "{s} + {w}"),
                                load!(2, "{s} + {n} - 2*{w}"),
                                load!(3, "{s} + {n} - {w}"),
                                store!("{d}", 0),
                                store!("{d} + {w}", 1),
                                store!("{d} + {n} - 2*{w}", 2),
                                store!("{d} + {n} - {w}", 3),
                            ],
                            s = in(reg) src, d = in(reg) dst, n = in(reg) len,
                        );
                    }
                } else if len <= 8 * W {
                    // SAFETY: reads the first four and the last four vectors of src, writes the same of dst; 4 * W <
                    // len, so all lie within. The caller keeps both mapped meanwhile.
                    unsafe {
                        kernel!(
                            [
                                load!(0, "{s}"),
                                load!(1, "{s} + {w}"),
                                load!(2, "{s} + 2*{w}"),
                                load!(3, "{s} + 3*{w}"),
                                load!(4, "{s} + {n} - 4*{w}"),
                                load!(5, "{s} + {n} - 3*{w}"),
                                load!(6, "{s} + {n} - 2*{w}"),
                                load!(7, "{s} + {n} - {w}"),
                                store!("{d}", 0),
                                store!("{d} + {w}", 1),
                                store!("{d} + 2*{w}", 2),
                                store!("{d} + 3*{w}", 3),
                                store!("{d} + {n} - 4*{w}", 4),
                                store!("{d} + {n} - 3*{w}", 5),
                                store!("{d} + {n} - 2*{w}", 6),
                                store!("{d} + {n} - {w}", 7),
                            ],
                            s = in(reg) src, d = in(reg) dst, n = in(reg) len,
                        );
                    }
                } else {
                    // SAFETY: reads the first eight and the last eight vectors of src, writes the same of dst; 8 * W <
                    // len, so all lie within. The caller keeps both mapped meanwhile.
                    unsafe {
                        kernel!(
                            [
                                load!(0, "{s}"),
                                load!(1, "{s} + {w}"),
                                load!(2, "{s} + 2*{w}"),
                                load!(3, "{s} + 3*{w}"),
                                load!(4, "{s} + 4*{w}"),
                                load!(5, "{s} + 5*{w}"),
                                load!(6, "{s} + 6*{w}"),
                                load!(7, "{s} + 7*{w}"),
                                load!(8, "{s} + {n} - 8*{w}"),
                                load!(9, "{s} + {n} - 7*{w}"),
                                load!(10, "{s} + {n} - 6*{w}"),
                                load!(11, "{s} + {n} - 5*{w}"),
                                load!(12, "{s} + {n} - 4*{w}"),
                                load!(13, "{s} + {n} - 3*{w}"),
                                load!(14, "{s} + {n} - 2*{w}"),
                                load!(15, "{s} + {n} - {w}"),
                                store!("{d}", 0),
                                store!("{d} + {w}", 1),
                                store!("{d} + 2*{w}", 2),
                                store!("{d} + 3*{w}", 3),
                                store!("{d} + 4*{w}", 4),
                                store!("{d} + 5*{w}", 5),
                                store!("{d} + 6*{w}", 6),
                                store!("{d} + 7*{w}", 7),
                                store!("{d} + {n} - 8*{w}", 8),
                                store!("{d} + {n} - 7*{w}", 9),
                                store!("{d} + {n} - 6*{w}", 10),
                                store!("{d} + {n} - 5*{w}", 11),
                                store!("{d} + {n} - 4*{w}", 12),
                                store!("{d} + {n} - 3*{w}", 13),
                                store!("{d} + {n} - 2*{w}", 14),
                                store!("{d} + {n} - {w}", 15),
                            ],
                            s = in(reg) src, d = in(reg) dst, n = in(reg) len,
                        );
                    }
                }
            }

            /// # Safety
            /// As [`copy`], and `8 * W < len`.
            #[inline]
            unsafe fn copy_upwards(dst: *mut u8, src: *const u8, len: usize) {
                let head = W - dst.addr() % W;
                let last = len - 4 * W;
                // SAFETY: reads the first vector and the last four of src, and writes the same of dst; 8 * W < len, so
                // they lie within. The loop covers what is between: it begins at head, 1 <= head <= W, where dst is
                // aligned, and steps by four vectors while it is short of the last four, so each step ends within. The
                // caller keeps both mapped meanwhile.
                unsafe {
                    kernel!(
                        [
                            load!(8, "{s0}"),
                            load!(4, "{sl}"),
                            load!(5, "{sl} + {w}"),
                            load!(6, "{sl} + 2*{w}"),
                            load!(7, "{sl} + 3*{w}"),
                            store!("{d0}", 8),
                            ".p2align 5",
                            "2:",
                            load!(0, "{s}"),
                            load!(1, "{s} + {w}"),
                            load!(2, "{s} + 2*{w}"),
                            load!(3, "{s} + 3*{w}"),
                            "add {s}, 4*{w}",
                            store_aligned!("{d}", 0),
                            store_aligned!("{d} + {w}", 1),
                            store_aligned!("{d} + 2*{w}", 2),
                            store_aligned!("{d} + 3*{w}", 3),
                            "add {d}, 4*{w}",
                            "cmp {d}, {dl}",
                            "jb 2b",
                            store!("{dl}", 4),
                            store!("{dl} + {w}", 5),
                            store!("{dl} + 2*{w}", 6),
                            store!("{dl} + 3*{w}", 7),
                        ],
                        s0 = in(reg) src,
                        d0 = in(reg) dst,
                        sl = in(reg) src.wrapping_add(last),
                        dl = in(reg) dst.wrapping_add(last),
                        s = inout(reg) src.wrapping_add(head) => _,
                        d = inout(reg) dst.wrapping_add(head) => _,
                    );
                }
            }

            /// [`copy_upwards`] mirrored.
            ///
            /// # Safety
            /// As [`copy`], and `8 * W < len`.
            #[inline]
            unsafe fn copy_downwards(dst: *mut u8, src: *const u8, len: usize) {
                let last = len - W;
                let tail = len - dst.addr().wrapping_add(len) % W;
                // SAFETY: reads the first four vectors and the last one of src, and writes the same of dst; 8 * W <
                // len, so they lie within. The loop covers what is between: it begins at tail, last < tail <= len,
                // where dst is aligned, and steps down by four vectors while it is above the first four, so each step
                // ends within. The caller keeps both mapped meanwhile.
                unsafe {
                    kernel!(
                        [
                            load!(8, "{sl}"),
                            load!(4, "{s0}"),
                            load!(5, "{s0} + {w}"),
                            load!(6, "{s0} + 2*{w}"),
                            load!(7, "{s0} + 3*{w}"),
                            store!("{dl}", 8),
                            ".p2align 5",
                            "2:",
                            load!(0, "{s} - {w}"),
                            load!(1, "{s} - 2*{w}"),
                            load!(2, "{s} - 3*{w}"),
                            load!(3, "{s} - 4*{w}"),
                            "sub {s}, 4*{w}",
                            store_aligned!("{d} - {w}", 0),
                            store_aligned!("{d} - 2*{w}", 1),
                            store_aligned!("{d} - 3*{w}", 2),
                            store_aligned!("{d} - 4*{w}", 3),
                            "sub {d}, 4*{w}",
                            "cmp {d}, {d4}",
                            "ja 2b",
                            store!("{d0}", 4),
                            store!("{d0} + {w}", 5),
                            store!("{d0} + 2*{w}", 6),
                            store!("{d0} + 3*{w}", 7),
                        ],
                        s0 = in(reg) src,
                        d0 = in(reg) dst,
                        sl = in(reg) src.wrapping_add(last),
                        dl = in(reg) dst.wrapping_add(last),
                        d4 = in(reg) dst.wrapping_add(4 * W),
                        s = inout(reg) src.wrapping_add(tail) => _,
                        d = inout(reg) dst.wrapping_add(tail) => _,
                    );
                }
            }

            /// # Safety
            /// As [`fill`](super::super::fill), `64 < len`, and the processor has the instructions.
            #[inline]
            pub(in super::super::super) unsafe fn fill(dst: *mut u8, byte: u8, len: usize) {
                if len <= 4 * W {
                    // SAFETY: writes the first two and the last two vectors of dst; 2 * W <= 64 < len, so they lie
                    // within. The caller keeps dst mapped meanwhile.
                    unsafe {
                        kernel!(
                            [
                                spread!($spread),
                                store!("{d}", 0),
                                store!("{d} + {w}", 0),
                                store!("{d} + {n} - 2*{w}", 0),
                                store!("{d} + {n} - {w}", 0),
                            ],
                            p = in(reg) spread(byte), d = in(reg) dst, n = in(reg) len,
                        );
                    }
                    return;
                }
                let head = W - dst.addr() % W;
                // SAFETY: writes the first vector and the last four of dst; 4 * W < len, so they lie within. The loop
                // covers what is between: it begins at head, 1 <= head <= W, where dst is aligned, and takes a step of
                // four vectors only where that begins short of the last four, so each step ends within. The caller
                // keeps dst mapped meanwhile.
                unsafe {
                    kernel!(
                        [
                            spread!($spread),
                            store!("{d0}", 0),
                            "cmp {d}, {dl}",
                            "jae 3f",
                            ".p2align 5",
                            "2:",
                            store_aligned!("{d}", 0),
                            store_aligned!("{d} + {w}", 0),
                            store_aligned!("{d} + 2*{w}", 0),
                            store_aligned!("{d} + 3*{w}", 0),
                            "add {d}, 4*{w}",
                            "cmp {d}, {dl}",
                            "jb 2b",
                            "3:",
                            store!("{dl}", 0),
                            store!("{dl} + {w}", 0),
                            store!("{dl} + 2*{w}", 0),
                            store!("{dl} + 3*{w}", 0),
                        ],
                        p = in(reg) spread(byte),
                        d0 = in(reg) dst,
                        dl = in(reg) dst.wrapping_add(len - 4 * W),
                        d = inout(reg) dst.wrapping_add(head) => _,
                    );
                }
            }
        }
    };
}

vector_kernel!(
    $
    /// SSE2, which every x86_64 processor has.
    sse2, "movups", "movaps", "xmm", 16, sse, ""
);
vector_kernel!(
    $
    /// AVX: not AVX2, whose integer moves would do nothing better.
    avx, "vmovups", "vmovaps", "ymm", 32, avx, "vzeroupper"
);
