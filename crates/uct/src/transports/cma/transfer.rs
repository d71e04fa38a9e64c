//! Moving bytes between this process and an exporter's addresses.
//!
//! # Safety
//! Where the exporter is this very process, its addresses are those of a region of a context of this process, and of nothing else: the
//! attachment has compared the whole claim with that context's own table, and has its rights from there (`md.rs`). Regions are
//! accessed as memory that others may change at any time, and those that must not be written are without
//! [`Rights::WRITE`](crate::memory::Rights), which the attachment checks.

#![allow(unsafe_code)]

use rustix::io::Errno;
use rustix::process::Pid;
use ucs::sync::{Ordering, fence};

use crate::process::vm::{self, NONCE_LEN};

/// A range of an exporter's addresses.
#[derive(Debug)]
pub(super) struct Target {
    pub(super) pid: Pid,
    /// Where the range begins.
    pub(super) address: u64,
}

/// A word that this process has written just now to memory that it shares with the exporter and nobody else: where the exporter's
/// address space has it, and what it is. Another address space does not have it there.
#[derive(Clone, Copy, Debug)]
pub(super) struct Nonce {
    pub(super) at: u64,
    pub(super) value: u64,
}

/// A transfer that stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stopped {
    /// How many bytes were moved before.
    pub(super) done: usize,
    pub(super) why: Why,
}

/// Why a transfer stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Why {
    /// The next page cannot be reached.
    Fault,
    /// The process is not the one that holds the nonce.
    AnotherProcess,
    /// A system call failed.
    Errno(Errno),
}

impl Target {
    /// Whether the process can be accessed, and is the one that holds the nonce.
    pub(super) fn probe(&self, nonce: Nonce) -> Result<(), Why> {
        let mut seen = [0; NONCE_LEN];
        match vm::read(self.pid, nonce.at, &mut seen) {
            Ok(NONCE_LEN) if u64::from_ne_bytes(seen) == nonce.value => Ok(()),
            Ok(_) | Err(Errno::FAULT) => Err(Why::AnotherProcess),
            Err(errno) => Err(Why::Errno(errno)),
        }
    }

    /// Whether writing is allowed, as far as that can be told without writing: a filter may refuse the one call and not the other.
    pub(super) fn probe_writing(&self) -> Result<(), Why> {
        // SAFETY: no bytes are written.
        unsafe { vm::write(self.pid, self.address, &[]) }.map(drop).map_err(Why::Errno)
    }

    /// Copies from `offset` on into `dst`, from its byte `done` on. After an error `dst` holds no bytes of another process.
    pub(super) fn read(
        &self,
        nonce: Nonce,
        offset: u64,
        dst: &mut [u8],
        mut done: usize,
    ) -> Result<(), Stopped> {
        while done < dst.len() {
            let from = self.address.wrapping_add(offset).wrapping_add(done as u64);
            let mut seen = [0; NONCE_LEN];
            let moved = vm::read_with_nonce(self.pid, (nonce.at, &mut seen), from, &mut dst[done..]);
            if moved.is_ok() && u64::from_ne_bytes(seen) != nonce.value {
                dst[done..].fill(0); // it is somebody else's
                return Err(Stopped { done, why: Why::AnotherProcess });
            }
            match moved {
                Ok(Some(0)) => return Err(Stopped { done, why: Why::Fault }),
                Ok(Some(moved)) => done += moved,
                // The nonce's address is mapped no more, or in part: that is another address space.
                Ok(None) | Err(Errno::FAULT) => return Err(Stopped { done, why: Why::AnotherProcess }),
                Err(errno) => return Err(Stopped { done, why: Why::Errno(errno) }),
            }
        }
        fence(Ordering::Acquire);
        Ok(())
    }

    /// Copies `src` to `offset`, from its byte `done` on.
    pub(super) fn write(
        &self,
        nonce: Nonce,
        offset: u64,
        src: &[u8],
        mut done: usize,
    ) -> Result<(), Stopped> {
        fence(Ordering::Release);
        while done < src.len() {
            self.probe(nonce).map_err(|why| Stopped { done, why })?;
            let to = self.address.wrapping_add(offset).wrapping_add(done as u64);
            // SAFETY: where it is this process, the range is a region's that may be written (module rule).
            match unsafe { vm::write(self.pid, to, &src[done..]) } {
                Ok(0) | Err(Errno::FAULT) => return Err(Stopped { done, why: Why::Fault }),
                Ok(moved) => done += moved,
                Err(errno) => return Err(Stopped { done, why: Why::Errno(errno) }),
            }
        }
        Ok(())
    }
}
