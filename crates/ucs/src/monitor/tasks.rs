//! What the threads of this process are doing, as far as that can be proven from outside.
//!
//! # Safety
//! The one system call here writes a `timespec` of ours.

#![allow(unsafe_code)]

use std::mem::MaybeUninit;

use crate::mem::page::PageRange;

/// What a thread was doing when it was looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Doing {
    /// Something else than dropping pages.
    Other,
    /// Within madvise(2), dropping these pages; `None` when it is not known which.
    Dropping(Option<PageRange>),
    /// It runs, or waits to run: that cannot be told.
    Running,
    /// It is gone, or cannot be looked at.
    Gone,
    /// Work of the kernel's on behalf of this process (io_uring), which may be madvise, too.
    Worker,
}

/// What `/proc/self/task/TID/syscall` says (`proc_pid_syscall(5)`): for one's own threads, no privilege is needed.
pub(super) fn look_at(tid: i32) -> Doing {
    match std::fs::read(format!("/proc/self/task/{tid}/syscall")) {
        Ok(text) => std::str::from_utf8(&text).map_or(Doing::Running, parse),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Doing::Gone,
        // ESRCH, when it ended after it was opened.
        Err(error) if error.raw_os_error() == Some(libc::ESRCH) => Doing::Gone,
        Err(_) => Doing::Running,
    }
}

/// `running`, or `-1 sp pc` outside of system calls, or `nr arg0 … arg5 sp pc`: all but the number in hexadecimal.
fn parse(text: &str) -> Doing {
    let mut words = text.split_ascii_whitespace();
    let Some(number) = words.next().and_then(|word| word.parse::<libc::c_long>().ok()) else {
        return Doing::Running;
    };
    let mut values = [0_u64; 8];
    let mut count = 0;
    for word in words {
        let value = word.strip_prefix("0x").and_then(|digits| u64::from_str_radix(digits, 16).ok());
        let (Some(slot), Some(value)) = (values.get_mut(count), value) else { return Doing::Running };
        *slot = value;
        count += 1;
    }
    // Threads of the kernel's have no stack and no instruction of a user's; they show the system call of whoever made them.
    match (count, values) {
        (2, [0, 0, ..]) | (8, [.., 0, 0]) => Doing::Worker,
        (2, _) if number == -1 => Doing::Other,
        (8, [address, len, advice, ..]) if number == libc::SYS_madvise => {
            if drops_pages(advice) {
                Doing::Dropping(bounds(address, len))
            } else {
                Doing::Other
            }
        }
        (8, _) if number == libc::SYS_process_madvise => Doing::Dropping(None),
        (8, _) => Doing::Other,
        _ => Doing::Running,
    }
}

fn bounds(address: u64, len: u64) -> Option<PageRange> {
    PageRange::containing(usize::try_from(address).ok()?, usize::try_from(len).ok()?)
}

/// The advices that send `UFFD_EVENT_REMOVE` (`mm/madvise.c`; numbers: `include/uapi/asm-generic/mman-common.h`).
fn drops_pages(advice: u64) -> bool {
    const MADV_DONTNEED: u64 = 4;
    const MADV_FREE: u64 = 8;
    const MADV_REMOVE: u64 = 9;
    const MADV_DONTNEED_LOCKED: u64 = 24;
    // An int: the register's upper half is nobody's.
    let advice = advice & u64::from(u32::MAX);
    matches!(advice, MADV_DONTNEED | MADV_FREE | MADV_REMOVE | MADV_DONTNEED_LOCKED)
}

/// The time that a thread of this process has run in user mode, in nanoseconds; `None` when it has ended.
///
/// The kernel adds to this clock only when it finds the thread in user mode (a tick does, or, on kernels that account at each entry,
/// the entry). So if it has grown, the thread was outside of all system calls in between. It need not grow when the thread was.
pub(super) fn user_time(tid: i32) -> Option<u64> {
    /// `CPUCLOCK_PERTHREAD_MASK | CPUCLOCK_VIRT`: a thread's clock of user time (`include/linux/posix-timers_types.h`).
    const THREAD_USER_TIME: libc::clockid_t = 4 | 1;
    let mut time = MaybeUninit::<libc::timespec>::uninit();
    // SAFETY: writes a timespec.
    let answer = unsafe { libc::clock_gettime(!tid << 3 | THREAD_USER_TIME, time.as_mut_ptr()) };
    if answer != 0 {
        return None;
    }
    // SAFETY: the call has succeeded.
    let time = unsafe { time.assume_init() };
    let (seconds, nanos) = (u64::try_from(time.tv_sec).ok()?, u64::try_from(time.tv_nsec).ok()?);
    Some(seconds.wrapping_mul(1_000_000_000).wrapping_add(nanos))
}

/// The ids of the threads of this process, none of those left out that live all the while; `None` when they cannot be had.
///
/// A directory of threads is read from one to the next, and where one ends in between the rest can be left out. Then the one that
/// ended was read and is not there the next time: two lists that are the same are complete.
pub(super) fn all() -> Option<Vec<i32>> {
    let mut before = list()?;
    for _ in 0..4 {
        let now = list()?;
        if now == before {
            return Some(now);
        }
        before = now;
    }
    None
}

fn list() -> Option<Vec<i32>> {
    let entries = std::fs::read_dir("/proc/self/task").ok()?;
    entries.map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect()
}

/// The id of the calling thread.
pub(super) fn own_id() -> i32 {
    rustix::thread::gettid().as_raw_nonzero().get()
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn what_the_kernel_writes() {
        let madvise = |advice: u64| {
            format!("{} 0x10000 0x2000 0x{advice:x} 0x0 0x0 0x0 0x7ffd 0x7f00\n", libc::SYS_madvise)
        };
        let dropped = PageRange::containing(0x10000, 0x2000);
        assert_eq!(parse(&madvise(4)), Doing::Dropping(dropped));
        assert_eq!(parse(&madvise(0xdead_0000_0000_0008)), Doing::Dropping(dropped));
        assert_eq!(parse(&madvise(9)), Doing::Dropping(dropped));
        assert_eq!(parse(&madvise(24)), Doing::Dropping(dropped));
        assert_eq!(parse(&madvise(14)), Doing::Other);
        let of = |number, end: &str| parse(&format!("{number} 0x3 0x0 0x0 0x0 0x0 0x0 {end}\n"));
        assert_eq!(of(libc::SYS_process_madvise, "0x7ffd 0x7f00"), Doing::Dropping(None));
        assert_eq!(of(libc::SYS_read, "0x7ffd 0x7f00"), Doing::Other);
        assert_eq!(of(libc::SYS_io_uring_enter, "0x0 0x0"), Doing::Worker);
        assert_eq!(parse("running\n"), Doing::Running);
        assert_eq!(parse("-1 0x7ffd 0x7f00\n"), Doing::Other);
        assert_eq!(parse("-1 0x0 0x0\n"), Doing::Worker);
        for text in ["", "12", "12 0x", "12 3 4", "0 0x1 0x2 0x3 0x4 0x5 0x6 0x7 0x8 0x9"] {
            assert_eq!(parse(text), Doing::Running, "{text}");
        }
    }

    #[test]
    fn threads_are_seen() {
        let (tell, told) = std::sync::mpsc::channel();
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            tell.send(own_id()).unwrap();
            let _ = ended.recv();
        });
        let tid = told.recv().unwrap();
        assert!(all().unwrap().contains(&tid) && all().unwrap().contains(&own_id()));
        let begin = Instant::now();
        while look_at(tid) != Doing::Other {
            assert!(begin.elapsed() < Duration::from_secs(10));
            std::thread::yield_now();
        }
        assert_eq!(look_at(own_id()), Doing::Other, "it reads");
        assert!(user_time(tid).is_some());
        end.send(()).unwrap();
        thread.join().unwrap();
        while look_at(tid) != Doing::Gone {
            assert!(begin.elapsed() < Duration::from_secs(10));
            std::thread::yield_now();
        }
        assert_eq!(user_time(tid), None);
    }

    #[test]
    fn user_time_grows_outside_of_system_calls() {
        let (before, begin) = (user_time(own_id()).unwrap(), Instant::now());
        while user_time(own_id()).unwrap() == before {
            assert!(begin.elapsed() < Duration::from_secs(20));
            (0..100_000).for_each(|n| {
                std::hint::black_box(n);
            });
        }
    }

    #[test]
    fn user_time_does_not_grow_within_one() {
        // The guard of what `user_time` promises: a thread that is in the kernel all the time, and busy.
        let len = 64 << 20;
        let memory = crate::mem::Mapping::anonymous(len).unwrap();
        let at = memory.bytes().as_ptr().cast();
        for _ in 0..20 {
            let before = user_time(own_id()).unwrap();
            // SAFETY: touches pages that nobody else uses.
            assert_eq!(unsafe { libc::madvise(at, len, libc::MADV_POPULATE_WRITE) }, 0);
            // SAFETY: drops them.
            assert_eq!(unsafe { libc::madvise(at, len, libc::MADV_DONTNEED) }, 0);
            let grown = user_time(own_id()).unwrap() - before;
            // Around the calls there is a little user mode, which a tick can hit: one of them, not the many of the calls.
            assert!(grown <= 10_000_000, "{grown} ns");
        }
    }
}
