//! Caches, their users, and what is left of them.

use std::sync::Arc;

use testkit::role::rounds;
use ucs::mem::page::PageRange;
use ucs::monitor::Monitor;
use ucs::rcache::{Cache, Options};
use uct_conformance::nic::{Nic, NicRegistrar};

use crate::world::{Memory, PAGE, PINNED, World, tag, wait_until};

fn resident() -> usize {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap();
    text.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * PAGE
}

/// Forty thousand mappings, each used and unmapped: neither registrations nor memory grow.
pub(crate) fn forty_thousand_mappings() {
    const LEN: usize = 4 * PAGE;
    let world = World::new();
    let all = rounds(40_000);
    let mut before = 0;
    for round in 0..all {
        let memory = Memory::anywhere(LEN);
        let value = tag();
        memory.write(PAGE, value);
        assert_eq!(world.dma(memory.address(PAGE), PAGE), Some(value));
        memory.unmap(0, LEN);
        if round == all / 10 {
            before = resident();
        }
        if round % 1_000 == 0 {
            // The reclaimer may be a little behind.
            assert!(world.nic.registrations() < 600, "{} in round {round}", world.nic.registrations());
        }
    }
    let after = resident();
    assert!(after < before + (4 << 20), "{before} bytes became {after}");
    wait_until("all is deregistered", || world.nic.registrations() == 0);
    world.ends_empty();
}

/// Nobody calls the cache any more: what is unmapped is deregistered all the same.
pub(crate) fn an_idle_cache_lets_go() {
    let world = World::new();
    let memory = Memory::new(600 * PAGE);
    (0..200).for_each(|number| drop(world.get(memory.address(2 * number * PAGE), PAGE)));
    let held = world.get(memory.address(500 * PAGE), PAGE);
    let all = world.nic.registrations();
    assert!(all > 150, "{all}");
    memory.unmap(0, 600 * PAGE);
    wait_until("all is deregistered that is not used", || world.nic.registrations() == 1);
    assert!(world.nic.is_registered(&held), "until it is given back");
    drop(held);
    assert_eq!(world.nic.registrations(), 0);
}

/// Several caches of the process over the same memory: each is told.
pub(crate) fn several_caches() {
    let worlds: Vec<_> = (0..4).map(|_| World::new()).collect();
    let memory = Memory::new(8 * PAGE);
    for round in 0..rounds(500) {
        worlds.iter().for_each(|world| _ = world.agree(&memory, 0, 8 * PAGE));
        match round % 3 {
            0 => memory.unmap_and_map(PAGE, 2 * PAGE),
            1 => memory.drop_pages(0, 8 * PAGE),
            _ => memory.map_over(4 * PAGE, 4 * PAGE),
        }
        worlds[round % 4].agree(&memory, 0, 4 * PAGE);
    }
    // What one is told to forget, the others keep.
    worlds.iter().for_each(|world| world.agree_cached(&memory, 0, 8 * PAGE));
    let kept = *worlds[1].get(memory.address(0), PAGE);
    worlds[0].cache.purge();
    assert_eq!(*worlds[1].get(memory.address(0), PAGE), kept);
    worlds.iter().for_each(World::ends_empty);
}

/// Caches, clones of them, references, NIC, memory: dropped in any order.
pub(crate) fn all_orders_of_dropping() {
    for order in 0..120_usize {
        let nic = Arc::new(Nic::with_limit(64, PINNED).unwrap());
        let registrar = NicRegistrar(Arc::clone(&nic));
        let cache = Cache::new(registrar, Monitor::process(), Options::default()).unwrap();
        let memory = Memory::new(8 * PAGE);
        let get = |at: usize| cache.get(memory.address(at), PAGE, ucs::mem::Access::ReadWrite).unwrap();
        let (first, second) = (get(0), get(2 * PAGE));
        drop(get(4 * PAGE));
        let mut clone = Some(cache.clone());
        let (mut first, mut second) = (Some(first), Some(second));
        let mut cache = Some(cache);
        let mut left = vec![0, 1, 2, 3, 4];
        let mut number = order;
        while !left.is_empty() {
            let next = left.remove(number % left.len());
            number /= left.len() + 1;
            match next {
                0 => drop(cache.take()),
                1 => drop(clone.take()),
                2 => memory.unmap_and_map(0, 4 * PAGE),
                3 => {
                    assert!(nic.is_registered(first.as_ref().unwrap()));
                    drop(first.take());
                }
                _ => {
                    assert!(nic.is_registered(second.as_ref().unwrap()));
                    drop(second.take());
                }
            }
            if let Some(cache) = cache.as_ref().or(clone.as_ref()) {
                assert!(cache.get(memory.address(6 * PAGE), PAGE, ucs::mem::Access::ReadWrite).is_ok());
                cache.invalidate(PageRange::containing(memory.address(6 * PAGE), PAGE).unwrap());
            }
        }
        wait_until("all is deregistered", || nic.registrations() == 0);
        wait_until("nobody has the NIC", || Arc::strong_count(&nic) == 1);
        memory.unmap(0, 8 * PAGE);
    }
}
