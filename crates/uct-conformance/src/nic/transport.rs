//! The NIC as a transport: a component for contexts of this process, whose operands and exports are registrations of pages.
//!
//! An export is a registration of the exporter's memory, an operand one of the importer's; an operation moves bytes from the pages of
//! one to the pages of the other, whatever is mapped at the addresses by then. So what a registration cache gets wrong is seen in the
//! bytes. It reaches contexts of this process that have a component of the same NIC, as a loopback of a card would.
//!
//! Its exports are not address-bound ([`MdFlags::VA_BOUND`]): after a remap they reach the old pages.
//!
//! # Safety
//! Pages are written through two kinds of registration: of exported memory, which peers may write at any time (contract of
//! [`LocalMem`]), and of an operand that is being written (contract of [`LocalMut`], which comes with a registration of just its pages). A key names
//! a line of the exporter's table, not a registration: who makes one up reaches none.

#![allow(unsafe_code)]

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use ucs::mem::Access;
use ucs::mem::page::{PageRange, page_size};
use uct::api::{
    AllocError, AttachError, AttachRequest, Attached, Attachment, Capability, Component, ComponentId,
    GlobalId, LinearCost, LocalMemh, Md, MdAttr, MdFlags, MdParams, MdResource, MemTypes, Memh, OpenError,
    PackError, PackFlags, RegError,
};
use uct::export::{Claim, Export, ExportTable, Gate, Token, registry};
use uct::memory::{
    AccessError, Local, LocalMem, LocalMut, MappedView, OperandReason, Rights, StaleReason, check_range,
};

use super::{DmaError, Mr, Nic, RegisterError};

/// Bytes of a key: the line of the export table, and the token.
const KEY_LEN: usize = 4 + 16;

/// Its number in handles: none that a transport of the library has.
pub const NIC_COMPONENT: ComponentId = ComponentId(0xfff0);

/// NICs as a transport named `nic`: operands need registration. A context gets it by `ContextBuilder::component`.
#[derive(Debug)]
pub struct NicComponent {
    cards: Vec<Card>,
}

/// All there are: so that a checker of leaks finds them.
static LEAKED: Mutex<Vec<&'static NicComponent>> = Mutex::new(Vec::new());

/// One NIC, with what is exported by it.
#[derive(Clone, Debug)]
struct Card {
    nic: Arc<Nic>,
    /// By exporting context and export.
    exported: Arc<Mutex<Exported>>,
}

type Exported = HashMap<([u8; 16], u64), Exporting>;

/// A registration that importers use, also when whoever made it has dropped it, until its export ends.
#[derive(Debug)]
struct Exporting {
    pinned: Arc<Pinned>,
    table: Weak<ExportTable>,
    claim: Claim,
}

impl Exporting {
    fn lives(&self) -> bool {
        self.table.upgrade().is_some_and(|table| table.verify(&self.claim).is_ok())
    }
}

impl NicComponent {
    /// A memory domain for each of these NICs, for as long as the process runs.
    #[must_use]
    pub fn leak(nics: &[Arc<Nic>]) -> &'static Self {
        let card = |nic: &Arc<Nic>| Card { nic: Arc::clone(nic), exported: Arc::default() };
        let component: &'static Self = Box::leak(Box::new(Self { cards: nics.iter().map(card).collect() }));
        LEAKED.lock().push(component);
        component
    }
}

impl Component for NicComponent {
    fn id(&self) -> ComponentId {
        NIC_COMPONENT
    }

    fn name(&self) -> &'static str {
        "nic"
    }

    fn capabilities(&self) -> &'static [Capability] {
        &[
            Capability { name: "reg", supported: true, note: "memory that may be written" },
            Capability { name: "export", supported: true, note: "to contexts of this process" },
            Capability { name: "address-bound", supported: false, note: "the pages of then" },
        ]
    }

    fn query_mds(&self) -> Vec<MdResource> {
        (0..self.cards.len()).map(|number| MdResource { name: format!("nic{number}") }).collect()
    }

    fn open_md(&self, resource: &MdResource, params: &MdParams) -> Result<Arc<dyn Md>, OpenError> {
        let number = resource.name.strip_prefix("nic").and_then(|number| number.parse().ok());
        let card = number.and_then(|number: usize| self.cards.get(number));
        let card = card.ok_or(OpenError::Missing { what: "this NIC", remedy: "name one of query_mds" })?;
        let scope = (std::process::id(), Arc::as_ptr(&card.nic).addr());
        let scope = [&scope.0.to_ne_bytes()[..], &scope.1.to_ne_bytes()].concat();
        let attr = MdAttr {
            component: NIC_COMPONENT,
            flags: MdFlags::REG
                | MdFlags::EXPORTED_MKEY
                | MdFlags::INVALIDATE
                | MdFlags::REVOCABLE
                | MdFlags::NEED_MEMH,
            max_alloc: 0,
            max_reg: Nic::MAX_LEN as u64,
            reg_alignment: page_size(),
            reg_cost: LinearCost { base: 0.4e-6, per_byte: 9e-12 },
            access_cost: LinearCost { base: 1.4e-6, per_byte: 0.2e-9 },
            alloc_mem_types: MemTypes::empty(),
            reg_mem_types: MemTypes::HOST,
            access_mem_types: MemTypes::HOST,
            rkey_packed_size: 0,
            exported_mkey_packed_size: KEY_LEN,
            global_id: GlobalId::new(&scope).expect("a few bytes"),
            local_cpus: String::new(),
            notes: Vec::new(),
        };
        let patience = params.config.get(&uct::config::IMPORT_TIMEOUT);
        let Card { nic, exported } = card.clone();
        Ok(Arc::new(NicMd { attr, nic, exported, exports: Arc::clone(&params.exports), patience }))
    }
}

#[derive(Debug)]
struct NicMd {
    attr: MdAttr,
    nic: Arc<Nic>,
    exported: Arc<Mutex<Exported>>,
    exports: Arc<ExportTable>,
    patience: Duration,
}

/// A registration, of an operand or of exported memory; it ends with this.
#[derive(Debug)]
struct Pinned {
    nic: Arc<Nic>,
    mr: Mr,
}

impl LocalMemh for Pinned {}

impl Pinned {
    fn new(nic: &Arc<Nic>, address: usize, len: usize) -> Result<Self, RegError> {
        // SAFETY: pinning changes nothing; the pages are read and written as the module rule says.
        let mr = unsafe { nic.register(address, len) }.map_err(reg_error)?;
        Ok(Self { nic: Arc::clone(nic), mr })
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // In a fork's child there is none.
        let _ = self.nic.deregister(self.mr);
    }
}

fn reg_error(error: RegisterError) -> RegError {
    let why = error.to_string();
    match error {
        RegisterError::Fault | RegisterError::Unpinnable(_) | RegisterError::Range { .. } => {
            RegError::Pages { why }
        }
        RegisterError::Full { .. } | RegisterError::Limit { .. } | RegisterError::MemLock { .. } => {
            RegError::Limit { why, remedy: "register less at once, or raise the limit" }
        }
        _ => RegError::Refused { why },
    }
}

impl Md for NicMd {
    fn attr(&self) -> &MdAttr {
        &self.attr
    }

    fn alloc(&self, _len: usize, _rights: Rights) -> Result<LocalMem, AllocError> {
        Err(AllocError::Unsupported)
    }

    fn reg(&self, mem: &Arc<LocalMem>) -> Result<Box<dyn Memh>, RegError> {
        let address = usize::try_from(mem.address()).expect("an address");
        let pinned = Arc::new(Pinned::new(&self.nic, address, mem.len())?);
        let (exported, table) = (Arc::clone(&self.exported), Arc::downgrade(&self.exports));
        Ok(Box::new(NicMemh { pinned, exported, table, packed: Mutex::default(), _mem: Arc::clone(mem) }))
    }

    fn reg_local(&self, range: PageRange, _access: Access) -> Result<Box<dyn LocalMemh>, RegError> {
        Ok(Box::new(Pinned::new(&self.nic, range.start(), range.len())?))
    }

    fn attach(&self, request: &AttachRequest<'_>) -> Result<Attached, AttachError> {
        let malformed = AttachError::Malformed("not a key of the NIC");
        let Some((slot, token)) = request.mkey.split_first_chunk().filter(|(_, token)| token.len() == 16)
        else {
            return Err(malformed);
        };
        let token = token.try_into().map_err(|_| malformed)?;
        let claim = request.claim(u32::from_le_bytes(*slot), Token::from_bytes(token));
        let gone = AttachError::Stale("the exporting context is gone");
        let table = registry::find(&request.context_uuid).ok_or(gone)?;
        let mem = table.verify(&claim).map_err(AttachError::of_refusal)?;
        let exported = self.exported.lock();
        // It was there when it was verified.
        let ended = AttachError::Stale("the export was revoked or dropped");
        let entry = exported.get(&(request.context_uuid, claim.id)).ok_or(ended)?;
        let remote = Arc::downgrade(&entry.pinned);
        drop(exported);
        let (table, slots) = table.local_view()?;
        let gate = Gate::new(table, slots, None, (claim.slot, claim.id, claim.epoch), self.patience)
            .ok_or(AttachError::Mismatch)?;
        let address = usize::try_from(claim.address).map_err(|_| AttachError::Mismatch)?;
        let memory = NicAttachment { gate, remote, address, len: claim.length, rights: mem.rights() };
        Ok(Attached { memory: Arc::new(memory), how: "from pages to pages".to_owned() })
    }
}

/// Memory registered to be exported.
#[derive(Debug)]
struct NicMemh {
    pinned: Arc<Pinned>,
    exported: Arc<Mutex<Exported>>,
    table: Weak<ExportTable>,
    /// What it has packed.
    packed: Mutex<Vec<([u8; 16], u64)>>,
    /// Kept, as its registration is: dropped after it.
    _mem: Arc<LocalMem>,
}

impl Memh for NicMemh {
    fn packed_size(&self, flags: PackFlags) -> Result<usize, PackError> {
        if flags.contains(PackFlags::EXPORT) {
            Ok(KEY_LEN)
        } else {
            Err(PackError::Unsupported("it packs exported keys only"))
        }
    }

    fn pack(&self, export: &Export, flags: PackFlags, out: &mut [u8]) -> Result<(), PackError> {
        PackError::check_size(self.packed_size(flags)?, out)?;
        let claim = export.claim();
        let uuid = self.table.upgrade().map(|table| *table.uuid());
        let uuid = uuid.ok_or(PackError::Unsupported("the context is gone"))?;
        let (pinned, table) = (Arc::clone(&self.pinned), self.table.clone());
        let mut exported = self.exported.lock();
        if exported.len() == exported.capacity() {
            exported.retain(|_, entry| entry.lives());
        }
        exported.insert((uuid, claim.id), Exporting { pinned, table, claim: *claim });
        self.packed.lock().push((uuid, claim.id));
        let (slot, token) = out.split_at_mut(4);
        slot.copy_from_slice(&claim.slot.to_le_bytes());
        token.copy_from_slice(claim.token.as_bytes());
        Ok(())
    }
}

impl Drop for NicMemh {
    /// Ends the registration, unless an export of it lives on: then the next one that runs out of room does.
    fn drop(&mut self) {
        let mut exported = self.exported.lock();
        for key in self.packed.get_mut().drain(..) {
            if exported.get(&key).is_some_and(|entry| !entry.lives()) {
                exported.remove(&key);
            }
        }
    }
}

/// Exported memory, attached: its pages of then.
#[derive(Debug)]
struct NicAttachment {
    gate: Gate,
    remote: Weak<Pinned>,
    /// Where the exporter's memory begins.
    address: usize,
    len: u64,
    rights: Rights,
}

impl NicAttachment {
    fn remote(&self) -> Result<Arc<Pinned>, AccessError> {
        self.remote.upgrade().ok_or(AccessError::Stale { done: 0, why: StaleReason::Revoked })
    }

    /// The exporter's address of what lies `at` bytes behind `offset`, both within its memory.
    fn place(&self, offset: u64, at: usize) -> usize {
        self.address + usize::try_from(offset).expect("within memory of this process") + at
    }
}

/// What became of an operation of the NIC.
fn moved(answer: Result<(), DmaError>) -> Result<(), AccessError> {
    answer.map_err(|error| match error {
        DmaError::Stale => AccessError::Stale { done: 0, why: StaleReason::Revoked },
        _ => AccessError::Unsupported { why: "the NIC has failed" },
    })
}

/// The registration of an operand of `len` bytes, and where that begins; `None` where there is nothing to move.
fn registered(
    memh: Option<&Pinned>,
    address: Option<usize>,
    len: usize,
) -> Result<Option<(&Pinned, usize)>, AccessError> {
    match memh.zip(address) {
        _ if len == 0 => Ok(None),
        Some(found) => Ok(Some(found)),
        None => Err(AccessError::Operand { done: 0, why: OperandReason::NotRegistered }),
    }
}

impl Attachment for NicAttachment {
    fn len(&self) -> u64 {
        self.len
    }

    fn rights(&self) -> Rights {
        self.rights
    }

    fn read(&self, offset: u64, dst: &mut [u8]) -> Result<(), AccessError> {
        check_range(offset, dst.len(), self.len)?;
        let remote = self.remote()?;
        self.gate.in_steps(dst.len(), |part| {
            let place = self.place(offset, part.start);
            moved(remote.nic.dma_out_into(&remote.mr, place, &mut dst[part]))
        })
    }

    fn write(&self, offset: u64, src: &[u8]) -> Result<(), AccessError> {
        self.rights.check_write()?;
        check_range(offset, src.len(), self.len)?;
        let remote = self.remote()?;
        self.gate.in_steps(src.len(), |part| {
            let place = self.place(offset, part.start);
            // SAFETY: exported memory, which peers may write (module rule).
            moved(unsafe { remote.nic.dma_in(&remote.mr, place, &src[part]) })
        })
    }

    fn put(&self, offset: u64, src: &Local<'_>) -> Result<(), AccessError> {
        self.rights.check_write()?;
        check_range(offset, src.len(), self.len)?;
        let Some((local, start)) = registered(src.memh(), src.address(), src.len())? else {
            return self.gate.in_steps(0, |_| Ok(()));
        };
        let remote = self.remote()?;
        let mut bytes = Vec::new();
        self.gate.in_steps(src.len(), |part| {
            bytes.resize(part.len(), 0);
            moved(local.nic.dma_out_into(&local.mr, start + part.start, &mut bytes))?;
            let place = self.place(offset, part.start);
            // SAFETY: exported memory, which peers may write (module rule).
            moved(unsafe { remote.nic.dma_in(&remote.mr, place, &bytes) })
        })
    }

    fn get(&self, offset: u64, dst: &mut LocalMut<'_>) -> Result<(), AccessError> {
        check_range(offset, dst.len(), self.len)?;
        let Some((local, start)) = registered(dst.memh(), dst.address(), dst.len())? else {
            return self.gate.in_steps(0, |_| Ok(()));
        };
        let remote = self.remote()?;
        let mut bytes = Vec::new();
        self.gate.in_steps(dst.len(), |part| {
            bytes.resize(part.len(), 0);
            moved(remote.nic.dma_out_into(&remote.mr, self.place(offset, part.start), &mut bytes))?;
            // SAFETY: the operand is being written, by a registration of its pages (module rule).
            moved(unsafe { local.nic.dma_in(&local.mr, start + part.start, &bytes) })
        })
    }

    fn check(&self) -> Result<(), StaleReason> {
        self.gate.check()
    }

    fn view(&self) -> Option<MappedView<'_>> {
        None
    }
}
