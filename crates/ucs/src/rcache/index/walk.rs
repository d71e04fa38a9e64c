//! Going through the ranges in order. Only with the lock held: what is walked over does not change.

use super::node::{Entry, Inner, Node};
use super::rank::Halving;
use super::{Index, LEVELS, PIECE_SHIFT, Pages, of_root, split};
use crate::mem::page::PageRange;
use crate::sync::Ordering;

/// The inner nodes above a leaf, the root first, and which child of each is meant.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Path {
    pub(super) depth: usize,
    pub(super) nodes: [u32; LEVELS],
    pub(super) places: [usize; LEVELS],
}

impl Path {
    /// The way to the leaf a key belongs to, and its number; `None`: the piece has no tree.
    pub(super) fn to(index: &Index, piece: u32, key: u32) -> Option<(Self, u32)> {
        let (levels, root) = of_root(index.roots.get(piece)?.load(Ordering::Relaxed));
        let depth = usize::try_from(levels.checked_sub(1)?).ok()?;
        let mut path = Self::default();
        // The highest key finds the last of the padding.
        let place = |node: &Inner| node.place(Halving(key)).min(node.count() - 1);
        let leaf = path.descend(index, root, depth, place)?;
        Some((path, leaf))
    }

    /// From a node down to a leaf, by so many levels.
    fn descend(
        &mut self,
        index: &Index,
        mut node: u32,
        levels: usize,
        place: impl Fn(&Inner) -> usize,
    ) -> Option<u32> {
        for _ in 0..levels {
            let inner = index.inners.get(node)?;
            let at = place(inner);
            (self.nodes[self.depth], self.places[self.depth]) = (node, at);
            self.depth += 1;
            node = inner.value(at);
        }
        Some(node)
    }

    /// Goes on to the next leaf, and tells its number and where the separator before it is: which level, which place.
    pub(super) fn advance(&mut self, index: &Index) -> Option<(u32, usize, usize)> {
        let depth = self.depth;
        for level in (0..depth).rev() {
            let node = index.inners.get(self.nodes[level])?;
            let place = self.places[level] + 1;
            if place < node.count() {
                self.places[level] = place;
                self.depth = level + 1;
                let leaf = self.descend(index, node.value(place), depth - level - 1, |_| 0)?;
                return Some((leaf, level, place));
            }
        }
        None
    }
}

/// An entry: a range, or the part of one that lies in one piece.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part {
    pub(super) pages: Pages,
    pub(super) slot: u32,
    pub(super) goes_on: bool,
}

impl Part {
    fn of(piece: u32, first: u32, entry: Entry) -> Self {
        let base = u64::from(piece) << PIECE_SHIFT;
        let pages = Pages { start: base + u64::from(first), end: base + u64::from(entry.last) + 1 };
        Self { pages, slot: entry.slot, goes_on: entry.goes_on }
    }

    /// The one a page belongs to.
    pub(super) fn at(index: &Index, page: u64) -> Option<Self> {
        let (piece, key) = split(page);
        let (_, leaf) = Path::to(index, piece, key)?;
        let leaf = index.leaves.get(leaf)?;
        let (first, entry) = leaf.entry(leaf.rank(key).checked_sub(1)?);
        (key <= entry.last).then(|| Self::of(piece, first, entry))
    }
}

/// Where in a tree.
#[derive(Clone, Copy, Debug)]
struct Position {
    piece: u32,
    path: Path,
    leaf: u32,
    at: usize,
}

/// Ranges and their slots, in order. From [`super::Writer::iter`] and [`super::Writer::ranges`].
#[derive(Clone, Debug)]
pub struct Ranges<'a> {
    index: &'a Index,
    /// Where to go on, if not at `position`.
    page: u64,
    end: u64,
    position: Option<Position>,
}

impl<'a> Ranges<'a> {
    /// Those that share a page with `pages`.
    pub(super) fn new(index: &'a Index, pages: Pages) -> Self {
        let pieces = u64::from(index.pieces.load(Ordering::Relaxed));
        Self { index, page: pages.start, end: pages.end.min(pieces << PIECE_SHIFT), position: None }
    }

    /// The place of `page`, or of the next page that belongs to a range of the same piece.
    fn seek(&self) -> Option<Position> {
        let (piece, key) = split(self.page);
        let (path, leaf) = Path::to(self.index, piece, key)?;
        let ranges = self.index.leaves.get(leaf)?;
        let behind = ranges.rank(key);
        let at = behind - usize::from(behind > 0 && ranges.value(behind - 1).last >= key);
        Some(Position { piece, path, leaf, at })
    }

    fn next_part(&mut self) -> Option<Part> {
        while self.page < self.end {
            if self.position.is_none() {
                self.position = self.seek();
            }
            if let Some(position) = &mut self.position {
                let leaf = self.index.leaves.get(position.leaf)?;
                if position.at < leaf.count() {
                    let (first, entry) = leaf.entry(position.at);
                    position.at += 1;
                    let part = Part::of(position.piece, first, entry);
                    return (part.pages.start < self.end).then_some(part);
                }
                if let Some((leaf, ..)) = position.path.advance(self.index) {
                    (position.leaf, position.at) = (leaf, 0);
                    continue;
                }
            }
            self.position = None;
            self.page = ((self.page >> PIECE_SHIFT) + 1) << PIECE_SHIFT;
        }
        None
    }
}

impl Iterator for Ranges<'_> {
    type Item = (PageRange, u32);

    fn next(&mut self) -> Option<(PageRange, u32)> {
        let starts_piece = |page: u64| page.trailing_zeros() >= PIECE_SHIFT && page > 0;
        let Some(part) = self.next_part() else {
            self.page = self.end;
            return None;
        };
        let Part { mut pages, slot, mut goes_on } = part;
        while starts_piece(pages.start)
            && let Some(before) = Part::at(self.index, pages.start - 1).filter(|part| part.goes_on)
        {
            pages.start = before.pages.start;
        }
        while goes_on && let Some(part) = Part::at(self.index, pages.end) {
            (pages.end, goes_on) = (part.pages.end, part.goes_on);
            (self.page, self.position) = (pages.end, None);
        }
        Some((pages.to_range()?, slot))
    }
}
