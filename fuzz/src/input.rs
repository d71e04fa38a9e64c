//! What steps read their operands from.

/// The rest of the input; zeros when it has ended.
pub(crate) struct Input<'a>(pub(crate) &'a [u8]);

impl<'a> Input<'a> {
    /// One byte.
    pub(crate) fn byte(&mut self) -> u8 {
        self.bytes(1).first().copied().unwrap_or_default()
    }

    /// At most `len` bytes.
    pub(crate) fn bytes(&mut self, len: usize) -> &'a [u8] {
        let (bytes, rest) = self.0.split_at(len.min(self.0.len()));
        self.0 = rest;
        bytes
    }

    /// Two bytes, the lower one first.
    pub(crate) fn number(&mut self) -> usize {
        usize::from(self.byte()) + (usize::from(self.byte()) << 8)
    }
}
