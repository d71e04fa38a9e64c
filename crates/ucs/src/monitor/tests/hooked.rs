//! With hooks: what goes through the C library is announced, what does not is noticed.

use super::*;

/// Each test is about what the process's monitor has seen so far: so each is a process of its own.
fn alone(name: &str, test: impl FnOnce(&'static Monitor)) {
    const VAR: &str = "UCS_HOOKED_TEST";
    if std::env::var_os(VAR).is_some_and(|value| value == name) {
        let monitor = Monitor::process();
        assert!(matches!(monitor.start(), Active::Uffd { .. }));
        monitor.hook().unwrap();
        assert!(monitor.announces());
        return test(monitor);
    }
    let mut command = std::process::Command::new(std::env::current_exe().unwrap());
    let path = format!("monitor::tests::hooked::{name}");
    let output = command.args(["--exact", &path, "--nocapture"]).env(VAR, name).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(String::from_utf8_lossy(&output.stdout).contains("1 passed"));
}

/// By the kernel's own call, past the C library.
fn raw_unmap(area: Area, page: usize, count: usize) {
    // SAFETY: within the area.
    let answer = unsafe { libc::syscall(libc::SYS_munmap, area.at(page), count * page_size()) };
    assert_eq!(answer, 0);
}

#[test]
fn calls_are_announced_and_then_told() {
    alone("calls_are_announced_and_then_told", |monitor| {
        let area = Area::anonymous(8);
        monitor.watch(area.pages(0, 8)).unwrap();
        let (recorder, _subscription) = Recorder::subscribe(monitor, area.pages(0, 8));
        let before = monitor.stats().hooked;
        area.unmap(0, 2);
        // When the call has returned, everybody has been told, before and after.
        assert_eq!(
            recorder.seen(),
            [(area.pages(0, 2), Change::Announced), (area.pages(0, 2), Change::Unmapped)]
        );
        area.advise(2, 2, libc::MADV_DONTNEED);
        assert_eq!(recorder.seen()[2], (area.pages(2, 4), Change::Announced));
        assert_eq!(recorder.seen()[3], (area.pages(2, 4), Change::Removed));
        assert!(!monitor.is_suspect(area.pages(2, 4)), "the pages have gone");
        area.advise(4, 1, libc::MADV_NORMAL);
        assert_eq!(recorder.count(), 4, "nothing changes by that");
        // No event tells of this one.
        area.advise(5, 1, 102);
        assert_eq!(recorder.seen()[4], (area.pages(5, 6), Change::Announced));
        assert!(!monitor.in_window(area.pages(0, 8)));
        assert!(monitor.stats().hooked >= before + 4);
        assert!(monitor.announces());
    });
}

#[test]
fn what_the_c_library_does_by_itself() {
    alone("what_the_c_library_does_by_itself", |monitor| {
        let (recorder, _subscription) = Recorder::subscribe(monitor, PageRange::everything());
        // A large block is a mapping of its own, which `free` unmaps.
        let block = vec![1_u8; 4 << 20];
        let pages = PageRange::containing(block.as_ptr().addr(), block.len()).unwrap();
        monitor.watch(pages).unwrap();
        drop(block);
        let seen = recorder.seen();
        let is = |change| move |seen: &&(PageRange, Change)| seen.0.overlaps(pages) && seen.1 == change;
        assert!(seen.iter().find(is(Change::Announced)).is_some(), "{seen:?}");
        assert!(seen.iter().find(is(Change::Unmapped)).is_some(), "{seen:?}");
        assert!(monitor.announces());
    });
}

#[test]
fn moved_and_mapped_over() {
    alone("moved_and_mapped_over", |monitor| {
        let area = Area::anonymous(8);
        monitor.watch(area.pages(0, 8)).unwrap();
        let (recorder, _subscription) = Recorder::subscribe(monitor, area.pages(0, 8));
        let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
        // SAFETY: within the area.
        let moved = unsafe { libc::mremap(area.at(0), page_size(), page_size(), flags, area.at(4)) };
        assert_eq!(moved, area.at(4));
        assert_eq!(area.byte(4), 1);
        let seen = recorder.seen();
        for pages in [area.pages(0, 1), area.pages(4, 5)] {
            assert!(seen.contains(&(pages, Change::Announced)), "{seen:?}");
        }
        assert!(seen.contains(&(area.pages(0, 1), Change::Moved)), "{seen:?}");
        assert!(monitor.announces());
    });
}

/// Failing calls fail as ever, and say why.
#[test]
fn errors_are_the_kernels() {
    alone("errors_are_the_kernels", |_| {
        let errno = || std::io::Error::last_os_error().raw_os_error();
        // SAFETY: none of these changes anything.
        assert_eq!(unsafe { libc::munmap(std::ptr::without_provenance_mut(1), 1) }, -1);
        assert_eq!(errno(), Some(libc::EINVAL));
        // SAFETY: as above.
        assert_eq!(unsafe { libc::madvise(std::ptr::null_mut(), 1, 4) }, -1);
        assert_eq!(errno(), Some(libc::ENOMEM));
        // SAFETY: as above.
        assert_eq!(unsafe { libc::shmat(-1, std::ptr::null(), libc::SHM_REMAP) }.addr(), usize::MAX);
        assert_eq!(errno(), Some(libc::EINVAL));
    });
}

#[test]
fn what_goes_past_the_c_library_is_noticed() {
    alone("what_goes_past_the_c_library_is_noticed", |monitor| {
        let area = Area::anonymous(2);
        raw_unmap(area, 1, 1);
        assert!(monitor.announces(), "that was not watched");
        monitor.watch(area.pages(0, 1)).unwrap();
        raw_unmap(area, 0, 1);
        wait_until("it is noticed", || !monitor.announces());
        assert_eq!(monitor.stats().unannounced, 1);
        monitor.hook().unwrap();
        assert!(!monitor.announces(), "for good");
    });
}

/// Threads come and go, allocate and free, while memory is watched: all of it goes through the hooks.
#[test]
fn under_load_nothing_goes_unannounced() {
    alone("under_load_nothing_goes_unannounced", |monitor| {
        // Each larger block is a mapping of its own, and the heap is given back as soon as it can be.
        // SAFETY: settings of the allocator, before other threads are there.
        unsafe { libc::mallopt(libc::M_MMAP_THRESHOLD, 64 << 10) };
        // SAFETY: as above.
        unsafe { libc::mallopt(libc::M_TRIM_THRESHOLD, 0) };
        let end = Instant::now() + Duration::from_secs(2);
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    while Instant::now() < end {
                        let blocks: Vec<_> = (10..23).map(|bits| vec![1_u8; 1 << bits]).collect();
                        for block in &blocks {
                            let pages = PageRange::containing(block.as_ptr().addr(), block.len());
                            let _ = monitor.watch(pages.unwrap());
                        }
                        drop(blocks);
                        std::thread::spawn(|| drop(vec![1_u8; 100_000])).join().unwrap();
                    }
                });
            }
        });
        let stats = monitor.stats();
        assert!(stats.unmapped > 100 && stats.hooked > stats.unmapped, "{stats:?}");
        assert!(monitor.announces(), "{stats:?}");
    });
}

#[test]
fn a_forks_child_goes_on() {
    alone("a_forks_child_goes_on", |monitor| {
        let area = Area::anonymous(2);
        monitor.watch(area.pages(0, 2)).unwrap();
        assert!(in_child(|| {
            // SAFETY: within the area, in the child.
            let unmapped = unsafe { libc::munmap(area.at(0), page_size()) };
            unmapped == 0 && area.byte(1) == 1
        }));
        assert_eq!(area.byte(0), 1);
        assert!(monitor.announces());
    });
}

/// A signal handler unmaps memory while its thread holds the lock that the sinks wait for.
#[test]
fn signal_handlers_may_unmap() {
    use crate::rcache::index::Index;
    use std::sync::atomic::AtomicBool;

    const PAGES: usize = 200;
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    static AREA: AtomicUsize = AtomicUsize::new(0);

    struct Locks(Index);
    impl Sink for Locks {
        fn invalidate(&self, _: PageRange, _: Change) {
            drop(self.0.lock());
        }
    }
    extern "C" fn handler(_: c_int) {
        let page = NEXT.fetch_add(1, Ordering::SeqCst);
        Area { start: AREA.load(Ordering::SeqCst) }.unmap(page, 1);
    }

    alone("signal_handlers_may_unmap", |monitor| {
        let area = Area::anonymous(PAGES);
        AREA.store(area.start, Ordering::SeqCst);
        monitor.watch(area.pages(0, PAGES)).unwrap();
        let sink = Arc::new(Locks(Index::new(16).unwrap()));
        let _subscription = monitor.subscribe(sink.clone()).unwrap();
        let function = handler as extern "C" fn(c_int) as *const () as libc::sighandler_t;
        // SAFETY: a handler that calls munmap(2) only, on memory of this test alone.
        unsafe { libc::signal(libc::SIGUSR1, function) };
        let done = AtomicBool::new(false);
        // SAFETY: names this thread.
        let me = unsafe { libc::pthread_self() };
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for count in 1..=PAGES {
                    // SAFETY: the thread lives through the scope.
                    unsafe { libc::pthread_kill(me, libc::SIGUSR1) };
                    wait_until("the handler has run", || NEXT.load(Ordering::SeqCst) >= count);
                }
                done.store(true, Ordering::SeqCst);
            });
            while !done.load(Ordering::SeqCst) {
                let writer = sink.0.lock();
                (0..100).for_each(|_| std::hint::spin_loop());
                drop(writer);
            }
        });
        assert!(monitor.stats().unmapped >= PAGES as u64);
    });
}
