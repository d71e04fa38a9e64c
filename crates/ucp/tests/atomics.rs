//! Atomics on imports: by every transport of this build, next to the owner's.

#![allow(clippy::unwrap_used)] // tests

mod transports;

use std::sync::atomic::Ordering;
use std::thread;

use testkit::Forked;
use transports::{BY_DEVICE, NEARBY, REMOTE};
use ucp::{AmoOp, Context, Features, ImportedRegion, MemMap, PackedMemh, Region, Status};

/// Those that have atomics.
const TRANSPORTS: [&str; 2] = if BY_DEVICE { [NEARBY, REMOTE] } else { ["self", "shm"] };

/// An import by a transport.
struct World {
    region: Region,
    handle: PackedMemh,
    import: ImportedRegion,
}

impl World {
    fn by(transport: &str, map: MemMap) -> Self {
        let ctx = context(transport);
        let region = ctx.mem_map(map.exported()).unwrap();
        let handle = region.memh_pack().unwrap();
        let import = ctx.mem_import(handle.as_bytes()).unwrap();
        assert_eq!(import.transport(), transports::name(transport));
        Self { region, handle, import }
    }
}

/// A context whose atomics are a device's where its imports go by one.
fn context(transport: &str) -> Context {
    let mode = if BY_DEVICE { "device" } else { "cpu" };
    transports::builder(transport).set("UCX_ATOMIC_MODE", mode).build().unwrap()
}

#[test]
fn by_their_names() {
    for transport in TRANSPORTS {
        let World { region, import, handle } = World::by(transport, MemMap::allocate(4096));
        assert_eq!(import.fetch_add(8, 5_u64), Ok(0));
        assert_eq!(import.fetch_or(8, 8_u64), Ok(5));
        assert_eq!(import.fetch_and(8, 12_u64), Ok(13));
        assert_eq!(import.fetch_xor(8, 4_u64), Ok(12));
        assert_eq!(import.swap(8, 1_u64 << 40), Ok(8));
        assert_eq!(import.cswap(8, 7, 9_u64), Ok(1 << 40), "another word than expected stays");
        assert_eq!(import.cswap(8, 1 << 40, 9_u64), Ok(1 << 40));
        assert_eq!(import.atomic(8, AmoOp::Add(u64::MAX)), Ok(9));
        assert_eq!(region.atomic_u64(8).unwrap().load(Ordering::SeqCst), 8);
        if BY_DEVICE {
            let error = import.fetch_add(4, u32::MAX).unwrap_err();
            assert_eq!(error.status(), Status::Unsupported);
            assert!(error.to_string().contains("no atomics on words of 32 bits"), "{error}");
        } else {
            assert_eq!(import.fetch_add(4, u32::MAX), Ok(0));
            assert_eq!(import.fetch_add(4, 2_u32), Ok(u32::MAX));
            assert_eq!(region.atomic_u32(4).unwrap().load(Ordering::SeqCst), 1);
            assert_eq!(import.fetch_add(12, 1_u32), Ok(0), "aligned for 32 bits");
            assert_eq!(import.fetch_add(4096, 1_u32).unwrap_err().status(), Status::OutOfRange);
        }
        assert_eq!(import.load::<u32>(0), Ok(0), "its neighbours stay");
        assert_eq!(import.load::<u64>(16), Ok(0), "its neighbours stay");

        assert_eq!(import.fetch_add(12, 1_u64).unwrap_err().status(), Status::InvalidParam);
        assert_eq!(import.fetch_add(4096, 1_u64).unwrap_err().status(), Status::OutOfRange);
        handle.revoke().unwrap();
        let error = import.swap(8, 0_u64).unwrap_err();
        assert_eq!((error.status(), error.remedy().contains("new handle")), (Status::Stale, true));
    }
}

#[test]
fn where_there_are_none() {
    let World { import, region: _region, .. } = World::by("cma", MemMap::buffer(vec![0; 64]));
    let error = import.fetch_add(8, 1_u64).unwrap_err();
    assert_eq!(error.status(), Status::Unsupported);
    assert!(error.remedy().contains("use memory of `MemMap::allocate`"), "{}", error.remedy());
    assert!(error.to_string().contains("the kernel has no atomics on another process's memory"), "{error}");
    assert_eq!(import.load::<u64>(8), Ok(0));

    let World { import, region: _other, .. } = World::by("shm", MemMap::allocate(64).read_only());
    assert_eq!(import.fetch_or(8, 0_u32).unwrap_err().status(), Status::AccessDenied);
    let ctx = Context::builder().features(Features::EXPORTED_MEMH).ignore_env().build().unwrap();
    let region = ctx.mem_map(MemMap::allocate(0).exported()).unwrap();
    let import = ctx.mem_import(region.memh_pack().unwrap().as_bytes()).unwrap();
    assert_eq!(import.fetch_add(0, 1_u64).unwrap_err().status(), Status::OutOfRange);
}

/// A device's are there if they are asked for, on memory that may be written.
#[cfg(feature = "rxe-tests")]
#[test]
fn by_a_device_if_they_are_asked_for() {
    for transport in TRANSPORTS {
        let World { import, region: _region, .. } =
            World::by(transport, MemMap::buffer(vec![0; 64]).read_only());
        assert_eq!(import.fetch_or(8, 0_u64).unwrap_err().status(), Status::AccessDenied, "{transport}");
        let ctx = transports::builder(transport).build().unwrap();
        let region = ctx.mem_map(MemMap::allocate(64).exported()).unwrap();
        let import = ctx.mem_import(region.memh_pack().unwrap().as_bytes()).unwrap();
        let error = import.fetch_add(8, 1_u64).unwrap_err();
        assert_eq!(error.status(), Status::Unsupported);
        assert!(error.to_string().contains("UCX_ATOMIC_MODE"), "{error}");
        assert_eq!(import.load::<u64>(8), Ok(0));
    }
}

/// Until a lock is taken, does something, and gives it back; so often.
fn locked(rounds: u64, take: impl Fn() -> bool, inside: impl Fn(), give: impl Fn()) {
    for _ in 0..rounds {
        while !take() {
            thread::yield_now();
        }
        inside();
        give();
    }
}

/// A lock in memory that two have imported, each with a context of its own: what it protects is as if there were one thread.
#[test]
fn a_lock_between_importers() {
    const ROUNDS: u64 = if BY_DEVICE { 50 } else { 20_000 };
    for transport in TRANSPORTS {
        let World { region, import, handle } = World::by(transport, MemMap::allocate(4096));
        let other = if transport == "self" { None } else { Some(context(transport)) };
        let other = other.map(|ctx| ctx.mem_import(handle.as_bytes()).unwrap());
        thread::scope(|scope| {
            for (import, me) in [(&import, 1), (other.as_ref().unwrap_or(&import), 2)] {
                scope.spawn(move || {
                    locked(
                        ROUNDS,
                        || import.cswap(0, 0_u64, me).unwrap() == 0,
                        || import.store(64, import.load::<u64>(64).unwrap() + 1).unwrap(),
                        || assert_eq!(import.swap(0, 0_u64), Ok(me)),
                    );
                });
            }
        });
        assert_eq!(region.load::<u64>(64), Ok(2 * ROUNDS), "{transport}");
    }
}

/// The same with its owner, who takes it by the processor.
#[test]
fn a_lock_between_both_sides() {
    const ROUNDS: u64 = 20_000;
    for transport in ["self", "shm"] {
        let World { region, import, .. } = World::by(transport, MemMap::allocate(4096));
        thread::scope(|scope| {
            scope.spawn(|| {
                locked(
                    ROUNDS,
                    || import.cswap(0, 0_u32, 1).unwrap() == 0,
                    || import.store(64, import.load::<u64>(64).unwrap() + 1).unwrap(),
                    || assert_eq!(import.swap(0, 0_u32), Ok(1)),
                );
            });
            let word = region.atomic_u32(0).unwrap();
            locked(
                ROUNDS,
                || word.compare_exchange(0, 2, Ordering::SeqCst, Ordering::SeqCst).is_ok(),
                || region.store(64, region.load::<u64>(64).unwrap() + 1).unwrap(),
                || assert_eq!(word.swap(0, Ordering::SeqCst), 2),
            );
        });
        assert_eq!(region.load::<u64>(64), Ok(2 * ROUNDS), "{transport}");
    }
}

#[test]
fn in_a_child() {
    for transport in TRANSPORTS {
        let World { import, region: _region, .. } = World::by(transport, MemMap::allocate(4096));
        let child = || import.fetch_add(0, 1_u64).is_err_and(|error| error.to_string().contains("fork"));
        // SAFETY: the C library's fork leaves its allocator usable in the child, which ends by _exit.
        assert!(Forked::by(|| unsafe { libc::fork() }, child).said_yes());
        assert_eq!(import.fetch_add(0, 1_u64), Ok(0));
    }
}
