//! What lives how long, and who has what.

use crate::memory::Memory;
use crate::raw::{SIZE, raw};
use crate::world::{World, context, pattern, wait_until};

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
