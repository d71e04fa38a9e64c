//! Announced data, while it is sent.

use std::sync::Arc;

use uct::api::{EpId, Iface, SendError};
use uct::memory::AccessError;
use uct::registrations::Held;

use super::op::{AnyOp, Done, SendOp};
use super::state::out_of_range;
use crate::mem::TransferError;
use crate::wire::am::{Kind, Pair};

/// Bytes of data in one message of a rendezvous: several are on their way at once.
const FRAGMENT: usize = 16 << 10;

/// Data that was announced.
#[derive(Debug)]
pub(crate) struct Sending {
    // Dropped before the operand that it is of.
    body: Body,
    op: Box<dyn SendOp>,
    /// As it was announced: what an operand says later is not believed.
    length: usize,
    pub(super) when: u64,
    /// The peer's number of its receive, and how many bytes have been sent; `None`: it has not answered.
    stream: Option<(u32, usize)>,
    /// How it has ended, but that the interface has not let go of it.
    ended: Option<Result<(), TransferError>>,
}

/// How its bytes go.
#[derive(Debug)]
enum Body {
    Unknown,
    Copied,
    Held(Arc<Held>),
}

impl Sending {
    pub(super) fn new(op: Box<dyn SendOp>, length: usize, when: u64) -> Self {
        Self { body: Body::Unknown, op, length, when, stream: None, ended: None }
    }

    /// The peer wants it. `false`: it had asked before, or asks for no bytes.
    pub(super) fn begin(&mut self, receive: u32) -> bool {
        let is_due = self.stream.is_none() && self.length > 0;
        if is_due {
            self.stream = Some((receive, 0));
        }
        is_due
    }

    /// The peer's number of its receive.
    pub(super) fn receive(&self) -> Option<u32> {
        self.stream.map(|(receive, _)| receive)
    }

    /// Whether the interface has not let go of it.
    pub(crate) fn is_held(&mut self) -> bool {
        match &mut self.body {
            Body::Held(held) => Arc::get_mut(held).is_none(),
            Body::Unknown | Body::Copied => false,
        }
    }

    /// It has ended so, but for what the interface has not let go of.
    pub(super) fn end(&mut self, result: Result<(), TransferError>) {
        self.ended.get_or_insert(result);
    }

    /// Whether it has ended.
    pub(super) fn has_ended(&self) -> bool {
        self.ended.is_some()
    }

    /// Its operation, which has ended, and which the interface has let go of.
    pub(crate) fn into_done(self) -> Done {
        let Self { op, ended, .. } = self;
        (AnyOp::Send(op), ended.unwrap_or(Ok(())))
    }

    /// Sends its next part; answers whether it was the last one.
    pub(super) fn next(&mut self, id: EpId, iface: &mut dyn Iface) -> Result<bool, SendError> {
        let Some((receive, sent)) = self.stream else { return Ok(true) };
        let part = sent..sent + FRAGMENT.min(iface.attr().max_am - Pair::LEN).min(self.length - sent);
        let (tag, head) = (Kind::Data.tag(0), Pair(receive, 0).encode());
        if let Body::Unknown = self.body {
            self.body = self.hold();
        }
        let local = self.op.local();
        if local.len() < part.end {
            return Err(SendError::Body(AccessError::from(out_of_range(sent, part.len(), local.len()))));
        }
        if let Body::Held(held) = &self.body {
            iface.am_held(id, tag, head.as_bytes(), held, part.clone())?;
        } else {
            iface.am(id, tag, [head.as_bytes(), &[]], &local.range(part.clone()))?;
        }
        self.stream = Some((receive, part.end));
        Ok(part.end == self.length)
    }

    /// From where it lies, if that was chosen, and can be.
    fn hold(&self) -> Body {
        match self.op.hold() {
            Some(Ok(held)) => Body::Held(Arc::new(held)),
            Some(Err(error)) => {
                tracing::debug!(%error, "data is copied: it cannot be registered");
                Body::Copied
            }
            None => Body::Copied,
        }
    }
}
