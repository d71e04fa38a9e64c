//! Why an access to memory did not happen, and what to do about it.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use rustix::io::Errno;
use ucs::Status;
use ucs::mem::shared::BoundsError;

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
        waited: Duration,
    },
    /// This memory cannot do that.
    #[error("unsupported: {why}")]
    Unsupported {
        /// What, and what can.
        why: &'static str,
    },
    /// The operand, memory that took part in it on this side, is not there, or not for that.
    #[error("the operand could not be used after {done} bytes: {why}")]
    Operand {
        /// Bytes that were moved before.
        done: u64,
        /// What is wrong with it.
        why: OperandReason,
    },
    /// The device that moves the bytes has failed.
    #[error("the device has failed after {done} bytes: {why}")]
    Device {
        /// Bytes that were moved before.
        done: u64,
        /// How.
        why: DeviceReason,
    },
    /// The object belongs to the parent process of a fork.
    #[error("this object belongs to the parent process: a fork's child must make its own context")]
    Forked,
}

/// How a device has failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceReason {
    /// A request was not carried out.
    #[error("{words}")]
    Status {
        /// The device's status in words.
        words: &'static str,
    },
    /// The far device does not do what it is asked for, whatever memory it is of.
    #[error("{words}")]
    Refused {
        /// The device's status in words.
        words: &'static str,
    },
    /// A call of its library failed.
    #[error("{call}: {errno}")]
    Call {
        /// Which.
        call: &'static str,
        /// What it says.
        errno: Errno,
    },
    /// Nothing came of a request.
    #[error("nothing has completed for {waited:?}")]
    Late {
        /// How long was waited.
        waited: Duration,
    },
    /// Other accesses to the same peer took all the time.
    #[error("other accesses to the same peer took {waited:?}")]
    Taken {
        /// How long was waited.
        waited: Duration,
    },
    /// It takes no memory for the bytes to go through.
    #[error("it takes no memory for the bytes to go through: {what}")]
    NoMemory {
        /// Why not.
        what: Arc<str>,
    },
    /// The peer does not connect again.
    #[error("the peer does not connect again: {what}")]
    NotConnected {
        /// Why not.
        what: Arc<str>,
    },
    /// Its queue has ended.
    #[error("a request before has failed")]
    Over,
    /// Something has happened to the device, and is likely to be why.
    #[error("{why}; {event}")]
    After {
        /// How the request failed.
        why: Box<DeviceReason>,
        /// What has happened.
        event: DeviceEvent,
    },
}

/// What has happened to a device that requests of it failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DeviceEvent {
    /// Its port is down.
    PortDown,
    /// Its port was down during the access, and is up again.
    PortWasDown,
    /// It was taken away, or has failed as a whole.
    Fatal,
}

impl DeviceEvent {
    /// In words, to follow those of an error.
    #[must_use]
    pub fn words(self) -> &'static str {
        match self {
            Self::PortDown => "the device's port has gone down",
            Self::PortWasDown => "the device's port was down meanwhile, and is up again",
            Self::Fatal => "the device was taken away, or has failed as a whole",
        }
    }

    /// What to do about it.
    #[must_use]
    pub fn remedy(self) -> &'static str {
        match self {
            Self::PortDown => {
                "set its network interface up, or plug the cable in (`rdma link`), then try again: the connection is made anew"
            }
            Self::PortWasDown => "try again: the connection is made anew",
            Self::Fatal => {
                "see what the kernel says (`dmesg`); once the device is there again, make a new context, and export and import anew"
            }
        }
    }
}

impl fmt::Display for DeviceEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.words())
    }
}

impl DeviceReason {
    /// What to do about it.
    #[must_use]
    pub fn remedy(&self) -> &'static str {
        match self {
            Self::After { event, .. } => event.remedy(),
            Self::Taken { .. } => "use fewer threads at once, or move less by each access",
            Self::NoMemory { .. } => "raise `ulimit -l` (LimitMEMLOCK= of a service)",
            Self::NotConnected { .. } => "see whether the exporter runs, and import the handle again",
            Self::Status { .. } | Self::Late { .. } => {
                "see whether the port is up and the peer's machine is there (`rdma link`), then try again: the connection is \
                 made anew"
            }
            Self::Call { .. } | Self::Refused { .. } | Self::Over => {
                "try again: the connection is made anew; see what the kernel says (`dmesg`)"
            }
        }
    }
}

/// What is wrong with memory that an operation was given: of this process, or imported by it.
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
    /// It is imported, and is no longer there.
    #[error("it is imported, and {0}")]
    Stale(StaleReason),
    /// It is imported, and may not be used so.
    #[error("it is imported, and {0}")]
    AccessDenied(DeniedReason),
    /// It is imported, and all slots that announce an access in flight to it stayed taken.
    #[error("it is imported, and no in-flight slot came free within {waited:?}")]
    Busy {
        /// How long was waited.
        waited: Duration,
    },
    /// It is imported, and the device that reaches it has failed.
    #[error("it is imported, and the device that reaches it has failed")]
    Device,
    /// It is imported, and cannot do that.
    #[error("it is imported, and unsupported: {why}")]
    Unsupported {
        /// What, and what can.
        why: &'static str,
    },
}

impl OperandReason {
    /// The one-byte status.
    pub fn status(self) -> Status {
        match self {
            Self::Stale(_) => Status::Stale,
            Self::AccessDenied(_) => Status::AccessDenied,
            Self::Busy { .. } => Status::Busy,
            Self::Device => Status::IoError,
            Self::Unsupported { .. } => Status::Unsupported,
            _ => Status::InvalidAddr,
        }
    }

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
            Self::Stale(_) => {
                "ask the owner of the operand's memory for a new handle, import that, and try again"
            }
            Self::AccessDenied(why) => why.remedy(),
            Self::Busy { .. } => "use fewer threads at once, or raise UCX_IMPORT_TIMEOUT",
            Self::Device => "see the log, and try again: the connection is made anew",
            Self::Unsupported { .. } => {
                "use memory of `MemMap::allocate`, or a transport that can: `rucx info` shows them"
            }
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
    /// The connection to the exporter's process on another machine has ended: that process has, or its machine, or there was no way to it for so
    /// long that the kernel has given it up.
    #[error("the exporting process is gone, or there was no way to it for too long")]
    Disconnected,
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
            Self::Operand { why, .. } => why.status(),
            Self::Device { .. } => Status::IoError,
            Self::Forked => Status::Forked,
        }
    }

    /// That of memory of which nothing was moved, as it is stale.
    #[must_use]
    pub(crate) fn stale(why: StaleReason) -> Self {
        match why {
            StaleReason::Forked => Self::Forked,
            why => Self::Stale { done: 0, why },
        }
    }

    /// Bytes that were moved before.
    #[must_use]
    pub fn done(&self) -> u64 {
        match self {
            Self::Stale { done, .. }
            | Self::AccessDenied { done, .. }
            | Self::Operand { done, .. }
            | Self::Device { done, .. } => *done,
            _ => 0,
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
            Self::Unsupported { .. } => {
                "use memory of `MemMap::allocate`, or a transport that can: `rucx info` shows them"
            }
            Self::Operand { why, .. } => why.remedy(),
            Self::Device { why, .. } => why.remedy(),
            Self::Forked => "create a new Context in the child, or use memory before the fork",
        }
    }
}
