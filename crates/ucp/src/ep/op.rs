//! What the operations of an endpoint are made of, whatever their operands.

use std::cell::Cell;
use std::fmt;
use std::rc::Rc;
use std::sync::Arc;

use uct::memory::{Destination, Local, LocalMut, Source};
use uct::registrations::{Held, Needs, RegisterError, Registrations};

use crate::mem::TransferError;
use crate::request::Slot;

/// An operation that sends.
pub(crate) trait SendOp: fmt::Debug {
    fn local(&self) -> Local<'_>;
    /// The operand, registered, where an interface may keep it beside the operation.
    fn hold(&self, registrations: &Registrations, needs: Needs) -> Option<Result<Held, RegisterError>> {
        let _ = (registrations, needs);
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

/// An operation on an operand that an interface may keep, too, for its device: all have let go of it when it ends.
pub(crate) struct Shared<M> {
    pub(crate) operand: Arc<M>,
    pub(crate) slot: Rc<Slot<M>>,
}

impl<M: Source> SendOp for Shared<M> {
    fn local(&self) -> Local<'_> {
        self.operand.local()
    }

    fn hold(&self, registrations: &Registrations, needs: Needs) -> Option<Result<Held, RegisterError>> {
        Some(registrations.hold(needs, Arc::clone(&self.operand) as _))
    }

    fn end(self: Box<Self>, result: Result<(), TransferError>) {
        let Self { operand, slot } = *self;
        // `Outlet` has seen that, or the interface has ended the endpoint.
        let operand = Arc::into_inner(operand).unwrap_or_else(|| unreachable!("an operand is still held"));
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
