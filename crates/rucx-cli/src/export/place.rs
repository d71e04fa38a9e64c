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

use crate::leftover::{self, Leftover};
use crate::shell;
use crate::trouble::{Failure, Trouble};

/// Connections that the kernel keeps until they are accepted.
const BACKLOG: i32 = 64;

/// What became of a name at the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Removed {
    /// It was there, and is not any more.
    Now,
    /// Somebody has removed it before.
    Before,
    /// It names something else by now, which is left alone.
    Another,
}

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

    /// Removes it, if it is still there.
    ///
    /// # Errors
    /// It cannot be removed.
    pub(super) fn remove(mut self) -> io::Result<Removed> {
        self.unlink()
    }

    fn unlink(&mut self) -> io::Result<Removed> {
        let Some(made) = self.made.take() else { return Ok(Removed::Before) };
        let gone = |error: io::Error| match error.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => Ok(Removed::Before),
            _ => Err(error),
        };
        match identity(&self.path) {
            Ok(found) if found == made => {}
            Ok(_) => return Ok(Removed::Another),
            Err(error) => return gone(error),
        }
        fs::remove_file(&self.path).map_or_else(gone, |()| Ok(Removed::Now))
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
    let (reason, remedy) = match error.raw_os_error().map(Errno::from_raw_os_error) {
        _ if matches!(error.kind(), io::ErrorKind::AlreadyExists | io::ErrorKind::AddrInUse) => taken(path),
        _ if error.kind() == io::ErrorKind::IsADirectory => {
            (error.to_string(), "name a file in it".to_owned())
        }
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

/// There is something of this name: why it stays, and what to do. Only what an export has left behind may be removed.
fn taken(path: &Path) -> (String, String) {
    let there = match fs::symlink_metadata(path).map(|found| found.file_type()) {
        Ok(found) if found.is_dir() => "it is a directory",
        _ => "there is something of this name, and it is not overwritten",
    };
    let other = "choose another name";
    let shown = shell::path(path);
    match leftover::at(path) {
        Some(Leftover::Handle) => (
            "there is a handle of this name, and it is not overwritten".to_owned(),
            format!("{other}, or if no export uses it: rm {shown}"),
        ),
        Some(Leftover::DeadSocket) => (
            "there is a socket of this name, on which nobody listens any more".to_owned(),
            format!("{other}, or: rm {shown}"),
        ),
        None => (there.to_owned(), other.to_owned()),
    }
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
        assert_eq!(place.remove().unwrap(), Removed::Another);
        assert_eq!(fs::read(&other).unwrap(), b"mine");
        // Or nothing.
        let place = Place::link(&path, b"abc").unwrap();
        fs::remove_file(&path).unwrap();
        assert_eq!(place.remove().unwrap(), Removed::Before);
    }

    #[test]
    fn nothing_of_the_user_s_is_told_to_be_removed() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        fs::write(path("mine"), b"mine").unwrap();
        fs::create_dir(path("dir")).unwrap();
        for path in [path("mine"), path("dir"), "/dev/full".into(), "/dev/null".into()] {
            let (reason, remedy) = taken(&path);
            assert_eq!(remedy, "choose another name", "{path:?}: {reason}");
        }
        fs::write(path("handle"), b"RXMH").unwrap();
        assert!(taken(&path("handle")).1.contains(": rm /"));
    }
}
