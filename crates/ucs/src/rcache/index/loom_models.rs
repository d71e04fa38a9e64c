//! A reader beside a writer, in all interleavings. Nodes have four keys here, and a node that was replaced is used again at once.

use loom::sync::Arc;
use loom::thread;

use super::*;

/// A range of one page, which is its slot, too.
fn page(number: u32) -> PageRange {
    pages(number, number + 1)
}

fn pages(start: u32, end: u32) -> PageRange {
    Pages { start: start.into(), end: end.into() }.to_range().unwrap()
}

fn address(page: u32) -> usize {
    (page as usize) << PAGE_SHIFT
}

/// One page each.
fn index(entries: &[u32]) -> Arc<Index> {
    let index = Index::new(8).unwrap();
    let mut writer = index.lock();
    entries.iter().for_each(|entry| writer.insert(page(*entry), *entry).unwrap());
    drop(writer);
    Arc::new(index)
}

fn model(preemptions: usize, run: impl Fn() + Sync + Send + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(preemptions);
    model.max_branches = 10_000;
    model.check(run);
}

/// A thread looks once for a page that is always there while `write` runs.
fn stable_beside(entries: &'static [u32], stable: u32, check: bool, write: fn(&mut Writer<'_>)) {
    model(2, move || {
        let index = index(entries);
        let reader = {
            let index = Arc::clone(&index);
            thread::spawn(move || {
                let version = index.version();
                let found = index.find(address(stable));
                if !check || index.settled_since(version) {
                    assert_eq!(found.map(|hit| (hit.slot, hit.end)), Some((stable, address(stable + 1))));
                }
            })
        };
        write(&mut index.lock());
        reader.join().unwrap();
    });
}

#[test]
fn loom_a_leaf_is_replaced_and_used_again() {
    stable_beside(&[20], 20, true, |writer| {
        writer.insert(page(10), 10).unwrap();
        writer.insert(page(5), 5).unwrap();
        assert_eq!(writer.remove(page(10)), Some(10));
    });
}

/// What is found where nobody asks whether it is settled: the leaf is used again while it is read.
#[test]
#[should_panic(expected = "assertion `left == right` failed")]
fn loom_guard_unsettled_answers_are_wrong() {
    stable_beside(&[20], 20, false, |writer| {
        writer.insert(page(10), 10).unwrap();
        writer.insert(page(5), 5).unwrap();
    });
}

#[test]
fn loom_a_leaf_of_two_is_replaced() {
    stable_beside(&[10, 20, 30, 40, 50], 40, true, |writer| writer.insert(page(60), 60).unwrap());
}

#[test]
fn loom_a_leaf_splits() {
    stable_beside(&[10, 20, 30, 40], 30, true, |writer| writer.insert(page(25), 25).unwrap());
}

#[test]
fn loom_leaves_merge_and_the_root_goes() {
    stable_beside(&[10, 20, 30, 40, 50], 40, true, |writer| {
        assert_eq!(writer.remove(page(50)), Some(50));
        assert_eq!(writer.remove(page(20)), Some(20));
    });
}

/// The separator's range goes, and one comes that lies on both of its sides.
#[test]
fn loom_a_separator_is_raised() {
    stable_beside(&[10, 20, 30, 40, 50, 60], 50, true, |writer| {
        assert_eq!(writer.remove(page(40)), Some(40));
        writer.insert(pages(35, 45), 35).unwrap();
    });
}

/// One looks for what is inserted: once the writer has come that far, it is there, and no other slot ever.
#[test]
fn loom_what_was_inserted_is_found() {
    model(3, || {
        let index = index(&[10, 20]);
        let reader = {
            let index = Arc::clone(&index);
            thread::spawn(move || {
                let version = index.version();
                let found = index.find(address(15));
                if index.settled_since(version) {
                    assert!(found.is_none_or(|hit| hit.slot == 15));
                    // Two writes before.
                    assert!(version < 6 || found.is_some());
                }
            })
        };
        index.lock().insert(page(15), 15).unwrap();
        reader.join().unwrap();
    });
}

#[test]
fn loom_writers_exclude_each_other() {
    model(2, || {
        let index = index(&[]);
        let other = {
            let index = Arc::clone(&index);
            thread::spawn(move || index.lock().insert(page(1), 1).unwrap())
        };
        index.lock().insert(page(2), 2).unwrap();
        other.join().unwrap();
        let all: Vec<_> = index.lock().iter().collect();
        assert_eq!(all, [(page(1), 1), (page(2), 2)]);
    });
}
