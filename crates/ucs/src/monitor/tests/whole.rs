//! Whole mappings are watched when the process has many.

use super::*;

static SHARE: AtomicUsize = AtomicUsize::new(usize::MAX);

/// Where the mapping begins and ends that page `page` is in.
fn extent(monitor: &Monitor, area: Area, page: usize) -> (usize, usize) {
    let vma = monitor.maps().extent(area.pages(page, page + 1).start()).unwrap().unwrap();
    ((vma.start - area.start) / page_size(), (vma.end - area.start) / page_size())
}

#[test]
fn pieces_become_one_again_and_what_they_hold_is_told() {
    let monitor = Monitor::create_with(true, true, || SHARE.load(Ordering::Relaxed) as u64);
    let area = Area::anonymous(64);
    let even = |number: usize| area.pages(2 * number, 2 * number + 1);
    let backings: Vec<_> = (0..16).map(|number| monitor.watch(even(number)).unwrap()).collect();
    assert_eq!(extent(monitor, area, 4), (4, 5), "each is a mapping of its own");
    assert_eq!(extent(monitor, area, 40), (31, 64));
    // Until it is counted again, nothing changes.
    SHARE.store(0, Ordering::Relaxed);
    while monitor.stats().whole == 0 {
        assert!(monitor.stats().watches < 10_000);
        monitor.watch(even(0)).unwrap();
    }
    for number in 0..16 {
        let odd = area.pages(2 * number + 1, 2 * number + 2);
        assert_eq!(settled(monitor, odd, monitor.watch(odd).unwrap()), Verdict::Live);
    }
    assert_eq!(extent(monitor, area, 4), (0, 64), "one mapping, with all that none had asked for");
    for (number, backing) in backings.into_iter().enumerate() {
        assert_eq!(settled(monitor, even(number), backing), Verdict::Live, "{number}");
    }
    // Changes of what was watched before and after are told, and seen.
    let (recorder, _subscription) = Recorder::subscribe(monitor, area.pages(0, 2));
    let (old, new) = (monitor.watch(even(0)).unwrap(), monitor.watch(area.pages(1, 2)).unwrap());
    area.unmap(0, 1);
    area.map(0, 1, ANONYMOUS, -1);
    area.fill(0, 1, 1);
    assert_eq!(recorder.wait(1), [(even(0), Change::Unmapped)]);
    assert_eq!(settled(monitor, even(0), old), Verdict::Replaced);
    assert_eq!(settled(monitor, area.pages(1, 2), new), Verdict::Live);
    area.unmap(1, 1);
    assert_eq!(recorder.wait(2)[1], (area.pages(1, 2), Change::Unmapped));
    assert_eq!(settled(monitor, area.pages(1, 2), new), Verdict::Replaced);
}

/// A mapping that the monitor's own memory is part of is not watched whole.
#[test]
fn never_its_own() {
    let monitor = Monitor::create_with(true, true, || 0);
    assert!(matches!(monitor.start(), Active::Uffd { .. }));
    let arena = monitor.arena.unwrap();
    assert_eq!(monitor.watch(arena.stack), Err(Refused::Own));
    assert_eq!(monitor.whole_mappings(arena.stack), None);
    let area = Area::anonymous(3);
    assert_eq!(monitor.whole_mappings(area.pages(1, 2)), Some(area.pages(0, 3)));
}
