//! Who is told of changes.
//!
//! # Safety
//! The cell of a slot is written only by the one thread that has moved the slot to `CLAIMED` or `LEAVING`, and, for the latter, only
//! when nobody is inside. Others read it only while they count as inside and, after they began to count, have seen `LIVE`. The orders
//! are those of Dekker's scheme: who enters counts, then looks at the state; who leaves changes the state, then looks at the count.

#![allow(unsafe_code)]

use std::cell::UnsafeCell;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use super::{Change, Sink};
use crate::mem::page::PageRange;
use crate::sync::{AtomicU32, AtomicUsize, Ordering};

/// As many sinks as a process may have: a fixed number, because the handler allocates nothing.
pub(super) const SLOTS: usize = 64;

/// States of a slot.
const FREE: u32 = 0;
const CLAIMED: u32 = 1;
const LIVE: u32 = 2;
const LEAVING: u32 = 3;

struct Slot {
    state: AtomicU32,
    /// Threads that are in the sink, or about to find out whether they may.
    inside: AtomicUsize,
    sink: UnsafeCell<Option<Arc<dyn Sink>>>,
}

// SAFETY: as the module says; the sink itself is Send and Sync.
unsafe impl Sync for Slot {}

/// One thread in one slot.
struct Inside<'a>(&'a Slot);

impl<'a> Inside<'a> {
    fn enter(slot: &'a Slot) -> Self {
        slot.inside.fetch_add(1, Ordering::SeqCst);
        Self(slot)
    }
}

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        self.0.inside.fetch_sub(1, Ordering::SeqCst);
    }
}

/// All sinks of a monitor.
pub(super) struct Sinks {
    /// No slot from here on was ever used.
    high: AtomicUsize,
    slots: [Slot; SLOTS],
}

impl fmt::Debug for Sinks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let live = self.slots.iter().filter(|slot| slot.state.load(Ordering::Relaxed) == LIVE).count();
        f.debug_struct("Sinks").field("live", &live).finish_non_exhaustive()
    }
}

impl Sinks {
    pub(super) fn new() -> Self {
        let slot = |_| Slot {
            state: AtomicU32::new(FREE),
            inside: AtomicUsize::new(0),
            sink: UnsafeCell::new(None),
        };
        Self { high: AtomicUsize::new(0), slots: std::array::from_fn(slot) }
    }

    /// Adds one; `None` when there are too many.
    pub(super) fn add(&self, sink: Arc<dyn Sink>) -> Option<usize> {
        let claim = |slot: &Slot| {
            slot.state.compare_exchange(FREE, CLAIMED, Ordering::Acquire, Ordering::Relaxed).is_ok()
        };
        let index = self.slots.iter().position(claim)?;
        let slot = &self.slots[index];
        // SAFETY: claimed by this thread, and not live.
        unsafe { *slot.sink.get() = Some(sink) };
        self.high.fetch_max(index + 1, Ordering::SeqCst);
        slot.state.store(LIVE, Ordering::SeqCst);
        Some(index)
    }

    /// Takes one out; with `wait` when nobody is inside it any more.
    ///
    /// Without, the caller knows that no other thread is: in a fork's child, where the count may tell of a thread of the parent's.
    pub(super) fn remove(&self, index: usize, wait: bool) -> Option<Arc<dyn Sink>> {
        let slot = &self.slots[index];
        slot.state.store(LEAVING, Ordering::SeqCst);
        let mut rounds = 0_u32;
        while wait && slot.inside.load(Ordering::SeqCst) != 0 {
            rounds = rounds.saturating_add(1);
            match rounds {
                0..64 => std::hint::spin_loop(),
                64..128 => std::thread::yield_now(),
                _ => std::thread::sleep(Duration::from_micros(50)),
            }
        }
        // SAFETY: nobody is inside, and nobody who enters finds it live.
        let sink = unsafe { (*slot.sink.get()).take() };
        slot.state.store(FREE, Ordering::Release);
        sink
    }

    /// Tells all.
    pub(super) fn tell(&self, range: PageRange, change: Change) {
        self.slots().for_each(|slot| slot.tell(range, change));
    }

    /// Tells all, also those behind one that panics.
    pub(super) fn tell_in_any_case(&self, range: PageRange, change: Change) {
        for slot in self.slots() {
            let _ = catch_unwind(AssertUnwindSafe(|| slot.tell(range, change)));
        }
    }

    fn slots(&self) -> impl Iterator<Item = &Slot> {
        self.slots.iter().take(self.high.load(Ordering::SeqCst))
    }
}

impl Slot {
    fn tell(&self, range: PageRange, change: Change) {
        if self.state.load(Ordering::SeqCst) != LIVE {
            return;
        }
        let _inside = Inside::enter(self);
        if self.state.load(Ordering::SeqCst) == LIVE {
            // SAFETY: counted as inside before it was seen live: it stays until this thread has left.
            if let Some(sink) = unsafe { &*self.sink.get() } {
                sink.invalidate(range, change);
            }
        }
    }
}

#[cfg(not(loom))]
#[cfg(test)]
mod tests {
    use super::*;
    use crate::mem::page::page_size;

    struct Count(AtomicUsize);

    impl Sink for Count {
        fn invalidate(&self, _: PageRange, _: Change) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn page() -> PageRange {
        PageRange::new(page_size(), 2 * page_size()).unwrap()
    }

    #[test]
    fn told_while_subscribed() {
        let (sinks, sink) = (Sinks::new(), Arc::new(Count(AtomicUsize::new(0))));
        sinks.tell(page(), Change::Unmapped);
        let slot = sinks.add(sink.clone()).unwrap();
        sinks.tell(page(), Change::Unmapped);
        assert!(sinks.remove(slot, true).is_some());
        sinks.tell(page(), Change::Unmapped);
        assert_eq!(sink.0.load(Ordering::Relaxed), 1);
        assert_eq!(Arc::strong_count(&sink), 1);
    }

    #[test]
    fn there_is_an_end_to_them() {
        let (sinks, sink) = (Sinks::new(), Arc::new(Count(AtomicUsize::new(0))));
        let slots: Vec<_> = (0..SLOTS).map(|_| sinks.add(sink.clone()).unwrap()).collect();
        assert_eq!(sinks.add(sink.clone()), None);
        sinks.tell(page(), Change::Moved);
        assert_eq!(sink.0.load(Ordering::Relaxed), SLOTS);
        drop(sinks.remove(slots[7], true));
        assert_eq!(sinks.add(sink), Some(7));
    }

    #[test]
    fn removing_waits_for_who_is_inside() {
        struct Slow(AtomicUsize, AtomicUsize);
        impl Sink for Slow {
            fn invalidate(&self, _: PageRange, _: Change) {
                self.0.store(1, Ordering::SeqCst);
                std::thread::sleep(Duration::from_millis(30));
                self.1.store(1, Ordering::SeqCst);
            }
        }
        let (sinks, sink) = (Sinks::new(), Arc::new(Slow(AtomicUsize::new(0), AtomicUsize::new(0))));
        let slot = sinks.add(sink.clone()).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| sinks.tell(page(), Change::Unmapped));
            while sink.0.load(Ordering::SeqCst) == 0 {
                std::thread::yield_now();
            }
            drop(sinks.remove(slot, true));
            assert_eq!(sink.1.load(Ordering::SeqCst), 1);
        });
    }

    #[test]
    fn coming_and_going_while_told() {
        let sinks = Sinks::new();
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    for _ in 0..500 {
                        let slot = sinks.add(Arc::new(Count(AtomicUsize::new(0)))).unwrap();
                        std::thread::yield_now();
                        drop(sinks.remove(slot, true));
                    }
                });
            }
            scope.spawn(|| (0..20_000).for_each(|_| sinks.tell(page(), Change::Unmapped)));
        });
    }
}
