//! Bytes that other threads or processes may be changing at the same time.
//!
//! # Safety
//! The one rule is [`SharedBytes::new`]'s: the range stays mapped as long as the value is used. Every access is checked
//! against the length, goes through [`super::copy`] or an atomic, and never makes a reference to plain bytes.

#![allow(unsafe_code)]

use std::ptr::NonNull;
// std's atomics: loom's cannot lie in a mapping.
use std::sync::atomic::{AtomicU32, AtomicU64};

use zerocopy::{FromBytes, Immutable, IntoBytes};

use super::copy::{self, LoadOrder, StoreOrder};
use super::mapping::Access;

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
    /// The bytes are mapped for reading only.
    #[error("the memory is mapped for reading only")]
    ReadOnly,
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
    access: Access,
}

// SAFETY: every access is atomic, byte by byte or word by word, so threads may share and hand over the range.
unsafe impl Send for SharedBytes {}
// SAFETY: as above.
unsafe impl Sync for SharedBytes {}

impl SharedBytes {
    /// Names the `len` bytes at `start`.
    ///
    /// # Safety
    /// Until the value is gone, the range must be mapped for `access`, and no reference to any of its bytes may be used.
    #[must_use]
    pub unsafe fn new(start: NonNull<u8>, len: usize, access: Access) -> Self {
        Self { start, len, access }
    }

    /// No bytes at all.
    #[must_use]
    pub fn empty() -> Self {
        Self { start: NonNull::dangling(), len: 0, access: Access::ReadWrite }
    }

    /// How many bytes.
    #[inline]
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
    #[inline]
    #[must_use]
    pub fn as_ptr(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// The pointer to `len` bytes at `offset`, all within the range.
    ///
    /// # Errors
    /// [`BoundsError::OutOfRange`].
    #[inline]
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

    #[inline]
    fn check_writable(&self) -> Result<(), BoundsError> {
        match self.access {
            Access::ReadWrite => Ok(()),
            Access::Read => Err(BoundsError::ReadOnly),
        }
    }

    #[inline]
    fn check_aligned(&self, offset: u64, size: usize) -> Result<NonNull<u8>, BoundsError> {
        let at = self.check(offset, size)?;
        if at.addr().get().is_multiple_of(size) {
            Ok(at)
        } else {
            Err(BoundsError::Misaligned { offset, align: size as u64 })
        }
    }

    /// Copies `dst.len()` bytes from `offset` on into `dst`. One aligned word of 1, 2, 4 or 8 bytes is one acquiring load: it does
    /// not tear, and what was written before a [`SharedBytes::write`] of the word is seen after it.
    ///
    /// # Errors
    /// [`BoundsError::OutOfRange`]; nothing is copied then.
    #[inline]
    pub fn read(&self, offset: u64, dst: &mut [u8]) -> Result<(), BoundsError> {
        let src = self.check(offset, dst.len())?;
        if !read_word(src, dst) {
            // SAFETY: src has dst.len() readable bytes (checked); dst is a private buffer, so the two do not overlap.
            unsafe { copy::copy(dst.as_mut_ptr(), src.as_ptr(), dst.len()) };
        }
        Ok(())
    }

    /// Copies all of `src` to `offset`. One aligned word of 1, 2, 4 or 8 bytes is one releasing store: see
    /// [`SharedBytes::read`].
    ///
    /// # Errors
    /// [`BoundsError`]: out of range, or mapped for reading only; nothing is copied then.
    #[inline]
    pub fn write(&self, offset: u64, src: &[u8]) -> Result<(), BoundsError> {
        self.check_writable()?;
        let dst = self.check(offset, src.len())?;
        if !write_word(dst, src) {
            // SAFETY: dst has src.len() writable bytes (both checked); no reference to them exists, so src
            // does not overlap them.
            unsafe { copy::copy(dst.as_ptr(), src.as_ptr(), src.len()) };
        }
        Ok(())
    }

    /// Reads a `T` at `offset`, as [`SharedBytes::read`]: an aligned word does not tear, anything else may.
    ///
    /// # Errors
    /// [`BoundsError::OutOfRange`].
    #[inline]
    pub fn load<T: FromBytes + IntoBytes>(&self, offset: u64) -> Result<T, BoundsError> {
        let mut value = T::new_zeroed();
        self.read(offset, value.as_mut_bytes())?;
        Ok(value)
    }

    /// The aligned word at `offset`, in this machine's byte order, loaded with sequentially consistent order: also where it may only be
    /// read.
    ///
    /// # Errors
    /// [`BoundsError`]: out of range, or misaligned.
    #[inline]
    pub fn load_in_order(&self, offset: u64) -> Result<u64, BoundsError> {
        let at = self.check_aligned(offset, size_of::<u64>())?;
        // SAFETY: a readable word, and aligned (both checked).
        Ok(unsafe { copy::load_u64(at.as_ptr().cast(), LoadOrder::SeqCst) })
    }

    /// Writes a `T` to `offset`, as [`SharedBytes::write`].
    ///
    /// # Errors
    /// [`BoundsError::OutOfRange`].
    #[inline]
    pub fn store<T: IntoBytes + Immutable>(&self, offset: u64, value: T) -> Result<(), BoundsError> {
        self.write(offset, value.as_bytes())
    }

    /// The 64-bit word at `offset`, for atomic access in this machine's byte order.
    ///
    /// # Errors
    /// [`BoundsError`]: out of range, not aligned to 8 bytes, or mapped for reading only (where `load` reads words).
    #[inline]
    pub fn atomic_u64(&self, offset: u64) -> Result<&AtomicU64, BoundsError> {
        self.check_writable()?;
        let at = self.check_aligned(offset, 8)?;
        // SAFETY: 8 bytes in range, aligned, mapped as long as self lives (rule of `new`), and only accessed atomically.
        Ok(unsafe { AtomicU64::from_ptr(at.as_ptr().cast()) })
    }

    /// The 32-bit word at `offset`, for atomic access in this machine's byte order.
    ///
    /// # Errors
    /// [`BoundsError`]: out of range, not aligned to 4 bytes, or mapped for reading only (where `load` reads words).
    #[inline]
    pub fn atomic_u32(&self, offset: u64) -> Result<&AtomicU32, BoundsError> {
        self.check_writable()?;
        let at = self.check_aligned(offset, 4)?;
        // SAFETY: 4 bytes in range, aligned, mapped as long as self lives (rule of `new`), and only accessed atomically.
        Ok(unsafe { AtomicU32::from_ptr(at.as_ptr().cast()) })
    }
}

macro_rules! words {
    ($($len:literal: $word:ty, $load:ident, $store:ident;)*) => {
        /// Reads one aligned word by one acquiring load; `false`: it is none.
        ///
        /// Both are called with a `src` or `dst` that [`SharedBytes::check`] gave for as many bytes.
        #[inline]
        fn read_word(src: NonNull<u8>, dst: &mut [u8]) -> bool {
            match dst.len() {
                $($len if src.addr().get().is_multiple_of($len) => {
                    // SAFETY: $len readable bytes (checked by the caller), aligned to that.
                    let value = unsafe { copy::$load(src.cast::<$word>().as_ptr(), LoadOrder::Acquire) };
                    dst.copy_from_slice(&value.to_ne_bytes());
                    true
                })*
                _ => false,
            }
        }

        /// Writes one aligned word by one releasing store; `false`: it is none.
        #[inline]
        fn write_word(dst: NonNull<u8>, src: &[u8]) -> bool {
            match src.len() {
                $($len if dst.addr().get().is_multiple_of($len) => {
                    let mut bytes = [0; $len];
                    bytes.copy_from_slice(src);
                    let value = <$word>::from_ne_bytes(bytes);
                    // SAFETY: $len writable bytes (both checked by the caller), aligned to that.
                    unsafe { copy::$store(dst.cast::<$word>().as_ptr(), value, StoreOrder::Release) };
                    true
                })*
                _ => false,
            }
        }
    };
}

words! {
    1: u8, load_u8, store_u8;
    2: u16, load_u16, store_u16;
    4: u32, load_u32, store_u32;
    8: u64, load_u64, store_u64;
}

#[cfg(test)]
#[allow(clippy::cast_possible_truncation)] // patterns
mod tests {
    use super::*;
    use crate::mem::Mapping;

    #[test]
    fn words_are_loaded_in_order_where_there_are_any() {
        let words = crate::mem::Mapping::anonymous(4096).unwrap();
        let bytes = words.bytes();
        bytes.store(8, 7_u64).unwrap();
        assert_eq!(bytes.load_in_order(8), Ok(7));
        assert!(matches!(bytes.load_in_order(4), Err(BoundsError::Misaligned { .. })));
        assert!(matches!(bytes.load_in_order(bytes.len() as u64), Err(BoundsError::OutOfRange { .. })));
    }

    #[test]
    fn every_length_and_offset_comes_back() {
        let map = Mapping::anonymous(4096).unwrap();
        for offset in 0..17 {
            for len in 0..40 {
                let bytes: Vec<u8> = (0..len).map(|index| index as u8 ^ 0xa5).collect();
                map.bytes().write(offset, &bytes).unwrap();
                let mut seen = vec![0; bytes.len()];
                map.bytes().read(offset, &mut seen).unwrap();
                assert_eq!(seen, bytes, "{len} bytes at {offset}");
            }
        }
        map.bytes().store(24, 0x0102_0304_0506_0708_u64).unwrap();
        assert_eq!(map.bytes().load::<u64>(24).unwrap(), 0x0102_0304_0506_0708);
        assert_eq!(map.bytes().load::<[u8; 3]>(24).unwrap(), [8, 7, 6]);
    }

    #[test]
    fn bounds_hold() {
        let map = Mapping::anonymous(4096).unwrap();
        let error = |offset, len, size| BoundsError::OutOfRange { offset, len, size };
        assert_eq!(map.bytes().read(4096, &mut [0]), Err(error(4096, 1, 4096)));
        assert_eq!(map.bytes().write(u64::MAX, &[0; 2]), Err(error(u64::MAX, 2, 4096)));
        assert_eq!(map.bytes().read(4096, &mut []), Ok(()));
        assert_eq!(map.bytes().atomic_u64(4).unwrap_err(), BoundsError::Misaligned { offset: 4, align: 8 });
        assert_eq!(map.bytes().atomic_u32(4094).unwrap_err(), error(4094, 4, 4096));
        let (file, map) = crate::mem::Memfd::create("test", 4096, false).unwrap();
        map.bytes().write(0, b"seen").unwrap();
        let view = Mapping::of_file(std::os::fd::AsFd::as_fd(&file), 4096, Access::Read).unwrap();
        assert_eq!(view.bytes().load::<[u8; 4]>(0).unwrap(), *b"seen");
        assert_eq!(view.bytes().write(0, b"x"), Err(BoundsError::ReadOnly));
        assert_eq!(view.bytes().store(0, 1_u64), Err(BoundsError::ReadOnly));
        assert_eq!(view.bytes().atomic_u64(0).unwrap_err(), BoundsError::ReadOnly);
        assert_eq!(view.bytes().atomic_u32(0).unwrap_err(), BoundsError::ReadOnly);
        assert_eq!(SharedBytes::empty().read(0, &mut [0]), Err(error(0, 1, 0)));
    }

    /// Two threads: one writes a record and then a word, the other waits for the word. (Also run under the thread sanitizer.)
    #[test]
    fn a_word_publishes_what_came_before_it() {
        let map = std::sync::Arc::new(Mapping::anonymous(8192).unwrap());
        let other = std::sync::Arc::clone(&map);
        let writer = std::thread::spawn(move || {
            for round in 1..200_u64 {
                other.bytes().write(100, &[round as u8; 1000]).unwrap();
                other.bytes().store(4096, round).unwrap();
                while other.bytes().load::<u64>(4104).unwrap() != round {
                    std::thread::yield_now();
                }
            }
        });
        for round in 1..200_u64 {
            while map.bytes().load::<u64>(4096).unwrap() != round {
                std::thread::yield_now();
            }
            let mut seen = [0; 1000];
            map.bytes().read(100, &mut seen).unwrap();
            assert_eq!(seen, [round as u8; 1000]);
            map.bytes().store(4104, round).unwrap();
        }
        writer.join().unwrap();
    }
}
