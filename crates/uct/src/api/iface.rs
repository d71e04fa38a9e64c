//! Interfaces: what a worker talks to its peers by.

use std::fmt;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use bitflags::bitflags;
use ucs::Status;
use ucs::mem::shared::BoundsError;
use ucs::time::Deadline;

use super::{AttachError, ComponentId, LinearCost};
use crate::channel::Channel;
use crate::memory::{AccessError, Local};
use crate::registrations::Held;

bitflags! {
    /// Abilities of an interface (`UCT_IFACE_FLAG_*`).
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    #[doc(alias = "UCT_IFACE_FLAG_AM_BCOPY")]
    pub struct IfaceFlags: u32 {
        /// Sends active messages.
        const AM = 1 << 0;
        /// Has a descriptor that tells when there is something to do.
        const EVENT_FD = 1 << 1;
        /// Tells when a peer is gone.
        const PEER_FAILURE = 1 << 2;
        /// Reaches other processes; without it, the same worker only.
        const INTER_PROCESS = 1 << 3;
        /// Its device gathers a message: the body of [`Iface::am_held`] from where it lies.
        #[doc(alias = "UCT_IFACE_FLAG_AM_ZCOPY")]
        const GATHER = 1 << 4;
    }
}

/// Attributes of an interface (`uct_iface_attr_t`).
#[derive(Clone, Debug)]
#[doc(alias = "uct_iface_attr_t")]
pub struct IfaceAttr {
    /// The component it belongs to.
    pub component: ComponentId,
    /// Abilities.
    pub flags: IfaceFlags,
    /// Most bytes of an active message, its head and its body together.
    pub max_am: usize,
    /// What an active message costs, from one process's memory to the other's.
    pub am_cost: LinearCost,
}

/// An endpoint of an interface: never mistaken for another one that has its place later.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct EpId {
    /// Its place in the interface's list.
    pub index: u32,
    /// How often that place had been taken.
    pub generation: u32,
}

impl fmt::Debug for EpId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ep {}.{}", self.index, self.generation)
    }
}

/// A new endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewEp {
    /// Which.
    pub ep: EpId,
    /// The context of its peer. Where the peer came to us, that is what it says, and proves nothing.
    pub peer: [u8; 16],
}

/// A message was not sent.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SendError {
    /// There is no room now: again after some progress.
    #[error("the peer has not taken what was sent before")]
    Full,
    /// The peer is gone, or the endpoint is.
    #[error("the endpoint's peer is gone")]
    Gone,
    /// It is longer than [`IfaceAttr::max_am`].
    #[error("the message is longer than the transport takes at once")]
    TooLong,
    /// The body could not be read.
    #[error(transparent)]
    Body(#[from] AccessError),
}

impl SendError {
    /// The one-byte status.
    pub fn status(&self) -> Status {
        match self {
            Self::Full => Status::NoResource,
            Self::Gone => Status::ConnectionReset,
            Self::TooLong => Status::ExceedsLimit,
            Self::Body(error) => error.status(),
        }
    }
}

/// Why an endpoint is of no more use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum Gone {
    /// Its peer has closed it, or the peer's process has ended or called exec.
    #[error("the peer has closed the endpoint, or its process has ended")]
    Closed,
    /// Its peer has sent what no peer of this version sends.
    #[error("the peer has sent bytes that are no message")]
    Corrupt,
    /// The way to its peer has failed: what the device says of it.
    #[error("the way to the peer has failed: {0}")]
    Failed(&'static str),
}

/// The bytes of a message that has come, where its peer may still change them: they are copied out once.
pub trait Payload {
    /// How many bytes.
    fn len(&self) -> usize;

    /// Whether there are none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Copies from its byte `at` on into `dst`.
    ///
    /// # Errors
    /// [`BoundsError`]: beyond its end; nothing is copied then.
    fn read(&self, at: usize, dst: &mut [u8]) -> Result<(), BoundsError>;
}

impl Payload for &[u8] {
    fn len(&self) -> usize {
        <[u8]>::len(self)
    }

    fn read(&self, at: usize, dst: &mut [u8]) -> Result<(), BoundsError> {
        let (offset, len, size) = (at as u64, dst.len() as u64, self.len() as u64);
        let end = at.checked_add(dst.len());
        let part = end.and_then(|end| self.get(at..end));
        dst.copy_from_slice(part.ok_or(BoundsError::OutOfRange { offset, len, size })?);
        Ok(())
    }
}

/// Takes what [`Iface::progress`] finds. It must not call the interface.
pub trait Sink {
    /// A peer has connected to this interface.
    fn arrived(&mut self, new: NewEp);

    /// A message has come, with the number and bytes that the peer gave to [`Iface::am`]. Messages of one peer come in order, each once.
    fn am(&mut self, ep: EpId, tag: u32, payload: &dyn Payload);

    /// An endpoint is of no more use; told once, after its last message. It still has to be disconnected.
    fn gone(&mut self, ep: EpId, why: Gone);
}

/// An interface (`uct_iface_h`): one worker's, with all its endpoints. Send, and used by one thread at a time.
///
/// An endpoint has two ends, and either sends. The peer may lie about everything, and stop or end at any moment.
#[doc(alias = "uct_iface_h")]
pub trait Iface: Send + fmt::Debug {
    /// What it can do. The attributes never change.
    #[doc(alias = "uct_iface_query")]
    fn attr(&self) -> &IfaceAttr;

    /// Where it is reached, for [`Iface::connect`] of a peer's. **A secret**: who has it may connect.
    #[doc(alias = "uct_iface_get_address")]
    fn address(&self) -> Vec<u8>;

    /// Connects to the interface at `address`, bytes that came from elsewhere. Blocks, at most until `deadline`; the peer's worker
    /// need not do anything meanwhile.
    ///
    /// # Errors
    /// [`AttachError`].
    #[doc(alias = "uct_ep_create")]
    fn connect(&mut self, address: &[u8], deadline: &Deadline) -> Result<NewEp, AttachError>;

    /// Ends an endpoint; one that is not there is left alone. Its peer is told, after all that was sent.
    #[doc(alias = "uct_ep_destroy")]
    fn disconnect(&mut self, ep: EpId);

    /// Sends a message: `tag`, of which the lower 24 bits are sent, and the bytes of both parts of `head` and of `body`. It is on its
    /// way when this returns, and all can be used again.
    ///
    /// # Errors
    /// [`SendError`]; nothing is sent then.
    #[doc(alias = "uct_ep_am_bcopy")]
    fn am(&mut self, ep: EpId, tag: u32, head: [&[u8]; 2], body: &Local<'_>) -> Result<(), SendError>;

    /// Sends a message whose body is `part` of `body`, what of it lies within. With [`IfaceFlags::GATHER`] a device reads that where it lies, and the
    /// interface has `body` until it has. That is found by [`Iface::progress`], also of an endpoint that was disconnected meanwhile; an interface that is
    /// dropped lets go of all. Without that flag, it is copied.
    ///
    /// # Errors
    /// [`SendError`]; nothing is sent then.
    #[doc(alias = "uct_ep_am_zcopy")]
    fn am_held(
        &mut self,
        ep: EpId,
        tag: u32,
        head: &[u8],
        body: &Arc<Held>,
        part: Range<usize>,
    ) -> Result<(), SendError> {
        self.am(ep, tag, [head, &[]], &body.local().range(part))
    }

    /// What this side and an endpoint's peer know each other by, for [`Md::peer_memory`](super::Md::peer_memory); `None`: the peer has not
    /// heard of this endpoint yet, or is this worker, or its process cannot be told, or the endpoint is gone. By default there is none.
    ///
    /// An interface that has them says by [`Channel::close`] that an endpoint is given up, before it is: in [`Iface::disconnect`] and
    /// when it is dropped.
    fn channel(&mut self, ep: EpId) -> Option<Channel> {
        let _ = ep;
        None
    }

    /// Looks for what has happened, and tells `sink`; does a bounded part of it at a time. Answers how much was told.
    #[doc(alias = "uct_iface_progress")]
    fn progress(&mut self, sink: &mut dyn Sink) -> usize;

    /// A descriptor that is readable when, after [`Iface::arm`], there is something to do. `None` without [`IfaceFlags::EVENT_FD`].
    #[doc(alias = "uct_iface_event_fd_get")]
    fn event_fd(&self) -> Option<BorrowedFd<'_>>;

    /// Has the descriptor tell of the next event: a message, a peer that comes or goes, or room for what was refused as
    /// [`SendError::Full`]. `false`: there is something to do already, so do not wait. [`Iface::progress`] ends it.
    #[doc(alias = "uct_iface_event_arm")]
    fn arm(&mut self) -> bool;
}
