//! Where the handle comes from: a file, a socket, or standard input. Nothing is waited for longer than `UCX_IMPORT_TIMEOUT`.

use std::fs::{self, OpenOptions};
use std::io::{self, IsTerminal, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use ucp::wire::handle::MAX_LEN;
use ucs::time::Deadline;

use crate::leftover::{self, Leftover};
use crate::shell;
use crate::signals::timeout;
use crate::trouble::{Failure, Trouble};

/// A handle's bytes, as they were found: they may be anything.
pub(super) struct Found {
    pub(super) bytes: Vec<u8>,
    /// What the user should know about where they were.
    pub(super) warning: Option<String>,
}

/// Why there is no handle, and what to do.
struct Absent {
    reason: String,
    remedy: String,
}

impl Absent {
    fn new(reason: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { reason: reason.into(), remedy: remedy.into() }
    }
}

/// Reads what is at `path`; `-` is standard input.
///
/// # Errors
/// There is nothing, or it does not come in time.
pub(super) fn find(path: &Path, patience: Duration) -> Result<Found, Failure> {
    let absent = |name: &str, absent: Absent| {
        Trouble::own(format!("cannot read a handle from {name}"), absent.reason, absent.remedy)
    };
    if path == Path::new("-") {
        return stdin(patience).map_err(|error| absent("standard input", error));
    }
    at(path, patience).map_err(|error| absent(&path.display().to_string(), error))
}

fn stdin(patience: Duration) -> Result<Found, Absent> {
    if io::stdin().is_terminal() {
        let remedy = "name the file or socket of rucx export, or pipe its bytes here";
        return Err(Absent::new("it is a terminal, and a handle is nothing to type", remedy));
    }
    let own = io::stdin().as_fd().try_clone_to_owned();
    let own = own.map_err(|error| Absent::new(error.to_string(), "give it something to read"))?;
    stream(own, Deadline::after(patience))
}

fn at(path: &Path, patience: Duration) -> Result<Found, Absent> {
    let deadline = Deadline::after(patience);
    let failed = |error: io::Error| {
        let remedy = match error.kind() {
            io::ErrorKind::NotFound => {
                "begin with rucx export in another terminal: it says what to type here; once it has ended, the handle is gone"
            }
            io::ErrorKind::PermissionDenied => "import as the user that exports",
            _ => "see the error of the system",
        };
        Absent::new(error.to_string(), remedy)
    };
    let found = fs::metadata(path).map_err(failed)?;
    if found.is_dir() {
        return Err(Absent::new("it is a directory", "name the file or socket in it that rucx export made"));
    }
    if found.file_type().is_socket() {
        return socket(path, deadline);
    }
    // A pipe without a writer is waited for by poll, not here.
    let flags = i32::try_from(OFlags::NONBLOCK.bits()).unwrap_or(0);
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path).map_err(failed)?;
    if !found.is_file() {
        return stream(file.into(), deadline);
    }
    let mut bytes = Vec::new();
    // One more than there can be: the library says what is wrong with it.
    file.take(MAX_LEN as u64 + 1).read_to_end(&mut bytes).map_err(failed)?;
    let mode = found.permissions().mode() & 0o777;
    let warning = (mode & 0o044 != 0).then(|| {
        format!(
            "warning: other users can read {}, mode {mode:04o}, and with it the memory. A handle is a secret: \
             chmod 600 {}",
            path.display(),
            shell::path(path)
        )
    });
    Ok(Found { bytes, warning })
}

fn socket(path: &Path, deadline: Deadline) -> Result<Found, Absent> {
    let failed = |errno: Errno| match errno {
        Errno::CONNREFUSED => Absent::new(
            "nobody listens there any more: the exporter has ended without removing it",
            match leftover::at(path) {
                Some(Leftover::DeadSocket) => {
                    format!("begin again with: rm {0}; rucx export --listen {0}", shell::path(path))
                }
                _ => "begin again with rucx export --listen and another name".to_owned(),
            },
        ),
        Errno::AGAIN => late(deadline),
        Errno::ACCESS | Errno::PERM => Absent::new(errno.to_string(), "import as the user that exports"),
        _ => Absent::new(errno.to_string(), "see the error of the system"),
    };
    let address = SocketAddrUnix::new(path.as_os_str().as_bytes()).map_err(failed)?;
    let socket =
        socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).map_err(failed)?;
    // Bounds the wait of connect(2), see unix(7); 0 would mean for ever.
    let left = deadline.left().unwrap_or_default().max(Duration::from_millis(1));
    set_socket_timeout(&socket, Timeout::Send, Some(left)).map_err(failed)?;
    connect(&socket, &address).map_err(failed)?;
    stream(socket, deadline)
}

/// A stream may go on after the handle.
fn stream(from: OwnedFd, deadline: Deadline) -> Result<Found, Absent> {
    let bytes = ucp::read_handle(&mut Timed { from, deadline }).map_err(|error| match error.kind() {
        io::ErrorKind::TimedOut => late(deadline),
        io::ErrorKind::ConnectionReset => {
            Absent::new("the exporter has ended meanwhile", "begin again with rucx export, and import then")
        }
        _ => Absent::new(error.to_string(), "pass on exactly the bytes that rucx export gave"),
    })?;
    Ok(Found { bytes, warning: None })
}

fn late(deadline: Deadline) -> Absent {
    let reason = format!("it has not come within {:.1} s", deadline.elapsed().as_secs_f64());
    Absent::new(reason, "see whether the exporter is stopped, or raise UCX_IMPORT_TIMEOUT")
}

/// A stream, read until a point in time.
struct Timed {
    from: OwnedFd,
    deadline: Deadline,
}

impl Read for Timed {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        loop {
            let left = self.deadline.left().ok_or(io::ErrorKind::TimedOut)?;
            let mut fds = [PollFd::new(&self.from, PollFlags::IN)];
            match poll(&mut fds, Some(&timeout(left))) {
                Ok(0) => continue,
                Ok(_) => {}
                Err(Errno::INTR) => continue,
                Err(errno) => return Err(errno.into()),
            }
            match rustix::io::read(&self.from, &mut *to) {
                Ok(count) => return Ok(count),
                Err(Errno::AGAIN | Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
    }
}
