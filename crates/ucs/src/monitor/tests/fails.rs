//! When the handler cannot go on: nobody waits for it, and nothing is taken for watched.

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
