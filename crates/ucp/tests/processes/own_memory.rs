//! Memory of the user's own, owned buffers and raw ranges: by whom it is reached, and what becomes of it when it is unmapped.

use std::ffi::c_void;

use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect, munmap};
use ucp::wire::handle::Handle;
use ucp::{Context, ImportedRegion, MemMap, PackedMemh, RawMem, RegMode, Region, Status};

use super::roles::{Actor, Answer, BY_DEVICE, NEARBY, REMOTE, assert_each_says, context, context_by};

const PAGE: usize = 4096;

/// Who can reach it: its own context, another one of this process, another process. By a device: the last two, and as if it were on another
/// machine.
enum Importer {
    Here(ImportedRegion),
    There(Actor),
}

impl Importer {
    fn all(ctx: &Context, handle: &[u8]) -> Vec<(&'static str, Self)> {
        if BY_DEVICE {
            return Self::all_by_device(handle);
        }
        let own = ctx.mem_import(handle).unwrap();
        assert_eq!(own.transport(), "self");
        let other = context().mem_import(handle).unwrap();
        assert_eq!(other.transport(), "cma");
        let mut dpu = Actor::dpu();
        let how = dpu.import(handle).text();
        assert!(how.contains("self: no: offered for "), "{how}");
        assert!(how.contains("shm: no: not offered by the exporter"), "{how}");
        assert!(how.contains("cma: process_vm_readv and process_vm_writev"), "{how}");
        vec![
            ("its own context", Self::Here(own)),
            ("another context", Self::Here(other)),
            ("another process", Self::There(dpu)),
        ]
    }

    fn all_by_device(handle: &[u8]) -> Vec<(&'static str, Self)> {
        let other = context_by(NEARBY).mem_import(handle).unwrap();
        let far = context_by(REMOTE).mem_import(handle).unwrap();
        assert_eq!([other.transport(), far.transport()], ["verbs"; 2]);
        let mut dpus = [Actor::dpu_by(NEARBY), Actor::dpu_by(REMOTE)];
        for dpu in &mut dpus {
            dpu.import(handle).ok();
        }
        let [dpu, far_dpu] = dpus;
        vec![
            ("another context", Self::Here(other)),
            ("another process", Self::There(dpu)),
            ("a far context", Self::Here(far)),
            ("a far process", Self::There(far_dpu)),
        ]
    }

    fn read(&mut self, at: usize, len: usize) -> Answer {
        match self {
            Self::Here(import) => {
                let mut bytes = vec![0; len];
                told(import.read(at as u64, &mut bytes)).map(bytes)
            }
            Self::There(dpu) => dpu.read(at as u64, len),
        }
    }

    fn write(&mut self, at: usize, bytes: &[u8]) -> Answer {
        match self {
            Self::Here(import) => told(import.write(at as u64, bytes)).map(Vec::new()),
            Self::There(dpu) => dpu.write(at as u64, bytes),
        }
    }
}

fn told(outcome: Result<(), ucp::AccessError>) -> Told {
    Told(outcome.err().map(|error| (format!("{:?}", error.status()), error.to_string())))
}

struct Told(Option<(String, String)>);

impl Told {
    fn map(self, payload: Vec<u8>) -> Answer {
        self.0.map_or(Answer::Ok(payload), |(status, text)| Answer::Err { status, text })
    }
}

/// Whoever has the handle reads and writes the region, until it is revoked; a new export lasts until the region is dropped.
fn is_reached_by_all(ctx: &Context, region: Region) {
    let handle = region.memh_pack().unwrap();
    let content = Handle::decode(handle.as_bytes(), |_| true).unwrap();
    let components: Vec<_> = content.entries.iter().map(|entry| entry.component).collect();
    assert_eq!(components[..2], [1, 3]);
    assert_eq!(components.get(2), BY_DEVICE.then_some(&4));
    let len = region.len();
    let mut importers = Importer::all(ctx, handle.as_bytes());
    for (round, (who, importer)) in (1..).zip(&mut importers) {
        region.write(0, &vec![round; len]).unwrap();
        assert_eq!(importer.read(0, len).ok(), vec![round; len], "{who}");
        importer.write(len - 8, b"the last").ok();
        importer.write(5, who.as_bytes()).ok();
        let mut seen = vec![0; len];
        region.read(0, &mut seen).unwrap();
        assert_eq!(&seen[5..5 + who.len()], who.as_bytes());
        assert_eq!(&seen[len - 8..], b"the last", "{who}");
        assert_eq!(seen[..5], [round; 5]);
        importer.read(len - 1, 2).err(Status::OutOfRange);
        importer.write(len, b"x").err(Status::OutOfRange);
    }
    handle.revoke().unwrap();
    is_stale(ctx, &handle, &mut importers);
    let handle = region.memh_pack().unwrap();
    let mut importers = Importer::all(ctx, handle.as_bytes());
    for (_, importer) in &mut importers {
        assert_eq!(importer.read(len - 8, 8).ok(), b"the last");
    }
    drop(region);
    is_stale(ctx, &handle, &mut importers);
}

fn is_stale(ctx: &Context, handle: &PackedMemh, importers: &mut [(&str, Importer)]) {
    let reached = if BY_DEVICE { "verbs" } else { "cma" };
    for (_, importer) in importers {
        let text = importer.read(0, 1).err(Status::Stale);
        assert_eq!(text, "stale after 0 bytes: the export was revoked or dropped");
        importer.write(0, b"late").err(Status::Stale);
        let answer = match importer {
            Importer::Here(_) => ctx.mem_import(handle.as_bytes()).unwrap_err().status(),
            Importer::There(dpu) => {
                let text = dpu.import(handle.as_bytes()).err(Status::Stale);
                let said =
                    ["the export was revoked or dropped", "the exporter says that it is revoked or dropped"];
                assert!(
                    said.iter().any(|said| text.contains(&format!("{reached}: no: stale: {said}"))),
                    "{text}"
                );
                Status::Stale
            }
        };
        assert_eq!(answer, Status::Stale);
    }
    assert_eq!(context().mem_import(handle.as_bytes()).unwrap_err().status(), Status::Stale);
}

pub fn owned_buffer_reaches_other_processes() {
    let ctx = context();
    let region = ctx.mem_map(MemMap::buffer(vec![7_u8; 10_000]).exported()).unwrap();
    let results = region.md_results().to_string();
    let only_its_own =
        "an owned buffer: shm can only give away memory that it allocated: use MemMap::allocate";
    assert_each_says(&[2], &results, only_its_own);
    assert!(results.contains("cma: can be exported"), "{results}");
    is_reached_by_all(&ctx, region);
}

pub fn raw_memory_reaches_other_processes() {
    let ctx = context();
    // Neither its beginning nor its end lies at the edge of a page.
    let mut bytes = vec![3_u8; 70_001];
    let inner = &mut bytes[13..69_999];
    // SAFETY: `bytes` outlives the region, and is not touched but through it.
    let raw = unsafe { RawMem::new(inner.as_mut_ptr(), inner.len()) };
    // By a device only if it may reach the old pages when others are mapped there.
    let mode = if BY_DEVICE { RegMode::Cached } else { RegMode::Auto };
    let region = ctx.mem_map(MemMap::raw(raw).reg_mode(mode).exported()).unwrap();
    assert_eq!(region.atomic_u64(0).unwrap_err().status(), Status::Unsupported);
    is_reached_by_all(&ctx, region);
    assert_eq!(&bytes[69_991..69_999], b"the last");
    assert_eq!(
        (&bytes[..13], &bytes[69_999..]),
        (&[3; 13][..], &[3; 2][..]),
        "nothing beside it was written"
    );
}

pub fn read_only_buffer() {
    let ctx = context();
    // The first in pages that nobody can write; the second in some that only the library keeps from being written.
    for map in
        [MemMap::read_only_buffer(&b"static bytes"[..]), MemMap::buffer(b"static bytes".to_vec()).read_only()]
    {
        let region = ctx.mem_map(map.exported()).unwrap();
        let handle = region.memh_pack().unwrap();
        for (who, mut importer) in Importer::all(&ctx, handle.as_bytes()) {
            let text = importer.write(0, b"no").err(Status::AccessDenied);
            assert_eq!(text, "access denied after 0 bytes: the region was exported read-only", "{who}");
            assert_eq!(importer.read(0, 12).ok(), b"static bytes", "{who}");
        }
    }
    let region = ctx.mem_map(MemMap::read_only_buffer(&b"static bytes"[..])).unwrap();
    assert_eq!(region.write(0, b"no").unwrap_err().status(), Status::AccessDenied);
    assert_eq!(region.store(0, 1_u64).unwrap_err().status(), Status::AccessDenied);
}

/// Without cma on both sides it stays within its context, and the error says what to do.
pub fn own_memory_without_cma() {
    let mut bytes = vec![3_u8; 10_000];
    let start = bytes.as_mut_ptr();
    // SAFETY: `bytes` outlives the regions, and is not touched but through them.
    let raw = || MemMap::raw(unsafe { RawMem::new(start, 10_000) }).exported();
    let owned = || MemMap::buffer(vec![3_u8; 10_000]).exported();
    let maps: [(&dyn Fn() -> MemMap, &str); 2] = [(&raw, "a raw address range"), (&owned, "an owned buffer")];
    for (map, kind) in maps {
        // By the exporter's choice.
        let error = context_by("mm").mem_map(map()).unwrap_err();
        assert_eq!(error.status(), Status::Unsupported);
        assert_each_says(&[2], &error.to_string(), kind);
        assert_each_says(&[1, 3], &error.to_string(), "not allowed by UCX_TLS");
        assert_eq!(error.remedy(), "use memory of MemMap::allocate, or allow more transports in UCX_TLS");
        for tls in ["self", "self,mm"] {
            let ctx = context_by(tls);
            let region = ctx.mem_map(map()).unwrap();
            let handle = region.memh_pack().unwrap();
            assert_eq!(ctx.mem_import(handle.as_bytes()).unwrap().transport(), "self");
            let text = Actor::dpu().import(handle.as_bytes()).err(Status::Unreachable);
            assert_each_says(&[2, 3], &text, "not offered by the exporter");
            let remedy = "[it is reached within its own context only: export memory of MemMap::allocate, and allow the \
                          exporter more transports in UCX_TLS]";
            assert!(text.ends_with(remedy), "{text}");
            let text = context().mem_import(handle.as_bytes()).unwrap_err().to_string();
            assert_each_says(&[1], &text, "offered for ");
        }
        // By the importer's.
        let ctx = context();
        let region = ctx.mem_map(map()).unwrap();
        let handle = region.memh_pack().unwrap();
        let text = Actor::dpu_by("self,mm").import(handle.as_bytes()).err(Status::Unreachable);
        assert_each_says(&[2], &text, "not offered by the exporter");
        assert_each_says(&[3], &text, "not allowed by UCX_TLS");
        assert!(
            text.ends_with("[allow one of the transports that the exporter offers in UCX_TLS]"),
            "{text}"
        );
        Actor::dpu().import(handle.as_bytes()).ok();
    }
}

/// Addresses at which nothing is mapped, and nothing will be: they begin a gap, which is filled from its end.
fn vacant(len: usize) -> *mut c_void {
    const GAP: usize = 64 << 30;
    assert!(len < GAP / 2);
    let (none, flags) = (ProtFlags::empty(), MapFlags::PRIVATE | MapFlags::NORESERVE);
    // SAFETY: a fresh mapping that nobody touches.
    let start = unsafe { mmap_anonymous(std::ptr::null_mut(), GAP, none, flags) }.unwrap();
    // SAFETY: as above.
    unsafe { munmap(start, GAP) }.unwrap();
    start
}

fn map_at(start: *mut c_void, len: usize) {
    let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE | MapFlags::FIXED_NOREPLACE);
    // SAFETY: MAP_FIXED_NOREPLACE replaces nothing.
    let mapped = unsafe { mmap_anonymous(start, len, access, flags) }.unwrap();
    assert_eq!(mapped, start);
}

/// Pages of a raw range become read-only, are unmapped one after the other, and are mapped again.
pub fn raw_memory_unmapped() {
    let ctx = context();
    for who in 0..3 {
        let start = vacant(3 * PAGE);
        map_at(start, 3 * PAGE);
        let page = |number: usize| start.wrapping_byte_add(number * PAGE);
        // SAFETY: touched through the region only; unmapping is allowed.
        let raw = unsafe { RawMem::new(start.cast(), 3 * PAGE) };
        let region = ctx.mem_map(MemMap::raw(raw).exported()).unwrap();
        let handle = region.memh_pack().unwrap();
        let (who, mut importer) = Importer::all(&ctx, handle.as_bytes()).into_iter().nth(who).unwrap();
        importer.write(0, &[1; 3 * PAGE]).ok();

        let denied =
            |done| format!("access denied after {done} bytes: the pages are mapped, but not for this access");
        // SAFETY: within the mapping.
        unsafe { mprotect(page(2), PAGE, MprotectFlags::READ) }.unwrap();
        let text = importer.write(PAGE, &[2; 2 * PAGE]).err(Status::AccessDenied);
        assert_eq!(text, denied(PAGE), "{who}");
        let text = importer.write(2 * PAGE + 5, b"no").err(Status::AccessDenied);
        assert_eq!(text, denied(0), "{who}");
        let expected = [[1; PAGE], [2; PAGE], [1; PAGE]].concat();
        assert_eq!(importer.read(0, 3 * PAGE).ok(), expected, "{who}: what was done is done, and no more");
        // SAFETY: within the mapping.
        unsafe { mprotect(page(2), PAGE, MprotectFlags::empty()) }.unwrap();
        assert_eq!(
            importer.read(100, 3 * PAGE - 100).err(Status::AccessDenied),
            denied(2 * PAGE - 100),
            "{who}"
        );
        assert_eq!(
            importer.write(100, &[3; 3 * PAGE - 100]).err(Status::AccessDenied),
            denied(2 * PAGE - 100)
        );

        let stale = |done| format!("stale after {done} bytes: the owner has unmapped it");
        // SAFETY: the mapping's last page.
        unsafe { munmap(page(2), PAGE) }.unwrap();
        assert_eq!(importer.read(0, 3 * PAGE).err(Status::Stale), stale(2 * PAGE), "{who}");
        assert_eq!(importer.write(1, &[4; 3 * PAGE - 1]).err(Status::Stale), stale(2 * PAGE - 1), "{who}");
        assert_eq!(
            importer.read(0, 2 * PAGE).ok()[1..],
            [4; 2 * PAGE - 1],
            "{who}: the pages before it are there"
        );
        // SAFETY: the mapping's first page: the one in the middle is left.
        unsafe { munmap(page(0), PAGE) }.unwrap();
        assert_eq!(importer.read(0, 3 * PAGE).err(Status::Stale), stale(0), "{who}");
        assert_eq!(importer.read(PAGE, PAGE).ok(), [4; PAGE], "{who}");
        // SAFETY: the rest of it.
        unsafe { munmap(page(1), PAGE) }.unwrap();
        assert_eq!(importer.read(PAGE, PAGE).err(Status::Stale), stale(0), "{who}");
        assert_eq!(importer.write(PAGE, &[5]).err(Status::Stale), stale(0), "{who}");
        assert_eq!(region.read(0, &mut [0]).unwrap_err().to_string(), stale(0));

        // An export names the address: mapped again, there is new data.
        map_at(start, PAGE);
        assert_eq!(importer.read(0, PAGE).ok(), [0; PAGE], "{who}");
        importer.write(8, b"new").ok();
        let mut bytes = [9; 4];
        region.read(8, &mut bytes).unwrap();
        assert_eq!(&bytes, b"new\0");
        drop(region);
        importer.read(0, 1).err(Status::Stale);
        // SAFETY: what was mapped last; the region of it is gone.
        unsafe { munmap(start, PAGE) }.unwrap();
    }
}

/// A long access is made in pieces: how far it came is told of the whole.
pub fn raw_memory_unmapped_behind_the_first_pieces() {
    let (len, there) = (8 << 20, (5 << 20) + PAGE);
    let ctx = context();
    let start = vacant(len);
    map_at(start, there);
    // SAFETY: touched through the region only; that its end is not mapped is allowed.
    let raw = unsafe { RawMem::new(start.cast(), len) };
    let region = ctx.mem_map(MemMap::raw(raw).exported()).unwrap();
    let handle = region.memh_pack().unwrap();
    for (round, (who, mut importer)) in (1..).zip(Importer::all(&ctx, handle.as_bytes())) {
        let stale = format!("stale after {} bytes: the owner has unmapped it", there - 7);
        assert_eq!(importer.write(7, &vec![round; len - 7]).err(Status::Stale), stale, "{who}");
        assert_eq!(importer.read(7, len - 7).err(Status::Stale), stale, "{who}");
        assert_eq!(importer.read(7, there - 7).ok(), vec![round; there - 7], "{who}");
    }
    drop(region);
    // SAFETY: what was mapped; the region of it is gone.
    unsafe { munmap(start, there) }.unwrap();
}

/// Pages that are mapped, and are none: beyond the end of the file they are of.
pub fn raw_memory_beyond_the_end_of_a_file() {
    use std::os::fd::AsFd;
    let file = tempfile::tempfile().unwrap();
    file.set_len(PAGE as u64).unwrap();
    let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
    // SAFETY: a fresh mapping, touched through the region only.
    let start =
        unsafe { rustix::mm::mmap(std::ptr::null_mut(), 2 * PAGE, access, flags, file.as_fd(), 0) }.unwrap();
    let ctx = context();
    // SAFETY: as above.
    let raw = unsafe { RawMem::new(start.cast(), 2 * PAGE) };
    let region = ctx.mem_map(MemMap::raw(raw).exported()).unwrap();
    let handle = region.memh_pack().unwrap();
    for (who, mut importer) in Importer::all(&ctx, handle.as_bytes()) {
        let expected = format!(
            "access denied after {PAGE} bytes: the pages are mapped, but the kernel does not reach them: beyond the end of a \
             file, or a device's"
        );
        assert_eq!(importer.read(0, 2 * PAGE).err(Status::AccessDenied), expected, "{who}");
        assert_eq!(importer.write(0, &[1; 2 * PAGE]).err(Status::AccessDenied), expected, "{who}");
        assert_eq!(importer.read(0, PAGE).ok(), [1; PAGE], "{who}");
    }
    file.set_len(2 * PAGE as u64).unwrap();
    for (who, mut importer) in Importer::all(&ctx, handle.as_bytes()) {
        assert_eq!(importer.read(PAGE, PAGE).ok(), [0; PAGE], "{who}");
    }
    drop(region);
    // SAFETY: the mapping made above; the region of it is gone.
    unsafe { munmap(start, 2 * PAGE) }.unwrap();
}
