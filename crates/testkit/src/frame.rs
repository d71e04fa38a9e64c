//! Length-prefixed frames over a pipe: a 32-bit little-endian length, then that many bytes.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

/// Longest frame: a test that sends more is broken.
pub(crate) const MAX: usize = 64 << 20;

/// The frame's bytes with their prefix.
///
/// # Panics
/// More than [`MAX`] bytes.
pub(crate) fn encode(payload: &[u8]) -> Vec<u8> {
    assert!(payload.len() <= MAX, "a frame of {} bytes", payload.len());
    let len = u32::try_from(payload.len()).expect("MAX fits 32 bits");
    let mut bytes = Vec::with_capacity(4 + payload.len());
    bytes.extend_from_slice(&len.to_le_bytes());
    bytes.extend_from_slice(payload);
    bytes
}

/// Takes the first whole frame out of `buffer`.
///
/// # Errors
/// The length announced, when beyond [`MAX`]: something other than a frame was written.
pub(crate) fn decode(buffer: &mut Vec<u8>) -> Result<Option<Vec<u8>>, usize> {
    let Some((prefix, rest)) = buffer.split_first_chunk::<4>() else { return Ok(None) };
    let len = u32::from_le_bytes(*prefix) as usize;
    if len > MAX {
        return Err(len);
    }
    let Some(payload) = rest.get(..len) else { return Ok(None) };
    let payload = payload.to_vec();
    buffer.drain(..4 + len);
    Ok(Some(payload))
}

/// What a [`drain`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Drained {
    /// The other side still holds its end.
    Open,
    /// Nobody holds the other end.
    Closed,
}

/// Reads what is there from a non-blocking descriptor.
pub(crate) fn drain(fd: impl AsFd, into: &mut Vec<u8>) -> Drained {
    let mut chunk = [0u8; 16 << 10];
    loop {
        match rustix::io::read(&fd, &mut chunk) {
            Ok(0) => return Drained::Closed,
            Ok(n) => into.extend_from_slice(&chunk[..n]),
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => return Drained::Open,
            Err(_) => return Drained::Closed,
        }
    }
}

/// Waits until one of the descriptors has an event or the deadline is over; returns false in the latter case.
pub(crate) fn wait(fds: &[(BorrowedFd<'_>, PollFlags)], deadline: Instant) -> bool {
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let mut polled: Vec<PollFd<'_>> =
            fds.iter().map(|(fd, flags)| PollFd::from_borrowed_fd(*fd, *flags)).collect();
        match poll(&mut polled, Some(&timespec(left))) {
            Ok(0) => return false,
            Ok(_) => return true,
            Err(Errno::INTR) => {}
            Err(error) => panic!("poll: {error}"),
        }
    }
}

/// A duration as `ppoll` takes it.
pub(crate) fn timespec(duration: Duration) -> Timespec {
    Timespec {
        tv_sec: i64::try_from(duration.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: duration.subsec_nanos().into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_come_out_as_they_went_in() {
        let mut buffer = [encode(b"one"), encode(b""), encode(&[7; 70_000])].concat();
        buffer.truncate(buffer.len() - 1);
        assert_eq!(decode(&mut buffer), Ok(Some(b"one".to_vec())));
        assert_eq!(decode(&mut buffer), Ok(Some(Vec::new())));
        assert_eq!(decode(&mut buffer), Ok(None));
        buffer.push(7);
        assert_eq!(decode(&mut buffer), Ok(Some(vec![7; 70_000])));
        assert!(buffer.is_empty());
    }

    #[test]
    fn text_is_no_frame() {
        let mut buffer = b"hello, world".to_vec();
        assert!(decode(&mut buffer).is_err());
    }
}
