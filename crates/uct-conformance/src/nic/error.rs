//! Why there is no NIC, no registration, no bytes.

use std::io;

use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};
use rustix::thread::{CapabilitySet, capabilities};

/// There is no NIC on this machine, or not for this process.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no page-bound NIC: {why} — {remedy}")]
#[non_exhaustive]
pub struct Unavailable {
    /// What stands in the way.
    pub why: String,
    /// What would let it.
    pub remedy: String,
}

/// What [`io_uring_setup(2)`] and [`io_uring_register(2)`] answer where they cannot be used.
///
/// [`io_uring_setup(2)`]: https://man7.org/linux/man-pages/man2/io_uring_setup.2.html
/// [`io_uring_register(2)`]: https://man7.org/linux/man-pages/man2/io_uring_register.2.html
pub(super) fn unavailable(call: &str, error: &io::Error) -> Unavailable {
    let disabled = std::fs::read_to_string("/proc/sys/kernel/io_uring_disabled").unwrap_or_default();
    explain(call, error, disabled.trim())
}

fn explain(call: &str, error: &io::Error, disabled: &str) -> Unavailable {
    let (why, remedy) = match (Errno::from_io_error(error), disabled) {
        (Some(Errno::PERM), "2") => (
            "the system has io_uring switched off (kernel.io_uring_disabled is 2)".to_owned(),
            "sysctl kernel.io_uring_disabled=0",
        ),
        (Some(Errno::PERM), "1") => (
            "the system keeps io_uring to privileged processes (kernel.io_uring_disabled is 1)".to_owned(),
            "sysctl kernel.io_uring_disabled=0, or add the user to the group kernel.io_uring_group",
        ),
        (Some(Errno::PERM | Errno::ACCESS), _) => (
            format!("{call} is refused ({error}), as by a container's seccomp profile"),
            "allow io_uring_setup, io_uring_enter and io_uring_register in the profile \
             (docker: --security-opt seccomp=unconfined)",
        ),
        (Some(Errno::NOSYS), _) => (
            format!("{call} is not there: the kernel has no io_uring, or a sandbox hides it"),
            "use a kernel with CONFIG_IO_URING, 5.19 or newer, outside of the sandbox",
        ),
        (Some(Errno::INVAL), _) => {
            (format!("{call}: the kernel has no sparse tables of fixed buffers"), "use Linux 5.19 or newer")
        }
        (Some(Errno::NOMEM), _) => (
            format!("{call}: no memory, or RLIMIT_MEMLOCK ({}) is used up", memlock()),
            "raise it with `ulimit -l` (LimitMEMLOCK= in a systemd unit)",
        ),
        (Some(Errno::MFILE | Errno::NFILE), _) => {
            (format!("{call}: {error}"), "raise the limit of open descriptors with `ulimit -n`")
        }
        _ => (format!("{call}: {error}"), "see io_uring_setup(2)"),
    };
    Unavailable { why, remedy: remedy.to_owned() }
}

/// `RLIMIT_MEMLOCK`, in words.
fn memlock() -> String {
    getrlimit(Resource::Memlock)
        .current
        .map_or_else(|| "unlimited".to_owned(), |limit| format!("{limit} bytes"))
}

/// Whether this user may pin so many bytes, as far as can be told before.
pub(super) fn room_for(bytes: usize) -> Result<(), Unavailable> {
    let able = capabilities(None).is_ok_and(|sets| sets.effective.contains(CapabilitySet::IPC_LOCK));
    match getrlimit(Resource::Memlock).current {
        Some(limit) if !able && limit < bytes as u64 => Err(Unavailable {
            why: format!("{bytes} bytes are to be pinned, and RLIMIT_MEMLOCK is {limit} bytes"),
            remedy: "raise it with `ulimit -l` (LimitMEMLOCK= in a systemd unit), or run with CAP_IPC_LOCK"
                .to_owned(),
        }),
        _ => Ok(()),
    }
}

/// Why memory was not registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RegisterError {
    /// The range is empty, longer than [`super::Nic::MAX_LEN`], or runs past the end of the address space.
    #[error(
        "{len} bytes at {addr:#x} are no range a registration can have: 1 byte to 1 GiB, within the address space"
    )]
    Range {
        /// First byte.
        addr: usize,
        /// Bytes.
        len: usize,
    },
    /// All slots are taken.
    #[error("all {slots} slots are taken: deregister, or open the NIC with more")]
    Full {
        /// Slots of the NIC.
        slots: u16,
    },
    /// More would be pinned than the NIC was opened for.
    #[error(
        "{wanted} bytes on top of {pinned} are more than the {limit} this NIC may pin: open it with a higher limit"
    )]
    Limit {
        /// Bytes of the pages of this registration.
        wanted: usize,
        /// Bytes pinned.
        pinned: usize,
        /// Bytes the NIC may pin.
        limit: usize,
    },
    /// EFAULT: a page is not mapped, may not be written, or is of a kind that cannot be pinned for long: a writable shared
    /// mapping of a file on a disk, device memory, `memfd_secret`.
    #[error("a page of the range is not mapped, not writable, or of a kind that cannot be pinned (EFAULT)")]
    Fault,
    /// The kernel says of this kind of memory that it cannot be pinned (EOPNOTSUPP, EINVAL; older kernels).
    #[error("memory of this kind cannot be pinned ({0})")]
    Unpinnable(Errno),
    /// ENOMEM: more than `RLIMIT_MEMLOCK` would be pinned. The limit is on all a *user* has pinned through io_uring, and does
    /// not hold with `CAP_IPC_LOCK`.
    #[error(
        "RLIMIT_MEMLOCK is {} bytes for all this user pins (ENOMEM): raise it with `ulimit -l` (LimitMEMLOCK= in a \
         systemd unit), pin less, or free memory",
        limit.map_or_else(|| "unlimited".to_owned(), |limit| limit.to_string())
    )]
    MemLock {
        /// The soft limit in bytes, `None` when there is none: then memory itself is short.
        limit: Option<u64>,
    },
    /// This is a child of a fork: the ring is its parent's.
    #[error("this process is a child of the one that has opened the NIC")]
    Child,
    /// Another error of the kernel's.
    #[error("the kernel refuses the registration: {0}")]
    Failed(Errno),
}

impl RegisterError {
    /// What a registration that the kernel has refused with this means.
    pub(super) fn of(errno: Errno) -> Self {
        match errno {
            Errno::FAULT => Self::Fault,
            Errno::OPNOTSUPP | Errno::INVAL => Self::Unpinnable(errno),
            Errno::NOMEM => Self::MemLock { limit: getrlimit(Resource::Memlock).current },
            errno => Self::Failed(errno),
        }
    }

    /// What the kernel said; `None` when the NIC has not asked it.
    #[must_use]
    pub const fn errno(self) -> Option<Errno> {
        match self {
            Self::Range { .. } | Self::Full { .. } | Self::Limit { .. } | Self::Child => None,
            Self::Fault => Some(Errno::FAULT),
            Self::MemLock { .. } => Some(Errno::NOMEM),
            Self::Unpinnable(errno) | Self::Failed(errno) => Some(errno),
        }
    }
}

/// Why an operation through a registration did not happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DmaError {
    /// The registration is no longer, or is another NIC's, or this is a fork's child, which has none.
    #[error("stale: the registration has ended, or is another NIC's or another process's")]
    Stale,
    /// Bytes outside of the registration.
    #[error("{len} bytes at {addr:#x} are not all within the registration")]
    Bounds {
        /// First byte asked for.
        addr: usize,
        /// Bytes asked for.
        len: usize,
    },
    /// More than an operation in flight can hold back.
    #[error("{len} bytes are more than the {max} an operation can hold back")]
    TooLong {
        /// Bytes asked for.
        len: usize,
        /// Bytes possible.
        max: usize,
    },
    /// Only a part was moved.
    #[error("only {moved} of {len} bytes were moved")]
    Short {
        /// Bytes moved.
        moved: usize,
        /// Bytes asked for.
        len: usize,
    },
    /// An error of the kernel's.
    #[error("the kernel refuses the operation: {0}")]
    Failed(Errno),
}

#[cfg(test)]
mod tests {
    use super::*;

    fn why_and_remedy(errno: Errno, disabled: &str) -> (String, String) {
        let Unavailable { why, remedy } = explain("io_uring_setup", &errno.into(), disabled);
        (why, remedy)
    }

    #[test]
    fn each_reason_has_its_remedy() {
        for (errno, disabled, in_why, in_remedy) in [
            (Errno::PERM, "2", "switched off", "io_uring_disabled=0"),
            (Errno::PERM, "1", "privileged", "io_uring_group"),
            (Errno::PERM, "0", "seccomp", "io_uring_register"),
            (Errno::PERM, "", "seccomp", "io_uring_register"),
            (Errno::NOSYS, "", "no io_uring", "CONFIG_IO_URING"),
            (Errno::INVAL, "0", "sparse", "5.19"),
            (Errno::NOMEM, "0", "RLIMIT_MEMLOCK", "ulimit -l"),
            (Errno::MFILE, "0", "io_uring_setup", "ulimit -n"),
            (Errno::IO, "0", "io_uring_setup", "io_uring_setup(2)"),
        ] {
            let (why, remedy) = why_and_remedy(errno, disabled);
            assert!(why.contains(in_why), "{errno:?} {disabled}: {why}");
            assert!(remedy.contains(in_remedy), "{errno:?} {disabled}: {remedy}");
        }
    }

    #[test]
    fn the_kernels_answers_to_a_registration() {
        assert_eq!(RegisterError::of(Errno::FAULT), RegisterError::Fault);
        assert_eq!(RegisterError::of(Errno::OPNOTSUPP), RegisterError::Unpinnable(Errno::OPNOTSUPP));
        assert_eq!(RegisterError::of(Errno::IO), RegisterError::Failed(Errno::IO));
        assert!(matches!(RegisterError::of(Errno::NOMEM), RegisterError::MemLock { .. }));
        for errno in [Errno::FAULT, Errno::OPNOTSUPP, Errno::INVAL, Errno::NOMEM, Errno::IO] {
            assert_eq!(RegisterError::of(errno).errno(), Some(errno));
        }
        let unlimited = RegisterError::MemLock { limit: None }.to_string();
        assert!(unlimited.contains("unlimited"), "{unlimited}");
    }
}
