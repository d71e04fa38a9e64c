//! A registration in use.
//!
//! # Safety
//! A region holds one reference to what is in a slot, taken while that was valid ([`super::table::Reference::keep`]), or the one of a
//! slot for one use, and gives it back once, in its drop. As long as it is held,
//! - nobody claims the registration, so that it stays in the slot, with the [`Held::cache`] it has;
//! - and that keeps the cache, and so the table the slot lies in, after the last [`super::Cache`] is gone, too.
//!
//! A hit so counts in the slot only. Whoever gives a reference back and is not the one who ends the registration looks at nothing of
//! the cache afterwards; who is has it by the `cache` it has claimed with the registration.

#![allow(unsafe_code)]

use std::fmt;
use std::mem;
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::Arc;

use super::Registrar;
use super::cache::Inner;
use super::table::{Claimed, Slot};
use crate::mem::Access;
use crate::mem::page::PageRange;
use crate::monitor::Backing;

/// What was registered, how it is checked, and in which cache.
pub(super) struct Held<R: Registrar> {
    pub(super) handle: R::Handle,
    pub(super) backing: Backing,
    /// Keeps the memory of the slot that this is in. The cycle ends with the registration: at the latest when it becomes stale as the
    /// last [`super::Cache`] goes, and its last user has given it back.
    pub(super) cache: Arc<Inner<R>>,
}

/// A registration in use: dropping it gives it back. Send + Sync.
pub struct RegionRef<R: Registrar> {
    slot: NonNull<Slot<Held<R>>>,
}

// SAFETY: it is a reference to a slot, which is Sync, and to what it holds, which is Send and Sync: any thread may use it, and end it.
unsafe impl<R: Registrar> Send for RegionRef<R> where Slot<Held<R>>: Sync {}
// SAFETY: as above.
unsafe impl<R: Registrar> Sync for RegionRef<R> where Slot<Held<R>>: Sync {}

impl<R: Registrar> RegionRef<R> {
    /// Of a slot to which a reference was kept for it.
    #[inline]
    pub(super) fn cached(slot: &Slot<Held<R>>) -> Self {
        Self { slot: NonNull::from(slot) }
    }

    pub(super) fn one_shot(held: Held<R>, range: PageRange, access: Access) -> Self {
        Self { slot: NonNull::from(Box::leak(Slot::for_one_use(held, range, access))) }
    }

    #[inline]
    fn slot(&self) -> &Slot<Held<R>> {
        // SAFETY: there as long as the reference is held, which is as long as this value (module rule).
        unsafe { self.slot.as_ref() }
    }

    /// Whether it is for this use only, because the memory cannot be cached, or changes all the time.
    #[must_use]
    pub fn is_one_shot(&self) -> bool {
        self.slot().number().is_none()
    }

    /// The pages it is of.
    #[must_use]
    pub fn range(&self) -> Option<PageRange> {
        self.slot().range()
    }
}

impl<R: Registrar> Deref for RegionRef<R> {
    type Target = R::Handle;

    #[inline]
    fn deref(&self) -> &R::Handle {
        // SAFETY: this value holds the reference (module rule).
        unsafe { &self.slot().handle().handle }
    }
}

impl<R: Registrar> Drop for RegionRef<R> {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: the slot is there until the reference is given back; what is answered has claimed what keeps it.
        let slot: &Slot<Held<R>> = unsafe { self.slot.as_ref() };
        // SAFETY: this value's reference, once.
        if let Some(claimed) = unsafe { slot.release() } {
            let is_one_shot = slot.number().is_none();
            end(claimed);
            if is_one_shot {
                // SAFETY: leaked by `one_shot`, for this value alone, which does not look at it again.
                drop(unsafe { Box::from_raw(self.slot.as_ptr()) });
            }
        }
    }
}

/// Ends a registration that was claimed.
#[cold]
pub(super) fn end<R: Registrar>(claimed: Claimed<'_, Held<R>>) {
    if !claimed.handle().cache.is_mine() {
        mem::forget(claimed.take()); // a fork's child has no registrations
        return;
    }
    let slot = claimed.slot();
    let (number, range) = (slot.number(), slot.range());
    let Held { handle, cache, .. } = claimed.take();
    // `cache` goes last: until then the slot is there.
    let Some(range) = range else { return };
    if let Some(number) = number {
        cache.books.unlink(number, range);
    }
    let _freed = Freed { cache: &cache, number, range };
    cache.registrar.deregister(handle);
}

/// Dropped, it counts the end of a registration and makes its slot free, also where the transport panics.
pub(super) struct Freed<'a, R: Registrar> {
    pub(super) cache: &'a Inner<R>,
    pub(super) number: Option<u32>,
    pub(super) range: PageRange,
}

impl<R: Registrar> Drop for Freed<'_, R> {
    fn drop(&mut self) {
        self.cache.note_deregistered(self.range);
        if let Some(number) = self.number {
            self.cache.books.free(number);
        }
    }
}

impl<R: Registrar> fmt::Debug for RegionRef<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RegionRef").field("range", &self.range()).finish_non_exhaustive()
    }
}
