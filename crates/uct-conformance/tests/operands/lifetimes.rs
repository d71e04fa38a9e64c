//! What lives how long, and who has what.

use std::sync::Arc;

use ucp::{MemMap, Status};
use uct_conformance::nic::{Nic, NicComponent};

use crate::memory::Memory;
use crate::raw::{SIZE, raw};
use crate::world::{World, caches, context, pattern, wait_until};

/// Import, contexts and region dropped in every order: in the end nothing is registered.
pub(crate) fn all_orders_of_dropping() {
    let mut orders = vec![vec![]];
    for part in 0..5 {
        let insert = |order: Vec<usize>| {
            (0..=order.len()).map(move |at| {
                let mut longer = order.clone();
                longer.insert(at, part);
                longer
            })
        };
        orders = orders.into_iter().flat_map(insert).collect();
    }
    assert_eq!(orders.len(), 120);
    for order in orders {
        let world = World::new();
        let kept = world.import.put(0, pattern(1, 50_000)).unwrap();
        let World { import, importer, handle, region, owner, nic, .. } = world;
        let (mut import, mut importer, mut handle) = (Some(import), Some(importer), Some(handle));
        let (mut region, mut owner) = (Some(region), Some(owner));
        for part in &order {
            match part {
                0 => drop(import.take()),
                1 => drop(importer.take()),
                2 => drop(handle.take()),
                3 => drop(region.take()),
                _ => drop(owner.take()),
            }
            if let Some(import) = &import {
                assert_eq!(import.put(0, pattern(2, 50_000)).is_ok(), region.is_some(), "{order:?}");
            }
        }
        wait_until("all is deregistered", || nic.registrations() == 0);
        assert_eq!(nic.pinned_bytes(), 0, "{order:?}");
        drop(kept);
    }
}

/// Each context has a cache of its own, all told of the same changes.
pub(crate) fn several_contexts() {
    let world = World::new();
    let contexts = [(); 3].map(|()| context(world.component, "nic"));
    let imports = [0, 1, 2].map(|index: usize| contexts[index].mem_import(world.handle.as_bytes()).unwrap());
    let memory = Memory::new(SIZE);
    for number in 0..300 {
        for (place, import) in imports.iter().enumerate() {
            memory.write(0, number * 8 + place as u64);
            import.put(place as u64 * 8192, raw(&memory)).unwrap();
            let seen = world.at(place * 8192, 8);
            assert_eq!(seen, (number * 8 + place as u64).to_ne_bytes(), "context {place} in round {number}");
        }
        memory.unmap_and_map(0, SIZE);
    }
    for context in &contexts {
        assert_eq!(context.rcache_stats().gets, 300);
    }
    assert_eq!(world.stats().gets, 0);
}

/// A context with two NICs: an operand is registered with both, or with none, whichever reaches the other side.
pub(crate) fn several_memory_domains() {
    if !caches() {
        return;
    }
    let world = World::new();
    let (large, small) = (Arc::clone(&world.nic), Arc::new(Nic::with_limit(64, 1 << 20).unwrap()));
    let both = NicComponent::leak(&[Arc::clone(&large), Arc::clone(&small)]);
    let owner = context(both, "nic");
    // More than the small one may pin: so it is exported by the other alone.
    let region = owner.mem_map(MemMap::buffer(vec![0; 2 << 20]).exported()).unwrap();
    let importer = context(both, "nic");
    let import = importer.mem_import(region.memh_pack().unwrap().as_bytes()).unwrap();
    let before = (large.registrations(), small.registrations());
    let buf = import.put(0, pattern(1, 100_000)).unwrap();
    let mut seen = vec![0; 100_000];
    region.read(0, &mut seen).unwrap();
    assert_eq!(seen, buf);
    assert_eq!((large.registrations(), small.registrations()), (before.0 + 1, before.1 + 1));
    // More than one of them may pin is registered with neither.
    let failed = import.put(0, pattern(2, 2 << 20)).unwrap_err();
    assert_eq!(failed.status(), Status::NoResource, "{failed}");
    assert!(failed.operand == pattern(2, 2 << 20));
    assert_eq!(large.registrations(), small.registrations() + before.0 - before.1, "as many with both");
    assert_eq!(import.get(0, buf).unwrap(), seen);
    drop((import, importer));
    wait_until("all is deregistered", || (large.registrations(), small.registrations()) == before);
}
