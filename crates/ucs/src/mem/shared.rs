//! Bytes that other threads or processes may be changing at the same time.
//!
//! # Safety
//! The one rule is [`SharedBytes::new`]'s: the range stays mapped as long as the value is used. Every access is checked
//! against the length, goes through [`super::copy`] or an atomic, and never makes a reference to plain bytes.

#![allow(unsafe_code)]
#![allow(clippy::disallowed_types)] // references to words in mappings are std's atomics: loom's cannot lie there

use std::mem::MaybeUninit;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64};

use zerocopy::{FromBytes, Immutable, IntoBytes};

use super::copy;

/// An access lies outside the bytes, or is not aligned as it must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BoundsError {
    /// It ends beyond the last byte.
    #[error("{len} bytes at offset {offset} do not lie within {size} bytes")]
    OutOfRange {
        /// Where the access begins.
        offset: u64,
        /// How many bytes it takes.
        len: u64,
        /// How many bytes there are.
        size: u64,
    },
    /// An atomic access must be aligned to its size.
    #[error("offset {offset} is not aligned to {align} bytes")]
    Misaligned {
        /// Where the access begins.
        offset: u64,
        /// The alignment it needs.
        align: u64,
    },
}

/// A range of memory which others may change at any time: threads of this process, or other processes.
///
/// There is never a `&[u8]` to such bytes. Reading while another writes gives old and new bytes mixed, but is no undefined
/// behaviour: all bytes are read and written as relaxed atomics ([`super::copy`]). Single aligned words of 1, 2, 4 or 8 bytes
/// never tear.
#[derive(Debug)]
pub struct SharedBytes {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: every access is atomic, byte by byte or word by word, so threads may share and hand over the range.
unsafe impl Send for SharedBytes {}
// SAFETY: as above.
unsafe impl Sync for SharedBytes {}

impl SharedBytes {
    /// Names the `len` bytes at `start`.
    ///
    /// # Safety
    /// Until the value and all its copies are gone, the range must be mapped and readable, and writable if any of the
    /// writing methods is used; and no reference to any of its bytes may be used meanwhile.
    #[must_use]
    pub unsafe fn new(start: NonNull<u8>, len: usize) -> Self {
        Self { start, len }
    }

    /// No bytes at all.
    #[must_use]
    pub fn empty() -> Self {
        Self { start: NonNull::dangling(), len: 0 }
    }

    /// How many bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Where they begin in this process.
    #[must_use]
    pub fn as_ptr(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// The pointer to `len` bytes at `offset`, all within the range.
    ///
    /// # Errors
    /// [`BoundsError::OutOfRange`].
    pub fn check(&self, offset: u64, len: usize) -> Result<NonNull<u8>, BoundsError> {
        let error = BoundsError::OutOfRange { offset, len: len as u64, size: self.len as u64 };
        let at = usize::try_from(offset).map_err(|_| error)?;
        let end = at.checked_add(len).ok_or(error)?;
        if end > self.len {
            return Err(error);
        }
        // SAFETY: at <= end <= len, so the pointer stays within the range (or just behind it).
        Ok(unsafe { self.start.add(at) })
    }

    fn check_aligned(&self, offset: u64, size: usize) -> Result<NonNull<u8>, BoundsError> {
        let at = self.check(offset, size)?;
        if at.addr().get().is_multiple_of(size) {
            Ok(at)
        } else {
            Err(BoundsError::Misaligned { offset, align: size as u64 })
        }
    }

    /// Copies `dst.len()` bytes from `offset` on into `dst`.
    ///
    /// # Errors
    /// [`BoundsError::OutOfRange`]; nothing is copied then.
    pub fn read(&self, offset: u64, dst: &mut [u8]) -> Result<(), BoundsError> {
        let src = self.check(offset, dst.len())?;
        // SAFETY: src has dst.len() readable bytes (checked); dst is a private buffer, so the two do not overlap.
        unsafe { copy::copy(dst.as_mut_ptr(), src.as_ptr(), dst.len()) };
        Ok(())
    }

    /// Copies all of `src` to `offset`. The range must be writable: see [`SharedBytes::new`].
    ///
    /// # Errors
    /// [`BoundsError::OutOfRange`]; nothing is copied then.
    pub fn write(&self, offset: u64, src: &[u8]) -> Result<(), BoundsError> {
        let dst = self.check(offset, src.len())?;
        // SAFETY: dst has src.len() writable bytes (checked, and the rule of `new`); no reference to them exists, so src
        // does not overlap them.
        unsafe { copy::copy(dst.as_ptr(), src.as_ptr(), src.len()) };
        Ok(())
    }

    /// Reads a `T` at `offset`. It never tears if it is 1, 2, 4 or 8 bytes long and aligned to its size; otherwise it may.
    ///
    /// # Errors
    /// [`BoundsError::OutOfRange`].
    pub fn load<T: FromBytes>(&self, offset: u64) -> Result<T, BoundsError> {
        let src = self.check(offset, size_of::<T>())?;
        let mut value = MaybeUninit::<T>::uninit();
        // SAFETY: src has size_of::<T>() readable bytes, value has as many; value is private, so they do not overlap.
        unsafe { copy::copy(value.as_mut_ptr().cast(), src.as_ptr(), size_of::<T>()) };
        // SAFETY: all bytes are initialised, and every bit pattern is a T (FromBytes).
        Ok(unsafe { value.assume_init() })
    }

    /// Writes a `T` to `offset`; torn or not as in [`SharedBytes::load`].
    ///
    /// # Errors
    /// [`BoundsError::OutOfRange`].
    pub fn store<T: IntoBytes + Immutable>(&self, offset: u64, value: T) -> Result<(), BoundsError> {
        self.write(offset, value.as_bytes())
    }

    /// The 64-bit word at `offset`, for atomic access in this machine's byte order.
    ///
    /// # Errors
    /// [`BoundsError`]: out of range, or not aligned to 8 bytes.
    pub fn atomic_u64(&self, offset: u64) -> Result<&AtomicU64, BoundsError> {
        let at = self.check_aligned(offset, 8)?;
        // SAFETY: 8 bytes in range, aligned, mapped as long as self lives (rule of `new`), and only accessed atomically.
        Ok(unsafe { AtomicU64::from_ptr(at.as_ptr().cast()) })
    }

    /// The 32-bit word at `offset`, for atomic access in this machine's byte order.
    ///
    /// # Errors
    /// [`BoundsError`]: out of range, or not aligned to 4 bytes.
    pub fn atomic_u32(&self, offset: u64) -> Result<&AtomicU32, BoundsError> {
        let at = self.check_aligned(offset, 4)?;
        // SAFETY: 4 bytes in range, aligned, mapped as long as self lives (rule of `new`), and only accessed atomically.
        Ok(unsafe { AtomicU32::from_ptr(at.as_ptr().cast()) })
    }
}
