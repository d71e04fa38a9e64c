//! Which slot an address is likely to be in: one that a registration was once made for.
//!
//! The index takes several steps, each of which waits for a line of memory; this takes one. It is a table of short buckets, by the hash
//! of a page's number. An entry is a slot's number, and as much of the hash as there is room for, so that few wrong ones are looked
//! at. Makers write it, and nobody who finds something. It may be wrong: the slot says whether it serves, and the index knows all.
//!
//! ```text
//! page ─hash─▶ bucket ┌─tag, slot + 1─┬─tag, slot + 1─┬─0─┬─0─┐   a quarter of a cache line
//!                     └───────────────┴───────────────┴───┴───┘
//! ```

use crate::sync::{AtomicU32, Ordering};

/// Entries of a bucket.
const WIDTH: usize = 4;

#[derive(Debug, Default)]
#[repr(align(16))]
struct Bucket([AtomicU32; WIDTH]);

/// The table.
#[derive(Debug)]
pub(super) struct Guesses {
    buckets: Box<[Bucket]>,
    /// How far a hash is shifted for the bucket's number.
    shift: u32,
    /// Bits of an entry that are the slot's number.
    slot: u32,
}

/// Where a page belongs.
struct Place<'a> {
    bucket: &'a Bucket,
    tag: u32,
}

impl Guesses {
    /// For that many slots: two entries for each, and a few, so that a bucket seldom has too many.
    pub(super) fn new(slots: u32) -> Self {
        let buckets = (slots as usize * 2).div_ceil(WIDTH).next_power_of_two().max(2);
        let slot = (u64::from(slots) + 1).next_power_of_two() - 1;
        Self {
            buckets: (0..buckets).map(|_| Bucket::default()).collect(),
            shift: u64::BITS - buckets.ilog2(),
            slot: u32::try_from(slot).unwrap_or(u32::MAX),
        }
    }

    #[inline]
    fn place(&self, address: usize) -> Place<'_> {
        let hash = (address as u64 >> 12).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        // The mask is for the compiler.
        let bucket = &self.buckets[(hash >> self.shift) as usize & (self.buckets.len() - 1)];
        #[allow(clippy::cast_possible_truncation)] // bits that did not choose the bucket
        Place { bucket, tag: (hash >> 8) as u32 & !self.slot }
    }

    /// The slot that an address may be in.
    #[inline]
    pub(super) fn of(&self, address: usize) -> Option<u32> {
        let Place { bucket, tag } = self.place(address);
        // No branch by where it is found, which no processor foresees. Two at once, by a race of makers, make a wrong guess.
        let found = bucket.0.iter().fold(0, |found, entry| {
            let entry = entry.load(Ordering::Relaxed);
            found | if entry & !self.slot == tag { entry & self.slot } else { 0 }
        });
        found.checked_sub(1)
    }

    /// An address is in slot `number` now.
    pub(super) fn note(&self, address: usize, number: u32) {
        let Place { bucket, tag } = self.place(address);
        let entries = || bucket.0.iter().zip(bucket.0.iter().map(|entry| entry.load(Ordering::Relaxed)));
        let same = entries().find(|(_, entry)| entry & self.slot != 0 && entry & !self.slot == tag);
        let free = || entries().find(|(_, entry)| *entry == 0);
        let other = || entries().nth(number as usize % WIDTH);
        if let Some((entry, _)) = same.or_else(free).or_else(other)
            && number < self.slot
        {
            entry.store(tag | (number + 1), Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;

    #[test]
    fn most_are_right_and_few_are_wrong() {
        const SLOTS: u32 = 100_000;
        let guesses = Guesses::new(SLOTS);
        assert!(size_of_val(&*guesses.buckets) <= 11 * SLOTS as usize);
        let address = |number: u32| (1 << 44) + number as usize * 8192;
        assert_eq!(guesses.of(address(0)), None);
        (0..SLOTS).for_each(|number| guesses.note(address(number), number));
        let right = (0..SLOTS).filter(|number| guesses.of(address(*number)) == Some(*number)).count();
        assert!(right > 95_000, "{right}");
        let wrong = (SLOTS..2 * SLOTS).filter(|number| guesses.of(address(*number)).is_some()).count();
        assert!(wrong < 2_000, "{wrong}");
        guesses.note(address(7), 99_999);
        assert_eq!(guesses.of(address(7)), Some(99_999), "the last one that was noted");
    }

    #[test]
    fn few_slots() {
        for slots in [0, 1, 2, 3] {
            let guesses = Guesses::new(slots);
            assert_eq!(guesses.of(4096), None);
            (0..slots).for_each(|number| guesses.note(4096, number));
            assert_eq!(guesses.of(4096), slots.checked_sub(1));
        }
    }
}
