//! How many of a node's keys are at most a given one.
//!
//! Writers halve. Readers compare all keys of a node at once where vectors can, that is on x86_64. Elsewhere they halve, too, and where assembly hides accesses from a tool (loom, the sanitizers by `--cfg rucx_sanitizer`, Miri).

#[cfg(all(target_arch = "x86_64", not(any(loom, rucx_sanitizer, miri))))]
mod x86_64;

#[cfg(all(target_arch = "x86_64", not(any(loom, rucx_sanitizer, miri))))]
pub(super) use x86_64::Way;

use crate::sync::{AtomicU32, Ordering};

/// Keys in ascending order, each with its highest bit flipped: vectors compare signed words only.
#[derive(Debug)]
#[repr(C, align(64))]
pub(super) struct Keys<const WIDTH: usize>(pub(super) [AtomicU32; WIDTH]);

/// What is flipped.
pub(super) const FLIP: u32 = 1 << 31;

impl<const WIDTH: usize> Default for Keys<WIDTH> {
    fn default() -> Self {
        Self(std::array::from_fn(|_| AtomicU32::new(0)))
    }
}

/// A way to rank one key. Keys may change meanwhile; whatever is read, a rank is at most the number of keys.
pub(super) trait Rank: Copy {
    /// How many of the keys are at most this one.
    fn among<const WIDTH: usize>(self, keys: &Keys<WIDTH>) -> usize;

    /// Has the values fetched of keys that are about to be ranked.
    #[inline(always)]
    fn prefetch<T>(self, _: &[T]) {}
}

/// A search for one key through several nodes.
pub(super) trait Search {
    type Found;

    fn by(self, rank: impl Rank) -> Self::Found;
}

/// There is one way only.
#[cfg(not(all(target_arch = "x86_64", not(any(loom, rucx_sanitizer, miri)))))]
#[derive(Clone, Copy, Debug)]
pub(super) struct Way;

#[cfg(not(all(target_arch = "x86_64", not(any(loom, rucx_sanitizer, miri)))))]
impl Way {
    #[cfg(test)]
    #[cfg(not(loom))]
    pub(super) fn all() -> impl Iterator<Item = Self> {
        [Self].into_iter()
    }

    pub(super) fn best() -> Self {
        Self
    }

    #[inline]
    pub(super) fn search<S: Search>(self, key: u32, search: S) -> S::Found {
        search.by(Halving(key))
    }
}

/// For any machine, and for writers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Halving(pub(super) u32);

impl Rank for Halving {
    #[inline]
    fn among<const WIDTH: usize>(self, keys: &Keys<WIDTH>) -> usize {
        let (mut from, mut to) = (0, WIDTH);
        while from < to {
            let middle = usize::midpoint(from, to);
            if keys.0[middle].load(Ordering::Relaxed) ^ FLIP <= self.0 {
                from = middle + 1;
            } else {
                to = middle;
            }
        }
        from
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;

    #[derive(Clone, Copy)]
    struct Among<'a, const WIDTH: usize>(&'a Keys<WIDTH>);

    impl<const WIDTH: usize> Search for Among<'_, WIDTH> {
        type Found = usize;

        fn by(self, rank: impl Rank) -> usize {
            rank.among(self.0)
        }
    }

    fn agree<const WIDTH: usize>(sorted: &[u32]) {
        let keys = Keys::<WIDTH>::default();
        for (at, key) in keys.0.iter().enumerate() {
            key.store(sorted.get(at).copied().unwrap_or(u32::MAX) ^ FLIP, Ordering::Relaxed);
        }
        let near = sorted.iter().flat_map(|key| [key.wrapping_sub(1), *key, key.wrapping_add(1)]);
        for key in near.chain([0, 1, FLIP - 1, FLIP, u32::MAX - 1, u32::MAX]) {
            let expected = match key {
                u32::MAX => WIDTH,
                key => sorted.iter().filter(|k| **k <= key).count(),
            };
            assert_eq!(Halving(key).among(&keys), expected, "{key:#x} in {sorted:x?}");
            for way in Way::all() {
                assert_eq!(way.search(key, Among(&keys)), expected, "{way:?}: {key:#x} in {sorted:x?}");
            }
        }
    }

    #[test]
    fn vectors_and_halving_agree() {
        for len in 0..=32 {
            for keys in [
                (0..len).collect::<Vec<u32>>(),
                (0..len).map(|i| i * 0x0800_0000).collect(),
                (0..len).map(|i| u32::MAX - (len - 1 - i)).collect(),
                (0..len).map(|i| FLIP - len / 2 + i).collect(),
            ] {
                if len <= 16 {
                    agree::<16>(&keys);
                }
                agree::<32>(&keys);
            }
        }
    }
}
