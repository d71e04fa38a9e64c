//! The memory domain of `cma`.

use std::sync::{Arc, Once, OnceLock};
use std::time::Duration;

use rustix::io::Errno;

use super::CMA_PTRACER_ANY;
use super::mkey::{self, Mkey};
use super::transfer::{Stopped, Target, Why};
use crate::api::{
    AllocError, AttachError, AttachRequest, Attached, Attachment, ComponentId, GlobalId, LinearCost, Md,
    MdAttr, MdFlags, MdParams, MemTypes, Memh, PackError, PackFlags, RegError,
};
use crate::config::IMPORT_TIMEOUT;
use crate::export::{Export, ExportTable, Gate, Token};
use crate::memory::{
    AccessError, DeniedReason, LocalMem, MappedView, Rights, StaleReason, Tries, check_range, fault,
};
use crate::process::Identity;
use crate::process::access::Facts;
use crate::process::vm::{self, Mapped};
use crate::service::peers::GONE;
use crate::service::server::name_of;
use crate::service::{Exporter, Peer, Service};

/// The memory domain of `cma`: its global id is the system's boot.
#[derive(Debug)]
pub struct CmaMd {
    attr: MdAttr,
    params: MdParams,
    patience: Duration,
}

impl CmaMd {
    pub(super) fn new(boot: [u8; 16], params: &MdParams) -> Self {
        let attr = MdAttr {
            component: ComponentId::CMA,
            flags: MdFlags::REG
                | MdFlags::EXPORTED_MKEY
                | MdFlags::INVALIDATE
                | MdFlags::VA_BOUND
                | MdFlags::REVOCABLE,
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
        };
        Self { attr, params: params.clone(), patience: params.config.get(&IMPORT_TIMEOUT) }
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
            exports: Arc::clone(&self.params.exports),
            ptracer_any: self.params.config.get(&CMA_PTRACER_ANY),
            key: OnceLock::new(),
        }))
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
        let nonce = (key.nonce_address, request.context_uuid);
        let target = Target { pid, nonce, address: request.address };
        let probed = match target.probe() {
            Ok(()) if grant.rights.contains(Rights::WRITE) => target.probe_writing(),
            probed => probed,
        };
        probed.map_err(|why| refused(why, &grant.peer, &key.exporter, service.me()))?;
        let (len, rights, peer) = (request.length, grant.rights, grant.peer);
        let memory = Arc::new(CmaAttachment { target, gate, len, rights, peer });
        Ok(Attached { memory, how: "process_vm_readv and process_vm_writev".to_owned() })
    }
}

/// Why the exporter's memory cannot be read, although the exporter has granted it.
fn refused(why: Why, peer: &Peer, exporter: &Identity, me: &Identity) -> AttachError {
    let errno = match why {
        _ if peer.process().is_dead() => return GONE,
        // The place of the nonce that the handle tells is none of the exporter's.
        Why::AnotherProcess | Why::Fault => return AttachError::Mismatch,
        Why::Errno(errno) => errno,
    };
    match errno {
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
    exports: Arc<ExportTable>,
    ptracer_any: bool,
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
        if self.ptracer_any {
            allow_any_tracer();
        }
        let mut key = *self.key.get_or_init(|| self.key_of_an_export());
        mkey::readdress(&mut key, export.claim());
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
            nonce_address: self.exports.uuid().as_ptr().addr() as u64,
            in_directory: self.service.is_in_directory(),
        };
        let written = key.encode(&mut bytes);
        debug_assert!(written.is_ok(), "LEN holds a key");
        bytes
    }
}

/// Lets every process of the same user trace this one, where Yama would allow its ancestors only (`prctl(2)`, PR_SET_PTRACER).
fn allow_any_tracer() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        if let Err(error) = rustix::process::set_ptracer(rustix::process::PTracer::Any) {
            tracing::debug!(%error, "UCX_CMA_PTRACER_ANY changes nothing here: there is no Yama");
        }
    });
}

/// Another process's addresses.
#[derive(Debug)]
struct CmaAttachment {
    target: Target,
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
        let stale = |why| Err(AccessError::Stale { done, why });
        match stopped.why {
            Why::AnotherProcess | Why::Errno(Errno::SRCH) => stale(StaleReason::ExporterGone),
            Why::Fault => {
                let process = self.peer.process();
                let address = self.target.address.wrapping_add(offset + done);
                let mapped = process.directory().map(|path| vm::mapped_at(&path, address, for_writing));
                if process.is_dead() {
                    return stale(StaleReason::ExporterGone);
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
        self.gate.in_steps(dst.len(), |part| {
            let (at, dst) = (offset + part.start as u64, &mut dst[part]);
            self.complete((at, false), |done| self.target.read(at, dst, done))
        })
    }

    fn write(&self, offset: u64, src: &[u8]) -> Result<(), AccessError> {
        self.rights.check_write()?;
        check_range(offset, src.len(), self.len)?;
        self.gate.in_steps(src.len(), |part| {
            let (at, src) = (offset + part.start as u64, &src[part]);
            self.complete((at, true), |done| self.target.write(at, src, done))
        })
    }

    fn check(&self) -> Result<(), StaleReason> {
        self.gate.check()
    }

    fn view(&self) -> Option<MappedView<'_>> {
        None
    }
}
