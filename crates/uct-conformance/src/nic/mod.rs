//! A NIC without hardware, whose registrations are *page-bound*: the oracle of tests of registration caches.
//!
//! A registration of [`Nic`] is a fixed buffer of an io_uring. The kernel pins the pages that are mapped when it is made, and every
//! operation through it reaches those pages, whatever is mapped at the address by then: as an MR of verbs does without ODP. So a
//! test can see what a NIC would: write a tag through the address, [`Nic::dma_out`] through the registration, compare.
//!
//! ```mermaid
//! flowchart LR
//!     VA["address"] -- "page tables: now" --> NEW["pages mapped now"]
//!     VA -. "munmap + mmap has cut this" .-> OLD
//!     MR["Mr"] -- "pinned: then" --> OLD["pages mapped at register"]
//!     OLD -- "dma_out" --> T["test compares with the tag<br/>written through the address"]
//! ```
//!
//! ```no_run
//! use uct_conformance::nic::Nic;
//!
//! let nic = Nic::open_or_skip(64, 1 << 20);
//! let memory = vec![7u64; 512];
//! // SAFETY: `memory` is not written through the registration, and not read by another thread.
//! let mr = unsafe { nic.register(memory.as_ptr().addr(), 4096) }.unwrap();
//! assert_eq!(nic.dma_out_u64(&mr, memory.as_ptr().addr()), Ok(7));
//! nic.deregister(mr).unwrap();
//! ```
//!
//! What to know of it:
//!
//! * [`Nic::register`] needs memory that may be written (also when nothing is ever written to it), and **faults in every page** of
//!   the range, as a verbs MR does. A range is at most [`Nic::MAX_LEN`]; all registrations of a NIC together pin at most what it
//!   was opened for ([`Nic::DEFAULT_LIMIT`]), so that one mistaken range in a reserved gigabyte does not take the machine's memory.
//! * Anonymous memory, memfds and huge pages can be pinned; since Linux 6.5 System V segments, private mappings of files, and memory of
//!   several huge mappings as one, too. Shared mappings of files on disks, read-only memory, `PROT_NONE` and `memfd_secret` cannot.
//! * What all processes of a user have pinned is counted against `RLIMIT_MEMLOCK` (often 8 MiB), unless the process has
//!   `CAP_IPC_LOCK`. A page of two registrations counts twice.
//! * [`Nic::deregister`] ends a registration at once for new operations; those in flight keep its pages until they end.
//! * In a child of a fork all calls are refused. Pinned pages stay the parent's, the child has copies (Linux 5.12 or newer).
//! * Operations in flight are ended when the thread that started them ends ([`DmaError::Failed`] with ECANCELED).
//!
//! Threads share one ring behind a lock, for a registration is a ring's: any thread may use any registration. Two threads get
//! 0.9 million words a second through one NIC, 2.1 million through one each.
//!
//! | | 4 KiB | 64 KiB | 1 MiB | 4 MiB |
//! |---|---|---|---|---|
//! | [`Nic::register`], pages that are there | 0.4 µs | 0.9 µs | 10 µs | 38 µs |
//! | [`Nic::deregister`] | 0.3 µs | 0.5 µs | 3 µs | 12 µs |
//! | [`Nic::dma_out_into`] | 0.7 µs | 8 µs | 140 µs | |
//!
//! [`Nic::dma_out_u64`] takes 0.7 µs, an operation that is started and finished 14 µs. (Linux 6.18, two virtual processors.)
//!
//! # Safety
//! Registering is the caller's promise about memory, as is writing to it. The rest is in `ring.rs`.

#![allow(unsafe_code)]

mod error;
mod pending;
mod registrar;
mod ring;
mod transport;

use std::num::NonZeroU64;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::{Mutex, MutexGuard};
use ucs::fork::{Generation, generation};

pub use error::{DmaError, RegisterError, Unavailable};
pub use pending::{PendingIn, PendingOut};
pub use registrar::NicRegistrar;
pub use transport::{NIC_COMPONENT, NicComponent};

use ring::{Part, Pipe, Ring};

/// Bits of an [`Mr`] that name its slot.
const SLOT_BITS: u32 = 16;

/// A registration: slot and serial number in one word, which no other registration of the process ever has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Mr(NonZeroU64);

impl Mr {
    fn new(slot: u16) -> Self {
        // One series for all NICs: the registration of one is stale for another. 2^48 of them are 3 years at 0.3 µs each.
        static SERIAL: AtomicU64 = AtomicU64::new(1);
        let serial = SERIAL.fetch_add(1, Ordering::Relaxed);
        assert!(serial >> (u64::BITS - SLOT_BITS) == 0, "registrations are numbered by 48 bits");
        Self(NonZeroU64::new(serial << SLOT_BITS | u64::from(slot)).expect("a serial number is not 0"))
    }

    /// The word, for tables of words.
    #[must_use]
    pub const fn to_bits(self) -> u64 {
        self.0.get()
    }

    /// A registration from its word. Any word may be given: one that is no registration of a NIC is stale there.
    #[must_use]
    pub const fn from_bits(bits: u64) -> Option<Self> {
        match NonZeroU64::new(bits) {
            Some(bits) => Some(Self(bits)),
            None => None,
        }
    }

    fn slot(self) -> u16 {
        let [low, high, ..] = self.0.get().to_le_bytes();
        u16::from_le_bytes([low, high])
    }

    fn index(self) -> usize {
        usize::from(self.slot())
    }
}

/// What a slot of the table holds.
#[derive(Clone, Copy, Debug)]
struct Slot {
    mr: Mr,
    addr: usize,
    len: usize,
}

impl Slot {
    /// Bytes of the pages it pins.
    fn pinned(self) -> usize {
        pages(self.addr, self.len)
    }
}

/// Bytes of all pages that hold a part of the range.
fn pages(addr: usize, len: usize) -> usize {
    let page = rustix::param::page_size();
    (addr % page + len).next_multiple_of(page)
}

#[derive(Debug)]
struct Inner {
    ring: Ring,
    /// For operations that are waited for; empty between them.
    pipe: Pipe,
    slots: Box<[Option<Slot>]>,
    free: Vec<u16>,
    pinned: usize,
}

impl Inner {
    fn slot(&self, mr: Mr) -> Result<Slot, DmaError> {
        let slot = self.slots.get(mr.index()).copied().flatten();
        slot.filter(|slot| slot.mr == mr).ok_or(DmaError::Stale)
    }

    /// What an operation on `len` bytes at `addr` through `mr` moves.
    fn part(&self, mr: Mr, addr: usize, len: usize) -> Result<Part, DmaError> {
        let slot = self.slot(mr)?;
        let offset = addr.checked_sub(slot.addr);
        if offset.is_none_or(|offset| offset > slot.len || len > slot.len - offset) {
            return Err(DmaError::Bounds { addr, len });
        }
        Ok(Part { slot: mr.slot(), addr, len })
    }
}

/// A NIC whose registrations hold the pages that were mapped when they were made. See the [module](self).
#[derive(Debug)]
pub struct Nic {
    inner: Mutex<Inner>,
    limit: usize,
    process: Generation,
}

impl Nic {
    /// Slots a NIC can have: as many registrations at once.
    pub const MAX_SLOTS: u16 = 1 << 14;
    /// Bytes a registration can have.
    pub const MAX_LEN: usize = 1 << 30;
    /// Bytes all registrations of a NIC may pin, unless it is opened with another limit.
    pub const DEFAULT_LIMIT: usize = 256 << 20;

    /// A NIC for `slots` registrations at once (at least 1, at most [`Self::MAX_SLOTS`]), which pin [`Self::DEFAULT_LIMIT`].
    ///
    /// # Errors
    /// There is no io_uring for this process, and what would let it be.
    pub fn open(slots: u16) -> Result<Self, Unavailable> {
        Self::with_limit(slots, Self::DEFAULT_LIMIT)
    }

    /// As [`Self::open`], for registrations that pin `limit` bytes together.
    ///
    /// # Errors
    /// There is no io_uring for this process, and what would let it be.
    pub fn with_limit(slots: u16, limit: usize) -> Result<Self, Unavailable> {
        let slots = slots.clamp(1, Self::MAX_SLOTS);
        let ring = Ring::new(slots)?;
        let pipe = Pipe::passing().map_err(|errno| error::unavailable("pipe2", &errno.into()))?;
        let inner = Inner {
            ring,
            pipe,
            slots: vec![None; usize::from(slots)].into(),
            free: (0..slots).rev().collect(),
            pinned: 0,
        };
        Ok(Self { inner: Mutex::new(inner), limit, process: generation() })
    }

    /// As [`Self::with_limit`], for tests: where there is none, or this user may not pin `limit` bytes, the test is skipped with
    /// the reason and the remedy. On the test's own thread only, as [`testkit::skip`].
    #[must_use]
    pub fn open_or_skip(slots: u16, limit: usize) -> Self {
        Self::with_room(slots, limit).unwrap_or_else(|Unavailable { why, remedy }| testkit::skip(why, remedy))
    }

    /// As [`Self::with_limit`], where this user may pin `limit` bytes.
    ///
    /// # Errors
    /// There is no io_uring for this process, or not so much to pin, and what would let it be.
    pub fn with_room(slots: u16, limit: usize) -> Result<Self, Unavailable> {
        error::room_for(limit)?;
        Self::with_limit(slots, limit)
    }

    /// Pins the pages of `len` bytes at `addr`, faulting them in.
    ///
    /// # Errors
    /// See [`RegisterError`]. Nothing is pinned then.
    ///
    /// # Safety
    /// As long as the registration lives, its pages may be read by [`Self::dma_out`]: nobody may rely on their bytes staying
    /// unread, and who reads them while they are written gets any mixture. The bytes are copied by the kernel, so the range need
    /// neither stay mapped nor hold anything.
    pub unsafe fn register(&self, addr: usize, len: usize) -> Result<Mr, RegisterError> {
        let end = addr.checked_add(len).and_then(|end| end.checked_add(rustix::param::page_size()));
        if len == 0 || len > Self::MAX_LEN || end.is_none() {
            return Err(RegisterError::Range { addr, len });
        }
        let mut inner = self.lock().ok_or(RegisterError::Child)?;
        let Some(&slot) = inner.free.last() else {
            return Err(RegisterError::Full { slots: u16::try_from(inner.slots.len()).unwrap_or(u16::MAX) });
        };
        let (wanted, pinned, limit) = (pages(addr, len), inner.pinned, self.limit);
        if wanted > limit.saturating_sub(pinned) {
            return Err(RegisterError::Limit { wanted, pinned, limit });
        }
        inner.ring.fill(slot, addr, len).map_err(RegisterError::of)?;
        inner.free.pop();
        inner.pinned += wanted;
        let mr = Mr::new(slot);
        inner.slots[usize::from(slot)] = Some(Slot { mr, addr, len });
        Ok(mr)
    }

    /// Ends a registration: for new operations at once. Its pages are unpinned when the operations in flight on it have ended.
    ///
    /// # Errors
    /// [`DmaError::Stale`]: it has ended before.
    pub fn deregister(&self, mr: Mr) -> Result<(), DmaError> {
        let mut inner = self.lock().ok_or(DmaError::Stale)?;
        let slot = inner.slot(mr)?;
        inner.ring.empty(mr.slot()).map_err(DmaError::Failed)?;
        inner.slots[mr.index()] = None;
        inner.free.push(mr.slot());
        inner.pinned -= slot.pinned();
        Ok(())
    }

    /// `len` bytes at `addr` *through the registration*: of the pages pinned then, whatever is mapped there now.
    ///
    /// # Errors
    /// See [`DmaError`].
    pub fn dma_out(&self, mr: &Mr, addr: usize, len: usize) -> Result<Vec<u8>, DmaError> {
        self.check(*mr, addr, len)?;
        let mut bytes = vec![0; len];
        self.dma_out_into(mr, addr, &mut bytes)?;
        Ok(bytes)
    }

    /// As [`Self::dma_out`], into the caller's memory, of which a part may be written when it fails. Allocates nothing.
    ///
    /// # Errors
    /// See [`DmaError`].
    pub fn dma_out_into(&self, mr: &Mr, addr: usize, bytes: &mut [u8]) -> Result<(), DmaError> {
        let mut inner = self.lock().ok_or(DmaError::Stale)?;
        let part = inner.part(*mr, addr, bytes.len())?;
        let Inner { ring, pipe, .. } = &mut *inner;
        ring.out(part, pipe, bytes)
    }

    /// The word at `addr`, which need not be aligned, through the registration. Allocates nothing.
    ///
    /// # Errors
    /// See [`DmaError`].
    pub fn dma_out_u64(&self, mr: &Mr, addr: usize) -> Result<u64, DmaError> {
        let mut bytes = [0; 8];
        self.dma_out_into(mr, addr, &mut bytes)?;
        Ok(u64::from_ne_bytes(bytes))
    }

    /// Writes `bytes` to `addr` *through the registration*: to the pages pinned then, whatever is mapped there now.
    ///
    /// # Errors
    /// See [`DmaError`]. A part may have been written.
    ///
    /// # Safety
    /// The registered pages may be written: no reference to bytes mapped from them is alive (but [`std::cell::UnsafeCell`]s and
    /// atomics), and any value is good there. Pages that are no longer mapped anywhere may always be written.
    pub unsafe fn dma_in(&self, mr: &Mr, addr: usize, bytes: &[u8]) -> Result<(), DmaError> {
        let mut inner = self.lock().ok_or(DmaError::Stale)?;
        let part = inner.part(*mr, addr, bytes.len())?;
        let Inner { ring, pipe, .. } = &mut *inner;
        ring.fetch(part, pipe, bytes)
    }

    /// Writes a word to `addr`, which need not be aligned, through the registration. Allocates nothing.
    ///
    /// # Errors
    /// See [`DmaError`].
    ///
    /// # Safety
    /// As [`Self::dma_in`].
    pub unsafe fn dma_in_u64(&self, mr: &Mr, addr: usize, value: u64) -> Result<(), DmaError> {
        // SAFETY: the caller's promise is passed on.
        unsafe { self.dma_in(mr, addr, &value.to_ne_bytes()) }
    }

    /// Starts what [`Self::dma_out`] does, and holds it back: the kernel has the pages, and reads them at
    /// [`PendingOut::finish`]. 64 KiB are always possible, up to `fs.pipe-max-size`.
    ///
    /// # Errors
    /// See [`DmaError`].
    pub fn start_out(&self, mr: &Mr, addr: usize, len: usize) -> Result<PendingOut<'_>, DmaError> {
        PendingOut::start(self, *mr, addr, len)
    }

    /// Starts what [`Self::dma_in`] does, and holds it back: the kernel has the pages, and writes them at
    /// [`PendingIn::finish`]. 64 KiB are always possible, up to `fs.pipe-max-size`.
    ///
    /// # Errors
    /// See [`DmaError`].
    ///
    /// # Safety
    /// As [`Self::dma_in`], until the operation has ended.
    pub unsafe fn start_in(&self, mr: &Mr, addr: usize, len: usize) -> Result<PendingIn<'_>, DmaError> {
        PendingIn::start(self, *mr, addr, len)
    }

    /// Whether operations through the registration can be started.
    #[must_use]
    pub fn is_registered(&self, mr: &Mr) -> bool {
        self.lock().is_some_and(|inner| inner.slot(*mr).is_ok())
    }

    /// Registrations there are.
    #[must_use]
    pub fn registrations(&self) -> usize {
        self.lock().map_or(0, |inner| inner.slots.len() - inner.free.len())
    }

    /// Bytes of the pages of all registrations; a page of two counts twice.
    #[must_use]
    pub fn pinned_bytes(&self) -> usize {
        self.lock().map_or(0, |inner| inner.pinned)
    }

    fn check(&self, mr: Mr, addr: usize, len: usize) -> Result<(), DmaError> {
        self.lock().ok_or(DmaError::Stale)?.part(mr, addr, len).map(|_| ())
    }

    fn check_process(&self) -> Result<(), DmaError> {
        if self.process.is_current() { Ok(()) } else { Err(DmaError::Stale) }
    }

    /// `None` in a fork's child, whose ring is the parent's, and which may have no thread to give the lock back.
    fn lock(&self) -> Option<MutexGuard<'_, Inner>> {
        self.process.is_current().then(|| self.inner.lock())
    }
}

impl Drop for Nic {
    /// The kernel takes a ring apart some time after it is closed; pages are unpinned, and no longer counted, now.
    fn drop(&mut self) {
        if !self.process.is_current() {
            return;
        }
        let inner = self.inner.get_mut();
        for slot in inner.slots.iter().flatten() {
            let _ = inner.ring.empty(slot.mr.slot());
        }
    }
}
