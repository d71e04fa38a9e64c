//! Errors of memory domains.

use rustix::io::Errno;
use ucs::Status;
use ucs::config::UnknownNames;
use ucs::mem::{ForeignFdError, MemError};

use crate::export::ExportError;
use crate::service::{ConnectError, NetError, ServiceError};
use crate::wire::NoRoom;

/// A memory domain could not be opened.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// Something it needs is missing.
    #[error("{what} is missing")]
    Missing {
        /// What.
        what: &'static str,
        /// What to do about it.
        remedy: &'static str,
    },
    /// A device's function has failed.
    #[error("{what}: {errno}")]
    Device {
        /// The function.
        what: &'static str,
        /// Its error.
        errno: Errno,
    },
    /// It is there, and cannot be used, or not as the user has chosen.
    #[error("{why}")]
    Unusable {
        /// Why not.
        why: String,
        /// What to do about it.
        remedy: String,
    },
    /// A list names what does not exist.
    #[error("{variable}: {error}")]
    UnknownNames {
        /// The variable.
        variable: &'static str,
        /// What is unknown.
        error: UnknownNames,
    },
    /// A variable asks for what is not to be had here.
    #[error("{variable}=y: {why}")]
    NotToBeHad {
        /// The variable.
        variable: &'static str,
        /// Why not.
        why: String,
        /// What to do about it.
        remedy: &'static str,
    },
}

impl OpenError {
    /// The one-byte status.
    pub fn status(&self) -> Status {
        match self {
            Self::Missing { .. } | Self::Unusable { .. } => Status::NoDevice,
            Self::Device { .. } => Status::IoError,
            Self::UnknownNames { error, .. } => error.status(),
            Self::NotToBeHad { .. } => Status::Unsupported,
        }
    }

    /// What to do about it.
    #[must_use]
    pub fn remedy(&self) -> String {
        match self {
            Self::Missing { remedy, .. } | Self::NotToBeHad { remedy, .. } => (*remedy).to_owned(),
            Self::Unusable { remedy, .. } => remedy.clone(),
            Self::Device { errno: Errno::ACCESS | Errno::PERM, .. } => {
                "let this user open the nodes in /dev/infiniband".to_owned()
            }
            Self::Device { .. } => "see the kernel's log, and `ibv_devinfo`".to_owned(),
            Self::UnknownNames { error, .. } => error.remedy(),
        }
    }
}

/// An interface could not be opened.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum IfaceError {
    /// A limit of this process or system.
    #[error(transparent)]
    Mem(#[from] MemError),
    /// The context's service could not be started.
    #[error(transparent)]
    Service(#[from] ServiceError),
    /// Something it needs is missing: a worker does without this interface.
    #[error("{what} is missing")]
    Missing {
        /// What.
        what: &'static str,
        /// What to do about it.
        remedy: &'static str,
    },
    /// A device's function has failed.
    #[error("{what}: {errno}")]
    Device {
        /// The function.
        what: &'static str,
        /// Its error.
        errno: Errno,
    },
}

impl IfaceError {
    /// The one-byte status.
    pub fn status(&self) -> Status {
        match self {
            Self::Missing { .. } => Status::NoDevice,
            Self::Device { .. } => Status::IoError,
            Self::Mem(error) => error.status(),
            Self::Service(error) => error.status(),
        }
    }

    /// What to do about it.
    #[must_use]
    pub fn remedy(&self) -> &'static str {
        match self {
            Self::Missing { remedy, .. } => remedy,
            Self::Device { .. } => "see the kernel's log, and `ibv_devinfo`",
            Self::Mem(error) => error.remedy(),
            Self::Service(error) => error.remedy(),
        }
    }
}

/// Memory could not be allocated.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AllocError {
    /// This memory domain does not allocate.
    #[error("this memory domain does not allocate")]
    Unsupported,
    /// There was none.
    #[error(transparent)]
    Mem(#[from] MemError),
}

/// Memory could not be registered.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RegError {
    /// The memory domain cannot reach memory of this kind.
    #[error("{kind}: {why}")]
    Unsupported {
        /// The kind of memory.
        kind: &'static str,
        /// Why not, and what can.
        why: &'static str,
    },
    /// Pages are not mapped, or not for that, or of a kind that cannot be pinned.
    #[error("{why}")]
    Pages {
        /// What of it, as the memory domain says.
        why: String,
    },
    /// A limit is reached. A context that registers operands ends those registrations that are not in use, and tries again.
    #[error("{why}")]
    Limit {
        /// Which, and how far, as the memory domain says.
        why: String,
        /// What to do about it.
        remedy: &'static str,
    },
    /// The device or the kernel refuses.
    #[error("{why}")]
    Refused {
        /// What it says.
        why: String,
    },
}

impl RegError {
    /// The one-byte status.
    pub fn status(&self) -> Status {
        match self {
            Self::Unsupported { .. } => Status::Unsupported,
            Self::Pages { .. } => Status::InvalidAddr,
            Self::Limit { .. } => Status::NoResource,
            Self::Refused { .. } => Status::IoError,
        }
    }

    /// What to do about it.
    #[must_use]
    pub fn remedy(&self) -> &'static str {
        match self {
            Self::Unsupported { .. } => "use memory of `MemMap::allocate`",
            Self::Pages { .. } => {
                "use memory that is mapped, may be written, and is no file's: a vector, say"
            }
            Self::Limit { remedy, .. } => remedy,
            Self::Refused { .. } => "see what the device or the kernel says",
        }
    }
}

/// A key could not be packed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PackError {
    /// The memory domain has no key of that kind.
    #[error("{0}")]
    Unsupported(&'static str),
    /// The buffer has another size than [`super::Memh::packed_size`] says.
    #[error("a key of {needed} bytes was to be packed into {found}")]
    WrongSize {
        /// Bytes needed.
        needed: usize,
        /// Bytes given.
        found: usize,
    },
    /// The key holds something that its format has no room for.
    #[error(transparent)]
    NoRoom(#[from] NoRoom),
    /// The memory could not be exported.
    #[error(transparent)]
    Export(#[from] ExportError),
    /// The service could not be started.
    #[error(transparent)]
    Service(#[from] ServiceError),
    /// A system call failed.
    #[error(transparent)]
    Mem(#[from] MemError),
}

impl PackError {
    /// Checks that a key of `needed` bytes is given as many.
    ///
    /// # Errors
    /// [`PackError::WrongSize`].
    pub fn check_size(needed: usize, out: &[u8]) -> Result<(), Self> {
        if out.len() == needed { Ok(()) } else { Err(Self::WrongSize { needed, found: out.len() }) }
    }

    /// The one-byte status.
    pub fn status(&self) -> Status {
        match self {
            Self::Unsupported(_) => Status::Unsupported,
            Self::WrongSize { .. } | Self::NoRoom(_) => Status::BufferTooSmall,
            Self::Export(error) => error.status(),
            Self::Service(error) => error.status(),
            Self::Mem(error) => error.status(),
        }
    }
}

/// Exported memory could not be attached.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AttachError {
    /// The key's bytes are none of this memory domain.
    #[error("the key is malformed: {0}")]
    Malformed(&'static str),
    /// The token is wrong.
    #[error("the exporter refuses: the token is wrong")]
    WrongToken,
    /// The token is right, and something else of the handle is not.
    #[error("the handle does not describe the export whose token it carries")]
    Mismatch,
    /// The export was revoked or dropped, or its process is gone. Proven.
    #[error("stale: {0}")]
    Stale(&'static str),
    /// The exporter cannot be reached from here, or does not answer.
    #[error("{reason}")]
    Unreachable {
        /// What was tried, and what came of it.
        reason: String,
        /// What to do about it.
        remedy: &'static str,
    },
    /// It is where this transport leads nowhere: another one may.
    #[error("{reason}")]
    Elsewhere {
        /// Where it is.
        reason: &'static str,
        /// What to do about it.
        remedy: &'static str,
    },
    /// The worker has as many connections as it lets come, or as it lets this process have.
    #[error("the peer has as many connections as it lets come, or as one process may have of them")]
    TooMany,
    /// The exporter closed the connection, twice.
    #[error("the exporter closed the connection")]
    Closed,
    /// What the exporter passed is not memory that can be mapped safely.
    #[error("the exporter passed unsafe memory: {0}")]
    UnsafeMemory(ForeignFdError),
    /// A limit of this process or system.
    #[error(transparent)]
    Mem(#[from] MemError),
    /// This context's service thread could not be started.
    #[error(transparent)]
    Service(ServiceError),
}

impl From<ServiceError> for AttachError {
    fn from(error: ServiceError) -> Self {
        match error {
            ServiceError::Mem(error) => Self::Mem(error),
            error => Self::Service(error),
        }
    }
}

impl AttachError {
    /// The one-byte status.
    pub fn status(&self) -> Status {
        match self {
            Self::Malformed(_) | Self::Mismatch => Status::InvalidHandle,
            Self::WrongToken => Status::AccessDenied,
            Self::Stale(_) => Status::Stale,
            Self::Unreachable { .. } | Self::Elsewhere { .. } | Self::Closed | Self::UnsafeMemory(_) => {
                Status::Unreachable
            }
            Self::TooMany => Status::ExceedsLimit,
            Self::Mem(error) => error.status(),
            Self::Service(error) => error.status(),
        }
    }

    /// What to do about it.
    #[must_use]
    pub fn remedy(&self) -> &'static str {
        match self {
            Self::Malformed(_) | Self::Mismatch => "pass on exactly the bytes that memh_pack gave",
            Self::WrongToken => "pass on exactly the bytes that memh_pack gave: the token is part of them",
            Self::Stale(_) => "ask the owner for a new handle and import that",
            Self::Unreachable { remedy, .. } | Self::Elsewhere { remedy, .. } => remedy,
            Self::TooMany => {
                "close endpoints to that worker that are no longer used, or raise UCX_MAX_CONNECTIONS and `ulimit -n` where it runs"
            }
            Self::Closed => "see whether the exporter is ending, and import again",
            Self::UnsafeMemory(_) => "do not trust that exporter",
            Self::Mem(error) => error.remedy(),
            Self::Service(error) => error.remedy(),
        }
    }

    /// Which of several failures says most, when each transport has one: the lowest. A denied token before bytes that are forged, then
    /// a limit here, what is stale, a limit there, what does not answer, and what this transport does not lead to.
    #[must_use]
    pub fn rank(&self) -> u8 {
        match self {
            Self::WrongToken => 0,
            Self::Malformed(_) | Self::Mismatch => 1,
            Self::Mem(_) | Self::Service(_) => 2,
            Self::Stale(_) => 3,
            Self::TooMany => 4,
            Self::Elsewhere { .. } => 6,
            _ => 5,
        }
    }

    /// What a refused claim means for an attachment.
    #[must_use]
    pub fn of_refusal(refusal: crate::export::Refusal) -> Self {
        use crate::export::Refusal;
        match refusal {
            Refusal::Stale => Self::Stale("the export was revoked or dropped"),
            Refusal::WrongToken => Self::WrongToken,
            Refusal::Mismatch => Self::Mismatch,
        }
    }

    /// What a failed call to another machine means for an attachment.
    #[must_use]
    pub fn of_net(error: NetError) -> Self {
        match error {
            NetError::Stale { .. } => Self::Stale("the exporter says that it is revoked or dropped"),
            NetError::Denied { .. } => Self::WrongToken,
            NetError::Mem(error) => Self::Mem(error),
            NetError::Service(error) => Self::from(error),
            error => Self::Unreachable { remedy: error.remedy(), reason: error.to_string() },
        }
    }

    /// What a failed conversation on the service socket means for an attachment.
    #[must_use]
    pub fn of_service(error: ConnectError) -> Self {
        let unreachable =
            |error: ConnectError, remedy| Self::Unreachable { reason: error.to_string(), remedy };
        match error {
            ConnectError::Denied(refusal) => Self::of_refusal(refusal),
            ConnectError::Mem(error) => Self::Mem(error),
            ConnectError::TimedOut { .. } => {
                unreachable(error, "see whether the exporter is stopped, or raise UCX_IMPORT_TIMEOUT")
            }
            ConnectError::Closed => Self::Closed,
            ConnectError::TooMany => Self::TooMany,
            ConnectError::NotPlaced => unreachable(
                error,
                "set UCX_VERBS_SHARE=y on both sides, which then trust each other fully, and run them as one user",
            ),
            ConnectError::NoResource => unreachable(error, "try again when the exporter has fewer importers"),
            ConnectError::BadReply(_) | ConnectError::MissingDescriptors { .. } => {
                unreachable(error, "see that both sides run compatible versions of rucx")
            }
            ConnectError::Sys { call: "connect", errno: Errno::ACCESS } => unreachable(
                error,
                "let this user enter the directory that UCX_SERVICE_DIR names, and write to the socket in it",
            ),
            ConnectError::Sys { errno: Errno::PERM | Errno::NOSYS, .. } => unreachable(
                error,
                "allow unix sockets in the seccomp profile: socket, connect, sendto, recvmsg, poll",
            ),
            error => unreachable(error, "see that the exporter runs in the same network namespace"),
        }
    }
}
