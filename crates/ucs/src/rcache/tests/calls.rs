//! Hits that make no call, where the monitor shows what there is to know.

use std::sync::Arc;

use parking_lot::Mutex;

use super::double::{Counting, World, get, pages};
use crate::mem::Access::{Read, ReadWrite};
use crate::mem::page::PageRange;
use crate::monitor::{Backing, Refused, Signs, Sink, Verdict};
use crate::rcache::{Cache, MemMonitor, Mode, Options};
use crate::sync::{AtomicU64, Ordering};

/// As a world, of which it shows the signs; and counts how often it is asked nevertheless.
struct Shown {
    world: &'static World,
    signs: Signs,
    asked: AtomicU64,
}

impl MemMonitor for Shown {
    fn subscribe(&'static self, sink: Arc<dyn Sink>) -> Option<Box<dyn Send + Sync>> {
        self.world.subscribe(sink)
    }

    fn watch(&self, range: PageRange) -> Result<Backing, Refused> {
        self.world.watch(range)
    }

    fn seq(&self) -> u64 {
        self.asked.fetch_add(1, Ordering::SeqCst);
        self.signs.seq()
    }

    fn announces(&self) -> bool {
        self.signs.announces()
    }

    fn signs(&'static self) -> Option<&'static Signs> {
        Some(&self.signs)
    }

    fn check(&self, range: PageRange, backing: Backing) -> Verdict {
        self.world.check(range, backing)
    }

    fn is_suspect(&self, range: PageRange) -> bool {
        self.world.is_suspect(range)
    }
}

impl Shown {
    /// Whether `what` makes no call.
    fn is_quiet(&self, what: impl FnOnce()) -> bool {
        let before = self.asked.load(Ordering::SeqCst);
        what();
        self.asked.load(Ordering::SeqCst) == before
    }
}

fn shown(mode: Mode) -> (&'static Shown, Cache<Counting>) {
    // From where LeakSanitizer finds them.
    static ALL: Mutex<Vec<&Shown>> = Mutex::new(Vec::new());
    let world = World::new();
    let shown: &'static Shown =
        Box::leak(Box::new(Shown { world, signs: Signs::default(), asked: AtomicU64::new(0) }));
    ALL.lock().push(shown);
    let options = Options { mode, ..Options::default() };
    (shown, Cache::new(Counting(world), shown, options).unwrap())
}

#[test]
fn hits_that_nobody_checks_make_none() {
    let (shown, cache) = shown(Mode::Hooks);
    let made: Vec<_> =
        (0..100).map(|number| get(&cache, pages(2 * number, 2 * number + 1), Read).id).collect();
    // More than are remembered: some are guessed.
    for round in 0..3 {
        assert!(
            shown.is_quiet(|| {
                for (number, id) in made.iter().enumerate() {
                    assert_eq!(get(&cache, pages(2 * number, 2 * number + 1), Read).id, *id);
                }
            }),
            "round {round}"
        );
    }
    assert_eq!((cache.stats().hits, cache.stats().misses), (300, 100));
}

#[test]
fn what_is_stale_or_too_little_is_none() {
    let (shown, cache) = shown(Mode::Hooks);
    let first = get(&cache, pages(0, 1), Read).id;
    shown.world.tell(pages(0, 1));
    let second = get(&cache, pages(0, 1), Read).id;
    assert_ne!(first, second, "it was stale");
    let writable = get(&cache, pages(0, 1), ReadWrite);
    assert!(writable.id != second && writable.access == ReadWrite);
    let wider = get(&cache, pages(0, 2), Read).id;
    assert_ne!(writable.id, wider);
    assert!(shown.is_quiet(|| assert_eq!(get(&cache, pages(0, 2), ReadWrite).id, wider)));
    drop(writable);
    assert_eq!(shown.world.counts(), (4, 3));
    assert!(cache.get(pages(0, 1).start(), 0, Read).is_err());
}

#[test]
fn while_changes_are_told_and_where_hits_are_checked_it_is_asked() {
    let (shown_hooks, cache) = shown(Mode::Hooks);
    drop(get(&cache, pages(0, 1), Read));
    let before = shown_hooks.signs.enter();
    assert!(!shown_hooks.is_quiet(|| assert!(get(&cache, pages(0, 1), Read).is_one_shot())));
    shown_hooks.signs.leave(before, true);
    assert!(shown_hooks.is_quiet(|| assert!(!get(&cache, pages(0, 1), Read).is_one_shot())));
    for mode in [Mode::Strict, Mode::Auto] {
        let (shown, cache) = shown(mode);
        drop(get(&cache, pages(0, 1), Read));
        assert!(!shown.is_quiet(|| drop(get(&cache, pages(0, 1), Read))), "{mode:?}");
        assert_eq!(cache.stats().checks, 1);
    }
}
