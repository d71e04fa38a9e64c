//! Bounds of waits.

use std::time::{Duration, Instant};

/// A point in time by which something must be done.
#[derive(Clone, Copy, Debug)]
pub struct Deadline {
    begin: Instant,
    limit: Duration,
}

impl Deadline {
    /// `limit` from now.
    #[must_use]
    pub fn after(limit: Duration) -> Self {
        Self { begin: Instant::now(), limit }
    }

    /// What is left; `None` when it is over.
    #[must_use]
    pub fn left(&self) -> Option<Duration> {
        self.limit.checked_sub(self.elapsed()).filter(|left| !left.is_zero())
    }

    /// What has passed.
    #[must_use]
    pub fn elapsed(&self) -> Duration {
        self.begin.elapsed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends() {
        assert!(Deadline::after(Duration::MAX).left().is_some());
        assert_eq!(Deadline::after(Duration::ZERO).left(), None);
        let deadline = Deadline::after(Duration::from_millis(5));
        std::thread::sleep(Duration::from_millis(6));
        assert_eq!(deadline.left(), None);
        assert!(deadline.elapsed() >= Duration::from_millis(6));
    }
}
