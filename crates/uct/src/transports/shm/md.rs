//! The memory domain of `shm`.

use std::os::fd::AsFd;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use ucs::mem::{Access, Mapping, MemError, Memfd};

use super::direct::{Direct, Directs, Region};
use super::iface::ShmIface;
use super::mkey::{self, Mkey};
use super::{METHOD_NAMES, Methods};
use crate::api::{
    AllocError, AtomicOp, AttachError, AttachRequest, Attached, Attachment, ComponentId, GlobalId, Iface,
    IfaceError, LinearCost, Md, MdAttr, MdFlags, MdParams, MemTypes, Memh, PackError, PackFlags, RegError,
};
use crate::config::IMPORT_TIMEOUT;
use crate::export::table::number;
use crate::export::{Claim, Export, ExportTable, Gate, Token};
use crate::memory::{AccessError, LocalMem, MappedView, Rights, StaleReason, check_range};
use crate::service::peers::unsafe_memory;
use crate::service::server::name_of;
use crate::service::{Exporter, Link, Peer, Service};
use crate::transports::mkey::readdress;

/// The memory domain of `shm`: its global id is the system's boot.
#[derive(Debug)]
pub struct ShmMd {
    attr: MdAttr,
    boot: [u8; 16],
    params: MdParams,
    /// The ways to attach that may be tried.
    methods: Methods,
    directs: Directs,
    patience: Duration,
}

impl ShmMd {
    pub(super) fn new(boot: [u8; 16], params: &MdParams, methods: Methods) -> Self {
        let attr = MdAttr {
            component: ComponentId::SHM,
            flags: MdFlags::ALLOC | MdFlags::RKEY_PTR | MdFlags::EXPORTED_MKEY | MdFlags::ATOMICS,
            max_alloc: isize::MAX.unsigned_abs() as u64,
            max_reg: 0,
            reg_alignment: ucs::mem::page::page_size(),
            reg_cost: LinearCost::ZERO,
            // Measured by `cargo bench -p rucx-benches --bench export`, rows "import.read".
            access_cost: LinearCost { base: 16e-9, per_byte: 0.025e-9 },
            alloc_mem_types: MemTypes::HOST,
            reg_mem_types: MemTypes::empty(),
            access_mem_types: MemTypes::HOST,
            rkey_packed_size: 0,
            exported_mkey_packed_size: mkey::LEN,
            global_id: GlobalId::from(boot),
            local_cpus: String::new(),
            notes: Vec::new(),
        };
        Self {
            attr,
            boot,
            params: params.clone(),
            methods,
            directs: Directs::default(),
            patience: params.config.get(&IMPORT_TIMEOUT),
        }
    }

    /// The exporter of `key`, and the descriptor of the region: by the ways that are allowed, one after the other.
    fn reach(
        &self,
        key: &Mkey,
        claim: &Claim,
        request: &AttachRequest<'_>,
    ) -> Result<(Reached, Region), AttachError> {
        let exporter = Exporter::of(request, key.exporter, key.service.clone(), key.in_directory);
        if let Some(direct) = self.directs.known(&exporter, key) {
            match direct.region(key, claim) {
                Err(AttachError::Unreachable { .. }) => {} // its rights are other ones now: there may be other ways
                region => return region.map(|region| (Reached::Direct(direct), region)),
            }
        }
        let service = &self.params.service;
        let mut reasons = Vec::new();
        let mut remedy = "allow a way to attach in UCX_SHM_ATTACH";
        for (name, method) in METHOD_NAMES {
            if !self.methods.contains(*method) {
                continue;
            }
            let attempt = if *method == Methods::SOCKET {
                let grant = service.reach(exporter.clone(), claim, true, &request.deadline);
                grant.and_then(|grant| {
                    let fd = grant.memory.ok_or(AttachError::Malformed("no descriptor of the memory"))?;
                    Ok((Reached::Socket(grant.peer), Region { fd, rights: grant.rights }))
                })
            } else {
                let reached = self.directs.reach(*method, &exporter, key, claim, service);
                reached.map(|(direct, region)| (Reached::Direct(direct), region))
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
}

/// An exporter, and the way it was reached.
#[derive(Debug)]
enum Reached {
    Socket(Arc<Peer>),
    Direct(Arc<Direct>),
}

impl Reached {
    fn link(&self) -> &Link {
        match self {
            Self::Socket(peer) => peer.link(),
            Self::Direct(direct) => direct.link(),
        }
    }

    fn how(&self) -> &'static str {
        match self {
            Self::Socket(_) => "descriptor passed over the exporter's service socket",
            Self::Direct(direct) => direct.how(),
        }
    }
}

impl Md for ShmMd {
    fn attr(&self) -> &MdAttr {
        &self.attr
    }

    fn alloc(&self, len: usize, rights: Rights) -> Result<LocalMem, AllocError> {
        Ok(LocalMem::memfd(len, rights)?)
    }

    fn reg(&self, mem: &Arc<LocalMem>) -> Result<Box<dyn Memh>, RegError> {
        mem.file().ok_or(RegError::Unsupported {
            kind: mem.kind(),
            why: "shm can only give away memory that it allocated: use MemMap::allocate",
        })?;
        Ok(Box::new(ShmMemh {
            key: OnceLock::new(),
            mem: Arc::clone(mem),
            service: Arc::clone(&self.params.service),
            exports: Arc::clone(&self.params.exports),
        }))
    }

    fn open_iface(&self) -> Result<Option<Box<dyn Iface>>, IfaceError> {
        Ok(Some(Box::new(ShmIface::open(self.boot, &self.params)?)))
    }

    fn attach(&self, request: &AttachRequest<'_>) -> Result<Attached, AttachError> {
        let key = Mkey::decode(request.mkey).map_err(AttachError::Malformed)?;
        let len = usize::try_from(request.length)
            .map_err(|_| AttachError::Mem(MemError::TooLarge { wanted: request.length }))?;
        // A key that names somebody else's socket would have this process connect there.
        if key.service != name_of(&request.context_uuid).as_bytes() {
            return Err(AttachError::Malformed("its service socket is not that of the exporting context"));
        }
        let claim = request.claim(key.slot, key.token);
        let (peer, region) = self.reach(&key, &claim, request)?;
        let access = if region.rights.contains(Rights::WRITE) { Access::ReadWrite } else { Access::Read };
        let map = Memfd::map_foreign(region.fd.as_fd(), len, access).map_err(unsafe_memory)?;
        let gate = peer.link().gate(&claim, self.patience)?;
        let how = peer.how().to_owned();
        Ok(Attached {
            memory: Arc::new(ShmAttachment { map, gate, rights: region.rights, _peer: peer }),
            how,
        })
    }
}

/// A registration with `shm`: memory that it allocated.
#[derive(Debug)]
struct ShmMemh {
    /// A key, made at the first pack: of another export.
    key: OnceLock<[u8; mkey::LEN]>,
    mem: Arc<LocalMem>,
    service: Arc<Service>,
    exports: Arc<ExportTable>,
}

impl Memh for ShmMemh {
    fn packed_size(&self, flags: PackFlags) -> Result<usize, PackError> {
        if flags.intersects(PackFlags::INVALIDATE_RMA | PackFlags::INVALIDATE_AMO) {
            return Err(PackError::Unsupported(
                "shm cannot invalidate a key: a mapping cannot be taken back",
            ));
        }
        if flags.contains(PackFlags::EXPORT) {
            Ok(mkey::LEN)
        } else {
            Err(PackError::Unsupported("shm packs exported keys only"))
        }
    }

    fn pack(&self, export: &Export, flags: PackFlags, out: &mut [u8]) -> Result<(), PackError> {
        PackError::check_size(self.packed_size(flags)?, out)?;
        self.service.serve()?;
        debug_assert_eq!(export.claim().address, self.mem.address(), "the export is of this memory");
        let mut key = match self.key.get() {
            Some(key) => *key,
            None => {
                let key = self.key_of_an_export()?;
                *self.key.get_or_init(|| key)
            }
        };
        readdress(&mut key, export.claim());
        out.copy_from_slice(&key);
        Ok(())
    }
}

impl ShmMemh {
    fn key_of_an_export(&self) -> Result<[u8; mkey::LEN], PackError> {
        let unnumbered = PackError::Unsupported("the descriptors of the memory cannot be told");
        let mut bytes = [0; mkey::LEN];
        let key = Mkey {
            exporter: *self.service.me(),
            slot: 0,
            token: Token::from_bytes([0; 16]),
            region: self.mem.file().and_then(number).ok_or(unnumbered.clone())?,
            files: self.exports.file_numbers().ok_or(unnumbered)?,
            service: self.service.name(),
            in_directory: self.service.is_in_directory(),
        };
        key.encode(&mut bytes)?;
        Ok(bytes)
    }
}

/// Another process's memory, mapped.
#[derive(Debug)]
struct ShmAttachment {
    map: Mapping,
    gate: Gate,
    rights: Rights,
    /// Keeps the connection, by which the exporter knows of us.
    _peer: Reached,
}

impl Attachment for ShmAttachment {
    fn len(&self) -> u64 {
        self.map.bytes().len() as u64
    }

    fn rights(&self) -> Rights {
        self.rights
    }

    fn read(&self, offset: u64, dst: &mut [u8]) -> Result<(), AccessError> {
        check_range(offset, dst.len(), self.len())?;
        self.gate.in_steps(dst.len(), |part| {
            Ok(self.map.bytes().read(offset + part.start as u64, &mut dst[part])?)
        })
    }

    fn write(&self, offset: u64, src: &[u8]) -> Result<(), AccessError> {
        self.rights.check_write()?;
        check_range(offset, src.len(), self.len())?;
        self.gate
            .in_steps(src.len(), |part| Ok(self.map.bytes().write(offset + part.start as u64, &src[part])?))
    }

    fn atomic(&self, offset: u64, op: AtomicOp) -> Result<u64, AccessError> {
        self.rights.check_write()?;
        check_range(offset, op.size(), self.len())?;
        let mut before = 0;
        self.gate.in_steps(op.size(), |_| {
            before = op.run(self.map.bytes(), offset)?;
            Ok(())
        })?;
        Ok(before)
    }

    fn check(&self) -> Result<(), StaleReason> {
        self.gate.check()
    }

    fn view(&self) -> Option<MappedView<'_>> {
        self.gate.is_mine().then(|| MappedView::new(self.map.bytes(), self.rights))
    }
}
