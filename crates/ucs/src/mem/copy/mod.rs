//! Copying, filling and accessing memory that others may be changing at the same time.
//!
//! All memory a peer can reach is touched through this module: by address, never by reference, because a reference to
//! memory that changes under it is undefined behaviour, and because plain and volatile accesses that race are a data
//! race.
//!
//! # Specification
//! [`copy()`] and [`fill()`] are **relaxed byte-wise atomic**:
//! - Each byte of the source is loaded, and each byte of the destination stored, atomically and relaxed; once or more
//!   often, in any order. A byte arrives whole, several bytes do not: whoever copies what is being written may get some
//!   bytes of before and some of after.
//! - They race with no other access of this module, nor with an atomic one. A plain access at the same time is the data
//!   race it always is.
//! - They order nothing. To publish what was copied, follow the copy by a store of a flag with [`StoreOrder::Release`];
//!   to read what was published, precede it by a load with [`LoadOrder::Acquire`].
//! - As a destination's byte may be stored more than once until the call returns, a flag others react to is not to lie
//!   within what is copied: it is stored by [`store_u64`] and its like.
//!
//! A process that maps the memory and breaks these rules changes the values found, and nothing else: the kernels decide
//! nothing by what they read.
//!
//! # Implementation
//! On x86_64 the kernels are assembly, which gives the speed of `memcpy` without being one. Elsewhere, and where
//! assembly hides accesses from a tool (loom, the sanitizers by `--cfg rucx_sanitizer`, Miri), they are loops of relaxed
//! atomics. Miri needs `-Zmiri-tree-borrows` to accept a source that was borrowed shared.

#![allow(unsafe_code)]

#[cfg(any(
    test,
    not(all(target_arch = "x86_64", target_feature = "sse2", not(any(loom, rucx_sanitizer, miri))))
))]
mod fallback;
#[cfg(test)]
mod tests;
#[cfg(all(target_arch = "x86_64", target_feature = "sse2", not(any(loom, rucx_sanitizer, miri))))]
mod x86_64;

#[cfg(not(all(target_arch = "x86_64", target_feature = "sse2", not(any(loom, rucx_sanitizer, miri)))))]
use fallback as kernel;
#[cfg(all(target_arch = "x86_64", target_feature = "sse2", not(any(loom, rucx_sanitizer, miri))))]
use x86_64 as kernel;

// std's atomics: loom's cannot lie in memory somebody else allocated.
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

/// Copies `len` bytes from `src` to `dst`, as a relaxed byte-wise atomic copy.
///
/// # Safety
/// - `src` must be readable and `dst` writable for `len` bytes, for as long as the call lasts. For a `len` of 0 they
///   may be anything.
/// - The two must not overlap.
/// - Whoever accesses these bytes meanwhile must do so atomically, or be another process.
#[inline]
pub unsafe fn copy(dst: *mut u8, src: *const u8, len: usize) {
    // SAFETY: the caller's promise.
    unsafe { kernel::copy(dst, src, len) }
}

/// Writes `byte` to the `len` bytes at `dst`, as relaxed byte-wise atomic stores.
///
/// # Safety
/// - `dst` must be writable for `len` bytes, for as long as the call lasts. For a `len` of 0 it may be anything.
/// - Whoever accesses these bytes meanwhile must do so atomically, or be another process.
#[inline]
pub unsafe fn fill(dst: *mut u8, byte: u8, len: usize) {
    // SAFETY: the caller's promise.
    unsafe { kernel::fill(dst, byte, len) }
}

/// The orders a load can have. Unlike [`Ordering`] there is none here that makes a load panic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LoadOrder {
    /// No order.
    Relaxed,
    /// What the store that is read from had before it is seen after the load.
    Acquire,
    /// [`Acquire`](Self::Acquire), and one order of all accesses that are sequentially consistent.
    SeqCst,
}

/// The orders a store can have. Unlike [`Ordering`] there is none here that makes a store panic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StoreOrder {
    /// No order.
    Relaxed,
    /// What comes before the store is seen by whoever reads from it by [`LoadOrder::Acquire`].
    Release,
    /// [`Release`](Self::Release), and one order of all accesses that are sequentially consistent.
    SeqCst,
}

impl From<LoadOrder> for Ordering {
    #[inline]
    fn from(order: LoadOrder) -> Self {
        match order {
            LoadOrder::Relaxed => Self::Relaxed,
            LoadOrder::Acquire => Self::Acquire,
            LoadOrder::SeqCst => Self::SeqCst,
        }
    }
}

impl From<StoreOrder> for Ordering {
    #[inline]
    fn from(order: StoreOrder) -> Self {
        match order {
            StoreOrder::Relaxed => Self::Relaxed,
            StoreOrder::Release => Self::Release,
            StoreOrder::SeqCst => Self::SeqCst,
        }
    }
}

macro_rules! accesses {
    ($($load:ident, $store:ident: $value:ident as $atomic:ident, $size:literal;)*) => { $(
        #[doc = concat!("Loads ", $size, " atomically, in the processor's byte order.")]
        ///
        /// # Safety
        #[doc = concat!("- `at` must be readable for ", $size, " and aligned to that, for as long as the call lasts.")]
        /// - Whoever accesses these bytes meanwhile must do so atomically, or be another process.
        #[inline]
        #[must_use]
        pub unsafe fn $load(at: *const $value, order: LoadOrder) -> $value {
            // SAFETY: readable, aligned and mapped for the call by the caller's promise. That it may not be writable is
            // no matter: a load of this size is one load instruction (std::sync::atomic, "Atomic accesses to read-only
            // memory").
            unsafe { $atomic::from_ptr(at.cast_mut()) }.load(order.into())
        }

        #[doc = concat!("Stores ", $size, " atomically, in the processor's byte order.")]
        ///
        /// # Safety
        #[doc = concat!("- `at` must be writable for ", $size, " and aligned to that, for as long as the call lasts.")]
        /// - Whoever accesses these bytes meanwhile must do so atomically, or be another process.
        #[inline]
        pub unsafe fn $store(at: *mut $value, value: $value, order: StoreOrder) {
            // SAFETY: writable, aligned and mapped for the call by the caller's promise.
            unsafe { $atomic::from_ptr(at) }.store(value, order.into());
        }
    )* };
}

accesses! {
    load_u8, store_u8: u8 as AtomicU8, "1 byte";
    load_u16, store_u16: u16 as AtomicU16, "2 bytes";
    load_u32, store_u32: u32 as AtomicU32, "4 bytes";
    load_u64, store_u64: u64 as AtomicU64, "8 bytes";
}
