//! Ranking by vectors.
//!
//! | | keys a comparison | instructions for 32 keys |
//! |---|---|---|
//! | SSE2 | 4 | 27 |
//! | AVX2 and POPCNT | 8 | 13 |
//! | AVX-512 and POPCNT | 16 | 8 |
//!
//! Fewer instructions a level mean that more lookups fit into what a processor looks ahead. AVX-512 is used through register 16 alone:
//! no code compiled for less knows it, and none is slowed down by its upper part.
//!
//! # Safety
//! Keys may change while they are read, so vectors are loaded by assembly, to which Rust's rules of data races do not apply; to
//! the processor each key is one aligned word, which does not tear (Intel's Software Developer's Manual, "Guaranteed Atomic
//! Operations": nothing is promised for vectors, and nothing is needed). Every load is of bytes within the borrowed [`Keys`], which are
//! aligned to 64. Functions with a target feature are called where the processor has it.

#![allow(unsafe_code)]

use core::arch::asm;
use core::arch::x86_64::{
    __m128i, __m256i, _MM_HINT_T0, _mm_cmpgt_epi32, _mm_movemask_epi8, _mm_packs_epi16, _mm_packs_epi32,
    _mm_prefetch, _mm_set1_epi32, _mm256_cmpgt_epi32, _mm256_movemask_epi8, _mm256_packs_epi16,
    _mm256_packs_epi32, _mm256_set1_epi32,
};

use super::{FLIP, Keys, Rank, Search};
use crate::sync::AtomicU32;

/// What a processor has. Made by [`Way::all`] only, from what it says of itself.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct Way(Vectors);

#[derive(Clone, Copy, Debug)]
enum Vectors {
    Sse2,
    Avx2,
    Avx512,
}

impl Way {
    /// All that this processor has, the best first.
    pub(in super::super) fn all() -> impl Iterator<Item = Self> {
        let popcnt = std::is_x86_feature_detected!("popcnt");
        let avx2 = popcnt && std::is_x86_feature_detected!("avx2");
        let avx512 = popcnt && std::is_x86_feature_detected!("avx512f");
        let all = [(avx512, Vectors::Avx512), (avx2, Vectors::Avx2), (true, Vectors::Sse2)];
        all.into_iter().filter(|(there, _)| *there).map(|(_, vectors)| Self(vectors))
    }

    /// The best of this processor.
    pub(in super::super) fn best() -> Self {
        Self::all().next().unwrap_or(Self(Vectors::Sse2))
    }

    /// Searches.
    #[inline]
    pub(in super::super) fn search<S: Search>(self, key: u32, search: S) -> S::Found {
        match self.0 {
            // SAFETY: the processor has AVX-512 and POPCNT.
            Vectors::Avx512 => unsafe { search_avx512(key, search) },
            // SAFETY: the processor has AVX2 and POPCNT.
            Vectors::Avx2 => unsafe { search_avx2(key, search) },
            Vectors::Sse2 => search_sse2(key, search),
        }
    }
}

// Not inlined: a function with features cannot be into one without, and three copies in each place would not pay.

#[target_feature(enable = "popcnt")]
#[inline(never)]
unsafe fn search_avx512<S: Search>(key: u32, search: S) -> S::Found {
    search.by(Avx512(key ^ FLIP))
}

#[target_feature(enable = "avx2,popcnt")]
#[inline(never)]
fn search_avx2<S: Search>(key: u32, search: S) -> S::Found {
    search.by(Avx2(_mm256_set1_epi32((key ^ FLIP).cast_signed())))
}

#[inline(never)]
fn search_sse2<S: Search>(key: u32, search: S) -> S::Found {
    // SAFETY: all processors of x86_64 have SSE2.
    search.by(Sse2(unsafe { _mm_set1_epi32((key ^ FLIP).cast_signed()) }))
}

#[inline(always)]
fn prefetch<T>(values: &[T]) {
    for line in values.chunks(64 / size_of::<T>()) {
        // SAFETY: a hint, allowed for any address.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(line.as_ptr().cast()) };
    }
}

/// A key, four times.
#[derive(Clone, Copy, Debug)]
struct Sse2(__m128i);

impl Rank for Sse2 {
    #[inline(always)]
    fn among<const WIDTH: usize>(self, keys: &Keys<WIDTH>) -> usize {
        const { assert!(WIDTH.is_multiple_of(16) && WIDTH < 64) }
        let mut greater = 0;
        for (keys, shift) in keys.0.as_chunks().0.iter().zip([0, 16, 32]) {
            // SAFETY: all processors of x86_64 have SSE2. The keys begin a cache line.
            greater |= unsafe { greater_sse2(keys, self.0) } << shift;
        }
        (greater | 1 << WIDTH).trailing_zeros() as usize
    }

    #[inline(always)]
    fn prefetch<T>(self, values: &[T]) {
        prefetch(values);
    }
}

/// A bit for each of the keys, which are aligned to 16 bytes, that is greater than `key`.
#[target_feature(enable = "sse2")]
#[inline]
unsafe fn greater_sse2(keys: &[AtomicU32; 16], key: __m128i) -> u64 {
    let [a, b, c, d]: [__m128i; 4];
    // SAFETY: 64 bytes of the keys, aligned.
    unsafe {
        #[cfg(not(target_feature = "avx"))]
        asm!(
            "movdqa {a}, [{keys}]",
            "movdqa {b}, [{keys} + 16]",
            "movdqa {c}, [{keys} + 32]",
            "movdqa {d}, [{keys} + 48]",
            keys = in(reg) keys,
            a = out(xmm_reg) a, b = out(xmm_reg) b, c = out(xmm_reg) c, d = out(xmm_reg) d,
            options(nostack, preserves_flags, readonly),
        );
        // In code compiled for AVX, an SSE instruction would meet upper halves the compiler left dirty.
        #[cfg(target_feature = "avx")]
        asm!(
            "vmovdqa {a}, [{keys}]",
            "vmovdqa {b}, [{keys} + 16]",
            "vmovdqa {c}, [{keys} + 32]",
            "vmovdqa {d}, [{keys} + 48]",
            keys = in(reg) keys,
            a = out(xmm_reg) a, b = out(xmm_reg) b, c = out(xmm_reg) c, d = out(xmm_reg) d,
            options(nostack, preserves_flags, readonly),
        );
    }
    let ab = _mm_packs_epi32(_mm_cmpgt_epi32(a, key), _mm_cmpgt_epi32(b, key));
    let cd = _mm_packs_epi32(_mm_cmpgt_epi32(c, key), _mm_cmpgt_epi32(d, key));
    u64::from(_mm_movemask_epi8(_mm_packs_epi16(ab, cd)).cast_unsigned())
}

/// A key, eight times. Only [`search_avx2`] makes one.
#[derive(Clone, Copy, Debug)]
struct Avx2(__m256i);

impl Rank for Avx2 {
    #[inline(always)]
    fn among<const WIDTH: usize>(self, keys: &Keys<WIDTH>) -> usize {
        const { assert!(WIDTH == 16 || WIDTH == 32) }
        let greater = match (keys.0.as_chunks().0, keys.0.as_chunks().0) {
            // SAFETY: the processor has both features, or there would be no `Avx2`. The keys begin a cache line.
            ([keys], _) => unsafe { greater_avx2_32(keys, self.0) },
            // SAFETY: as above.
            (_, [keys]) => unsafe { greater_avx2_16(keys, self.0) },
            _ => 0,
        };
        WIDTH - greater
    }

    #[inline(always)]
    fn prefetch<T>(self, values: &[T]) {
        prefetch(values);
    }
}

/// How many of the keys, which are aligned to 32 bytes, are greater than `key`.
#[target_feature(enable = "avx2,popcnt")]
#[inline]
unsafe fn greater_avx2_16(keys: &[AtomicU32; 16], key: __m256i) -> usize {
    let [a, b]: [__m256i; 2];
    // SAFETY: 64 bytes of the keys, aligned.
    unsafe {
        asm!(
            "vmovdqa {a}, [{keys}]",
            "vmovdqa {b}, [{keys} + 32]",
            keys = in(reg) keys, a = out(ymm_reg) a, b = out(ymm_reg) b,
            options(nostack, preserves_flags, readonly),
        );
    }
    // Two bits for each.
    let all = _mm256_packs_epi32(_mm256_cmpgt_epi32(a, key), _mm256_cmpgt_epi32(b, key));
    _mm256_movemask_epi8(all).count_ones() as usize / 2
}

/// As [`greater_avx2_16`].
#[target_feature(enable = "avx2,popcnt")]
#[inline]
unsafe fn greater_avx2_32(keys: &[AtomicU32; 32], key: __m256i) -> usize {
    let [a, b, c, d]: [__m256i; 4];
    // SAFETY: 128 bytes of the keys, aligned.
    unsafe {
        asm!(
            "vmovdqa {a}, [{keys}]",
            "vmovdqa {b}, [{keys} + 32]",
            "vmovdqa {c}, [{keys} + 64]",
            "vmovdqa {d}, [{keys} + 96]",
            keys = in(reg) keys,
            a = out(ymm_reg) a, b = out(ymm_reg) b, c = out(ymm_reg) c, d = out(ymm_reg) d,
            options(nostack, preserves_flags, readonly),
        );
    }
    // A bit for each, in another order than theirs.
    let ab = _mm256_packs_epi32(_mm256_cmpgt_epi32(a, key), _mm256_cmpgt_epi32(b, key));
    let cd = _mm256_packs_epi32(_mm256_cmpgt_epi32(c, key), _mm256_cmpgt_epi32(d, key));
    _mm256_movemask_epi8(_mm256_packs_epi16(ab, cd)).count_ones() as usize
}

/// A key. Only [`search_avx512`] makes one.
#[derive(Clone, Copy, Debug)]
struct Avx512(u32);

impl Rank for Avx512 {
    #[inline(always)]
    fn among<const WIDTH: usize>(self, keys: &Keys<WIDTH>) -> usize {
        const { assert!(WIDTH == 16 || WIDTH == 32) }
        let greater: u32;
        if WIDTH == 16 {
            // SAFETY: the processor has both features, or there would be no `Avx512`. 64 bytes of the keys, aligned.
            unsafe {
                asm!(
                    "vpbroadcastd zmm16, {key:e}",
                    "vpcmpltd k1, zmm16, [{keys}]",
                    "kmovw {a:e}, k1",
                    "popcnt {a:e}, {a:e}",
                    key = in(reg) self.0, keys = in(reg) keys, a = out(reg) greater, out("k1") _,
                    options(nostack, readonly),
                );
            }
        } else {
            // SAFETY: as above, and 128 bytes.
            unsafe {
                asm!(
                    "vpbroadcastd zmm16, {key:e}",
                    "vpcmpltd k1, zmm16, [{keys}]",
                    "vpcmpltd k2, zmm16, [{keys} + 64]",
                    "kmovw {a:e}, k1",
                    "kmovw {b:e}, k2",
                    "popcnt {a:e}, {a:e}",
                    "popcnt {b:e}, {b:e}",
                    "add {a:e}, {b:e}",
                    key = in(reg) self.0, keys = in(reg) keys, a = out(reg) greater, b = out(reg) _,
                    out("k1") _, out("k2") _,
                    options(nostack, readonly),
                );
            }
        }
        WIDTH - greater as usize
    }

    #[inline(always)]
    fn prefetch<T>(self, values: &[T]) {
        prefetch(values);
    }
}
