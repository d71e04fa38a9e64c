//! Memory of another process, registered in this one's protection domain.
//!
//! # Safety
//! A remote range lies within the export that the exporter has registered, under its key: the device checks bounds and rights. Where the exporter
//! is this very process, that is memory which a region of it exports, and which others may change at any time (contract of
//! [`LocalMem`](crate::memory::LocalMem)). A local range is an operand, borrowed during the call, with a registration of its pages (contract of
//! [`Local::memh`]); it is written only if it is a [`LocalMut`].

#![allow(unsafe_code)]

use std::any::Any;
use std::ops::Range;
use std::sync::Arc;

use parking_lot::Mutex;
use rdma_core_sys::ibv_wc_status;

use super::atomic;
use super::between::{self, Far};
use super::command;
use super::device::Device;
use super::md::VerbsMemh;
use super::queue::{FRAGMENT, Near, Queue, Remote, Way};
use super::remote::RemoteImport;
use crate::api::{AtomicOp, Attachment};
use crate::export::{Gate, PeerObserver};
use crate::memory::{
    AccessError, DeviceReason, Local, LocalMut, MappedView, OperandReason, Rights, StaleReason, check_range,
};
use crate::service::Peer;
use crate::service::wire::PlacedKeys;

/// Another process's memory, by its addresses.
#[derive(Debug)]
pub(super) struct VerbsImport {
    loopback: Arc<Queue>,
    gate: Gate,
    peer: Arc<Peer>,
    keys: PlacedKeys,
    /// Where the exporter has it.
    address: u64,
    len: u64,
    rights: Rights,
    /// Whether the registration reaches whatever is mapped at the address.
    by_address: bool,
    device: Arc<Device>,
    driver: u32,
    /// Whether it is known not to be registered any more.
    ended: Mutex<bool>,
}

impl VerbsImport {
    pub(super) fn new(
        (device, driver): (&Arc<Device>, u32),
        loopback: &Arc<Queue>,
        gate: Gate,
        peer: Arc<Peer>,
        keys: PlacedKeys,
        (address, len, rights): (u64, u64, Rights),
        by_address: bool,
    ) -> Arc<Self> {
        let import = Arc::new(Self {
            loopback: Arc::clone(loopback),
            gate,
            peer,
            keys,
            address,
            len,
            rights,
            by_address,
            device: Arc::clone(device),
            driver,
            ended: Mutex::new(false),
        });
        let observer: std::sync::Weak<Self> = Arc::downgrade(&import);
        import.peer.link().state().observe(observer);
        import
    }

    /// Whether it is in this device's protection domain.
    pub(super) fn is_of(&self, device: &Arc<Device>) -> bool {
        Arc::ptr_eq(&self.device, device)
    }

    /// The memory from `at` bytes behind `offset` on, for requests of the device it is registered with.
    pub(super) fn near(&self, offset: u64, at: usize) -> Near {
        Near { address: self.address.wrapping_add(offset), lkey: self.keys.lkey }.at(at)
    }

    fn remote(&self, offset: u64, at: usize) -> Remote {
        Remote { address: self.address.wrapping_add(offset).wrapping_add(at as u64), rkey: self.keys.rkey }
    }

    /// As [`Gate::in_steps`]. Of a queue pair that is connected to itself both halves fail when the registration has ended, and which of the two is told
    /// first is chance: that the export is over is told by the gate.
    pub(super) fn in_steps(
        &self,
        len: usize,
        step: impl FnMut(Range<usize>) -> Result<(), AccessError>,
    ) -> Result<(), AccessError> {
        self.gate.in_steps(len, step).map_err(|error| match (error, self.gate.check()) {
            // Of an exporter that is gone the registration is ended here: to the device it is one that was revoked.
            (
                AccessError::Device { done, .. } | AccessError::Stale { done, why: StaleReason::Revoked },
                Err(why),
            ) if why != StaleReason::Forked => AccessError::Stale { done, why },
            (error, _) => error,
        })
    }

    /// The same of requests to this memory alone: what the device refuses where nothing was revoked is not mapped. The half that refuses it may
    /// be the one that is not told first.
    fn in_steps_here(
        &self,
        len: usize,
        step: impl FnMut(Range<usize>) -> Result<(), AccessError>,
    ) -> Result<(), AccessError> {
        let flushed = |why: &DeviceReason| {
            *why == DeviceReason::Status {
                words: self.device.context.words(ibv_wc_status::IBV_WC_WR_FLUSH_ERR),
            }
        };
        self.in_steps(len, step).map_err(|error| {
            let is_refused = match &error {
                AccessError::Stale { why, .. } => *why == StaleReason::Revoked,
                AccessError::Device { why, .. } => flushed(why),
                _ => false,
            };
            if is_refused && self.by_address && self.gate.check().is_ok() {
                AccessError::Stale { done: error.done(), why: StaleReason::Unmapped }
            } else {
                error
            }
        })
    }

    /// Whether the registration reaches whatever is mapped at the address.
    pub(super) fn is_by_address(&self) -> bool {
        self.by_address
    }

    /// Moves an operand of `len` bytes at `local`.
    ///
    /// # Safety
    /// It is borrowed, for writing where it is [`Way::Get`], and `memh` is of its pages.
    unsafe fn move_registered(
        &self,
        way: Way,
        (memh, local): (Option<&VerbsMemh>, Option<usize>),
        offset: u64,
        len: usize,
    ) -> Result<(), AccessError> {
        if len == 0 {
            return self.in_steps(0, |_| Ok(()));
        }
        let missing = AccessError::Operand { done: 0, why: OperandReason::NotRegistered };
        let memh = memh.filter(|memh| memh.0.is_of(&self.device.pd)); // its key would name other memory here
        let (memh, local) = memh.zip(local).ok_or(missing)?;
        self.in_steps_here(len, |part| {
            let near = Near { address: (local + part.start) as u64, lkey: memh.0.lkey() };
            let remote = self.remote(offset, part.start);
            // SAFETY: a part of the operand, which the caller has borrowed so (module rule).
            unsafe { self.loopback.registered(way, near, remote, part.len(), &*self.device) }
        })
    }
}

impl Attachment for VerbsImport {
    fn len(&self) -> u64 {
        self.len
    }

    fn rights(&self) -> Rights {
        self.rights
    }

    fn read(&self, offset: u64, dst: &mut [u8]) -> Result<(), AccessError> {
        check_range(offset, dst.len(), self.len)?;
        self.in_steps_here(dst.len(), |part| {
            self.loopback.read(self.remote(offset, part.start), &mut dst[part], &*self.device)
        })
    }

    fn write(&self, offset: u64, src: &[u8]) -> Result<(), AccessError> {
        self.rights.check_write()?;
        check_range(offset, src.len(), self.len)?;
        self.in_steps_here(src.len(), |part| {
            self.loopback.write(self.remote(offset, part.start), &src[part], &*self.device)
        })
    }

    fn atomic(&self, offset: u64, op: AtomicOp) -> Result<u64, AccessError> {
        atomic::check(&self.device, self.by_address)?;
        self.rights.check_write()?;
        check_range(offset, op.size(), self.len)?;
        let op = atomic::operation(op, self.address, offset)?;
        let mut before = 0;
        self.in_steps(size_of::<u64>(), |_| {
            before =
                atomic::run(op, |step| self.loopback.atomic(step, self.remote(offset, 0), &*self.device))?;
            Ok(())
        })?;
        Ok(before)
    }

    /// An access is a request to the device, and a copy.
    fn good_piece(&self) -> usize {
        FRAGMENT
    }

    fn put(&self, offset: u64, src: &Local<'_>) -> Result<(), AccessError> {
        self.rights.check_write()?;
        check_range(offset, src.len(), self.len)?;
        // SAFETY: an operand, borrowed for reading, and its registration (module rule).
        unsafe { self.move_registered(Way::Put, (src.memh(), src.address()), offset, src.len()) }
    }

    fn get(&self, offset: u64, dst: &mut LocalMut<'_>) -> Result<(), AccessError> {
        check_range(offset, dst.len(), self.len)?;
        // SAFETY: an operand, borrowed for writing, and its registration (module rule).
        unsafe { self.move_registered(Way::Get, (dst.memh(), dst.address()), offset, dst.len()) }
    }

    fn put_attached(
        &self,
        offset: u64,
        (from, at): (&(dyn Attachment + 'static), u64),
        len: usize,
    ) -> Option<Result<(), AccessError>> {
        let far = (from as &dyn Any).downcast_ref::<RemoteImport>().filter(|far| far.is_of(&self.device))?;
        if let Err(error) = self.rights.check_write() {
            return Some(Err(error));
        }
        let moved = between::direct(Way::Get, (self, offset), Far { import: far, offset: at }, len);
        Some(moved.map_err(|error| error.of_operation(Way::Put)))
    }

    fn get_attached(
        &self,
        offset: u64,
        (to, at): (&(dyn Attachment + 'static), u64),
        len: usize,
    ) -> Option<Result<(), AccessError>> {
        let far = (to as &dyn Any).downcast_ref::<RemoteImport>().filter(|far| far.is_of(&self.device))?;
        if let Err(error) = far.rights().check_write() {
            return Some(Err(error.of_imported_operand()));
        }
        let moved = between::direct(Way::Put, (self, offset), Far { import: far, offset: at }, len);
        Some(moved.map_err(|error| error.of_operation(Way::Get)))
    }

    fn check(&self) -> Result<(), StaleReason> {
        self.gate.check()
    }

    fn view(&self) -> Option<MappedView<'_>> {
        None
    }
}

impl PeerObserver for VerbsImport {
    /// The exporter's pages are still pinned by the registration, which is of this process's context: it is ended here. Only if the export
    /// has not been revoked: then the exporter may have ended it, and its number be another one's.
    fn peer_is_gone(&self) {
        let mut ended = self.ended.lock();
        if !std::mem::replace(&mut *ended, true) && self.gate.check() == Err(StaleReason::ExporterGone) {
            let fd = self.device.context.command_fd();
            if let Err(errno) = command::deregister(fd, self.driver, self.keys.handle) {
                tracing::warn!(%errno, "memory of a process that is gone stays pinned until this context is closed");
            }
        }
    }
}

impl Drop for VerbsImport {
    fn drop(&mut self) {
        if self.gate.is_mine() && !std::mem::replace(self.ended.get_mut(), true) {
            self.peer.unplace(self.keys.sequence);
        }
    }
}
