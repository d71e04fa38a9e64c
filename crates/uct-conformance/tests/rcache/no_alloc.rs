//! What allocates nothing: a thread that unmaps memory within the allocator waits for the handler.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use testkit::alloc::{CountingAlloc, counts};
use ucs::mem::page::PageRange;
use ucs::monitor::{Change, Monitor, Sink};

use crate::world::{Memory, PAGE, World, wait_until};

#[global_allocator]
static ALLOC: CountingAlloc = CountingAlloc;

/// Looks on the handler's thread what that has asked of the allocator up to now.
#[derive(Default)]
struct Canary {
    told: AtomicU64,
    calls: AtomicU64,
    allocates: AtomicBool,
}

impl Sink for Canary {
    fn invalidate(&self, _: PageRange, change: Change) {
        if change == Change::Announced {
            return; // on another thread
        }
        if self.allocates.load(Ordering::Relaxed) {
            drop(std::hint::black_box(Box::new(1)));
        }
        self.calls.store(counts().calls(), Ordering::Relaxed);
        self.told.fetch_add(1, Ordering::Release);
    }
}

/// 29: the handler invalidates registrations, many and few, used and unused, without a call of the allocator.
pub(crate) fn t29_the_handler_allocates_nothing() {
    let world = World::new();
    // After the cache's: it is told when the cache has been.
    let canary = Arc::new(Canary::default());
    let _subscription = Monitor::process().subscribe(canary.clone()).unwrap();
    let memory = Memory::new(256 * PAGE);
    let told_of = |change: &dyn Fn()| {
        wait_until("all is told", || Monitor::process().seq().is_multiple_of(2));
        let before = canary.told.load(Ordering::Acquire);
        change();
        wait_until("it is told", || canary.told.load(Ordering::Acquire) > before);
    };
    for round in 0..100_usize {
        let held: Vec<_> =
            (0..100).map(|number| world.get(memory.address(2 * number * PAGE), PAGE)).collect();
        drop(held.into_iter().skip(round % 3));
        world.agree_cached(&memory, 0, PAGE);
        told_of(&|| memory.unmap(0, 200 * PAGE));
        memory.map_over(0, 200 * PAGE);
        world.agree_cached(&memory, 0, 16 * PAGE);
        told_of(&|| memory.drop_pages(0, 16 * PAGE));
    }
    assert!(world.cache.stats().invalidations > 1_000);
    assert_eq!(canary.calls.load(Ordering::Relaxed), 0);
    // The guard: that would have been seen.
    canary.allocates.store(true, Ordering::Relaxed);
    world.agree_cached(&memory, 0, PAGE);
    told_of(&|| memory.unmap(0, PAGE));
    assert!(canary.calls.load(Ordering::Relaxed) > 0);
}

/// 29: nor does what finds a registration, uses it, and gives it back.
pub(crate) fn t29_a_hit_allocates_nothing() {
    let world = World::new();
    let memory = Memory::new(16 * PAGE);
    world.agree_cached(&memory, 0, 16 * PAGE);
    let hits = world.cache.stats().hits;
    let before = counts().calls();
    for at in 0..1_000 {
        let region = world.get(memory.address(at), PAGE);
        assert_eq!(world.nic.dma_out_u64(&region, memory.address(at & !7)), Ok(memory.read(at & !7)));
    }
    assert_eq!(counts().calls(), before);
    assert_eq!(world.cache.stats().hits, hits + 1_000);
}
