//! What this process holds, and what it has left behind.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// Open descriptors of this process.
///
/// # Panics
/// `/proc/self/fd` cannot be read.
#[must_use]
pub fn open_fds() -> usize {
    fds().len()
}

/// Mappings of this process.
///
/// # Panics
/// `/proc/self/maps` cannot be read.
#[must_use]
pub fn mappings() -> usize {
    std::fs::read_to_string("/proc/self/maps").expect("/proc/self/maps").lines().count()
}

/// `number -> target` of each, without the one that reads the directory.
fn fds() -> BTreeSet<String> {
    let entries = std::fs::read_dir("/proc/self/fd").expect("/proc/self/fd");
    let entries = entries.flatten().filter_map(|entry| {
        let target = std::fs::read_link(entry.path()).ok()?;
        let number = entry.file_name().into_string().ok()?;
        // Gone at the end of this function: the reader itself. (Its pid may be another one outside this pid namespace.)
        let own = target.starts_with("/proc") && target.ends_with("fd");
        (!own).then(|| format!("fd {number} -> {}", target.display()))
    });
    entries.collect()
}

/// Names others can find: `/dev/shm`, abstract unix sockets whose name starts with the prefix, and descriptors.
fn census(socket_prefix: &str) -> BTreeSet<String> {
    let mut found = fds();
    let shm = std::fs::read_dir("/dev/shm").into_iter().flatten().flatten();
    found.extend(shm.map(|entry| format!("/dev/shm/{}", entry.file_name().to_string_lossy())));
    let sockets = std::fs::read_to_string("/proc/net/unix").unwrap_or_default();
    let names = sockets.lines().filter_map(|line| line.split_whitespace().nth(7));
    let wanted =
        names.filter(|name| name.strip_prefix('@').is_some_and(|name| name.starts_with(socket_prefix)));
    found.extend(wanted.map(|name| format!("unix socket {name}")));
    found
}

/// Runs `f` and checks that it leaves nothing: no file in `/dev/shm`, no abstract unix socket whose name starts with
/// `socket_prefix` (written without the `@`), no open descriptor of this process.
///
/// What helper threads still close has two seconds to go. Other tests of the process would be counted: use it in a role, or in
/// a test marked [`crate::Test::alone`].
///
/// # Panics
/// Something is left, which the message names.
#[track_caller]
pub fn leaves_nothing<R>(socket_prefix: &str, f: impl FnOnce() -> R) -> R {
    let before = census(socket_prefix);
    let result = f();
    let deadline = Instant::now() + Duration::from_secs(2);
    loop {
        let after = census(socket_prefix);
        let left: Vec<&String> = after.difference(&before).collect();
        if left.is_empty() {
            return result;
        }
        assert!(Instant::now() < deadline, "left behind: {left:#?}");
        std::thread::sleep(Duration::from_millis(10));
    }
}
