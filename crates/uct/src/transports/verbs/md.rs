//! The memory domain of `verbs`.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use ucs::mem::Access;
use ucs::mem::page::{PageRange, page_size};

use super::SHARE;
use super::device::Device;
use super::import::VerbsImport;
use super::mkey::{self, Mkey};
use super::placer::DevicePlacer;
use super::queue::Queue;
use super::sys::Mr;
use crate::api::{
    AllocError, AttachError, AttachRequest, Attached, ComponentId, GlobalId, LinearCost, LocalMemh, Md,
    MdAttr, MdFlags, MdParams, MemTypes, Memh, OpenError, PackError, PackFlags, RegError,
};
use crate::config::IMPORT_TIMEOUT;
use crate::export::{Export, Token};
use crate::memory::{LocalMem, Rights};
use crate::service::server::name_of;
use crate::service::{Exporter, Placer, Service};
use crate::transports::mkey::readdress;

/// The memory domain of a device: its global id is the system's boot, and the device's.
#[derive(Debug)]
pub struct VerbsMd {
    attr: MdAttr,
    device: Arc<Device>,
    loopback: Arc<Queue>,
    params: MdParams,
    patience: Duration,
    /// Kept for the service, which asks it as long as it lives.
    _placer: Option<Arc<dyn Placer>>,
}

impl VerbsMd {
    pub(super) fn open(boot: [u8; 16], name: &str, params: &MdParams) -> Result<Self, OpenError> {
        let device = Arc::new(Device::open(name)?);
        let is_shared = params.config.get(&SHARE);
        if is_shared && device.driver.is_none() {
            return Err(OpenError::Missing {
                what: "the kernel's taking of commands from other processes, which UCX_VERBS_SHARE=y needs,",
                remedy: "use Linux 5.0 or later, or set UCX_VERBS_SHARE=n",
            });
        }
        let placer: Option<Arc<dyn Placer>> = is_shared.then(|| {
            let placer: Arc<dyn Placer> = Arc::new(DevicePlacer { device: Arc::clone(&device) });
            params.service.place_by(Arc::downgrade(&placer));
            placer
        });
        let shared = if is_shared {
            MdFlags::EXPORTED_MKEY | MdFlags::INVALIDATE | MdFlags::REVOCABLE
        } else {
            MdFlags::empty()
        };
        let scope = [&boot[..], &device.context.guid()].concat();
        let attr = MdAttr {
            component: ComponentId::VERBS,
            flags: MdFlags::REG | MdFlags::NEED_MEMH | shared,
            max_alloc: 0,
            max_reg: device.max_mr,
            reg_alignment: page_size(),
            // What a card takes: an order of magnitude.
            reg_cost: LinearCost { base: 5e-6, per_byte: 0.06e-9 },
            access_cost: LinearCost { base: 3e-6, per_byte: 0.1e-9 },
            alloc_mem_types: MemTypes::empty(),
            reg_mem_types: MemTypes::HOST,
            access_mem_types: MemTypes::HOST,
            rkey_packed_size: 0,
            exported_mkey_packed_size: if is_shared { mkey::LEN } else { 0 },
            global_id: GlobalId::new(&scope)
                .ok_or(OpenError::Missing { what: "room for the global id", remedy: "report this" })?,
            local_cpus: String::new(),
        };
        let loopback = Arc::new(Queue::new(&device));
        let patience = params.config.get(&IMPORT_TIMEOUT);
        Ok(Self { attr, device, loopback, params: params.clone(), patience, _placer: placer })
    }
}

/// Pages registered for operands.
#[derive(Debug)]
pub(super) struct VerbsMemh(pub(super) Mr);

impl LocalMemh for VerbsMemh {}

impl Md for VerbsMd {
    fn attr(&self) -> &MdAttr {
        &self.attr
    }

    fn alloc(&self, _len: usize, _rights: Rights) -> Result<LocalMem, AllocError> {
        Err(AllocError::Unsupported)
    }

    fn reg(&self, mem: &Arc<LocalMem>) -> Result<Box<dyn Memh>, RegError> {
        let service = Arc::clone(&self.params.service);
        let guid = self.device.context.guid();
        let exports = self.attr.flags.contains(MdFlags::EXPORTED_MKEY);
        Ok(Box::new(ExportMemh { _mem: Arc::clone(mem), service, guid, exports, key: OnceLock::new() }))
    }

    fn reg_local(&self, range: PageRange, access: Access) -> Result<Box<dyn LocalMemh>, RegError> {
        let writes = access == Access::ReadWrite;
        Ok(Box::new(VerbsMemh(self.device.register(range.start(), range.len(), writes)?)))
    }

    fn attach(&self, request: &AttachRequest<'_>) -> Result<Attached, AttachError> {
        let key = Mkey::decode(request.mkey).map_err(AttachError::Malformed)?;
        let Some(driver) = self.device.driver.filter(|_| self.attr.flags.contains(MdFlags::EXPORTED_MKEY))
        else {
            return Err(AttachError::Unreachable {
                reason: "memory of other processes is not registered in this one's protection domain"
                    .to_owned(),
                remedy: "set UCX_VERBS_SHARE=y on both sides, which then trust each other fully",
            });
        };
        let name = name_of(&request.context_uuid).into_bytes();
        let exporter = Exporter::of(request, key.exporter, name, key.in_directory);
        let claim = request.claim(key.slot, key.token);
        let grant = self.params.service.reach(exporter, &claim, false, &request.deadline)?;
        let gate = grant.peer.link().gate(&claim, self.patience)?;
        let pd = self.device.pd.handle();
        let subject = (&request.context_uuid, &claim);
        let keys = grant.peer.place(subject, (self.device.context.command_fd(), pd), &request.deadline)?;
        let import = VerbsImport::new(
            (&self.device, driver),
            &self.loopback,
            gate,
            grant.peer,
            keys,
            (request.address, request.length, grant.rights),
        );
        Ok(Attached { memory: import, how: "registered in this process's protection domain".to_owned() })
    }
}

/// Exported memory: registered when an importer comes, in its domain.
#[derive(Debug)]
struct ExportMemh {
    _mem: Arc<LocalMem>,
    service: Arc<Service>,
    guid: [u8; 8],
    exports: bool,
    /// A key, made at the first pack: of another export.
    key: OnceLock<[u8; mkey::LEN]>,
}

impl Memh for ExportMemh {
    fn packed_size(&self, flags: PackFlags) -> Result<usize, PackError> {
        match (flags.contains(PackFlags::EXPORT), self.exports) {
            (true, true) => Ok(mkey::LEN),
            (true, false) => Err(PackError::Unsupported("verbs exports memory with UCX_VERBS_SHARE=y only")),
            (false, _) => Err(PackError::Unsupported("verbs packs exported keys only")),
        }
    }

    fn pack(&self, export: &Export, flags: PackFlags, out: &mut [u8]) -> Result<(), PackError> {
        PackError::check_size(self.packed_size(flags)?, out)?;
        self.service.serve()?;
        let mut key = *self.key.get_or_init(|| self.key_of_an_export());
        readdress(&mut key, export.claim());
        out.copy_from_slice(&key);
        Ok(())
    }
}

impl ExportMemh {
    fn key_of_an_export(&self) -> [u8; mkey::LEN] {
        let mut bytes = [0; mkey::LEN];
        let key = Mkey {
            exporter: *self.service.me(),
            slot: 0,
            token: Token::from_bytes([0; 16]),
            guid: self.guid,
            in_directory: self.service.is_in_directory(),
        };
        let written = key.encode(&mut bytes);
        debug_assert!(written.is_ok(), "LEN holds a key");
        bytes
    }
}
