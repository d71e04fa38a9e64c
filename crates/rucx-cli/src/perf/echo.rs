//! What the peer does while it is measured against.

use std::collections::VecDeque;

use ucp::Request;

use super::Problem;
use super::side::{Came, Far, LAST, MESSAGE, Place, Side};

/// Messages under way at once, at most; and how many bytes they may be together.
const WINDOW: u64 = 64;
const WINDOW_BYTES: u64 = 16 << 20;

/// The last byte of the last put. The others count from 1 up to the one before, over and over.
pub(super) const LAST_PUT: u8 = u8::MAX;

/// The last byte of the put after that with `byte`.
pub(super) fn next(byte: u8) -> u8 {
    byte % (LAST_PUT - 1) + 1
}

/// How many messages of that size may be under way at once.
pub(super) fn window(size: u64) -> usize {
    usize::try_from((WINDOW_BYTES / size.max(1)).clamp(2, WINDOW)).unwrap_or(2)
}

/// An operand of that size.
pub(super) fn operand(size: u64) -> Vec<u8> {
    vec![0x5a; usize::try_from(size).unwrap_or(usize::MAX)]
}

/// Puts to the other side, whose last byte is `byte`.
#[inline]
pub(super) fn put(side: &Side, far: &Far, place: Place, data: &mut Vec<u8>, byte: u8) -> Result<(), Problem> {
    if let Some(last) = data.last_mut() {
        *last = byte;
    }
    *data = side.finish(far.memory.put(place.offset, std::mem::take(data)))?;
    Ok(())
}

/// Answers each put with one of the same last byte, until the last.
pub(super) fn puts(side: &Side, far: &Far, size: u64) -> Result<(), Problem> {
    let (place, mut data, mut last) = (Place::of(size), operand(size), 0);
    loop {
        last = side.changed(place, last)?;
        if last == LAST_PUT {
            return Ok(());
        }
        put(side, far, place, &mut data, last)?;
    }
}

/// Answers each message with one, until the last.
pub(super) fn messages(side: &Side, far: &Far, size: u64) -> Result<(), Problem> {
    let (mut room, mut seen) = (operand(size), side.messages());
    let mut sent: Option<Request<Vec<u8>>> = None;
    loop {
        if side.receive(&mut seen, &mut room)? == Came::Last {
            return Ok(());
        }
        let data = match sent.take() {
            Some(request) => side.finish(request)?,
            None => operand(size),
        };
        sent = Some(far.ep.am_send(MESSAGE, b"", data));
    }
}

/// Takes messages until the last, then sends one.
pub(super) fn take(side: &Side, far: &Far, size: u64) -> Result<(), Problem> {
    let mut rooms: Vec<Vec<u8>> = Vec::new();
    let mut coming: VecDeque<Request<Vec<u8>>> = VecDeque::new();
    let (mut ended, mut pace) = (false, side.pace());
    loop {
        if side.worker.progress() > 0 {
            pace = side.pace();
        }
        while let Some(message) = side.announced() {
            let room = rooms.pop().unwrap_or_else(|| operand(size));
            coming.push_back(message.recv_data(room));
        }
        while coming.front().is_some_and(Request::is_ended) {
            rooms.extend(coming.pop_front().map(|request| side.finish(request)).transpose()?);
        }
        ended |= side.take_last();
        if ended && coming.is_empty() {
            return side.finish(far.ep.am_send(MESSAGE, b"", Vec::new())).map(drop);
        }
        pace.idle()?;
    }
}

/// Says that there are no more messages.
pub(super) fn last_message(side: &Side, far: &Far) -> Result<(), Problem> {
    side.finish(far.ep.am_send(LAST, b"", Vec::new())).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_of_puts_change_and_are_never_the_last() {
        let mut byte = 0;
        for _ in 0..1000 {
            let after = next(byte);
            assert!(after != byte && after != LAST_PUT && after != 0);
            byte = after;
        }
    }

    #[test]
    fn windows() {
        assert_eq!([window(1), window(1 << 20), window(1 << 30)], [64, 16, 2]);
    }
}
