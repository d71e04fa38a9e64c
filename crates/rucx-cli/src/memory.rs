//! Memory that can be copied to and from: one's own, or imported.

use ucp::{AccessError, ImportedRegion, Region};

/// How much is copied at once.
pub(crate) const CHUNK: usize = 1 << 20;

/// Memory of either kind.
pub(crate) trait Memory {
    /// How many bytes.
    fn size(&self) -> u64;

    /// Copies from `offset` on.
    ///
    /// # Errors
    /// [`AccessError`].
    fn get(&self, offset: u64, dst: &mut [u8]) -> Result<(), AccessError>;

    /// Copies to `offset`.
    ///
    /// # Errors
    /// [`AccessError`].
    fn put(&self, offset: u64, src: &[u8]) -> Result<(), AccessError>;
}

impl Memory for Region {
    fn size(&self) -> u64 {
        self.len() as u64
    }

    fn get(&self, offset: u64, dst: &mut [u8]) -> Result<(), AccessError> {
        self.read(offset, dst)
    }

    fn put(&self, offset: u64, src: &[u8]) -> Result<(), AccessError> {
        self.write(offset, src)
    }
}

impl Memory for ImportedRegion {
    fn size(&self) -> u64 {
        self.len()
    }

    fn get(&self, offset: u64, dst: &mut [u8]) -> Result<(), AccessError> {
        self.read(offset, dst)
    }

    fn put(&self, offset: u64, src: &[u8]) -> Result<(), AccessError> {
        self.write(offset, src)
    }
}

/// Goes through `len` bytes from `offset` on: one buffer, of [`CHUNK`] bytes but for the last time, and where its bytes belong.
///
/// # Errors
/// That of the first step that fails.
pub(crate) fn each_chunk<E>(
    offset: u64,
    len: u64,
    mut step: impl FnMut(u64, &mut [u8]) -> Result<(), E>,
) -> Result<(), E> {
    let fitting = |rest: u64| usize::try_from(rest).map_or(CHUNK, |rest| rest.min(CHUNK));
    let mut chunk = vec![0; fitting(len)];
    let mut done = 0;
    while done < len {
        let part = fitting(len - done);
        step(offset + done, &mut chunk[..part])?;
        done += part as u64;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_follow_each_other_without_gaps() {
        let mut parts = Vec::new();
        each_chunk(5, 2 * CHUNK as u64 + 3, |offset, chunk| {
            parts.push((offset, chunk.len()));
            Ok::<_, ()>(())
        })
        .unwrap();
        assert_eq!(parts, [(5, CHUNK), (5 + CHUNK as u64, CHUNK), (5 + 2 * CHUNK as u64, 3)]);
        assert_eq!(each_chunk(0, 0, |_, _| Err(())), Ok(()));
        assert_eq!(each_chunk(0, 1, |_, _| Err(())), Err(()));
    }
}
