//! The memory domain of `shm`.

use std::os::fd::AsFd;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use ucs::mem::{Access, Mapping, MemError, Memfd};

use super::Methods;
use super::mkey::{self, Mkey};
use super::peer::{Peer, Peers, unsafe_memory};
use crate::api::{
    AllocError, AttachError, AttachRequest, Attached, Attachment, ComponentId, GlobalId, LinearCost, Md,
    MdAttr, MdFlags, MdParams, MemTypes, Memh, PackError, PackFlags, RegError,
};
use crate::config::IMPORT_TIMEOUT;
use crate::export::table::number;
use crate::export::{Export, ExportTable, Gate};
use crate::memory::{AccessError, LocalMem, MappedView, Rights, StaleReason, check_range};
use crate::process::Identity;
use crate::service::Service;

/// The memory domain of `shm`: its global id is the system's boot.
#[derive(Debug)]
pub struct ShmMd {
    attr: MdAttr,
    params: MdParams,
    me: Identity,
    peers: Peers,
    patience: Duration,
}

impl ShmMd {
    pub(super) fn new(boot: [u8; 16], params: &MdParams, methods: Methods) -> Self {
        let attr = MdAttr {
            component: ComponentId::SHM,
            flags: MdFlags::ALLOC | MdFlags::RKEY_PTR | MdFlags::EXPORTED_MKEY,
            max_alloc: isize::MAX.unsigned_abs() as u64,
            max_reg: 0,
            reg_alignment: ucs::mem::page::page_size(),
            reg_cost: LinearCost::ZERO,
            alloc_mem_types: MemTypes::HOST,
            reg_mem_types: MemTypes::empty(),
            access_mem_types: MemTypes::HOST,
            rkey_packed_size: 0,
            exported_mkey_packed_size: mkey::LEN,
            global_id: GlobalId::from(boot),
            local_cpus: String::new(),
        };
        let me = Identity::of_self();
        Self {
            attr,
            params: params.clone(),
            me,
            peers: Peers::new(me, methods),
            patience: params.config.get(&IMPORT_TIMEOUT),
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
            region: OnceLock::new(),
            mem: Arc::clone(mem),
            me: self.me,
            service: Arc::clone(&self.params.service),
            exports: Arc::clone(&self.params.exports),
        }))
    }

    fn attach(&self, request: &AttachRequest<'_>) -> Result<Attached, AttachError> {
        let key = Mkey::decode(request.mkey).map_err(AttachError::Malformed)?;
        let len = usize::try_from(request.length)
            .map_err(|_| AttachError::Mem(MemError::TooLarge { wanted: request.length }))?;
        let (peer, region, how) = self.peers.reach(&key, request, &self.params.service)?;
        let access = if region.rights.contains(Rights::WRITE) { Access::ReadWrite } else { Access::Read };
        let map = Memfd::map_foreign(region.fd.as_fd(), len, access).map_err(unsafe_memory)?;
        let gate = Gate::new(
            Arc::clone(&peer.table),
            Arc::clone(&peer.slots),
            Some(Arc::clone(&peer.state)),
            (key.slot, request.id, request.epoch),
            self.patience,
        )
        .ok_or(AttachError::Malformed("no such line in the export table"))?;
        gate.check().map_err(|why| match why {
            StaleReason::Revoked => AttachError::Stale("the export was revoked or dropped"),
            _ => super::peer::GONE,
        })?;
        Ok(Attached {
            memory: Arc::new(ShmAttachment { map, gate, rights: region.rights, _peer: peer }),
            how,
        })
    }
}

/// A registration with `shm`: memory that it allocated.
#[derive(Debug)]
struct ShmMemh {
    /// Descriptor and inode of the memfd, asked at the first pack.
    region: OnceLock<Option<(u32, u64)>>,
    mem: Arc<LocalMem>,
    me: Identity,
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
        let unnumbered = PackError::Unsupported("the descriptors of the memory cannot be told");
        let key = Mkey {
            exporter: self.me,
            slot: export.claim().slot,
            token: export.claim().token,
            region: self.region.get_or_init(|| number(self.mem.file()?)).ok_or(unnumbered.clone())?,
            files: self.exports.file_numbers().ok_or(unnumbered)?,
            service: self.service.name(),
        };
        key.encode(out).map_err(PackError::from)
    }
}

/// Another process's memory, mapped.
#[derive(Debug)]
struct ShmAttachment {
    map: Mapping,
    gate: Gate,
    rights: Rights,
    /// Keeps the connection, by which the exporter knows of us.
    _peer: Arc<Peer>,
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

    fn check(&self) -> Result<(), StaleReason> {
        self.gate.check()
    }

    fn view(&self) -> Option<MappedView<'_>> {
        self.gate.is_mine().then(|| MappedView::new(self.map.bytes(), self.rights))
    }
}
