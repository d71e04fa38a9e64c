//! The side that receives.

use std::sync::Arc;

use ucs::mem::Mapping;
use ucs::mem::shared::BoundsError;
use ucs::sync::{Ordering, Word};

use super::wire::{Corrupt, Found, Memory, Ring};

/// The receiving end of a ring. One thread at a time has it; it may be handed from thread to thread. In a fork's child the
/// memory is not there: whoever can be in one asks [`ucs::fork`] first.
#[derive(Debug)]
pub struct Consumer<M: Memory = Arc<Mapping>> {
    ring: Ring<M>,
    /// Lines received, padding among them: where the next record begins.
    position: u64,
    /// What the producer was told of it.
    told: u64,
    /// The producer waited for that.
    wakes: bool,
}

impl Consumer {
    /// The receiving end of the ring of `lines` data lines that begins at byte `offset` of `map`. There is one, made once,
    /// while nothing was received from the ring yet.
    ///
    /// `None`: as of [`Producer::new`](super::Producer::new).
    #[must_use]
    pub fn new(map: Arc<Mapping>, offset: usize, lines: u32) -> Option<Self> {
        Self::over(map, offset, lines)
    }
}

impl<M: Memory> Consumer<M> {
    /// As [`Consumer::new`], over any memory.
    pub(super) fn over(memory: M, offset: usize, lines: u32) -> Option<Self> {
        Some(Self { ring: Ring::new(memory, offset, lines)?, position: 0, told: 0, wakes: false })
    }

    /// The next message, if one is there.
    ///
    /// # Errors
    /// [`Corrupt`]: the producer is to be given up. Nothing is passed over; a next call finds the same, or whatever the
    /// producer has put in its place.
    #[inline]
    pub fn receive(&mut self) -> Result<Option<Incoming<'_, M>>, Corrupt> {
        let header = self.next_header(Ordering::Acquire);
        if header == 0 {
            if self.position - self.told > self.ring.lines() / 8 {
                self.tell();
            }
            return Ok(None);
        }
        // Loaded once: what is checked is what is used.
        let message = self.ring.decode(self.position, header)?;
        Ok(Some(Incoming { consumer: self, message }))
    }

    /// Whether no message is there.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.next_header(Ordering::Relaxed) == 0
    }

    /// Says that the consumer is about to sleep: from here on a producer is told to wake it. `false`: a message is there; it
    /// must not sleep, and nothing is said any more.
    #[inline]
    #[must_use = "with a message there, nobody may come to wake the consumer"]
    pub fn arm(&self) -> bool {
        let Some(asleep) = self.ring.asleep() else { return false };
        asleep.store(1, Ordering::Relaxed);
        // Against the fence of `Producer::must_wake`.
        self.ring.fence();
        let may_sleep = self.is_empty();
        if !may_sleep {
            self.disarm();
        }
        may_sleep
    }

    /// Takes back what [`Consumer::arm`] said: it does not sleep any more.
    #[inline]
    pub fn disarm(&self) {
        if let Some(asleep) = self.ring.asleep() {
            asleep.store(0, Ordering::Relaxed);
        }
    }

    #[inline]
    fn next_header(&self, order: Ordering) -> u64 {
        self.ring.header(self.position).map_or(0, |word| word.load(order))
    }

    /// Tells the producer what was received.
    fn tell(&mut self) {
        if let Some(position) = self.ring.position() {
            // Release: payloads were read before their lines are given back.
            position.store(self.position, Ordering::Release);
            self.told = self.position;
        }
        // Against the fence of `Producer::arm`: either this load finds its word, or that look at the position finds the room.
        self.ring.fence();
        let Some(waits) = self.ring.waits() else { return };
        let word = waits.load(Ordering::Relaxed);
        if word != 0 && waits.compare_exchange(word, 0, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
            self.wakes = true;
        }
    }

    /// Whether the producer has waited for room, and must be woken by who asks: whoever has received asks afterwards, once for all.
    #[inline]
    pub fn must_wake(&mut self) -> bool {
        std::mem::take(&mut self.wakes)
    }
}

/// A message that has arrived. Dropping it gives its lines back.
///
/// A hostile producer may go on writing to the payload: what is checked must be read once, and then be used as it was read.
#[derive(Debug)]
pub struct Incoming<'a, M: Memory = Arc<Mapping>> {
    consumer: &'a mut Consumer<M>,
    message: Found,
}

impl<M: Memory> Incoming<'_, M> {
    /// What the producer gave with it, at most [`MAX_TAG`](super::MAX_TAG).
    #[inline]
    #[must_use]
    pub fn tag(&self) -> u32 {
        self.message.tag
    }

    /// Bytes of the payload, at most those of the longest message.
    #[inline]
    #[must_use]
    pub fn len(&self) -> usize {
        self.message.len
    }

    /// Whether there are none.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.message.len == 0
    }

    /// Copies `dst.len()` bytes of the payload, from byte `at` on.
    ///
    /// # Errors
    /// [`BoundsError::OutOfRange`]: they do not lie within the payload; nothing is copied then.
    #[inline]
    pub fn read(&self, at: usize, dst: &mut [u8]) -> Result<(), BoundsError> {
        self.consumer.ring.read(self.message.line, self.message.len, at, dst)
    }

    /// Gives its lines back, as dropping it does.
    #[inline]
    pub fn done(self) {}
}

impl<M: Memory> Drop for Incoming<'_, M> {
    #[inline]
    fn drop(&mut self) {
        let consumer = &mut *self.consumer;
        consumer.position = self.message.end;
        if consumer.position - consumer.told >= consumer.ring.quarter() {
            consumer.tell();
        }
    }
}
