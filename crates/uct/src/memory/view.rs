//! A mapped view: another process's memory, by load and store.

use ucs::mem::SharedBytes;
use ucs::sync::{Word32, Word64};
use zerocopy::{FromBytes, Immutable, IntoBytes};

use super::{AccessError, Rights};

/// Memory that is mapped here, with what may be done to it. Not mediated: a revocation does not wait for its accesses.
#[derive(Clone, Copy, Debug)]
pub struct MappedView<'a> {
    bytes: &'a SharedBytes,
    rights: Rights,
}

impl<'a> MappedView<'a> {
    /// Names `bytes`, which may be used as `rights` say (and as they are mapped).
    #[inline]
    #[must_use]
    pub fn new(bytes: &'a SharedBytes, rights: Rights) -> Self {
        Self { bytes, rights }
    }

    /// How many bytes.
    #[inline]
    #[must_use]
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Copies from `offset` on into `dst`.
    ///
    /// # Errors
    /// Out of range.
    #[inline]
    pub fn read(&self, offset: u64, dst: &mut [u8]) -> Result<(), AccessError> {
        Ok(self.bytes.read(offset, dst)?)
    }

    /// Copies `src` to `offset`.
    ///
    /// # Errors
    /// Out of range, or read-only.
    #[inline]
    pub fn write(&self, offset: u64, src: &[u8]) -> Result<(), AccessError> {
        self.rights.check_write()?;
        Ok(self.bytes.write(offset, src)?)
    }

    /// Reads a `T`; aligned words of up to 8 bytes do not tear.
    ///
    /// # Errors
    /// Out of range.
    #[inline]
    pub fn load<T: FromBytes + IntoBytes>(&self, offset: u64) -> Result<T, AccessError> {
        Ok(self.bytes.load(offset)?)
    }

    /// Writes a `T`; aligned words of up to 8 bytes do not tear.
    ///
    /// # Errors
    /// Out of range, or read-only.
    #[inline]
    pub fn store<T: IntoBytes + Immutable>(&self, offset: u64, value: T) -> Result<(), AccessError> {
        self.rights.check_write()?;
        Ok(self.bytes.store(offset, value)?)
    }

    /// The aligned 64-bit word at `offset`, for atomic access in this machine's byte order.
    ///
    /// # Errors
    /// Out of range, misaligned, or read-only.
    #[inline]
    pub fn atomic_u64(&self, offset: u64) -> Result<&'a Word64, AccessError> {
        self.rights.check_write()?;
        Ok(self.bytes.atomic_u64(offset)?)
    }

    /// The aligned 32-bit word at `offset`, as [`MappedView::atomic_u64`].
    ///
    /// # Errors
    /// Out of range, misaligned, or read-only.
    #[inline]
    pub fn atomic_u32(&self, offset: u64) -> Result<&'a Word32, AccessError> {
        self.rights.check_write()?;
        Ok(self.bytes.atomic_u32(offset)?)
    }
}
