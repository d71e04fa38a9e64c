//! Transports that call back, and registrations that are invalidated while they are given back.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use testkit::role::rounds;
use ucs::mem::Access;
use ucs::mem::page::PageRange;
use ucs::monitor::Monitor;
use ucs::rcache::{Cache, Options, Registrar};
use uct_conformance::nic::{Mr, Nic, NicRegistrar, RegisterError};

use crate::world::{Memory, PAGE, PINNED, World, tag, wait_until};

/// 27: one thread invalidates what others give back: each registration is ended once, after its last use.
pub(crate) fn t27_invalidated_while_given_back() {
    const LEN: usize = 4 * PAGE;
    let world = World::new();
    let memory = Memory::new(LEN);
    let (stop, operations) = (AtomicBool::new(false), AtomicU64::new(0));
    (0..LEN).step_by(PAGE).for_each(|at| memory.write(at, 7));
    std::thread::scope(|scope| {
        for thread in 0..2 {
            let (world, memory, stop, operations) = (&world, &memory, &stop, &operations);
            scope.spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    let at = thread * PAGE;
                    let region = world.get(memory.address(at), LEN / 2);
                    assert!(world.nic.is_registered(&region), "it is in use");
                    assert_eq!(world.nic.dma_out_u64(&region, memory.address(at)), Ok(7));
                    operations.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        let pages = PageRange::containing(memory.address(0), LEN).unwrap();
        let begin = Instant::now();
        while begin.elapsed() < Duration::from_secs(2) {
            world.cache.invalidate(pages);
            // Given back after it was invalidated.
            let region = world.get(memory.address(0), LEN);
            world.cache.invalidate(pages);
            assert!(world.nic.is_registered(&region));
            drop(region);
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert!(operations.into_inner() > 100);
    world.ends_empty();
    let stats = world.cache.stats();
    assert_eq!(
        stats.deregistrations,
        stats.misses + stats.one_shots + stats.poisoned,
        "each once: {stats:?}"
    );
}

/// A transport that uses and unmaps memory, and calls the cache, while it registers and deregisters.
struct Calling {
    nic: NicRegistrar,
    cache: Arc<OnceLock<Cache<Self>>>,
    /// Of its own, watched as all that is registered.
    memory: Memory,
    calls: AtomicU64,
}

thread_local! {
    /// Whether this thread is within a call: what it calls calls nothing.
    static WITHIN: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

impl Calling {
    fn call(&self, range: PageRange) {
        let Some(cache) = self.cache.get() else { return };
        if WITHIN.replace(true) {
            return;
        }
        self.calls.fetch_add(1, Ordering::Relaxed);
        let own = self.memory.address(0);
        // What is made, is given back, is found, is unmapped: each as an allocator, or a driver, may have it done.
        drop(cache.get(own, 2 * PAGE, Access::ReadWrite));
        let region = cache.get(own + PAGE, PAGE, Access::ReadWrite);
        self.memory.unmap_and_map(0, 4 * PAGE);
        drop(region);
        drop(cache.get(range.start(), range.len(), Access::ReadWrite));
        cache.invalidate(PageRange::containing(own, PAGE).unwrap());
        cache.invalidate(range);
        let _ = (cache.stats(), cache.len());
        WITHIN.set(false);
    }
}

impl Registrar for Calling {
    type Handle = (Mr, PageRange);
    type Error = RegisterError;

    fn register(&self, range: PageRange, access: Access) -> Result<Self::Handle, RegisterError> {
        self.call(range);
        Ok((self.nic.register(range, access)?, range))
    }

    fn deregister(&self, (mr, range): Self::Handle) {
        self.nic.deregister(mr);
        self.call(range);
    }
}

/// 28: a transport that calls get, put and invalidate, and unmaps watched memory, within its own calls: nothing hangs.
pub(crate) fn t28_a_transport_that_calls_the_cache() {
    let nic = Arc::new(Nic::with_limit(4096, PINNED).unwrap());
    let place = Arc::new(OnceLock::new());
    let registrar = Calling {
        nic: NicRegistrar(Arc::clone(&nic)),
        cache: Arc::clone(&place),
        memory: Memory::new(4 * PAGE),
        calls: AtomicU64::new(0),
    };
    let mut options = Options::default();
    options.max_regions = 16; // fewer than are asked for in any case
    let cache = Cache::new(registrar, Monitor::process(), options).unwrap();
    assert!(place.set(cache.clone()).is_ok());
    let all = rounds(100);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let memory = Memory::new(256 * PAGE);
                for round in 0..all {
                    let at = (round * 5 % 200) * PAGE;
                    if round % 3 == 0 {
                        memory.unmap_and_map(at, 4 * PAGE);
                    }
                    let value = tag();
                    memory.write(at, value);
                    let region = cache.get(memory.address(at), 2 * PAGE, Access::ReadWrite).unwrap();
                    assert_eq!(nic.dma_out_u64(&region.0, memory.address(at)), Ok(value));
                }
            });
        }
    });
    // What is deregistered registers: until it calls no more.
    WITHIN.set(true);
    wait_until("nothing is registered", || {
        cache.purge();
        nic.registrations() == 0
    });
}
