//! The test's side of a role: starting the process, talking to it, stopping and killing it.

use std::ffi::CString;
use std::fmt;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use rustix::event::PollFlags;
use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, fcntl_setpipe_size, pipe_with};
use rustix::process::{Signal, WaitId, WaitIdOptions, pidfd_send_signal, waitid};

use crate::frame::{self, Drained};
use crate::harness::{self, skip};
use crate::{role, seed, sys, watchdog};

/// How long a [`Child`] is waited for unless [`Role::deadline`] says otherwise.
const DEADLINE: Duration = Duration::from_secs(20);

/// Variables a role gets although nobody passed them: what finding programs, backtraces, coverage and sanitizers need.
const KEPT: [&str; 6] =
    ["PATH", "RUST_BACKTRACE", "RUCX_TEST_SCALE", "LLVM_PROFILE_FILE", "TSAN_OPTIONS", "ASAN_OPTIONS"];

/// A role about to be started: this binary, run again as a process of its own.
///
/// The process gets the variables passed (and `PATH`, `RUST_BACKTRACE`, `RUCX_TEST_SCALE`, `LLVM_PROFILE_FILE`, `TSAN_OPTIONS`,
/// `ASAN_OPTIONS`, `RUCX_SEED`), no descriptor beyond 0, 1 and 2, and SIGKILL when the **thread** that started it ends.
#[derive(Clone, Debug)]
pub struct Role {
    name: String,
    args: Vec<String>,
    env: Vec<(String, String)>,
    namespaces: i32,
    netns: Option<PathBuf>,
    uid: Option<u32>,
    deadline: Duration,
}

impl Role {
    /// The role of this name in the list given to [`crate::main!`].
    pub fn new(name: impl Into<String>) -> Self {
        let (args, env) = (Vec::new(), Vec::new());
        Self { name: name.into(), args, env, namespaces: 0, netns: None, uid: None, deadline: DEADLINE }
    }

    /// Starts the role without options.
    ///
    /// # Panics
    /// It cannot be started.
    #[must_use]
    pub fn spawn(name: impl Into<String>) -> Child {
        Self::new(name).start()
    }

    /// One more argument, for [`role::args`].
    #[must_use]
    pub fn arg(mut self, arg: impl Into<String>) -> Self {
        self.args.push(arg.into());
        self
    }

    /// One more variable of the environment.
    #[must_use]
    pub fn env(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.env.push((name.into(), value.into()));
        self
    }

    /// In a network namespace of its own: no abstract unix socket outside is reachable, loopback is down. Needs root.
    #[must_use]
    pub fn in_new_netns(mut self) -> Self {
        self.namespaces |= libc::CLONE_NEWNET;
        self
    }

    /// In the network namespace that this file stands for, as those in `/run/netns` that `ip netns add` makes. Needs root.
    #[must_use]
    pub fn in_netns(mut self, file: impl Into<PathBuf>) -> Self {
        self.netns = Some(file.into());
        self
    }

    /// In a pid namespace of its own, as its pid 1. `/proc` stays the one outside. Needs root.
    #[must_use]
    pub fn in_new_pidns(mut self) -> Self {
        self.namespaces |= libc::CLONE_NEWPID;
        self
    }

    /// In a mount namespace of its own. Needs root.
    #[must_use]
    pub fn in_new_mountns(mut self) -> Self {
        self.namespaces |= libc::CLONE_NEWNS;
        self
    }

    /// In a user namespace of its own, with all rights over it, its user and group mapped to themselves. Does not go with
    /// [`Self::as_uid`], whose user would not be mapped.
    #[must_use]
    pub fn in_new_userns(mut self) -> Self {
        self.namespaces |= libc::CLONE_NEWUSER;
        self
    }

    /// As this user and the group of the same number, without supplementary groups, still dumpable. Needs root.
    #[must_use]
    pub fn as_uid(mut self, uid: u32) -> Self {
        self.uid = Some(uid);
        self
    }

    /// The bound of each call that waits for the role. Default: 20 s.
    #[must_use]
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    /// Starts the role. Where this user may not (namespaces, another user), the test is skipped with that reason.
    ///
    /// # Panics
    /// It cannot be started for another reason.
    #[must_use]
    pub fn start(self) -> Child {
        let privileged = self.namespaces != 0 || self.netns.is_some() || self.uid.is_some();
        let name = self.name.clone();
        match self.try_start() {
            Ok(child) => child,
            Err(error) if privileged && error.kind() == io::ErrorKind::PermissionDenied => skip(
                format!("role {name:?} needs a namespace or another user ({error})"),
                "run the tests as root",
            ),
            Err(error) => panic!("role {name:?} cannot be started: {error}"),
        }
    }

    /// Starts the role.
    ///
    /// # Errors
    /// Of the step that failed, or of opening the network namespace; `PermissionDenied` where a namespace or another user is out of reach.
    ///
    /// # Panics
    /// A name, argument or variable holds a NUL; a user namespace, and another user or another's network namespace at once.
    pub fn try_start(self) -> io::Result<Child> {
        assert!(
            (self.uid.is_none() && self.netns.is_none()) || self.namespaces & libc::CLONE_NEWUSER == 0,
            "a new user namespace, where other users are not mapped, and which has no rights over what was there before"
        );
        let string = |s: &str| CString::new(s).expect("no NUL in names, arguments and variables");
        let exe = std::env::current_exe()?;
        let mut argv = vec![string(&exe.to_string_lossy()), string(role::FLAG), string(&self.name)];
        argv.extend(self.args.iter().map(|arg| string(arg)));
        let mut env: Vec<(String, String)> = Vec::new();
        env.extend(KEPT.iter().filter_map(|&name| Some((name.to_owned(), std::env::var(name).ok()?))));
        env.extend(seed::variable().map(|value| (seed::VARIABLE.to_owned(), value)));
        for (name, value) in self.env {
            env.retain(|(known, _)| *known != name);
            env.push((name, value));
        }
        let envp = env.iter().map(|(name, value)| string(&format!("{name}={value}"))).collect();

        let netns = self.netns.as_ref().map(File::open).transpose()?;
        let (role_in, to_role) = pipe_with(PipeFlags::CLOEXEC)?;
        let (from_role, role_out) = pipe_with(PipeFlags::CLOEXEC)?;
        let (stderr, role_err) = pipe_with(PipeFlags::CLOEXEC)?;
        // Nobody reads stderr while the test does something else. Where the limit is lower, that size stays.
        let _ = fcntl_setpipe_size(&stderr, 1 << 20);
        for end in [&to_role, &from_role, &stderr] {
            let flags = rustix::fs::fcntl_getfl(end)?;
            rustix::fs::fcntl_setfl(end, flags | OFlags::NONBLOCK)?;
        }
        let spawned = sys::spawn(&sys::Spawn {
            argv,
            envp,
            stdio: [role_in.as_fd(), role_out.as_fd(), role_err.as_fd()],
            namespaces: self.namespaces,
            netns: netns.as_ref().map(|file| file.as_fd()),
            ids: self.uid.map(|uid| (uid, uid)),
        })?;
        watchdog::child_started(spawned.pid, &self.name);
        Ok(Child {
            name: self.name,
            pid: spawned.pid,
            pidfd: spawned.pidfd,
            to_role: Some(to_role),
            from_role,
            frames: Vec::new(),
            stderr,
            stderr_text: Vec::new(),
            exit: None,
            deadline: self.deadline,
        })
    }
}

/// How a role ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// By itself, with this status. A role that panics ends with 101.
    Code(i32),
    /// By this signal.
    Signal(i32),
}

/// Why [`Child::try_recv`] has no frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecvError {
    /// Nothing came in time.
    Timeout,
    /// The role has closed its end: it is gone.
    Closed,
    /// Something other than a frame came.
    Garbage,
}

/// A running role. Dropped, it is killed and reaped; while the test is panicking, its stderr is shown.
#[derive(Debug)]
pub struct Child {
    name: String,
    pid: i32,
    pidfd: OwnedFd,
    to_role: Option<OwnedFd>,
    from_role: OwnedFd,
    frames: Vec<u8>,
    stderr: OwnedFd,
    stderr_text: Vec<u8>,
    exit: Option<Exit>,
    deadline: Duration,
}

impl Child {
    /// Its number in this process's pid namespace.
    #[must_use]
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// Its descriptor: readable once it has ended.
    #[must_use]
    pub fn pidfd(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }

    /// Sends a frame, for [`role::recv`].
    ///
    /// # Panics
    /// The role is gone, or does not take it within the deadline.
    pub fn send(&mut self, payload: &[u8]) {
        let bytes = frame::encode(payload);
        let mut left = bytes.as_slice();
        let deadline = Instant::now() + self.deadline;
        while !left.is_empty() {
            let to_role = self.to_role.as_ref().expect("frames to the role are closed");
            match rustix::io::write(to_role, left) {
                Ok(n) => left = &left[n..],
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => {
                    let fds = [(to_role.as_fd(), PollFlags::OUT), (self.stderr.as_fd(), PollFlags::IN)];
                    assert!(frame::wait(&fds, deadline), "role {self} does not take a frame");
                    frame::drain(&self.stderr, &mut self.stderr_text);
                }
                Err(error) => panic!("role {self} does not take a frame: {error}"),
            }
        }
    }

    /// Closes the way to the role: its [`role::try_recv`] answers `None`.
    pub fn close(&mut self) {
        self.to_role = None;
    }

    /// The next frame.
    ///
    /// # Panics
    /// None within the deadline, or the role is gone.
    #[must_use]
    pub fn recv(&mut self) -> Vec<u8> {
        match self.try_recv(self.deadline) {
            Ok(payload) => payload,
            Err(RecvError::Closed) => {
                let exit = self.wait(self.deadline);
                panic!("no frame from role {self}: it ended with {exit:?}")
            }
            Err(error) => panic!("no frame from role {self} in {:?}: {error:?}", self.deadline),
        }
    }

    /// The next frame, within `patience`.
    ///
    /// # Errors
    /// [`RecvError`]
    pub fn try_recv(&mut self, patience: Duration) -> Result<Vec<u8>, RecvError> {
        let deadline = Instant::now() + patience;
        let mut stderr_open = true;
        loop {
            let state = frame::drain(&self.from_role, &mut self.frames);
            match frame::decode(&mut self.frames) {
                Ok(Some(payload)) => return Ok(payload),
                Ok(None) if state == Drained::Closed => return Err(RecvError::Closed),
                Ok(None) => {}
                Err(_) => return Err(RecvError::Garbage),
            }
            let mut fds = vec![(self.from_role.as_fd(), PollFlags::IN)];
            if stderr_open {
                fds.push((self.stderr.as_fd(), PollFlags::IN));
            }
            if !frame::wait(&fds, deadline) {
                return Err(RecvError::Timeout);
            }
            stderr_open = frame::drain(&self.stderr, &mut self.stderr_text) == Drained::Open;
        }
    }

    /// Sends a frame and waits for the next.
    ///
    /// # Panics
    /// As [`Self::send`] and [`Self::recv`].
    #[must_use]
    pub fn request(&mut self, payload: &[u8]) -> Vec<u8> {
        self.send(payload);
        self.recv()
    }

    /// Waits until the role has ended, and reaps it; `None` when it still runs after `patience`.
    ///
    /// # Panics
    /// The kernel refuses to wait for it.
    pub fn wait(&mut self, patience: Duration) -> Option<Exit> {
        if self.exit.is_some() {
            return self.exit;
        }
        let deadline = Instant::now() + patience;
        let mut stderr_open = true;
        loop {
            let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG;
            match waitid(WaitId::PidFd(self.pidfd.as_fd()), options) {
                Ok(None) | Err(Errno::INTR) => {}
                Ok(Some(status)) => {
                    let signal = status.terminating_signal();
                    let exit =
                        signal.map_or_else(|| Exit::Code(status.exit_status().unwrap_or(-1)), Exit::Signal);
                    watchdog::child_ended(self.pid);
                    frame::drain(&self.stderr, &mut self.stderr_text);
                    harness::note_rounds(&self.name, &String::from_utf8_lossy(&self.stderr_text));
                    self.exit = Some(exit);
                    return self.exit;
                }
                Err(error) => panic!("waitid for role {self}: {error}"),
            }
            let mut fds = vec![(self.pidfd.as_fd(), PollFlags::IN)];
            if stderr_open {
                fds.push((self.stderr.as_fd(), PollFlags::IN));
            }
            if !frame::wait(&fds, deadline) {
                return None;
            }
            stderr_open = frame::drain(&self.stderr, &mut self.stderr_text) == Drained::Open;
        }
    }

    /// Waits until the role has ended by itself with this status.
    ///
    /// # Panics
    /// It ends otherwise, or not within the deadline.
    pub fn expect_exit(&mut self, code: i32) {
        let exit = self.wait(self.deadline);
        assert_eq!(
            exit,
            Some(Exit::Code(code)),
            "role {self} ended otherwise (None: still runs after {:?})",
            self.deadline
        );
    }

    /// Waits until the role has been ended by this signal.
    ///
    /// # Panics
    /// It ends otherwise, or not within the deadline.
    pub fn expect_signal(&mut self, signal: Signal) {
        let exit = self.wait(self.deadline);
        assert_eq!(
            exit,
            Some(Exit::Signal(signal.as_raw())),
            "role {self} ended otherwise (None: still runs after {:?})",
            self.deadline
        );
    }

    /// Sends a signal.
    ///
    /// # Panics
    /// The role has ended.
    pub fn signal(&self, signal: Signal) {
        if let Err(error) = pidfd_send_signal(&self.pidfd, signal) {
            panic!("{signal:?} to role {self}: {error}");
        }
    }

    /// Kills the role (SIGKILL) and reaps it. To leave it a zombie, send [`Signal::KILL`] with [`Self::signal`].
    ///
    /// # Panics
    /// It had ended before, or does not go within the deadline.
    pub fn kill(&mut self) {
        self.signal(Signal::KILL);
        self.expect_signal(Signal::KILL);
    }

    /// Stops the role (SIGSTOP), and returns when the kernel says that each of its threads has stopped.
    ///
    /// # Panics
    /// It does not stop within the deadline.
    pub fn stop(&self) {
        self.signal(Signal::STOP);
        self.wait_for_states("stop", |state| state == 'T');
    }

    /// Lets a stopped role go on (SIGCONT), and returns when the kernel says so.
    ///
    /// # Panics
    /// It does not go on within the deadline.
    pub fn cont(&self) {
        self.signal(Signal::CONT);
        self.wait_for_states("go on", |state| state != 'T');
    }

    /// The role's stderr, and what it printed to stdout, so far.
    #[must_use]
    pub fn stderr(&mut self) -> String {
        frame::drain(&self.stderr, &mut self.stderr_text);
        String::from_utf8_lossy(&self.stderr_text).into_owned()
    }

    /// Source: `proc_pid_stat(5)`: the state follows the name, which is in parentheses and may hold anything.
    fn wait_for_states(&self, what: &str, wanted: impl Fn(char) -> bool) {
        let deadline = Instant::now() + self.deadline;
        loop {
            let states = watchdog::task_states(self.pid);
            if !states.is_empty() && states.iter().all(|&state| wanted(state)) {
                return;
            }
            assert!(
                Instant::now() < deadline,
                "role {self} does not {what} in {:?}: its threads are {states:?}",
                self.deadline
            );
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

impl fmt::Display for Child {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} (pid {})", self.name, self.pid)
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        let died_first = self.exit;
        if self.exit.is_none() {
            let _ = pidfd_send_signal(&self.pidfd, Signal::KILL);
            // Not `expect`: a panic in a drop while panicking would hide the first. The watchdog bounds what SIGKILL cannot end.
            let _ = waitid(WaitId::PidFd(self.pidfd.as_fd()), WaitIdOptions::EXITED);
            watchdog::child_ended(self.pid);
        }
        if std::thread::panicking() && !crate::harness::is_quiet() {
            let text = self.stderr();
            let end = died_first.map_or("still ran".to_owned(), |exit| format!("had ended with {exit:?}"));
            eprintln!(
                "--- role {self} {end}; its stderr:\n{}---",
                if text.is_empty() { "(nothing)\n" } else { &text }
            );
        }
    }
}
