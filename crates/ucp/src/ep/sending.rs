//! Announced data, while it is sent.

use std::fmt;
use std::sync::Arc;

use uct::api::{EpId, Iface, SendError};
use uct::memory::AccessError;
use uct::registrations::{Held, Needs};

use super::op::SendOp;
use super::state::out_of_range;
use crate::context::ContextInner;
use crate::proto::{self, Operand};
use crate::wire::am::{Kind, Pair};

/// Bytes of data in one message of a rendezvous: several are on their way at once.
const FRAGMENT: usize = 16 << 10;

/// Where messages go out.
pub(crate) struct Outlet<'a> {
    pub(crate) iface: &'a mut dyn Iface,
    /// `None`: its device does not take data from where it lies.
    pub(crate) gather: Option<&'a Gather>,
}

/// By what data is registered that an interface's device takes from where it lies.
pub(crate) struct Gather {
    pub(crate) ctx: Arc<ContextInner>,
    pub(crate) needs: Needs,
}

impl fmt::Debug for Gather {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gather").field("needs", &self.needs).finish_non_exhaustive()
    }
}

/// Data that was announced.
#[derive(Debug)]
pub(super) struct Sending {
    // Dropped before the operand that it is of.
    body: Body,
    op: Box<dyn SendOp>,
    /// As it was announced: what an operand says later is not believed.
    pub(super) length: usize,
    pub(super) when: u64,
    /// The peer's number of its receive, and how many bytes have been sent; `None`: it has not answered.
    stream: Option<(u32, usize)>,
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
        Self { body: Body::Unknown, op, length, when, stream: None }
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
    pub(super) fn is_held(&mut self) -> bool {
        match &mut self.body {
            Body::Held(held) => Arc::get_mut(held).is_none(),
            Body::Unknown | Body::Copied => false,
        }
    }

    /// Its operation, which may end.
    pub(super) fn into_op(self) -> Box<dyn SendOp> {
        self.op
    }

    /// Sends its next part; answers whether it was the last one.
    pub(super) fn next(&mut self, id: EpId, out: &mut Outlet<'_>) -> Result<bool, SendError> {
        let Some((receive, sent)) = self.stream else { return Ok(true) };
        let len = FRAGMENT.min(out.iface.attr().max_am - Pair::LEN).min(self.length - sent);
        let (tag, head) = (Kind::Data.tag(0), Pair(receive, 0).encode());
        if let Body::Unknown = self.body {
            self.body = self.choose(out.gather);
        }
        if let Body::Held(held) = &self.body {
            out.iface.am_held(id, tag, head.as_bytes(), held, sent..sent + len)?;
        } else {
            let local = self.op.local();
            if local.len() < sent + len {
                return Err(SendError::Body(AccessError::from(out_of_range(sent, len, local.len()))));
            }
            out.iface.am(id, tag, [head.as_bytes(), &[]], &local.range(sent..sent + len))?;
        }
        self.stream = Some((receive, sent + len));
        Ok(sent + len == self.length)
    }

    /// From where it lies, if that can be, and costs less.
    fn choose(&self, gather: Option<&Gather>) -> Body {
        let Some(Gather { ctx, needs }) = gather else { return Body::Copied };
        let is_imported = self.op.local().is_imported();
        if proto::operand(self.length, is_imported, ctx.zcopy_from) == Operand::Copied {
            return Body::Copied;
        }
        match self.op.hold(&ctx.registrations, *needs) {
            Some(Ok(held)) => Body::Held(Arc::new(held)),
            Some(Err(error)) => {
                tracing::debug!(%error, "data is copied: it cannot be registered");
                Body::Copied
            }
            None => Body::Copied,
        }
    }
}
