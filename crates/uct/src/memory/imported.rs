//! Memory of another process as an operand.

use std::ops::Range;

use crate::api::Attachment;

use super::{AccessError, pieces};

/// A part of memory of another process: reached through its attachment, and in no other way.
#[derive(Clone, Copy)]
pub(super) struct Imported<'a> {
    pub(super) memory: &'a (dyn Attachment + 'static),
    pub(super) start: u64,
    pub(super) len: usize,
}

impl<'a> Imported<'a> {
    /// What of `part` lies within.
    pub(super) fn new(memory: &'a (dyn Attachment + 'static), part: Range<u64>) -> Self {
        let end = part.end.min(memory.len());
        let start = part.start.min(end);
        Self { memory, start, len: usize::try_from(end - start).unwrap_or(usize::MAX) }
    }

    /// A part that lies within.
    pub(super) fn range(&self, part: Range<usize>) -> Self {
        Self { memory: self.memory, start: self.start + part.start as u64, len: part.len() }
    }

    pub(super) fn read(&self, at: usize, dst: &mut [u8]) -> Result<(), AccessError> {
        self.memory.read(self.start + at as u64, dst).map_err(AccessError::of_imported_operand)
    }

    pub(super) fn write(&self, at: usize, src: &[u8]) -> Result<(), AccessError> {
        self.memory.write(self.start + at as u64, src).map_err(AccessError::of_imported_operand)
    }

    /// Memory for pieces that are worth an access to it, and one to the other side.
    pub(super) fn with_pieces<T>(&self, good: usize, copy: impl FnOnce(&mut [u8]) -> T) -> T {
        pieces::with(self.len.min(good.max(self.memory.good_piece())), copy)
    }
}
