//! Credits: a side sends a message only into a receive that it knows to be posted, so none is ever refused for want of one.
//!
//! Beside the receives for messages a side has [`RESERVE`] for what is none, and that is enough without counting: of greeting and
//! end there is one each. Credits alone are sent once half of the receives, or more, were posted again; what they give back was sent
//! on credits before, so of those that the peer has not looked at there are two at most.

/// Receives posted beside those for messages: for a greeting, an end, and two of credits alone.
pub(super) const RESERVE: u16 = 4;

/// The peer does what no peer does: it sends more, or gives back more, than it has credits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Excess;

/// The receives for messages of both sides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Credits {
    /// Of ours: all, those that the peer knows to be posted, those posted again since it was told. The others hold messages.
    ours: u16,
    given: u16,
    owed: u16,
    /// Of the peer's: all, and those known to be posted.
    theirs: u16,
    has: u16,
}

impl Credits {
    /// All are posted, and known to be.
    pub(super) fn new(ours: u16, theirs: u16) -> Self {
        Self { ours, given: ours, owed: 0, theirs, has: theirs }
    }

    /// Whether a message may be sent.
    #[inline]
    pub(super) fn may_send(&self) -> bool {
        self.has > 0
    }

    /// A message is sent.
    #[inline]
    pub(super) fn sent(&mut self) {
        self.has = self.has.saturating_sub(1);
    }

    /// The peer says that it has posted so many again.
    #[inline]
    pub(super) fn gained(&mut self, credits: u16) -> Result<(), Excess> {
        if credits > self.theirs - self.has {
            return Err(Excess);
        }
        self.has += credits;
        Ok(())
    }

    /// A message has come.
    #[inline]
    pub(super) fn came(&mut self) -> Result<(), Excess> {
        self.given = self.given.checked_sub(1).ok_or(Excess)?;
        Ok(())
    }

    /// The receive of a message is posted again.
    #[inline]
    pub(super) fn reposted(&mut self) {
        self.owed += 1;
    }

    /// Whether credits are to be sent alone.
    #[inline]
    pub(super) fn must_give(&self) -> bool {
        self.owed >= self.ours.div_ceil(2)
    }

    /// What the next SEND gives back.
    #[inline]
    pub(super) fn owed(&self) -> u16 {
        self.owed
    }

    /// A SEND with [`Credits::owed`] is posted.
    #[inline]
    pub(super) fn gave(&mut self) {
        self.given += self.owed;
        self.owed = 0;
    }

    /// Whether so many, sent alone, are credits: a peer sends no fewer.
    pub(super) fn is_worth(&self, credits: u16) -> bool {
        credits >= self.theirs.div_ceil(2)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;

    #[derive(Clone, Copy, Debug)]
    enum Step {
        Send,
        /// The network delivers one; the receiver looks at one.
        Deliver,
        Look,
        /// What is posted again is told, where it must be.
        Give,
    }

    /// One side, with what a naive model knows of it: the receives that are posted, and what lies in the others.
    struct Side {
        credits: Credits,
        posted: usize,
        arrived: VecDeque<(bool, u16)>,
    }

    impl Side {
        fn new(ours: u16, theirs: u16) -> Self {
            let posted = usize::from(ours + RESERVE) - 2; // greeting and end take theirs whenever they come
            Self { credits: Credits::new(ours, theirs), posted, arrived: VecDeque::new() }
        }
    }

    fn step() -> impl Strategy<Value = (bool, Step)> {
        let step = prop_oneof![
            4 => Just(Step::Send),
            4 => Just(Step::Deliver),
            3 => Just(Step::Look),
            2 => Just(Step::Give),
        ];
        (any::<bool>(), step)
    }

    fn send(from: &mut Side, wire: &mut VecDeque<(bool, u16)>, is_message: bool) {
        let owed = from.credits.owed();
        if is_message {
            from.credits.sent();
        }
        from.credits.gave();
        wire.push_back((is_message, owed));
    }

    fn look(at: &mut Side) {
        if let Some((is_message, credits)) = at.arrived.pop_front() {
            if is_message {
                assert_eq!(at.credits.came(), Ok(()));
            } else {
                assert!(at.credits.is_worth(credits));
            }
            at.posted += 1;
            assert_eq!(at.credits.gained(credits), Ok(()));
            if is_message {
                at.credits.reposted();
            }
        }
    }

    proptest! {
        #[test]
        fn no_send_finds_no_receive_and_both_go_on(
            depths in (2_u16..20, 2_u16..20),
            steps in proptest::collection::vec(step(), 0..600),
        ) {
            let mut sides = [Side::new(depths.0, depths.1), Side::new(depths.1, depths.0)];
            let mut wires: [VecDeque<(bool, u16)>; 2] = Default::default();
            for (which, step) in steps {
                let [a, b] = &mut sides;
                let (from, to, wire) = if which { (a, b, &mut wires[0]) } else { (b, a, &mut wires[1]) };
                match step {
                    Step::Send if from.credits.may_send() => send(from, wire, true),
                    Step::Give if from.credits.must_give() => send(from, wire, false),
                    Step::Deliver => if let Some(one) = wire.pop_front() {
                        prop_assert!(to.posted > 0, "no receive is posted");
                        to.posted -= 1;
                        to.arrived.push_back(one);
                    },
                    Step::Look => look(to),
                    _ => {}
                }
            }
            // All that is on its way is looked at, and told: then both may send, as far as half of the receives.
            for _ in 0..4 {
                for which in [0, 1] {
                    let [a, b] = &mut sides;
                    let (from, to) = if which == 0 { (a, b) } else { (b, a) };
                    while let Some(one) = wires[which].pop_front() {
                        prop_assert!(to.posted > 0);
                        to.posted -= 1;
                        to.arrived.push_back(one);
                    }
                    while !to.arrived.is_empty() {
                        look(to);
                    }
                    if from.credits.must_give() {
                        send(from, &mut wires[which], false);
                    }
                }
            }
            for side in &sides {
                prop_assert!(side.credits.has > side.credits.theirs / 2 || side.credits.has == side.credits.theirs);
            }
        }
    }

    #[test]
    fn more_than_there_is_is_noticed() {
        let mut credits = Credits::new(2, 3);
        assert!(!credits.is_worth(1) && credits.is_worth(2));
        assert_eq!(credits.gained(1), Err(Excess), "all are known to be posted");
        credits.sent();
        assert_eq!(
            (credits.gained(2), credits.gained(1), credits.gained(1)),
            (Err(Excess), Ok(()), Err(Excess))
        );
        assert_eq!((credits.came(), credits.came(), credits.came()), (Ok(()), Ok(()), Err(Excess)));
        credits.reposted();
        assert_eq!(credits.came(), Err(Excess), "it does not know yet");
        credits.gave();
        assert_eq!((credits.came(), credits.came()), (Ok(()), Err(Excess)));
    }
}
