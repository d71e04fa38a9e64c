//! Copies by a device: requests of queue pairs, several of them on their way at once.
//!
//! A [`Queue`] has two lanes, a queue pair each. The plain one serves accesses that call nothing else; the long one those that move much, or that
//! access other memory in between: what they call may use the plain lane of this same queue, and never waits for the long one.
//!
//! # Safety
//! A request is posted in [`Flight::post`] alone. A flight does not end before all its requests have completed, or their queue pair is
//! destroyed. Until then its caller keeps the registrations, and may have the local range read or written so, and the remote one is
//! exported memory, or a mapping of the trial of on-demand paging.

#![allow(unsafe_code)]

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};
use rdma_core_sys::{
    ibv_send_flags, ibv_send_wr, ibv_send_wr__bindgen_ty_2__bindgen_ty_1 as Rdma,
    ibv_send_wr__bindgen_ty_2__bindgen_ty_2 as Atomic, ibv_sge, ibv_wc_status, ibv_wr_opcode,
};
use ucs::mem::Mapping;

use super::atomic::Step;
use super::device::{DEPTH, Device};
use super::sys::{Mr, Qp};
use crate::memory::{AccessError, DeniedReason, DeviceReason, StaleReason};

/// Bytes that what is not registered is moved by at once.
pub(super) const FRAGMENT: usize = 128 << 10;
/// Fragments on their way at once.
pub(super) const FRAGMENTS: usize = 4;
/// Bytes of a request for what is registered: less than any device refuses.
pub(super) const REQUEST: usize = 1 << 20;
/// From so many bytes on, an access takes the long lane.
const LONG: usize = 1 << 20;
/// How long nothing may complete: longer than a device tries to have a request acknowledged. Then its queue pair is destroyed.
const PATIENCE: Duration = Duration::from_secs(30);

/// How long an access waits for those before it.
const TURN: Duration = Duration::from_secs(300);
/// How often it is looked, while nothing completes, whether the peer is gone.
const LOOKS: Duration = Duration::from_millis(1);

/// Which way bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// To the other process's memory.
    Put,
    /// From it.
    Get,
}

/// What a request has done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Request {
    Move(Way),
    Atomic(Step),
}

/// Memory that another process has registered.
#[derive(Clone, Copy, Debug)]
pub(super) struct Remote {
    pub(super) address: u64,
    pub(super) rkey: u32,
}

impl Remote {
    /// What lies so many bytes on.
    pub(super) fn at(self, bytes: usize) -> Self {
        Self { address: self.address.wrapping_add(bytes as u64), rkey: self.rkey }
    }
}

/// Memory of this device's protection domain.
#[derive(Clone, Copy, Debug)]
pub(super) struct Near {
    pub(super) address: u64,
    pub(super) lkey: u32,
}

impl Near {
    /// What lies so many bytes on.
    pub(super) fn at(self, bytes: usize) -> Self {
        Self { address: self.address.wrapping_add(bytes as u64), lkey: self.lkey }
    }
}

/// How a lane gets a queue pair: at first, and after a request that failed, which ends one.
pub(super) trait Connect: fmt::Debug {
    /// A connected queue pair for the lane of this number, for [`DEPTH`] requests.
    fn connect(&self, lane: u8) -> Result<Qp, AccessError>;

    /// Whether the peer is known to be gone: its device would be asked again and again, for seconds, until that is given up.
    fn is_gone(&self) -> bool {
        false
    }
}

/// Two lanes to one peer, or to this device itself. Send + Sync: a lane serves one access at a time.
#[derive(Debug)]
pub(super) struct Queue {
    device: Arc<Device>,
    plain: Mutex<Lane>,
    long: Mutex<Lane>,
}

/// A queue pair, and memory for what is not registered.
#[derive(Debug)]
struct Lane {
    number: u8,
    qp: Option<Qp>,
    bounce: Option<Bounce>,
    /// What a fragment goes through to other memory, or from there: at least as long as the longest so far.
    copy: Vec<u8>,
}

/// [`FRAGMENTS`] of registered memory.
#[derive(Debug)]
struct Bounce {
    // Dropped before the memory that it is of.
    mr: Mr,
    map: Mapping,
}

impl Bounce {
    fn new(device: &Device) -> Result<Self, AccessError> {
        let len = FRAGMENTS * FRAGMENT;
        let none = |what: String| self::device(DeviceReason::NoMemory { what: what.into() });
        let map = Mapping::anonymous(len).map_err(|error| none(error.to_string()))?;
        let mr = device.register(map.bytes().as_ptr().addr(), len, true);
        Ok(Self { mr: mr.map_err(|error| none(error.to_string()))?, map })
    }

    /// The fragment of this number, and where it lies in the mapping.
    fn fragment(&self, index: usize) -> (Near, u64) {
        let at = index % FRAGMENTS * FRAGMENT;
        let start = self.map.bytes().as_ptr().addr() as u64;
        (Near { address: start, lkey: self.mr.lkey() }.at(at), at as u64)
    }
}

impl Queue {
    pub(super) fn new(device: &Arc<Device>) -> Self {
        let lane = |number| Mutex::new(Lane { number, qp: None, bounce: None, copy: Vec::new() });
        Self { device: Arc::clone(device), plain: lane(0), long: lane(1) }
    }

    /// Connects both lanes now. One that an access has is connected, or will say why not.
    pub(super) fn connect(&self, connect: &dyn Connect) -> Result<(), AccessError> {
        for lane in [&self.plain, &self.long].into_iter().filter_map(Mutex::try_lock) {
            Flight::begin(&self.device, lane, connect)?;
        }
        Ok(())
    }

    /// The long lane, for requests that go along with those of other queues, or with accesses to other memory.
    pub(super) fn long<'q>(&'q self, connect: &'q dyn Connect) -> Result<Flight<'q>, AccessError> {
        Flight::begin(&self.device, turn(&self.long, connect)?, connect)
    }

    fn flight<'q>(&'q self, len: usize, connect: &'q dyn Connect) -> Result<Flight<'q>, AccessError> {
        let lane = if len < LONG { &self.plain } else { &self.long };
        Flight::begin(&self.device, turn(lane, connect)?, connect)
    }

    /// Copies `len` bytes to the other process's memory; `read` fills a part of them, while others are on their way.
    pub(super) fn write_from(
        &self,
        remote: Remote,
        len: usize,
        connect: &dyn Connect,
        mut read: impl FnMut(usize, &mut [u8]) -> Result<(), AccessError>,
    ) -> Result<(), AccessError> {
        let mut flight = self.long(connect)?;
        flight.have_bounce()?;
        let mut copy = flight.take_copy(len);
        let mut result = Ok(());
        for (index, at) in (0..len).step_by(FRAGMENT).enumerate() {
            let part = copy.get_mut(..FRAGMENT.min(len - at)).unwrap_or_default();
            result = read(at, part).and_then(|()| flight.put_fragment(index, remote.at(at), part));
            if result.is_err() {
                break;
            }
        }
        flight.lane.copy = copy;
        // Also where what is read could not be: what was on its way before has been moved then.
        let drained = flight.drain();
        result.and(drained).map_err(|error| error.moved((flight.completed * FRAGMENT).min(len) as u64))
    }

    /// Copies `len` bytes from the other process's memory; `write` takes a part of them, while others are on their way.
    pub(super) fn read_into(
        &self,
        remote: Remote,
        len: usize,
        connect: &dyn Connect,
        write: impl FnMut(usize, &[u8]) -> Result<(), AccessError>,
    ) -> Result<(), AccessError> {
        let mut flight = self.long(connect)?;
        flight.have_bounce()?;
        let mut copy = flight.take_copy(len);
        let result = flight.read_into(remote, len, &mut copy, write);
        flight.lane.copy = copy;
        result
    }

    /// Moves `len` bytes of memory in this device's protection domain.
    ///
    /// # Safety
    /// All of it may be read, or written where it is [`Way::Get`], so until this returns, and is registered so long.
    pub(super) unsafe fn registered(
        &self,
        way: Way,
        near: Near,
        remote: Remote,
        len: usize,
        connect: &dyn Connect,
    ) -> Result<(), AccessError> {
        let mut flight = self.flight(len, connect)?;
        let done = |error: AccessError, flight: &Flight<'_>| error.after((flight.completed * REQUEST) as u64);
        let mut at = 0;
        while at < len {
            let part = REQUEST.min(len - at);
            // SAFETY: the caller's promise; a flight does not end before its requests (module rule).
            let posted = unsafe { flight.post(way, near.at(at), remote.at(at), part) };
            posted.map_err(|error| done(error, &flight))?;
            at += part;
        }
        flight.drain().map_err(|error| done(error, &flight))
    }

    /// Copies from the other process's memory into `dst`.
    pub(super) fn read(
        &self,
        remote: Remote,
        dst: &mut [u8],
        connect: &dyn Connect,
    ) -> Result<(), AccessError> {
        let mut flight = self.flight(dst.len(), connect)?;
        flight.have_bounce()?;
        let len = dst.len();
        let mut posted = 0;
        for (index, part) in dst.chunks_mut(FRAGMENT).enumerate() {
            let done = |error: AccessError| error.after((index * FRAGMENT) as u64);
            while posted < len && flight.posted < index + FRAGMENTS {
                let next = FRAGMENT.min(len - posted);
                flight.get_fragment(flight.posted, remote.at(posted), next).map_err(done)?;
                posted += next;
            }
            flight.completes(index).map_err(done)?;
            flight.copy_out(index, part)?;
        }
        Ok(())
    }

    /// Copies `src` to the other process's memory.
    pub(super) fn write(&self, remote: Remote, src: &[u8], connect: &dyn Connect) -> Result<(), AccessError> {
        let mut flight = self.flight(src.len(), connect)?;
        flight.have_bounce()?;
        let done =
            |error: AccessError, flight: &Flight<'_>| error.after((flight.completed * FRAGMENT) as u64);
        for (index, part) in src.chunks(FRAGMENT).enumerate() {
            let put = flight.put_fragment(index, remote.at(index * FRAGMENT), part);
            put.map_err(|error| done(error, &flight))?;
        }
        flight.drain().map_err(|error| done(error, &flight))
    }

    /// Has a step done to the word at `remote`, which is aligned; answers the word before.
    pub(super) fn atomic(
        &self,
        step: Step,
        remote: Remote,
        connect: &dyn Connect,
    ) -> Result<u64, AccessError> {
        let mut flight = self.flight(size_of::<u64>(), connect)?;
        flight.have_bounce()?;
        let near = flight.fragment(0)?;
        // SAFETY: memory of the lane, which this flight has for itself, at least as long; it is dropped after the lane's queue pair.
        unsafe { flight.request(Request::Atomic(step), near, remote, size_of::<u64>()) }?;
        flight.drain()?;
        let mut before = [0; size_of::<u64>()];
        flight.copy_out(0, &mut before)?;
        Ok(u64::from_ne_bytes(before))
    }
}

/// The lane, once accesses before this one have ended: each does in its own time. Not of a peer that is gone.
fn turn<'q>(lane: &'q Mutex<Lane>, connect: &dyn Connect) -> Result<MutexGuard<'q, Lane>, AccessError> {
    if let Some(lane) = lane.try_lock() {
        return Ok(lane);
    }
    let begin = Instant::now();
    loop {
        if let Some(lane) = lane.try_lock_for(10 * LOOKS) {
            return Ok(lane);
        }
        if connect.is_gone() {
            return Err(device(DeviceReason::Over));
        }
        if begin.elapsed() > TURN {
            return Err(device(DeviceReason::Taken { waited: begin.elapsed() }));
        }
    }
}

/// The requests of one access, which has a lane for itself. They complete in the order in which they were posted.
#[derive(Debug)]
pub(super) struct Flight<'q> {
    device: &'q Device,
    connect: &'q dyn Connect,
    lane: MutexGuard<'q, Lane>,
    /// Requests posted.
    pub(super) posted: usize,
    /// Requests completed.
    pub(super) completed: usize,
    began: Instant,
    /// When something last completed, or was posted where nothing was on its way.
    moved: Instant,
    /// When it was last looked whether the peer is gone.
    looked: Instant,
}

impl<'q> Flight<'q> {
    fn begin(
        device: &'q Device,
        mut lane: MutexGuard<'q, Lane>,
        connect: &'q dyn Connect,
    ) -> Result<Self, AccessError> {
        let began = Instant::now();
        if lane.qp.is_none() {
            let qp = connect.connect(lane.number).map_err(|error| device.events.explain(error, began))?;
            lane.qp = Some(qp);
        }
        let now = Instant::now();
        Ok(Self { device, connect, lane, posted: 0, completed: 0, began, moved: now, looked: now })
    }

    /// Posts a request for at most [`REQUEST`] bytes; waits while the queue is full.
    ///
    /// # Safety
    /// `near` may be read, or written where it is [`Way::Get`], so until this flight has ended, and is registered so long.
    pub(super) unsafe fn post(
        &mut self,
        way: Way,
        near: Near,
        remote: Remote,
        len: usize,
    ) -> Result<(), AccessError> {
        // SAFETY: the caller's promise.
        unsafe { self.request(Request::Move(way), near, remote, len) }
    }

    /// As [`Flight::post`], of whatever is to be done.
    ///
    /// # Safety
    /// As [`Flight::post`]; `near` may be written where it is [`Request::Atomic`], for the word before.
    unsafe fn request(
        &mut self,
        what: Request,
        near: Near,
        remote: Remote,
        len: usize,
    ) -> Result<(), AccessError> {
        while self.posted - self.completed >= DEPTH as usize {
            self.completes(self.completed)?;
        }
        let mut request = request_of(what, remote);
        request.send_flags = ibv_send_flags::IBV_SEND_SIGNALED.0;
        let length = u32::try_from(len).map_err(|_| device(DeviceReason::Over))?;
        let sge = ibv_sge { addr: near.address, length, lkey: near.lkey };
        let Some(qp) = &self.lane.qp else { return Err(device(DeviceReason::Over)) };
        // SAFETY: the caller's promise; this flight does not end before the request has completed, or `qp` is destroyed.
        let posted = unsafe { qp.post(sge, request) };
        posted.map_err(|errno| self.fail(device(DeviceReason::Call { call: "ibv_post_send", errno })))?;
        if self.posted == self.completed {
            self.moved = Instant::now();
        }
        self.posted += 1;
        Ok(())
    }

    /// Takes a completion, if there is one.
    pub(super) fn poll(&mut self) -> Result<bool, AccessError> {
        let Some(qp) = &self.lane.qp else { return Err(device(DeviceReason::Over)) };
        match qp.cq().poll() {
            Ok(Some(wc)) if wc.status == ibv_wc_status::IBV_WC_SUCCESS => {
                self.completed += 1;
                self.moved = Instant::now();
                Ok(true)
            }
            Ok(Some(wc)) => {
                let words = self.device.context.words(wc.status);
                tracing::debug!(status = wc.status.0, words, "a request has failed");
                Err(self.fail(error_of(wc.status, words)))
            }
            Ok(None) => self.wait_on(Instant::now()),
            Err(errno) => Err(self.fail(device(DeviceReason::Call { call: "ibv_poll_cq", errno }))),
        }
    }

    /// Nothing has completed: whether it is waited for.
    fn wait_on(&mut self, now: Instant) -> Result<bool, AccessError> {
        if now.duration_since(self.moved) >= PATIENCE {
            return Err(self.fail(device(DeviceReason::Late { waited: PATIENCE })));
        }
        if now.duration_since(self.looked) >= LOOKS {
            self.looked = now;
            if self.connect.is_gone() {
                return Err(self.fail(device(DeviceReason::Over)));
            }
        }
        Ok(false)
    }

    /// Waits until the request of this number has completed.
    pub(super) fn completes(&mut self, index: usize) -> Result<(), AccessError> {
        let mut rounds = 0;
        while self.completed <= index {
            if self.poll()? {
                rounds = 0;
            } else {
                pause(&mut rounds);
            }
        }
        Ok(())
    }

    /// Waits until all have.
    pub(super) fn drain(&mut self) -> Result<(), AccessError> {
        match self.posted {
            0 => Ok(()),
            posted => self.completes(posted - 1),
        }
    }

    /// The queue pair is destroyed: with it end all requests. What has happened to the device is told with the error.
    #[cold]
    fn fail(&mut self, error: AccessError) -> AccessError {
        let error = self.device.events.explain(error, self.began); // before: with it go its events
        self.lane.qp = None;
        error
    }

    /// Sees to it that there are fragments.
    pub(super) fn have_bounce(&mut self) -> Result<(), AccessError> {
        if self.lane.bounce.is_none() {
            self.lane.bounce = Some(Bounce::new(self.device)?);
        }
        Ok(())
    }

    fn bounce(&self) -> Result<&Bounce, AccessError> {
        self.lane.bounce.as_ref().ok_or(device(DeviceReason::Over))
    }

    /// A fragment, by its number from the beginning of the access: [`FRAGMENTS`] later it is the same memory.
    pub(super) fn fragment(&self, index: usize) -> Result<Near, AccessError> {
        Ok(self.bounce()?.fragment(index).0)
    }

    /// Has the fragment of this number filled from the other process's memory; the one before in the same memory has completed.
    pub(super) fn get_fragment(
        &mut self,
        index: usize,
        remote: Remote,
        len: usize,
    ) -> Result<(), AccessError> {
        let near = self.fragment(index)?;
        // SAFETY: memory of the lane, which this flight has for itself, at least as long; it is dropped after the lane's queue pair.
        unsafe { self.post(Way::Get, near, remote, len.min(FRAGMENT)) }
    }

    /// Memory of this process's, as long as the longest fragment of `len` bytes.
    fn take_copy(&mut self, len: usize) -> Vec<u8> {
        let copy = std::mem::take(&mut self.lane.copy);
        let least = FRAGMENT.min(len);
        if copy.len() < least { vec![0; least] } else { copy }
    }

    /// As [`Queue::read_into`], by `copy`.
    fn read_into(
        &mut self,
        remote: Remote,
        len: usize,
        copy: &mut [u8],
        mut write: impl FnMut(usize, &[u8]) -> Result<(), AccessError>,
    ) -> Result<(), AccessError> {
        for (index, at) in (0..len).step_by(FRAGMENT).enumerate() {
            while self.posted * FRAGMENT < len && self.posted < index + FRAGMENTS {
                let next = self.posted * FRAGMENT;
                let posted = self.get_fragment(self.posted, remote.at(next), FRAGMENT.min(len - next));
                posted.map_err(|error| error.moved(at as u64))?;
            }
            self.completes(index).map_err(|error| error.moved(at as u64))?;
            let part = copy.get_mut(..FRAGMENT.min(len - at)).unwrap_or_default();
            self.copy_out(index, part)?;
            write(at, part).map_err(|error| error.after(at as u64))?;
        }
        Ok(())
    }

    /// Copies `part` to the other process's memory by the fragment of this number, as soon as that is free.
    pub(super) fn put_fragment(
        &mut self,
        index: usize,
        remote: Remote,
        part: &[u8],
    ) -> Result<(), AccessError> {
        if let Some(before) = index.checked_sub(FRAGMENTS) {
            self.completes(before)?;
        }
        let bounce = self.bounce()?;
        let (near, at) = bounce.fragment(index);
        bounce.map.bytes().write(at, part)?;
        // SAFETY: as in `get_fragment`; that much was just written.
        unsafe { self.post(Way::Put, near, remote, part.len()) }
    }

    /// Copies the fragment of this number, which has come, into `part`.
    fn copy_out(&self, index: usize, part: &mut [u8]) -> Result<(), AccessError> {
        let bounce = self.bounce()?;
        let (_, at) = bounce.fragment(index);
        Ok(bounce.map.bytes().read(at, part)?)
    }
}

impl Drop for Flight<'_> {
    fn drop(&mut self) {
        if self.posted != self.completed {
            self.lane.qp = None; // module rule
        }
    }
}

/// Between two looks at a queue.
pub(super) fn pause(rounds: &mut u32) {
    *rounds += 1;
    if *rounds < 64 {
        std::hint::spin_loop();
    } else {
        std::thread::yield_now();
    }
}

/// `struct ibv_send_wr` for it, `ibv_post_send(3)`: all but its buffer and flags.
fn request_of(what: Request, remote: Remote) -> ibv_send_wr {
    let Remote { address: remote_addr, rkey } = remote;
    let opcode = match what {
        Request::Move(Way::Put) => ibv_wr_opcode::IBV_WR_RDMA_WRITE,
        Request::Move(Way::Get) => ibv_wr_opcode::IBV_WR_RDMA_READ,
        Request::Atomic(Step::Add(_)) => ibv_wr_opcode::IBV_WR_ATOMIC_FETCH_AND_ADD,
        Request::Atomic(Step::Cswap { .. }) => ibv_wr_opcode::IBV_WR_ATOMIC_CMP_AND_SWP,
    };
    let mut request = ibv_send_wr { opcode, ..Default::default() };
    match what {
        Request::Move(_) => request.wr.rdma = Rdma { remote_addr, rkey },
        Request::Atomic(Step::Add(value)) => {
            request.wr.atomic = Atomic { remote_addr, compare_add: value, swap: 0, rkey };
        }
        Request::Atomic(Step::Cswap { expected, new }) => {
            request.wr.atomic = Atomic { remote_addr, compare_add: expected, swap: new, rkey };
        }
    }
    request
}

/// A failure of the device.
pub(super) fn device(why: DeviceReason) -> AccessError {
    AccessError::Device { done: 0, why }
}

/// What the status of a failed request means for the access it was of.
fn error_of(status: ibv_wc_status, words: &'static str) -> AccessError {
    match status {
        // The key names nothing any more: the registration was ended while the request was on its way. Nothing else says so: an error within the
        // far device (`IBV_WC_REM_OP_ERR`) may pass.
        ibv_wc_status::IBV_WC_REM_ACCESS_ERR => AccessError::Stale { done: 0, why: StaleReason::Revoked },
        ibv_wc_status::IBV_WC_REM_INV_REQ_ERR => device(DeviceReason::Refused { words }),
        ibv_wc_status::IBV_WC_LOC_PROT_ERR => {
            AccessError::AccessDenied { done: 0, why: DeniedReason::Protection }
        }
        _ => device(DeviceReason::Status { words }),
    }
}

#[cfg(test)]
mod tests;
