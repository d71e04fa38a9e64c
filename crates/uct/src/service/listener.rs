//! The sockets a service listens on.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, Mode, OFlags, chmod, fstat, open, unlink};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, listen, socket_with};
use ucs::Status;
use ucs::fork::{self, Generation};
use ucs::mem::MemError;

use super::server::ServiceError;

/// Connections the kernel queues before the service takes them.
const BACKLOG: i32 = 64;

/// The socket in the directory that `UCX_SERVICE_DIR` names could not be made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("UCX_SERVICE_DIR: no service socket in {}: {errno}", directory.display())]
pub struct ListenError {
    directory: PathBuf,
    errno: Errno,
}

impl ListenError {
    /// The one-byte status.
    pub fn status(&self) -> Status {
        match self.errno {
            Errno::ACCESS | Errno::PERM | Errno::ROFS => Status::AccessDenied,
            Errno::NOENT | Errno::NOTDIR | Errno::NAMETOOLONG | Errno::INVAL => Status::InvalidParam,
            _ => Status::IoError,
        }
    }

    /// What to do about it.
    #[must_use]
    pub fn remedy(&self) -> &'static str {
        match self.errno {
            Errno::ACCESS | Errno::PERM | Errno::ROFS => "name a directory in which this user may make files",
            Errno::NAMETOOLONG | Errno::INVAL => "name a directory with a path of at most 60 bytes",
            Errno::NOENT | Errno::NOTDIR => "make the directory, or name another one",
            _ => "name another directory, or unset UCX_SERVICE_DIR",
        }
    }
}

/// A socket that listens; one with a path is removed from its directory when it is dropped.
#[derive(Debug)]
pub struct Listener {
    socket: OwnedFd,
    path: Option<PathBuf>,
    generation: Generation,
}

fn socket() -> Result<OwnedFd, ServiceError> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
        .map_err(|errno| MemError::of("socket", errno, 0).into())
}

impl Listener {
    /// Listens on the abstract socket `name`, which nobody has.
    ///
    /// # Errors
    /// [`ServiceError`].
    pub fn by_name(name: &[u8]) -> Result<Self, ServiceError> {
        let failed = |call| move |errno: Errno| ServiceError::Mem(MemError::of(call, errno, 0));
        let socket = socket()?;
        let address = SocketAddrUnix::new_abstract_name(name).map_err(failed("bind"))?;
        bind(&socket, &address).map_err(failed("bind"))?;
        listen(&socket, BACKLOG).map_err(failed("listen"))?;
        Ok(Self { socket, path: None, generation: fork::generation() })
    }

    /// Listens on a socket of this name in `directory`. Who may enter the directory may connect; a token is wanted there as
    /// everywhere.
    ///
    /// # Errors
    /// [`ServiceError`].
    pub fn in_directory(directory: &Path, name: &str) -> Result<Self, ServiceError> {
        let failed = |errno| ListenError { directory: directory.to_owned(), errno };
        let socket = socket()?;
        let path = directory.join(name);
        let address = SocketAddrUnix::new(&path).map_err(failed)?;
        bind(&socket, &address).map_err(failed)?;
        let listener = Self { socket, path: Some(path.clone()), generation: fork::generation() };
        listen(&listener, BACKLOG).map_err(failed)?;
        let_all_connect(&path).map_err(failed)?;
        Ok(listener)
    }
}

/// Lets every user connect who may enter the directory: connecting needs the right to write (`unix(7)`), of which bind(2) leaves out
/// what the umask says. Who may write to the directory could have put something else in the socket's place: what is changed is a
/// socket of this user, found without following links, and held by a descriptor.
fn let_all_connect(path: &Path) -> Result<(), Errno> {
    let file = open(path, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
    let stat = fstat(&file)?;
    let mine = stat.st_uid == rustix::process::geteuid().as_raw();
    if FileType::from_raw_mode(stat.st_mode) != FileType::Socket || !mine {
        return Err(Errno::NOTSOCK);
    }
    chmod(format!("/proc/thread-self/fd/{}", file.as_raw_fd()), Mode::from_raw_mode(0o666))
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Some(path) = self.path.take().filter(|_| self.generation.is_current())
            && let Err(error) = unlink(&path)
        {
            tracing::debug!(%error, path = %path.display(), "a service socket's file stays");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn mode(path: &Path) -> u32 {
        std::fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    #[test]
    fn a_socket_in_a_directory_comes_and_goes() {
        let directory = tempfile::tempdir().unwrap();
        let listener = Listener::in_directory(directory.path(), "rucx-test").unwrap();
        let path = directory.path().join("rucx-test");
        assert_eq!(mode(&path), 0o666);
        assert!(Listener::in_directory(directory.path(), "rucx-test").is_err(), "it is taken");
        drop(listener);
        assert!(!path.exists());
    }

    /// Who may write to the directory may put a link in the socket's place: what it leads to stays as it is.
    #[test]
    fn nothing_but_a_socket_is_opened_to_all() {
        let directory = tempfile::tempdir().unwrap();
        let (file, link) = (directory.path().join("file"), directory.path().join("link"));
        std::fs::write(&file, "private").unwrap();
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        assert_eq!(let_all_connect(&link), Err(Errno::NOTSOCK));
        assert_eq!(let_all_connect(&file), Err(Errno::NOTSOCK));
        assert_eq!(mode(&file), 0o600);
    }
}
