//! One error for `?`.

use std::io;

use ucs::Status;
use uct::export::NotRevoked;
use uct::memory::{AccessError, StaleReason};

use crate::{
    ConnectError, EpError, ImportError, InitError, MapError, MdResults, PackError, RkeyError, ThreadEnded,
    TransferError, WorkerError,
};

/// Any error of this crate: for programs that pass errors on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A context could not be made.
    #[error(transparent)]
    Init(#[from] InitError),
    /// Memory could not be mapped.
    #[error(transparent)]
    Map(#[from] MapError),
    /// A handle could not be packed.
    #[error(transparent)]
    Pack(#[from] PackError),
    /// A handle could not be imported.
    #[error(transparent)]
    Import(#[from] ImportError),
    /// Memory could not be accessed.
    #[error(transparent)]
    Access(#[from] AccessError),
    /// An operation has failed.
    #[error(transparent)]
    Transfer(#[from] TransferError),
    /// Imported memory is no longer there.
    #[error("stale: {0}")]
    Stale(#[from] StaleReason),
    /// A handle could not be read from a stream, or another failure of the program's own.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// An export could not be drained in time.
    #[error(transparent)]
    NotRevoked(#[from] NotRevoked),
    /// A worker could not be made, or not do what it was asked for.
    #[error(transparent)]
    Worker(#[from] WorkerError),
    /// Workers could not be connected.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// A key could not be unpacked.
    #[error(transparent)]
    Rkey(#[from] RkeyError),
    /// An endpoint is of no more use.
    #[error(transparent)]
    Endpoint(#[from] EpError),
    /// A worker's thread has ended.
    #[error(transparent)]
    Thread(#[from] ThreadEnded),
    /// An operation has not ended in time.
    #[error("the operation has not ended in time")]
    TimedOut,
}

impl Error {
    /// The one-byte status.
    pub fn status(&self) -> Status {
        match self {
            Self::Init(error) => error.status(),
            Self::Map(error) => error.status(),
            Self::Pack(error) => error.status(),
            Self::Import(error) => error.status(),
            Self::Access(error) => error.status(),
            Self::Transfer(error) => error.status(),
            Self::Stale(_) => Status::Stale,
            Self::Io(_) => Status::IoError,
            Self::NotRevoked(error) => error.status(),
            Self::Worker(error) => error.status(),
            Self::Connect(error) => error.status(),
            Self::Rkey(error) => error.status(),
            Self::Endpoint(error) => error.status(),
            Self::Thread(error) => error.status(),
            Self::TimedOut => Status::TimedOut,
        }
    }

    /// What each transport said, where transports were asked.
    #[must_use]
    pub fn md_results(&self) -> Option<&MdResults> {
        match self {
            Self::Init(InitError::NoTransports { reasons: results })
            | Self::Map(MapError::NotExportable { results })
            | Self::Pack(PackError::NotExportable { results })
            | Self::Worker(WorkerError::NoTransports { results }) => Some(results),
            Self::Connect(error) => error.md_results(),
            Self::Rkey(RkeyError::Import(error)) => error.md_results(),
            Self::Import(error) => error.md_results(),
            _ => None,
        }
    }

    /// What to do about it.
    #[must_use]
    pub fn remedy(&self) -> String {
        match self {
            Self::Init(error) => error.remedy(),
            Self::Map(error) => error.remedy(),
            Self::Pack(error) => error.remedy(),
            Self::Import(error) => error.remedy(),
            Self::Access(error) => error.remedy().to_owned(),
            Self::Transfer(error) => error.remedy().to_owned(),
            Self::Stale(_) => "ask the owner for a new handle and import that".to_owned(),
            Self::Io(_) => "see the error of the system".to_owned(),
            Self::NotRevoked(error) => error.remedy().to_owned(),
            Self::Worker(error) => error.remedy(),
            Self::Connect(error) => error.remedy().to_owned(),
            Self::Rkey(error) => error.remedy(),
            Self::Endpoint(error) => error.remedy().to_owned(),
            Self::Thread(error) => error.remedy().to_owned(),
            Self::TimedOut => "wait longer, or see whether the peer makes progress".to_owned(),
        }
    }
}
