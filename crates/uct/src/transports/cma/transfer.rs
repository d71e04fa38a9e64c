//! Moving bytes between this process and an exporter's addresses.
//!
//! # Safety
//! Where the exporter is this very process, its addresses are those of a region of another context of this process: that context has
//! granted the access, after it has compared the whole claim. Regions are accessed as memory that others may change at any time, and
//! those that must not be written are granted without [`Rights::WRITE`](crate::memory::Rights), which the attachment checks.

#![allow(unsafe_code)]

use rustix::io::Errno;
use rustix::process::Pid;
use ucs::sync::{Ordering, fence};

use crate::memory::{AccessError, StaleReason};
use crate::process::vm::{self, Mapped, NONCE_LEN};

/// A range of an exporter's addresses.
#[derive(Debug)]
pub(super) struct Target {
    pid: Pid,
    /// Where its memory holds the nonce.
    nonce_at: u64,
    /// What that must be.
    nonce: [u8; NONCE_LEN],
    /// Where the range begins.
    address: u64,
}

const GONE: StaleReason = StaleReason::ExporterGone;

impl Target {
    pub(super) fn new(pid: Pid, nonce_at: u64, nonce: [u8; NONCE_LEN], address: u64) -> Self {
        Self { pid, nonce_at, nonce, address }
    }

    /// Whether the process can be accessed, and is the one that holds the nonce (`None`: it is not).
    pub(super) fn probe(&self) -> Result<(), Option<Errno>> {
        let mut seen = [0; NONCE_LEN];
        match vm::read(self.pid, self.nonce_at, &mut seen) {
            Ok(NONCE_LEN) if seen == self.nonce => Ok(()),
            Ok(_) => Err(None),
            Err(errno) => Err(Some(errno)),
        }
    }

    /// Copies from `offset` on into `dst`, which gets no bytes of another process.
    pub(super) fn read(&self, offset: u64, dst: &mut [u8]) -> Result<(), AccessError> {
        let mut done = 0;
        let mut again = true;
        while done < dst.len() {
            let from = self.address.wrapping_add(offset + done as u64);
            let mut seen = [0; NONCE_LEN];
            let moved = vm::read_with_nonce(self.pid, (self.nonce_at, &mut seen), from, &mut dst[done..]);
            if moved.is_ok() && seen != self.nonce {
                dst.fill(0); // it is somebody else's
                return Err(AccessError::Stale { done: 0, why: GONE });
            }
            match moved {
                Ok(Some(0)) => self.retry(from, false, done, &mut again)?,
                Ok(Some(moved)) => {
                    done += moved;
                    again = true;
                }
                // Its address is mapped no more, or in part: that is another address space.
                Ok(None) | Err(Errno::FAULT) => {
                    return Err(AccessError::Stale { done: done as u64, why: GONE });
                }
                Err(errno) => return Err(failure(errno, done)),
            }
        }
        fence(Ordering::Acquire);
        Ok(())
    }

    /// Copies `src` to `offset`.
    pub(super) fn write(&self, offset: u64, src: &[u8]) -> Result<(), AccessError> {
        fence(Ordering::Release);
        let mut done = 0;
        let mut again = true;
        while done < src.len() {
            self.probe().map_err(|errno| match errno {
                None | Some(Errno::FAULT) => AccessError::Stale { done: done as u64, why: GONE },
                Some(errno) => failure(errno, done),
            })?;
            let to = self.address.wrapping_add(offset + done as u64);
            // SAFETY: where it is this process, the range is a region's that may be written (module rule).
            match unsafe { vm::write(self.pid, to, &src[done..]) } {
                Ok(0) | Err(Errno::FAULT) => self.retry(to, true, done, &mut again)?,
                Ok(moved) => {
                    done += moved;
                    again = true;
                }
                Err(errno) => return Err(failure(errno, done)),
            }
        }
        Ok(())
    }

    /// The page at `address` could not be reached: says why, unless something has been mapped there since.
    #[cold]
    fn retry(
        &self,
        address: u64,
        for_writing: bool,
        done: usize,
        again: &mut bool,
    ) -> Result<(), AccessError> {
        let done = done as u64;
        let mapped = vm::mapped_at(&self.pid.as_raw_nonzero().to_string(), address, for_writing);
        match mapped {
            Mapped::Allowed if std::mem::take(again) => Ok(()),
            Mapped::Allowed => Err(AccessError::AccessDenied {
                done,
                why: "the pages are mapped, but the kernel does not reach them: beyond the end of a file, or a device's",
            }),
            Mapped::Denied => {
                Err(AccessError::AccessDenied { done, why: "the pages are mapped, but not for this access" })
            }
            Mapped::No | Mapped::Unknown => Err(AccessError::Stale { done, why: StaleReason::Unmapped }),
        }
    }
}

#[cold]
fn failure(errno: Errno, done: usize) -> AccessError {
    let done = done as u64;
    match errno {
        Errno::SRCH => AccessError::Stale { done, why: GONE },
        Errno::PERM | Errno::ACCESS => AccessError::AccessDenied {
            done,
            why: "the kernel allows it no longer: the exporter has changed its user or is not dumpable any more, or this \
                  process has",
        },
        Errno::NOMEM => {
            AccessError::Unsupported { why: "the kernel had no memory for process_vm_readv/writev" }
        }
        _ => AccessError::Unsupported { why: "the kernel refuses process_vm_readv/writev" },
    }
}
