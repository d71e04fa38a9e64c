//! The role's side: what runs in the process that [`crate::Role`] has started.
//!
//! Descriptors 0 and 1 of a role are `/dev/null` and the captured stderr: what a role or a library prints cannot disturb the
//! frames, which have descriptors of their own.

use std::os::fd::OwnedFd;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::event::PollFlags;
use rustix::io::Errno;
use std::os::fd::AsFd as _;

use crate::harness::{RoleFn, Skipped};
use crate::{frame, watchdog};

/// The first argument of a test binary that is started as a role.
pub(crate) const FLAG: &str = "--rucx-role";

/// How long [`recv`] waits before it calls the test dead.
const PATIENCE: Duration = Duration::from_secs(120);

/// The running role.
#[derive(Debug)]
struct State {
    args: Vec<String>,
    frames_in: OwnedFd,
    frames_out: OwnedFd,
    buffer: Mutex<Vec<u8>>,
}

static STATE: OnceLock<State> = OnceLock::new();

fn state() -> &'static State {
    STATE.get().expect("only inside a role")
}

/// Whether this process is a role.
#[must_use]
pub fn is_role() -> bool {
    STATE.get().is_some()
}

/// What [`crate::Role::arg`] has passed, in order.
///
/// # Panics
/// Outside a role.
#[must_use]
pub fn args() -> &'static [String] {
    &state().args
}

/// Sends a frame to the test.
///
/// # Panics
/// The test has closed its end; outside a role.
pub fn send(payload: &[u8]) {
    let bytes = frame::encode(payload);
    let mut left = bytes.as_slice();
    while !left.is_empty() {
        match rustix::io::write(&state().frames_out, left) {
            Ok(n) => left = &left[n..],
            Err(Errno::INTR) => {}
            Err(error) => panic!("the test does not listen: {error}"),
        }
    }
}

/// The next frame from the test.
///
/// # Panics
/// The test has closed its end, or sends nothing for two minutes; outside a role.
#[must_use]
pub fn recv() -> Vec<u8> {
    try_recv().expect("a frame from the test, which has closed its end")
}

/// The next frame from the test; `None` once it has closed its end.
///
/// # Panics
/// Nothing for two minutes; outside a role.
#[must_use]
pub fn try_recv() -> Option<Vec<u8>> {
    let state = state();
    let mut buffer = state.buffer.lock();
    let mut chunk = vec![0u8; 64 << 10];
    loop {
        match frame::decode(&mut buffer) {
            Ok(Some(payload)) => return Some(payload),
            Ok(None) => {}
            Err(len) => panic!("the test announces a frame of {len} bytes"),
        }
        let deadline = Instant::now() + PATIENCE;
        assert!(
            frame::wait(&[(state.frames_in.as_fd(), PollFlags::IN)], deadline),
            "no frame from the test in {PATIENCE:?}"
        );
        match rustix::io::read(&state.frames_in, &mut chunk) {
            Ok(0) => return None,
            Ok(n) => buffer.extend_from_slice(&chunk[..n]),
            Err(Errno::INTR) => {}
            Err(error) => panic!("frames: {error}"),
        }
    }
}

/// How many rounds a role makes here of so many: fewer where everything takes longer ([`watchdog::scale`]), which is said after the results.
#[must_use]
pub fn rounds(all: usize) -> usize {
    let scale = usize::try_from(watchdog::scale()).unwrap_or(usize::MAX);
    let some = (all / scale).max(1);
    if some < all {
        eprintln!("{ROUNDS}{some} of {all}");
    }
    some
}

/// The begin of a line on stderr by which a role says that.
pub(crate) const ROUNDS: &str = "rounds: ";

/// Runs the role named on the command line, if this process was started as one, and exits.
pub(crate) fn run_if_started(roles: &[(&str, RoleFn)]) {
    let mut args = std::env::args().skip(1);
    if args.next().as_deref() != Some(FLAG) {
        return;
    }
    let name = args.next().unwrap_or_default();
    let state = enter(args.collect());
    let name_c = std::ffi::CString::new(name.as_str()).expect("arguments hold no NUL");
    let _ = rustix::thread::set_name(&name_c);
    STATE.set(state).expect("entered once");
    let Some((_, role)) = roles.iter().find(|(known, _)| *known == name) else {
        eprintln!(
            "this binary has no role {name:?}; it has {:?}",
            roles.iter().map(|r| r.0).collect::<Vec<_>>()
        );
        std::process::exit(126);
    };
    let code = match std::panic::catch_unwind(role) {
        Ok(()) => 0,
        Err(payload) => {
            if let Some(Skipped { reason, .. }) = payload.downcast_ref() {
                eprintln!("skip() in a role ({reason}): a role tells its test, which skips");
            }
            101
        }
    };
    std::process::exit(code);
}

/// Moves the frames away from descriptors 0 and 1.
fn enter(args: Vec<String>) -> State {
    use rustix::stdio::{dup2_stdin, dup2_stdout, stderr, stdin, stdout};
    let move_away = |fd| rustix::io::fcntl_dupfd_cloexec(fd, 3).expect("a descriptor for frames");
    let (frames_in, frames_out) = (move_away(stdin()), move_away(stdout()));
    let null = std::fs::File::open("/dev/null").expect("/dev/null");
    dup2_stdin(&null).expect("dup2");
    dup2_stdout(stderr()).expect("dup2");
    // Some roles die on purpose.
    let core = rustix::process::getrlimit(rustix::process::Resource::Core);
    let none = rustix::process::Rlimit { current: Some(0), maximum: core.maximum };
    let _ = rustix::process::setrlimit(rustix::process::Resource::Core, none);
    State { args, frames_in, frames_out, buffer: Mutex::new(Vec::new()) }
}
