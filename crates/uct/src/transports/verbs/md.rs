//! The memory domain of `verbs`.

use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use ucs::mem::Access;
use ucs::mem::page::{PageRange, page_size};

use super::address::to_listen_at;
use super::device::Device;
use super::import::VerbsImport;
use super::mkey::{self, Mkey};
use super::odp::{self, Unproven};
use super::placer::DevicePlacer;
use super::port::Choice;
use super::queue::Queue;
use super::rc::RcIface;
use super::remote::{At, Exports, Importers, Limits};
use super::sys::Mr;
use super::{GID_INDEX, REMOTE, SHARE};
use crate::api::{
    AllocError, AttachError, AttachRequest, Attached, ComponentId, GlobalId, Iface, IfaceError, LinearCost,
    LocalMemh, Md, MdAttr, MdFlags, MdParams, MemTypes, Memh, OpenError, PackError, PackFlags, RegError,
};
use crate::config::{ATOMIC_MODE, AtomicMode, IMPORT_TIMEOUT, NET_DEVICES};
use crate::export::{Export, Token};
use crate::memory::{LocalMem, Rights};
use crate::service::server::name_of;
use crate::service::{Exporter, Placer, Service, Tended, Tending};
use crate::transports::mkey::readdress;

/// The memory domain of a device: its global id is the network, or without other machines the system's boot and the device's guid.
#[derive(Debug)]
pub struct VerbsMd {
    attr: MdAttr,
    /// What its keys mean something to without other machines.
    nearby: GlobalId,
    device: Arc<Device>,
    loopback: Arc<Queue>,
    params: MdParams,
    patience: Duration,
    /// Whether it registers exported memory in domains of processes of its user, and has exporters do so.
    shares: bool,
    /// What happens to the device is told to the log.
    _tending: Tending,
    /// Whether its registrations of exported memory name the address.
    by_address: bool,
    /// The same in words, and why not.
    on_demand: String,
    /// Kept for the service, which asks it as long as it lives.
    _placer: Option<Arc<dyn Placer>>,
    /// `None`: memory of other machines is neither exported nor imported.
    remote: Option<RemoteSide>,
}

/// What a memory domain has for other machines.
#[derive(Debug)]
struct RemoteSide {
    importers: Importers,
    exports: Arc<Exports>,
    address: IpAddr,
    kind: u16,
}

/// The global id of what means something wherever there is a way to.
const NETWORK: &[u8] = b"net";
/// Kinds of calls to the service of other machines; each device of a context has one of its own.
const KINDS: RangeInclusive<u16> = 0x100..=0xfff;

impl RemoteSide {
    fn open(device: &Arc<Device>, by_address: bool, params: &MdParams) -> Option<Self> {
        let addresses = to_listen_at(device, &params.config);
        let addresses = addresses.inspect_err(|error| tracing::debug!(%error, "nothing for other machines"));
        let address = *addresses.ok()?.first()?;
        let exports = Arc::new(Exports::new(device, by_address, &params.exports, Limits::default()));
        let responder: Weak<Exports> = Arc::downgrade(&exports);
        let kind = params.service.respond_in(KINDS, responder)?;
        let importers = Importers::new(device, &params.service, params.config.get(&IMPORT_TIMEOUT));
        Some(Self { importers, exports, address, kind })
    }
}

impl VerbsMd {
    pub(super) fn open(boot: [u8; 16], name: &str, params: &MdParams) -> Result<Self, OpenError> {
        let config = &params.config;
        let choice = Choice { devices: config.get(&NET_DEVICES), gid_index: config.get(&GID_INDEX) };
        let device = Device::open(name, &choice).inspect_err(|error| {
            if choice.is_for(name) {
                tracing::warn!(device = name, %error, remedy = error.remedy(), "an RDMA device is not used");
            }
        });
        let mut device = device?;
        device.does_atomics = device.has_atomics && config.get(&ATOMIC_MODE) == AtomicMode::Device;
        let device = Arc::new(device);
        let on_demand = odp::decide(&device, config)?;
        Self::of_device(boot, device, &on_demand, params)
    }

    /// Of an opened device; `on_demand`: whether it is proven to reach exported memory by its address.
    pub(super) fn of_device(
        boot: [u8; 16],
        device: Arc<Device>,
        on_demand: &Result<(), Unproven>,
        params: &MdParams,
    ) -> Result<Self, OpenError> {
        let by_address = on_demand.is_ok();
        let is_shared = params.config.get(&SHARE);
        if is_shared && device.driver.is_none() {
            return Err(OpenError::Missing {
                what: "the kernel's taking of commands from other processes, which UCX_VERBS_SHARE=y needs,",
                remedy: "use Linux 5.0 or later, or set UCX_VERBS_SHARE=n",
            });
        }
        let placer: Option<Arc<dyn Placer>> = is_shared.then(|| {
            let placer: Arc<dyn Placer> = Arc::new(DevicePlacer { device: Arc::clone(&device), by_address });
            params.service.place_by(Arc::downgrade(&placer));
            placer
        });
        let remote =
            params.config.get(&REMOTE).then(|| RemoteSide::open(&device, by_address, params)).flatten();
        let exports = is_shared || remote.is_some();
        let exported = if exports {
            let bound = if by_address { MdFlags::VA_BOUND } else { MdFlags::empty() };
            MdFlags::EXPORTED_MKEY | MdFlags::INVALIDATE | MdFlags::REVOCABLE | bound
        } else {
            MdFlags::empty()
        };
        let atomics = if device.does_atomics { MdFlags::DEVICE_ATOMICS } else { MdFlags::empty() };
        let nearby = GlobalId::new(&[&boot[..], &device.context.guid()].concat());
        let global_id = if remote.is_some() { GlobalId::new(NETWORK) } else { nearby.clone() };
        let no_room = OpenError::Missing { what: "room for the global id", remedy: "report this" };
        let attr = MdAttr {
            component: ComponentId::VERBS,
            flags: MdFlags::REG | MdFlags::NEED_MEMH | exported | atomics,
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
            exported_mkey_packed_size: if exports { mkey::LEN } else { 0 },
            global_id: global_id.ok_or(no_room.clone())?,
            local_cpus: String::new(),
        };
        let on_demand = match on_demand {
            Ok(()) => "proven: exported memory is reached by its address".to_owned(),
            Err(why) => format!("not used, exported memory is pinned: {why}"),
        };
        let loopback = Arc::new(Queue::new(&device));
        let patience = params.config.get(&IMPORT_TIMEOUT);
        let tending = params.service.tend(Arc::clone(&device.events) as Arc<dyn Tended>);
        let (params, shares) = (params.clone(), is_shared);
        let nearby = nearby.ok_or(no_room)?;
        Ok(Self {
            attr,
            nearby,
            device,
            loopback,
            params,
            patience,
            shares,
            _tending: tending,
            by_address,
            on_demand,
            _placer: placer,
            remote,
        })
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

    fn details(&self) -> Vec<(&'static str, String)> {
        let mut all = self.device.port.details();
        all.push(("on-demand paging", self.on_demand.clone()));
        all
    }

    fn alloc(&self, _len: usize, _rights: Rights) -> Result<LocalMem, AllocError> {
        Err(AllocError::Unsupported)
    }

    fn reg(&self, mem: &Arc<LocalMem>) -> Result<Box<dyn Memh>, RegError> {
        let net =
            self.remote.as_ref().map(|remote| (remote.kind, remote.address, Arc::clone(&remote.exports)));
        Ok(Box::new(ExportMemh {
            _mem: Arc::clone(mem),
            service: Arc::clone(&self.params.service),
            guid: self.device.context.guid(),
            shares: self.shares,
            by_address: self.by_address,
            net,
            key: OnceLock::new(),
        }))
    }

    fn reg_local(&self, range: PageRange, access: Access) -> Result<Box<dyn LocalMemh>, RegError> {
        let writes = access == Access::ReadWrite;
        Ok(Box::new(VerbsMemh(self.device.register(range.start(), range.len(), writes)?)))
    }

    /// Also a key for other machines, where its exporter is on this one.
    fn can_attach(&self, component: ComponentId, global_id: &[u8]) -> bool {
        component == ComponentId::VERBS && (global_id == NETWORK || global_id == self.nearby.as_bytes())
    }

    fn open_iface(&self) -> Result<Option<Box<dyn Iface>>, IfaceError> {
        Ok(Some(Box::new(RcIface::open(&self.device, &self.params)?)))
    }

    fn attach(&self, request: &AttachRequest<'_>) -> Result<Attached, AttachError> {
        let key = Mkey::decode(request.mkey).map_err(AttachError::Malformed)?;
        let is_nearby = self.shares && key.shares && key.guid == self.device.context.guid();
        let nearby = if is_nearby { self.attach_nearby(request, &key) } else { Err(not_nearby()) };
        match (nearby, &self.remote, key.net) {
            (Err(AttachError::Unreachable { reason, .. }), Some(remote), Some(_)) => {
                tracing::debug!(
                    reason,
                    "exported memory is not registered in this process's protection domain"
                );
                remote.attach(request, &key)
            }
            (Err(AttachError::Unreachable { .. }), None, Some(_)) if !is_nearby => {
                Err(AttachError::Unreachable {
                    reason: "memory of other machines is not imported by this device".to_owned(),
                    remedy: "set UCX_VERBS_REMOTE=y, and give the device's network interface an IP address",
                })
            }
            (nearby, ..) => nearby,
        }
    }
}

/// What it means that memory is not registered in this process's domain, nor reached in another way.
fn not_nearby() -> AttachError {
    AttachError::Unreachable {
        reason: "its exporter does not offer it to other machines, and not to this process on its own"
            .to_owned(),
        remedy: "set UCX_VERBS_REMOTE=y for the exporter, or, on one machine, UCX_VERBS_SHARE=y on both sides, which then trust each other fully",
    }
}

impl RemoteSide {
    fn attach(&self, request: &AttachRequest<'_>, key: &Mkey) -> Result<Attached, AttachError> {
        let (kind, address) = key.net.ok_or_else(not_nearby)?;
        let (uuid, guid, by_address) = (&request.context_uuid, key.guid, key.by_address);
        let at = At { uuid, address, kind, guid, by_address };
        let claim = request.claim(key.slot, key.token);
        let memory = self.importers.attach(&at, &claim, &request.deadline)?;
        Ok(Attached { memory, how: format!("connected with its device at {}", address.ip()) })
    }
}

impl VerbsMd {
    fn attach_nearby(&self, request: &AttachRequest<'_>, key: &Mkey) -> Result<Attached, AttachError> {
        let driver = self.device.driver.ok_or_else(not_nearby)?;
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
            key.by_address,
        );
        Ok(Attached { memory: import, how: "registered in this process's protection domain".to_owned() })
    }
}

/// Exported memory: registered when an importer comes, for it.
#[derive(Debug)]
struct ExportMemh {
    _mem: Arc<LocalMem>,
    service: Arc<Service>,
    guid: [u8; 8],
    shares: bool,
    by_address: bool,
    /// The kind and address of the service of other machines. Who answers there lives as long as there is memory to attach.
    net: Option<(u16, IpAddr, Arc<Exports>)>,
    /// A key, made at the first pack: of another export.
    key: OnceLock<[u8; mkey::LEN]>,
}

impl Memh for ExportMemh {
    fn packed_size(&self, flags: PackFlags) -> Result<usize, PackError> {
        match (flags.contains(PackFlags::EXPORT), self.shares || self.net.is_some()) {
            (true, true) => Ok(mkey::LEN),
            (true, false) => Err(PackError::Unsupported(
                "verbs exports memory with UCX_VERBS_SHARE=y or UCX_VERBS_REMOTE=y only",
            )),
            (false, _) => Err(PackError::Unsupported("verbs packs exported keys only")),
        }
    }

    fn pack(&self, export: &Export, flags: PackFlags, out: &mut [u8]) -> Result<(), PackError> {
        PackError::check_size(self.packed_size(flags)?, out)?;
        self.service.serve()?;
        let mut key = match self.key.get() {
            Some(key) => *key,
            None => *self.key.get_or_init({
                let key = self.key_of_an_export()?;
                move || key
            }),
        };
        readdress(&mut key, export.claim());
        out.copy_from_slice(&key);
        Ok(())
    }
}

impl ExportMemh {
    fn key_of_an_export(&self) -> Result<[u8; mkey::LEN], PackError> {
        let net = match &self.net {
            None => None,
            Some((kind, address, _)) => match self.service.serve_net(&[*address]) {
                Ok(listening) => listening.first().map(|at| (*kind, *at)),
                // On this machine it can be imported all the same.
                Err(error) if self.shares => {
                    tracing::warn!(%error, "exported memory is not offered to other machines");
                    None
                }
                Err(error) => return Err(error.into()),
            },
        };
        let mut bytes = [0; mkey::LEN];
        let key = Mkey {
            exporter: *self.service.me(),
            slot: 0,
            token: Token::from_bytes([0; 16]),
            guid: self.guid,
            in_directory: self.service.is_in_directory(),
            shares: self.shares,
            by_address: self.by_address,
            net,
        };
        let written = key.encode(&mut bytes);
        debug_assert!(written.is_ok(), "LEN holds a key");
        Ok(bytes)
    }
}
