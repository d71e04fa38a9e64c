//! The interface of `self`: a worker's messages to itself.
//!
//! An endpoint that connects has a counterpart on the same interface, as one to another worker has one there.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd};

use ucs::time::Deadline;

use super::wire::Address;
use crate::api::{
    AttachError, ComponentId, EpId, Gone, Iface, IfaceAttr, IfaceError, IfaceFlags, LinearCost, MdParams,
    NewEp, SendError, Sink,
};
use crate::doorbell::Doorbell;
use crate::memory::Local;
use crate::transports::places::Places;

/// Bytes that are read at once of a body that is imported memory.
const PIECE: usize = 16 << 10;
/// Most bytes of a message.
const MAX_AM: usize = 32 << 10;
/// Messages that wait at most: then there is no room.
const MAX_WAITING: usize = 256;
/// How many messages one call takes.
const BATCH: usize = 16;

/// The interface of `self`.
#[derive(Debug)]
pub(super) struct SelfIface {
    attr: IfaceAttr,
    address: Address,
    /// Each endpoint's counterpart; `None`: that has been disconnected.
    eps: Places<Option<EpId>>,
    waiting: VecDeque<Event>,
    /// Buffers of messages that were taken.
    spare: Vec<Vec<u8>>,
    bell: Doorbell,
    /// It was armed, and nothing has happened since.
    is_armed: bool,
    /// The bell was rung, and nobody has looked since.
    is_rung: bool,
}

#[derive(Debug)]
enum Event {
    Arrived(EpId),
    Message(EpId, u32, Vec<u8>),
    Gone(EpId),
}

impl SelfIface {
    pub(super) fn open(params: &MdParams) -> Result<Self, IfaceError> {
        let attr = IfaceAttr {
            component: ComponentId::SELF,
            flags: IfaceFlags::AM | IfaceFlags::EVENT_FD | IfaceFlags::PEER_FAILURE,
            max_am: MAX_AM,
            // Less than by shm: there is no other core. Interfaces are only compared by it.
            am_cost: LinearCost { base: 50e-9, per_byte: 0.05e-9 },
        };
        let address = Address { context_uuid: *params.exports.uuid(), secret: params.exports.token() };
        let (waiting, spare) = (VecDeque::new(), Vec::new());
        let (is_armed, is_rung) = (false, false);
        let bell = Doorbell::new()?;
        Ok(Self { attr, address, eps: Places::new(), waiting, spare, bell, is_armed, is_rung })
    }

    /// Has the next progress find it. Who has armed may wait for it elsewhere than where it comes from, on the same thread.
    #[inline]
    fn happens(&mut self, event: Event) {
        self.waiting.push_back(event);
        if std::mem::take(&mut self.is_armed) {
            self.is_rung = true;
            self.bell.ring();
        }
    }
}

impl Iface for SelfIface {
    fn attr(&self) -> &IfaceAttr {
        &self.attr
    }

    fn address(&self) -> Vec<u8> {
        self.address.encode().to_vec()
    }

    fn connect(&mut self, address: &[u8], _deadline: &Deadline) -> Result<NewEp, AttachError> {
        let address = Address::decode(address).map_err(AttachError::Malformed)?;
        if address != self.address {
            return Err(AttachError::Elsewhere {
                reason: "it is another worker's address, and self reaches its own worker only",
                remedy: "allow shm in UCX_TLS",
            });
        }
        let ep = self.eps.add(None);
        let other = self.eps.add(Some(ep));
        self.eps.get(ep).into_iter().for_each(|counterpart| *counterpart = Some(other));
        self.happens(Event::Arrived(other));
        Ok(NewEp { ep, peer: address.context_uuid })
    }

    fn disconnect(&mut self, ep: EpId) {
        if let Some(Some(other)) = self.eps.remove(ep)
            && let Some(counterpart) = self.eps.get(other)
        {
            *counterpart = None;
            self.happens(Event::Gone(other));
        }
    }

    fn am(&mut self, ep: EpId, tag: u32, head: [&[u8]; 2], body: &Local<'_>) -> Result<(), SendError> {
        let other = self.eps.get(ep).copied().flatten().ok_or(SendError::Gone)?;
        if head.iter().map(|part| part.len()).sum::<usize>().saturating_add(body.len()) > MAX_AM {
            return Err(SendError::TooLong);
        }
        if self.waiting.len() >= MAX_WAITING {
            return Err(SendError::Full);
        }
        let mut bytes = self.spare.pop().unwrap_or_default();
        head.iter().for_each(|part| bytes.extend_from_slice(part));
        let copied = body.in_pieces(PIECE, |_, piece| {
            bytes.extend_from_slice(piece);
            Ok(())
        });
        if let Err(error) = copied {
            bytes.clear();
            self.spare.push(bytes);
            return Err(error.into());
        }
        self.happens(Event::Message(other, tag & 0xff_ffff, bytes));
        Ok(())
    }

    fn progress(&mut self, sink: &mut dyn Sink) -> usize {
        self.is_armed = false;
        if std::mem::take(&mut self.is_rung) {
            self.bell.clear();
        }
        for count in 0..BATCH {
            let Some(event) = self.waiting.pop_front() else { return count };
            match event {
                Event::Arrived(ep) => sink.arrived(NewEp { ep, peer: self.address.context_uuid }),
                Event::Gone(ep) => {
                    if self.eps.get(ep).is_some() {
                        sink.gone(ep, Gone::Closed);
                    }
                }
                Event::Message(ep, tag, mut bytes) => {
                    if self.eps.get(ep).is_some() {
                        sink.am(ep, tag, &&bytes[..]);
                    }
                    bytes.clear();
                    self.spare.push(bytes);
                }
            }
        }
        BATCH
    }

    fn event_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.bell.as_fd())
    }

    fn arm(&mut self) -> bool {
        self.is_armed = self.waiting.is_empty();
        self.is_armed
    }
}
