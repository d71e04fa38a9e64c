//! Remote memory: a peer's region, reached by the endpoint to it.

use std::fmt;
use std::sync::Arc;

use ucs::Status;
use uct::api::{AmoOp, AtomicWord};
use uct::memory::{Destination, Source};
use zeroize::Zeroizing;

use crate::Features;
use crate::ep::{Endpoint, EpError};
use crate::mem::{ImportError, ImportedRegion, OpError, PackError, Region, TransferError};
use crate::request::Request;
use crate::wire::rkey::{self, RkeyFormatError};

/// A key to a region, for endpoints to its worker (`ucp_rkey_buffer`). Send + Sync.
///
/// **The bytes are a secret**: who has them may do with the region what its rights allow, until the region is dropped. `Debug` does not
/// show them.
#[derive(Clone)]
#[doc(alias = "ucp_rkey_pack")]
pub struct PackedRkey(Arc<Zeroizing<Vec<u8>>>);

impl PackedRkey {
    pub(crate) fn of_handle(handle: &[u8]) -> Self {
        Self(Arc::new(Zeroizing::new(rkey::encode(handle))))
    }

    /// Its bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for PackedRkey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PackedRkey(<{} secret bytes>)", self.0.len())
    }
}

impl Region {
    /// Packs a key by which peers reach the region over their endpoints to this context: the same one at each call. It lives as long as
    /// the region.
    ///
    /// # Errors
    /// [`PackError`].
    pub fn rkey_pack(&self) -> Result<PackedRkey, PackError> {
        self.packed_rkey()
    }
}

/// A key could not be unpacked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RkeyError {
    /// The bytes are no rkey.
    #[error("not a valid rkey: {0}")]
    Invalid(#[from] RkeyFormatError),
    /// It is a key to a region of another context than the endpoint's peer.
    #[error("the rkey is of another context than the peer of this endpoint")]
    OtherContext,
    /// The region cannot be reached.
    #[error(transparent)]
    Import(#[from] ImportError),
    /// The endpoint is of no more use.
    #[error(transparent)]
    Endpoint(#[from] EpError),
}

impl RkeyError {
    /// The one-byte status.
    pub fn status(&self) -> Status {
        match self {
            Self::Invalid(_) => Status::InvalidHandle,
            Self::OtherContext => Status::InvalidParam,
            Self::Import(error) => error.status(),
            Self::Endpoint(error) => error.status(),
        }
    }

    /// What to do about it.
    #[must_use]
    pub fn remedy(&self) -> String {
        match self {
            Self::Invalid(_) => "pass on exactly the bytes that rkey_pack gave".to_owned(),
            Self::OtherContext => {
                "unpack it with an endpoint to the worker whose context packed it".to_owned()
            }
            Self::Import(error) => error.remedy(),
            Self::Endpoint(error) => error.remedy().to_owned(),
        }
    }
}

/// A peer's region (`ucp_rkey_h`): `!Send`, as its endpoint. Clones are the same.
#[derive(Clone)]
#[doc(alias = "ucp_rkey_h")]
pub struct RemoteRegion {
    ep: Endpoint,
    memory: ImportedRegion,
}

impl Endpoint {
    /// Makes a peer's region usable, by the key that its owner has packed.
    ///
    /// May block, at most `UCX_IMPORT_TIMEOUT`, when it is the first key of that region that this context unpacks.
    ///
    /// # Errors
    /// [`RkeyError`].
    #[doc(alias = "ucp_ep_rkey_unpack")]
    pub fn rkey_unpack(&self, bytes: &[u8]) -> Result<RemoteRegion, RkeyError> {
        self.check()?;
        let handle = rkey::decode(bytes)?;
        let memory = ImportedRegion::import_for(&self.worker.ctx, handle, Features::RKEYS)?;
        if memory.owner().is_some_and(|owner| owner != self.ep.peer) {
            return Err(RkeyError::OtherContext);
        }
        Ok(RemoteRegion { ep: self.clone(), memory })
    }
}

impl RemoteRegion {
    /// How many bytes.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.memory.len()
    }

    /// Whether it has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.memory.is_empty()
    }

    /// The endpoint it is reached by.
    #[must_use]
    pub fn endpoint(&self) -> &Endpoint {
        &self.ep
    }

    /// The transport that moves its bytes, as in `UCX_TLS`.
    #[must_use]
    pub fn transport(&self) -> &'static str {
        self.memory.transport()
    }

    /// Copies all of `operand` to `offset` of the peer's region, without the peer's doing. The operand comes back when it may be used
    /// again; the bytes are there for all when [`Endpoint::flush`] has ended.
    ///
    /// # Errors
    /// As the request's: see [`TransferError`].
    #[doc(alias = "ucp_put_nbx")]
    #[inline]
    pub fn put<M: Source>(&self, offset: u64, operand: M) -> Request<M> {
        match self.ep.check() {
            Ok(()) => Request::ended(self.memory.put(offset, operand)),
            Err(error) => Request::failed(error, operand),
        }
    }

    /// Copies from `offset` of the peer's region on into all of `operand`, without the peer's doing.
    ///
    /// # Errors
    /// As the request's: see [`TransferError`].
    #[doc(alias = "ucp_get_nbx")]
    #[inline]
    pub fn get<M: Destination>(&self, offset: u64, operand: M) -> Request<M> {
        match self.ep.check() {
            Ok(()) => Request::ended(self.memory.get(offset, operand)),
            Err(error) => Request::failed(error, operand),
        }
    }

    /// As [`RemoteRegion::put`], without a request of its own: the next [`Endpoint::flush`] ends when it has, and the operand is dropped
    /// as soon as it may be.
    ///
    /// # Errors
    /// As [`RemoteRegion::put`].
    #[doc(alias = "ucp_put_nbi")]
    #[inline]
    pub fn put_nbi<M: Source>(&self, offset: u64, operand: M) -> Result<(), OpError<M>> {
        match self.ep.check() {
            Ok(()) => self.memory.put(offset, operand).map(drop),
            Err(error) => Err(OpError { error: error.into(), operand }),
        }
    }

    /// As [`RemoteRegion::get`], without a request of its own: the bytes are there when the next [`Endpoint::flush`] has ended. For operands
    /// that are a part of something the caller has: a [`MemSlice`](crate::MemSlice), an [`ImportedSlice`](crate::ImportedSlice), raw memory.
    ///
    /// # Errors
    /// As [`RemoteRegion::get`].
    #[doc(alias = "ucp_get_nbi")]
    #[inline]
    pub fn get_nbi<M: Destination>(&self, offset: u64, operand: M) -> Result<(), OpError<M>> {
        match self.ep.check() {
            Ok(()) => self.memory.get(offset, operand).map(drop),
            Err(error) => Err(OpError { error: error.into(), operand }),
        }
    }
}

/// Atomics, on words of 32 and 64 bits in this machine's byte order: atomic and sequentially consistent towards each other, and towards
/// the words of the owner's ([`Region::atomic_u64`], `atomic_u32`).
impl RemoteRegion {
    /// Does `op` to the word at `offset`, without the peer's doing; answers the word before. Its address in the owner's memory must be a
    /// multiple of its size.
    ///
    /// # Errors
    /// As the request's, with the operand: as [`ImportedRegion::atomic`]; [`TransferError::FeatureMissing`] without `Features::AMO32` or
    /// `AMO64`, as the word's size is.
    #[doc(alias = "ucp_atomic_op_nbx")]
    #[inline]
    pub fn atomic<T: AtomicWord>(&self, offset: u64, op: AmoOp<T>) -> Request<T> {
        let done = self.check_atomic::<T>().and_then(|()| Ok(self.memory.atomic(offset, op)?));
        match done {
            Ok(before) => Request::ended(Ok(before)),
            Err(error) => Request::failed(error, op.operand()),
        }
    }

    /// As [`RemoteRegion::atomic`], where the word before is not wanted. It is done for all to see when [`Endpoint::flush`] has ended.
    ///
    /// # Errors
    /// As [`RemoteRegion::atomic`].
    #[inline]
    pub fn atomic_post<T: AtomicWord>(&self, offset: u64, op: AmoOp<T>) -> Request<()> {
        let done = self.check_atomic::<T>().and_then(|()| Ok(self.memory.atomic(offset, op)?));
        match done {
            Ok(_) => Request::ended(Ok(())),
            Err(error) => Request::failed(error, ()),
        }
    }

    /// Adds `value` to the word at `offset`, and wraps around; answers the word before.
    ///
    /// # Errors
    /// As [`RemoteRegion::atomic`].
    pub fn fetch_add<T: AtomicWord>(&self, offset: u64, value: T) -> Request<T> {
        self.atomic(offset, AmoOp::Add(value))
    }

    /// Keeps the bits of the word at `offset` that `value` has, too; answers the word before.
    ///
    /// # Errors
    /// As [`RemoteRegion::atomic`].
    pub fn fetch_and<T: AtomicWord>(&self, offset: u64, value: T) -> Request<T> {
        self.atomic(offset, AmoOp::And(value))
    }

    /// Sets the bits of the word at `offset` that `value` has; answers the word before.
    ///
    /// # Errors
    /// As [`RemoteRegion::atomic`].
    pub fn fetch_or<T: AtomicWord>(&self, offset: u64, value: T) -> Request<T> {
        self.atomic(offset, AmoOp::Or(value))
    }

    /// Turns the bits of the word at `offset` over that `value` has; answers the word before.
    ///
    /// # Errors
    /// As [`RemoteRegion::atomic`].
    pub fn fetch_xor<T: AtomicWord>(&self, offset: u64, value: T) -> Request<T> {
        self.atomic(offset, AmoOp::Xor(value))
    }

    /// Puts `value` in place of the word at `offset`; answers the word before.
    ///
    /// # Errors
    /// As [`RemoteRegion::atomic`].
    pub fn swap<T: AtomicWord>(&self, offset: u64, value: T) -> Request<T> {
        self.atomic(offset, AmoOp::Swap(value))
    }

    /// Puts `new` in place of the word at `offset` if that is `expected`; answers the word before.
    ///
    /// # Errors
    /// As [`RemoteRegion::atomic`].
    pub fn cswap<T: AtomicWord>(&self, offset: u64, expected: T, new: T) -> Request<T> {
        self.atomic(offset, AmoOp::Cswap { expected, new })
    }

    fn check_atomic<T: AtomicWord>(&self) -> Result<(), TransferError> {
        self.ep.check()?;
        let (feature, name) =
            if size_of::<T>() == 4 { (Features::AMO32, "AMO32") } else { (Features::AMO64, "AMO64") };
        if self.ep.worker.ctx.has(feature) { Ok(()) } else { Err(TransferError::FeatureMissing(name)) }
    }
}

impl fmt::Debug for RemoteRegion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RemoteRegion")
            .field("len", &self.len())
            .field("transport", &self.transport())
            .finish()
    }
}
