//! What the peer does while it is measured against.

use std::collections::VecDeque;

use ucp::Request;

use super::Problem;
use super::operand::Operand;
use super::side::{Came, Far, LAST, MESSAGE, Place, Side};

/// Messages under way at once, at most; and how many bytes they may be together.
const WINDOW: u64 = 64;
const WINDOW_BYTES: u64 = 16 << 20;

/// The last byte of the last put. Those of the others are 1 and 2 by turns.
const LAST_PUT: u8 = u8::MAX;

/// Bytes of these.
const ROOMS_BYTES: u64 = 512 << 10;

/// How many announced messages of that size are received at once: so many that they stay in a cache, and two at least, so that one comes
/// while another one is waited for.
fn rooms(size: u64) -> usize {
    usize::try_from((ROOMS_BYTES / size.max(1)).clamp(2, 16)).unwrap_or(2)
}

/// How many messages of that size may be under way at once.
pub(super) fn window(size: u64) -> usize {
    usize::try_from((WINDOW_BYTES / size.max(1)).clamp(2, WINDOW)).unwrap_or(2)
}

/// Puts to one place: by turns of two operands of imported memory, which costs as much to write as is to be timed; of one of its own.
#[derive(Debug)]
pub(super) struct Puts<'a> {
    side: &'a Side,
    far: &'a Far,
    place: Place,
    data: [Operand; 2],
    turn: u8,
}

impl<'a> Puts<'a> {
    pub(super) fn new(side: &'a Side, far: &'a Far, size: u64) -> Result<Self, Problem> {
        let data = [far.operand(size, 1)?, far.operand(size, 2)?];
        Ok(Self { side, far, place: Place::of(size), data, turn: 0 })
    }

    /// Puts the next.
    #[inline]
    pub(super) fn put(&mut self) -> Result<(), Problem> {
        let byte = self.turn + 1;
        let [first, second] = &mut self.data;
        let data = match first {
            // One buffer, whose last byte costs nothing to change: two would take twice the cache.
            Operand::Own(bytes) => {
                if let Some(last) = bytes.last_mut() {
                    *last = byte;
                }
                first
            }
            _ if self.turn == 0 => first,
            _ => second,
        };
        *data = self.side.finish(self.far.memory.put(self.place.offset, std::mem::take(data)))?;
        self.turn ^= 1;
        Ok(())
    }

    /// Puts the last: its last byte alone.
    pub(super) fn last(&self) -> Result<(), Problem> {
        self.side.finish(self.far.memory.put(self.place.end - 1, vec![LAST_PUT])).map(drop)
    }
}

/// Answers each put with one of the same last byte, until the last.
pub(super) fn puts(side: &Side, far: &Far, size: u64) -> Result<(), Problem> {
    let (place, mut puts, mut last) = (Place::of(size), Puts::new(side, far, size)?, 0);
    loop {
        last = side.changed(place, last)?;
        if last == LAST_PUT {
            return Ok(());
        }
        puts.put()?;
    }
}

/// Answers each message with one, until the last.
pub(super) fn messages(side: &Side, far: &Far, size: u64) -> Result<(), Problem> {
    let (mut room, mut seen) = (far.operand(size, 2)?, side.messages());
    let mut sent: Option<Request<Operand>> = None;
    loop {
        if side.receive(&mut seen, &mut room)? == Came::Last {
            return Ok(());
        }
        let data = match sent.take() {
            Some(request) => side.finish(request)?,
            None => far.operand(size, 1)?,
        };
        sent = Some(far.ep.am_send(MESSAGE, b"", data));
    }
}

/// Takes messages until the last, then sends one.
pub(super) fn take(side: &Side, far: &Far, size: u64) -> Result<(), Problem> {
    let (mut spare, most) = (Vec::<Operand>::new(), rooms(size));
    let mut coming: VecDeque<Request<Operand>> = VecDeque::new();
    let (mut ended, mut pace) = (false, side.pace());
    loop {
        if side.worker.progress() > 0 {
            pace = side.pace();
        }
        while coming.len() < most
            && let Some(message) = side.announced()
        {
            let room = spare.pop().map_or_else(|| far.operand(size, 2), Ok)?;
            coming.push_back(message.recv_data(room));
        }
        while coming.front().is_some_and(Request::is_ended) {
            spare.extend(coming.pop_front().map(|request| side.finish(request)).transpose()?);
        }
        ended |= side.take_last();
        if ended && coming.is_empty() && !side.has_announced() {
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
    fn windows() {
        assert_eq!([window(1), window(1 << 20), window(1 << 30)], [64, 16, 2]);
    }
}
