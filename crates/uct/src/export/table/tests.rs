//! The table under test.

use ucs::sync::{AtomicBool, Ordering};

use super::*;
use crate::export::Gate;
use crate::memory::{AccessError, StaleReason};
use crate::service::Placement;

fn table() -> Arc<ExportTable> {
    Arc::new(ExportTable::new(Duration::from_millis(20)).unwrap())
}

fn memory() -> Arc<LocalMem> {
    Arc::new(LocalMem::anonymous(4096, Rights::READ_WRITE).unwrap())
}

fn gate(exports: &ExportTable, claim: &Claim) -> Gate {
    let (table, slots) = exports.local_view().unwrap();
    Gate::new(table, slots, None, (claim.slot, claim.id, claim.epoch), Duration::from_millis(50)).unwrap()
}

#[test]
fn a_claim_is_good_while_its_export_lives() {
    let exports = table();
    let export = exports.publish(&memory()).unwrap();
    let claim = *export.claim();
    exports.verify(&claim).unwrap();
    let refused = |claim: Claim| exports.verify(&claim).unwrap_err();
    assert_eq!(refused(Claim { token: Token::from_bytes([0; 16]), ..claim }), Refusal::WrongToken);
    assert_eq!(refused(Claim { address: 0, ..claim }), Refusal::Mismatch);
    assert_eq!(refused(Claim { length: 1, ..claim }), Refusal::Mismatch);
    assert_eq!(refused(Claim { epoch: 3, ..claim }), Refusal::Mismatch);
    assert_eq!(refused(Claim { id: 2, ..claim }), Refusal::Stale);
    assert_eq!(refused(Claim { slot: 0, ..claim }), Refusal::Stale);
    assert_eq!(refused(Claim { slot: u32::MAX, ..claim }), Refusal::Stale);
    export.revoke().unwrap();
    assert_eq!(refused(claim), Refusal::Stale);
    export.revoke().unwrap();
}

#[test]
fn a_line_is_used_again_and_never_mistaken() {
    let exports = table();
    let first = exports.publish(&memory()).unwrap();
    let old = gate(&exports, first.claim());
    old.enter().unwrap();
    first.revoke().unwrap();
    let second = exports.publish(&memory()).unwrap();
    assert_eq!(second.claim().slot, first.claim().slot);
    assert_ne!(second.claim().id, first.claim().id);
    assert_eq!(second.claim().epoch, first.claim().epoch + 2);
    assert_eq!(old.check(), Err(StaleReason::Revoked));
    assert!(matches!(old.enter(), Err(AccessError::Stale { .. })));
    assert_eq!(exports.verify(first.claim()).unwrap_err(), Refusal::Stale);
    gate(&exports, second.claim()).enter().unwrap();
    // Revoking the first again does not touch the second.
    first.revoke().unwrap();
    exports.verify(second.claim()).unwrap();
}

#[test]
fn an_access_in_flight_keeps_the_memory_and_the_line() {
    let exports = table();
    let mem = memory();
    let export = exports.publish(&mem).unwrap();
    let weak = Arc::downgrade(&mem);
    drop(mem);
    let gate = gate(&exports, export.claim());
    let inside = gate.enter().unwrap();
    let error = export.revoke().unwrap_err();
    assert_eq!(error.importers(), [std::process::id()]);
    assert!(weak.upgrade().is_some() && exports.sweep());
    assert_eq!(exports.stats(), ExportStats { live: 0, kept_bytes: 4096 });
    assert!(matches!(gate.enter(), Err(AccessError::Stale { .. })));
    let other = exports.publish(&memory()).unwrap();
    assert_ne!(other.claim().slot, export.claim().slot);
    drop(inside);
    assert!(!exports.sweep());
    assert!(weak.upgrade().is_none());
    export.revoke().unwrap();
}

/// A registration of an importer, until it is ended.
#[derive(Debug)]
struct Registered {
    is_announced: bool,
    is_over: AtomicBool,
}

impl Placement for Registered {
    fn end(&self) -> Result<(), String> {
        self.is_over.store(true, Ordering::Release);
        Ok(())
    }

    fn importer(&self) -> u32 {
        0
    }

    fn is_announced(&self) -> bool {
        self.is_announced
    }
}

/// An importer that keeps a revocation waiting keeps no memory open for others.
#[test]
fn what_announces_nothing_ends_though_an_access_is_in_flight() {
    let exports = table();
    let export = exports.publish(&memory()).unwrap();
    let made = |is_announced| Arc::new(Registered { is_announced, is_over: AtomicBool::new(false) });
    let (near, far) = (made(true), made(false));
    for placement in [&near, &far] {
        let placement: Arc<dyn Placement> = Arc::clone(placement) as _;
        assert!(exports.add_placement(export.claim(), &placement));
    }
    let gate = gate(&exports, export.claim());
    let inside = gate.enter().unwrap();
    assert!(matches!(export.revoke(), Err(NotRevoked::InFlight { .. })));
    let is_over = |placement: &Registered| placement.is_over.load(Ordering::Acquire);
    assert!(is_over(&far), "another machine still reaches it");
    assert!(!is_over(&near), "its access may be in flight");
    drop(inside);
    assert!(!exports.sweep());
    assert!(is_over(&near));
}

#[test]
fn many_revocations_share_one_wait() {
    let exports = table();
    let mem = memory();
    let all: Vec<_> = (0..40).map(|_| exports.publish(&mem).unwrap()).collect();
    let gates: Vec<_> = all.iter().map(|export| gate(&exports, export.claim())).collect();
    let inside: Vec<_> = gates.iter().map(|gate| gate.enter().unwrap()).collect();
    let begin = Instant::now();
    assert_eq!(Export::revoke_all(&all).len(), 40);
    assert!(begin.elapsed() < Duration::from_millis(20 * 20), "{:?}", begin.elapsed());
    drop(inside);
    assert_eq!(Export::revoke_all(&all), []);
}

#[test]
fn more_accesses_than_slots_wait_and_give_up() {
    let exports = table();
    let export = exports.publish(&memory()).unwrap();
    let gate = gate(&exports, export.claim());
    let inside: Vec<_> = (0..wire::SLOTS).map(|_| gate.enter().unwrap()).collect();
    assert!(matches!(gate.enter(), Err(AccessError::Busy { .. })));
    drop(inside);
    gate.enter().unwrap();
}

/// Threads access, the owner revokes and takes the memory for itself. Also run under the thread sanitizer.
#[test]
fn revocations_and_accesses_at_once() {
    let exports = table();
    let mem = memory();
    for _ in 0..200 {
        let export = exports.publish(&mem).unwrap();
        let threads: Vec<_> = (0..3)
            .map(|_| {
                let gate = gate(&exports, export.claim());
                let mem = Arc::clone(&mem);
                thread::spawn(move || while gate.in_steps(1, |_| mem.store(0, 1_u64)).is_ok() {})
            })
            .collect();
        thread::yield_now();
        while export.revoke().is_err() {}
        mem.store(0, 2_u64).unwrap();
        for thread in threads {
            thread.join().unwrap();
        }
        assert_eq!(mem.load::<u64>(0).unwrap(), 2);
    }
    let word = wire::epoch(exports.local_view().unwrap().0.bytes(), 1).unwrap().load(Ordering::Relaxed);
    assert_eq!(word, 400, "one line, 200 exports");
}
