//! How many instructions an operation takes. See [`rucx_benches::instructions`].

use std::hint::black_box;

use rucx_benches::instructions::{Counts, counted};

use crate::world::{World, ended, unpack};

/// Runs an operation so many times.
type Repeat = fn(&World, u64);

/// What can be counted.
const OPERATIONS: [(&str, Repeat); 7] = [
    ("put 8 B", |world, n| {
        drop((0..n).fold(vec![1; 8], |data, _| ended(world.remote.put(black_box(8), data))));
    }),
    ("get 8 B", |world, n| {
        drop((0..n).fold(vec![1; 8], |data, _| ended(world.remote.get(black_box(8), data))));
    }),
    ("fetch_add", |world, n| {
        (0..n).for_each(|_| _ = black_box(ended(world.remote.fetch_add(black_box(8), 1_u64))));
    }),
    ("am 8 B, eager, handled", |world, n| drop((0..n).fold(vec![1; 8], |data, _| world.eager(data)))),
    ("progress, idle", |world, n| (0..n).for_each(|_| _ = black_box(world.a.progress()))),
    ("flush, nothing to do", |world, n| (0..n).for_each(|_| ended(world.ep.flush()))),
    ("rkey_unpack, attached", |world, n| (0..n).for_each(|_| unpack(&world.ep, &world.key))),
];

const BASELINE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/baseline/endpoints_instructions.txt");

/// Does `with` the operations that can be counted.
fn counts<T>(with: impl FnOnce(&Counts<'_>) -> T) -> T {
    with(&Counts { bench: "endpoints", baseline: BASELINE, operations: &OPERATIONS.map(|(name, _)| name) })
}

/// Runs an operation as often as the words say.
pub(crate) fn repeat(words: &[String]) -> Result<(), String> {
    let (operation, times) = counts(|counts| counts.repeated(words))?;
    let (world, (_, operation)) = (World::new(), OPERATIONS[operation]);
    counted(&mut || operation(&world, times));
    Ok(())
}

/// Counts all, and compares with the baseline, or writes it.
pub(crate) fn compare(words: &[String]) -> Result<(), String> {
    counts(|counts| counts.compare(words))
}
