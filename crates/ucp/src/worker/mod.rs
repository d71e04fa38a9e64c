//! Workers: where endpoints make progress.

mod connect;
mod core;
#[cfg(feature = "tokio")]
mod tokio;
mod wait;

use std::cell::{Cell, RefCell};
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::Duration;

use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use ucs::Status;
use ucs::mem::MemError;
use ucs::sync::{Ordering, fence};
use uct::api::{ComponentId, Gone, Iface, IfaceError, IfaceFlags, LinearCost, Md, MdFlags};
use uct::registrations::Needs;

use self::core::{Core, Event, Inbox};
use self::wait::{BELL, Sleeper};
use crate::am::{AmMessage, Handler};
use crate::config::CONNECT_TIMEOUT;
use crate::context::ContextInner;
use crate::ep::fetch::Reach;
use crate::ep::op::Waits;
use crate::ep::state::Ep;
use crate::ep::{EpError, EpInfo, LaneInfo, LaneUse, WorkerError};
use crate::proto::{self, Data, Operand, TYPICAL};
use crate::request::{Request, Slot};
use crate::wire::am::Kind;
use crate::{Context, Features};

pub use self::connect::WorkerAddress;
pub use self::wait::{Signaler, WaitError};

/// Rounds of looking for events that one call of [`Worker::progress`] makes at most.
const ROUNDS: usize = 4;

/// What is known of an interface.
struct Lane {
    component: ComponentId,
    /// Its transport.
    name: &'static str,
    /// What a message costs.
    cost: LinearCost,
    max_am: usize,
    /// By what data is registered that its device takes from where it lies; `None`: it does not.
    gather: Option<Needs>,
}

/// The memory domain by which the memory of peers is read.
struct Reader {
    md: Arc<dyn Md>,
    /// Its transport.
    name: &'static str,
    /// What reading costs.
    cost: LinearCost,
}

pub(crate) struct WorkerInner {
    this: Weak<Self>,
    pub(crate) ctx: Arc<ContextInner>,
    lanes: Vec<Lane>,
    /// `None`: no transport that is allowed can.
    reader: Option<Reader>,
    /// Borrowed while messages are sent or looked for, never while the user's code runs. Empty once the worker is dropped.
    pub(crate) ifaces: RefCell<Vec<Box<dyn Iface>>>,
    pub(crate) core: RefCell<Core>,
    handlers: RefCell<Vec<Option<Rc<RefCell<Handler>>>>>,
    /// Progress is being made: a handler may be running.
    in_progress: Cell<bool>,
    /// Somebody may be waiting for the descriptor: it was armed, and no progress has been made since.
    is_armed: Cell<bool>,
    sleeper: Sleeper,
    epoll: OwnedFd,
    connect_timeout: Duration,
}

/// Where endpoints make progress (`ucp_worker_h`): one thread's, `!Send`.
///
/// Nothing happens behind its back: messages are taken, handlers run and operations go on in [`Worker::progress`], and in the calls that
/// make progress for you: [`Worker::wait`] and [`Worker::block_on`]. Dropping it ends all its endpoints; their operations fail with
/// [`EpError::Closed`].
#[doc(alias = "ucp_worker_h")]
pub struct Worker {
    inner: Rc<WorkerInner>,
}

impl Context {
    /// Makes a worker, with an interface of each transport that has one.
    ///
    /// # Errors
    /// [`WorkerError`].
    #[doc(alias = "ucp_worker_create")]
    pub fn worker(&self) -> Result<Worker, WorkerError> {
        if self.inner.is_forked() {
            return Err(WorkerError::Forked);
        }
        let mut results = self.inner.left_out.clone();
        let (mut ifaces, mut lanes) = (Vec::new(), Vec::new());
        for open in &self.inner.mds {
            let component = open.md.attr().component;
            // An address has one entry of each component: of several devices the first that messages go by.
            if lanes.iter().any(|lane: &Lane| lane.component == component) {
                continue;
            }
            match open.md.open_iface() {
                Ok(Some(iface)) => {
                    let (attr, needs) = (iface.attr(), self.inner.registrations.of(&open.md));
                    lanes.push(Lane {
                        component,
                        name: open.component.name(),
                        cost: attr.am_cost,
                        max_am: attr.max_am,
                        gather: needs.filter(|_| attr.flags.contains(IfaceFlags::GATHER)),
                    });
                    ifaces.push(iface);
                }
                Ok(None) => results.push(component, Err("it moves memory, and sends no messages".to_owned())),
                Err(error @ IfaceError::Missing { .. }) => results.push(component, Err(error.to_string())),
                Err(error) => return Err(WorkerError::Iface { component, error }),
            }
        }
        if ifaces.is_empty() {
            return Err(WorkerError::NoTransports { results });
        }
        let sys = |call| move |errno| WorkerError::Mem(MemError::of(call, errno, 0));
        let sleeper = Sleeper::new()?;
        let epoll = epoll::create(CreateFlags::CLOEXEC).map_err(sys("epoll_create1"))?;
        let fds = ifaces.iter().filter_map(|iface| iface.event_fd()).map(|fd| (fd, 0));
        for (fd, number) in fds.chain([(sleeper.as_fd(), BELL)]) {
            epoll::add(&epoll, fd, EventData::new_u64(number), EventFlags::IN).map_err(sys("epoll_ctl"))?;
        }
        let core = RefCell::new(Core::new(ifaces.len()));
        let inner = Rc::new_cyclic(|this| WorkerInner {
            this: Weak::clone(this),
            connect_timeout: self.config().get(&CONNECT_TIMEOUT),
            ctx: Arc::clone(&self.inner),
            lanes,
            reader: Reader::of(&self.inner),
            ifaces: RefCell::new(ifaces),
            core,
            handlers: RefCell::default(),
            in_progress: Cell::new(false),
            is_armed: Cell::new(false),
            sleeper,
            epoll,
        });
        Ok(Worker { inner })
    }
}

impl Worker {
    /// Has `handler` called with each message that is sent to number `id`, in [`Worker::progress`]. It may post operations, and keep
    /// what it was given; it must not wait. A message to a number without a handler is dropped, a rendezvous rejected.
    ///
    /// It is kept until the worker is dropped, or another one takes its place: what it holds lives as long. One that holds the worker
    /// itself, by an `Rc`, keeps it for ever; a `Weak` does not.
    ///
    /// # Errors
    /// [`WorkerError::FeatureMissing`].
    #[doc(alias = "ucp_worker_set_am_recv_handler")]
    pub fn am_handler(&self, id: u16, handler: impl FnMut(AmMessage) + 'static) -> Result<(), WorkerError> {
        if !self.inner.ctx.has(Features::AM) {
            return Err(WorkerError::FeatureMissing("AM"));
        }
        let mut handlers = self.inner.handlers.borrow_mut();
        let index = usize::from(id);
        if handlers.len() <= index {
            handlers.resize_with(index + 1, || None);
        }
        let before = handlers[index].replace(Rc::new(RefCell::new(Box::new(handler))));
        drop(handlers);
        drop(before); // the user's code
        Ok(())
    }

    /// Orders what was posted before it ahead of what is posted after it, on each of its endpoints, without waiting for it: puts, gets
    /// and atomics.
    #[doc(alias = "ucp_worker_fence")]
    pub fn fence(&self) {
        fence(Ordering::SeqCst);
    }

    /// Ends when all that was posted on its endpoints before has: as [`Endpoint::flush`](crate::Endpoint::flush) on each of them.
    ///
    /// # Errors
    /// As the request's: that of the first endpoint that fails meanwhile. Those that have failed before are passed over.
    #[doc(alias = "ucp_worker_flush_nbx")]
    pub fn flush(&self) -> Request<()> {
        if self.inner.ctx.is_forked() {
            return Request::failed(EpError::Forked, ());
        }
        let mut core = self.inner.core.borrow_mut();
        let waits_for = |ep: &&Rc<Ep>| {
            let state = ep.state.borrow();
            state.error.is_none() && !state.is_drained()
        };
        let eps: Vec<Rc<Ep>> = core.eps().filter(waits_for).map(Rc::clone).collect();
        if eps.is_empty() {
            fence(Ordering::SeqCst);
            return Request::ended(Ok(()));
        }
        let slot = Slot::new();
        let wait = Waits::of(eps.len(), &slot);
        for ep in &eps {
            ep.state.borrow_mut().push_wait(wait.clone());
            core.set_busy(ep);
        }
        drop(core);
        self.inner.wake();
        Request::running(&slot)
    }

    /// Takes what has come, runs handlers and callbacks, sends what waits. Answers how much has happened; 0: nothing.
    ///
    /// Makes no system call as long as nobody sleeps. Within a handler it does nothing.
    #[doc(alias = "ucp_worker_progress")]
    pub fn progress(&self) -> usize {
        self.inner.progress()
    }
}

impl WorkerInner {
    pub(crate) fn check_fork(&self) -> Result<(), WorkerError> {
        if self.ctx.is_forked() { Err(WorkerError::Forked) } else { Ok(()) }
    }

    /// Wakes who waits for the descriptor: there is something to do that no peer tells of.
    #[inline]
    pub(crate) fn wake(&self) {
        if self.is_armed.replace(false) {
            self.sleeper.ring();
        }
    }

    pub(crate) fn transport(&self, ep: &Ep) -> &'static str {
        self.lanes[ep.iface].name
    }

    pub(crate) fn info(&self, ep: &Ep) -> EpInfo {
        let lane = &self.lanes[ep.iface];
        let info = |of, transport, from, LinearCost { base, per_byte }| LaneInfo {
            of,
            transport,
            from,
            cost_base: base,
            cost_per_byte: per_byte,
        };
        let mut lanes = vec![info(LaneUse::Messages, lane.name, 0, lane.cost)];
        if lane.gather.is_some()
            && !self.ctx.is_forked()
            && let Some(from) = proto::registered_from(self.ctx.zcopy_from)
        {
            lanes.push(info(LaneUse::Gathered, lane.name, from, lane.cost));
        }
        lanes.extend(self.reader.as_ref().and_then(|reader| {
            let from = proto::read_from(lane.cost, reader.cost)?;
            self.is_read(ep, u64::MAX).then(|| info(LaneUse::Data, reader.name, from, reader.cost))
        }));
        EpInfo { transport: lane.name, max_eager: lane.max_am, lanes }
    }

    /// By what data of so many bytes is registered for an endpoint's device, which takes it from where it lies; `None`: it is copied.
    pub(crate) fn gather(&self, ep: &Ep, len: usize, imported: bool) -> Option<Needs> {
        let needs = self.lanes[ep.iface].gather?;
        (proto::operand(len, imported, self.ctx.zcopy_from) == Operand::Registered).then_some(needs)
    }

    #[inline]
    pub(crate) fn max_am(&self, ep: &Ep) -> usize {
        self.lanes[ep.iface].max_am
    }

    /// Whether the memory of peers may be read at all.
    pub(crate) fn reads(&self) -> bool {
        self.reader.is_some()
    }

    /// Whether so many bytes that a peer has announced are read where it has them: they can be, and it costs less.
    pub(crate) fn is_read(&self, ep: &Ep, len: u64) -> bool {
        // A fork's child has not the memory that both sides share.
        let Some(reader) = self.reader.as_ref().filter(|_| !self.ctx.is_forked()) else { return false };
        if proto::data(len, self.lanes[ep.iface].cost, Some(reader.cost)) == Data::Messages {
            return false;
        }
        let mut state = ep.state.borrow_mut();
        if let Reach::Untried = state.reach {
            let channel = self.ifaces.borrow_mut().get_mut(ep.iface).and_then(|iface| iface.channel(ep.id));
            // None yet: a peer that has announced something has one.
            let Some(channel) = channel else { return false };
            state.reach = reader.md.peer_memory(channel).map_or(Reach::Never, Reach::By);
        }
        matches!(state.reach, Reach::By(_))
    }

    fn progress(&self) -> usize {
        if self.ctx.is_forked() || self.in_progress.replace(true) {
            return 0;
        }
        let _guard = Leaves(&self.in_progress);
        self.is_armed.set(false);
        let mut all = 0;
        for _ in 0..ROUNDS {
            let found = self.look();
            all += found + self.tell();
            if found == 0 {
                break;
            }
        }
        all
    }

    /// Looks at all interfaces; sends what waits.
    #[inline]
    fn look(&self) -> usize {
        let mut ifaces = self.ifaces.borrow_mut();
        let mut core = self.core.borrow_mut();
        let mut found = 0;
        for (index, iface) in ifaces.iter_mut().enumerate() {
            found += iface.progress(&mut Inbox { core: &mut core, iface: index });
        }
        core.end_let_go();
        if !core.busy.is_empty() {
            found += usize::from(core.fetch());
            core.pump(&mut ifaces);
        }
        found
    }

    /// Tells what was found, with nothing borrowed: what has ended first. One at a time: where the user's code panics, the rest is told
    /// by the next call.
    #[inline]
    fn tell(&self) -> usize {
        let mut told = 0;
        loop {
            let mut core = self.core.borrow_mut();
            if let Some((op, result)) = core.done.pop_front() {
                drop(core);
                op.end(result);
            } else if let Some(ep) = core.closing.pop() {
                drop(core);
                self.end(&ep);
            } else {
                let event = core.events.pop_front();
                drop(core);
                match event {
                    Some(Event::Message(ep, kind, id, bytes, len)) => {
                        self.deliver(&ep, (kind, id), bytes, len)
                    }
                    Some(Event::Gone(ep, why)) => self.fail(&ep, why.into()),
                    None => return told,
                }
            }
            told += 1;
        }
    }

    #[inline]
    fn deliver(&self, ep: &Rc<Ep>, (kind, id): (Kind, u16), bytes: Vec<u8>, len: usize) {
        let Some(this) = self.this.upgrade() else { return };
        if matches!(ep.state.borrow().error, Some(EpError::Peer(_))) {
            return self.core.borrow_mut().give_back(bytes); // the user has been told that it is over
        }
        let Ok(mut message) = AmMessage::new(this, Rc::clone(ep), kind, bytes, len) else {
            return self.fail(ep, EpError::Peer(Gone::Corrupt));
        };
        let handler = self.handlers.borrow().get(usize::from(id)).and_then(Option::clone);
        match handler {
            Some(handler) => (handler.borrow_mut())(message),
            None => {
                tracing::debug!(id, "a message to a number that has no handler");
                message.refuse(Status::Rejected);
            }
        }
    }

    /// An endpoint is of no more use: ends all that it has to do, and tells the user, once.
    fn fail(&self, ep: &Rc<Ep>, error: EpError) {
        let on_error = {
            let mut core = self.core.borrow_mut();
            let mut state = ep.state.borrow_mut();
            if state.error.is_some() {
                return;
            }
            core.fail(&mut state, error);
            state.on_error.take()
        };
        tracing::debug!(%error, "an endpoint is of no more use");
        // At once, whoever has it: nothing comes of it any more, and a peer that misbehaves might go on.
        self.disconnect(ep);
        if let Some(on_error) = on_error {
            on_error(error);
        }
    }

    /// Closes an endpoint at once.
    pub(crate) fn end(&self, ep: &Rc<Ep>) {
        let on_error = {
            let mut core = self.core.borrow_mut();
            let mut state = ep.state.borrow_mut();
            core.fail(&mut state, EpError::Closed);
            state.on_error.take()
        };
        // Before the user's code, which may make progress: operands are given back then, and the peer may be reading them.
        self.disconnect(ep);
        self.wake();
        drop(on_error);
    }

    /// Ends the interface's endpoint.
    pub(crate) fn disconnect(&self, ep: &Ep) {
        if let Some(iface) = self.ifaces.borrow_mut().get_mut(ep.iface) {
            iface.disconnect(ep.id);
        }
        let mut core = self.core.borrow_mut();
        core.remove(ep);
        let has_news = core.end_let_go();
        drop(core);
        if has_news {
            self.wake(); // somebody else's operation may be among them
        }
    }
}

impl Reader {
    /// The cheapest one.
    fn of(ctx: &ContextInner) -> Option<Self> {
        let mut mds: Vec<_> =
            ctx.mds.iter().filter(|open| open.md.attr().flags.contains(MdFlags::PEER_MEMORY)).collect();
        proto::rank(&mut mds, TYPICAL, |open| open.md.attr().access_cost);
        let open = mds.first()?;
        let (name, cost) = (open.component.name(), open.md.attr().access_cost);
        Some(Self { md: Arc::clone(&open.md), name, cost })
    }
}

/// No progress is being made any more, however it has ended.
struct Leaves<'a>(&'a Cell<bool>);

impl Drop for Leaves<'_> {
    fn drop(&mut self) {
        self.0.set(false);
    }
}

impl AsFd for Worker {
    /// One descriptor for all its events: see [`Worker::arm`].
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inner.epoll.as_fd()
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let mut core = self.inner.core.borrow_mut();
        let eps: Vec<Rc<Ep>> = core.eps().map(Rc::clone).collect();
        let mut callbacks = Vec::new();
        for ep in eps {
            let mut state = ep.state.borrow_mut();
            core.fail(&mut state, EpError::Closed);
            callbacks.extend(state.on_error.take());
            core.remove(&ep);
        }
        let (events, busy) = (std::mem::take(&mut core.events), std::mem::take(&mut core.busy));
        drop(core);
        // Before operands are given back: peers may be reading them.
        drop(std::mem::take(&mut *self.inner.ifaces.borrow_mut()));
        self.inner.core.borrow_mut().end_let_go();
        // These may hold endpoints, which hold the worker.
        let handlers = std::mem::take(&mut *self.inner.handlers.borrow_mut());
        self.inner.tell();
        drop((handlers, callbacks, events, busy));
    }
}

impl fmt::Debug for WorkerInner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self.lanes.iter().map(|lane| lane.name).collect();
        f.debug_struct("Worker").field("transports", &names).finish_non_exhaustive()
    }
}

impl fmt::Debug for Worker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}
