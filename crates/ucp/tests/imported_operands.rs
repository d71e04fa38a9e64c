//! Parts of imports as operands of other imports, over every pair of transports of this build.

#![allow(clippy::unwrap_used)] // tests

mod transports;

use std::thread;

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use testkit::Forked;
use ucp::{
    AccessError, Context, Error, Features, ImportedRegion, ImportedSlice, MemMap, OpError, OperandReason,
    PackedMemh, RawMem, Region, StaleReason, Status, TransferError,
};

use transports::{BY_DEVICE, NEARBY, REMOTE};

const LEN: usize = 1 << 20;

fn context(tls: &str) -> Context {
    Context::builder().features(Features::EXPORTED_MEMH).ignore_env().set("UCX_TLS", tls).build().unwrap()
}

/// Memory of an owner's, imported by a transport. Each has a context of its own.
struct World {
    region: Region,
    handle: PackedMemh,
    import: ImportedRegion,
}

impl World {
    fn of(transport: &str, map: MemMap) -> Self {
        let ctx = transports::builder(transport).build().unwrap();
        let region = ctx.mem_map(map.exported()).unwrap();
        let handle = region.memh_pack().unwrap();
        let import = ctx.mem_import(handle.as_bytes()).unwrap();
        assert_eq!(import.transport(), transports::name(transport));
        Self { region, handle, import }
    }

    fn by(transport: &str) -> Self {
        Self::of(
            transport,
            if transport == "shm" { MemMap::allocate(LEN) } else { MemMap::buffer(vec![0; LEN]) },
        )
    }

    fn at(&self, offset: usize, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.region.read(offset as u64, &mut bytes).unwrap();
        bytes
    }

    fn slice(&self) -> ImportedSlice {
        self.import.slice(..).unwrap()
    }
}

const TRANSPORTS: &[&str] =
    if BY_DEVICE { &["self", "shm", "cma", NEARBY, REMOTE] } else { &["self", "shm", "cma"] };

/// All pairs; of a device's, those that have it on one side at least.
fn pairs() -> impl Iterator<Item = (&'static str, &'static str)> {
    let pairs = TRANSPORTS.iter().flat_map(|one| TRANSPORTS.iter().map(|other| (*one, *other)));
    pairs.filter(|(one, other)| !BY_DEVICE || [one, other].iter().any(|by| [NEARBY, REMOTE].contains(by)))
}

fn reason<M>(failed: &OpError<M>) -> (u64, OperandReason) {
    match &failed.error {
        TransferError::Access(AccessError::Operand { done, why }) => (*done, *why),
        other => panic!("{other}"),
    }
}

#[test]
fn between_any_two() {
    for pair in pairs() {
        let (one, other) = (World::by(pair.0), World::by(pair.1));
        let mut bytes = vec![0; LEN - 10];
        testkit::Rng::new(7).fill(&mut bytes);
        one.region.write(10, &bytes).unwrap();
        let slice = other.import.put(3, one.import.slice(10..).unwrap()).unwrap();
        assert!(other.at(3, LEN - 10) == bytes, "{pair:?}");
        assert_eq!((slice.len(), slice.range(), slice.is_empty()), (LEN as u64 - 10, 10..LEN as u64, false));
        assert!(slice.region().is_same(&one.import));
        one.region.write(0, &vec![0; LEN]).unwrap();
        let again = other.import.get(3, slice.clone()).unwrap();
        assert!(one.at(10, LEN - 10) == bytes, "{pair:?}");
        assert_eq!(again.range(), slice.range());
        // In the opposite direction the other one is the operand.
        other.region.write(0, b"back").unwrap();
        one.import.put(0, other.import.slice(..4).unwrap()).unwrap();
        assert_eq!(one.at(0, 4), b"back", "{pair:?}");
    }
}

/// By `cma`, so many bytes that one thread reads while another one writes. A hole is told as by one thread: by whole pieces of the operand's,
/// and by pages of the target's.
#[test]
fn long_ones_arrive_whole() {
    let page = 4096;
    let len = (9 << 20) + page;
    let hole = 1234 * page;
    let start = std::ptr::with_exposed_provenance_mut(0x2310_0000_0000);
    let flags = MapFlags::PRIVATE | MapFlags::FIXED_NOREPLACE;
    // SAFETY: replaces no mapping.
    let start = unsafe { mmap_anonymous(start, len, ProtFlags::READ | ProtFlags::WRITE, flags) }.unwrap();
    // SAFETY: nobody has references to these pages.
    let raw = unsafe { RawMem::new(start.cast(), len) };
    let (one, other) =
        (World::of("cma", MemMap::raw(raw)), World::of("cma", MemMap::buffer(vec![0; len + 7])));
    let mut bytes = vec![0; len];
    testkit::Rng::new(8).fill(&mut bytes);
    one.region.write(0, &bytes).unwrap();
    other.import.put(7, one.slice()).unwrap();
    assert!(other.at(7, len) == bytes);
    one.region.write(0, &vec![0; len]).unwrap();
    other.import.get(7, one.slice()).unwrap();
    assert!(one.at(0, len) == bytes);

    other.region.write(0, &vec![0; len]).unwrap();
    // SAFETY: nobody has references to these pages.
    unsafe { munmap(start.wrapping_byte_add(hole), page) }.unwrap();
    let failed = other.import.put(0, one.slice()).unwrap_err();
    let before = hole - hole % (256 << 10);
    assert_eq!(reason(&failed), (before as u64, OperandReason::Stale(StaleReason::Unmapped)));
    assert!(other.at(0, before) == bytes[..before], "as many as it says");
    assert!(other.at(before, hole - before).iter().all(|byte| *byte == 0), "and no more");
    let failed = one.import.put(0, other.import.slice(..len as u64).unwrap()).unwrap_err();
    assert_eq!(failed.to_string(), format!("stale after {hole} bytes: the owner has unmapped it"));
}

#[test]
fn parts_are_within() {
    let world = World::by("shm");
    let range = |slice: Result<ImportedSlice, _>| slice.ok().map(|slice: ImportedSlice| slice.range());
    let len = LEN as u64;
    assert_eq!(range(world.import.slice(..)), Some(0..len));
    assert_eq!(range(world.import.slice(len..)), Some(len..len));
    assert_eq!(range(world.import.slice(5..=len - 1)), Some(5..len));
    #[allow(clippy::reversed_empty_ranges)]
    let outside = [(1, 0), (0, len + 1), (len + 1, len + 1), (u64::MAX, u64::MAX)];
    for (start, end) in outside {
        assert_eq!(world.import.slice(start..end).unwrap_err().status(), Status::OutOfRange);
    }
    assert_eq!(world.import.slice(..=u64::MAX).unwrap_err().status(), Status::OutOfRange);
    let shown = format!("{:?}", world.import.slice(3..9).unwrap());
    assert!(shown.starts_with("ImportedSlice { range: 3..9, of: ImportedRegion"), "{shown}");

    // A slice keeps the import, not the export.
    let World { region, handle, import } = world;
    let slice = import.slice(0..8).unwrap();
    drop(import);
    let other = World::by("shm");
    region.write(0, b"it lives").unwrap();
    let slice = other.import.put(0, slice).unwrap();
    assert_eq!(other.at(0, 8), b"it lives");
    drop((handle, region));
    assert_eq!(other.import.put(0, slice).unwrap_err().status(), Status::Stale);

    let empty = World::of("shm", MemMap::allocate(LEN));
    let ctx = context("all");
    let nothing = ctx.mem_map(MemMap::allocate(0).exported()).unwrap();
    let nothing = ctx.mem_import(nothing.memh_pack().unwrap().as_bytes()).unwrap();
    let slice = empty.import.put(9, nothing.slice(..).unwrap()).unwrap();
    let slice = empty.import.get(9, slice).unwrap();
    assert!(slice.is_empty() && nothing.put(0, slice).is_ok());
    assert_eq!(nothing.put(0, empty.slice()).unwrap_err().status(), Status::OutOfRange);
    assert!(nothing.slice(0..1).is_err());
}

/// An error says which side it is of, and what to do there; the operand comes back.
#[test]
fn which_side_has_failed() {
    for pair in pairs() {
        let (one, other) = (World::by(pair.0), World::by(pair.1));
        one.handle.revoke().unwrap();
        for failed in
            [other.import.put(0, one.slice()).unwrap_err(), other.import.get(0, one.slice()).unwrap_err()]
        {
            assert_eq!(reason(&failed), (0, OperandReason::Stale(StaleReason::Revoked)), "{pair:?}");
            assert_eq!(failed.status(), Status::Stale);
            assert_eq!(
                failed.to_string(),
                "the operand could not be used after 0 bytes: it is imported, and the export was revoked or dropped"
            );
            assert!(failed.remedy().contains("the owner of the operand's memory"));
            assert!(failed.operand.region().is_same(&one.import));
            assert_eq!(Error::from(failed).status(), Status::Stale);
        }
        // And the same as the target.
        let failed = one.import.put(0, other.slice()).unwrap_err();
        assert_eq!(failed.to_string(), "stale after 0 bytes: the export was revoked or dropped", "{pair:?}");
        let failed = one.import.get(0, other.slice()).unwrap_err();
        assert_eq!(failed.status(), Status::Stale);
        assert!(failed.remedy().starts_with("ask the owner for a new handle"));
    }
}

#[test]
fn for_reading_only() {
    for pair in pairs() {
        let map = if pair.0 == "shm" { MemMap::allocate(LEN) } else { MemMap::buffer(vec![0; LEN]) };
        let (one, other) = (World::of(pair.0, map.read_only()), World::by(pair.1));
        one.region.write(0, b"constant").unwrap();
        other.import.put(0, one.slice()).unwrap();
        assert_eq!(other.at(0, 8), b"constant");
        other.region.write(0, b"variable").unwrap();
        let failed = other.import.get(0, one.slice()).unwrap_err();
        assert_eq!((reason(&failed).0, failed.status()), (0, Status::AccessDenied), "{pair:?}");
        assert_eq!(
            failed.to_string(),
            "the operand could not be used after 0 bytes: it is imported, and the region was exported read-only"
        );
        assert!(failed.remedy().contains("MemMap::read_only"));
        assert_eq!(one.at(0, 8), b"constant", "{pair:?}");
        let failed = one.import.put(0, other.slice()).unwrap_err();
        assert_eq!(failed.to_string(), "access denied after 0 bytes: the region was exported read-only");
    }
}

/// Raw memory of an owner's with a hole: what is before it is moved, and it is told how much that is.
#[test]
fn holes() {
    let page = 4096;
    let len = 300 * page;
    let start = std::ptr::with_exposed_provenance_mut(0x2300_0000_0000);
    let flags = MapFlags::PRIVATE | MapFlags::FIXED_NOREPLACE;
    // SAFETY: replaces no mapping.
    let start = unsafe { mmap_anonymous(start, len, ProtFlags::READ | ProtFlags::WRITE, flags) }.unwrap();
    // SAFETY: nobody has references to these pages.
    let raw = unsafe { RawMem::new(start.cast(), len) };
    let one = World::of("cma", MemMap::raw(raw));
    one.region.write(0, &vec![7; len]).unwrap();
    // SAFETY: nobody has references to these pages.
    unsafe { munmap(start.wrapping_byte_add(100 * page), page) }.unwrap();
    for transport in TRANSPORTS.iter().copied() {
        let map = if transport == "shm" { MemMap::allocate(len) } else { MemMap::buffer(vec![0; len]) };
        let other = World::of(transport, map);
        let failed = other.import.put(0, one.slice()).unwrap_err();
        let (done, why) = reason(&failed);
        let done = usize::try_from(done).unwrap();
        assert_eq!(why, OperandReason::Stale(StaleReason::Unmapped), "{transport}");
        assert!(done <= 100 * page, "{transport}: {done}");
        assert!(other.at(0, done).iter().all(|byte| *byte == 7), "{transport}: as many as it says");
        assert!(other.at(done, len - done).iter().all(|byte| *byte == 0), "{transport}: and no more");
        other.region.write(0, &vec![9; len]).unwrap();
        let failed = other.import.get(0, one.slice()).unwrap_err();
        let (done, why) = reason(&failed);
        assert_eq!(
            (done, why),
            (100 * page as u64, OperandReason::Stale(StaleReason::Unmapped)),
            "{transport}"
        );
        let mut seen = vec![0; 100 * page];
        one.region.read(0, &mut seen).unwrap();
        assert!(seen.iter().all(|byte| *byte == 9), "{transport}");
        one.region.write(0, &vec![7; 100 * page]).unwrap();
        // The hole as a part of the target.
        let failed = one.import.put(0, other.slice()).unwrap_err();
        assert_eq!(failed.to_string(), "stale after 409600 bytes: the owner has unmapped it", "{transport}");
        one.region.write(0, &vec![7; 100 * page]).unwrap();
    }
}

/// Rings of transfers, both ways at once: nobody waits for anybody.
#[test]
fn threads_move_both_ways_at_once() {
    for pair in pairs() {
        let (one, other) = (World::by(pair.0), World::by(pair.1));
        thread::scope(|scope| {
            for index in 0..4_u64 {
                let (from, to) = if index % 2 == 0 { (&one, &other) } else { (&other, &one) };
                scope.spawn(move || {
                    let part = index * 200_000..index * 200_000 + 150_000;
                    let mut slice = from.import.slice(part.clone()).unwrap();
                    for _ in 0..if BY_DEVICE { 5 } else { 50 } {
                        slice = to.import.put(part.start, slice).unwrap();
                        slice = to.import.get(part.start, slice).unwrap();
                    }
                });
            }
        });
    }
}

#[test]
fn in_a_child() {
    let (one, other) = if BY_DEVICE { (NEARBY, REMOTE) } else { ("shm", "cma") };
    let (one, other) = (World::by(one), World::by(other));
    let mut slice = Some(one.slice());
    let child = || {
        let Some(slice) = slice.take() else { return false };
        let put = other.import.put(0, slice);
        put.is_err_and(|failed| failed.to_string().contains("fork") && failed.operand.len() == LEN as u64)
    };
    // SAFETY: the C library's fork leaves its allocator usable in the child, which ends by _exit.
    assert!(Forked::by(|| unsafe { libc::fork() }, child).said_yes());
}
