//! What watching may cost in mappings.
//!
//! A range that is watched within a larger mapping makes two or three mappings of it, and `vm.max_map_count` bounds those of a process
//! (65,530 by default): when they are used up, no memory can be mapped, nor unmapped in parts, and no thread be started. So that half of
//! them are left to the application, ranges are watched exactly only while there are few; then the whole mappings are that they lie
//! in, which adds none, and makes one again of pieces.

// std's atomics: this is no part of a model, and counts down.
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};

use crate::mem;
use crate::mem::error::Limit;

/// After so many ranges the mappings are counted anew: the application makes some, too.
const ROUND: i64 = 4096;
/// Mappings that one range adds at most.
const EACH: u64 = 2;
/// Fewer ranges than that are not worth a count.
const WORTH: i64 = ROUND / 4;

/// Whether ranges are watched exactly.
#[derive(Debug)]
pub(super) struct Pieces {
    /// Ranges until the mappings are counted again.
    left: AtomicI64,
    whole: AtomicBool,
    /// How many mappings the process may have for ranges to be watched exactly.
    share: fn() -> u64,
}

/// Half of what the system allows.
pub(super) fn half_of_all() -> u64 {
    Limit::MapCount.value() / 2
}

impl Pieces {
    pub(super) fn new(share: fn() -> u64) -> Self {
        Self { left: AtomicI64::new(0), whole: AtomicBool::new(false), share }
    }

    /// Whether the next range is watched with all of its mappings.
    pub(super) fn next_is_whole(&self) -> bool {
        match self.left.fetch_sub(1, Ordering::Relaxed) {
            0 => self.count(),
            _ => self.whole.load(Ordering::Relaxed), // below zero, another thread is counting
        }
    }

    #[cold]
    fn count(&self) -> bool {
        let room = mem::mappings().map_or(0, |there| (self.share)().saturating_sub(there) / EACH);
        let room = i64::try_from(room).unwrap_or(i64::MAX).min(ROUND);
        let whole = room < WORTH;
        self.whole.store(whole, Ordering::Relaxed);
        self.left.store(if whole { ROUND } else { room } - 1, Ordering::Relaxed);
        whole
    }
}

#[cfg(not(loom))]
#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exact_while_there_is_room() {
        let pieces = Pieces::new(|| u64::MAX);
        assert!((0..3 * ROUND).all(|_| !pieces.next_is_whole()));
        let pieces = Pieces::new(|| 0);
        assert!((0..3 * ROUND).all(|_| pieces.next_is_whole()));
    }

    #[test]
    fn counted_by_one_thread_once_a_round() {
        use std::sync::atomic::AtomicU64 as Counter;
        static COUNTS: Counter = Counter::new(0);
        let share = || {
            COUNTS.fetch_add(1, Ordering::Relaxed);
            u64::MAX
        };
        let pieces = Pieces::new(share);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| assert!((0..ROUND).all(|_| !pieces.next_is_whole())));
            }
        });
        // Those that came while it was counted took no part in the round.
        let counts = COUNTS.load(Ordering::Relaxed);
        assert!((1..=5).contains(&counts), "{counts}");
    }
}
