//! Children of a plain fork: they say yes or no by their exit status.

use libc::pid_t;

use crate::sys;

/// A child that looks whether something holds, and ends.
#[derive(Debug)]
#[must_use = "a child is to be waited for"]
pub struct Forked(pid_t);

impl Forked {
    /// Has `fork` make a child, which answers as `fork(2)`. The child calls `check` and ends without running anything of its parent's;
    /// it may do there what whoever forks can answer for, and must not panic or print.
    ///
    /// # Panics
    /// There is no child.
    pub fn by(fork: impl FnOnce() -> pid_t, check: impl FnOnce() -> bool) -> Self {
        match fork() {
            0 => sys::end_at_once(i32::from(!check())),
            child => {
                assert!(child > 0, "fork: {}", std::io::Error::last_os_error());
                Self(child)
            }
        }
    }

    /// [`Forked::by`], by `fork(2)`: the child has none of this process's other threads, so `check` waits for none of them.
    ///
    /// # Panics
    /// There is no child.
    pub fn plain(check: impl FnOnce() -> bool) -> Self {
        Self::by(sys::fork, check)
    }

    /// Kills it, and waits for its end; whether it had not ended before.
    #[must_use]
    pub fn kill(self) -> bool {
        let Self(child) = self;
        let is_alive = !sys::has_ended(child);
        sys::kill_pid(child);
        sys::exit_code(child).is_none() && is_alive
    }

    /// Waits for its end; whether its check said yes.
    #[must_use]
    pub fn said_yes(self) -> bool {
        let Self(child) = self;
        sys::exit_code(child) == Some(0)
    }
}

/// Whether `check` says yes in a child made by `fork`: [`Forked::by`].
///
/// # Panics
/// There is no child.
pub fn in_child(fork: impl FnOnce() -> pid_t, check: impl FnOnce() -> bool) -> bool {
    Forked::by(fork, check).said_yes()
}

/// Whether `check` says yes in a child of `fork(2)`: [`Forked::by`]. The child has none of this process's other threads, so `check` waits for
/// none of them.
///
/// # Panics
/// There is no child.
pub fn in_plain_child(check: impl FnOnce() -> bool) -> bool {
    Forked::plain(check).said_yes()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_child_lives_until_it_is_killed_or_answers() {
        let alive = Forked::plain(|| {
            loop {
                std::thread::sleep(Duration::from_secs(1));
            }
        });
        assert!(alive.kill());
        assert_eq!([true, false].map(|yes| in_plain_child(|| yes)), [true, false]);
    }
}
