//! The memory domain of `self`.

use std::sync::{Arc, Weak};
use std::time::Duration;

use super::iface::SelfIface;
use super::mkey;
use crate::api::{
    AllocError, AtomicOp, AttachError, AttachRequest, Attached, Attachment, ComponentId, GlobalId, Iface,
    IfaceError, LinearCost, Md, MdAttr, MdFlags, MdParams, MemTypes, Memh, PackError, PackFlags, RegError,
};
use crate::config::IMPORT_TIMEOUT;
use crate::export::{Export, Gate};
use crate::memory::{AccessError, LocalMem, MappedView, Rights, StaleReason, check_range};

/// The memory domain of `self`: its global id is the context's.
#[derive(Debug)]
pub struct SelfMd {
    attr: MdAttr,
    params: MdParams,
    patience: Duration,
}

impl SelfMd {
    pub(super) fn new(params: &MdParams) -> Self {
        let attr = MdAttr {
            component: ComponentId::SELF,
            flags: MdFlags::REG
                | MdFlags::EXPORTED_MKEY
                | MdFlags::INVALIDATE
                | MdFlags::VA_BOUND
                | MdFlags::REVOCABLE
                | MdFlags::ATOMICS,
            max_alloc: 0,
            max_reg: u64::MAX,
            reg_alignment: 1,
            reg_cost: LinearCost::ZERO,
            // As shm: the same copy behind the same gate.
            access_cost: LinearCost { base: 16e-9, per_byte: 0.025e-9 },
            alloc_mem_types: MemTypes::empty(),
            reg_mem_types: MemTypes::HOST,
            access_mem_types: MemTypes::HOST,
            rkey_packed_size: 0,
            exported_mkey_packed_size: mkey::LEN,
            global_id: GlobalId::from(*params.exports.uuid()),
            local_cpus: String::new(),
            notes: Vec::new(),
        };
        Self { attr, params: params.clone(), patience: params.config.get(&IMPORT_TIMEOUT) }
    }
}

impl Md for SelfMd {
    fn attr(&self) -> &MdAttr {
        &self.attr
    }

    fn alloc(&self, _len: usize, _rights: Rights) -> Result<LocalMem, AllocError> {
        Err(AllocError::Unsupported)
    }

    fn reg(&self, mem: &Arc<LocalMem>) -> Result<Box<dyn Memh>, RegError> {
        Ok(Box::new(SelfMemh { _mem: Arc::clone(mem) }))
    }

    fn open_iface(&self) -> Result<Option<Box<dyn Iface>>, IfaceError> {
        Ok(Some(Box::new(SelfIface::open(&self.params)?)))
    }

    fn attach(&self, request: &AttachRequest<'_>) -> Result<Attached, AttachError> {
        let key = mkey::Mkey::decode(request.mkey).ok_or(AttachError::Malformed("not a key of self"))?;
        if request.context_uuid != *self.params.exports.uuid() {
            return Err(AttachError::Mismatch);
        }
        let claim = request.claim(key.slot, key.token);
        let mem = self.params.exports.verify(&claim).map_err(AttachError::of_refusal)?;
        let (table, slots) = self.params.exports.local_view()?;
        let gate = Gate::new(table, slots, None, (claim.slot, claim.id, claim.epoch), self.patience)
            .ok_or(AttachError::Malformed("no such line in the export table"))?;
        let (len, rights) = (claim.length, mem.rights());
        let memory = Arc::new(SelfAttachment { gate, mem: Arc::downgrade(&mem), len, rights });
        Ok(Attached { memory, how: "within this context".to_owned() })
    }
}

/// A registration with `self`: it only keeps the memory.
#[derive(Debug)]
struct SelfMemh {
    _mem: Arc<LocalMem>,
}

impl Memh for SelfMemh {
    fn packed_size(&self, flags: PackFlags) -> Result<usize, PackError> {
        if flags.contains(PackFlags::EXPORT) {
            Ok(mkey::LEN)
        } else {
            Err(PackError::Unsupported("self needs no remote keys: it packs exported keys only"))
        }
    }

    fn pack(&self, export: &Export, flags: PackFlags, out: &mut [u8]) -> Result<(), PackError> {
        PackError::check_size(self.packed_size(flags)?, out)?;
        mkey::Mkey::of(export.claim()).encode(out).map_err(PackError::from)
    }
}

/// Memory of the same context, attached: mediated access through the export's gate.
#[derive(Debug)]
struct SelfAttachment {
    gate: Gate,
    /// Weak: an import does not keep the exporter's region alive.
    mem: Weak<LocalMem>,
    len: u64,
    rights: Rights,
}

impl SelfAttachment {
    fn mem(&self) -> Result<Arc<LocalMem>, AccessError> {
        self.mem.upgrade().ok_or(AccessError::Stale { done: 0, why: StaleReason::Revoked })
    }
}

impl Attachment for SelfAttachment {
    fn len(&self) -> u64 {
        self.len
    }

    fn rights(&self) -> Rights {
        self.rights
    }

    fn read(&self, offset: u64, dst: &mut [u8]) -> Result<(), AccessError> {
        check_range(offset, dst.len(), self.len)?;
        self.gate.in_steps(dst.len(), |part| {
            let at = offset + part.start as u64;
            self.mem()?.read(at, &mut dst[part])
        })
    }

    fn write(&self, offset: u64, src: &[u8]) -> Result<(), AccessError> {
        self.rights.check_write()?;
        check_range(offset, src.len(), self.len)?;
        self.gate.in_steps(src.len(), |part| {
            let at = offset + part.start as u64;
            self.mem()?.write(at, &src[part])
        })
    }

    fn atomic(&self, offset: u64, op: AtomicOp) -> Result<u64, AccessError> {
        self.rights.check_write()?;
        check_range(offset, op.size(), self.len)?;
        let mut before = 0;
        self.gate.in_steps(op.size(), |_| {
            before = self.mem()?.atomic(offset, op)?;
            Ok(())
        })?;
        Ok(before)
    }

    fn check(&self) -> Result<(), StaleReason> {
        self.gate.check()
    }

    fn view(&self) -> Option<MappedView<'_>> {
        None
    }
}
