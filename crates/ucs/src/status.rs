//! One-byte status of an operation, as UCX's `ucs_status_t`.

use std::fmt;

/// Outcome of an operation on the data path, one byte.
///
/// Names, meanings and numbers are those of UCX's `ucs_status_t` (`ucs/type/status.h` of the UCX API, where errors are the
/// same numbers negated), so that a C interface can return them unchanged. From 100 on the numbers are rucx's own.
/// Control paths return richer errors, each with a `status()`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
#[non_exhaustive]
#[doc(alias = "ucs_status_t")]
#[must_use = "a status may be an error"]
pub enum Status {
    /// The operation completed.
    Ok = 0,
    /// No message was available.
    NoMessage = 1,
    /// A bounded resource is used up; trying again later may succeed.
    NoResource = 2,
    /// Input or output failed.
    IoError = 3,
    /// Memory could not be had.
    NoMemory = 4,
    /// A parameter is invalid.
    InvalidParam = 5,
    /// The destination cannot be reached from here.
    Unreachable = 6,
    /// An address is invalid.
    InvalidAddr = 7,
    /// Not implemented.
    NotImplemented = 8,
    /// The message did not fit and was cut.
    MessageTruncated = 9,
    /// Nothing moved on.
    NoProgress = 10,
    /// The buffer given is too small.
    BufferTooSmall = 11,
    /// No such element.
    NoElem = 12,
    /// No such device.
    NoDevice = 14,
    /// In use.
    Busy = 15,
    /// Canceled by the user.
    Canceled = 16,
    /// A shared memory segment failed.
    ShmemSegment = 17,
    /// Exists already.
    AlreadyExists = 18,
    /// Outside the bounds.
    OutOfRange = 19,
    /// Took longer than the bound allows.
    TimedOut = 20,
    /// A limit is exceeded.
    ExceedsLimit = 21,
    /// Not supported by what is configured or present.
    Unsupported = 22,
    /// Rejected by the peer.
    Rejected = 23,
    /// Not connected.
    NotConnected = 24,
    /// The connection was reset.
    ConnectionReset = 25,
    /// The peer of an endpoint did not answer in time.
    EndpointTimeout = 80,
    /// Started and not yet complete (`UCS_INPROGRESS`, 1 in C, where errors are negative).
    InProgress = 100,
    /// What was named existed once and is gone: an export revoked or dropped, its process ended, its pages unmapped.
    Stale = 101,
    /// The token or the rights do not allow it.
    AccessDenied = 102,
    /// Bytes are not what they should be: see the richer error for the reason and the offset.
    InvalidHandle = 103,
    /// An export is dead for new accesses, but one that had begun has not ended in time.
    NotRevoked = 104,
    /// The object belongs to the parent process of a fork.
    Forked = 105,
}

impl Status {
    /// Whether this is [`Status::Ok`].
    #[must_use]
    pub const fn is_ok(self) -> bool {
        matches!(self, Self::Ok)
    }

    /// What it means, in words.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "success",
            Self::NoMessage => "no message available",
            Self::NoResource => "no resources available to start the operation",
            Self::IoError => "input/output error",
            Self::NoMemory => "out of memory",
            Self::InvalidParam => "invalid parameter",
            Self::Unreachable => "destination is unreachable",
            Self::InvalidAddr => "address not valid",
            Self::NotImplemented => "not implemented",
            Self::MessageTruncated => "message truncated",
            Self::NoProgress => "no progress",
            Self::BufferTooSmall => "provided buffer is too small",
            Self::NoElem => "no such element",
            Self::NoDevice => "no such device",
            Self::Busy => "device is busy",
            Self::Canceled => "request canceled",
            Self::ShmemSegment => "shared memory error",
            Self::AlreadyExists => "element already exists",
            Self::OutOfRange => "index out of range",
            Self::TimedOut => "operation timed out",
            Self::ExceedsLimit => "user-defined limit was reached",
            Self::Unsupported => "unsupported operation",
            Self::Rejected => "operation rejected by the peer",
            Self::NotConnected => "endpoint is not connected",
            Self::ConnectionReset => "connection reset by the peer",
            Self::EndpointTimeout => "endpoint timeout",
            Self::InProgress => "operation in progress",
            Self::Stale => "stale: no longer exported",
            Self::AccessDenied => "access denied",
            Self::InvalidHandle => "not a valid handle",
            Self::NotRevoked => "not revoked: an access is still in flight",
            Self::Forked => "belongs to the parent process of a fork",
        }
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_one_byte_and_so_is_its_option() {
        assert_eq!(size_of::<Status>(), 1);
        assert_eq!(size_of::<Option<Status>>(), 1);
        assert_eq!(size_of::<Result<(), Status>>(), 1);
    }

    #[test]
    fn numbers_are_those_of_ucs_status_t() {
        // ucs/type/status.h: UCS_ERR_UNREACHABLE -6, _TIMED_OUT -20, _CONNECTION_RESET -25, _ENDPOINT_TIMEOUT -80
        assert_eq!(Status::Unreachable as i8, 6);
        assert_eq!(Status::TimedOut as i8, 20);
        assert_eq!(Status::ConnectionReset as i8, 25);
        assert_eq!(Status::EndpointTimeout as i8, 80);
    }
}
