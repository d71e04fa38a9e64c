//! Why a call to another machine failed.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use rustix::io::Errno;
use ucs::Status;
use ucs::mem::MemError;

use super::wire::DecodeError;
use crate::service::ServiceError;

/// A context cannot listen for peers of other machines.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("peers of other machines cannot be listened for at {address}: {errno}")]
pub struct NetListenError {
    pub(super) address: IpAddr,
    pub(super) errno: Errno,
}

impl NetListenError {
    /// The one-byte status.
    pub fn status(&self) -> Status {
        match self.errno {
            Errno::ADDRNOTAVAIL | Errno::AFNOSUPPORT | Errno::INVAL => Status::InvalidAddr,
            Errno::ACCESS | Errno::PERM => Status::AccessDenied,
            Errno::ADDRINUSE | Errno::NOBUFS | Errno::NOMEM => Status::NoResource,
            _ => Status::IoError,
        }
    }

    /// What to do about it.
    #[must_use]
    pub fn remedy(&self) -> &'static str {
        match self.errno {
            Errno::ADDRNOTAVAIL | Errno::INVAL => {
                "name an address that an interface of this machine has: `ip addr` shows them"
            }
            Errno::AFNOSUPPORT => "name an address of a family that this kernel has",
            Errno::ACCESS | Errno::PERM => {
                "allow bind(2) and listen(2) in the security policy of this process"
            }
            Errno::ADDRINUSE => "free ports, or widen net.ipv4.ip_local_port_range",
            _ => "name another address",
        }
    }
}

/// A call to another machine failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NetError {
    /// No address was given.
    #[error("no address of the peer is known")]
    NoAddress,
    /// The subject or the request is too long.
    #[error("the {what} of a call has {found} bytes, of at most {most}")]
    TooLong {
        /// Which.
        what: &'static str,
        /// Bytes it has.
        found: usize,
        /// Most bytes.
        most: usize,
    },
    /// No connection.
    #[error("{address} cannot be connected to: {errno}")]
    Connect {
        /// Where.
        address: SocketAddr,
        /// Why.
        errno: Errno,
    },
    /// Another context listens there.
    #[error("at {address} there is another context")]
    OtherContext {
        /// Where.
        address: SocketAddr,
    },
    /// No answer in time. Whether the peer has done what was asked is not known.
    #[error("no answer from {address} within {waited:?}")]
    TimedOut {
        /// Where.
        address: SocketAddr,
        /// How long was waited.
        waited: Duration,
    },
    /// The connection had ended before the call was sent: the peer has not done what was asked, and never will.
    #[error("{address} has closed the connection")]
    Closed {
        /// Where.
        address: SocketAddr,
    },
    /// The connection has ended after the call was sent. Whether the peer has done what was asked is not known.
    #[error("{address} has closed the connection in place of an answer")]
    Unanswered {
        /// Where.
        address: SocketAddr,
    },
    /// What came is no answer of this protocol.
    #[error("the answer of {address}: {error}")]
    BadReply {
        /// Where.
        address: SocketAddr,
        /// What is wrong with it.
        error: DecodeError,
    },
    /// The answer does not prove that its sender has the token.
    #[error("the answer of {address} does not prove that it is the peer's")]
    Unproven {
        /// Where.
        address: SocketAddr,
    },
    /// It has ended: the peer, which has proven to be it, says so.
    #[error("{address} says that it is revoked or dropped")]
    Stale {
        /// Where.
        address: SocketAddr,
    },
    /// Whoever answers there says that it knows no such thing, and has nothing to prove that with.
    #[error(
        "{address} knows nothing of it, which proves nothing: it may have ended, or somebody else answers"
    )]
    Unknown {
        /// Where.
        address: SocketAddr,
    },
    /// Whoever answers there says that the token is wrong. That cannot be proven: it is no more than the likely reason.
    #[error("{address} refuses: the token is wrong")]
    Denied {
        /// Where.
        address: SocketAddr,
    },
    /// The peer, which has proven to be it, refuses the request.
    #[error("{address} answers: {status}")]
    Refused {
        /// Where.
        address: SocketAddr,
        /// What it says.
        status: Status,
    },
    /// A limit of this process or system.
    #[error(transparent)]
    Mem(#[from] MemError),
    /// This context's service.
    #[error(transparent)]
    Service(#[from] ServiceError),
}

impl NetError {
    /// The one-byte status.
    pub fn status(&self) -> Status {
        match self {
            Self::TooLong { .. } => Status::InvalidParam,
            Self::Stale { .. } => Status::Stale,
            Self::Denied { .. } => Status::AccessDenied,
            Self::Refused { status, .. } => *status,
            Self::Mem(error) => error.status(),
            Self::Service(error) => error.status(),
            _ => Status::Unreachable,
        }
    }

    /// What to do about it.
    #[must_use]
    pub fn remedy(&self) -> &'static str {
        match self {
            Self::NoAddress => "have the peer listen at an address of a network that both sides are in",
            Self::TooLong { .. } => "ask for less at once",
            Self::Connect { .. } => "see that the peer runs, and that no firewall is between both sides",
            Self::OtherContext { .. } | Self::Stale { .. } | Self::Unknown { .. } => {
                "ask the owner for a new handle and import that"
            }
            Self::TimedOut { .. } => "see whether the peer is stopped, or raise UCX_IMPORT_TIMEOUT",
            Self::Closed { .. } | Self::Unanswered { .. } => {
                "see whether the peer is ending or has too many connections, and try again"
            }
            Self::BadReply { .. } => "see that both sides run compatible versions of rucx",
            Self::Unproven { .. } => "see who answers at that address: it is not who made the handle",
            Self::Denied { .. } => "pass on exactly the bytes that the owner gave: the token is part of them",
            Self::Refused { .. } => "see what the peer says",
            Self::Mem(error) => error.remedy(),
            Self::Service(error) => error.remedy(),
        }
    }
}
