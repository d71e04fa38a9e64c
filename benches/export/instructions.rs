//! How many instructions an operation takes: what a change made cheaper or dearer, whatever else the machine does.
//!
//! An operation runs many times under callgrind, which counts in that loop only, and in the thread that runs it. The loop's own few
//! instructions count, too. Exporter and importer are two contexts of one process here: what they run is the same.
//!
//! # Safety
//! The copy kernel gets two vectors of this process, both long enough.

#![allow(unsafe_code)]

use std::hint::black_box;
use std::process::{Command, Stdio};

use rucx_benches::baseline::Baseline;
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

/// How often an operation runs for a count: fewer than an export table has lines.
const TIMES: u64 = 10_000;

const BASELINE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/baseline/instructions.txt");

const HEADER: &str = "\
# Instructions of one call, counted by callgrind.
# Compared by:      cargo bench -p rucx-benches --bench export -- --instructions
# Written anew by:  cargo bench -p rucx-benches --bench export -- --instructions --write
";

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

/// Runs an operation as often as the words say.
pub(crate) fn repeat(words: &[String]) -> Result<(), String> {
    let known = OPERATIONS.map(|(name, _)| name).join("\n");
    let [name, times] = words else { return Err(known) };
    let operation = OPERATIONS.iter().find(|(known, _)| known == name).ok_or(known)?.1;
    let times = times.parse().map_err(|_| format!("not a number: {times}"))?;
    let world = World::new();
    counted(operation, &world, times);
    Ok(())
}

/// Where callgrind begins to count, and ends: it knows this function by its name.
#[inline(never)]
fn counted(operation: Repeat, world: &World, times: u64) {
    operation(world, times);
    black_box(()); // no tail call: the function would be left before the operation begins
}

const COUNTED: &str = "--toggle-collect=*::instructions::counted";

/// Counts all, and compares with the baseline, or writes it.
pub(crate) fn compare(words: &[String]) -> Result<(), String> {
    let write = match words {
        [] => false,
        [word] if word == "--write" => true,
        _ => return Err(format!("--instructions takes --write and nothing else, not {words:?}")),
    };
    let mut now = Baseline { toolchain: toolchain()?, counts: Vec::new() };
    for (name, _) in OPERATIONS {
        now.counts.push((name.to_owned(), count(name, TIMES)? as f64 / TIMES as f64));
    }
    if write {
        print!("{now}");
        return std::fs::write(BASELINE, format!("{HEADER}{now}"))
            .map_err(|error| format!("{BASELINE}: {error}"));
    }
    let text = std::fs::read_to_string(BASELINE).map_err(|error| format!("{BASELINE}: {error}"))?;
    let outcome = Baseline::parse(&text)?.compare(&now);
    println!("{outcome}");
    if outcome.is_regression() { Err("more instructions than the baseline has".to_owned()) } else { Ok(()) }
}

/// What counts depend on beside the code.
fn toolchain() -> Result<String, String> {
    let valgrind = said(Command::new("valgrind").arg("--version"))
        .map_err(|_| "valgrind is missing: apt-get install valgrind".to_owned())?;
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let rustc = said(Command::new(rustc).arg("--version"))?;
    Ok(format!("{rustc}, {}, {valgrind}", std::env::consts::ARCH))
}

fn said(command: &mut Command) -> Result<String, String> {
    let output = command.output().map_err(|error| format!("{command:?}: {error}"))?;
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// Instructions of a process that runs an operation so many times.
fn count(name: &str, times: u64) -> Result<u64, String> {
    let exe = std::env::current_exe().map_err(|error| error.to_string())?;
    let mut command = Command::new("valgrind");
    command.args(["--tool=callgrind", "--callgrind-out-file=/dev/null", COUNTED]).arg(exe);
    command.args(["--count-instructions", name, &times.to_string()]).stdin(Stdio::null());
    let output = command.output().map_err(|error| format!("{command:?}: {error}"))?;
    let text = String::from_utf8_lossy(&output.stderr);
    // "==PID== Collected : 12345", valgrind manual, 6.2.
    let collected = text.lines().find_map(|line| line.split_once("Collected :"));
    let found = collected.and_then(|(_, count)| count.trim().parse().ok());
    found.filter(|_| output.status.success()).ok_or_else(|| format!("{command:?}: {}\n{text}", output.status))
}
