//! What the cache has done, in numbers.

use crate::sync::{AtomicU64, Ordering, lane};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        /// Figures of a cache, since it was made.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct Stats {
            $($(#[$doc])* pub $name: u64,)*
        }

        /// Counters, apart from each other's threads as far as possible.
        #[derive(Debug, Default)]
        #[repr(align(128))]
        struct Lane {
            $($name: AtomicU64,)*
        }

        #[derive(Clone, Copy, Debug)]
        #[allow(non_camel_case_types, reason = "the fields' own names")]
        pub(super) enum Counter {
            $($name,)*
        }

        impl Lane {
            #[inline]
            fn of(&self, counter: Counter) -> &AtomicU64 {
                match counter {
                    $(Counter::$name => &self.$name,)*
                }
            }

            fn add_to(&self, stats: &mut Stats) {
                $(stats.$name = stats.$name.wrapping_add(self.$name.load(Ordering::Relaxed));)*
            }
        }
    };
}

counters! {
    /// Calls of `get`.
    gets,
    /// Answered by a registration that was there.
    hits,
    /// Made.
    misses,
    /// Made of several older ones that overlapped.
    merges,
    /// Registrations ended because their memory changed.
    invalidations,
    /// Of those, ones that had been hit.
    hit_invalidations,
    /// Registrations ended to make room.
    evictions,
    /// Exact checks of a hit by the kernel.
    checks,
    /// Checks that found a change not told of yet.
    pending,
    /// Checks that found other memory, before it was told of.
    replaced,
    /// Registrations given up because their memory changed while they were made.
    poisoned,
    /// Registrations for one use.
    one_shots,
    /// Registrations ended for good.
    deregistrations,
    /// Bytes registered now: this one goes down, too.
    pinned_bytes,
}

/// How many lanes.
const LANES: usize = 16;

/// Counters that threads add to without meeting, most times.
#[derive(Debug, Default)]
pub(super) struct Counters {
    lanes: [Lane; LANES],
}

impl Counters {
    #[inline]
    pub(super) fn count(&self, counter: Counter) {
        self.add(counter, 1);
    }

    #[inline]
    pub(super) fn add(&self, counter: Counter, number: u64) {
        self.lanes[lane() % LANES].of(counter).fetch_add(number, Ordering::Relaxed);
    }

    /// Takes from a counter that goes down, too. Lanes wrap around; their sum does not.
    pub(super) fn take(&self, counter: Counter, number: u64) {
        self.add(counter, number.wrapping_neg());
    }

    pub(super) fn sum(&self) -> Stats {
        let mut stats = Stats::default();
        self.lanes.iter().for_each(|lane| lane.add_to(&mut stats));
        stats
    }

    pub(super) fn of(&self, counter: Counter) -> u64 {
        let add = |sum: u64, lane: &Lane| sum.wrapping_add(lane.of(counter).load(Ordering::Relaxed));
        self.lanes.iter().fold(0, add)
    }
}
