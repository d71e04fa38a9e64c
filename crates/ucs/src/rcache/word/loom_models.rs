//! Hits, invalidations, re-use and the end of a cache, in all interleavings.
//!
//! # Safety
//! loom checks each access to what lies in one of its cells.

#![allow(unsafe_code)] // loom's cells lend raw pointers: loom itself checks each access

use loom::cell::UnsafeCell;
use loom::sync::{Arc, Mutex};
use loom::thread;

use super::{RegionWord, State};
use crate::sync::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

/// A slot with what the registration is: the generation it was made in, or 0.
struct Slot {
    word: RegionWord,
    handle: UnsafeCell<u64>,
    deregistered: AtomicUsize,
}

impl Slot {
    fn valid() -> Arc<Self> {
        let slot = Self {
            word: RegionWord::default(),
            handle: UnsafeCell::new(0),
            deregistered: AtomicUsize::new(0),
        };
        slot.make();
        slot.put();
        Arc::new(slot)
    }

    /// Registers anew, as the only one who does.
    fn make(&self) {
        self.word.begin().unwrap();
        let generation = self.word.load().generation();
        self.handle.with_mut(|handle| {
            // SAFETY: loom checks that nobody else is inside.
            unsafe { *handle = generation };
        });
        let _ = self.word.publish();
    }

    fn put(&self) {
        if self.word.release() {
            self.end();
        }
    }

    fn reclaim(&self) {
        if self.word.claim() {
            self.end();
        }
    }

    /// What was claimed.
    fn end(&self) {
        self.handle.with_mut(|handle| {
            // SAFETY: loom checks that nobody else is inside.
            unsafe { *handle = 0 };
        });
        self.deregistered.fetch_add(1, Ordering::Relaxed);
        self.word.free().unwrap();
    }

    /// A hit, as the cache makes it.
    fn hit(&self) {
        let seen = self.word.acquire();
        if seen.state() == State::Valid {
            self.handle.with(|handle| {
                // SAFETY: loom checks that nobody writes meanwhile.
                assert_eq!(unsafe { *handle }, seen.generation(), "another registration's handle");
            });
        }
        self.put();
    }
}

#[test]
fn loom_two_hits_and_an_invalidation() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| {
        let slot = Slot::valid();
        let hits: Vec<_> = (0..2)
            .map(|_| {
                let slot = Arc::clone(&slot);
                thread::spawn(move || slot.hit())
            })
            .collect();
        if slot.word.invalidate() {
            slot.reclaim();
        }
        for hit in hits {
            hit.join().unwrap();
        }
        assert_eq!(slot.deregistered.load(Ordering::Relaxed), 1, "deregistered once");
    });
}

#[test]
fn loom_a_slot_is_used_again_under_a_late_reader() {
    loom::model(|| {
        let slot = Slot::valid();
        let other = Arc::clone(&slot);
        let hit = thread::spawn(move || other.hit());
        if slot.word.invalidate() {
            slot.reclaim();
        }
        if slot.word.load().state() == State::Free {
            slot.make();
            slot.put();
        }
        hit.join().unwrap();
    });
}

/// A cache that is closed under two users. A registration keeps the memory of all slots as long as it is there; the flag stands for
/// that memory, and whoever touches the word must find it standing.
struct Closing {
    word: RegionWord,
    gone: AtomicBool,
}

impl Closing {
    fn word(&self) -> &RegionWord {
        assert!(!self.gone.load(Ordering::SeqCst), "the word lies in memory that is gone");
        &self.word
    }

    /// What was claimed was the last registration there.
    fn end(&self) {
        self.word.free().unwrap();
        // No look at the flag before: loom goes back to the last access to it only.
        assert!(!self.gone.swap(true, Ordering::SeqCst), "once");
    }
}

fn closing(put: impl Fn(&Closing) + Copy + Send + Sync + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(move || {
        let closing = Closing { word: RegionWord::default(), gone: AtomicBool::new(false) };
        closing.word.begin().unwrap();
        closing.word.publish().unwrap();
        let _ = closing.word.acquire();
        let closing = Arc::new(closing);
        let users: Vec<_> = (0..2)
            .map(|_| {
                let closing = Arc::clone(&closing);
                thread::spawn(move || put(&closing))
            })
            .collect();
        // Who closes keeps the memory meanwhile, and the reclaimer comes by.
        let _ = closing.word.invalidate();
        if closing.word.claim() {
            closing.end();
        }
        for user in users {
            user.join().unwrap();
        }
        assert!(closing.gone.load(Ordering::SeqCst), "nobody has ended it");
    });
}

#[test]
fn loom_users_outlive_the_cache() {
    closing(|closing| {
        if closing.word().release() {
            closing.end();
        }
    });
}

/// A claim after the reference was given back comes too late: somebody else may have ended it, and what the word lies in.
#[test]
#[should_panic(expected = "memory that is gone")]
fn loom_guard_a_release_and_then_a_claim() {
    closing(|closing| {
        let before = super::Seen(closing.word().0.fetch_sub(1, Ordering::AcqRel));
        if before.is(State::Stale) && before.references() == 1 && closing.word().claim() {
            closing.end();
        }
    });
}

/// What the kernel knows, as registration.md has it: an event is pending from before the change until it is read.
#[derive(Debug)]
struct Kernel {
    pending: bool,
    /// Whether the pages there are watched: what the exact check looks at.
    watched: bool,
    page: u64,
}

struct World {
    kernel: Mutex<Kernel>,
    seq: AtomicU64,
    word: RegionWord,
}

fn world() -> Arc<World> {
    let word = RegionWord::default();
    word.begin().unwrap();
    word.publish().unwrap();
    assert!(!word.release());
    let kernel = Mutex::new(Kernel { pending: false, watched: true, page: 1 });
    Arc::new(World { kernel, seq: AtomicU64::new(0), word })
}

impl World {
    /// One thread unmaps; another is given the address, maps it, and watches it: all before anybody applies the event.
    fn replace(&self) {
        {
            let mut kernel = self.kernel.lock().unwrap();
            kernel.pending = true;
            kernel.watched = false;
            kernel.page = 2;
        }
        self.kernel.lock().unwrap().watched = true;
    }

    /// The handler: odd before it reads, even after it has applied.
    fn handle(&self) {
        if !self.kernel.lock().unwrap().pending {
            return;
        }
        self.seq.fetch_add(1, Ordering::SeqCst);
        self.kernel.lock().unwrap().pending = false;
        let _ = self.word.invalidate();
        self.seq.fetch_add(1, Ordering::SeqCst);
    }

    /// A hit in strict mode. Answers whether it was one; the page pinned is 1.
    fn hit(&self, check_again: bool) -> bool {
        let seq = self.seq.load(Ordering::SeqCst);
        let seen = self.word.acquire();
        let good = seq % 2 == 0 && seen.state() == State::Valid && {
            let kernel = self.kernel.lock().unwrap();
            !kernel.pending && kernel.watched
        };
        let now = self.word.load();
        let unchanged = now.state() == State::Valid
            && now.generation() == seen.generation()
            && self.seq.load(Ordering::SeqCst) == seq;
        let _ = self.word.release();
        good && (unchanged || !check_again)
    }
}

fn race(check_again: bool) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(move || {
        let world = world();
        let application = {
            let world = Arc::clone(&world);
            thread::spawn(move || world.replace())
        };
        let handler = {
            let world = Arc::clone(&world);
            thread::spawn(move || world.handle())
        };
        let page_before = world.kernel.lock().unwrap().page;
        if world.hit(check_again) {
            assert_eq!(page_before, 1, "C1: a hit on pages that were gone before it began");
        }
        application.join().unwrap();
        handler.join().unwrap();
    });
}

#[test]
fn loom_no_hit_on_pages_that_were_gone_before_it_began() {
    race(true);
}

/// Without the look at state and sequence after the check, the forced interleaving fools it: the model must find that.
#[test]
#[should_panic]
fn loom_guard_a_check_alone_is_fooled() {
    race(false);
}
