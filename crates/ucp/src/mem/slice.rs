//! Parts of regions, as operands.

use std::fmt;
use std::ops::{Bound, Range, RangeBounds};
use std::sync::Arc;

use ucs::mem::shared::BoundsError;
use uct::LocalMem;
use uct::memory::{AccessError, Destination, Local, LocalMut, Source};

use super::Region;

/// A part of a [`Region`], as an operand. Send + Sync. It keeps the memory, not the region's exports.
///
/// Peers may change its bytes meanwhile. Of raw memory it names the *addresses*: each operation uses what is mapped there when it
/// begins, or fails. A transport that registers pages is given those of then, at each operation.
#[derive(Clone)]
pub struct MemSlice {
    mem: Arc<LocalMem>,
    range: Range<usize>,
}

impl Region {
    /// A part of it, as an operand of [`ImportedRegion::put`](super::ImportedRegion::put) and `get`: as many bytes as `range` has.
    ///
    /// # Errors
    /// Out of range.
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Result<MemSlice, AccessError> {
        let wide = |bound: Bound<&usize>| bound.map(|at| *at as u64);
        let range = within((wide(range.start_bound()), wide(range.end_bound())), self.len() as u64)?;
        #[allow(clippy::cast_possible_truncation)] // within memory of this process
        let range = range.start as usize..range.end as usize;
        Ok(MemSlice { mem: Arc::clone(&self.mem), range })
    }
}

/// The part of `len` bytes that `range` names.
pub(super) fn within(range: impl RangeBounds<u64>, len: u64) -> Result<Range<u64>, AccessError> {
    let start = match range.start_bound() {
        Bound::Included(start) => Some(*start),
        Bound::Excluded(before) => before.checked_add(1),
        Bound::Unbounded => Some(0),
    };
    let end = match range.end_bound() {
        Bound::Included(last) => last.checked_add(1),
        Bound::Excluded(end) => Some(*end),
        Bound::Unbounded => Some(len),
    };
    match (start, end) {
        (Some(start), Some(end)) if start <= end && end <= len => Ok(start..end),
        (start, end) => {
            let (offset, end) = (start.unwrap_or(u64::MAX), end.unwrap_or(u64::MAX));
            Err(BoundsError::OutOfRange { offset, len: end.saturating_sub(offset), size: len }.into())
        }
    }
}

impl MemSlice {
    /// How many bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.range.len()
    }

    /// Whether it has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.range.is_empty()
    }

    /// Which bytes of the region it is.
    #[must_use]
    pub fn range(&self) -> Range<usize> {
        self.range.clone()
    }
}

impl Source for MemSlice {
    fn local(&self) -> Local<'_> {
        Local::part(&self.mem, self.range())
    }
}

impl Destination for MemSlice {
    fn local_mut(&mut self) -> LocalMut<'_> {
        LocalMut::part(&self.mem, self.range())
    }
}

impl fmt::Debug for MemSlice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemSlice").field("range", &self.range).field("of", &self.mem.kind()).finish()
    }
}
