//! Who tells a cache of changes, and what it makes of that: rucx's own way, and the ways that others have.
//!
//! Each is the same cache over another [`MemMonitor`]: so what differs is when it is told, and what it asks.

use std::fmt;
use std::sync::{Arc, OnceLock};
use std::thread;

use ucs::mem::page::PageRange;
use ucs::monitor::{Backing, Change, Monitor, Refused, Sink, Verdict};
use ucs::rcache::MemMonitor;
use uct_conformance::Blind;

/// A way to keep a cache right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scheme {
    /// Nobody tells of anything.
    Nothing,
    /// Told when the event is applied; nothing else is asked.
    Naive,
    /// The same, and look-ups wait from before the event is read.
    LockBeforeRead,
    /// Told before each call that changes memory, as by malloc hooks.
    PreHooks,
    /// Told before and after each call that changes memory.
    BothHooks,
    /// Told by the kernel, and asks it before each hit.
    Rucx,
}

impl Scheme {
    /// All, the worst first.
    pub(super) const ALL: [Self; 6] =
        [Self::Nothing, Self::Naive, Self::LockBeforeRead, Self::PreHooks, Self::BothHooks, Self::Rucx];

    /// In a few words.
    pub(super) fn words(self) -> &'static str {
        match self {
            Self::Nothing => "no invalidation",
            Self::Naive => "userfaultfd, told when it is read",
            Self::LockBeforeRead => "userfaultfd, lock before read",
            Self::PreHooks => "hooks before the call only",
            Self::Rucx => "rucx: userfaultfd + exact check",
            Self::BothHooks => "rucx: hooks before and after",
        }
    }

    /// For programs.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Nothing => "nothing",
            Self::Naive => "naive",
            Self::LockBeforeRead => "lock-before-read",
            Self::PreHooks => "pre-hooks",
            Self::BothHooks => "both-hooks",
            Self::Rucx => "rucx",
        }
    }

    /// What has this command run it.
    pub(super) fn arguments(self) -> Vec<&'static str> {
        match self {
            Self::Nothing => vec!["--unsafe-no-protection"],
            Self::BothHooks => vec!["--monitor", "explicit", "--mode", "hooks"],
            other => vec!["--scheme", other.name()],
        }
    }

    /// Whether the cache must never be wrong.
    pub(super) fn protects(self) -> bool {
        matches!(self, Self::Rucx | Self::BothHooks)
    }

    /// What tells the cache.
    pub(super) fn monitor(self) -> &'static dyn MemMonitor {
        match self {
            Self::Nothing => &Blind,
            Self::Naive => &Told { locked: false },
            Self::LockBeforeRead => &Told { locked: true },
            Self::PreHooks => &ANNOUNCED,
            Self::Rucx | Self::BothHooks => Monitor::process(),
        }
    }

    /// Whether it needs the process's monitor.
    pub(super) fn uses_monitor(self) -> bool {
        !matches!(self, Self::Nothing | Self::PreHooks)
    }
}

/// Has memory changed as the scheme wants it: told of before, around, or not by us.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Announce {
    /// Who changes memory says nothing.
    Nothing,
    /// Before only.
    Before,
    /// Before and after.
    Around,
}

impl Announce {
    /// Makes a change of those pages.
    pub(super) fn around<T>(self, ranges: &[PageRange], change: impl FnOnce() -> T) -> T {
        match self {
            Self::Nothing => change(),
            Self::Before => {
                ranges.iter().for_each(|range| ANNOUNCED.tell(*range));
                change()
            }
            Self::Around => {
                let windows: [_; 2] =
                    std::array::from_fn(|at| ranges.get(at).map(|range| Monitor::process().begin(*range)));
                let changed = change();
                drop(windows);
                changed
            }
        }
    }
}

/// Tells what the kernel tells; the kernel is never asked.
#[derive(Debug)]
struct Told {
    /// Look-ups wait while events are read and applied.
    locked: bool,
}

impl MemMonitor for Told {
    fn subscribe(&'static self, sink: Arc<dyn Sink>) -> Option<Box<dyn Send + Sync>> {
        MemMonitor::subscribe(Monitor::process(), sink)
    }

    /// A mapping that came after the range was registered, and before it was looked at, is not watched: that is looked for here, so that
    /// what goes wrong comes of how hits are found and of nothing else.
    fn watch(&self, range: PageRange) -> Result<Backing, Refused> {
        let backing = Monitor::process().watch(range)?;
        loop {
            match Monitor::process().check(range, backing) {
                Verdict::Live => return Ok(backing),
                Verdict::Replaced => return Err(Refused::Unmapped),
                Verdict::Pending => thread::yield_now(),
            }
        }
    }

    fn seq(&self) -> u64 {
        if !self.locked {
            return 0;
        }
        loop {
            let seq = Monitor::process().seq();
            if seq.is_multiple_of(2) {
                return seq;
            }
            thread::yield_now();
        }
    }

    fn check(&self, _: PageRange, _: Backing) -> Verdict {
        Verdict::Live
    }

    fn is_suspect(&self, _: PageRange) -> bool {
        false
    }
}

/// Tells what is announced.
struct Announced(OnceLock<Arc<dyn Sink>>);

static ANNOUNCED: Announced = Announced(OnceLock::new());

impl Announced {
    fn tell(&self, range: PageRange) {
        if let Some(sink) = self.0.get() {
            sink.invalidate(range, Change::Announced);
        }
    }
}

impl fmt::Debug for Announced {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Announced")
    }
}

impl MemMonitor for Announced {
    fn subscribe(&'static self, sink: Arc<dyn Sink>) -> Option<Box<dyn Send + Sync>> {
        self.0.set(sink).ok().map(|()| Box::new(()) as _)
    }

    fn watch(&self, _: PageRange) -> Result<Backing, Refused> {
        Ok(Backing::anonymous())
    }

    fn seq(&self) -> u64 {
        0
    }

    fn check(&self, _: PageRange, _: Backing) -> Verdict {
        Verdict::Live
    }

    fn is_suspect(&self, _: PageRange) -> bool {
        false
    }
}
