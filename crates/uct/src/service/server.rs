//! The service thread: serves importers, watches exporters.

use std::collections::HashMap;
use std::fmt;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::event::{EventfdFlags, Timespec, eventfd};
use rustix::io::Errno;
use rustix::net::{Shutdown, SocketFlags, accept_with, shutdown};
use ucs::Status;
use ucs::fork::{self, Generation};
use ucs::mem::{MemError, Memfd};
use ucs::sync::{AtomicBool, AtomicU64, Ordering};
use ucs::time::Deadline;

use super::arrivals::{Arrivals, Door};
use super::conn::{Conn, Next};
use super::listener::{ListenError, Listener};
use super::net::{Net, NetListenError, NetListener, NetServer};
use super::peers::{Connected, Exporter, Grant, Peers};
use super::placing::{Placer, Placers};
use super::tended::{AllTended, Tended, Tending};
use super::watch::{Watch, Watches, Watching};
use super::wire::Introduction;
use crate::api::AttachError;
use crate::export::{Claim, ExportTable, PeerState, Token};
use crate::process::{Identity, Process};

/// Importers connected at once.
pub const MAX_CONNECTIONS: usize = 256;
/// Connections of one process at once: it cannot keep the others out.
pub const MAX_PER_PROCESS: usize = 32;
/// How long a connection may stay without having shown a token.
pub const PROOF_TIME: Duration = Duration::from_secs(1);
/// How often what is waiting for a condition without a descriptor is looked at.
const SWEEP: Duration = Duration::from_millis(100);

/// The service could not be started.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ServiceError {
    /// A descriptor or thread could not be had.
    #[error("the service of this context: {0}")]
    Mem(#[from] MemError),
    /// A thread could not be started.
    #[error("the service thread could not be started: {0}")]
    Thread(String),
    /// The socket in the directory that UCX_SERVICE_DIR names could not be made.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// There is no listening for peers of other machines at an address.
    #[error(transparent)]
    ListenNet(#[from] NetListenError),
    /// The context belongs to the parent process of a fork.
    #[error("this context belongs to the parent process: a fork's child must make its own")]
    Forked,
}

impl ServiceError {
    /// The one-byte status.
    pub fn status(&self) -> Status {
        match self {
            Self::Mem(error) => error.status(),
            Self::Thread(_) => Status::NoResource,
            Self::Listen(error) => error.status(),
            Self::ListenNet(error) => error.status(),
            Self::Forked => Status::Forked,
        }
    }

    /// What to do about it.
    #[must_use]
    pub fn remedy(&self) -> &'static str {
        match self {
            Self::Mem(error) => error.remedy(),
            Self::Thread(_) => {
                "raise the limit of processes with `ulimit -u`, or the pids limit of the cgroup"
            }
            Self::Listen(error) => error.remedy(),
            Self::ListenNet(error) => error.remedy(),
            Self::Forked => "create a new Context in the child",
        }
    }
}

/// The service of a context. Send + Sync; shared by `Arc`. Dropping the last reference ends its thread.
pub struct Service {
    name: [u8; NAME_LEN],
    exports: Arc<ExportTable>,
    generation: Generation,
    running: Mutex<Option<Running>>,
    /// Whether importers are served: set once, and asked at every pack.
    listening: AtomicBool,
    directory: Option<PathBuf>,
    peers: Peers,
    arrivals: Arc<Arrivals>,
    placers: Arc<Placers>,
    tended: Arc<AllTended>,
    pub(super) net: Net,
}

/// Bytes of a socket's name.
pub const NAME_LEN: usize = 37;

/// The name of the service socket of the context with this uuid: `rucx-` and the uuid in hexadecimal.
#[must_use]
pub fn name_of(uuid: &[u8; 16]) -> String {
    const DIGITS: [char; 16] =
        ['0', '1', '2', '3', '4', '5', '6', '7', '8', '9', 'a', 'b', 'c', 'd', 'e', 'f'];
    let digits = uuid.iter().flat_map(|byte| [byte >> 4, byte & 15]);
    "rucx-".chars().chain(digits.map(|digit| DIGITS[usize::from(digit)])).collect()
}

struct Running {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

/// What the thread and its context share.
struct Shared {
    stop: AtomicBool,
    wake: OwnedFd,
    watches: Arc<Watches>,
    tended: Arc<AllTended>,
    orders: Mutex<Vec<Order>>,
    /// The next connection's or watched exporter's number.
    next: Arc<AtomicU64>,
}

enum Order {
    Listen(Listener),
    ListenNet(NetListener),
    Sweep,
}

impl fmt::Debug for Service {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Service").finish_non_exhaustive()
    }
}

impl Service {
    /// A service for the exports of `exports`; its thread starts when it is first needed. With a `directory` it listens there, too,
    /// and looks there for exporters of other network namespaces.
    #[must_use]
    pub fn new(exports: Arc<ExportTable>, directory: Option<PathBuf>) -> Self {
        let mut name = [0; NAME_LEN];
        name.copy_from_slice(name_of(exports.uuid()).as_bytes());
        let peers = Peers::new(Identity::of_self(), directory.clone());
        let net = Net::new(*exports.uuid());
        Self {
            name,
            exports,
            generation: fork::generation(),
            running: Mutex::new(None),
            listening: AtomicBool::new(false),
            directory,
            peers,
            arrivals: Arc::default(),
            placers: Arc::default(),
            tended: Arc::default(),
            net,
        }
    }

    /// The name of its abstract socket.
    #[must_use]
    pub fn name(&self) -> &[u8; NAME_LEN] {
        &self.name
    }

    /// Whether it listens in a directory, too.
    #[must_use]
    pub fn is_in_directory(&self) -> bool {
        self.directory.is_some()
    }

    /// This process.
    #[must_use]
    pub fn me(&self) -> &Identity {
        self.peers.me()
    }

    /// Shows an exporter the token of one of its exports; answers its memory, if that is wanted, and the way to announce accesses.
    /// All imports from one exporter share a connection.
    ///
    /// # Errors
    /// [`AttachError`].
    pub fn reach(
        &self,
        exporter: Exporter,
        claim: &Claim,
        want_memory: bool,
        deadline: &Deadline,
    ) -> Result<Grant, AttachError> {
        self.peers.reach(self, exporter, claim, want_memory, deadline)
    }

    /// Lets other contexts' workers come to a worker of this one, with which each shares memory of `length` bytes: `most` connections at
    /// once, but no more than a quarter of `RLIMIT_NOFILE`, and no more than half of them of one process.
    ///
    /// # Errors
    /// [`ServiceError`].
    pub fn open_door(&self, length: usize, most: usize) -> Result<Door, ServiceError> {
        self.serve()?;
        Ok(self.arrivals.open(self.exports.token(), length, most)?)
    }

    /// Connects to a worker of another context, or of this one: shows its token, and gives `memory`, which both share from then on.
    ///
    /// # Errors
    /// [`AttachError`].
    pub fn connect(
        &self,
        exporter: &Exporter,
        (worker, token): (u32, Token),
        memory: &Memfd,
        deadline: &Deadline,
    ) -> Result<Connected, AttachError> {
        let asked = Introduction {
            sequence: 0,
            uuid: exporter.context_uuid,
            worker,
            token,
            from: *self.exports.uuid(),
            length: memory.len() as u64,
        };
        self.peers.introduce(exporter, asked, memory, deadline)
    }

    /// Has exports placed in importers' protection domains by `placer`, as long as it lives: [`super::placing`].
    pub fn place_by(&self, placer: Weak<dyn Placer>) {
        self.placers.add(placer);
    }

    /// Has a descriptor looked after by the thread, from now on or from when that is started: [`super::tended`].
    pub fn tend(&self, tended: Arc<dyn Tended>) -> Tending {
        self.tended.add(tended)
    }

    /// Sees to it that importers are served.
    ///
    /// # Errors
    /// [`ServiceError`].
    pub fn serve(&self) -> Result<(), ServiceError> {
        if self.listening.load(Ordering::Acquire) && self.generation.is_current() {
            return Ok(());
        }
        self.check_generation()?;
        let mut running = self.running.lock();
        let running = self.start(&mut running)?;
        if self.listening.load(Ordering::Acquire) {
            return Ok(()); // another thread was faster
        }
        // First in the directory: the abstract name would tell others which name to take there.
        let in_directory = self
            .directory
            .as_ref()
            .map(|directory| Listener::in_directory(directory, &name_of(self.exports.uuid())));
        let in_directory = in_directory.transpose()?;
        let by_name = Listener::by_name(&self.name)?;
        for listener in std::iter::once(by_name).chain(in_directory) {
            running.shared.order(Order::Listen(listener));
        }
        self.listening.store(true, Ordering::Release);
        Ok(())
    }

    /// Has an exporter watched as long as the value returned lives: when one of `fds` tells its end, `state` is told.
    ///
    /// # Errors
    /// [`ServiceError`].
    pub fn watch(&self, state: &Arc<PeerState>, fds: Vec<Watch>) -> Result<Watching, ServiceError> {
        self.check_generation()?;
        let mut running = self.running.lock();
        let shared = &self.start(&mut running)?.shared;
        let id = shared.next.fetch_add(1, Ordering::Relaxed);
        Ok(shared.watches.add(id, state, fds)?)
    }

    /// Has peers of other machines served at `listeners`.
    pub(super) fn serve_at(&self, listeners: Vec<NetListener>) -> Result<(), ServiceError> {
        let mut running = self.running.lock();
        let shared = &self.start(&mut running)?.shared;
        listeners.into_iter().for_each(|listener| shared.order(Order::ListenNet(listener)));
        Ok(())
    }

    /// Has kept memory looked at until it is drained.
    pub fn sweep(&self) {
        if self.check_generation().is_err() {
            return; // what is kept is the parent's
        }
        match self.start(&mut self.running.lock()) {
            Ok(running) => running.shared.order(Order::Sweep),
            Err(error) => tracing::warn!(%error, "kept memory is freed by the next revocation only"),
        }
    }

    /// Asked before the lock is taken: in a fork's child, another thread of the parent's may have held it.
    pub(super) fn check_generation(&self) -> Result<(), ServiceError> {
        if self.generation.is_current() { Ok(()) } else { Err(ServiceError::Forked) }
    }

    fn start<'a>(&self, running: &'a mut Option<Running>) -> Result<&'a mut Running, ServiceError> {
        if running.is_none() {
            let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
                .map_err(|errno| MemError::of("eventfd", errno, 0))?;
            let epoll = epoll::create(CreateFlags::CLOEXEC)
                .map_err(|errno| MemError::of("epoll_create1", errno, 0))?;
            epoll::add(&epoll, &wake, EventData::new_u64(WAKE), EventFlags::IN)
                .map_err(|errno| MemError::of("epoll_ctl", errno, 0))?;
            let shared = Arc::new(Shared {
                stop: AtomicBool::new(false),
                wake,
                watches: Watches::new(epoll),
                tended: Arc::clone(&self.tended),
                orders: Mutex::new(Vec::new()),
                next: Arc::new(AtomicU64::new(FIRST)),
            });
            let net = self.net.server(&shared.watches, &shared.next);
            let (exports, arrivals) = (Arc::clone(&self.exports), Arc::clone(&self.arrivals));
            let placers = Arc::clone(&self.placers);
            let mut events = Events::new(Arc::clone(&shared), exports, arrivals, placers, net);
            // A thread begins with the signals of the one that starts it blocked.
            let thread = ucs::signals::with_signals_blocked(|| {
                std::thread::Builder::new()
                    .name("rucx-service".to_owned())
                    .stack_size(256 << 10)
                    .spawn(move || events.run())
            });
            let thread = thread.map_err(|error| ServiceError::Thread(error.to_string()))?;
            self.tended.begin(&shared.watches);
            *running = Some(Running { shared, thread: Some(thread) });
        }
        running.as_mut().ok_or(ServiceError::Forked)
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        if !self.generation.is_current() {
            return; // a fork's child has no such thread
        }
        if let Some(mut running) = self.running.lock().take() {
            running.shared.stop.store(true, Ordering::Release);
            running.shared.wake();
            let thread = running.thread.take();
            // It never drops what could be the last of a context; if it did, it could not wait for itself.
            let others = thread.filter(|thread| thread.thread().id() != std::thread::current().id());
            if let Some(Err(_)) = others.map(JoinHandle::join) {
                tracing::error!("the service thread has panicked");
            }
        }
    }
}

impl Shared {
    fn order(&self, order: Order) {
        self.orders.lock().push(order);
        self.wake();
    }

    fn wake(&self) {
        // It fails only when the counter is full, and then the thread is awake.
        let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
    }
}

const WAKE: u64 = 0;
/// Numbers of the listeners: by name, and in a directory.
const LISTENERS: std::ops::Range<u64> = 1..3;
const FIRST: u64 = LISTENERS.end;

/// A process that cannot be told from others: in a pid namespace that is not visible here, on kernels before 6.9.
const UNKNOWN: u64 = 0;

/// The thread's own state.
struct Events {
    shared: Arc<Shared>,
    exports: Arc<ExportTable>,
    arrivals: Arc<Arrivals>,
    placers: Arc<Placers>,
    net: NetServer,
    listeners: Vec<Listener>,
    conns: HashMap<u64, Conn>,
    sweeping: bool,
    /// Since when the listeners are not looked at: there were no descriptors for new connections.
    paused: Option<Instant>,
    /// The last connection that wanted to come could not; it was told to the log.
    is_short: bool,
}

impl Events {
    fn new(
        shared: Arc<Shared>,
        exports: Arc<ExportTable>,
        arrivals: Arc<Arrivals>,
        placers: Arc<Placers>,
        net: NetServer,
    ) -> Self {
        let (listeners, conns) = (Vec::new(), HashMap::new());
        Self {
            shared,
            exports,
            arrivals,
            placers,
            net,
            listeners,
            conns,
            sweeping: false,
            paused: None,
            is_short: false,
        }
    }

    fn run(&mut self) {
        self.serve();
        // A fork's child has copies of these descriptors: whoever came, or comes, must not find them open and wait.
        self.take_orders();
        for listener in &self.listeners {
            let _ = shutdown(listener, Shutdown::Both);
            while let Ok(socket) = accept_with(listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
                let _ = shutdown(&socket, Shutdown::Both);
            }
        }
        self.conns.values().for_each(Conn::shut_down);
        self.net.shut_down();
    }

    fn serve(&mut self) {
        // On the stack: a thread's first allocation costs it an arena.
        let mut buffer = [const { MaybeUninit::<Event>::uninit() }; 64];
        while !self.shared.stop.load(Ordering::Acquire) {
            let timeout = self.needs_time().then(|| Timespec::try_from(SWEEP).unwrap_or_default());
            let events = match epoll::wait(self.shared.watches.epoll(), &mut buffer, timeout.as_ref()) {
                Ok((events, _)) => events,
                Err(Errno::INTR) => continue,
                Err(error) => {
                    tracing::error!(%error, "the service thread ends: importers will time out");
                    return;
                }
            };
            let begin = Instant::now();
            for event in events {
                match event.data.u64() {
                    WAKE => self.take_orders(),
                    id if LISTENERS.contains(&id) => self.accept(id),
                    id => self.ready(id),
                }
            }
            // Time in which peers waited for this thread is none in which they had to prove something.
            let now = Instant::now();
            self.conns.values_mut().for_each(|conn| conn.since = now.min(conn.since + (now - begin)));
            self.net.spare(now - begin);
            self.tidy();
        }
    }

    /// Whether something waits for time to pass.
    fn needs_time(&self) -> bool {
        self.sweeping
            || self.net.needs_time()
            || self.paused.is_some()
            || self.conns.values().any(|conn| !conn.proven)
    }

    fn tidy(&mut self) {
        self.net.tidy();
        if self.sweeping {
            self.sweeping = self.exports.sweep();
        }
        if self.paused.is_some_and(|since| since.elapsed() >= SWEEP) {
            self.paused = None;
            (0..self.listeners.len()).for_each(|index| self.look_at_listener(index));
        }
        let late = |conn: &Conn| !conn.proven && conn.since.elapsed() > PROOF_TIME;
        let late: Vec<u64> = self.conns.iter().filter(|(_, conn)| late(conn)).map(|(id, _)| *id).collect();
        for id in late {
            self.close(id);
        }
    }

    fn take_orders(&mut self) {
        let mut counter = [0; 8];
        let _ = rustix::io::read(&self.shared.wake, &mut counter);
        let orders = std::mem::take(&mut *self.shared.orders.lock());
        for order in orders {
            match order {
                Order::ListenNet(listener) => self.net.listen(listener),
                Order::Sweep => self.sweeping = true,
                Order::Listen(listener) => {
                    self.listeners.push(listener);
                    self.look_at_listener(self.listeners.len() - 1);
                }
            }
        }
    }

    fn look_at_listener(&mut self, index: usize) {
        let data = EventData::new_u64(LISTENERS.start + index as u64);
        let added = epoll::add(self.shared.watches.epoll(), &self.listeners[index], data, EventFlags::IN);
        if let Err(error) = added {
            tracing::error!(%error, "the service socket cannot be watched: importers will time out");
        }
    }

    fn accept(&mut self, id: u64) {
        let index = usize::try_from(id - LISTENERS.start).unwrap_or(usize::MAX);
        let Some(listener) = self.listeners.get(index) else { return };
        let socket = match accept_with(listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
            Ok(socket) => socket,
            Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => return,
            Err(error) => return self.pause(error),
        };
        self.is_short = false;
        let process = match Process::of_peer(socket.as_fd()) {
            // Whose it is decides how many there may be: without a descriptor that cannot be told.
            Err(Errno::MFILE | Errno::NFILE | Errno::NOMEM) => return Conn::refuse(socket),
            process => process.ok(),
        };
        let number = |process: &Process| process.inode().unwrap_or_else(|| u64::from(process.pid()));
        let peer = process.as_ref().map_or(UNKNOWN, number);
        let same = self.conns.values().filter(|conn| conn.peer == peer).count();
        if peer != UNKNOWN && same >= MAX_PER_PROCESS {
            return Conn::refuse(socket);
        }
        if self.conns.len() >= MAX_CONNECTIONS {
            // The one that has waited longest without showing a token goes; if all have shown one, the new one does.
            let idle = self.conns.iter().filter(|(_, conn)| !conn.proven);
            let idle = idle.min_by_key(|(id, conn)| (conn.since, **id));
            match idle.map(|(id, _)| *id) {
                Some(id) => self.close(id),
                None => return Conn::refuse(socket),
            }
        }
        let id = self.shared.next.fetch_add(1, Ordering::Relaxed);
        let conn = Conn::new(socket, process, peer);
        if epoll::add(self.shared.watches.epoll(), &conn, EventData::new_u64(id), EventFlags::IN).is_ok() {
            self.conns.insert(id, conn);
            self.ready(id); // its request is there already, most times
        }
    }

    /// There is no descriptor for a connection. It stays in the queue and the listener ready: looking again at once would spin.
    fn pause(&mut self, error: Errno) {
        if !std::mem::replace(&mut self.is_short, true) {
            tracing::warn!(%error, "importers and peers have to wait: no descriptor for their connection");
        }
        for listener in &self.listeners {
            let _ = epoll::delete(self.shared.watches.epoll(), listener);
        }
        self.paused = Some(Instant::now());
    }

    fn ready(&mut self, id: u64) {
        if self.shared.tended.ready(id) {
            // none of the service's own
        } else if self.conns.get(&id).is_some_and(|conn| conn.muted) {
            self.close(id); // nothing else wakes us for it
        } else if let Some(conn) = self.conns.get_mut(&id) {
            match conn.step(&self.exports, &self.arrivals, &self.placers) {
                Next::Keep => {}
                Next::HandOver(entrance, share, memory, from) => {
                    let Some(conn) = self.conns.remove(&id) else { return };
                    let _ = epoll::delete(self.shared.watches.epoll(), conn.as_fd());
                    entrance.enter(conn.into_arrival(memory, from, share));
                }
                Next::Close => self.close(id),
                // Its end is still told: EPOLLHUP always is (epoll_ctl(2)).
                Next::Mute => {
                    conn.muted = true;
                    let _ = epoll::modify(
                        self.shared.watches.epoll(),
                        conn.as_fd(),
                        EventData::new_u64(id),
                        EventFlags::RDHUP,
                    );
                }
            }
        } else if self.net.ready(id) {
            // a peer of another machine
        } else if let Some(state) = self.shared.watches.remove(id) {
            tracing::debug!("an exporter is gone");
            state.set_gone();
        }
    }

    fn close(&mut self, id: u64) {
        let Some(conn) = self.conns.remove(&id) else { return };
        conn.shut_down();
        let _ = epoll::delete(self.shared.watches.epoll(), conn.as_fd());
        conn.end(&self.exports);
    }
}
