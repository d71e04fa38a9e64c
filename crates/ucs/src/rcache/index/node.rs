//! The nodes of the trees, and the copies a writer makes of them.
//!
//! A node has room for a fixed number of keys, each with a value: a leaf's keys are the first pages of ranges, an inner node's
//! are separators, below which nothing of the child lies. Room that is not used repeats the last value under the highest key.
//! So readers need no count: whatever they look for, the number of keys that are not above it, less one, is the place.
//!
//! `keys[0]` of an inner node is never above what is looked for there, and means no more than that.
//!
//! # Safety
//! The nodes are made of arrays of atomics only, in which any bytes are a value.

#![allow(unsafe_code)]

use super::rank::{FLIP, Halving, Keys, Rank};
use crate::rcache::arena::Words;
use crate::sync::{AtomicU32, AtomicU64, Ordering};

/// The bit of a leaf's value that says that the range goes on in the next piece of the address space.
const GOES_ON: u32 = 1 << 31;

/// A leaf's value: where the range ends, its slot, and whether it goes on in the next piece.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Entry {
    /// The last page, within the piece.
    pub(super) last: u32,
    pub(super) slot: u32,
    pub(super) goes_on: bool,
}

impl Entry {
    #[inline]
    fn to_word(self) -> u64 {
        let slot = self.slot | if self.goes_on { GOES_ON } else { 0 };
        u64::from(self.last) | u64::from(slot) << 32
    }

    #[inline]
    #[allow(clippy::cast_possible_truncation)] // both halves of the word
    pub(super) fn of_word(word: u64) -> Self {
        let slot = (word >> 32) as u32;
        Self { last: word as u32, slot: slot & !GOES_ON, goes_on: slot & GOES_ON != 0 }
    }
}

/// What the two kinds of nodes have in common.
pub(super) trait Node: Words {
    /// What belongs to a key.
    type Value: Copy + Default + PartialEq;
    /// How many keys there is room for.
    const WIDTH: usize;
    /// How many a node has at least, if it is not a root.
    const LEAST: usize = Self::WIDTH / 4 + 1;
    /// Whether keys only separate, so that a first one can be replaced by the parent's.
    const SEPARATES: bool;

    fn keys(&self) -> &[AtomicU32];
    fn value(&self, at: usize) -> Self::Value;
    /// Releases what was written before.
    fn set_value(&self, at: usize, value: Self::Value);

    fn key(&self, at: usize) -> u32 {
        self.keys()[at].load(Ordering::Relaxed) ^ FLIP
    }

    /// How many keys are used. Writers only.
    fn count(&self) -> usize {
        let padding = |at: &usize| self.key(*at) == u32::MAX && self.value(*at) == self.value(*at - 1);
        (1..Self::WIDTH).find(padding).unwrap_or(Self::WIDTH)
    }

    /// What it holds. Writers only.
    fn image(&self) -> Image<Self::Value> {
        let mut image = Image { len: self.count(), ..Image::default() };
        for at in 0..image.len {
            image.keys[at] = self.key(at);
            image.values[at] = self.value(at);
        }
        image
    }

    /// Writes to a node that nobody can reach yet, if not by reading late.
    fn fill(&self, image: &Image<Self::Value>, from: usize, to: usize) {
        for at in 0..Self::WIDTH {
            let key = if from + at < to { image.keys[from + at] } else { u32::MAX };
            self.keys()[at].store(key ^ FLIP, Ordering::Relaxed);
            self.set_value(at, image.values[(from + at).min(to - 1)]);
        }
    }
}

const LEAF_WIDTH: usize = if cfg!(loom) { 4 } else { 16 };
const INNER_WIDTH: usize = if cfg!(loom) { 4 } else { 32 };

/// Sixteen ranges.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub(super) struct Leaf {
    keys: Keys<LEAF_WIDTH>,
    values: [AtomicU64; LEAF_WIDTH],
}

// SAFETY: arrays of atomics, zero by default, and a cache line's alignment.
unsafe impl Words for Leaf {}

impl Leaf {
    /// The first page of a range, and the rest of it.
    pub(super) fn entry(&self, at: usize) -> (u32, Entry) {
        (self.key(at), self.value(at))
    }

    /// How many ranges begin at the key or before it. Writers only.
    pub(super) fn rank(&self, key: u32) -> usize {
        // The highest key counts the padding, too.
        Halving(key).among(&self.keys).min(self.count())
    }

    /// The word of the range that begins last of those that do not begin behind the key.
    #[inline(always)]
    pub(super) fn find(&self, rank: impl Rank) -> Option<u64> {
        rank.prefetch(&self.values);
        let at = rank.among(&self.keys).checked_sub(1)?;
        // A rank is at most the width: the remainder is for the compiler.
        Some(self.values[at % LEAF_WIDTH].load(Ordering::Relaxed))
    }
}

impl Node for Leaf {
    type Value = Entry;
    const WIDTH: usize = LEAF_WIDTH;
    const SEPARATES: bool = false;

    fn keys(&self) -> &[AtomicU32] {
        &self.keys.0
    }

    fn value(&self, at: usize) -> Entry {
        Entry::of_word(self.values[at].load(Ordering::Relaxed))
    }

    fn set_value(&self, at: usize, value: Entry) {
        self.values[at].store(value.to_word(), Ordering::Release);
    }
}

/// Thirty-two children, by number: leaves or inner nodes, by what level the node is of.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub(super) struct Inner {
    keys: Keys<INNER_WIDTH>,
    children: [AtomicU32; INNER_WIDTH],
}

// SAFETY: as above.
unsafe impl Words for Inner {}

impl Inner {
    /// The place of the child that the key belongs to.
    #[inline(always)]
    pub(super) fn place(&self, rank: impl Rank) -> usize {
        // Where none of the keys is small enough, a writer is at work (see `raise`), and any child will do.
        rank.among(&self.keys).wrapping_sub(1) % INNER_WIDTH
    }

    /// The child that the key belongs to.
    #[inline(always)]
    pub(super) fn child(&self, rank: impl Rank) -> u32 {
        self.children[self.place(rank)].load(Ordering::Acquire)
    }

    /// Has `child` take the place of the one there. For readers that is all of a write.
    pub(super) fn replace(&self, place: usize, child: u32) {
        let old = self.value(place);
        // The padding is of the last child.
        let padded = (place..Self::WIDTH).take_while(|at| self.value(*at) == old).count();
        (place..place + padded).for_each(|at| self.set_value(at, child));
    }

    /// Moves a separator upwards, past pages that belong to no range.
    pub(super) fn raise(&self, at: usize, key: u32) {
        self.keys.0[at].store(key ^ FLIP, Ordering::Relaxed);
    }
}

impl Node for Inner {
    type Value = u32;
    const WIDTH: usize = INNER_WIDTH;
    const SEPARATES: bool = true;

    fn keys(&self) -> &[AtomicU32] {
        &self.keys.0
    }

    fn value(&self, at: usize) -> u32 {
        self.children[at].load(Ordering::Relaxed)
    }

    fn set_value(&self, at: usize, value: u32) {
        self.children[at].store(value, Ordering::Release);
    }
}

/// Two nodes at most, and a key more.
const ROOM: usize = 2 * INNER_WIDTH + 1;

/// A node as a writer edits it.
#[derive(Clone, Debug)]
pub(super) struct Image<V> {
    pub(super) len: usize,
    pub(super) keys: [u32; ROOM],
    pub(super) values: [V; ROOM],
}

impl<V: Copy + Default> Default for Image<V> {
    fn default() -> Self {
        Self { len: 0, keys: [0; ROOM], values: [V::default(); ROOM] }
    }
}

impl<V: Copy + Default> Image<V> {
    /// How many keys are at most this one.
    pub(super) fn rank(&self, key: u32) -> usize {
        self.keys[..self.len].partition_point(|k| *k <= key)
    }

    pub(super) fn insert(&mut self, at: usize, key: u32, value: V) {
        self.keys.copy_within(at..self.len, at + 1);
        self.values.copy_within(at..self.len, at + 1);
        (self.keys[at], self.values[at]) = (key, value);
        self.len += 1;
    }

    pub(super) fn remove(&mut self, at: usize) {
        self.keys.copy_within(at + 1..self.len, at);
        self.values.copy_within(at + 1..self.len, at);
        self.len -= 1;
    }

    pub(super) fn append(&mut self, other: &Self) {
        let len = self.len + other.len;
        self.keys[self.len..len].copy_from_slice(&other.keys[..other.len]);
        self.values[self.len..len].copy_from_slice(&other.values[..other.len]);
        self.len = len;
    }
}
