//! Memory domains that do not what their names promise, and the one error for several.

use uct::LocalMem;
use uct::api::{AllocError, Attached, Md, MdAttr, Memh, RegError};

use super::*;
use crate::{Context, MemMap};

/// A memory domain with another one's name and scope, but not its ability; attaching to it must never be tried.
#[derive(Debug)]
struct Incapable(MdAttr);

impl Md for Incapable {
    fn attr(&self) -> &MdAttr {
        &self.0
    }

    fn alloc(&self, _: usize, _: Rights) -> Result<LocalMem, AllocError> {
        Err(AllocError::Unsupported)
    }

    fn reg(&self, mem: &Arc<LocalMem>) -> Result<Box<dyn Memh>, RegError> {
        Err(RegError::Unsupported { kind: mem.kind(), why: "it only has the name" })
    }

    fn attach(&self, _: &AttachRequest<'_>) -> Result<Attached, AttachError> {
        unreachable!("it does not have EXPORTED_MKEY")
    }
}

/// A context allowed `tls`, with [`Incapable`] in the place of the memory domain of `component`.
fn incapable(tls: &str, component: ComponentId) -> Context {
    let builder = Context::builder().features(Features::EXPORTED_MEMH).set("UCX_TLS", tls);
    let mut ctx = builder.build().unwrap();
    let inner = Arc::get_mut(&mut ctx.inner).unwrap();
    let real = inner.mds.iter_mut().find(|open| open.md.attr().component == component).unwrap();
    let mut attr = real.md.attr().clone();
    attr.flags -= MdFlags::EXPORTED_MKEY;
    real.md = Arc::new(Incapable(attr));
    ctx
}

/// openucx issue 10541: a device whose id matches, but which lacks the capability, aborted the importer.
#[test]
fn matching_domain_without_the_capability() {
    let host = Context::builder().features(Features::EXPORTED_MEMH).build().unwrap();
    let region = host.mem_map(MemMap::allocate(4096).exported()).unwrap();
    let handle = region.memh_pack().unwrap();
    let cannot = " matches, but cannot attach exported memory";
    for (alone, component, other) in [("mm", ComponentId::SHM, "cma"), ("cma", ComponentId::CMA, "shm")] {
        let error = incapable(alone, component).mem_import(handle.as_bytes()).unwrap_err();
        assert_eq!(error.status(), Status::Unreachable);
        let text = error.to_string();
        assert!(text.contains(cannot), "{text}");
        // It stands in no other's way.
        let import = incapable("all", component).mem_import(handle.as_bytes()).unwrap();
        assert_eq!(import.transport(), other);
        let said = import.md_results();
        let said = said.iter().find(|result| result.component == component).unwrap();
        assert!(said.outcome.as_ref().is_err_and(|why| why.ends_with(cannot)), "{said}");
    }
}

/// The exporter's side of the same: such a domain exports nothing, and the region says so.
#[test]
fn domain_without_the_capability_exports_nothing() {
    let all = [ComponentId::SELF, ComponentId::SHM, ComponentId::CMA];
    for component in all {
        let ctx = incapable("all", component);
        let region = ctx.mem_map(MemMap::allocate(4096).exported()).unwrap();
        let said = region.md_results();
        assert!(said.to_string().contains(&format!("{component}: no: it cannot export")), "{said}");
        let content = decode(&ctx.inner, region.memh_pack().unwrap().as_bytes()).unwrap();
        let exported: Vec<_> = content.entries.iter().map(|entry| ComponentId(entry.component)).collect();
        let others: Vec<_> = all.into_iter().filter(|other| *other != component).collect();
        assert_eq!(exported, others);
    }
    let ctx = incapable("mm", ComponentId::SHM);
    let error = ctx.mem_map(MemMap::allocate(4096).exported()).unwrap_err();
    assert_eq!(error.status(), Status::Unsupported, "{error}");
}

#[test]
fn the_worst_answer_wins() {
    let ctx = Context::builder().build().unwrap();
    let content = Handle {
        address: 0,
        length: 1,
        context_uuid: [0; 16],
        registration_id: 1,
        epoch: 1,
        entries: Vec::new(),
    };
    let status = |failures: &[AttachError]| {
        verdict(&ctx.inner, &content, failures.to_vec(), MdResults::default()).status()
    };
    let stale = AttachError::Stale("gone");
    let unreachable = AttachError::Unreachable { reason: "far".to_owned(), remedy: "go there" };
    let limit = AttachError::Mem(MemError::NoMemory { wanted: 1 });
    assert_eq!(status(&[]), Status::Unreachable);
    assert_eq!(status(std::slice::from_ref(&unreachable)), Status::Unreachable);
    assert_eq!(status(&[unreachable.clone(), stale.clone()]), Status::Stale);
    assert_eq!(status(&[stale.clone(), limit.clone(), unreachable.clone()]), Status::NoMemory);
    assert_eq!(status(&[limit, AttachError::Mismatch]), Status::InvalidHandle);
    assert_eq!(status(&[AttachError::Mismatch, AttachError::WrongToken, stale]), Status::AccessDenied);
    let advice = verdict(&ctx.inner, &content, vec![unreachable], MdResults::default()).remedy();
    assert_eq!(advice, "go there");
}
