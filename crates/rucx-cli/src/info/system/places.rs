//! Two places in the file system that matter: `/proc`, and the directory of UCX_SERVICE_DIR.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Access, AtFlags, CWD, accessat};
use rustix::io::Errno;

/// Bytes that a path may have, for the names of sockets to fit behind it (`unix(7)`).
pub(crate) const MOST: usize = 60;

/// Whose processes `/proc` shows (`pid_namespaces(7)`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProcView {
    /// Those of this process's pid namespace.
    Own,
    /// Those of a pid namespace above, where this process has another pid.
    Above,
    /// Those of a pid namespace that this process is not in.
    Foreign,
}

impl ProcView {
    /// `status` is what `/proc/self/status` holds; empty if there is none.
    pub(super) fn of(status: &str) -> Self {
        let pids = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
        match pids.map(|pids| pids.split_ascii_whitespace().count()) {
            Some(2..) => Self::Above,
            None if status.is_empty() => Self::Foreign,
            _ => Self::Own,
        }
    }
}

/// What UCX_SERVICE_DIR names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ServiceDir {
    pub(crate) path: PathBuf,
    /// What is wrong with it.
    pub(crate) fault: Option<Fault>,
}

/// Why no socket can be made in a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// Its path has so many bytes.
    TooLong(usize),
    /// There is none.
    Missing,
    /// It is something else.
    NoDirectory,
    /// This user may not make files in it.
    NoFiles(Errno),
}

impl ServiceDir {
    /// What the environment says; `None` if it says nothing.
    pub(super) fn read() -> Option<Self> {
        let path = std::env::var_os(uct::config::SERVICE_DIR.name()).filter(|path| !path.is_empty())?;
        Some(Self::at(Path::new(&path)))
    }

    fn at(path: &Path) -> Self {
        Self { path: path.to_owned(), fault: fault(path) }
    }
}

fn fault(path: &Path) -> Option<Fault> {
    let len = path.as_os_str().as_bytes().len();
    if len > MOST {
        return Some(Fault::TooLong(len));
    }
    match fs::metadata(path) {
        Ok(found) if !found.is_dir() => return Some(Fault::NoDirectory),
        Ok(_) => {}
        Err(error) => {
            return Some(match Errno::from_io_error(&error) {
                Some(Errno::NOENT) | None => Fault::Missing,
                Some(Errno::NOTDIR) => Fault::NoDirectory,
                Some(errno) => Fault::NoFiles(errno),
            });
        }
    }
    accessat(CWD, path, Access::WRITE_OK | Access::EXEC_OK, AtFlags::EACCESS).err().map(Fault::NoFiles)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whose_proc_it_is() {
        for (status, view) in [
            ("Name:\tx\nNSpid:\t7\nSeccomp:\t0\n", ProcView::Own),
            ("Name:\tx\nNSpid:\t4711\t7\n", ProcView::Above),
            ("Name:\tx\n", ProcView::Own),
            ("", ProcView::Foreign),
        ] {
            assert_eq!(ProcView::of(status), view, "{status:?}");
        }
    }

    #[test]
    fn directories() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        fs::write(path("file"), b"").unwrap();
        assert_eq!(fault(dir.path()), None);
        assert_eq!(fault(&path("file")), Some(Fault::NoDirectory));
        assert_eq!(fault(&path("file/x")), Some(Fault::NoDirectory));
        assert_eq!(fault(&path("missing")), Some(Fault::Missing));
        assert_eq!(fault(&PathBuf::from("/".repeat(61))), Some(Fault::TooLong(61)));
        assert!(matches!(fault(Path::new("/proc")), Some(Fault::NoFiles(_)) | None));
    }
}
