//! What a worker keeps of its endpoints, and of what has come and waits to be told.

use std::collections::VecDeque;
use std::rc::Rc;

use ucs::Status;
use uct::api::{EpId, Gone, Iface, NewEp, Payload, Sink};

use crate::ep::EpError;
use crate::ep::op::Done;
use crate::ep::sending::Sending;
use crate::ep::state::{Corrupt, Ep, State};
use crate::mem::TransferError;
use crate::wire::am::{Kind, Pair};

/// Buffers of messages that are kept at most.
const SPARE: usize = 64;

/// What has happened, in order. It is told while nothing is borrowed, so that who is told may post.
#[derive(Debug)]
pub(super) enum Event {
    /// A message for a handler: its kind, the handler's number, a buffer, and how many bytes of that.
    Message(Rc<Ep>, Kind, u16, Vec<u8>, usize),
    Gone(Rc<Ep>, Gone),
}

/// A worker's books.
#[derive(Debug, Default)]
pub(crate) struct Core {
    /// By interface, and the endpoint's place there.
    eps: Vec<Vec<Option<Rc<Ep>>>>,
    pub(super) events: VecDeque<Event>,
    /// Operations that have ended, to be told.
    pub(crate) done: VecDeque<Done>,
    /// What endpoints that are no more have still to end: their interface has not let go of it.
    pub(super) held: Vec<Sending>,
    /// Endpoints that were to be closed once all was sent, and that has been.
    pub(super) closing: Vec<Rc<Ep>>,
    /// Buffers of messages that were told.
    spare: Vec<Vec<u8>>,
    /// Endpoints that have something to send, or to read.
    pub(super) busy: Vec<Rc<Ep>>,
    /// Which of them has read last.
    turn: usize,
}

impl Core {
    pub(super) fn new(ifaces: usize) -> Self {
        Self { eps: (0..ifaces).map(|_| Vec::new()).collect(), ..Self::default() }
    }

    pub(crate) fn add(&mut self, ep: &Rc<Ep>) {
        let (list, index) = (&mut self.eps[ep.iface], ep.id.index as usize);
        if list.len() <= index {
            list.resize(index + 1, None);
        }
        list[index] = Some(Rc::clone(ep));
    }

    pub(crate) fn remove(&mut self, ep: &Ep) {
        if let Some(place) = self.eps[ep.iface].get_mut(ep.id.index as usize)
            && place.as_ref().is_some_and(|there| there.id == ep.id)
        {
            *place = None;
        }
    }

    #[inline]
    fn find(&self, iface: usize, id: EpId) -> Option<&Rc<Ep>> {
        self.eps.get(iface)?.get(id.index as usize)?.as_ref().filter(|ep| ep.id == id)
    }

    pub(super) fn eps(&self) -> impl Iterator<Item = &Rc<Ep>> {
        self.eps.iter().flatten().flatten()
    }

    /// Ends an endpoint, and all that is to be done for it.
    pub(super) fn fail(&mut self, state: &mut State, error: EpError) {
        state.fail(error, &mut self.done, &mut self.held);
    }

    /// Ends what interfaces have let go of since its endpoint has ended. Answers whether there was any.
    pub(super) fn end_let_go(&mut self) -> bool {
        let before = self.held.len();
        if before > 0 {
            self.done.extend(self.held.extract_if(.., |sending| !sending.is_held()).map(Sending::into_done));
        }
        self.held.len() < before
    }

    /// Whether something waits to be told.
    pub(super) fn has_news(&self) -> bool {
        !self.events.is_empty() || !self.done.is_empty() || !self.closing.is_empty()
    }

    /// Has what it has to send be sent as soon as there is room.
    #[inline]
    pub(crate) fn set_busy(&mut self, ep: &Rc<Ep>) {
        if !ep.is_busy.replace(true) {
            self.busy.push(Rc::clone(ep));
        }
    }

    /// Its peer keeps to no rule: what it has sent before is told, and then that the endpoint is of no more use.
    pub(crate) fn give_up(&mut self, ep: &Rc<Ep>) {
        if ep.state.borrow_mut().give_up() {
            self.events.push_back(Event::Gone(Rc::clone(ep), Gone::Corrupt));
        }
    }

    /// Takes back a buffer.
    #[inline]
    pub(crate) fn give_back(&mut self, bytes: Vec<u8>) {
        if self.spare.len() < SPARE {
            self.spare.push(bytes);
        }
    }

    /// The bytes of a message, at the beginning of a buffer.
    #[inline]
    fn copy(&mut self, payload: &dyn Payload) -> Option<(Vec<u8>, usize)> {
        let len = payload.len();
        let mut bytes = self.spare.pop().unwrap_or_default();
        if bytes.len() < len {
            bytes.resize(len, 0);
        }
        payload.read(0, &mut bytes[..len]).ok()?;
        Some((bytes, len))
    }

    /// Whether data is still to be read: nobody tells of that.
    pub(super) fn has_fetches(&self) -> bool {
        self.busy.iter().any(|ep| ep.state.borrow().has_fetches())
    }

    /// Reads a part of what is to be read, of one endpoint after the other. Answers whether there was any.
    pub(super) fn fetch(&mut self) -> bool {
        let count = self.busy.len();
        let turn = |by: usize| (self.turn + by) % count.max(1);
        let Some(next) = (1..=count).map(turn).find(|at| self.busy[*at].state.borrow().has_fetches()) else {
            return false;
        };
        self.turn = next;
        let ep = Rc::clone(&self.busy[next]);
        let read = ep.state.borrow_mut().fetch(&mut self.done);
        if let Err(Corrupt) = read {
            self.give_up(&ep);
        }
        true
    }

    /// Sends what one endpoint has to send, as far as there is room.
    pub(crate) fn pump_one(&mut self, ep: &Rc<Ep>, ifaces: &mut [Box<dyn Iface>]) {
        let mut state = ep.state.borrow_mut();
        if state.error.is_none() {
            state.pump(ep.id, &mut *ifaces[ep.iface], &mut self.done);
        }
    }

    /// Sends what there is room for.
    pub(super) fn pump(&mut self, ifaces: &mut [Box<dyn Iface>]) {
        let Self { busy, done, closing, .. } = self;
        busy.retain(|ep| {
            let mut state = ep.state.borrow_mut();
            if state.error.is_none() {
                state.pump(ep.id, &mut *ifaces[ep.iface], done);
            }
            let stays = state.error.is_none() && !state.is_idle();
            ep.is_busy.set(stays);
            if state.closing && state.is_drained() {
                closing.push(Rc::clone(ep));
            }
            stays
        });
    }
}

/// What one interface tells goes into the books.
pub(super) struct Inbox<'a> {
    pub(super) core: &'a mut Core,
    pub(super) iface: usize,
}

impl Inbox<'_> {
    /// Takes a message that is no handler's.
    fn control(
        &mut self,
        ep: &Rc<Ep>,
        (kind, id): (Kind, u16),
        payload: &dyn Payload,
    ) -> Result<(), Corrupt> {
        let mut prefix = [0; Pair::LEN];
        payload.read(0, &mut prefix).map_err(|_| Corrupt)?;
        let pair = Pair::decode(kind, id, prefix, payload.len()).map_err(|_| Corrupt)?;
        let mut state = ep.state.borrow_mut();
        match kind {
            Kind::Data => return state.data(pair.0, payload, Pair::LEN, &mut self.core.done),
            Kind::Cts => state.clear_to_send(pair)?,
            Kind::Drop => {
                let result = if pair.1 == Status::Ok as u32 { Ok(()) } else { Err(TransferError::Rejected) };
                state.dropped(pair.0, result, &mut self.core.done)?;
            }
            _ => {
                let op = state.aborted(pair.0)?;
                self.core.done.extend(op.map(|op| (op, Err(TransferError::Aborted))));
                return Ok(());
            }
        }
        drop(state);
        self.core.set_busy(ep);
        Ok(())
    }
}

impl Sink for Inbox<'_> {
    fn arrived(&mut self, NewEp { ep, peer }: NewEp) {
        self.core.add(&Rc::new(Ep::new(self.iface, ep, peer, false)));
    }

    #[inline]
    fn am(&mut self, id: EpId, tag: u32, payload: &dyn Payload) {
        let Some(ep) = self.core.find(self.iface, id).map(Rc::clone) else { return };
        let taken = match Kind::of_tag(tag) {
            Some((kind @ (Kind::Eager | Kind::Header | Kind::Rts | Kind::Offer), number)) => {
                match self.core.copy(payload) {
                    Some((bytes, len)) => {
                        self.core.events.push_back(Event::Message(Rc::clone(&ep), kind, number, bytes, len));
                        Ok(())
                    }
                    None => Err(Corrupt),
                }
            }
            Some(control) => self.control(&ep, control, payload),
            None => Err(Corrupt),
        };
        if let Err(Corrupt) = taken {
            self.core.give_up(&ep);
        }
    }

    fn gone(&mut self, id: EpId, why: Gone) {
        let ep = self.core.find(self.iface, id).map(Rc::clone);
        self.core.events.extend(ep.map(|ep| Event::Gone(ep, why)));
    }
}
