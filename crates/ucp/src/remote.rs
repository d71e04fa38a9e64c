//! A worker on a thread of its own, for programs whose futures move between threads.

use std::any::Any;
use std::cell::RefCell;
use std::collections::HashMap;
use std::convert::Infallible;
use std::fmt;
use std::marker::PhantomData;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Poll, Waker};

use futures_channel::{mpsc, oneshot};
use futures_util::stream::FuturesUnordered;
use futures_util::{SinkExt as _, Stream as _, StreamExt as _};
use parking_lot::Mutex;
use ucs::Status;
use ucs::fork::{self, Generation};
use ucs::sync::{AtomicU64, Ordering};

use crate::{Context, Worker, WorkerError};

/// Jobs that wait for the thread at most; who sends more of them waits.
const WAITING: usize = 256;
/// Jobs that run at once at most.
const RUNNING: usize = 1024;

/// What is done on the thread.
type Job = Box<dyn FnOnce(&Thread) -> Task + Send>;
type Task = Pin<Box<dyn Future<Output = ()>>>;

/// The thread has ended before the job has: the worker could not wait any more, or a job has panicked. Or this is a fork's child, which has
/// no such thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the worker's thread has ended")]
pub struct ThreadEnded;

impl ThreadEnded {
    /// The one-byte status.
    pub fn status(&self) -> Status {
        Status::Canceled
    }

    /// What to do about it.
    #[must_use]
    pub fn remedy(&self) -> &'static str {
        "see whether a job has panicked, and spawn another WorkerThread"
    }
}

/// Starts a thread with a worker. What belongs to a worker is `!Send`; what runs there is sent to it by a [`Remote`].
#[derive(Clone, Copy, Debug)]
pub struct WorkerThread;

impl WorkerThread {
    /// Starts the thread. It ends when all that was made of the [`Remote`] answered is gone: its clones, the [`Resident`]s, and the
    /// futures of jobs.
    ///
    /// # Errors
    /// [`WorkerError`]: the worker or the thread could not be made.
    pub fn spawn(ctx: &Context) -> Result<Remote, WorkerError> {
        let (jobs, queue) = mpsc::channel(WAITING);
        let (alive, end) = mpsc::channel(0);
        let (told, made) = std::sync::mpsc::sync_channel(1);
        let ctx = ctx.clone();
        let retired = Arc::new(Retired { list: Mutex::default(), generation: fork::generation() });
        let theirs = Arc::clone(&retired);
        let run = move || match ctx.worker() {
            Ok(worker) => {
                if told.send(Ok(())).is_ok() {
                    Thread { worker: Rc::new(worker), residents: Rc::default(), retired: theirs }
                        .run(queue, end);
                }
            }
            Err(error) => _ = told.send(Err(error)),
        };
        let thread = std::thread::Builder::new().name("rucx-worker".to_owned()).spawn(run);
        thread.map_err(|error| WorkerError::Thread(error.to_string()))?;
        made.recv().unwrap_or(Err(WorkerError::Thread("it has panicked".to_owned())))?;
        Ok(Remote { jobs, alive, retired })
    }
}

/// The thread's own.
struct Thread {
    worker: Rc<Worker>,
    residents: Rc<RefCell<HashMap<u64, Rc<dyn Any>>>>,
    retired: Arc<Retired>,
}

impl Thread {
    fn run(self, mut queue: mpsc::Receiver<Job>, mut end: mpsc::Receiver<Infallible>) {
        let mut tasks = FuturesUnordered::<Task>::new();
        let ended = self.worker.block_on(std::future::poll_fn(|cx| {
            self.retired.clear(&self.residents, cx.waker());
            loop {
                while let Poll::Ready(Some(())) = tasks.poll_next_unpin(cx) {}
                if tasks.len() >= RUNNING {
                    // The queue, which is not looked at now, would tell as well.
                    return Pin::new(&mut end).poll_next(cx).map(drop);
                }
                match Pin::new(&mut queue).poll_next(cx) {
                    Poll::Ready(Some(job)) => tasks.push(job(&self)),
                    Poll::Ready(None) => return Poll::Ready(()), // nobody waits for what still runs
                    Poll::Pending => return Poll::Pending,
                }
            }
        }));
        if let Err(error) = ended {
            tracing::error!(%error, "a worker's thread ends");
        }
        drop(tasks);
        let residents = std::mem::take(&mut *self.residents.borrow_mut());
        drop(residents); // the user's code
    }
}

/// Residents that nobody has any more.
struct Retired {
    list: Mutex<(Vec<u64>, Option<Waker>)>,
    /// A fork's child has no such thread, which may have held the lock.
    generation: Generation,
}

impl Retired {
    fn push(&self, number: u64) {
        if !self.generation.is_current() {
            return;
        }
        let waker = {
            let mut retired = self.list.lock();
            retired.0.push(number);
            retired.1.take()
        };
        waker.into_iter().for_each(Waker::wake);
    }

    fn clear(&self, residents: &RefCell<HashMap<u64, Rc<dyn Any>>>, waker: &Waker) {
        let numbers = {
            let mut retired = self.list.lock();
            retired.1 = Some(waker.clone());
            std::mem::take(&mut retired.0)
        };
        for number in numbers {
            let gone = residents.borrow_mut().remove(&number);
            drop(gone); // the user's code
        }
    }
}

/// A way to a worker that has a thread of its own. Send + Sync; clones are ways to the same one.
#[derive(Clone)]
pub struct Remote {
    jobs: mpsc::Sender<Job>,
    /// Its end tells that nobody waits for any job.
    alive: mpsc::Sender<Infallible>,
    retired: Arc<Retired>,
}

impl Remote {
    /// Runs `job` on the worker's thread: it makes a future there, which need not be `Send`. The future answered is `Send`, and of any
    /// runtime. Dropping it leaves the job running, as long as anything else holds the thread.
    ///
    /// A job that computes for long keeps the worker's other jobs waiting. At most 1024 run at once, and others wait for one of them to end:
    /// jobs that wait for later ones may wait for ever.
    ///
    /// # Errors
    /// [`ThreadEnded`].
    pub fn run<T, F, J>(&self, job: J) -> impl Future<Output = Result<T, ThreadEnded>> + Send + use<T, F, J>
    where
        T: Send + 'static,
        F: Future<Output = T> + 'static,
        J: FnOnce(Rc<Worker>) -> F + Send + 'static,
    {
        self.send(move |thread: &Thread| job(Rc::clone(&thread.worker)))
    }

    fn send<T, F, J>(&self, job: J) -> impl Future<Output = Result<T, ThreadEnded>> + Send + use<T, F, J>
    where
        T: Send + 'static,
        F: Future<Output = T> + 'static,
        J: FnOnce(&Thread) -> F + Send + 'static,
    {
        let (mut jobs, alive) = (self.jobs.clone(), self.alive.clone()); // held until the answer is there: so is the thread
        let generation = self.retired.generation;
        async move {
            if !generation.is_current() {
                return Err(ThreadEnded); // for a fork's child, which would wait for ever
            }
            let (answer, answered) = oneshot::channel();
            let job: Job = Box::new(move |thread| {
                let running = job(thread);
                Box::pin(async move {
                    // Nobody may be waiting for it any more.
                    let _ = answer.send(running.await);
                })
            });
            jobs.send(job).await.map_err(|_| ThreadEnded)?;
            let answer = answered.await.map_err(|_| ThreadEnded);
            drop((jobs, alive));
            answer
        }
    }

    /// Has `make` make something on the worker's thread that stays there, an [`Endpoint`](crate::Endpoint) or a
    /// [`RemoteRegion`](crate::RemoteRegion), say; answers a handle that can be sent.
    ///
    /// # Errors
    /// [`ThreadEnded`]; inside, the error of `make`.
    pub fn keep<T, E, M>(
        &self,
        make: M,
    ) -> impl Future<Output = Result<Result<Resident<T>, E>, ThreadEnded>> + Send + use<T, E, M>
    where
        T: 'static,
        E: Send + 'static,
        M: FnOnce(&Worker) -> Result<T, E> + Send + 'static,
    {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let held = Arc::new(Held { number, remote: self.clone() });
        let until_made = Arc::clone(&held);
        let kept = self.send(move |thread: &Thread| {
            let made = make(&thread.worker).map(|value| {
                let before = thread.residents.borrow_mut().insert(number, Rc::new(value));
                debug_assert!(before.is_none(), "numbers are not used again");
            });
            // Not before: where nobody awaits it any more, it has to be there to be dropped.
            drop(until_made);
            std::future::ready(made)
        });
        async move { Ok(kept.await?.map(|()| Resident { held, of: PhantomData })) }
    }
}

impl fmt::Debug for Remote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Remote").finish_non_exhaustive()
    }
}

/// Something that lives on a worker's thread. Send + Sync; clones are the same. When the last one is dropped, it is dropped there.
pub struct Resident<T> {
    held: Arc<Held>,
    of: PhantomData<fn() -> T>,
}

struct Held {
    number: u64,
    remote: Remote,
}

impl Drop for Held {
    fn drop(&mut self) {
        self.remote.retired.push(self.number);
    }
}

impl<T: 'static> Resident<T> {
    /// Runs `job` with it on its thread, as [`Remote::run`].
    ///
    /// # Errors
    /// [`ThreadEnded`].
    pub fn run<A, F, J>(
        &self,
        job: J,
    ) -> impl Future<Output = Result<A, ThreadEnded>> + Send + use<T, A, F, J>
    where
        A: Send + 'static,
        F: Future<Output = A> + 'static,
        J: FnOnce(Rc<T>) -> F + Send + 'static,
    {
        let held = Arc::clone(&self.held); // what it stands for is there until the answer is
        let until_run = Arc::clone(&held); // and until the job has it, whether anybody awaits that or not
        let run = self.held.remote.send(move |thread: &Thread| {
            let value = thread.residents.borrow().get(&until_run.number).map(Rc::clone);
            drop(until_run);
            let running = value.and_then(|value| value.downcast::<T>().ok()).map(job);
            async move {
                match running {
                    Some(running) => Some(running.await),
                    None => None,
                }
            }
        });
        async move {
            let answer = run.await?.ok_or(ThreadEnded);
            drop(held);
            answer
        }
    }
}

impl<T> Clone for Resident<T> {
    fn clone(&self) -> Self {
        Self { held: Arc::clone(&self.held), of: PhantomData }
    }
}

impl<T> fmt::Debug for Resident<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Resident").field("number", &self.held.number).finish_non_exhaustive()
    }
}
