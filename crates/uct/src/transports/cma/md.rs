//! The memory domain of `cma`.

use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::Pid;
use ucs::sync::{AtomicU64, Ordering};

use super::CMA_PTRACER_ANY;
use super::mkey::{self, Mkey};
use super::peer::CmaPeer;
use super::transfer::{Nonce, Stopped, Target, Why};
use crate::api::{
    AllocError, AtomicOp, AttachError, AttachRequest, Attached, Attachment, ComponentId, GlobalId,
    LinearCost, Md, MdAttr, MdFlags, MdParams, MemTypes, Memh, PackError, PackFlags, PeerMemory, RegError,
};
use crate::channel::Channel;
use crate::config::IMPORT_TIMEOUT;
use crate::export::gate::InFlight;
use crate::export::{Claim, Export, Gate, Token, registry};
use crate::memory::{
    AccessError, DeniedReason, LocalMem, MappedView, Rights, StaleReason, Tries, check_range, fault,
};
use crate::process::Identity;
use crate::process::access::Facts;
use crate::process::vm::{self, Mapped};
use crate::service::peers::GONE;
use crate::service::server::name_of;
use crate::service::{Exporter, Peer, Service};
use crate::transports::mkey::readdress;

/// How long it is waited for the end of an exporter whose main thread has ended: most often it was killed.
const DYING: Duration = Duration::from_millis(250);

/// The memory domain of `cma`: its global id is the system's boot.
#[derive(Debug)]
pub struct CmaMd {
    attr: MdAttr,
    params: MdParams,
    patience: Duration,
    tracers: Arc<Tracers>,
}

impl CmaMd {
    pub(super) fn new(boot: [u8; 16], params: &MdParams) -> Self {
        let attr = MdAttr {
            component: ComponentId::CMA,
            flags: MdFlags::REG
                | MdFlags::EXPORTED_MKEY
                | MdFlags::INVALIDATE
                | MdFlags::VA_BOUND
                | MdFlags::REVOCABLE
                | MdFlags::PEER_MEMORY,
            max_alloc: 0,
            max_reg: u64::MAX,
            reg_alignment: 1,
            reg_cost: LinearCost::ZERO,
            // Measured by `cargo bench -p rucx-benches --bench export`, rows "cma.read".
            access_cost: LinearCost { base: 760e-9, per_byte: 0.05e-9 },
            alloc_mem_types: MemTypes::empty(),
            reg_mem_types: MemTypes::HOST,
            access_mem_types: MemTypes::HOST,
            rkey_packed_size: 0,
            exported_mkey_packed_size: mkey::LEN,
            global_id: GlobalId::from(boot),
            local_cpus: String::new(),
            notes: Vec::new(),
        };
        let tracers =
            Arc::new(Tracers { wanted: params.config.get(&CMA_PTRACER_ANY), allowed: OnceLock::new() });
        Self { attr, params: params.clone(), patience: params.config.get(&IMPORT_TIMEOUT), tracers }
    }
}

impl Md for CmaMd {
    fn attr(&self) -> &MdAttr {
        &self.attr
    }

    fn alloc(&self, _len: usize, _rights: Rights) -> Result<LocalMem, AllocError> {
        Err(AllocError::Unsupported)
    }

    fn reg(&self, mem: &Arc<LocalMem>) -> Result<Box<dyn Memh>, RegError> {
        Ok(Box::new(CmaMemh {
            _mem: Arc::clone(mem),
            service: Arc::clone(&self.params.service),
            tracers: Arc::clone(&self.tracers),
            key: OnceLock::new(),
        }))
    }

    fn peer_memory(&self, channel: Channel) -> Option<Box<dyn PeerMemory>> {
        CmaPeer::new(channel).map(|peer| Box::new(peer) as Box<dyn PeerMemory>)
    }

    fn attach(&self, request: &AttachRequest<'_>) -> Result<Attached, AttachError> {
        let key = Mkey::decode(request.mkey).map_err(AttachError::Malformed)?;
        let service = &self.params.service;
        let name = name_of(&request.context_uuid).into_bytes();
        let exporter = Exporter::of(request, key.exporter, name, key.in_directory);
        let claim = request.claim(key.slot, key.token);
        let grant = service.reach(exporter, &claim, false, &request.deadline)?;
        let gate = grant.peer.link().gate(&claim, self.patience)?;
        // The pid that the kernel tells of the process behind the socket, not the one that the handle tells.
        let pid = grant.peer.process().raw_pid().ok_or_else(|| AttachError::Unreachable {
            reason: "the exporter's pid is not visible from this pid namespace".to_owned(),
            remedy: "run both sides in one pid namespace (docker: --pid container:NAME or host), or export memory of \
                     MemMap::allocate",
        })?;
        let rights = granted_rights(pid, request.context_uuid, &claim, grant.rights)?;
        let target = Target { pid, address: request.address };
        let nonces = Nonces::default();
        let page = grant.peer.page_address();
        let inside = gate.enter().map_err(|error| match error {
            AccessError::Busy { .. } => AttachError::Unreachable {
                reason: "all in-flight slots of the connection to the exporter are taken".to_owned(),
                remedy: "use fewer threads at once, or raise UCX_IMPORT_TIMEOUT",
            },
            AccessError::Stale { why: StaleReason::Revoked, .. } => {
                AttachError::Stale("the export was revoked or dropped")
            }
            _ => GONE,
        })?;
        let probed = match target.probe(nonce_in(&inside, page, &nonces)) {
            Ok(()) if rights.contains(Rights::WRITE) => target.probe_writing(),
            probed => probed,
        };
        drop(inside);
        probed.map_err(|why| refused(why, &grant.peer, &key.exporter, service.me()))?;
        let (len, peer) = (request.length, grant.peer);
        let memory = Arc::new(CmaAttachment { target, nonces, page, gate, len, rights, peer });
        Ok(Attached { memory, how: "process_vm_readv and process_vm_writev".to_owned() })
    }
}

/// What may be done. An exporter in this very process is asked directly: memory of this process is accessed only if one of its contexts
/// says that it is a region of its own, whoever answered on the socket.
fn granted_rights(pid: Pid, uuid: [u8; 16], claim: &Claim, granted: Rights) -> Result<Rights, AttachError> {
    if pid != rustix::process::getpid() {
        return Ok(granted);
    }
    let table = registry::find(&uuid).ok_or(AttachError::Stale("the exporting context is gone"))?;
    let mem = table.verify(claim).map_err(AttachError::of_refusal)?;
    Ok(mem.rights() & granted)
}

/// Numbers that nobody can tell before.
#[derive(Debug, Default)]
pub(super) struct Nonces {
    key: RandomState,
    count: AtomicU64,
}

impl Nonces {
    /// The next one.
    pub(super) fn next(&self) -> u64 {
        let count = self.count.fetch_add(1, Ordering::Relaxed);
        self.key.hash_one(count) | 1 // memory is zero where nothing was written
    }
}

/// A nonce in the slot of an access, in the page that the exporter has mapped at `page`.
fn nonce_in(inside: &InFlight<'_>, page: u64, nonces: &Nonces) -> Nonce {
    let value = nonces.next();
    Nonce { at: page.wrapping_add(inside.set_nonce(value)), value }
}

/// Why the exporter's memory cannot be read, although the exporter has granted it.
fn refused(why: Why, peer: &Peer, exporter: &Identity, me: &Identity) -> AttachError {
    let errno = match why {
        _ if peer.process().is_dead() => return GONE,
        // Its address space is not the one that has our page: it has exec'ed, or another process answers for it.
        Why::AnotherProcess | Why::Fault => {
            return AttachError::Stale("the exporting process is gone: another program has its place");
        }
        Why::Errno(errno) => errno,
    };
    match errno {
        Errno::SRCH if peer.process().ends_within(DYING) => GONE,
        Errno::SRCH => AttachError::Unreachable {
            reason: "process_vm_readv: the exporter's main thread has ended".to_owned(),
            remedy: "keep the exporter's main thread, or export memory of MemMap::allocate",
        },
        Errno::PERM | Errno::ACCESS | Errno::NOSYS => {
            let denial = Facts::about(peer.process(), exporter, me).judge();
            AttachError::Unreachable {
                reason: format!("process_vm_readv: {errno}: {}", denial.reason()),
                remedy: denial.remedy(),
            }
        }
        errno => AttachError::Unreachable {
            reason: format!("process_vm_readv: {errno}"),
            remedy: "export memory of MemMap::allocate",
        },
    }
}

/// A registration with `cma`: the address names the memory.
#[derive(Debug)]
struct CmaMemh {
    _mem: Arc<LocalMem>,
    service: Arc<Service>,
    tracers: Arc<Tracers>,
    /// A key, made at the first pack: of another export.
    key: OnceLock<[u8; mkey::LEN]>,
}

impl Memh for CmaMemh {
    fn packed_size(&self, flags: PackFlags) -> Result<usize, PackError> {
        if flags.contains(PackFlags::EXPORT) {
            Ok(mkey::LEN)
        } else {
            Err(PackError::Unsupported("cma needs no remote keys: it packs exported keys only"))
        }
    }

    fn pack(&self, export: &Export, flags: PackFlags, out: &mut [u8]) -> Result<(), PackError> {
        PackError::check_size(self.packed_size(flags)?, out)?;
        self.service.serve()?;
        self.tracers.allow();
        let mut key = *self.key.get_or_init(|| self.key_of_an_export());
        readdress(&mut key, export.claim());
        out.copy_from_slice(&key);
        Ok(())
    }
}

impl CmaMemh {
    fn key_of_an_export(&self) -> [u8; mkey::LEN] {
        let mut bytes = [0; mkey::LEN];
        let key = Mkey {
            exporter: *self.service.me(),
            slot: 0,
            token: Token::from_bytes([0; 16]),
            in_directory: self.service.is_in_directory(),
        };
        let written = key.encode(&mut bytes);
        debug_assert!(written.is_ok(), "LEN holds a key");
        bytes
    }
}

/// Whether every process of the same user may trace this one, where Yama would allow its ancestors only (`prctl(2)`,
/// PR_SET_PTRACER). Asked for by each context anew: a fork's child does not inherit it.
#[derive(Debug)]
struct Tracers {
    wanted: bool,
    allowed: OnceLock<()>,
}

impl Tracers {
    fn allow(&self) {
        if self.wanted {
            self.allowed.get_or_init(|| {
                if let Err(error) = rustix::process::set_ptracer(rustix::process::PTracer::Any) {
                    tracing::debug!(%error, "UCX_CMA_PTRACER_ANY changes nothing here: there is no Yama");
                }
            });
        }
    }
}

/// Another process's addresses.
#[derive(Debug)]
struct CmaAttachment {
    target: Target,
    nonces: Nonces,
    /// Where the exporter has the in-flight page mapped.
    page: u64,
    gate: Gate,
    len: u64,
    rights: Rights,
    /// The exporter; kept, since its connection is what it knows us by.
    peer: Arc<Peer>,
}

impl CmaAttachment {
    /// Has `transfer` go on from where it stopped, as long as the pages there can be reached.
    fn complete(
        &self,
        (offset, for_writing): (u64, bool),
        mut transfer: impl FnMut(usize) -> Result<(), Stopped>,
    ) -> Result<(), AccessError> {
        let Err(mut stopped) = transfer(0) else { return Ok(()) };
        let mut tries = Tries::default();
        loop {
            self.explain(&stopped, offset, for_writing, &mut tries)?;
            match transfer(stopped.done) {
                Ok(()) => return Ok(()),
                Err(again) => stopped = again,
            }
        }
    }

    /// The error for a transfer that stopped; none if the page it stopped at has been mapped meanwhile.
    #[cold]
    fn explain(
        &self,
        stopped: &Stopped,
        offset: u64,
        for_writing: bool,
        tries: &mut Tries,
    ) -> Result<(), AccessError> {
        let done = stopped.done as u64;
        let gone = || {
            // From now on, also for whoever asks whether it lives.
            self.peer.link().set_gone();
            Err(AccessError::Stale { done, why: StaleReason::ExporterGone })
        };
        match stopped.why {
            Why::AnotherProcess => gone(),
            Why::Errno(Errno::SRCH) if self.peer.process().ends_within(DYING) => gone(),
            Why::Errno(Errno::SRCH) => Err(AccessError::Unsupported {
                why: "the exporter's main thread has ended, and the kernel reaches a process's memory by that",
            }),
            Why::Fault => {
                let process = self.peer.process();
                let address = self.target.address.wrapping_add(offset + done);
                let mapped = process.directory().map(|path| vm::mapped_at(&path, address, for_writing));
                if process.is_dead() {
                    return gone();
                }
                fault(mapped.unwrap_or(Mapped::Unknown), done, tries)
            }
            Why::Errno(Errno::PERM | Errno::ACCESS) => {
                Err(AccessError::AccessDenied { done, why: DeniedReason::NotAllowed })
            }
            Why::Errno(Errno::NOMEM) => {
                Err(AccessError::Unsupported { why: "the kernel had no memory for process_vm_readv/writev" })
            }
            Why::Errno(_) => {
                Err(AccessError::Unsupported { why: "the kernel refuses process_vm_readv/writev" })
            }
        }
    }
}

impl Attachment for CmaAttachment {
    fn len(&self) -> u64 {
        self.len
    }

    fn rights(&self) -> Rights {
        self.rights
    }

    fn read(&self, offset: u64, dst: &mut [u8]) -> Result<(), AccessError> {
        check_range(offset, dst.len(), self.len)?;
        self.gate.in_announced_steps(dst.len(), |inside, part| {
            let (at, dst) = (offset + part.start as u64, &mut dst[part]);
            let nonce = nonce_in(inside, self.page, &self.nonces);
            self.complete((at, false), |done| self.target.read(nonce, at, dst, done))
        })
    }

    fn write(&self, offset: u64, src: &[u8]) -> Result<(), AccessError> {
        self.rights.check_write()?;
        check_range(offset, src.len(), self.len)?;
        self.gate.in_announced_steps(src.len(), |inside, part| {
            let (at, src) = (offset + part.start as u64, &src[part]);
            let nonce = nonce_in(inside, self.page, &self.nonces);
            self.complete((at, true), |done| self.target.write(nonce, at, src, done))
        })
    }

    /// An access is a system call or two.
    fn good_piece(&self) -> usize {
        256 << 10
    }

    fn is_by_system_calls(&self) -> bool {
        true
    }

    fn atomic(&self, _offset: u64, _op: AtomicOp) -> Result<u64, AccessError> {
        Err(AccessError::Unsupported {
            why: "the kernel has no atomics on another process's memory, only copies: memory of MemMap::allocate is mapped, by shm",
        })
    }

    fn check(&self) -> Result<(), StaleReason> {
        self.gate.check()
    }

    fn view(&self) -> Option<MappedView<'_>> {
        None
    }
}
