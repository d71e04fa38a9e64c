//! Active messages: sending them, and what handlers are given.

use std::fmt;
use std::num::NonZeroU64;
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

use bitflags::bitflags;
use ucs::Status;
use uct::api::SendError;
use uct::memory::{Destination, Source};

use crate::Features;
use crate::ep::fetch::Fetch;
use crate::ep::op::{Of, SendOp, Shared};
use crate::ep::state::{Corrupt, Ep};
use crate::ep::{Endpoint, EpError};
use crate::mem::TransferError;
use crate::proto::{self, Message};
use crate::request::{Request, Slot};
use crate::wire::am::{self, Kind, MAX_HEADER, Malformed, Pair, Prefix, Rts};
use crate::worker::WorkerInner;

bitflags! {
    /// How a message is sent (`ucp_send_am_flags`).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    #[doc(alias = "ucp_send_am_flags")]
    pub struct AmFlags: u32 {
        /// At once, by copies; an error where it is too long for that.
        #[doc(alias = "UCP_AM_SEND_FLAG_EAGER")]
        const EAGER = 1 << 1;
        /// By rendezvous, however short: the receiver says where the data goes, or that it does not want it.
        #[doc(alias = "UCP_AM_SEND_FLAG_RNDV")]
        const RNDV = 1 << 2;
    }
}

/// The user's code for messages.
pub(crate) type Handler = Box<dyn FnMut(AmMessage)>;

impl Endpoint {
    /// Sends a message to the peer's handler of number `id`: a header, which is copied, and the bytes of `data`, which come back when they
    /// may be used again. It may still be on its way then. Of a rendezvous the receiver has read or refused the data, or has asked for it
    /// and all of it has been sent.
    ///
    /// Messages of one endpoint come to their handlers in order. Imported memory always goes by rendezvous.
    ///
    /// # Errors
    /// As the request's: see [`TransferError`]. A header of more than 4096 bytes is too long.
    #[doc(alias = "ucp_am_send_nbx")]
    pub fn am_send<M: Source>(&self, id: u16, header: &[u8], data: M) -> Request<M> {
        self.am_send_with(AmFlags::empty(), id, header, data)
    }

    /// As [`Endpoint::am_send`], in the way that `flags` say.
    ///
    /// # Errors
    /// As [`Endpoint::am_send`]; with [`AmFlags::EAGER`], [`TransferError::TooLong`], and [`TransferError::EagerImport`] for imported
    /// memory.
    pub fn am_send_with<M: Source>(&self, flags: AmFlags, id: u16, header: &[u8], data: M) -> Request<M> {
        match self.check_am(header).and_then(|()| Ok(data.check()?)) {
            Ok(()) => {}
            Err(error) => return Request::failed(error, data),
        }
        let size = {
            let local = data.local();
            (local.len(), local.is_imported())
        };
        match proto::message(flags, size, header.len(), self.worker.max_am(&self.ep)) {
            Ok(Message::Eager) => self.eager(id, header, data),
            Ok(Message::Rendezvous) => self.announce(id, header, data),
            Err(error) => Request::failed(error, data),
        }
    }

    fn check_am(&self, header: &[u8]) -> Result<(), TransferError> {
        self.check()?;
        if !self.worker.ctx.has(Features::AM) {
            return Err(TransferError::FeatureMissing("AM"));
        }
        if header.len() > MAX_HEADER {
            return Err(TransferError::TooLong { len: header.len() as u64, max: MAX_HEADER as u64 });
        }
        Ok(())
    }

    #[inline]
    fn eager<M: Source>(&self, id: u16, header: &[u8], data: M) -> Request<M> {
        let (kind, prefix) = if header.is_empty() {
            (Kind::Eager, Prefix::default())
        } else {
            (Kind::Header, am::header_len(header))
        };
        let tag = kind.tag(id);
        let mut state = self.ep.state.borrow_mut();
        if state.is_empty() {
            let sent = {
                let mut ifaces = self.worker.ifaces.borrow_mut();
                let local = data.local();
                match ifaces.get_mut(self.ep.iface) {
                    Some(iface) => iface.am(self.ep.id, tag, [prefix.as_bytes(), header], &local),
                    None => return Request::failed(SendError::Gone, data),
                }
            };
            match sent {
                Ok(()) => return Request::ended(Ok(data)),
                // Why the peer is gone is told by progress, and ends what is queued.
                Err(SendError::Full | SendError::Gone) => {}
                Err(error) => return Request::failed(error, data),
            }
        }
        let slot = Slot::new();
        let op = Of { operand: data, slot: Rc::clone(&slot) };
        state.push_message(tag, prefix, header, Some(Box::new(op)));
        drop(state);
        self.worker.core.borrow_mut().set_busy(&self.ep);
        self.worker.wake();
        Request::running(&slot)
    }

    /// Tells the peer of data that it may ask for.
    fn announce<M: Source>(&self, id: u16, header: &[u8], data: M) -> Request<M> {
        let slot = Slot::new();
        let gather = {
            let local = data.local();
            self.worker.gather(&self.ep, local.len(), local.is_imported())
        };
        // It stays there from here on: a value may hold its bytes itself.
        let op: Box<dyn SendOp> = match gather {
            Some(needs) => {
                let (operand, ctx) = (Arc::new(data), Arc::clone(&self.worker.ctx));
                Box::new(Shared { operand, slot: Rc::clone(&slot), ctx, needs })
            }
            None => Box::new(Of { operand: data, slot: Rc::clone(&slot) }),
        };
        let (length, address) = {
            let local = op.local();
            (local.len(), local.address().filter(|_| self.worker.reads()))
        };
        let address = address.filter(|_| length > 0).and_then(|address| NonZeroU64::new(address as u64));
        let mut state = self.ep.state.borrow_mut();
        let request = state.announce(length, op);
        let header_len = u16::try_from(header.len()).unwrap_or(u16::MAX); // it was checked
        let rts = Rts { request, header_len, length: length as u64, address };
        state.push_message(rts.kind().tag(id), rts.encode(), header, None);
        drop(state);
        self.worker.post(&self.ep);
        Request::running(&slot)
    }
}

impl WorkerInner {
    /// Sends what an endpoint has to send, as far as there is room.
    fn post(&self, ep: &Rc<Ep>) {
        let mut core = self.core.borrow_mut();
        core.set_busy(ep);
        // Without a progress of its own nothing would go out while the user computes.
        let mut ifaces = self.ifaces.borrow_mut();
        if !ifaces.is_empty() {
            core.pump_one(ep, &mut ifaces);
        }
        drop((core, ifaces));
        self.wake();
    }

    fn post_answer(&self, ep: &Rc<Ep>, answered: Result<(), Corrupt>) {
        match answered {
            Ok(()) => self.post(ep),
            Err(Corrupt) => {
                self.core.borrow_mut().give_up(ep);
                self.wake();
            }
        }
    }
}

/// A message, as its handler is given it. It may be kept as long as it is wanted: dropping it gives its buffer back, and refuses data that
/// was only announced. `!Send`.
#[doc(alias = "ucp_am_recv_param_t")]
#[doc(alias = "ucp_am_data_release")]
pub struct AmMessage {
    worker: Rc<WorkerInner>,
    ep: Rc<Ep>,
    bytes: Vec<u8>,
    header: Range<usize>,
    data: Range<usize>,
    /// Data that was only announced, as long as nothing has been said to that.
    rts: Option<Rts>,
}

impl AmMessage {
    /// A message of `len` bytes, in a buffer.
    #[inline]
    pub(crate) fn new(
        worker: Rc<WorkerInner>,
        ep: Rc<Ep>,
        kind: Kind,
        bytes: Vec<u8>,
        len: usize,
    ) -> Result<Self, Malformed> {
        let whole = bytes.get(..len).unwrap_or_default();
        let (header, data, rts) = match kind {
            Kind::Rts | Kind::Offer => {
                let (rts, header) = Rts::decode(kind, whole)?;
                (len - header.len()..len, 0..0, Some(rts))
            }
            Kind::Header => {
                let (header, data) = am::split(whole)?;
                (len - data.len() - header.len()..len - data.len(), len - data.len()..len, None)
            }
            _ => (0..0, 0..len, None),
        };
        Ok(Self { worker, ep, bytes, header, data, rts })
    }

    /// The header, as it was sent.
    #[inline]
    #[must_use]
    pub fn header(&self) -> &[u8] {
        &self.bytes[self.header.clone()]
    }

    /// The data; empty where it was only announced: see [`AmMessage::is_rendezvous`].
    #[inline]
    #[must_use]
    pub fn data(&self) -> &[u8] {
        &self.bytes[self.data.clone()]
    }

    /// How many bytes of data there are, or are announced. **A peer may announce any number**: take no more memory than you mean to.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.rts.map_or(self.data.len() as u64, |rts| rts.length)
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether the data was only announced: [`AmMessage::recv_data`] asks for it.
    #[must_use]
    #[doc(alias = "UCP_AM_RECV_ATTR_FLAG_RNDV")]
    pub fn is_rendezvous(&self) -> bool {
        self.rts.is_some()
    }

    /// An endpoint to who sent it.
    #[must_use]
    #[doc(alias = "UCP_AM_SEND_FLAG_REPLY")]
    pub fn reply(&self) -> Endpoint {
        Endpoint::new(&self.worker, &self.ep)
    }

    /// Has the data come into `operand`, which must have room for it: as long as the data, or longer. Data that has come with the message
    /// is copied.
    ///
    /// # Errors
    /// As the request's. [`TransferError::Truncated`]: the operand is too short, and the data is refused; [`TransferError::Access`]: the
    /// operand's memory cannot be used; [`TransferError::Aborted`]: the sender's cannot; [`TransferError::Endpoint`]: the endpoint has
    /// failed, or was closed, or is the parent process's. What has come into the operand by then is of no meaning.
    #[doc(alias = "ucp_am_recv_data_nbx")]
    pub fn recv_data<M: Destination>(mut self, mut operand: M) -> Request<M> {
        if let Err(error) = operand.check() {
            self.refuse(error.status());
            return Request::failed(error, operand);
        }
        let (len, room) = (self.len(), operand.local_mut().len());
        if len > room as u64 {
            let error = TransferError::Truncated { len, room: room as u64 };
            self.refuse(error.status());
            return Request::failed(error, operand);
        }
        let Some(rts) = self.rts.take() else {
            let copied = operand.local_mut().write(0, self.data());
            return match copied {
                Ok(()) => Request::ended(Ok(operand)),
                Err(error) => Request::failed(error, operand),
            };
        };
        let error =
            if self.worker.ctx.is_forked() { Some(EpError::Forked) } else { self.ep.state.borrow().error };
        if let Some(error) = error {
            return Request::failed(error, operand);
        }
        if len == 0 {
            self.answer(rts, Status::Ok);
            return Request::ended(Ok(operand));
        }
        let slot = Slot::new();
        let op = Of { operand, slot: Rc::clone(&slot) };
        // It fits the operand, so it fits a usize.
        let length = usize::try_from(len).unwrap_or(usize::MAX);
        let address = rts.address.filter(|_| self.worker.is_read(&self.ep, len));
        let asked = {
            let mut state = self.ep.state.borrow_mut();
            match address {
                Some(address) => {
                    state.read(Fetch::new(rts.request, address.get(), length, Box::new(op)));
                    Ok(())
                }
                None => state.receive(rts.request, length, Box::new(op)),
            }
        };
        self.worker.post_answer(&self.ep, asked);
        Request::running(&slot)
    }

    /// Refuses data that was only announced, for that reason.
    pub(crate) fn refuse(&mut self, status: Status) {
        if let Some(rts) = self.rts.take() {
            self.answer(rts, status);
        }
    }

    /// Says that the data need not be sent: it was not wanted, or cannot be taken.
    fn answer(&self, rts: Rts, status: Status) {
        // In a fork's child the ring is not there.
        if !self.worker.ctx.is_forked() && self.ep.state.borrow().error.is_none() {
            let answer = Pair(rts.request, status as u32);
            let answered = self.ep.state.borrow_mut().answer(Kind::Drop, answer);
            self.worker.post_answer(&self.ep, answered);
        }
    }
}

impl Drop for AmMessage {
    fn drop(&mut self) {
        if let Some(rts) = self.rts.take() {
            self.answer(rts, Status::Ok);
        }
        self.worker.core.borrow_mut().give_back(std::mem::take(&mut self.bytes));
    }
}

impl fmt::Debug for AmMessage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AmMessage")
            .field("header", &self.header.len())
            .field("len", &self.len())
            .field("is_rendezvous", &self.is_rendezvous())
            .finish_non_exhaustive()
    }
}
