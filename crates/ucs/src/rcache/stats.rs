//! What the cache has done, in numbers.

use crate::sync::{AtomicU64, Ordering};

macro_rules! counters {
    ($(#[doc = $doc:literal] $name:ident),* $(,)?) => {
        /// Figures of a cache, since it was made.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct Stats {
            $(#[doc = $doc] pub $name: u64,)*
        }

        impl Stats {
            /// Each figure: its name, the number, and what it counts.
            pub fn rows(&self) -> impl Iterator<Item = (&'static str, u64, &'static str)> {
                [$((stringify!($name), self.$name, $doc.trim_ascii())),*].into_iter()
            }
        }

        /// Counters of what happens beside hits, which [`super::desk`] counts.
        #[derive(Debug, Default)]
        #[repr(align(128))]
        pub(super) struct Counters {
            $($name: AtomicU64,)*
        }

        #[derive(Clone, Copy, Debug)]
        #[allow(non_camel_case_types, reason = "the fields' own names")]
        #[allow(dead_code, reason = "the desks count some")]
        pub(super) enum Counter {
            $($name,)*
        }

        impl Counters {
            #[inline]
            fn counter(&self, counter: Counter) -> &AtomicU64 {
                match counter {
                    $(Counter::$name => &self.$name,)*
                }
            }

            fn all(&self) -> Stats {
                Stats { $($name: self.$name.load(Ordering::Relaxed),)* }
            }
        }
    };
}

counters! {
    /// Calls of `get` that have ended.
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

impl Counters {
    pub(super) fn count(&self, counter: Counter) {
        self.add(counter, 1);
    }

    pub(super) fn add(&self, counter: Counter, number: u64) {
        self.counter(counter).fetch_add(number, Ordering::Relaxed);
    }

    /// Takes from a counter that goes down, too.
    pub(super) fn take(&self, counter: Counter, number: u64) {
        self.counter(counter).fetch_sub(number, Ordering::Relaxed);
    }

    pub(super) fn of(&self, counter: Counter) -> u64 {
        self.counter(counter).load(Ordering::Relaxed)
    }

    /// All of them; `hits` and `checks` are those of the desks. A `get` is counted by what it came to: [`Counter::gets`] are those that
    /// failed.
    pub(super) fn sum(&self, hits: u64, checks: u64) -> Stats {
        let all = self.all();
        Stats { hits, checks, gets: all.gets + hits + all.misses + all.one_shots, ..all }
    }
}
