//! Waking a worker that sleeps: an eventfd of this process's own, never given to a peer.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{EventfdFlags, eventfd};
use ucs::mem::MemError;

/// A descriptor that is readable once it was rung, until it is cleared (`eventfd(2)`). Send + Sync.
#[derive(Debug)]
pub struct Doorbell(OwnedFd);

impl Doorbell {
    /// A new one.
    ///
    /// # Errors
    /// [`MemError`]: no descriptor is left.
    pub fn new() -> Result<Self, MemError> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        eventfd(0, flags).map(Self).map_err(|errno| MemError::of("eventfd", errno, 0))
    }

    /// Wakes who waits for it, now or next time.
    pub fn ring(&self) {
        // It fails only when the counter is full, and then it is readable.
        let _ = rustix::io::write(&self.0, &1_u64.to_ne_bytes());
    }

    /// Takes back what was rung.
    pub fn clear(&self) {
        let mut counter = [0; 8];
        let _ = rustix::io::read(&self.0, &mut counter);
    }
}

impl AsFd for Doorbell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    use super::*;

    #[test]
    fn rung_and_cleared() {
        let bell = Doorbell::new().unwrap();
        let readable = || poll(&mut [PollFd::new(&bell, PollFlags::IN)], Some(&Timespec::default())).unwrap();
        assert_eq!(readable(), 0);
        bell.ring();
        bell.ring();
        assert_eq!(readable(), 1);
        bell.clear();
        assert_eq!(readable(), 0);
        bell.clear(); // does not block
    }
}
