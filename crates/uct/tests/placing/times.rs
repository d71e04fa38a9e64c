//! When: while an export is being revoked, or a device says no.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use testkit::open_fds;
use uct::export::{Export, Refusal};
use uct::service::wire::{Placing, Verdict};
use uct::service::{ConnectError, Exporter as Name, Service};

use super::fake::Does;
use super::peer::{Answer, Exporter, answer, deadline, file, send_placing, until};

/// `Ok` of a revocation means that nobody reaches the memory any more: so it is not told before what was being registered meanwhile has
/// ended.
pub fn a_revocation_waits_for_what_is_being_made() {
    let exporter = Exporter::new();
    let export = exporter.export();
    let importer = exporter.importer(&export);
    exporter.fake.does(Does::Wait);
    send_placing(&importer, &exporter.placing(export.claim()));
    until("it is being placed", || exporter.fake.asked().len() == 1);
    let is_told = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let revoking = scope.spawn(|| {
            let told = export.revoke();
            is_told.store(true, Ordering::SeqCst);
            (told, exporter.fake.ended())
        });
        std::thread::sleep(Duration::from_millis(100));
        let early = is_told.load(Ordering::SeqCst);
        exporter.fake.does(Does::Place);
        assert!(!early, "the device registers it still");
        assert_eq!(revoking.join().unwrap(), (Ok(()), 1));
    });
    assert_eq!(answer(&importer), Answer::Verdict(0, Verdict::Refused(Refusal::Stale)), "it gets no keys");
    drop(importer);
    exporter.serves_others();
    assert_eq!(exporter.fake.ended(), 2, "once, and that of the other one");
}

pub fn others_are_revoked_meanwhile() {
    let exporter = Exporter::new();
    let (export, other) = (exporter.export(), exporter.export());
    let mut importer = exporter.importer(&export);
    exporter.place(&mut importer, &other).unwrap();
    exporter.fake.does(Does::Wait);
    send_placing(&importer, &exporter.placing(export.claim()));
    until("it is being placed", || exporter.fake.asked().len() == 2);
    assert_eq!((other.revoke(), exporter.fake.ended()), (Ok(()), 1));
    exporter.fake.does(Does::Place);
    assert!(matches!(answer(&importer), Answer::Keys(_)));
}

pub fn what_cannot_be_placed_leaves_nothing() {
    let exporter = Exporter::new();
    let export = exporter.export();
    exporter.serves_others();
    let mut importer = exporter.importer(&export);
    std::thread::sleep(Duration::from_millis(100)); // the exporter closes its copies after it has answered
    let before = open_fds();
    for (does, error) in [(Does::Fail, ConnectError::NoResource), (Does::Decline, ConnectError::NotPlaced)] {
        exporter.fake.does(does);
        for _ in 0..20 {
            assert_eq!(exporter.place(&mut importer, &export), Err(error.clone()));
        }
    }
    assert_eq!(exporter.fake.asked().len(), 1 + 40);
    until("no descriptor is left", || open_fds() == before);
    // The connection is as good as before: there is room for as many as may be.
    exporter.fake.does(Does::Place);
    for _ in 0..8 {
        exporter.place(&mut importer, &export).unwrap();
    }
    assert_eq!(exporter.place(&mut importer, &export), Err(ConnectError::TooMany));
    assert_eq!(exporter.fake.ended(), 1, "that of the other one");
    assert_eq!(export.revoke(), Ok(()));
    assert_eq!(exporter.fake.ended(), 9);
}

/// Without a device, or once it is closed, memory is not placed: which is no matter of means.
pub fn who_places_nothing_is_told_apart() {
    let exporter = Exporter::new();
    let export = exporter.export();
    let mut importer = exporter.importer(&export);
    exporter.place(&mut importer, &export).unwrap();
    let Exporter { service, fake, table } = exporter;
    drop(fake);
    let placing = Placing { sequence: 0, uuid: *table.uuid(), claim: *export.claim(), domain: 1 };
    let asked = importer.place(placing, file().as_fd(), &deadline());
    assert_eq!(asked, Err(ConnectError::NotPlaced));
    assert_eq!(export.revoke(), Ok(()), "what it had placed is known to the context");
    drop(service);
}

/// By the library, all imports from an exporter share a connection: that one of them is refused ends no other, nor keeps it.
pub fn a_refusal_does_not_keep_what_was_placed_before() {
    let exporter = Exporter::new();
    let (export, other) = (exporter.export(), exporter.export());
    let importer = Service::new(Arc::clone(&Exporter::new().table), None);
    let name = || Name {
        context_uuid: *exporter.table.uuid(),
        process: *exporter.service.me(),
        name: exporter.service.name().to_vec(),
        in_directory: false,
    };
    let grant = importer.reach(name(), export.claim(), false, &deadline()).unwrap();
    let place = |of: &Export| {
        let subject = (exporter.table.uuid(), of.claim());
        grant.peer.place(subject, (file().as_fd(), 1), &deadline())
    };
    let (first, _second) = (place(&export).unwrap(), place(&other).unwrap());
    exporter.fake.does(Does::Fail);
    assert!(place(&other).is_err());
    exporter.fake.does(Does::Place);
    grant.peer.unplace(first.sequence);
    until("the first one has ended", || exporter.fake.ended() == 1);
    assert!(place(&other).is_ok());
    drop(grant);
    until("the others end with the connection", || exporter.fake.ended() == 3);
}
