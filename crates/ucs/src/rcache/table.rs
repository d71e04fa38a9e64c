//! The descriptors: a cache line per registration, and what its owner made of it.
//!
//! # Safety
//! A handle is written by the maker of a registration, between [`RegionWord::begin`] and [`RegionWord::publish`] or
//! [`RegionWord::abandon`], while nobody else looks at it; read by those who hold a reference that they took while the state was
//! VALID; and taken out by the one who claimed or abandoned the registration, when nobody holds such a reference any more. The word
//! orders these after one another ([`super::word`], and its loom models).

#![allow(unsafe_code)]

use std::cell::UnsafeCell;
use std::mem::MaybeUninit;

use super::word::{RegionWord, State};
use crate::mem::Access;
use crate::mem::page::PageRange;
use crate::sync::{AtomicBool, AtomicUsize, Ordering};

/// A descriptor. Its fields beside the word are written by the maker only, before it is published; late readers may see those of
/// another registration, and find that out by the word.
#[derive(Debug)]
#[repr(align(64))]
pub(super) struct Slot<H> {
    pub(super) word: RegionWord,
    start: AtomicUsize,
    end: AtomicUsize,
    writable: AtomicBool,
    /// Found again since the eviction last came by. Being made does not count: of buffers used once, none shall drive out those
    /// that are used all the time.
    used: AtomicBool,
    /// Found by anybody but its maker.
    hit: AtomicBool,
    handle: UnsafeCell<MaybeUninit<H>>,
}

// SAFETY: the handle is handed from thread to thread as the module says; the rest are atomics.
unsafe impl<H: Send + Sync> Sync for Slot<H> {}

impl<H> Default for Slot<H> {
    fn default() -> Self {
        Self {
            word: RegionWord::default(),
            start: AtomicUsize::new(0),
            end: AtomicUsize::new(0),
            writable: AtomicBool::new(false),
            used: AtomicBool::new(false),
            hit: AtomicBool::new(false),
            handle: UnsafeCell::new(MaybeUninit::uninit()),
        }
    }
}

impl<H> Slot<H> {
    /// What it is a registration of.
    #[inline]
    pub(super) fn range(&self) -> Option<PageRange> {
        PageRange::new(self.start.load(Ordering::Relaxed), self.end.load(Ordering::Relaxed))
    }

    /// What for.
    #[inline]
    pub(super) fn access(&self) -> Access {
        if self.writable.load(Ordering::Relaxed) { Access::ReadWrite } else { Access::Read }
    }

    /// Whether a registration of it serves who wants that.
    #[inline]
    pub(super) fn serves(&self, wanted: PageRange, access: Access) -> bool {
        self.range().is_some_and(|range| range.contains(wanted))
            && (self.access() == Access::ReadWrite || access == Access::Read)
    }

    /// Notes a hit, without writing when that is known.
    #[inline]
    pub(super) fn touch(&self) {
        for flag in [&self.used, &self.hit] {
            if !flag.load(Ordering::Relaxed) {
                flag.store(true, Ordering::Relaxed);
            }
        }
    }

    /// Whether it was ever hit.
    pub(super) fn was_hit(&self) -> bool {
        self.hit.load(Ordering::Relaxed)
    }

    /// Whether it was used since this was asked last.
    pub(super) fn was_used(&self) -> bool {
        self.used.swap(false, Ordering::Relaxed)
    }

    /// Describes the registration that the caller has begun.
    fn describe(&self, range: PageRange, access: Access) {
        self.start.store(range.start(), Ordering::Relaxed);
        self.end.store(range.end(), Ordering::Relaxed);
        self.writable.store(access == Access::ReadWrite, Ordering::Relaxed);
        self.used.store(false, Ordering::Relaxed);
        self.hit.store(false, Ordering::Relaxed);
    }

    /// Takes a reference, if it is valid. What else it is: the reference taken for that moment was `true`: the last one of a stale
    /// registration, which the caller should [`Slot::claim`].
    #[inline]
    pub(super) fn reference(&self) -> Result<Reference<'_, H>, (State, bool)> {
        let seen = self.word.acquire();
        if seen.state() == State::Valid {
            Ok(Reference { slot: self, generation: seen.generation() })
        } else {
            Err((seen.state(), self.word.release()))
        }
    }

    /// Ends a registration that is stale and that nobody uses: of all who try, one gets its handle. The slot is dead then, until
    /// [`RegionWord::free`].
    pub(super) fn claim(&self) -> Option<H> {
        // SAFETY: claimed, so it was published, with a handle, and nobody holds it; claiming succeeds once (module rule).
        self.word.claim().then(|| unsafe { self.handle.get().cast::<H>().read() })
    }

    /// Takes a free slot for a new registration. It is not to be hit before it is published.
    pub(super) fn begin(&self, range: PageRange, access: Access) -> Option<Making<'_, H>> {
        self.word.begin().ok()?;
        self.describe(range, access);
        Some(Making { slot: self, has_handle: false })
    }
}

/// A reference to a registration, taken while it was valid. Not given back by itself: see [`Reference::release`].
#[derive(Debug)]
#[must_use = "a reference is to be given back"]
pub(super) struct Reference<'a, H> {
    slot: &'a Slot<H>,
    generation: u64,
}

impl<'a, H> Reference<'a, H> {
    /// The reference that [`Reference::keep`] has kept.
    ///
    /// # Safety
    /// It was kept for this slot, and was not given back since.
    pub(super) unsafe fn kept(slot: &'a Slot<H>) -> Self {
        Self { slot, generation: slot.word.load().generation() }
    }

    /// Keeps the reference, to be given back by [`Reference::kept`].
    pub(super) fn keep(self) {}

    /// What was registered.
    #[inline]
    pub(super) fn handle(&self) -> &H {
        // SAFETY: written before the state became VALID, and not taken out while this reference is held (module rule).
        unsafe { &*self.slot.handle.get().cast::<H>() }
    }

    /// Whether it is still valid.
    #[inline]
    pub(super) fn is_valid(&self) -> bool {
        let now = self.slot.word.load();
        now.state() == State::Valid && now.generation() == self.generation
    }

    /// Gives it back. `true`: it was the last one of a stale registration, which the caller should [`Slot::claim`].
    #[inline]
    pub(super) fn release(self) -> bool {
        self.slot.word.release()
    }
}

/// A registration that is being made: published, or given up.
#[derive(Debug)]
pub(super) struct Making<'a, H> {
    slot: &'a Slot<H>,
    has_handle: bool,
}

impl<H> Making<'_, H> {
    /// Puts what was registered in place.
    pub(super) fn put(&mut self, handle: H) {
        debug_assert!(!self.has_handle, "a registration has one handle");
        // SAFETY: it has begun, and is neither published nor abandoned: nobody else looks at the handle (module rule).
        unsafe { self.slot.handle.get().cast::<H>().write(handle) };
        self.has_handle = true;
    }

    /// Lets others use it, and takes a reference for its maker; unless its memory has changed meanwhile.
    ///
    /// # Errors
    /// Itself: it is to be given up.
    pub(super) fn publish(self) -> Result<(), Self> {
        if self.has_handle && self.slot.word.publish().is_ok() { Ok(()) } else { Err(self) }
    }

    /// Gives it up. What was registered is to be deregistered; the slot is dead until [`RegionWord::free`].
    pub(super) fn abandon(self) -> Option<H> {
        let abandoned = self.slot.word.abandon().is_ok();
        debug_assert!(abandoned, "it was not published");
        // SAFETY: put there by this value, and nobody else looks at it (module rule).
        (self.has_handle && abandoned).then(|| unsafe { self.slot.handle.get().cast::<H>().read() })
    }
}

/// All slots.
pub(super) struct Table<H> {
    slots: Box<[Slot<H>]>,
}

impl<H> Table<H> {
    pub(super) fn new(len: u32) -> Self {
        Self { slots: (0..len).map(|_| Slot::default()).collect() }
    }

    #[inline]
    pub(super) fn get(&self, number: u32) -> Option<&Slot<H>> {
        self.slots.get(number as usize)
    }
}
