//! Pages that are about to go: an event that comes before the change.
//!
//! # Safety
//! As the parent module.

#![allow(unsafe_code)]

use super::*;
use crate::sync::AtomicBool;

/// Whether pages of `range` may be about to go, asked while nothing is applied.
fn suspect(monitor: &Monitor, range: PageRange) -> bool {
    loop {
        let seq = monitor.seq();
        let suspect = monitor.is_suspect(range);
        if seq.is_multiple_of(2) && monitor.seq() == seq {
            return suspect;
        }
        std::thread::yield_now();
    }
}

#[test]
fn over_when_the_call_is_over() {
    let (monitor, area) = (Monitor::process(), Area::anonymous(8));
    monitor.watch(area.pages(0, 8)).unwrap();
    assert!(!suspect(monitor, area.pages(0, 8)));
    area.advise(2, 3, libc::MADV_DONTNEED);
    wait_until("it is over", || !suspect(monitor, area.pages(0, 8)));
    assert!(monitor.stats().scans > 0);
    assert!(!suspect(monitor, area.pages(0, 8)));
}

#[test]
fn not_over_before_the_pages_are_gone() {
    // Who says that it is over must find the page gone. Without asking, it is found there often.
    let (monitor, area) = (Monitor::process(), Area::anonymous(256));
    monitor.watch(area.pages(0, 256)).unwrap();
    let (recorder, _subscription) = Recorder::subscribe(monitor, area.pages(0, 256));
    let (turn, rounds) = (AtomicUsize::new(0), 500);
    let mut still_there = 0;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for round in 1..=rounds {
                area.fill(0, 256, 1);
                area.advise(0, 256, libc::MADV_DONTNEED);
                while turn.load(Ordering::SeqCst) != round {
                    std::thread::sleep(Duration::from_micros(20));
                }
            }
        });
        for round in 1..=rounds {
            while recorder.count() < round {
                std::hint::spin_loop();
            }
            still_there += usize::from(area.byte(255) == 1);
            wait_until("it is over", || !suspect(monitor, area.pages(0, 256)));
            assert_eq!(area.byte(255), 0, "round {round}");
            turn.store(round, Ordering::SeqCst);
        }
    });
    // Were it never there, the assertion above would prove nothing.
    assert!(still_there > 0);
}

#[test]
fn threads_that_run_all_the_time() {
    let (monitor, area) = (Monitor::process(), Area::anonymous(8));
    monitor.watch(area.pages(0, 8)).unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
        }
        for _ in 0..5 {
            area.advise(0, 8, libc::MADV_DONTNEED);
            wait_until("their clocks tell that they are outside", || !suspect(monitor, area.pages(0, 8)));
        }
        stop.store(true, Ordering::Relaxed);
    });
}

#[test]
fn a_call_that_takes_long() {
    let (monitor, area) = (Monitor::process(), Area::new());
    let pages = (512 << 20) / page_size();
    area.map(0, pages, ANONYMOUS, -1);
    area.advise(0, pages, libc::MADV_NOHUGEPAGE);
    area.fill(0, pages, 1);
    monitor.watch(area.pages(0, pages)).unwrap();
    let (recorder, _subscription) = Recorder::subscribe(monitor, area.pages(0, pages));
    std::thread::scope(|scope| {
        scope.spawn(|| area.advise(0, pages, libc::MADV_DONTNEED));
        recorder.wait(1);
        wait_until("it is over", || !suspect(monitor, area.pages(0, 1)));
        assert_eq!(area.byte(pages - 1), 0);
    });
    area.unmap(0, pages);
}
