//! An exporter's process, as its importers see it: one connection, one table, one set of in-flight slots for all imports.

use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use rustix::io::Errno;
use ucs::mem::{Access, Mapping, Memfd};

use super::direct::{self, Direct};
use super::mkey::Mkey;
use super::{METHOD_NAMES, Methods};
use crate::api::{AttachError, AttachRequest};
use crate::export::gate::SlotSet;
use crate::export::table::FileNumbers;
use crate::export::{Claim, PeerState, wire};
use crate::memory::Rights;
use crate::process::{Identity, Process, Recognition};
use crate::service::watch::{Watch, Watching};
use crate::service::{ConnectError, Connection, Service};

/// An exporter, reached.
#[derive(Debug)]
pub(super) struct Peer {
    pub(super) state: Arc<PeerState>,
    pub(super) table: Arc<Mapping>,
    pub(super) slots: Arc<SlotSet>,
    channel: Channel,
    _watching: Watching,
}

/// An exporter, reached but not watched yet.
#[derive(Debug)]
pub(super) struct Reached {
    pub(super) table: Arc<Mapping>,
    pub(super) slots: Arc<SlotSet>,
    pub(super) channel: Channel,
    /// What tells its end: a pidfd and, where there is one, the connection, which also tells an exec.
    pub(super) watches: Vec<Watch>,
}

/// How descriptors come from it.
#[derive(Debug)]
pub(super) enum Channel {
    /// `None` after a failure: the next import connects anew.
    Socket(Mutex<Option<Connection>>),
    Direct(Direct),
}

/// A region's memfd, and what may be done with it.
#[derive(Debug)]
pub(super) struct Region {
    pub(super) fd: OwnedFd,
    pub(super) rights: Rights,
}

/// The exporters this context has imported from.
#[derive(Debug)]
pub(super) struct Peers {
    known: Mutex<HashMap<Exporter, Entry>>,
    me: Identity,
    /// The ways that may be tried.
    methods: Methods,
}

/// All by which a handle names its exporter. Two handles are asked for on one connection only if all of it is equal: a handle
/// that borrows another context's uuid must not be sent the tokens of that one's handles.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Exporter {
    context_uuid: [u8; 16],
    process: Identity,
    files: FileNumbers,
    service: Vec<u8>,
}

/// Held locked while a connection is made, so that many threads make one.
type Entry = Arc<Mutex<Weak<Peer>>>;

impl Peers {
    pub(super) fn new(me: Identity, methods: Methods) -> Self {
        Self { known: Mutex::new(HashMap::new()), me, methods }
    }

    /// The exporter of `key`, and the descriptor of the region; `how` it was reached, in words.
    pub(super) fn reach(
        &self,
        key: &Mkey,
        request: &AttachRequest<'_>,
        service: &Service,
    ) -> Result<(Arc<Peer>, Region, String), AttachError> {
        let exporter = Exporter {
            context_uuid: request.context_uuid,
            process: key.exporter,
            files: key.files,
            service: key.service.clone(),
        };
        let entry = {
            let mut known = self.known.lock();
            known.retain(|_, entry| Arc::strong_count(entry) > 1 || entry.lock().strong_count() > 0);
            Arc::clone(known.entry(exporter).or_default())
        };
        let deadline = &request.deadline;
        let locked = entry.try_lock_for(deadline.left().unwrap_or_default());
        let mut entry = locked.ok_or_else(|| AttachError::Unreachable {
            reason: "another import from this exporter has been waiting for its answer all the time"
                .to_owned(),
            remedy: "see whether the exporter is stopped, or raise UCX_IMPORT_TIMEOUT",
        })?;
        let claim = request.claim(key.slot, key.token);
        if let Some(peer) = entry.upgrade()
            && !peer.state.is_gone()
            && let Some(answer) = peer.region(key, &claim, request)
        {
            match answer {
                Ok((region, how)) => return Ok((peer, region, how)),
                // It does not answer: there may be other ways.
                Err(AttachError::Unreachable { .. } | AttachError::Closed) => {}
                Err(error) => return Err(error),
            }
        }
        let (reached, region, how) = self.connect(key, &claim, request)?;
        let peer = Arc::new(reached.watched(service)?);
        *entry = Arc::downgrade(&peer);
        Ok((peer, region, how))
    }

    /// Tries the ways that are allowed, one after the other.
    fn connect(
        &self,
        key: &Mkey,
        claim: &Claim,
        request: &AttachRequest<'_>,
    ) -> Result<(Reached, Region, String), AttachError> {
        let mut reasons = Vec::new();
        let mut remedy = "allow a way to attach in UCX_SHM_ATTACH";
        for (name, method) in METHOD_NAMES {
            if !self.methods.contains(*method) {
                continue;
            }
            let attempt = if *method == Methods::SOCKET {
                match self.by_socket(key, claim, request) {
                    // It went while we waited: then nobody listens any more, which says more.
                    Err(AttachError::Closed) => self.by_socket(key, claim, request),
                    answer => answer,
                }
            } else {
                direct::connect(*method, key, claim, &self.me)
            };
            match attempt {
                Err(error @ (AttachError::Unreachable { .. } | AttachError::Closed)) => {
                    if reasons.is_empty() {
                        remedy = error.remedy();
                    }
                    reasons.push(format!("{name}: {error}"));
                }
                answer => return answer,
            }
        }
        let reason =
            if reasons.is_empty() { "no way to attach is allowed".to_owned() } else { reasons.join("; ") };
        Err(AttachError::Unreachable { reason, remedy })
    }

    fn by_socket(
        &self,
        key: &Mkey,
        claim: &Claim,
        request: &AttachRequest<'_>,
    ) -> Result<(Reached, Region, String), AttachError> {
        let deadline = &request.deadline;
        let mut connection = match Connection::open(&key.service, deadline) {
            Ok(connection) => connection,
            Err(ConnectError::Refused) => return Err(self.refused(key)),
            Err(error) => return Err(AttachError::of_service(error)),
        };
        // A token is shown to the exporter only: the name may have been taken by somebody else since.
        let process = match connection.peer() {
            Ok(process) => process,
            Err(Errno::SRCH) => return Err(GONE),
            Err(errno) => {
                return Err(AttachError::Unreachable {
                    reason: format!("the process behind the service socket cannot be told: {errno}"),
                    remedy: "allow pidfd_open(2) and SO_PEERPIDFD",
                });
            }
        };
        recognised(&process, &key.exporter)?;
        let granted =
            connection.ask(wire_request(claim, request, true), deadline).map_err(AttachError::of_service)?;
        let (table, page) = granted.control.ok_or(AttachError::Malformed("no control descriptors"))?;
        let table = Memfd::map_foreign(table.as_fd(), wire::TABLE_LEN, Access::Read);
        let page = Memfd::map_foreign(page.as_fd(), wire::SLOTS_LEN, Access::ReadWrite);
        let reached = Reached {
            table: Arc::new(table.map_err(unsafe_memory)?),
            slots: Arc::new(SlotSet::new(page.map_err(unsafe_memory)?, 0..wire::SLOTS)),
            watches: vec![Watch::Connection(connection.socket()), Watch::Pidfd(process.into())],
            channel: Channel::Socket(Mutex::new(Some(connection))),
        };
        let region = Region { fd: granted.region, rights: granted.rights };
        Ok((reached, region, BY_SOCKET.to_owned()))
    }

    /// What it means that nobody listens: in the same network namespace, that the context is gone.
    fn refused(&self, key: &Mkey) -> AttachError {
        if key.exporter.net_ns != 0 && key.exporter.net_ns == self.me.net_ns {
            return AttachError::Stale("the exporting context is gone: nobody listens on its service socket");
        }
        AttachError::Unreachable {
            reason: "the exporter's service socket is in another network namespace".to_owned(),
            remedy: "run both sides in one network namespace (docker: --network container:NAME or host), or import with \
                     ptrace rights over the exporter in its pid namespace",
        }
    }
}

const BY_SOCKET: &str = "descriptor passed over the exporter's service socket";

pub(super) const GONE: AttachError = AttachError::Stale("the exporting process is gone");

/// Whether `process` is the exporter.
pub(super) fn recognised(process: &Process, exporter: &Identity) -> Result<(), AttachError> {
    if process.is_dead() {
        return Err(GONE);
    }
    match process.recognise(exporter) {
        Recognition::Same => Ok(()),
        Recognition::Other => {
            Err(AttachError::Stale("the exporting process is gone: another one has its place"))
        }
        Recognition::Unknown => Err(AttachError::Unreachable {
            reason: "whether it is the exporting process cannot be told".to_owned(),
            remedy: "mount /proc with the exporter's pid namespace, or run Linux 6.9 or later",
        }),
    }
}

pub(super) fn unsafe_memory(error: ucs::mem::ForeignFdError) -> AttachError {
    match error {
        ucs::mem::ForeignFdError::Mem(error) => AttachError::Mem(error),
        error => AttachError::UnsafeMemory(error),
    }
}

fn wire_request(
    claim: &Claim,
    request: &AttachRequest<'_>,
    want_control: bool,
) -> crate::service::wire::Request {
    crate::service::wire::Request { sequence: 0, want_control, uuid: request.context_uuid, claim: *claim }
}

impl Peer {
    /// A region of an exporter that was reached before. `None`: its connection is of no more use.
    fn region(
        &self,
        key: &Mkey,
        claim: &Claim,
        request: &AttachRequest<'_>,
    ) -> Option<Result<(Region, String), AttachError>> {
        match &self.channel {
            Channel::Direct(direct) => {
                let region = direct.region(key, claim, &self.table);
                Some(region.map(|region| (region, direct.how().to_owned())))
            }
            Channel::Socket(connection) => {
                let mut connection = connection.lock();
                let answer = connection.as_mut()?.ask(wire_request(claim, request, false), &request.deadline);
                match answer {
                    Ok(granted) => {
                        let region = Region { fd: granted.region, rights: granted.rights };
                        Some(Ok((region, BY_SOCKET.to_owned())))
                    }
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
    }
}

impl Reached {
    /// Has its end watched for.
    fn watched(self, service: &Service) -> Result<Peer, AttachError> {
        let state = Arc::default();
        let Self { table, slots, channel, watches } = self;
        let watching = service.watch(&state, watches)?;
        Ok(Peer { state, table, slots, channel, _watching: watching })
    }
}
