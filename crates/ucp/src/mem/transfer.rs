//! Operations that take an operand by value, and give it back.

use std::fmt;

use ucs::Status;
use uct::api::{Gone, SendError, get_by_read, put_by_write};
use uct::memory::{AccessError, Destination, Source, StaleReason, check_range};
use uct::registrations::RegisterError;

use super::ImportedRegion;
use crate::ep::EpError;
use crate::proto::{self, Operand};

/// An operation did not happen, or not whole.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TransferError {
    /// The memory of one of both sides could not be accessed.
    #[error(transparent)]
    Access(#[from] AccessError),
    /// The transport needs the operand registered, and that could not be done.
    #[error(transparent)]
    Register(RegisterError),
    /// The endpoint is of no more use.
    #[error(transparent)]
    Endpoint(#[from] EpError),
    /// It is longer than can be sent at once, or a header is too long.
    #[error("{len} bytes are more than the {max} that can be sent at once")]
    TooLong {
        /// How many bytes.
        len: u64,
        /// How many there may be.
        max: u64,
    },
    /// Imported memory is sent by rendezvous only.
    #[error("imported memory cannot be sent at once, as AmFlags::EAGER asks")]
    EagerImport,
    /// The operand has no room for the data, which was refused.
    #[error("the operand has room for {room} bytes, and {len} are to be received")]
    Truncated {
        /// Bytes of the data.
        len: u64,
        /// Bytes of the operand.
        room: u64,
    },
    /// The peer has no handler of that number, or cannot take the data.
    #[error("the peer has refused the message")]
    Rejected,
    /// The peer could not read the rest of what it was sending.
    #[error("the peer could not send the rest of the message")]
    Aborted,
    /// The context was not made for that.
    #[error("the context was made without Features::{0}")]
    FeatureMissing(&'static str),
}

impl From<SendError> for TransferError {
    fn from(error: SendError) -> Self {
        match error {
            SendError::Body(error) => Self::Access(error),
            // Lengths were checked before.
            _ => Self::Endpoint(EpError::Peer(Gone::Closed)),
        }
    }
}

impl From<RegisterError> for TransferError {
    fn from(error: RegisterError) -> Self {
        match error {
            RegisterError::Operand(error) => Self::Access(error),
            error => Self::Register(error),
        }
    }
}

impl TransferError {
    /// The one-byte status.
    pub fn status(&self) -> Status {
        match self {
            Self::Access(error) => error.status(),
            Self::Register(error) => error.status(),
            Self::Endpoint(error) => error.status(),
            Self::TooLong { .. } => Status::ExceedsLimit,
            Self::Truncated { .. } => Status::MessageTruncated,
            Self::Rejected => Status::Rejected,
            Self::Aborted => Status::Canceled,
            Self::FeatureMissing(_) | Self::EagerImport => Status::InvalidParam,
        }
    }

    /// What to do about it.
    #[must_use]
    pub fn remedy(&self) -> &'static str {
        match self {
            Self::Access(error) => error.remedy(),
            Self::Register(error) => error.remedy(),
            Self::Endpoint(error) => error.remedy(),
            Self::TooLong { .. } => "send less at once, or let it go by rendezvous: without AmFlags::EAGER",
            Self::EagerImport => "let it go by rendezvous: without AmFlags::EAGER",
            Self::Truncated { .. } => "give an operand of `AmMessage::len` bytes",
            Self::Rejected => "see that the peer has a handler of that number",
            Self::Aborted => "see why the peer's memory could not be read",
            Self::FeatureMissing(_) => "make the context with that feature",
        }
    }
}

/// An operation has failed: why, and the operand, which is the caller's again.
///
/// Only the error is shown, and `?` makes a [`crate::Error`] of it.
pub struct OpError<M> {
    /// What has failed.
    pub error: TransferError,
    /// What was given to the operation. Of a `get` a part may have been written.
    pub operand: M,
}

impl<M> OpError<M> {
    /// The one-byte status.
    pub fn status(&self) -> Status {
        self.error.status()
    }

    /// What to do about it.
    #[must_use]
    pub fn remedy(&self) -> &'static str {
        self.error.remedy()
    }
}

impl<M> fmt::Debug for OpError<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OpError").field("error", &self.error).finish_non_exhaustive()
    }
}

impl<M> fmt::Display for OpError<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl<M> std::error::Error for OpError<M> {}

impl<M> From<OpError<M>> for crate::Error {
    fn from(error: OpError<M>) -> Self {
        Self::Transfer(error.error)
    }
}

impl ImportedRegion {
    /// Copies all of `operand` to `offset`, and gives it back: an owned buffer ([`StableBuf`](crate::StableBuf)), a [`Buf`](super::Buf), a
    /// [`MemSlice`](super::MemSlice), an [`ImportedSlice`](super::ImportedSlice) (another process's memory), or raw memory.
    ///
    /// It is done when this returns, and takes part in the owner's revocation, as [`ImportedRegion::write`] does.
    ///
    /// Where the operand and the imported memory are the same memory in part, which bytes come to lie there is not specified.
    ///
    /// # Errors
    /// [`OpError`], with the operand: as [`ImportedRegion::write`]; [`AccessError::Operand`]: raw memory that is not mapped for reading, an import that
    /// has been revoked.
    #[doc(alias = "ucp_put_nbx")]
    #[inline]
    pub fn put<M: Source>(&self, offset: u64, operand: M) -> Result<M, OpError<M>> {
        match self.put_from(offset, &operand) {
            Ok(()) => Ok(operand),
            Err(error) => Err(OpError { error, operand }),
        }
    }

    /// Copies from `offset` on into all of `operand`, and gives it back: an owned buffer ([`StableBufMut`](crate::StableBufMut)), a
    /// [`Buf`](super::Buf), a [`MemSlice`](super::MemSlice), an [`ImportedSlice`](super::ImportedSlice), or raw memory. As many bytes are read as it has: of a vector its length, not its capacity.
    ///
    /// It is done when this returns, and takes part in the owner's revocation, as [`ImportedRegion::read`] does.
    ///
    /// Where the operand and the imported memory are the same memory in part, which bytes come to lie there is not specified.
    ///
    /// # Errors
    /// [`OpError`], with the operand: as [`ImportedRegion::read`]; [`AccessError::Operand`]: raw memory that is not mapped for writing, an import that has
    /// been revoked or is for reading only.
    #[doc(alias = "ucp_get_nbx")]
    #[inline]
    pub fn get<M: Destination>(&self, offset: u64, mut operand: M) -> Result<M, OpError<M>> {
        match self.get_into(offset, &mut operand) {
            Ok(()) => Ok(operand),
            Err(error) => Err(OpError { error, operand }),
        }
    }

    fn put_from(&self, offset: u64, operand: &impl Source) -> Result<(), TransferError> {
        let Some(imported) = self.imported() else {
            operand.check()?;
            return Ok(check_range(offset, operand.local().len(), 0)?);
        };
        // Before the operand is asked: memory of the parent's is not there.
        if imported.ctx().is_forked() {
            return Err(AccessError::Stale { done: 0, why: StaleReason::Forked }.into());
        }
        operand.check()?;
        let (memory, src) = (imported.memory(), operand.local());
        match imported.needs() {
            None => Ok(memory.put(offset, &src)?),
            Some(needs) => match proto::operand(src.len(), src.is_imported(), imported.ctx().zcopy_from) {
                Operand::Copied => Ok(put_by_write(memory, offset, &src)?),
                Operand::Registered => {
                    check_range(offset, src.len(), memory.len())?;
                    let registrations = &imported.ctx().registrations;
                    Ok(registrations.with_source(needs, src, |src| memory.put(offset, src))??)
                }
            },
        }
    }

    fn get_into(&self, offset: u64, operand: &mut impl Destination) -> Result<(), TransferError> {
        let Some(imported) = self.imported() else {
            operand.check()?;
            return Ok(check_range(offset, operand.local_mut().len(), 0)?);
        };
        if imported.ctx().is_forked() {
            return Err(AccessError::Stale { done: 0, why: StaleReason::Forked }.into());
        }
        operand.check()?;
        let (memory, mut dst) = (imported.memory(), operand.local_mut());
        match imported.needs() {
            None => Ok(memory.get(offset, &mut dst)?),
            Some(needs) => match proto::operand(dst.len(), dst.is_imported(), imported.ctx().zcopy_from) {
                Operand::Copied => Ok(get_by_read(memory, offset, &mut dst)?),
                Operand::Registered => {
                    check_range(offset, dst.len(), memory.len())?;
                    let registrations = &imported.ctx().registrations;
                    Ok(registrations.with_destination(needs, dst, |dst| memory.get(offset, dst))??)
                }
            },
        }
    }
}
