//! Taking what is there, and telling when there will be no more.

use super::wire::Memory;
use super::{Consumer, Incoming};

/// How many messages of one ring are taken by one call, so that no ring waits for another one's flood.
pub const BATCH: usize = 16;

/// Why there will be no more messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum End {
    /// The producer has ended, and all that it has left was taken.
    Gone,
    /// The ring holds what no producer writes, or is filled after its producer's end.
    Corrupt,
}

/// What a consumer takes, a batch at a time, until its producer's end.
#[derive(Debug)]
pub struct Batches {
    /// How many messages are still taken once the producer is gone, counted by batches: its ring held no more, and nobody fills it again.
    last: usize,
}

impl Batches {
    /// Of a ring of so many data lines.
    #[must_use]
    pub fn of(lines: u32) -> Self {
        Self { last: (lines as usize).saturating_add(2 * BATCH) }
    }

    /// Has `each` see the next messages, [`BATCH`] at most; answers how many there were. `is_gone` says whether the producer is known
    /// to have ended: what it has sent before is told before that.
    ///
    /// # Errors
    /// [`End`]: there will be no more.
    #[inline]
    pub fn take<M: Memory>(
        &mut self,
        consumer: &mut Consumer<M>,
        is_gone: impl FnOnce() -> bool,
        mut each: impl FnMut(&Incoming<'_, M>),
    ) -> Result<usize, End> {
        // Before it is looked: what was sent before the end is there by then.
        let is_gone = is_gone();
        if is_gone {
            self.last = self.last.checked_sub(BATCH).ok_or(End::Corrupt)?;
        }
        for count in 0..BATCH {
            match consumer.receive() {
                Ok(Some(message)) => each(&message),
                Ok(None) if count == 0 => return if is_gone { Err(End::Gone) } else { Ok(0) },
                Ok(None) => return Ok(count),
                Err(_) => return Err(End::Corrupt),
            }
        }
        Ok(BATCH)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use ucs::mem::Mapping;

    use super::*;
    use crate::ring::{Producer, ring_len};

    const LINES: u32 = 64;

    fn ends() -> (Producer, Consumer, Batches) {
        let map = Arc::new(Mapping::anonymous(ring_len(LINES)).unwrap());
        let producer = Producer::new(Arc::clone(&map), 0, LINES).unwrap();
        (producer, Consumer::new(map, 0, LINES).unwrap(), Batches::of(LINES))
    }

    fn send(producer: &mut Producer, count: u32) {
        (0..count).for_each(|tag| producer.begin(8).unwrap().publish(tag));
    }

    #[test]
    fn all_that_a_full_ring_holds_is_taken_before_the_end_is_told() {
        let (mut producer, mut consumer, mut batches) = ends();
        send(&mut producer, LINES - 1);
        let mut tags = Vec::new();
        let mut take = || batches.take(&mut consumer, || true, |message| tags.push(message.tag()));
        assert_eq!([(); 4].map(|()| take()), [Ok(BATCH), Ok(BATCH), Ok(BATCH), Ok(BATCH - 1)]);
        assert_eq!([take(), take()], [Err(End::Gone); 2]);
        assert!(tags.into_iter().eq(0..LINES - 1));
    }

    #[test]
    fn one_that_lives_may_send_for_ever_and_one_that_is_gone_may_not() {
        let (mut producer, mut consumer, mut batches) = ends();
        let mut round = |is_gone: bool| {
            send(&mut producer, 1);
            batches.take(&mut consumer, || is_gone, |_| ())
        };
        assert!((0..1000).all(|_| round(false) == Ok(1)));
        let taken = (0..1000).take_while(|_| round(true) == Ok(1)).count();
        assert_eq!(taken, LINES as usize / BATCH + 2);
        assert_eq!(round(true), Err(End::Corrupt));
    }
}
