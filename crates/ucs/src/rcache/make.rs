//! Making a registration: watched, registered, and found to be of what is mapped, before anybody can find it.

use std::sync::Arc;
use std::thread;

use super::Registrar;
use super::books::{Place, Placed};
use super::cache::{GetError, Inner};
use super::reclaim;
use super::region::{Freed, Held};
use super::stats::Counter;
use super::table::{Making, Slot};
use crate::mem::Access;
use crate::mem::page::PageRange;
use crate::monitor::{Backing, Refused, Verdict};
use crate::sync::Ordering;

/// How often it is asked whether a registration made just now is settled, while other memory changes.
pub(super) const SETTLING: u32 = 64;

/// How often room is made before a registration is made for one use: each time for some 30 that are in the way.
const ROOMS: u32 = 1024;

/// What became of a registration that was to be made.
pub(super) enum Made<'a, R: Registrar> {
    /// One, with a reference for its maker.
    Slot(&'a Slot<Held<R>>),
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
    /// Makes a registration, and takes a reference to it.
    #[cold]
    pub(super) fn make(
        self: &Arc<Self>,
        wanted: PageRange,
        access: Access,
    ) -> Result<Made<'_, R>, GetError<R::Error>> {
        let made = match self.make_of(wanted, access, true) {
            Err(Failed::More) => self.make_of(wanted, access, false),
            answer => answer,
        };
        match made {
            Ok(made) => Ok(made),
            Err(Failed::Register(error)) => Err(self.failed(error)),
            Err(Failed::More) => Ok(Made::OneShot), // it was not more
        }
    }

    pub(super) fn failed(&self, error: R::Error) -> GetError<R::Error> {
        self.books.counters.count(Counter::gets);
        GetError::Register(error)
    }

    fn make_of(
        self: &Arc<Self>,
        wanted: PageRange,
        access: Access,
        widen: bool,
    ) -> Result<Made<'_, R>, Failed<R::Error>> {
        self.note_unannounced();
        if self.monitor.is_suspect(wanted) {
            return Ok(Made::Again); // its pages are on their way out
        }
        let widest = if widen { wanted.widened(self.options.alignment).unwrap_or(wanted) } else { wanted };
        let may_widen = |range: PageRange| {
            widen && range.len() as u64 <= self.options.max_bytes && !self.monitor.is_suspect(range)
        };
        let mut rooms = 0..ROOMS;
        let mut entry = loop {
            let (placed, ended) = self.books.place(wanted, widest, access, &self.options, may_widen);
            // Before what has ended is deregistered: that may panic.
            let entry = match placed {
                Placed::At(place) => Ok(Entry::of(self, place)),
                other => Err(other),
            };
            self.finish_all(&ended);
            match entry {
                Ok(entry) => break entry,
                Err(Placed::Busy) => return Ok(Made::Again),
                Err(Placed::More) if rooms.next().is_some() => {}
                Err(_) => return Ok(Made::OneShot),
            }
        };
        let (number, range) = (entry.number, entry.range);
        // Of several merged, or widened, one page may be missing, or not allow it.
        let is_more = (range, entry.access) != (wanted, access);
        let access = entry.access;
        reclaim::recheck(range, self.monitor, Arc::as_ptr(self).cast());
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
        if !self.options.files && backing.may_shrink() {
            return Ok(Made::OneShot);
        }
        match self.registrar.register(range, access) {
            Ok(handle) => entry.put(Held { handle, backing, cache: Arc::clone(self) }),
            Err(error) => {
                drop(entry);
                return Err(if is_more { Failed::More } else { Failed::Register(error) });
            }
        }
        self.books.counters.add(Counter::pinned_bytes, range.len() as u64);
        let made = if self.is_settled(range, backing) { entry.publish() } else { None };
        match made {
            Some(slot) => {
                self.desks.mine().note(wanted.start(), number);
                self.guesses.note(wanted.start(), number);
                self.books.counters.count(Counter::misses);
                Ok(Made::Slot(slot))
            }
            None => {
                self.books.counters.count(Counter::poisoned);
                Ok(Made::Again)
            }
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
}

/// A registration that is being made, in the index. Dropped, it is given up, also where a transport panics.
struct Entry<'a, R: Registrar> {
    inner: &'a Inner<R>,
    number: u32,
    range: PageRange,
    access: Access,
    making: Option<Making<'a, Held<R>>>,
}

impl<'a, R: Registrar> Entry<'a, R> {
    fn of(inner: &'a Inner<R>, place: Place<'a, Held<R>>) -> Self {
        let Place { number, range, access, making } = place;
        Self { inner, number, range, access, making: Some(making) }
    }

    fn put(&mut self, held: Held<R>) {
        if let Some(making) = &mut self.making {
            making.put(held);
        }
    }

    /// Lets others find it, with a reference for its maker; `None`: its memory has changed.
    fn publish(mut self) -> Option<&'a Slot<Held<R>>> {
        match self.making.take()?.publish() {
            Ok(slot) => Some(slot),
            Err(making) => {
                self.making = Some(making);
                None
            }
        }
    }
}

impl<R: Registrar> Drop for Entry<'_, R> {
    fn drop(&mut self) {
        self.inner.books.making.fetch_sub(self.range.len() as u64, Ordering::Relaxed);
        if let Some(making) = self.making.take() {
            self.inner.books.unlink(self.number, self.range);
            match making.abandon() {
                Some(held) => {
                    let _freed = Freed { cache: self.inner, number: Some(self.number), range: self.range };
                    self.inner.registrar.deregister(held.handle);
                }
                None => self.inner.books.free(self.number),
            }
        }
    }
}
