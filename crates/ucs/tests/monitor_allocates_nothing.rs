//! The handler of the memory monitor allocates nothing: threads that unmap memory wait for it, and one of them may hold the
//! allocator's lock.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use testkit::alloc::{CountingAlloc, counts};
use ucs::mem::Mapping;
use ucs::mem::page::{PageRange, page_size};
use ucs::monitor::{Change, Monitor, Sink};

#[global_allocator]
static ALLOC: CountingAlloc = CountingAlloc;

/// Publishes what its thread has asked of the allocator so far, and, as a guard, asks something of it itself when told to.
#[derive(Default)]
struct Canary {
    told: AtomicU64,
    calls: AtomicU64,
    allocate: AtomicU64,
}

impl Sink for Canary {
    fn invalidate(&self, _range: PageRange, change: Change) {
        if change == Change::Announced {
            return; // not the handler's thread
        }
        if self.allocate.load(Ordering::Relaxed) != 0 {
            drop(std::hint::black_box(Box::new(1)));
        }
        self.calls.store(counts().calls(), Ordering::Release);
        self.told.fetch_add(1, Ordering::Release);
    }
}

fn pages(map: &Mapping) -> PageRange {
    PageRange::containing(map.bytes().as_ptr().addr(), map.bytes().len()).expect("pages")
}

fn advise(map: &Mapping, advice: i32) {
    // SAFETY: drops pages of a mapping that nobody uses.
    assert_eq!(unsafe { libc::madvise(map.bytes().as_ptr().cast(), map.bytes().len(), advice) }, 0);
}

#[test]
fn the_handler_allocates_nothing() {
    let (monitor, canary) = (Monitor::process(), Arc::new(Canary::default()));
    let subscription = monitor.subscribe(canary.clone()).expect("room");
    let mut rounds = 0;
    let mut round = || {
        let map = Mapping::anonymous(16 * page_size()).expect("memory");
        monitor.watch(pages(&map)).expect("watched");
        advise(&map, libc::MADV_DONTNEED);
        monitor.begin(pages(&map)).end();
        let _ = monitor.is_suspect(pages(&map));
        drop(map);
        rounds += 2;
        while canary.told.load(Ordering::Acquire) < rounds {
            std::thread::yield_now();
        }
    };
    // More ranges than there is room for suspects, some of them proven over and some not.
    (0..300).for_each(|_| round());
    assert_eq!(canary.calls.load(Ordering::Acquire), 0);
    // The guard: this would have been noticed.
    canary.allocate.store(1, Ordering::Relaxed);
    round();
    assert!(canary.calls.load(Ordering::Acquire) > 0);
    drop(subscription);
}

/// Neither do the calls of hooks, which may stand within an allocator.
#[test]
fn windows_allocate_nothing() {
    let (monitor, canary) = (Monitor::process(), Arc::new(Canary::default()));
    let _subscription = monitor.subscribe(canary).expect("room");
    let map = Mapping::anonymous(page_size()).expect("memory");
    let before = counts().calls();
    let window = monitor.begin(pages(&map));
    assert!(monitor.in_window(pages(&map)));
    window.end();
    monitor.notify_unmap(pages(&map));
    assert_eq!(counts().calls(), before);
}
