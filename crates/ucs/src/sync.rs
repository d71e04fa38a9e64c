//! Atomics, swapped for loom's under `--cfg loom`.
//!
//! Every crate of rucx takes its atomics from here (`cargo xtask tidy` refuses others), so that lock-free parts can be model-checked.

#[cfg(not(loom))]
pub use std::sync::atomic::{
    AtomicBool, AtomicU8, AtomicU16, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence,
};

#[cfg(loom)]
pub use loom::sync::atomic::{
    AtomicBool, AtomicU8, AtomicU16, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence,
};

/// A 64-bit word in memory that others see: std's, also under loom, whose atomics cannot lie in a mapping.
pub type Word64 = std::sync::atomic::AtomicU64;
/// A 32-bit word in memory that others see, as [`Word64`].
pub type Word32 = std::sync::atomic::AtomicU32;

/// A number of this thread's own, below 1024: threads that spread by it over several places seldom meet. 0 while the thread ends.
#[inline]
#[must_use]
pub fn lane() -> usize {
    static NEXT: Word64 = Word64::new(0);
    thread_local! {
        static LANE: usize = usize::try_from(NEXT.fetch_add(1, Ordering::Relaxed) % 1024).unwrap_or(0);
    }
    LANE.try_with(|lane| *lane).unwrap_or(0)
}

/// A 64-bit word that several parties, perhaps of several processes, read and write.
///
/// Protocols over words in shared mappings are generic over this trait: loom's atomics cannot lie in shared memory, so a
/// model runs the same code over [`AtomicU64`] of loom, and production over words of a mapping.
pub trait Word {
    /// Atomic load.
    fn load(&self, order: Ordering) -> u64;
    /// Atomic store.
    fn store(&self, value: u64, order: Ordering);
    /// Atomic compare-exchange; `Err` holds the value found.
    ///
    /// # Errors
    /// The word held something else than `current`.
    fn compare_exchange(
        &self,
        current: u64,
        new: u64,
        success: Ordering,
        failure: Ordering,
    ) -> Result<u64, u64>;
}

macro_rules! word {
    ($type:ty) => {
        impl Word for $type {
            #[inline]
            fn load(&self, order: Ordering) -> u64 {
                Self::load(self, order)
            }

            #[inline]
            fn store(&self, value: u64, order: Ordering) {
                Self::store(self, value, order);
            }

            #[inline]
            fn compare_exchange(
                &self,
                current: u64,
                new: u64,
                success: Ordering,
                failure: Ordering,
            ) -> Result<u64, u64> {
                Self::compare_exchange(self, current, new, success, failure)
            }
        }
    };
}

word!(Word64);
#[cfg(loom)]
word!(AtomicU64);
