//! From being made to being ended.

use std::panic::catch_unwind;
use std::sync::Arc;

use super::double::{At, Counting, Handle, World, get, pages, wait_until};
use crate::mem::Access::ReadWrite;
use crate::mem::page::{PageRange, page_size};
use crate::monitor::Verdict;
use crate::rcache::{Cache, Mode, Options, Registrar};
use crate::sync::Ordering;

#[test]
fn made_once_and_found_again() {
    let world = World::new();
    let cache = world.cache(Options::default());
    let first = get(&cache, pages(0, 4), ReadWrite);
    for range in [pages(0, 4), pages(1, 2), pages(3, 4)] {
        assert_eq!(*get(&cache, range, ReadWrite), *first);
    }
    let begin = pages(1, 2).start();
    assert_eq!(cache.get(begin + 5, 9, ReadWrite).unwrap().id, first.id);
    let stats = cache.stats();
    assert_eq!((stats.gets, stats.hits, stats.misses, stats.checks), (5, 4, 1, 4));
    assert_eq!((stats.pinned_bytes, stats.deregistrations), (4 * page_size() as u64, 0));
    assert_eq!(world.counts(), (1, 0));
    drop((first, cache));
    wait_until("it is ended", || world.counts() == (1, 1));
}

/// Hooks tell before and after: nothing is asked.
#[test]
fn with_hooks_hits_are_not_checked() {
    let world = World::new();
    let cache = world.cache(Options { mode: Mode::Hooks, ..Options::default() });
    let old = get(&cache, pages(0, 4), ReadWrite).id;
    world.then(At::Check, |_| panic!("asked"));
    assert_eq!(get(&cache, pages(0, 4), ReadWrite).id, old);
    assert_eq!(cache.stats().checks, 0);
}

/// Where hooks announce everything, nothing is asked, until one change was not announced; elsewhere it is asked each time.
#[test]
fn automatic_checks_begin_with_the_first_change_that_was_not_announced() {
    for hookable in [true, false] {
        let world = World::new();
        world.hookable.store(hookable, Ordering::SeqCst);
        let cache = world.cache(Options { mode: Mode::Auto, ..Options::default() });
        let hit = || drop(get(&cache, pages(0, 4), ReadWrite));
        hit();
        hit();
        assert_eq!(cache.stats().checks, u64::from(!hookable));
        assert_eq!(cache.mode(), if hookable { Mode::Hooks } else { Mode::Strict });
        world.announced.store(false, Ordering::SeqCst);
        hit();
        assert_eq!(cache.stats().checks, 1 + u64::from(!hookable));
        assert_eq!(cache.mode(), Mode::Strict);
        world.verdicts.lock().push_back(Verdict::Replaced);
        hit();
        assert_eq!(cache.stats().misses, 2);
    }
}

/// The other modes neither hook nor ask whether everything was announced.
#[test]
fn nothing_is_hooked_unless_that_is_wanted() {
    for mode in [Mode::Strict, Mode::Hooks, Mode::Off] {
        let world = World::new();
        world.hookable.store(true, Ordering::SeqCst);
        let cache = world.cache(Options { mode, ..Options::default() });
        drop(get(&cache, pages(0, 4), ReadWrite));
        assert!(!world.announced.load(Ordering::SeqCst), "{mode:?}");
        assert_eq!(cache.mode(), mode);
    }
}

/// Ended once, at the last put; not found meanwhile.
#[test]
fn invalidated_while_it_is_used() {
    let world = World::new();
    let cache = world.cache(Options::default());
    let held: Vec<_> = (0..3).map(|_| get(&cache, pages(0, 2), ReadWrite)).collect();
    cache.invalidate(pages(1, 5));
    let new = get(&cache, pages(0, 2), ReadWrite);
    assert_ne!(new.id, held[0].id);
    assert_eq!(cache.stats().invalidations, 1);
    for (left, region) in held.into_iter().enumerate() {
        assert!(world.is_live(0), "{left} puts");
        drop(region);
    }
    assert!(!world.is_live(0));
    assert_eq!(world.counts(), (2, 1));
    assert_eq!(get(&cache, pages(0, 2), ReadWrite).id, new.id);
    cache.purge();
    cache.purge();
    assert!(world.is_live(new.id));
    drop(new);
    assert_eq!((world.counts(), cache.len(), cache.stats().pinned_bytes), ((2, 2), 0, 0));
    assert_eq!(cache.stats().hit_invalidations, 2);
}

#[test]
fn a_purge_ends_what_nobody_uses() {
    let world = World::new();
    let cache = world.cache(Options::default());
    (0..100).for_each(|number| drop(get(&cache, pages(2 * number, 2 * number + 1), ReadWrite)));
    cache.purge();
    wait_until("all are ended", || world.counts() == (100, 100));
    assert_eq!((cache.len(), cache.stats().pinned_bytes), (0, 0));
}

/// Nobody calls the cache any more, and what has become stale is ended all the same.
#[test]
fn an_idle_cache_ends_what_is_stale() {
    let (first, second) = (World::new(), World::new());
    let caches = [first, second].map(|world| world.cache(Options::default()));
    for cache in &caches {
        (0..100).for_each(|number| drop(get(cache, pages(2 * number, 2 * number + 1), ReadWrite)));
    }
    first.replace(pages(0, 20));
    second.replace(PageRange::everything());
    wait_until("the stale ones are ended", || first.counts().1 == 10 && second.counts().1 == 100);
    assert_eq!((caches[0].len(), caches[1].len()), (90, 0));
}

/// One transport's panic is not the end of the others' reclaiming.
#[test]
fn a_transport_that_panics() {
    let (bad, good) = (World::new(), World::new());
    let caches = [bad, good].map(|world| world.cache(Options::default()));
    caches.iter().for_each(|cache| drop(get(cache, pages(0, 1), ReadWrite)));
    bad.then(At::Deregister, |_| panic!("this is to be: a transport that panics"));
    bad.replace(pages(0, 1));
    wait_until("it was to end it", || bad.script_is_over());
    good.replace(pages(0, 1));
    wait_until("the other's is ended", || good.counts().1 == 1);
}

#[test]
fn a_transport_that_panics_while_it_registers() {
    let world = World::new();
    let cache = world.cache(Options::default());
    world.then(At::Register, |_| panic!("this is to be: a transport that panics"));
    let caught = catch_unwind(std::panic::AssertUnwindSafe(|| drop(get(&cache, pages(0, 1), ReadWrite))));
    assert!(caught.is_err());
    assert!(!get(&cache, pages(0, 1), ReadWrite).is_one_shot(), "the next one finds the place free");
}

/// Handles, references, one for a stale registration and one for one use: in each order they are dropped in, on one thread or each on
/// its own, all is ended once, what is held is there until then, and the transport goes with the last.
#[test]
fn every_order_of_drops() {
    type Part = Box<dyn Send>;
    for number in 0..120_usize {
        for threads in [false, true] {
            let (world, transport) = (World::new(), Arc::new(()));
            let registrar = Owning { counting: Counting(world), _transport: Arc::clone(&transport) };
            let cache = Cache::new(registrar, world, Options::default()).unwrap();
            let of = |cache: &Cache<Owning>, range: PageRange| {
                let region = cache.get(range.start(), range.len(), ReadWrite).unwrap();
                assert!(world.is_live(region.id));
                region
            };
            let stale = of(&cache, pages(0, 1));
            world.replace(pages(0, 1));
            let valid = of(&cache, pages(0, 1));
            drop(of(&cache, pages(4, 5))); // nobody uses it
            *world.suspect.lock() = Some(pages(8, 9));
            let once = of(&cache, pages(8, 9));
            assert!(once.is_one_shot());
            let ids = [stale.id, valid.id, once.id];
            let clone = cache.clone();
            let mut parts: Vec<(Option<u64>, Part)> = vec![
                (None, Box::new(cache)),
                (None, Box::new(clone)),
                (Some(ids[0]), Box::new(stale)),
                (Some(ids[1]), Box::new(valid)),
                (Some(ids[2]), Box::new(once)),
            ];
            let mut rest = number;
            let mut dropping = Vec::new();
            while !parts.is_empty() {
                let (id, part) = parts.remove(rest % parts.len());
                rest /= parts.len() + 1;
                assert!(id.is_none_or(|id| world.is_live(id)), "order {number}: ended while it is held");
                if threads {
                    dropping.push(std::thread::spawn(move || drop(part)));
                } else {
                    drop(part);
                }
                for (id, _) in &parts {
                    assert!(id.is_none_or(|id| world.is_live(id)), "order {number}: ended while it is held");
                }
            }
            dropping.into_iter().for_each(|thread| thread.join().unwrap());
            wait_until("all are ended", || world.counts() == (4, 4));
            wait_until("the transport is gone", || Arc::strong_count(&transport) == 1);
        }
    }
}

/// A transport of which it shows when it goes.
struct Owning {
    counting: Counting,
    _transport: Arc<()>,
}

impl Registrar for Owning {
    type Handle = Handle;
    type Error = &'static str;

    fn register(&self, range: PageRange, access: crate::mem::Access) -> Result<Handle, &'static str> {
        self.counting.register(range, access)
    }

    fn deregister(&self, handle: Handle) {
        self.counting.deregister(handle);
    }
}

/// What nobody uses ends with the last handle, also while something else is in use; that is told of nothing any more, and stays.
#[test]
fn references_outlive_the_cache() {
    let world = World::new();
    let cache = world.cache(Options::default());
    let (kept, other) = (get(&cache, pages(0, 1), ReadWrite), cache.clone());
    drop(get(&cache, pages(4, 5), ReadWrite));
    drop(cache);
    assert_eq!(world.counts(), (2, 0), "there is another handle");
    drop(other);
    wait_until("what nobody uses is ended", || world.counts() == (2, 1));
    assert!(world.is_live(kept.id));
    world.replace(pages(0, 1));
    assert!(world.is_live(kept.id));
    assert_eq!((kept.range(), kept.access), (Some(pages(0, 1)), ReadWrite));
    drop(kept);
    wait_until("all are ended", || world.counts() == (2, 2));
}

/// Handles, users and changes end at the same time on threads of their own.
#[test]
fn the_end_is_a_race() {
    for round in 0..200_usize {
        let world = World::new();
        let cache = world.cache(Options::default());
        let held: Vec<_> = (0..4).map(|number| get(&cache, pages(number % 2, 2), ReadWrite)).collect();
        let barrier = std::sync::Barrier::new(held.len() + 2);
        std::thread::scope(|scope| {
            let barrier = &barrier;
            for region in held {
                scope.spawn(move || {
                    barrier.wait();
                    drop(region);
                });
            }
            scope.spawn(move || {
                barrier.wait();
                drop(cache);
            });
            barrier.wait();
            if round % 2 == 0 {
                world.replace(pages(0, 1));
            }
        });
        wait_until("all are ended", || world.counts().0 == world.counts().1);
    }
}

#[test]
fn references_go_from_thread_to_thread() {
    let world = World::new();
    let cache = world.cache(Options::default());
    let region = get(&cache, pages(0, 1), ReadWrite);
    std::thread::spawn(move || drop((region, cache))).join().unwrap();
    wait_until("it is ended", || world.counts() == (1, 1));
}

/// What a transport calls the cache for, within its own calls.
#[test]
fn transports_may_call_the_cache() {
    struct Reentrant(Arc<std::sync::OnceLock<Cache<Self>>>);

    impl Reentrant {
        fn call(&self, range: PageRange) {
            let Some(cache) = self.0.get() else { return };
            if range.start() < pages(100, 101).start() {
                // Another range, which is made in here.
                drop(cache.get(range.start() + 100 * page_size(), 1, ReadWrite).unwrap());
                cache.invalidate(pages(100, 200));
                cache.invalidate(range);
                let _ = cache.stats();
            }
        }
    }

    impl Registrar for Reentrant {
        type Handle = PageRange;
        type Error = &'static str;

        fn register(&self, range: PageRange, _: crate::mem::Access) -> Result<PageRange, &'static str> {
            self.call(range);
            Ok(range)
        }

        fn deregister(&self, range: PageRange) {
            self.call(range);
        }
    }

    let place = Arc::new(std::sync::OnceLock::new());
    let cache = Cache::new(Reentrant(Arc::clone(&place)), World::new(), Options::default()).unwrap();
    assert!(place.set(cache.clone()).is_ok());
    for number in 0..20 {
        let range = pages(number, number + 1);
        let region = cache.get(range.start(), 1, ReadWrite).unwrap();
        assert_eq!(*region, range);
        assert!(region.is_one_shot(), "it changes each time it is made");
    }
    cache.purge();
}

/// A change that is not told of, as `shmdt` is: found by a cache before another has the new memory watched.
#[test]
fn caches_of_one_monitor_look_after_each_other() {
    let world = World::new();
    let [first, second] = [(); 2].map(|()| world.cache(Options::default()));
    let all: Vec<_> = (0..100).map(|number| get(&first, pages(number, number + 1), ReadWrite)).collect();
    world.verdicts.lock().extend([Verdict::Pending, Verdict::Replaced]);
    let ids: Vec<_> = all.iter().map(|region| region.id).collect();
    drop(all);
    drop(get(&second, pages(0, 100), ReadWrite));
    wait_until("the first that was asked for is ended", || !world.is_live(ids[0]));
    assert!(ids[1..].iter().all(|id| world.is_live(*id)), "the others are what is mapped");
    assert_eq!((first.len(), first.stats().invalidations), (99, 1));
}

/// A transport that panics when it ends a registration to make room for another loses that one; the range can be registered, the other
/// slots end, and room is made.
#[test]
fn a_transport_that_panics_at_an_end() {
    let world = World::new();
    let cache = world.cache(Options { max_regions: 4, ..Options::default() });
    (0..4).for_each(|number| drop(get(&cache, pages(number, number + 1), ReadWrite)));
    world.then(At::Deregister, |_| panic!("as the test wants"));
    let merged = || get(&cache, pages(0, 4), ReadWrite);
    assert!(catch_unwind(std::panic::AssertUnwindSafe(|| drop(merged()))).is_err());
    wait_until("the others are ended", || world.deregistered.load(Ordering::SeqCst) == 3);
    for _ in 0..3 {
        assert!(!merged().is_one_shot());
    }
    for number in 10..14 {
        assert!(!get(&cache, pages(number, number + 1), ReadWrite).is_one_shot(), "a slot for each");
    }
    cache.purge();
    wait_until("all are ended", || cache.stats().pinned_bytes == 0);
}
