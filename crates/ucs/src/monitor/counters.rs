//! What the monitor has done so far.

use crate::sync::{AtomicU64, Ordering, lane};

/// A number that only grows.
#[derive(Debug)]
pub(super) struct Counter(AtomicU64);

impl Counter {
    #[inline]
    pub(super) fn add(&self, count: u64) {
        self.0.fetch_add(count, Ordering::Relaxed);
    }
}

/// How many places exact checks are counted in.
const LANES: usize = 16;

/// A number on a cache line of its own.
#[derive(Debug)]
#[repr(align(64))]
struct Apart(Counter);

macro_rules! counters {
    ($(#[doc = $doc:literal] $name:ident),* $(,)?) => {
        /// The numbers behind [`MonitorStats`].
        #[derive(Debug)]
        pub(super) struct Counters {
            $(pub(super) $name: Counter,)*
            /// Exact checks: threads that check all the time do not meet here, most times.
            checked: [Apart; LANES],
        }

        /// What the monitor has done so far. Numbers that were read while they change need not fit each other.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct MonitorStats {
            $(#[doc = $doc] pub $name: u64,)*
        }

        impl MonitorStats {
            /// Each figure: its name, the number, and what it counts.
            pub fn rows(&self) -> impl Iterator<Item = (&'static str, u64, &'static str)> {
                [$((stringify!($name), self.$name, $doc.trim_ascii())),*].into_iter()
            }
        }

        impl Counters {
            pub(super) fn new() -> Self {
                let checked = std::array::from_fn(|_| Apart(Counter(AtomicU64::new(0))));
                Self { $($name: Counter(AtomicU64::new(0)),)* checked }
            }

            #[inline]
            pub(super) fn count_check(&self) {
                self.checked[lane() % LANES].0.add(1);
            }

            pub(super) fn snapshot(&self) -> MonitorStats {
                let mut stats = MonitorStats { $($name: self.$name.0.load(Ordering::Relaxed),)* };
                stats.checks += self.checked.iter().map(|lane| lane.0.0.load(Ordering::Relaxed)).sum::<u64>();
                stats
            }
        }
    };
}

counters! {
    /// Reads that brought events.
    reads,
    /// Events: memory was unmapped.
    unmapped,
    /// Events: memory was moved.
    moved,
    /// Events: pages are about to be dropped.
    removed,
    /// Page faults that waited for the monitor: never, unless somebody else protects pages through it.
    faults,
    /// Events of which nothing is known.
    unknown,
    /// Changes that the application told of.
    notified,
    /// Windows opened.
    windows,
    /// Windows for which there was no room: meanwhile all memory counts as within one.
    crowded,
    /// Ranges that were to be watched.
    watches,
    /// Those that were refused.
    refused,
    /// Those for which whole mappings were watched: the process has many.
    whole,
    /// Memory calls of the C library that came through its hooks.
    hooked,
    /// Events of changes that no window announced, once hooks were in place.
    unannounced,
    /// Exact checks.
    checks,
    /// Those that found an event unread (EAGAIN).
    pending,
    /// Those that found other memory than was watched.
    replaced,
    /// Scans of this process's threads, to prove that pages are dropped by now.
    scans,
    /// Those that could not prove it for all.
    unproven,
}
