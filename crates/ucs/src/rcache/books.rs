//! What the cache knows: index and descriptors. All that happens under the index's lock is a matter of memory that is there already:
//! the handler of memory events takes that lock, and a thread that unmaps memory waits for it.

use parking_lot::Mutex;

use super::index::{Index, Writer};
use super::options::Options;
use super::reclaim;
use super::stats::{Counter, Counters};
use super::table::{Making, Slot, Table};
use super::word::State;
use crate::mem::Access;
use crate::mem::page::PageRange;
use crate::monitor::{Change, Sink};
use crate::sync::{AtomicU64, Ordering};

/// Index and descriptors.
pub(super) struct Books<H> {
    pub(super) index: Index,
    pub(super) table: Table<H>,
    pub(super) counters: Counters,
    /// Bytes that are being registered, by all makers.
    pub(super) making: AtomicU64,
    /// What else changes under the index's lock only: never contended.
    spare: Mutex<Spare>,
}

struct Spare {
    /// Slots that are free.
    free: Vec<u32>,
    /// Slots that have become stale while nobody used them, each once ([`Slot::listed`]): so there is room for all from the beginning,
    /// and the handler can add to it. Some were ended since, by those who came across them.
    stale: Vec<u32>,
    /// Where the eviction goes on.
    hand: u32,
}

impl Spare {
    /// Notes a slot that has become stale while nobody used it, without an allocation.
    fn list<H>(&mut self, number: u32, slot: &Slot<H>) {
        if !slot.listed.swap(true, Ordering::Relaxed) && self.stale.len() < self.stale.capacity() {
            self.stale.push(number);
        }
    }
}

/// Slots to be dealt with outside the lock, which allows no allocation.
#[derive(Debug, Default)]
pub(super) struct Batch {
    numbers: [u32; Self::MOST],
    len: usize,
}

impl Batch {
    const MOST: usize = 32;

    fn push(&mut self, number: u32) {
        if let Some(place) = self.numbers.get_mut(self.len) {
            *place = number;
            self.len += 1;
        }
    }

    pub(super) fn is_full(&self) -> bool {
        self.len == Self::MOST
    }

    fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = u32> {
        self.numbers.iter().take(self.len).copied()
    }
}

/// What is to be registered.
struct Plan {
    range: PageRange,
    access: Access,
    /// Others are part of it.
    merges: bool,
}

/// What became of a wish for a place.
pub(super) enum Placed<'a, H> {
    At(Place<'a, H>),
    /// Another registration serves, or is being made there.
    Busy,
    /// Not all that has to go has gone: to be wished again, when what was answered with it is finished.
    More,
    /// All slots are in use.
    Full,
}

/// A place for a new registration.
pub(super) struct Place<'a, H> {
    pub(super) number: u32,
    pub(super) range: PageRange,
    pub(super) access: Access,
    pub(super) making: Making<'a, H>,
}

impl<H> Books<H> {
    pub(super) fn new(index: Index, slots: u32) -> Self {
        let stale = Vec::with_capacity(slots as usize);
        let spare = Spare { free: (0..slots).rev().collect(), stale, hand: 0 };
        Self {
            index,
            table: Table::new(slots),
            counters: Counters::default(),
            making: AtomicU64::new(0),
            spare: Mutex::new(spare),
        }
    }

    /// The slot that the index has for an address: perhaps another's by now.
    #[inline]
    pub(super) fn find(&self, address: usize) -> Option<(u32, &Slot<H>)> {
        let hit = self.index.find(address)?;
        Some((hit.slot, self.table.get(hit.slot)?))
    }

    #[inline]
    pub(super) fn slot(&self, number: u32) -> Option<&Slot<H>> {
        self.table.get(number)
    }

    /// `true`: nobody uses it, and somebody has to end it.
    pub(super) fn invalidate_slot(&self, slot: &Slot<H>) -> bool {
        let (was_valid, was_hit) = (slot.word.load().state() == State::Valid, slot.was_hit());
        let orphaned = slot.word.invalidate();
        if was_valid {
            self.counters.count(Counter::invalidations);
            if was_hit {
                self.counters.count(Counter::hit_invalidations);
            }
        }
        orphaned
    }

    /// Makes room for a registration of `wanted`, or of `widest` and all that overlaps it, and enters it: not to be hit yet. What it
    /// takes the place of is stale then; answers also which slots the caller is to finish.
    ///
    /// Whether it may reach further than `wanted` is asked without the lock, for who is asked may ask the kernel, and allocate: a
    /// thread that unmaps memory, in an allocator perhaps, waits for the handler, which waits for the lock.
    pub(super) fn place(
        &self,
        wanted: PageRange,
        widest: PageRange,
        access: Access,
        options: &Options,
        may_widen: impl Fn(PageRange) -> bool,
    ) -> (Placed<'_, H>, Batch) {
        let mut ended = Batch::default();
        let (mut writer, plan) = match self.plan(wanted, widest, access, may_widen) {
            Some(planned) => planned,
            None => return (Placed::Busy, ended),
        };
        let Plan { range, access, merges } = plan;
        self.unlink_overlapping(&mut writer, range, &mut ended);
        let fits = !ended.is_full() && self.evict(&mut writer, bytes(range), options, &mut ended);
        if ended.is_full() {
            return (Placed::More, ended);
        }
        let number = if fits { self.spare.lock().free.pop() } else { None };
        let Some((number, slot)) = number.and_then(|number| Some((number, self.table.get(number)?))) else {
            // What has ended makes room when it is finished.
            return (if fits && !ended.is_empty() { Placed::More } else { Placed::Full }, ended);
        };
        let making = slot.begin(range, access);
        let entered = making.is_some() && writer.insert(range, number).is_ok();
        match making {
            Some(making) if entered => {
                self.making.fetch_add(bytes(range), Ordering::Relaxed);
                if merges {
                    self.counters.count(Counter::merges);
                }
                drop(writer);
                (Placed::At(Place { number, range, access, making }), ended)
            }
            Some(making) => {
                drop(making.abandon());
                let _ = slot.word.free();
                self.spare.lock().free.push(number);
                (Placed::Full, ended)
            }
            None => {
                self.spare.lock().free.push(number);
                (Placed::Full, ended)
            }
        }
    }

    /// What to register for `wanted`. `None`: somebody has been faster, or is about to be.
    fn plan(
        &self,
        wanted: PageRange,
        widest: PageRange,
        access: Access,
        may_widen: impl Fn(PageRange) -> bool,
    ) -> Option<(Writer<'_>, Plan)> {
        // What may be registered as far as is known: that which is asked for, in any case.
        let mut allowed = wanted;
        for _ in 0..4 {
            let writer = self.index.lock();
            let plan = self.united(&writer, wanted, widest, access)?;
            if allowed.contains(plan.range) {
                return Some((writer, plan));
            }
            drop(writer);
            if !may_widen(plan.range) {
                break;
            }
            allowed = plan.range;
        }
        let writer = self.index.lock();
        self.united(&writer, wanted, wanted, access)?;
        Some((writer, Plan { range: wanted, access, merges: false }))
    }

    /// `widest` and all that overlaps it. `None`: one of these serves `wanted`, or is being made.
    fn united(
        &self,
        writer: &Writer<'_>,
        wanted: PageRange,
        widest: PageRange,
        access: Access,
    ) -> Option<Plan> {
        let mut plan = Plan { range: widest, access, merges: false };
        let mut busy = false;
        writer.overlapping(widest, |_, number| {
            let Some(slot) = self.table.get(number) else { return };
            match slot.word.load().state() {
                State::Registering | State::Poisoned => busy = true,
                State::Valid => {
                    let Some(other) = slot.range() else { return };
                    busy |= slot.serves(wanted, access);
                    plan.merges = true;
                    plan.range = union(plan.range, other);
                    if slot.access() == Access::ReadWrite {
                        plan.access = Access::ReadWrite;
                    }
                }
                _ => {}
            }
        });
        (!busy).then_some(plan)
    }

    /// Takes what overlaps `range` out of the index.
    fn unlink_overlapping(&self, writer: &mut Writer<'_>, range: PageRange, ended: &mut Batch) {
        while !ended.is_full() {
            let mut first = None;
            writer.overlapping(range, |range, number| {
                first.get_or_insert((range, number));
            });
            let Some((there, number)) = first else { return };
            writer.remove(there);
            if let Some(slot) = self.table.get(number) {
                let _ = slot.word.invalidate();
                ended.push(number);
            }
        }
    }

    /// Takes registrations that nobody uses out of the index, until there is room for one more, of `len` bytes; whether there is then.
    fn evict(&self, writer: &mut Writer<'_>, len: u64, options: &Options, ended: &mut Batch) -> bool {
        let mut spare = self.spare.lock();
        let ending: u64 = ended.iter().filter_map(|number| self.table.get(number)?.range()).map(bytes).sum();
        let pinned = self.counters.of(Counter::pinned_bytes).saturating_sub(ending);
        let mut wanted = pinned.saturating_add(self.making.load(Ordering::Relaxed)).saturating_add(len);
        // A slot whose registration has ended is free when that is finished.
        let mut has_slot = !spare.free.is_empty() || !ended.is_empty();
        let mut looks = 2 * u64::from(options.max_regions);
        loop {
            let fits = has_slot && writer.len() < options.max_regions && wanted <= options.max_bytes;
            if fits || looks == 0 || ended.is_full() {
                return fits;
            }
            looks -= 1;
            let number = spare.hand;
            spare.hand = (number + 1) % options.max_regions;
            let Some((slot, range)) = self.table.get(number).and_then(|slot| Some((slot, slot.range()?)))
            else {
                continue;
            };
            let seen = slot.word.load();
            match seen.state() {
                _ if seen.references() > 0 => continue,
                State::Stale => {} // before the reclaimer comes by
                State::Valid if !slot.was_used() && slot.word.retire().is_ok() => {
                    self.counters.count(Counter::evictions);
                }
                _ => continue,
            }
            if self.unlink_by(writer, number, range) {
                wanted = wanted.saturating_sub(bytes(range));
                has_slot = true;
                ended.push(number);
            }
        }
    }

    /// Takes a slot out of the index, if it is still what stands there.
    pub(super) fn unlink(&self, number: u32, range: PageRange) {
        self.unlink_by(&mut self.index.lock(), number, range);
    }

    #[allow(clippy::unused_self, reason = "the lock belongs to it")]
    fn unlink_by(&self, writer: &mut Writer<'_>, number: u32, range: PageRange) -> bool {
        let mut there = false;
        writer.overlapping(range, |_, other| there |= other == number);
        there && writer.remove(range).is_some()
    }

    /// Makes a slot free whose registration has ended.
    pub(super) fn free(&self, number: u32) {
        if let Some(slot) = self.table.get(number)
            && slot.word.free().is_ok()
        {
            let _writer = self.index.lock();
            self.spare.lock().free.push(number);
        }
    }

    /// Registrations in `range`, some of them; and where the next begin, if there are more.
    pub(super) fn overlapping(&self, range: PageRange) -> (Batch, Option<usize>) {
        let mut batch = Batch::default();
        let mut end = None;
        let writer = self.index.lock();
        for (range, number) in writer.ranges(range).take(Batch::MOST) {
            batch.push(number);
            end = Some(range.end());
        }
        let more = batch.is_full();
        (batch, end.filter(|_| more))
    }

    /// Notes a slot that is stale and not in use, for [`Books::next_stale`].
    pub(super) fn list(&self, number: u32) {
        if let Some(slot) = self.table.get(number) {
            let _writer = self.index.lock();
            self.spare.lock().list(number, slot);
        }
        reclaim::wake();
    }

    /// A slot that is, or was, stale and not in use.
    pub(super) fn next_stale(&self) -> Option<u32> {
        let _writer = self.index.lock();
        let number = self.spare.lock().stale.pop()?;
        if let Some(slot) = self.table.get(number) {
            slot.listed.store(false, Ordering::Relaxed);
        }
        Some(number)
    }

    /// Ends what overlaps `range`, as far as nobody has to be waited for; `true`: somebody has to come for the rest
    /// ([`Books::next_stale`]). It takes a search in the index, and a step for each.
    pub(super) fn invalidate_range(&self, range: PageRange) -> bool {
        let writer = self.index.lock();
        let mut spare = self.spare.lock();
        let mut orphaned = false;
        writer.overlapping(range, |_, number| {
            if let Some(slot) = self.table.get(number)
                && self.invalidate_slot(slot)
            {
                orphaned = true;
                spare.list(number, slot);
            }
        });
        orphaned
    }
}

fn bytes(range: PageRange) -> u64 {
    range.len() as u64
}

fn union(a: PageRange, b: PageRange) -> PageRange {
    PageRange::new(a.start().min(b.start()), a.end().max(b.end())).unwrap_or(a)
}

impl<H: Send + Sync + 'static> Sink for Books<H> {
    fn invalidate(&self, range: PageRange, _change: Change) {
        if self.invalidate_range(range) {
            reclaim::wake();
        }
    }
}
