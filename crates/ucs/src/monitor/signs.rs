//! What each look-up reads: a count that is odd while events are read and applied, and what is known of announcements.

use crate::sync::{AtomicU32, AtomicU64, Ordering, fence};

/// What is known of announcements: there are no hooks; all was announced since there are; something was not.
const UNHOOKED: u32 = 0;
const ALL: u32 = 1;
const BROKEN: u32 = 2;

/// What a monitor answers without a call. On a cache line of its own: each look-up reads it.
#[derive(Debug)]
#[repr(align(64))]
pub struct Signs {
    /// Written by the handler alone.
    seq: AtomicU64,
    /// Whether the C library's calls announce themselves, and all that change memory have come from there so far.
    announced: AtomicU32,
}

impl Default for Signs {
    fn default() -> Self {
        Self { seq: AtomicU64::new(0), announced: AtomicU32::new(UNHOOKED) }
    }
}

impl Signs {
    /// See [`super::Monitor::seq`].
    #[inline]
    #[must_use]
    pub fn seq(&self) -> u64 {
        self.seq.load(Ordering::Acquire)
    }

    /// See [`super::Monitor::announces`].
    #[inline]
    #[must_use]
    pub fn announces(&self) -> bool {
        self.announced.load(Ordering::Acquire) == ALL
    }

    /// Announcements begin, unless they have ended: once broken, for good.
    #[cfg(all(feature = "hooks", target_arch = "x86_64"))]
    pub(super) fn hooked(&self) {
        let _ = self.announced.compare_exchange(UNHOOKED, ALL, Ordering::SeqCst, Ordering::Relaxed);
    }

    /// Something was not announced. Whether that is news.
    pub(super) fn unannounced(&self) -> bool {
        self.announced.compare_exchange(ALL, BROKEN, Ordering::SeqCst, Ordering::Relaxed).is_ok()
    }

    /// Makes it odd, for all who go on because of what the caller does next; answers what it was.
    pub(crate) fn enter(&self) -> u64 {
        let before = self.seq.load(Ordering::Relaxed);
        self.seq.store(before | 1, Ordering::SeqCst);
        // The thread that `read` releases must see it odd: the store comes before what the kernel does.
        fence(Ordering::SeqCst);
        before & !1
    }

    /// Makes it even again: the next even number when something was applied, else what it was.
    pub(crate) fn leave(&self, before: u64, applied: bool) {
        self.seq.store(if applied { before.wrapping_add(2) } else { before }, Ordering::Release);
    }
}

#[cfg(not(loom))]
#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn odd_within_and_even_after() {
        let seq = Signs::default();
        assert_eq!(seq.seq(), 0);
        let before = seq.enter();
        assert_eq!(seq.seq(), 1);
        seq.leave(before, false);
        assert_eq!(seq.seq(), 0);
        let before = seq.enter();
        assert_eq!(seq.enter(), before, "entered twice, by who takes over");
        seq.leave(before, true);
        assert_eq!(seq.seq(), 2);
    }

    #[test]
    fn announcements_end_for_good() {
        let signs = Signs::default();
        assert!(!signs.announces() && !signs.unannounced());
        signs.announced.store(ALL, Ordering::Relaxed);
        assert!(signs.announces() && signs.unannounced() && !signs.unannounced() && !signs.announces());
        #[cfg(all(feature = "hooks", target_arch = "x86_64"))]
        signs.hooked();
        assert!(!signs.announces());
    }
}
