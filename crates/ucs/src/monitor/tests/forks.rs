//! A fork's child has a monitor of its own, and leaves its parent's alone.
//!
//! # Safety
//! As the parent module.

#![allow(unsafe_code)]

use std::os::fd::{AsFd, AsRawFd};

use super::*;

fn is_open(fd: c_int) -> bool {
    // SAFETY: asks for the flags of a descriptor.
    unsafe { libc::fcntl(fd, libc::F_GETFD) >= 0 }
}

#[test]
fn a_child_watches_by_itself() {
    let (parents, area) = (Monitor::process(), Area::anonymous(4));
    let backing = parents.watch(area.pages(0, 4)).unwrap();
    let (recorder, _subscription) = Recorder::subscribe(parents, area.pages(0, 4));
    let fd = parents.uffd().unwrap().as_fd().as_raw_fd();
    let childs = Area::new();
    assert!(in_child(|| {
        let pages = area.pages(0, 4);
        let left_alone = parents.mode() == Active::None { why: Why::Forked }
            && parents.watch(pages) == Err(Refused::Forked)
            && parents.check(pages, backing) == Verdict::Replaced
            && is_open(fd);
        let monitor = Monitor::process();
        if !left_alone || std::ptr::eq(monitor, parents) || is_open(fd) || monitor.mode() != Active::Idle {
            return false;
        }
        childs.map(0, 4, ANONYMOUS, -1);
        childs.fill(0, 4, 1);
        let Ok(backing) = monitor.watch(childs.pages(0, 4)) else { return false };
        let (recorder, subscription) = Recorder::subscribe(monitor, childs.pages(0, 4));
        let live = monitor.check(childs.pages(0, 4), backing) == Verdict::Live;
        childs.unmap(0, 2);
        while recorder.count() == 0 {
            std::thread::yield_now();
        }
        area.unmap(0, 4); // watched by the parent, not here
        drop(subscription);
        live && recorder.seen() == [(childs.pages(0, 2), Change::Unmapped)]
    }));
    // The parent's goes on.
    assert!(is_open(fd));
    assert_eq!(recorder.count(), 0);
    assert_eq!(settled(parents, area.pages(0, 4), backing), Verdict::Live);
    area.unmap(0, 4);
    assert_eq!(recorder.wait(1), [(area.pages(0, 4), Change::Unmapped)]);
}

#[test]
fn a_child_drops_what_it_has_of_its_parents() {
    struct Slow(AtomicUsize);
    impl Sink for Slow {
        fn invalidate(&self, _: PageRange, _: Change) {
            self.0.fetch_add(1, Ordering::SeqCst);
            std::thread::sleep(Duration::from_millis(200));
        }
    }
    // Forked while the handler is inside the sink: in the child it never leaves.
    let (monitor, area) = (Monitor::create(true, true), Area::anonymous(2));
    monitor.watch(area.pages(0, 2)).unwrap();
    let slow = Arc::new(Slow(AtomicUsize::new(0)));
    let subscription = std::cell::Cell::new(Some(monitor.subscribe(slow.clone()).unwrap()));
    area.unmap(0, 2);
    wait_until("it is inside", || slow.0.load(Ordering::SeqCst) > 0);
    assert!(in_child(|| {
        drop(subscription.take());
        Arc::strong_count(&slow) == 1
            && matches!(monitor.subscribe(slow.clone()), Err(SubscribeError::Forked))
    }));
}

#[test]
fn descriptors_of_the_childs_own_are_not_closed() {
    let parents = Monitor::process();
    parents.start();
    let fd = parents.uffd().unwrap().as_fd().as_raw_fd();
    assert!(in_child(|| {
        // SAFETY: the child puts another file behind that number.
        unsafe { libc::close(fd) };
        // SAFETY: as above.
        if unsafe { libc::dup2(0, fd) } != fd {
            return false;
        }
        let _ = Monitor::process();
        is_open(fd)
    }));
}

#[test]
fn descriptors_are_closed_by_exec() {
    let monitor = Monitor::process();
    monitor.start();
    for fd in [Some(monitor.uffd().unwrap().as_fd()), monitor.maps().fd()].into_iter().flatten() {
        let flags = rustix::io::fcntl_getfd(fd).unwrap();
        assert!(flags.contains(rustix::io::FdFlags::CLOEXEC));
    }
}
