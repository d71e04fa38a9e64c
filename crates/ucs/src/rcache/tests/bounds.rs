//! How large a cache becomes.

use super::double::{At, Counting, World, get, pages, wait_until};
use crate::mem::Access::{Read, ReadWrite};
use crate::mem::page::page_size;
use crate::rcache::{Cache, GetError, Mode, Options, RegionRef};

fn page(cache: &Cache<Counting>, number: usize) -> RegionRef<Counting> {
    get(cache, pages(2 * number, 2 * number + 1), ReadWrite)
}

#[test]
fn what_was_not_used_for_long_goes_first() {
    let world = World::new();
    let cache = world.cache(Options { max_regions: 4, ..Options::default() });
    let ids: Vec<_> = (0..4).map(|number| page(&cache, number).id).collect();
    page(&cache, 4); // none was found again: the first
    let gone = ids.iter().filter(|id| !world.is_live(**id)).count();
    assert_eq!((gone, cache.len(), cache.stats().evictions), (1, 4, 1), "one, and no more");
    // Those that are hit between evictions stay.
    let favourite = page(&cache, 4).id;
    for number in 5..50 {
        assert_eq!(page(&cache, 4).id, favourite, "{number}");
        page(&cache, number);
    }
    assert_eq!((cache.len(), world.counts()), (4, (50, 46)));
    assert_eq!(cache.stats().pinned_bytes, 4 * page_size() as u64);
}

#[test]
fn what_is_in_use_is_never_evicted() {
    let world = World::new();
    let cache = world.cache(Options { max_regions: 4, ..Options::default() });
    let held: Vec<_> = (0..3).map(|number| page(&cache, number)).collect();
    (10..60).for_each(|number| drop(page(&cache, number)));
    assert!(held.iter().all(|region| world.is_live(region.id)));
    assert_eq!((0..3).map(|number| page(&cache, number).id).collect::<Vec<_>>(), [0, 1, 2]);
    let fourth = page(&cache, 100);
    let more = page(&cache, 101);
    assert_eq!((fourth.is_one_shot(), more.is_one_shot()), (false, true), "all are in use");
    drop((held, fourth, more));
    assert!(!page(&cache, 102).is_one_shot());
    assert_eq!(cache.len(), 4);
}

#[test]
fn bytes_are_bounded() {
    let world = World::new();
    let bytes = 16 * page_size() as u64;
    let cache = world.cache(Options { max_bytes: bytes, ..Options::default() });
    (0..16).for_each(|number| drop(page(&cache, number)));
    assert_eq!((cache.len(), cache.stats().evictions), (16, 0));
    for from in (100..1000).step_by(10) {
        let region = get(&cache, pages(from, from + 8), ReadWrite);
        assert!(!region.is_one_shot());
        assert!(cache.stats().pinned_bytes <= bytes, "a large one takes the place of many small ones");
    }
    assert_eq!(cache.len(), 2);
    // More than fits is not kept; nor is anything given up for it.
    let region = get(&cache, pages(2000, 2017), ReadWrite);
    assert_eq!((region.is_one_shot(), cache.len()), (true, 2));
    drop(region);
    // Nor merged to more than fits.
    get(&cache, pages(3000, 3010), ReadWrite);
    let region = get(&cache, pages(3005, 3020), ReadWrite);
    assert_eq!((region.range(), region.is_one_shot()), (Some(pages(3005, 3020)), false));
    // All bytes are in use.
    let more = get(&cache, pages(4000, 4010), ReadWrite);
    assert!(more.is_one_shot());
    drop((region, more));
    assert!(!get(&cache, pages(4000, 4010), ReadWrite).is_one_shot());
    assert!(cache.stats().pinned_bytes <= bytes);
}

/// Stale ones make room before any that is good is evicted.
#[test]
fn stale_ones_make_room() {
    for _ in 0..50 {
        let world = World::new();
        let cache = world.cache(Options { max_regions: 4, ..Options::default() });
        (0..4).for_each(|number| drop(page(&cache, number)));
        world.replace(pages(0, 6)); // three of four
        for number in 10..13 {
            assert!(!page(&cache, number).is_one_shot());
        }
        assert!(cache.len() <= 4);
        wait_until("the stale ones are ended", || world.counts().1 >= 3);
    }
}

#[test]
fn no_room_at_all() {
    let world = World::new();
    for options in
        [Options { max_regions: 0, ..Options::default() }, Options { max_bytes: 0, ..Options::default() }]
    {
        let Ok(cache) = Cache::new(Counting(world), world, options) else { continue };
        assert!(page(&cache, 1).is_one_shot());
        drop(page(&cache, 1));
        assert!(cache.is_empty());
    }
    assert_eq!(world.counts().0, world.counts().1);
}

#[test]
fn turned_off() {
    let world = World::new();
    let cache = world.cache(Options { mode: Mode::Off, ..Options::default() });
    assert!(page(&cache, 1).is_one_shot() && cache.mode() == Mode::Off);
    cache.invalidate(pages(0, 9));
    let stats = cache.stats();
    assert_eq!((stats.gets, stats.one_shots, stats.deregistrations, stats.pinned_bytes), (1, 1, 1, 0));
}

#[test]
fn ranges_that_are_none() {
    let world = World::new();
    let cache = world.cache(Options::default());
    for (address, len) in [(4096, 0), (usize::MAX, 1), (usize::MAX - 4096, 4096), (4096, usize::MAX), (0, 0)]
    {
        assert_eq!(cache.get(address, len, Read).unwrap_err(), GetError::BadRange { address, len });
    }
    assert_eq!(world.counts(), (0, 0));
    // Beyond all addresses that there can be: as the transport says.
    *world.refuse.lock() = Some(Box::new(|_, _| true));
    assert_eq!(cache.get(usize::MAX - 8192, 1, Read).unwrap_err(), GetError::Register("refused"));
    *world.refuse.lock() = None;
    assert!(cache.get(usize::MAX - 8192, 1, Read).unwrap().is_one_shot(), "no index has it");
    assert_eq!(world.counts(), (1, 1));
}

/// Another registration is being made while this one is: what both take counts.
#[test]
fn bytes_that_are_being_registered_count() {
    let world = World::new();
    let cache = world.cache(Options { max_bytes: 6 * page_size() as u64, ..Options::default() });
    let other = cache.clone();
    world.then(At::Register, move |_| {
        assert!(get(&other, pages(100, 104), ReadWrite).is_one_shot(), "there is no room for both");
        assert!(!get(&other, pages(200, 202), ReadWrite).is_one_shot());
    });
    assert!(!get(&cache, pages(0, 4), ReadWrite).is_one_shot());
    assert!(world.script_is_over());
    // What was given up counts no longer.
    *world.refuse.lock() = Some(Box::new(|_, _| true));
    assert!(cache.get(pages(300, 304).start(), 1, ReadWrite).is_err());
    *world.refuse.lock() = None;
    cache.purge();
    assert!(!get(&cache, pages(400, 406), ReadWrite).is_one_shot());
}
