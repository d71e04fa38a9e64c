//! How many instructions a hit takes. See [`rucx_benches::instructions`].
//!
//! No memory is watched here: valgrind runs one thread at a time, and who unmaps would wait for the handler for ever.

use rucx_benches::instructions::{Counts, counted};
use ucs::mem::Access;
use ucs::rcache::{Cache, Mode};

use uct_conformance::Blind;

use crate::world::{Nothing, PAGE, REGIONS, address, cache, full, get};

/// Runs an operation so many times.
type Repeat = fn(&World, usize);

/// What can be counted: a reference is taken and given back.
const OPERATIONS: [(&str, Repeat); 4] = [
    ("hit, hot", |world, n| (0..n).for_each(|_| get(&world.full, address(7)))),
    ("hit, one of 100,000 after another", |world, n| {
        // Not one of the last few, and each in a leaf of its own.
        (0..n).for_each(|number| get(&world.full, address(number * 7919 % REGIONS)));
    }),
    ("hit, within a registration", |world, n| {
        // Where no registration begins: the index is asked.
        (0..n).for_each(|number| get(&world.full, large(number * 7) + PAGE * (1 + number % 15)));
    }),
    ("hit, checked, without the kernel", |world, n| (0..n).for_each(|_| get(&world.checked, address(7)))),
];

const BASELINE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/baseline/rcache_instructions.txt");

/// How many registrations of several pages there are: more than are remembered.
const LARGE: usize = 256;

/// Where one of these begins.
fn large(number: usize) -> usize {
    address(REGIONS + 1) + 32 * PAGE * (number % LARGE)
}

/// What the operations work on.
struct World {
    full: Cache<Nothing>,
    checked: Cache<Nothing>,
}

impl World {
    fn new() -> Self {
        let full = full();
        (0..LARGE).for_each(|number| {
            drop(full.get(large(number), 16 * PAGE, Access::Read).expect("registered"));
        });
        let checked = cache(&Blind, Mode::Strict, 1024);
        get(&checked, address(7));
        Self { full, checked }
    }
}

/// Does `with` the operations that can be counted.
fn counts<T>(with: impl FnOnce(&Counts<'_>) -> T) -> T {
    with(&Counts { bench: "rcache", baseline: BASELINE, operations: &OPERATIONS.map(|(name, _)| name) })
}

/// Runs an operation as often as the words say.
pub(crate) fn repeat(words: &[String]) -> Result<(), String> {
    let (operation, times) = counts(|counts| counts.repeated(words))?;
    let (world, (_, operation)) = (World::new(), OPERATIONS[operation]);
    let times = usize::try_from(times).map_err(|_| format!("too many: {times}"))?;
    counted(&mut || operation(&world, times));
    Ok(())
}

/// Counts all, and compares with the baseline, or writes it.
pub(crate) fn compare(words: &[String]) -> Result<(), String> {
    counts(|counts| counts.compare(words))
}
