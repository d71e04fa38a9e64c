//! Registrations of exported memory in importers' protection domains, by export: they end with it.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;

use super::NotRevoked;
use crate::service::Placement;

/// Those of one context.
#[derive(Debug, Default)]
pub(super) struct Placements(Mutex<HashMap<u64, Vec<Arc<dyn Placement>>>>);

impl Placements {
    pub(super) fn add(&self, id: u64, placement: &Arc<dyn Placement>) {
        self.0.lock().entry(id).or_default().push(Arc::clone(placement));
    }

    pub(super) fn remove(&self, id: u64, placement: &Arc<dyn Placement>) {
        let mut all = self.0.lock();
        if let Some(of_export) = all.get_mut(&id) {
            of_export.retain(|other| !Arc::ptr_eq(other, placement));
            if of_export.is_empty() {
                all.remove(&id);
            }
        }
    }

    pub(super) fn has(&self, placement: &Arc<dyn Placement>) -> bool {
        self.0.lock().values().flatten().any(|other| Arc::ptr_eq(other, placement))
    }

    /// Ends all of export `id`; those that do not end stay, to be tried again. They are known until they have ended: whoever asks meanwhile waits
    /// for the same end.
    pub(super) fn end(&self, id: u64) -> Result<(), NotRevoked> {
        let of_export = self.0.lock().get(&id).cloned().unwrap_or_default();
        let mut verdict = Ok(());
        for placement in &of_export {
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
            let first = scope.spawn(|| placements.end(1));
            wait_for(&slow.has_begun);
            let second = scope.spawn(|| {
                let answer = placements.end(1);
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

    #[test]
    fn what_does_not_end_is_tried_again() {
        let placement: Arc<dyn Placement> = Arc::new(Stubborn(Mutex::new(1)));
        let placements = Placements::default();
        placements.add(1, &placement);
        let refused = placements.end(1);
        assert!(matches!(refused, Err(NotRevoked::Registered { importer: 7, .. })), "{refused:?}");
        assert!(placements.has(&placement));
        assert_eq!(placements.end(1), Ok(()));
        assert!(!placements.has(&placement));
        assert_eq!(placements.end(1), Ok(()), "there is none");
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
