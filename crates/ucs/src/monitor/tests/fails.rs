//! When the handler cannot go on: nobody waits for it, and nothing is taken for watched.
//!
//! # Safety
//! As the parent module.

#![allow(unsafe_code)]

use std::os::fd::{AsFd, AsRawFd};

use super::*;

#[test]
fn a_sink_that_panics_ends_the_watching_and_not_the_process() {
    struct Panics;
    impl Sink for Panics {
        fn invalidate(&self, _: PageRange, _: Change) {
            std::panic::resume_unwind(Box::new("as the test wants"));
        }
    }
    let (monitor, area) = (Monitor::create(true, true), Area::anonymous(4));
    let backing = monitor.watch(area.pages(0, 4)).unwrap();
    let panics = monitor.subscribe(Arc::new(Panics)).unwrap();
    let (recorder, _subscription) = Recorder::subscribe(monitor, area.pages(0, 4));
    area.unmap(0, 1);
    wait_until("it has ended", || monitor.mode() == Active::None { why: Why::SinkPanicked });
    // Not told of that one, so told of everything.
    assert_eq!(recorder.wait(1), [(area.pages(0, 4), Change::Unmapped)]);
    wait_until("seq is even", || monitor.seq().is_multiple_of(2));
    area.unmap(1, 1); // does not wait for ever
    assert_eq!(monitor.check(area.pages(2, 4), backing), Verdict::Replaced);
    assert_eq!(monitor.watch(area.pages(2, 4)), Err(Refused::Off { why: Why::SinkPanicked }));
    drop(panics);
}

#[test]
fn a_descriptor_that_is_gone() {
    let (monitor, area) = (Monitor::create(true, true), Area::anonymous(4));
    let (recorder, _subscription) = Recorder::subscribe(monitor, area.pages(0, 4));
    let backing = monitor.watch(area.pages(0, 4)).unwrap();
    monitor.uffd().unwrap().disconnect(); // what an application does that closes everything
    area.unmap(0, 1);
    wait_until("it has ended", || monitor.mode() == Active::None { why: Why::Broken });
    assert_eq!(recorder.wait(1), [(area.pages(0, 4), Change::Unmapped)]);
    assert_eq!(monitor.check(area.pages(2, 4), backing), Verdict::Replaced);
    assert_eq!(monitor.watch(area.pages(2, 4)), Err(Refused::Off { why: Why::Broken }));
    area.unmap(1, 1);
}

#[test]
fn an_application_that_closes_everything() {
    // In a child: what it closes is not of the other tests'.
    assert!(in_child(|| {
        let (monitor, area) = (Monitor::create(true, true), Area::anonymous(4));
        if monitor.watch(area.pages(0, 4)).is_err() {
            return false;
        }
        let Some(fd) = monitor.uffd().map(|uffd| uffd.as_fd().as_raw_fd()) else { return false };
        let Ok(own) = rustix::fs::memfd_create(c"own", rustix::fs::MemfdFlags::empty()) else { return false };
        // SAFETY: closes the userfaultfd, and has the number stand for a file of the application's.
        if unsafe { libc::dup2(own.as_raw_fd(), fd) } != fd {
            return false;
        }
        area.unmap(0, 1);
        let begin = Instant::now();
        while monitor.mode() != (Active::None { why: Why::Broken }) {
            if begin.elapsed() > Duration::from_secs(20) {
                return false;
            }
            std::thread::yield_now();
        }
        area.unmap(1, 1);
        // The file is still there.
        let stat = |fd| rustix::fs::fstat(fd).map(|stat| stat.st_ino);
        // SAFETY: open since the dup2 above.
        let there = unsafe { std::os::fd::BorrowedFd::borrow_raw(fd) };
        stat(own.as_fd()).is_ok_and(|inode| stat(there) == Ok(inode))
    }));
}

#[test]
fn the_handler_takes_no_signals() {
    Monitor::process().start();
    let blocked = || {
        let tasks = std::fs::read_dir("/proc/self/task").ok()?;
        let mut statuses =
            tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("status")).ok());
        let status = statuses.find(|status| status.contains("Name:\trucx-memory\n"))?;
        let line = status.lines().find_map(|line| line.strip_prefix("SigBlk:\t"))?;
        u64::from_str_radix(line, 16).ok()
    };
    wait_until("it runs", || blocked().is_some());
    let blocked = blocked().unwrap();
    for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGUSR1, libc::SIGPROF, libc::SIGCHLD] {
        assert!(blocked & (1 << (signal - 1)) != 0, "{signal}: {blocked:x}");
    }
}
