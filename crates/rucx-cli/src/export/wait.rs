//! Waits for the end: Enter, a signal, or the time that was set.

use std::io::{self, IsTerminal, Read, Stdin};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::process::getpgrp;
use rustix::termios::tcgetpgrp;

use super::serve::Server;
use crate::signals::{Signals, timeout};

/// How often a program that runs in the background looks whether it does still.
const IN_BACKGROUND: Duration = Duration::from_millis(500);

/// What ended it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// The user, at the terminal.
    Enter,
    /// A signal.
    Signal,
    /// The time is over.
    Time,
}

impl End {
    /// In words.
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Enter => "ended at the terminal",
            Self::Signal => "ended by a signal",
            Self::Time => "the time is over",
        }
    }
}

/// Whether Enter can be waited for: standard input is a terminal.
pub(super) fn has_terminal() -> bool {
    io::stdin().is_terminal()
}

/// Whether reading from the terminal does not stop this process, as `SIGTTIN` does in the background (`termios(3)`). Of a
/// terminal that does not control this session nothing is answered, and nobody is stopped.
fn is_in_foreground(stdin: &Stdin) -> bool {
    tcgetpgrp(stdin).map_or(true, |group| group == getpgrp())
}

/// Waits, and serves meanwhile.
///
/// # Errors
/// The kernel's.
pub(super) fn until_the_end(
    signals: &Signals,
    mut server: Option<&mut Server<'_>>,
    until: Option<Instant>,
) -> io::Result<End> {
    let mut stdin = has_terminal().then(io::stdin);
    loop {
        if let Some(server) = &mut server {
            server.go_on();
        }
        let now = Instant::now();
        if until.is_some_and(|until| now >= until) {
            return Ok(End::Time);
        }
        let in_foreground = stdin.as_ref().is_some_and(is_in_foreground);
        let look_again = (stdin.is_some() && !in_foreground).then_some(now + IN_BACKGROUND);
        let next = server.as_ref().and_then(|server| server.next());
        let wait = [until, look_again, next].into_iter().flatten().min();
        let wait = wait.map(|at| timeout(at.saturating_duration_since(now)));

        let mut fds = vec![PollFd::new(signals, PollFlags::IN)];
        if let Some(stdin) = stdin.as_ref().filter(|_| in_foreground) {
            fds.push(PollFd::new(stdin, PollFlags::IN));
        }
        let of_server = fds.len();
        if let Some(server) = &server {
            server.waits_for(&mut fds);
        }
        match poll(&mut fds, wait.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
        let ready: Vec<bool> = fds[..of_server].iter().map(|fd| !fd.revents().is_empty()).collect();
        drop(fds);
        if ready.first() == Some(&true) {
            return Ok(End::Signal);
        }
        if ready.get(1) == Some(&true)
            && let Some(from) = &mut stdin
        {
            match from.read(&mut [0; 1024]) {
                // Its end, too, comes from the user: Ctrl-D.
                Ok(_) => return Ok(End::Enter),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // The terminal is gone.
                Err(_) => stdin = None,
            }
        }
    }
}
