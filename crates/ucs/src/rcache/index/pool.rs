//! Nodes of one kind: taken, retired, and taken again only much later.

use std::sync::Arc;

use crate::rcache::arena::{Arena, Slab, Words};
use crate::sync::{AtomicU32, Ordering};

/// A slab and the numbers of those of its nodes that are in no tree.
///
/// Only the holder of the index's lock takes and retires, so nothing here orders anything.
#[derive(Debug)]
pub(super) struct Pool<T> {
    nodes: Slab<T>,
    /// The retired, as a ring: whoever has waited longest is taken first.
    retired: Slab<AtomicU32>,
    first: AtomicU32,
    waiting: AtomicU32,
    /// From this one on, none was ever taken.
    fresh: AtomicU32,
    /// How many retired ones are left waiting, so that readers that still look at them find them as they were.
    linger: u32,
}

impl<T: Words> Pool<T> {
    pub(super) fn bytes(nodes: u32) -> Option<usize> {
        Slab::<T>::bytes(nodes)?.checked_add(Slab::<AtomicU32>::bytes(nodes)?)
    }

    /// Of `nodes` nodes, of which `linger` are not available.
    pub(super) fn new(arena: &Arc<Arena>, nodes: u32, linger: u32) -> Option<Self> {
        Some(Self {
            nodes: Slab::new(arena, nodes)?,
            retired: Slab::new(arena, nodes)?,
            first: AtomicU32::new(0),
            waiting: AtomicU32::new(0),
            fresh: AtomicU32::new(0),
            linger,
        })
    }

    #[inline(always)]
    pub(super) fn get(&self, number: u32) -> Option<&T> {
        self.nodes.get(number)
    }

    /// All nodes, by number.
    #[inline(always)]
    pub(super) fn nodes(&self) -> &[T] {
        self.nodes.elements()
    }

    /// How many can be taken.
    pub(super) fn available(&self) -> u32 {
        let (fresh, waiting) = (self.fresh.load(Ordering::Relaxed), self.waiting.load(Ordering::Relaxed));
        self.nodes.len() - fresh + waiting.saturating_sub(self.linger)
    }

    /// Bytes of nodes that were ever taken, and of their places in the ring.
    pub(super) fn touched(&self) -> usize {
        self.fresh.load(Ordering::Relaxed) as usize * (size_of::<T>() + size_of::<AtomicU32>())
    }

    /// A node that is nobody's; `None`: none is [`Pool::available`].
    pub(super) fn take(&self) -> Option<u32> {
        let (fresh, waiting) = (self.fresh.load(Ordering::Relaxed), self.waiting.load(Ordering::Relaxed));
        if waiting > self.linger {
            let first = self.first.load(Ordering::Relaxed);
            self.first.store((first + 1) % self.retired.len(), Ordering::Relaxed);
            self.waiting.store(waiting - 1, Ordering::Relaxed);
            Some(self.retired.get(first)?.load(Ordering::Relaxed))
        } else if fresh < self.nodes.len() {
            self.fresh.store(fresh + 1, Ordering::Relaxed);
            Some(fresh)
        } else {
            None
        }
    }

    /// Gives back one that no word of a tree names any more.
    pub(super) fn retire(&self, number: u32) {
        let waiting = self.waiting.load(Ordering::Relaxed);
        let end = (u64::from(self.first.load(Ordering::Relaxed)) + u64::from(waiting))
            % u64::from(self.retired.len());
        if let Some(place) = u32::try_from(end).ok().and_then(|end| self.retired.get(end)) {
            place.store(number, Ordering::Relaxed);
            self.waiting.store(waiting + 1, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use crate::sync::AtomicU64;

    #[test]
    fn the_retired_linger() {
        let arena = Arena::new(Pool::<AtomicU64>::bytes(5).unwrap()).unwrap();
        let pool = Pool::<AtomicU64>::new(&arena, 5, 2).unwrap();
        let taken: Vec<_> = (0..5).map(|_| pool.take().unwrap()).collect();
        assert_eq!(taken, [0, 1, 2, 3, 4]);
        for round in 0..20 {
            let [a, b, c] = [0, 1, 2].map(|i| (round + i) % 5);
            if round == 0 {
                pool.retire(a);
                pool.retire(b);
            }
            assert_eq!((pool.take(), pool.available()), (None, 0), "two linger");
            pool.retire(c);
            assert_eq!((pool.available(), pool.take()), (1, Some(a)), "who waited longest");
        }
        assert_eq!(pool.touched(), 5 * 12);
    }
}
