//! The cache: finds a registration, or makes one, and lets go of those whose memory has changed.

use std::fmt;
use std::ptr;
use std::sync::{Arc, Weak};
use std::thread;

use super::books::{Books, Held, Place, Placed};
use super::index::Index;
use super::options::{Mode, Options};
use super::reclaim::{self, Reclaim};
use super::region::RegionRef;
use super::stats::{Counter, Stats};
use super::table::Making;
use super::word::State;
use super::{MemMonitor, Registrar};
use crate::fork::{self, Generation};
use crate::mem::page::{PageRange, page_size};
use crate::mem::{Access, MemError};
use crate::monitor::{Backing, Change, Kind, Refused, Sink, Verdict};
use crate::sync::{AtomicBool, Ordering};

/// How often a registration is tried before it is made for one use: the memory there changes all the time.
const TRIES: u32 = 16;

/// How often it is asked whether a registration made just now is settled, while other memory changes.
const SETTLING: u32 = 64;

/// How often room is made before a registration is made for one use: each time for some 30 that are in the way.
const ROOMS: u32 = 1024;

/// No registration to use.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GetError<E> {
    /// No bytes, or bytes past the end of the address space.
    #[error("{len} bytes at {address:#x} are no range of addresses")]
    BadRange {
        /// Where it begins.
        address: usize,
        /// How many bytes.
        len: usize,
    },
    /// The memory cannot be registered.
    #[error("{0}")]
    Register(E),
    /// The cache belongs to the parent process of a fork.
    #[error("this cache belongs to the parent process: a fork's child must make its own")]
    Forked,
}

/// A registration cache. Send + Sync, and cheap to clone: clones are the same cache.
///
/// Dropping the last clone, and the last [`RegionRef`], deregisters everything: at once, or a moment later on another thread that
/// is deregistering something of it just then.
pub struct Cache<R: Registrar> {
    inner: Arc<Inner<R>>,
}

impl<R: Registrar> Clone for Cache<R> {
    fn clone(&self) -> Self {
        Self { inner: Arc::clone(&self.inner) }
    }
}

impl<R: Registrar> fmt::Debug for Cache<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cache").field("options", &self.inner.options).finish_non_exhaustive()
    }
}

/// What a cache is made of.
pub(super) struct Inner<R: Registrar> {
    registrar: R,
    monitor: &'static dyn MemMonitor,
    pub(super) books: Arc<Books<R::Handle>>,
    options: Options,
    generation: Generation,
    /// The monitor has said that it watches nothing, and never will.
    off: AtomicBool,
    /// Until it is dropped, the books are told of changes.
    subscription: Option<Box<dyn Send + Sync>>,
}

/// What a look for a registration found.
enum Found {
    Hit(u32),
    /// Somebody is making one there, or a change is being told of: look again.
    Again,
    None,
}

impl<R: Registrar> Cache<R> {
    /// An empty cache of what `registrar` registers; `monitor` tells it of changes. Where that cannot, nothing is kept.
    ///
    /// # Errors
    /// [`MemError`]: there is no memory for its tables.
    pub fn new(registrar: R, monitor: &'static dyn MemMonitor, options: Options) -> Result<Self, MemError> {
        let books = Arc::new(Books::new(Index::new(options.max_regions)?, options.max_regions));
        let subscription = match options.mode {
            Mode::Off => None,
            _ => monitor.subscribe(Arc::clone(&books) as Arc<dyn Sink>),
        };
        let mode = if subscription.is_some() { options.mode } else { Mode::Off };
        let alignment = options.alignment.checked_next_power_of_two().unwrap_or(1).max(page_size());
        let options = Options { mode, alignment, ..options };
        let generation = fork::generation();
        let off = AtomicBool::new(mode == Mode::Off);
        let inner = Arc::new(Inner { registrar, monitor, books, options, generation, off, subscription });
        let weak: Weak<Inner<R>> = Arc::downgrade(&inner);
        reclaim::enroll(weak);
        Ok(Self { inner })
    }

    /// A registration that covers `len` bytes at `address` for `access`: one that is there, or a new one. It is given back by
    /// dropping what is returned, after the last operation that uses it has ended.
    ///
    /// The operation uses the pages that were mapped there at some instant during this call.
    ///
    /// # Errors
    /// [`GetError`].
    pub fn get(
        &self,
        address: usize,
        len: usize,
        access: Access,
    ) -> Result<RegionRef<R>, GetError<R::Error>> {
        let inner = &self.inner;
        if !inner.generation.is_current() {
            return Err(GetError::Forked);
        }
        let wanted = PageRange::containing(address, len).ok_or(GetError::BadRange { address, len })?;
        inner.books.counters.count(Counter::gets);
        if inner.off.load(Ordering::Relaxed) || wanted.len() as u64 > inner.options.max_bytes {
            return inner.one_shot(wanted, access);
        }
        for _ in 0..TRIES {
            let slot = match inner.find(wanted, access) {
                Found::Hit(slot) => Some(slot),
                Found::Again => None,
                Found::None => match inner.make(wanted, access)? {
                    Made::Slot(slot) => Some(slot),
                    Made::Again => None,
                    Made::OneShot => break,
                },
            };
            match slot {
                Some(slot) => return Ok(RegionRef::cached(inner, slot)),
                None => thread::yield_now(),
            }
        }
        inner.one_shot(wanted, access)
    }

    /// Ends the registrations of `range`: its memory changes, or has changed. Those in use end with their last use.
    pub fn invalidate(&self, range: PageRange) {
        if self.inner.generation.is_current() {
            self.inner.books.invalidate(range, Change::Announced);
            self.inner.reclaim();
        }
    }

    /// Ends all registrations; those in use end with their last use.
    pub fn purge(&self) {
        self.invalidate(PageRange::everything());
    }

    /// Figures.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.inner.books.counters.sum()
    }

    /// How many registrations can be found.
    #[must_use]
    pub fn len(&self) -> u32 {
        self.inner.books.index.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How hits are checked: `Off` where there is no monitor, as far as is known: that is found out when the first registration is made.
    #[must_use]
    pub fn mode(&self) -> Mode {
        if self.inner.off.load(Ordering::Relaxed) { Mode::Off } else { self.inner.options.mode }
    }
}

/// What became of a registration that was to be made.
enum Made {
    Slot(u32),
    /// Its memory changed meanwhile, or somebody else is making one.
    Again,
    /// Nobody can tell of changes there, or there is no room.
    OneShot,
}

/// Why a registration was not made.
enum Failed<E> {
    /// What was tried is more than was asked for.
    More,
    Register(E),
}

impl<R: Registrar> Inner<R> {
    /// Looks for a registration, and takes a reference to it.
    #[inline]
    fn find(&self, wanted: PageRange, access: Access) -> Found {
        let seq = self.monitor.seq();
        if !seq.is_multiple_of(2) {
            return Found::Again;
        }
        let Some((number, slot)) = self.books.find(wanted.start()) else { return Found::None };
        let reference = match slot.reference() {
            Ok(reference) => reference,
            Err((state, last)) => {
                if last {
                    self.finish(number);
                }
                return if state == State::Registering { Found::Again } else { Found::None };
            }
        };
        // It was valid: what the slot says belongs to this registration, as long as the reference is held.
        let found = if !slot.serves(wanted, access) {
            Found::None
        } else if self.options.mode == Mode::Strict {
            self.books.counters.count(Counter::checks);
            let range = slot.range().unwrap_or(wanted);
            match self.monitor.check(range, reference.handle().backing) {
                // The check alone can be fooled: the pages were unmapped, others were mapped and watched there, and the event has
                // been read since. Then the state has changed, or is about to, which the sequence number tells.
                Verdict::Live if reference.is_valid() && self.monitor.seq() == seq => Found::Hit(number),
                Verdict::Live => Found::Again,
                Verdict::Pending => {
                    self.books.counters.count(Counter::pending);
                    Found::Again
                }
                Verdict::Replaced => {
                    self.books.counters.count(Counter::replaced);
                    self.books.invalidate_slot(slot);
                    Found::None
                }
            }
        } else {
            Found::Hit(number)
        };
        if matches!(found, Found::Hit(_)) {
            slot.touch();
            self.books.counters.count(Counter::hits);
            reference.keep();
        } else if reference.release() {
            self.finish(number);
        }
        found
    }

    /// Makes a registration, and takes a reference to it.
    #[cold]
    fn make(&self, wanted: PageRange, access: Access) -> Result<Made, GetError<R::Error>> {
        let made = match self.make_of(wanted, access, true) {
            Err(Failed::More) => self.make_of(wanted, access, false),
            answer => answer,
        };
        match made {
            Ok(made) => Ok(made),
            Err(Failed::Register(error)) => Err(GetError::Register(error)),
            Err(Failed::More) => Ok(Made::OneShot), // it was not more
        }
    }

    fn make_of(&self, wanted: PageRange, access: Access, widen: bool) -> Result<Made, Failed<R::Error>> {
        if self.monitor.is_suspect(wanted) {
            return Ok(Made::Again); // its pages are on their way out
        }
        let widest = if widen { wanted.widened(self.options.alignment).unwrap_or(wanted) } else { wanted };
        let may_widen = |range: PageRange| {
            widen && range.len() as u64 <= self.options.max_bytes && !self.monitor.is_suspect(range)
        };
        let mut rooms = 0..ROOMS;
        let place = loop {
            let (placed, ended) = self.books.place(wanted, widest, access, &self.options, may_widen);
            ended.iter().for_each(|number| self.finish(number));
            match placed {
                Placed::At(place) => break place,
                Placed::Busy => return Ok(Made::Again),
                Placed::More if rooms.next().is_some() => {}
                Placed::More | Placed::Full => return Ok(Made::OneShot),
            }
        };
        // Of several merged, or widened, one page may be missing, or not allow it.
        let is_more = (place.range, place.access) != (wanted, access);
        let Place { number, range, access, making } = place;
        let mut entry = Entry { inner: self, number, range, making: Some(making) };
        reclaim::recheck(range, self.monitor, ptr::from_ref(self).cast());
        let backing = match self.monitor.watch(range) {
            Ok(backing) => backing,
            Err(refused) => {
                drop(entry);
                if let Refused::Off { .. } | Refused::Forked = refused {
                    self.off.store(true, Ordering::Relaxed);
                }
                return if is_more { Err(Failed::More) } else { Ok(Made::OneShot) };
            }
        };
        if !self.options.files && (backing.is_shared() || backing.kind() == Kind::File) {
            return Ok(Made::OneShot);
        }
        match self.registrar.register(range, access) {
            Ok(handle) => entry.put(Held { handle, backing }),
            Err(error) => {
                drop(entry);
                return Err(if is_more { Failed::More } else { Failed::Register(error) });
            }
        }
        self.books.counters.add(Counter::pinned_bytes, range.len() as u64);
        if self.is_settled(range, backing) && entry.publish() {
            self.books.counters.count(Counter::misses);
            Ok(Made::Slot(number))
        } else {
            self.books.counters.count(Counter::poisoned);
            Ok(Made::Again)
        }
    }

    /// Whether what was registered just now is what is mapped there, will stay so as far as is known, and all that has happened before
    /// is told.
    ///
    /// An event that was read before the check has reached the slot's word when the sequence number is even. One that announces
    /// that pages are about to go may have been told before the registration was entered: so that is asked again. The answers
    /// count if nothing was read meanwhile.
    fn is_settled(&self, range: PageRange, backing: Backing) -> bool {
        for _ in 0..SETTLING {
            let seq = self.monitor.seq();
            if seq.is_multiple_of(2) {
                match self.monitor.check(range, backing) {
                    Verdict::Live if self.monitor.is_suspect(range) => return false,
                    Verdict::Live if self.monitor.seq() == seq => return true,
                    Verdict::Replaced => return false,
                    Verdict::Live | Verdict::Pending => {}
                }
            }
            thread::yield_now();
        }
        false
    }

    /// A registration that nobody else finds, for one use.
    #[cold]
    fn one_shot(
        self: &Arc<Self>,
        wanted: PageRange,
        access: Access,
    ) -> Result<RegionRef<R>, GetError<R::Error>> {
        let handle = self.registrar.register(wanted, access).map_err(GetError::Register)?;
        self.books.counters.count(Counter::one_shots);
        self.books.counters.add(Counter::pinned_bytes, wanted.len() as u64);
        Ok(RegionRef::one_shot(self, handle, wanted))
    }

    /// Ends a registration that is stale and not in use, if nobody else does.
    pub(super) fn finish(&self, number: u32) {
        if let Some((held, range)) = self.books.claim(number) {
            self.deregister(held.handle, range);
            self.books.free(number);
        }
    }

    pub(super) fn deregister(&self, handle: R::Handle, range: PageRange) {
        self.registrar.deregister(handle);
        self.books.counters.count(Counter::deregistrations);
        self.books.counters.take(Counter::pinned_bytes, range.len() as u64);
    }

    pub(super) fn is_mine(&self) -> bool {
        self.generation.is_current()
    }
}

/// A registration that is being made, in the index. Dropped, it is given up, also where a transport panics.
struct Entry<'a, R: Registrar> {
    inner: &'a Inner<R>,
    number: u32,
    range: PageRange,
    making: Option<Making<'a, Held<R::Handle>>>,
}

impl<R: Registrar> Entry<'_, R> {
    fn put(&mut self, held: Held<R::Handle>) {
        if let Some(making) = &mut self.making {
            making.put(held);
        }
    }

    /// Lets others find it, with a reference for its maker; `false`: its memory has changed.
    fn publish(mut self) -> bool {
        self.making = self.making.take().and_then(|making| making.publish().err());
        self.making.is_none()
    }
}

impl<R: Registrar> Drop for Entry<'_, R> {
    fn drop(&mut self) {
        if let Some(making) = self.making.take() {
            self.inner.books.unlink(self.number, self.range);
            if let Some(held) = making.abandon() {
                self.inner.deregister(held.handle, self.range);
            }
            self.inner.books.free(self.number);
        }
    }
}

impl<R: Registrar> Reclaim for Inner<R> {
    fn recheck(&self, range: PageRange, monitor: &dyn MemMonitor) {
        let concerned = self.generation.is_current() && ptr::addr_eq(self.monitor, monitor);
        let mut rest = concerned.then_some(range);
        while let Some(range) = rest {
            let (numbers, end) = self.books.overlapping(range);
            numbers.iter().for_each(|number| self.check_slot(number));
            rest = end.and_then(|end| PageRange::new(end, range.end()));
        }
    }

    fn reclaim(&self) {
        if !self.generation.is_current() {
            return;
        }
        loop {
            let stale = self.books.stale();
            stale.iter().for_each(|number| self.finish(number));
            if !stale.is_full() {
                return;
            }
        }
    }
}

impl<R: Registrar> Inner<R> {
    /// Whether what slot `number` is a registration of is still mapped; otherwise that is stale now.
    fn check_slot(&self, number: u32) {
        let Some(slot) = self.books.slot(number) else { return };
        let last = match slot.reference() {
            Ok(reference) => {
                let range = slot.range().unwrap_or(PageRange::everything());
                let mut verdict = self.monitor.check(range, reference.handle().backing);
                for _ in 0..SETTLING {
                    if verdict != Verdict::Pending {
                        break;
                    }
                    thread::yield_now();
                    verdict = self.monitor.check(range, reference.handle().backing);
                }
                if verdict != Verdict::Live {
                    self.books.invalidate_slot(slot);
                }
                reference.release()
            }
            Err((_, last)) => last,
        };
        if last {
            self.finish(number);
        }
    }
}

impl<R: Registrar> Drop for Inner<R> {
    /// Nobody uses anything any more: each use holds this.
    fn drop(&mut self) {
        self.subscription = None;
        if self.generation.is_current() {
            self.books.invalidate(PageRange::everything(), Change::Announced);
            self.reclaim();
        }
    }
}
