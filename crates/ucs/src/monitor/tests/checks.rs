//! What can be watched, and what the exact check says.
//!
//! # Safety
//! As the parent module.

#![allow(unsafe_code)]

use std::os::fd::{AsFd, AsRawFd};

use super::*;
use crate::mem::Memfd;

/// A file of so many pages, without a name.
pub(super) fn file(count: usize) -> std::fs::File {
    static NEXT: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);
    let index = NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    let path = std::env::temp_dir().join(format!("ucs-monitor-{}-{index}", std::process::id()));
    let mut options = std::fs::File::options();
    let file = options.read(true).write(true).create_new(true).open(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    file.set_len((count * page_size()) as u64).unwrap();
    file
}

/// Live while it is there; replaced when it is gone, by half or whole, and when the same is mapped there again.
fn goes_through_it(monitor: &Monitor, expected: Kind, flags: c_int, fd: c_int) {
    let area = Area::new();
    let map = |from: usize, count: usize| {
        area.map(from, count, flags, fd);
        area.fill(from, count, 1);
    };
    for (from, count) in [(0, 8), (0, 4), (4, 4), (3, 2)] {
        map(0, 8);
        let pages = area.pages(0, 8);
        let backing = monitor.watch(pages).unwrap();
        assert_eq!(backing.kind(), expected);
        assert_eq!(backing.is_shared(), flags & libc::MAP_SHARED != 0);
        assert_eq!(settled(monitor, pages, backing), Verdict::Live);
        assert_eq!(settled(monitor, area.pages(2, 6), backing), Verdict::Live);
        area.unmap(from, count);
        assert_eq!(settled(monitor, pages, backing), Verdict::Replaced, "{from} {count}");
        map(from, count);
        assert_eq!(settled(monitor, pages, backing), Verdict::Replaced, "{from} {count}");
        // Watched again, it is live again, in one piece or several.
        let again = monitor.watch(pages).unwrap();
        assert_eq!(settled(monitor, pages, again), Verdict::Live, "{from} {count} {again:?}");
    }
}

#[test]
fn anonymous_memory() {
    goes_through_it(Monitor::process(), Kind::Anonymous, ANONYMOUS, -1);
}

#[test]
fn shared_memory() {
    let (fd, _mapping) = Memfd::create("test", 8 * page_size(), false).unwrap();
    let fd = fd.as_fd().as_raw_fd();
    goes_through_it(Monitor::process(), Kind::Shmem, libc::MAP_SHARED, fd);
    goes_through_it(Monitor::process(), Kind::Shmem, libc::MAP_PRIVATE, fd);
    goes_through_it(Monitor::process(), Kind::Shmem, libc::MAP_SHARED | libc::MAP_ANONYMOUS, -1);
}

#[test]
fn memory_of_a_file() {
    let monitor = Monitor::process();
    let file = file(8);
    if monitor.start() == (Active::Uffd { wp_async: true }) {
        goes_through_it(monitor, Kind::File, libc::MAP_SHARED, file.as_raw_fd());
        goes_through_it(monitor, Kind::File, libc::MAP_PRIVATE, file.as_raw_fd());
    }
}

#[test]
fn huge_pages() {
    const HUGE: usize = 2 << 20;
    let (area, flags) = (Area::new(), ANONYMOUS | libc::MAP_HUGETLB | libc::MAP_FIXED);
    let map = || {
        // SAFETY: within the area.
        let mapped = unsafe { libc::mmap(area.at(0), 2 * HUGE, RW, flags, -1, 0) };
        mapped != libc::MAP_FAILED
    };
    if !map() {
        return; // none are set aside: vm.nr_hugepages
    }
    let per = HUGE / page_size();
    area.fill(0, 2 * per, 1);
    for monitor in [Monitor::process(), Monitor::create(true, false)] {
        assert!(map());
        area.fill(0, 2 * per, 1);
        // A part of one is enough to have it watched.
        let pages = area.pages(1, per + 3);
        let backing = monitor.watch(pages).unwrap();
        assert_eq!((backing.kind(), backing.page_size()), (Kind::Hugetlb, HUGE));
        assert_eq!(settled(monitor, pages, backing), Verdict::Live);
        let (recorder, _subscription) = Recorder::subscribe(monitor, area.pages(0, 2 * per));
        area.unmap(per, per);
        assert_eq!(recorder.wait(1), [(area.pages(per, 2 * per), Change::Unmapped)]);
        assert_eq!(settled(monitor, pages, backing), Verdict::Replaced);
        assert!(map());
        assert_eq!(settled(monitor, pages, backing), Verdict::Replaced);
    }
    area.unmap(0, 2 * per);
}

#[test]
fn transparent_huge_pages() {
    let (monitor, area, per) = (Monitor::process(), Area::new(), (2 << 20) / page_size());
    area.map(0, 4 * per, ANONYMOUS, -1);
    area.advise(0, 4 * per, libc::MADV_HUGEPAGE);
    area.fill(0, 4 * per, 1);
    let pages = area.pages(1, 4 * per - 1);
    let backing = monitor.watch(pages).unwrap();
    assert_eq!(settled(monitor, pages, backing), Verdict::Live);
    area.map(0, 4 * per, ANONYMOUS, -1);
    assert_eq!(settled(monitor, pages, backing), Verdict::Replaced);
    area.unmap(0, 4 * per);
}

#[test]
fn several_mappings() {
    let (monitor, area) = (Monitor::process(), Area::anonymous(8));
    // SAFETY: within the area.
    assert_eq!(unsafe { libc::mprotect(area.at(3), page_size(), libc::PROT_READ) }, 0);
    let backing = monitor.watch(area.pages(0, 8)).unwrap();
    assert!(backing.is_split());
    assert_eq!(settled(monitor, area.pages(0, 8), backing), Verdict::Live);
    area.map(3, 1, ANONYMOUS, -1);
    assert_eq!(settled(monitor, area.pages(0, 8), backing), Verdict::Replaced);
}

#[test]
fn dropped_pages_are_replaced() {
    let (monitor, area) = (Monitor::process(), Area::anonymous(8));
    let backing = monitor.watch(area.pages(0, 8)).unwrap();
    area.advise(0, 8, libc::MADV_DONTNEED);
    assert_eq!(settled(monitor, area.pages(0, 8), backing), Verdict::Replaced);
}

#[test]
fn the_check_changes_no_byte() {
    let (monitor, area) = (Monitor::process(), Area::anonymous(8));
    let backing = monitor.watch(area.pages(0, 8)).unwrap();
    for page in 0..8 {
        area.fill(page, 1, 7);
    }
    area.advise(3, 1, libc::MADV_DONTNEED);
    for _ in 0..10 {
        assert_eq!(settled(monitor, area.pages(0, 8), backing), Verdict::Live);
    }
    assert_eq!((0..8).map(|page| area.byte(page)).collect::<Vec<_>>(), [7, 7, 7, 0, 7, 7, 7, 7]);
}

#[test]
fn an_unread_event_is_pending() {
    // A handler of its own that is slow: the second event is not read while the first is applied.
    let (monitor, area, other) = (Monitor::create(true, true), Area::anonymous(4), Area::anonymous(4));
    let backing = monitor.watch(area.pages(0, 4)).unwrap();
    monitor.watch(other.pages(0, 4)).unwrap();
    assert_eq!((monitor.check(area.pages(0, 4), backing), monitor.seq()), (Verdict::Live, 0));
    monitor.slow_down(Duration::from_millis(300));
    other.unmap(0, 1);
    assert_eq!(monitor.seq(), 1);
    std::thread::scope(|scope| {
        scope.spawn(|| other.unmap(1, 1));
        wait_until("it is pending", || monitor.check(area.pages(0, 4), backing) == Verdict::Pending);
        assert_eq!(monitor.seq(), 1);
    });
    monitor.slow_down(Duration::ZERO);
    wait_until("both are applied", || monitor.seq() == 4);
    assert_eq!(settled(monitor, area.pages(0, 4), backing), Verdict::Live);
    assert!(monitor.stats().pending > 0);
}

#[test]
fn watching_twice_changes_nothing() {
    let (monitor, area) = (Monitor::process(), Area::anonymous(8));
    let backing = monitor.watch(area.pages(2, 4)).unwrap();
    assert_eq!(monitor.watch(area.pages(2, 4)), Ok(backing));
    assert_eq!(monitor.watch(area.pages(0, 8)), Ok(backing));
    assert_eq!(settled(monitor, area.pages(2, 4), backing), Verdict::Live);
    assert_eq!(settled(monitor, area.pages(0, 8), backing), Verdict::Live);
}

#[test]
fn another_owner() {
    let (monitor, area) = (Monitor::process(), Area::anonymous(4));
    let other = Uffd::open(true).unwrap();
    other.register(area.pages(1, 2)).unwrap();
    assert_eq!(monitor.watch(area.pages(0, 4)), Err(Refused::OtherOwner));
    drop(other);
    assert!(monitor.watch(area.pages(0, 4)).is_ok());
}

#[test]
fn what_is_refused() {
    for monitor in [Monitor::process(), Monitor::create(false, false), Monitor::create(true, false)] {
        let (holes, shm, mixed) = (Area::anonymous(8), Area::new(), Area::anonymous(4));
        holes.unmap(6, 2);
        assert_eq!(monitor.watch(holes.pages(4, 8)), Err(Refused::Unmapped));
        assert_eq!(monitor.watch(holes.pages(6, 8)), Err(Refused::Unmapped));
        attach_sysv(shm, 4);
        assert_eq!(monitor.watch(shm.pages(0, 4)), Err(Refused::SysV));
        // SAFETY: attached above, used no more.
        unsafe { libc::shmdt(shm.at(0)) };
        mixed.map(4, 4, libc::MAP_PRIVATE, file(4).as_raw_fd());
        assert!(matches!(monitor.watch(mixed.pages(0, 8)), Err(Refused::Mixed | Refused::Unwatchable)));
        let own = monitor.arena.unwrap();
        assert_eq!(monitor.watch(own.stack), Err(Refused::Own));
        assert_eq!(monitor.watch(own.all), Err(Refused::Own));
        assert_eq!(monitor.watch(PageRange::everything()), Err(Refused::Own));
        assert!(monitor.stats().refused >= 7);
    }
}

/// A System V segment at the beginning of an area where nothing is.
fn attach_sysv(area: Area, count: usize) {
    // SAFETY: makes a segment.
    let id = unsafe { libc::shmget(libc::IPC_PRIVATE, count * page_size(), libc::IPC_CREAT | 0o600) };
    assert!(id >= 0);
    // SAFETY: within the area, where nothing is.
    assert_eq!(unsafe { libc::shmat(id, area.at(0), 0) }, area.at(0));
    // SAFETY: it goes with its last mapping.
    unsafe { libc::shmctl(id, libc::IPC_RMID, std::ptr::null_mut()) };
    area.fill(0, count, 1);
}

#[test]
fn kernels_that_have_less() {
    let monitor = Monitor::create(false, false);
    assert_eq!(monitor.start(), Active::Uffd { wp_async: false });
    assert!(monitor.maps().fd().is_none());
    goes_through_it(monitor, Kind::Anonymous, ANONYMOUS, -1);
    let (memfd, _mapping) = Memfd::create("test", 8 * page_size(), false).unwrap();
    goes_through_it(monitor, Kind::Shmem, libc::MAP_SHARED, memfd.as_fd().as_raw_fd());
    let (area, file) = (Area::new(), file(8));
    area.map(0, 4, libc::MAP_SHARED, file.as_raw_fd());
    assert_eq!(monitor.watch(area.pages(0, 4)), Err(Refused::Unwatchable));
    let by_text = Monitor::create(true, false);
    if by_text.start() == (Active::Uffd { wp_async: true }) {
        goes_through_it(by_text, Kind::File, libc::MAP_SHARED, file.as_raw_fd());
    }
}
