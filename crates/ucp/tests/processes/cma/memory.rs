//! Any memory of a process, and what its pages can be.

use std::os::fd::AsFd;

use rustix::mm::{MapFlags, MprotectFlags};
use ucp::{MemMap, RawMem, Status};
use ucs::mem::{Access, Mapping};

use super::{Pages, raw_host};
use crate::roles::{Actor, FILL, context};

/// What another process, which this one starts, reads and writes of `map`, of 10,000 bytes.
#[track_caller]
fn both_ways(map: MemMap, what: &str) {
    let ctx = context();
    let region = ctx.mem_map(map.exported()).unwrap();
    region.write(0, b"by its owner").unwrap();
    let mut dpu = Actor::dpu();
    let how = dpu.import(region.memh_pack().unwrap().as_bytes()).text();
    assert!(how.contains("cma: process_vm_readv and process_vm_writev"), "{what}: {how}");
    assert_eq!(dpu.read(0, 12).ok(), b"by its owner", "{what}");
    dpu.write(9_993, b"by both").ok();
    let mut seen = [0; 7];
    region.read(9_993, &mut seen).unwrap();
    assert_eq!(&seen, b"by both", "{what}");
    dpu.read(9_994, 7).err(Status::OutOfRange);
    drop(region);
    dpu.read(0, 1).err(Status::Stale);
    dpu.write(0, b"x").err(Status::Stale);
}

pub fn of_every_kind() {
    both_ways(MemMap::buffer(vec![0; 10_000]), "a vector");
    both_ways(MemMap::buffer(vec![0; 10_000].into_boxed_slice()), "a box");

    static BYTES: [std::sync::atomic::AtomicU8; 10_000] =
        [const { std::sync::atomic::AtomicU8::new(0) }; 10_000];
    // SAFETY: atomics, which nobody else uses.
    both_ways(MemMap::raw(unsafe { RawMem::new(BYTES[0].as_ptr(), 10_000) }), "static memory");

    let mut on_the_stack = [0_u8; 10_000];
    // SAFETY: alive until the region is gone, and touched through it only.
    both_ways(MemMap::raw(unsafe { RawMem::new(on_the_stack.as_mut_ptr(), 10_000) }), "the stack");
    std::hint::black_box(&mut on_the_stack);

    let mut at_odd_addresses = vec![0_u8; 10_007];
    // SAFETY: as above.
    both_ways(
        MemMap::raw(unsafe { RawMem::new(at_odd_addresses[7..].as_mut_ptr(), 10_000) }),
        "odd addresses",
    );
    std::hint::black_box(&mut at_odd_addresses);

    let file = tempfile::tempfile().unwrap();
    file.set_len(10_000).unwrap();
    let map = Mapping::of_file(file.as_fd(), 10_000, Access::ReadWrite).unwrap();
    // SAFETY: mapped until the region is gone.
    both_ways(MemMap::raw(unsafe { RawMem::new(map.bytes().as_ptr(), 10_000) }), "a file");
    let mut seen = [0; 7];
    std::os::unix::fs::FileExt::read_exact_at(&file, &mut seen, 9_993).unwrap();
    assert_eq!(&seen, b"by both", "what is written is in the file");
}

/// Allocated memory is reached by shm, which costs less; by cma where shm may not be used.
pub fn allocated_memory_by_cost() {
    let mut host = Actor::host(8192);
    let mut dpu = Actor::dpu();
    let how = dpu.import(&host.export()).text();
    assert!(how.contains("shm: descriptor passed over the exporter's service socket"), "{how}");
    let (_, reason) = how.split_once("cma: no: not needed: 4096 bytes take ").unwrap();
    let numbers: Vec<u32> = reason.split([' ', ',']).filter_map(|word| word.parse().ok()).collect();
    assert!(matches!(numbers[..], [more, less] if more > less), "{how}");
    assert!(reason.ends_with(" ns by shm"), "{how}");
    let mut dpu = Actor::dpu_with("UCX_TLS", "cma");
    let how = dpu.import(&host.export()).text();
    assert!(how.contains("shm: no: not allowed by UCX_TLS; cma: process_vm_readv"), "{how}");
    assert_eq!(dpu.read(0, 8).ok(), [FILL; 8]);
    dpu.write(8_000, b"there").ok();
    assert_eq!(host.read(8_000, 5).ok(), b"there");
    host.ask("revoke 1").ok();
    dpu.read(0, 1).err(Status::Stale);
    // One that may neither use shm's descriptors finds the other way by itself.
    let mut dpu = Actor::dpu_with("UCX_SHM_ATTACH", "");
    let how = dpu.import(&host.export()).text();
    assert!(how.contains("shm: no: no way to attach is allowed; cma: process_vm_readv"), "{how}");
}

pub fn read_only() {
    let ctx = context();
    let region = ctx.mem_map(MemMap::buffer(vec![7; 5_000]).read_only().exported()).unwrap();
    let mut dpu = Actor::dpu();
    dpu.import(region.memh_pack().unwrap().as_bytes()).ok();
    assert_eq!(dpu.read(4_990, 10).ok(), [7; 10]);
    let text = dpu.write(0, b"no").err(Status::AccessDenied);
    assert_eq!(text, "access denied after 0 bytes: the region was exported read-only");
    let mut seen = [0; 2];
    region.read(0, &mut seen).unwrap();
    assert_eq!(seen, [7; 2]);
    // Memory that cannot be written at all, exported as if it could: the kernel refuses.
    static TEXT: &[u8; 9] = b"constants";
    // SAFETY: the kernel refuses to write there.
    let raw = unsafe { RawMem::new(TEXT.as_ptr().cast_mut(), TEXT.len()) };
    let region = ctx.mem_map(MemMap::raw(raw).exported()).unwrap();
    dpu.import(region.memh_pack().unwrap().as_bytes()).ok();
    assert_eq!(dpu.read(0, 9).ok(), TEXT);
    let text = dpu.write(0, b"x").err(Status::AccessDenied);
    assert_eq!(text, "access denied after 0 bytes: the pages are mapped, but not for this access");
}

/// Pages without access, pages for reading, and no pages: each error tells how far it got.
pub fn holes() {
    let mut host = raw_host(6 * 4096);
    let mut dpu = Actor::dpu();
    dpu.import(&host.export()).ok();
    let none = MprotectFlags::empty().bits();
    let read = MprotectFlags::READ.bits();
    host.ask(&format!("protect 8192 4096 {none}")).ok();
    host.ask(&format!("protect 16384 4096 {read}")).ok();
    // From odd places, across pages.
    let text = dpu.read(13, 6 * 4096 - 13).err(Status::AccessDenied);
    assert_eq!(text, "access denied after 8179 bytes: the pages are mapped, but not for this access");
    let text = dpu.write(12_288, &[9; 12_288]).err(Status::AccessDenied);
    assert_eq!(text, "access denied after 4096 bytes: the pages are mapped, but not for this access");
    assert_eq!(
        dpu.read(12_288, 4097).ok(),
        [vec![9; 4096], vec![FILL]].concat(),
        "what it got to is written"
    );
    assert_eq!(dpu.read(16_384, 8192).ok(), vec![FILL; 8192], "pages for reading can be read");
    dpu.read(8192, 1).err(Status::AccessDenied);
    host.ask("unmap 8192 4096").ok();
    let text = dpu.read(1, 10_000).err(Status::Stale);
    assert_eq!(text, "stale after 8191 bytes: the owner has unmapped it");
    let text = dpu.write(8000, &[1; 1000]).err(Status::Stale);
    assert_eq!(text, "stale after 192 bytes: the owner has unmapped it");
    // Bystanders are as before, and what is mapped again is new.
    assert_eq!(dpu.read(4096, 100).ok(), [FILL; 100]);
    host.ask("replace 8192 4096").ok();
    assert_eq!(dpu.read(8192, 4096).ok(), [0; 4096]);
    dpu.write(8192, b"again").ok();
    assert_eq!(host.ask("read 5 8192").ok(), b"again");
    host.ask("replace 0 24576").ok();
    assert_eq!(dpu.read(0, 24_576).ok(), vec![0; 24_576], "other memory at the same address");
    host.ask("revoke 0").ok();
    assert_eq!(dpu.read(0, 1).err(Status::Stale), "stale after 0 bytes: the export was revoked or dropped");
    host.ask("replace 0 24576").ok();
    dpu.read(0, 1).err(Status::Stale);
}

pub fn beyond_the_end_of_a_file() {
    let file = tempfile::tempfile().unwrap();
    file.set_len(8192).unwrap();
    let map = Mapping::of_file(file.as_fd(), 8192, Access::ReadWrite).unwrap();
    // SAFETY: mapped until the region is gone.
    let raw = unsafe { RawMem::new(map.bytes().as_ptr(), 8192) };
    let region = context().mem_map(MemMap::raw(raw).exported()).unwrap();
    let mut dpu = Actor::dpu();
    dpu.import(region.memh_pack().unwrap().as_bytes()).ok();
    file.set_len(4096).unwrap();
    let text = dpu.read(0, 8192).err(Status::AccessDenied);
    assert!(
        text.starts_with("access denied after 4096 bytes: the pages are mapped, but the kernel"),
        "{text}"
    );
    file.set_len(8192).unwrap();
    dpu.read(0, 8192).ok();
}

/// A tebibyte of addresses, of which only what is touched is memory.
pub fn a_sparse_tebibyte() {
    const TIB: usize = 1 << 40;
    let pages = Pages::map(TIB);
    let ctx = context();
    let region = ctx.mem_map(MemMap::raw(pages.raw()).exported()).unwrap();
    let mut dpu = Actor::dpu();
    dpu.import(region.memh_pack().unwrap().as_bytes()).ok();
    for at in [0, (1 << 32) - 3, TIB as u64 / 2 + 12_345, TIB as u64 - 8] {
        dpu.write(at, b"far away").ok();
        let mut seen = [0; 8];
        region.read(at, &mut seen).unwrap();
        assert_eq!(&seen, b"far away", "at {at}");
        assert_eq!(dpu.read(at, 8).ok(), b"far away", "at {at}");
    }
    assert_eq!(dpu.read(1 << 35, 100_000).ok(), vec![0; 100_000]);
    dpu.read(TIB as u64 - 7, 8).err(Status::OutOfRange);
    dpu.read(u64::MAX - 3, 8).err(Status::OutOfRange);
}

/// Huge pages, from odd places on: transparent ones, and those of hugetlbfs where the system has any.
pub fn huge_pages() {
    const LEN: usize = 8 << 20;
    let transparent = Pages::map(LEN);
    // SAFETY: an advice about pages of this mapping.
    unsafe { rustix::mm::madvise(transparent.start, LEN, rustix::mm::Advice::LinuxHugepage) }.unwrap();
    let mut all = vec![("transparent", transparent, LEN)];
    let pool = "/proc/sys/vm/nr_hugepages";
    let before = std::fs::read_to_string(pool).unwrap_or_default();
    if testkit::is_root() && std::fs::write(pool, "4").is_ok() {
        let size = 2 << 20;
        // SAFETY: a fresh mapping, touched through regions only.
        let start = unsafe {
            rustix::mm::mmap_anonymous(
                std::ptr::null_mut(),
                size,
                rustix::mm::ProtFlags::READ | rustix::mm::ProtFlags::WRITE,
                MapFlags::PRIVATE | MapFlags::HUGETLB,
            )
        };
        if let Ok(start) = start {
            all.push(("hugetlb", Pages { start, len: size }, size));
        }
    }
    for (what, pages, len) in &all {
        let ctx = context();
        let region = ctx.mem_map(MemMap::raw(pages.part(5, len - 5)).exported()).unwrap();
        let content: Vec<u8> = (0..len - 5).map(|at| u8::try_from(at * 31 % 251).unwrap()).collect();
        region.write(0, &content).unwrap();
        let mut dpu = Actor::dpu();
        dpu.import(region.memh_pack().unwrap().as_bytes()).ok();
        for (at, count) in [(0, 100), (4_000, 70_001), (len - 5 - (1 << 20), 1 << 20)] {
            assert!(
                dpu.read(at as u64, count).ok() == content[at..at + count],
                "{what}: {count} bytes at {at}"
            );
        }
        dpu.write(1_000_003, &[0xee; 500_000]).ok();
        let mut seen = vec![0; 500_000];
        region.read(1_000_003, &mut seen).unwrap();
        assert!(seen.iter().all(|byte| *byte == 0xee), "{what}");
    }
    drop(all);
    if !before.is_empty() {
        let _ = std::fs::write(pool, before);
    }
}

/// An import that outlives its export never reaches a newer region at the same address.
pub fn newer_region_at_the_same_address() {
    let pages = Pages::map(4096);
    let ctx = context();
    let mut dpu = Actor::dpu();
    for round in 0..20 {
        let region = ctx.mem_map(MemMap::raw(pages.raw()).exported()).unwrap();
        let handle = region.memh_pack().unwrap();
        dpu.import(handle.as_bytes()).ok();
        dpu.write(0, b"mine").ok();
        if round % 2 == 0 {
            drop(region);
        } else {
            handle.revoke().unwrap();
        }
        let newer = ctx.mem_map(MemMap::raw(pages.raw()).exported()).unwrap();
        newer.write(0, b"the newer region").unwrap();
        let newer_handle = newer.memh_pack().unwrap();
        dpu.read(0, 8).err(Status::Stale);
        dpu.write(0, b"never").err(Status::Stale);
        dpu.import(handle.as_bytes()).err(Status::Stale);
        let mut seen = [0; 16];
        newer.read(0, &mut seen).unwrap();
        assert_eq!(&seen, b"the newer region");
        drop(newer_handle);
    }
}
