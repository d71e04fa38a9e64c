//! Where things lie in a ring, and what its words say.

use std::sync::Arc;

use ucs::mem::Mapping;
use ucs::mem::shared::BoundsError;
use ucs::sync::{Ordering, Word, Word64, fence};

/// Bytes of a line: a cache line of the processors rucx runs on.
pub const LINE: usize = 64;
/// The largest number of data lines: lengths then fit the header.
pub const MAX_LINES: u32 = 1 << 27;
/// The largest tag.
pub const MAX_TAG: u32 = (1 << 24) - 1;

/// Lines before the data.
const CONTROL_LINES: usize = 2;
/// How many bytes before the data the consumer's position lies: lines since the beginning.
const POSITION: u64 = 2 * LINE as u64;
/// How many bytes before the data its other word lies, which is not 0 while it sleeps.
const ASLEEP: u64 = LINE as u64;
/// How many bytes before the data the producer's word lies, which is not 0 while it waits for room.
const WAITS: u64 = LINE as u64 - 8;
/// Bytes of a header word.
const HEADER: usize = 8;
/// The least number of data lines.
const MIN_LINES: u32 = 8;

/// Kinds of a header.
const MESSAGE: u64 = 1;
/// The header of padding: all of it.
pub(super) const PADDING: u64 = 2 << 56;

/// Bytes of memory that a ring with `lines` data lines takes.
#[must_use]
pub const fn ring_len(lines: u32) -> usize {
    (CONTROL_LINES + lines as usize) * LINE
}

/// The header of a message.
#[inline]
pub(super) fn message(tag: u32, len: usize) -> u64 {
    MESSAGE << 56 | u64::from(tag & MAX_TAG) << 32 | len as u64
}

/// Lines of a record with `len` bytes of payload.
#[inline]
pub(super) fn record_lines(len: usize) -> u64 {
    (len + HEADER).div_ceil(LINE) as u64
}

/// The ring holds what no producer writes: the other side is to be given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Corrupt {
    /// A header that is neither a message's nor padding's.
    #[error("line {line} begins with {header:#018x}, which is no header")]
    NoHeader {
        /// The data line, from 0.
        line: u64,
        /// What stands there.
        header: u64,
    },
    /// A message longer than any.
    #[error("the message in line {line} says that it has {len} bytes, and none has more than {max}")]
    TooLong {
        /// The data line, from 0.
        line: u64,
        /// The bytes that it says.
        len: usize,
        /// The bytes of the longest.
        max: usize,
    },
    /// A message that goes on beyond the last line.
    #[error("the message of {len} bytes in line {line} does not end within the ring")]
    Wraps {
        /// The data line, from 0.
        line: u64,
        /// The bytes that it says.
        len: usize,
    },
    /// Padding with no message behind it that would need it.
    #[error("line {line} is padding that no message needs")]
    NeedlessPadding {
        /// The data line, from 0.
        line: u64,
    },
}

/// A message that was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Found {
    pub(super) tag: u32,
    /// Bytes of its payload; all of them lie within the ring.
    pub(super) len: usize,
    /// The line with its header.
    pub(super) line: u64,
    /// The line behind it.
    pub(super) end: u64,
}

/// What a ring lies in. Mappings are; loom's models bring another one, as its atomics cannot lie in a mapping.
pub trait Memory {
    /// Its 64-bit words.
    type Word: Word;

    /// The word at `offset`; `None`: there is none, or it may not be written.
    fn word(&self, offset: u64) -> Option<&Self::Word>;

    /// Copies `src` to `offset`, in no order.
    ///
    /// # Errors
    /// [`BoundsError`]; nothing is written then.
    fn write(&self, offset: u64, src: &[u8]) -> Result<(), BoundsError>;

    /// Copies from `offset` to `dst`, in no order.
    ///
    /// # Errors
    /// [`BoundsError`]; nothing is read then.
    fn read(&self, offset: u64, dst: &mut [u8]) -> Result<(), BoundsError>;

    /// Between a store of one side's word and a load of the other's.
    #[inline]
    fn fence(&self) {
        fence(Ordering::SeqCst);
    }
}

impl Memory for Arc<Mapping> {
    type Word = Word64;

    #[inline]
    fn word(&self, offset: u64) -> Option<&Word64> {
        self.bytes().atomic_u64(offset).ok()
    }

    #[inline]
    fn write(&self, offset: u64, src: &[u8]) -> Result<(), BoundsError> {
        self.bytes().write(offset, src)
    }

    #[inline]
    fn read(&self, offset: u64, dst: &mut [u8]) -> Result<(), BoundsError> {
        self.bytes().read(offset, dst)
    }
}

/// A ring's place in memory. Lines are counted from the beginning of time; the ring begins anew every `lines` of them.
#[derive(Debug)]
pub(super) struct Ring<M> {
    memory: M,
    /// Where data line 0 begins.
    data: u64,
    lines: u64,
}

impl<M: Memory> Ring<M> {
    /// `None`: not a ring's offset or number of lines, or it does not lie within the memory.
    pub(super) fn new(memory: M, offset: usize, lines: u32) -> Option<Self> {
        let is_one = offset.is_multiple_of(LINE)
            && lines.is_power_of_two()
            && (MIN_LINES..=MAX_LINES).contains(&lines)
            && offset.checked_add(ring_len(lines)).is_some();
        if !is_one {
            return None;
        }
        // Memory is one range: what holds the first word and the last one holds all.
        memory.word(offset as u64)?;
        memory.word((offset + ring_len(lines) - HEADER) as u64)?;
        Some(Self { memory, data: (offset + CONTROL_LINES * LINE) as u64, lines: lines.into() })
    }

    /// How many data lines it has.
    #[inline]
    pub(super) fn lines(&self) -> u64 {
        self.lines
    }

    /// A quarter of them: those of the longest record.
    #[inline]
    pub(super) fn quarter(&self) -> u64 {
        self.lines / 4
    }

    /// Bytes of the longest payload.
    #[inline]
    pub(super) fn max_len(&self) -> usize {
        usize::try_from(self.quarter()).unwrap_or(0) * LINE - HEADER
    }

    #[inline]
    fn index(&self, line: u64) -> u64 {
        line & (self.lines - 1)
    }

    /// Lines from this one to the ring's end.
    #[inline]
    pub(super) fn lines_left(&self, line: u64) -> u64 {
        self.lines - self.index(line)
    }

    /// The consumer's position.
    #[inline]
    pub(super) fn position(&self) -> Option<&M::Word> {
        self.memory.word(self.data - POSITION)
    }

    /// Whether the consumer sleeps.
    #[inline]
    pub(super) fn asleep(&self) -> Option<&M::Word> {
        self.memory.word(self.data - ASLEEP)
    }

    /// Whether the producer waits for room.
    #[inline]
    pub(super) fn waits(&self) -> Option<&M::Word> {
        self.memory.word(self.data - WAITS)
    }

    /// The header word of a line.
    #[inline]
    pub(super) fn header(&self, line: u64) -> Option<&M::Word> {
        self.memory.word(self.start(line))
    }

    /// Where a line begins.
    #[inline]
    fn start(&self, line: u64) -> u64 {
        self.data + self.index(line) * LINE as u64
    }

    /// Where a byte of the payload of a record that begins in this line lies.
    #[inline]
    fn payload(&self, line: u64, at: usize) -> u64 {
        self.start(line) + (HEADER + at) as u64
    }

    /// Writes to the payload, `len` bytes, of a record that lies within the ring.
    #[inline]
    pub(super) fn write(&self, line: u64, len: usize, at: usize, src: &[u8]) -> Result<(), BoundsError> {
        check(len, at, src.len())?;
        self.memory.write(self.payload(line, at), src)
    }

    /// Reads from it.
    #[inline]
    pub(super) fn read(&self, line: u64, len: usize, at: usize, dst: &mut [u8]) -> Result<(), BoundsError> {
        check(len, at, dst.len())?;
        self.memory.read(self.payload(line, at), dst)
    }

    /// See [`Memory::fence`].
    #[inline]
    pub(super) fn fence(&self) {
        self.memory.fence();
    }

    /// What the header found in a line, not 0, says.
    #[inline]
    pub(super) fn decode(&self, line: u64, header: u64) -> Result<Found, Corrupt> {
        match self.decode_message(line, header) {
            Some(found) => Ok(found),
            None if header == PADDING => self.decode_padded(line),
            None => Err(self.reason(line, header)),
        }
    }

    #[inline]
    fn decode_message(&self, line: u64, header: u64) -> Option<Found> {
        let len = length(header);
        let lines = record_lines(len);
        let fits = header >> 56 == MESSAGE && len <= self.max_len() && lines <= self.lines_left(line);
        fits.then(|| Found { tag: tag(header), len, line, end: line + lines })
    }

    /// The message behind padding that begins in `line`.
    #[cold]
    fn decode_padded(&self, line: u64) -> Result<Found, Corrupt> {
        let first = line + self.lines_left(line);
        // The padding's header, loaded with acquire order, has published this one, too.
        let header = self.header(first).map_or(0, |word| word.load(Ordering::Relaxed));
        let found = self.decode_message(first, header).ok_or_else(|| self.reason(first, header))?;
        if found.end - found.line <= self.lines_left(line) {
            return Err(Corrupt::NeedlessPadding { line: self.index(line) });
        }
        Ok(found)
    }

    /// Why a header is no message's.
    #[cold]
    fn reason(&self, line: u64, header: u64) -> Corrupt {
        let (line, len, max) = (self.index(line), length(header), self.max_len());
        if header >> 56 != MESSAGE {
            Corrupt::NoHeader { line, header }
        } else if len > max {
            Corrupt::TooLong { line, len, max }
        } else {
            Corrupt::Wraps { line, len }
        }
    }
}

#[inline]
fn length(header: u64) -> usize {
    usize::try_from(header & 0xffff_ffff).unwrap_or(usize::MAX)
}

#[inline]
fn tag(header: u64) -> u32 {
    u32::try_from(header >> 32 & u64::from(MAX_TAG)).unwrap_or(0)
}

/// An access lies within `size` bytes.
#[inline]
fn check(size: usize, at: usize, len: usize) -> Result<(), BoundsError> {
    if at <= size && len <= size - at {
        Ok(())
    } else {
        Err(BoundsError::OutOfRange { offset: at as u64, len: len as u64, size: size as u64 })
    }
}
