//! What two workers know each other by when the one reads the other's memory by its address.
//!
//! Both have some memory mapped that nobody else has: each side has 64 bytes of it to tell what the other one needs.
//!
//! ```text
//!  0 address u64   where this side has the memory mapped in its own address space; 0: it has not said so yet
//!  8 closed u64    not 0: this side has given up what it had announced, and may use that memory for other things
//! 16 nonce u64     the other side's: written before it reads this side's memory
//! ```
//!
//! A pid is not a process: a read fetches, in the same system call and so from the same address space, the nonce that was just written.
//! And memory that was announced may be used for other things once its owner has given it up: it says so first, and who has read looks
//! for that afterwards. So no bytes are taken for announced ones that are not.

use std::sync::Arc;

use rustix::process::Pid;
use ucs::mem::Mapping;
use ucs::sync::{Ordering, Word, Word64, fence};

use crate::process::Process;

/// Bytes of both sides' words.
pub const LEN: usize = 2 * SIDE;
/// Bytes of one side's: a cache line.
const SIDE: usize = 64;
/// Where a side's words lie.
const ADDRESS: usize = 0;
const CLOSED: usize = 8;
const NONCE: usize = 16;

/// One side's end.
#[derive(Clone, Debug)]
pub struct Channel {
    memory: Arc<Mapping>,
    process: Arc<Process>,
    /// Where this side's words lie in the memory, and the other's.
    ours: usize,
    theirs: usize,
}

impl Channel {
    /// This side's end, at `offset` of memory that both sides have mapped; `None`: it is too small. `first`: whether this is the side
    /// that has made the memory. `process` is the other side's.
    #[must_use]
    pub fn new(memory: Arc<Mapping>, offset: usize, first: bool, process: Arc<Process>) -> Option<Self> {
        let (ours, theirs) = if first { (offset, offset + SIDE) } else { (offset + SIDE, offset) };
        let channel = Self { memory, process, ours, theirs };
        channel.word(channel.theirs + NONCE)?;
        let address = channel.memory.bytes().as_ptr().addr() as u64;
        channel.word(channel.ours + ADDRESS)?.store(address, Ordering::Release);
        Some(channel)
    }

    fn word(&self, at: usize) -> Option<&Word64> {
        self.memory.bytes().atomic_u64(at as u64).ok()
    }

    /// Whether the other side has said where it has the memory: not before it has heard of the connection.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.word(self.theirs + ADDRESS).is_some_and(|word| word.load(Ordering::Acquire) != 0)
    }

    /// The other side's process, by which system calls reach its memory; `None`: it is not visible from here, or it is this very one.
    #[must_use]
    pub fn pid(&self) -> Option<Pid> {
        self.process.raw_pid().filter(|pid| *pid != rustix::process::getpid())
    }

    /// Sets the nonce that the other side's memory is to show. Answers where, in its address space, as it says; `None`: it has not.
    #[must_use]
    pub fn set_nonce(&self, value: u64) -> Option<u64> {
        let base = self.word(self.theirs + ADDRESS)?.load(Ordering::Acquire);
        self.word(self.theirs + NONCE)?.store(value, Ordering::Release);
        (base != 0).then(|| base.wrapping_add((self.theirs + NONCE) as u64))
    }

    /// Says that what this side has announced may change from here on.
    pub fn close(&self) {
        self.word(self.ours + CLOSED).into_iter().for_each(close);
    }

    /// Whether the other side had not given up what it had announced, when all was read that was read before this.
    #[must_use]
    pub fn was_open(&self) -> bool {
        self.word(self.theirs + CLOSED).is_some_and(was_open)
    }
}

/// Comes before all that is done with the memory afterwards.
fn close<W: Word>(closed: &W) {
    closed.store(1, Ordering::Release);
    fence(Ordering::SeqCst);
}

/// Comes after all that was read of the memory before.
fn was_open<W: Word>(closed: &W) -> bool {
    fence(Ordering::SeqCst);
    closed.load(Ordering::Acquire) == 0
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::os::fd::AsFd;

    use super::*;
    use ucs::mem::{Access, Memfd};

    #[test]
    fn each_side_sees_what_the_other_says() {
        let (file, memory) = Memfd::create("test", 4096, false).unwrap();
        let again = Mapping::of_file(file.as_fd(), 4096, Access::ReadWrite).unwrap();
        let process = Arc::new(Process::open(rustix::process::getpid()).unwrap());
        let (memory, again) = (Arc::new(memory), Arc::new(again));
        let one = Channel::new(Arc::clone(&memory), 64, true, Arc::clone(&process)).unwrap();
        assert_eq!(one.set_nonce(7), None, "the other side has not said where it has the memory");
        assert!(!one.is_ready());
        let other = Channel::new(Arc::clone(&again), 64, false, Arc::clone(&process)).unwrap();
        let at = |mapping: &Mapping, offset: u64| mapping.bytes().as_ptr().addr() as u64 + offset;
        assert_eq!(one.set_nonce(7), Some(at(&again, 128 + 16)));
        assert_eq!(again.bytes().atomic_u64(128 + 16).unwrap().load(Ordering::Relaxed), 7);
        assert_eq!(other.set_nonce(8), Some(at(&memory, 64 + 16)));
        assert!(one.is_ready() && other.is_ready() && one.was_open() && other.was_open());
        one.close();
        assert!(one.was_open() && !other.was_open());
        assert_eq!(one.pid(), None, "this very process is not read in this way");
        assert!(Channel::new(memory, 4096 - 64, true, process).is_none());
    }
}

#[cfg(all(test, loom))]
mod loom_models {
    use loom::sync::Arc;
    use loom::sync::atomic::{AtomicU64, Ordering};
    use loom::thread;

    /// One side gives up what it has announced and uses the memory for something else; the other one reads meanwhile, and looks.
    fn model(
        close: impl Fn(&AtomicU64) + Sync + Send + 'static,
        was_open: impl Fn(&AtomicU64) -> bool + Sync + Send + 'static,
    ) {
        let (close, was_open) = (std::sync::Arc::new(close), std::sync::Arc::new(was_open));
        loom::model(move || {
            let words = Arc::new((AtomicU64::new(0), AtomicU64::new(0)));
            let (closed, memory) = (Arc::clone(&words), Arc::clone(&words));
            let close = std::sync::Arc::clone(&close);
            let owner = thread::spawn(move || {
                close(&closed.0);
                closed.1.store(99, Ordering::Relaxed);
            });
            // As the kernel copies: in no order.
            let read = memory.1.load(Ordering::Relaxed);
            if was_open(&memory.0) {
                assert_ne!(read, 99, "other bytes are taken for those announced");
            }
            owner.join().unwrap();
        });
    }

    #[test]
    fn loom_what_was_given_up_is_not_taken() {
        model(super::close, super::was_open);
    }

    /// Without a look afterwards.
    #[test]
    #[should_panic = "other bytes are taken"]
    fn loom_guard_who_looks_before_takes_what_was_given_up() {
        model(super::close, |_| true);
    }

    /// Both sides without their fences.
    #[test]
    #[should_panic = "other bytes are taken"]
    fn loom_guard_without_its_fences_what_was_given_up_is_taken() {
        let relaxed = |closed: &AtomicU64| closed.store(1, Ordering::Relaxed);
        model(relaxed, |closed| closed.load(Ordering::Relaxed) == 0);
    }
}
