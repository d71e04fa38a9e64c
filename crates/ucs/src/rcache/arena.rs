//! One range of memory from which everything a cache writes while it works is cut beforehand.
//!
//! A thread that serves unmaps of the whole process must not allocate, free or enter the kernel: whoever unmaps may hold the
//! lock it would need. So all of a cache's memory is one anonymous mapping, made once, and cut into [`Slab`]s: arrays of one
//! type each, of which nothing is given back before the arena goes. A thread that comes late and reads an element that was
//! re-used meanwhile reads a wrong value of the right type, and no more happens.
//!
//! ```text
//! Arena   ┌──────────┬───────────────────────┬──────────────┬─ ─ ─ ─ ─ ┐
//!         │ Slab<A>  │ Slab<B>               │ Slab<C>      │  not yet
//!         └──────────┴───────────────────────┴──────────────┴─ ─ ─ ─ ─ ┘
//! ```
//!
//! A fork's child does not have the memory (see [`Mapping`]): it must not touch a slab it inherited, only drop it.
//!
//! # Safety
//! A slab's elements are `len` values at `start`, within the arena's mapping, which the slab keeps by its [`Arc`]; no other slab
//! was given these bytes, because the arena's mark only rises. The mapping is zeroed, which is a value of any [`Words`], and
//! only atomics change it.

#![allow(unsafe_code)]

use std::sync::Arc;

use crate::mem::{Mapping, MemError};
use crate::sync::{AtomicU32, AtomicU64};

/// Every slab starts a cache line.
const LINE: usize = 64;

/// Types whose values all threads may read and write at any time, and that are there as soon as there are zeroes.
///
/// # Safety
/// Bytes of zero are a value of the type, the same that `Default` gives, and all its fields are atomics. It needs no drop and no
/// more than a cache line's alignment.
pub unsafe trait Words: Default + Send + Sync {}

// SAFETY: an atomic.
unsafe impl Words for AtomicU32 {}
// SAFETY: an atomic.
unsafe impl Words for AtomicU64 {}

/// The memory. See the module.
#[derive(Debug)]
pub struct Arena {
    mapping: Mapping,
    /// Where the part begins that no slab has. No model looks at it: std's, so that an arena can be made outside of one.
    used: parking_lot::Mutex<usize>,
}

impl Arena {
    /// Maps `bytes` (> 0) of memory. What is never touched takes none of the machine's.
    ///
    /// # Errors
    /// [`MemError`], naming the limit where it was one.
    pub fn new(bytes: usize) -> Result<Arc<Self>, MemError> {
        Ok(Arc::new(Self { mapping: Mapping::anonymous(bytes)?, used: parking_lot::Mutex::new(0) }))
    }

    /// Whether any of the addresses from `start` up to `end` belongs to it: such memory is not to be registered.
    #[must_use]
    pub fn touches(&self, start: usize, end: usize) -> bool {
        let own = self.mapping.bytes().as_ptr().addr();
        start < own + self.mapping.bytes().len() && own < end
    }

    /// Cuts off `bytes`, and tells where they begin.
    fn cut(&self, bytes: usize) -> Option<usize> {
        let mut used = self.used.lock();
        let start = *used;
        let end = start.checked_add(bytes).filter(|end| *end <= self.mapping.bytes().len())?;
        *used = end;
        Some(start)
    }
}

/// An array of `T` in an [`Arena`], which lives as long as its slabs.
#[derive(Debug)]
pub struct Slab<T> {
    #[cfg(not(loom))]
    start: std::ptr::NonNull<T>,
    #[cfg(not(loom))]
    len: u32,
    /// loom's atomics cannot lie in a mapping.
    #[cfg(loom)]
    elements: Box<[T]>,
    _arena: Arc<Arena>,
}

// SAFETY: it lends its elements shared only, and they are `Send` and `Sync`.
#[cfg(not(loom))]
unsafe impl<T: Words> Send for Slab<T> {}
// SAFETY: as above.
#[cfg(not(loom))]
unsafe impl<T: Words> Sync for Slab<T> {}

impl<T: Words> Slab<T> {
    /// How many bytes of an arena `len` elements take; `None`: more than there are addresses.
    #[must_use]
    pub fn bytes(len: u32) -> Option<usize> {
        size_of::<T>().checked_mul(usize::try_from(len).ok()?)?.checked_next_multiple_of(LINE)
    }

    /// Cuts `len` elements, all zero, from `arena`; `None` where it has no room left.
    #[must_use]
    pub fn new(arena: &Arc<Arena>, len: u32) -> Option<Self> {
        const { assert!(align_of::<T>() <= LINE && !std::mem::needs_drop::<T>() || cfg!(loom)) }
        let offset = arena.cut(Self::bytes(len)?)?;
        #[cfg(not(loom))]
        {
            let start = arena.mapping.bytes().check(offset as u64, Self::bytes(len)?).ok()?.cast();
            Some(Self { start, len, _arena: Arc::clone(arena) })
        }
        #[cfg(loom)]
        {
            let _ = offset;
            Some(Self { elements: (0..len).map(|_| T::default()).collect(), _arena: Arc::clone(arena) })
        }
    }

    /// How many elements.
    #[inline]
    #[must_use]
    pub fn len(&self) -> u32 {
        #[cfg(not(loom))]
        return self.len;
        #[cfg(loom)]
        return u32::try_from(self.elements.len()).unwrap_or(u32::MAX);
    }

    /// Whether it has none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The element of that number.
    #[inline]
    #[must_use]
    pub fn get(&self, number: u32) -> Option<&T> {
        self.elements().get(number as usize)
    }

    /// All of them.
    #[inline]
    #[must_use]
    pub fn elements(&self) -> &[T] {
        #[cfg(not(loom))]
        // SAFETY: `len` values at `start`, within the mapping, which lives as long as self; values from the beginning (zeroes), and
        // only atomics change them.
        return unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len as usize) };
        #[cfg(loom)]
        return &self.elements;
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use crate::sync::Ordering;

    #[test]
    fn slabs_do_not_overlap_and_end_with_the_arena() {
        let arena = Arena::new(4096).unwrap();
        let a = Slab::<AtomicU32>::new(&arena, 3).unwrap();
        let b = Slab::<AtomicU64>::new(&arena, 8 * 62).unwrap();
        let c = Slab::<AtomicU32>::new(&arena, 16).unwrap();
        assert!(Slab::<AtomicU32>::new(&arena, 1).is_none(), "1 + 62 + 1 lines are all");
        for (slab, value) in [(&a, 1), (&c, 3)] {
            (0..slab.len()).for_each(|i| slab.get(i).unwrap().store(value, Ordering::Relaxed));
        }
        (0..b.len()).for_each(|i| {
            assert_eq!(b.get(i).unwrap().swap(2, Ordering::Relaxed), 0);
        });
        assert!((0..3).all(|i| a.get(i).unwrap().load(Ordering::Relaxed) == 1));
        assert!((0..16).all(|i| c.get(i).unwrap().load(Ordering::Relaxed) == 3));
        assert!(a.get(3).is_none() && b.get(8 * 62).is_none() && c.get(u32::MAX).is_none());
        let at = std::ptr::from_ref(a.get(0).unwrap()).addr();
        assert!(arena.touches(at, at + 1) && arena.touches(at - 1, at + 1) && arena.touches(0, usize::MAX));
        assert!(!arena.touches(at - 1, at) && !arena.touches(at + 4096, at + 4097));
        drop((arena, a, b));
        assert_eq!(c.get(15).unwrap().load(Ordering::Relaxed), 3, "a slab keeps its arena");
    }

    #[test]
    fn too_many_elements_are_refused() {
        let arena = Arena::new(4096).unwrap();
        assert!(Slab::<AtomicU64>::new(&arena, u32::MAX).is_none());
        assert!(Slab::<AtomicU64>::new(&arena, 0).unwrap().is_empty());
    }
}
