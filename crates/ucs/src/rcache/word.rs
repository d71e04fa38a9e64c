//! State, generation and reference count of a registration, in one 64-bit word.
//!
//! ```text
//! bits 61–63 state · bits 32–60 generation · bits 0–31 references
//!
//! FREE ─begin─▶ REGISTERING ─publish─▶ VALID ─invalidate─▶ STALE ─last release; claim, no references─▶ DEAD ─free─▶ FREE
//!                    └──────invalidate─────▶ POISONED ─────────────────abandon──────────────────────▶ DEAD
//! ```
//!
//! Whoever takes a reference gets all three in the same instruction. References are only ever added and taken away, never stored:
//! a late reader may hold one for a moment on a slot that has been used again, and finds out by what it got. Whoever takes away the
//! last reference of a stale registration has claimed it by the same instruction; the reclaimer claims one that had none. So exactly
//! one deregisters, and whoever gave a reference back and got no claim does not look at the slot again: it may be gone.

use crate::sync::{AtomicU64, Ordering};

/// What a registration is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Nothing lives in the slot.
    Free,
    /// Being made: not to be used.
    Registering,
    /// Changed while it was being made: its maker gives it up.
    Poisoned,
    /// Usable.
    Valid,
    /// Its memory has changed: used by those who hold it, and by nobody else.
    Stale,
    /// Being deregistered.
    Dead,
}

const REFERENCES: u64 = u32::MAX as u64;
const GENERATION_SHIFT: u32 = 32;
const GENERATION: u64 = (1 << 29) - 1;
const STATE_SHIFT: u32 = 61;

impl State {
    const ALL: [Self; 6] =
        [Self::Free, Self::Registering, Self::Poisoned, Self::Valid, Self::Stale, Self::Dead];

    fn bits(self) -> u64 {
        (self as u64) << STATE_SHIFT
    }
}

/// What a word held at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen(u64);

impl Seen {
    /// The state.
    #[inline]
    #[must_use]
    pub fn state(self) -> State {
        // The two values that are no state are never stored.
        State::ALL.get((self.0 >> STATE_SHIFT) as usize).copied().unwrap_or(State::Dead)
    }

    #[inline]
    fn is(self, state: State) -> bool {
        self.0 >> STATE_SHIFT == state as u64
    }

    /// Whether it was valid.
    #[inline]
    #[must_use]
    pub fn is_valid(self) -> bool {
        self.is(State::Valid)
    }

    /// Whether the state and the generation were the same as in `other`.
    #[inline]
    #[must_use]
    pub fn is_same_life(self, other: Self) -> bool {
        (self.0 ^ other.0) & !REFERENCES == 0
    }

    /// How often the slot had been taken.
    #[inline]
    #[must_use]
    pub fn generation(self) -> u64 {
        self.0 >> GENERATION_SHIFT & GENERATION
    }

    /// How many references there were.
    #[inline]
    #[must_use]
    pub fn references(self) -> u64 {
        self.0 & REFERENCES
    }

    fn with(self, state: State) -> u64 {
        self.0 & !(7 << STATE_SHIFT) | state.bits()
    }
}

/// The word.
#[derive(Debug)]
pub struct RegionWord(AtomicU64);

impl Default for RegionWord {
    fn default() -> Self {
        Self(AtomicU64::new(State::Free.bits()))
    }
}

impl RegionWord {
    /// That of a registration which nobody can find: stale, with one reference.
    #[must_use]
    pub fn for_one_use() -> Self {
        Self(AtomicU64::new(State::Stale.bits() | 1))
    }

    /// What it holds.
    #[inline]
    pub fn load(&self) -> Seen {
        Seen(self.0.load(Ordering::Acquire))
    }

    /// Takes a reference, whatever the state; the caller looks at what it got, and gives it back if that is not what it wants.
    #[inline]
    #[must_use = "a reference is to be given back"]
    pub fn acquire(&self) -> Seen {
        Seen(self.0.fetch_add(1, Ordering::Acquire))
    }

    /// Gives a reference back. `true`: it was the last one of a stale registration, which the caller has claimed by that, as with
    /// [`RegionWord::claim`]. `false`: what the word lies in may be gone.
    #[inline]
    pub fn release(&self) -> bool {
        let mut seen = Seen(self.0.load(Ordering::Relaxed));
        loop {
            let last = seen.is(State::Stale) && seen.references() == 1;
            let less = Seen(seen.0.wrapping_sub(1));
            let new = if last { less.with(State::Dead) } else { less.0 };
            // Release: all that was done with the registration comes before what its deregistration does.
            match self.0.compare_exchange_weak(seen.0, new, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return last,
                Err(found) => seen = Seen(found),
            }
        }
    }

    fn step(&self, allowed: impl Fn(Seen) -> Option<u64>) -> Result<Seen, Seen> {
        let mut seen = self.load();
        loop {
            let new = allowed(seen).ok_or(seen)?;
            match self.0.compare_exchange(seen.0, new, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return Ok(seen),
                Err(found) => seen = Seen(found),
            }
        }
    }

    /// FREE → REGISTERING, the next generation. The caller owns the slot: nobody else takes a free one meanwhile.
    ///
    /// # Errors
    /// What was there instead.
    pub fn begin(&self) -> Result<(), Seen> {
        self.step(|seen| {
            let next = (seen.generation() + 1) & GENERATION;
            let taken = seen.0 & !(GENERATION << GENERATION_SHIFT) | next << GENERATION_SHIFT;
            (seen.state() == State::Free).then(|| Seen(taken).with(State::Registering))
        })
        .map(drop)
    }

    /// REGISTERING → VALID, with a reference for the maker.
    ///
    /// # Errors
    /// It was poisoned.
    pub fn publish(&self) -> Result<(), Seen> {
        self.step(|seen| (seen.state() == State::Registering).then(|| seen.with(State::Valid) + 1)).map(drop)
    }

    /// VALID → STALE, REGISTERING → POISONED. `true`: it became stale, and nobody held it, so that somebody has to come and claim it.
    ///
    /// Never waits for who holds it.
    pub fn invalidate(&self) -> bool {
        let before = self.step(|seen| match seen.state() {
            State::Valid => Some(seen.with(State::Stale)),
            State::Registering => Some(seen.with(State::Poisoned)),
            _ => None,
        });
        before.is_ok_and(|seen| seen.state() == State::Valid && seen.references() == 0)
    }

    /// VALID, without references → STALE: for an eviction, which takes only what nobody uses.
    ///
    /// # Errors
    /// What was there instead.
    pub fn retire(&self) -> Result<(), Seen> {
        let unused = |seen: Seen| seen.state() == State::Valid && seen.references() == 0;
        self.step(|seen| unused(seen).then(|| seen.with(State::Stale))).map(drop)
    }

    /// STALE, without references → DEAD. One caller succeeds, and is to deregister.
    pub fn claim(&self) -> bool {
        let unused = |seen: Seen| seen.state() == State::Stale && seen.references() == 0;
        self.step(|seen| unused(seen).then(|| seen.with(State::Dead))).is_ok()
    }

    /// REGISTERING or POISONED → DEAD: the maker gives it up.
    ///
    /// # Errors
    /// What was there instead.
    pub fn abandon(&self) -> Result<(), Seen> {
        self.step(|seen| {
            let mine = matches!(seen.state(), State::Registering | State::Poisoned);
            mine.then(|| seen.with(State::Dead))
        })
        .map(drop)
    }

    /// DEAD → FREE: the slot may be taken again.
    ///
    /// # Errors
    /// What was there instead.
    pub fn free(&self) -> Result<(), Seen> {
        self.step(|seen| (seen.state() == State::Dead).then(|| seen.with(State::Free))).map(drop)
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;

    fn valid() -> RegionWord {
        let word = RegionWord::default();
        word.begin().unwrap();
        word.publish().unwrap();
        word
    }

    #[test]
    fn a_registration_s_life() {
        let word = RegionWord::default();
        assert_eq!((word.load().state(), word.load().generation()), (State::Free, 0));
        word.begin().unwrap();
        assert_eq!((word.load().state(), word.load().generation()), (State::Registering, 1));
        assert!(word.begin().is_err());
        word.publish().unwrap();
        assert_eq!((word.load().state(), word.load().references()), (State::Valid, 1));
        assert_eq!(word.acquire().state(), State::Valid);
        assert!(!word.claim(), "it is valid");
        assert!(word.retire().is_err(), "it is used");
        assert!(!word.invalidate(), "those who hold it will come");
        assert!(!word.claim(), "it is held");
        assert!(!word.release());
        assert!(word.release(), "the last one has claimed it");
        assert_eq!((word.load().state(), word.load().references()), (State::Dead, 0));
        assert!(!word.claim(), "once");
        word.free().unwrap();
        word.begin().unwrap();
        assert_eq!((word.load().state(), word.load().generation()), (State::Registering, 2));
    }

    #[test]
    fn changed_while_it_is_made() {
        let word = RegionWord::default();
        word.begin().unwrap();
        assert!(!word.invalidate());
        assert_eq!(word.publish().unwrap_err().state(), State::Poisoned);
        word.abandon().unwrap();
        word.free().unwrap();
    }

    #[test]
    fn nobody_held_it() {
        let word = valid();
        assert!(!word.release());
        assert!(word.invalidate(), "somebody has to come");
        assert!(!word.invalidate(), "once");
        assert!(word.claim());
    }

    #[test]
    fn for_one_use() {
        let word = RegionWord::for_one_use();
        assert!(!word.invalidate() && !word.claim());
        assert!(word.release() && !word.claim());
    }

    #[test]
    fn evictions_take_what_nobody_uses() {
        let word = valid();
        assert!(word.retire().is_err());
        assert!(!word.release());
        word.retire().unwrap();
        assert!(word.claim());
    }

    /// A late reader's reference is neither lost nor stored over when the slot is used again meanwhile.
    #[test]
    fn late_readers_are_harmless() {
        let word = valid();
        assert!(!word.release());
        assert!(word.invalidate() && word.claim());
        assert_eq!(word.acquire().state(), State::Dead);
        word.free().unwrap();
        assert_eq!(word.acquire().state(), State::Free);
        word.begin().unwrap();
        word.publish().unwrap();
        assert_eq!(word.load().references(), 3);
        assert!(!word.release() && !word.release() && !word.release());
        assert_eq!((word.load().references(), word.load().generation()), (0, 2));
    }

    #[test]
    fn generations_wrap_without_touching_the_rest() {
        let word = RegionWord(AtomicU64::new(State::Free.bits() | GENERATION << GENERATION_SHIFT | 7));
        word.begin().unwrap();
        let seen = word.load();
        assert_eq!((seen.state(), seen.generation(), seen.references()), (State::Registering, 0, 7));
    }
}

#[cfg(test)]
#[cfg(loom)]
mod loom_models;
