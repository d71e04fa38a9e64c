//! Copies within a device: between memory of this process and memory that another one has put into the same protection domain.
//!
//! # Safety
//! A request is posted in [`Loopback::step`] alone, which returns when it has completed, or when its queue pair is destroyed. Until
//! then its caller keeps both registrations, and may have the local range read or written so, and the remote one is exported memory.

#![allow(unsafe_code)]

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rdma_core_sys::{
    ibv_send_flags, ibv_send_wr, ibv_send_wr__bindgen_ty_2__bindgen_ty_1 as Rdma, ibv_sge, ibv_wc_status,
    ibv_wr_opcode,
};
use ucs::mem::Mapping;

use super::device::Device;
use super::sys::{Mr, Qp};
use crate::memory::{AccessError, DeniedReason, StaleReason};

/// Bytes that an access without a registration moves at once.
pub(super) const BOUNCE: usize = 256 << 10;
/// How long a request may take: longer than a device tries to have it acknowledged. Then its queue pair is destroyed.
const PATIENCE: Duration = Duration::from_secs(30);

/// Which way bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// To the other process's memory.
    Put,
    /// From it.
    Get,
}

/// Memory that another process has registered in this device's protection domain.
#[derive(Clone, Copy, Debug)]
pub(super) struct Remote {
    pub(super) address: u64,
    pub(super) rkey: u32,
}

/// A queue pair connected to itself, and memory for what is not registered. Shared by threads: one request at a time.
#[derive(Debug)]
pub(super) struct Loopback {
    device: Arc<Device>,
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    /// None at first, and after a request that failed: that ends a queue pair.
    qp: Option<Qp>,
    bounce: Option<Bounce>,
}

#[derive(Debug)]
struct Bounce {
    // Dropped before the memory that it is of.
    mr: Mr,
    map: Mapping,
}

const FAILED: AccessError = AccessError::Unsupported { why: "the RDMA device has failed: see the log" };

impl Loopback {
    pub(super) fn new(device: &Arc<Device>) -> Self {
        Self { device: Arc::clone(device), inner: Mutex::default() }
    }

    /// Moves the `len` bytes of registered memory of this process at `local`.
    ///
    /// # Safety
    /// The range lies in memory that `mr` is a registration of, for writing where it is [`Way::Get`], and that the caller may have
    /// read, or written, so until this returns.
    pub(super) unsafe fn registered(
        &self,
        way: Way,
        (mr, local): (&Mr, u64),
        remote: Remote,
        len: usize,
    ) -> Result<(), AccessError> {
        if !mr.is_of(&self.device.pd) {
            return Err(FAILED); // its key would name other memory here
        }
        let mut inner = self.inner.lock();
        // SAFETY: the caller's promise.
        unsafe { self.step(&mut inner.qp, way, (mr.lkey(), local), remote, len) }
    }

    /// Copies from the other process's memory into `dst`, at most [`BOUNCE`] bytes.
    pub(super) fn read(&self, remote: Remote, dst: &mut [u8]) -> Result<(), AccessError> {
        let mut inner = self.inner.lock();
        let Inner { qp, bounce } = &mut *inner;
        let bounce = self.bounce(bounce)?;
        let local = (bounce.mr.lkey(), bounce.address());
        // SAFETY: memory of its own, as long as `BOUNCE`, which is used under the lock only.
        unsafe { self.step(qp, Way::Get, local, remote, dst.len()) }?;
        Ok(bounce.map.bytes().read(0, dst)?)
    }

    /// Copies `src`, at most [`BOUNCE`] bytes, to the other process's memory.
    pub(super) fn write(&self, remote: Remote, src: &[u8]) -> Result<(), AccessError> {
        let mut inner = self.inner.lock();
        let Inner { qp, bounce } = &mut *inner;
        let bounce = self.bounce(bounce)?;
        bounce.map.bytes().write(0, src)?;
        // SAFETY: as in `read`.
        unsafe { self.step(qp, Way::Put, (bounce.mr.lkey(), bounce.address()), remote, src.len()) }
    }

    fn bounce<'a>(&self, bounce: &'a mut Option<Bounce>) -> Result<&'a Bounce, AccessError> {
        if bounce.is_none() {
            let made = Mapping::anonymous(BOUNCE).map_err(|error| error.to_string()).and_then(|map| {
                let mr = self.device.register(map.bytes().as_ptr().addr(), BOUNCE, true);
                Ok(Bounce { mr: mr.map_err(|error| error.to_string())?, map })
            });
            let made = made.inspect_err(|why| tracing::error!(why, "no memory for what is not registered"));
            *bounce = made.ok();
        }
        bounce.as_ref().ok_or(AccessError::Unsupported {
            why: "no memory could be registered with the RDMA device to go through: raise `ulimit -l`",
        })
    }

    /// # Safety
    /// As [`Loopback::registered`], of the registration that `lkey` is of.
    unsafe fn step(
        &self,
        qp: &mut Option<Qp>,
        way: Way,
        (lkey, local): (u32, u64),
        remote: Remote,
        len: usize,
    ) -> Result<(), AccessError> {
        let length = u32::try_from(len).map_err(|_| FAILED)?;
        let connected = match qp.take() {
            Some(qp) => qp,
            None => self.device.loopback().map_err(|errno| {
                tracing::error!(%errno, "no queue pair that is connected to itself");
                FAILED
            })?,
        };
        let opcode = match way {
            Way::Put => ibv_wr_opcode::IBV_WR_RDMA_WRITE,
            Way::Get => ibv_wr_opcode::IBV_WR_RDMA_READ,
        };
        let mut request =
            ibv_send_wr { opcode, send_flags: ibv_send_flags::IBV_SEND_SIGNALED.0, ..Default::default() };
        request.wr.rdma = Rdma { remote_addr: remote.address, rkey: remote.rkey };
        let sge = ibv_sge { addr: local, length, lkey };
        // SAFETY: the caller's promise; this returns when the request has completed, or its queue pair is dropped (module rule).
        let posted = unsafe { connected.post(sge, request) };
        posted.map_err(|errno| {
            tracing::error!(%errno, "a request could not be posted");
            FAILED
        })?;
        let status = await_completion(&connected)?;
        if status == ibv_wc_status::IBV_WC_SUCCESS {
            *qp = Some(connected);
            return Ok(());
        }
        let words = self.device.context.words(status);
        tracing::debug!(status = status.0, words, ?way, "a request has failed");
        Err(error_of(status))
    }
}

impl Bounce {
    fn address(&self) -> u64 {
        self.map.bytes().as_ptr().addr() as u64
    }
}

/// The status of the one request that is on its way.
fn await_completion(qp: &Qp) -> Result<ibv_wc_status, AccessError> {
    let begin = Instant::now();
    for round in 0_u32.. {
        match qp.cq().poll() {
            Ok(Some(wc)) => return Ok(wc.status),
            Ok(None) if round < 64 => std::hint::spin_loop(),
            Ok(None) if begin.elapsed() < PATIENCE => std::thread::yield_now(),
            Ok(None) => {
                tracing::error!("a request has not completed within {PATIENCE:?}");
                return Err(FAILED);
            }
            Err(errno) => {
                tracing::error!(%errno, "completions cannot be polled");
                return Err(FAILED);
            }
        }
    }
    Err(FAILED)
}

/// What the status of a failed request means for the access it was of.
pub(super) fn error_of(status: ibv_wc_status) -> AccessError {
    match status {
        // The key names nothing any more: the registration was ended while the request was on its way.
        ibv_wc_status::IBV_WC_REM_ACCESS_ERR
        | ibv_wc_status::IBV_WC_REM_INV_REQ_ERR
        | ibv_wc_status::IBV_WC_REM_OP_ERR => AccessError::Stale { done: 0, why: StaleReason::Revoked },
        ibv_wc_status::IBV_WC_LOC_PROT_ERR => {
            AccessError::AccessDenied { done: 0, why: DeniedReason::Protection }
        }
        _ => FAILED,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_are_errors_that_say_what_it_was() {
        let status = |status| error_of(status).status();
        assert_eq!(status(ibv_wc_status::IBV_WC_REM_ACCESS_ERR), ucs::Status::Stale);
        assert_eq!(status(ibv_wc_status::IBV_WC_LOC_PROT_ERR), ucs::Status::AccessDenied);
        assert_eq!(status(ibv_wc_status::IBV_WC_RETRY_EXC_ERR), ucs::Status::Unsupported);
    }
}
