//! Memory that is unmapped, mapped again, moved and dropped.
//!
//! # Safety
//! All mappings made here lie in addresses that are set aside once ([`Arena`]) and never given back, so nothing but this module maps
//! anything there. A part of them has one owner, by type:
//!
//! - [`Room`]: nobody else maps anything there. What is mapped there may be replaced.
//! - [`Hole`]: several may try to map there. The kernel lets one of them (`MAP_FIXED_NOREPLACE`), and the next one only after that
//!   one has unmapped it.
//! - [`Held`]: mapped, readable and writable for as long as it lives; no other value is of the same addresses.
//! - [`Block`]: of malloc(3), freed once.
//!
//! Words are read and written volatile, never by references: the NIC reads and writes them, too. A stale registration may make the NIC
//! write into another `Held` or into pages mapped nowhere, which changes words but breaks no rule: any word is good anywhere.

#![allow(unsafe_code)]

use std::io;
use std::ptr;

use libc::c_void;
use rustix::io::Errno;
use rustix::mm::{
    Advice, MapFlags, MremapFlags, ProtFlags, madvise, mmap_anonymous, mremap, mremap_fixed, munmap,
};
use ucs::mem::page::{PageRange, page_size};
use uct_conformance::nic::{DmaError, Mr, Nic};

const ACCESS: ProtFlags = ProtFlags::READ.union(ProtFlags::WRITE);

/// Where the addresses begin, if nothing is there: far below those that the kernel gives to others who ask for memory, also when
/// parts of it are unmapped.
const BEGIN: usize = 0x1000_0000_0000;

/// A part of the addresses that are set aside.
#[derive(Clone, Copy, Debug)]
struct Part {
    start: *mut c_void,
    len: usize,
}

// SAFETY: an address and a length; what may be done there is up to the values that hold it (module rule).
unsafe impl Send for Part {}
// SAFETY: as above.
unsafe impl Sync for Part {}

impl Part {
    fn at(self, at: usize) -> *mut c_void {
        assert!(at < self.len, "{at} is within {} bytes", self.len);
        self.start.wrapping_byte_add(at)
    }

    /// Some pages of it.
    fn pages(self, at: usize, len: usize) -> Self {
        let page = page_size();
        assert!(
            at.is_multiple_of(page) && len.is_multiple_of(page) && len > 0 && at + len <= self.len,
            "pages within it"
        );
        Self { start: self.at(at), len }
    }

    fn range(self) -> PageRange {
        PageRange::containing(self.start.addr(), self.len).unwrap_or_else(PageRange::everything)
    }

    fn map(self, how: MapFlags) -> Result<(), Errno> {
        // SAFETY: addresses that are set aside, where nobody but the caller has anything mapped, or where `how` replaces nothing.
        let got = unsafe { mmap_anonymous(self.start, self.len, ACCESS, MapFlags::PRIVATE | how) }?;
        if got == self.start {
            return Ok(());
        }
        // A kernel that does not know NOREPLACE takes the address as a wish.
        // SAFETY: mapped just now, and unknown to all others.
        let _ = unsafe { munmap(got, self.len) };
        Err(Errno::EXIST)
    }

    fn unmap(self) -> Result<(), Errno> {
        // SAFETY: the caller owns what is mapped there (module rule).
        unsafe { munmap(self.start, self.len) }
    }
}

/// Addresses set aside for the life of the process.
#[derive(Debug)]
pub(super) struct Arena {
    rest: Part,
}

impl Arena {
    /// Sets them aside.
    ///
    /// # Errors
    /// The kernel's.
    pub(super) fn new(len: usize) -> io::Result<Self> {
        let wish = ptr::without_provenance_mut(BEGIN);
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: without MAP_FIXED nothing is replaced.
        let start = unsafe { mmap_anonymous(wish, len, ProtFlags::empty(), flags) }?;
        Ok(Self { rest: Part { start, len } })
    }

    /// The next of them. A page behind it stays as it is: mappings of two parts never become one.
    pub(super) fn room(&mut self, len: usize) -> Room {
        let taken = len + page_size();
        let part = self.rest.pages(0, len);
        assert!(taken < self.rest.len, "enough was set aside");
        self.rest = self.rest.pages(taken, self.rest.len - taken);
        Room(part)
    }
}

/// Addresses of one owner, where nothing of use is mapped.
#[derive(Debug)]
pub(super) struct Room(Part);

impl Room {
    /// Maps fresh memory there.
    ///
    /// # Errors
    /// The kernel's.
    pub(super) fn map(self) -> io::Result<Held> {
        self.0.map(MapFlags::FIXED)?;
        Ok(Held { part: self.0, shared: false })
    }

    /// Has others map there, too.
    ///
    /// # Errors
    /// The kernel's.
    pub(super) fn open(self) -> io::Result<Hole> {
        self.0.unmap()?;
        Ok(Hole(self.0))
    }

    /// Two, one behind the other.
    pub(super) fn split(self, at: usize) -> (Self, Self) {
        (Self(self.0.pages(0, at)), Self(self.0.pages(at, self.0.len - at)))
    }

    /// Its addresses.
    pub(super) fn range(&self) -> PageRange {
        self.0.range()
    }
}

/// Addresses that anybody may map, one at a time.
#[derive(Debug)]
pub(super) struct Hole(Part);

impl Hole {
    /// Maps fresh memory there; `None`: somebody else has.
    ///
    /// # Errors
    /// The kernel's.
    pub(super) fn claim(&self) -> io::Result<Option<Held>> {
        match self.0.map(MapFlags::FIXED_NOREPLACE) {
            Ok(()) => Ok(Some(Held { part: self.0, shared: true })),
            Err(Errno::EXIST) => Ok(None),
            Err(errno) => Err(errno.into()),
        }
    }
}

/// What became of a try to move memory: it moved, or there is fresh memory where it was.
pub(super) type Moved<T> = Result<T, (Held, Room)>;

/// Mapped memory of one owner.
#[derive(Debug)]
pub(super) struct Held {
    part: Part,
    /// Of a [`Hole`].
    shared: bool,
}

impl Held {
    /// Address of a byte.
    pub(super) fn address(&self, at: usize) -> usize {
        self.part.at(at).addr()
    }

    /// Bytes.
    pub(super) fn len(&self) -> usize {
        self.part.len
    }

    /// Its pages.
    pub(super) fn range(&self) -> PageRange {
        self.part.range()
    }

    /// The word at `at`, a multiple of 8.
    pub(super) fn read(&self, at: usize) -> u64 {
        assert!(at.is_multiple_of(8), "words are aligned");
        // SAFETY: an aligned word of mapped memory that is this value's (module rule).
        unsafe { self.part.at(at).cast::<u64>().read_volatile() }
    }

    /// Writes the word at `at`, a multiple of 8.
    pub(super) fn write(&self, at: usize, word: u64) {
        assert!(at.is_multiple_of(8), "words are aligned");
        // SAFETY: as above.
        unsafe { self.part.at(at).cast::<u64>().write_volatile(word) };
    }

    /// Has the NIC write the word at `at`.
    ///
    /// # Errors
    /// The NIC's.
    pub(super) fn dma_in(&self, nic: &Nic, mr: Mr, at: usize, word: u64) -> Result<(), DmaError> {
        // SAFETY: no reference to this memory exists, and any word is good there: also where a stale registration has the NIC write
        // instead (module rule).
        unsafe { nic.dma_in_u64(&mr, self.address(at), word) }
    }

    /// Maps fresh memory over some pages of it.
    ///
    /// # Errors
    /// The kernel's.
    pub(super) fn map_over(&mut self, at: usize, len: usize) -> io::Result<()> {
        Ok(self.part.pages(at, len).map(MapFlags::FIXED)?)
    }

    /// Gives advice on all of it which may change its words, and nothing else.
    ///
    /// # Errors
    /// The kernel's.
    pub(super) fn drop_pages(&mut self, how: Zap) -> io::Result<()> {
        let advice = match how {
            Zap::DontNeed => Advice::LinuxDontNeed,
            Zap::Locked => Advice::LinuxDontneedLocked,
            Zap::Free => Advice::LinuxFree,
        };
        // SAFETY: memory of this value, whose words nobody relies on.
        Ok(unsafe { madvise(self.part.start, self.part.len, advice) }?)
    }

    /// Unmaps the second half, and maps it again by growing the first.
    ///
    /// # Errors
    /// The kernel's. The half may be gone then: it is mapped afresh.
    pub(super) fn shrink_and_grow(&mut self) -> io::Result<()> {
        let (part, half) = (self.part, self.part.len / 2);
        let tail = part.pages(half, part.len - half);
        // SAFETY: memory of this value; its second half is mapped again below before anybody can use it.
        let shrunk = unsafe { mremap(part.start, part.len, half, MremapFlags::empty()) };
        // SAFETY: grows into the addresses given up just now.
        let grown = shrunk.and_then(|_| unsafe { mremap(part.start, half, part.len, MremapFlags::empty()) });
        // Of several mappings it cannot be grown as one.
        grown.map(drop).or_else(|_| tail.map(MapFlags::FIXED)).map_err(Into::into)
    }

    /// Moves its pages into `room`, and leaves fresh ones (MREMAP_DONTUNMAP), or what was there where that cannot be done.
    ///
    /// # Errors
    /// The kernel's.
    pub(super) fn move_pages_out(&mut self, room: Room) -> (Room, io::Result<()>) {
        let flags = MremapFlags::MAYMOVE | MremapFlags::DONTUNMAP;
        let (part, to) = (self.part, room.0.start);
        assert!(part.len <= room.0.len, "it fits");
        // SAFETY: memory of this value, whose words nobody relies on, to addresses of the room's.
        let moved = unsafe { mremap_fixed(part.start, part.len, part.len, flags, to) };
        (room, moved.map(drop).map_err(Into::into))
    }

    /// Moves it into `room`. Where it was, there is room then. Of several mappings it cannot be moved as one.
    ///
    /// # Errors
    /// The kernel's: there is nothing any more.
    pub(super) fn move_to(self, room: Room) -> io::Result<Moved<(Self, Room)>> {
        assert!(!self.shared, "others may have mapped where it was");
        let from = self.part;
        Ok(self.relocate(room)?.map(|held| (held, Room(from))))
    }

    /// Moves it into `room`, away from addresses that others may map then.
    ///
    /// # Errors
    /// As [`Held::move_to`].
    pub(super) fn move_away(self, room: Room) -> io::Result<Moved<Self>> {
        self.relocate(room)
    }

    fn relocate(self, room: Room) -> io::Result<Moved<Self>> {
        let (from, to) = (self.part, room.0);
        assert!(from.len == to.len, "as large as it");
        // SAFETY: memory of this value, which is given up, to addresses of the room's, where nothing of use is.
        match unsafe { mremap_fixed(from.start, from.len, from.len, MremapFlags::MAYMOVE, to.start) } {
            Ok(_) => Ok(Ok(Self { part: to, shared: false })),
            // Since Linux 6.17 several mappings may be moved, and some of them have been when it fails at a later one that is watched.
            // That one is still here, so that nobody else can have claimed the addresses.
            Err(_) => {
                from.map(MapFlags::FIXED)?;
                Ok(Err((self, room)))
            }
        }
    }

    /// Moves it onto `other`, whose pages are unmapped by that. Where it was, there is room then.
    ///
    /// # Errors
    /// The kernel's: nothing of both may be there any more.
    pub(super) fn move_onto(self, other: &mut Self) -> io::Result<Room> {
        assert!(!self.shared && self.part.len == other.part.len, "as large as the other");
        let (from, to) = (self.part, other.part);
        // SAFETY: memory of this value, which is given up, to that of the other, which stays mapped and the other's.
        unsafe { mremap_fixed(from.start, from.len, from.len, MremapFlags::MAYMOVE, to.start) }?;
        Ok(Room(from))
    }

    /// Unmaps it, and keeps its addresses.
    ///
    /// # Errors
    /// The kernel's.
    pub(super) fn leave(self) -> io::Result<Room> {
        assert!(!self.shared, "others may map there");
        let room = Room(self.part);
        self.unmap()?;
        Ok(room)
    }

    /// Unmaps it.
    ///
    /// # Errors
    /// The kernel's.
    pub(super) fn unmap(self) -> io::Result<()> {
        Ok(self.part.unmap()?)
    }

    /// Cuts it into pieces of `len` bytes, a multiple of a page: the mapping stays one.
    pub(super) fn cut(self, len: usize) -> Vec<Self> {
        let pieces = (0..self.part.len).step_by(len);
        pieces.map(|at| Self { part: self.part.pages(at, len), shared: false }).collect()
    }
}

/// Ways to drop pages (`madvise(2)`).
#[derive(Clone, Copy, Debug)]
pub(super) enum Zap {
    /// `MADV_DONTNEED`.
    DontNeed,
    /// `MADV_DONTNEED_LOCKED` (Linux 5.18).
    Locked,
    /// `MADV_FREE`.
    Free,
}

/// A block of malloc(3).
#[derive(Debug)]
pub(super) struct Block {
    start: *mut c_void,
    len: usize,
}

impl Block {
    /// A new one; `None`: there is no memory.
    pub(super) fn new(len: usize) -> Option<Self> {
        // SAFETY: asks for memory.
        let start = unsafe { libc::malloc(len) };
        (!start.is_null()).then_some(Self { start, len })
    }

    /// Address of its first byte.
    pub(super) fn address(&self) -> usize {
        self.start.addr()
    }

    /// Writes the word at `at`, a multiple of 8.
    pub(super) fn write(&self, at: usize, word: u64) {
        assert!(at.is_multiple_of(8) && at + 8 <= self.len, "a word within it");
        // SAFETY: an aligned word of this block, to which there are no references.
        unsafe { self.start.wrapping_byte_add(at).cast::<u64>().write_volatile(word) };
    }

    /// Frees it.
    pub(super) fn free(self) {
        // SAFETY: of malloc(3), and freed only here.
        unsafe { libc::free(self.start) };
    }
}

/// Has malloc(3) give memory back to the kernel soon: large blocks when they are freed, small ones by shrinking the heap.
pub(super) fn set_up_malloc() {
    #[cfg(target_env = "gnu")]
    for (what, value) in
        [(libc::M_ARENA_MAX, 1), (libc::M_MMAP_THRESHOLD, 128 << 10), (libc::M_TRIM_THRESHOLD, 16 << 10)]
    {
        // SAFETY: numbers, of glibc's; what it refuses stays as it is.
        unsafe { libc::mallopt(what, value) };
    }
}
