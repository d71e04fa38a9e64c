//! A registration in use.
//!
//! # Safety
//! A cached one holds a reference that the cache took while the registration was valid ([`Reference::keep`]), and gives it back once,
//! in its drop.

#![allow(unsafe_code)]

use std::fmt;
use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::sync::Arc;

use super::Registrar;
use super::books::Held;
use super::cache::Inner;
use super::table::{Reference, Slot};
use crate::mem::page::PageRange;

/// A registration in use: dropping it gives it back. Send + Sync where the handle is.
pub struct RegionRef<R: Registrar> {
    inner: Arc<Inner<R>>,
    held: Use<R::Handle>,
}

enum Use<H> {
    Cached(u32),
    /// For one use: deregistered with it.
    OneShot(ManuallyDrop<H>, PageRange),
}

impl<R: Registrar> RegionRef<R> {
    /// Takes the reference to slot `number` that was kept.
    pub(super) fn cached(inner: &Arc<Inner<R>>, number: u32) -> Self {
        Self { inner: Arc::clone(inner), held: Use::Cached(number) }
    }

    pub(super) fn one_shot(inner: &Arc<Inner<R>>, handle: R::Handle, range: PageRange) -> Self {
        Self { inner: Arc::clone(inner), held: Use::OneShot(ManuallyDrop::new(handle), range) }
    }

    fn reference(slot: &Slot<Held<R::Handle>>) -> Reference<'_, Held<R::Handle>> {
        // SAFETY: kept for this value, which gives it back in its drop only (module rule).
        unsafe { Reference::kept(slot) }
    }

    /// Whether it is for this use only, because the memory cannot be cached, or changes all the time.
    #[must_use]
    pub fn is_one_shot(&self) -> bool {
        matches!(self.held, Use::OneShot(..))
    }

    /// The pages it is of.
    #[must_use]
    pub fn range(&self) -> Option<PageRange> {
        match &self.held {
            Use::OneShot(_, range) => Some(*range),
            Use::Cached(number) => self.inner.books.slot(*number)?.range(),
        }
    }
}

impl<R: Registrar> Deref for RegionRef<R> {
    type Target = R::Handle;

    fn deref(&self) -> &R::Handle {
        match &self.held {
            Use::OneShot(handle, _) => handle,
            Use::Cached(number) => {
                let handle = self.inner.books.slot(*number).map(|slot| {
                    let reference = Self::reference(slot);
                    let handle: *const R::Handle = &raw const reference.handle().handle;
                    reference.keep();
                    handle
                });
                // The cache has such a slot: it gave its number.
                let Some(handle) = handle else { unreachable!("a slot of this cache") };
                // SAFETY: alive as long as the reference is held, which is as long as this value; the table lives in `inner`.
                unsafe { &*handle }
            }
        }
    }
}

impl<R: Registrar> Drop for RegionRef<R> {
    fn drop(&mut self) {
        if !self.inner.is_mine() {
            return; // a fork's child has no registrations
        }
        match &mut self.held {
            Use::OneShot(handle, range) => {
                // SAFETY: taken once, here, and not used again.
                let handle = unsafe { ManuallyDrop::take(handle) };
                self.inner.deregister(handle, *range);
            }
            Use::Cached(number) => {
                let last = self.inner.books.slot(*number).is_some_and(|slot| Self::reference(slot).release());
                if last {
                    self.inner.finish(*number);
                }
            }
        }
    }
}

impl<R: Registrar> fmt::Debug for RegionRef<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RegionRef").field("range", &self.range()).finish_non_exhaustive()
    }
}
