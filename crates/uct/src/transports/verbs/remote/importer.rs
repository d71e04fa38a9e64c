//! The importer's side: queue pairs that are connected with the exporter's.
//!
//! # Safety
//! A remote range is one of another process's memory, by its key: the exporter's device checks bounds and rights. Where the exporter is this very
//! process, that is memory which a region of it exports, and which others may change at any time (contract of
//! [`LocalMem`](crate::memory::LocalMem)). A local range is an operand, borrowed during the call, with a registration of its pages (contract of
//! [`Local::memh`]); it is written only if it is a [`LocalMut`].

#![allow(unsafe_code)]

use std::any::Any;
use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rdma_core_sys::ibv_access_flags;
use ucs::Status;
use ucs::fork::{self, Generation};
use ucs::sync::{AtomicBool, Ordering};
use ucs::time::Deadline;

use super::wire::{Attached, Request, Subject};
use crate::api::{AtomicOp, AttachError, Attachment};
use crate::export::{Claim, Token};
use crate::memory::{
    AccessError, DeviceReason, Local, LocalMut, MappedView, OperandReason, Rights, StaleReason, check_range,
};
use crate::service::{NetCall, NetError, NetLink, Service};
use crate::transports::verbs::atomic;
use crate::transports::verbs::between::{self, Far, Side};
use crate::transports::verbs::device::{DEPTH, Device, REQUESTS};
use crate::transports::verbs::import::VerbsImport;
use crate::transports::verbs::md::VerbsMemh;
use crate::transports::verbs::queue::{self, Connect, FRAGMENT, Near, Queue, Remote, Way};
use crate::transports::verbs::sys::{Cq, Qp};
use crate::transports::verbs::wire::QpAddress;

/// Why an attachment fails that had begun well.
const REVOKED_MEANWHILE: &str = "it was revoked or dropped meanwhile";
/// How long a drop waits until other calls to the exporter have been answered.
const FAREWELL: Duration = Duration::from_secs(1);

/// The exporters of other machines that a memory domain has attached memory of.
#[derive(Debug)]
pub(in crate::transports::verbs) struct Importers {
    device: Arc<Device>,
    service: Arc<Service>,
    patience: Duration,
    /// By which it has connections of its own: for each, an exporter has the queue pairs of one device, and gives them up when it is asked
    /// for others.
    user: u64,
    /// The same for exporters that have said that they have no more keys for that connection.
    users: Mutex<HashMap<([u8; 16], SocketAddr), u64>>,
    peers: Mutex<Vec<Weak<Peer>>>,
}

/// An exporter.
#[derive(Debug)]
struct Peer {
    queue: Queue,
    link: Arc<NetLink>,
    /// Imports that have ended, of which it could not be told yet.
    farewells: Mutex<VecDeque<Farewell>>,
}

/// An import that has ended: its exporter is to end the registration.
#[derive(Debug)]
struct Farewell {
    kind: u16,
    subject: [u8; super::wire::SUBJECT_LEN],
    token: Token,
}

impl Peer {
    /// Tells it of those that have ended, as far as that can be done within this time. The end of the connection tells of the others.
    fn bid(&self, farewell: Option<Farewell>, patience: Duration) {
        self.farewells.lock().extend(farewell);
        let request = Request::Detach.encode();
        let next = || self.farewells.lock().pop_front(); // held no longer: others bid farewell at once
        while let Some(farewell) = next() {
            let Farewell { kind, subject, token } = &farewell;
            let call = NetCall { kind: *kind, subject, token, request: &request };
            if !self.link.tell(&call, patience) {
                return self.farewells.lock().push_front(farewell);
            }
        }
    }
}

/// Where an export is asked for.
#[derive(Clone, Copy, Debug)]
pub(in crate::transports::verbs) struct At<'a> {
    pub(in crate::transports::verbs) uuid: &'a [u8; 16],
    pub(in crate::transports::verbs) address: SocketAddr,
    pub(in crate::transports::verbs) kind: u16,
    pub(in crate::transports::verbs) guid: [u8; 8],
    /// Whether its exporter's registrations reach whatever is mapped at the address.
    pub(in crate::transports::verbs) by_address: bool,
}

impl Importers {
    pub(in crate::transports::verbs) fn new(
        device: &Arc<Device>,
        service: &Arc<Service>,
        patience: Duration,
    ) -> Self {
        let (device, service) = (Arc::clone(device), Arc::clone(service));
        let (user, users, peers) = (service.new_user(), Mutex::default(), Mutex::default());
        Self { device, service, patience, user, users, peers }
    }

    /// Attaches an export of another machine, or of this one.
    pub(in crate::transports::verbs) fn attach(
        &self,
        at: &At<'_>,
        claim: &Claim,
        deadline: &Deadline,
    ) -> Result<Arc<dyn Attachment>, AttachError> {
        let subject = Subject::new(at.guid, claim).encode();
        let asked = Request::Attach.encode();
        let call = NetCall { kind: at.kind, subject: &subject, token: &claim.token, request: &asked };
        let called = |user| self.service.call_net(user, at.uuid, &[at.address], &call, deadline);
        let exporter = (*at.uuid, at.address);
        let user = self.users.lock().get(&exporter).copied().unwrap_or(self.user);
        let answer = match called(user) {
            // Keys of the exporter's device that this connection has had are all there is.
            Err(NetError::Refused { status: Status::Busy, .. }) => {
                let other = self.service.new_user();
                let answer = called(other);
                if answer.is_ok() {
                    self.users.lock().insert(exporter, other);
                }
                answer
            }
            answer => answer,
        };
        let (link, reply) = answer.map_err(|error| match error {
            // Proven to come from the exporter.
            NetError::Refused { status: Status::Stale, .. } => AttachError::Stale(REVOKED_MEANWHILE),
            NetError::Refused { status: Status::InvalidParam, .. } => AttachError::Mismatch,
            NetError::Refused { status: Status::NoResource, address } => AttachError::Unreachable {
                reason: format!("{address} cannot register it for this process"),
                remedy: "see the exporter's log: raise its `ulimit -l`, or have fewer importers",
            },
            NetError::Refused { status: Status::ExceedsLimit, address } => AttachError::Unreachable {
                reason: format!("{address} has as much memory attached for this process as it may have"),
                remedy: "drop imports from that exporter that are no longer used",
            },
            error => AttachError::of_net(error),
        })?;
        let attached = Attached::decode(&reply).map_err(AttachError::Malformed)?;
        let import = Arc::new(RemoteImport {
            peer: self.peer(&link),
            device: Arc::clone(&self.device),
            kind: at.kind,
            subject,
            token: claim.token,
            rkey: attached.rkey,
            address: claim.address,
            len: claim.length,
            rights: attached.rights,
            by_address: at.by_address,
            patience: self.patience,
            is_over: AtomicBool::new(false),
            generation: fork::generation(),
        });
        // Now: an exporter that is stopped later need not do anything.
        import.peer.queue.connect(&*import).map_err(|error| match error {
            AccessError::Stale { why: StaleReason::Revoked, .. } => AttachError::Stale(REVOKED_MEANWHILE),
            error => AttachError::Unreachable { reason: error.to_string(), remedy: error.remedy() },
        })?;
        Ok(import)
    }

    fn peer(&self, link: &Arc<NetLink>) -> Arc<Peer> {
        let mut peers = self.peers.lock();
        peers.retain(|peer| peer.strong_count() > 0);
        let mut known = peers.iter().filter_map(Weak::upgrade);
        if let Some(peer) = known.find(|peer| Arc::ptr_eq(&peer.link, link)) {
            drop(peers);
            peer.bid(None, Duration::ZERO);
            return peer;
        }
        let (queue, farewells) = (Queue::new(&self.device), Mutex::default());
        let peer = Arc::new(Peer { queue, link: Arc::clone(link), farewells });
        peers.push(Arc::downgrade(&peer));
        peer
    }
}

/// Memory of another machine.
#[derive(Debug)]
pub(in crate::transports::verbs) struct RemoteImport {
    peer: Arc<Peer>,
    device: Arc<Device>,
    kind: u16,
    subject: [u8; super::wire::SUBJECT_LEN],
    token: Token,
    rkey: u32,
    /// Where the exporter has it.
    address: u64,
    len: u64,
    rights: Rights,
    /// Whether the registration reaches whatever is mapped at the address.
    by_address: bool,
    patience: Duration,
    /// The exporter's device has refused its key.
    is_over: AtomicBool,
    generation: Generation,
}

impl Connect for RemoteImport {
    fn connect(&self, lane: u8) -> Result<Qp, AccessError> {
        let call = |call| move |errno| queue::device(DeviceReason::Call { call, errno });
        let cq = Cq::new(&self.device.context, DEPTH).map_err(call("ibv_create_cq"))?;
        // Its peer may do nothing with memory of this side's domain.
        let unconnected = self.device.queue_pair(cq, REQUESTS, ibv_access_flags(0));
        let unconnected = unconnected.map_err(call("ibv_create_qp"))?;
        let request = Request::Connect { lane, address: unconnected.address() };
        let reply = self.call(&request, self.patience).map_err(|error| self.failed(&error))?;
        let not_connected = |what: &str| queue::device(DeviceReason::NotConnected { what: what.into() });
        let peer = QpAddress::decode(&reply).map_err(not_connected)?;
        unconnected.connect(&peer).map_err(call("ibv_modify_qp"))
    }

    fn is_gone(&self) -> bool {
        self.peer.link.has_ended()
    }
}

impl RemoteImport {
    fn asks<'a>(&'a self, request: &'a [u8]) -> NetCall<'a> {
        NetCall { kind: self.kind, subject: &self.subject, token: &self.token, request }
    }

    fn call(&self, request: &Request, patience: Duration) -> Result<Vec<u8>, NetError> {
        let deadline = Deadline::after(patience);
        self.peer.link.call(&self.asks(&request.encode()), &deadline)
    }

    /// What a call that failed means for the access it was made for.
    fn failed(&self, error: &NetError) -> AccessError {
        match error {
            NetError::Stale { .. } => AccessError::Stale { done: 0, why: StaleReason::Revoked },
            _ if self.peer.link.state().is_gone() => {
                AccessError::Stale { done: 0, why: StaleReason::Disconnected }
            }
            error => queue::device(DeviceReason::NotConnected { what: error.to_string().into() }),
        }
    }

    pub(in crate::transports::verbs) fn is_of(&self, device: &Arc<Device>) -> bool {
        Arc::ptr_eq(&self.device, device)
    }

    pub(in crate::transports::verbs) fn queue(&self) -> &Queue {
        &self.peer.queue
    }

    pub(in crate::transports::verbs) fn remote(&self, offset: u64) -> Remote {
        Remote { address: self.address.wrapping_add(offset), rkey: self.rkey }
    }

    /// Whether it is of any use.
    fn known(&self) -> Result<(), StaleReason> {
        match () {
            () if !self.generation.is_current() => Err(StaleReason::Forked),
            () if self.is_over.load(Ordering::Acquire) => Err(StaleReason::Revoked),
            () if self.peer.link.state().is_gone() => Err(StaleReason::Disconnected),
            () => Ok(()),
        }
    }

    /// Has `access` done, if that is of any use, and takes note of what the exporter's device says.
    fn during(&self, access: impl FnOnce() -> Result<(), AccessError>) -> Result<(), AccessError> {
        self.known().map_err(AccessError::stale)?;
        access().map_err(|error| self.noted(error))
    }

    /// An access to no bytes: it tells whether there could be one.
    fn no_bytes(&self) -> Result<(), AccessError> {
        self.check().map_err(AccessError::stale)
    }

    /// Takes note of what the exporter's device says.
    fn noted(&self, error: AccessError) -> AccessError {
        match error {
            error @ AccessError::Stale { why: StaleReason::Revoked, .. } if !self.by_address => {
                self.is_over.store(true, Ordering::Release);
                error
            }
            // Or nothing is mapped there now: something may be again.
            AccessError::Stale { done, why: StaleReason::Revoked } => {
                AccessError::Stale { done, why: self.asked_why().unwrap_or(StaleReason::Unmapped) }
            }
            // What has happened to this side's device is why, whatever has become of the exporter: that is told by the next access.
            error @ AccessError::Device { why: DeviceReason::After { .. }, .. } => error,
            // Its queue pairs ended with it, perhaps before its connection; or its device says nothing of a registration that was ended just now.
            AccessError::Device { done, why } => {
                let failed = Instant::now();
                match self.asked_why() {
                    Some(why) => AccessError::Stale { done, why },
                    // What has happened to the device may be told later than that a request failed.
                    None => self.device.events.explain(AccessError::Device { done, why }, failed),
                }
            }
            error => error,
        }
    }

    /// Why a device has failed, if that is because the export is over: by the exporter's own word, of which note is taken.
    fn asked_why(&self) -> Option<StaleReason> {
        if self.peer.link.has_ended() {
            return Some(StaleReason::Disconnected);
        }
        match self.call(&Request::Check, self.patience) {
            Ok(_) => None,
            Err(NetError::Stale { .. } | NetError::Refused { status: Status::Stale, .. }) => {
                self.is_over.store(true, Ordering::Release);
                Some(StaleReason::Revoked)
            }
            Err(_) => self.peer.link.has_ended().then_some(StaleReason::Disconnected),
        }
    }

    /// Moves `len` bytes between memory of this side's protection domain and `remote`, a part of this.
    ///
    /// # Safety
    /// The memory may be read, or written where it is [`Way::Get`], so until this returns, and is registered so long.
    pub(in crate::transports::verbs) unsafe fn move_near(
        &self,
        way: Way,
        near: Near,
        remote: Remote,
        len: usize,
    ) -> Result<(), AccessError> {
        // SAFETY: the caller's promise.
        self.during(|| unsafe { self.peer.queue.registered(way, near, remote, len, self) })
    }

    /// Copies between this and other attached memory, if they have a way of their own.
    fn with_attached(
        &self,
        way: Way,
        offset: u64,
        (other, at): (&(dyn Attachment + 'static), u64),
        len: usize,
    ) -> Option<Result<(), AccessError>> {
        if let Err(error) = self.during(|| Ok(())) {
            return Some(Err(error));
        }
        let here = Far { import: self, offset };
        let other_any = other as &dyn Any;
        let moved = if let Some(near) =
            other_any.downcast_ref::<VerbsImport>().filter(|near| near.is_of(&self.device))
        {
            between::direct(way, (near, at), here, len)
        } else {
            let far = other_any.downcast_ref::<Self>().filter(|far| far.is_of(&self.device))?;
            if let Err(error) = far.during(|| Ok(())) {
                return Some(Err(error.of_imported_operand()));
            }
            let there = Far { import: far, offset: at };
            let (from, to) = match way {
                Way::Put => (there, here),
                Way::Get => (here, there),
            };
            between::relay(from, to, len)?.map_err(|error| match error {
                Side::Source(error) => Side::Source(from.import.noted(error)),
                Side::Target(error) => Side::Target(to.import.noted(error)),
            })
        };
        Some(moved.map_err(|error| error.of_operation(way)))
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
        let missing = AccessError::Operand { done: 0, why: OperandReason::NotRegistered };
        let memh = memh.filter(|memh| memh.0.is_of(&self.device.pd)); // its key would name other memory here
        let (memh, local) = memh.zip(local).ok_or(missing)?;
        let near = Near { address: local as u64, lkey: memh.0.lkey() };
        // SAFETY: the operand, which the caller has borrowed so (module rule).
        unsafe { self.move_near(way, near, self.remote(offset), len) }
    }
}

impl Attachment for RemoteImport {
    fn len(&self) -> u64 {
        self.len
    }

    fn rights(&self) -> Rights {
        self.rights
    }

    fn read(&self, offset: u64, dst: &mut [u8]) -> Result<(), AccessError> {
        check_range(offset, dst.len(), self.len)?;
        if dst.is_empty() {
            return self.no_bytes();
        }
        self.during(|| self.peer.queue.read(self.remote(offset), dst, self))
    }

    fn write(&self, offset: u64, src: &[u8]) -> Result<(), AccessError> {
        self.rights.check_write()?;
        check_range(offset, src.len(), self.len)?;
        if src.is_empty() {
            return self.no_bytes();
        }
        self.during(|| self.peer.queue.write(self.remote(offset), src, self))
    }

    fn atomic(&self, offset: u64, op: AtomicOp) -> Result<u64, AccessError> {
        atomic::check(&self.device, self.by_address)?;
        self.rights.check_write()?;
        check_range(offset, op.size(), self.len)?;
        let op = atomic::operation(op, self.address, offset)?;
        self.known().map_err(AccessError::stale)?;
        let remote = self.remote(offset);
        atomic::run(op, |step| self.peer.queue.atomic(step, remote, self)).map_err(|error| match error {
            // That is also what a device says that has no atomics: it is asked which.
            AccessError::Stale { why: StaleReason::Revoked, .. }
            | AccessError::Device { why: DeviceReason::Refused { .. }, .. } => match self.asked_why() {
                Some(why) => AccessError::stale(why),
                None => AccessError::Unsupported { why: "the exporter's device has no atomics" },
            },
            error => self.noted(error),
        })
    }

    fn good_piece(&self) -> usize {
        FRAGMENT
    }

    fn put(&self, offset: u64, src: &Local<'_>) -> Result<(), AccessError> {
        self.rights.check_write()?;
        check_range(offset, src.len(), self.len)?;
        if src.is_empty() {
            return self.no_bytes();
        }
        // SAFETY: an operand, borrowed for reading, and its registration (module rule).
        unsafe { self.move_registered(Way::Put, (src.memh(), src.address()), offset, src.len()) }
    }

    fn get(&self, offset: u64, dst: &mut LocalMut<'_>) -> Result<(), AccessError> {
        check_range(offset, dst.len(), self.len)?;
        if dst.is_empty() {
            return self.no_bytes();
        }
        // SAFETY: an operand, borrowed for writing, and its registration (module rule).
        unsafe { self.move_registered(Way::Get, (dst.memh(), dst.address()), offset, dst.len()) }
    }

    fn put_attached(
        &self,
        offset: u64,
        from: (&(dyn Attachment + 'static), u64),
        len: usize,
    ) -> Option<Result<(), AccessError>> {
        if let Err(error) = self.rights.check_write() {
            return Some(Err(error));
        }
        if len == 0 {
            return None;
        }
        self.with_attached(Way::Put, offset, from, len).or_else(|| {
            let (memory, at) = from;
            Some(self.during(|| {
                self.peer.queue.write_from(self.remote(offset), len, self, |begin, part| {
                    memory.read(at + begin as u64, part).map_err(AccessError::of_imported_operand)
                })
            }))
        })
    }

    fn get_attached(
        &self,
        offset: u64,
        to: (&(dyn Attachment + 'static), u64),
        len: usize,
    ) -> Option<Result<(), AccessError>> {
        if let Err(error) = to.0.rights().check_write() {
            return Some(Err(error.of_imported_operand()));
        }
        if len == 0 {
            return None;
        }
        self.with_attached(Way::Get, offset, to, len).or_else(|| {
            let (memory, at) = to;
            Some(self.during(|| {
                self.peer.queue.read_into(self.remote(offset), len, self, |begin, part| {
                    memory.write(at + begin as u64, part).map_err(AccessError::of_imported_operand)
                })
            }))
        })
    }

    /// Asks the exporter's device, which alone knows: reads a byte.
    fn check(&self) -> Result<(), StaleReason> {
        self.known()?;
        match self.read(0, &mut [0]) {
            // What is not mapped may be again: the export lives.
            Err(AccessError::Stale { why, .. }) if why != StaleReason::Unmapped => Err(why),
            _ => Ok(()), // a device that has failed does not tell
        }
    }

    fn view(&self) -> Option<MappedView<'_>> {
        None
    }
}

impl Drop for RemoteImport {
    fn drop(&mut self) {
        // Otherwise the registration ends with the connection, which the last import of this exporter ends.
        if self.known().is_ok() {
            let (kind, subject, token) = (self.kind, self.subject, self.token);
            self.peer.bid(Some(Farewell { kind, subject, token }), FAREWELL);
        }
    }
}
