//! The cache: finds a registration, or makes one, and lets go of those whose memory has changed.

use std::fmt;
use std::ptr;
use std::sync::{Arc, Weak};
use std::thread;

use parking_lot::Mutex;

use super::books::{Batch, Books};
use super::desk::{Desks, Mine};
use super::guess::Guesses;
use super::index::Index;
use super::make::{Made, SETTLING};
use super::options::{Mode, Options};
use super::reclaim::{self, Reclaim};
use super::region::{self, Held, RegionRef};
use super::stats::{Counter, Stats};
use super::table::{NoReference, Reference, Slot, Table};
use super::word::State;
use super::{MemMonitor, Registrar};
use crate::fork::{self, Generation};
use crate::mem::page::{PageRange, page_size};
use crate::mem::{Access, MemError};
use crate::monitor::{Backing, Signs, Sink, Verdict};
use crate::sync::{AtomicBool, AtomicUsize, Ordering};

/// How often a registration is tried before it is made for one use: the memory there changes all the time.
const TRIES: u32 = 16;

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
/// Dropping the last clone deregisters everything that nobody uses: at once, or a moment later on another thread that is
/// deregistering something of it just then. What is in use ends with the last [`RegionRef`] of it.
pub struct Cache<R: Registrar> {
    inner: Arc<Inner<R>>,
}

impl<R: Registrar> Clone for Cache<R> {
    fn clone(&self) -> Self {
        self.inner.handles.fetch_add(1, Ordering::Relaxed);
        Self { inner: Arc::clone(&self.inner) }
    }
}

impl<R: Registrar> Drop for Cache<R> {
    fn drop(&mut self) {
        // What was done by the other handles comes before the end.
        if self.inner.handles.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.inner.close();
        }
    }
}

impl<R: Registrar> fmt::Debug for Cache<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cache").field("options", &self.inner.options).finish_non_exhaustive()
    }
}

/// What a cache is made of. Each handle to the cache keeps it, and each registration ([`Held`]).
pub(super) struct Inner<R: Registrar> {
    pub(super) registrar: R,
    pub(super) monitor: &'static dyn MemMonitor,
    pub(super) books: Arc<Books<Held<R>>>,
    /// The books' table, from where a hit finds it soonest.
    table: Table<Held<R>>,
    pub(super) desks: Desks,
    pub(super) guesses: Guesses,
    pub(super) options: Options,
    generation: Generation,
    /// What the monitor shows of itself, if hits may go by that.
    signs: Option<&'static Signs>,
    /// The monitor has said that it watches nothing, and never will.
    pub(super) off: AtomicBool,
    /// Hooks announce all changes, as far as was noticed.
    announced: AtomicBool,
    /// How many handles there are to the cache.
    handles: AtomicUsize,
    /// Until it is dropped, the books are told of changes.
    subscription: Mutex<Option<Box<dyn Send + Sync>>>,
}

/// What a look for a registration found.
enum Found<'a, R: Registrar> {
    /// One, and a reference to it was kept.
    Hit(&'a Slot<Held<R>>),
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
        let books: Arc<Books<Held<R>>> =
            Arc::new(Books::new(Index::new(options.max_regions)?, options.max_regions));
        let subscription = match options.mode {
            Mode::Off => None,
            _ => monitor.subscribe(Arc::clone(&books) as Arc<dyn Sink>),
        };
        let mode = if subscription.is_some() { options.mode } else { Mode::Off };
        if mode == Mode::Auto {
            monitor.hook();
        }
        let announced = AtomicBool::new(mode == Mode::Auto && monitor.announces());
        let alignment = options.alignment.checked_next_power_of_two().unwrap_or(1).max(page_size());
        let options = Options { mode, alignment, ..options };
        let generation = fork::generation();
        let off = AtomicBool::new(mode == Mode::Off);
        let subscription = Mutex::new(subscription);
        let (desks, guesses) = (Desks::new(), Guesses::new(options.max_regions));
        let handles = AtomicUsize::new(1);
        let signs = if matches!(mode, Mode::Auto | Mode::Hooks) { monitor.signs() } else { None };
        let table = books.table.clone();
        let inner = Inner {
            registrar,
            monitor,
            books,
            table,
            desks,
            guesses,
            options,
            generation,
            signs,
            off,
            announced,
            handles,
            subscription,
        };
        let inner = Arc::new(inner);
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
    #[inline]
    pub fn get(
        &self,
        address: usize,
        len: usize,
        access: Access,
    ) -> Result<RegionRef<R>, GetError<R::Error>> {
        // Nothing here makes a call, but for the last step of each way: so nothing has to be kept over one.
        let Some(wanted) = self.inner.unchecked(address, len) else {
            return self.get_surely(address, len, access);
        };
        match self.inner.hit(wanted, access, |desk, start| desk.recent(start)) {
            Some(slot) => Ok(RegionRef::cached(slot)),
            None => self.get_guessed(wanted, access),
        }
    }

    /// As [`Cache::get`], unchecked, of what this thread has not found lately.
    #[inline(never)]
    fn get_guessed(&self, wanted: PageRange, access: Access) -> Result<RegionRef<R>, GetError<R::Error>> {
        let guess = |desk: Mine<'_>, start| {
            let number = self.inner.guesses.of(start)?;
            desk.note(start, number);
            Some(number)
        };
        match self.inner.hit(wanted, access, guess) {
            Some(slot) => Ok(RegionRef::cached(slot)),
            None => self.get_surely(wanted.start(), wanted.len(), access),
        }
    }

    /// As [`Cache::get`], whatever is there.
    #[inline(never)]
    fn get_surely(
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
        if inner.off.load(Ordering::Relaxed) || wanted.len() as u64 > inner.options.max_bytes {
            return inner.one_shot(wanted, access);
        }
        match inner.find(wanted, access) {
            Found::Hit(slot) => Ok(RegionRef::cached(slot)),
            found => inner.get_on(found, wanted, access),
        }
    }

    /// Ends the registrations of `range`: its memory changes, or has changed. Those in use end with their last use.
    pub fn invalidate(&self, range: PageRange) {
        if self.inner.generation.is_current() {
            self.inner.books.invalidate_range(range);
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
        let (hits, checks) = self.inner.desks.sums();
        self.inner.books.counters.sum(hits, checks)
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

    /// How hits are checked now, never `Auto`; `Off` where there is no monitor, as far as is known: that is found out when the first
    /// registration is made.
    #[must_use]
    pub fn mode(&self) -> Mode {
        match self.inner.options.mode {
            _ if self.inner.off.load(Ordering::Relaxed) => Mode::Off,
            Mode::Auto if self.inner.is_checked() => Mode::Strict,
            Mode::Auto => Mode::Hooks,
            mode => mode,
        }
    }
}

impl<R: Registrar> Inner<R> {
    /// The pages that are wanted, if a hit of them needs no check, as far as is known without a call.
    #[inline(always)]
    fn unchecked(&self, address: usize, len: usize) -> Option<PageRange> {
        // Before the monitor is looked at: its memory is not a fork's child's.
        let signs = if self.generation.is_surely_current() { self.signs? } else { return None };
        let wanted = PageRange::containing(address, len)?;
        let is_plain = signs.seq().is_multiple_of(2)
            && (self.options.mode == Mode::Hooks || signs.announces())
            && wanted.len() as u64 <= self.options.max_bytes
            && !self.off.load(Ordering::Relaxed);
        is_plain.then_some(wanted)
    }

    /// A hit in the slot that `likely` tells.
    #[inline(always)]
    fn hit(
        &self,
        wanted: PageRange,
        access: Access,
        likely: impl FnOnce(Mine<'_>, usize) -> Option<u32>,
    ) -> Option<&Slot<Held<R>>> {
        let desk = self.desks.own()?;
        let slot = self.table.get(likely(desk, wanted.start())?)?;
        let reference = Self::refer(slot, wanted, access).ok()?;
        slot.touch();
        desk.count_hit();
        Some(reference.keep())
    }

    /// Looks for a registration, and takes a reference to it. All that a hit writes is the slot's word, and the thread's own desk.
    #[inline]
    fn find(&self, wanted: PageRange, access: Access) -> Found<'_, R> {
        let seq = self.monitor.seq();
        if !seq.is_multiple_of(2) {
            return Found::Again;
        }
        let desk = self.desks.mine();
        let is_checked = self.is_checked();
        // Most likely, likely, and sure: all but the last may be wrong, and the slot tells. An unchecked hit was tried by these before.
        let likely = if is_checked || self.signs.is_none() {
            desk.recent(wanted.start()).or_else(|| self.guesses.of(wanted.start()))
        } else {
            None
        };
        let slot = likely.and_then(|number| self.table.get(number));
        let reference = match slot.and_then(|slot| Self::refer(slot, wanted, access).ok()) {
            Some(reference) => reference,
            None => {
                let Some((number, slot)) = self.books.find(wanted.start()) else { return Found::None };
                match Self::refer(slot, wanted, access) {
                    Ok(reference) => {
                        desk.note(wanted.start(), number);
                        reference
                    }
                    Err(found) => return found,
                }
            }
        };
        let slot = reference.slot();
        let found = if is_checked {
            desk.count_check();
            let range = slot.range().unwrap_or(wanted);
            match self.monitor.check(range, reference.handle().backing) {
                // The check alone can be fooled: the pages were unmapped, others were mapped and watched there, and the event has
                // been read since. Then the state has changed, or is about to, which the sequence number tells.
                Verdict::Live if reference.is_valid() && self.monitor.seq() == seq => Ok(()),
                verdict => Err(self.no_hit(verdict, slot)),
            }
        } else {
            Ok(())
        };
        match found {
            Ok(()) => {
                slot.touch();
                desk.count_hit();
                Found::Hit(reference.keep())
            }
            Err(found) => {
                reference.release().into_iter().for_each(region::end);
                found
            }
        }
    }

    /// Whether a hit has to be checked by the kernel.
    #[inline]
    fn is_checked(&self) -> bool {
        match self.options.mode {
            Mode::Strict => true,
            Mode::Auto => !self.monitor.announces(),
            Mode::Hooks | Mode::Off => false,
        }
    }

    /// Says once that what was announced is not any more.
    pub(super) fn note_unannounced(&self) {
        if self.announced.load(Ordering::Relaxed) && !self.monitor.announces() {
            self.announced.store(false, Ordering::Relaxed);
            tracing::warn!(
                "memory was changed past the hooks of the C library: from now on each hit is checked by the kernel"
            );
        }
    }

    /// Takes a reference to what is in a slot, if that is valid and serves.
    #[inline(always)]
    fn refer(
        slot: &Slot<Held<R>>,
        wanted: PageRange,
        access: Access,
    ) -> Result<Reference<'_, Held<R>>, Found<'_, R>> {
        match slot.reference() {
            // It was valid: what the slot says belongs to this registration, as long as the reference is held.
            Ok(reference) if slot.serves(wanted, access) => Ok(reference),
            referred => Err(Self::no_use(referred)),
        }
    }

    /// What was referred to is not valid, or does not serve; and has perhaps ended with the reference that was taken for a moment.
    #[cold]
    #[inline(never)]
    fn no_use<'a>(referred: Result<Reference<'a, Held<R>>, NoReference<'a, Held<R>>>) -> Found<'a, R> {
        let (state, ended) = match referred {
            Ok(reference) => (State::Valid, reference.release()),
            Err(instead) => instead,
        };
        ended.into_iter().for_each(region::end);
        if state == State::Registering { Found::Again } else { Found::None }
    }

    /// What becomes of a registration that the check did not find alive and unchanged.
    #[cold]
    fn no_hit(&self, verdict: Verdict, slot: &Slot<Held<R>>) -> Found<'_, R> {
        match verdict {
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
    }

    /// Goes on with a `get` that was no hit.
    #[cold]
    fn get_on<'a>(
        self: &'a Arc<Self>,
        mut found: Found<'a, R>,
        wanted: PageRange,
        access: Access,
    ) -> Result<RegionRef<R>, GetError<R::Error>> {
        for _ in 0..TRIES {
            match found {
                Found::Hit(slot) => return Ok(RegionRef::cached(slot)),
                Found::Again => {}
                Found::None => match self.make(wanted, access)? {
                    Made::Slot(slot) => return Ok(RegionRef::cached(slot)),
                    Made::Again => {}
                    Made::OneShot => break,
                },
            }
            thread::yield_now();
            found = self.find(wanted, access);
        }
        if let Found::Hit(slot) = found {
            return Ok(RegionRef::cached(slot));
        }
        self.one_shot(wanted, access)
    }

    /// A registration that nobody else finds, for one use.
    #[cold]
    fn one_shot(
        self: &Arc<Self>,
        wanted: PageRange,
        access: Access,
    ) -> Result<RegionRef<R>, GetError<R::Error>> {
        let handle = self.registrar.register(wanted, access).map_err(|error| self.failed(error))?;
        self.books.counters.count(Counter::one_shots);
        self.books.counters.add(Counter::pinned_bytes, wanted.len() as u64);
        let backing = Backing::anonymous(); // nobody asks
        let held = Held { handle, backing, cache: Arc::clone(self) };
        Ok(RegionRef::one_shot(held, wanted, access))
    }

    /// Ends a registration that is stale and not in use, if nobody else does.
    pub(super) fn finish(&self, number: u32) {
        if let Some(claimed) = self.books.slot(number).and_then(Slot::claim) {
            region::end(claimed);
        }
    }

    /// Ends those, also behind one whose transport panics: the reclaimer does then.
    pub(super) fn finish_all(&self, ended: &Batch) {
        let mut rest = Rest { books: &self.books, numbers: ended.iter() };
        for number in rest.numbers.by_ref() {
            self.finish(number);
        }
    }

    pub(super) fn note_deregistered(&self, range: PageRange) {
        self.books.counters.count(Counter::deregistrations);
        self.books.counters.take(Counter::pinned_bytes, range.len() as u64);
    }

    pub(super) fn is_mine(&self) -> bool {
        self.generation.is_current()
    }
}

/// Slots that are to be ended; dropped, those that are left are listed as stale.
struct Rest<'a, H, I: Iterator<Item = u32>> {
    books: &'a Books<H>,
    numbers: I,
}

impl<H, I: Iterator<Item = u32>> Drop for Rest<'_, H, I> {
    fn drop(&mut self) {
        self.numbers.by_ref().for_each(|number| self.books.list(number));
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
        while let Some(number) = self.books.next_stale() {
            self.finish(number);
        }
    }
}

impl<R: Registrar> Inner<R> {
    /// Whether what slot `number` is a registration of is still mapped; otherwise that is stale now.
    fn check_slot(&self, number: u32) {
        let Some(slot) = self.books.slot(number) else { return };
        let claimed = match slot.reference() {
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
            Err((_, claimed)) => claimed,
        };
        claimed.into_iter().for_each(region::end);
    }

    /// The last handle has gone: nobody asks for anything any more. What is not in use ends now, the rest with its last use.
    fn close(&self) {
        drop(self.subscription.lock().take());
        if self.generation.is_current() {
            self.books.invalidate_range(PageRange::everything());
            self.reclaim();
        }
    }
}
