//! The processes, as the demo sees them: started, asked, waited for within bounds, killed at the end.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::io::{self, BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{self, ChildStdin, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use super::protocol::{Command, Fault, Report};
use crate::frame::{self, FrameError};
use crate::ui::{Who, forward};

/// The demo cannot go on.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// A role could not be started.
    #[error("{} cannot be started: {error}", who.name())]
    Start { who: Who, error: io::Error },
    /// A role ended.
    #[error("{} ended {during}: {how}{last_words}", who.name())]
    Ended { who: Who, during: String, how: String, last_words: String },
    /// A role did not answer.
    #[error("{} has not answered within {} s {during}", who.name(), patience.as_secs())]
    Silent { who: Who, during: String, patience: Duration },
    /// A role answered what it should not.
    #[error("{} does not keep to the protocol {during}: {error}", who.name())]
    Protocol { who: Who, during: String, error: String },
    /// The library refused what should have worked.
    #[error("{} {during}: {} (remedy: {})", who.name(), fault.error, fault.remedy)]
    Refused { who: Who, during: String, fault: Fault },
    /// Standard output is closed.
    #[error("standard output: {0}")]
    Output(#[from] io::Error),
}

/// How long a role may need to end after it has closed its pipe.
const LAST_BREATH: Duration = Duration::from_secs(2);

/// How long a role may be dying before that can be seen: its files are closed first.
const LAST_SIGN: Duration = Duration::from_millis(200);

/// Where `ip` may be (iproute2): the roles have no `PATH`.
const IP: [&str; 4] = ["/usr/sbin/ip", "/sbin/ip", "/usr/bin/ip", "/bin/ip"];

/// A role to start.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Start<'a> {
    pub(crate) who: Who,
    /// The command of this program that it is.
    pub(crate) command: &'a str,
    /// The network namespace to run it in; `None`: this process's.
    pub(crate) netns: Option<&'a str>,
}

impl Start<'_> {
    /// This program, to be started there.
    fn program(&self) -> io::Result<process::Command> {
        let this = std::env::current_exe()?;
        let Some(netns) = self.netns else { return Ok(process::Command::new(this)) };
        let ip = IP.iter().find(|path| Path::new(path).exists());
        let ip =
            ip.ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "there is no `ip`: install iproute2"))?;
        let mut program = process::Command::new(ip);
        program.args(["netns", "exec", netns]).arg(this);
        Ok(program)
    }
}

enum Event {
    Report(Report),
    Closed,
    Bad(FrameError),
}

/// The roles.
pub(crate) struct Roles {
    children: Vec<Child>,
    events: Receiver<(Who, Event)>,
    early: VecDeque<(Who, Report)>,
    patience: Duration,
    during: String,
}

impl Roles {
    /// Starts these, each by its command, with three pipes and of the environment with `variables` only. Each answer is waited for as
    /// long as `patience` at most.
    ///
    /// # Errors
    /// [`Failure::Start`].
    pub(crate) fn start(
        roles: &[Start<'_>],
        variables: &[(OsString, OsString)],
        patience: Duration,
    ) -> Result<Self, Failure> {
        let (to, events) = mpsc::channel();
        let mut children = Vec::new();
        for start in roles {
            children.push(Child::start(start, variables, &to)?);
        }
        let during = "at the beginning".to_owned();
        Ok(Self { children, events, early: VecDeque::new(), patience, during })
    }

    /// Says what is being done, for errors: `in part 1`.
    pub(crate) fn now(&mut self, during: String) {
        self.during = during;
    }

    /// Gives a command.
    ///
    /// # Errors
    /// The role has ended.
    pub(crate) fn tell(&mut self, who: Who, command: &Command) -> Result<(), Failure> {
        let stdin = self.child(who).and_then(|child| child.stdin.as_mut());
        match stdin.map(|stdin| frame::send(stdin, command)) {
            Some(Ok(())) => Ok(()),
            Some(Err(error)) if !is_broken_pipe(&error) => Err(self.protocol(who, error.to_string())),
            _ => Err(self.ended(who)),
        }
    }

    /// Waits for a report.
    ///
    /// # Errors
    /// None came; or a role, whichever, has ended.
    pub(crate) fn wait(&mut self, who: Who) -> Result<Report, Failure> {
        if let Some(at) = self.early.iter().position(|(from, _)| *from == who)
            && let Some((_, report)) = self.early.remove(at)
        {
            return Ok(report);
        }
        let deadline = Instant::now() + self.patience;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.events.recv_timeout(left) {
                Ok((from, Event::Report(report))) if from == who => return Ok(report),
                Ok((from, Event::Report(report))) => self.early.push_back((from, report)),
                Ok((from, Event::Closed)) => {
                    if self.child(from).is_none_or(|child| !child.is_killed) {
                        return Err(self.ended(from));
                    }
                }
                Ok((from, Event::Bad(error))) => return Err(self.protocol(from, error.to_string())),
                Err(RecvTimeoutError::Timeout) => {
                    return Err(Failure::Silent {
                        who,
                        during: self.during.clone(),
                        patience: self.patience,
                    });
                }
                Err(RecvTimeoutError::Disconnected) => return Err(self.ended(who)),
            }
        }
    }

    /// Gives a command, and waits for its answer.
    ///
    /// # Errors
    /// As [`Roles::wait`].
    pub(crate) fn ask(&mut self, who: Who, command: &Command) -> Result<Report, Failure> {
        self.tell(who, command)?;
        self.wait(who)
    }

    /// A report that is not the one expected.
    pub(crate) fn unexpected(&mut self, who: Who, report: Report) -> Failure {
        if let Err(failure) = self.all_alive() {
            return failure;
        }
        let during = self.during.clone();
        match report {
            Report::Failed { fault } | Report::Refused { fault, .. } => {
                Failure::Refused { who, during, fault }
            }
            other => self.protocol(who, format!("an unexpected answer: {other:?}")),
        }
    }

    /// Kills a role (SIGKILL), and returns when it is gone.
    ///
    /// # Errors
    /// It cannot be killed.
    pub(crate) fn kill(&mut self, who: Who) -> io::Result<()> {
        let Some(child) = self.child(who) else { return Ok(()) };
        child.is_killed = true;
        child.process.kill()?;
        child.process.wait()?;
        Ok(())
    }

    /// Sends a role a signal.
    ///
    /// # Errors
    /// It has ended, or the kernel's.
    pub(crate) fn signal(&mut self, who: Who, signal: Signal) -> Result<(), Failure> {
        self.all_alive_now()?;
        let Some(child) = self.child(who) else { return Ok(()) };
        // It is ours and has not been waited for: the number is nobody else's.
        Ok(kill_process(Pid::from_child(&child.process), signal).map_err(io::Error::from)?)
    }

    fn child(&mut self, who: Who) -> Option<&mut Child> {
        self.children.iter_mut().find(|child| child.who == who)
    }

    /// Asked when something is not as it should be: that may come of a role's death, which then is what there is to tell.
    /// Takes [`LAST_SIGN`] when all is well.
    ///
    /// # Errors
    /// A role has ended.
    pub(crate) fn all_alive(&mut self) -> Result<(), Failure> {
        let deadline = Instant::now() + LAST_SIGN;
        while Instant::now() < deadline {
            self.all_alive_now()?;
            thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    fn all_alive_now(&mut self) -> Result<(), Failure> {
        let ended = |child: &mut Child| !child.is_killed && matches!(child.process.try_wait(), Ok(Some(_)));
        let who = self.children.iter_mut().find_map(|child| ended(child).then_some(child.who));
        who.map_or(Ok(()), |who| Err(self.ended(who)))
    }

    fn protocol(&self, who: Who, error: String) -> Failure {
        Failure::Protocol { who, during: self.during.clone(), error }
    }

    fn ended(&mut self, who: Who) -> Failure {
        let during = self.during.clone();
        let Some(child) = self.child(who) else {
            return Failure::Ended {
                who,
                during,
                how: "it was not started".to_owned(),
                last_words: String::new(),
            };
        };
        let how = child.status().map_or_else(|| "it has closed its pipes".to_owned(), describe);
        let last_words = child.last_words().map(|words| format!("; it said: {words}")).unwrap_or_default();
        Failure::Ended { who, during, how, last_words }
    }
}

fn is_broken_pipe(error: &FrameError) -> bool {
    matches!(error, FrameError::Io(error) if error.kind() == io::ErrorKind::BrokenPipe)
}

fn describe(status: ExitStatus) -> String {
    match (status.signal(), status.code()) {
        (Some(9), _) => "killed by signal 9 (SIGKILL)".to_owned(),
        (Some(signal), _) => format!("killed by signal {signal}"),
        (None, Some(code)) => format!("exit status {code}"),
        (None, None) => status.to_string(),
    }
}

/// One role's process; killed when dropped.
struct Child {
    who: Who,
    process: process::Child,
    stdin: Option<ChildStdin>,
    /// Forwards its standard error; ends with the last line.
    errors: Option<JoinHandle<Option<String>>>,
    is_killed: bool,
}

impl Child {
    fn start(
        start: &Start<'_>,
        variables: &[(OsString, OsString)],
        to: &Sender<(Who, Event)>,
    ) -> Result<Self, Failure> {
        let who = start.who;
        let failed = |error| Failure::Start { who, error };
        let mut process = start
            .program()
            .and_then(|mut program| {
                program
                    .arg(start.command)
                    .env_clear()
                    .envs(variables.iter().map(|(name, value)| (name, value)))
                    .stdin(Stdio::piped())
                    .stdout(Stdio::piped())
                    .stderr(Stdio::piped())
                    .spawn()
            })
            .map_err(failed)?;
        let (stdin, stdout, stderr) = (process.stdin.take(), process.stdout.take(), process.stderr.take());
        // From here on dropping it kills the process.
        let mut child = Self { who, process, stdin, errors: None, is_killed: false };
        if let Some(mut stdout) = stdout {
            let to = to.clone();
            let read = move || loop {
                let (event, last) = match frame::receive(&mut stdout) {
                    Ok(Some(report)) => (Event::Report(report), false),
                    Ok(None) | Err(FrameError::Cut) => (Event::Closed, true),
                    Err(error) => (Event::Bad(error), true),
                };
                if to.send((who, event)).is_err() || last {
                    return;
                }
            };
            thread::Builder::new().name(format!("{}-reports", who.name())).spawn(read).map_err(failed)?;
        }
        if let Some(stderr) = stderr {
            let read = move || {
                let mut last = None;
                for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                    forward(who, &line);
                    last = Some(line);
                }
                last
            };
            let name = format!("{}-errors", who.name());
            child.errors = Some(thread::Builder::new().name(name).spawn(read).map_err(failed)?);
        }
        Ok(child)
    }

    /// How it ended, if it does so soon.
    fn status(&mut self) -> Option<ExitStatus> {
        let deadline = Instant::now() + LAST_BREATH;
        loop {
            match self.process.try_wait() {
                Ok(Some(status)) => return Some(status),
                Ok(None) if Instant::now() < deadline => thread::sleep(Duration::from_millis(5)),
                _ => return None,
            }
        }
    }

    /// The last line it wrote to standard error; asked when it has ended.
    fn last_words(&mut self) -> Option<String> {
        self.status()?;
        self.errors.take()?.join().ok()?
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // Of a process that has ended already, neither does anything.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
