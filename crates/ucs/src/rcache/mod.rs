//! The registration cache: registrations that behave as if they were bound to the address.
//!
//! A registration of a network card holds the *pages* that were mapped when it was made. A cache of them goes stale when the
//! application unmaps and uses an address again: the card then reads or writes pages that nobody has mapped any more. This one is told
//! of changes by a [monitor](crate::monitor), and asks the kernel before each hit.
//!
//! What it promises:
//!
//! - **No stale start.** If [`Cache::get`] answers, the operation uses the pages mapped there at some instant during that call.
//! - **Containment.** Operations under way while memory is unmapped may move old bytes; those pages stay pinned until the last one has
//!   given its [`RegionRef`] back. Nobody else is harmed.
//! - **No poisoning.** Such a race leaves no registration that a later `get` could find.
//!
//! ```text
//!            get ──▶ Index::find ──▶ reference taken: VALID? covers it? ──▶ exact check: Live? ──▶ unchanged since? ──▶ hit
//!                        │ nothing            │ no                                │ no               │ no
//!                        ▼                    ▼                                   ▼                  ▼
//!            place: what overlaps is stale ─▶ REGISTERING ─▶ watch ─▶ register ─▶ settled? ─▶ VALID     look again
//!
//!   handler: event ──▶ each registration that overlaps: VALID → STALE, REGISTERING → POISONED ──▶ wakes the reclaimer
//! ```
//!
//! | file | subject |
//! |---|---|
//! | `cache.rs` | `get`: finding |
//! | `make.rs` | making, where nothing was found |
//! | `books.rs` | what is changed under the index's lock: placing, merging, evicting, invalidating |
//! | `table.rs`, `word.rs` | a descriptor; its state, generation and references in one word |
//! | `desk.rs` | what each thread remembers, and counts |
//! | `guess.rs` | which slot an address is likely to be in |
//! | `index/`, `arena.rs` | which range an address belongs to |
//! | `region.rs` | a registration in use |
//! | `reclaim.rs` | deregistering what is stale when nobody comes by |
//! | `options.rs`, `config.rs` | how large it may grow and how it checks; the `UCX_*` variables of that |

pub mod arena;
mod books;
mod cache;
pub mod config;
mod desk;
mod guess;
pub mod index;
mod make;
mod options;
mod reclaim;
mod region;
mod stats;
mod table;
#[cfg(test)]
#[cfg(not(loom))]
mod tests;
pub mod word;

use std::fmt;
use std::sync::Arc;

use crate::mem::Access;
use crate::mem::page::PageRange;
use crate::monitor::{Active, Backing, Monitor, Refused, Signs, Sink, Verdict};

pub use cache::{Cache, GetError};
pub use options::{Mode, Options};
pub use region::RegionRef;
pub use stats::Stats;

/// What registers memory: a transport.
pub trait Registrar: Send + Sync + 'static {
    /// A registration: what an operation needs of it.
    type Handle: Send + Sync + 'static;
    /// Why memory could not be registered.
    type Error: fmt::Display + fmt::Debug;

    /// Pins the pages that are mapped in `range` now.
    ///
    /// # Errors
    /// The transport's.
    fn register(&self, range: PageRange, access: Access) -> Result<Self::Handle, Self::Error>;

    /// Ends a registration; called once for each, when nothing uses it.
    fn deregister(&self, handle: Self::Handle);
}

/// What tells of changes of memory: [`Monitor`], or a double of it in tests.
pub trait MemMonitor: Send + Sync {
    /// Has `sink` told of changes as long as what is returned lives; `None`: nobody can tell.
    fn subscribe(&'static self, sink: Arc<dyn Sink>) -> Option<Box<dyn Send + Sync>>;

    /// Sees to it, if it can, that changes are announced before they are made, and until they are over.
    fn hook(&self) {}

    /// Whether all changes of watched memory have been announced so far: then hits need not be checked.
    fn announces(&self) -> bool {
        false
    }

    /// Has changes of these pages told from now on, for ever.
    ///
    /// # Errors
    /// [`Refused`]: what is there must not be cached.
    fn watch(&self, range: PageRange) -> Result<Backing, Refused>;

    /// Even: all changes that were read are told. Odd: they are being told. It only grows.
    fn seq(&self) -> u64;

    /// What [`MemMonitor::seq`] and [`MemMonitor::announces`] are answered from, if it is that and no more: then hits make no call.
    fn signs(&'static self) -> Option<&'static Signs> {
        None
    }

    /// Whether these pages are still those that were watched.
    fn check(&self, range: PageRange, backing: Backing) -> Verdict;

    /// Whether the pages there are, or may be, on their way out, although they are still there.
    fn is_suspect(&self, range: PageRange) -> bool;
}

impl MemMonitor for Monitor {
    fn subscribe(&'static self, sink: Arc<dyn Sink>) -> Option<Box<dyn Send + Sync>> {
        Self::subscribe(self, sink).ok().map(|subscription| Box::new(subscription) as _)
    }

    fn hook(&self) {
        if cfg!(feature = "hooks")
            && let Active::Uffd { .. } = self.start()
            && let Err(error) = Self::hook(self)
        {
            tracing::info!(%error, remedy = error.remedy(), "hits of the registration cache are checked");
        }
    }

    #[inline]
    fn announces(&self) -> bool {
        Self::announces(self)
    }

    fn watch(&self, range: PageRange) -> Result<Backing, Refused> {
        Self::watch(self, range)
    }

    #[inline]
    fn seq(&self) -> u64 {
        Self::seq(self)
    }

    fn signs(&'static self) -> Option<&'static Signs> {
        Some(Self::signs(self))
    }

    #[inline]
    fn check(&self, range: PageRange, backing: Backing) -> Verdict {
        Self::check(self, range, backing)
    }

    #[inline]
    fn is_suspect(&self, range: PageRange) -> bool {
        Self::is_suspect(self, range) || Self::in_window(self, range)
    }
}
