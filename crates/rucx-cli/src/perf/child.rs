//! The peer's process: started, asked, waited for within bounds, killed at the end.

use std::cell::{Cell, RefCell};
use std::ffi::OsString;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::{self, ChildStdin, ChildStdout, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;

use super::Problem;
use super::protocol::{Answer, Command};
use super::side::{PATIENCE, silent};
use crate::frame::{self, FrameError};
use crate::signals::timeout;

/// How long it may need to end once it has closed its pipe, or was asked to.
const LAST_BREATH: Duration = Duration::from_secs(2);

const AGAIN: &str = "measure again; what it has printed above may say more";

/// Killed when dropped.
#[derive(Debug)]
pub(super) struct Child {
    process: RefCell<process::Child>,
    stdin: RefCell<Option<ChildStdin>>,
    stdout: RefCell<ChildStdout>,
    ended: Cell<Option<ExitStatus>>,
}

impl Child {
    /// Starts it, with these variables only. What it prints to standard error goes where ours goes.
    pub(super) fn start(variables: &[(OsString, OsString)]) -> Result<Self, Problem> {
        let started = std::env::current_exe().and_then(|program| {
            process::Command::new(program)
                .arg("perf-peer")
                .env_clear()
                .envs(variables.iter().map(|(name, value)| (name, value)))
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
        });
        let cannot = |error: io::Error| {
            Problem::new(
                "the peer process cannot be started",
                error.to_string(),
                "see whether limits stand in the way: ulimit -u",
            )
        };
        let mut process = started.map_err(cannot)?;
        let (stdin, stdout) = (process.stdin.take(), process.stdout.take());
        let stdout = stdout.ok_or_else(|| cannot(io::Error::other("it has no standard output")))?;
        Ok(Self {
            process: RefCell::new(process),
            stdin: RefCell::new(stdin),
            stdout: RefCell::new(stdout),
            ended: Cell::new(None),
        })
    }

    /// Whether it is there.
    pub(super) fn check(&self) -> Result<(), Problem> {
        if self.ended.get().is_none() {
            self.ended.set(self.process.borrow_mut().try_wait().ok().flatten());
        }
        self.ended.get().map_or(Ok(()), |status| Err(gone(&describe(status))))
    }

    /// Asks it, and waits for its first answer.
    pub(super) fn ask(&self, command: &Command) -> Result<Answer, Problem> {
        let sent = self.stdin.borrow_mut().as_mut().map(|stdin| frame::send(stdin, command));
        match sent {
            Some(Ok(())) => self.answer(),
            Some(Err(error)) => Err(self.broken(&error)),
            None => Err(gone("its pipe was closed")),
        }
    }

    /// Waits for an answer.
    pub(super) fn answer(&self) -> Result<Answer, Problem> {
        let end = Instant::now() + PATIENCE;
        let mut stdout = self.stdout.borrow_mut();
        loop {
            let left = end.saturating_duration_since(Instant::now());
            match poll(&mut [PollFd::new(&*stdout, PollFlags::IN)], Some(&timeout(left))) {
                Ok(0) => return Err(silent()),
                Ok(_) => break,
                Err(Errno::INTR) => {}
                Err(errno) => return Err(Problem::new("cannot wait for the peer", errno.to_string(), AGAIN)),
            }
        }
        match frame::receive(&mut *stdout) {
            Ok(Some(answer)) => Ok(answer),
            Ok(None) => Err(self.broken(&FrameError::Cut)),
            Err(error) => Err(self.broken(&error)),
        }
    }

    /// Why it answers something else than was asked for.
    pub(super) fn unexpected(&self, answer: Answer) -> Problem {
        match answer {
            Answer::Failed { what, why, remedy } => {
                Problem { what: format!("the peer process: {what}"), why, remedy }
            }
            other => Problem::new(
                "the peer process does not keep to the protocol",
                format!("{other:?}"),
                "report it",
            ),
        }
    }

    /// Has it end.
    pub(super) fn end(&self) -> Result<(), Problem> {
        drop(self.stdin.take());
        match self.status() {
            Some(status) if status.success() => Ok(()),
            Some(status) => Err(gone(&describe(status))),
            None => Err(silent()),
        }
    }

    /// A pipe is closed: most likely because it has ended.
    fn broken(&self, error: &FrameError) -> Problem {
        gone(&self.status().map_or_else(|| error.to_string(), describe))
    }

    /// How it ended, if it does so soon.
    fn status(&self) -> Option<ExitStatus> {
        let end = Instant::now() + LAST_BREATH;
        while self.check().is_ok() && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(2));
        }
        self.ended.get()
    }
}

fn gone(how: &str) -> Problem {
    Problem::new("the peer process has ended", how, AGAIN)
}

fn describe(status: ExitStatus) -> String {
    match (status.signal(), status.code()) {
        (Some(signal), _) => format!("killed by signal {signal}"),
        (None, Some(code)) => format!("exit status {code}"),
        (None, None) => status.to_string(),
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // Of a process that has ended already, neither does anything.
        let process = self.process.get_mut();
        let _ = process.kill();
        let _ = process.wait();
    }
}
