//! What an export that was killed has left behind: the only things that a remedy may tell to remove.

use std::fs::{self, OpenOptions};
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use rustix::process::geteuid;
use ucp::wire::handle::{MAGIC, MAX_LEN};

/// Something of rucx's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Leftover {
    /// A file with a handle; whether its export lives, the file does not say.
    Handle,
    /// A socket of this user's on which nobody listens.
    DeadSocket,
}

/// What is at `path`, if it is certainly of that kind.
pub(crate) fn at(path: &Path) -> Option<Leftover> {
    let found = fs::symlink_metadata(path).ok()?;
    if found.file_type().is_socket() {
        return (found.uid() == geteuid().as_raw() && is_dead(path)).then_some(Leftover::DeadSocket);
    }
    if !found.is_file() || found.len() > MAX_LEN as u64 {
        return None;
    }
    // It may have become something else meanwhile: a link, or a pipe without a writer.
    let flags = i32::try_from((OFlags::NOFOLLOW | OFlags::NONBLOCK).bits()).ok()?;
    let mut file = OpenOptions::new().read(true).custom_flags(flags).open(path).ok()?;
    let mut magic = [0; MAGIC.len()];
    file.read_exact(&mut magic).ok()?;
    (magic == MAGIC).then_some(Leftover::Handle)
}

fn is_dead(path: &Path) -> bool {
    let dead = || {
        let address = SocketAddrUnix::new(path.as_os_str().as_bytes())?;
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        connect(&socket, &address)
    };
    dead() == Err(Errno::CONNREFUSED)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn only_what_is_certainly_left_over() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        for (name, bytes) in
            [("handle", &b"RXMH, and so on"[..]), ("mine", b"RXM"), ("empty", b""), ("text", b"text")]
        {
            fs::write(path(name), bytes).unwrap();
        }
        fs::write(path("long"), [&b"RXMH"[..], &vec![0; MAX_LEN]].concat()).unwrap();
        symlink(path("handle"), path("link")).unwrap();
        let listener = UnixListener::bind(path("alive")).unwrap();
        drop(UnixListener::bind(path("dead")).unwrap());
        for (name, found) in [
            ("handle", Some(Leftover::Handle)),
            ("dead", Some(Leftover::DeadSocket)),
            ("alive", None),
            ("mine", None),
            ("empty", None),
            ("text", None),
            ("long", None),
            ("link", None),
            ("missing", None),
            (".", None),
        ] {
            assert_eq!(at(&path(name)), found, "{name}");
        }
        assert_eq!(at(Path::new("/dev/full")), None);
        drop(listener);
    }
}
