//! Why memory could not be had, and which limit stood in the way.

use std::fmt;

use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};

use crate::Status;

/// A limit of the system or the process that memory can run into.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Limit {
    /// `RLIMIT_NOFILE`: open descriptors of the process (`getrlimit(2)`).
    OpenFiles,
    /// `fs.file-max`: open descriptors of the system (`proc_sys_fs(5)`).
    SystemFiles,
    /// `RLIMIT_AS`: bytes of address space of the process (`getrlimit(2)`).
    AddressSpace,
    /// `RLIMIT_FSIZE`: bytes of one file, memfds included (`getrlimit(2)`).
    FileSize,
    /// `vm.max_map_count`: mappings of the process (`proc_sys_vm(5)`).
    MapCount,
}

impl Limit {
    /// Its name, as an administrator knows it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::OpenFiles => "RLIMIT_NOFILE",
            Self::SystemFiles => "fs.file-max",
            Self::AddressSpace => "RLIMIT_AS",
            Self::FileSize => "RLIMIT_FSIZE",
            Self::MapCount => "vm.max_map_count",
        }
    }

    /// What to do about it.
    #[must_use]
    pub const fn remedy(self) -> &'static str {
        match self {
            Self::OpenFiles => {
                "raise it with `ulimit -n` (LimitNOFILE= in a systemd unit), or export fewer allocations"
            }
            Self::SystemFiles => "raise it with `sysctl fs.file-max`",
            Self::AddressSpace => "raise it with `ulimit -v` (LimitAS= in a systemd unit), or map less",
            Self::FileSize => {
                "raise it with `ulimit -f` (LimitFSIZE= in a systemd unit), or map smaller regions"
            }
            Self::MapCount => "raise it with `sysctl vm.max_map_count`, or use fewer, larger regions",
        }
    }

    /// The soft limit now in force; `u64::MAX` when there is none or it cannot be read.
    #[must_use]
    pub fn value(self) -> u64 {
        let sysctl = |path| std::fs::read_to_string(path).ok().and_then(|text| text.trim().parse().ok());
        match self {
            Self::OpenFiles => getrlimit(Resource::Nofile).current,
            Self::AddressSpace => getrlimit(Resource::As).current,
            Self::FileSize => getrlimit(Resource::Fsize).current,
            Self::SystemFiles => sysctl("/proc/sys/fs/file-max"),
            Self::MapCount => sysctl("/proc/sys/vm/max_map_count"),
        }
        .unwrap_or(u64::MAX)
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Memory could not be created or mapped.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MemError {
    /// A limit stands in the way.
    #[error("{limit} ({value}) is reached{}", Wanted(*.wanted))]
    Limit {
        /// Which one.
        limit: Limit,
        /// Its value now.
        value: u64,
        /// Bytes that were asked for; 0 where it was a descriptor.
        wanted: u64,
    },
    /// The system has no memory left for it.
    #[error("the system has no memory for {wanted} bytes")]
    NoMemory {
        /// Bytes that were asked for.
        wanted: u64,
    },
    /// More than an address space can hold.
    #[error("{wanted} bytes do not fit an address space")]
    TooLarge {
        /// Bytes that were asked for.
        wanted: u64,
    },
    /// Another failure of a system call.
    #[error("{call}: {errno}")]
    Sys {
        /// The system call.
        call: &'static str,
        /// Its error.
        errno: Errno,
    },
}

struct Wanted(u64);

impl fmt::Display for Wanted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 == 0 { Ok(()) } else { write!(f, ": {} bytes were asked for", self.0) }
    }
}

impl MemError {
    /// The one-byte status.
    pub fn status(&self) -> Status {
        match self {
            Self::Limit { .. } => Status::ExceedsLimit,
            Self::NoMemory { .. } => Status::NoMemory,
            Self::TooLarge { .. } => Status::InvalidParam,
            Self::Sys { .. } => Status::IoError,
        }
    }

    /// What to do about it.
    #[must_use]
    pub fn remedy(&self) -> &'static str {
        match self {
            Self::Limit { limit, .. } => limit.remedy(),
            Self::NoMemory { .. } => "free memory, raise the memory cgroup's limit, or map less",
            Self::TooLarge { .. } => "map less",
            Self::Sys { errno: Errno::PERM | Errno::ACCESS | Errno::NOSYS, .. } => {
                "allow that system call: in the seccomp profile, or by a newer kernel"
            }
            Self::Sys { .. } => "see the error of the system call",
        }
    }

    /// Names the limit behind `errno` of `call`, which was to get `wanted` bytes.
    #[must_use]
    pub fn of(call: &'static str, errno: Errno, wanted: usize) -> Self {
        let wanted = wanted as u64;
        let at = |limit: Limit| Self::Limit { limit, value: limit.value(), wanted };
        match errno {
            Errno::MFILE => at(Limit::OpenFiles),
            Errno::NFILE => at(Limit::SystemFiles),
            Errno::FBIG => at(Limit::FileSize),
            Errno::NOMEM if call == "mmap" => match memory_limit(wanted) {
                Some(limit) => at(limit),
                None => Self::NoMemory { wanted },
            },
            Errno::NOMEM | Errno::NOSPC => Self::NoMemory { wanted },
            errno => Self::Sys { call, errno },
        }
    }
}

/// Which limit made an mmap of `wanted` bytes answer ENOMEM, if it was one.
fn memory_limit(wanted: u64) -> Option<Limit> {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages: u64 = statm.split(' ').next().and_then(|n| n.parse().ok()).unwrap_or(0);
    let size = pages.saturating_mul(crate::mem::page::page_size() as u64);
    if size.saturating_add(wanted) > Limit::AddressSpace.value() {
        return Some(Limit::AddressSpace);
    }
    let maps = super::mappings().unwrap_or(0);
    // One map more than the count is allowed, and the vsyscall line is no map of the process.
    (maps.saturating_add(2) >= Limit::MapCount.value()).then_some(Limit::MapCount)
}
