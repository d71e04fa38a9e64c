//! What the fast path does not do, by counts: it does not allocate, and makes no system call.
//!
//! Allocations are counted by the global allocator. That there is no system call the kernel proves: a process forbids itself
//! all of them but its exit, on pain of death, and then accesses memory ten thousand times.
//!
//! # Safety
//! The unsafe code here is `prctl(2)` and `seccomp(2)` filters, which get pointers to locals that live through the call, and an
//! exit without destructors.

#![allow(clippy::unwrap_used)] // tests

#[cfg(feature = "rxe-tests")]
mod device;
mod messages;
#[path = "../transports/mod.rs"]
mod transports;

use std::hint::black_box;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Output};

use testkit::{CountingAlloc, count_allocs};
use ucp::{Context, Features, ImportedRegion, MemMap, PackedMemh, Region};

#[global_allocator]
static ALLOC: CountingAlloc = CountingAlloc;

const LEN: usize = 4 << 20;

/// Sizes of accesses: words, what a copy kernel has special ways for, and more than one step of a long mediated copy.
const SIZES: [usize; 8] = [1, 2, 8, 24, 64, 4096, 1 << 20, 3 << 20];

/// Most allocations of a `memh_pack` with two transports: the handle's bytes, the export, the lists of entries (twice) and of
/// results, the name of the service; and for each transport its key, its id, and what it said. Beside them the lists of the region
/// and of the export table grow now and then.
const PACK_ALLOCATIONS: u64 = 12;

fn context() -> Context {
    Context::builder().features(Features::EXPORTED_MEMH).ignore_env().build().unwrap()
}

/// A region, and imports of it.
struct World {
    region: Region,
    handle: PackedMemh,
    importer: Context,
    /// By another context, as another process would.
    mapped: ImportedRegion,
    /// By the region's own context.
    own: ImportedRegion,
}

fn world() -> World {
    let ctx = context();
    let region = ctx.mem_map(MemMap::allocate(LEN).exported()).unwrap();
    let handle = region.memh_pack().unwrap();
    let own = ctx.mem_import(handle.as_bytes()).unwrap();
    let importer = context();
    let mapped = importer.mem_import(handle.as_bytes()).unwrap();
    assert!(mapped.view().is_some() && own.view().is_none(), "two transports");
    World { region, handle, importer, mapped, own }
}

impl World {
    /// Every kind of access once, by every way there is. `buf` has room for the longest.
    fn access(&self, buf: &mut [u8]) -> bool {
        let view = self.mapped.view();
        let Some(view) = view else { return false };
        let mut all = true;
        macro_rules! access {
            ($memory:expr) => {
                for size in SIZES {
                    all &= $memory.read(0, black_box(&mut buf[..size])).is_ok();
                    all &= $memory.write(3, black_box(&buf[..size])).is_ok();
                }
                all &= $memory.store(64, black_box(1_u64)).is_ok();
                all &= $memory.load::<u64>(64) == Ok(1);
                all &= $memory.store(72, black_box(1_u8)).is_ok();
                all &= $memory.load::<[u8; 24]>(72).is_ok();
                // Errors are on the fast path, too: a peer may look for the end of an export by them.
                all &= $memory.read(LEN as u64, &mut [0]).is_err();
            };
        }
        access!(self.region);
        access!(self.mapped);
        access!(self.own);
        access!(view);
        for import in [&self.mapped, &self.own] {
            all &= import.fetch_add(64, black_box(1_u64)).is_ok() && import.cswap(80, 1, 2_u32).is_ok();
            all &= import.fetch_add(65, 1_u64).is_err();
        }
        all &= self.region.atomic_u64(64).is_ok() && view.atomic_u64(64).is_ok();
        all & self.mapped.check().is_ok()
    }
}

#[test]
fn accesses_do_not_allocate() {
    let world = world();
    let mut buf = vec![1; LEN];
    let mut all = true;
    assert_eq!(count_allocs(|| all &= (0..3).all(|_| world.access(&mut buf))), 0);
    assert!(all);
}

#[test]
fn stale_accesses_do_not_allocate() {
    let world = world();
    world.handle.revoke().unwrap();
    let mut stale = true;
    let allocs = count_allocs(|| {
        for import in [&world.mapped, &world.own] {
            stale &= import.read(0, &mut [0; 8]).is_err() && import.write(0, &[0; 8]).is_err();
            stale &= import.swap(0, 1_u32).is_err();
            stale &= import.check().is_err();
        }
    });
    assert_eq!(allocs, 0);
    assert!(stale);
}

/// Also where an owned buffer is given to an operation and comes back: transports that need no registration of it have none.
#[test]
fn operands_do_not_allocate() {
    let world = world();
    let mut buf = Some(vec![1; LEN]);
    let allocs = count_allocs(|| {
        for import in [&world.mapped, &world.own] {
            let done = buf.take().and_then(|buf| import.get(0, import.put(0, buf).ok()?).ok());
            buf = done.and_then(|buf| Some(import.put(1, buf).err()?.operand));
        }
    });
    assert_eq!(allocs, 0);
    assert!(buf.is_some());
}

/// Nor where the operand is imported itself, from the second operation of a thread on: the memory that the pieces go through is kept.
#[test]
fn imported_operands_do_not_allocate() {
    let (world, other) = (world(), world());
    let all = || {
        let mut all = true;
        for (import, operand) in [
            (&world.mapped, &other.mapped),
            (&world.mapped, &other.own),
            (&world.own, &other.mapped),
            (&world.own, &world.own),
        ] {
            for size in SIZES {
                let slice = operand.slice(1..=size as u64).ok();
                let done = slice.and_then(|slice| import.get(5, import.put(3, slice).ok()?).ok());
                all &= done.is_some_and(|slice| import.put(LEN as u64, slice).is_err());
            }
        }
        all
    };
    assert!(all());
    let mut again = false;
    assert_eq!(count_allocs(|| again = all()), 0);
    assert!(again);
}

#[test]
fn a_cached_import_does_not_allocate() {
    let world = world();
    let bytes = world.handle.as_bytes();
    let mut same = true;
    let allocs = count_allocs(|| {
        same = (0..100)
            .all(|_| world.importer.mem_import(bytes).is_ok_and(|again| again.is_same(&world.mapped)));
    });
    assert!(same);
    assert_eq!(allocs, 0);
}

#[test]
fn a_pack_allocates_little() {
    let world = world();
    let mut handles = Vec::with_capacity(128);
    let counts: Vec<u64> =
        (0..128).map(|_| count_allocs(|| handles.push(world.region.memh_pack().unwrap()))).collect();
    let usual = *counts.iter().min().unwrap();
    let most = *counts.iter().max().unwrap();
    assert!(usual <= PACK_ALLOCATIONS, "{usual}");
    assert!(most <= PACK_ALLOCATIONS + 4, "{most}: more than the lists grow by");
}

/// The counting itself: what allocates is seen to.
#[test]
fn guard_an_allocation_is_counted() {
    assert_eq!(count_allocs(|| drop(black_box(vec![0_u8; 64]))), 1);
}

#[test]
fn accesses_make_no_system_call() {
    let ended = in_process("accesses_make_no_system_call", || {
        let (world, other) = (world(), world());
        let mut buf = vec![1; LEN];
        let mut owned = Some(vec![1_u8; 64]);
        let slice = other.mapped.slice(..100_000).ok();
        let mut slice = slice.and_then(|slice| world.mapped.put(0, slice).ok());
        assert!(world.access(&mut buf), "the first accesses bring the pages in");
        only_exit();
        for _ in 0..10_000 {
            let small = &mut buf[..64];
            let words =
                world.mapped.write(8, &small[..8]).is_ok() && world.mapped.read(8, &mut small[..8]).is_ok();
            let bytes = world.mapped.write(5, small).is_ok() && world.mapped.read(5, small).is_ok();
            let atomics = world.mapped.fetch_add(8, 1_u64).is_ok() && world.own.swap(8, 0_u32).is_ok();
            let own = world.own.write(8, &small[..8]).is_ok() && world.own.read(5, small).is_ok();
            let owned = [&world.mapped, &world.own].into_iter().all(|import| {
                let back = owned.take().and_then(|buf| import.get(8, import.put(8, buf).ok()?).ok());
                owned = back;
                owned.is_some()
            });
            slice = slice.take().and_then(|slice| world.mapped.get(0, world.own.put(0, slice).ok()?).ok());
            if !(slice.is_some() && words && bytes && atomics && own && owned) {
                exit(1);
            }
        }
        // Of all kinds and sizes, fewer: they take long.
        exit(if (0..20).all(|_| world.access(&mut buf)) { 0 } else { 1 });
    });
    survived(&ended);
}

#[test]
fn a_cached_import_makes_no_system_call() {
    let ended = in_process("a_cached_import_makes_no_system_call", || {
        let world = world();
        let bytes = world.handle.as_bytes();
        only_exit();
        exit(if (0..1000).all(|_| world.importer.mem_import(bytes).is_ok()) { 0 } else { 1 });
    });
    survived(&ended);
}

#[test]
fn a_pack_makes_no_system_call() {
    let ended = in_process("a_pack_makes_no_system_call", || {
        let world = world();
        // So that malloc needs no more from the kernel.
        let room = vec![1_u8; 64 << 10];
        let mut handles = Vec::with_capacity(16);
        handles.extend((0..8).map(|_| world.region.memh_pack().unwrap()));
        drop(black_box(room));
        only_exit();
        handles.extend((0..8).filter_map(|_| world.region.memh_pack().ok()));
        exit(if handles.len() == 16 { 0 } else { 1 });
    });
    survived(&ended);
}

/// The filter itself: the same loop with one system call in it is found out.
#[test]
fn guard_a_system_call_is_found_out() {
    let ended = in_process("guard_a_system_call_is_found_out", || {
        let world = world();
        let mut word = [0; 8];
        only_exit();
        let all = (0..100).all(|_| world.mapped.read(8, &mut word).is_ok());
        // SAFETY: getpid takes no arguments.
        let pid = unsafe { libc::syscall(libc::SYS_getpid) };
        exit(if all && pid > 0 { 0 } else { 1 });
    });
    assert_eq!(ended.status.signal(), Some(libc::SIGSYS), "{ended:?}");
}

/// The variable that tells a process that it was started by [`in_process`].
const ROLE: &str = "RUCX_FAST_PATH";

/// Has `role` run in a process of its own: this binary, again, with the `test` that calls this and no other.
pub(crate) fn in_process(test: &str, role: impl FnOnce()) -> Output {
    if std::env::var_os(ROLE).is_some() {
        role();
        unreachable!("a role exits");
    }
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", test, "--nocapture"]).env(ROLE, test);
    command.output().unwrap()
}

pub(crate) fn survived(ended: &Output) {
    let said = String::from_utf8_lossy(&ended.stderr);
    assert_eq!(ended.status.code(), Some(0), "{}, by a system call if that is SIGSYS; {said}", ended.status);
}

/// Ends the process by the one system call that is left to it.
pub(crate) fn exit(code: i32) -> ! {
    // SAFETY: no destructor has to run; the process's memory goes with it.
    unsafe { libc::_exit(code) }
}

/// From here on, any system call of this thread other than `exit_group` kills the process (`seccomp(2)`).
pub(crate) fn only_exit() {
    let number = std::mem::offset_of!(libc::seccomp_data, nr);
    let step = |code: u32, jt, jf, k| libc::sock_filter { code: u16::try_from(code).unwrap(), jt, jf, k };
    let exit_group = u32::try_from(libc::SYS_exit_group).unwrap();
    let mut steps = [
        step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, u32::try_from(number).unwrap()),
        step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 1, exit_group),
        step(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW),
        step(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_KILL_PROCESS),
    ];
    let len = u16::try_from(steps.len()).unwrap();
    let program = libc::sock_fprog { len, filter: steps.as_mut_ptr() };
    let (yes, no): (libc::c_ulong, libc::c_ulong) = (1, 0);
    let mode = libc::c_ulong::from(libc::SECCOMP_MODE_FILTER);
    // SAFETY: takes numbers only. Needed to set a filter without privileges.
    let answer = unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, yes, no, no, no) };
    assert_eq!(answer, 0, "{}", std::io::Error::last_os_error());
    // SAFETY: a program of `len` steps, both alive through the call.
    let answer = unsafe { libc::prctl(libc::PR_SET_SECCOMP, mode, &raw const program) };
    let error = std::io::Error::last_os_error();
    assert_eq!(answer, 0, "{error}: these tests need a kernel with seccomp filters (CONFIG_SECCOMP_FILTER)");
}
