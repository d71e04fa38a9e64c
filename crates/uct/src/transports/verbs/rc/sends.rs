//! A send queue as far as it is counted: which requests are on their way, which buffers they hold, and which of them tell of their
//! completion. They complete in order.

use super::credits::RESERVE;

/// Messages on their way at once in one endpoint.
pub(super) const MESSAGES: u16 = 128;
/// Requests on their way at once: those, and what is no message.
pub(super) const SENDS: u16 = MESSAGES + RESERVE;
/// Buffers of messages that the device does not take while they are posted.
const BUFFERS: u16 = 28;
/// All buffers: a device may take nothing so, and what is no message has some of its own. A power of two, as their numbers begin anew.
pub(super) const ALL_BUFFERS: u16 = BUFFERS + RESERVE;
/// Numbers of requests that are told apart.
pub(super) const SLOTS: u32 = (SENDS as u32).next_power_of_two();
const _: () = assert!(ALL_BUFFERS.is_power_of_two());
/// Every so many requests, one tells of its completion.
const TELLS: u32 = 16;

/// Requests, counted; numbers of both begin anew beyond 32 bits.
#[derive(Debug)]
pub(super) struct Sends {
    posted: u32,
    done: u32,
    /// Buffers that were ever taken, and given back: they are taken in turn.
    taken: u32,
    given_back: u32,
    /// By the number of a request: `taken` after it.
    after: Box<[u32]>,
    /// Requests since one that tells.
    silent: u32,
}

/// What is posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum What {
    /// A message.
    Message,
    /// Anything else.
    Control,
}

/// A request to be posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Request {
    pub(super) number: u32,
    /// The buffer that it takes.
    pub(super) buffer: u32,
    pub(super) tells: bool,
    takes: bool,
}

impl Sends {
    pub(super) fn new() -> Self {
        let after = vec![0; SLOTS as usize].into_boxed_slice();
        Self { posted: 0, done: 0, taken: 0, given_back: 0, after, silent: 0 }
    }

    fn room(&self, what: What) -> (u32, u32) {
        let (sends, buffers) = match what {
            What::Message => (MESSAGES, BUFFERS),
            What::Control => (SENDS, ALL_BUFFERS),
        };
        let room = |most: u16, used: u32| u32::from(most).saturating_sub(used);
        (
            room(sends, self.posted.wrapping_sub(self.done)),
            room(buffers, self.taken.wrapping_sub(self.given_back)),
        )
    }

    /// The next request, which takes a buffer or none; `None`: there is no room. It is posted once [`Sends::posted`] is called with it.
    #[inline]
    pub(super) fn next(&self, what: What, takes: bool) -> Option<Request> {
        let (sends, buffers) = self.room(what);
        if sends == 0 || takes && buffers == 0 {
            return None;
        }
        let is_last = sends == 1 || takes && buffers == 1;
        let tells = what == What::Control || is_last || self.silent + 1 >= TELLS;
        Some(Request { number: self.posted, buffer: self.taken % u32::from(ALL_BUFFERS), tells, takes })
    }

    /// It is on its way.
    #[inline]
    pub(super) fn posted(&mut self, request: Request) {
        self.taken = self.taken.wrapping_add(request.takes.into());
        if let Some(after) = self.after.get_mut((request.number % SLOTS) as usize) {
            *after = self.taken;
        }
        self.posted = request.number.wrapping_add(1);
        self.silent = if request.tells { 0 } else { self.silent + 1 };
    }

    /// A request has told of its completion, and so have those before it.
    #[inline]
    pub(super) fn completed(&mut self, number: u32) {
        let done = number.wrapping_add(1);
        // What was not on its way is no completion of ours.
        if done.wrapping_sub(self.done) <= self.posted.wrapping_sub(self.done) {
            self.done = done;
            if let Some(after) = self.after.get((number % SLOTS) as usize) {
                self.given_back = *after;
            }
        }
    }

    /// Whether the request of this number, which was posted, is on its way.
    #[inline]
    pub(super) fn has(&self, number: u32) -> bool {
        number.wrapping_sub(self.done) < self.posted.wrapping_sub(self.done)
    }

    /// Whether nothing is on its way.
    pub(super) fn is_idle(&self) -> bool {
        self.posted == self.done
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// No more than there is room for, buffers never twice, and who is refused has something to wait for.
        #[test]
        fn it_is_what_a_model_says(
            begin in any::<u32>(),
            steps in proptest::collection::vec((0..6_u8, any::<bool>()), 0..800),
        ) {
            let mut sends = Sends::new();
            // As after as many requests, all of them done.
            (sends.posted, sends.done, sends.taken, sends.given_back) = (begin, begin, begin, begin);
            let mut model: VecDeque<Request> = VecDeque::new();
            for (step, takes) in steps {
                let what = if step == 0 { What::Control } else { What::Message };
                if step < 5 {
                    let buffers = model.iter().filter(|request| request.takes).count();
                    let (most, most_buffers) = match what {
                        What::Message => (MESSAGES, BUFFERS),
                        What::Control => (SENDS, ALL_BUFFERS),
                    };
                    let has_room = model.len() < most.into() && !(takes && buffers >= most_buffers.into());
                    let next = sends.next(what, takes);
                    prop_assert_eq!(next.is_some(), has_room);
                    if let Some(next) = next {
                        let mut held = model.iter().filter(|request| request.takes);
                        prop_assert!(!takes || held.all(|request| request.buffer != next.buffer));
                        sends.posted(next);
                        model.push_back(next);
                    } else {
                        prop_assert!(model.iter().any(|request| request.tells), "it would wait for ever");
                    }
                } else if let Some(at) = model.iter().position(|request| request.tells) {
                    sends.completed(model[at].number);
                    model.drain(..=at);
                }
                prop_assert_eq!(sends.is_idle(), model.is_empty());
                prop_assert!(model.iter().all(|request| sends.has(request.number)));
                let before = model.front().map_or(sends.posted, |request| request.number).wrapping_sub(1);
                prop_assert!(!sends.has(before) && !sends.has(sends.posted));
            }
        }
    }

    #[test]
    fn what_was_not_posted_is_not_completed() {
        let mut sends = Sends::new();
        sends.completed(0);
        sends.completed(7);
        assert!(sends.is_idle());
        let request = sends.next(What::Control, false).unwrap();
        sends.posted(request);
        sends.completed(1);
        assert!(!sends.is_idle());
        sends.completed(0);
        assert!(sends.is_idle());
    }
}
