//! A queue pair with the buffers that it sends from and receives into.
//!
//! # Safety
//! Receives and sends name ranges of the memory that [`Buffers`] owns, and a send may name one of a [`Held`] source, which is kept here until
//! it has completed, or the queue pair is destroyed; nothing else. Buffers are memory of this process that no reference is made
//! to: it is read and written as memory that others change meanwhile. A queue pair is dropped before its registration, and that before
//! the memory; where the queue pair cannot be destroyed, the library's objects stay, and the pages of buffers with them. A source is given back then
//! as ever: what the device might still do is send its later bytes to the peer.

#![allow(unsafe_code)]

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use rdma_core_sys::{
    ibv_access_flags, ibv_qp_cap, ibv_send_flags, ibv_send_wr, ibv_sge, ibv_wc, ibv_wc_opcode, ibv_wr_opcode,
};
use rustix::io::Errno;
use ucs::fork::{self, Generation};
use ucs::mem::shared::BoundsError;
use ucs::mem::{Mapping, MemError};

use super::credits::RESERVE;
use super::sends::{ALL_BUFFERS, SENDS, SLOTS, Sends};
use crate::api::RegError;
use crate::registrations::Held;
use crate::transports::verbs::connection::Unconnected;
use crate::transports::verbs::device::Device;
use crate::transports::verbs::md::VerbsMemh;
use crate::transports::verbs::sys::{Channel, Cq, Mr, Qp};
use crate::transports::verbs::wire::QpAddress;

/// Bytes of a buffer: a message, with its header. It holds a page, with 256 bytes of heads before it: the longest header of a message that
/// a user may send stands in one.
pub(super) const SEGMENT: usize = SEGMENT_LEN as usize;
const SEGMENT_LEN: u32 = 4096 + 256;
/// Receives posted for messages.
pub(super) const MESSAGES: u16 = 128;
/// All receives that are posted.
pub(super) const RECEIVES: u16 = MESSAGES + RESERVE;
/// Bytes that a device is asked to take while a request is posted; a device that takes fewer is asked for fewer.
const INLINE: [u32; 4] = [256, 128, 64, 0];
/// Bytes of what goes before a body that the device takes from where it lies.
pub(super) const MAX_HEAD: usize = 64;
/// What tells a receive's number from that of a send.
const IS_RECEIVE: u64 = 1 << 63;

/// Where heads begin.
const HEADS: usize = (RECEIVES + ALL_BUFFERS) as usize * SEGMENT;

/// No queue pair could be made.
#[derive(Clone, Debug, thiserror::Error)]
pub(super) enum OpenError {
    #[error(transparent)]
    Mem(#[from] MemError),
    #[error(transparent)]
    Reg(#[from] RegError),
    #[error("{what}: {errno}")]
    Device { what: &'static str, errno: Errno },
}

/// Registered memory: receive buffers, behind them send buffers, and behind those a head for each request.
#[derive(Debug)]
struct Buffers {
    mr: Mr,
    map: Option<Mapping>,
    generation: Generation,
}

impl Buffers {
    fn new(device: &Device) -> Result<Self, OpenError> {
        let len = HEADS + SLOTS as usize * MAX_HEAD;
        let map = Mapping::anonymous(len)?;
        let mr = device.register(map.bytes().as_ptr().addr(), len, true)?;
        Ok(Self { mr, map: Some(map), generation: fork::generation() })
    }

    fn map(&self) -> &Mapping {
        // It is taken when this is dropped, by nobody else.
        self.map.as_ref().unwrap_or_else(|| unreachable!("buffers without memory"))
    }

    fn sge(&self, buffer: u32, length: u32) -> ibv_sge {
        self.at(buffer as usize * SEGMENT, length)
    }

    fn at(&self, begin: usize, length: u32) -> ibv_sge {
        let addr = self.map().bytes().as_ptr().addr() + begin;
        ibv_sge { addr: addr as u64, length, lkey: self.mr.lkey() }
    }
}

impl Drop for Buffers {
    fn drop(&mut self) {
        if !self.generation.is_current() {
            // A fork's child does not have this mapping, and may have another one there.
            std::mem::forget(self.map.take());
        }
    }
}

/// Where a SEND lies that has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Received {
    pub(super) buffer: u32,
    /// Bytes of it, [`SEGMENT`] at most.
    pub(super) len: usize,
}

/// What has completed.
#[derive(Clone, Copy, Debug)]
pub(super) enum Completed {
    /// The send of this number, and all before it.
    Send(u32),
    Receive(Received),
    /// A receive for something longer than its buffer.
    TooLong,
    /// There will be no more: what the device says of it.
    Failed(&'static str),
}

/// A queue pair that is not connected yet, with all its receives posted.
#[derive(Debug)]
pub(super) struct Opening {
    // Dropped before the memory that it uses.
    unconnected: Unconnected,
    buffers: Buffers,
}

impl Opening {
    pub(super) fn new(device: &Device, channel: &Arc<Channel>) -> Result<Self, OpenError> {
        let failed = |what| move |errno| OpenError::Device { what, errno };
        let buffers = Buffers::new(device)?;
        let mut unconnected = Err(Errno::INVAL);
        for inline in INLINE {
            let cap = ibv_qp_cap {
                max_send_wr: SENDS.into(),
                max_recv_wr: RECEIVES.into(),
                max_send_sge: 1 + u32::from(device.gathers),
                max_recv_sge: 1,
                max_inline_data: inline,
            };
            // Each request has one completion at most, and no more requests are posted than these: it never overflows.
            let cq = Cq::with(&device.context, (SENDS + RECEIVES).into(), Some(channel));
            let cq = cq.map_err(failed("ibv_create_cq"))?;
            unconnected = device.queue_pair(cq, cap, ibv_access_flags(0));
            if unconnected.is_ok() {
                break;
            }
        }
        let unconnected = unconnected.map_err(failed("ibv_create_qp"))?;
        let opening = Self { unconnected, buffers };
        for buffer in 0..RECEIVES.into() {
            post_receive(opening.unconnected.qp(), &opening.buffers, buffer)
                .map_err(failed("ibv_post_recv"))?;
        }
        Ok(opening)
    }

    pub(super) fn address(&self) -> QpAddress {
        self.unconnected.address()
    }

    pub(super) fn connect(self, peer: &QpAddress) -> Result<Queue, Errno> {
        let Self { unconnected, buffers } = self;
        let qp = unconnected.connect(peer)?;
        let inline = usize::try_from(qp.inline()).unwrap_or(0).min(INLINE[0] as usize);
        Ok(Queue { qp, buffers, held: VecDeque::new(), inline })
    }
}

fn post_receive(qp: &Qp, buffers: &Buffers, buffer: u32) -> Result<(), Errno> {
    if buffer >= RECEIVES.into() {
        return Err(Errno::INVAL);
    }
    let sge = buffers.sge(buffer, SEGMENT_LEN);
    // SAFETY: a receive buffer of `buffers`, which are dropped after the queue pair by all that has both (module rule).
    unsafe { qp.post_receive(sge, IS_RECEIVE | u64::from(buffer)) }
}

/// A part of a source, where a device finds it.
pub(super) struct Gathered<'a> {
    body: &'a Arc<Held>,
    sge: ibv_sge,
}

impl<'a> Gathered<'a> {
    /// `None`: not all of it is there, and registered with this device, which takes two places a request; or it is longer than a message.
    pub(super) fn find(device: &Device, body: &'a Arc<Held>, part: &Range<usize>) -> Option<Self> {
        let local = body.local();
        let memh: &VerbsMemh = local.memh()?;
        let is_there = part.start < part.end && part.end <= local.len() && part.len() <= SEGMENT;
        if !device.gathers || !memh.0.is_of(&device.pd) || !is_there {
            return None;
        }
        let length = u32::try_from(part.len()).ok()?;
        let addr = (local.address()? + part.start) as u64;
        Some(Self { body, sge: ibv_sge { addr, length, lkey: memh.0.lkey() } })
    }
}

/// A connected queue pair.
#[derive(Debug)]
pub(super) struct Queue {
    // Dropped before the memory that it uses.
    qp: Qp,
    buffers: Buffers,
    /// What requests on their way read from, by their numbers.
    held: VecDeque<(u32, Arc<Held>)>,
    inline: usize,
}

/// Most bytes that are sent without a buffer.
pub(super) const MAX_INLINE: usize = INLINE[0] as usize;

impl Queue {
    /// Bytes, with the header, up to which a SEND needs no buffer: [`MAX_INLINE`] at most.
    #[inline]
    pub(super) fn inline(&self) -> usize {
        self.inline
    }

    fn request(number: u32, tells: bool) -> ibv_send_wr {
        let send_flags = if tells { ibv_send_flags::IBV_SEND_SIGNALED.0 } else { 0 };
        let opcode = ibv_wr_opcode::IBV_WR_SEND;
        ibv_send_wr { wr_id: number.into(), opcode, send_flags, ..Default::default() }
    }

    /// Sends bytes, [`Queue::inline`] at most.
    #[inline]
    pub(super) fn send_inline(&self, bytes: &[u8], number: u32, tells: bool) -> Result<(), Errno> {
        self.qp.post_inline(bytes, Self::request(number, tells))
    }

    /// Writes to a send buffer that is not on its way.
    #[inline]
    pub(super) fn write(&self, buffer: u32, at: usize, bytes: &[u8]) -> Result<(), BoundsError> {
        let (offset, len, size) = (at as u64, bytes.len() as u64, SEGMENT as u64);
        if buffer >= ALL_BUFFERS.into() || at.checked_add(bytes.len()).is_none_or(|end| end > SEGMENT) {
            return Err(BoundsError::OutOfRange { offset, len, size });
        }
        let begin = (usize::from(RECEIVES) + buffer as usize) * SEGMENT;
        self.buffers.map().bytes().write((begin + at) as u64, bytes)
    }

    /// Sends the first `len` bytes of a send buffer.
    #[inline]
    pub(super) fn send(&self, buffer: u32, len: usize, number: u32, tells: bool) -> Result<(), Errno> {
        let length = u32::try_from(len).ok().filter(|_| len <= SEGMENT && buffer < ALL_BUFFERS.into());
        let sge = self.buffers.sge(u32::from(RECEIVES) + buffer, length.ok_or(Errno::INVAL)?);
        // SAFETY: a send buffer of `self.buffers`, which are dropped after the queue pair (module rule); a SEND has no remote range.
        unsafe { self.qp.post(sge, Self::request(number, tells)) }
    }

    /// Sends `head`, [`MAX_HEAD`] bytes at most, and then what was found; it tells of its completion. After an error nothing more is to be posted.
    #[inline]
    pub(super) fn send_gathered(
        &mut self,
        head: &[u8],
        what: &Gathered<'_>,
        number: u32,
    ) -> Result<(), Errno> {
        let length = u32::try_from(head.len()).ok().filter(|_| head.len() <= MAX_HEAD).ok_or(Errno::INVAL)?;
        // No other request on its way has that one: there are more heads than requests.
        let begin = HEADS + (number % SLOTS) as usize * MAX_HEAD;
        self.buffers.map().bytes().write(begin as u64, head).map_err(|_| Errno::INVAL)?;
        let list = [self.buffers.at(begin, length), what.sge];
        // Before it is posted, and whatever comes of that: the device may read from then on.
        self.held.push_back((number, Arc::clone(what.body)));
        // SAFETY: a head of `self.buffers`, as in `send`; registered memory of `body`, which is kept until this request has completed, or
        // longer than the queue pair (module rule).
        unsafe { self.qp.post_list(list, Self::request(number, true)) }
    }

    /// Lets go of what no request on its way reads from; answers whether there was any.
    #[inline]
    pub(super) fn let_go(&mut self, sends: &Sends) -> bool {
        let before = self.held.len();
        while self.held.front().is_some_and(|(number, _)| !sends.has(*number)) {
            self.held.pop_front();
        }
        self.held.len() < before
    }

    /// Whether a request on its way reads from what is not the queue's own.
    pub(super) fn holds(&self) -> bool {
        !self.held.is_empty()
    }

    /// Sends all send buffers at once: more than a peer has room for.
    #[cfg(all(test, feature = "rxe-tests"))]
    pub(super) fn send_too_much(&self, number: u32) -> Result<(), Errno> {
        let sge = self.buffers.sge(RECEIVES.into(), u32::from(ALL_BUFFERS) * SEGMENT_LEN);
        // SAFETY: the send buffers of `self.buffers`, as in `send`.
        unsafe { self.qp.post(sge, Self::request(number, true)) }
    }

    /// Asks the peer's device to READ from, or WRITE to, eight bytes there.
    #[cfg(all(test, feature = "rxe-tests"))]
    pub(super) fn reach(
        &self,
        opcode: ibv_wr_opcode,
        (address, rkey): (u64, u32),
        number: u32,
    ) -> Result<(), Errno> {
        let sge = self.buffers.sge(RECEIVES.into(), 8);
        let mut request = ibv_send_wr { opcode, ..Self::request(number, true) };
        request.wr.rdma.remote_addr = address;
        request.wr.rdma.rkey = rkey;
        // SAFETY: a send buffer of `self.buffers`, as in `send`; the remote range is memory of a test, whose device is to refuse.
        unsafe { self.qp.post(sge, request) }
    }

    /// Copies from a SEND that has come, from its byte `at` on.
    #[inline]
    pub(super) fn read(&self, from: Received, at: usize, dst: &mut [u8]) -> Result<(), BoundsError> {
        let (offset, len, size) = (at as u64, dst.len() as u64, from.len as u64);
        if from.buffer >= RECEIVES.into() || at.checked_add(dst.len()).is_none_or(|end| end > from.len) {
            return Err(BoundsError::OutOfRange { offset, len, size });
        }
        self.buffers.map().bytes().read((from.buffer as usize * SEGMENT + at) as u64, dst)
    }

    /// Has a receive buffer receive again.
    #[inline]
    pub(super) fn receive(&self, buffer: u32) -> Result<(), Errno> {
        post_receive(&self.qp, &self.buffers, buffer)
    }

    /// Asks for an event of the next completion.
    pub(super) fn notify(&self) -> Result<(), Errno> {
        self.qp.cq().notify()
    }

    /// The next completion.
    #[inline]
    pub(super) fn poll(&self, device: &Device) -> Option<Completed> {
        let wc = match self.qp.cq().poll() {
            Ok(wc) => wc?,
            Err(_) => return Some(Completed::Failed("its completion queue cannot be polled")),
        };
        Some(completed(&wc, device))
    }
}

fn completed(wc: &ibv_wc, device: &Device) -> Completed {
    use rdma_core_sys::ibv_wc_status as Status;
    let is_receive = wc.wr_id & IS_RECEIVE != 0;
    match wc.status {
        Status::IBV_WC_SUCCESS => {}
        // The latter is what rxe says of it: as all receives are alike, none is wrong in another way.
        Status::IBV_WC_LOC_LEN_ERR | Status::IBV_WC_LOC_QP_OP_ERR if is_receive => return Completed::TooLong,
        status => return Completed::Failed(device.context.words(status)),
    }
    let number = u32::try_from(wc.wr_id & u64::from(u32::MAX)).unwrap_or(u32::MAX);
    match is_receive {
        true if wc.opcode == ibv_wc_opcode::IBV_WC_RECV => {
            Completed::Receive(Received { buffer: number, len: (wc.byte_len as usize).min(SEGMENT) })
        }
        // A WRITE with an immediate takes a receive, too, and no peer sends one.
        true => Completed::TooLong,
        false => Completed::Send(number),
    }
}
