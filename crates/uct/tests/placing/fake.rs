//! A device that registers nothing, and records.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::{Condvar, Mutex};
use uct::memory::LocalMem;
use uct::service::{Domain, Placed, Placement, Placer};

/// What it does when it is asked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Does {
    #[default]
    Place,
    /// Fails, as a device does.
    Fail,
    /// Says that the domain is none of its own.
    Decline,
    /// Takes until it is told to go on, and places.
    Wait,
}

/// What it was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asked {
    pub domain: u32,
    pub importer: u32,
    pub address: u64,
    /// Which file came.
    pub inode: u64,
}

/// Kept as long as anything of it lives.
#[derive(Debug, Default)]
pub struct Fake {
    asked: Mutex<Vec<Asked>>,
    does: Mutex<Does>,
    changed: Condvar,
    counts: Arc<Counts>,
}

#[derive(Debug, Default)]
struct Counts {
    /// First calls that end a placement, and further ones.
    ended: AtomicUsize,
    again: AtomicUsize,
    dropped: AtomicUsize,
}

impl Fake {
    pub fn asked(&self) -> Vec<Asked> {
        self.asked.lock().clone()
    }

    pub fn does(&self, what: Does) {
        *self.does.lock() = what;
        self.changed.notify_all();
    }

    /// How often a placement was ended that had ended before.
    pub fn ended_again(&self) -> usize {
        self.counts.again.load(Ordering::SeqCst)
    }

    /// Placements that were ended.
    pub fn ended(&self) -> usize {
        self.counts.ended.load(Ordering::SeqCst)
    }

    /// Placements that nobody has any more.
    pub fn dropped(&self) -> usize {
        self.counts.dropped.load(Ordering::SeqCst)
    }
}

impl Placer for Fake {
    fn place(&self, domain: &Domain, importer: u32, mem: &Arc<LocalMem>) -> Option<Result<Placed, String>> {
        let inode = rustix::fs::fstat(&domain.command).unwrap().st_ino;
        let number = {
            let mut asked = self.asked.lock();
            asked.push(Asked { domain: domain.number, importer, address: mem.address(), inode });
            u32::try_from(asked.len()).unwrap()
        };
        let mut does = self.does.lock();
        while *does == Does::Wait {
            self.changed.wait(&mut does);
        }
        match *does {
            Does::Decline => return None,
            Does::Fail => return Some(Err("the device says no".to_owned())),
            Does::Place | Does::Wait => {}
        }
        let placement = Arc::new(FakePlacement {
            _command: domain.command.try_clone().unwrap(),
            _mem: Arc::clone(mem),
            importer,
            ends: AtomicUsize::new(0),
            counts: Arc::clone(&self.counts),
        });
        Some(Ok(Placed { placement, handle: number, lkey: number << 8, rkey: number << 8 | 1 }))
    }
}

#[derive(Debug)]
struct FakePlacement {
    _command: OwnedFd,
    _mem: Arc<LocalMem>,
    importer: u32,
    ends: AtomicUsize,
    counts: Arc<Counts>,
}

impl Placement for FakePlacement {
    fn end(&self) -> Result<(), String> {
        let count = if self.ends.fetch_add(1, Ordering::SeqCst) == 0 {
            &self.counts.ended
        } else {
            &self.counts.again
        };
        count.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }

    fn importer(&self) -> u32 {
        self.importer
    }
}

impl Drop for FakePlacement {
    fn drop(&mut self) {
        self.counts.dropped.fetch_add(1, Ordering::SeqCst);
    }
}
