//! Being told when memory of this process is unmapped, moved, or loses its pages.
//!
//! A registration of memory holds the pages that were there when it was made. A cache of registrations must therefore know when the
//! application unmaps memory, or maps other memory at the same addresses, whoever does that and by whatever call. The [`Monitor`] of
//! the process has the kernel tell it, by userfaultfd:
//!
//! ```mermaid
//! sequenceDiagram
//!     participant T as a thread of the application
//!     participant K as kernel
//!     participant H as handler
//!     participant S as sinks (caches)
//!     T->>K: munmap
//!     K-->>H: event; the thread waits
//!     H->>H: seq becomes odd
//!     H->>K: read
//!     K-->>T: goes on
//!     H->>S: invalidate(range)
//!     H->>H: seq becomes even
//! ```
//!
//! ```
//! use std::sync::Arc;
//! use ucs::mem::page::PageRange;
//! use ucs::monitor::{Change, Monitor, Sink, Verdict};
//!
//! struct Cache;
//!
//! impl Sink for Cache {
//!     fn invalidate(&self, _range: PageRange, _change: Change) {
//!         // mark what overlaps as stale: no allocation, no lock, no log
//!     }
//! }
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let monitor = Monitor::process();
//! let subscription = monitor.subscribe(Arc::new(Cache))?;
//! let memory = ucs::mem::Mapping::anonymous(1 << 20)?;
//! let pages = PageRange::containing(memory.bytes().as_ptr().addr(), 1 << 20).ok_or("no pages")?;
//! memory.bytes().write(0, b"its first page is there")?;
//! match monitor.watch(pages) {
//!     Ok(backing) => assert_ne!(monitor.check(pages, backing), Verdict::Replaced),
//!     Err(_refused) => {} // use the memory, but keep nothing
//! }
//! # drop(subscription);
//! # Ok(())
//! # }
//! ```
//!
//! # What is to be known
//!
//! - The thread that unmaps waits until its event is *read*, not until it is applied. So after `munmap` has returned the sinks may
//!   not have been told yet: [`Monitor::seq`] is odd then. A registration that was made, or found, between two equal even
//!   values of it, with a [`Verdict::Live`] in between, was not touched by any event.
//! - The event of `MADV_DONTNEED` and its like comes *before* the pages go: [`Monitor::is_suspect`].
//! - While the handler does not run, in a debugger that stops it for example, calls that unmap watched memory wait.
//! - Nothing is ever unregistered: that costs a hundred times what registering costs. Memory that was watched once makes its
//!   `munmap` a few microseconds slower. A range that is watched splits the mapping it is in; when the process has half as many mappings
//!   as `vm.max_map_count` allows, whole mappings are watched instead, which splits none.
//! - No event is sent by `shmdt`, `shmat(SHM_REMAP)`, `MADV_GUARD_INSTALL`, `ftruncate`, hole punching or `mprotect`.
//! - Processes that share this one's memory without being threads of it (`clone` with `CLONE_VM`, `vfork`) may unmap: that is told. They
//!   are not looked at by [`Monitor::is_suspect`].
//!
//! | part | subject |
//! |---|---|
//! | `uffd/` | the userfaultfd: its ioctls, its events, the handler and its thread |
//! | `watch.rs` | having memory watched; the exact check |
//! | `maps.rs`, `lines.rs` | what is mapped at an address; texts of the kernel's, read as far as needed |
//! | `pieces.rs` | how many mappings that may cost |
//! | `sinks.rs`, `windows.rs` | who is told; what is announced |
//! | `suspects.rs`, `tasks.rs` | pages that may still be about to go; what threads are doing |
//! | `arena.rs`, `process.rs` | the monitor's own memory; the one monitor, also after a fork |
//! | `hooks/` | the C library's calls announce themselves (feature `hooks`) |
//! | `fds.rs` | whether a descriptor is still ours |
//! | `signs.rs`, `counters.rs` | what each look-up reads; counts |

mod arena;
mod counters;
mod fds;
#[cfg(all(feature = "hooks", target_arch = "x86_64"))]
mod hooks;
mod lines;
mod maps;
mod pieces;
mod process;
mod signs;
mod sinks;
mod suspects;
mod tasks;
#[cfg(not(loom))]
#[cfg(test)]
mod tests;
mod types;
mod uffd;
mod watch;
mod windows;

use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

pub use self::counters::MonitorStats;
pub use self::signs::Signs;
pub use self::types::{
    Active, Backing, Change, HookError, Kind, Refused, Sink, SubscribeError, Verdict, Wanted, Why,
};

use self::arena::Arena;
use self::counters::Counters;
use self::maps::Maps;
use self::pieces::Pieces;
use self::sinks::Sinks;
use self::suspects::Suspects;
use self::uffd::Uffd;
use self::windows::Windows;
use crate::fork::{self, Generation};
use crate::mem::page::PageRange;
use crate::sync::{AtomicU32, AtomicU64, Ordering};

/// How often it is looked whether an event is applied.
#[cfg(all(feature = "hooks", target_arch = "x86_64"))]
const SETTLED: u32 = 100_000;

/// Watches memory of this process. There is one, [`Monitor::process`].
///
/// It starts nothing, neither a thread nor a descriptor, until the first [`Monitor::watch`].
#[derive(Debug)]
pub struct Monitor {
    signs: Signs,
    sinks: Sinks,
    windows: Windows,
    suspects: Suspects,
    pieces: Pieces,
    counters: Counters,
    /// [`Active`], as a number.
    state: AtomicU32,
    /// [`Wanted`], as a number.
    wanted: AtomicU32,
    /// Nanoseconds that the handler waits between reading and applying.
    slowness: AtomicU64,
    uffd: OnceLock<Uffd>,
    maps: OnceLock<Maps>,
    /// Held while it starts.
    starting: Mutex<()>,
    generation: Generation,
    arena: Option<Arena>,
    /// Whether asynchronous write protection may be used, and queries of mappings; for tests of what older kernels have.
    allow: (bool, bool),
}

impl Monitor {
    /// The monitor of this process: always the same, but in a fork's child, which gets one of its own.
    #[must_use]
    #[inline]
    pub fn process() -> &'static Self {
        process::current()
    }

    fn create(wp_async: bool, queries: bool) -> &'static Self {
        Self::create_with(wp_async, queries, pieces::half_of_all)
    }

    fn create_with(wp_async: bool, queries: bool, share: fn() -> u64) -> &'static Self {
        let make = |arena, state: Active| Self {
            signs: Signs::default(),
            sinks: Sinks::new(),
            windows: Windows::new(),
            suspects: Suspects::new(),
            pieces: Pieces::new(share),
            counters: Counters::new(),
            state: AtomicU32::new(state.encode()),
            wanted: AtomicU32::new(Wanted::Auto.encode()),
            slowness: AtomicU64::new(0),
            uffd: OnceLock::new(),
            maps: OnceLock::new(),
            starting: Mutex::new(()),
            generation: fork::generation(),
            arena,
            allow: (wp_async, queries),
        };
        arena::place(|arena| make(Some(arena), Active::Idle))
            .unwrap_or_else(|_| Box::leak(Box::new(make(None, Active::None { why: Why::NoMemory }))))
    }

    /// Says what is wanted of it, before it starts; afterwards that changes nothing. Answers what is active.
    pub fn want(&self, wanted: Wanted) -> Active {
        self.wanted.store(wanted.encode(), Ordering::Relaxed);
        self.mode()
    }

    /// Starts it, as the first [`Monitor::watch`] does; answers what is active from then on.
    pub fn start(&self) -> Active {
        match self.mode() {
            Active::Idle => self.start_now(),
            active => active,
        }
    }

    #[cold]
    fn start_now(&self) -> Active {
        let _starting = self.starting.lock();
        if self.mode() != Active::Idle {
            return self.mode();
        }
        let _ = self.maps();
        let active = match Wanted::decode(self.wanted.load(Ordering::Relaxed)) {
            Wanted::Off => Active::None { why: Why::TurnedOff },
            Wanted::Explicit => Active::Explicit,
            Wanted::Auto => match Uffd::open(self.allow.0) {
                Ok(uffd) => {
                    let active = Active::Uffd { wp_async: uffd.wp_async() };
                    let _ = self.uffd.set(uffd);
                    active
                }
                Err(why) => Active::None { why },
            },
        };
        // Before the handler runs, which may change it.
        self.state.store(active.encode(), Ordering::Release);
        if self.uffd().is_some() && uffd::thread::spawn(self).is_err() {
            self.fail(Why::NoThread);
        }
        self.mode()
    }

    /// What is active.
    #[must_use]
    pub fn mode(&self) -> Active {
        if !self.generation.is_current() {
            return Active::None { why: Why::Forked };
        }
        Active::decode(self.state.load(Ordering::Acquire))
    }

    /// Has `sink` told of all changes until the value returned is dropped.
    ///
    /// # Errors
    /// [`SubscribeError`]: there are too many; or this is a parent's monitor.
    pub fn subscribe(&'static self, sink: Arc<dyn Sink>) -> Result<Subscription, SubscribeError> {
        if !self.generation.is_current() {
            return Err(SubscribeError::Forked);
        }
        let slot = self.sinks.add(sink).ok_or(SubscribeError::TooMany { limit: sinks::SLOTS })?;
        Ok(Subscription { monitor: self, slot })
    }

    /// Has changes of the pages in `range` told from now on, for ever. Watching what is watched changes nothing.
    ///
    /// It tells what backs the memory, which is what [`Monitor::check`] has to be asked with. Memory of several mappings can be watched if
    /// they are of the same kind. Memory that another thread maps into a hole of `range` during the call may be left out: whoever keeps
    /// something that relies on the answer asks [`Monitor::check`] afterwards, once.
    ///
    /// # Errors
    /// [`Refused`]: it cannot be watched, so nothing may be kept that relies on it. The memory may be used nevertheless.
    pub fn watch(&self, range: PageRange) -> Result<Backing, Refused> {
        self.counters.watches.add(1);
        let watched = self.watch_now(range);
        if watched.is_err() {
            self.counters.refused.add(1);
        }
        watched
    }

    /// A count of what was applied. Even: all events that were read are applied. Odd: some are being applied. Each read that brought
    /// events adds 2.
    #[must_use]
    #[inline]
    pub fn seq(&self) -> u64 {
        self.signs.seq()
    }

    /// Where [`Monitor::seq`] and [`Monitor::announces`] are answered from.
    #[must_use]
    pub fn signs(&self) -> &Signs {
        &self.signs
    }

    /// Whether the pages in `range` are those of the mapping that was watched, by asking the kernel.
    ///
    /// Exact only together with a look at the caller's own books *after* it: an event that was read before the question is not
    /// seen by it, but it has been applied by then, or [`Monitor::seq`] is odd or has grown. Of a range of one anonymous mapping it
    /// costs the same at every size. A range whose first page is not there (nor pinned) counts as replaced.
    #[must_use]
    pub fn check(&self, range: PageRange, backing: Backing) -> Verdict {
        let verdict = self.check_now(range, backing);
        self.counters.count_check();
        match verdict {
            Verdict::Live => {}
            Verdict::Pending => self.counters.pending.add(1),
            Verdict::Replaced => self.counters.replaced.add(1),
        }
        verdict
    }

    /// Tells all sinks, on this thread, that `range` is about to be unmapped or was.
    ///
    /// For an application that announces itself ([`Wanted::Explicit`]). It must call this *after* the change, or around it with
    /// [`Monitor::begin`], which is better: before it alone, another thread can register the old pages in between. In a signal handler it
    /// is as `begin`.
    pub fn notify_unmap(&self, range: PageRange) {
        self.counters.notified.add(1);
        self.sinks.tell(range, Change::Announced);
    }

    /// Announces a change of `range`: all sinks are told, and no memory in it can be watched until the window is closed.
    ///
    /// This is what a hook of memory calls uses: it opens a window, makes the call, closes the window. It allocates nothing. It takes the
    /// locks of the sinks, that of a cache's index for example: so it is not for signal handlers, but in a build with the feature `hooks`,
    /// where signals wait for those locks.
    #[must_use = "the window is closed when it is dropped"]
    pub fn begin(&self, range: PageRange) -> Window<'_> {
        self.counters.windows.add(1);
        let slot = self.windows.open(range);
        if slot.is_none() {
            self.counters.crowded.add(1);
        }
        let window = Window { monitor: self, slot };
        self.sinks.tell(range, Change::Announced);
        window
    }

    /// Whether a window is open that has a page in common with `range`.
    ///
    /// A registration over `range` that was made visible to the sinks *before* it asks this is either told to be in a window here, or
    /// invalidated by [`Monitor::begin`].
    #[must_use]
    pub fn in_window(&self, range: PageRange) -> bool {
        self.windows.overlap(range)
    }

    /// Whether pages in `range` may be about to go, because of an event that came before they do: a registration of them must not be
    /// kept.
    ///
    /// Cheap while there was no such event lately. Otherwise it looks at what all threads of the process are doing, at most about a fifth
    /// of the time. It allocates; it waits for nobody. Exact between two equal even values of [`Monitor::seq`].
    #[must_use]
    #[inline]
    pub fn is_suspect(&self, range: PageRange) -> bool {
        self.suspects.contain(range, &self.counters)
    }

    /// Has the C library's memory calls open a window around themselves: `munmap`, `madvise`, `mremap`, `brk`, `shmat`, and where
    /// that can be, `process_madvise` and `mmap`; also those that the C library makes by itself. It is done once for the process, and not
    /// undone: a few instructions of the C library are replaced.
    ///
    /// From then on [`Monitor::announces`] says yes, until a change of watched memory is told of by the kernel that no window announced.
    ///
    /// # Errors
    /// [`HookError`]: nothing is replaced then, or not all, and [`Monitor::announces`] says no.
    pub fn hook(&self) -> Result<(), HookError> {
        #[cfg(all(feature = "hooks", target_arch = "x86_64"))]
        {
            hooks::install()?;
            self.signs.hooked();
            Ok(())
        }
        #[cfg(not(all(feature = "hooks", target_arch = "x86_64")))]
        Err(HookError::NotBuilt)
    }

    /// Whether all changes of watched memory have been announced by windows so far, since hooks are in place: then registrations are
    /// told of in time, and need not be checked.
    #[must_use]
    #[inline]
    pub fn announces(&self) -> bool {
        self.signs.announces()
    }

    /// A change is over: waits until events of it are applied, as those of a call that has returned have been read.
    #[cfg(all(feature = "hooks", target_arch = "x86_64"))]
    fn settle(&self) {
        let mut rounds = 0_u32;
        while !self.seq().is_multiple_of(2) {
            rounds += 1;
            match rounds {
                0..64 => std::hint::spin_loop(),
                64..SETTLED => std::thread::yield_now(),
                // The handler is stopped, or starved: it will find no window.
                _ => return,
            }
        }
    }

    /// Takes note of an event: whether a window announced it.
    fn note(&self, range: PageRange) {
        if !self.windows.cover(range) && self.signs.unannounced() {
            self.counters.unannounced.add(1);
        }
    }

    /// Whether what is mapped at an address is asked for by `PROCMAP_QUERY` (Linux 6.11); if not, it is looked for in the text of
    /// `/proc/self/maps`, which takes longer the more mappings there are below it.
    #[must_use]
    pub fn queries_mappings(&self) -> bool {
        self.maps().fd().is_some()
    }

    /// What it has done so far.
    #[must_use]
    pub fn stats(&self) -> MonitorStats {
        self.counters.snapshot()
    }

    /// For tests: the handler sleeps that long between reading events and applying them, also where it does so already.
    #[doc(hidden)]
    pub fn slow_down(&self, slowness: Duration) {
        self.slowness.store(u64::try_from(slowness.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    fn uffd(&self) -> Option<&Uffd> {
        self.uffd.get()
    }

    fn maps(&self) -> &Maps {
        self.maps.get_or_init(|| Maps::open(self.allow.1))
    }

    /// What the handler does for [`Monitor::slow_down`].
    fn linger(&self) {
        let slowness = || Duration::from_nanos(self.slowness.load(Ordering::Relaxed));
        if slowness().is_zero() {
            return;
        }
        let begin = Instant::now();
        while let Some(left) = slowness().checked_sub(begin.elapsed()).filter(|left| !left.is_zero()) {
            std::thread::sleep(left.min(Duration::from_millis(10)));
        }
    }

    /// Nothing is watched any more: the kernel is told, then all sinks, and who looks meanwhile finds an odd count.
    fn fail(&self, why: Why) {
        let before = self.signs.enter();
        self.state.store(Active::None { why }.encode(), Ordering::SeqCst);
        if let Some(uffd) = self.uffd() {
            uffd.disconnect();
        }
        self.sinks.tell_in_any_case(PageRange::everything(), Change::Unmapped);
        self.signs.leave(before, true);
    }
}

/// A sink is told of changes until this is dropped.
///
/// Dropping it waits until no thread is inside the sink: it must not be dropped by the sink itself, nor while a lock is held that the
/// sink waits for.
#[must_use = "the sink is told of changes until this is dropped"]
pub struct Subscription {
    monitor: &'static Monitor,
    slot: usize,
}

impl fmt::Debug for Subscription {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Subscription").field("slot", &self.slot).finish_non_exhaustive()
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        // In a fork's child no other thread is in the sink, though the parent's may have been at the time of the fork.
        drop(self.monitor.sinks.remove(self.slot, self.monitor.generation.is_current()));
    }
}

/// Memory within it is being changed; see [`Monitor::begin`].
#[derive(Debug)]
#[must_use = "the window is closed when it is dropped"]
pub struct Window<'a> {
    monitor: &'a Monitor,
    slot: Option<usize>,
}

impl Window<'_> {
    /// The change is over.
    pub fn end(self) {}
}

impl Drop for Window<'_> {
    fn drop(&mut self) {
        self.monitor.windows.close(self.slot);
    }
}
