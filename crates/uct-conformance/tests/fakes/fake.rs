//! A real transport, wrapped, with one fault.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use ucs::config::AnyVar;
use ucs::sync::{AtomicUsize, Ordering};
use uct::api::{
    AllocError, AmoOp, AtomicOp, AttachError, AttachRequest, Attached, Attachment, Capability, Component,
    ComponentId, Iface, IfaceError, Md, MdAttr, MdFlags, MdParams, MdResource, Memh, OpenError, PackError,
    PackFlags, RegError,
};
use uct::export::Export;
use uct::memory::{AccessError, Local, LocalMem, LocalMut, MappedView, OperandReason, Rights, StaleReason};

use crate::iface::FakeIface;
use crate::overrun;

/// What is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    None,
    PacksOneByteLess,
    PacksIntoAnyBuffer,
    AnnouncesAnotherSize,
    ChangesMemoryWhenPacking,
    GivesEveryExportOneKey,
    WritesBeyondTheBuffer,
    IgnoresReadOnly,
    AnswersAfterRevoke,
    SaysThatRevokedOnesLive,
    ClaimsAViewItLacks,
    ClaimsWhatItCannot,
    LosesACapability,
    ForgetsACapability,
    TakesAnyToken,
    TakesAnyLength,
    TakesLongerKeys,
    PanicsOnShortKeys,
    TakesEveryGlobalId,
    ReadsPastTheEnd,
    TouchesARefusedBuffer,
    IsOffByOne,
    PutsOneByteLess,
    GetsIntoAPartOnly,
    MovesNoImportedOperands,
    HidesWhichSideFailed,
    NeedsWhatItDoesNotRegister,
    TearsWords,
    AddsInTwoSteps,
    AnswersTheWordAfter,
    HasNoAtomics,
    DoesAtomicsPastTheGate,
    ChangesItsAttributes,
    AlignsToNoPowerOfTwo,
    RegistersNothingOfOthers,
    DropsAMessage,
    DoublesAMessage,
    SwapsMessages,
    TellsGoneTwice,
    ArmsAlthoughSomethingIsThere,
    NeverSleeps,
    SendsWhatIsTooLong,
    HasNoInterface,
}

/// The memory of both sides by its address: what lets an attachment go past its export.
type Registry = Arc<Mutex<HashMap<u64, Weak<LocalMem>>>>;

#[derive(Debug)]
pub(crate) struct FakeComponent {
    real: &'static dyn Component,
    fault: Fault,
    capabilities: &'static [Capability],
    registry: Registry,
}

impl FakeComponent {
    /// Wraps `real`, for as long as the process runs.
    pub(crate) fn leak(real: &'static dyn Component, fault: Fault) -> &'static Self {
        let mut capabilities = real.capabilities().to_vec();
        match fault {
            Fault::ClaimsWhatItCannot => {
                let missing = capabilities.iter_mut().find(|capability| capability.name == "invalidate");
                missing.unwrap().supported = true;
            }
            Fault::LosesACapability => {
                let lost = capabilities.iter_mut().find(|capability| capability.name == "export");
                lost.unwrap().supported = false;
            }
            Fault::ForgetsACapability => {
                capabilities.pop();
            }
            _ => {}
        }
        let capabilities = Vec::leak(capabilities);
        Box::leak(Box::new(Self { real, fault, capabilities, registry: Registry::default() }))
    }
}

impl Component for FakeComponent {
    fn id(&self) -> ComponentId {
        self.real.id()
    }

    fn name(&self) -> &'static str {
        self.real.name()
    }

    fn vars(&self) -> &'static [&'static dyn AnyVar] {
        self.real.vars()
    }

    fn capabilities(&self) -> &'static [Capability] {
        self.capabilities
    }

    fn query_mds(&self) -> Vec<MdResource> {
        self.real.query_mds()
    }

    fn open_md(&self, resource: &MdResource, params: &MdParams) -> Result<Arc<dyn Md>, OpenError> {
        let real = self.real.open_md(resource, params)?;
        let mut attr = real.attr().clone();
        match self.fault {
            Fault::ClaimsAViewItLacks => attr.flags |= MdFlags::RKEY_PTR,
            Fault::NeedsWhatItDoesNotRegister => attr.flags |= MdFlags::NEED_MEMH,
            Fault::AlignsToNoPowerOfTwo => attr.reg_alignment = 48,
            _ => {}
        }
        let mut later = attr.clone();
        later.reg_alignment *= 2;
        let (fault, registry) = (self.fault, Arc::clone(&self.registry));
        Ok(Arc::new(FakeMd { real, fault, attr, later, asked: AtomicUsize::new(0), registry }))
    }
}

#[derive(Debug)]
struct FakeMd {
    real: Arc<dyn Md>,
    fault: Fault,
    attr: MdAttr,
    /// The attributes it has after some time, with the fault of changing them.
    later: MdAttr,
    asked: AtomicUsize,
    registry: Registry,
}

impl Md for FakeMd {
    fn attr(&self) -> &MdAttr {
        let asked = self.asked.fetch_add(1, Ordering::Relaxed);
        if self.fault == Fault::ChangesItsAttributes && asked > 2 { &self.later } else { &self.attr }
    }

    fn alloc(&self, len: usize, rights: Rights) -> Result<LocalMem, AllocError> {
        self.real.alloc(len, rights)
    }

    fn reg(&self, mem: &Arc<LocalMem>) -> Result<Box<dyn Memh>, RegError> {
        if self.fault == Fault::RegistersNothingOfOthers && !mem.is_allocated() {
            return Err(RegError::Unsupported { kind: mem.kind(), why: "a fault" });
        }
        let real = self.real.reg(mem)?;
        self.registry.lock().insert(mem.address(), Arc::downgrade(mem));
        Ok(Box::new(FakeMemh { real, fault: self.fault, mem: Arc::clone(mem), first: Mutex::default() }))
    }

    fn open_iface(&self) -> Result<Option<Box<dyn Iface>>, IfaceError> {
        if self.fault == Fault::HasNoInterface {
            return Ok(None);
        }
        let real = self.real.open_iface()?;
        Ok(real.map(|real| Box::new(FakeIface::new(real, self.fault)) as Box<dyn Iface>))
    }

    fn can_attach(&self, component: ComponentId, global_id: &[u8]) -> bool {
        self.fault == Fault::TakesEveryGlobalId || self.real.can_attach(component, global_id)
    }

    fn attach(&self, request: &AttachRequest<'_>) -> Result<Attached, AttachError> {
        let mem = self.registry.lock().get(&request.address).and_then(Weak::upgrade);
        if self.fault == Fault::PanicsOnShortKeys {
            let _ = request.mkey[31];
        }
        let mut asked = *request;
        let size = self.attr.exported_mkey_packed_size;
        if self.fault == Fault::TakesLongerKeys && asked.mkey.len() > size {
            asked.mkey = &asked.mkey[..size];
        }
        let past = |mem: Arc<LocalMem>| Attached {
            memory: Arc::new(FakeAttachment {
                real: None,
                fault: self.fault,
                len: request.length,
                mem: Some(mem),
            }),
            how: "past the export".to_owned(),
        };
        match (self.real.attach(&asked), mem) {
            (Ok(real), mem) => Ok(Attached {
                memory: Arc::new(FakeAttachment {
                    len: real.memory.len(),
                    real: Some(real.memory),
                    fault: self.fault,
                    mem,
                }),
                how: real.how,
            }),
            (Err(AttachError::WrongToken), Some(mem)) if self.fault == Fault::TakesAnyToken => Ok(past(mem)),
            (Err(AttachError::Mismatch), Some(mem)) if self.fault == Fault::TakesAnyLength => Ok(past(mem)),
            (Err(AttachError::Stale(_)), Some(mem)) if self.fault == Fault::AnswersAfterRevoke => {
                Ok(past(mem))
            }
            (Err(error), _) => Err(error),
        }
    }
}

#[derive(Debug)]
struct FakeMemh {
    real: Box<dyn Memh>,
    fault: Fault,
    mem: Arc<LocalMem>,
    /// The first key it packed.
    first: Mutex<Option<Vec<u8>>>,
}

impl Memh for FakeMemh {
    fn packed_size(&self, flags: PackFlags) -> Result<usize, PackError> {
        let size = self.real.packed_size(flags)?;
        Ok(if self.fault == Fault::AnnouncesAnotherSize { size + 1 } else { size })
    }

    fn pack(&self, export: &Export, flags: PackFlags, out: &mut [u8]) -> Result<(), PackError> {
        match self.fault {
            Fault::PacksOneByteLess => {
                let mut key = vec![0; out.len()];
                self.real.pack(export, flags, &mut key)?;
                let len = key.len() - 1;
                out[..len].copy_from_slice(&key[..len]);
                Ok(())
            }
            Fault::PacksIntoAnyBuffer => {
                let mut key = vec![0; self.real.packed_size(flags)?];
                self.real.pack(export, flags, &mut key)?;
                let len = key.len().min(out.len());
                out[..len].copy_from_slice(&key[..len]);
                Ok(())
            }
            Fault::ChangesMemoryWhenPacking => {
                let _ = self.mem.write(100, b"x");
                self.real.pack(export, flags, out)
            }
            Fault::GivesEveryExportOneKey => {
                self.real.pack(export, flags, out)?;
                out.copy_from_slice(self.first.lock().get_or_insert(out.to_vec()));
                Ok(())
            }
            Fault::WritesBeyondTheBuffer => {
                self.real.pack(export, flags, out)?;
                overrun::write_behind(out);
                Ok(())
            }
            _ => self.real.pack(export, flags, out),
        }
    }
}

#[derive(Debug)]
struct FakeAttachment {
    /// `None`: the real transport refused.
    real: Option<Arc<dyn Attachment>>,
    fault: Fault,
    len: u64,
    /// The exporter's memory, for faults that go past its export.
    mem: Option<Arc<LocalMem>>,
}

impl FakeAttachment {
    /// The exporter's memory, where the fault is to use it directly.
    fn past(&self) -> Option<&LocalMem> {
        let goes_past = self.fault == Fault::AnswersAfterRevoke || self.real.is_none();
        self.mem.as_deref().filter(|_| goes_past)
    }

    fn real(&self) -> &dyn Attachment {
        self.real.as_deref().expect("a real one, or the memory itself")
    }
}

/// The error as if it were of the target.
fn of_the_target(error: AccessError) -> AccessError {
    match error {
        AccessError::Operand { done, why: OperandReason::Stale(why) } => AccessError::Stale { done, why },
        other => other,
    }
}

impl Attachment for FakeAttachment {
    fn len(&self) -> u64 {
        self.len
    }

    fn rights(&self) -> Rights {
        match (&self.real, &self.mem) {
            (Some(real), _) => real.rights(),
            (None, mem) => mem.as_ref().map_or(Rights::empty(), |mem| mem.rights()),
        }
    }

    fn read(&self, offset: u64, dst: &mut [u8]) -> Result<(), AccessError> {
        if let Some(mem) = self.past() {
            return mem.read(offset, dst);
        }
        match self.fault {
            Fault::ReadsPastTheEnd => match self.real().read(offset, dst) {
                Err(AccessError::Bounds(_)) => Ok(()),
                answer => answer,
            },
            Fault::TouchesARefusedBuffer => {
                if let Some(first) = dst.first_mut() {
                    *first = 0;
                }
                self.real().read(offset, dst)
            }
            Fault::IsOffByOne => {
                self.real().read(offset, dst)?;
                dst.rotate_left(usize::from(!dst.is_empty()));
                Ok(())
            }
            Fault::TearsWords => {
                let mut at = offset;
                for byte in dst.chunks_mut(1) {
                    self.real().read(at, byte)?;
                    at += 1;
                    std::thread::yield_now();
                }
                self.real().read(at, &mut [])
            }
            _ => self.real().read(offset, dst),
        }
    }

    fn write(&self, offset: u64, src: &[u8]) -> Result<(), AccessError> {
        if let Some(mem) = self.past() {
            return mem.write(offset, src);
        }
        match (self.fault, self.real().write(offset, src), &self.mem) {
            (Fault::IgnoresReadOnly, Err(AccessError::AccessDenied { .. }), Some(mem)) => {
                mem.write(offset, src)
            }
            (_, answer, _) => answer,
        }
    }

    fn atomic(&self, offset: u64, op: AtomicOp) -> Result<u64, AccessError> {
        if let Some(mem) = self.past() {
            return mem.atomic(offset, op);
        }
        match (self.fault, op) {
            (Fault::AddsInTwoSteps, AtomicOp::U64(AmoOp::Add(value))) => {
                let before = self.real().atomic(offset, AtomicOp::U64(AmoOp::Or(0)))?;
                let after = AmoOp::Swap(before.wrapping_add(value));
                self.real().atomic(offset, AtomicOp::U64(after))?;
                Ok(before)
            }
            (Fault::AnswersTheWordAfter, AtomicOp::U32(AmoOp::Xor(value))) => {
                Ok(self.real().atomic(offset, op)? ^ u64::from(value))
            }
            (Fault::HasNoAtomics, _) => Err(AccessError::Unsupported { why: "a fault" }),
            (Fault::DoesAtomicsPastTheGate, _) => match self.real().atomic(offset, op) {
                Err(AccessError::Stale { .. } | AccessError::AccessDenied { .. }) => {
                    self.mem.as_ref().map_or(Ok(0), |mem| mem.atomic(offset, op))
                }
                answer => answer,
            },
            _ => self.real().atomic(offset, op),
        }
    }

    fn good_piece(&self) -> usize {
        self.real.as_deref().map_or(0, Attachment::good_piece)
    }

    fn is_by_system_calls(&self) -> bool {
        self.real.as_deref().is_some_and(Attachment::is_by_system_calls)
    }

    fn put(&self, offset: u64, src: &Local<'_>) -> Result<(), AccessError> {
        match self.fault {
            Fault::MovesNoImportedOperands if src.is_imported() => return Ok(()),
            Fault::HidesWhichSideFailed => return self.real().put(offset, src).map_err(of_the_target),
            _ => {}
        }
        match src.as_bytes() {
            Some([short @ .., _]) if self.fault == Fault::PutsOneByteLess => {
                self.real().put(offset, &Local::bytes(short))
            }
            _ => self.real().put(offset, src),
        }
    }

    fn get(&self, offset: u64, dst: &mut LocalMut<'_>) -> Result<(), AccessError> {
        match dst.as_bytes() {
            Some(bytes) if self.fault == Fault::GetsIntoAPartOnly => {
                let half = bytes.len() / 2;
                self.real().get(offset, &mut LocalMut::bytes(&mut bytes[..half]))
            }
            _ => self.real().get(offset, dst),
        }
    }

    fn check(&self) -> Result<(), StaleReason> {
        if self.fault == Fault::SaysThatRevokedOnesLive || self.past().is_some() {
            return Ok(());
        }
        self.real().check()
    }

    fn view(&self) -> Option<MappedView<'_>> {
        self.real.as_ref()?.view()
    }
}
