//! An endpoint as its worker knows it: what it has still to send, and what it waits for.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::fmt;

use ucs::mem::shared::BoundsError;
use uct::api::{EpId, Iface, Payload, SendError};
use uct::memory::{AccessError, Local, LocalMut};

use super::EpError;
use super::fetch::{Fetch, Reach};
use super::op::{AnyOp, Done, ReceiveOp, SendOp, Waits};
use super::sending::Sending;
use crate::mem::TransferError;
use crate::wire::am::{Kind, Pair, Prefix};

/// Bytes that are copied at once to memory that others may use.
const PIECE: usize = 4096;

/// Answers to a peer that wait for room at most. One that announces data and takes no answers could have us keep any number of them.
const MAX_ANSWERS: usize = 1 << 18;

/// An endpoint.
pub(crate) struct Ep {
    /// Which of the worker's interfaces it is of.
    pub(crate) iface: usize,
    pub(crate) id: EpId,
    /// The context of its peer.
    pub(crate) peer: [u8; 16],
    /// Whether this side has connected.
    pub(crate) is_active: bool,
    /// How many handles the user has.
    pub(crate) users: Cell<usize>,
    /// Whether it is in the worker's list of those that have something to send.
    pub(crate) is_busy: Cell<bool>,
    pub(crate) state: RefCell<State>,
}

/// What changes of it.
#[derive(Default)]
pub(crate) struct State {
    /// Why it is of no more use.
    pub(crate) error: Option<EpError>,
    /// Its peer keeps to no rule: it fails as soon as that can be told.
    pub(crate) is_corrupt: bool,
    /// It is closed as soon as all has been sent.
    pub(crate) closing: bool,
    pub(crate) on_error: Option<Box<dyn FnOnce(EpError)>>,
    /// What waits for room, in order.
    queue: VecDeque<Queued>,
    /// How many of these are answers to what the peer has announced.
    answers: usize,
    /// Data announced, by the number told to the peer.
    sends: HashMap<u32, Sending>,
    /// When each of them was announced, as a number that grows.
    unfinished: BTreeSet<u64>,
    announced: u64,
    /// Those of them that the peer wants, in the order in which it asked.
    streams: VecDeque<u32>,
    /// How many of them have ended, but that the interface has not let go of them.
    ending: usize,
    /// Whose turn it is, where messages wait, too.
    stream_is_next: bool,
    /// What waits for announced data to be sent: all else before it has been.
    waits: Vec<(Waits, u64)>,
    /// Data that the peer was asked for, by the number told to it.
    receives: HashMap<u32, Receiving>,
    /// Data that is read where the peer has it, in the order in which it was asked for.
    pub(super) fetches: VecDeque<Fetch>,
    pub(crate) reach: Reach,
    /// The next number.
    next: u32,
}

#[derive(Debug)]
enum Queued {
    Message {
        tag: u32,
        prefix: Prefix,
        header: Box<[u8]>,
        data: Option<Box<dyn SendOp>>,
    },
    /// For what was announced before that.
    Wait(Waits, u64),
}

#[derive(Debug)]
struct Receiving {
    /// `None`: it has failed here, and what still comes is thrown away.
    op: Option<Box<dyn ReceiveOp>>,
    received: usize,
    length: usize,
}

/// The peer has sent what no peer sends.
pub(crate) struct Corrupt;

impl Ep {
    pub(crate) fn new(iface: usize, id: EpId, peer: [u8; 16], is_active: bool) -> Self {
        Self {
            iface,
            id,
            peer,
            is_active,
            users: Cell::new(0),
            is_busy: Cell::new(false),
            state: RefCell::default(),
        }
    }
}

impl fmt::Debug for Ep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ep")
            .field("id", &self.id)
            .field("error", &self.state.borrow().error)
            .finish_non_exhaustive()
    }
}

impl State {
    /// Its peer keeps to no rule. Answers whether that is new.
    pub(crate) fn give_up(&mut self) -> bool {
        !std::mem::replace(&mut self.is_corrupt, true)
    }

    /// Whether nothing waits to be sent.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.queue.is_empty() && self.streams.is_empty()
    }

    /// Whether there is nothing to be done for it.
    #[inline]
    pub(crate) fn is_idle(&self) -> bool {
        self.is_empty() && self.ending == 0 && !self.has_fetches()
    }

    /// Whether data is still to be read.
    pub(crate) fn has_fetches(&self) -> bool {
        !self.fetches.is_empty()
    }

    /// Whether all that was posted has ended, but for receives.
    pub(crate) fn is_drained(&self) -> bool {
        self.queue.is_empty() && self.sends.is_empty()
    }

    pub(crate) fn push_message(
        &mut self,
        tag: u32,
        prefix: Prefix,
        header: &[u8],
        data: Option<Box<dyn SendOp>>,
    ) {
        self.queue.push_back(Queued::Message { tag, prefix, header: header.into(), data });
    }

    pub(crate) fn push_wait(&mut self, wait: Waits) {
        self.queue.push_back(Queued::Wait(wait, self.announced));
    }

    fn number(&mut self) -> u32 {
        loop {
            self.next = self.next.wrapping_add(1);
            if !self.sends.contains_key(&self.next) && !self.receives.contains_key(&self.next) {
                return self.next;
            }
        }
    }

    /// Data that is announced under the number answered.
    pub(crate) fn announce(&mut self, length: usize, op: Box<dyn SendOp>) -> u32 {
        let number = self.number();
        let when = self.announced;
        self.announced += 1;
        self.unfinished.insert(when);
        self.sends.insert(number, Sending::new(op, length, when));
        number
    }

    /// What was announced under that number ends so, as soon as the interface has let go of it.
    fn end(&mut self, number: u32, result: Result<(), TransferError>, done: &mut VecDeque<Done>) {
        let Some(sending) = self.sends.get_mut(&number) else { return };
        sending.end(result);
        if sending.is_held() {
            self.ending += 1;
        } else if let Some(sending) = self.sends.remove(&number) {
            self.unfinished.remove(&sending.when);
            done.push_back(sending.into_done());
        }
    }

    /// Ends what the interface has let go of.
    fn end_let_go(&mut self, done: &mut VecDeque<Done>) {
        if self.ending == 0 {
            return;
        }
        let let_go = |_: &u32, sending: &mut Sending| sending.has_ended() && !sending.is_held();
        for (_, sending) in self.sends.extract_if(let_go) {
            self.ending -= 1;
            self.unfinished.remove(&sending.when);
            done.push_back(sending.into_done());
        }
    }

    /// Has data be read where the peer has it.
    pub(crate) fn read(&mut self, fetch: Fetch) {
        self.fetches.push_back(fetch);
    }

    /// Asks the peer for the data of its `request`.
    pub(crate) fn receive(
        &mut self,
        request: u32,
        length: usize,
        op: Box<dyn ReceiveOp>,
    ) -> Result<(), Corrupt> {
        let number = self.number();
        self.receives.insert(number, Receiving { op: Some(op), received: 0, length });
        self.answer(Kind::Cts, Pair(request, number))
    }

    /// Answers what the peer has announced: by CTS or DROP. It is to be given up where it takes none of that.
    pub(crate) fn answer(&mut self, kind: Kind, answer: Pair) -> Result<(), Corrupt> {
        if self.answers >= MAX_ANSWERS {
            return Err(Corrupt);
        }
        self.answers += 1;
        self.push_message(kind.tag(0), answer.encode(), &[], None);
        Ok(())
    }

    /// The peer wants what was announced.
    pub(crate) fn clear_to_send(&mut self, Pair(request, receive): Pair) -> Result<(), Corrupt> {
        // Nobody asks twice, or for no bytes.
        if !self.sends.get_mut(&request).is_some_and(|sending| sending.begin(receive)) {
            return Err(Corrupt);
        }
        self.streams.push_back(request);
        Ok(())
    }

    /// The peer does not want it, or not the rest of it.
    pub(crate) fn dropped(
        &mut self,
        request: u32,
        result: Result<(), TransferError>,
        done: &mut VecDeque<Done>,
    ) -> Result<(), Corrupt> {
        if self.sends.get(&request).is_none_or(Sending::has_ended) {
            return Err(Corrupt);
        }
        self.streams.retain(|stream| *stream != request);
        self.end(request, result, done);
        Ok(())
    }

    /// The peer cannot send the rest.
    pub(crate) fn aborted(&mut self, receive: u32) -> Result<Option<AnyOp>, Corrupt> {
        let receiving = self.receives.remove(&receive).ok_or(Corrupt)?;
        Ok(receiving.op.map(AnyOp::Receive))
    }

    /// The next bytes of what the peer was asked for, behind `skip` bytes.
    pub(crate) fn data(
        &mut self,
        receive: u32,
        payload: &dyn Payload,
        skip: usize,
        done: &mut VecDeque<Done>,
    ) -> Result<(), Corrupt> {
        let receiving = self.receives.get_mut(&receive).ok_or(Corrupt)?;
        let len = payload.len().checked_sub(skip).ok_or(Corrupt)?;
        let (from, to) = (receiving.received, receiving.received.saturating_add(len));
        if to > receiving.length || len == 0 {
            return Err(Corrupt);
        }
        receiving.received = to;
        let ended = to == receiving.length;
        let copied = receiving.op.as_mut().map(|op| fill(&mut op.local_mut(), from, payload, skip, len));
        match copied {
            Some(Ok(())) if !ended => {}
            Some(result) => {
                let error = result.map_err(TransferError::from);
                done.extend(receiving.op.take().map(|op| (AnyOp::Receive(op), error)));
            }
            None => {}
        }
        if ended {
            self.receives.remove(&receive);
        }
        Ok(())
    }

    /// Sends what there is room for: a message and a part of announced data by turns, so that neither keeps the other waiting for ever.
    pub(crate) fn pump(&mut self, id: EpId, iface: &mut dyn Iface, done: &mut VecDeque<Done>) {
        while !self.is_empty() {
            let is_stream = self.queue.is_empty() || (self.stream_is_next && !self.streams.is_empty());
            let has_room = if is_stream {
                self.pump_stream(id, iface, done)
            } else {
                self.pump_message(id, iface, done)
            };
            if !has_room {
                break;
            }
            self.stream_is_next = !is_stream;
        }
        self.end_let_go(done);
        let first = self.unfinished.first().copied().unwrap_or(u64::MAX);
        let ended = |(_, before): &mut (Waits, u64)| *before <= first;
        done.extend(self.waits.extract_if(.., ended).map(|(wait, _)| (AnyOp::Wait(wait), Ok(()))));
    }

    /// Sends the first of what waits; answers whether there was room.
    fn pump_message(&mut self, id: EpId, iface: &mut dyn Iface, done: &mut VecDeque<Done>) -> bool {
        let result = match self.queue.front() {
            Some(Queued::Message { tag, prefix, header, data }) => {
                let body = data.as_ref().map_or_else(|| Local::bytes(&[]), |op| op.local());
                iface.am(id, *tag, [prefix.as_bytes(), header], &body)
            }
            _ => Ok(()),
        };
        // Why its peer is gone, the interface tells when it is asked for progress: then all that is queued ends with that.
        if let Err(SendError::Full | SendError::Gone) = result {
            return false;
        }
        match self.queue.pop_front() {
            Some(Queued::Message { data: Some(op), .. }) => {
                done.push_back((AnyOp::Send(op), result.map_err(TransferError::from)));
            }
            Some(Queued::Wait(wait, before)) => self.waits.push((wait, before)),
            Some(Queued::Message { tag, .. }) if [Kind::Cts.tag(0), Kind::Drop.tag(0)].contains(&tag) => {
                self.answers -= 1;
            }
            _ => {}
        }
        true
    }

    /// Sends a part of the first of what the peer wants; answers whether there was room.
    fn pump_stream(&mut self, id: EpId, iface: &mut dyn Iface, done: &mut VecDeque<Done>) -> bool {
        let Some(request) = self.streams.front().copied() else { return true };
        match self.sends.get_mut(&request).map_or(Ok(true), |sending| sending.next(id, iface)) {
            Ok(true) => {
                self.streams.pop_front();
                self.end(request, Ok(()), done);
            }
            Ok(false) => {}
            Err(SendError::Full | SendError::Gone) => return false, // as of messages
            Err(error) => {
                self.streams.pop_front();
                let receive = self.sends.get(&request).and_then(Sending::receive).unwrap_or(0);
                let status = Pair(receive, error.status() as u32);
                self.push_message(Kind::Abort.tag(0), status.encode(), &[], None);
                self.end(request, Err(error.into()), done);
            }
        }
        true
    }

    /// Ends everything, for that reason, but what the interface has not let go of: that goes to `held`. It ends its endpoint before any
    /// of that is told.
    pub(crate) fn fail(&mut self, error: EpError, done: &mut VecDeque<Done>, held: &mut Vec<Sending>) {
        self.error.get_or_insert(error);
        let queued = std::mem::take(&mut self.queue).into_iter().filter_map(|queued| match queued {
            Queued::Message { data, .. } => data.map(AnyOp::Send),
            Queued::Wait(wait, _) => Some(AnyOp::Wait(wait)),
        });
        let waits = std::mem::take(&mut self.waits).into_iter().map(|(wait, _)| AnyOp::Wait(wait));
        for (_, mut sending) in std::mem::take(&mut self.sends) {
            sending.end(Err(TransferError::Endpoint(error)));
            held.push(sending);
        }
        let receives = std::mem::take(&mut self.receives).into_values();
        let receives = receives.filter_map(|receiving| receiving.op.map(AnyOp::Receive));
        let fetches = std::mem::take(&mut self.fetches).into_iter().map(|fetch| AnyOp::Receive(fetch.op));
        self.reach = Reach::Never;
        self.unfinished.clear();
        self.streams.clear();
        self.ending = 0;
        self.answers = 0;
        done.extend(
            queued
                .chain(waits)
                .chain(receives)
                .chain(fetches)
                .map(|op| (op, Err(TransferError::Endpoint(error)))),
        );
    }
}

/// Copies `len` bytes of a message, behind `skip`, to `at` of an operand.
fn fill(
    dst: &mut LocalMut<'_>,
    at: usize,
    payload: &dyn Payload,
    skip: usize,
    len: usize,
) -> Result<(), AccessError> {
    if let Some(bytes) = dst.as_bytes() {
        // As long as was announced, when it was given: what an operand says later is not believed.
        let size = bytes.len();
        let place = bytes.get_mut(at..at + len).ok_or_else(|| out_of_range(at, len, size))?;
        return Ok(payload.read(skip, place)?);
    }
    let mut piece = [0; PIECE];
    for from in (0..len).step_by(PIECE) {
        let piece = &mut piece[..PIECE.min(len - from)];
        payload.read(skip + from, piece)?;
        dst.write(at + from, piece)?;
    }
    Ok(())
}

/// An operand that has become shorter.
pub(super) fn out_of_range(at: usize, len: usize, size: usize) -> BoundsError {
    BoundsError::OutOfRange { offset: at as u64, len: len as u64, size: size as u64 }
}
