//! The importer's side: every mediated access passes the gate of its export.

use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use ucs::fork::{self, Generation};
use ucs::mem::{Mapping, SharedBytes};
use ucs::sync::{AtomicBool, Ordering, Word64, lane};

use super::importers::claim_vault_slot;
use super::{in_flight, wire};
use crate::doorbell::Doorbell;
use crate::memory::{AccessError, COPY_STEP, StaleReason};
use crate::process::Identity;

/// What is known of a peer's process, an exporter's or a worker's, kept up to date by this side's service thread.
#[derive(Debug, Default)]
pub struct PeerState {
    gone: AtomicBool,
    bell: Option<Arc<Doorbell>>,
    observers: Mutex<Vec<Weak<dyn PeerObserver>>>,
}

/// Who has something to do when a peer is gone.
pub trait PeerObserver: Send + Sync + fmt::Debug {
    /// It is: told once, by the thread that notices first.
    fn peer_is_gone(&self);
}

impl PeerState {
    /// Of a peer whose end wakes who waits for `bell`.
    #[must_use]
    pub fn with_bell(bell: &Arc<Doorbell>) -> Self {
        Self { bell: Some(Arc::clone(bell)), ..Self::default() }
    }

    /// Notes that the peer is gone.
    pub fn set_gone(&self) {
        self.gone.store(true, Ordering::Release);
        if let Some(bell) = &self.bell {
            bell.ring();
        }
        let observers = std::mem::take(&mut *self.observers.lock());
        observers.iter().filter_map(Weak::upgrade).for_each(|observer| observer.peer_is_gone());
    }

    /// Has `observer` told when it is, or at once.
    pub fn observe(&self, observer: Weak<dyn PeerObserver>) {
        let mut observers = self.observers.lock();
        observers.retain(|other| other.strong_count() > 0);
        observers.push(observer);
        drop(observers);
        if self.is_gone() {
            self.set_gone();
        }
    }

    /// Whether it is.
    #[inline]
    #[must_use]
    pub fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Acquire)
    }
}

/// In-flight slots that this importer may use.
#[derive(Debug)]
pub struct SlotSet {
    page: Mapping,
    range: Range<usize>,
    /// Whether they were claimed in a vault, to be given back.
    claimed: bool,
    generation: Generation,
}

impl Drop for SlotSet {
    fn drop(&mut self) {
        if self.claimed && self.generation.is_current() {
            for slot in self.range() {
                release(self.page.bytes(), slot);
            }
        }
    }
}

/// Gives a slot of a vault back: nothing is announced in it.
fn release(vault: &SharedBytes, slot: usize) {
    if let (Some(inode), Some(owner)) = (wire::owner_inode(vault, slot), wire::owner(vault, slot)) {
        inode.store(0, Ordering::Release);
        owner.store(0, Ordering::Release);
    }
}

impl SlotSet {
    /// The slots `range` of `page`.
    #[must_use]
    pub fn new(page: Mapping, range: Range<usize>) -> Self {
        Self { page, range, claimed: false, generation: fork::generation() }
    }

    /// Claims one free slot of a vault for this process, which the exporter sees as `identity`; `None` when all are taken
    /// by importers that live (whose pids this process sees as the exporter does).
    #[must_use]
    pub fn claim_in_vault(vault: Mapping, identity: &Identity) -> Option<Self> {
        let slot = claim_vault_slot(vault.bytes(), identity.pid, identity.pidfd_inode)?;
        let mut slots = Self::new(vault, slot..slot + 1);
        slots.claimed = true;
        Some(slots)
    }

    /// The mapping they lie in.
    #[must_use]
    pub fn page(&self) -> &Mapping {
        &self.page
    }

    /// Which slots of the page they are.
    #[must_use]
    pub fn range(&self) -> Range<usize> {
        self.range.clone()
    }

    /// The slot this thread begins at.
    #[inline]
    fn own(&self) -> Option<(usize, &Word64)> {
        let slot = self.range.start + lane() % self.range.len().max(1);
        Some((slot, wire::announced(self.page.bytes(), slot)?))
    }

    fn words(&self) -> impl Iterator<Item = (usize, &Word64)> {
        let first = lane();
        let count = self.range.len().max(1);
        (0..self.range.len())
            .map(move |offset| self.range.start + (first + offset) % count)
            .filter_map(|slot| Some((slot, wire::announced(self.page.bytes(), slot)?)))
    }

    /// Whether one of them announces an access to export `id`.
    #[must_use]
    pub fn announces(&self, id: u64) -> bool {
        self.words().any(|(_, word)| !in_flight::is_clear(word, id))
    }
}

/// The way into one export. Send + Sync: many threads may be inside at once, one in-flight slot each.
#[derive(Debug)]
pub struct Gate {
    table: Arc<Mapping>,
    slots: Arc<SlotSet>,
    peer: Option<Arc<PeerState>>,
    line: u32,
    id: u64,
    epoch: u64,
    patience: Duration,
    generation: Generation,
}

impl Gate {
    /// The gate of the export in line `line` of `table`. `patience` bounds the wait for a free in-flight slot.
    ///
    /// `None` when the table has no such line.
    #[must_use]
    pub fn new(
        table: Arc<Mapping>,
        slots: Arc<SlotSet>,
        peer: Option<Arc<PeerState>>,
        (line, id, epoch): (u32, u64, u64),
        patience: Duration,
    ) -> Option<Self> {
        wire::epoch_now(table.bytes(), line)?;
        Some(Self { table, slots, peer, line, id, epoch, patience, generation: fork::generation() })
    }

    /// Whether this is the process that attached, and not a fork's child, which has none of the mappings.
    #[inline]
    #[must_use]
    pub fn is_mine(&self) -> bool {
        self.generation.is_current()
    }

    /// Whether the export still lives, as far as is known.
    ///
    /// # Errors
    /// Why not.
    #[inline]
    pub fn check(&self) -> Result<(), StaleReason> {
        if !self.is_mine() {
            return Err(StaleReason::Forked);
        }
        // In this order: one that revoked, then ended, has revoked, whenever this thread is stopped in between.
        let gone = self.peer.as_ref().is_some_and(|peer| peer.is_gone());
        if !self.is_live() {
            return Err(StaleReason::Revoked);
        }
        if gone { Err(StaleReason::ExporterGone) } else { Ok(()) }
    }

    #[inline]
    fn is_live(&self) -> bool {
        wire::epoch_now(self.table.bytes(), self.line) == Some(self.epoch)
    }

    /// Announces an access: from here until the value returned is dropped, a revocation waits.
    ///
    /// # Errors
    /// [`AccessError::Stale`], or [`AccessError::Busy`] when no slot came free in time.
    #[inline]
    pub fn enter(&self) -> Result<InFlight<'_>, AccessError> {
        match self.enter_at_once() {
            Some(inside) => Ok(inside),
            None => self.enter_within(&mut self.patience.clone()),
        }
    }

    /// Enters by this thread's own slot, if it is free and all is well.
    #[inline]
    fn enter_at_once(&self) -> Option<InFlight<'_>> {
        if !self.is_mine() || self.peer.as_ref().is_some_and(|peer| peer.is_gone()) {
            return None;
        }
        let (slot, word) = self.slots.own()?;
        in_flight::announce(word, self.id, || self.is_live()).ok()?;
        Some(InFlight { word, slot, page: &self.slots.page })
    }

    /// As [`Gate::enter`], by any slot; takes what was waited from `patience`.
    #[cold]
    fn enter_within(&self, patience: &mut Duration) -> Result<InFlight<'_>, AccessError> {
        let mut begin = None;
        loop {
            self.check().map_err(AccessError::stale)?;
            for (slot, word) in self.slots.words() {
                match in_flight::announce(word, self.id, || self.is_live()) {
                    Ok(()) => {
                        let waited = begin.map_or(Duration::ZERO, |begin: Instant| begin.elapsed());
                        *patience = patience.saturating_sub(waited);
                        return Ok(InFlight { word, slot, page: &self.slots.page });
                    }
                    Err(in_flight::Refused::Stale) => return Err(AccessError::stale(StaleReason::Revoked)),
                    Err(in_flight::Refused::SlotTaken) => {}
                }
            }
            let waited = begin.get_or_insert_with(Instant::now).elapsed();
            if waited > *patience {
                return Err(AccessError::Busy { waited });
            }
            thread::yield_now();
        }
    }

    /// Runs `step` for the pieces of an access of `len` bytes at `offset`, announcing each; `step` gets where a piece lies
    /// within the access.
    ///
    /// # Errors
    /// [`AccessError`] of the gate or of a step; it tells how many bytes were moved before.
    #[inline]
    pub fn in_steps(
        &self,
        len: usize,
        mut step: impl FnMut(Range<usize>) -> Result<(), AccessError>,
    ) -> Result<(), AccessError> {
        self.in_announced_steps(len, |_, part| step(part))
    }

    /// As [`Gate::in_steps`]; `step` also gets the access as it is announced.
    ///
    /// # Errors
    /// As [`Gate::in_steps`].
    #[inline]
    pub fn in_announced_steps(
        &self,
        len: usize,
        mut step: impl FnMut(&InFlight<'_>, Range<usize>) -> Result<(), AccessError>,
    ) -> Result<(), AccessError> {
        if len <= COPY_STEP {
            return self.one_step(&mut self.patience.clone(), 0..len, &mut step);
        }
        let mut done = 0;
        let mut patience = self.patience; // for all pieces together
        while done < len {
            let end = len.min(done + COPY_STEP);
            self.one_step(&mut patience, done..end, &mut step)?;
            done = end;
        }
        Ok(())
    }

    #[inline]
    fn one_step(
        &self,
        patience: &mut Duration,
        piece: Range<usize>,
        step: &mut impl FnMut(&InFlight<'_>, Range<usize>) -> Result<(), AccessError>,
    ) -> Result<(), AccessError> {
        let before = piece.start;
        ucs::trace_data!(export = self.id, from = piece.start, to = piece.end, "an access begins");
        let inside = match self.enter_at_once() {
            Some(inside) => inside,
            None => self.enter_within(patience).map_err(|error| error.after(before as u64))?,
        };
        step(&inside, piece).map_err(|error| error.after(before as u64))?;
        // A revocation that gave up waiting for us, or the exporter's death, came in between: say so.
        let verdict = self.check();
        drop(inside);
        verdict.map_err(|why| AccessError::Stale { done: before as u64, why })
    }
}

/// An announced access; dropping it ends it.
#[derive(Debug)]
pub struct InFlight<'a> {
    word: &'a Word64,
    slot: usize,
    page: &'a Mapping,
}

impl InFlight<'_> {
    /// Sets the nonce of its slot. Answers where that lies in the page.
    #[inline]
    pub fn set_nonce(&self, nonce: u64) -> u64 {
        if let Some(word) = wire::nonce(self.page.bytes(), self.slot) {
            word.store(nonce, Ordering::Release);
        }
        wire::nonce_offset(self.slot)
    }
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        in_flight::retire(self.word);
    }
}
