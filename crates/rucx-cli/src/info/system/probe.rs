//! Trying system calls, harmlessly, on this very process.
//!
//! A seccomp filter may kill who makes a call that it does not allow. So under a filter each call is tried in a child of its own:
//! this program, executed anew.

use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitCode, ExitStatus, Stdio};

use rustix::fs::{self, MemfdFlags, SealFlags};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, getpid, pidfd_getfd, pidfd_open};
use ucs::monitor::{Active, Monitor, Why};

use super::sys;

/// What came of trying a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Probe {
    /// It does what it should.
    Works,
    /// It answers this error.
    Fails(Errno),
    /// Whoever makes it is killed: a seccomp filter.
    Kills,
    /// It could not be tried: under a seccomp filter, no child can be started.
    Untried,
}

/// A call that is tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Call {
    /// None: whether a child can be started.
    Nothing,
    /// `memfd_create(2)`, with sealing.
    Memfd,
    /// `F_SEAL_FUTURE_WRITE`.
    Seal,
    /// `pidfd_open(2)`.
    PidfdOpen,
    /// `pidfd_getfd(2)`.
    PidfdGetfd,
    /// `process_vm_readv(2)`.
    Readv,
    /// `process_vm_writev(2)`.
    Writev,
    /// `userfaultfd(2)` for all faults.
    Uffd,
    /// `userfaultfd(2)` for faults of user mode.
    UffdUser,
    /// All that the memory monitor needs: it is started.
    Monitor,
}

/// What tells of changes of memory here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Watcher {
    /// The monitor was started, and is this.
    Started {
        active: Active,
        /// Whether mappings are asked for by `PROCMAP_QUERY`.
        queries: bool,
    },
    /// Whoever starts it is killed: a seccomp filter.
    Kills,
    /// It could not be tried: under a seccomp filter, no child can be started.
    Untried,
}

impl Watcher {
    /// What a monitor that was started may be: an exit status tells the place in here.
    const STATES: [Active; 9] = [
        Active::Uffd { wp_async: true },
        Active::Uffd { wp_async: false },
        Active::None { why: Why::Failed },
        Active::None { why: Why::NoUserfaultfd },
        Active::None { why: Why::OldKernel },
        Active::None { why: Why::Denied },
        Active::None { why: Why::Descriptors },
        Active::None { why: Why::NoMemory },
        Active::None { why: Why::NoThread },
    ];
    /// Lest it be taken for an error's number, or for that of a program that has not come so far.
    const BASE: u8 = 128;

    /// Starts the monitor of this process.
    fn start() -> Self {
        let monitor = Monitor::process();
        Self::Started { active: monitor.start(), queries: monitor.queries_mappings() }
    }

    fn code(self) -> u8 {
        let Self::Started { active, queries } = self else { return 1 };
        let place = Self::STATES.iter().position(|state| *state == active).unwrap_or(2);
        Self::BASE + 2 * u8::try_from(place).unwrap_or(0) + u8::from(queries)
    }

    fn of_code(code: u8) -> Self {
        let place = code.checked_sub(Self::BASE);
        let active = place.and_then(|place| Self::STATES.get(usize::from(place / 2)));
        active.map_or(Self::Untried, |active| Self::Started { active: *active, queries: code % 2 == 1 })
    }

    fn verdict(status: ExitStatus) -> Self {
        match (status.code().map(u8::try_from), status.signal()) {
            (Some(Ok(code)), _) => Self::of_code(code),
            (None, Some(libc::SIGSYS | libc::SIGKILL)) => Self::Kills,
            _ => Self::Untried,
        }
    }
}

/// All calls that are tried.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Probes {
    pub(crate) memfd: Probe,
    pub(crate) seal: Probe,
    pub(crate) pidfd_open: Probe,
    pub(crate) pidfd_getfd: Probe,
    pub(crate) readv: Probe,
    pub(crate) writev: Probe,
    pub(crate) uffd: Probe,
    pub(crate) uffd_user: Probe,
    pub(crate) watcher: Watcher,
}

impl Probes {
    /// Tries all; in children if `filtered`.
    pub(super) fn take(filtered: bool) -> Self {
        let may_spawn = filtered && in_child(Call::Nothing) == Probe::Works;
        let ask = if !filtered {
            here
        } else if may_spawn {
            in_child
        } else {
            |_| Probe::Untried
        };
        let watcher = if !filtered {
            Watcher::start()
        } else if may_spawn {
            spawn(Call::Monitor).map_or(Watcher::Untried, Watcher::verdict)
        } else {
            Watcher::Untried
        };
        Self {
            memfd: ask(Call::Memfd),
            seal: ask(Call::Seal),
            pidfd_open: ask(Call::PidfdOpen),
            pidfd_getfd: ask(Call::PidfdGetfd),
            readv: ask(Call::Readv),
            writev: ask(Call::Writev),
            uffd: ask(Call::Uffd),
            uffd_user: ask(Call::UffdUser),
            watcher,
        }
    }
}

fn here(call: Call) -> Probe {
    match attempt(call) {
        Ok(()) => Probe::Works,
        Err(errno) => Probe::Fails(errno),
    }
}

fn attempt(call: Call) -> Result<(), Errno> {
    match call {
        Call::Nothing | Call::Monitor => Ok(()),
        Call::Memfd => memfd().map(drop),
        Call::Seal => fs::fcntl_add_seals(memfd()?, SealFlags::FUTURE_WRITE),
        Call::PidfdOpen => pidfd(getpid()).map(drop),
        Call::PidfdGetfd => {
            // A descriptor of our own: others may be closed in this process.
            let me = pidfd(getpid())?;
            let number = std::os::fd::AsRawFd::as_raw_fd(&me);
            pidfd_getfd(&me, number, PidfdGetfdFlags::empty()).map(drop)
        }
        Call::Readv => sys::process_vm_readv(),
        Call::Writev => sys::process_vm_writev(),
        Call::Uffd => sys::userfault(false),
        Call::UffdUser => sys::userfault(true),
    }
}

fn memfd() -> Result<OwnedFd, Errno> {
    fs::memfd_create("rucx-info", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)
}

pub(super) fn pidfd(pid: Pid) -> Result<OwnedFd, Errno> {
    pidfd_open(pid, PidfdFlags::empty())
}

/// Name of the hidden command that tries one call.
const COMMAND: &str = "info-probe";

fn in_child(call: Call) -> Probe {
    spawn(call).map_or(Probe::Untried, verdict)
}

/// How this program ends when it tries that call; `None`: it cannot be started.
fn spawn(call: Call) -> Option<ExitStatus> {
    let name = clap::ValueEnum::to_possible_value(&call)?;
    let mut command = Command::new(std::env::current_exe().ok()?);
    command.args([COMMAND, name.get_name()]).env_clear();
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().ok()
}

fn verdict(status: ExitStatus) -> Probe {
    match (status.code(), status.signal()) {
        (Some(0), _) => Probe::Works,
        (Some(errno), _) => Probe::Fails(Errno::from_raw_os_error(errno)),
        (None, Some(libc::SIGSYS | libc::SIGKILL)) => Probe::Kills,
        (None, _) => Probe::Untried,
    }
}

/// The child: tries one call; the exit status is the number of the error, or 0; of the monitor, what it is.
pub(crate) fn main(call: Call) -> ExitCode {
    match attempt(call) {
        Ok(()) if call == Call::Monitor => ExitCode::from(Watcher::start().code()),
        Ok(()) => ExitCode::SUCCESS,
        Err(errno) => ExitCode::from(u8::try_from(errno.raw_os_error()).unwrap_or(u8::MAX)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exit_statuses() {
        for (raw, probe) in [
            (0, Probe::Works),
            (Errno::NOSYS.raw_os_error() << 8, Probe::Fails(Errno::NOSYS)),
            (libc::SIGSYS, Probe::Kills),
            (libc::SIGKILL, Probe::Kills),
            (libc::SIGSEGV, Probe::Untried),
        ] {
            assert_eq!(verdict(ExitStatus::from_raw(raw)), probe, "{raw}");
        }
    }

    #[test]
    fn what_a_monitor_is_survives_the_exit_status() {
        for active in Watcher::STATES {
            for queries in [false, true] {
                let watcher = Watcher::Started { active, queries };
                assert_eq!(Watcher::verdict(ExitStatus::from_raw(i32::from(watcher.code()) << 8)), watcher);
            }
        }
        for (raw, watcher) in [
            (libc::SIGSYS, Watcher::Kills),
            (libc::SIGABRT, Watcher::Untried),
            (101 << 8, Watcher::Untried),
            (0, Watcher::Untried),
            (255 << 8, Watcher::Untried),
        ] {
            assert_eq!(Watcher::verdict(ExitStatus::from_raw(raw)), watcher, "{raw}");
        }
    }

    #[test]
    fn probes_do_no_harm() {
        let descriptors = || std::fs::read_dir("/proc/self/fd").unwrap().count();
        let _first = Probes::take(false);
        let again = (0..100).map(|_| Probes::take(false)).collect::<Vec<_>>();
        assert!(again.windows(2).all(|pair| pair[0] == pair[1]), "{again:?}");
        // Other tests open some at the same time; a leak would be hundreds.
        assert!(descriptors() < 100, "{}", descriptors());
    }
}
