//! One error for `?`.

use std::io;

use ucs::Status;
use uct::export::NotRevoked;
use uct::memory::{AccessError, StaleReason};

use crate::{ImportError, InitError, MapError, MdResults, PackError, TransferError};

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
        }
    }

    /// What each transport said, where transports were asked.
    #[must_use]
    pub fn md_results(&self) -> Option<&MdResults> {
        match self {
            Self::Init(InitError::NoTransports { reasons: results })
            | Self::Map(MapError::NotExportable { results })
            | Self::Pack(PackError::NotExportable { results }) => Some(results),
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
        }
    }
}
