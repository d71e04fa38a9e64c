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

/// An error of an access that is a part of a longer one, which had moved `before` bytes: as one of the longer one.
pub(crate) fn of_longer(error: AccessError, before: u64) -> AccessError {
    match error {
        AccessError::Stale { done, why } => AccessError::Stale { done: done + before, why },
        AccessError::AccessDenied { done, why } => AccessError::AccessDenied { done: done + before, why },
        other => other,
    }
}

/// Reads `len` bytes from `offset` on, as [`each_chunk`].
///
/// # Errors
/// What the library answered, of all that was to be read; or that of the first step that fails.
pub(crate) fn each_chunk_of<E: From<AccessError>>(
    mem: &impl Memory,
    offset: u64,
    len: u64,
    mut step: impl FnMut(u64, &[u8]) -> Result<(), E>,
) -> Result<(), E> {
    each_chunk(offset, len, |at, chunk| {
        mem.get(at, chunk).map_err(|error| of_longer(error, at - offset))?;
        step(at, chunk)
    })
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

    /// Memory of `len` zeros that ends after `until`.
    struct Short {
        len: u64,
        until: u64,
    }

    impl Memory for Short {
        fn size(&self) -> u64 {
            self.len
        }

        fn get(&self, offset: u64, dst: &mut [u8]) -> Result<(), AccessError> {
            let end = offset + dst.len() as u64;
            if end <= self.until {
                return Ok(());
            }
            Err(AccessError::Stale { done: self.until - offset, why: ucp::StaleReason::Revoked })
        }

        fn put(&self, offset: u64, src: &[u8]) -> Result<(), AccessError> {
            self.get(offset, &mut src.to_vec())
        }
    }

    #[test]
    fn what_was_moved_counts_from_the_beginning() {
        let chunk = CHUNK as u64;
        let mem = Short { len: 4 * chunk, until: 2 * chunk + 100 };
        let read = each_chunk_of(&mem, 50, 3 * chunk, |_, _| Ok::<_, AccessError>(()));
        assert_eq!(read, Err(AccessError::Stale { done: 2 * chunk + 50, why: ucp::StaleReason::Revoked }));
        let filled = crate::export::fill(&mem, &crate::pattern::Pattern::Zero);
        assert_eq!(filled, Err(AccessError::Stale { done: 2 * chunk + 100, why: ucp::StaleReason::Revoked }));
        assert_eq!(of_longer(AccessError::Forked, 5), AccessError::Forked);
    }

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
