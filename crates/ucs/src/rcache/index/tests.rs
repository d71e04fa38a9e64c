//! Against a naive model, and with threads.

#![allow(clippy::cast_possible_truncation)] // numbers of pages and slots that are small

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

const PAGE: usize = 1 << PAGE_SHIFT;
const PIECE: u64 = 1 << PIECE_SHIFT;

fn range(start: u64, end: u64) -> PageRange {
    Pages { start, end }.to_range().unwrap()
}

/// The address of a page.
fn address(page: u64) -> usize {
    usize::try_from(page).unwrap() * PAGE
}

/// All rules of a tree, checked. How many entries there are below `node`, and how many leaves.
fn check_tree(
    index: &Index,
    levels: u32,
    node: u32,
    from: u32,
    to: Option<u32>,
    root: bool,
) -> (usize, usize) {
    if levels == 1 {
        let image = index.leaves.get(node).unwrap().image();
        assert!(image.len >= if root { 1 } else { Leaf::LEAST }, "{image:?}");
        let mut end = from;
        for (at, (key, entry)) in image.keys.iter().zip(image.values).take(image.len).enumerate() {
            assert!(*key >= end && (at == 0 || *key > image.values[at - 1].last), "{image:?}");
            assert!(entry.last >= *key && to.is_none_or(|to| entry.last < to), "{image:?}");
            end = entry.last;
        }
        return (image.len, 1);
    }
    let image = index.inners.get(node).unwrap().image();
    assert!(image.len >= if root { 2 } else { Inner::LEAST } && image.keys[0] <= from, "{image:?}");
    let mut sum = (0, 0);
    for at in 0..image.len {
        let low = if at == 0 { from } else { image.keys[at] };
        let high = if at + 1 < image.len { Some(image.keys[at + 1]) } else { to };
        assert!(high.is_none_or(|high| low < high), "{image:?}");
        let (entries, leaves) = check_tree(index, levels - 1, image.values[at], low, high, false);
        sum = (sum.0 + entries, sum.1 + leaves);
    }
    sum
}

fn check(index: &Index) {
    let (mut entries, mut leaves) = (0, 0);
    for piece in 0..PIECES {
        let (levels, root) = of_root(index.roots.get(piece).unwrap().load(Ordering::Relaxed));
        if levels > 0 {
            let (e, l) = check_tree(index, levels, root, 0, None, true);
            (entries, leaves) = (entries + e, leaves + l);
        }
    }
    assert_eq!(entries, index.entries.load(Ordering::Relaxed) as usize);
    // What is in no tree can be taken, or lingers.
    assert!(index.leaves.available() as usize + leaves >= index.capacity as usize / Leaf::LEAST);
    assert!(index.lock().nodes_suffice());
}

/// What the index is to be: starts, ends and slots.
#[derive(Default)]
struct Model(BTreeMap<u64, (u64, u32)>);

impl Model {
    fn overlapping(&self, start: u64, end: u64) -> Vec<(PageRange, u32)> {
        let first = self.0.range(..=start).next_back().filter(|(_, (last, _))| *last > start);
        let from = first.map_or(start, |(at, _)| *at);
        self.0.range(from..end.max(from)).map(|(at, (end, slot))| (range(*at, *end), *slot)).collect()
    }

    /// Does the same to both.
    fn insert(&mut self, index: &Index, start: u64, end: u64, slot: u32) {
        let expected =
            if self.overlapping(start, end).is_empty() { Ok(()) } else { Err(InsertError::Overlap) };
        if expected.is_ok() {
            self.0.insert(start, (end, slot));
        }
        assert_eq!(index.lock().insert(range(start, end), slot), expected);
    }

    fn remove(&mut self, index: &Index, start: u64, end: u64) {
        let slot = self.0.get(&start).filter(|found| found.0 == end).map(|found| found.1);
        if slot.is_some() {
            self.0.remove(&start);
        }
        assert_eq!(index.lock().remove(range(start, end)), slot);
    }

    fn check(&self, index: &Index) {
        check(index);
        assert_eq!(index.len() as usize, self.0.len());
        let all: Vec<_> = self.0.iter().map(|(start, (end, slot))| (range(*start, *end), *slot)).collect();
        assert_eq!(index.lock().iter().collect::<Vec<_>>(), all);
        for page in self.0.iter().flat_map(|(start, (end, _))| [start.wrapping_sub(1), *start, end - 1, *end])
        {
            self.check_find(index, page.min(PAGES_END - 1));
        }
    }

    fn check_find(&self, index: &Index, page: u64) {
        let expected = self.overlapping(page, page + 1);
        let found = index.find(address(page) + 17);
        assert_eq!(found.map(|hit| hit.slot), expected.first().map(|(_, slot)| *slot), "page {page:#x}");
        if let Some(hit) = found {
            let piece = Pages { start: page & !(PIECE - 1), end: (page | (PIECE - 1)) + 1 };
            let whole = expected[0].0.intersection(piece.to_range().unwrap()).unwrap();
            assert_eq!(hit.end, whole.end());
        }
    }
}

/// Where ranges are laid: densely, at the edges, over the boundaries of pieces.
fn start() -> impl Strategy<Value = u64> {
    prop_oneof![
        8 => 0x7f_0000_0000..0x7f_0000_0400_u64,
        2 => Just(0),
        2 => 0..300_u64,
        3 => (1..3_u64, 0..200_u64).prop_map(|(piece, below)| piece * PIECE - below),
        2 => (1..3_u64, 0..100_u64).prop_map(|(piece, above)| piece * PIECE + above),
        2 => (1..200_u64).prop_map(|below| PAGES_END - below),
        2 => any::<u64>().prop_map(|page| page % (PAGES_END - 1)),
    ]
}

fn len() -> impl Strategy<Value = u64> {
    prop_oneof![10 => 1..3_u64, 3 => 1..40_u64, 1 => Just(PIECE), 1 => 1..3 * PIECE]
}

#[derive(Clone, Debug)]
enum Op {
    Insert(u64, u64),
    /// The n-th of those there are.
    Remove(usize),
    /// Perhaps there is none.
    RemoveAt(u64, u64),
    Find(u64),
    Overlapping(u64, u64),
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        10 => (start(), len()).prop_map(|(start, len)| Op::Insert(start, len)),
        6 => any::<usize>().prop_map(Op::Remove),
        1 => (start(), len()).prop_map(|(start, len)| Op::RemoveAt(start, len)),
        3 => start().prop_map(Op::Find),
        3 => (start(), len()).prop_map(|(start, len)| Op::Overlapping(start, len)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: if cfg!(rucx_sanitizer) { 8 } else { 64 }, ..ProptestConfig::default() })]

    #[test]
    fn does_what_the_model_does(ops in prop::collection::vec(op(), 1..1200)) {
        let index = Index::new(4000).unwrap();
        let mut model = Model::default();
        for (slot, op) in (0..).zip(ops) {
            match op {
                Op::Insert(start, len) => model.insert(&index, start, (start + len).min(PAGES_END), slot),
                Op::Remove(n) => {
                    let nth = model.0.iter().nth(n % model.0.len().max(1));
                    if let Some((start, end)) = nth.map(|(start, (end, _))| (*start, *end)) {
                        model.remove(&index, start, end);
                    }
                }
                Op::RemoveAt(start, len) => model.remove(&index, start, (start + len).min(PAGES_END)),
                Op::Find(page) => model.check_find(&index, page),
                Op::Overlapping(start, len) => {
                    let end = (start + len).min(PAGES_END);
                    let mut seen = Vec::new();
                    index.lock().overlapping(range(start, end), |range, slot| seen.push((range, slot)));
                    prop_assert_eq!(seen, model.overlapping(start, end));
                }
            }
        }
        model.check(&index);
    }
}

/// A sequence that is the same at every run.
fn random(seed: u64) -> impl FnMut(u64) -> u64 {
    let mut state = seed;
    move |below| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    }
}

/// Grows to four levels and shrinks to nothing, in several orders.
#[test]
fn large_trees_grow_and_shrink() {
    let ranges = if cfg!(rucx_sanitizer) { 2_000 } else { 10_000 };
    let mut next = random(1);
    for order in 0..4 {
        let index = Index::new(u32::try_from(ranges).unwrap()).unwrap();
        let mut model = Model::default();
        let mut starts: Vec<u64> = (0..ranges).map(|i| 3 * PIECE + 5 * i).collect();
        match order {
            0 => {}
            1 => starts.reverse(),
            2 => (0..starts.len()).for_each(|i| starts.swap(i, next(ranges) as usize)),
            _ => starts.sort_by_key(|start| (start / 5 % 17, *start)),
        }
        for (slot, start) in (0..).zip(&starts) {
            model.insert(&index, *start, start + 1 + next(4), slot);
        }
        model.check(&index);
        let bytes = index.touched_bytes() / starts.len();
        assert!(bytes <= 40 || cfg!(rucx_sanitizer), "{bytes} bytes for each range in order {order}");
        if order > 0 {
            (0..starts.len()).for_each(|i| starts.swap(i, next(ranges) as usize));
        }
        for (at, start) in starts.iter().enumerate() {
            model.remove(&index, *start, model.0[start].0);
            if at == starts.len() / 2 || at + 40 > starts.len() {
                model.check(&index);
            }
        }
        assert!(index.is_empty() && index.lock().iter().next().is_none());
    }
}

/// Ranges come and go at random places for long, the index nearly full: nodes never run out.
#[test]
fn capacity_is_there_whatever_was_done_before() {
    let capacity = 1000_u32;
    let index = Index::new(capacity).unwrap();
    let mut model = Model::default();
    let mut next = random(2);
    for round in 0..if cfg!(rucx_sanitizer) { 3_000 } else { 60_000_u32 } {
        let start = 3 * next(4000);
        if let Some((end, _)) = model.0.get(&start) {
            model.remove(&index, start, *end);
        } else if model.0.len() < capacity as usize {
            model.insert(&index, start, start + 3, round);
        } else {
            assert_eq!(index.lock().insert(range(start, start + 3), round), Err(InsertError::Full));
            let oldest = *model.0.iter().min_by_key(|(_, (_, slot))| *slot).unwrap().0;
            model.remove(&index, oldest, oldest + 3);
        }
    }
    model.check(&index);
}

#[test]
fn edges_of_the_address_space() {
    let index = Index::new(8).unwrap();
    let mut model = Model::default();
    model.insert(&index, 0, 1, SLOTS_END - 1);
    model.insert(&index, PAGES_END - 1, PAGES_END, 0);
    model.insert(&index, PIECE - 1, PIECE, 2);
    model.insert(&index, PIECE, PIECE + 1, 3);
    model.check(&index);
    for beyond in [1_usize << ADDRESS_BITS, usize::MAX] {
        assert_eq!(index.find(beyond), None);
    }
    let mut writer = index.lock();
    let beyond = PageRange::new(address(PAGES_END - 1), address(PAGES_END + 1)).unwrap();
    assert_eq!(writer.insert(beyond, 1), Err(InsertError::OutOfRange));
    assert_eq!(writer.insert(range(7, 8), SLOTS_END), Err(InsertError::Slot));
    assert_eq!(writer.ranges(PageRange::everything()).count(), 4);
    assert_eq!(writer.remove(PageRange::everything()), None);
    assert_eq!(writer.ranges(beyond).map(|(_, slot)| slot).collect::<Vec<_>>(), [0]);
}

/// The highest key is also what unused room has.
#[test]
fn the_last_page_of_a_piece_in_full_trees() {
    let index = Index::new(2000).unwrap();
    let mut model = Model::default();
    for slot in 0..600_u32 {
        model.insert(&index, PIECE - 1 - u64::from(slot), PIECE - u64::from(slot), slot);
        if slot % 7 == 0 {
            model.remove(&index, PIECE - 1, PIECE);
            model.check(&index);
            model.insert(&index, PIECE - 1, PIECE, slot);
        }
    }
    for slot in 1..600 {
        model.remove(&index, PIECE - 1 - slot, PIECE - slot);
        model.check_find(&index, PIECE - 1);
    }
    model.check(&index);
}

#[test]
fn a_range_over_pieces_is_one() {
    let index = Index::new(5).unwrap();
    let mut model = Model::default();
    model.insert(&index, PIECE - 2, 3 * PIECE + 1, 7);
    assert_eq!((index.len(), index.entries.load(Ordering::Relaxed)), (1, 4));
    model.insert(&index, 2 * PIECE, 2 * PIECE + 1, 8);
    model.remove(&index, PIECE, 2 * PIECE);
    model.check(&index);
    for page in [PIECE - 2, PIECE, 2 * PIECE, 3 * PIECE] {
        let found: Vec<_> = index.lock().ranges(range(page, page + 1)).collect();
        assert_eq!(found, [(range(PIECE - 2, 3 * PIECE + 1), 7)]);
    }
    assert_eq!(index.lock().insert(range(5 * PIECE - 1, 5 * PIECE + 1), 9), Err(InsertError::Full));
    model.remove(&index, PIECE - 2, 3 * PIECE + 1);
    // Of the same slot, but another range each.
    model.insert(&index, PIECE - 1, PIECE, 7);
    model.insert(&index, PIECE, PIECE + 1, 7);
    model.check(&index);
}

#[test]
fn the_lock_excludes() {
    let index = Index::new(8).unwrap();
    let writer = index.lock();
    assert!(index.try_lock().is_none());
    drop(writer);
    assert!(index.try_lock().is_some());
}

#[test]
fn versions_tell_of_writes() {
    let index = Index::new(100).unwrap();
    let version = index.version();
    assert!(index.unchanged_since(version) && index.settled_since(version));
    for write in 1..=WRITES_UNTIL_REUSE {
        index.lock().insert(range(u64::from(write), u64::from(write) + 1), 0).unwrap();
        assert!(!index.unchanged_since(version) && index.settled_since(version));
    }
    assert!(index.lock().remove(range(1, 2)).is_some());
    assert!(!index.settled_since(version));
    let version = index.version();
    assert_eq!(index.lock().remove(range(1, 2)), None);
    assert!(index.unchanged_since(version), "nothing was written");
}

#[test]
fn memory_for_each_range() {
    for ranges in [100_000_u32, 1_000_000] {
        let bytes = Index::bytes(ranges).unwrap();
        assert!(bytes / ranges as usize <= 96, "{ranges} ranges: {bytes} bytes");
    }
    assert!(Index::bytes(MOST_RANGES).is_some() && Index::bytes(MOST_RANGES + 1).is_none());
    let index = Index::new(0).unwrap();
    assert_eq!(index.lock().insert(range(0, 1), 0), Err(InsertError::Full));
}

const STABLE: u64 = 200;
const CHURNED: usize = 40;

/// Looks for pages until `done`, and once more at least.
fn look(index: &Index, done: &AtomicBool, seed: u64) {
    let mut next = random(seed);
    let mut settled = 0;
    while !done.load(Ordering::Relaxed) || settled == 0 {
        let page = if next(2) == 0 { 10 * next(STABLE) } else { next(10 * STABLE) };
        let version = index.version();
        let found = index.find(address(page));
        if !index.settled_since(version) {
            continue;
        }
        settled += 1;
        if page % 10 == 0 {
            let hit = found.expect("a range that is always there");
            assert_eq!((u64::from(hit.slot), hit.end), (page / 10, address(page + 1)));
        } else if let Some(hit) = found {
            let (end, len) = ((hit.end / PAGE) as u64, u64::from(hit.slot) - 1000);
            assert!(end - len <= page && page < end && (end - len) % 10 == 1, "{hit:?}");
        }
    }
}

/// One writes and the others look: what is always there is found whenever the index says so, and what is found was there once.
#[test]
fn readers_beside_a_writer() {
    let writes = if cfg!(rucx_sanitizer) { 4_000 } else { 60_000_u32 };
    let index = Arc::new(Index::new(2 * (STABLE as u32 + CHURNED as u32)).unwrap());
    // Page 10i is stable, with slot i; what lies between comes and goes, its length in its slot.
    for i in 0..STABLE {
        index.lock().insert(range(10 * i, 10 * i + 1), i as u32).unwrap();
    }
    let done = Arc::new(AtomicBool::new(false));
    // Not `std::thread::scope`, whose order the thread sanitizer does not see.
    let readers = [1, 2].map(|seed| {
        let (index, done) = (Arc::clone(&index), Arc::clone(&done));
        std::thread::spawn(move || look(&index, &done, seed))
    });
    let mut next = random(7);
    let mut there = Vec::new();
    for _ in 0..writes {
        if there.len() < CHURNED && next(2) == 0 {
            let (start, len) = (10 * next(STABLE) + 1, 1 + next(9));
            let added = range(start, start + len);
            if index.lock().insert(added, len as u32 + 1000).is_ok() {
                there.push(added);
            }
        } else if !there.is_empty() {
            let removed = there.swap_remove(next(there.len() as u64) as usize);
            assert!(index.lock().remove(removed).is_some());
        }
    }
    done.store(true, Ordering::Relaxed);
    for reader in readers {
        reader.join().unwrap();
    }
    check(&index);
}
