//! What is bounded, and what fails.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use ucs::mem::Access;
use ucs::mem::page::PageRange;
use ucs::monitor::Monitor;
use ucs::rcache::{Cache, GetError, Options, Registrar};
use uct_conformance::nic::{Mr, Nic, NicRegistrar, RegisterError};

use crate::world::{Memory, PAGE, PINNED, World, skip, tag, wait_until};

fn options(change: impl FnOnce(&mut Options)) -> Options {
    let mut options = Options::default();
    change(&mut options);
    options
}

/// 26: evicted by number and by bytes, while operations are in flight.
pub(crate) fn t26_evicted_while_operations_are_in_flight() {
    for options in
        [options(|options| options.max_regions = 8), options(|options| options.max_bytes = 8 << 12)]
    {
        let world = World::with(Monitor::process(), options);
        let memory = Memory::new(1_024 * PAGE);
        for round in 0..50_usize {
            // Six in flight, the registrations of which are used until they end.
            let flying: Vec<_> = (0..6)
                .map(|number| {
                    let at = (2 * (number + 10 * (round % 7))) * PAGE;
                    let value = tag();
                    memory.write(at, value);
                    let region = world.get(memory.address(at), PAGE);
                    let operation = world.nic.start_out(&region, memory.address(at), 8).unwrap();
                    (region, operation, value)
                })
                .collect();
            for other in 0..40 {
                world.agree(&memory, (200 + 2 * (other + round % 3)) * PAGE, PAGE);
                assert!(world.cache.len() <= 8 && world.nic.registrations() <= 16);
            }
            for (region, operation, value) in flying {
                assert!(world.nic.is_registered(&region));
                assert_eq!(operation.finish().unwrap(), value.to_ne_bytes());
            }
        }
        assert!(world.cache.stats().evictions > 100);
        assert!(world.nic.registrations() <= 8);
        world.ends_empty();
    }
}

/// Fails when it is told to.
struct Failing {
    nic: NicRegistrar,
    calls: AtomicUsize,
    /// Each of so many fails.
    each: usize,
}

impl Registrar for Failing {
    type Handle = Mr;
    type Error = RegisterError;

    fn register(&self, range: PageRange, access: Access) -> Result<Mr, RegisterError> {
        if self.calls.fetch_add(1, Ordering::Relaxed) % self.each == self.each - 1 {
            return Err(RegisterError::Full { slots: 0 });
        }
        self.nic.register(range, access)
    }

    fn deregister(&self, mr: Mr) {
        self.nic.deregister(mr);
    }
}

/// 32: registering fails now and then; and when the NIC may pin no more.
pub(crate) fn t32_registration_fails_midway() {
    let nic = Arc::new(Nic::with_limit(4096, PINNED).unwrap());
    let registrar = Failing { nic: NicRegistrar(Arc::clone(&nic)), calls: AtomicUsize::new(0), each: 3 };
    let cache = Cache::new(registrar, Monitor::process(), Options::default()).unwrap();
    let memory = Memory::new(64 * PAGE);
    let mut failed = 0;
    for round in 0..2_000_usize {
        let (at, len) = ((round * 7 % 50) * PAGE, (1 + round % 9) * PAGE);
        if round % 5 == 0 {
            memory.unmap_and_map(at, len);
        }
        let value = tag();
        memory.write(at, value);
        match cache.get(memory.address(at), len, Access::ReadWrite) {
            Ok(region) => assert_eq!(nic.dma_out_u64(&region, memory.address(at)), Ok(value)),
            Err(error) => {
                assert_eq!(error, GetError::Register(RegisterError::Full { slots: 0 }));
                failed += 1;
            }
        }
    }
    assert!(failed > 10, "{failed}");
    cache.purge();
    wait_until("all is deregistered", || nic.registrations() == 0 && cache.is_empty());

    // The NIC's own limit: what is said is what it says, and room that is made is used.
    let world = World::new();
    let large = Memory::new(PINNED + LARGE);
    let held: Vec<_> =
        (0..PINNED / LARGE).map(|number| world.get(large.address(number * LARGE), LARGE)).collect();
    let error = world.cache.get(large.address(PINNED), LARGE, Access::ReadWrite).unwrap_err();
    assert!(matches!(error, GetError::Register(RegisterError::Limit { .. })), "{error}");
    drop(held);
    world.cache.purge();
    world.agree(&large, PINNED, LARGE);
    world.ends_empty();
}

const LARGE: usize = 8 << 20;

/// 35: no bytes, bytes past the end, and addresses that no process has.
pub(crate) fn t35_ends_of_the_address_space() {
    let world = World::new();
    let memory = Memory::new(4 * PAGE);
    for (address, len) in [
        (memory.address(0), 0),
        (0, 0),
        (usize::MAX, 0),
        (usize::MAX, 1),
        (usize::MAX - PAGE, PAGE),
        (memory.address(0), usize::MAX),
        (memory.address(0), usize::MAX - memory.address(0)),
    ] {
        let error = world.cache.get(address, len, Access::ReadWrite).unwrap_err();
        assert_eq!(error, GetError::BadRange { address, len });
    }
    // The last page of the lower half, the first of the upper, the last but one of all, the hole between, none at 0, half the world.
    for (address, len) in [
        (0x7fff_ffff_f000, PAGE),
        (0x7fff_ffff_e000, 2 * PAGE),
        (0x8000_0000_0000, PAGE),
        (0xffff_8000_0000_0000, PAGE),
        (usize::MAX - 2 * PAGE, PAGE),
        (1 << 57, PAGE),
        ((1 << 57) - PAGE, 2 * PAGE),
        ((1 << 44) - PAGE, 2 * PAGE),
        (0, 1),
        (0, 1 << 47),
        (memory.address(0), 1 << 46),
    ] {
        let error = world.cache.get(address, len, Access::ReadWrite).unwrap_err();
        assert!(matches!(error, GetError::Register(_)), "{address:#x}: {error:?}");
    }
    world.cache.invalidate(PageRange::everything());
    // One byte, and the last one of a page.
    for at in [0, PAGE - 1, PAGE] {
        let region = world.get(memory.address(at), 1);
        assert_eq!(region.range(), PageRange::containing(memory.address(at), 1));
    }
    world.agree(&memory, 0, 4 * PAGE);
    world.ends_empty();
}

/// Registers nothing.
struct Nothing {
    live: Arc<AtomicU64>,
    most: Arc<AtomicU64>,
}

impl Registrar for Nothing {
    type Handle = ();
    type Error = std::convert::Infallible;

    fn register(&self, _: PageRange, _: Access) -> Result<(), Self::Error> {
        let live = self.live.fetch_add(1, Ordering::Relaxed) + 1;
        self.most.fetch_max(live, Ordering::Relaxed);
        Ok(())
    }

    fn deregister(&self, (): ()) {
        self.live.fetch_sub(1, Ordering::Relaxed);
    }
}

fn mappings() -> usize {
    std::fs::read_to_string("/proc/self/maps").unwrap().lines().count()
}

/// 36: more scattered ranges than a cache keeps, and than there can be mappings: each that is watched by itself splits the one it is in.
pub(crate) fn t36_scattered_regions() {
    const REGIONS: usize = 100_000;
    if !Monitor::process().queries_mappings() {
        return skip(
            "without PROCMAP_QUERY each of its look-ups reads the text of up to 32 thousand mappings",
            "boot Linux 6.11 or newer",
        );
    }
    let (live, most) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let registrar = Nothing { live: Arc::clone(&live), most: Arc::clone(&most) };
    let cache = Cache::new(registrar, Monitor::process(), Options::default()).unwrap();
    // Every other page of one mapping.
    let memory = Memory::new(2 * REGIONS * PAGE);
    for number in 0..REGIONS {
        drop(cache.get(memory.address(2 * number * PAGE), PAGE, Access::ReadWrite).unwrap());
    }
    let limit: usize = std::fs::read_to_string("/proc/sys/vm/max_map_count").unwrap().trim().parse().unwrap();
    let stats = cache.stats();
    let bound = u64::from(Options::default().max_regions);
    assert!(most.load(Ordering::Relaxed) <= bound + 64 && u64::from(cache.len()) <= bound, "{stats:?}");
    assert_eq!(stats.pinned_bytes, live.load(Ordering::Relaxed) * PAGE as u64);
    let mapped = mappings();
    // The application can still map memory, and start threads.
    assert!(mapped < limit / 2 + 1000, "{mapped} mappings of {limit}: {stats:?}");
    assert!(stats.one_shots < REGIONS as u64 / 100, "{stats:?}");
    for _ in 0..100 {
        Memory::new(PAGE).unmap(0, PAGE);
    }
    std::thread::spawn(|| ()).join().unwrap();
}
