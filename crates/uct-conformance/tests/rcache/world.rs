//! A cache over a NIC, and what operations see.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use testkit::{role, watchdog};
use ucs::mem::Access;
use ucs::mem::page::PageRange;
use ucs::monitor::{Backing, Monitor, Refused, Sink, Verdict};
use ucs::rcache::{Cache, MemMonitor, Mode, Options, RegionRef, Registrar as _};
use uct_conformance::nic::{Nic, NicRegistrar, RegisterError};

pub(crate) use crate::memory::{Memory, PAGE};

/// Bytes that the NIC of a test may pin.
pub(crate) const PINNED: usize = 64 << 20;

/// Runs a role, where there is a NIC. It may have itself skipped: [`skip`].
pub(crate) fn in_a_process(name: &str) {
    drop(Nic::open_or_skip(1, PINNED));
    let bound = Duration::from_secs(140) * watchdog::scale();
    let mut child = testkit::Role::new(name).deadline(bound).start();
    if let Ok(skipped) = child.try_recv(bound) {
        let skipped = String::from_utf8(skipped).unwrap();
        let (reason, remedy) = skipped.split_once('\n').unwrap();
        testkit::skip(reason, remedy);
    }
    child.expect_exit(0);
}

/// Has the test of this role skipped.
pub(crate) fn skip(reason: &str, remedy: &str) {
    role::send(format!("{reason}\n{remedy}").as_bytes());
}

/// Waits.
pub(crate) fn wait_until(what: &str, done: impl Fn() -> bool) {
    let begin = Instant::now();
    while !done() {
        assert!(begin.elapsed() < Duration::from_secs(60), "in vain until {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A value that no other call has given.
pub(crate) fn tag() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1 << 40);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// The process's monitor, of which the cache uses the events only.
#[derive(Debug)]
pub(crate) struct EventsOnly;

impl MemMonitor for EventsOnly {
    fn subscribe(&'static self, sink: Arc<dyn Sink>) -> Option<Box<dyn Send + Sync>> {
        MemMonitor::subscribe(Monitor::process(), sink)
    }

    fn watch(&self, range: PageRange) -> Result<Backing, Refused> {
        Monitor::process().watch(range)
    }

    fn seq(&self) -> u64 {
        0
    }

    fn check(&self, _: PageRange, _: Backing) -> Verdict {
        Verdict::Live
    }

    fn is_suspect(&self, _: PageRange) -> bool {
        false
    }
}

/// A NIC, and a cache of its registrations.
#[derive(Debug)]
pub(crate) struct World {
    pub(crate) nic: Arc<Nic>,
    pub(crate) cache: Cache<NicRegistrar>,
}

impl World {
    /// With the process's monitor, and its hooks where they are built in.
    pub(crate) fn new() -> Self {
        let mut options = Options::default();
        options.mode = Mode::Auto;
        Self::with(Monitor::process(), options)
    }

    /// With the process's monitor, which is asked at each hit.
    pub(crate) fn strict() -> Self {
        Self::with(Monitor::process(), Options::default())
    }

    pub(crate) fn with(monitor: &'static dyn MemMonitor, options: Options) -> Self {
        let nic = Arc::new(Nic::with_limit(4096, PINNED).unwrap());
        let cache = Cache::new(NicRegistrar(Arc::clone(&nic)), monitor, options).unwrap();
        Self { nic, cache }
    }

    pub(crate) fn get(&self, address: usize, len: usize) -> RegionRef<NicRegistrar> {
        self.cache.get(address, len, Access::ReadWrite).unwrap()
    }

    /// What an operation of one word at `address` sees, by a registration of the `len` bytes there.
    pub(crate) fn dma(&self, address: usize, len: usize) -> Option<u64> {
        let region = self.cache.get(address, len, Access::ReadWrite).ok()?;
        Some(self.nic.dma_out_u64(&region, address).unwrap())
    }

    /// Whether the NIC takes the memory at the beginning, which is no question of the cache's.
    pub(crate) fn pins(&self, memory: &Memory, len: usize) -> Result<(), Errno> {
        let nic = NicRegistrar(Arc::clone(&self.nic));
        let pages = PageRange::containing(memory.address(0), len).unwrap();
        match nic.register(pages, Access::ReadWrite) {
            Ok(mr) => {
                nic.deregister(mr);
                Ok(())
            }
            Err(RegisterError::Unpinnable(errno)) => Err(errno),
            Err(error) => panic!("{error}"),
        }
    }

    /// Has the test of this role skipped, if the NIC does not take the memory at the beginning; whether it does.
    pub(crate) fn pins_or_skip(&self, kind: &str, memory: &Memory, len: usize) -> bool {
        let pins = self.pins(memory, len);
        if let Err(errno) = pins {
            let why = format!("io_uring, by which memory is pinned, takes no {kind} ({errno})");
            skip(&why, "use Linux 6.5 or newer");
        }
        pins.is_ok()
    }

    /// Writes to each page of a range, and compares what operations see by a registration of it: twice, the second one being of what
    /// the first has left. Whether that one was for one use only.
    #[track_caller]
    pub(crate) fn agree(&self, memory: &Memory, at: usize, len: usize) -> bool {
        let mut one_shot = false;
        for _ in 0..2 {
            let first = tag() << 16;
            let places: Vec<_> = (at..at + len).step_by(PAGE).map(|page| page + 64).collect();
            for (place, tag) in places.iter().zip(first..) {
                memory.write(*place, tag);
            }
            let region = self.get(memory.address(at), len);
            for (place, tag) in places.iter().zip(first..) {
                let seen = self.nic.dma_out_u64(&region, memory.address(*place)).unwrap();
                assert_eq!(seen, tag, "{:#x} of {len:#x} bytes at {at:#x}", place - at);
            }
            one_shot = region.is_one_shot();
        }
        one_shot
    }

    /// As [`World::agree`], until the range is cached: while changes are being told, registrations are for one use.
    #[track_caller]
    pub(crate) fn agree_cached(&self, memory: &Memory, at: usize, len: usize) {
        let begin = Instant::now();
        while self.agree(memory, at, len) {
            assert!(begin.elapsed() < Duration::from_secs(60), "never cached: {len:#x} bytes at {at:#x}");
            std::thread::yield_now();
        }
    }

    /// That nothing is registered any more, when nothing is cached.
    pub(crate) fn ends_empty(&self) {
        self.cache.purge();
        wait_until("all is deregistered", || {
            (self.nic.registrations(), self.cache.stats().pinned_bytes) == (0, 0)
        });
        assert_eq!((self.cache.len(), self.nic.pinned_bytes()), (0, 0));
    }
}
