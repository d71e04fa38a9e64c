//! `/proc`, and the directory of UCX_SERVICE_DIR.

use super::super::facts::Facts;
use super::super::places::{Fault, MOST, ProcView, ServiceDir};
use super::{Group, Row, State};

/// The key of the row of UCX_SERVICE_DIR, and its value if there is nothing to tell.
pub(crate) const SERVICE_DIR: &str = "service_dir";
pub(crate) const NOT_SET: &str = "not set";

pub(super) fn proc(facts: &Facts) -> Row {
    let row = |value| Row::good(Group::Kernel, "proc", "/proc", value);
    if !facts.boot_id {
        return row("boot_id cannot be read").lacks(
            State::Missing,
            "shm cannot be opened: it tells one system from another by /proc/sys/kernel/random/boot_id",
            "mount /proc: mount -t proc proc /proc",
        );
    }
    let value = match facts.proc_view {
        ProcView::Own => return row("mounted"),
        ProcView::Above => "of another pid namespace than this process's: of one above it",
        ProcView::Foreign => "of another pid namespace than this process's: it has no /proc/self",
    };
    row(value).lacks(
        State::Limited,
        "its pids are others than this process's: cma, and the ways proc and pidfd of shm, may find no exporter or refuse \
         one; the socket of shm is not concerned",
        "mount that of this pid namespace: mount -t proc proc /proc (unshare: --mount-proc)",
    )
}

pub(super) fn service_dir(facts: &Facts) -> Row {
    let row = |value: String| Row::good(Group::Namespaces, SERVICE_DIR, "UCX_SERVICE_DIR", value);
    let Some(ServiceDir { path, fault }) = &facts.service_dir else { return row(NOT_SET.to_owned()) };
    let path = path.display();
    let (value, remedy) = match fault {
        None => return row(format!("{path}: a directory in which this user may make sockets")),
        Some(Fault::TooLong(len)) => (
            format!("{path}: {len} bytes, and the names of sockets are to fit behind it"),
            format!("name a directory with a path of at most {MOST} bytes"),
        ),
        Some(Fault::Missing) => {
            (format!("{path}: it is not there"), "make the directory, or name another one".to_owned())
        }
        Some(Fault::NoDirectory) => (format!("{path}: it is no directory"), "name a directory".to_owned()),
        Some(Fault::NoFiles(errno)) => (
            format!("{path}: this user may make no files in it: {errno}"),
            "name a directory in which this user may make files".to_owned(),
        ),
    };
    row(value).lacks(State::Missing, "nothing can be exported", format!("{remedy}; or unset UCX_SERVICE_DIR"))
}
