//! What can go wrong when memory is exported, shown a claim to, or revoked.

use std::fmt;
use std::time::Duration;

use ucs::Status;
use ucs::mem::MemError;

/// Exporting failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ExportError {
    /// All lines of the table are taken.
    #[error("{limit} exports are alive in this context, and there is room for no more")]
    TableFull {
        /// How many there can be.
        limit: usize,
    },
    /// The table itself could not be made.
    #[error("the export table: {0}")]
    Mem(#[from] MemError),
    /// The kernel gave no random bytes for tokens.
    #[error("no random bytes: {0}")]
    Random(rustix::io::Errno),
    /// The context belongs to the parent process of a fork.
    #[error("this context belongs to the parent process: a fork's child must make its own")]
    Forked,
}

impl ExportError {
    /// The one-byte status.
    pub fn status(&self) -> Status {
        match self {
            Self::TableFull { .. } => Status::ExceedsLimit,
            Self::Mem(error) => error.status(),
            Self::Random(_) => Status::IoError,
            Self::Forked => Status::Forked,
        }
    }

    /// What to do about it.
    #[must_use]
    pub fn remedy(&self) -> &'static str {
        match self {
            Self::TableFull { .. } => {
                "revoke exports that are no longer used, or export fewer, larger regions"
            }
            Self::Mem(error) => error.remedy(),
            Self::Random(_) => "allow getrandom(2)",
            Self::Forked => "create a new Context in the child",
        }
    }
}

/// An export could not be revoked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NotRevoked {
    /// New accesses are refused, but an access that had begun has not ended in time.
    ///
    /// The memory is kept, and used for nothing else, until that access ends or its process does.
    #[error("not revoked within {waited:?}: {} still in flight", Holders(.importers))]
    InFlight {
        /// Pids of the importers inside, as seen from here; 0 for one that is not visible from here.
        importers: Vec<u32>,
        /// How long was waited.
        waited: Duration,
    },
    /// New accesses are refused, but a device did not end a registration of the memory, and may still reach it.
    ///
    /// The memory is kept, and used for nothing else, until it has.
    #[error("not revoked: the registration for process {importer} was not ended: {why}")]
    Registered {
        /// The importer's process, as seen from here; 0 for one that is not visible from here.
        importer: u32,
        /// What the device or the kernel says.
        why: String,
    },
    /// New accesses are refused, but a registration of the memory was still being made for an importer, and others have ended.
    #[error("not revoked: a registration for an importer was still being made after {waited:?}")]
    Making {
        /// How long was waited.
        waited: Duration,
    },
    /// The export is the parent process's of a fork: it lives on.
    #[error("this export belongs to the parent process: only that can revoke it")]
    Forked,
}

impl NotRevoked {
    /// Pids of the importers inside, as seen from here; 0 for one that is not visible from here.
    #[must_use]
    pub fn importers(&self) -> &[u32] {
        match self {
            Self::InFlight { importers, .. } => importers,
            Self::Registered { importer, .. } => std::slice::from_ref(importer),
            Self::Making { .. } | Self::Forked => &[],
        }
    }

    /// The one-byte status.
    pub fn status(&self) -> Status {
        match self {
            Self::InFlight { .. } | Self::Registered { .. } | Self::Making { .. } => Status::NotRevoked,
            Self::Forked => Status::Forked,
        }
    }

    /// What to do about it.
    #[must_use]
    pub fn remedy(&self) -> &'static str {
        match self {
            Self::InFlight { .. } => {
                "the memory stays untouched until the importer named continues or ends: then call revoke again"
            }
            Self::Registered { .. } => "end the importer named: then call revoke again",
            Self::Making { .. } => "call revoke again: what is being made ends by itself then",
            Self::Forked => "revoke it in the process that packed it",
        }
    }
}

struct Holders<'a>(&'a [u32]);

impl fmt::Display for Holders<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, pid) in self.0.iter().enumerate() {
            let comma = if index == 0 { "" } else { ", " };
            write!(f, "{comma}an access of process {pid}")?;
        }
        f.write_str(if self.0.len() == 1 { " is" } else { " are" })
    }
}

/// A claim is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// No such export lives.
    #[error("the export was revoked or dropped")]
    Stale,
    /// The token is wrong.
    #[error("the token is wrong")]
    WrongToken,
    /// The token is right, and something else of the handle is not.
    #[error("the handle does not describe the export whose token it carries")]
    Mismatch,
}
