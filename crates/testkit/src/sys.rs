//! The unsafe code of this crate: starting a role, guard pages, changing identity, the counting allocator.
//!
//! # Safety
//! [`spawn`] clones the process without sharing memory. Until its `execve` the child runs only the functions marked *child
//! side* below: raw system calls over memory prepared before the clone. They neither allocate, nor lock, nor unwind, which is
//! what a child of a process with several threads may do (`signal-safety(7)`).

#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::ffi::{CStr, CString, c_char, c_int, c_long};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr::{self, NonNull};

use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{WaitId, WaitIdOptions, waitid};

/// What a role is started with.
#[derive(Debug)]
pub(crate) struct Spawn<'a> {
    /// The whole command line, `argv[0]` included.
    pub(crate) argv: Vec<CString>,
    /// The whole environment.
    pub(crate) envp: Vec<CString>,
    /// What become descriptors 0, 1 and 2; each must be above 2.
    pub(crate) stdio: [BorrowedFd<'a>; 3],
    /// `CLONE_NEW*` flags.
    pub(crate) namespaces: c_int,
    /// A network namespace to enter.
    pub(crate) netns: Option<BorrowedFd<'a>>,
    /// The real, effective and saved user and group to become.
    pub(crate) ids: Option<(u32, u32)>,
}

/// A started process.
#[derive(Debug)]
pub(crate) struct Spawned {
    /// Its number in this process's pid namespace.
    pub(crate) pid: i32,
    /// Its descriptor, close-on-exec.
    pub(crate) pidfd: OwnedFd,
}

/// Everything the child side reads, laid out before the clone.
struct Plan {
    argv: Vec<*const c_char>,
    envp: Vec<*const c_char>,
    stdio: [c_int; 3],
    report: c_int,
    netns: Option<c_int>,
    ids: Option<(u32, u32)>,
    /// Contents of `/proc/self/uid_map` and `gid_map`, in a new user namespace.
    maps: Option<[Vec<u8>; 2]>,
    /// The pid `getppid` must answer; 0 in a new pid namespace, whose first process has no parent there.
    parent: c_long,
    nofile: c_int,
}

/// Steps of the child side, as reported when one fails.
const STEPS: [&str; 8] =
    ["?", "map ids", "change ids", "prctl(PR_SET_PDEATHSIG)", "dup3", "close_range", "execve", "setns"];

/// Starts this executable again.
///
/// # Errors
/// The error of the clone, or of the step before `execve` that failed, named in the message.
pub(crate) fn spawn(spec: &Spawn<'_>) -> io::Result<Spawned> {
    assert!(
        spec.stdio.iter().all(|fd| fd.as_raw_fd() > 2),
        "descriptors 0, 1 and 2 are open in every Rust process"
    );
    let (report_read, report_write) = pipe_with(PipeFlags::CLOEXEC)?;
    let pointers =
        |strings: &[CString]| strings.iter().map(|s| s.as_ptr()).chain([ptr::null()]).collect::<Vec<_>>();
    let (euid, egid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    let new = |flag: c_int| spec.namespaces & flag != 0;
    let plan = Plan {
        argv: pointers(&spec.argv),
        envp: pointers(&spec.envp),
        stdio: spec.stdio.map(|fd| fd.as_raw_fd()),
        report: report_write.as_raw_fd(),
        netns: spec.netns.map(|fd| fd.as_raw_fd()),
        ids: spec.ids,
        maps: new(libc::CLONE_NEWUSER)
            .then(|| [format!("{euid} {euid} 1\n").into_bytes(), format!("{egid} {egid} 1\n").into_bytes()]),
        parent: if new(libc::CLONE_NEWPID) {
            0
        } else {
            c_long::from(rustix::process::getpid().as_raw_nonzero().get())
        },
        nofile: rustix::process::getrlimit(rustix::process::Resource::Nofile)
            .current
            .and_then(|n| c_int::try_from(n).ok())
            .unwrap_or(1 << 16)
            .min(1 << 20),
    };
    let mut pidfd: c_int = -1;
    let flags = c_long::from(spec.namespaces | libc::CLONE_PIDFD | libc::SIGCHLD);
    // Source: clone(2), "C library/kernel differences"; the arguments after the third differ by architecture and are all zero.
    // SAFETY: without CLONE_VM the child has its own copy of this memory and goes on on its own copy of this stack; it calls
    // `child` only, which never returns. The kernel writes the pidfd to `pidfd`, which outlives the call.
    let pid = unsafe {
        libc::syscall(libc::SYS_clone, flags, 0 as c_long, &raw mut pidfd, 0 as c_long, 0 as c_long)
    };
    if pid == 0 {
        // SAFETY: this is the child of the clone above, and `plan` points at strings that `spec` keeps alive in its memory.
        unsafe { child(&plan) }
    }
    if pid < 0 {
        let error = io::Error::last_os_error();
        return Err(io::Error::new(error.kind(), format!("clone: {error}")));
    }
    // SAFETY: the clone succeeded, so the kernel has put a fresh descriptor there, which nobody else knows.
    let pidfd = unsafe { OwnedFd::from_raw_fd(pidfd) };
    drop(report_write);
    let mut report = [0u8; 5];
    let mut got = 0;
    while got < report.len() {
        match rustix::io::read(&report_read, &mut report[got..]) {
            Ok(0) => break,
            Ok(n) => got += n,
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    let pid = i32::try_from(pid).map_err(|_| io::Error::other("clone answered a pid beyond 31 bits"))?;
    if got == report.len() {
        let _ = waitid(WaitId::PidFd(pidfd.as_fd()), WaitIdOptions::EXITED);
        let [step, a, b, c, d] = report;
        let error = io::Error::from_raw_os_error(i32::from_le_bytes([a, b, c, d]));
        let step = STEPS.get(usize::from(step)).unwrap_or(&"?");
        return Err(io::Error::new(error.kind(), format!("{step}: {error}")));
    }
    Ok(Spawned { pid, pidfd })
}

/// Child side: becomes the role, or reports why not and exits.
///
/// # Safety
/// Only in a child that shares no memory with its parent; the pointers of `plan` are valid, NUL-terminated and end in null.
unsafe fn child(plan: &Plan) -> ! {
    if let Some(fd) = plan.netns {
        // Source: setns(2).
        // SAFETY: takes no pointer.
        let entered = unsafe { libc::syscall(libc::SYS_setns, fd, libc::CLONE_NEWNET) };
        if entered != 0 {
            // SAFETY: child side, as this function.
            unsafe { fail(plan, 7) }
        }
    }
    if let Some([uids, gids]) = &plan.maps {
        // Source: user_namespaces(7): without privilege outside, gid_map may only be written after setgroups is denied.
        // SAFETY: child side, as this function.
        let written = unsafe { write_file(c"/proc/self/setgroups", b"deny") }
            // SAFETY: as above.
            && unsafe { write_file(c"/proc/self/uid_map", uids) }
            // SAFETY: as above.
            && unsafe { write_file(c"/proc/self/gid_map", gids) };
        if !written {
            // SAFETY: as above.
            unsafe { fail(plan, 1) }
        }
    }
    if let Some((uid, gid)) = plan.ids {
        let (uid, gid) = (uid as c_long, gid as c_long);
        // Raw calls: libc's would ask the other threads, which the child does not have, to follow.
        // SAFETY: an empty list is read from nowhere.
        let groups = unsafe { libc::syscall(libc::SYS_setgroups, 0 as c_long, 0 as c_long) };
        // SAFETY: takes no pointer.
        let group = unsafe { libc::syscall(libc::SYS_setresgid, gid, gid, gid) };
        // SAFETY: takes no pointer.
        let user = unsafe { libc::syscall(libc::SYS_setresuid, uid, uid, uid) };
        if groups != 0 || group != 0 || user != 0 {
            // SAFETY: child side, as this function.
            unsafe { fail(plan, 2) }
        }
    }
    // After the change of identity, which clears it (PR_SET_PDEATHSIG(2const)).
    // SAFETY: takes no pointer.
    let armed = unsafe {
        libc::syscall(
            libc::SYS_prctl,
            libc::PR_SET_PDEATHSIG as c_long,
            libc::SIGKILL as c_long,
            0 as c_long,
            0 as c_long,
        )
    };
    // SAFETY: takes no pointer.
    let parent = unsafe { libc::syscall(libc::SYS_getppid) };
    if armed != 0 || parent != plan.parent {
        // SAFETY: child side, as this function.
        unsafe { fail(plan, 3) }
    }
    for (target, source) in (0 as c_long..).zip(plan.stdio) {
        // SAFETY: takes no pointer; the sources lie above 2, so none is overwritten before its turn.
        let duplicated = unsafe { libc::syscall(libc::SYS_dup3, source as c_long, target, 0 as c_long) };
        if duplicated != target {
            // SAFETY: child side, as this function.
            unsafe { fail(plan, 4) }
        }
    }
    // Source: close_range(2).
    // SAFETY: takes no pointer; marks descriptors, closes none.
    let marked = unsafe {
        libc::syscall(
            libc::SYS_close_range,
            3 as c_long,
            c_long::from(u32::MAX),
            libc::CLOSE_RANGE_CLOEXEC as c_long,
        )
    };
    if marked != 0 {
        for fd in 3..plan.nofile {
            // Those not open answer EBADF.
            // SAFETY: takes no pointer.
            unsafe {
                libc::syscall(
                    libc::SYS_fcntl,
                    fd as c_long,
                    libc::F_SETFD as c_long,
                    libc::FD_CLOEXEC as c_long,
                )
            };
        }
    }
    // SAFETY: the caller vouches for both arrays.
    unsafe {
        libc::syscall(libc::SYS_execve, c"/proc/self/exe".as_ptr(), plan.argv.as_ptr(), plan.envp.as_ptr())
    };
    // SAFETY: child side, as this function.
    unsafe { fail(plan, 6) }
}

/// Child side: writes the whole of `bytes` to a file that exists.
///
/// # Safety
/// As [`child`].
unsafe fn write_file(path: &CStr, bytes: &[u8]) -> bool {
    // SAFETY: the path is NUL-terminated.
    let fd = unsafe {
        libc::syscall(
            libc::SYS_openat,
            libc::AT_FDCWD as c_long,
            path.as_ptr(),
            (libc::O_WRONLY | libc::O_CLOEXEC) as c_long,
        )
    };
    if fd < 0 {
        return false;
    }
    // SAFETY: `bytes` is readable for its length.
    let written = unsafe { libc::syscall(libc::SYS_write, fd, bytes.as_ptr(), bytes.len()) };
    usize::try_from(written) == Ok(bytes.len())
}

/// Child side: reports the step and the error number, and exits.
///
/// # Safety
/// As [`child`].
unsafe fn fail(plan: &Plan, step: u8) -> ! {
    // Reads the thread's error number only: no allocation.
    let [a, b, c, d] = io::Error::last_os_error().raw_os_error().unwrap_or(0).to_le_bytes();
    let report = [step, a, b, c, d];
    // SAFETY: `report` is readable for its length.
    unsafe { libc::syscall(libc::SYS_write, plan.report as c_long, report.as_ptr(), report.len()) };
    // SAFETY: ends this process without running anything registered by the parent.
    unsafe { libc::_exit(127) }
}

/// Becomes `uid` and `gid`, without supplementary groups, in all threads.
///
/// # Errors
/// Of the first call that fails.
pub(crate) fn become_ids(uid: u32, gid: u32) -> io::Result<()> {
    let check = |result: c_int| if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) };
    // libc's functions change every thread of the process (nptl(7)), the system calls only the calling one.
    // SAFETY: an empty list is read from nowhere.
    check(unsafe { libc::setgroups(0, ptr::null()) })?;
    // SAFETY: takes no pointer.
    check(unsafe { libc::setresgid(gid, gid, gid) })?;
    // SAFETY: takes no pointer.
    check(unsafe { libc::setresuid(uid, uid, uid) })
}

/// The real, effective and saved user and group: `[ruid, euid, suid, rgid, egid, sgid]`.
pub(crate) fn ids() -> [u32; 6] {
    let mut ids = [u32::MAX; 6];
    let [ruid, euid, suid, rgid, egid, sgid] = &mut ids;
    // SAFETY: three places to write to.
    unsafe { libc::getresuid(ruid, euid, suid) };
    // SAFETY: three places to write to.
    unsafe { libc::getresgid(rgid, egid, sgid) };
    ids
}

/// Whether this process could take user 0 back.
pub(crate) fn can_become_root() -> bool {
    // SAFETY: takes no pointer.
    unsafe { libc::seteuid(0) == 0 }
}

/// Sets a seccomp filter for all threads of this process.
///
/// # Errors
/// Of the call that fails.
pub(crate) fn set_filter(steps: &[libc::sock_filter]) -> io::Result<()> {
    let len = u16::try_from(steps.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
    // Which the kernel only reads.
    let program = libc::sock_fprog { len, filter: steps.as_ptr().cast_mut() };
    let (yes, no): (libc::c_ulong, libc::c_ulong) = (1, 0);
    // SAFETY: takes numbers only. Needed to set a filter without privileges.
    if unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, yes, no, no, no) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let (mode, all) = (libc::SECCOMP_SET_MODE_FILTER, libc::SECCOMP_FILTER_FLAG_TSYNC);
    // SAFETY: a program of `len` steps, both alive through the call (seccomp(2)).
    match unsafe { libc::syscall(libc::SYS_seccomp, mode, all, &raw const program) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Makes a child (`fork(2)`).
pub(crate) fn fork() -> libc::pid_t {
    // SAFETY: takes nothing. What the child may do is with who calls this: `forked`.
    unsafe { libc::fork() }
}

/// Ends this process, and runs nothing that was to be run at its end (`_exit(2)`).
pub(crate) fn end_at_once(code: i32) -> ! {
    // SAFETY: takes a number.
    unsafe { libc::_exit(code) }
}

/// Waits for the end of a child (`waitpid(2)`); its exit status, if it has one.
pub(crate) fn exit_code(child: libc::pid_t) -> Option<i32> {
    let mut status = 0;
    // SAFETY: `status` outlives the call.
    let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
    (waited == child && libc::WIFEXITED(status)).then(|| libc::WEXITSTATUS(status))
}

/// Whether a child has ended, which is still to be waited for.
pub(crate) fn has_ended(child: libc::pid_t) -> bool {
    use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};
    let look = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    Pid::from_raw(child).is_none_or(|pid| !matches!(waitid(WaitId::Pid(pid), look), Ok(None)))
}

/// Sends SIGKILL to a process by number.
pub(crate) fn kill_pid(pid: i32) {
    if pid > 1 {
        // SAFETY: takes no pointer.
        unsafe { libc::kill(pid, libc::SIGKILL) };
    }
}

/// Pages of this process between two pages that nobody can touch.
pub(crate) struct GuardedPages {
    base: NonNull<u8>,
    total: usize,
    page: usize,
}

// SAFETY: owns its mapping, whose bytes are reached through `&self` and `&mut self` only.
unsafe impl Send for GuardedPages {}
// SAFETY: as above; `&self` only reads.
unsafe impl Sync for GuardedPages {}

impl GuardedPages {
    /// At least `len` bytes, zeroed, in whole pages.
    ///
    /// # Errors
    /// Of mmap or mprotect.
    pub(crate) fn new(len: usize) -> io::Result<Self> {
        let page = rustix::param::page_size();
        let body = len.max(1).checked_next_multiple_of(page);
        let total = body.and_then(|body| body.checked_add(2 * page)).ok_or(io::ErrorKind::OutOfMemory)?;
        // SAFETY: a fresh anonymous mapping overlaps nothing.
        let base = unsafe {
            libc::mmap(
                ptr::null_mut(),
                total,
                libc::PROT_NONE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let base = NonNull::new(base.cast::<u8>()).ok_or(io::ErrorKind::OutOfMemory)?;
        let pages = Self { base, total, page };
        // SAFETY: the pages between the guards belong to this mapping.
        let opened =
            unsafe { libc::mprotect(pages.body().cast(), pages.len(), libc::PROT_READ | libc::PROT_WRITE) };
        if opened == 0 { Ok(pages) } else { Err(io::Error::last_os_error()) }
    }

    /// Bytes between the guards.
    pub(crate) fn len(&self) -> usize {
        self.total - 2 * self.page
    }

    /// The first byte between the guards.
    pub(crate) fn body(&self) -> *mut u8 {
        // SAFETY: the mapping is at least three pages long.
        unsafe { self.base.as_ptr().add(self.page) }
    }

    /// The bytes between the guards.
    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: readable, initialised by the kernel, and borrowed as `self` is.
        unsafe { std::slice::from_raw_parts(self.body(), self.len()) }
    }

    /// The bytes between the guards.
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: writable, initialised by the kernel, and borrowed as `self` is.
        unsafe { std::slice::from_raw_parts_mut(self.body(), self.len()) }
    }

    /// Reads the byte `distance` from the first between the guards, which must lie in a guard page: faults.
    pub(crate) fn fault(&self, distance: isize) -> u8 {
        let in_mapping = self.page.checked_add_signed(distance).filter(|&at| at < self.total);
        let at =
            in_mapping.filter(|&at| at < self.page || at >= self.total - self.page).expect("in a guard page");
        // SAFETY: within the mapping, in a page without access: the process gets SIGSEGV and no value is made.
        unsafe { self.base.as_ptr().wrapping_add(at).read_volatile() }
    }
}

impl Drop for GuardedPages {
    fn drop(&mut self) {
        // SAFETY: unmaps exactly what `new` has mapped; the borrows of its bytes have ended.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.total) };
    }
}

/// Counts of one thread's calls into the allocator.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// alloc, alloc_zeroed and realloc.
    pub allocs: u64,
    /// dealloc.
    pub frees: u64,
    /// Bytes asked for.
    pub bytes: u64,
}

impl Counts {
    /// All calls.
    #[must_use]
    pub fn calls(self) -> u64 {
        self.allocs + self.frees
    }
}

thread_local! {
    // Constant and without destructor: reading it neither allocates nor registers anything.
    static COUNTS: Cell<Counts> = const { Cell::new(Counts { allocs: 0, frees: 0, bytes: 0 }) };
}

/// The counts of this thread so far.
pub(crate) fn counts() -> Counts {
    COUNTS.get()
}

fn count(allocs: u64, frees: u64, bytes: usize) {
    let now = COUNTS.get();
    COUNTS.set(Counts {
        allocs: now.allocs + allocs,
        frees: now.frees + frees,
        bytes: now.bytes + bytes as u64,
    });
}

/// The system's allocator, counting per thread.
///
/// ```
/// #[global_allocator]
/// static ALLOC: testkit::CountingAlloc = testkit::CountingAlloc;
///
/// let mut v = Vec::with_capacity(8);
/// assert_eq!(testkit::count_allocs(|| v.extend([1u8; 8])), 0);
/// assert_eq!(testkit::count_allocs(|| v.push(1)), 1);
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct CountingAlloc;

// SAFETY: every call goes on to `System`, which keeps the contract; counting neither allocates nor unwinds.
unsafe impl GlobalAlloc for CountingAlloc {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(1, 0, layout.size());
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        count(0, 1, 0);
        // SAFETY: the caller's promise is passed on.
        unsafe { System.dealloc(ptr, layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(1, 0, layout.size());
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        count(1, 0, new_size);
        // SAFETY: the caller's promise is passed on.
        unsafe { System.realloc(ptr, layout, new_size) }
    }
}
