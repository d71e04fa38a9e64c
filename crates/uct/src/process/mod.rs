//! Telling a process from another one that has, or had, its pid.
//!
//! A pid is re-used; a pidfd is not. Since Linux 6.9 the inode of a pidfd is unique for the life of the system, so that two
//! processes can compare it (`pidfd_open(2)`, pidfs); on older kernels the start time in `/proc/PID/stat` takes its place.

pub mod access;
mod sys;
pub mod vm;

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs;
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, getpid, pidfd_getfd, pidfd_open};

/// `f_type` of pidfs: `PID_FS_MAGIC` in `linux/magic.h`.
const PID_FS_MAGIC: fs::FsWord = 0x5049_4446;

/// Who a process is, and where it lives: enough for another process to recognise it and to say why it cannot reach it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Identity {
    /// Its pid in its own pid namespace.
    pub pid: u32,
    /// The inode of its pidfd; 0 where the kernel (before 6.9) has no unique ones.
    pub pidfd_inode: u64,
    /// When it started, in clock ticks since boot (`proc_pid_stat(5)`, field 22); 0 if unknown.
    pub start_time: u64,
    /// The inode of its pid namespace; 0 if unknown (`namespaces(7)`).
    pub pid_ns: u64,
    /// The inode of its network namespace; 0 if unknown.
    pub net_ns: u64,
    /// The inode of its user namespace; 0 if unknown.
    pub user_ns: u64,
}

impl Identity {
    /// This process.
    #[must_use]
    pub fn of_self() -> Self {
        let namespace = |name| fs::stat(format!("/proc/self/ns/{name}")).map_or(0, |stat| stat.st_ino);
        let pid = getpid();
        Self {
            pid: pid.as_raw_nonzero().get().unsigned_abs(),
            pidfd_inode: Process::open(pid).ok().and_then(|process| process.inode()).unwrap_or(0),
            start_time: start_time("/proc/self").unwrap_or(0),
            pid_ns: namespace("pid"),
            net_ns: namespace("net"),
            user_ns: namespace("user"),
        }
    }
}

/// Whether a process is the one an [`Identity`] tells of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recognition {
    /// It is.
    Same,
    /// It is another one.
    Other,
    /// Nothing to compare is known on both sides.
    Unknown,
}

/// A process, held by a descriptor: it may end, and is never confused with another.
#[derive(Debug)]
pub struct Process {
    fd: OwnedFd,
    /// Its pid as seen from here; `None` when it lives in a pid namespace that is not visible here.
    pid: Option<Pid>,
}

impl Process {
    /// Opens the process that has `pid` now.
    ///
    /// # Errors
    /// ESRCH when there is none; what else `pidfd_open(2)` answers.
    pub fn open(pid: Pid) -> Result<Self, Errno> {
        Ok(Self { fd: pidfd_open(pid, PidfdFlags::empty())?, pid: Some(pid) })
    }

    /// The process at the other end of a connected unix socket: the one that called `connect(2)`, or `listen(2)`.
    ///
    /// # Errors
    /// ESRCH when it is gone; what else `getsockopt(2)` and `pidfd_open(2)` answer.
    pub fn of_peer(socket: BorrowedFd<'_>) -> Result<Self, Errno> {
        let pid = sys::peer_pid(socket).ok().and_then(Pid::from_raw);
        match sys::peer_pidfd(socket) {
            Ok(fd) => Ok(Self { fd, pid }),
            // SO_PEERPIDFD is Linux 6.5; it answers these when the peer has been reaped already.
            Err(Errno::NOPROTOOPT) => Self::open(pid.ok_or(Errno::SRCH)?),
            Err(Errno::INVAL | Errno::SRCH) => Err(Errno::SRCH),
            Err(errno) => Err(errno),
        }
    }

    /// Its pid as seen from here, by which system calls reach it as long as it lives; `None` when it is not visible from this pid
    /// namespace.
    #[must_use]
    pub fn raw_pid(&self) -> Option<Pid> {
        self.pid
    }

    /// Its directory in `/proc`, as it is mounted here: that may be another pid namespace's than this process's. `None` when it has
    /// ended or is not visible there.
    ///
    /// The path names the process as long as it lives: whoever reads there asks [`Process::is_dead`] afterwards.
    #[must_use]
    pub fn directory(&self) -> Option<String> {
        // "Pid: the process's pid in the pid namespace of the procfs mount" (pidfd_open(2), /proc/PID/fdinfo).
        let info =
            std::fs::read_to_string(format!("/proc/thread-self/fdinfo/{}", self.fd.as_raw_fd())).ok()?;
        let pid = info.lines().find_map(|line| line.strip_prefix("Pid:"))?.trim().parse::<u32>().ok()?;
        (pid != 0).then(|| format!("/proc/{pid}"))
    }

    /// Its pid as seen from here; 0 when it is not visible from this pid namespace.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.pid.map_or(0, |pid| pid.as_raw_nonzero().get().unsigned_abs())
    }

    /// The inode of its pidfd, where that is unique.
    #[must_use]
    pub fn inode(&self) -> Option<u64> {
        static UNIQUE: OnceLock<bool> = OnceLock::new(); // a matter of the kernel
        let ask = || fs::fstatfs(&self.fd).is_ok_and(|fs| fs.f_type == PID_FS_MAGIC);
        UNIQUE.get_or_init(ask).then(|| fs::fstat(&self.fd).ok().map(|stat| stat.st_ino)).flatten()
    }

    /// Whether it has ended.
    #[must_use]
    pub fn is_dead(&self) -> bool {
        self.ends_within(Duration::ZERO)
    }

    /// Whether it has ended, or does so within `patience`: of a process that was killed, some threads are gone before others.
    #[must_use]
    pub fn ends_within(&self, patience: Duration) -> bool {
        let deadline = Instant::now() + patience;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let mut fds = [PollFd::new(&self.fd, PollFlags::IN)];
            match poll(&mut fds, Some(&Timespec::try_from(left).unwrap_or_default())) {
                Err(Errno::INTR) => {}
                answer => return matches!(answer, Ok(1..)),
            }
        }
    }

    /// Compares it with what is known of a process.
    #[must_use]
    pub fn recognise(&self, identity: &Identity) -> Recognition {
        let verdict = |same| if same { Recognition::Same } else { Recognition::Other };
        if identity.pidfd_inode != 0
            && let Some(inode) = self.inode()
        {
            return verdict(inode == identity.pidfd_inode);
        }
        let ask = || start_time(&self.directory()?);
        let start = (identity.start_time != 0).then(ask).flatten();
        match start {
            // The pid was looked up after the descriptor was made: it counts only if the process still lives.
            Some(start) if !self.is_dead() => verdict(start == identity.start_time),
            _ => Recognition::Unknown,
        }
    }

    /// A descriptor of that process, copied into this one.
    ///
    /// # Errors
    /// What `pidfd_getfd(2)` answers; EPERM without ptrace rights.
    pub fn fetch(&self, fd: u32) -> Result<OwnedFd, Errno> {
        let fd = i32::try_from(fd).map_err(|_| Errno::BADF)?;
        pidfd_getfd(&self.fd, fd, PidfdGetfdFlags::empty())
    }
}

impl From<Process> for OwnedFd {
    fn from(process: Process) -> Self {
        process.fd
    }
}

impl AsFd for Process {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Field 22 of the file `stat` in a process's directory (`proc_pid_stat(5)`).
fn start_time(directory: &str) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("{directory}/stat")).ok()?;
    // Field 2, the command in parentheses, may itself hold spaces and parentheses.
    let (_, rest) = stat.rsplit_once(')')?;
    rest.split_ascii_whitespace().nth(19)?.parse().ok()
}

/// This system's boot, as 16 bytes (`/proc/sys/kernel/random/boot_id`, `random(4)`).
#[must_use]
pub fn boot_id() -> Option<[u8; 16]> {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    let digits: Vec<u8> = text.trim().bytes().filter(|byte| *byte != b'-').collect();
    let mut id = [0; 16];
    for (byte, pair) in id.iter_mut().zip(digits.chunks_exact(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
    }
    (digits.len() == 32).then_some(id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recognises_itself_and_not_another() {
        let me = Process::open(getpid()).unwrap();
        let identity = Identity::of_self();
        assert_eq!(me.recognise(&identity), Recognition::Same);
        assert!(!me.is_dead());
        let newer = Identity {
            pidfd_inode: identity.pidfd_inode + 1,
            start_time: identity.start_time + 1,
            ..identity
        };
        assert_eq!(me.recognise(&newer), Recognition::Other);
        let unknown = Identity { pidfd_inode: 0, start_time: 0, ..identity };
        assert_eq!(me.recognise(&unknown), Recognition::Unknown);
        let old_kernel = Identity { pidfd_inode: 0, ..identity };
        assert_eq!(me.recognise(&old_kernel), Recognition::Same);
        assert_eq!(me.directory(), Some(format!("/proc/{}", identity.pid)));
    }

    #[test]
    fn tells_a_death() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let process = Process::open(Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap()).unwrap();
        assert!(!process.is_dead());
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(process.is_dead());
        assert_eq!(process.directory(), None);
    }

    #[test]
    fn reads_the_boot_id() {
        assert_ne!(boot_id().unwrap(), [0; 16]);
    }
}
