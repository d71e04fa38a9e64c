//! Operations on their way.

use std::cell::RefCell;
use std::fmt;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use crate::mem::{OpError, TransferError};

/// An operation: a future of the operand, which comes back when the operation has ended, also when it has failed.
///
/// It goes on whenever its worker's `progress` runs, and wakes who awaits it then. Dropping it detaches the operation, which completes
/// all the same; its operand is dropped then. `!Send`, as its worker.
#[must_use = "dropping it only detaches the operation: whether it succeeds is not known then"]
#[doc(alias = "ucs_status_ptr_t")]
#[doc(alias = "ucp_request_free")]
pub struct Request<M> {
    state: State<M>,
}

enum State<M> {
    /// It has ended before its call returned.
    Ended(Option<Result<M, OpError<M>>>),
    Running(Rc<Slot<M>>),
}

/// Where an operation leaves its result.
pub(crate) struct Slot<M> {
    result: RefCell<Option<Result<M, OpError<M>>>>,
    waker: RefCell<Option<Waker>>,
}

impl<M> Slot<M> {
    pub(crate) fn new() -> Rc<Self> {
        Rc::new(Self { result: RefCell::new(None), waker: RefCell::new(None) })
    }

    /// Ends the operation. Whoever calls this holds nothing borrowed: waking runs the user's code.
    pub(crate) fn end(&self, result: Result<(), TransferError>, operand: M) {
        *self.result.borrow_mut() = Some(match result {
            Ok(()) => Ok(operand),
            Err(error) => Err(OpError { error, operand }),
        });
        let waker = self.waker.borrow_mut().take();
        waker.into_iter().for_each(Waker::wake);
    }
}

impl<M> Request<M> {
    pub(crate) fn ended(result: Result<M, OpError<M>>) -> Self {
        Self { state: State::Ended(Some(result)) }
    }

    pub(crate) fn failed(error: impl Into<TransferError>, operand: M) -> Self {
        Self::ended(Err(OpError { error: error.into(), operand }))
    }

    pub(crate) fn running(slot: &Rc<Slot<M>>) -> Self {
        Self { state: State::Running(Rc::clone(slot)) }
    }

    /// Whether it has ended.
    #[must_use]
    #[inline]
    #[doc(alias = "ucp_request_check_status")]
    pub fn is_ended(&self) -> bool {
        match &self.state {
            State::Ended(_) => true,
            State::Running(slot) => slot.result.borrow().is_some(),
        }
    }

    /// What has come of it.
    ///
    /// # Errors
    /// Itself: it has not ended, or its result was taken by polling it.
    #[allow(clippy::missing_panics_doc)]
    #[inline]
    pub fn into_result(mut self) -> Result<Result<M, OpError<M>>, Self> {
        self.take().ok_or(self)
    }

    #[inline]
    fn take(&mut self) -> Option<Result<M, OpError<M>>> {
        let slot = match &mut self.state {
            State::Ended(result) => return result.take(),
            State::Running(slot) => slot,
        };
        let result = slot.result.borrow_mut().take();
        if result.is_some() {
            self.state = State::Ended(None); // it stays ended
        }
        result
    }
}

// The operand is not pinned: it is only moved out.
impl<M> Unpin for Request<M> {}

impl<M> Future for Request<M> {
    type Output = Result<M, OpError<M>>;

    /// After it was ready once, it stays pending for ever.
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if let Some(result) = self.take() {
            return Poll::Ready(result);
        }
        if let State::Running(slot) = &self.state {
            let is_same = slot.waker.borrow().as_ref().is_some_and(|waker| waker.will_wake(cx.waker()));
            if !is_same {
                let new = cx.waker().clone();
                let before = slot.waker.replace(Some(new));
                drop(before); // the user's code, as the clone
            }
        }
        Poll::Pending
    }
}

impl<M> fmt::Debug for Request<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Request").field("is_ended", &self.is_ended()).finish_non_exhaustive()
    }
}
