//! Which range of pages a page belongs to: the index of the registration cache.
//!
//! An [`Index`] maps ranges of pages that do not overlap to slot numbers of a table of somebody else's. Any number of threads
//! [find](Index::find) without waiting for anybody, while at most one, who holds the [lock](Index::lock), writes.
//!
//! ```text
//! address >> 44 ─▶ roots   one word each: how many levels, which node
//!                    │
//!                    ▼
//!            Inner ┌─keys─────────────────────┬─children───────────────────┐  32 separators, 32 node numbers
//!                  └──────────────────────────┴────│───────────────────────┘
//!                    ┌─────────────────────────────┘
//!                    ▼
//!             Leaf ┌─first pages──┬─(last page, slot)──────────────────────┐  16 ranges
//!                  └──────────────┴────────────────────────────────────────┘
//! ```
//!
//! Page numbers are addresses by 4096, whatever the machine's pages are: 32 bits of them in each piece of 2^44 bytes. A range over
//! the end of a piece is kept as several entries, which writers see as one.
//!
//! # What a reader can rely on
//! A write copies the leaf, and as many nodes above it as change their number of children; then one store makes the copy part
//! of the tree. What was replaced stays as it is for a while, then is used again. So, where [`Index::settled_since`] confirms it,
//! **what [`Index::find`] answered was so at some instant between [`Index::version`] and `settled_since`**. That is the case unless
//! 32 writes and more ended meanwhile, as can happen to a thread that was not running. In particular, with no writer
//! at work an answer is exact, and a range that was there all the while was found, whatever writers did to others.
//!
//! Where it is not confirmed, the answer may be a miss, or a slot that once belonged to some range; no more can happen: all words
//! are atomics, nodes stay nodes of their kind, and `find` takes as many steps as the tree has levels.
//!
//! A range of several pieces comes and goes piece by piece. Every piece is one write.
//!
//! # Memory
//! It lies in an [`Arena`], all of it from the beginning: nothing here allocates, frees or makes a system call later (but
//! for sched_yield(2), while another holds the lock for long). Of 100,000 ranges each takes 18 bytes if they came in ascending
//! order, 25 in descending, and 20 in any. Addresses are set aside for the worst case: 87 bytes for each.
//!
//! A fork's child does not have the memory: it must not touch an index it inherited, only drop it.

mod node;
mod pool;
mod rank;
mod walk;
mod writer;

#[cfg(test)]
#[cfg(loom)]
mod loom_models;
#[cfg(test)]
#[cfg(not(loom))]
mod tests;

use std::sync::Arc;

use super::arena::{Arena, Slab};
use crate::mem::MemError;
use crate::mem::page::PageRange;
use crate::signals::Blocked;
use crate::sync::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};
use node::{Entry, Inner, Leaf, Node};
use pool::Pool;
use rank::{Rank, Search, Way};

pub use walk::Ranges;
pub use writer::{InsertError, Writer};

/// Page numbers are addresses without this many low bits.
const PAGE_SHIFT: u32 = 12;

/// No address of an index has more bits: those of five levels of page tables.
pub const ADDRESS_BITS: u32 = 57;

/// Pages of one tree.
const PIECE_SHIFT: u32 = 32;

/// How many trees.
const PIECES: u32 = if cfg!(loom) { 2 } else { 1 << (ADDRESS_BITS - PAGE_SHIFT - PIECE_SHIFT) };

/// No page has this number or a higher one.
const PAGES_END: u64 = (PIECES as u64) << PIECE_SHIFT;

/// No slot has this number or a higher one.
pub const SLOTS_END: u32 = 1 << 31;

/// No index has room for more ranges.
pub const MOST_RANGES: u32 = 1 << 29;

/// How many writes must pass before a node that was replaced is used again.
const WRITES_UNTIL_REUSE: u32 = if cfg!(loom) { 0 } else { 32 };

/// Levels of inner nodes: those of [`MOST_RANGES`] with every node as empty as it may be, and more.
const LEVELS: usize = 10;

/// Page numbers from `start` up to, not including, `end`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Pages {
    start: u64,
    end: u64,
}

impl Pages {
    const ALL: Self = Self { start: 0, end: PAGES_END };

    fn of(range: PageRange) -> Self {
        Self { start: range.start() as u64 >> PAGE_SHIFT, end: range.end() as u64 >> PAGE_SHIFT }
    }

    fn to_range(self) -> Option<PageRange> {
        let address = |page: u64| usize::try_from(page << PAGE_SHIFT).ok();
        PageRange::new(address(self.start)?, address(self.end)?)
    }
}

/// What [`Index::find`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Hit {
    /// The range's slot.
    pub slot: u32,
    /// The address behind the range's last; of one that lies in several pieces of 2^44 bytes, behind the part in this piece.
    pub end: usize,
}

/// A word that has a cache line to itself.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Alone<T>(T);

/// The index. See the module.
#[derive(Debug)]
pub struct Index {
    /// By piece: the number of levels in the highest four bits, then the root's number. 0: no range there.
    roots: Slab<AtomicU32>,
    leaves: Pool<Leaf>,
    inners: Pool<Inner>,
    /// How this machine searches a node.
    way: Way,
    capacity: u32,
    /// Inner nodes above a leaf, at most.
    levels: u32,
    /// Odd while a write is under way.
    version: Alone<AtomicU64>,
    locked: Alone<AtomicBool>,
    /// Entries and, of them, those that go on in the next.
    entries: AtomicU32,
    continued: AtomicU32,
    /// No piece from this one on ever had a range. Writers only.
    pieces: AtomicU32,
}

/// How many levels, and the root's number.
#[inline(always)]
fn of_root(word: u32) -> (u32, u32) {
    (word >> 28, word & 0x0fff_ffff)
}

/// The piece of a page, and its number there.
#[inline(always)]
#[allow(clippy::cast_possible_truncation)] // what is cut off is in the other
fn split(page: u64) -> (u32, u32) {
    ((page >> PIECE_SHIFT) as u32, page as u32)
}

/// How many nodes of both kinds an index can need.
#[derive(Debug)]
struct Sizes {
    /// Inner nodes above a leaf.
    levels: u32,
    leaves: u32,
    inners: u32,
    /// Of them, those that are left as they were for a while.
    lingering_leaves: u32,
    lingering_inners: u32,
}

impl Sizes {
    /// For that many entries.
    ///
    /// All leaves but roots hold [`Node::LEAST`] entries. A tree's inner nodes have as many children together as there are leaves, and
    /// inner nodes but the root: at least `LEAST` each, and the root 2. Hence no more than leaves / (LEAST - 1), and one for
    /// each root.
    fn of(entries: u32) -> Option<Self> {
        let least = |least: usize| u32::try_from(least).ok();
        let (least_leaf, least_inner) = (least(Leaf::LEAST)?, least(Inner::LEAST)?);
        let leaves = entries / least_leaf + entries.min(PIECES);
        let inners = leaves.div_ceil(least_inner - 1) + (leaves / 2).min(PIECES);
        let levels = 1 + (leaves / 2).max(1).ilog(least_inner);
        // A write replaces a node and a neighbour of it in each level by two, and may add a root.
        let (lingering_leaves, lingering_inners) = (2 * WRITES_UNTIL_REUSE, 2 * levels * WRITES_UNTIL_REUSE);
        let sizes = Self {
            levels,
            leaves: leaves + 2 + lingering_leaves,
            inners: inners + 2 * levels + 1 + lingering_inners,
            lingering_leaves,
            lingering_inners,
        };
        (entries <= MOST_RANGES && levels < least(LEVELS)?).then_some(sizes)
    }
}

/// From a root to a leaf: its word, and that of the range found. (Both go through registers.)
struct Descent<'a> {
    index: &'a Index,
    root: u32,
}

impl Search for Descent<'_> {
    type Found = Option<u64>;

    #[inline(always)]
    fn by(self, rank: impl Rank) -> Option<u64> {
        let (levels, mut node) = of_root(self.root);
        let inners = self.index.inners.nodes();
        for _ in 0..levels.checked_sub(1)? {
            node = inners.get(node as usize)?.child(rank);
        }
        self.index.leaves.get(node)?.find(rank)
    }
}

impl Index {
    /// How many bytes of an arena an index for `capacity` ranges takes; `None`: it is above [`MOST_RANGES`].
    #[must_use]
    pub fn bytes(capacity: u32) -> Option<usize> {
        let sizes = Sizes::of(capacity)?;
        let nodes = Pool::<Leaf>::bytes(sizes.leaves)?.checked_add(Pool::<Inner>::bytes(sizes.inners)?)?;
        nodes.checked_add(Slab::<AtomicU32>::bytes(PIECES)?)
    }

    /// An index for `capacity` ranges in an arena of its own.
    ///
    /// # Errors
    /// [`MemError`], naming the limit where it was one.
    pub fn new(capacity: u32) -> Result<Self, MemError> {
        let too_large = MemError::TooLarge { wanted: u64::from(capacity) };
        let bytes = Self::bytes(capacity).ok_or(too_large.clone())?;
        Self::in_arena(&Arena::new(bytes)?, capacity).ok_or(too_large)
    }

    /// An index for `capacity` ranges in an arena that it shares with others; `None`: no room for [`Index::bytes`] is left there.
    #[must_use]
    pub fn in_arena(arena: &Arc<Arena>, capacity: u32) -> Option<Self> {
        let sizes = Sizes::of(capacity)?;
        Some(Self {
            roots: Slab::new(arena, PIECES)?,
            leaves: Pool::new(arena, sizes.leaves, sizes.lingering_leaves)?,
            inners: Pool::new(arena, sizes.inners, sizes.lingering_inners)?,
            way: Way::best(),
            capacity,
            levels: sizes.levels,
            version: Alone::default(),
            locked: Alone::default(),
            entries: AtomicU32::new(0),
            continued: AtomicU32::new(0),
            pieces: AtomicU32::new(0),
        })
    }

    /// The range that the page of an address belongs to. Lock-free and wait-free.
    ///
    /// What the answer is worth while writers are at work, the module says.
    #[inline]
    #[must_use]
    pub fn find(&self, address: usize) -> Option<Hit> {
        let (piece, key) = split(address as u64 >> PAGE_SHIFT);
        let root = self.roots.get(piece)?.load(Ordering::Acquire);
        let entry = Entry::of_word(self.way.search(key, Descent { index: self, root })?);
        let base = address & !((1 << PIECE_SHIFT << PAGE_SHIFT) - 1);
        let end = base + ((entry.last as usize + 1) << PAGE_SHIFT);
        (key <= entry.last).then_some(Hit { slot: entry.slot, end })
    }

    /// How far writers have come: two for each write, odd while one is under way. To be read before [`Index::find`].
    #[inline]
    #[must_use]
    pub fn version(&self) -> u64 {
        self.version.0.load(Ordering::Acquire)
    }

    /// Whether what [`Index::find`] answered since `version` was read was so at some instant since. (With a writer at work, it need
    /// not be so any more.)
    #[inline]
    #[must_use]
    pub fn settled_since(&self, version: u64) -> bool {
        // Whoever read what was written to a node that is used again sees the version that was stored before.
        fence(Ordering::Acquire);
        self.version.0.load(Ordering::Relaxed).wrapping_sub(version) <= 2 * u64::from(WRITES_UNTIL_REUSE)
    }

    /// Whether no write began since `version` was read, and none was under way then: what [`Index::find`] answered since is so.
    #[inline]
    #[must_use]
    pub fn unchanged_since(&self, version: u64) -> bool {
        fence(Ordering::Acquire);
        version.is_multiple_of(2) && self.version.0.load(Ordering::Relaxed) == version
    }

    /// Waits until nobody else writes: spinning, then yielding the processor.
    ///
    /// Do not map or unmap memory while holding it, where a handler of unmaps may wait for it.
    #[must_use]
    pub fn lock(&self) -> Writer<'_> {
        const SPINS: u32 = 128;
        let mut spins = 0;
        let blocked = Blocked::new();
        while !self.take() {
            if spins < SPINS && !cfg!(loom) {
                spins += 1;
                std::hint::spin_loop();
            } else {
                #[cfg(not(loom))]
                std::thread::yield_now();
                #[cfg(loom)]
                loom::thread::yield_now();
            }
        }
        Writer::new(self, blocked)
    }

    /// The right to write, if nobody else has it now.
    #[must_use]
    pub fn try_lock(&self) -> Option<Writer<'_>> {
        let blocked = Blocked::new();
        self.take().then(|| Writer::new(self, blocked))
    }

    /// Locks it, if it is not locked. Signals are blocked from before until after: a signal handler of this thread may unmap memory, which
    /// with hooks of memory calls waits for the lock.
    fn take(&self) -> bool {
        self.locked.0.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    /// How many ranges there are.
    #[must_use]
    pub fn len(&self) -> u32 {
        let continued = self.continued.load(Ordering::Relaxed);
        self.entries.load(Ordering::Relaxed).saturating_sub(continued)
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// For how many ranges it has room. One that lies in several pieces of 2^44 bytes counts for as many.
    #[must_use]
    pub fn capacity(&self) -> u32 {
        self.capacity
    }

    /// Bytes of nodes it has used up to now.
    #[must_use]
    pub fn touched_bytes(&self) -> usize {
        self.leaves.touched() + self.inners.touched()
    }
}
