//! What goes wrong with workers and endpoints.

use rustix::io::Errno;
use ucs::Status;
use ucs::mem::MemError;
use uct::api::{ComponentId, Gone, IfaceError};

use crate::MdResults;
use crate::wire::address::AddressError;

/// An endpoint is of no more use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum EpError {
    /// Its peer is gone.
    #[error(transparent)]
    Peer(#[from] Gone),
    /// It was closed by this side, or its worker was dropped.
    #[error("the endpoint was closed here, or its worker dropped")]
    Closed,
    /// It belongs to the parent process of a fork.
    #[error("this endpoint belongs to the parent process: a fork's child must make its own context")]
    Forked,
}

impl EpError {
    /// The one-byte status.
    pub fn status(&self) -> Status {
        match self {
            Self::Peer(Gone::Corrupt) => Status::IoError,
            Self::Peer(_) => Status::ConnectionReset,
            Self::Closed => Status::Canceled,
            Self::Forked => Status::Forked,
        }
    }

    /// What to do about it.
    #[must_use]
    pub fn remedy(&self) -> &'static str {
        match self {
            Self::Peer(Gone::Corrupt) => {
                "run the same version of rucx on both sides, and do not trust that peer"
            }
            Self::Peer(_) => "see whether the peer still runs, and connect again",
            Self::Closed => "keep the endpoint and its worker until its operations have ended",
            Self::Forked => "create a new Context in the child",
        }
    }
}

/// A worker could not be made, or asked for something its context was not made for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WorkerError {
    /// An interface of a transport could not be opened.
    #[error("{component}: {error}")]
    Iface {
        /// Which transport.
        component: ComponentId,
        /// Why.
        error: IfaceError,
    },
    /// No transport in use sends messages between workers.
    #[error("no transport in use connects workers: {results}")]
    NoTransports {
        /// What each of them says.
        results: MdResults,
    },
    /// The context was not made for that.
    #[error("the context was made without Features::{0}")]
    FeatureMissing(&'static str),
    /// A limit of this process or system.
    #[error(transparent)]
    Mem(#[from] MemError),
    /// The address would be longer than any can be.
    #[error("the worker's address would be too long")]
    AddressTooLong,
    /// Waiting for events failed.
    #[error("waiting for events: {0}")]
    Wait(Errno),
    /// A thread could not be started.
    #[error("the worker's thread could not be started: {0}")]
    Thread(String),
    /// A handler waits: nothing goes on meanwhile.
    #[error("a handler or callback must not wait")]
    InHandler,
    /// The context belongs to the parent process of a fork.
    #[error("this context belongs to the parent process: a fork's child must make its own")]
    Forked,
}

impl WorkerError {
    /// The one-byte status.
    pub fn status(&self) -> Status {
        match self {
            Self::Iface { error, .. } => error.status(),
            Self::NoTransports { .. } => Status::NoDevice,
            Self::FeatureMissing(_) => Status::InvalidParam,
            Self::Mem(error) => error.status(),
            Self::AddressTooLong => Status::ExceedsLimit,
            Self::Wait(_) => Status::IoError,
            Self::Thread(_) => Status::NoResource,
            Self::InHandler => Status::InvalidParam,
            Self::Forked => Status::Forked,
        }
    }

    /// What to do about it.
    #[must_use]
    pub fn remedy(&self) -> String {
        match self {
            Self::Iface { error, .. } => error.remedy().to_owned(),
            Self::NoTransports { .. } => "allow self or shm in UCX_TLS".to_owned(),
            Self::FeatureMissing(feature) => format!("make the context with features(Features::{feature})"),
            Self::Mem(error) => error.remedy().to_owned(),
            Self::AddressTooLong => "allow fewer transports in UCX_TLS".to_owned(),
            Self::Wait(_) => "see the error of the system".to_owned(),
            Self::Thread(_) => {
                "raise the limit of processes with `ulimit -u`, or the pids limit of the cgroup".to_owned()
            }
            Self::InHandler => "keep the request, and wait for it outside of the handler".to_owned(),
            Self::Forked => "create a new Context in the child".to_owned(),
        }
    }
}

/// A worker could not be connected with another.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The bytes are no address of a worker.
    #[error("not a worker's address: {0}")]
    InvalidAddress(#[from] AddressError),
    /// The peer says that it has no such worker.
    #[error("access denied: {results}")]
    AccessDenied {
        /// What each transport said.
        results: MdResults,
    },
    /// The worker was dropped, or its process is gone.
    #[error("stale: {results}")]
    Stale {
        /// What each transport said.
        results: MdResults,
    },
    /// No transport reaches the worker.
    #[error("unreachable: {results}")]
    Unreachable {
        /// What each transport said.
        results: MdResults,
        /// What to do about it, as the transport that came nearest says.
        advice: &'static str,
    },
    /// The peer lets no more connections come, or no more of this process: `UCX_MAX_CONNECTIONS` is its bound.
    #[error("too many connections: {results}")]
    TooMany {
        /// What each transport said.
        results: MdResults,
        /// What to do about it.
        advice: &'static str,
    },
    /// A limit of this process or system.
    #[error("{error} ({results})")]
    Mem {
        /// Which, and how far.
        error: MemError,
        /// What each transport said.
        results: MdResults,
    },
    /// The context belongs to the parent process of a fork.
    #[error("this context belongs to the parent process: a fork's child must make its own")]
    Forked,
}

impl ConnectError {
    /// The one-byte status.
    pub fn status(&self) -> Status {
        match self {
            Self::InvalidAddress(_) => Status::InvalidAddr,
            Self::AccessDenied { .. } => Status::AccessDenied,
            Self::Stale { .. } => Status::Stale,
            Self::Unreachable { .. } => Status::Unreachable,
            Self::TooMany { .. } => Status::ExceedsLimit,
            Self::Mem { error, .. } => error.status(),
            Self::Forked => Status::Forked,
        }
    }

    /// What to do about it.
    #[must_use]
    pub fn remedy(&self) -> &'static str {
        match self {
            Self::InvalidAddress(_) | Self::AccessDenied { .. } => {
                "pass on exactly the bytes of Worker::address"
            }
            Self::Stale { .. } => "ask the peer for its worker's address again",
            Self::Unreachable { advice, .. } | Self::TooMany { advice, .. } => advice,
            Self::Mem { error, .. } => error.remedy(),
            Self::Forked => "create a new Context in the child",
        }
    }

    /// What each transport said, where transports were asked.
    #[must_use]
    pub fn md_results(&self) -> Option<&MdResults> {
        match self {
            Self::AccessDenied { results }
            | Self::Stale { results }
            | Self::Unreachable { results, .. }
            | Self::TooMany { results, .. }
            | Self::Mem { results, .. } => Some(results),
            Self::InvalidAddress(_) | Self::Forked => None,
        }
    }
}
