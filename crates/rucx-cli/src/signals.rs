//! Signals that end a command, as something to wait for.

use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::low_level::pipe;

/// SIGINT, SIGTERM and SIGHUP, caught as long as the process lives: from the first one on, its descriptor can be read.
#[derive(Debug)]
pub(crate) struct Signals {
    pipe: UnixStream,
}

impl Signals {
    /// Catches them. A SIGHUP that is ignored, as nohup(1) has it, stays ignored.
    ///
    /// # Errors
    /// The kernel's.
    pub(crate) fn catch() -> io::Result<Self> {
        let (ours, handlers) = UnixStream::pair()?;
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            if signal != SIGHUP || !is_ignored(SIGHUP) {
                pipe::register(signal, handlers.try_clone()?)?;
            }
        }
        Ok(Self { pipe: ours })
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

/// Whether a signal is ignored now. See `proc_pid_status(5)`.
fn is_ignored(signal: i32) -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    (mask >> (signal - 1)) & 1 == 1
}
