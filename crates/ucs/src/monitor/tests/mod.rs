//! The monitor with real memory. Tests share the process's monitor and run at once, so each has addresses of its own.
//!
//! # Safety
//! Memory is mapped, changed and unmapped only within ranges that are handed out once, far from where the kernel puts mappings
//! of its own choice. No reference is made to it.

#![allow(unsafe_code)]

mod changes;
mod checks;
mod fails;
mod forks;
#[cfg(all(feature = "hooks", target_arch = "x86_64"))]
mod hooked;
mod suspected;
mod whole;

use std::sync::Arc;
use std::time::{Duration, Instant};

use libc::{c_int, c_void};

use super::*;
use crate::mem::page::page_size;
use crate::sync::AtomicUsize;

const RW: c_int = libc::PROT_READ | libc::PROT_WRITE;
const ANONYMOUS: c_int = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;

/// Addresses of this test alone, mapped or not: what is unmapped here is not used by anybody else.
#[derive(Clone, Copy, Debug)]
struct Area {
    start: usize,
}

/// Addresses of an area.
const AREA: usize = 4 << 30;

impl Area {
    /// Free addresses.
    fn new() -> Self {
        static NEXT: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);
        let index = NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        Self { start: 0x2000_0000_0000 + index * AREA }
    }

    /// Its first `count` pages mapped, private, and filled with 1.
    fn anonymous(count: usize) -> Self {
        let area = Self::new();
        area.map(0, count, ANONYMOUS, -1);
        area.fill(0, count, 1);
        area
    }

    /// Pages `[from, to)`.
    fn pages(self, from: usize, to: usize) -> PageRange {
        PageRange::new(self.start + from * page_size(), self.start + to * page_size()).unwrap()
    }

    fn at(self, page: usize) -> *mut c_void {
        std::ptr::with_exposed_provenance_mut(self.start + page * page_size())
    }

    /// Maps `count` pages from `page` on, in the place of what is there.
    fn map(self, page: usize, count: usize, flags: c_int, fd: c_int) {
        let (at, len) = (self.at(page), count * page_size());
        // SAFETY: within the area.
        let mapped = unsafe { libc::mmap(at, len, RW, flags | libc::MAP_FIXED, fd, 0) };
        assert_eq!(mapped, at, "{}", std::io::Error::last_os_error());
    }

    fn unmap(self, page: usize, count: usize) {
        // SAFETY: within the area.
        assert_eq!(unsafe { libc::munmap(self.at(page), count * page_size()) }, 0);
    }

    fn advise(self, page: usize, count: usize, advice: c_int) {
        // SAFETY: within the area.
        let advised = unsafe { libc::madvise(self.at(page), count * page_size(), advice) };
        assert_eq!(advised, 0, "{advice}: {}", std::io::Error::last_os_error());
    }

    /// Writes to each page.
    fn fill(self, page: usize, count: usize, value: u8) {
        for page in page..page + count {
            // SAFETY: mapped, and of this test alone.
            unsafe { self.at(page).cast::<u8>().write_volatile(value) };
        }
    }

    /// The first byte of a page.
    fn byte(self, page: usize) -> u8 {
        // SAFETY: mapped, and of this test alone.
        unsafe { self.at(page).cast::<u8>().read_volatile() }
    }
}

/// Remembers the changes of one range, and allocates nothing for that.
struct Recorder {
    range: PageRange,
    count: AtomicUsize,
    seen: [[AtomicUsize; 3]; 64],
}

impl Sink for Recorder {
    fn invalidate(&self, range: PageRange, change: Change) {
        let Some(range) = range.intersection(self.range) else { return };
        let count = self.count.load(Ordering::Acquire);
        if let Some([start, end, kind]) = self.seen.get(count) {
            start.store(range.start(), Ordering::Relaxed);
            end.store(range.end(), Ordering::Relaxed);
            kind.store(change as usize, Ordering::Relaxed);
        }
        self.count.store(count + 1, Ordering::Release);
    }
}

impl Recorder {
    fn subscribe(monitor: &'static Monitor, range: PageRange) -> (Arc<Self>, Subscription) {
        let seen = std::array::from_fn(|_| std::array::from_fn(|_| AtomicUsize::new(0)));
        let recorder = Arc::new(Self { range, count: AtomicUsize::new(0), seen });
        (recorder.clone(), monitor.subscribe(recorder).unwrap())
    }

    fn count(&self) -> usize {
        self.count.load(Ordering::Acquire)
    }

    /// All so far: from where to where, within the range, and what.
    fn seen(&self) -> Vec<(PageRange, Change)> {
        let all = [Change::Unmapped, Change::Moved, Change::Removed, Change::Announced];
        let load = |[start, end, kind]: &[AtomicUsize; 3]| {
            let [start, end, kind] = [start, end, kind].map(|word| word.load(Ordering::Relaxed));
            (PageRange::new(start, end).unwrap(), all[kind])
        };
        self.seen.iter().take(self.count()).map(load).collect()
    }

    /// As [`Recorder::seen`], when there are at least `count`.
    fn wait(&self, count: usize) -> Vec<(PageRange, Change)> {
        wait_until("a change is told", || self.count() >= count);
        self.seen()
    }
}

fn wait_until(what: &str, done: impl Fn() -> bool) {
    let begin = Instant::now();
    while !done() {
        assert!(begin.elapsed() < Duration::from_secs(30), "in vain until {what}");
        std::thread::yield_now();
    }
}

/// A monitor that is asked again while events of other tests are unread.
fn settled(monitor: &Monitor, range: PageRange, backing: Backing) -> Verdict {
    let begin = Instant::now();
    loop {
        match monitor.check(range, backing) {
            Verdict::Pending if begin.elapsed() < Duration::from_secs(30) => std::thread::yield_now(),
            verdict => return verdict,
        }
    }
}

/// Whether `check` says yes in a fork's child, where it must not panic or print.
fn in_child(check: impl Fn() -> bool) -> bool {
    // SAFETY: the C library's fork leaves its allocator usable in the child, which uses nothing else that was locked.
    testkit::in_child(|| unsafe { libc::fork() }, check)
}

#[test]
fn one_a_process() {
    assert!(std::ptr::eq(Monitor::process(), Monitor::process()));
    assert!(matches!(Monitor::process().start(), Active::Uffd { .. }), "{}", Monitor::process().mode());
}

#[test]
fn nothing_is_started_before_it_is_needed() {
    let monitor = Monitor::create(true, true);
    assert_eq!(monitor.mode(), Active::Idle);
    let area = Area::anonymous(1);
    let (recorder, _subscription) = Recorder::subscribe(monitor, area.pages(0, 1));
    monitor.notify_unmap(area.pages(0, 1));
    monitor.begin(area.pages(0, 1)).end();
    assert!(!monitor.is_suspect(area.pages(0, 1)));
    assert_eq!(monitor.mode(), Active::Idle);
    assert_eq!(recorder.count(), 2);
    assert_eq!(monitor.seq(), 0);
}

#[test]
fn explicit_asks_nothing_of_the_kernel() {
    let monitor = Monitor::create(true, true);
    monitor.want(Wanted::Explicit);
    let area = Area::anonymous(2);
    let backing = monitor.watch(area.pages(0, 2)).unwrap();
    assert_eq!((backing.kind(), monitor.mode()), (Kind::Anonymous, Active::Explicit));
    assert!(monitor.uffd().is_none());
    let (recorder, _subscription) = Recorder::subscribe(monitor, area.pages(0, 2));
    area.unmap(0, 2);
    assert_eq!(recorder.count(), 0);
    monitor.notify_unmap(area.pages(0, 2));
    assert_eq!(recorder.seen(), [(area.pages(0, 2), Change::Announced)]);
    assert_eq!(monitor.watch(area.pages(0, 2)), Err(Refused::Unmapped));
    assert_eq!(monitor.want(Wanted::Off), Active::Explicit, "too late");
}

#[test]
fn turned_off_watches_nothing() {
    let monitor = Monitor::create(true, true);
    monitor.want(Wanted::Off);
    let area = Area::anonymous(1);
    assert_eq!(monitor.watch(area.pages(0, 1)), Err(Refused::Off { why: Why::TurnedOff }));
    assert_eq!(monitor.mode().to_string(), "none: it is turned off");
}

#[test]
fn windows_are_told_and_nothing_is_watched_in_them() {
    let (monitor, area) = (Monitor::process(), Area::anonymous(4));
    let (recorder, _subscription) = Recorder::subscribe(monitor, area.pages(0, 4));
    let window = monitor.begin(area.pages(1, 2));
    assert_eq!(recorder.seen(), [(area.pages(1, 2), Change::Announced)]);
    assert!(monitor.in_window(area.pages(0, 4)));
    assert_eq!(monitor.watch(area.pages(0, 4)), Err(Refused::Window));
    assert!(monitor.watch(area.pages(2, 4)).is_ok());
    window.end();
    assert!(!monitor.in_window(area.pages(0, 4)));
    assert!(monitor.watch(area.pages(0, 4)).is_ok());
}

/// What a hook of `munmap` does.
fn hooked_unmap(monitor: &Monitor, area: Area, page: usize, count: usize) {
    let window = monitor.begin(area.pages(page, page + count));
    area.unmap(page, count);
    window.end();
}

#[test]
fn a_hook_announces_before_and_refuses_until_after() {
    let (monitor, area) = (Monitor::process(), Area::anonymous(4));
    let (recorder, _subscription) = Recorder::subscribe(monitor, area.pages(0, 4));
    monitor.watch(area.pages(0, 4)).unwrap();
    hooked_unmap(monitor, area, 0, 4);
    let told = recorder.wait(2);
    assert_eq!(told, [(area.pages(0, 4), Change::Announced), (area.pages(0, 4), Change::Unmapped)]);
}
