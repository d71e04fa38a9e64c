//! Waiting: spin, then yield, then sleep.

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use rustix::event::Timespec;
use rustix::event::epoll::{self, Event};
use rustix::io::Errno;
use ucs::Status;
use ucs::fork::{self, Generation};
use ucs::sync::{AtomicBool, Ordering};
use uct::doorbell::Doorbell;

use super::{Worker, WorkerError, WorkerInner};
use crate::mem::OpError;
use crate::request::Request;

/// How often it is looked for events before the processor is given to others: some microseconds.
const SPINS: u32 = 256;
/// How often the processor is given to others before the thread sleeps.
const YIELDS: u32 = 8;
/// Longest sleep asked of the kernel at once: any Duration is a limit, not every one is a timespec.
const LONG: Duration = Duration::from_secs(3600);
/// The number of the worker's bell in its epoll set; interfaces have 0.
pub(super) const BELL: u64 = 1;

/// A wait did not end well.
#[non_exhaustive]
pub enum WaitError<M> {
    /// It took longer than allowed. The operation goes on.
    TimedOut(Request<M>),
    /// The operation has failed.
    Failed(OpError<M>),
    /// The wait itself failed. The operation goes on.
    Worker(WorkerError, Request<M>),
}

impl<M> WaitError<M> {
    /// The one-byte status.
    pub fn status(&self) -> Status {
        match self {
            Self::TimedOut(_) => Status::TimedOut,
            Self::Failed(error) => error.status(),
            Self::Worker(error, _) => error.status(),
        }
    }

    /// What to do about it.
    #[must_use]
    pub fn remedy(&self) -> String {
        match self {
            Self::TimedOut(_) => "wait longer, or see whether the peer makes progress".to_owned(),
            Self::Failed(error) => error.remedy().to_owned(),
            Self::Worker(error, _) => error.remedy(),
        }
    }
}

impl<M> fmt::Display for WaitError<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TimedOut(_) => f.write_str("the operation has not ended in time"),
            Self::Failed(error) => error.fmt(f),
            Self::Worker(error, _) => error.fmt(f),
        }
    }
}

impl<M> fmt::Debug for WaitError<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "WaitError({self})")
    }
}

impl<M> std::error::Error for WaitError<M> {}

impl<M> From<WaitError<M>> for crate::Error {
    fn from(error: WaitError<M>) -> Self {
        match error {
            WaitError::Failed(error) => error.into(),
            WaitError::Worker(error, _) => error.into(),
            WaitError::TimedOut(_) => Self::TimedOut,
        }
    }
}

/// Wakes a worker that sleeps, from any thread (`ucp_worker_signal`). Send + Sync.
#[derive(Clone, Debug)]
#[doc(alias = "ucp_worker_signal")]
pub struct Signaler(Arc<Bell>);

impl Signaler {
    /// Has the worker's [`Worker::wait_any`] end, or its next one.
    pub fn signal(&self) {
        self.0.signal();
    }
}

/// What a sleeping worker is woken by, beside its peers.
#[derive(Debug)]
struct Bell {
    bell: Doorbell,
    /// Somebody wants it to look around.
    rung: AtomicBool,
    /// A fork's child has the same descriptor, and must not wake its parent's worker.
    generation: Generation,
}

impl Bell {
    /// Sets `word`, and wakes who sleeps: once is enough, until it was looked at.
    fn ring(&self, word: &AtomicBool) {
        if self.generation.is_current() && !word.swap(true, Ordering::AcqRel) {
            self.bell.ring();
        }
    }

    fn signal(&self) {
        self.ring(&self.rung);
    }
}

/// Wakes one future: what others want of the worker, one that it awaits within another among them, is none of its business.
struct Woken {
    bell: Arc<Bell>,
    word: AtomicBool,
}

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.bell.ring(&self.word);
    }
}

/// A worker's own means to sleep. The descriptor may be readable for nothing: words are set first, and looked at after it was cleared.
#[derive(Debug)]
pub(super) struct Sleeper {
    bell: Arc<Bell>,
}

impl Sleeper {
    pub(super) fn new() -> Result<Self, WorkerError> {
        let (bell, rung) = (Doorbell::new()?, AtomicBool::new(false));
        Ok(Self { bell: Arc::new(Bell { bell, rung, generation: fork::generation() }) })
    }

    pub(super) fn as_fd(&self) -> BorrowedFd<'_> {
        self.bell.bell.as_fd()
    }

    fn is_rung(&self) -> bool {
        self.bell.rung.load(Ordering::Acquire)
    }

    /// Whether it was signalled since this was asked last.
    fn take(&self) -> bool {
        self.is_rung() && self.bell.rung.swap(false, Ordering::AcqRel)
    }

    /// Wakes who waits for the descriptor, and nobody who looks for a signal.
    pub(super) fn ring(&self) {
        self.bell.bell.ring();
    }

    /// Takes back what woke it.
    fn clear(&self) {
        self.bell.bell.clear();
    }
}

impl Worker {
    /// Makes progress until `request` has ended, at most for `limit`, and answers its result.
    ///
    /// # Errors
    /// [`WaitError`]: it has failed, or not ended in time; the request comes back then, and goes on.
    pub fn wait<M>(&self, mut request: Request<M>, limit: Duration) -> Result<M, WaitError<M>> {
        let end = Instant::now().checked_add(limit);
        let mut pace = Pace::default();
        loop {
            request = match request.into_result() {
                Ok(result) => return result.map_err(WaitError::Failed),
                Err(request) => request,
            };
            let left = end.map(|end| end.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                return Err(WaitError::TimedOut(request));
            }
            // Signals are for who waits for anything: they stay.
            if let Err(error) = self.inner.step(&mut pace, left, || false) {
                return Err(WaitError::Worker(error, request));
            }
        }
    }

    /// Makes progress until `future` is ready. It may await operations of this worker, and whatever else wakes it from any thread. As
    /// long as it is not ready, this does not return: bound it by what it awaits.
    ///
    /// # Errors
    /// [`WorkerError`]: waiting is refused by the system, or a handler waits.
    pub fn block_on<F: Future>(&self, future: F) -> Result<F::Output, WorkerError> {
        let mut future = pin!(future);
        let woken =
            Arc::new(Woken { bell: Arc::clone(&self.inner.sleeper.bell), word: AtomicBool::new(false) });
        let waker = Waker::from(Arc::clone(&woken));
        let is_woken = || woken.word.load(Ordering::Acquire);
        loop {
            woken.word.swap(false, Ordering::AcqRel);
            if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
                return Ok(output);
            }
            let mut pace = Pace::default();
            // Once at least: a future that wakes itself may wait for what comes of it.
            self.inner.step(&mut pace, None, is_woken)?;
            while !is_woken() {
                self.inner.step(&mut pace, None, is_woken)?;
            }
        }
    }

    /// Waits until something happens or [`Signaler::signal`] is called, at most for `limit`, and makes progress. Answers whether.
    ///
    /// # Errors
    /// [`WorkerError`]: waiting is refused by the system, or a handler waits.
    #[doc(alias = "ucp_worker_wait")]
    pub fn wait_any(&self, limit: Duration) -> Result<bool, WorkerError> {
        let end = Instant::now().checked_add(limit);
        let mut pace = Pace::default();
        loop {
            let left = end.map(|end| end.saturating_duration_since(Instant::now()));
            let happened = self.inner.step(&mut pace, left, || self.inner.sleeper.is_rung())?;
            if self.inner.sleeper.take() || happened {
                return Ok(true);
            }
            if left.is_some_and(|left| left.is_zero()) {
                return Ok(false);
            }
        }
    }

    /// Has its descriptor ([`AsFd`]) be readable when there is something to do. `false`: there is already, or it was signalled: look
    /// around and make progress instead of waiting. The next [`Worker::progress`] ends it.
    #[doc(alias = "ucp_worker_arm")]
    #[doc(alias = "ucp_worker_get_efd")]
    #[must_use = "false: do not wait"]
    pub fn arm(&self) -> bool {
        if self.inner.ctx.is_forked() {
            return false; // the descriptors are the parent's
        }
        self.inner.sleeper.clear();
        !self.inner.sleeper.take() && self.inner.arm()
    }

    /// Wakes it from other threads.
    #[must_use]
    pub fn signaler(&self) -> Signaler {
        Signaler(Arc::clone(&self.inner.sleeper.bell))
    }
}

/// For how long nothing has happened.
#[derive(Default)]
struct Pace {
    idle: u32,
}

impl WorkerInner {
    /// One step of waiting: answers whether something has happened. It does not sleep once `is_woken`.
    fn step(
        &self,
        pace: &mut Pace,
        limit: Option<Duration>,
        is_woken: impl Fn() -> bool,
    ) -> Result<bool, WorkerError> {
        self.check_fork()?;
        if self.in_progress.get() {
            return Err(WorkerError::InHandler);
        }
        if self.progress() > 0 {
            pace.idle = 0;
            return Ok(true);
        }
        pace.idle = pace.idle.saturating_add(1);
        if pace.idle < SPINS {
            std::hint::spin_loop();
        } else if pace.idle < SPINS + YIELDS {
            std::thread::yield_now();
        } else {
            self.sleep(limit, is_woken)?;
        }
        Ok(false)
    }

    fn arm(&self) -> bool {
        // All of them: progress, which ends it, looks at each.
        let mut idle = true;
        self.ifaces.borrow_mut().iter_mut().for_each(|iface| idle &= iface.arm());
        let core = self.core.borrow();
        let is_armed = idle && !core.has_news() && !core.has_fetches();
        self.is_armed.set(is_armed);
        is_armed
    }

    fn sleep(&self, limit: Option<Duration>, is_woken: impl Fn() -> bool) -> Result<(), WorkerError> {
        if is_woken() || !self.arm() {
            return Ok(());
        }
        let timeout = limit.map(|limit| Timespec::try_from(limit.min(LONG)).unwrap_or_default());
        let mut buffer = [const { std::mem::MaybeUninit::<Event>::uninit() }; 1];
        match epoll::wait(&self.epoll, &mut buffer, timeout.as_ref()) {
            Ok((events, _)) => {
                // Rung for a word that somebody else looks at, too: it would be readable for ever.
                if events.iter().any(|event| event.data.u64() == BELL) {
                    self.sleeper.clear();
                }
                Ok(())
            }
            Err(Errno::INTR) => Ok(()),
            Err(errno) => Err(WorkerError::Wait(errno)),
        }
    }
}
