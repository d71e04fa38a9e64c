//! Bounded reading and writing of little-endian bytes.
//!
//! Readers never panic and never read beyond the slice they were given; what comes from a peer is read with them only.

/// The bytes end too early: `needed` more were wanted at their end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{needed} more bytes are needed at offset {offset}, and are not there")]
pub struct Truncated {
    /// Where the bytes end, counted from their beginning.
    pub offset: usize,
    /// Bytes that are missing there.
    pub needed: usize,
}

/// Reads bytes from front to back.
#[derive(Clone, Debug)]
pub struct Reader<'a> {
    bytes: &'a [u8],
    offset: usize,
}

impl<'a> Reader<'a> {
    /// Reads from the beginning of `bytes`.
    #[must_use]
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, offset: 0 }
    }

    /// Bytes read so far.
    #[must_use]
    pub fn offset(&self) -> usize {
        self.offset
    }

    /// Bytes left.
    #[must_use]
    pub fn remaining(&self) -> usize {
        self.bytes.len() - self.offset
    }

    /// The next `len` bytes.
    ///
    /// # Errors
    /// [`Truncated`].
    #[inline]
    pub fn bytes(&mut self, len: usize) -> Result<&'a [u8], Truncated> {
        let error = Truncated { offset: self.bytes.len(), needed: len.saturating_sub(self.remaining()) };
        let end = self.offset.checked_add(len).ok_or(error)?;
        let bytes = self.bytes.get(self.offset..end).ok_or(error)?;
        self.offset = end;
        Ok(bytes)
    }

    /// The next `N` bytes.
    ///
    /// # Errors
    /// [`Truncated`].
    #[inline]
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], Truncated> {
        let mut array = [0; N];
        array.copy_from_slice(self.bytes(N)?);
        Ok(array)
    }

    /// The next byte.
    ///
    /// # Errors
    /// [`Truncated`].
    #[inline]
    pub fn u8(&mut self) -> Result<u8, Truncated> {
        self.array().map(u8::from_le_bytes)
    }

    /// The next two bytes.
    ///
    /// # Errors
    /// [`Truncated`].
    #[inline]
    pub fn u16(&mut self) -> Result<u16, Truncated> {
        self.array().map(u16::from_le_bytes)
    }

    /// The next four bytes.
    ///
    /// # Errors
    /// [`Truncated`].
    #[inline]
    pub fn u32(&mut self) -> Result<u32, Truncated> {
        self.array().map(u32::from_le_bytes)
    }

    /// The next eight bytes.
    ///
    /// # Errors
    /// [`Truncated`].
    #[inline]
    pub fn u64(&mut self) -> Result<u64, Truncated> {
        self.array().map(u64::from_le_bytes)
    }
}

/// A buffer was too small for what was to be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{needed} more bytes are to be written at offset {offset}, and there is no room")]
pub struct NoRoom {
    /// Where writing stopped.
    pub offset: usize,
    /// Bytes that were to be written there.
    pub needed: usize,
}

/// Writes bytes from front to back.
#[derive(Debug)]
pub struct Writer<'a> {
    bytes: &'a mut [u8],
    offset: usize,
}

impl<'a> Writer<'a> {
    /// Writes from the beginning of `bytes`.
    #[must_use]
    pub fn new(bytes: &'a mut [u8]) -> Self {
        Self { bytes, offset: 0 }
    }

    /// Bytes written so far.
    #[must_use]
    pub fn offset(&self) -> usize {
        self.offset
    }

    /// Writes `bytes`.
    ///
    /// # Errors
    /// [`NoRoom`]; nothing is written then.
    #[inline]
    pub fn bytes(&mut self, bytes: &[u8]) -> Result<&mut Self, NoRoom> {
        let error = NoRoom { offset: self.offset, needed: bytes.len() };
        let end = self.offset.checked_add(bytes.len()).ok_or(error)?;
        self.bytes.get_mut(self.offset..end).ok_or(error)?.copy_from_slice(bytes);
        self.offset = end;
        Ok(self)
    }

    /// The next `len` bytes, for the caller to write.
    ///
    /// # Errors
    /// [`NoRoom`].
    #[inline]
    pub fn reserve(&mut self, len: usize) -> Result<&mut [u8], NoRoom> {
        let error = NoRoom { offset: self.offset, needed: len };
        let begin = self.offset;
        let end = begin.checked_add(len).ok_or(error)?;
        let bytes = self.bytes.get_mut(begin..end).ok_or(error)?;
        self.offset = end;
        Ok(bytes)
    }

    /// Writes one byte.
    ///
    /// # Errors
    /// [`NoRoom`].
    #[inline]
    pub fn u8(&mut self, value: u8) -> Result<&mut Self, NoRoom> {
        self.bytes(&value.to_le_bytes())
    }

    /// Writes two bytes.
    ///
    /// # Errors
    /// [`NoRoom`].
    #[inline]
    pub fn u16(&mut self, value: u16) -> Result<&mut Self, NoRoom> {
        self.bytes(&value.to_le_bytes())
    }

    /// Writes four bytes.
    ///
    /// # Errors
    /// [`NoRoom`].
    #[inline]
    pub fn u32(&mut self, value: u32) -> Result<&mut Self, NoRoom> {
        self.bytes(&value.to_le_bytes())
    }

    /// Writes eight bytes.
    ///
    /// # Errors
    /// [`NoRoom`].
    #[inline]
    pub fn u64(&mut self, value: u64) -> Result<&mut Self, NoRoom> {
        self.bytes(&value.to_le_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_was_written_and_stops_at_the_end() {
        let mut bytes = [0; 15];
        let mut writer = Writer::new(&mut bytes);
        writer.u8(1).unwrap().u16(2).unwrap().u32(3).unwrap().u64(4).unwrap();
        assert_eq!(writer.u8(5).unwrap_err(), NoRoom { offset: 15, needed: 1 });
        let mut reader = Reader::new(&bytes);
        assert_eq!((reader.u8(), reader.u16(), reader.u32(), reader.u64()), (Ok(1), Ok(2), Ok(3), Ok(4)));
        assert_eq!(reader.bytes(usize::MAX), Err(Truncated { offset: 15, needed: usize::MAX }));
        assert_eq!(reader.u8(), Err(Truncated { offset: 15, needed: 1 }));
        assert_eq!(reader.remaining(), 0);
        let mut reader = Reader::new(&bytes[..13]);
        assert_eq!(reader.bytes(7).map(<[u8]>::len), Ok(7));
        assert_eq!(reader.u64(), Err(Truncated { offset: 13, needed: 2 }));
        assert_eq!(reader.remaining(), 6);
    }
}
