//! Ranges whose pages were said to be dropped, and may not have been yet.
//!
//! The event of `MADV_DONTNEED` and its like is sent before the pages go: for a while after the handler has read it the memory still
//! looks alive, and a registration made then would hold pages that go the next moment. Until it is proven that the call is over, who
//! registers such memory must use the registration once and not keep it.
//!
//! # The proof
//!
//! Each such event gets a number when it is read. Its thread is within madvise then, and stays there until the pages are gone. So if
//! a thread is seen outside of madvise, all events with numbers given before are over as far as that thread is concerned; if all
//! threads of the process are, they are over. A thread is seen outside when `/proc/self/task/TID/syscall` shows it waiting
//! elsewhere, or when it is the one that looks. One that runs shows nothing: of such a one the clock of user time is
//! read now, and if it has grown by the next scan, the thread has left since then.
//!
//! That the range is unmapped proves nothing: the thread drops whatever is mapped there when it comes to it.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::counters::Counters;
use super::tasks::{self, Doing};
use crate::mem::page::PageRange;
use crate::sync::{AtomicU64, AtomicUsize, Ordering};

/// Ranges told apart; when there are more, everything is suspect.
const SLOTS: usize = 64;

/// One range. It counts while its number is greater than what is proven; then the handler may use the slot again.
#[derive(Debug)]
struct Suspect {
    number: AtomicU64,
    start: AtomicUsize,
    end: AtomicUsize,
}

/// All of them. Written by the handler alone, but for what is proven.
#[derive(Debug)]
pub(super) struct Suspects {
    /// The number of the last event.
    last: AtomicU64,
    /// Events up to this one are over.
    proven: AtomicU64,
    /// Up to this one there may be some without a slot.
    crowd: AtomicU64,
    slots: [Suspect; SLOTS],
    /// Only who asks takes this, never the handler.
    scan: Mutex<Scan>,
}

/// What earlier scans have seen.
#[derive(Debug, Default)]
struct Scan {
    threads: HashMap<i32, Thread>,
    /// Not before this time again: an expensive scan that proves nothing is not repeated at once.
    next: Option<Instant>,
}

/// What is known of a thread.
#[derive(Clone, Copy, Debug, Default)]
struct Thread {
    /// Events up to this one are over, as far as this thread is concerned.
    proven: u64,
    /// The user time at a scan, before which events up to this number were read.
    mark: Option<(u64, u64)>,
}

impl Suspects {
    pub(super) fn new() -> Self {
        let slot =
            |_| Suspect { number: AtomicU64::new(0), start: AtomicUsize::new(0), end: AtomicUsize::new(0) };
        Self {
            last: AtomicU64::new(0),
            proven: AtomicU64::new(0),
            crowd: AtomicU64::new(0),
            slots: std::array::from_fn(slot),
            scan: Mutex::new(Scan::default()),
        }
    }

    /// The pages of this range are about to be dropped. Called by the handler alone, when the event was read.
    pub(super) fn add(&self, range: PageRange) {
        let number = self.last.load(Ordering::Relaxed) + 1;
        let proven = self.proven.load(Ordering::Acquire);
        let is_over = |slot: &&Suspect| slot.number.load(Ordering::Relaxed) <= proven;
        let same = self.slots.iter().filter(|slot| !is_over(slot)).find(|slot| {
            slot.start.load(Ordering::Relaxed) <= range.start()
                && range.end() <= slot.end.load(Ordering::Relaxed)
        });
        match same.or_else(|| self.slots.iter().find(is_over)) {
            Some(slot) if same.is_some() => slot.number.store(number, Ordering::Release),
            Some(slot) => {
                slot.start.store(range.start(), Ordering::Relaxed);
                slot.end.store(range.end(), Ordering::Relaxed);
                slot.number.store(number, Ordering::Release);
            }
            None => self.crowd.store(number, Ordering::Release),
        }
        self.last.store(number, Ordering::SeqCst);
    }

    /// Whether pages of `range` may still be about to go.
    ///
    /// An event that is applied meanwhile may be missed: who asks compares [`super::Monitor::seq`] before and after.
    #[inline]
    pub(super) fn contain(&self, range: PageRange, counters: &Counters) -> bool {
        let last = self.last.load(Ordering::SeqCst);
        last > self.proven.load(Ordering::Acquire) && self.contain_slowly(range, counters)
    }

    #[cold]
    fn contain_slowly(&self, range: PageRange, counters: &Counters) -> bool {
        if !self.listed(range) {
            return false;
        }
        self.scan(counters);
        self.listed(range)
    }

    /// Whether a range that is not proven over has pages in common with `range`.
    fn listed(&self, range: PageRange) -> bool {
        let proven = self.proven.load(Ordering::Acquire);
        self.crowd.load(Ordering::Acquire) > proven
            || self.slots.iter().any(|slot| {
                slot.number.load(Ordering::Acquire) > proven
                    && slot.start.load(Ordering::Relaxed) < range.end()
                    && range.start() < slot.end.load(Ordering::Relaxed)
            })
    }

    /// Looks at all threads, unless somebody else does, or that was done in vain just now.
    fn scan(&self, counters: &Counters) {
        let Some(mut scan) = self.scan.try_lock() else { return };
        let begin = Instant::now();
        if scan.next.is_some_and(|next| begin < next) {
            return;
        }
        counters.scans.add(1);
        // Read before any thread is looked at: what is seen of them then is after those events were read.
        let last = self.last.load(Ordering::SeqCst);
        let proven = scan.look(last, |dropped| dropped.is_none_or(|range| self.listed(range)));
        self.proven.fetch_max(proven, Ordering::AcqRel);
        if proven < last {
            counters.unproven.add(1);
        }
        // So that scans in vain take no more than a fifth of the time.
        let pause = (begin.elapsed() * 4).max(Duration::from_micros(50));
        scan.next = (proven < last).then(|| Instant::now() + pause);
    }
}

impl Scan {
    /// Looks at all threads; answers up to which event, at most `last`, all is over. `concerns` tells whether pages that a thread is
    /// dropping are of interest.
    fn look(&mut self, last: u64, concerns: impl Fn(Option<PageRange>) -> bool) -> u64 {
        let Some(tids) = tasks::all() else { return 0 };
        let own = tasks::own_id();
        self.threads.retain(|tid, _| tids.contains(tid));
        let mut all = last;
        for tid in tids {
            let thread = self.threads.entry(tid).or_default();
            let doing = if tid == own { Doing::Other } else { tasks::look_at(tid) };
            match doing {
                Doing::Other => thread.proven = last,
                Doing::Dropping(range) if !concerns(range) => thread.proven = last,
                Doing::Running => thread.compare_clock(last, tasks::user_time(tid)),
                Doing::Dropping(_) | Doing::Worker => {}
                Doing::Gone => continue,
            }
            all = all.min(thread.proven);
        }
        all
    }
}

impl Thread {
    /// It runs, and has run in user mode for that long.
    fn compare_clock(&mut self, last: u64, user_time: Option<u64>) {
        let Some(now) = user_time else { return };
        if let Some((number, then)) = self.mark
            && now > then
        {
            self.proven = self.proven.max(number);
            self.mark = None;
        }
        // An older mark is kept until the clock has moved: it proves less, but sooner.
        if self.proven < last && self.mark.is_none() {
            self.mark = Some((last, now));
        }
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
    fn listed_until_proven() {
        let suspects = Suspects::new();
        suspects.add(pages(1, 3));
        suspects.add(pages(8, 9));
        assert!(
            suspects.listed(pages(2, 4)) && suspects.listed(pages(8, 9)) && !suspects.listed(pages(3, 8))
        );
        suspects.proven.store(1, Ordering::Relaxed);
        assert!(!suspects.listed(pages(2, 4)) && suspects.listed(pages(8, 9)));
        suspects.add(pages(8, 9));
        suspects.proven.store(2, Ordering::Relaxed);
        assert!(suspects.listed(pages(8, 9)), "the same range again is a newer event");
        suspects.proven.store(3, Ordering::Relaxed);
        assert!(!suspects.listed(PageRange::everything()));
    }

    #[test]
    fn more_than_there_is_room_for_make_everything_suspect() {
        let suspects = Suspects::new();
        (0..SLOTS).for_each(|n| suspects.add(pages(10 * n + 1, 10 * n + 2)));
        assert!(!suspects.listed(pages(5, 6)));
        suspects.add(pages(11, 12));
        assert!(!suspects.listed(pages(5, 6)), "a range that is listed takes no more room");
        suspects.add(pages(10_000, 10_001));
        assert!(suspects.listed(pages(5, 6)));
        suspects.proven.store(suspects.last.load(Ordering::Relaxed), Ordering::Relaxed);
        assert!(!suspects.listed(PageRange::everything()));
        suspects.add(pages(5, 6));
        assert!(suspects.listed(pages(5, 6)) && !suspects.listed(pages(11, 12)));
    }

    #[test]
    fn the_clock_proves_only_what_was_before_its_mark() {
        let mut thread = Thread::default();
        thread.compare_clock(5, Some(100));
        assert_eq!(thread.proven, 0);
        thread.compare_clock(7, Some(100));
        assert_eq!(thread.proven, 0, "it has not moved");
        thread.compare_clock(7, Some(101));
        assert_eq!(thread.proven, 5, "6 and 7 were read after the mark");
        thread.compare_clock(7, Some(101));
        assert_eq!(thread.proven, 5);
        thread.compare_clock(9, Some(102));
        assert_eq!(thread.proven, 7);
        thread.compare_clock(9, None);
        assert_eq!(thread.proven, 7);
    }
}
