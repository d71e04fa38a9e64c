//! Operands of `put` and `get`: of every kind, over every transport of this build, and back again when it fails.

#![allow(clippy::unwrap_used)] // tests

mod transports;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect, munmap};
use testkit::Forked;
use ucp::{
    Context, Error, Features, ImportedRegion, MemMap, OpError, OperandReason, PackedMemh, RawMem, Region,
    Status, TransferError,
};

use transports::{BY_DEVICE, NEARBY, REMOTE};

const LEN: usize = 3 << 20;
const PAGE: usize = 4096;

fn context(tls: &str) -> Context {
    Context::builder().features(Features::EXPORTED_MEMH).ignore_env().set("UCX_TLS", tls).build().unwrap()
}

/// An import by a transport.
struct World {
    region: Region,
    handle: PackedMemh,
    import: ImportedRegion,
    ctx: Context,
}

impl World {
    fn by(transport: &str) -> Self {
        let ctx = transports::builder(transport).build().unwrap();
        let map = if transport == "shm" { MemMap::allocate(LEN) } else { MemMap::buffer(vec![0; LEN]) };
        let region = ctx.mem_map(map.exported()).unwrap();
        let handle = region.memh_pack().unwrap();
        let import = ctx.mem_import(handle.as_bytes()).unwrap();
        assert_eq!(import.transport(), transports::name(transport));
        Self { region, handle, import, ctx }
    }

    fn all() -> Vec<Self> {
        let all: &[&str] = if BY_DEVICE { &[NEARBY, REMOTE] } else { &["self", "shm", "cma"] };
        all.iter().copied().map(Self::by).collect()
    }

    fn at(&self, offset: usize, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.region.read(offset as u64, &mut bytes).unwrap();
        bytes
    }
}

fn pattern(len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    testkit::Rng::new(7).fill(&mut bytes);
    bytes
}

/// Pages of this process, which may be unmapped. They are the test's own.
struct Pages {
    start: *mut u8,
    len: usize,
}

impl Pages {
    /// Far from where the kernel puts mappings of its own choice: nobody else's comes to lie where some are unmapped.
    fn new(len: usize) -> Self {
        static NEXT: AtomicUsize = AtomicUsize::new(0x2200_0000_0000);
        let start = std::ptr::with_exposed_provenance_mut(NEXT.fetch_add(len + PAGE, Ordering::Relaxed));
        let flags = MapFlags::PRIVATE | MapFlags::FIXED_NOREPLACE;
        // SAFETY: replaces no mapping.
        let start = unsafe { mmap_anonymous(start, len, ProtFlags::READ | ProtFlags::WRITE, flags) }.unwrap();
        Self { start: start.cast(), len }
    }

    fn raw(&self) -> RawMem {
        // SAFETY: nobody has references to these pages.
        unsafe { RawMem::new(self.start, self.len) }
    }

    fn fill(&self, bytes: &[u8]) {
        assert!(bytes.len() <= self.len);
        // SAFETY: mapped, of that length, and nobody else's.
        unsafe { self.start.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
    }

    fn bytes(&self, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        // SAFETY: mapped, of that length, and nobody else's.
        unsafe { bytes.as_mut_ptr().copy_from_nonoverlapping(self.start, len) };
        bytes
    }

    fn unmap(&self, at: usize, len: usize) {
        // SAFETY: nobody has references to these pages.
        unsafe { munmap(self.start.wrapping_add(at).cast(), len) }.unwrap();
    }

    fn protect(&self, at: usize, len: usize) {
        // SAFETY: nobody has references to these pages.
        unsafe { mprotect(self.start.wrapping_add(at).cast(), len, MprotectFlags::READ) }.unwrap();
    }
}

#[test]
fn of_every_kind() {
    for world in World::all() {
        let import = &world.import;
        let bytes = pattern(LEN - 3);
        let (address, back) = (bytes.as_ptr(), import.put(3, bytes.clone()).unwrap());
        assert_eq!((world.at(3, LEN - 3), &back), (bytes.clone(), &bytes));
        let bytes = import.put(3, bytes).unwrap();
        assert_eq!(bytes.as_ptr(), address, "the same vector comes back");
        assert_eq!(import.get(3, vec![0; LEN - 3]).unwrap(), bytes);
        let short = import.get(10, Vec::with_capacity(100)).unwrap();
        assert!(short.is_empty(), "the length counts, not the capacity");

        import.put(0, &b"static"[..]).unwrap();
        assert_eq!(world.at(0, 6), b"static");
        let shared: Arc<[u8]> = Arc::from(&b"shared"[..]);
        import.put(0, Arc::clone(&shared)).unwrap();
        assert_eq!(world.at(0, 6), b"shared");
        let boxed = import.get(0, vec![0; 6].into_boxed_slice()).unwrap();
        assert_eq!(*boxed, *shared);
        let mut private = import.get(0, world.ctx.buf(6).unwrap()).unwrap();
        assert_eq!(private[..], *shared);
        private[0] = b'S';
        import.put(1, private).unwrap();
        assert_eq!(world.at(0, 7), b"sShared");
        let empty: Vec<u8> = import.put(LEN as u64, Vec::new()).unwrap();
        drop(import.get(LEN as u64, empty).unwrap());
    }
}

#[test]
fn raw_memory() {
    for world in World::all() {
        let import = &world.import;
        let pages = Pages::new(9 * PAGE);
        let bytes = pattern(9 * PAGE);
        pages.fill(&bytes);
        import.put(5, pages.raw()).unwrap();
        assert_eq!(world.at(5, 9 * PAGE), bytes);
        pages.fill(&vec![0; 9 * PAGE]);
        import.get(5, pages.raw()).unwrap();
        assert_eq!(pages.bytes(9 * PAGE), bytes);

        // An owner may unmap it, or take rights away: it is told how far the operation came. What a device moves is registered, all of it or
        // nothing.
        pages.protect(4 * PAGE, 5 * PAGE);
        import.put(0, pages.raw()).unwrap();
        let refused = import.get(0, pages.raw()).unwrap_err();
        let why = |failed: &OpError<RawMem>| match &failed.error {
            TransferError::Access(ucp::AccessError::Operand { done, why }) => Some((*done, *why)),
            TransferError::Register(_) if BY_DEVICE => None,
            other => panic!("{other}"),
        };
        let told = |pages: usize, why| (!BY_DEVICE).then_some(((pages * PAGE) as u64, why));
        assert_eq!(why(&refused), told(4, OperandReason::Protection));
        pages.unmap(6 * PAGE, PAGE);
        world.region.write(0, &vec![0; 9 * PAGE]).unwrap();
        let refused = import.put(0, pages.raw()).unwrap_err();
        assert_eq!(why(&refused), told(6, OperandReason::Unmapped));
        assert_eq!(refused.status(), Status::InvalidAddr);
        assert_eq!(
            refused.to_string(),
            if BY_DEVICE {
                "the operand cannot be registered with verbs: not all pages are mapped for that, or they cannot be pinned"
            } else {
                "the operand could not be used after 24576 bytes: its memory is not mapped"
            }
        );
        let moved = if BY_DEVICE { 0 } else { 6 * PAGE };
        assert!(world.at(0, moved) == bytes[..moved], "as many as it says");
        assert!(world.at(moved, 9 * PAGE - moved).iter().all(|byte| *byte == 0), "and no more");
        assert_eq!((refused.operand.address(), refused.operand.len()), (pages.start.addr() as u64, 9 * PAGE));
    }
}

#[test]
fn parts_of_regions() {
    for world in World::all() {
        let import = &world.import;
        let bytes = pattern(100_000);
        for map in [MemMap::allocate(LEN), MemMap::buffer(vec![0; LEN])] {
            let region = world.ctx.mem_map(map).unwrap();
            region.write(77, &bytes).unwrap();
            let slice = import.put(3, region.slice(77..100_077).unwrap()).unwrap();
            assert_eq!(world.at(3, 100_000), bytes);
            region.write(0, &[0; 200_000]).unwrap();
            drop(import.get(3, slice).unwrap());
            let mut seen = vec![0; 100_078];
            region.read(0, &mut seen).unwrap();
            assert_eq!(seen[77..100_077], bytes);
            assert_eq!((seen[76], seen[100_077]), (0, 0));
        }
        // Of raw memory: what is mapped there when the operation begins.
        let pages = Pages::new(2 * PAGE);
        pages.fill(&bytes[..2 * PAGE]);
        let region = world.ctx.mem_map(MemMap::raw(pages.raw())).unwrap();
        let slice = import.put(0, region.slice(PAGE - 8..=PAGE + 7).unwrap()).unwrap();
        assert_eq!(world.at(0, 16), bytes[PAGE - 8..PAGE + 8]);
        pages.unmap(PAGE, PAGE);
        let failed = import.put(0, slice).unwrap_err();
        assert_eq!(
            failed.to_string(),
            "the operand could not be used after 0 bytes: its memory is not mapped"
        );
        assert_eq!(failed.operand.len(), 16);
        let read_only = world.ctx.mem_map(MemMap::read_only_buffer(&b"constant"[..])).unwrap();
        let slice = import.put(0, read_only.slice(..).unwrap()).unwrap();
        let failed = import.get(0, slice).unwrap_err();
        assert_eq!(failed.status(), Status::InvalidAddr, "{failed}");
    }
}

#[test]
fn parts_are_within() {
    let ctx = context("all");
    let region = ctx.mem_map(MemMap::allocate(100)).unwrap();
    let range = |slice: Result<ucp::MemSlice, _>| slice.ok().map(|slice| slice.range());
    assert_eq!(range(region.slice(..)), Some(0..100));
    assert_eq!(range(region.slice(100..)), Some(100..100));
    assert_eq!(range(region.slice(..=99)), Some(0..100));
    #[allow(clippy::reversed_empty_ranges)]
    let outside =
        [region.slice(1..0), region.slice(0..101), region.slice(101..), region.slice(0..=usize::MAX)];
    for slice in outside {
        assert_eq!(slice.unwrap_err().status(), Status::OutOfRange);
    }
    let slice = region.slice(10..20).unwrap();
    let region = region.try_into_buf().unwrap_err();
    drop(slice);
    assert_eq!(region.try_into_buf().unwrap().len(), 100);
}

#[test]
fn what_fails_gives_the_operand_back() {
    for world in World::all() {
        let import = &world.import;
        let back = |failed: OpError<Vec<u8>>, status| {
            assert_eq!(failed.status(), status, "{failed}");
            assert_eq!(failed.operand, b"mine", "{failed:?}");
        };
        let mine = || b"mine".to_vec();
        back(import.put(LEN as u64 - 3, mine()).unwrap_err(), Status::OutOfRange);
        back(import.get(LEN as u64 - 3, mine()).unwrap_err(), Status::OutOfRange);
        back(import.get(u64::MAX, mine()).unwrap_err(), Status::OutOfRange);
        world.handle.revoke().unwrap();
        back(import.put(0, mine()).unwrap_err(), Status::Stale);
        back(import.get(0, mine()).unwrap_err(), Status::Stale);
        let error = Error::from(import.get(0, mine()).unwrap_err());
        assert_eq!((error.status(), error.remedy().contains("new handle")), (Status::Stale, true));
    }
}

#[test]
fn read_only_and_without_bytes() {
    let ctx = context("all");
    let region = ctx.mem_map(MemMap::allocate(4096).read_only().exported()).unwrap();
    let import = ctx.mem_import(region.memh_pack().unwrap().as_bytes()).unwrap();
    let failed = import.put(0, vec![1]).unwrap_err();
    assert_eq!((failed.status(), failed.operand), (Status::AccessDenied, vec![1]));
    assert_eq!(import.get(0, vec![1]).unwrap(), [0]);
    let region = ctx.mem_map(MemMap::allocate(0).exported()).unwrap();
    let import = ctx.mem_import(region.memh_pack().unwrap().as_bytes()).unwrap();
    assert!(import.put(0, Vec::new()).unwrap().is_empty());
    assert_eq!(import.put(0, vec![1]).unwrap_err().operand, [1]);
    assert_eq!(import.get(0, vec![1]).unwrap_err().status(), Status::OutOfRange);
}

/// A fork's child is told so, also of a buffer that it does not have.
#[test]
fn in_a_child() {
    let world = World::by(if BY_DEVICE { REMOTE } else { "shm" });
    let mut operands = Some((vec![1_u8; 8], world.ctx.buf(8).unwrap()));
    let child = || {
        let Some((vector, private)) = operands.take() else { return false };
        let told = world.import.put(0, vector).is_err_and(|failed| {
            failed.status() == Status::Stale
                && failed.operand == [1; 8]
                && failed.to_string().contains("fork")
        });
        told && world.import.get(0, private).is_err_and(|failed| failed.status() == Status::Stale)
    };
    // SAFETY: the C library's fork leaves its allocator usable in the child, which ends by _exit.
    assert!(Forked::by(|| unsafe { libc::fork() }, child).said_yes());
}

/// Pages of which a part is exported are a child's, too: what lies beside is needed there.
#[cfg(feature = "rxe-tests")]
#[test]
fn a_child_has_what_lies_beside_an_export() {
    for transport in [NEARBY, REMOTE] {
        let ctx = transports::builder(transport).build().unwrap();
        let pages = Pages::new(2 * PAGE);
        pages.fill(&[7; 2 * PAGE]);
        // SAFETY: nobody has references to these pages.
        let part = unsafe { RawMem::new(pages.start.wrapping_add(PAGE - 8), 16) };
        let region = ctx.mem_map(MemMap::raw(part).reg_mode(ucp::RegMode::Cached).exported()).unwrap();
        let import = ctx.mem_import(region.memh_pack().unwrap().as_bytes()).unwrap();
        import.write(0, b"of the parent's.").unwrap();
        let expected = [&[7; PAGE - 8][..], b"of the parent's.", &[7; PAGE - 8]].concat();
        // SAFETY: the C library's fork leaves its allocator usable in the child, which ends by _exit.
        let child = Forked::by(|| unsafe { libc::fork() }, || pages.bytes(2 * PAGE) == expected);
        assert!(child.said_yes(), "{transport}");
        region.write(0, b"what it is later").unwrap();
        assert_eq!(import.get(0, vec![0; 16]).unwrap(), b"what it is later", "{transport}");
    }
}
