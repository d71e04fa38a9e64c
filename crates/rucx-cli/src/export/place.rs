//! Where importers find the handle: a new file or socket, for this user alone.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, fchmod};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, listen, socket_with};

use crate::shell;
use crate::trouble::{Failure, Trouble};

/// Connections that the kernel keeps until they are accepted.
const BACKLOG: i32 = 64;

/// A name in the file system; dropped, it is removed if it still names what was made here.
#[derive(Debug)]
pub(super) struct Place {
    path: PathBuf,
    /// Device and number of what was made; `None` once it is removed.
    made: Option<(u64, u64)>,
    /// What was made, kept open: its number is no other's meanwhile.
    open: OwnedFd,
}

impl Place {
    /// A file with these bytes, which is there as a whole or not at all.
    ///
    /// # Errors
    /// The name is taken, or cannot be made.
    pub(super) fn file(path: &Path, bytes: &[u8]) -> Result<Self, Failure> {
        Self::link(path, bytes).map_err(|error| refused("write the handle to", path, &error))
    }

    fn link(path: &Path, bytes: &[u8]) -> io::Result<Self> {
        let name = path.file_name().ok_or(io::ErrorKind::IsADirectory)?;
        if path.symlink_metadata().is_ok() {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        let mut hidden = std::ffi::OsString::from(".");
        hidden.push(name);
        hidden.push(format!(".{}", std::process::id()));
        let hidden = path.with_file_name(hidden);
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&hidden)?;
        let written = Self::made(&hidden, file.try_clone()?.into())?;
        file.write_all(bytes)?;
        // Fails if the name is taken, by whatever.
        fs::hard_link(&hidden, path)?;
        drop(written);
        Self::made(path, file.into())
    }

    /// A socket that listens.
    ///
    /// # Errors
    /// The name is taken, or cannot be made.
    pub(super) fn socket(path: &Path) -> Result<Self, Failure> {
        Self::bind(path).map_err(|error| refused("listen at", path, &error))
    }

    fn bind(path: &Path) -> io::Result<Self> {
        let address = SocketAddrUnix::new(path.as_os_str().as_bytes())?;
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        // What bind(2) makes has the socket's own mode: at no time may others connect.
        fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
        bind(&socket, &address)?;
        let place = Self::made(path, socket)?;
        listen(&place.open, BACKLOG)?;
        Ok(place)
    }

    fn made(path: &Path, open: OwnedFd) -> io::Result<Self> {
        Ok(Self { path: path.to_owned(), made: Some(identity(path)?), open })
    }

    /// Where it is.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Removes it; whether it was still there.
    ///
    /// # Errors
    /// It cannot be removed.
    pub(super) fn remove(mut self) -> io::Result<bool> {
        self.unlink()
    }

    fn unlink(&mut self) -> io::Result<bool> {
        let Some(made) = self.made.take() else { return Ok(false) };
        if identity(&self.path).ok() != Some(made) {
            return Ok(false); // it is somebody else's by now
        }
        fs::remove_file(&self.path)?;
        Ok(true)
    }
}

impl AsFd for Place {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.open.as_fd()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // There is nobody to tell.
        let _ = self.unlink();
    }
}

fn identity(path: &Path) -> io::Result<(u64, u64)> {
    let found = fs::symlink_metadata(path)?;
    Ok((found.dev(), found.ino()))
}

fn refused(what: &str, path: &Path, error: &io::Error) -> Failure {
    let shown = shell::path(path);
    let (reason, remedy) = match error.raw_os_error().map(Errno::from_raw_os_error) {
        _ if matches!(error.kind(), io::ErrorKind::AlreadyExists | io::ErrorKind::AddrInUse) => (
            "there is something of this name, and it is not overwritten".to_owned(),
            format!("choose another name, or if no export uses it: rm {shown}"),
        ),
        Some(Errno::NAMETOOLONG) => (error.to_string(), "choose a shorter path".to_owned()),
        Some(Errno::NOENT) => (error.to_string(), "name a file in a directory that is there".to_owned()),
        Some(Errno::PERM | Errno::OPNOTSUPP) => (
            error.to_string(),
            "choose a file system that has links and modes, such as that of /tmp".to_owned(),
        ),
        _ => (error.to_string(), "choose a file in a directory that you may write to".to_owned()),
    };
    Trouble::own(format!("cannot {what} {}", path.display()), reason, remedy)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn what_is_made_is_for_this_user_and_goes_with_the_value() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x");
        for socket in [false, true] {
            let place =
                if socket { Place::bind(&path).unwrap() } else { Place::link(&path, b"abc").unwrap() };
            assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600, "{socket}");
            assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "nothing else is left");
            drop(place);
            assert!(!path.exists());
        }
    }

    #[test]
    fn what_is_there_already_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x");
        fs::write(&path, b"mine").unwrap();
        assert!(Place::link(&path, b"abc").is_err() && Place::bind(&path).is_err());
        assert_eq!(fs::read(&path).unwrap(), b"mine");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
        // And what came in its place later.
        let other = dir.path().join("y");
        let place = Place::link(&other, b"abc").unwrap();
        fs::rename(&path, &other).unwrap();
        assert!(!place.remove().unwrap());
        assert_eq!(fs::read(&other).unwrap(), b"mine");
    }
}
