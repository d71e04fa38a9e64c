//! Registrations that overlap, or are widened.

use super::double::{World, get, pages};
use crate::mem::Access::{Read, ReadWrite};
use crate::mem::page::page_size;
use crate::monitor::Refused;
use crate::rcache::{GetError, Options};

#[test]
fn what_overlaps_becomes_one() {
    let world = World::new();
    let cache = world.cache(Options::default());
    let first = get(&cache, pages(0, 2), ReadWrite);
    let merged = get(&cache, pages(1, 3), Read);
    assert_eq!(
        (merged.range(), merged.access),
        (Some(pages(0, 3)), ReadWrite),
        "all that the older one could"
    );
    assert!(world.is_live(first.id), "in use");
    let old = first.id;
    drop(first);
    assert!(!world.is_live(old));
    for range in [pages(0, 3), pages(0, 1), pages(2, 3)] {
        assert_eq!(get(&cache, range, ReadWrite).id, merged.id);
    }
    let stats = cache.stats();
    assert_eq!((stats.merges, stats.misses, stats.hits, cache.len()), (1, 2, 3, 1));
    // Neighbours do not overlap.
    assert_ne!(get(&cache, pages(3, 4), ReadWrite).id, merged.id);
    assert_eq!(cache.len(), 2);
}

#[test]
fn more_access_takes_another_registration() {
    let world = World::new();
    let cache = world.cache(Options::default());
    let read = get(&cache, pages(0, 2), Read).id;
    assert_eq!(get(&cache, pages(0, 2), Read).id, read);
    let write = get(&cache, pages(0, 1), ReadWrite);
    assert_eq!((write.range(), write.access), (Some(pages(0, 2)), ReadWrite));
    assert_eq!(get(&cache, pages(1, 2), Read).id, write.id, "it serves both");
    assert!(!world.is_live(read));
}

/// One page of those merged does not allow it: then what was asked for is made, and no more.
#[test]
fn what_cannot_be_merged_is_made_as_asked() {
    let world = World::new();
    let cache = world.cache(Options::default());
    drop(get(&cache, pages(0, 2), Read));
    *world.refuse.lock() = Some(Box::new(|range, access| access == ReadWrite && range.overlaps(pages(0, 1))));
    let region = get(&cache, pages(1, 3), ReadWrite);
    assert_eq!((region.range(), region.access, region.is_one_shot()), (Some(pages(1, 3)), ReadWrite, false));
    let error = cache.get(pages(0, 1).start(), 1, ReadWrite).unwrap_err();
    assert_eq!(error, GetError::Register("refused"));
    assert_eq!(get(&cache, pages(0, 1), Read).range(), Some(pages(0, 1)));
    assert_eq!(cache.stats().pinned_bytes, 3 * page_size() as u64);
}

#[test]
fn what_is_refused_leaves_nothing() {
    let world = World::new();
    let cache = world.cache(Options::default());
    *world.refuse.lock() = Some(Box::new(|_, _| true));
    for _ in 0..100 {
        assert!(cache.get(pages(0, 2).start(), 8, Read).is_err());
    }
    assert_eq!((cache.len(), world.counts(), cache.stats().pinned_bytes), (0, (0, 0), 0));
    *world.refuse.lock() = None;
    assert!(!get(&cache, pages(0, 2), Read).is_one_shot());
}

/// Merging and widening do not reach over pages on their way out.
#[test]
fn suspect_neighbours_are_left_alone() {
    let world = World::new();
    let cache = world.cache(Options { alignment: 4 * page_size(), ..Options::default() });
    drop(get(&cache, pages(0, 1), ReadWrite));
    assert_eq!(get(&cache, pages(1, 2), ReadWrite).range(), Some(pages(0, 4)));
    *world.suspect.lock() = Some(pages(0, 1));
    let region = get(&cache, pages(3, 5), ReadWrite);
    assert_eq!((region.range(), region.is_one_shot()), (Some(pages(3, 5)), false));
    assert_eq!((cache.stats().poisoned, cache.len()), (0, 1));
}

/// What is widened over memory that cannot be watched is made as asked for, and kept.
#[test]
fn widening_falls_back() {
    let world = World::new();
    let cache = world.cache(Options { alignment: 4 * page_size(), ..Options::default() });
    *world.refuse_watch.lock() = Some((Refused::Unmapped, Some(pages(0, 1))));
    let region = get(&cache, pages(1, 2), ReadWrite);
    assert_eq!((region.range(), region.is_one_shot()), (Some(pages(1, 2)), false));
    assert_eq!(get(&cache, pages(1, 2), ReadWrite).id, region.id);
}

#[test]
fn strange_alignments_are_rounded() {
    for alignment in [0, 1, page_size() + 1] {
        let cache = World::new().cache(Options { alignment, ..Options::default() });
        let range = get(&cache, pages(0, 1), ReadWrite).range().unwrap();
        let expected = if alignment > page_size() { pages(0, 2) } else { pages(0, 1) };
        assert_eq!(range, expected, "{alignment}");
    }
}

/// Very many that one takes the place of: in one call.
#[test]
fn very_many_become_one() {
    let world = World::new();
    let cache = world.cache(Options::default());
    (0..1000).for_each(|page| drop(get(&cache, pages(page, page + 1), ReadWrite)));
    let region = get(&cache, pages(0, 1000), ReadWrite);
    assert_eq!((region.is_one_shot(), cache.len(), world.counts()), (false, 1, (1001, 1000)));
}
