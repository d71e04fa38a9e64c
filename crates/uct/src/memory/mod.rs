//! Memory of this process that a region is made of.

mod error;
mod imported;
pub mod operand;
mod owned;
mod pieces;
pub(crate) mod pipeline;
mod private;
mod raw;
mod sys;
mod view;

use std::sync::OnceLock;

use bitflags::bitflags;
use ucs::fork::{self, Generation};
use ucs::mem::shared::BoundsError;
use ucs::mem::{Mapping, MemError, Memfd, SharedBytes};
use ucs::sync::{AtomicBool, Ordering, Word32, Word64};
use zerocopy::{FromBytes, Immutable, IntoBytes};

pub use error::{AccessError, DeniedReason, DeviceEvent, DeviceReason, OperandReason, StaleReason};
pub use operand::{Destination, Local, LocalMut, Source};
pub use owned::{OwnedBytes, StableBuf, StableBufMut};
pub use private::PrivateMem;
pub use raw::RawMem;
#[cfg(feature = "cma")]
pub(crate) use raw::{Tries, fault};
pub use view::MappedView;

use crate::api::AtomicOp;
use crate::registrations::Kept;

bitflags! {
    /// What may be done to memory.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct Rights: u32 {
        /// Reading.
        const READ = 1;
        /// Writing, and atomics.
        const WRITE = 2;
    }
}

impl Rights {
    /// Reading and writing.
    pub const READ_WRITE: Self = Self::READ.union(Self::WRITE);

    /// Whether they allow an importer to write.
    ///
    /// # Errors
    /// [`AccessError::AccessDenied`].
    #[inline]
    pub fn check_write(self) -> Result<(), AccessError> {
        if self.contains(Self::WRITE) {
            return Ok(());
        }
        Err(AccessError::AccessDenied { done: 0, why: DeniedReason::ReadOnlyExport })
    }

    /// In words.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match (self.contains(Self::READ), self.contains(Self::WRITE)) {
            (true, true) => "read-write",
            (true, false) => "read-only",
            (false, true) => "write-only",
            (false, false) => "no access",
        }
    }
}

/// What lies behind a [`LocalMem`].
#[derive(Debug)]
enum Backing {
    /// No bytes.
    Empty,
    /// Allocated here, in a memfd other processes can be given.
    Memfd { file: Memfd, _map: Mapping },
    /// Allocated here, this process's alone.
    Anonymous { _map: Mapping },
    /// The user's buffer, kept until the last use has ended.
    Owned { _holder: OwnedBytes },
    /// The user's address range, which the user may unmap at any time.
    Raw,
}

/// Memory of this process: what a region is made of, and what transports register and export.
///
/// Shared by `Arc`: the bytes are given back when the last user is gone. Send + Sync.
#[derive(Debug)]
pub struct LocalMem {
    // Dropped before the memory that it is of.
    registered: OnceLock<Option<Kept>>,
    // Dropped before the backing it points into.
    bytes: SharedBytes,
    rights: Rights,
    backing: Backing,
    /// Whether a peer may have been given a way to it.
    packed: AtomicBool,
    generation: Generation,
}

/// Checks that `len` bytes at `offset` lie within `size` bytes.
///
/// # Errors
/// [`AccessError::Bounds`].
#[inline]
pub fn check_range(offset: u64, len: usize, size: u64) -> Result<(), AccessError> {
    let len = len as u64;
    match offset.checked_add(len) {
        Some(end) if end <= size => Ok(()),
        _ => Err(BoundsError::OutOfRange { offset, len, size }.into()),
    }
}

/// Largest piece that one step of a long mediated copy moves, in bytes: revoke waits for one step at most.
pub const COPY_STEP: usize = 1 << 20;

impl LocalMem {
    fn new(bytes: SharedBytes, rights: Rights, backing: Backing) -> Self {
        let (registered, packed) = (OnceLock::new(), AtomicBool::new(false));
        Self { registered, bytes, rights, backing, packed, generation: fork::generation() }
    }

    /// A region without bytes.
    #[must_use]
    pub fn empty(rights: Rights) -> Self {
        Self::new(SharedBytes::empty(), rights, Backing::Empty)
    }

    /// Allocates `len` bytes (> 0), zeroed, in a sealed memfd. Peers get `rights`; this process may always write.
    ///
    /// # Errors
    /// [`MemError`], naming the limit where it was one.
    pub fn memfd(len: usize, rights: Rights) -> Result<Self, MemError> {
        let (file, map) = Memfd::create("rucx", len, !rights.contains(Rights::WRITE))?;
        let bytes = sys::lend(&map);
        Ok(Self::new(bytes, rights, Backing::Memfd { file, _map: map }))
    }

    /// Allocates `len` bytes (> 0), zeroed, of this process alone.
    ///
    /// # Errors
    /// [`MemError`], naming the limit where it was one.
    pub fn anonymous(len: usize, rights: Rights) -> Result<Self, MemError> {
        let map = Mapping::anonymous(len)?;
        let bytes = sys::lend(&map);
        Ok(Self::new(bytes, rights, Backing::Anonymous { _map: map }))
    }

    /// Takes a buffer of the user's.
    #[must_use]
    pub fn owned(holder: OwnedBytes, rights: Rights) -> Self {
        let rights = if holder.is_writable() { rights } else { rights - Rights::WRITE };
        Self::new(sys::lend_owned(&holder), rights, Backing::Owned { _holder: holder })
    }

    /// Names a range of the user's, whatever is mapped there when it is accessed.
    #[must_use]
    pub fn raw(raw: &RawMem, rights: Rights) -> Self {
        Self::new(sys::lend_raw(raw), rights, Backing::Raw)
    }

    /// Where it begins in this process.
    #[must_use]
    pub fn address(&self) -> u64 {
        self.bytes.as_ptr().addr() as u64
    }

    /// How many bytes.
    #[inline]
    #[must_use]
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Whether it has no bytes.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// What peers may do with it.
    #[must_use]
    pub fn rights(&self) -> Rights {
        self.rights
    }

    /// Whether rucx allocated it.
    #[must_use]
    pub fn is_allocated(&self) -> bool {
        matches!(self.backing, Backing::Memfd { .. } | Backing::Anonymous { .. } | Backing::Empty)
    }

    /// Whether it is a buffer of the user's, whose drop is the user's code.
    #[must_use]
    pub fn is_owned(&self) -> bool {
        matches!(self.backing, Backing::Owned { .. })
    }

    /// Whether it is a range of addresses, whose owner may unmap it.
    #[must_use]
    pub fn is_raw(&self) -> bool {
        matches!(self.backing, Backing::Raw)
    }

    /// Notes that a peer may be given a way to it, for ever.
    pub fn mark_packed(&self) {
        self.packed.store(true, Ordering::Release);
    }

    /// Whether a peer may ever have been given a way to it.
    #[must_use]
    pub fn was_packed(&self) -> bool {
        self.packed.load(Ordering::Acquire)
    }

    /// Its own registration, for operands: of memory that was allocated here.
    pub(crate) fn registered(&self) -> &OnceLock<Option<Kept>> {
        &self.registered
    }

    /// The memfd behind it, if that is what it is.
    #[must_use]
    pub(crate) fn file(&self) -> Option<&Memfd> {
        match &self.backing {
            Backing::Memfd { file, .. } => Some(file),
            _ => None,
        }
    }

    /// What it is, in words.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self.backing {
            Backing::Empty => "no bytes",
            Backing::Memfd { .. } => "allocated (memfd)",
            Backing::Anonymous { .. } => "allocated (anonymous)",
            Backing::Owned { .. } => "an owned buffer",
            Backing::Raw => "a raw address range",
        }
    }

    /// The bytes, when they cannot go away under an access; `None` for a raw range.
    #[inline]
    fn direct(&self) -> Result<Option<&SharedBytes>, AccessError> {
        if !self.generation.is_current() {
            return Err(AccessError::Forked); // mappings are not inherited
        }
        Ok((!matches!(self.backing, Backing::Raw)).then_some(&self.bytes))
    }

    /// Copies from `offset` on into `dst`.
    ///
    /// # Errors
    /// [`AccessError`]: out of bounds, or a raw range that is unmapped or not readable.
    #[inline]
    pub fn read(&self, offset: u64, dst: &mut [u8]) -> Result<(), AccessError> {
        match self.direct()? {
            Some(bytes) => Ok(bytes.read(offset, dst)?),
            None => {
                let src = self.bytes.check(offset, dst.len())?;
                raw::read(src, dst)
            }
        }
    }

    /// Copies all of `src` to `offset`. The owner may always write, whatever the rights of peers, unless the memory itself is
    /// read-only.
    ///
    /// # Errors
    /// [`AccessError`]: out of bounds, a buffer taken for reading only, or a raw range that is unmapped or not writable.
    #[inline]
    pub fn write(&self, offset: u64, src: &[u8]) -> Result<(), AccessError> {
        match self.direct()? {
            Some(bytes) => {
                self.check_writable()?;
                Ok(bytes.write(offset, src)?)
            }
            None => {
                let dst = self.bytes.check(offset, src.len())?;
                raw::write(dst, src)
            }
        }
    }

    #[inline]
    fn check_writable(&self) -> Result<(), AccessError> {
        match &self.backing {
            Backing::Owned { _holder } if !_holder.is_writable() => {
                Err(AccessError::AccessDenied { done: 0, why: DeniedReason::ReadOnlyBuffer })
            }
            _ => Ok(()),
        }
    }

    /// Reads a `T`; aligned words of up to 8 bytes do not tear, and what was written before the peer's `store` of the word
    /// is seen after this. Raw ranges may tear.
    ///
    /// # Errors
    /// As [`LocalMem::read`].
    #[inline]
    pub fn load<T: FromBytes + IntoBytes>(&self, offset: u64) -> Result<T, AccessError> {
        match self.direct()? {
            Some(bytes) => Ok(bytes.load(offset)?),
            None => {
                let mut value = T::new_zeroed();
                self.read(offset, value.as_mut_bytes())?;
                Ok(value)
            }
        }
    }

    /// Writes a `T`, as [`LocalMem::load`].
    ///
    /// # Errors
    /// As [`LocalMem::write`].
    #[inline]
    pub fn store<T: IntoBytes + Immutable>(&self, offset: u64, value: T) -> Result<(), AccessError> {
        match self.direct()? {
            Some(bytes) => {
                self.check_writable()?;
                Ok(bytes.store(offset, value)?)
            }
            None => self.write(offset, value.as_bytes()),
        }
    }

    /// The aligned 64-bit word at `offset`, for atomic access in this machine's byte order.
    ///
    /// # Errors
    /// [`AccessError`]: out of bounds, misaligned, read-only, or a raw range (which could be unmapped under the word).
    #[inline]
    pub fn atomic_u64(&self, offset: u64) -> Result<&Word64, AccessError> {
        Ok(self.words()?.atomic_u64(offset)?)
    }

    /// The aligned 32-bit word at `offset`, as [`LocalMem::atomic_u64`].
    ///
    /// # Errors
    /// As [`LocalMem::atomic_u64`].
    #[inline]
    pub fn atomic_u32(&self, offset: u64) -> Result<&Word32, AccessError> {
        Ok(self.words()?.atomic_u32(offset)?)
    }

    /// Does `op` to the word at `offset`, and answers the word before it.
    ///
    /// # Errors
    /// As [`LocalMem::atomic_u64`].
    #[inline]
    pub fn atomic(&self, offset: u64, op: AtomicOp) -> Result<u64, AccessError> {
        Ok(op.run(self.words()?, offset)?)
    }

    /// The bytes, where there can be atomics on them.
    #[inline]
    fn words(&self) -> Result<&SharedBytes, AccessError> {
        let bytes = self.direct()?.ok_or(AccessError::Unsupported {
            why: "no atomics on raw memory, which its owner may unmap at any time",
        })?;
        self.check_writable()?;
        Ok(bytes)
    }
}
