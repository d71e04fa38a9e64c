//! What is asked for: more than there may be, and what is none of the importer's.

use std::os::fd::AsFd;

use uct::export::{Claim, Refusal, Token};
use uct::service::ConnectError;
use uct::service::wire::Verdict;

use super::peer::{Answer, Exporter, answer, deadline, file, send_placing, send_unplacing, until};

/// As many as an importer may have of one export, on one connection.
const MOST: usize = 8;

pub fn so_many_of_one_export_and_no_more() {
    let exporter = Exporter::new();
    let (export, second) = (exporter.export(), exporter.export());
    let mut importer = exporter.importer(&export);
    for _ in 0..MOST {
        exporter.place(&mut importer, &export).unwrap();
    }
    for _ in 0..3 {
        assert_eq!(exporter.place(&mut importer, &export), Err(ConnectError::TooMany));
    }
    assert_eq!(exporter.fake.asked().len(), MOST, "nothing is asked then");
    // Of another export, and for another importer, there may be more.
    exporter.place(&mut importer, &second).unwrap();
    exporter.place(&mut exporter.importer(&export), &export).unwrap();
    exporter.serves_others();
}

pub fn what_has_ended_makes_room() {
    let exporter = Exporter::new();
    let (export, second) = (exporter.export(), exporter.export());
    let mut importer = exporter.importer(&export);
    exporter.place(&mut importer, &second).unwrap();
    let placed: Vec<_> = (0..MOST).map(|_| exporter.place(&mut importer, &export).unwrap()).collect();
    for keys in &placed[..3] {
        assert_eq!(exporter.place(&mut importer, &export), Err(ConnectError::TooMany));
        let before = exporter.fake.ended();
        importer.unplace(keys.sequence);
        importer.unplace(keys.sequence); // which names nothing any more
        exporter.place(&mut importer, &export).unwrap();
        assert_eq!(exporter.fake.ended(), before + 1, "one, and once");
    }
    assert_eq!(exporter.place(&mut importer, &export), Err(ConnectError::TooMany));
    drop(importer);
    until("all end", || exporter.fake.ended() == 1 + MOST + 3);
}

pub fn wrong_claims_get_nothing() {
    let exporter = Exporter::new();
    let (export, hidden) = (exporter.export(), exporter.export());
    let right = *export.claim();
    let mut importer = exporter.importer(&export);
    let guess = Token::from_bytes([7; 16]);
    let stale = |claim| (claim, Refusal::Stale);
    for (claim, refusal) in [
        (Claim { token: guess, ..right }, Refusal::WrongToken),
        (Claim { token: right.token, ..*hidden.claim() }, Refusal::WrongToken),
        stale(Claim { id: right.id + 100, ..right }),
        stale(Claim { id: 0, ..right }),
        stale(Claim { id: hidden.claim().id, ..right }),
        stale(Claim { slot: hidden.claim().slot, ..right }),
        stale(Claim { slot: 0, ..right }),
        stale(Claim { slot: u32::MAX, ..right }),
        (Claim { epoch: right.epoch + 2, ..right }, Refusal::Mismatch),
        (Claim { address: right.address + 1, ..right }, Refusal::Mismatch),
        (Claim { length: right.length + 1, ..right }, Refusal::Mismatch),
        (Claim { address: 0, length: u64::MAX, ..right }, Refusal::Mismatch),
    ] {
        let asked = importer.place(exporter.placing(&claim), file().as_fd(), &deadline());
        assert_eq!(asked, Err(ConnectError::Denied(refusal)), "{claim:?}");
    }
    let mut another_s = exporter.placing(&right);
    another_s.uuid = [9; 16];
    let asked = importer.place(another_s, file().as_fd(), &deadline());
    assert_eq!(asked, Err(ConnectError::Denied(Refusal::Stale)));
    assert_eq!(exporter.fake.asked(), []);
    // Of the very same connection, what is right is placed.
    exporter.place(&mut importer, &export).unwrap();
    assert_eq!(exporter.fake.asked().len(), 1);
    // Having the one export's token is no way to the other's, and its own is.
    exporter.place(&mut importer, &hidden).unwrap();
}

pub fn a_revoked_export_gets_nothing() {
    let exporter = Exporter::new();
    let (export, second) = (exporter.export(), exporter.export());
    let mut importer = exporter.importer(&export);
    let keys = exporter.place(&mut importer, &export).unwrap();
    assert_eq!(export.revoke(), Ok(()));
    assert_eq!(exporter.fake.ended(), 1);
    let stale = Err(ConnectError::Denied(Refusal::Stale));
    assert_eq!(exporter.place(&mut importer, &export), stale);
    // The line of the table is used again, by memory that this token is none of.
    let newer = exporter.export();
    assert_eq!(newer.claim().slot, export.claim().slot);
    assert_eq!(exporter.place(&mut importer, &export), stale);
    assert_eq!(exporter.fake.asked().len(), 1);
    // That it needs it no more ends nothing else.
    exporter.place(&mut importer, &second).unwrap();
    send_unplacing(&importer, keys.sequence);
    send_placing(&importer, &exporter.placing(export.claim()));
    assert_eq!(answer(&importer), Answer::Verdict(0, Verdict::Refused(Refusal::Stale)));
    assert_eq!(exporter.fake.ended(), 1);
}
