//! Revocation: when it says Ok, no write lands any more.

use std::time::{Duration, Instant};

use testkit::{Child, Role, role};
use ucp::{Context, MemMap, PackedMemh, Region, Status};

use super::roles::{Actor, BY_DEVICE, FILL, NEARBY, REMOTE, builder, context, role_by};
use super::transports;

/// Bytes of each write: long enough that a revocation meets one in flight.
const LEN: usize = if BY_DEVICE { 64 << 10 } else { 512 << 10 };

/// Imports each handle it is sent, says so, and writes to it until that is refused; then says how often it wrote.
pub fn writer() {
    let ctx = context();
    let bytes = vec![0xdd_u8; LEN];
    while let Some(handle) = role::try_recv() {
        let import = ctx.mem_import(&handle).unwrap();
        role::send(b"writing");
        let mut writes = 0_u32;
        let error = loop {
            match import.write(0, &bytes) {
                Ok(()) => writes += 1,
                Err(error) => break error,
            }
        };
        assert_eq!(error.status(), Status::Stale);
        role::send(&writes.to_le_bytes());
    }
}

/// A process that writes by a way; by `shm` and `cma` the memory says which.
fn writer_by(way: &str) -> Child {
    if BY_DEVICE { role_by("revoke::writer", way).start() } else { Role::spawn("revoke::writer") }
}

/// The same by a way on which the exporter waits for it.
fn waited_for() -> Child {
    writer_by(NEARBY)
}

/// Exports, lets the writer write, revokes by `revoke`, takes the memory back for itself and looks for late writes. Answers in
/// how many of the rounds there were any, and how many writes the writer made.
pub fn rounds(transport: &str, count: u32, revoke: impl Fn(&uct::export::Export)) -> (u32, u32) {
    use std::sync::Arc;
    use uct::export::ExportTable;
    // The same parts a context is made of, so that the guard variant can leave the drain out.
    let exports = Arc::new(ExportTable::new(Duration::from_secs(10)).unwrap());
    let service = Arc::new(uct::service::Service::new(Arc::clone(&exports), None));
    let mut components = uct::transports::components().iter();
    let name = transports::name(transport);
    let component = components.find(|component| component.name() == name).unwrap();
    let config = ucs::config::Config::builder(uct::config::VARS).vars(component.vars());
    let config = if BY_DEVICE { config.set("UCX_VERBS_SHARE", "y") } else { config }.build().unwrap();
    let params = uct::api::MdParams { exports: Arc::clone(&exports), service, config };
    let md = component.open_md(&component.query_mds()[0], &params).unwrap();
    let rights = uct::memory::Rights::READ_WRITE;
    let mem = md.alloc(LEN, rights).unwrap_or_else(|_| uct::LocalMem::anonymous(LEN, rights).unwrap());
    let mem = Arc::new(mem);
    let memh = md.reg(&mem).unwrap();
    let mut writer = writer_by(transport);
    let (mut late, mut writes) = (0, 0);
    for round in 0..count {
        let export = exports.publish(&mem).unwrap();
        let flags = uct::api::PackFlags::EXPORT;
        let mut mkey = vec![0; memh.packed_size(flags).unwrap()];
        memh.pack(&export, flags, &mut mkey).unwrap();
        let claim = export.claim();
        let entry = ucp::wire::handle::Entry {
            component: component.id().0,
            mandatory: false,
            global_id: md.attr().global_id.as_bytes().to_vec(),
            mkey,
        };
        let handle = ucp::wire::handle::Handle {
            address: claim.address,
            length: claim.length,
            context_uuid: *exports.uuid(),
            registration_id: claim.id,
            epoch: claim.epoch,
            entries: vec![entry],
        };
        writer.send(&handle.encode().unwrap());
        assert_eq!(writer.recv(), b"writing");
        std::thread::sleep(Duration::from_micros(u64::from(round % 7) * if BY_DEVICE { 3000 } else { 300 }));
        revoke(&export);
        // The memory is the owner's again.
        mem.write(0, &vec![0x11; LEN]).unwrap();
        writes += u32::from_le_bytes(writer.recv().try_into().unwrap());
        let mut seen = vec![0; LEN];
        mem.read(0, &mut seen).unwrap();
        late += u32::from(seen.contains(&0xdd));
    }
    (late, writes)
}

pub fn no_write_lands_after_revoke() {
    let count = if BY_DEVICE { 100 } else { 400 };
    for transport in if BY_DEVICE { [NEARBY, REMOTE] } else { ["shm", "cma"] } {
        let (late, writes) = rounds(transport, count, |export| export.revoke().unwrap());
        assert_eq!(late, 0, "{transport}: late writes in {late} of {count} rounds");
        assert!(writes > count, "{transport}: the writer hardly wrote: {writes}");
    }
}

/// Without the wait for accesses in flight, the same rounds show late writes: so the wait is what protects.
pub fn guard_without_drain_writes_land_late() {
    for transport in ["shm", "cma"] {
        let late = || rounds(transport, 100, uct::export::Export::revoke_without_drain).0;
        assert!(
            (0..20).any(|_| late() > 0),
            "{transport}: no late write in 2,000 rounds without the drain: the torture test proves nothing"
        );
    }
}

/// A context whose revocations wait this long.
fn impatient(timeout: &str) -> Context {
    builder().set("UCX_REVOKE_TIMEOUT", timeout).build().unwrap()
}

/// A region that `writer` has begun to write to, and the writer stopped: inside an access, most times. `map` says by which
/// transport: memory that rucx has not allocated is reached by cma.
fn writing_and_stopped(ctx: &Context, writer: &mut Child, map: MemMap) -> (Region, PackedMemh) {
    let region = ctx.mem_map(map.exported()).unwrap();
    let handle = region.memh_pack().unwrap();
    writer.send(handle.as_bytes());
    assert_eq!(writer.recv(), b"writing");
    writer.stop();
    (region, handle)
}

/// Stops a writer until it is caught in mid-access.
pub fn stopped_importer_is_not_revoked() {
    stopped_is_not_revoked(|| MemMap::allocate(LEN));
    stopped_is_not_revoked(|| MemMap::buffer(vec![0; LEN]));
}

fn stopped_is_not_revoked(map: fn() -> MemMap) {
    let ctx = impatient("100ms");
    let mut writer = waited_for();
    for _ in 0..200 {
        let (region, handle) = writing_and_stopped(&ctx, &mut writer, map());
        let begin = Instant::now();
        match handle.revoke() {
            Ok(()) => {
                writer.cont();
                let _ = writer.recv();
            }
            Err(error) => {
                let waited = begin.elapsed();
                assert!(
                    waited >= Duration::from_millis(100) && waited < Duration::from_secs(2),
                    "{waited:?}"
                );
                assert_eq!(error.importers(), [u32::try_from(writer.pid()).unwrap()]);
                assert_eq!(error.status(), Status::NotRevoked);
                let text = error.to_string();
                assert!(
                    text.ends_with(&format!("an access of process {} is still in flight", writer.pid())),
                    "{text}"
                );
                // New accesses are refused meanwhile, and the memory is kept, also when the region is dropped.
                let mut dpu = Actor::dpu();
                dpu.import(handle.as_bytes()).err(Status::Stale);
                drop(region);
                assert_eq!(ctx.stats().kept_bytes, LEN as u64);
                writer.cont();
                let _ = writer.recv();
                handle.revoke().unwrap();
                wait_for("the memory is freed", || ctx.stats().kept_bytes == 0);
                return;
            }
        }
    }
    panic!("the writer was never caught in mid-access");
}

fn wait_for(what: &str, holds: impl Fn() -> bool) {
    let begin = Instant::now();
    while !holds() {
        assert!(begin.elapsed() < Duration::from_secs(5), "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// As above; but the importer dies instead of going on.
pub fn killed_importer_is_revoked() {
    killed_is_revoked(|| MemMap::allocate(LEN));
    killed_is_revoked(|| MemMap::buffer(vec![0; LEN]));
}

fn killed_is_revoked(map: fn() -> MemMap) {
    let ctx = impatient("100ms");
    for _ in 0..200 {
        let mut writer = waited_for();
        let (_region, handle) = writing_and_stopped(&ctx, &mut writer, map());
        if handle.revoke().is_err() {
            writer.kill();
            handle.revoke().unwrap();
            wait_for("the memory is freed", || ctx.stats().kept_bytes == 0);
            return;
        }
        writer.cont();
        let _ = writer.recv();
    }
    panic!("the writer was never caught in mid-access");
}

/// The memory of a region that is dropped while an access is stuck waits for it, and is freed by itself.
pub fn dropped_region_is_kept_until_drained() {
    dropped_is_kept(|| MemMap::allocate(LEN));
    dropped_is_kept(|| MemMap::buffer(vec![0; LEN]));
}

fn dropped_is_kept(map: fn() -> MemMap) {
    let ctx = impatient("50ms");
    let mut writer = waited_for();
    for _ in 0..200 {
        let (region, _) = writing_and_stopped(&ctx, &mut writer, map());
        drop(region);
        let kept = ctx.stats().kept_bytes;
        writer.cont();
        let _ = writer.recv();
        if kept > 0 {
            assert_eq!(kept, LEN as u64);
            wait_for("the memory is freed by itself", || ctx.stats().kept_bytes == 0);
            return;
        }
    }
    panic!("the writer was never caught in mid-access");
}

/// What a mapping held can still do: shm's capability table says that it is not revocable.
pub fn view_outlives_revoke() {
    let (mut host, mut dpu) = (Actor::host(4096), Actor::dpu());
    dpu.import(&host.export()).ok();
    host.ask("revoke 0").ok();
    dpu.read(0, 4).err(Status::Stale);
    assert_eq!(dpu.ask("view-read 4 0").ok(), [FILL; 4]);
    dpu.ask_with("view-write 0", b"late").ok();
    assert_eq!(host.read(0, 4).ok(), b"late", "the region lives on, and so does the mapping of it");
    let shm = uct::transports::shm::CAPABILITIES;
    let revocable = shm.iter().find(|capability| capability.name == "revocable").unwrap();
    assert!(!revocable.supported);
    // Memory that is dropped is never used again for something else: the view sees the old object only.
    host.ask("drop-region").ok();
    host.ask("another").ok();
    dpu.ask_with("view-write 0", b"old").ok();
    assert_eq!(host.read(0, 3).ok(), b"the");
}

pub fn within_one_context() {
    let ctx = context();
    let region = ctx.mem_map(MemMap::allocate(LEN).exported()).unwrap();
    for _ in 0..50 {
        let handle = region.memh_pack().unwrap();
        let import = ctx.mem_import(handle.as_bytes()).unwrap();
        assert_eq!(import.transport(), "self");
        let writer = std::thread::spawn(move || {
            let bytes = vec![0xdd; LEN];
            while import.write(0, &bytes).is_ok() {}
            import.check().unwrap_err()
        });
        std::thread::sleep(Duration::from_micros(200));
        handle.revoke().unwrap();
        region.write(0, &vec![0x11; LEN]).unwrap();
        assert_eq!(writer.join().unwrap(), ucp::StaleReason::Revoked);
        let mut seen = vec![0; LEN];
        region.read(0, &mut seen).unwrap();
        assert!(!seen.contains(&0xdd));
    }
}
