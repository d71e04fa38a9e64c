//! Registrations of exported memory in importers' protection domains, by export: they end with it.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::{Condvar, Mutex};
use ucs::time::Deadline;

use super::NotRevoked;
use crate::service::Placement;

/// Those of one context.
#[derive(Debug, Default)]
pub(super) struct Placements {
    all: Mutex<All>,
    /// One that was being made is, or never will be.
    made: Condvar,
}

#[derive(Debug, Default)]
struct All {
    known: HashMap<u64, Vec<Arc<dyn Placement>>>,
    /// The exports of which some are being made, as often.
    making: Vec<u64>,
}

/// Which of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Which {
    /// Those whose users announce nothing.
    Unannounced,
    /// Once nothing is announced any more.
    All,
}

/// As long as this is there, a registration of an export may be made: a revocation waits for it.
#[derive(Debug)]
pub struct Making<'a> {
    placements: &'a Placements,
    id: u64,
}

impl Drop for Making<'_> {
    fn drop(&mut self) {
        let mut all = self.placements.all.lock();
        if let Some(at) = all.making.iter().position(|id| *id == self.id) {
            all.making.swap_remove(at);
        }
        self.placements.made.notify_all();
    }
}

impl Placements {
    pub(super) fn making(&self, id: u64) -> Making<'_> {
        self.all.lock().making.push(id);
        Making { placements: self, id }
    }

    pub(super) fn is_making(&self, id: u64) -> bool {
        self.all.lock().making.contains(&id)
    }

    pub(super) fn add(&self, id: u64, placement: &Arc<dyn Placement>) {
        self.all.lock().known.entry(id).or_default().push(Arc::clone(placement));
    }

    pub(super) fn remove(&self, id: u64, placement: &Arc<dyn Placement>) {
        let known = &mut self.all.lock().known;
        if let Some(of_export) = known.get_mut(&id) {
            of_export.retain(|other| !Arc::ptr_eq(other, placement));
            if of_export.is_empty() {
                known.remove(&id);
            }
        }
    }

    pub(super) fn has(&self, placement: &Arc<dyn Placement>) -> bool {
        self.all.lock().known.values().flatten().any(|other| Arc::ptr_eq(other, placement))
    }

    /// Ends those of export `id` that are `which`: at once, and again once those that are being made have been, for which it waits until the limit.
    /// Those that do not end stay, to be tried again. They are known until they have ended: whoever asks meanwhile waits for the same end.
    pub(super) fn end(&self, id: u64, which: Which, limit: &Deadline) -> Result<(), NotRevoked> {
        let verdict = self.end_known(id, which);
        let mut all = self.all.lock();
        if !all.making.contains(&id) && (verdict.is_err() || !all.known.contains_key(&id)) {
            return verdict;
        }
        let still_made = |all: &mut All| all.making.contains(&id);
        self.made.wait_while_for(&mut all, still_made, limit.left().unwrap_or_default());
        if still_made(&mut all) {
            return Err(NotRevoked::Making { waited: limit.elapsed() });
        }
        drop(all);
        self.end_known(id, which)
    }

    fn end_known(&self, id: u64, which: Which) -> Result<(), NotRevoked> {
        let of_export = self.all.lock().known.get(&id).cloned().unwrap_or_default();
        let mut verdict = Ok(());
        for placement in of_export.iter().filter(|one| which == Which::All || !one.is_announced()) {
            match placement.end() {
                Ok(()) => self.remove(id, placement),
                Err(why) => {
                    verdict = Err(NotRevoked::Registered { importer: placement.importer(), why });
                }
            }
        }
        verdict
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use ucs::sync::{AtomicBool, Ordering};

    use super::*;
    use crate::export::ExportTable;
    use crate::memory::{LocalMem, Rights};

    /// A registration whose end takes until it is told that it may be over.
    #[derive(Debug, Default)]
    struct Slow {
        has_begun: AtomicBool,
        may_end: AtomicBool,
        is_over: Mutex<bool>,
    }

    fn long() -> Deadline {
        Deadline::after(Duration::from_secs(30))
    }

    fn wait_for(word: &AtomicBool) {
        while !word.load(Ordering::Acquire) {
            std::thread::yield_now();
        }
    }

    impl Placement for Slow {
        fn end(&self) -> Result<(), String> {
            let mut is_over = self.is_over.lock();
            if !*is_over {
                self.has_begun.store(true, Ordering::Release);
                wait_for(&self.may_end);
                *is_over = true;
            }
            Ok(())
        }

        fn importer(&self) -> u32 {
            0
        }
    }

    /// A registration that refuses to end, so many times.
    #[derive(Debug)]
    struct Stubborn(Mutex<u32>);

    impl Placement for Stubborn {
        fn end(&self) -> Result<(), String> {
            let mut left = self.0.lock();
            let answer = if *left == 0 { Ok(()) } else { Err("busy".to_owned()) };
            *left = left.saturating_sub(1);
            answer
        }

        fn importer(&self) -> u32 {
            7
        }
    }

    #[test]
    fn nobody_is_told_that_it_has_ended_while_it_is_ending() {
        let slow = Arc::new(Slow::default());
        let placement: Arc<dyn Placement> = Arc::clone(&slow) as Arc<dyn Placement>;
        let placements = Placements::default();
        placements.add(1, &placement);
        let is_told = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let first = scope.spawn(|| placements.end(1, Which::All, &long()));
            wait_for(&slow.has_begun);
            let second = scope.spawn(|| {
                let answer = placements.end(1, Which::All, &long());
                is_told.store(true, Ordering::Release);
                answer
            });
            std::thread::sleep(Duration::from_millis(50));
            let early = is_told.load(Ordering::Acquire);
            slow.may_end.store(true, Ordering::Release);
            assert!(!early, "it is registered still");
            assert_eq!((first.join().unwrap(), second.join().unwrap()), (Ok(()), Ok(())));
        });
        assert!(!placements.has(&placement), "it has ended");
    }

    /// A registration that is being made is one, as soon as somebody may make it: a revocation is over after that. Of other exports nobody waits.
    #[test]
    fn nobody_is_told_that_it_has_ended_while_it_is_being_made() {
        let placement: Arc<dyn Placement> = Arc::new(Stubborn(Mutex::new(0)));
        let placements = Placements::default();
        let (first, second) = (placements.making(1), placements.making(1));
        assert_eq!(placements.end(2, Which::All, &long()), Ok(()), "another one's");
        let is_told = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let ending = scope.spawn(|| {
                let answer = placements.end(1, Which::All, &long());
                is_told.store(true, Ordering::Release);
                answer
            });
            drop(first);
            std::thread::sleep(Duration::from_millis(50));
            let early = is_told.load(Ordering::Acquire);
            placements.add(1, &placement);
            drop(second);
            assert!(!early, "the second one is being made");
            assert_eq!(ending.join().unwrap(), Ok(()));
        });
        assert!(!placements.has(&placement), "what was made meanwhile has ended, too");
        assert!(!placements.is_making(1));
    }

    #[test]
    fn what_is_being_made_is_not_waited_for_without_end() {
        let placements = Placements::default();
        let known: Arc<dyn Placement> = Arc::new(Stubborn(Mutex::new(0)));
        placements.add(1, &known);
        let making = placements.making(1);
        let short = Deadline::after(Duration::from_millis(10));
        assert!(matches!(placements.end(1, Which::All, &short), Err(NotRevoked::Making { .. })));
        assert!(!placements.has(&known), "what was there has ended");
        drop(making);
        assert_eq!(placements.end(1, Which::All, &short), Ok(()));
    }

    #[test]
    fn what_does_not_end_is_tried_again() {
        let placement: Arc<dyn Placement> = Arc::new(Stubborn(Mutex::new(1)));
        let placements = Placements::default();
        placements.add(1, &placement);
        let refused = placements.end(1, Which::All, &long());
        assert!(matches!(refused, Err(NotRevoked::Registered { importer: 7, .. })), "{refused:?}");
        assert!(placements.has(&placement));
        assert_eq!(placements.end(1, Which::All, &long()), Ok(()));
        assert!(!placements.has(&placement));
        assert_eq!(placements.end(1, Which::All, &long()), Ok(()), "there is none");
    }

    /// An importer that needs it no more, or has gone, is no reason to forget memory that can be reached.
    #[test]
    fn what_is_needed_no_more_and_does_not_end_is_known_to_the_revocation() {
        let table = Arc::new(ExportTable::new(Duration::from_secs(1)).unwrap());
        let mem = Arc::new(LocalMem::anonymous(4096, Rights::READ_WRITE).unwrap());
        let export = table.publish(&mem).unwrap();
        let placement: Arc<dyn Placement> = Arc::new(Stubborn(Mutex::new(2)));
        assert!(table.add_placement(export.claim(), &placement));
        table.remove_placement(export.claim().id, &placement);
        let refused = export.revoke();
        assert!(matches!(refused, Err(NotRevoked::Registered { importer: 7, .. })), "{refused:?}");
        assert_eq!(export.revoke(), Ok(()));
        assert!(!table.has_placement(&placement));
    }
}
