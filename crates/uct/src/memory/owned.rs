//! Buffers of the user's that rucx keeps while they are in use.
//!
//! # Safety
//! A buffer is moved to its own heap cell *before* its address is taken, and not touched again until it is dropped there:
//! a `Box` or `Vec` that is moved or re-borrowed would assert anew that nobody else points into it. Of one that nobody keeps, the bytes are
//! borrowed as its own are.

#![allow(unsafe_code)]

use std::ptr::NonNull;
use std::{fmt, slice};

use super::operand::{Destination, Local, LocalMut, Source};

/// A buffer whose bytes stay where they are while the value is kept: readable by peers.
///
/// # Safety
/// `as_ptr` and `len` must name bytes that are initialised, and that stay valid at the same address until the value is
/// dropped, also when the value is moved. While the value is borrowed nobody writes them, but through what
/// [`StableBufMut::as_mut_ptr`] gave.
pub unsafe trait StableBuf: Send + Sync + 'static {
    /// Where the bytes begin.
    fn as_ptr(&self) -> *const u8;
    /// How many bytes.
    fn len(&self) -> usize;
    /// Whether there are none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// A [`StableBuf`] that may also be written while it is kept.
///
/// # Safety
/// As [`StableBuf`], and the bytes belong to this value alone, writable through `as_mut_ptr`.
pub unsafe trait StableBufMut: StableBuf {
    /// Where the bytes begin.
    fn as_mut_ptr(&mut self) -> *mut u8;
}

macro_rules! stable {
    ($($type:ty => $why:literal),* $(,)?) => {$(
        // SAFETY: (stated beside each type in the list below)
        unsafe impl StableBuf for $type {
            #[doc = $why]
            fn as_ptr(&self) -> *const u8 {
                <[u8]>::as_ptr(self)
            }
            fn len(&self) -> usize {
                <[u8]>::len(self)
            }
        }
    )*};
}

stable! {
    Vec<u8> => "The bytes lie in the heap block, which moves only when the vector grows; nobody grows it while it is kept.",
    Box<[u8]> => "The bytes lie in the heap block, which never moves.",
    &'static [u8] => "The bytes are static.",
    std::sync::Arc<[u8]> => "The bytes lie in the heap block, which lives as long as this reference to it.",
}

// SAFETY: the heap block belongs to the vector alone.
unsafe impl StableBufMut for Vec<u8> {
    fn as_mut_ptr(&mut self) -> *mut u8 {
        Self::as_mut_ptr(self)
    }
}

// SAFETY: the heap block belongs to the box alone.
unsafe impl StableBufMut for Box<[u8]> {
    fn as_mut_ptr(&mut self) -> *mut u8 {
        <[u8]>::as_mut_ptr(self)
    }
}

impl<T: StableBuf> Source for T {
    #[inline]
    fn local(&self) -> Local<'_> {
        let len = StableBuf::len(self);
        if len == 0 {
            return Local::bytes(&[]);
        }
        // SAFETY: initialised and valid as long as `self` is, and written by nobody while that is borrowed (contract of StableBuf).
        Local::bytes(unsafe { slice::from_raw_parts(StableBuf::as_ptr(self), len) })
    }
}

impl<T: StableBufMut> Destination for T {
    #[inline]
    fn local_mut(&mut self) -> LocalMut<'_> {
        let len = StableBuf::len(self);
        if len == 0 {
            return LocalMut::bytes(&mut []);
        }
        // SAFETY: initialised and valid as long as `self` is, and its alone, which is borrowed mutably (contract of StableBufMut).
        LocalMut::bytes(unsafe { slice::from_raw_parts_mut(StableBufMut::as_mut_ptr(self), len) })
    }
}

/// A user's buffer, kept at a fixed place until it is dropped.
pub struct OwnedBytes {
    start: NonNull<u8>,
    len: usize,
    writable: bool,
    /// The heap cell of the buffer, from `Box::into_raw`.
    cell: NonNull<dyn StableBuf>,
}

// SAFETY: the cell is Send + Sync by its trait, is touched by drop alone, and the bytes are accessed as SharedBytes only.
unsafe impl Send for OwnedBytes {}
// SAFETY: as above.
unsafe impl Sync for OwnedBytes {}

impl OwnedBytes {
    /// Keeps a buffer that may be read only.
    pub fn readable(buf: impl StableBuf) -> Self {
        let cell = Box::new(buf);
        let (start, len) = (cell.as_ptr().cast_mut(), cell.len());
        Self::keep(start, len, false, cell)
    }

    /// Keeps a buffer that may be read and written.
    pub fn writable(buf: impl StableBufMut) -> Self {
        let mut cell = Box::new(buf);
        let (start, len) = (cell.as_mut_ptr(), StableBuf::len(&*cell));
        Self::keep(start, len, true, cell)
    }

    fn keep(start: *mut u8, len: usize, writable: bool, cell: Box<dyn StableBuf>) -> Self {
        let cell = NonNull::from(Box::leak(cell));
        Self { start: NonNull::new(start).unwrap_or(NonNull::dangling()), len, writable, cell }
    }

    /// Whether it may be written.
    #[must_use]
    pub fn is_writable(&self) -> bool {
        self.writable
    }

    pub(super) fn range(&self) -> (NonNull<u8>, usize) {
        (self.start, self.len)
    }
}

impl Drop for OwnedBytes {
    fn drop(&mut self) {
        // SAFETY: the cell came from a Box and is dropped once, here.
        let cell = unsafe { Box::from_raw(self.cell.as_ptr()) };
        drop(cell);
    }
}

impl fmt::Debug for OwnedBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OwnedBytes")
            .field("len", &self.len)
            .field("writable", &self.writable)
            .finish_non_exhaustive()
    }
}
