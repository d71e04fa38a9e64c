//! Resource limits and identities. What is here changes the whole process: use it in roles.

use std::io;

use rustix::process::{DumpableBehavior, Resource, Rlimit, getrlimit, set_dumpable_behavior, setrlimit};

use crate::sys;

/// Runs `f` under a soft limit, and sets back the one before, also when `f` panics.
///
/// The limit holds for all threads: only in a role.
///
/// # Panics
/// The limit cannot be set: `soft` is above the hard one.
pub fn with_rlimit<R>(resource: Resource, soft: u64, f: impl FnOnce() -> R) -> R {
    struct Restore(Resource, Option<u64>);

    impl Drop for Restore {
        fn drop(&mut self) {
            let maximum = getrlimit(self.0).maximum;
            let _ = setrlimit(self.0, Rlimit { current: self.1, maximum });
        }
    }

    let before = getrlimit(resource);
    let wanted = Rlimit { current: Some(soft), maximum: before.maximum };
    let _restore = Restore(resource, before.current);
    if let Err(error) = setrlimit(resource, wanted) {
        panic!("setrlimit({resource:?}, {soft}): {error}");
    }
    f()
}

/// Lets this process pin so many bytes (`RLIMIT_MEMLOCK`), for good: only in a role.
///
/// # Panics
/// The limit cannot be set: it is above the hard one.
pub fn limit_pinned(bytes: u64) {
    let limit = Rlimit { current: Some(bytes), maximum: Some(bytes) };
    if let Err(error) = setrlimit(Resource::Memlock, limit) {
        panic!("setrlimit(RLIMIT_MEMLOCK, {bytes}): {error}");
    }
}

/// Whether this process is user 0.
#[must_use]
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Becomes another user for good, in all threads: no supplementary groups, dumpable again (a change of user clears that, and
/// `/proc/self` would belong to root).
///
/// Only in a role; [`crate::Role::as_uid`] is the same from outside.
///
/// # Errors
/// This process is not root; or the change did not take.
pub fn drop_to_uid(uid: u32, gid: u32) -> io::Result<()> {
    sys::become_ids(uid, gid)?;
    let groups = std::fs::read_to_string("/proc/self/status")?;
    let groups = groups.lines().find_map(|line| line.strip_prefix("Groups:")).unwrap_or("?");
    let took = sys::ids() == [uid, uid, uid, gid, gid, gid] && groups.trim().is_empty();
    if !took || (uid != 0 && sys::can_become_root()) {
        return Err(io::Error::other(format!("still {:?} with groups {groups:?}", sys::ids())));
    }
    set_dumpable_behavior(DumpableBehavior::Dumpable)?;
    Ok(())
}
