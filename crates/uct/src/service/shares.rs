//! How many connections a worker's peers have made to it, and which process has how many of them: each takes descriptors here, and no
//! process may take all that there are.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use ucs::fork::{self, Generation};
use ucs::mem::Limit;

/// Of the descriptors that this process may have, one in so many connections are let come: each takes two, a socket and a pidfd. So one
/// worker leaves half of the descriptors for all else.
const FILES: u64 = 4;

/// The connections that one worker lets come.
#[derive(Debug)]
pub struct Shares {
    /// As it is set; descriptors may allow fewer.
    most: usize,
    taken: Mutex<Taken>,
}

#[derive(Debug, Default)]
struct Taken {
    all: usize,
    /// By the number of their process.
    of: HashMap<u64, usize>,
    /// That there were no more was told to the log.
    is_told: bool,
}

impl Shares {
    /// For `most` of them.
    #[must_use]
    pub fn new(most: usize) -> Arc<Self> {
        Arc::new(Self { most, taken: Mutex::default() })
    }

    /// Takes one for a connection of the process with this number; those that cannot be told apart count as one. `None`: all are taken,
    /// or half of them by that process.
    #[must_use]
    pub fn take(self: &Arc<Self>, process: u64) -> Option<Share> {
        self.take_of(process, Limit::OpenFiles.value())
    }

    fn take_of(self: &Arc<Self>, process: u64, files: u64) -> Option<Share> {
        let most = self.most.min(usize::try_from(files / FILES).unwrap_or(usize::MAX));
        let mut taken = self.taken.lock();
        let has = taken.of.get(&process).copied().unwrap_or(0);
        if taken.all >= most || has >= most.div_ceil(2) {
            let (alive, is_told) = (taken.all, std::mem::replace(&mut taken.is_told, true));
            drop(taken);
            if !is_told {
                tracing::warn!(
                    alive,
                    most,
                    of_this_process = has,
                    "a peer's connection is refused, and others will be without a word: a worker lets so many come, half of them of one \
                     process. UCX_MAX_CONNECTIONS sets it; a quarter of RLIMIT_NOFILE (`ulimit -n`) is the most"
                );
            }
            return None;
        }
        taken.all += 1;
        taken.of.insert(process, has + 1);
        Some(Share { shares: Arc::clone(self), process, generation: fork::generation() })
    }

    fn give_back(&self, process: u64) {
        let mut taken = self.taken.lock();
        taken.all = taken.all.saturating_sub(1);
        if let Some(has) = taken.of.get_mut(&process) {
            *has = has.saturating_sub(1);
            if *has == 0 {
                taken.of.remove(&process);
            }
        }
    }
}

/// The place of one connection among those that a worker lets come: dropped with the connection's descriptors, it gives the place back.
#[derive(Debug)]
pub struct Share {
    shares: Arc<Shares>,
    process: u64,
    generation: Generation,
}

impl Drop for Share {
    fn drop(&mut self) {
        // In a fork's child it is the parent's, whose other threads may have held the lock.
        if self.generation.is_current() {
            self.shares.give_back(self.process);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take(shares: &Arc<Shares>, process: u64) -> Option<Share> {
        shares.take_of(process, u64::MAX)
    }

    #[test]
    fn one_process_takes_half_and_all_together_take_all() {
        let shares = Shares::new(5);
        let of_one: Vec<_> = (0..10).filter_map(|_| take(&shares, 1)).collect();
        assert_eq!(of_one.len(), 3);
        let of_others: Vec<_> = (2..10).filter_map(|process| take(&shares, process)).collect();
        assert_eq!(of_others.len(), 2);
        assert!(take(&shares, 99).is_none());
    }

    #[test]
    fn those_that_end_give_theirs_back() {
        let shares = Shares::new(4);
        let mut of_one = vec![take(&shares, 1).unwrap(), take(&shares, 1).unwrap()];
        assert!(take(&shares, 1).is_none());
        of_one.pop();
        of_one.push(take(&shares, 1).unwrap());
        let other = take(&shares, 2).unwrap();
        drop((of_one, other));
        assert!(shares.taken.lock().of.is_empty());
        assert_eq!(shares.taken.lock().all, 0);
    }

    #[test]
    fn none_at_all_and_one_alone() {
        assert!(take(&Shares::new(0), 1).is_none());
        let shares = Shares::new(1);
        let one = take(&shares, 1);
        assert!(one.is_some() && take(&shares, 2).is_none());
        drop(one);
        assert!(take(&shares, 2).is_some());
    }

    #[test]
    fn a_quarter_of_the_descriptors_is_the_most() {
        let shares = Shares::new(1000);
        let taken: Vec<_> = (0..100).filter_map(|process| shares.take_of(process, 64)).collect();
        assert_eq!(taken.len(), 16);
        assert!(shares.take_of(1000, 67).is_none());
        assert!(shares.take_of(1000, 68).is_some(), "the limit may be raised meanwhile");
    }

    #[test]
    fn it_is_told_once() {
        let shares = Shares::new(2);
        let _one = take(&shares, 1);
        assert!(!shares.taken.lock().is_told);
        assert!((0..10).all(|_| take(&shares, 1).is_none()));
        assert!(shares.taken.lock().is_told);
    }
}
