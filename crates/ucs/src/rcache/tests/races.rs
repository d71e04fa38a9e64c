//! Memory that changes while a registration of it is looked for, or made.

use super::double::{At, World, get, pages, wait_until};
use crate::mem::Access::ReadWrite;
use crate::monitor::{Refused, Verdict, Why};
use crate::rcache::{Mode, Options};
use crate::sync::{AtomicBool, Ordering};

/// Pages are unmapped, the event is unread; another thread maps and watches the address; the handler reads the event, and the check
/// says that the memory is alive.
#[test]
fn a_check_that_is_fooled_is_no_hit() {
    // The event is read and applied before the check answers, or read only.
    for applied in [true, false] {
        let world = World::new();
        let cache = world.cache(Options::default());
        let old = get(&cache, pages(0, 2), ReadWrite).id;
        world.then(At::Check, move |world| {
            world.page.fetch_add(1, Ordering::SeqCst);
            if applied {
                world.replace(pages(0, 2));
            } else {
                world.count(1);
            }
        });
        let region = get(&cache, pages(0, 2), ReadWrite);
        assert!(world.script_is_over());
        assert_ne!(region.id, old);
        assert_eq!(region.page, world.mapped());
        assert_eq!((cache.stats().hits, region.is_one_shot()), (0, !applied), "odd for long: for one use");
    }
}

/// Who announces a change himself does so without a sequence number: then the state is the only witness.
#[test]
fn announced_during_the_check() {
    let world = World::new();
    let cache = world.cache(Options::default());
    let old = get(&cache, pages(0, 2), ReadWrite).id;
    world.then(At::Check, |world| {
        world.page.fetch_add(1, Ordering::SeqCst);
        world.tell(pages(1, 2));
    });
    let region = get(&cache, pages(0, 2), ReadWrite);
    assert_ne!(region.id, old);
    assert_eq!((region.page, region.is_one_shot(), cache.stats().hits), (world.mapped(), false, 0));
    wait_until("the old one is ended", || !world.is_live(old));
}

/// As above, but the sequence number is the only witness: the event was read and applied, to nobody, before the index knew of it.
#[test]
fn any_event_during_the_check_makes_it_look_again() {
    let world = World::new();
    let cache = world.cache(Options::default());
    let old = get(&cache, pages(0, 2), ReadWrite).id;
    world.then(At::Check, |world| world.count(2));
    assert_eq!(get(&cache, pages(0, 2), ReadWrite).id, old);
    let stats = cache.stats();
    assert_eq!((stats.hits, stats.checks), (1, 2));
}

#[test]
fn what_the_check_says_counts() {
    let world = World::new();
    let cache = world.cache(Options::default());
    let old = get(&cache, pages(0, 2), ReadWrite).id;
    world.verdicts.lock().extend([Verdict::Pending, Verdict::Pending, Verdict::Live]);
    assert_eq!(get(&cache, pages(0, 2), ReadWrite).id, old);
    world.verdicts.lock().push_back(Verdict::Replaced);
    assert_ne!(get(&cache, pages(0, 2), ReadWrite).id, old);
    let stats = cache.stats();
    assert_eq!((stats.pending, stats.replaced, stats.invalidations, stats.one_shots), (2, 1, 1, 0));
    wait_until("it is ended, for nobody used it", || !world.is_live(old));
}

/// An event in each phase of making: what is answered holds what is mapped, and what was made before is ended.
#[test]
fn an_event_while_it_is_made_poisons_it() {
    for at in [At::Watch, At::Register, At::Check, At::Suspect] {
        let world = World::new();
        let cache = world.cache(Options::default());
        if at == At::Suspect {
            world.then(At::Register, |_| ()); // not the first question, which is asked before
        }
        world.then(at, |world| world.replace(pages(1, 2)));
        let region = get(&cache, pages(0, 2), ReadWrite);
        assert!(world.script_is_over());
        assert_eq!(region.page, world.mapped(), "{at:?}");
        assert!(!region.is_one_shot());
        let stats = cache.stats();
        assert_eq!((stats.poisoned, stats.misses, cache.len()), (1, 1, 1), "{at:?}");
        assert_eq!(world.counts(), (2, 1), "{at:?}");
        drop(region);
        assert_eq!(get(&cache, pages(0, 2), ReadWrite).page, world.mapped());
        assert_eq!(cache.stats().hits, 1);
    }
}

/// An event after the last look at the sequence number, before it is published.
#[test]
fn an_event_at_the_last_moment_poisons_it() {
    let world = World::new();
    let cache = world.cache(Options::default());
    world.then(At::Check, |_| ());
    world.then(At::Seq, |world| world.tell(pages(0, 1)));
    let region = get(&cache, pages(0, 2), ReadWrite);
    assert!(world.script_is_over());
    assert_eq!((cache.stats().poisoned, world.counts()), (1, (2, 1)));
    drop(region);
    assert!(get(&cache, pages(0, 2), ReadWrite).id == 1);
}

#[test]
fn events_elsewhere_only_delay() {
    let world = World::new();
    let cache = world.cache(Options::default());
    for _ in 0..5 {
        world.then(At::Check, |world| world.replace(pages(5, 9)));
    }
    world.verdicts.lock().extend([Verdict::Pending; 5]);
    let region = get(&cache, pages(0, 2), ReadWrite);
    let stats = cache.stats();
    assert_eq!((stats.poisoned, stats.misses, world.counts()), (0, 1, (1, 0)));
    assert!(!region.is_one_shot());
}

/// While events are being told, nothing is found, and what is made waits for the end of it.
#[test]
fn odd_sequence_numbers() {
    let world = World::new();
    let cache = world.cache(Options::default());
    let old = get(&cache, pages(0, 2), ReadWrite).id;
    world.seq.store(1, Ordering::SeqCst);
    let region = get(&cache, pages(0, 2), ReadWrite);
    assert!(region.is_one_shot() && region.id != old);
    drop(region);
    assert_eq!(world.counts(), (2, 1));
    // It becomes even while the cache asks.
    world.then(At::Seq, |_| ());
    world.then(At::Seq, |world| world.count(1));
    assert_eq!(get(&cache, pages(0, 2), ReadWrite).id, old);
    // It becomes odd while one is made, and even again.
    for _ in 0..2 {
        world.then(At::Register, |_| ());
    }
    world.replace(pages(0, 2));
    drop(cache);
    let world = World::new();
    let cache = world.cache(Options::default());
    world.then(At::Register, |world| world.count(1));
    (0..10).for_each(|_| world.then(At::Seq, |_| ()));
    world.then(At::Seq, |world| world.count(1));
    assert!(!get(&cache, pages(0, 2), ReadWrite).is_one_shot());
    assert_eq!((cache.stats().poisoned, world.counts()), (0, (1, 0)));
}

/// Memory that changes all the time is registered for one use, after a bounded number of tries.
#[test]
fn tries_are_bounded() {
    let world = World::new();
    let cache = world.cache(Options::default());
    (0..100).for_each(|_| world.then(At::Register, |world| world.replace(pages(0, 1))));
    let region = get(&cache, pages(0, 2), ReadWrite);
    assert!(region.is_one_shot());
    let (registered, deregistered) = world.counts();
    assert!(registered < 20 && deregistered == registered - 1, "{registered} {deregistered}");
    assert_eq!((cache.len(), cache.stats().one_shots), (0, 1));
    drop(region);
    assert_eq!((world.counts().1, cache.stats().pinned_bytes), (registered, 0));
}

/// Pages on their way out are used once, and not kept.
#[test]
fn suspect_memory_is_not_kept() {
    let world = World::new();
    let cache = world.cache(Options::default());
    *world.suspect.lock() = Some(pages(1, 2));
    assert!(get(&cache, pages(0, 2), ReadWrite).is_one_shot());
    assert!(!get(&cache, pages(2, 3), ReadWrite).is_one_shot());
    *world.suspect.lock() = None;
    assert!(!get(&cache, pages(0, 2), ReadWrite).is_one_shot());
    // The announcement comes after it was asked first, and was told before there was anything to tell of.
    let cache = World::new().cache(Options::default());
    assert!(cache.is_empty());
    let world = World::new();
    let cache = world.cache(Options::default());
    world.then(At::Register, |world| *world.suspect.lock() = Some(pages(0, 1)));
    assert!(get(&cache, pages(0, 1), ReadWrite).is_one_shot());
    assert_eq!((cache.len(), cache.stats().poisoned), (0, 1));
}

/// Where a monitor watches nothing, that is asked once.
#[test]
fn a_monitor_that_is_off() {
    let world = World::new();
    let cache = world.cache(Options::default());
    assert_eq!(cache.mode(), Mode::Strict);
    *world.refuse_watch.lock() = Some((Refused::Off { why: Why::Denied }, None));
    assert!(get(&cache, pages(0, 1), ReadWrite).is_one_shot());
    assert_eq!(cache.mode(), Mode::Off);
    world.then(At::Watch, |_| panic!("it has said no"));
    assert!(get(&cache, pages(0, 1), ReadWrite).is_one_shot());
    // Memory of one kind only that cannot be watched is no reason.
    let world = World::new();
    let cache = world.cache(Options::default());
    *world.refuse_watch.lock() = Some((Refused::SysV, Some(pages(0, 1))));
    assert!(get(&cache, pages(0, 1), ReadWrite).is_one_shot());
    assert!(!get(&cache, pages(1, 2), ReadWrite).is_one_shot());
    assert_eq!(cache.mode(), Mode::Strict);
}

/// Threads that get and put while memory changes: nobody holds what was ended, and what is answered was mapped meanwhile.
#[test]
fn under_fire() {
    let world = World::new();
    let cache = world.cache(Options { max_regions: 8, ..Options::default() });
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4)
            .map(|thread| {
                let (cache, stop) = (&cache, &stop);
                scope.spawn(move || {
                    for round in 0..3_000_usize {
                        let from = (round * 7 + thread * 3) % 12;
                        let before = world.mapped();
                        let region = get(cache, pages(from, from + 1 + round % 3), ReadWrite);
                        assert!(region.page >= before, "C1: pages that were gone before");
                        assert!(world.is_live(region.id));
                    }
                    stop.store(true, Ordering::Relaxed);
                })
            })
            .collect();
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                world.replace(pages(0, 16));
                std::thread::yield_now();
            }
        });
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    });
    drop(cache);
    wait_until("all are ended", || world.counts().0 == world.counts().1);
}
