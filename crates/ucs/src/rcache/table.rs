//! The descriptors: a cache line per registration, and what its owner made of it.
//!
//! # Safety
//! A handle is written by the maker of a registration, between [`RegionWord::begin`] and [`RegionWord::publish`] or
//! [`RegionWord::abandon`], while nobody else looks at it; read by those who hold a reference that they took while the state was
//! VALID; and taken out by the one who claimed or abandoned the registration, when nobody holds such a reference any more. The word
//! orders these after one another ([`super::word`], and its loom models).

#![allow(unsafe_code)]

use std::alloc::{self, Layout, handle_alloc_error};
use std::cell::UnsafeCell;
use std::mem::MaybeUninit;
use std::ptr::NonNull;
use std::sync::Arc;

use rustix::mm::{self, Advice};

use super::word::{RegionWord, Seen, State};
use crate::mem::Access;
use crate::mem::page::PageRange;
use crate::sync::{AtomicBool, AtomicU8, AtomicU32, AtomicUsize, Ordering};

/// It is for writing, too.
const WRITABLE: u8 = 1;
/// Found again since the eviction last came by. Being made does not count: of buffers used once, none shall drive out those that are
/// used all the time.
const USED: u8 = 2;
/// Found by anybody but its maker.
const HIT: u8 = 4;

/// No slot of a table.
const NO_NUMBER: u32 = u32::MAX;

/// A descriptor. Its fields beside the word are written by the maker only, before it is published; late readers may see those of
/// another registration, and find that out by the word. A hit, and all that it hands out, is in the first line of it.
#[derive(Debug)]
#[repr(C, align(64))]
pub(super) struct Slot<H> {
    pub(super) word: RegionWord,
    start: AtomicUsize,
    end: AtomicUsize,
    /// Never changes. An atomic, as all that is here: who gives back a reference still has one in the language's sense when another frees
    /// the slot, which only cells allow.
    number: AtomicU32,
    flags: AtomicU8,
    /// In a list of its books': written under their lock.
    pub(super) listed: AtomicBool,
    handle: UnsafeCell<MaybeUninit<H>>,
}

// SAFETY: the handle is handed from thread to thread as the module says; the rest are atomics.
unsafe impl<H: Send + Sync> Sync for Slot<H> {}

impl<H> Slot<H> {
    fn new(number: u32) -> Self {
        Self {
            word: RegionWord::default(),
            start: AtomicUsize::new(0),
            end: AtomicUsize::new(0),
            number: AtomicU32::new(number),
            flags: AtomicU8::new(0),
            listed: AtomicBool::new(false),
            handle: UnsafeCell::new(MaybeUninit::uninit()),
        }
    }

    /// A slot of no table, with one reference to what is in it.
    pub(super) fn for_one_use(handle: H, range: PageRange, access: Access) -> Box<Self> {
        let mut slot = Self::new(NO_NUMBER);
        slot.word = RegionWord::for_one_use();
        slot.describe(range, access);
        slot.handle = UnsafeCell::new(MaybeUninit::new(handle));
        Box::new(slot)
    }

    /// Its number, in a table.
    #[inline]
    pub(super) fn number(&self) -> Option<u32> {
        let number = self.number.load(Ordering::Relaxed);
        (number != NO_NUMBER).then_some(number)
    }

    /// What it is a registration of.
    #[inline]
    pub(super) fn range(&self) -> Option<PageRange> {
        PageRange::new(self.start.load(Ordering::Relaxed), self.end.load(Ordering::Relaxed))
    }

    /// What for.
    #[inline]
    pub(super) fn access(&self) -> Access {
        if self.flags.load(Ordering::Relaxed) & WRITABLE == 0 { Access::Read } else { Access::ReadWrite }
    }

    /// Whether a registration of it serves who wants that.
    #[inline]
    pub(super) fn serves(&self, wanted: PageRange, access: Access) -> bool {
        self.start.load(Ordering::Relaxed) <= wanted.start()
            && wanted.end() <= self.end.load(Ordering::Relaxed)
            && (access == Access::Read || self.access() == Access::ReadWrite)
    }

    /// Notes a hit, without writing when that is known.
    #[inline]
    pub(super) fn touch(&self) {
        if self.flags.load(Ordering::Relaxed) & (USED | HIT) != USED | HIT {
            self.flags.fetch_or(USED | HIT, Ordering::Relaxed);
        }
    }

    /// Whether it was ever hit.
    pub(super) fn was_hit(&self) -> bool {
        self.flags.load(Ordering::Relaxed) & HIT != 0
    }

    /// Whether it was used since this was asked last.
    pub(super) fn was_used(&self) -> bool {
        self.flags.load(Ordering::Relaxed) & USED != 0 && {
            self.flags.fetch_and(!USED, Ordering::Relaxed);
            true
        }
    }

    /// Describes the registration that the caller has begun.
    fn describe(&self, range: PageRange, access: Access) {
        self.start.store(range.start(), Ordering::Relaxed);
        self.end.store(range.end(), Ordering::Relaxed);
        self.flags.store(if access == Access::ReadWrite { WRITABLE } else { 0 }, Ordering::Relaxed);
    }

    /// Takes a reference, if it is valid. What else it is: perhaps the reference taken for that moment was the last one of a stale
    /// registration.
    #[inline]
    pub(super) fn reference(&self) -> Result<Reference<'_, H>, NoReference<'_, H>> {
        let seen = self.word.acquire();
        if seen.is_valid() { Ok(Reference { slot: self, seen }) } else { Err(self.no_reference(seen)) }
    }

    #[cold]
    #[inline(never)]
    fn no_reference(&self, seen: Seen) -> NoReference<'_, H> {
        // SAFETY: the reference that the caller has taken just now.
        (seen.state(), unsafe { self.release() })
    }

    /// What is in it.
    ///
    /// # Safety
    /// The caller holds a reference that was taken while it was valid, or the one of [`Slot::for_one_use`].
    #[inline]
    pub(super) unsafe fn handle(&self) -> &H {
        // SAFETY: written before the state became VALID, and not taken out while that reference is held (module rule).
        unsafe { &*self.handle.get().cast::<H>() }
    }

    /// Gives a reference back. If nothing is answered, the slot may be gone.
    ///
    /// # Safety
    /// The caller has one, and does not use it again.
    #[inline]
    pub(super) unsafe fn release(&self) -> Option<Claimed<'_, H>> {
        self.word.release().then_some(Claimed { slot: self })
    }

    /// Ends a registration that is stale and that nobody uses: of all who try, one gets it.
    pub(super) fn claim(&self) -> Option<Claimed<'_, H>> {
        self.word.claim().then_some(Claimed { slot: self })
    }

    /// Takes a free slot for a new registration. It is not to be hit before it is published.
    pub(super) fn begin(&self, range: PageRange, access: Access) -> Option<Making<'_, H>> {
        self.word.begin().ok()?;
        self.describe(range, access);
        Some(Making { slot: self, has_handle: false })
    }
}

/// What a slot was instead of valid; and what has ended with the reference that was taken for a moment.
pub(super) type NoReference<'a, H> = (State, Option<Claimed<'a, H>>);

/// A reference to a registration, taken while it was valid. Not given back by itself: see [`Reference::release`].
#[derive(Debug)]
#[must_use = "a reference is to be given back"]
pub(super) struct Reference<'a, H> {
    slot: &'a Slot<H>,
    seen: Seen,
}

impl<'a, H> Reference<'a, H> {
    /// Keeps the reference, to be given back by [`Slot::release`].
    #[inline]
    pub(super) fn keep(self) -> &'a Slot<H> {
        self.slot
    }

    /// Where it is.
    #[inline]
    pub(super) fn slot(&self) -> &'a Slot<H> {
        self.slot
    }

    /// What was registered.
    #[inline]
    pub(super) fn handle(&self) -> &H {
        // SAFETY: it was valid, and this reference is held.
        unsafe { self.slot.handle() }
    }

    /// Whether it is still valid.
    #[inline]
    pub(super) fn is_valid(&self) -> bool {
        self.slot.word.load().is_same_life(self.seen)
    }

    /// Gives it back.
    #[inline]
    pub(super) fn release(self) -> Option<Claimed<'a, H>> {
        // SAFETY: it is this value's, which ends here.
        unsafe { self.slot.release() }
    }
}

/// A registration that has ended, and that nobody else has: the slot is dead, until [`RegionWord::free`].
#[derive(Debug)]
#[must_use = "it is to be deregistered"]
pub(super) struct Claimed<'a, H> {
    slot: &'a Slot<H>,
}

impl<'a, H> Claimed<'a, H> {
    pub(super) fn slot(&self) -> &'a Slot<H> {
        self.slot
    }

    /// What is in it.
    pub(super) fn handle(&self) -> &H {
        // SAFETY: it was stale, so it was published, with a handle, which only this value takes out.
        unsafe { &*self.slot.handle.get().cast::<H>() }
    }

    /// What was in it.
    pub(super) fn take(self) -> H {
        // SAFETY: as above; claiming succeeds once (module rule), and this value ends here.
        unsafe { self.slot.handle.get().cast::<H>().read() }
    }
}

/// A registration that is being made: published, or given up.
#[derive(Debug)]
pub(super) struct Making<'a, H> {
    slot: &'a Slot<H>,
    has_handle: bool,
}

impl<'a, H> Making<'a, H> {
    /// Puts what was registered in place.
    pub(super) fn put(&mut self, handle: H) {
        debug_assert!(!self.has_handle, "a registration has one handle");
        // SAFETY: it has begun, and is neither published nor abandoned: nobody else looks at the handle (module rule).
        unsafe { self.slot.handle.get().cast::<H>().write(handle) };
        self.has_handle = true;
    }

    /// Lets others use it, and takes a reference for its maker, to be given back by [`Slot::release`]; unless its memory has changed
    /// meanwhile.
    ///
    /// # Errors
    /// Itself: it is to be given up.
    pub(super) fn publish(self) -> Result<&'a Slot<H>, Self> {
        if self.has_handle && self.slot.word.publish().is_ok() { Ok(self.slot) } else { Err(self) }
    }

    /// Gives it up. What was registered is to be deregistered; the slot is dead until [`RegionWord::free`].
    pub(super) fn abandon(self) -> Option<H> {
        let abandoned = self.slot.word.abandon().is_ok();
        debug_assert!(abandoned, "it was not published");
        // SAFETY: put there by this value, and nobody else looks at it (module rule).
        (self.has_handle && abandoned).then(|| unsafe { self.slot.handle.get().cast::<H>().read() })
    }
}

/// What a huge page has, where the machine has such (`/sys/kernel/mm/transparent_hugepage`).
const HUGE: usize = 2 << 20;

/// All slots. A clone is the same table.
///
/// A large one lies in huge pages, as far as it fills such: a hit on any of many registrations would else wait for a walk through the
/// page tables before it waits for the slot. A fork's child has it as it was: there, too, what is in use is given back.
pub(super) struct Table<H> {
    slots: NonNull<Slot<H>>,
    len: u32,
    memory: Arc<Memory>,
}

/// What a table lies in.
struct Memory {
    start: NonNull<u8>,
    layout: Layout,
}

// SAFETY: an owner of memory, which looks at nothing in it.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

// SAFETY: it lends its slots shared only, and they are `Sync`.
unsafe impl<H> Send for Table<H> where Slot<H>: Sync {}
// SAFETY: as above.
unsafe impl<H> Sync for Table<H> where Slot<H>: Sync {}

impl Memory {
    fn new(layout: Layout) -> Self {
        let huge = layout.size() / HUGE * HUGE;
        let layout = if huge > 0 { layout.align_to(HUGE).unwrap_or(layout) } else { layout };
        // SAFETY: of one slot at least, and slots have a size.
        let start =
            NonNull::new(unsafe { alloc::alloc(layout) }).unwrap_or_else(|| handle_alloc_error(layout));
        if huge > 0 {
            // Where it is refused, it takes longer.
            // SAFETY: within what was allocated just now; the advice changes what pages it gets, not what is in them.
            let _ = unsafe { mm::madvise(start.as_ptr().cast(), huge, Advice::LinuxHugepage) };
        }
        Self { start, layout }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: allocated so, once; the last table that lent it is gone.
        unsafe { alloc::dealloc(self.start.as_ptr(), self.layout) };
    }
}

impl<H> Table<H> {
    pub(super) fn new(len: u32) -> Self {
        let layout = Layout::array::<Slot<H>>(len.max(1) as usize);
        // More than there are addresses.
        let layout = layout.unwrap_or_else(|_| handle_alloc_error(Layout::new::<Slot<H>>()));
        let memory = Arc::new(Memory::new(layout));
        let slots = memory.start.cast::<MaybeUninit<Slot<H>>>();
        // SAFETY: the memory of `len` slots at least, of which nobody else knows yet.
        let places = unsafe { std::slice::from_raw_parts_mut(slots.as_ptr(), len as usize) };
        for (place, number) in places.iter_mut().zip(0..) {
            place.write(Slot::new(number)); // and never dropped: atomics, and a handle that is taken out before
        }
        Self { slots: slots.cast(), len, memory }
    }

    #[inline]
    fn slots(&self) -> &[Slot<H>] {
        // SAFETY: the `len` that were written in the memory, which this value keeps; all are lent shared only.
        unsafe { std::slice::from_raw_parts(self.slots.as_ptr(), self.len as usize) }
    }

    #[inline]
    pub(super) fn get(&self, number: u32) -> Option<&Slot<H>> {
        self.slots().get(number as usize)
    }
}

impl<H> Clone for Table<H> {
    fn clone(&self) -> Self {
        Self { slots: self.slots, len: self.len, memory: Arc::clone(&self.memory) }
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;

    #[test]
    fn tables_of_all_sizes() {
        for len in [0, 1, 100, 40_000, 100_001] {
            let table = Table::<usize>::new(len);
            let clone = table.clone();
            drop(table);
            assert!(
                (0..len).all(|number| clone.get(number).is_some_and(|slot| slot.number() == Some(number)))
            );
            assert!(clone.get(len).is_none() && clone.get(u32::MAX).is_none());
            let large = size_of::<Slot<usize>>() * len as usize >= HUGE;
            assert_eq!(clone.memory.layout.align(), if large { HUGE } else { align_of::<Slot<usize>>() });
        }
    }
}
