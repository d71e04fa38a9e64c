//! Buffers of a program's own.

use std::sync::Arc;

use ucp::{MemMap, RcacheStats};
use ucs::monitor::{Monitor, Wanted};

use crate::world::{LEN, World, caches, context, context_from, fill, pattern};

/// What stays in the heap when it is freed is found again when it is allocated at the same address.
pub(crate) fn dropped_and_allocated_again_hits() {
    if !caches() {
        return;
    }
    const SIZE: usize = 32 << 10;
    let world = World::new();
    let (mut again, mut last) = (0, 0);
    for number in 0..1_000 {
        let mut buf = vec![0; SIZE];
        fill(&mut buf, number);
        again += u64::from(last == buf.as_ptr().addr());
        last = buf.as_ptr().addr();
        let buf = world.import.put(number, buf).unwrap();
        assert_eq!(buf.as_ptr().addr(), last, "it is the same vector that comes back");
        assert_eq!(world.at(usize::try_from(number).unwrap(), SIZE), buf, "of round {number}");
        drop(buf);
        let buf = world.import.get(number, vec![0; SIZE]).unwrap();
        assert_eq!(buf, world.at(usize::try_from(number).unwrap(), SIZE), "in round {number}");
    }
    let stats = world.stats();
    assert!(again > 900, "{again} at the same address");
    assert!(stats.hits > again * 9 / 10, "{again} at the same address: {stats:?}");
    assert_eq!(stats.gets, 2_000);
}

/// What is given back to the system when it is freed has other pages when it is allocated again, mostly at the same address.
pub(crate) fn large_ones_unmapped_and_mapped_again() {
    let world = World::new();
    let (mut again, mut last) = (0, 0);
    for number in 0..60 {
        let mut buf = vec![0; LEN];
        fill(&mut buf, number);
        again += u64::from(last == buf.as_ptr().addr());
        last = buf.as_ptr().addr();
        let buf = world.import.put(0, buf).unwrap();
        assert!(world.at(0, LEN) == buf, "other bytes arrived in round {number}");
        drop(buf);
        let mut fresh = vec![0; LEN];
        fill(&mut fresh, number + 1_000);
        world.region.write(0, &fresh).unwrap();
        drop(fresh);
        let buf = world.import.get(0, vec![0; LEN]).unwrap();
        assert!(world.at(0, LEN) == buf, "other bytes were read in round {number}");
    }
    assert!(again > 15, "{again} at the same address");
    assert_eq!(world.stats().gets, 120);
}

/// Where nobody tells of changes nothing is kept, and all is right nevertheless.
pub(crate) fn nobody_tells_of_changes() {
    Monitor::process().want(Wanted::Off);
    let world = World::new();
    for number in 0..50 {
        let buf = world.import.put(0, pattern(number, 1 << 20)).unwrap();
        assert!(world.import.get(0, vec![0; 1 << 20]).unwrap() == buf, "in round {number}");
    }
    let stats = world.stats();
    assert_eq!((stats.gets, stats.one_shots, stats.hits, stats.pinned_bytes), (100, 100, 0, 0));
    assert_eq!(world.nic.registrations(), 1, "the exported region's alone");
}

pub(crate) fn of_every_kind() {
    let world = World::new();
    let bytes = pattern(1, 12_345);
    let import = &world.import;
    import.put(1, bytes.clone().into_boxed_slice()).unwrap();
    assert_eq!(*import.get(1, vec![0; bytes.len()].into_boxed_slice()).unwrap(), *bytes);
    import.put(2, Arc::<[u8]>::from(&bytes[..])).unwrap();
    let mut private = import.get(2, world.importer.buf(bytes.len()).unwrap()).unwrap();
    assert_eq!(private[..], bytes);
    private[0] ^= 1;
    let private = import.put(3, private).unwrap();
    assert_eq!(world.at(3, bytes.len()), private[..]);
    let gets = world.stats().gets;
    assert_eq!(gets, 3, "each is looked up, but for what was allocated here");
    assert!(import.put(LEN as u64, Vec::new()).unwrap().is_empty());
    assert!(import.get(LEN as u64, Vec::new()).unwrap().is_empty());
    assert_eq!(world.stats().gets, gets, "what has no bytes is not registered");
    // Borrowed slices are copied through the transport's own memory.
    let mut seen = [0; 8];
    import.write(100, b"borrowed").unwrap();
    import.read(100, &mut seen).unwrap();
    assert_eq!(&seen, b"borrowed");
    assert_eq!(world.stats().gets, gets);
    world.handle.revoke().unwrap();
    let failed = import.put(0, bytes.clone()).unwrap_err();
    assert_eq!((failed.status(), &failed.operand), (ucp::Status::Stale, &bytes));
}

pub(crate) fn by_many_threads() {
    let world = World::new();
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let world = &world;
            scope.spawn(move || {
                let place = thread * (LEN / 4);
                for number in 0..300 {
                    // Some are given back to the system, some stay in the heap.
                    let size = if number % 3 == 0 { LEN / 4 } else { 16 << 10 };
                    let buf = pattern(thread as u64 * 1_000 + number, size);
                    let buf = world.import.put(place as u64, buf).unwrap();
                    let back = world.import.get(place as u64, vec![0; size]).unwrap();
                    assert!(back == buf, "thread {thread}, round {number}");
                }
            });
        }
    });
    assert!(world.stats().gets >= 4 * 300 * 2, "each is looked up, some again to make room");
}

/// A context that has a NIC does not ask the cache for transports that need nothing registered; nor is there a cache then.
/// By the user's choice, or by what costs less.
pub(crate) fn short_ones_are_copied_and_long_ones_registered() {
    let world = World::new();
    for (thresh, len, gets) in [
        ("auto", 4096, 0),
        ("auto", 32 << 10, 2),
        ("32769", 32 << 10, 0),
        ("inf", LEN - 3, 0),
        ("100", 99, 0),
        ("100", 100, 2),
    ] {
        let ctx = context_from(world.component, "nic", thresh);
        let import = ctx.mem_import(world.handle.as_bytes()).unwrap();
        let buf = import.put(3, pattern(7, len)).unwrap();
        assert!(world.at(3, len) == buf, "{thresh}: {len} bytes");
        assert!(import.get(3, vec![0; len]).unwrap() == buf, "{thresh}: {len} bytes");
        assert_eq!(ctx.rcache_stats().gets, gets, "{thresh}: {len} bytes");
        let beyond = import.put(LEN as u64 - 1, pattern(7, len)).unwrap_err();
        assert_eq!(beyond.status(), ucp::Status::OutOfRange);
    }
}

pub(crate) fn nothing_is_looked_up_where_nothing_is_needed() {
    let world = World::new();
    for tls in ["nic,self", "nic,mm", "nic,cma", "all"] {
        let ctx = context(world.component, tls);
        let memory = if tls == "nic,mm" { MemMap::allocate(LEN) } else { MemMap::buffer(vec![0; LEN]) };
        let region = ctx.mem_map(memory.exported()).unwrap();
        let import = ctx.mem_import(region.memh_pack().unwrap().as_bytes()).unwrap();
        assert_ne!(import.transport(), "nic", "the others cost less");
        let registrations = world.nic.registrations();
        let buf = import.put(0, pattern(1, LEN)).unwrap();
        assert!(import.get(0, vec![0; LEN]).unwrap() == buf);
        assert_eq!(ctx.rcache_stats(), RcacheStats::default());
        assert_eq!(world.nic.registrations(), registrations);
    }
}
