//! Imports by an RDMA device: it does the work, and nothing is allocated for it.
//!
//! System calls are not counted: a program tells a device of rxe of its requests by one (`rxe_post_send` of rdma-core's provider).

use std::hint::black_box;

use testkit::count_allocs;
use ucp::{Context, ImportedRegion, MemMap, PackedMemh, Region};

use crate::PACK_ALLOCATIONS;
use crate::transports::{self, NEARBY, REMOTE};

const LEN: usize = 1 << 20;

/// What is moved at once, and in fragments; by either lane of a queue.
const SIZES: [usize; 5] = [1, 64, 4096, 300_000, LEN];

/// Memory of an owner's, and an import of it.
struct World {
    _owner: Context,
    region: Region,
    handle: PackedMemh,
    importer: Context,
    import: ImportedRegion,
}

impl World {
    /// Imported by `importer`.
    fn of(transport: &str, importer: Context) -> Self {
        let owner = context(transport);
        let region = owner.mem_map(MemMap::allocate(LEN).exported()).unwrap();
        let handle = region.memh_pack().unwrap();
        let import = importer.mem_import(handle.as_bytes()).unwrap();
        assert_eq!(import.transport(), transports::name(transport));
        Self { _owner: owner, region, handle, importer, import }
    }

    fn by(transport: &str) -> Self {
        Self::of(transport, context(transport))
    }

    fn both() -> [Self; 2] {
        [NEARBY, REMOTE].map(Self::by)
    }
}

fn context(transport: &str) -> Context {
    transports::builder(transport).set("UCX_ATOMIC_MODE", "device").build().unwrap()
}

/// Does it twice: what is there for good is made by the first time, and the second one allocates nothing.
#[track_caller]
fn allocates_nothing(what: &str, mut all: impl FnMut() -> bool) {
    assert!(all(), "{what}");
    let mut again = false;
    assert_eq!(count_allocs(|| again = all()), 0, "{what}");
    assert!(again, "{what}");
}

#[test]
fn accesses_do_not_allocate() {
    let mut buf = vec![1; LEN];
    for (world, what) in World::both().iter().zip([NEARBY, REMOTE]) {
        let import = &world.import;
        allocates_nothing(what, || {
            let mut all = true;
            for size in SIZES {
                all &= import.read(0, black_box(&mut buf[..size])).is_ok();
                all &= import.write(0, black_box(&buf[..size])).is_ok();
            }
            all &= import.store(64, black_box(1_u64)).is_ok() && import.load::<u64>(64) == Ok(1);
            all &= import.fetch_add(64, black_box(1_u64)) == Ok(1) && import.swap(64, 1_u64) == Ok(2);
            all &= import.fetch_add(64, 1_u32).is_err() && import.fetch_add(65, 1_u64).is_err();
            all & import.read(LEN as u64, &mut [0]).is_err() && import.check().is_ok()
        });
    }
}

/// From the second one on: what the first one fails by ends a queue pair, and is asked about.
#[test]
fn stale_accesses_do_not_allocate() {
    for (world, what) in World::both().iter().zip([NEARBY, REMOTE]) {
        world.handle.revoke().unwrap();
        let import = &world.import;
        allocates_nothing(what, || {
            import.read(0, &mut [0; 8]).is_err()
                && import.write(0, &[0; 8]).is_err()
                && import.swap(0, 1_u64).is_err()
                && import.check().is_err()
        });
    }
}

/// Of those that are registered, too: it is found.
#[test]
fn operands_do_not_allocate() {
    for (world, what) in World::both().iter().zip([NEARBY, REMOTE]) {
        let mut bufs = SIZES.map(|size| Some(vec![1; size]));
        let local = world.importer.mem_map(MemMap::allocate(LEN)).unwrap();
        let mut slice = local.slice(..).ok();
        allocates_nothing(what, || {
            let import = &world.import;
            slice = slice.take().and_then(|slice| import.get(0, import.put(0, slice).ok()?).ok());
            let mut all = slice.is_some();
            for buf in &mut bufs {
                let done = buf.take().and_then(|buf| import.get(0, import.put(0, buf).ok()?).ok());
                *buf = done.and_then(|buf| Some(import.put(LEN as u64, buf).err()?.operand));
                all &= buf.is_some();
            }
            all
        });
    }
}

/// Between two of an importer's device, and with memory that is mapped.
#[test]
fn imported_operands_do_not_allocate() {
    let both = || {
        let builder = transports::builder(NEARBY).set("UCX_VERBS_REMOTE", "y");
        builder.build().unwrap()
    };
    let importer = both();
    let nearby = [(); 2].map(|()| World::of(NEARBY, importer.clone()));
    let remote = [(); 2].map(|()| World::of(REMOTE, importer.clone()));
    let mapped = {
        let ctx = transports::builder("shm").build().unwrap();
        let region = ctx.mem_map(MemMap::allocate(LEN).exported()).unwrap();
        let import = transports::builder("shm").build().unwrap();
        let import = import.mem_import(region.memh_pack().unwrap().as_bytes()).unwrap();
        (region, import)
    };
    for (what, one, other) in [
        ("in this domain", &nearby[0].import, &nearby[1].import),
        ("from this domain", &remote[0].import, &nearby[0].import),
        ("to this domain", &nearby[0].import, &remote[0].import),
        ("of two others", &remote[0].import, &remote[1].import),
        ("of one other", &remote[0].import, &remote[0].import),
        ("from what is mapped", &remote[0].import, &mapped.1),
        ("to what is mapped", &mapped.1, &remote[0].import),
        ("from what is mapped to this domain", &nearby[0].import, &mapped.1),
        ("to what is mapped from this domain", &mapped.1, &nearby[0].import),
    ] {
        allocates_nothing(what, || {
            SIZES.into_iter().all(|size| {
                let slice = other.slice(..size as u64).ok();
                slice.and_then(|slice| one.get(0, one.put(0, slice).ok()?).ok()).is_some()
            })
        });
    }
}

#[test]
fn a_cached_import_does_not_allocate() {
    for (world, what) in World::both().iter().zip([NEARBY, REMOTE]) {
        let bytes = world.handle.as_bytes();
        allocates_nothing(what, || {
            world.importer.mem_import(bytes).is_ok_and(|again| again.is_same(&world.import))
        });
    }
}

#[test]
fn a_pack_allocates_little() {
    for (world, what) in World::both().iter().zip([NEARBY, REMOTE]) {
        let mut handles = Vec::with_capacity(32);
        let counts = (0..32).map(|_| count_allocs(|| handles.push(world.region.memh_pack().unwrap())));
        let usual = counts.min().unwrap();
        assert!(usual <= PACK_ALLOCATIONS, "{what}: {usual}");
    }
}
