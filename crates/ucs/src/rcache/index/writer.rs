//! Writing.
//!
//! A tree's rules, which every write keeps:
//! - Entries of a leaf are in order and do not overlap. Every node but a root has [`Node::LEAST`] keys, a root that is an inner node 2.
//! - The entries below the child at `i` of an inner node lie between its keys at `i` and `i + 1`, ends included: no range crosses
//!   a separator. A separator is the first page of an entry when it is made; later that may have gone.

use super::node::{Entry, Image, Inner, Node};
use super::pool::Pool;
use super::walk::{Path, Ranges};
use super::{Index, LEVELS, PAGES_END, PIECE_SHIFT, Pages, SLOTS_END, split};
use crate::mem::page::PageRange;
use crate::signals::Blocked;
use crate::sync::{AtomicU32, Ordering, fence};

/// A range cannot be inserted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InsertError {
    /// Its addresses have more than [`super::ADDRESS_BITS`] bits.
    #[error("the range ends beyond the highest address there can be")]
    OutOfRange,
    /// The slot's number is not below [`SLOTS_END`].
    #[error("no slot has that number")]
    Slot,
    /// Some of its pages belong to another range.
    #[error("another range has some of the pages")]
    Overlap,
    /// The index has as many ranges as it has room for.
    #[error("the index is full")]
    Full,
}

/// The right to write: from [`Index::lock`], until it is dropped.
#[derive(Debug)]
pub struct Writer<'a> {
    index: &'a Index,
    /// Until after it is unlocked.
    _blocked: Blocked,
}

impl Drop for Writer<'_> {
    fn drop(&mut self) {
        self.index.locked.0.store(false, Ordering::Release);
    }
}

/// What becomes of one child of a node, or of two neighbours.
#[derive(Debug)]
struct Change {
    /// The first one's place.
    from: usize,
    removed: usize,
    /// What takes their place: keys and numbers.
    with: [(u32, u32); 2],
    count: usize,
}

/// Numbers of nodes that a write replaces.
#[derive(Debug, Default)]
struct Replaced {
    count: usize,
    numbers: [u32; 2 * LEVELS],
}

impl Replaced {
    fn add(&mut self, number: u32) {
        self.numbers[self.count] = number;
        self.count += 1;
    }

    fn numbers(&self) -> impl Iterator<Item = u32> {
        self.numbers.iter().copied().take(self.count)
    }
}

impl<'a> Writer<'a> {
    pub(super) fn new(index: &'a Index, blocked: Blocked) -> Self {
        Self { index, _blocked: blocked }
    }

    /// Has the pages belong to `slot`.
    ///
    /// # Errors
    /// [`InsertError`]; nothing has changed then.
    pub fn insert(&mut self, range: PageRange, slot: u32) -> Result<(), InsertError> {
        let pages = Pages::of(range);
        if pages.end > PAGES_END {
            return Err(InsertError::OutOfRange);
        }
        if slot >= SLOTS_END {
            return Err(InsertError::Slot);
        }
        if self.ranges(range).next().is_some() {
            return Err(InsertError::Overlap);
        }
        let parts = ((pages.end - 1) >> PIECE_SHIFT) - (pages.start >> PIECE_SHIFT) + 1;
        let room = self.index.capacity - self.index.entries.load(Ordering::Relaxed);
        if parts > u64::from(room) || !self.nodes_suffice() {
            return Err(InsertError::Full);
        }
        for (piece, first, entry) in parts_of(pages, slot) {
            let inserted = self.write(|writer| writer.insert_part(piece, first, entry));
            debug_assert!(inserted.is_some(), "there are nodes for as many ranges as there is room for");
            add(&self.index.entries, 1);
            add(&self.index.continued, u32::from(entry.goes_on));
        }
        Ok(())
    }

    /// Removes exactly this range, and tells its slot; `None`: there is no such range, and nothing has changed.
    pub fn remove(&mut self, range: PageRange) -> Option<u32> {
        let (_, slot) = self.ranges(range).next().filter(|(found, _)| *found == range)?;
        for (piece, first, entry) in parts_of(Pages::of(range), slot) {
            let removed = self.write(|writer| writer.remove_part(piece, first));
            debug_assert!(removed.is_some(), "there are nodes for as many ranges as there is room for");
            add(&self.index.entries, u32::MAX);
            add(&self.index.continued, u32::from(entry.goes_on).wrapping_neg());
        }
        Some(slot)
    }

    /// Calls `each` with the ranges that share a page with `range`, and their slots, in order.
    pub fn overlapping(&self, range: PageRange, mut each: impl FnMut(PageRange, u32)) {
        self.ranges(range).for_each(|(range, slot)| each(range, slot));
    }

    /// The ranges that share a page with `range`, and their slots, in order.
    #[must_use]
    pub fn ranges(&self, range: PageRange) -> Ranges<'_> {
        Ranges::new(self.index, Pages::of(range))
    }

    /// All ranges and their slots, in order.
    #[must_use]
    pub fn iter(&self) -> Ranges<'_> {
        Ranges::new(self.index, Pages::ALL)
    }

    /// How many ranges there are.
    #[must_use]
    pub fn len(&self) -> u32 {
        self.index.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.index.is_empty()
    }

    /// Whether any one write finds the nodes it needs: always, as they are counted in [`super::Sizes`].
    pub(super) fn nodes_suffice(&self) -> bool {
        self.index.leaves.available() >= 2 && self.index.inners.available() > 2 * self.index.levels
    }

    /// Does one write, its version before and behind it.
    fn write(&mut self, write: impl FnOnce(&mut Self) -> Option<()>) -> Option<()> {
        let version = &self.index.version.0;
        let before = version.load(Ordering::Relaxed);
        // Whoever reads this version sees the writes before, and none of the nodes they replaced.
        version.store(before + 1, Ordering::Release);
        // Nodes are written to behind it: see `Index::settled_since`.
        fence(Ordering::Release);
        let done = write(self);
        version.store(before + 2, Ordering::Release);
        done
    }

    fn insert_part(&mut self, piece: u32, first: u32, entry: Entry) -> Option<()> {
        let Some((path, leaf)) = Path::to(self.index, piece, first) else {
            let mut image = Image::default();
            image.insert(0, first, entry);
            let leaf = place(&self.index.leaves, &image, 0, 1)?;
            self.set_root(piece, 1, leaf)?;
            return Some(());
        };
        let mut image = self.index.leaves.get(leaf)?.image();
        let at = image.rank(first);
        let at_end = at == image.len;
        let mut next = path;
        if at_end && let Some((leaf, level, at)) = next.advance(self.index) {
            let node = self.index.inners.get(next.nodes[level])?;
            if node.key(at) <= entry.last {
                // What the separator was made for has gone. None of the pages up to the next entry belongs to any range, so to
                // look for them here or there makes no difference.
                node.raise(at, self.index.leaves.get(leaf)?.key(0));
            }
        }
        image.insert(at, first, entry);
        self.replace_leaf(piece, &path, leaf, image, at_end)
    }

    fn remove_part(&mut self, piece: u32, first: u32) -> Option<()> {
        let (path, leaf) = Path::to(self.index, piece, first)?;
        let mut image = self.index.leaves.get(leaf)?.image();
        image.remove(image.rank(first).checked_sub(1)?);
        self.replace_leaf(piece, &path, leaf, image, false)
    }

    /// Has `image` take a leaf's place: writes new nodes up to where the number of children stays the same, and one word there.
    fn replace_leaf(
        &mut self,
        piece: u32,
        path: &Path,
        leaf: u32,
        image: Image<Entry>,
        at_end: bool,
    ) -> Option<()> {
        let index = self.index;
        let (mut leaves, mut inners) = (Replaced::default(), Replaced::default());
        leaves.add(leaf);
        if path.depth == 0 && image.len == 0 {
            self.set_root(piece, 0, 0)?;
        } else {
            let change = fit(&index.leaves, image, at_end, self.parent(path, path.depth), &mut leaves)?;
            self.replace_children(piece, path, change, &mut inners)?;
        }
        leaves.numbers().for_each(|number| index.leaves.retire(number));
        inners.numbers().for_each(|number| index.inners.retire(number));
        Some(())
    }

    fn replace_children(
        &mut self,
        piece: u32,
        path: &Path,
        mut change: Change,
        inners: &mut Replaced,
    ) -> Option<()> {
        let index = self.index;
        for level in (0..path.depth).rev() {
            let number = path.nodes[level];
            let node = index.inners.get(number)?;
            if change.removed == 1 && change.count == 1 {
                node.replace(change.from, change.with[0].1);
                return Some(());
            }
            let mut image = node.image();
            let at_end = change.from + change.removed == image.len;
            (0..change.removed).for_each(|_| image.remove(change.from));
            for (at, (key, child)) in change.with.iter().take(change.count).enumerate() {
                image.insert(change.from + at, *key, *child);
            }
            inners.add(number);
            if level == 0 && image.len == 1 {
                return self.set_root(piece, path.depth, image.values[0]);
            }
            change = fit(&index.inners, image, at_end, self.parent(path, level), inners)?;
        }
        let [(_, root), (key, right)] = change.with;
        if change.count == 1 {
            return self.set_root(piece, path.depth + 1, root);
        }
        let mut image = Image::default();
        image.insert(0, 0, root);
        image.insert(1, key, right);
        let root = place(&index.inners, &image, 0, 2)?;
        self.set_root(piece, path.depth + 2, root)
    }

    /// The node above the one of that level, and the place there.
    fn parent(&self, path: &Path, level: usize) -> Option<(&'a Inner, usize)> {
        let above = level.checked_sub(1)?;
        Some((self.index.inners.get(path.nodes[above])?, path.places[above]))
    }

    fn set_root(&mut self, piece: u32, levels: usize, number: u32) -> Option<()> {
        let levels = u32::try_from(levels).ok()?;
        let pieces = &self.index.pieces;
        pieces.store(pieces.load(Ordering::Relaxed).max(piece + 1), Ordering::Relaxed);
        self.index.roots.get(piece)?.store(levels << 28 | number, Ordering::Release);
        Some(())
    }
}

/// Writes `image` to new nodes: one, or two if it is too large; together with a neighbour, which it adds to `replaced`, if it is too
/// small. Tells what that changes in the parent; a root has none, and may be small.
fn fit<N: Node>(
    pool: &Pool<N>,
    mut image: Image<N::Value>,
    at_end: bool,
    parent: Option<(&Inner, usize)>,
    replaced: &mut Replaced,
) -> Option<Change> {
    let (mut from, mut removed, mut most) = (parent.map_or(0, |(_, place)| place), 1, N::WIDTH);
    if let Some((parent, place)) = parent
        && image.len < N::LEAST
    {
        let neighbour = if place > 0 { place - 1 } else { place + 1 };
        let number = parent.value(neighbour);
        let other = pool.get(number)?.image();
        replaced.add(number);
        (from, removed) = (place.min(neighbour), 2);
        let (left, mut right) = if neighbour < place { (other, image) } else { (image, other) };
        if N::SEPARATES {
            right.keys[0] = parent.key(from + 1);
        }
        image = left;
        image.append(&right);
        // Not one that the next insertion would split again.
        most = N::WIDTH * 3 / 4;
    }
    let keep = match image.len {
        len if len <= most => len,
        // Keys often come in ascending order: what follows will then belong to the right one.
        _ if at_end && removed == 1 => N::WIDTH * 3 / 4,
        len => len / 2,
    };
    let key = parent.map_or(0, |(parent, _)| parent.key(from));
    let mut change = Change { from, removed, with: [(key, place(pool, &image, 0, keep)?), (0, 0)], count: 1 };
    if keep < image.len {
        change.with[1] = (image.keys[keep], place(pool, &image, keep, image.len)?);
        change.count = 2;
    }
    Some(change)
}

/// Writes a part of `image` to a new node, and tells its number.
fn place<N: Node>(pool: &Pool<N>, image: &Image<N::Value>, from: usize, to: usize) -> Option<u32> {
    let number = pool.take()?;
    pool.get(number)?.fill(image, from, to);
    Some(number)
}

/// By piece: the first page and the entry there.
fn parts_of(pages: Pages, slot: u32) -> impl Iterator<Item = (u32, u32, Entry)> {
    let ((first_piece, first), (last_piece, last)) = (split(pages.start), split(pages.end - 1));
    (first_piece..=last_piece).map(move |piece| {
        let goes_on = piece < last_piece;
        let last = if goes_on { u32::MAX } else { last };
        (piece, if piece == first_piece { first } else { 0 }, Entry { last, slot, goes_on })
    })
}

/// Only the holder of the lock counts.
fn add(counter: &AtomicU32, value: u32) {
    counter.store(counter.load(Ordering::Relaxed).wrapping_add(value), Ordering::Relaxed);
}
