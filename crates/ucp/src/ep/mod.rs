//! Endpoints: one side's end of a connection between two workers.

mod error;
pub(crate) mod fetch;
pub(crate) mod op;
pub(crate) mod sending;
pub(crate) mod state;

use std::fmt;
use std::rc::Rc;

use ucs::sync::{Ordering, fence};

pub use error::{ConnectError, EpError, WorkerError};
use op::Waits;
use state::Ep;

use crate::request::{Request, Slot};
use crate::worker::WorkerInner;

/// How an endpoint is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CloseMode {
    /// After all that was posted has been sent.
    Flush,
    /// At once: what was posted and has not ended fails. An operand that a device may be reading comes back when it does not any more: mostly at
    /// once, and where its peer does not answer, after seconds.
    #[doc(alias = "UCP_EP_CLOSE_FLAG_FORCE")]
    Force,
}

/// What an endpoint goes by. The memory that it reaches goes by transports of its own:
/// [`RemoteRegion::transport`](crate::RemoteRegion::transport).
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct EpInfo {
    /// The transport of its messages, as in `UCX_TLS`.
    pub transport: &'static str,
    /// Most bytes, header included, of a message that is sent at once; longer ones go by rendezvous.
    pub max_eager: usize,
    /// Its lanes: of messages, and of announced data where there is a better way for that.
    pub lanes: Vec<LaneInfo>,
}

/// What one lane of an endpoint is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LaneUse {
    /// Messages, and data as long as no other lane takes it.
    Messages,
    /// The data of a rendezvous, which the receiver reads where the sender has it.
    Data,
    /// The data of a rendezvous, sent by messages that the sender's device takes from where it lies.
    Gathered,
}

/// A lane of an endpoint: the transport that costs least of those that can do it.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct LaneInfo {
    /// What it is for.
    pub of: LaneUse,
    /// The transport, as in `UCX_TLS`.
    pub transport: &'static str,
    /// Bytes from which on it is used.
    pub from: u64,
    /// What it costs, by its transport's attributes, in seconds: whatever the size.
    pub cost_base: f64,
    /// And for each byte.
    pub cost_per_byte: f64,
}

/// An endpoint (`ucp_ep_h`): `!Send`, as its worker. Clones are the same endpoint.
///
/// Dropping the last handle of one that this side has connected closes it, after all that was posted has been sent. One that a peer has
/// connected, which messages bring along, lives as long as the peer's.
#[doc(alias = "ucp_ep_h")]
pub struct Endpoint {
    pub(crate) worker: Rc<WorkerInner>,
    pub(crate) ep: Rc<Ep>,
}

impl Endpoint {
    pub(crate) fn new(worker: &Rc<WorkerInner>, ep: &Rc<Ep>) -> Self {
        ep.users.set(ep.users.get() + 1);
        Self { worker: Rc::clone(worker), ep: Rc::clone(ep) }
    }

    /// What it goes by. Where the peer's memory may be read it is tried whether that can be: a system call, once the peer's worker has
    /// heard of the endpoint.
    #[must_use]
    pub fn info(&self) -> EpInfo {
        self.worker.info(&self.ep)
    }

    /// Whether it is of use.
    ///
    /// # Errors
    /// [`EpError`]: why not.
    #[inline]
    pub fn check(&self) -> Result<(), EpError> {
        if self.worker.ctx.is_forked() {
            return Err(EpError::Forked);
        }
        let state = self.ep.state.borrow();
        match state.error {
            Some(error) => Err(error),
            None if state.closing => Err(EpError::Closed),
            None => Ok(()),
        }
    }

    /// Has `handler` called when the endpoint fails, once, in the worker's progress; not when this side closes it. After that, it is
    /// still to be closed.
    ///
    /// It is kept until then, or until the worker is dropped: one that holds a clone of the endpoint keeps it open.
    #[doc(alias = "ucp_err_handler_cb_t")]
    pub fn on_error(&self, handler: impl FnOnce(EpError) + 'static) {
        let mut state = self.ep.state.borrow_mut();
        let before = match state.error {
            None => state.on_error.replace(Box::new(handler)),
            Some(_) => None, // it has failed before: `check` tells
        };
        drop(state);
        drop(before); // the user's code
    }

    /// Orders what was posted before it ahead of what is posted after it: puts, gets and atomics of this endpoint's remote memory.
    #[doc(alias = "ucp_worker_fence")]
    pub fn fence(&self) {
        fence(Ordering::SeqCst);
    }

    /// Ends when all that was posted before has: puts and atomics at the other side, too; messages when they are on their way.
    #[doc(alias = "ucp_ep_flush_nbx")]
    pub fn flush(&self) -> Request<()> {
        match self.check() {
            Ok(()) => self.drained(),
            Err(error) => Request::failed(error, ()),
        }
    }

    /// As [`Endpoint::flush`], also while it is being closed.
    fn drained(&self) -> Request<()> {
        let mut state = self.ep.state.borrow_mut();
        if state.is_drained() {
            fence(Ordering::SeqCst);
            return Request::ended(Ok(()));
        }
        let slot = Slot::new();
        state.push_wait(Waits::of(1, &slot));
        drop(state);
        self.worker.core.borrow_mut().set_busy(&self.ep);
        self.worker.wake();
        Request::running(&slot)
    }

    /// Closes it, for all its handles: operations posted afterwards fail. The peer is told after all that was sent.
    #[doc(alias = "ucp_ep_close_nbx")]
    pub fn close(self, mode: CloseMode) -> Request<()> {
        if self.worker.ctx.is_forked() {
            return Request::failed(EpError::Forked, ()); // the connection is the parent's
        }
        let is_over = self.ep.state.borrow().error.is_some();
        let flushed = match mode {
            CloseMode::Flush if !is_over => self.drained(),
            _ => Request::ended(Ok(())),
        };
        if flushed.is_ended() {
            self.worker.end(&self.ep);
        } else {
            self.ep.state.borrow_mut().closing = true;
        }
        flushed
    }
}

impl Clone for Endpoint {
    fn clone(&self) -> Self {
        Self::new(&self.worker, &self.ep)
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        let ep = &self.ep;
        ep.users.set(ep.users.get() - 1);
        if ep.users.get() > 0 || self.worker.ctx.is_forked() {
            return;
        }
        let (is_over, is_drained) = {
            let mut state = ep.state.borrow_mut();
            state.closing |= ep.is_active;
            (state.error.is_some(), state.is_drained())
        };
        if is_over {
            self.worker.disconnect(ep);
        } else if ep.is_active && is_drained {
            self.worker.end(ep);
        }
    }
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // No more: `info` asks the system, and looks at memory that a fork's child has not.
        let transport = self.worker.transport(&self.ep);
        f.debug_struct("Endpoint").field("transport", &transport).field("error", &self.check().err()).finish()
    }
}
