//! Kinds of memory: which can be pinned, and what that means for them.

use std::fs::File;
use std::os::fd::AsFd as _;
use std::path::Path;

use rustix::fs::{MemfdFlags, Mode, OFlags, ftruncate, memfd_create};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, MprotectFlags, ProtFlags};
use testkit::skip;
use uct_conformance::nic::{Nic, RegisterError};

use crate::in_a_process;
use crate::memory::{FEW, Pages, READ_WRITE, page, punch_hole, secret_memfd, status};

/// The registration is refused, and nothing of it is left.
#[track_caller]
fn cannot_be_pinned(nic: &Nic, memory: &Pages) {
    let error = memory.register(nic).unwrap_err();
    // Before Linux 6.5 there was EOPNOTSUPP for files.
    assert!(matches!(error, RegisterError::Fault | RegisterError::Unpinnable(Errno::OPNOTSUPP)), "{error:?}");
    assert_eq!((nic.registrations(), nic.pinned_bytes()), (0, 0));
}

pub(crate) fn unmapped() {
    let nic = Nic::open_or_skip(2, FEW);
    for (offset, len) in [(0, 1), (1, 1), (2, 1), (1, 2)] {
        let memory = Pages::new(3);
        memory.unmap_part(offset * page(), len * page());
        cannot_be_pinned(&nic, &memory);
    }
    // The first page of the address space is never mapped, and no page of the kernel's half is.
    for addr in [0, usize::MAX - 16 * page()] {
        // A range that is not the process's memory at all.
        assert_eq!(crate::memory::register_foreign(&nic, addr, 8), Err(RegisterError::Fault));
    }
}

pub(crate) fn without_access() {
    let nic = Nic::open_or_skip(2, FEW);
    let memory = Pages::anonymous(4 * page(), ProtFlags::empty(), MapFlags::PRIVATE).unwrap();
    cannot_be_pinned(&nic, &memory);
}

pub(crate) fn read_only() {
    let nic = Nic::open_or_skip(2, FEW);
    let memory = Pages::anonymous(4 * page(), ProtFlags::READ, MapFlags::PRIVATE).unwrap();
    cannot_be_pinned(&nic, &memory);
    let memory = Pages::new(4);
    memory.put_u64(0, 1);
    memory.protect(0, memory.len(), MprotectFlags::READ);
    cannot_be_pinned(&nic, &memory);
}

/// A protection that comes later says nothing to the NIC.
pub(crate) fn read_only_afterwards() {
    let nic = Nic::open_or_skip(2, FEW);
    let memory = Pages::new(1);
    let mr = memory.register(&nic).unwrap();
    memory.protect(0, page(), MprotectFlags::READ);
    memory.dma_in_u64(&nic, &mr, 0, 7).unwrap();
    assert_eq!(memory.get_u64(0), 7);
}

/// The pages are the object's: mapped again they are the same ones, until the object lets go of them.
pub(crate) fn memfd() {
    let nic = Nic::open_or_skip(2, FEW);
    let fd = memfd_create("nic", MemfdFlags::CLOEXEC).unwrap();
    let len = 4 * page();
    ftruncate(&fd, len as u64).unwrap();
    let map = || Pages::of_file(&fd, len, READ_WRITE, MapFlags::SHARED);
    let memory = map();
    memory.put_u64(8, 1);
    let mr = memory.register(&nic).unwrap();
    let addr = memory.addr() + 8;
    drop(memory);
    let memory = map();
    memory.put_u64(8, 2);
    assert_eq!(nic.dma_out_u64(&mr, addr), Ok(2), "the same pages");

    punch_hole(fd.as_fd(), 0, len).unwrap();
    memory.put_u64(8, 3);
    assert_eq!(nic.dma_out_u64(&mr, addr), Ok(2), "the object has other pages");

    ftruncate(&fd, 0).unwrap();
    cannot_be_pinned_beyond_the_end(&nic, &memory);
    assert_eq!(nic.dma_out_u64(&mr, addr), Ok(2));
}

#[track_caller]
fn cannot_be_pinned_beyond_the_end(nic: &Nic, memory: &Pages) {
    let before = nic.registrations();
    assert_eq!(memory.register(nic), Err(RegisterError::Fault));
    assert_eq!(nic.registrations(), before);
}

/// A file without a name beside this program: on a disk, where programs usually are.
fn file(len: usize) -> File {
    let exe = std::env::current_exe().unwrap();
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    let open = |dir: &Path| rustix::fs::open(dir, flags, Mode::RUSR | Mode::WUSR);
    let fd = open(exe.parent().unwrap()).or_else(|_| open(&std::env::temp_dir())).unwrap();
    ftruncate(&fd, len as u64).unwrap();
    File::from(fd)
}

pub(crate) fn file_private() {
    let nic = Nic::open_or_skip(2, FEW);
    let file = file(4 * page());
    let memory = Pages::of_file(&file, 4 * page(), READ_WRITE, MapFlags::PRIVATE);
    let mr = memory.register(&nic).unwrap();
    memory.dma_in_u64(&nic, &mr, 8, 5).unwrap();
    assert_eq!(memory.get_u64(8), 5, "pages of this process");
    let other = Pages::of_file(&file, 4 * page(), ProtFlags::READ, MapFlags::SHARED);
    assert_eq!(other.get_u64(8), 0, "the file is as it was");
}

pub(crate) fn file_shared() {
    let nic = Nic::open_or_skip(2, FEW);
    let file = file(4 * page());
    let memory = Pages::of_file(&file, 4 * page(), READ_WRITE, MapFlags::SHARED);
    /// Source: `TMPFS_MAGIC` and `RAMFS_MAGIC`, `linux/magic.h`.
    const IN_MEMORY: [u64; 2] = [0x0102_1994, 0x8584_58f6];
    let kind = u64::try_from(rustix::fs::fstatfs(&file).unwrap().f_type).unwrap();
    if IN_MEMORY.contains(&kind) {
        skip("this program and the temporary directory are on file systems in memory", "run it from a disk");
    }
    cannot_be_pinned(&nic, &memory);
}

pub(crate) fn secret() {
    let nic = Nic::open_or_skip(2, FEW);
    let Some(fd) = secret_memfd() else {
        skip("the kernel has no memfd_secret", "Linux 6.5 or newer, or boot with secretmem.enable=1");
    };
    ftruncate(&fd, page() as u64).unwrap();
    let memory = Pages::of_file(&fd, page(), READ_WRITE, MapFlags::SHARED);
    cannot_be_pinned(&nic, &memory);
}

/// A part of a huge page is lost, the rest stays.
fn lose_a_part(nic: &Nic, memory: &Pages, at: usize) {
    let step = 64 << 10;
    let tag = |offset: usize| offset as u64 + 1;
    (0..memory.len()).step_by(step).for_each(|offset| memory.put_u64(offset, tag(offset)));
    let mr = memory.register(nic).unwrap();
    memory.replace_part(at, step);
    for offset in (0..memory.len()).step_by(step) {
        let now = if offset == at { 0 } else { tag(offset) };
        assert_eq!(memory.get_u64(offset), now);
        assert_eq!(nic.dma_out_u64(&mr, memory.addr() + offset), Ok(tag(offset)));
        memory.put_u64(offset, u64::MAX);
        let seen = if offset == at { tag(offset) } else { u64::MAX };
        assert_eq!(nic.dma_out_u64(&mr, memory.addr() + offset), Ok(seen), "at {offset:#x}, lost at {at:#x}");
    }
    nic.deregister(mr).unwrap();
}

pub(crate) fn transparent_huge_page() {
    let nic = Nic::open_or_skip(2, FEW);
    for at in [0, 1 << 20, 2 << 20, (2 << 20) + (64 << 10), (4 << 20) - (64 << 10)] {
        let memory = Pages::anonymous(4 << 20, READ_WRITE, MapFlags::PRIVATE).unwrap();
        // Where the system does not give them, it holds for small pages.
        let _ = memory.advise(Advice::LinuxHugepage);
        lose_a_part(&nic, &memory, at);
    }
}

pub(crate) fn huge_page() {
    let nic = Nic::open_or_skip(2, FEW);
    let flags = MapFlags::PRIVATE | MapFlags::HUGETLB;
    let Ok(memory) = Pages::anonymous(2 << 20, READ_WRITE, flags) else {
        skip("there is no free huge page", "sysctl vm.nr_hugepages=4");
    };
    memory.put_u64(1 << 20, 1);
    let mr = memory.register(&nic).unwrap();
    memory.replace();
    memory.put_u64(1 << 20, 2);
    assert_eq!(nic.dma_out_u64(&mr, memory.addr() + (1 << 20)), Ok(1));
}

/// A registration takes the memory it names, and no more: within a reserved gigabyte its pages, and all of it not by accident.
pub(crate) fn reserved_gigabyte() {
    in_a_process("kinds::gigabyte");
}

pub(crate) fn gigabyte() {
    const GIB: usize = 1 << 30;
    let nic = Nic::open(4).unwrap();
    let memory = Pages::anonymous(GIB, READ_WRITE, MapFlags::PRIVATE | MapFlags::NORESERVE).unwrap();
    let before = status("VmRSS");
    let grown = || status("VmRSS").saturating_sub(before);

    let error = memory.register(&nic).unwrap_err();
    assert_eq!(error, RegisterError::Limit { wanted: GIB, pinned: 0, limit: Nic::DEFAULT_LIMIT });
    assert!(grown() < 1 << 20, "refused before a page was touched: {}", grown());

    let (at, len) = (GIB / 2 + 5, 64 << 10);
    let mr = memory.register_part(&nic, at, len).unwrap();
    assert_eq!(nic.pinned_bytes(), len + page());
    // A transparent huge page may hold them.
    assert!(grown() < 5 << 20, "{}", grown());
    memory.put_u64(at, 1);
    assert_eq!(nic.dma_out_u64(&mr, memory.addr() + at), Ok(1));

    // All pages of a range are faulted in, by registering alone.
    let (before, len) = (status("VmRSS"), 3 << 20);
    let all = memory.register_part(&nic, 0, len).unwrap();
    let grown = status("VmRSS").saturating_sub(before);
    assert!(grown + (1 << 20) > len as u64, "{grown}");
    assert_eq!(nic.dma_out_u64(&all, memory.addr() + len - 8), Ok(0));
}
