//! Memory of this process that a region is made of.

pub mod operand;
mod owned;
mod private;
mod raw;
mod sys;
mod view;

use std::sync::OnceLock;

use bitflags::bitflags;
use ucs::Status;
use ucs::fork::{self, Generation};
use ucs::mem::shared::BoundsError;
use ucs::mem::{Mapping, MemError, Memfd, SharedBytes};
use ucs::sync::{AtomicBool, Ordering, Word64};
use zerocopy::{FromBytes, Immutable, IntoBytes};

pub use operand::{Destination, Local, LocalMut, Source};
pub use owned::{OwnedBytes, StableBuf, StableBufMut};
pub use private::PrivateMem;
pub use raw::RawMem;
#[cfg(feature = "cma")]
pub(crate) use raw::{Tries, fault};
pub use view::MappedView;

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

/// A memory access did not happen, or not whole.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AccessError {
    /// It lies outside the region, or is not aligned as it must be.
    #[error(transparent)]
    Bounds(#[from] BoundsError),
    /// The memory is no longer there: unmapped, or its export was revoked or dropped, or its process ended.
    #[error("stale after {done} bytes: {why}")]
    Stale {
        /// Bytes that were moved before.
        done: u64,
        /// What became of it.
        why: StaleReason,
    },
    /// The rights do not allow it.
    #[error("access denied after {done} bytes: {why}")]
    AccessDenied {
        /// Bytes that were moved before.
        done: u64,
        /// What was missing.
        why: DeniedReason,
    },
    /// All slots that announce an access in flight stayed taken.
    #[error("no in-flight slot came free within {waited:?}")]
    Busy {
        /// How long was waited.
        waited: std::time::Duration,
    },
    /// This memory cannot do that.
    #[error("unsupported: {why}")]
    Unsupported {
        /// What, and what can.
        why: &'static str,
    },
    /// The memory of this process that took part in it is not there, or not for that.
    #[error("the operand could not be used after {done} bytes: {why}")]
    Operand {
        /// Bytes that were moved before.
        done: u64,
        /// What is wrong with it.
        why: OperandReason,
    },
    /// The object belongs to the parent process of a fork.
    #[error("this object belongs to the parent process: a fork's child must make its own context")]
    Forked,
}

/// What is wrong with memory of this process that an operation was given.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OperandReason {
    /// Nothing is mapped there.
    #[error("its memory is not mapped")]
    Unmapped,
    /// The pages' protection (`mprotect(2)`) does not allow it.
    #[error("its pages are mapped, but not for this access")]
    Protection,
    /// It may only be read.
    #[error("its buffer was taken for reading only")]
    ReadOnlyBuffer,
    /// The kernel does not reach it.
    #[error("its pages are not reached by the kernel: beyond the end of a file, or a device's")]
    NotBacked,
    /// Whether it is mapped cannot be told: `/proc/self/maps` cannot be read.
    #[error("it cannot be reached, and /proc/self/maps, which would tell why, cannot be read")]
    Untold,
    /// The operation needs it registered with the transport, and it was not.
    #[error("its memory is not registered with the transport")]
    NotRegistered,
}

impl OperandReason {
    /// What to do about it.
    #[must_use]
    pub fn remedy(self) -> &'static str {
        match self {
            Self::Unmapped => "keep the operand's memory mapped until the operation has ended",
            Self::Protection => "give memory that may be written to what writes it: see `mprotect(2)`",
            Self::ReadOnlyBuffer => "map it with `MemMap::buffer`, which may be written",
            Self::NotBacked => "see whether the file behind it has been cut off",
            Self::Untold => "mount /proc",
            Self::NotRegistered => "use the operations of `ucp`, which register what they are given",
        }
    }
}

/// Why an access is denied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DeniedReason {
    /// Importers may only read.
    #[error("the region was exported read-only")]
    ReadOnlyExport,
    /// The owner itself may only read.
    #[error("the buffer was taken for reading only")]
    ReadOnlyBuffer,
    /// The pages' protection (`mprotect(2)`) does not allow it.
    #[error("the pages are mapped, but not for this access")]
    Protection,
    /// There are pages, and nothing behind them that the kernel could reach.
    #[error(
        "the pages are mapped, but the kernel does not reach them: beyond the end of a file, or a device's"
    )]
    NotBacked,
    /// A page could not be reached, and the mappings cannot be looked at.
    #[error(
        "a page could not be reached, and why cannot be told: /proc shows no mappings of that process here"
    )]
    Untold,
    /// Ptrace rights that were there are there no longer.
    #[error(
        "the kernel allows it no longer: the exporter has changed its user or is not dumpable any more, or this process may do \
         less than before"
    )]
    NotAllowed,
}

impl DeniedReason {
    /// What to do about it.
    #[must_use]
    pub fn remedy(self) -> &'static str {
        match self {
            Self::ReadOnlyExport => "the owner decides on the rights: see `MemMap::read_only`",
            Self::ReadOnlyBuffer => "map it with `MemMap::buffer`, which may be written",
            Self::Protection => "the owner decides on the protection of its pages: see `mprotect(2)`",
            Self::NotBacked => "see whether the file behind it has been cut off, or its disk is full",
            Self::Untold => "mount the /proc of both sides' pid namespace, without hidepid",
            Self::NotAllowed => {
                "let the exporter call prctl(PR_SET_DUMPABLE, 1) after it has changed its user, and run both sides as one user"
            }
        }
    }
}

/// Why memory is stale.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StaleReason {
    /// The exporter revoked the export, or dropped its region or context.
    #[error("the export was revoked or dropped")]
    Revoked,
    /// The exporter's process ended, or replaced itself by exec.
    #[error("the exporting process is gone")]
    ExporterGone,
    /// This process is a fork's child: what its parent imported is not here.
    #[error("it was imported by the parent process: a fork's child must make its own context")]
    Forked,
    /// The owner unmapped the address.
    #[error("the owner has unmapped it")]
    Unmapped,
}

impl AccessError {
    /// The one-byte status.
    pub fn status(&self) -> Status {
        match self {
            Self::Bounds(BoundsError::Misaligned { .. }) => Status::InvalidParam,
            Self::Bounds(BoundsError::ReadOnly) => Status::AccessDenied,
            Self::Bounds(_) => Status::OutOfRange,
            Self::Stale { .. } => Status::Stale,
            Self::AccessDenied { .. } => Status::AccessDenied,
            Self::Busy { .. } => Status::Busy,
            Self::Unsupported { .. } => Status::Unsupported,
            Self::Operand { .. } => Status::InvalidAddr,
            Self::Forked => Status::Forked,
        }
    }

    /// What to do about it.
    #[must_use]
    pub fn remedy(&self) -> &'static str {
        match self {
            Self::Bounds(BoundsError::Misaligned { .. }) => {
                "use an offset that is a multiple of the word's size"
            }
            Self::Bounds(BoundsError::ReadOnly) => "write to memory that is mapped for writing",
            Self::Bounds(_) => "stay within `len()`",
            Self::Stale { .. } => "ask the owner for a new handle and import that",
            Self::AccessDenied { why, .. } => why.remedy(),
            Self::Busy { .. } => "use fewer threads at once, or raise UCX_IMPORT_TIMEOUT",
            Self::Unsupported { .. } => "use memory of `MemMap::allocate`",
            Self::Operand { why, .. } => why.remedy(),
            Self::Forked => "create a new Context in the child, or use memory before the fork",
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
        let bytes = self.direct()?.ok_or(AccessError::Unsupported {
            why: "no atomics on raw memory, which its owner may unmap at any time",
        })?;
        self.check_writable()?;
        Ok(bytes.atomic_u64(offset)?)
    }
}
