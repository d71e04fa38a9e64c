//! The side that sends.

use std::sync::Arc;

use ucs::mem::Mapping;
use ucs::sync::{Ordering, Word};

use super::wire::{self, MAX_TAG, Memory, Ring};

/// The sending end of a ring. One thread at a time has it; it may be handed from thread to thread. In a fork's child the
/// memory is not there: whoever can be in one asks [`ucs::fork`] first.
#[derive(Debug)]
pub struct Producer<M: Memory = Arc<Mapping>> {
    ring: Ring<M>,
    /// Lines written, padding among them: where the next record begins.
    tail: u64,
    /// The line that records must not reach: that of the consumer's position as it was last seen, a lap later.
    limit: u64,
    corrupt: bool,
}

impl Producer {
    /// The sending end of the ring of `lines` data lines that begins at byte `offset` of `map`. There is one, made once, while
    /// the ring's memory is still zero.
    ///
    /// `None`: the ring does not lie within the mapping, or that is read-only; `offset` is no multiple of
    /// [`LINE`](super::LINE); `lines` is no power of two, below 8, or above [`MAX_LINES`](super::MAX_LINES).
    #[must_use]
    pub fn new(map: Arc<Mapping>, offset: usize, lines: u32) -> Option<Self> {
        Self::over(map, offset, lines)
    }
}

impl<M: Memory> Producer<M> {
    /// As [`Producer::new`], over any memory.
    pub(super) fn over(memory: M, offset: usize, lines: u32) -> Option<Self> {
        let ring = Ring::new(memory, offset, lines)?;
        Some(Self { tail: 0, limit: ring.lines(), corrupt: false, ring })
    }

    /// Bytes of the longest message: what fits a quarter of the ring.
    #[must_use]
    pub fn max_len(&self) -> usize {
        self.ring.max_len()
    }

    /// Whether a message of `len` bytes could be sent now.
    #[inline]
    pub fn has_room(&mut self, len: usize) -> bool {
        self.place(len).is_some()
    }

    /// Says that the producer is about to sleep until there is room for `len` bytes: from here on a consumer is told to wake it.
    /// `false`: there is room; it must not sleep, and nothing is said any more.
    #[must_use = "with room, nobody may come to wake the producer"]
    pub fn arm(&mut self, len: usize) -> bool {
        let Some(waits) = self.ring.waits() else { return false };
        waits.store(1, Ordering::Relaxed);
        // Against the fence of `Consumer::receive`'s giving back.
        self.ring.fence();
        let may_sleep = !self.has_room(len);
        if !may_sleep {
            self.disarm();
        }
        may_sleep
    }

    /// Takes back what [`Producer::arm`] said: it does not wait any more.
    pub fn disarm(&self) {
        if let Some(waits) = self.ring.waits() {
            waits.store(0, Ordering::Relaxed);
        }
    }

    /// Begins a message of `len` bytes. `None`: there is no room now, or it is longer than [`Producer::max_len`], or
    /// [`Producer::is_corrupt`] says why there will be none.
    #[inline]
    pub fn begin(&mut self, len: usize) -> Option<Outgoing<'_, M>> {
        let (line, end) = self.place(len)?;
        Some(Outgoing { producer: self, line, end, len })
    }

    /// Whether the consumer has been seen at a position where it cannot be, before what it has told already or behind what was
    /// sent. It is to be given up then: its position is not believed any more, so room once used does not come back.
    #[must_use]
    pub fn is_corrupt(&self) -> bool {
        self.corrupt
    }

    /// Whether the consumer sleeps, and must be woken by who asks: whoever publishes asks afterwards, once for all that was
    /// published. The flag is cleared, so that only one is told to wake it.
    #[inline]
    pub fn must_wake(&self) -> bool {
        // Against the fence of `Consumer::arm`: either this load finds the flag, or that look at the ring finds the message.
        self.ring.fence();
        let Some(asleep) = self.ring.asleep() else { return false };
        let flag = asleep.load(Ordering::Relaxed);
        // The consumer has disarmed meanwhile if it is no more what it was, and looks at the ring.
        flag != 0 && asleep.compare_exchange(flag, 0, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    /// Where a message of `len` bytes would begin and end.
    #[inline]
    fn place(&mut self, len: usize) -> Option<(u64, u64)> {
        if len > self.ring.max_len() {
            return None;
        }
        let lines = wire::record_lines(len);
        let left = self.ring.lines_left(self.tail);
        let line = if lines <= left { self.tail } else { self.tail + left };
        let end = line + lines;
        // The line at `end` gets a header of 0: it must be free, too.
        (end < self.limit || self.look(end)).then_some((line, end))
    }

    /// Looks where the consumer is; whether line `end` is free.
    #[cold]
    fn look(&mut self, end: u64) -> bool {
        let Some(position) = self.ring.position() else { return false };
        // With release order by the consumer: it has read what lies before.
        let limit = position.load(Ordering::Acquire).wrapping_add(self.ring.lines());
        // Nothing wraps in what is ours: 64-byte lines would have to be counted for centuries.
        let is_possible = (self.limit..=self.tail + self.ring.lines()).contains(&limit);
        self.corrupt |= !is_possible;
        if !self.corrupt {
            self.limit = limit;
        }
        !self.corrupt && end < limit
    }
}

/// A message that is being written. Dropped unpublished, it was never there.
#[derive(Debug)]
#[must_use = "a message is sent by publishing it"]
pub struct Outgoing<'a, M: Memory = Arc<Mapping>> {
    producer: &'a mut Producer<M>,
    line: u64,
    end: u64,
    len: usize,
}

impl<M: Memory> Outgoing<'_, M> {
    /// Writes `bytes` to byte `at` of the payload and on. What does not lie within the length that was begun is a bug of the
    /// caller: nothing is written then. Bytes that were never written arrive as whatever stood there.
    #[inline]
    pub fn write(&mut self, at: usize, bytes: &[u8]) {
        let written = self.producer.ring.write(self.line, self.len, at, bytes);
        debug_assert!(written.is_ok(), "{written:?}");
    }

    /// Sends it. Of `tag` 24 bits arrive, at most [`MAX_TAG`].
    #[inline]
    pub fn publish(self, tag: u32) {
        debug_assert!(tag <= MAX_TAG, "{tag:#x}");
        let Self { producer, line, end, len } = self;
        let ring = &producer.ring;
        let (Some(behind), Some(header), Some(first)) =
            (ring.header(end), ring.header(line), ring.header(producer.tail))
        else {
            return; // never: a ring lies within its memory
        };
        behind.store(0, Ordering::Relaxed);
        let message = wire::message(tag, len);
        if line == producer.tail {
            header.store(message, Ordering::Release);
        } else {
            header.store(message, Ordering::Relaxed);
            first.store(wire::PADDING, Ordering::Release);
        }
        producer.tail = end;
    }
}
