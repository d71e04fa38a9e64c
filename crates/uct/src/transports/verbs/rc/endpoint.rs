//! An endpoint: a connected queue pair, its credits, and what has come by it.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use ucs::mem::shared::BoundsError;
use ucs::time::Deadline;

use super::credits::{Credits, Excess};
use super::queue::{Completed, Gathered, MAX_HEAD, MAX_INLINE, Queue, RECEIVES, Received, SEGMENT};
use super::sends::{Request, SENDS, Sends, What};
use super::wire::{HEADER_LEN, Header, Kind};
use crate::api::{EpId, Gone, NewEp, Payload, SendError, Sink};
use crate::export::PeerState;
use crate::memory::{AccessError, DeviceEvent, Local};
use crate::registrations::Held;
use crate::ring::BATCH;
use crate::service::Share;
use crate::transports::verbs::device::Device;

/// Most bytes of a message.
pub(super) const MAX_AM: usize = SEGMENT - HEADER_LEN;
/// Longer than a device tries to have a request acknowledged.
pub(super) const DEVICE_TRIES: Duration = Duration::from_secs(10);
/// Completions that are looked at at once: as many as there can be, for those of receives may lie behind those of sends.
const AT_ONCE: usize = RECEIVES as usize + SENDS as usize;

/// Who has connected, until its greeting has come: it is not told of before.
#[derive(Debug)]
pub(super) struct Guest {
    /// Its context, as it says.
    pub(super) from: [u8; 16],
    /// The connection on which it has asked. Ended before the greeting has come: it has given up.
    pub(super) asked: Arc<PeerState>,
}

/// An endpoint.
#[derive(Debug)]
pub(super) struct Endpoint {
    queue: Queue,
    device: Arc<Device>,
    sends: Sends,
    credits: Credits,
    /// What has come and was not looked at: no more than there are receives.
    received: VecDeque<Received>,
    /// Why nothing more will come.
    failure: Option<Gone>,
    /// Its peer's process.
    life: Arc<PeerState>,
    /// The peer was found gone: no receive is posted again, so what it has sent comes to an end.
    is_ending: bool,
    guest: Option<Guest>,
    /// An event of the next completion was asked for, and none was seen since.
    notified: bool,
    /// A message was refused for want of room.
    wanted: bool,
    /// What was held was let go of since progress was made.
    has_let_go: bool,
    /// It was told of as gone.
    pub(super) is_over: bool,
    _share: Option<Share>,
}

/// A message was not posted.
enum Refused {
    Full,
    Failed(Errno),
}

impl Endpoint {
    /// Whose peer has posted `theirs` receives for messages, and ends with `life`.
    pub(super) fn new(
        queue: Queue,
        device: &Arc<Device>,
        theirs: u16,
        life: Arc<PeerState>,
        guest: Option<(Guest, Share)>,
    ) -> Self {
        let (guest, share) = guest.unzip();
        Self {
            queue,
            device: Arc::clone(device),
            sends: Sends::new(),
            credits: Credits::new(super::queue::MESSAGES, theirs),
            received: VecDeque::with_capacity(RECEIVES.into()),
            failure: None,
            life,
            is_ending: false,
            guest,
            notified: false,
            wanted: false,
            has_let_go: false,
            is_over: false,
            _share: share,
        }
    }

    /// Looks at completions. Answers how many there were.
    fn reap(&mut self) -> usize {
        for count in 0..AT_ONCE {
            let Some(completed) = self.queue.poll(&self.device) else { return count };
            self.notified = false;
            match completed {
                Completed::Send(number) => {
                    self.sends.completed(number);
                    // What has failed may be in use until it is destroyed, whatever is told of it.
                    self.has_let_go |= self.failure.is_none() && self.queue.let_go(&self.sends);
                }
                Completed::Receive(one) => self.received.push_back(one),
                Completed::TooLong => self.fail(Gone::Corrupt),
                Completed::Failed(words) => self.broke_down(words),
            }
        }
        AT_ONCE
    }

    /// A request has failed: because of what the device says of it, or of what has happened to the device.
    #[cold]
    fn broke_down(&mut self, words: &'static str) {
        if self.failure.is_none() {
            // When it was posted nobody has noted. It may be that the port was down for a moment only.
            let posted = Instant::now().checked_sub(DEVICE_TRIES).unwrap_or_else(Instant::now);
            let event = self.device.events.since(posted);
            tracing::debug!(words, ?event, "a request of an endpoint has failed");
            self.fail(Gone::Failed(event.map_or(words, DeviceEvent::words)));
        }
    }

    /// The connection to its peer's process has ended: with that process, or because the port is down by which both are reached.
    #[cold]
    fn ended(&self) -> Gone {
        let event = self.device.events.since(Instant::now());
        event.map_or(Gone::Closed, |event| Gone::Failed(event.words()))
    }

    /// What failed first says why; what follows from it says only that it was flushed.
    fn fail(&mut self, why: Gone) {
        self.failure.get_or_insert(why);
    }

    /// Looks for what has come, and tells of it. An error: why there will be no more.
    pub(super) fn progress(&mut self, id: EpId, sink: &mut dyn Sink) -> Result<usize, Gone> {
        // Before it is looked: what was sent before the end has come by then.
        self.is_ending |= self.life.is_gone();
        let has_given_up = self.guest.as_ref().is_some_and(|guest| guest.asked.is_gone());
        self.reap();
        self.has_let_go = false; // who wants to know looks now
        let mut told = 0;
        for _ in 0..BATCH {
            let Some(one) = self.received.pop_front() else {
                return match self.failure {
                    _ if told > 0 => Ok(told),
                    Some(why) => Err(why),
                    None if self.is_ending || has_given_up && self.guest.is_some() => Err(self.ended()),
                    None => Ok(0),
                };
            };
            told += self.look_at(one, id, sink)?;
        }
        Ok(told)
    }

    /// Whether it is one that nobody was told of.
    pub(super) fn is_unknown(&self) -> bool {
        self.guest.is_some()
    }

    fn look_at(&mut self, one: Received, id: EpId, sink: &mut dyn Sink) -> Result<usize, Gone> {
        let corrupt = |_: Excess| Gone::Corrupt;
        let header = self.header(one).map_err(|_| Gone::Corrupt)?;
        let told = match (header.kind, &self.guest) {
            (Kind::Greeting, Some(guest)) => {
                let peer = guest.from;
                self.guest = None;
                sink.arrived(NewEp { ep: id, peer });
                1
            }
            // A guest begins with its greeting, and greets once.
            (Kind::Greeting, None) | (_, Some(_)) => return Err(Gone::Corrupt),
            (Kind::Message(tag), None) => {
                self.credits.came().map_err(corrupt)?;
                sink.am(id, tag, &Bytes { queue: &self.queue, one });
                1
            }
            (Kind::Credits, None) if !self.credits.is_worth(header.credits) => return Err(Gone::Corrupt),
            (Kind::Credits, None) => 0,
            (Kind::End, None) => return Err(Gone::Closed),
        };
        // Posted before its credits are used, and before those of others are told (`credits`).
        if !self.is_ending && self.failure.is_none() {
            if self.queue.receive(one.buffer).is_err() {
                self.fail(Gone::Failed("no receive can be posted"));
            }
            if matches!(header.kind, Kind::Message(_)) {
                self.credits.reposted();
            }
        }
        self.credits.gained(header.credits).map_err(corrupt)?;
        Ok(told)
    }

    fn header(&self, one: Received) -> Result<Header, &'static str> {
        let mut bytes = [0; HEADER_LEN];
        let begin = bytes.get_mut(..one.len.min(HEADER_LEN)).unwrap_or_default();
        self.queue.read(one, 0, begin).map_err(|_| "it is not there")?;
        Header::decode(&bytes, one.len)
    }

    /// Sends credits that are due, if there is room; otherwise when there is.
    pub(super) fn give_credits(&mut self) {
        if self.credits.must_give() && self.failure.is_none() {
            let _ = self.control(Kind::Credits);
        }
    }

    /// Sends what is no message.
    fn control(&mut self, kind: Kind) -> Result<(), Refused> {
        let header = Header { kind, credits: self.credits.owed() }.encode();
        let takes = header.len() > self.queue.inline();
        let request = self.sends.next(What::Control, takes).ok_or(Refused::Full)?;
        let (number, tells) = (request.number, request.tells);
        let posted = if takes {
            let written = self.queue.write(request.buffer, 0, &header).map_err(|_| Errno::INVAL);
            written.and_then(|()| self.queue.send(request.buffer, header.len(), number, tells))
        } else {
            self.queue.send_inline(&header, number, tells)
        };
        posted.map_err(|errno| self.broke(errno))?;
        self.sends.posted(request);
        self.credits.gave();
        Ok(())
    }

    #[cold]
    fn broke(&mut self, errno: Errno) -> Refused {
        tracing::error!(%errno, "a send could not be posted");
        self.fail(Gone::Failed("a send could not be posted"));
        Refused::Failed(errno)
    }

    /// The first of who has connected, and waits until it has come: then the way is there.
    pub(super) fn greet(&mut self, deadline: &Deadline) -> Result<(), String> {
        match self.control(Kind::Greeting) {
            Ok(()) => {}
            Err(Refused::Full) => return Err("no room for a greeting".to_owned()),
            Err(Refused::Failed(errno)) => return Err(format!("the greeting could not be posted: {errno}")),
        }
        while !self.sends.is_idle() {
            if let Some(why) = self.failure {
                return Err(why.to_string());
            }
            if deadline.left().is_none() {
                return Err(format!("no acknowledgement of a greeting within {:?}", deadline.elapsed()));
            }
            if self.reap() == 0 {
                thread::yield_now();
            }
        }
        Ok(())
    }

    /// As [`Iface::am`](crate::api::Iface::am).
    #[inline]
    pub(super) fn am(
        &mut self,
        tag: u32,
        [first, second]: [&[u8]; 2],
        body: &Local<'_>,
    ) -> Result<(), SendError> {
        let head = first.len() + second.len();
        let len = head.saturating_add(body.len());
        if len > MAX_AM {
            return Err(SendError::TooLong);
        }
        if self.failure.is_some() {
            return Err(SendError::Gone);
        }
        let total = HEADER_LEN + len;
        let takes = total > self.queue.inline();
        let request = self.next(takes)?;
        let header = Header { kind: Kind::Message(tag), credits: self.credits.owed() }.encode();
        let (number, tells, queue) = (request.number, request.tells, &self.queue);
        let posted = if takes {
            let write = |at, bytes: &[u8]| queue.write(request.buffer, at, bytes).map_err(AccessError::from);
            write(0, &header)?;
            write(HEADER_LEN, first)?;
            write(HEADER_LEN + first.len(), second)?;
            body.in_pieces(SEGMENT, |at, piece| write(HEADER_LEN + head + at, piece))?;
            queue.send(request.buffer, total, number, tells)
        } else {
            let mut bytes = [0; MAX_INLINE];
            let mut put = |at: usize, part: &[u8]| {
                if let Some(to) = bytes.get_mut(at..at + part.len()) {
                    to.copy_from_slice(part);
                }
            };
            put(0, &header);
            put(HEADER_LEN, first);
            put(HEADER_LEN + first.len(), second);
            body.in_pieces(SEGMENT, |at, piece| {
                put(HEADER_LEN + head + at, piece);
                Ok(())
            })?;
            queue.send_inline(bytes.get(..total).unwrap_or_default(), number, tells)
        };
        self.sent(request, posted)
    }

    /// The next request for a message, with a buffer where it `takes` one.
    #[inline]
    fn next(&mut self, takes: bool) -> Result<Request, SendError> {
        if self.sends.next(What::Message, takes).is_none() {
            self.reap();
        }
        let request = self.sends.next(What::Message, takes).filter(|_| self.credits.may_send());
        request.ok_or_else(|| {
            self.wanted = true;
            let is_over = self.life.is_gone() || self.failure.is_some();
            if is_over { SendError::Gone } else { SendError::Full }
        })
    }

    /// A message was posted, or could not be.
    #[inline]
    fn sent(&mut self, request: Request, posted: Result<(), Errno>) -> Result<(), SendError> {
        if let Err(errno) = posted {
            self.broke(errno);
            return Err(SendError::Gone);
        }
        self.sends.posted(request);
        self.credits.sent();
        self.credits.gave();
        self.wanted = false;
        Ok(())
    }

    /// As [`Iface::am_held`](crate::api::Iface::am_held).
    #[inline]
    pub(super) fn am_held(
        &mut self,
        tag: u32,
        head: &[u8],
        body: &Arc<Held>,
        part: Range<usize>,
    ) -> Result<(), SendError> {
        let before = HEADER_LEN + head.len();
        let is_short = before.saturating_add(part.len()) <= self.queue.inline();
        let gathered = Gathered::find(&self.device, body, &part).filter(|_| !is_short && before <= MAX_HEAD);
        let Some(gathered) = gathered else {
            return self.am(tag, [head, &[]], &body.local().range(part));
        };
        if head.len() + part.len() > MAX_AM {
            return Err(SendError::TooLong);
        }
        if self.failure.is_some() {
            return Err(SendError::Gone);
        }
        let mut request = self.next(false)?;
        request.tells = true;
        let header = Header { kind: Kind::Message(tag), credits: self.credits.owed() }.encode();
        let mut bytes = [0; MAX_HEAD];
        let (to, rest) = bytes.split_at_mut(HEADER_LEN);
        to.copy_from_slice(&header);
        rest.iter_mut().zip(head).for_each(|(to, from)| *to = *from);
        let head = bytes.get(..before).unwrap_or_default();
        let posted = self.queue.send_gathered(head, &gathered, request.number);
        self.sent(request, posted)
    }

    fn has_room(&self) -> bool {
        self.credits.may_send() && self.sends.next(What::Message, true).is_some()
    }

    /// Awake again. Without room it is still waited for.
    pub(super) fn disarm(&mut self) {
        self.wanted &= !self.has_room();
    }

    /// Has the next completion wake this side. `false`: there is something to do.
    pub(super) fn may_sleep(&mut self) -> bool {
        // What completes once it was asked for is told of; what completed before is looked at here. A few times, for others go on meanwhile.
        for _ in 0..4 {
            let is_due =
                !self.received.is_empty() || self.has_let_go || self.failure.is_some() || self.life.is_gone();
            let has_given_up = self.guest.as_ref().is_some_and(|guest| guest.asked.is_gone());
            if is_due || has_given_up || self.wanted && self.has_room() {
                return false;
            }
            if !self.notified {
                if self.queue.notify().is_err() {
                    self.fail(Gone::Failed("no event of its completion queue can be asked for"));
                    return false;
                }
                self.notified = true;
            }
            if self.reap() == 0 {
                return true;
            }
        }
        false
    }
}

/// An endpoint that is given up: kept until its peer has been told.
#[derive(Debug)]
pub(super) struct Leaving {
    ep: Endpoint,
    is_told: bool,
    deadline: Deadline,
}

impl Leaving {
    pub(super) fn new(mut ep: Endpoint, deadline: Deadline) -> Self {
        ep.wanted = false; // nobody sends by it any more
        Self { ep, is_told: false, deadline }
    }

    /// Whether something was let go of since this was asked; it goes on, or `ends` now.
    pub(super) fn has_let_go(&mut self, ends: bool) -> bool {
        std::mem::take(&mut self.ep.has_let_go) || ends && self.ep.queue.holds()
    }

    /// Goes on; answers whether it is at its end.
    pub(super) fn is_done(&mut self) -> bool {
        let is_gone = self.ep.life.is_gone();
        self.ep.reap();
        if !self.is_told {
            match self.ep.control(Kind::End) {
                Ok(()) => self.is_told = true,
                Err(Refused::Full) => {}
                Err(Refused::Failed(_)) => return true,
            }
        }
        let is_heard = self.is_told && self.ep.sends.is_idle();
        is_heard
            || is_gone
            || self.ep.failure.is_some()
            || self.deadline.left().is_none()
            || self.has_peer_left()
    }

    /// The peer has left meanwhile: then it hears nothing more. What it has sent before is dropped.
    fn has_peer_left(&mut self) -> bool {
        while let Some(one) = self.ep.received.pop_front() {
            if self.ep.header(one).is_ok_and(|header| header.kind == Kind::End) {
                return true;
            }
        }
        false
    }

    /// Has the next completion wake this side. `None`: it is at its end; `false`: there is something to do.
    pub(super) fn may_sleep(&mut self) -> Option<bool> {
        if self.is_done() {
            return None; // what had come until now is dropped
        }
        Some(self.ep.may_sleep())
    }
}

struct Bytes<'a> {
    queue: &'a Queue,
    one: Received,
}

impl Payload for Bytes<'_> {
    #[inline]
    fn len(&self) -> usize {
        self.one.len.saturating_sub(HEADER_LEN)
    }

    #[inline]
    fn read(&self, at: usize, dst: &mut [u8]) -> Result<(), BoundsError> {
        let (offset, len, size) = (at as u64, dst.len() as u64, self.len() as u64);
        let out = BoundsError::OutOfRange { offset, len, size };
        if at.checked_add(dst.len()).is_none_or(|end| end > self.len()) {
            return Err(out);
        }
        self.queue.read(self.one, HEADER_LEN + at, dst)
    }
}
