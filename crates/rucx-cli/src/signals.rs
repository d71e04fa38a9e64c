//! Signals that end a command, as something to wait for.

use std::fs;
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use signal_hook::consts::{
    SIGALRM, SIGHUP, SIGINT, SIGIO, SIGPROF, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGVTALRM, SIGXCPU,
};
use signal_hook::low_level::pipe;

/// Those that users send to end a program.
const MEANT: [i32; 2] = [SIGINT, SIGTERM];
/// Those that would end it as well, unless they are ignored.
const OTHERS: [i32; 9] = [SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGALRM, SIGVTALRM, SIGPROF, SIGXCPU, SIGIO];

/// The signals that would end this process, caught as long as it lives: from the first one on, its descriptor can be read.
#[derive(Debug)]
pub(crate) struct Signals {
    pipe: UnixStream,
}

impl Signals {
    /// Catches them. One that is ignored stays ignored, as nohup(1) has it of SIGHUP; but for SIGINT, which shells ignore for
    /// what runs in the background, and SIGTERM.
    ///
    /// # Errors
    /// The kernel's.
    pub(crate) fn catch() -> io::Result<Self> {
        let (ours, handlers) = UnixStream::pair()?;
        ours.set_nonblocking(true)?;
        let ignored = ignored();
        let others = OTHERS.into_iter().filter(|signal| (ignored >> (signal - 1)) & 1 == 0);
        for signal in MEANT.into_iter().chain(others) {
            pipe::register(signal, handlers.try_clone()?)?;
        }
        Ok(Self { pipe: ours })
    }

    /// Forgets those that came: its descriptor can be read from the next one on.
    pub(crate) fn forget(&self) {
        while matches!((&self.pipe).read(&mut [0; 64]), Ok(1..)) {}
    }

    /// Waits that long, or until one came; whether one came.
    ///
    /// # Errors
    /// The kernel's.
    pub(crate) fn wait(&self, time: Duration) -> io::Result<bool> {
        let mut fds = [PollFd::new(self, PollFlags::IN)];
        match poll(&mut fds, Some(&timeout(time))) {
            Ok(count) => Ok(count > 0),
            // By a signal: by one of ours, the next wait will see it.
            Err(Errno::INTR) => self.wait(Duration::ZERO),
            Err(errno) => Err(errno.into()),
        }
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.pipe.as_fd()
    }
}

/// A time as poll(2) takes it; what is too long for it is as good as for ever.
pub(crate) fn timeout(time: Duration) -> Timespec {
    Timespec::try_from(time).unwrap_or(Timespec { tv_sec: i64::from(i32::MAX), tv_nsec: 0 })
}

/// The signals that are ignored now, as bits. See `proc_pid_status(5)`.
fn ignored() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}
