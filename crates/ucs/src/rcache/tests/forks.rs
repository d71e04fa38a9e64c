//! A fork's child.
//!
//! # Safety
//! The child of a fork calls what takes no lock of its parent's other threads but the allocator's, and ends by `_exit`.

#![allow(unsafe_code)]

use super::double::{World, get, pages};
use crate::mem::Access::ReadWrite;
use crate::mem::page::PageRange;
use crate::rcache::{GetError, Options};

/// Whether `check` says yes in a fork's child.
fn in_child(check: impl FnOnce() -> bool) -> bool {
    // SAFETY: the C library's fork leaves its allocator usable in the child (module rule).
    testkit::in_child(|| unsafe { libc::fork() }, check)
}

#[test]
fn a_child_has_no_registrations_of_its_parents() {
    let world = World::new();
    let cache = world.cache(Options::default());
    let held = get(&cache, pages(0, 1), ReadWrite);
    let once = get(&world.cache(Options { max_bytes: 0, ..Options::default() }), pages(0, 1), ReadWrite);
    let mut parents = Some((cache, held, once));
    assert!(in_child(|| {
        let Some((cache, held, once)) = parents.take() else { return false };
        let refused = cache.get(pages(0, 1).start(), 1, ReadWrite).err() == Some(GetError::Forked);
        cache.purge();
        drop((held, once, cache));
        refused && world.counts() == (2, 0)
    }));
    let (cache, held, once) = parents.take().unwrap();
    assert_eq!(get(&cache, pages(0, 1), ReadWrite).id, held.id);
    drop((held, once, cache));
}

/// Also when the fork comes while the parent's reclaimer is at work.
#[test]
fn a_child_s_own_cache_is_reclaimed() {
    let parents = World::new();
    let cache = parents.cache(Options::default());
    for round in 0..20 {
        (0..50).for_each(|number| drop(get(&cache, pages(2 * number, 2 * number + 1), ReadWrite)));
        parents.replace(PageRange::everything());
        assert!(
            in_child(|| {
                let world = World::new();
                let cache = world.cache(Options::default());
                drop(get(&cache, pages(0, 1), ReadWrite));
                world.replace(pages(0, 1));
                for _ in 0..20_000 {
                    if world.counts() == (1, 1) {
                        return true;
                    }
                    std::thread::sleep(std::time::Duration::from_millis(1));
                }
                false
            }),
            "round {round}"
        );
    }
}
