//! Ranges within which memory is being changed right now, by who announces that.

use crate::mem::page::PageRange;
use crate::sync::{AtomicU64, AtomicUsize, Ordering, fence};

/// As many as are open at once and told apart; one more, and everything counts as within a window.
const SLOTS: usize = 64;

/// Which are open. Neither allocates nor locks: a hook may stand within an allocator.
#[derive(Debug)]
pub(super) struct Windows {
    /// Slots that belong to somebody.
    claimed: AtomicU64,
    /// Those of them whose bounds are in place.
    open: AtomicU64,
    /// Windows without a slot.
    crowd: AtomicUsize,
    slots: [[AtomicUsize; 2]; SLOTS],
}

impl Windows {
    pub(super) fn new() -> Self {
        Self {
            claimed: AtomicU64::new(0),
            open: AtomicU64::new(0),
            crowd: AtomicUsize::new(0),
            slots: std::array::from_fn(|_| [AtomicUsize::new(0), AtomicUsize::new(0)]),
        }
    }

    /// Opens one: in the slot answered, or in none when all are taken.
    ///
    /// Whoever asks [`Windows::overlap`] from now on finds it, or has done what the opener finds when it looks after this.
    pub(super) fn open(&self, range: PageRange) -> Option<usize> {
        let slot = self.claim();
        match slot {
            Some(slot) => {
                let [start, end] = &self.slots[slot];
                start.store(range.start(), Ordering::Relaxed);
                end.store(range.end(), Ordering::Relaxed);
                self.open.fetch_or(1 << slot, Ordering::SeqCst);
            }
            None => {
                self.crowd.fetch_add(1, Ordering::SeqCst);
            }
        }
        fence(Ordering::SeqCst);
        slot
    }

    fn claim(&self) -> Option<usize> {
        let mut claimed = self.claimed.load(Ordering::Relaxed);
        loop {
            let slot = claimed.trailing_ones() as usize;
            if slot >= SLOTS {
                return None;
            }
            match self.claimed.compare_exchange(
                claimed,
                claimed | 1 << slot,
                Ordering::Acquire,
                Ordering::Relaxed,
            ) {
                Ok(_) => return Some(slot),
                Err(other) => claimed = other,
            }
        }
    }

    /// Closes the one that [`Windows::open`] put there.
    pub(super) fn close(&self, slot: Option<usize>) {
        match slot {
            Some(slot) => {
                self.open.fetch_and(!(1 << slot), Ordering::SeqCst);
                self.claimed.fetch_and(!(1 << slot), Ordering::Release);
            }
            None => {
                self.crowd.fetch_sub(1, Ordering::SeqCst);
            }
        }
    }

    /// Whether one is open that has all of `range`. Among so many that they cannot be told apart, none is.
    pub(super) fn cover(&self, range: PageRange) -> bool {
        self.open_slots().any(|slot| {
            let [start, end] = &self.slots[slot];
            let from = start.load(Ordering::Acquire);
            let covers = from <= range.start() && range.end() <= end.load(Ordering::Acquire);
            // Closed, and opened anew in between, it could be half of one and half of the other.
            covers
                && start.load(Ordering::Acquire) == from
                && self.open.load(Ordering::SeqCst) & 1 << slot != 0
        })
    }

    /// The slots of those that are open now.
    fn open_slots(&self) -> impl Iterator<Item = usize> {
        let mut open = self.open.load(Ordering::SeqCst);
        std::iter::from_fn(move || {
            let slot = open.trailing_zeros() as usize;
            open &= open.wrapping_sub(1);
            (slot < SLOTS).then_some(slot)
        })
    }

    /// Whether one is open that has a page in common with `range`.
    ///
    /// Exact for windows that are open during the whole call; of those that are opened or closed meanwhile it may say either.
    pub(super) fn overlap(&self, range: PageRange) -> bool {
        fence(Ordering::SeqCst);
        if self.crowd.load(Ordering::SeqCst) > 0 {
            return true;
        }
        self.open_slots().any(|slot| {
            let [start, end] = &self.slots[slot];
            start.load(Ordering::Acquire) < range.end() && range.start() < end.load(Ordering::Acquire)
        })
    }
}

#[cfg(not(loom))]
#[cfg(test)]
mod tests {
    use super::*;
    use crate::mem::page::page_size;

    fn pages(from: usize, to: usize) -> PageRange {
        PageRange::new(from * page_size(), to * page_size()).unwrap()
    }

    #[test]
    fn open_ones_are_found_and_closed_ones_are_not() {
        let windows = Windows::new();
        assert!(!windows.overlap(PageRange::everything()));
        let first = windows.open(pages(1, 3));
        let second = windows.open(pages(8, 9));
        assert!(
            windows.overlap(pages(2, 4)) && windows.overlap(pages(8, 9)) && !windows.overlap(pages(3, 8))
        );
        assert!(windows.cover(pages(1, 3)) && windows.cover(pages(2, 3)));
        assert!(!windows.cover(pages(2, 4)) && !windows.cover(pages(0, 2)) && !windows.cover(pages(1, 9)));
        windows.close(first);
        assert!(!windows.overlap(pages(1, 3)) && windows.overlap(pages(8, 9)));
        windows.close(second);
        assert!(!windows.overlap(PageRange::everything()));
    }

    #[test]
    fn when_there_is_no_room_everything_is_within_one() {
        let windows = Windows::new();
        let open: Vec<_> = (0..SLOTS + 2).map(|_| windows.open(pages(1, 2))).collect();
        assert_eq!(open.iter().filter(|slot| slot.is_none()).count(), 2);
        assert!(windows.overlap(pages(100, 101)) && !windows.cover(pages(100, 101)));
        open.iter().for_each(|slot| windows.close(*slot));
        assert!(!windows.overlap(PageRange::everything()));
    }

    #[test]
    fn of_many_threads() {
        let windows = Windows::new();
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let windows = &windows;
                scope.spawn(move || {
                    let mine = pages(10 * thread + 1, 10 * thread + 3);
                    for _ in 0..2_000 {
                        let slot = windows.open(mine);
                        assert!(windows.overlap(mine));
                        windows.close(slot);
                    }
                });
            }
        });
        assert!(!windows.overlap(PageRange::everything()));
    }
}
