//! A count that is odd while events are read and applied.

use crate::sync::{AtomicU64, Ordering, fence};

/// Written by the handler alone. On a cache line of its own: each look-up reads it.
#[derive(Debug)]
#[repr(align(64))]
pub(super) struct Seq(AtomicU64);

impl Seq {
    pub(super) fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    #[inline]
    pub(super) fn now(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }

    /// Makes it odd, for all who go on because of what the caller does next; answers what it was.
    pub(super) fn enter(&self) -> u64 {
        let before = self.0.load(Ordering::Relaxed);
        self.0.store(before | 1, Ordering::SeqCst);
        // The thread that `read` releases must see it odd: the store comes before what the kernel does.
        fence(Ordering::SeqCst);
        before & !1
    }

    /// Makes it even again: the next even number when something was applied, else what it was.
    pub(super) fn leave(&self, before: u64, applied: bool) {
        self.0.store(if applied { before.wrapping_add(2) } else { before }, Ordering::Release);
    }
}

#[cfg(not(loom))]
#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn odd_within_and_even_after() {
        let seq = Seq::new();
        assert_eq!(seq.now(), 0);
        let before = seq.enter();
        assert_eq!(seq.now(), 1);
        seq.leave(before, false);
        assert_eq!(seq.now(), 0);
        let before = seq.enter();
        assert_eq!(seq.enter(), before, "entered twice, by who takes over");
        seq.leave(before, true);
        assert_eq!(seq.now(), 2);
    }
}
