//! Memory that is no plain one: segments, huge pages, files.

use std::fs::File;
use std::os::fd::{AsRawFd as _, OwnedFd};

use testkit::role::rounds;
use ucs::monitor::Monitor;
use ucs::rcache::Options;

use crate::memory::{READ_WRITE, Segment};
use crate::world::{Memory, PAGE, World, skip, tag, wait_until};

const LEN: usize = Segment::LEN;
const HUGE: usize = 2 << 20;

/// 13: a System V segment is detached, and another attached at the same address. No event tells of that: each is for one use.
pub(crate) fn t13_system_v_segments() {
    let world = World::new();
    let memory = Memory::new(2 * LEN);
    for round in 0..300 {
        let (Some(first), Some(second)) = (Segment::new(), Segment::new()) else {
            return skip("there are no System V segments", "use a kernel with CONFIG_SYSVIPC");
        };
        memory.unmap(0, LEN);
        memory.attach(0, &first, false);
        if round == 0 && !world.pins_or_skip("System V segments", &memory, LEN) {
            return;
        }
        assert!(world.agree(&memory, 0, LEN));
        memory.detach(0);
        memory.attach(0, &second, false);
        assert!(world.agree(&memory, 0, LEN));
        memory.attach(0, &first, true);
        assert!(world.agree(&memory, 0, LEN));
        if round % 2 == 0 {
            // Beside it, and over its end.
            world.agree(&memory, 0, 2 * LEN);
        }
        memory.detach(0);
        memory.map_over(0, LEN);
        world.agree(&memory, 0, LEN);
    }
    world.ends_empty();
}

/// 13: SHM_REMAP over registered memory, of which no event tells, and memory in its place again. Also with another cache, which has the
/// new memory watched before the first one looks.
pub(crate) fn t13_a_segment_in_the_place_of_memory() {
    let worlds = [World::new(), World::new()];
    let memory = Memory::new(2 * LEN);
    for round in 0..300 {
        let Some(segment) = Segment::new() else {
            return skip("there are no System V segments", "use a kernel with CONFIG_SYSVIPC");
        };
        worlds.iter().for_each(|world| _ = world.agree(&memory, 0, 2 * LEN));
        memory.attach(0, &segment, true);
        if round == 0 && !worlds[0].pins_or_skip("System V segments", &memory, LEN) {
            return;
        }
        assert!(worlds[0].agree(&memory, 0, LEN));
        memory.detach(0);
        memory.map_over(0, LEN);
        worlds.iter().for_each(|world| _ = world.agree(&memory, 0, LEN));
        // Nobody looks while the segment is there, and the second cache is first when it has gone.
        worlds.iter().for_each(|world| _ = world.agree(&memory, 0, 2 * LEN));
        memory.attach(0, &segment, true);
        memory.detach(0);
        memory.map_over(0, LEN);
        worlds.iter().rev().for_each(|world| _ = world.agree(&memory, 0, LEN));
    }
    worlds.iter().for_each(World::ends_empty);
}

/// 22: huge pages that the kernel makes of small ones, and breaks up.
pub(crate) fn t22_transparent_huge_pages() {
    const MADV_COLLAPSE: libc::c_int = 25; // Linux 6.1
    let world = World::new();
    let memory = Memory::aligned(4 * HUGE, HUGE);
    let _ = memory.advise(0, 4 * HUGE, libc::MADV_HUGEPAGE);
    for round in 0..40_usize {
        world.agree(&memory, 0, HUGE);
        // Pages that are registered are not collapsed; others are, and looked at after that.
        let _ = memory.advise(0, 2 * HUGE, MADV_COLLAPSE);
        world.agree(&memory, PAGE, 3 * PAGE);
        let _ = memory.advise(2 * HUGE, HUGE, MADV_COLLAPSE);
        world.agree(&memory, 2 * HUGE, HUGE);
        match round % 4 {
            0 => memory.drop_pages(PAGE, PAGE),
            1 => memory.unmap_and_map(HUGE / 2, PAGE),
            2 => memory.map_over(0, 2 * HUGE),
            _ => memory.advise(0, HUGE, libc::MADV_NOHUGEPAGE).unwrap_or_default(),
        }
        world.agree(&memory, 0, HUGE + PAGE);
    }
    world.ends_empty();
}

fn free_huge_pages() -> usize {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("HugePages_Free:"));
    line.map_or(0, |count| count.trim().parse().unwrap())
}

/// 22: huge pages of hugetlbfs, registered in part, and replaced.
pub(crate) fn t22_huge_pages_of_hugetlbfs() {
    let world = World::new();
    let memory = Memory::aligned(4 * HUGE, HUGE);
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_HUGETLB;
    if memory.try_map(0, 2 * HUGE, READ_WRITE, flags, -1).is_err() {
        return skip("there is no free huge page", "sysctl vm.nr_hugepages=4");
    }
    let map = |at, len| {
        wait_until("there is room for huge pages", || memory.try_map(at, len, READ_WRITE, flags, -1).is_ok());
    };
    for round in 0..rounds(50) {
        // Before Linux 6.4 they are unpinned up to a second after they were deregistered.
        wait_until("two huge pages are free", || free_huge_pages() >= 2);
        world.agree(&memory, 3 * PAGE, 2 * PAGE);
        world.agree(&memory, HUGE - PAGE, 2 * PAGE);
        world.agree(&memory, 0, 2 * HUGE);
        match round % 3 {
            0 => memory.drop_pages(0, HUGE),
            1 => {
                memory.unmap(HUGE, HUGE);
                map(HUGE, HUGE);
                world.agree(&memory, 0, HUGE);
                world.agree(&memory, HUGE, HUGE);
            }
            _ => {}
        }
        // Mappings of two files are not taken as one before Linux 6.5.
        if round % 3 == 2 || world.pins(&memory, 2 * HUGE).is_err() {
            memory.map_over(0, 2 * HUGE);
            world.agree(&memory, 0, HUGE);
            map(0, 2 * HUGE);
        }
        world.agree(&memory, 0, HUGE + PAGE);
    }
    world.ends_empty();
}

pub(crate) fn memfd(len: usize) -> OwnedFd {
    let file = rustix::fs::memfd_create("rcache", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    rustix::fs::ftruncate(&file, len as u64).unwrap();
    file
}

/// 23: a memfd is shrunk and grown, and has holes punched. No event tells of that: it is not kept unless its owner says so.
pub(crate) fn t23_a_memfd_shrunk_and_grown() {
    use rustix::fs::{FallocateFlags, fallocate, ftruncate};
    let world = World::new();
    let file = memfd(LEN);
    let memory = Memory::new(LEN);
    memory.map_file(0, LEN, READ_WRITE, libc::MAP_SHARED, file.as_raw_fd());
    for round in 0..300 {
        assert!(world.agree(&memory, 0, LEN));
        match round % 3 {
            0 => ftruncate(&file, 0).and_then(|()| ftruncate(&file, LEN as u64)).unwrap(),
            1 => ftruncate(&file, PAGE as u64).and_then(|()| ftruncate(&file, LEN as u64)).unwrap(),
            _ => {
                let holes = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                fallocate(&file, holes, PAGE as u64, 2 * PAGE as u64).unwrap();
            }
        }
        assert!(world.agree(&memory, 0, LEN));
    }
    world.ends_empty();
}

/// Kept, as its owner says, and told of when it is unmapped, mapped over, or its pages are dropped.
pub(crate) fn t23_a_memfd_that_keeps_its_length() {
    let world = World::with(Monitor::process(), keeping_files());
    let (first, second) = (memfd(LEN), memfd(LEN));
    let memory = Memory::new(LEN);
    for round in 0..300 {
        let file = if round % 2 == 0 { &first } else { &second };
        memory.map_file(0, LEN, READ_WRITE, libc::MAP_SHARED, file.as_raw_fd());
        world.agree_cached(&memory, 0, LEN);
        match round % 3 {
            0 => memory.drop_pages(0, LEN),
            1 => memory.advise(PAGE, PAGE, libc::MADV_REMOVE).unwrap(),
            _ => memory.unmap(0, LEN),
        }
        if round % 3 != 2 {
            world.agree(&memory, 0, LEN);
        }
    }
    world.ends_empty();
}

/// Private copies of a memfd's pages go with them when it is made shorter: not kept by default.
pub(crate) fn t23_a_private_mapping_of_a_memfd() {
    let world = World::new();
    let file = memfd(LEN);
    let memory = Memory::new(LEN);
    memory.map_file(0, LEN, READ_WRITE, libc::MAP_PRIVATE, file.as_raw_fd());
    for _ in 0..100 {
        assert!(world.agree(&memory, 0, LEN), "for one use");
        rustix::fs::ftruncate(&file, 0).unwrap();
        rustix::fs::ftruncate(&file, LEN as u64).unwrap();
        assert!(world.agree(&memory, 0, LEN), "for one use");
    }
    world.ends_empty();
}

pub(crate) fn keeping_files() -> Options {
    let mut options = Options::default();
    options.files = true;
    options
}

pub(crate) fn file(len: usize) -> File {
    let path = std::env::temp_dir().join(format!("rcache-{}", std::process::id()));
    let file = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
    std::fs::remove_file(path).unwrap();
    file.set_len(len as u64).unwrap();
    file
}

/// 24: a file is shrunk under a private mapping, which loses its pages, written ones, too; and grown again. No event tells of that.
pub(crate) fn t24_a_file_shrunk() {
    let world = World::new();
    let file = file(LEN);
    let memory = Memory::new(LEN);
    memory.map_file(0, LEN, READ_WRITE, libc::MAP_PRIVATE, file.as_raw_fd());
    if !world.pins_or_skip("memory of files", &memory, LEN) {
        return;
    }
    for round in 0..300 {
        world.agree(&memory, 0, LEN);
        file.set_len([0, PAGE as u64][round % 2]).unwrap();
        // Pages beyond the end cannot be registered; those before can.
        assert!(world.cache.get(memory.address(2 * PAGE), PAGE, ucs::mem::Access::ReadWrite).is_err());
        rustix::fs::ftruncate(&file, LEN as u64).unwrap();
        world.agree(&memory, 0, LEN);
    }
    // A shared mapping: pinned or refused, as the file system has it, and never kept.
    memory.map_file(0, LEN, READ_WRITE, libc::MAP_SHARED, file.as_raw_fd());
    for _ in 0..50 {
        let value = tag();
        memory.write(0, value);
        assert!([None, Some(value)].contains(&world.dma(memory.address(0), LEN)));
        file.set_len(0).and_then(|()| file.set_len(LEN as u64)).unwrap();
    }
    world.ends_empty();
}

/// 25: data of a library: a private mapping of a file, and zeros behind it, unmapped and mapped at the same address. What is of the file
/// is kept only where nobody makes such files shorter.
pub(crate) fn t25_data_of_a_file_unmapped_and_mapped() {
    let file = file(LEN);
    let memory = Memory::new(2 * LEN);
    for options in [Options::default(), keeping_files()] {
        let world = World::with(Monitor::process(), options);
        for round in 0..300 {
            memory.map_file(0, LEN, READ_WRITE, libc::MAP_PRIVATE, file.as_raw_fd());
            memory.map_over(LEN, LEN);
            if round == 0 && !world.pins_or_skip("memory of files", &memory, LEN) {
                return;
            }
            assert!(world.agree(&memory, 0, LEN) || options.files);
            world.agree(&memory, LEN, LEN);
            assert!(world.agree(&memory, LEN - PAGE, 2 * PAGE), "it is of two kinds");
            world.agree_cached(&memory, LEN, LEN);
            if options.files {
                world.agree_cached(&memory, 0, LEN);
            }
            if round % 2 == 0 {
                memory.unmap(0, 2 * LEN);
            }
        }
        world.ends_empty();
    }
}
