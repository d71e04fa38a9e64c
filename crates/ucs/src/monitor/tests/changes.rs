//! Each way to change memory is told, with the range that it changes.
//!
//! # Safety
//! As the parent module.

#![allow(unsafe_code)]

use std::os::fd::{AsFd, AsRawFd};

use super::*;
use crate::mem::Memfd;

/// What is told when `change` is made to `count` watched pages.
fn told(area: Area, count: usize, change: impl FnOnce()) -> Vec<(PageRange, Change)> {
    let monitor = Monitor::process();
    let pages = area.pages(0, count);
    monitor.watch(pages).unwrap();
    let (recorder, _subscription) = Recorder::subscribe(monitor, pages);
    change();
    let told = recorder.wait(1);
    // All that was read with it is applied, too.
    wait_until("all is applied", || monitor.seq().is_multiple_of(2));
    assert!(recorder.count() >= told.len());
    recorder.seen()
}

fn remap(area: Area, from: usize, old: usize, new: usize, flags: c_int, to: *mut c_void) -> *mut c_void {
    // SAFETY: within areas of one test.
    let moved = unsafe { libc::mremap(area.at(from), old * page_size(), new * page_size(), flags, to) };
    assert_ne!(moved, libc::MAP_FAILED, "{}", std::io::Error::last_os_error());
    moved
}

#[test]
fn unmapping() {
    let area = Area::anonymous(8);
    assert_eq!(told(area, 8, || area.unmap(0, 8)), [(area.pages(0, 8), Change::Unmapped)]);
    for (from, count) in [(0, 3), (2, 3), (5, 3)] {
        let area = Area::anonymous(8);
        let expected = [(area.pages(from, from + count), Change::Unmapped)];
        assert_eq!(told(area, 8, || area.unmap(from, count)), expected);
    }
}

#[test]
fn mapping_something_else() {
    let area = Area::anonymous(8);
    let told_all = told(area, 8, || area.map(0, 8, ANONYMOUS, -1));
    assert_eq!(told_all, [(area.pages(0, 8), Change::Unmapped)]);
    let area = Area::anonymous(8);
    let told_half = told(area, 8, || area.map(4, 4, libc::MAP_SHARED | libc::MAP_ANONYMOUS, -1));
    assert_eq!(told_half, [(area.pages(4, 8), Change::Unmapped)]);
}

#[test]
fn moving() {
    let (area, elsewhere) = (Area::anonymous(4), Area::new());
    let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
    let changes = told(area, 4, || {
        remap(area, 0, 4, 4, flags, elsewhere.at(0));
    });
    assert!(changes.contains(&(area.pages(0, 4), Change::Moved)), "{changes:?}");
    assert_eq!(elsewhere.byte(3), 1);
}

#[test]
fn moving_because_it_grows() {
    let area = Area::anonymous(4);
    area.map(4, 1, libc::MAP_SHARED | libc::MAP_ANONYMOUS, -1);
    let changes = told(area, 4, || {
        remap(area, 0, 4, 8, libc::MREMAP_MAYMOVE, std::ptr::null_mut());
    });
    assert!(changes.contains(&(area.pages(0, 4), Change::Moved)), "{changes:?}");
}

#[test]
fn growing_in_place_is_no_change() {
    let (monitor, area) = (Monitor::process(), Area::anonymous(4));
    let backing = monitor.watch(area.pages(0, 4)).unwrap();
    let (recorder, _subscription) = Recorder::subscribe(monitor, area.pages(0, 4));
    remap(area, 0, 4, 8, 0, std::ptr::null_mut());
    assert_eq!(settled(monitor, area.pages(0, 4), backing), Verdict::Live);
    assert_eq!(recorder.count(), 0);
}

#[test]
fn shrinking() {
    let area = Area::anonymous(8);
    let changes = told(area, 8, || {
        remap(area, 0, 8, 3, 0, std::ptr::null_mut());
    });
    assert_eq!(changes, [(area.pages(3, 8), Change::Unmapped)]);
}

#[test]
fn something_is_moved_there() {
    let (area, other) = (Area::anonymous(4), Area::anonymous(4));
    let changes = told(area, 4, || {
        remap(other, 0, 4, 4, libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED, area.at(0));
    });
    assert_eq!(changes, [(area.pages(0, 4), Change::Unmapped)]);
}

#[test]
fn moving_and_leaving_an_empty_mapping() {
    const MREMAP_DONTUNMAP: c_int = 4; // include/uapi/linux/mman.h
    let (area, elsewhere) = (Area::anonymous(4), Area::new());
    let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED | MREMAP_DONTUNMAP;
    let changes = told(area, 4, || {
        remap(area, 0, 4, 4, flags, elsewhere.at(0));
    });
    assert!(changes.contains(&(area.pages(0, 4), Change::Moved)), "{changes:?}");
}

#[test]
fn dropping_pages() {
    let mut advices = vec![libc::MADV_DONTNEED, libc::MADV_FREE];
    let locked = 24; // MADV_DONTNEED_LOCKED, Linux 5.18
    let probe = Area::anonymous(1);
    // SAFETY: within the area.
    if unsafe { libc::madvise(probe.at(0), page_size(), locked) } == 0 {
        advices.push(locked);
    }
    for advice in advices {
        let area = Area::anonymous(8);
        let expected = [(area.pages(2, 5), Change::Removed)];
        assert_eq!(told(area, 8, || area.advise(2, 3, advice)), expected, "{advice}");
    }
}

#[test]
fn dropping_pages_of_shared_memory() {
    let (fd, _mapping) = Memfd::create("test", 8 * page_size(), false).unwrap();
    let area = Area::new();
    area.map(0, 8, libc::MAP_SHARED, fd.as_fd().as_raw_fd());
    area.fill(0, 8, 1);
    let expected = [(area.pages(2, 5), Change::Removed)];
    assert_eq!(told(area, 8, || area.advise(2, 3, libc::MADV_REMOVE)), expected);
    assert_eq!((area.byte(1), area.byte(2)), (1, 0));
    assert_eq!(
        told(area, 8, || area.advise(5, 3, libc::MADV_DONTNEED)),
        [(area.pages(5, 8), Change::Removed)]
    );
}

#[test]
fn dropping_pages_by_process_madvise() {
    let (area, me) = (Area::anonymous(8), rustix::process::getpid());
    let pidfd = rustix::process::pidfd_open(me, rustix::process::PidfdFlags::empty()).unwrap();
    let advise = |area: Area, count: usize| {
        let part = libc::iovec { iov_base: area.at(0), iov_len: count * page_size() };
        let (fd, advice) = (pidfd.as_raw_fd(), libc::MADV_DONTNEED);
        // SAFETY: within the area.
        unsafe { libc::syscall(libc::SYS_process_madvise, fd, &raw const part, 1, advice, 0) }
    };
    if advise(Area::anonymous(1), 1) < 0 {
        return; // before Linux 6.13 it drops no pages
    }
    let changes = told(area, 8, || assert!(advise(area, 3) > 0));
    assert_eq!(changes, [(area.pages(0, 3), Change::Removed)]);
}

#[test]
fn the_heap_shrinks() {
    // In a child: there no other thread moves the end of the heap.
    assert!(in_child(|| {
        let len = isize::try_from(16 * page_size()).unwrap_or(0);
        // SAFETY: asks where the heap ends.
        let end = unsafe { libc::sbrk(0) }.addr();
        let begin = end.next_multiple_of(page_size());
        // SAFETY: grows the heap.
        unsafe { libc::sbrk(len + isize::try_from(begin - end).unwrap_or(0)) };
        let Some(pages) = PageRange::containing(begin, 16 * page_size()) else { return false };
        let monitor = Monitor::process();
        if monitor.watch(pages).is_err() {
            return false;
        }
        let (recorder, subscription) = Recorder::subscribe(monitor, pages);
        // SAFETY: takes back what nobody has used since.
        unsafe { libc::sbrk(-len) };
        while recorder.count() == 0 {
            std::thread::yield_now();
        }
        let told = recorder.seen() == [(pages, Change::Unmapped)];
        drop(subscription);
        told
    }));
}

#[test]
fn memory_of_all_kinds() {
    let monitor = Monitor::process();
    let file = checks::file(8);
    let (memfd, _mapping) = Memfd::create("test", 8 * page_size(), false).unwrap();
    for (flags, fd) in [
        (libc::MAP_SHARED | libc::MAP_ANONYMOUS, -1),
        (libc::MAP_SHARED, memfd.as_fd().as_raw_fd()),
        (libc::MAP_PRIVATE, memfd.as_fd().as_raw_fd()),
        (libc::MAP_SHARED, file.as_raw_fd()),
        (libc::MAP_PRIVATE, file.as_raw_fd()),
    ] {
        let area = Area::new();
        area.map(0, 8, flags, fd);
        area.fill(0, 8, 1);
        if matches!(monitor.watch(area.pages(0, 8)), Err(Refused::Unwatchable)) {
            assert_eq!(monitor.mode(), Active::Uffd { wp_async: false });
            continue;
        }
        let changes = told(area, 8, || area.unmap(2, 3));
        assert_eq!(changes, [(area.pages(2, 5), Change::Unmapped)], "{flags} {fd}");
    }
}

#[test]
fn many_threads_at_once_and_all_is_applied_when_seq_is_even() {
    let (monitor, before) = (Monitor::process(), Monitor::process().stats());
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(move || {
                let area = Area::new();
                let (recorder, _subscription) = Recorder::subscribe(monitor, area.pages(0, 8));
                for round in 1..=300 {
                    area.map(0, 4, ANONYMOUS, -1);
                    area.fill(0, 4, 1);
                    monitor.watch(area.pages(0, 4)).unwrap();
                    let seq = monitor.seq();
                    area.unmap(0, 4);
                    wait_until("seq is even", || monitor.seq().is_multiple_of(2));
                    assert_eq!(recorder.count(), round);
                    assert!(monitor.seq() > seq);
                }
            });
        }
    });
    let after = monitor.stats();
    assert!(after.unmapped - before.unmapped >= 1200, "{after:?}");
    assert!(after.reads > before.reads);
}

#[test]
fn told_no_more_when_unsubscribed() {
    let (monitor, area) = (Monitor::process(), Area::anonymous(2));
    monitor.watch(area.pages(0, 2)).unwrap();
    let (recorder, subscription) = Recorder::subscribe(monitor, area.pages(0, 2));
    drop(subscription);
    area.unmap(0, 2);
    wait_until("seq is even", || monitor.seq().is_multiple_of(2));
    assert_eq!((recorder.count(), Arc::strong_count(&recorder)), (0, 1));
}
