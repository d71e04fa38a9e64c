//! How many instructions an operation takes: what a change made cheaper or dearer, whatever else the machine does.
//!
//! Exporter and importer are two contexts of one process here: what they run is the same. See [`rucx_benches::instructions`].
//!
//! # Safety
//! The copy kernel gets two vectors of this process, both long enough.

#![allow(unsafe_code)]

use std::hint::black_box;

use rucx_benches::instructions::{Counts, counted};
use ucp::{Context, ImportedRegion, MemMap, PackedMemh, Region};
use ucs::mem::copy::copy;

use crate::rows::context;

/// Runs an operation so many times.
type Repeat = fn(&World, u64);

/// What can be counted.
const OPERATIONS: [(&str, Repeat); 11] = [
    ("read 8 B", |world, n| {
        let mut to = [0; 8];
        (0..n).for_each(|_| world.import.read(black_box(8), black_box(&mut to)).expect("within"));
    }),
    ("write 8 B", |world, n| {
        (0..n).for_each(|_| world.import.write(black_box(8), black_box(&[1; 8])).expect("within"));
    }),
    ("read 8 B, cma", |world, n| {
        let mut to = [0; 8];
        (0..n).for_each(|_| world.own_import.read(black_box(8), black_box(&mut to)).expect("within"));
    }),
    ("write 8 B, cma", |world, n| {
        (0..n).for_each(|_| world.own_import.write(black_box(8), black_box(&[1; 8])).expect("within"));
    }),
    ("memh_pack", |world, n| {
        (0..n).for_each(|_| drop(black_box(world.region.memh_pack().expect("a handle"))));
    }),
    ("memh_pack, own memory", |world, n| {
        (0..n).for_each(|_| drop(black_box(world.own.memh_pack().expect("a handle"))));
    }),
    ("mem_import, cached", |world, n| {
        let bytes = world.handle.as_bytes();
        (0..n).for_each(|_| drop(black_box(world.importer.mem_import(black_box(bytes)).expect("an import"))));
    }),
    ("mem_import, own memory, cached", |world, n| {
        let bytes = world.own_handle.as_bytes();
        (0..n).for_each(|_| drop(black_box(world.importer.mem_import(black_box(bytes)).expect("an import"))));
    }),
    ("copy 8 B", |_, n| copies::<8>(n)),
    ("copy 64 B", |_, n| copies::<64>(n)),
    ("copy 4 KiB", |_, n| copies::<4096>(n)),
];

const BASELINE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/baseline/instructions.txt");

/// What the operations work on.
struct World {
    region: Region,
    handle: PackedMemh,
    importer: Context,
    import: ImportedRegion,
    /// Memory that rucx did not allocate.
    own: Region,
    own_handle: PackedMemh,
    own_import: ImportedRegion,
}

impl World {
    fn new() -> Self {
        let region = context().mem_map(MemMap::allocate(4096).exported()).expect("memory");
        let handle = region.memh_pack().expect("a handle");
        let importer = context();
        let import = importer.mem_import(handle.as_bytes()).expect("an import");
        let own = context().mem_map(MemMap::buffer(vec![0; 4096]).exported()).expect("memory");
        let own_handle = own.memh_pack().expect("a handle");
        let own_import = importer.mem_import(own_handle.as_bytes()).expect("an import");
        assert_eq!((import.transport(), own_import.transport()), ("shm", "cma"));
        Self { region, handle, importer, import, own, own_handle, own_import }
    }
}

fn copies<const LEN: usize>(n: u64) {
    let (from, mut to) = (vec![1_u8; LEN], vec![0_u8; LEN]);
    for _ in 0..n {
        // SAFETY: LEN bytes each, of two vectors.
        unsafe { copy(black_box(to.as_mut_ptr()), black_box(from.as_ptr()), black_box(LEN)) };
    }
}

/// Does `with` the operations that can be counted.
fn counts<T>(with: impl FnOnce(&Counts<'_>) -> T) -> T {
    with(&Counts { bench: "export", baseline: BASELINE, operations: &OPERATIONS.map(|(name, _)| name) })
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
