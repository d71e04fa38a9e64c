//! What the operations of an endpoint are made of, whatever their operands.

use std::cell::Cell;
use std::fmt;
use std::rc::Rc;
use std::sync::Arc;

use uct::memory::{Destination, Local, LocalMut, Source};
use uct::registrations::{Held, Needs, RegisterError};

use crate::context::ContextInner;
use crate::mem::TransferError;
use crate::request::Slot;

/// An operation that sends.
pub(crate) trait SendOp: fmt::Debug {
    fn local(&self) -> Local<'_>;
    /// The operand, registered, where an interface may have it beside the operation.
    fn hold(&self) -> Option<Result<Held, RegisterError>> {
        None
    }
    /// Ends it; called while nothing is borrowed, since it runs the user's code.
    fn end(self: Box<Self>, result: Result<(), TransferError>);
}

/// An operation that receives.
pub(crate) trait ReceiveOp: fmt::Debug {
    fn local_mut(&mut self) -> LocalMut<'_>;
    /// As of [`SendOp`].
    fn end(self: Box<Self>, result: Result<(), TransferError>);
}

/// Either, or one that only waits.
#[derive(Debug)]
pub(crate) enum AnyOp {
    Send(Box<dyn SendOp>),
    Receive(Box<dyn ReceiveOp>),
    Wait(Waits),
}

impl AnyOp {
    pub(crate) fn end(self, result: Result<(), TransferError>) {
        match self {
            Self::Send(op) => op.end(result),
            Self::Receive(op) => op.end(result),
            Self::Wait(op) => op.end(result),
        }
    }
}

/// An operation that has ended.
pub(crate) type Done = (AnyOp, Result<(), TransferError>);

/// Waits for all operations before it, on one endpoint; one of as many as there are endpoints that a request waits for.
#[derive(Clone)]
pub(crate) struct Waits(Rc<Group>);

struct Group {
    /// How many have not ended.
    left: Cell<usize>,
    /// What the first one that failed says.
    error: Cell<Option<TransferError>>,
    slot: Rc<Slot<()>>,
}

impl Waits {
    /// One of `count`, to be cloned for the others.
    pub(crate) fn of(count: usize, slot: &Rc<Slot<()>>) -> Self {
        let (left, error, slot) = (Cell::new(count), Cell::new(None), Rc::clone(slot));
        Self(Rc::new(Group { left, error, slot }))
    }

    fn end(self, result: Result<(), TransferError>) {
        let Group { left, error, slot } = &*self.0;
        error.set(error.take().or(result.err()));
        left.set(left.get() - 1);
        if left.get() == 0 {
            slot.end(error.take().map_or(Ok(()), Err), ());
        }
    }
}

/// An operation on an operand.
pub(crate) struct Of<M> {
    pub(crate) operand: M,
    pub(crate) slot: Rc<Slot<M>>,
}

impl<M: Source> SendOp for Of<M> {
    fn local(&self) -> Local<'_> {
        self.operand.local()
    }

    fn end(self: Box<Self>, result: Result<(), TransferError>) {
        let Self { operand, slot } = *self;
        slot.end(result, operand);
    }
}

/// An operation on an operand that an interface may have, too, for its device: it has let go of it when the operation ends.
pub(crate) struct Shared<M> {
    pub(crate) operand: Arc<M>,
    pub(crate) slot: Rc<Slot<M>>,
    /// By what it is registered.
    pub(crate) ctx: Arc<ContextInner>,
    pub(crate) needs: Needs,
}

impl<M: Source> SendOp for Shared<M> {
    fn local(&self) -> Local<'_> {
        self.operand.local()
    }

    fn hold(&self) -> Option<Result<Held, RegisterError>> {
        Some(self.ctx.registrations.hold(self.needs, Arc::clone(&self.operand) as _))
    }

    fn end(self: Box<Self>, result: Result<(), TransferError>) {
        let Self { operand, slot, .. } = *self;
        // `Sending::is_held` was asked: the registration, which shared it, is gone.
        let operand = Arc::into_inner(operand).unwrap_or_else(|| unreachable!("an operand of two owners"));
        slot.end(result, operand);
    }
}

impl<M> fmt::Debug for Shared<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Shared")
    }
}

impl<M: Destination> ReceiveOp for Of<M> {
    fn local_mut(&mut self) -> LocalMut<'_> {
        self.operand.local_mut()
    }

    fn end(self: Box<Self>, result: Result<(), TransferError>) {
        let Self { operand, slot } = *self;
        slot.end(result, operand);
    }
}

impl<M> fmt::Debug for Of<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Of")
    }
}

impl fmt::Debug for Waits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Waits")
    }
}
