//! Mapped regions: parts of them as operands, and exported keys after a remap.

use std::sync::Arc;

use ucp::{AccessError, MapError, MemMap, OperandReason, RegMode, Status, TransferError};
use uct::api::MdFlags;
use uct_conformance::nic::NIC_COMPONENT;

use crate::memory::{Memory, PAGE};
use crate::raw::{SIZE, raw};
use crate::world::{LEN, World, caches, context, pattern, wait_until};

/// An operation that names a region of raw memory uses what is mapped there now, under the same slice; where nothing is, it fails and
/// gives the slice back.
pub(crate) fn slices_of_raw_memory() {
    if !caches() {
        return;
    }
    let world = World::new();
    let memory = Memory::new(SIZE);
    let region = world.importer.mem_map(MemMap::raw(raw(&memory))).unwrap();
    let mut slice = region.slice(PAGE..SIZE).unwrap();
    for number in 1..1_000 {
        for at in (0..SIZE).step_by(PAGE) {
            memory.write(at, number << 20 | at as u64);
        }
        slice = world.import.put(0, slice).unwrap();
        slice = world.import.put(0, slice).unwrap();
        let seen = world.at(SIZE - 2 * PAGE, 8);
        assert_eq!(seen, (number << 20 | (SIZE - PAGE) as u64).to_ne_bytes(), "in round {number}");
        if number % 2 == 0 {
            memory.unmap_and_map(PAGE, SIZE - PAGE);
        } else {
            memory.drop_pages(0, SIZE);
        }
        slice = world.import.get(0, slice).unwrap();
        let place = 2 * PAGE;
        assert_eq!(memory.read(place), number << 20 | place as u64, "in round {number}");
        if number % 100 == 0 {
            memory.unmap(PAGE, PAGE);
            let failed = world.import.put(0, slice).unwrap_err();
            assert_eq!(failed.status(), Status::InvalidAddr, "{failed}");
            slice = failed.operand;
            assert_eq!(slice.range(), PAGE..SIZE);
            memory.map_over(PAGE, PAGE);
        }
    }
    let stats = world.stats();
    assert!(stats.hits > 500, "{stats:?}");
}

/// Memory of the context's own: peers may write it meanwhile, and it stays as long as a slice of it does.
pub(crate) fn slices_of_allocated_memory() {
    let world = World::new();
    let region = world.importer.mem_map(MemMap::allocate(LEN)).unwrap();
    region.write(5, &pattern(1, 100_000)).unwrap();
    let slice = world.import.put(0, region.slice(5..100_005).unwrap()).unwrap();
    assert_eq!(world.at(0, 100_000), pattern(1, 100_000));
    world.region.write(0, &pattern(2, 100_000)).unwrap();
    let slice = world.import.get(0, slice).unwrap();
    let mut seen = vec![0; 100_000];
    region.read(5, &mut seen).unwrap();
    assert_eq!(seen, pattern(2, 100_000));
    let region = region.try_into_buf().unwrap_err();
    drop(region);
    world.region.write(0, &[0; 64]).unwrap();
    let slice = world.import.put(0, slice).unwrap();
    assert_eq!(world.at(0, 100_000), pattern(2, 100_000), "the slice has the memory");
    assert_eq!((slice.len(), slice.range()), (100_000, 5..100_005));
}

/// Memory that was allocated here has one registration, made by an operation on a good part of it and ended with the memory; unless a
/// peer was given a way to it.
pub(crate) fn allocated_memory_is_registered_once() {
    let world = World::new();
    let before = world.nic.registrations();
    let mut buf = world.importer.buf(1 << 20).unwrap();
    for number in 0..20 {
        buf.copy_from_slice(&pattern(number, 1 << 20));
        buf = world.import.put(0, buf).unwrap();
        assert!(world.at(0, 1 << 20) == buf[..], "round {number}");
        buf = world.import.get(1, buf).unwrap();
        assert!(world.at(1, 1 << 20) == buf[..], "round {number}");
    }
    assert_eq!((world.nic.registrations(), world.stats().gets), (before + 1, 0));
    // By another context over the same memory domain: not by this registration, which is not that one's.
    let other = context(world.component, "nic");
    let import = other.mem_import(world.handle.as_bytes()).unwrap();
    buf = import.put(0, buf).unwrap();
    assert_eq!(other.rcache_stats().gets, 1);
    drop((import, other));
    wait_until("the other's is deregistered", || world.nic.registrations() == before + 1);
    let region = buf.share();
    let small = world.import.put(0, region.slice(..64).unwrap()).unwrap();
    assert_eq!((world.nic.registrations(), world.stats().gets), (before + 2, 0), "one more, to be exported");
    drop(small);
    // From here on a peer may change the pages of a memfd.
    let handle = region.memh_pack().unwrap();
    let slice = world.import.put(0, region.slice(..).unwrap()).unwrap();
    assert_eq!(world.stats().gets, 1);
    drop((slice, region, handle));
    wait_until("all is deregistered", || world.nic.registrations() == before);

    // The same of a memfd, of which the cache keeps nothing.
    let files = context(world.component, "nic,mm");
    let import = files.mem_import(world.handle.as_bytes()).unwrap();
    let buf = import.put(0, files.buf(1 << 20).unwrap()).unwrap();
    let region = import.get(0, buf).unwrap().share();
    drop(import.put(0, region.slice(5..).unwrap()).unwrap());
    assert_eq!(files.rcache_stats().gets, 0);
    let handle = region.memh_pack().unwrap();
    drop(import.put(0, region.slice(5..).unwrap()).unwrap());
    assert_eq!(files.rcache_stats().one_shots, 1);
    drop((handle, region));
    assert_eq!(world.nic.registrations(), before);

    // A few bytes of much do not bring in all of it.
    let large = world.importer.mem_map(MemMap::allocate(1 << 30)).unwrap();
    large.write(1 << 29, b"somewhere").unwrap();
    let part = (1 << 29)..(1 << 29) + 9;
    drop(world.import.put(0, large.slice(part).unwrap()).unwrap());
    assert_eq!(world.at(0, 9), b"somewhere");
}

/// What was taken for reading only is not written, also not by a NIC.
pub(crate) fn slices_of_owned_buffers() {
    let world = World::new();
    let shared: Arc<[u8]> = Arc::from(pattern(3, 10_000));
    let region = world.importer.mem_map(MemMap::read_only_buffer(Arc::clone(&shared))).unwrap();
    let slice = world.import.put(0, region.slice(..).unwrap()).unwrap();
    assert_eq!(world.at(0, 10_000), *shared);
    world.region.write(0, &[7; 10_000]).unwrap();
    let failed = world.import.get(0, slice).unwrap_err();
    let why = AccessError::Operand { done: 0, why: OperandReason::ReadOnlyBuffer };
    assert_eq!(failed.error, TransferError::Access(why));
    assert_eq!(*shared, *pattern(3, 10_000));
    let region = world.importer.mem_map(MemMap::buffer(vec![0; 10_000])).unwrap();
    world.import.get(0, region.slice(1_000..).unwrap()).unwrap();
    let mut seen = vec![0; 10_000];
    region.read(0, &mut seen).unwrap();
    assert!(seen[..1_000].iter().all(|byte| *byte == 0) && seen[1_000..].iter().all(|byte| *byte == 7));
}

/// Another process's memory has no pages here that could be registered: it is copied, also where it is the NIC's itself.
pub(crate) fn slices_of_imports() {
    let (world, other) = (World::new(), World::new());
    let shared = context(world.component, "nic,mm");
    let region = shared.mem_map(MemMap::allocate(LEN).exported()).unwrap();
    let mapped = shared.mem_import(region.memh_pack().unwrap().as_bytes()).unwrap();
    assert_eq!(mapped.transport(), "shm");
    let before = (world.nic.registrations(), other.nic.registrations());
    region.write(5, &pattern(1, LEN - 5)).unwrap();
    let slice = world.import.put(0, mapped.slice(5..).unwrap()).unwrap();
    assert!(world.at(0, LEN - 5) == pattern(1, LEN - 5));
    let from = world.import.slice(1..).unwrap();
    let from = other.import.put(0, from).unwrap();
    assert!(other.at(0, LEN - 6) == world.at(1, LEN - 6));
    other.region.write(0, &pattern(2, LEN)).unwrap();
    drop(other.import.get(0, from).unwrap());
    assert!(world.at(1, LEN - 1) == other.at(0, LEN - 1));
    drop(world.import.get(1, slice).unwrap());
    let mut seen = vec![0; LEN - 5];
    region.read(5, &mut seen).unwrap();
    assert!(seen == other.at(0, LEN - 5));
    assert_eq!((world.nic.registrations(), other.nic.registrations()), before);
    assert_eq!((world.stats().gets, other.stats().gets), (0, 0));
    world.handle.revoke().unwrap();
    let failed = other.import.put(0, world.import.slice(..).unwrap()).unwrap_err();
    assert_eq!(failed.status(), Status::Stale);
    assert!(matches!(failed.error, TransferError::Access(AccessError::Operand { done: 0, .. })), "{failed}");
}

/// 37: a peer that has the key of memory that was unmapped and mapped again at its address. What is address-bound reaches the new pages;
/// what is not reaches the old ones, and does not say otherwise.
pub(crate) fn t37_exported_remapped_and_read_by_a_peer() {
    let world = World::new();
    for (tls, bound) in [("self", true), ("cma", true), ("nic", false)] {
        let owner = context(world.component, tls);
        let memory = Memory::new(SIZE);
        let map = MemMap::raw(raw(&memory)).reg_mode(RegMode::Cached);
        let region = owner.mem_map(map.exported()).unwrap();
        let peer = if tls == "self" { owner.clone() } else { context(world.component, tls) };
        let import = peer.mem_import(region.memh_pack().unwrap().as_bytes()).unwrap();
        assert_eq!(import.transport(), tls);
        let (_, md) = peer.transports().next().unwrap();
        assert_eq!(md.attr().flags.contains(MdFlags::VA_BOUND), bound, "{tls}");
        for number in 1..200_u64 {
            memory.write(PAGE, number);
            let new = import.get(PAGE as u64, vec![0; 8]).unwrap();
            let seen = u64::from_ne_bytes(new.try_into().unwrap());
            assert_eq!(seen, if bound { number } else { 1 }, "by {tls}, in round {number}");
            memory.unmap_and_map(0, SIZE);
        }
    }
}

/// 37: so raw memory is exported by what is address-bound alone, unless its owner promises to keep it mapped.
pub(crate) fn t37_raw_memory_is_exported_by_address() {
    let world = World::new();
    let memory = Memory::new(SIZE);
    let refused = world.owner.mem_map(MemMap::raw(raw(&memory)).exported()).unwrap_err();
    assert!(matches!(refused, MapError::NotExportable { .. }), "{refused}");
    assert!(refused.to_string().contains("may be unmapped: see RegMode::Cached"), "{refused}");
    let all = context(world.component, "all");
    for (mode, offered) in [(RegMode::Auto, false), (RegMode::Cached, true)] {
        let region = all.mem_map(MemMap::raw(raw(&memory)).reg_mode(mode).exported()).unwrap();
        let handle = region.memh_pack().unwrap();
        let results = handle.md_results();
        assert_eq!(results.iter().any(|result| result.component == NIC_COMPONENT), offered, "{results}");
    }
    // Memory that nobody unmaps is exported by it in any case.
    let region = all.mem_map(MemMap::buffer(vec![0; SIZE]).exported()).unwrap();
    assert!(region.memh_pack().unwrap().md_results().iter().any(|result| result.component == NIC_COMPONENT));
}
