//! What the monitor tells and is told.

use std::fmt;

use rustix::io::Errno;

use crate::mem::error::Limit;
use crate::mem::page::{PageRange, page_size};

/// What became of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Change {
    /// It is mapped no more, or something else is mapped there; also when everything has to be taken for changed.
    Unmapped,
    /// It was moved elsewhere (`mremap(2)`).
    Moved,
    /// Its pages are about to go (`madvise(2)`: `MADV_DONTNEED`, `MADV_DONTNEED_LOCKED`, `MADV_FREE`, `MADV_REMOVE`).
    Removed,
    /// Somebody says that it changes, or is about to: [`super::Monitor::notify_unmap`], [`super::Monitor::begin`].
    Announced,
}

/// Told of changes.
///
/// Called on the handler's thread, which the threads that unmap memory wait for, or on that of whoever announces a change, within an
/// allocator perhaps; on several at once. So it must not allocate, log, drop an [`std::sync::Arc`], or take a lock that anybody holds
/// across a memory call. One that panics on the handler's thread ends the watching.
pub trait Sink: Send + Sync {
    /// The pages in `range` are other ones now, or are about to be.
    fn invalidate(&self, range: PageRange, change: Change);
}

/// What is wanted of the monitor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Wanted {
    /// The best that the system has.
    #[default]
    Auto,
    /// Nothing is asked of the kernel: the application announces each change of memory that it had registered.
    Explicit,
    /// Nothing is watched.
    Off,
}

impl Wanted {
    pub(super) fn encode(self) -> u32 {
        self as u32
    }

    pub(super) fn decode(code: u32) -> Self {
        [Self::Auto, Self::Explicit].into_iter().find(|wanted| wanted.encode() == code).unwrap_or(Self::Off)
    }
}

/// What is active.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Active {
    /// Nothing was watched yet.
    Idle,
    /// The kernel tells of changes, by userfaultfd.
    Uffd {
        /// With asynchronous write protection: memory of files can be watched, too.
        wp_async: bool,
    },
    /// The application tells of changes.
    Explicit,
    /// Nobody does: nothing may be kept that relies on it.
    None {
        /// Why not.
        why: Why,
    },
}

impl Active {
    pub(super) fn encode(self) -> u32 {
        match self {
            Self::Idle => 0,
            Self::Uffd { wp_async: false } => 1,
            Self::Uffd { wp_async: true } => 2,
            Self::Explicit => 3,
            Self::None { why } => 0x100 | why as u32,
        }
    }

    pub(super) fn decode(code: u32) -> Self {
        match code {
            0 => Self::Idle,
            1 => Self::Uffd { wp_async: false },
            2 => Self::Uffd { wp_async: true },
            3 => Self::Explicit,
            code => Self::None {
                why: Why::ALL.into_iter().find(|why| code == 0x100 | *why as u32).unwrap_or(Why::Failed),
            },
        }
    }
}

impl fmt::Display for Active {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Idle => f.write_str("not started"),
            Self::Uffd { wp_async: true } => f.write_str("userfaultfd"),
            Self::Uffd { wp_async: false } => f.write_str("userfaultfd (not for memory of files)"),
            Self::Explicit => f.write_str("the application announces changes"),
            Self::None { why } => write!(f, "none: {why}"),
        }
    }
}

/// Why nothing is watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Why {
    /// That was asked for.
    TurnedOff,
    /// The kernel has no userfaultfd.
    NoUserfaultfd,
    /// It has one, which lacks what is needed.
    OldKernel,
    /// The call is denied.
    Denied,
    /// No descriptor is left for it.
    Descriptors,
    /// No memory is left for it.
    NoMemory,
    /// No thread can be started.
    NoThread,
    /// Another failure.
    Failed,
    /// The userfaultfd stopped working: its descriptor was closed, for example.
    Broken,
    /// A sink panicked.
    SinkPanicked,
    /// This is a fork's child, and the monitor its parent's.
    Forked,
}

impl Why {
    const ALL: [Self; 11] = [
        Self::TurnedOff,
        Self::NoUserfaultfd,
        Self::OldKernel,
        Self::Denied,
        Self::Descriptors,
        Self::NoMemory,
        Self::NoThread,
        Self::Failed,
        Self::Broken,
        Self::SinkPanicked,
        Self::Forked,
    ];

    /// In words.
    #[must_use]
    pub const fn words(self) -> &'static str {
        match self {
            Self::TurnedOff => "it is turned off",
            Self::NoUserfaultfd => "the kernel has no userfaultfd",
            Self::OldKernel => "the kernel's userfaultfd tells of no unmapping, or has no write protection",
            Self::Denied => "userfaultfd is denied",
            Self::Descriptors => "no descriptor is left for a userfaultfd",
            Self::NoMemory => "no memory is left for the monitor",
            Self::NoThread => "the monitor's thread cannot be started",
            Self::Failed => "userfaultfd fails",
            Self::Broken => "the userfaultfd stopped working: something has closed its descriptor",
            Self::SinkPanicked => "it panicked",
            Self::Forked => "this is a fork's child, and the monitor its parent's",
        }
    }

    /// What to do about it.
    #[must_use]
    pub const fn remedy(self) -> &'static str {
        match self {
            Self::TurnedOff => "turn it on",
            Self::NoUserfaultfd => "use a kernel with CONFIG_USERFAULTFD",
            Self::OldKernel => "use Linux 5.7 or later (6.7 for memory of files)",
            Self::Denied => {
                "allow the system call: container runtimes deny it by their default seccomp profile; before Linux 5.11 also set \
                 vm.unprivileged_userfaultfd=1"
            }
            Self::Descriptors => Limit::OpenFiles.remedy(),
            Self::NoMemory => "free memory, or raise RLIMIT_AS or the memory cgroup's limit",
            Self::NoThread => "raise RLIMIT_NPROC or the pids cgroup's limit",
            Self::Failed => "see what `strace -e userfaultfd,ioctl` shows",
            Self::Broken => "leave descriptors alone that the application has not opened",
            Self::SinkPanicked => "report it",
            Self::Forked => "ask for the process's own monitor",
        }
    }
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.words())
    }
}

/// What kind of memory it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Kind {
    /// Private memory without a file.
    Anonymous,
    /// A memfd, or shared memory without a name.
    Shmem,
    /// A file; those in a tmpfs count as such.
    File,
    /// Huge pages of hugetlbfs.
    Hugetlb,
}

/// What is behind memory that is watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backing {
    pub(super) kind: Kind,
    pub(super) shared: bool,
    /// Of something that has a length of its own.
    pub(super) may_shrink: bool,
    pub(super) page_size: usize,
    /// Several mappings.
    pub(super) split: bool,
}

impl Backing {
    /// Private memory without a file, of one mapping: for doubles of the monitor in tests.
    #[doc(hidden)]
    #[must_use]
    pub fn anonymous() -> Self {
        Self { kind: Kind::Anonymous, shared: false, may_shrink: false, page_size: page_size(), split: false }
    }

    /// The kind.
    #[must_use]
    pub fn kind(self) -> Kind {
        self.kind
    }

    /// Whether others may share it.
    #[must_use]
    pub fn is_shared(self) -> bool {
        self.shared
    }

    /// Whether it is of a file, of a memfd, or of memory that is shared: that can be made shorter, or have holes punched, without an
    /// event, and then also private copies of its pages go (`ftruncate(2)`).
    #[must_use]
    pub fn may_shrink(self) -> bool {
        self.may_shrink
    }

    /// Bytes of a page; more than the system's only for [`Kind::Hugetlb`].
    #[must_use]
    pub fn page_size(self) -> usize {
        self.page_size
    }

    /// Whether the range is of several mappings, each of which has to be checked by itself.
    #[must_use]
    pub fn is_split(self) -> bool {
        self.split
    }
}

/// What the exact check finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The memory is what was watched, unless the caller's own books say otherwise by now.
    Live,
    /// Watched memory is being changed, this or other: its event was not read yet. Ask again, or do without.
    Pending,
    /// Other memory, or none, or in other pieces.
    Replaced,
}

/// Memory cannot be watched. It may be used, but nothing may be kept that relies on its staying.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refused {
    /// Nothing is watched.
    #[error("no memory is watched: {why}")]
    Off {
        /// Why not.
        why: Why,
    },
    /// Another userfaultfd of this process has it: CRIU, QEMU and some JVMs use one.
    #[error("another userfaultfd of this process has this memory")]
    OtherOwner,
    /// A System V segment: nothing tells of its unmapping.
    #[error("System V segments cannot be watched")]
    SysV,
    /// Some of it is not mapped.
    #[error("some of this memory is not mapped")]
    Unmapped,
    /// Memory of different kinds, or of very many mappings.
    #[error("this range is of memory of different kinds, or of too many mappings")]
    Mixed,
    /// A kind that cannot be watched on this kernel, or at all.
    #[error("this kind of memory cannot be watched")]
    Unwatchable,
    /// A window is open over it: it is being changed.
    #[error("this memory is being changed")]
    Window,
    /// The monitor's own memory.
    #[error("the monitor's own memory is not watched")]
    Own,
    /// This is a fork's child, and the monitor its parent's.
    #[error("this is a fork's child, and the monitor its parent's")]
    Forked,
    /// A limit stands in the way.
    #[error("{limit} is reached")]
    Limit {
        /// Which one.
        limit: Limit,
    },
    /// Another failure of a system call.
    #[error("{call}: {errno}")]
    Sys {
        /// The call.
        call: &'static str,
        /// Its error.
        errno: Errno,
    },
}

/// The C library's memory calls cannot be made to announce themselves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HookError {
    /// This library was built without the feature `hooks`, or for a processor for which there are none.
    #[error("this build has no hooks of memory calls")]
    NotBuilt,
    /// No C library is loaded: the program is linked with it statically.
    #[error("the C library is linked statically")]
    Static,
    /// A function does not look as expected.
    #[error("{function} of the C library does not look as expected")]
    Unknown {
        /// Which one.
        function: &'static str,
    },
    /// A function was replaced, and its calls do not come through.
    #[error("calls of {function} do not come through the hook")]
    Silent {
        /// Which one.
        function: &'static str,
    },
    /// No memory is free near the C library.
    #[error("no memory is free near the C library")]
    NoRoom,
    /// The C library's code may not be changed: SELinux can be set up so.
    #[error("the C library's code cannot be changed: {errno}")]
    Refused {
        /// What mprotect(2) answers.
        errno: Errno,
    },
}

impl HookError {
    /// What to do about it.
    #[must_use]
    pub const fn remedy(self) -> &'static str {
        match self {
            Self::NotBuilt => "build with the feature `hooks`, on x86_64",
            Self::Static => "link the C library dynamically",
            Self::Unknown { .. } | Self::Silent { .. } => {
                "do without hooks: each hit is checked by the kernel then"
            }
            Self::NoRoom => "free address space near the C library, or do without hooks",
            Self::Refused { .. } => "allow execmod in the SELinux policy, or do without hooks",
        }
    }
}

/// A sink cannot be subscribed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SubscribeError {
    /// There are as many as there can be.
    #[error("a process can have {limit} sinks of memory events at most")]
    TooMany {
        /// How many that is.
        limit: usize,
    },
    /// This is a fork's child, and the monitor its parent's.
    #[error("this is a fork's child, and the monitor its parent's")]
    Forked,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_are_numbers() {
        let states = [
            Active::Idle,
            Active::Uffd { wp_async: true },
            Active::Uffd { wp_async: false },
            Active::Explicit,
        ];
        let none = Why::ALL.map(|why| Active::None { why });
        for state in states.into_iter().chain(none) {
            assert_eq!(Active::decode(state.encode()), state);
            assert!(!state.to_string().is_empty());
        }
        for wanted in [Wanted::Auto, Wanted::Explicit, Wanted::Off] {
            assert_eq!(Wanted::decode(wanted.encode()), wanted);
        }
        assert!(Why::ALL.iter().all(|why| !why.remedy().is_empty()));
    }
}
