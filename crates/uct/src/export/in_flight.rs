//! The protocol between an access and a revocation, over single words.
//!
//! Generic over [`Word`], so that loom checks the code that runs, with a fence more: see below. It is Dekker's scheme: each side writes its word, then
//! reads the other's. At least one of the two sees the other: either the access finds the epoch moved and does not begin, or the
//! revocation finds the access announced and waits.
//!
//! The revocation has a fence in between; the access, of which there are many, does both with sequentially consistent order, which
//! is one locked instruction less. There is one order S of these accesses and the fence (C++20, \[atomics.order\], 3 and 4). An access
//! that finds the old epoch has read it before the fence in S, and announced itself before that; what the revocation reads after the
//! fence is then the announcement, or what came later. Loom takes all accesses for acquire and release ones: there the access has a
//! fence, too, and the order is not checked.

use ucs::sync::{Ordering, Word, fence};

/// Announces an access to export `id` in a free slot, unless the export is found to be no more: `lives` compares its epoch,
/// loaded with sequentially consistent order.
///
/// # Errors
/// [`Refused`]; nothing is announced then.
#[inline]
pub fn announce<W: Word>(slot: &W, id: u64, lives: impl FnOnce() -> bool) -> Result<(), Refused> {
    slot.compare_exchange(0, id, Ordering::SeqCst, Ordering::Relaxed).map_err(|_| Refused::SlotTaken)?;
    #[cfg(loom)] // which takes accesses for acquire and release ones, whatever they say
    fence(Ordering::SeqCst);
    if lives() {
        Ok(())
    } else {
        retire(slot);
        Err(Refused::Stale)
    }
}

/// Ends an announced access: all it has read and written comes before.
#[inline]
pub fn retire<W: Word>(slot: &W) {
    slot.store(0, Ordering::Release);
}

/// Moves the epoch on: no access begins from here on; those announced before may still run.
#[inline]
pub fn withdraw<W: Word>(epoch_word: &W, epoch: u64) {
    epoch_word.store(epoch + 1, Ordering::Release);
    fence(Ordering::SeqCst);
}

/// Whether the slot announces no access to export `id`; then all such accesses came before.
#[inline]
pub fn is_clear<W: Word>(slot: &W, id: u64) -> bool {
    slot.load(Ordering::Acquire) != id
}

/// Why an access may not begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// The slot announces another access.
    SlotTaken,
    /// The export is no more.
    Stale,
}

#[cfg(all(test, loom))]
mod loom_models {
    #![allow(unsafe_code)] // loom's cells lend raw pointers: loom itself checks each access

    use loom::cell::UnsafeCell;
    use loom::sync::Arc;
    use loom::sync::atomic::AtomicU64;
    use loom::thread;
    use ucs::sync::{Ordering, Word, fence};

    use super::{announce, is_clear, retire, withdraw};

    struct World {
        slots: [AtomicU64; 2],
        epoch: AtomicU64,
        memory: UnsafeCell<u64>,
    }

    fn world() -> Arc<World> {
        let slots = [AtomicU64::new(0), AtomicU64::new(0)];
        Arc::new(World { slots, epoch: AtomicU64::new(1), memory: UnsafeCell::new(0) })
    }

    /// The owner re-uses the memory for itself as soon as the revocation has drained; loom reports it when an access of the
    /// importer is concurrent with that.
    fn owner(world: &World, withdraw: impl Fn(&AtomicU64, u64)) {
        withdraw(&world.epoch, 1);
        for slot in &world.slots {
            while !is_clear(slot, 7) {
                thread::yield_now();
            }
        }
        world.memory.with_mut(|memory| {
            // SAFETY: loom checks that nobody else is inside.
            unsafe { *memory = 99 };
        });
    }

    fn importer(world: &World, slot: usize) {
        let lives = || Word::load(&world.epoch, Ordering::SeqCst) == 1;
        if announce(&world.slots[slot], 7, lives).is_ok() {
            world.memory.with(|memory| {
                // SAFETY: loom checks that nobody writes meanwhile.
                assert_ne!(unsafe { *memory }, 99, "an access after the revocation");
            });
            retire(&world.slots[slot]);
        }
    }

    #[test]
    fn loom_no_access_runs_after_a_revocation_has_drained() {
        loom::model(|| {
            let world = world();
            let other = Arc::clone(&world);
            let access = thread::spawn(move || importer(&other, 0));
            owner(&world, |epoch, value| withdraw(epoch, value));
            access.join().unwrap();
        });
    }

    #[test]
    fn loom_two_importers_and_a_revocation() {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(3);
        model.check(|| {
            let world = world();
            let accesses: Vec<_> = (0..2)
                .map(|slot| {
                    let world = Arc::clone(&world);
                    thread::spawn(move || importer(&world, slot))
                })
                .collect();
            owner(&world, |epoch, value| withdraw(epoch, value));
            for access in accesses {
                access.join().unwrap();
            }
        });
    }

    /// Without its fence the revocation may miss an access that missed the revocation: the model must find that.
    #[test]
    #[should_panic]
    fn loom_guard_without_the_fence_an_access_is_missed() {
        loom::model(|| {
            let world = world();
            let other = Arc::clone(&world);
            let access = thread::spawn(move || {
                let slot = &other.slots[0];
                Word::compare_exchange(slot, 0, 7, Ordering::AcqRel, Ordering::Relaxed).unwrap();
                // no fence here
                if Word::load(&other.epoch, Ordering::Acquire) == 1 {
                    other.memory.with(|memory| {
                        // SAFETY: loom checks, and is to report, that somebody writes meanwhile.
                        assert_ne!(unsafe { *memory }, 99);
                    });
                }
                retire(slot);
            });
            owner(&world, |epoch, value| {
                epoch.store(value + 1, Ordering::Release);
                let _ = fence; // and none here
            });
            access.join().unwrap();
        });
    }
}
