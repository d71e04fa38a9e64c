//! Knowing that one is a fork's child.
//!
//! A handle made before a fork is not the child's: the devices, sockets and peers behind it belong to the parent. The
//! handle keeps the [`Generation`] it was made in and asks [`Generation::is_current`] before it touches any of them;
//! the answer in a child is no, and the operation becomes [`Status::Forked`](crate::Status::Forked).
//!
//! ```
//! struct Handle {
//!     made_in: ucs::fork::Generation,
//! }
//!
//! impl Drop for Handle {
//!     fn drop(&mut self) {
//!         if self.made_in.is_current() {
//!             // deregister, close, say goodbye
//!         } // a child leaves all that to its parent
//!     }
//! }
//!
//! let handle = Handle { made_in: ucs::fork::generation() };
//! assert!(handle.made_in.is_current());
//! ```
//!
//! # How
//!
//! `pthread_atfork` handlers do not run for `_Fork` or a raw `clone`, so the kernel is asked instead: one page of the
//! process holds a non-zero word and is marked `MADV_WIPEONFORK` (Linux 4.14,
//! [madvise(2)](https://man7.org/linux/man-pages/man2/madvise.2.html)). A child, however it was made, finds zero there
//! and puts the next generation in its place. The fast path is two loads and a test: no lock, no allocation, no system
//! call, so it may stand in `Drop`, in a signal handler and on the data path.
//!
//! Where the kernel (or an emulator of it) refuses the mark, process ids are compared, at the price of a `getpid` per
//! call. This misses a descendant that has the very id of the process that made the handle, which a chain of forks
//! through pid namespaces can produce.
//!
//! # Children that share memory
//!
//! `vfork`, `posix_spawn` and any `clone` with `CLONE_VM` make a child that *shares* the parent's memory until it calls
//! `exec` or exits. There is nothing to tell the two apart by, and nothing needs to be: the generation is the same by
//! design, and what such a child does to a handle it does to the parent's. All it may do is `exec` or `_exit`; with the
//! comparison of process ids, a call of [`generation`] in it would even make the parent's handles stale.
//!
//! # Safety
//!
//! The one pointer dereferenced here points either to a static, or to a page that was mapped by `Detector::arm`,
//! holds an initialised `AtomicU64`, and is never unmapped once published. `MADV_WIPEONFORK` replaces its bytes by
//! zeros in the child, which is a valid `AtomicU64` too; it happens before any thread of the child runs.

#![allow(unsafe_code)]

use std::ptr;
// std's atomics: statics, and a page that the kernel wipes; this is no part of a model.
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use rustix::mm::{Advice, MapFlags, ProtFlags};

/// A process between forks: parent and child have different ones.
///
/// Equality means something only within one process and its ancestors; two children of one parent may have the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[must_use = "keep it, to ask later whether it is still current"]
pub struct Generation(u64);

impl Generation {
    /// Whether this is the generation of the calling process: false in a fork's child for those of its ancestors.
    #[must_use]
    #[inline]
    pub fn is_current(self) -> bool {
        generation() == self
    }

    /// Whether that is known without a call. If not, [`Generation::is_current`] may still say yes.
    #[must_use]
    #[inline]
    pub fn is_surely_current(self) -> bool {
        // Where nothing is known yet, or never, the word is 0, which is no generation.
        PROCESS.word().load(Ordering::Relaxed) == self.0
    }
}

/// The generation of the calling process.
///
/// The first call maps a page; later ones neither allocate nor lock. Callable from every thread and signal handler.
#[inline]
pub fn generation() -> Generation {
    PROCESS.generation()
}

static PROCESS: Detector = Detector::new(wipe_on_fork);

/// Stands for the page before the first call; always zero.
static UNARMED: AtomicU64 = AtomicU64::new(0);
/// Stands for the page where the kernel wipes none; always zero, which leads to the slow path every time.
static BY_PID: AtomicU64 = AtomicU64::new(0);

/// The state behind [`generation`], a type of its own so that tests can have one without the kernel's help.
#[derive(Debug)]
struct Detector {
    /// The word that a fork wipes, or one of the two stand-ins.
    word: AtomicPtr<AtomicU64>,
    /// The last generation given out; lies outside the page, so a child goes on from its parent's.
    counter: AtomicU64,
    /// Process id in the upper half, count of forks noticed in the lower; used with [`BY_PID`] only.
    by_pid: AtomicU64,
    /// Marks a page; false if it will not be wiped.
    mark: fn(*mut libc::c_void, usize) -> bool,
}

impl Detector {
    const fn new(mark: fn(*mut libc::c_void, usize) -> bool) -> Self {
        Self {
            word: AtomicPtr::new((&raw const UNARMED).cast_mut()),
            counter: AtomicU64::new(0),
            by_pid: AtomicU64::new(0),
            mark,
        }
    }

    #[inline]
    fn generation(&self) -> Generation {
        let word = self.word();
        match word.load(Ordering::Relaxed) {
            0 => self.slow(word),
            generation => Generation(generation),
        }
    }

    #[inline]
    fn word(&self) -> &'static AtomicU64 {
        // Acquire: the page's first value was stored before its address was published.
        let word = self.word.load(Ordering::Acquire);
        // SAFETY: a static, or a page published by `arm`: aligned, initialised, never unmapped, and only ever accessed
        // as an AtomicU64.
        unsafe { &*word }
    }

    #[cold]
    fn slow(&self, word: &'static AtomicU64) -> Generation {
        let word = if ptr::eq(word, &raw const UNARMED) { self.arm() } else { word };
        if ptr::eq(word, &raw const BY_PID) {
            return self.by_pid();
        }
        match word.load(Ordering::Relaxed) {
            0 => self.rearm(word),
            generation => Generation(generation),
        }
    }

    /// A generation nobody has had in this process or in an ancestor of it.
    fn next(&self) -> u64 {
        self.counter.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// A fresh child: its threads race to put the next generation in place, and take the winner's.
    ///
    /// The counter moves on before the word does: a thread that forks in between hands its child the higher counter, so
    /// that the child's generation differs from the one its parent is about to get.
    fn rearm(&self, word: &AtomicU64) -> Generation {
        let next = self.next();
        match word.compare_exchange(0, next, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => Generation(next),
            Err(winner) => Generation(winner),
        }
    }

    /// Maps and publishes the page, or the stand-in for none.
    fn arm(&self) -> &'static AtomicU64 {
        let len = rustix::param::page_size();
        // SAFETY: a new private mapping at an address of the kernel's choice touches no existing memory.
        let page = unsafe {
            rustix::mm::mmap_anonymous(
                ptr::null_mut(),
                len,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE,
            )
        };
        let new = match page {
            Ok(page) if (self.mark)(page, len) => page.cast::<AtomicU64>(),
            Ok(page) => {
                unmap(page, len);
                (&raw const BY_PID).cast_mut()
            }
            Err(_) => (&raw const BY_PID).cast_mut(),
        };
        let own_page = !ptr::eq(new, &raw const BY_PID);
        if own_page {
            // SAFETY: the fresh page is zeroed, page-aligned, writable, and known to this thread only.
            let word = unsafe { &*new };
            // A fork between here and the publication leaves the child unarmed, with a counter that has moved on.
            word.store(self.next(), Ordering::Relaxed);
        }
        let unarmed = (&raw const UNARMED).cast_mut();
        if self.word.compare_exchange(unarmed, new, Ordering::AcqRel, Ordering::Acquire).is_err() && own_page
        {
            unmap(new.cast(), len);
        }
        self.word()
    }

    fn by_pid(&self) -> Generation {
        let pid = u64::from(std::process::id());
        let mut seen = self.by_pid.load(Ordering::Relaxed);
        while seen >> 32 != pid {
            let forks = (seen + 1) & u64::from(u32::MAX);
            match self.by_pid.compare_exchange(seen, pid << 32 | forks, Ordering::Relaxed, Ordering::Relaxed)
            {
                Ok(_) => return Generation(pid << 32 | forks),
                Err(other) => seen = other,
            }
        }
        Generation(seen)
    }
}

/// Gives back a page that was never published.
fn unmap(page: *mut libc::c_void, len: usize) {
    // SAFETY: called with a mapping of `arm` that no other thread has seen and that `arm` does not use afterwards.
    let unmapped = unsafe { rustix::mm::munmap(page, len) };
    debug_assert!(unmapped.is_ok());
}

/// Has the kernel zero the mapping in children; false if it will not.
fn wipe_on_fork(page: *mut libc::c_void, len: usize) -> bool {
    // User-mode emulators have been known to accept every advice and do nothing; no kernel knows advice -1.
    // SAFETY: an unknown advice changes nothing.
    let accepts_nonsense = unsafe { libc::madvise(page, len, -1) } == 0;
    // SAFETY: changes what a child will see of this mapping, which is private and anonymous as it must be.
    let marked = unsafe { rustix::mm::madvise(page, len, Advice::LinuxWipeOnFork) };
    !accepts_nonsense && marked.is_ok()
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;

    use testkit::in_child;

    use super::*;

    fn fork() -> libc::pid_t {
        // SAFETY: the child does only what is async-signal-safe.
        unsafe { libc::fork() }
    }

    /// No atfork handlers run for this one.
    fn raw_clone() -> libc::pid_t {
        // SAFETY: without CLONE_VM this is a fork; the child does only what is async-signal-safe.
        let pid = unsafe { libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) };
        libc::pid_t::try_from(pid).expect("a pid")
    }

    const WAYS: [fn() -> libc::pid_t; 2] = [fork, raw_clone];

    #[test]
    fn a_child_has_another_generation_and_the_parent_keeps_its_own() {
        for way in WAYS {
            let before = generation();
            assert!(before.is_current());
            assert!(in_child(way, || {
                let mine = generation();
                !before.is_current() && mine != before && mine.is_current() && generation() == mine
            }));
            assert!(before.is_current());
            assert_eq!(generation(), before);
        }
    }

    #[test]
    fn a_grandchild_differs_from_both() {
        for way in WAYS {
            let grandparent = generation();
            assert!(in_child(way, || {
                let parent = generation();
                in_child(way, || !grandparent.is_current() && !parent.is_current() && generation() != parent)
                    && parent.is_current()
            }));
        }
    }

    #[test]
    fn a_grandchild_of_a_child_that_never_asked_differs_too() {
        let grandparent = generation();
        assert!(in_child(fork, || in_child(raw_clone, || !grandparent.is_current())));
    }

    #[test]
    fn a_child_that_shares_memory_has_the_same_generation() {
        extern "C" fn check(before: *mut libc::c_void) -> libc::c_int {
            // SAFETY: the address of the caller's local, which waits for us; memory is shared.
            let before = unsafe { *before.cast::<Generation>() };
            i32::from(!before.is_current())
        }
        let mut before = generation();
        let mut stack = vec![0_u128; 4096];
        let top = stack.as_mut_ptr_range().end.cast();
        let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
        // SAFETY: the stack is the child's alone, and with CLONE_VFORK this thread waits for its end.
        let child = unsafe { libc::clone(check, top, flags, (&raw mut before).cast()) };
        assert!(child > 0);
        let mut status = -1;
        // SAFETY: waits for our own child; `status` outlives the call.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0);
        assert!(before.is_current());
    }

    #[test]
    fn without_the_mark_a_child_is_not_noticed() {
        // The guard: were this to fail, the tests above would prove nothing about MADV_WIPEONFORK.
        static UNMARKED: Detector = Detector::new(|_, _| true);
        let before = UNMARKED.generation();
        assert!(in_child(fork, || UNMARKED.generation() == before));
    }

    #[test]
    fn where_the_kernel_refuses_process_ids_tell() {
        static REFUSED: Detector = Detector::new(|_, _| false);
        for way in WAYS {
            let before = REFUSED.generation();
            assert_eq!(before.0 >> 32, u64::from(std::process::id()));
            assert!(in_child(way, || {
                let mine = REFUSED.generation();
                mine != before
                    && mine == REFUSED.generation()
                    && in_child(way, || REFUSED.generation() != mine && REFUSED.generation() != before)
            }));
            assert_eq!(REFUSED.generation(), before);
        }
    }

    #[test]
    fn threads_of_one_process_agree_when_they_arm_and_when_they_rearm() {
        for mark in [wipe_on_fork as fn(*mut libc::c_void, usize) -> bool, |_, _| false] {
            for _ in 0..50 {
                let detector = Detector::new(mark);
                let barrier = Barrier::new(4);
                let ask = || {
                    barrier.wait();
                    detector.generation()
                };
                let all_ask = || -> Vec<Generation> {
                    std::thread::scope(|s| {
                        let threads = [(); 4].map(|()| s.spawn(ask));
                        threads.map(|t| t.join().expect("no panic")).to_vec()
                    })
                };
                let first = all_ask();
                assert!(first.iter().all(|g| *g == first[0]), "{first:?}");
                if ptr::eq(detector.word(), &raw const BY_PID) {
                    continue;
                }
                detector.word().store(0, Ordering::Relaxed); // what a fork does
                let second = all_ask();
                assert!(second.iter().all(|g| *g == second[0]), "{second:?}");
                assert_ne!(first[0], second[0]);
                unmap(detector.word.into_inner().cast(), rustix::param::page_size());
            }
        }
    }
}
