//! Registrations of operands, with a memory domain that only counts.
//!
//! # Safety
//! The child of the fork ends by `_exit`, and does nothing but drop memory.

#![allow(unsafe_code)]
#![allow(clippy::unwrap_used)] // tests

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use testkit::Forked;
use ucs::mem::Access;
use ucs::mem::page::PageRange;
use ucs::rcache::Options;
use uct::LocalMem;
use uct::api::{
    AllocError, AttachError, AttachRequest, Attached, ComponentId, GlobalId, LinearCost, LocalMemh, Md,
    MdAttr, MdFlags, MemTypes, Memh, RegError,
};
use uct::memory::{AccessError, Local, LocalMut, PrivateMem, Rights, Source as _};
use uct::registrations::{Needs, RegisterError, Registrations};

const PAGE: usize = 4096;

/// Registers so many pages at most.
#[derive(Debug)]
struct Counting {
    attr: MdAttr,
    used: Arc<AtomicUsize>,
    limit: usize,
    /// How long an end takes.
    slow: Duration,
}

#[derive(Debug)]
struct Registered {
    used: Arc<AtomicUsize>,
    pages: usize,
    slow: Duration,
}

impl LocalMemh for Registered {}

impl Drop for Registered {
    fn drop(&mut self) {
        thread::sleep(self.slow);
        self.used.fetch_sub(self.pages, Ordering::SeqCst);
    }
}

impl Md for Counting {
    fn attr(&self) -> &MdAttr {
        &self.attr
    }

    fn alloc(&self, _: usize, _: Rights) -> Result<LocalMem, AllocError> {
        Err(AllocError::Unsupported)
    }

    fn reg(&self, _: &Arc<LocalMem>) -> Result<Box<dyn Memh>, RegError> {
        Err(RegError::Unsupported { kind: "memory", why: "it registers operands only" })
    }

    fn attach(&self, _: &AttachRequest<'_>) -> Result<Attached, AttachError> {
        Err(AttachError::Mismatch)
    }

    fn reg_local(&self, range: PageRange, _: Access) -> Result<Box<dyn LocalMemh>, RegError> {
        let pages = range.len() / PAGE;
        let more = |used| Some(used + pages).filter(|used| *used <= self.limit);
        match self.used.fetch_update(Ordering::SeqCst, Ordering::SeqCst, more) {
            Ok(_) => Ok(Box::new(Registered { used: Arc::clone(&self.used), pages, slow: self.slow })),
            Err(_) => Err(RegError::Limit { why: "it is full".into(), remedy: "use less" }),
        }
    }
}

/// One that registers `limit` pages at most, what operations by it need, and how many pages are registered.
fn world(limit: usize, slow: Duration) -> (Registrations, Needs, Arc<AtomicUsize>) {
    let cost = LinearCost { base: 1e-6, per_byte: 0.0 };
    let attr = MdAttr {
        component: ComponentId(0xFFF0),
        flags: MdFlags::NEED_MEMH,
        max_alloc: 0,
        max_reg: u64::MAX,
        reg_alignment: PAGE,
        reg_cost: cost,
        access_cost: cost,
        alloc_mem_types: MemTypes::empty(),
        reg_mem_types: MemTypes::HOST,
        access_mem_types: MemTypes::HOST,
        rkey_packed_size: 0,
        exported_mkey_packed_size: 0,
        global_id: GlobalId::new(b"counting").unwrap(),
        local_cpus: String::new(),
        notes: Vec::new(),
    };
    let used = Arc::new(AtomicUsize::new(0));
    let md: Arc<dyn Md> = Arc::new(Counting { attr, used: Arc::clone(&used), limit, slow });
    let registrations = Registrations::new([&md], Options::default());
    let needs = registrations.of(&md).unwrap();
    (registrations, needs, used)
}

fn allocated(pages: usize) -> PrivateMem {
    PrivateMem::new(LocalMem::anonymous(pages * PAGE, Rights::READ_WRITE).unwrap()).unwrap()
}

fn is_registered(src: &Local<'_>) {
    assert!(src.memh::<Registered>().is_some());
}

#[test]
fn a_forks_child_ends_nothing_of_its_parents() {
    let (registrations, needs, used) = world(1 << 20, Duration::ZERO);
    let (mut memory, mut buffer) = (Some(allocated(256)), Some(vec![1_u8; 256 * PAGE]));
    registrations.with_source(needs, memory.as_ref().unwrap().local(), is_registered).unwrap();
    registrations.with_source(needs, Local::bytes(buffer.as_ref().unwrap()), is_registered).unwrap();
    let before = used.load(Ordering::SeqCst);
    assert!(before >= 512);
    let mut registrations = Some(registrations);
    let check = || {
        drop((memory.take(), buffer.take(), registrations.take()));
        used.load(Ordering::SeqCst) == before
    };
    // SAFETY: the C library's fork leaves its allocator usable in the child (module rule).
    let child = Forked::by(|| unsafe { libc::fork() }, check);
    assert!(child.said_yes());
    assert_eq!(used.load(Ordering::SeqCst), before);
    drop((memory, buffer, registrations));
    assert_eq!(used.load(Ordering::SeqCst), 0);
}

/// All of a large buffer is registered by the first operation: also when that are several at once, and it fits only once.
#[test]
fn the_first_operation_of_several_threads() {
    for _ in 0..100 {
        let (registrations, needs, used) = world(384, Duration::ZERO);
        let memory = allocated(256);
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| registrations.with_source(needs, memory.local(), is_registered).unwrap());
            }
        });
        assert_eq!(used.load(Ordering::SeqCst), 256);
    }
}

/// What all threads use at once fits; what is kept of what they used before does not.
#[test]
fn what_is_not_in_use_makes_room_for_many_threads() {
    let (registrations, needs, _) = world(400, Duration::from_micros(500));
    let failed = AtomicUsize::new(0);
    thread::scope(|scope| {
        for thread in 0..8 {
            let (registrations, failed) = (&registrations, &failed);
            scope.spawn(move || {
                let memory = vec![1_u8; 40 * 32 * PAGE];
                for round in 0..100 {
                    let at = (round * 7 + thread) % 40 * 32 * PAGE;
                    let src = Local::bytes(&memory[at..at + 16 * PAGE]);
                    if registrations.with_source(needs, src, is_registered).is_err() {
                        failed.fetch_add(1, Ordering::SeqCst);
                    }
                }
            });
        }
    });
    // With a single try some twenty do. On a busy machine one may be unlucky eight times.
    assert!(failed.load(Ordering::SeqCst) <= 2, "{failed:?} of 800");
}

#[test]
fn needs_of_others_are_refused() {
    let (registrations, _, used) = world(1 << 20, Duration::ZERO);
    let (_others, needs, _) = world(1 << 20, Duration::ZERO);
    let refused = registrations.with_source(needs, Local::bytes(&[1; 100]), |_| ()).unwrap_err();
    assert_eq!(refused, RegisterError::OtherContext);
    assert!(!refused.remedy().is_empty());
    assert_eq!(used.load(Ordering::SeqCst), 0);
}

/// A transport that stops in the midst of a piece has moved what it says of plain bytes; of others, which go by a copy, whole pieces
/// only.
#[test]
fn what_was_moved_before_a_failure() {
    let denied = |done| AccessError::AccessDenied { done, why: uct::memory::DeniedReason::Protection };
    let done = |error: AccessError| match error {
        AccessError::AccessDenied { done, .. } => done,
        other => panic!("{other}"),
    };
    let stops_at = |limit: usize| {
        move |at: usize, len: usize| {
            if at + len > limit { Err(denied((limit - at) as u64)) } else { Ok(()) }
        }
    };
    let limit = 2 * PAGE + 100;
    let stop = stops_at(limit);
    let mem = LocalMem::anonymous(4 * PAGE, Rights::READ_WRITE).unwrap();
    let part = || Local::part(&mem, 0..4 * PAGE);
    assert_eq!(done(part().in_pieces(0, |at, piece| stop(at, piece.len())).unwrap_err()), limit as u64);
    let mut into = LocalMut::part(&mem, 0..4 * PAGE);
    let fill = |at: usize, piece: &mut [u8]| {
        piece.fill(7);
        stop(at, piece.len())
    };
    assert_eq!(
        done(into.in_pieces(0, fill).unwrap_err()),
        2 * PAGE as u64,
        "the third piece was not written"
    );
    let mut seen = vec![0; 4 * PAGE];
    mem.read(0, &mut seen).unwrap();
    assert!(seen[..2 * PAGE].iter().all(|byte| *byte == 7) && seen[2 * PAGE..].iter().all(|byte| *byte == 0));
    let mut bytes = vec![0; 4 * PAGE];
    assert_eq!(done(LocalMut::bytes(&mut bytes).in_pieces(0, fill).unwrap_err()), limit as u64);
    // Empty ones ask the transport, too: it may be gone.
    let gone = |_: usize, _: &[u8]| Err(denied(0));
    assert!(
        Local::part(&mem, 0..0).in_pieces(0, gone).is_err() && Local::bytes(&[]).in_pieces(0, gone).is_err()
    );
}
