//! The monitor stands still, has to share, or cannot be had.
//!
//! # Safety
//! A second userfaultfd watches memory of ours in a mode that is never armed: it changes nothing for who uses that memory.

#![allow(unsafe_code)]

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::{Duration, Instant};

use testkit::{Deny, deny};
use ucs::mem::Access;
use ucs::mem::page::PageRange;
use ucs::monitor::{Active, Monitor};
use ucs::rcache::{Cache, Mode, Registrar};

use crate::backings::{file, keeping_files, memfd};
use crate::memory::READ_WRITE;
use crate::world::{Memory, PAGE, World, tag, wait_until};

const LEN: usize = 4 * PAGE;

/// Another userfaultfd, as CRIU, QEMU or a JVM has one. Numbers: `include/uapi/linux/userfaultfd.h`.
fn another() -> Option<OwnedFd> {
    const UFFD_USER_MODE_ONLY: libc::c_long = 1;
    const UFFDIO_API: libc::c_ulong = 0xc018_aa3f;
    // SAFETY: a new descriptor.
    let fd =
        unsafe { libc::syscall(libc::SYS_userfaultfd, UFFD_USER_MODE_ONLY | i64::from(libc::O_CLOEXEC)) };
    let fd = i32::try_from(fd).ok().filter(|fd| *fd >= 0)?;
    // SAFETY: just opened, and nobody else's.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    let mut api = [0xaa_u64, 0, 0];
    // SAFETY: `struct uffdio_api`, which is written.
    let answer = unsafe { libc::ioctl(fd.as_raw_fd(), UFFDIO_API, api.as_mut_ptr()) };
    (answer == 0).then_some(fd)
}

fn watch(fd: &OwnedFd, memory: &Memory) {
    const UFFDIO_REGISTER: libc::c_ulong = 0xc020_aa00;
    const MODE_WP: u64 = 2;
    let mut register = [memory.address(0) as u64, memory.len() as u64, MODE_WP, 0];
    // SAFETY: `struct uffdio_register`, of memory of ours.
    let answer = unsafe { libc::ioctl(fd.as_raw_fd(), UFFDIO_REGISTER, register.as_mut_ptr()) };
    assert_eq!(answer, 0, "{}", std::io::Error::last_os_error());
}

/// 31: memory that another userfaultfd has: registered for one use each time, and seen as it is.
pub(crate) fn t31_another_userfaultfd() {
    let world = World::new();
    let Some(other) = another() else {
        return crate::world::skip("there is no userfaultfd", "allow the system call");
    };
    let memory = Memory::new(LEN);
    watch(&other, &memory);
    for _ in 0..200 {
        assert!(world.agree(&memory, 0, LEN), "of nobody's changes are told");
        memory.drop_pages(0, LEN);
    }
    assert_eq!((world.cache.len(), world.cache.stats().hits), (0, 0));
    assert_ne!(world.cache.mode(), Mode::Off, "other memory can be watched");
    let elsewhere = Memory::new(LEN);
    world.agree_cached(&elsewhere, 0, LEN);
    // It lets go: from then on this memory is cached.
    drop(other);
    world.agree_cached(&memory, 0, LEN);
    memory.unmap_and_map(0, LEN);
    world.agree(&memory, 0, LEN);
}

/// 33: the handler stands still: nobody waits for it but who unmaps, and all is seen as it is.
pub(crate) fn t33_the_handler_stands_still() {
    const ROUNDS: u64 = 100;
    let world = World::new();
    let memory = Memory::new(2 * LEN);
    world.agree_cached(&memory, 0, 2 * LEN);
    Monitor::process().slow_down(Duration::from_secs(60));
    memory.unmap_and_map(0, LEN); // is read, and applied when it is slow no more
    let begin = Instant::now();
    for _ in 0..ROUNDS {
        assert!(begin.elapsed() < Duration::from_secs(30));
        let value = tag();
        memory.write(0, value);
        memory.write(LEN, value + 1);
        assert_eq!(world.dma(memory.address(0), LEN), Some(value));
        assert_eq!(world.dma(memory.address(LEN), LEN), Some(value + 1));
        assert!(!Monitor::process().seq().is_multiple_of(2), "it stands still");
    }
    let stats = world.cache.stats();
    assert!(stats.one_shots > ROUNDS, "{stats:?}");
    Monitor::process().slow_down(Duration::ZERO);
    wait_until("all is told", || Monitor::process().seq().is_multiple_of(2));
    world.agree_cached(&memory, 0, 2 * LEN);
    world.ends_empty();
}

/// 34: no userfaultfd, as in a container, and no hooks: nothing is kept, and all is seen as it is.
pub(crate) fn t34_no_userfaultfd() {
    if testkit::is_root() {
        testkit::drop_to_uid(65_534, 65_534).unwrap(); // /dev/userfaultfd is root's
    }
    deny(&[Deny::eperm(libc::SYS_userfaultfd)]);
    let world = World::new();
    let memory = Memory::new(LEN);
    let one_shot = world.agree(&memory, 0, LEN);
    if matches!(Monitor::process().mode(), Active::Uffd { .. }) {
        return crate::world::skip("/dev/userfaultfd can be opened", "run as a user who may not open it");
    }
    assert!(one_shot && world.cache.mode() == Mode::Off);
    for _ in 0..1_000 {
        assert!(world.agree(&memory, 0, LEN));
        memory.unmap_and_map(0, LEN);
    }
    let stats = world.cache.stats();
    assert_eq!((world.cache.len(), stats.hits, stats.one_shots, stats.checks), (0, 0, stats.gets, 0));
    assert_eq!(world.nic.registrations(), 0);
}

/// Pins nothing: of files, not every kernel would.
struct Nothing;

impl Registrar for Nothing {
    type Handle = ();
    type Error = std::convert::Infallible;

    fn register(&self, _: PageRange, _: Access) -> Result<(), Self::Error> {
        Ok(())
    }

    fn deregister(&self, (): ()) {}
}

/// An old kernel: what it has not, the monitor says. Memory of files is for one use there, also where it may be kept; all other kinds are
/// cached, and what is mapped is found out by other means.
pub(crate) fn what_this_kernel_has_not_is_said_and_done_without() {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers = release.split(['.', '-']).map_while(|number| number.parse::<u32>().ok());
    let kernel = (numbers.next().unwrap(), numbers.next().unwrap());
    let (watches_files, queries) = (kernel >= (6, 7), kernel >= (6, 11));

    let monitor = Monitor::process();
    let active = monitor.start();
    assert_eq!(active, Active::Uffd { wp_async: watches_files }, "{release}");
    assert_eq!(active.to_string().contains("not for memory of files"), !watches_files, "{active}");
    assert_eq!(monitor.queries_mappings(), queries, "{release}");

    let world = World::with(monitor, keeping_files());
    let memory = Memory::new(2 * LEN);
    let shared = memfd(LEN);
    memory.map_file(LEN, LEN, READ_WRITE, libc::MAP_SHARED, shared.as_raw_fd());
    for at in [0, LEN] {
        world.agree_cached(&memory, at, LEN);
        let hits = world.cache.stats().hits;
        wait_until("it is found", || {
            _ = world.agree(&memory, at, LEN);
            world.cache.stats().hits > hits
        });
    }

    let (cache, file) = (Cache::new(Nothing, monitor, keeping_files()).unwrap(), file(LEN));
    memory.map_file(0, LEN, READ_WRITE, libc::MAP_PRIVATE, file.as_raw_fd());
    let kept = || !cache.get(memory.address(0), LEN, Access::ReadWrite).unwrap().is_one_shot();
    if watches_files {
        wait_until("it is kept", kept);
    } else {
        assert!((0..100).all(|_| !kept()));
        assert_eq!((cache.len(), cache.stats().one_shots), (0, 100));
    }
}
