//! What each thread has of a cache for itself: which slots it found last, and how often it found one.
//!
//! A page, and the slot it was found in, is all that is remembered. The slot itself says whether it is still a registration that serves,
//! as it does when the index has answered: so what is remembered may be wrong, and needs no generation. It belongs to the cache, and goes
//! with it.
//!
//! ```text
//! thread ─seat─▶ Desk ┌─16 × (page, slot), by page─┬─hits─┬─checks─┐   written by that thread only
//!                     └────────────────────────────┴──────┴────────┘
//! ```
//!
//! Loads wait for the locked instruction before them, so how long a hit takes among hits is how many loads follow one another until
//! the slot's address is known: the desk lies within the cache's own memory, a page's place there takes no multiplication, and that the
//! page is the right one is known without a look at the slot.

use std::cell::Cell;

use crate::sync::{AtomicU64, Ordering, Word64};

/// How many threads have a desk of their own. Others share one more.
const SEATS: usize = 64;

/// How many slots are remembered.
const RECENT: usize = 16;

/// A thread's own. Of a size by which it takes but a shift to be found.
#[derive(Debug, Default)]
#[repr(C, align(256))]
pub(super) struct Desk {
    /// 32 bits of a page's number, and the slot's.
    recent: [AtomicU64; RECENT],
    hits: AtomicU64,
    checks: AtomicU64,
}

/// All threads'.
#[derive(Debug)]
pub(super) struct Desks([Desk; SEATS + 1]);

impl Desks {
    pub(super) fn new() -> Self {
        Self(std::array::from_fn(|_| Desk::default()))
    }

    /// The calling thread's.
    #[inline]
    pub(super) fn mine(&self) -> Mine<'_> {
        let seat = seat();
        // A seat is at most `SEATS`: the minimum is for the compiler.
        Mine { desk: &self.0[seat.min(SEATS)], is_shared: seat >= SEATS }
    }

    /// The calling thread's, where it has sat at one of its own before.
    #[inline]
    pub(super) fn own(&self) -> Option<Mine<'_>> {
        self.0[..SEATS].get(SEAT.get()).map(|desk| Mine { desk, is_shared: false })
    }

    /// All hits, and all checks.
    pub(super) fn sums(&self) -> (u64, u64) {
        let sum =
            |of: fn(&Desk) -> &AtomicU64| self.0.iter().map(|desk| of(desk).load(Ordering::Relaxed)).sum();
        (sum(|desk| &desk.hits), sum(|desk| &desk.checks))
    }
}

/// A desk at which the calling thread sits.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mine<'a> {
    desk: &'a Desk,
    is_shared: bool,
}

impl Mine<'_> {
    /// The slot in which an address was found.
    #[inline]
    pub(super) fn recent(self, address: usize) -> Option<u32> {
        let page = address >> 12;
        let entry = self.desk.recent[page % RECENT].load(Ordering::Relaxed);
        #[allow(clippy::cast_possible_truncation)] // the halves of an entry
        ((entry >> 32) as u32 == page as u32).then_some(entry as u32)
    }

    /// Remembers in which slot an address was found.
    #[inline]
    pub(super) fn note(self, address: usize, number: u32) {
        let page = address >> 12;
        // Of the page's number, the upper bits fall out.
        self.desk.recent[page % RECENT].store((page as u64) << 32 | u64::from(number), Ordering::Relaxed);
    }

    #[inline]
    pub(super) fn count_hit(self) {
        self.count(&self.desk.hits);
    }

    #[inline]
    pub(super) fn count_check(self) {
        self.count(&self.desk.checks);
    }

    #[inline]
    fn count(self, counter: &AtomicU64) {
        if self.is_shared {
            counter.fetch_add(1, Ordering::Relaxed);
        } else {
            // Nobody else adds to it.
            counter.store(counter.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        }
    }
}

/// A bit for each seat that is taken.
static TAKEN: Word64 = Word64::new(0);

const UNKNOWN: usize = usize::MAX;

thread_local! {
    static SEAT: Cell<usize> = const { Cell::new(UNKNOWN) };
    static HELD: Held = Held::take();
}

/// A seat that is left when the thread ends. [`SEATS`]: none was free.
#[derive(Debug)]
struct Held(usize);

impl Held {
    fn take() -> Self {
        let mut taken = TAKEN.load(Ordering::Relaxed);
        while taken != u64::MAX {
            let free = taken.trailing_ones();
            // Acquire: what who sat there before has counted is seen.
            match TAKEN.compare_exchange(taken, taken | 1 << free, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => return Self(free as usize),
                Err(found) => taken = found,
            }
        }
        Self(SEATS)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        // Of what the thread still does, nothing is at that desk.
        SEAT.set(SEATS);
        if self.0 < SEATS {
            TAKEN.fetch_and(!(1 << self.0), Ordering::Release);
        }
    }
}

/// A number below [`SEATS`] that no other thread has while this one runs, or [`SEATS`].
#[inline]
fn seat() -> usize {
    match SEAT.get() {
        UNKNOWN => sit(),
        seat => seat,
    }
}

#[cold]
fn sit() -> usize {
    let seat = HELD.try_with(|held| held.0).unwrap_or(SEATS);
    SEAT.set(seat);
    seat
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use std::sync::Barrier;

    use super::*;

    #[test]
    fn no_two_threads_have_one_seat_and_seats_are_left() {
        for _ in 0..3 {
            let (barrier, seats) = (Barrier::new(90), parking_lot::Mutex::new(Vec::new()));
            std::thread::scope(|scope| {
                for _ in 0..90 {
                    scope.spawn(|| {
                        let mine = seat();
                        seats.lock().push(mine);
                        barrier.wait();
                        assert_eq!(seat(), mine);
                    });
                }
            });
            let mut own = seats.into_inner();
            own.retain(|seat| *seat < SEATS);
            own.sort_unstable();
            assert!(!own.is_empty() && own.windows(2).all(|pair| pair[0] < pair[1]), "{own:?}");
        }
    }

    #[test]
    fn all_hits_count() {
        let desks = Desks::new();
        std::thread::scope(|scope| {
            for _ in 0..90 {
                scope.spawn(|| (0..1000).for_each(|_| desks.mine().count_hit()));
            }
        });
        desks.mine().count_check();
        assert_eq!(desks.sums(), (90_000, 1));
    }
}
