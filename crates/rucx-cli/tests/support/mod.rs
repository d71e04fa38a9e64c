//! The command, started; nothing in here waits for ever.

#![allow(clippy::unwrap_used)] // what fails here is a failed test

use std::fs;
use std::io::{self, BufRead, BufReader, Read};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Output, Stdio};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use testkit::{Deny, Filter};

const PATIENCE: Duration = Duration::from_secs(60);

/// The command, with an environment that says nothing of colours, levels and transports.
pub(crate) fn rucx(args: &[&str]) -> Command {
    let built = Path::new(env!("CARGO_BIN_EXE_rucx"));
    // In the guest of `cargo xtask rxe` it is elsewhere.
    let mut command = Command::new(if built.exists() { built } else { Path::new("/bin/rucx") });
    command.args(args).env_clear().env("LC_ALL", "C.UTF-8").stdin(Stdio::null());
    command
}

/// What a process does to itself before it becomes the command: system calls that may be made between fork and exec, and nothing that
/// allocates.
pub(crate) type Change = Arc<dyn Fn() -> io::Result<()> + Send + Sync>;

/// Has the command's process change itself first.
pub(crate) fn changed<'a>(command: &'a mut Command, change: &Change) -> &'a mut Command {
    let change = Arc::clone(change);
    // SAFETY: it does what may be done there, as its type demands.
    unsafe { command.pre_exec(move || change()) }
}

/// Has system calls refused.
pub(crate) fn denying(calls: &[Deny]) -> Change {
    let filter = Filter::of(calls);
    Arc::new(move || filter.set())
}

/// Runs it to its end; kills it when that takes too long.
pub(crate) fn finish(command: &mut Command) -> Output {
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let pid = Pid::from_child(&child);
    let (done, watch) = mpsc::channel::<()>();
    let watchdog = thread::spawn(move || {
        if watch.recv_timeout(PATIENCE) == Err(mpsc::RecvTimeoutError::Timeout) {
            let _ = kill_process(pid, Signal::KILL);
        }
    });
    let output = child.wait_with_output().unwrap();
    drop(done);
    watchdog.join().unwrap();
    output
}

/// As text.
pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// Numbers of some length are no secrets; handles have tokens of 16 bytes.
pub(crate) fn assert_no_secret(output: &str) {
    assert!(!output.contains("RXMH"), "a handle begins with RXMH: {output}");
    let hex = |c: char| !c.is_ascii_hexdigit();
    // Addresses have at most 16 digits.
    assert!(output.split(hex).all(|word| word.len() <= 16), "a long hexadecimal number: {output}");
    let bytes = |c: char| !(c.is_ascii_digit() || ", ".contains(c));
    let list = |part: &str| part.split(", ").filter(|number| number.parse::<u8>().is_ok()).count();
    assert!(output.split(bytes).all(|part| list(part) < 8), "a list of bytes: {output}");
}

/// A command under way; killed when dropped, and when it takes too long.
#[derive(Debug)]
pub(crate) struct Running {
    child: Child,
    output: Option<BufReader<ChildStdout>>,
    story: String,
    _done: mpsc::Sender<()>,
}

impl Running {
    /// Starts it.
    pub(crate) fn start(args: &[&str]) -> Self {
        Self::of(&mut rucx(args))
    }

    /// Starts this command.
    pub(crate) fn of(command: &mut Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let output = child.stdout.take().map(BufReader::new);
        let pid = Pid::from_child(&child);
        let (done, watch) = mpsc::channel::<()>();
        thread::spawn(move || {
            if watch.recv_timeout(PATIENCE) == Err(mpsc::RecvTimeoutError::Timeout) {
                let _ = kill_process(pid, Signal::KILL);
            }
        });
        Self { child, output, story: String::new(), _done: done }
    }

    /// Its process.
    pub(crate) fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    /// What it prints.
    pub(crate) fn output(&mut self) -> &mut BufReader<ChildStdout> {
        self.output.as_mut().unwrap()
    }

    /// Its standard input, if that is a pipe.
    pub(crate) fn input(&mut self) -> ChildStdin {
        self.child.stdin.take().unwrap()
    }

    /// Reads on no more.
    pub(crate) fn close_output(&mut self) {
        self.output = None;
    }

    /// Reads until a line contains `part`.
    pub(crate) fn wait_for(&mut self, part: &str) {
        loop {
            let begin = self.story.len();
            let output = self.output.as_mut().unwrap();
            let read = output.read_line(&mut self.story).unwrap();
            assert!(read > 0, "it ended before {part:?}: {}", self.story);
            if self.story[begin..].contains(part) {
                return;
            }
        }
    }

    /// Reads until a line contains `part`, or to the end; whether one did.
    pub(crate) fn tells(&mut self, part: &str) -> bool {
        loop {
            let begin = self.story.len();
            let read = self.output.as_mut().unwrap().read_line(&mut self.story).unwrap();
            if read == 0 || self.story[begin..].contains(part) {
                return read > 0;
            }
        }
    }

    /// Sends it a signal.
    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(self.pid(), signal).unwrap();
    }

    /// The process of a role, found by its command line among the demo's children.
    pub(crate) fn role(&self, role: &str) -> Pid {
        let pid = self.child.id();
        let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
        let is_role = |child: &&str| {
            let line = fs::read(format!("/proc/{child}/cmdline")).unwrap_or_default();
            line.split(|byte| *byte == 0).any(|arg| arg == role.as_bytes())
        };
        let child = children.split_ascii_whitespace().find(is_role);
        Pid::from_raw(child.unwrap().parse().unwrap()).unwrap()
    }

    /// Its exit status, and what it printed.
    pub(crate) fn finish(mut self) -> (ExitStatus, String) {
        let mut story = std::mem::take(&mut self.story);
        if let Some(mut output) = self.output.take() {
            output.read_to_string(&mut story).unwrap();
        }
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return (status, story);
            }
            assert!(Instant::now() < deadline, "it has not ended: {story}");
            thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
