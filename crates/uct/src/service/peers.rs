//! The exporters this context has reached over their service sockets: one connection each, for all imports from it.

use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use ucs::mem::{Access, ForeignFdError, Mapping, MemError, Memfd};
use ucs::time::Deadline;

use super::client::{ConnectError, Connection, Granted};
use super::server::{Service, name_of};
use super::watch::{Watch, Watching};
use super::wire::{Introduction, PlacedKeys, Placing, Request};
use crate::api::{AttachError, AttachRequest};
use crate::export::gate::SlotSet;
use crate::export::{Claim, Gate, PeerState, wire};
use crate::memory::{Rights, StaleReason};
use crate::process::{Identity, Process, Recognition};

/// All by which a handle names its exporter. Two handles are asked for on one connection only if all of it is equal: a handle
/// that borrows another context's uuid must not be sent the tokens of that one's handles.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Exporter {
    /// The context.
    pub context_uuid: [u8; 16],
    /// Its process.
    pub process: Identity,
    /// The name of its abstract socket.
    pub name: Vec<u8>,
    /// Whether its socket is also in the directory that UCX_SERVICE_DIR names.
    pub in_directory: bool,
}

/// What an importer shares with an exporter: the table it reads, the slots in which it announces its accesses.
#[derive(Debug)]
pub struct Link {
    state: Arc<PeerState>,
    table: Arc<Mapping>,
    slots: Arc<SlotSet>,
    _watching: Watching,
}

impl Link {
    /// Has the exporter's end watched for, by `watches`.
    ///
    /// # Errors
    /// [`AttachError`]: the service thread could not be started, or can watch no more.
    pub fn new(
        table: Arc<Mapping>,
        slots: Arc<SlotSet>,
        service: &Service,
        watches: Vec<Watch>,
    ) -> Result<Self, AttachError> {
        let state = Arc::default();
        let watching = service.watch(&state, watches)?;
        Ok(Self { state, table, slots, _watching: watching })
    }

    /// What is known of the exporter's process.
    #[must_use]
    pub fn state(&self) -> &PeerState {
        &self.state
    }

    /// The exporter's table.
    #[must_use]
    pub fn table(&self) -> &Mapping {
        &self.table
    }

    /// Whether the exporter is known to be gone.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        self.state.is_gone()
    }

    /// Notes that an access has proved the exporter to be gone: earlier, perhaps, than the service thread hears of it.
    pub fn set_gone(&self) {
        self.state.set_gone();
    }

    /// The gate of one of its exports, which lives.
    ///
    /// # Errors
    /// [`AttachError`]: it does not.
    pub fn gate(&self, claim: &Claim, patience: std::time::Duration) -> Result<Gate, AttachError> {
        let gate = Gate::new(
            Arc::clone(&self.table),
            Arc::clone(&self.slots),
            Some(Arc::clone(&self.state)),
            (claim.slot, claim.id, claim.epoch),
            patience,
        )
        .ok_or(AttachError::Malformed("no such line in the export table"))?;
        match gate.check() {
            Ok(()) => Ok(gate),
            Err(StaleReason::Revoked) => Err(AttachError::Stale("the export was revoked or dropped")),
            Err(_) => Err(GONE),
        }
    }
}

/// An exporter, reached over its service socket.
#[derive(Debug)]
pub struct Peer {
    link: Link,
    process: Arc<Process>,
    /// Where it says that it has the in-flight page mapped.
    page_address: u64,
    /// `None` after a failure: the next import connects anew.
    connection: Mutex<Option<Connection>>,
}

/// What an exporter has granted.
#[derive(Debug)]
pub struct Grant {
    /// Who granted it: as long as this lives, the exporter knows of the importer.
    pub peer: Arc<Peer>,
    /// What may be done.
    pub rights: Rights,
    /// The region's memfd, when it was wanted.
    pub memory: Option<OwnedFd>,
}

impl Peer {
    /// Table, slots, and whether it is gone.
    #[must_use]
    pub fn link(&self) -> &Link {
        &self.link
    }

    /// Where the exporter says that it has this connection's in-flight page mapped: what is there shows whose address space it is.
    #[must_use]
    pub fn page_address(&self) -> u64 {
        self.page_address
    }

    /// The process at the other end of the connection, which is the exporter's.
    #[must_use]
    pub fn process(&self) -> &Process {
        &self.process
    }

    /// Has the exporter register an export's memory in the domain of this process whose number is `domain`, in the context that `command` is the command
    /// descriptor of.
    ///
    /// # Errors
    /// [`AttachError`].
    pub fn place(
        &self,
        (uuid, claim): (&[u8; 16], &Claim),
        (command, domain): (BorrowedFd<'_>, u32),
        deadline: &Deadline,
    ) -> Result<PlacedKeys, AttachError> {
        let mut connection = self.connection.lock();
        let open = connection.as_mut().ok_or(AttachError::Closed)?;
        let asked = Placing { sequence: 0, uuid: *uuid, claim: *claim, domain };
        open.place(asked, command, deadline).map_err(|error| {
            // As long as it is answered, what was placed before is ended by it.
            if !matches!(
                error,
                ConnectError::Denied(_)
                    | ConnectError::NotPlaced
                    | ConnectError::TooMany
                    | ConnectError::NoResource
            ) {
                *connection = None;
            }
            match error {
                ConnectError::NoResource => AttachError::Unreachable {
                    reason: "the exporter cannot register it for this process".to_owned(),
                    remedy: "see the exporter's log: raise its `ulimit -l`, or have fewer importers",
                },
                error => AttachError::of_service(error),
            }
        })
    }

    /// Says that the placement whose keys came with this sequence number is needed no more.
    pub fn unplace(&self, sequence: u32) {
        if let Some(connection) = &*self.connection.lock() {
            connection.unplace(sequence);
        }
    }

    /// Asks again on the connection. `None`: it is of no more use.
    fn ask(self: &Arc<Self>, request: Request, deadline: &Deadline) -> Option<Result<Grant, AttachError>> {
        let mut connection = self.connection.lock();
        match connection.as_mut()?.ask(request, deadline) {
            Ok(Granted { rights, memory, .. }) => Some(Ok(Grant { peer: Arc::clone(self), rights, memory })),
            Err(error @ (ConnectError::Denied(_) | ConnectError::NoDescriptor)) => {
                Some(Err(AttachError::of_service(error)))
            }
            Err(error) => {
                *connection = None;
                Some(Err(AttachError::of_service(error)))
            }
        }
    }
}

/// A worker of another context, or of this one, that this side is connected with.
#[derive(Debug)]
pub struct Connected {
    /// Each side's end is told by it, and it wakes. Non-blocking.
    pub socket: Arc<OwnedFd>,
    /// The process at its other end.
    pub process: Arc<Process>,
}

/// The exporters that were reached.
#[derive(Debug)]
pub(super) struct Peers {
    known: Mutex<HashMap<Exporter, Entry>>,
    me: Identity,
    /// Where exporters of other network namespaces are looked for.
    directory: Option<PathBuf>,
}

/// Held locked while a connection is made, so that many threads make one.
type Entry = Arc<Mutex<Weak<Peer>>>;

impl Peers {
    pub(super) fn new(me: Identity, directory: Option<PathBuf>) -> Self {
        Self { known: Mutex::new(HashMap::new()), me, directory }
    }

    pub(super) fn me(&self) -> &Identity {
        &self.me
    }

    pub(super) fn reach(
        &self,
        service: &Service,
        exporter: Exporter,
        claim: &Claim,
        want_memory: bool,
        deadline: &Deadline,
    ) -> Result<Grant, AttachError> {
        let entry = {
            let mut known = self.known.lock();
            known.retain(|_, entry| Arc::strong_count(entry) > 1 || entry.lock().strong_count() > 0);
            Arc::clone(known.entry(exporter.clone()).or_default())
        };
        let locked = entry.try_lock_for(deadline.left().unwrap_or_default());
        let mut entry = locked.ok_or_else(|| AttachError::Unreachable {
            reason: "another import from this exporter has been waiting for its answer all the time"
                .to_owned(),
            remedy: "see whether the exporter is stopped, or raise UCX_IMPORT_TIMEOUT",
        })?;
        let uuid = exporter.context_uuid;
        let request = Request { sequence: 0, want_control: false, want_memory, uuid, claim: *claim };
        if let Some(peer) = entry.upgrade()
            && !peer.link.is_gone()
            && let Some(answer) = peer.ask(request.clone(), deadline)
        {
            match answer {
                // It does not answer: perhaps it does on a new connection.
                Err(AttachError::Unreachable { .. } | AttachError::Closed) => {}
                answer => return answer,
            }
        }
        let request = Request { want_control: true, ..request };
        let connect = || self.connect(service, &exporter, request.clone(), deadline);
        let grant = match connect() {
            // It went while we waited: then nobody listens any more, which says more.
            Err(AttachError::Closed) => connect(),
            answer => answer,
        }?;
        *entry = Arc::downgrade(&grant.peer);
        Ok(grant)
    }

    fn connect(
        &self,
        service: &Service,
        exporter: &Exporter,
        request: Request,
        deadline: &Deadline,
    ) -> Result<Grant, AttachError> {
        let (mut connection, process) = self.open(exporter, deadline)?;
        let process = Arc::new(process);
        let granted = connection.ask(request, deadline).map_err(AttachError::of_service)?;
        let (table, page) = granted.control.ok_or(AttachError::Malformed("no control descriptors"))?;
        let table = Memfd::map_foreign(table.as_fd(), wire::TABLE_LEN, Access::Read);
        let page = Memfd::map_foreign(page.as_fd(), wire::SLOTS_LEN, Access::ReadWrite);
        let page = page.map_err(unsafe_memory)?;
        let page_address = wire::told_address(page.bytes()).unwrap_or(0);
        let slots = SlotSet::new(page, 0..wire::SLOTS);
        let watches = vec![Watch::Connection(connection.socket()), Watch::Process(Arc::clone(&process))];
        let link = Link::new(Arc::new(table.map_err(unsafe_memory)?), Arc::new(slots), service, watches)?;
        let peer = Peer { link, process, page_address, connection: Mutex::new(Some(connection)) };
        Ok(Grant { peer: Arc::new(peer), rights: granted.rights, memory: granted.memory })
    }

    /// Connects a worker of this context with another.
    pub(super) fn introduce(
        &self,
        exporter: &Exporter,
        asked: Introduction,
        memory: &Memfd,
        deadline: &Deadline,
    ) -> Result<Connected, AttachError> {
        let (mut connection, process) = self.open(exporter, deadline)?;
        connection.introduce(asked, memory.as_fd(), deadline).map_err(of_introduction)?;
        Ok(Connected { socket: connection.socket(), process: Arc::new(process) })
    }

    /// A connection to the exporter, and nobody else.
    fn open(&self, exporter: &Exporter, deadline: &Deadline) -> Result<(Connection, Process), AttachError> {
        let connection = self.find(exporter, deadline)?;
        // A token is shown to the exporter only: the name may have been taken by somebody else since.
        let process = match connection.peer() {
            Ok(process) => process,
            Err(Errno::SRCH) => return Err(GONE),
            Err(errno @ (Errno::MFILE | Errno::NFILE | Errno::NOMEM)) => {
                return Err(AttachError::Mem(MemError::of("getsockopt", errno, 0)));
            }
            Err(errno) => {
                return Err(AttachError::Unreachable {
                    reason: format!("the process behind the service socket cannot be told: {errno}"),
                    remedy: "allow pidfd_open(2) and SO_PEERPIDFD",
                });
            }
        };
        recognised(&process, &exporter.process)?;
        Ok((connection, process))
    }

    /// Connects by the name that the network namespace knows, or by the one in the directory that both sides have.
    fn find(&self, exporter: &Exporter, deadline: &Deadline) -> Result<Connection, AttachError> {
        let same = exporter.process.net_ns != 0 && exporter.process.net_ns == self.me.net_ns;
        let unknown = exporter.process.net_ns == 0 || self.me.net_ns == 0;
        if same || unknown {
            match Connection::open(&exporter.name, deadline) {
                Err(ConnectError::Refused) if same => {
                    return Err(AttachError::Stale(
                        "the exporting context is gone: nobody listens on its service socket",
                    ));
                }
                Err(ConnectError::Refused) => {}
                answer => return answer.map_err(AttachError::of_service),
            }
        }
        let unreachable =
            |reason: &str, remedy| AttachError::Unreachable { reason: reason.to_owned(), remedy };
        if !exporter.in_directory {
            return Err(unreachable(
                "the exporter's service socket is in another network namespace",
                "set UCX_SERVICE_DIR on both sides to a directory that both see, or run both in one network namespace \
                 (docker: --network container:NAME or host)",
            ));
        }
        let Some(directory) = &self.directory else {
            return Err(unreachable(
                "the exporter's service socket is in another network namespace, and in a directory that is not known here",
                "set UCX_SERVICE_DIR here, too: to the exporter's directory, as it is mounted here",
            ));
        };
        let path = directory.join(name_of(&exporter.context_uuid));
        match Connection::open_path(&path, deadline) {
            Err(ConnectError::Refused) => Err(AttachError::Stale(
                "the exporting context is gone: nobody listens on its socket in UCX_SERVICE_DIR",
            )),
            Err(ConnectError::NotThere) => Err(unreachable(
                "the exporter's service socket is not in the directory that UCX_SERVICE_DIR names here",
                "see that both sides name the same directory, and that the exporter still runs",
            )),
            answer => answer.map_err(AttachError::of_service),
        }
    }
}

/// An error of an introduction: other things than an importer's help against some.
fn of_introduction(error: ConnectError) -> AttachError {
    match error {
        ConnectError::TimedOut { .. } => AttachError::Unreachable {
            reason: error.to_string(),
            remedy: "see whether the peer is stopped, or raise UCX_CONNECT_TIMEOUT",
        },
        ConnectError::NoResource => AttachError::Unreachable {
            reason: "the peer has no room for another connection".to_owned(),
            remedy: "have the peer make progress, or raise its `ulimit -n`, and connect again",
        },
        error => AttachError::of_service(error),
    }
}

/// The exporting process has ended.
pub const GONE: AttachError = AttachError::Stale("the exporting process is gone");

/// Whether `process` is the exporter.
///
/// # Errors
/// [`AttachError`]: it has ended, it is another, or that cannot be told.
pub fn recognised(process: &Process, exporter: &Identity) -> Result<(), AttachError> {
    if process.is_dead() {
        return Err(GONE);
    }
    match process.recognise(exporter) {
        Recognition::Same => Ok(()),
        Recognition::Other => {
            Err(AttachError::Stale("the exporting process is gone: another one has its place"))
        }
        Recognition::Unknown => Err(match spare_descriptor() {
            Err(errno @ (Errno::MFILE | Errno::NFILE)) => MemError::of("open", errno, 0).into(),
            _ => AttachError::Unreachable {
                reason: "whether it is the exporting process cannot be told".to_owned(),
                remedy: "mount /proc with the exporter's pid namespace, or run Linux 6.9 or later",
            },
        }),
    }
}

/// Whether there is a descriptor for looking at files of another process, as it takes before Linux 6.9.
fn spare_descriptor() -> Result<(), Errno> {
    rustix::fs::open("/", OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).map(drop)
}

/// Memory from the exporter that is none.
#[must_use]
pub fn unsafe_memory(error: ForeignFdError) -> AttachError {
    match error {
        ForeignFdError::Mem(error) => AttachError::Mem(error),
        error => AttachError::UnsafeMemory(error),
    }
}

impl Exporter {
    /// The exporter of what `request` asks for.
    #[must_use]
    pub fn of(request: &AttachRequest<'_>, process: Identity, name: Vec<u8>, in_directory: bool) -> Self {
        Self { context_uuid: request.context_uuid, process, name, in_directory }
    }

    /// The context of a worker: its socket has the name that its uuid gives.
    #[must_use]
    pub fn of_worker(context_uuid: [u8; 16], process: Identity, in_directory: bool) -> Self {
        Self { context_uuid, process, name: name_of(&context_uuid).into_bytes(), in_directory }
    }
}
