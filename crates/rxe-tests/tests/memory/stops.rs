//! Importers that are stopped, while what they have imported is revoked.

use std::time::Instant;

use crate::faults::BOUND;
use crate::roles::{Ask, expect};
use crate::{LONG, OF_LONG, Way, report, soon, under_way};

/// Its exporter's device needs nothing of it to end a registration, also while it writes: what arrives later reaches nothing.
pub(crate) fn a_stopped_importer_holds_up_no_revocation() {
    let (mut exporter, mut importer) = Way::Connected.both(OF_LONG);
    let second = exporter.request(&Ask::Export.frame());
    expect(&mut importer, &Ask::Access(0), "fine");
    importer.stop();
    let begin = Instant::now();
    expect(&mut exporter, &Ask::Revoke(0), "revoked");
    assert!(begin.elapsed() < BOUND, "{:?}", begin.elapsed());
    importer.cont();
    expect(&mut importer, &Ask::Access(0), "stale");

    expect(&mut importer, &Ask::Import(second), "verbs");
    under_way(&mut importer, &Ask::PutOn { len: LONG, seed: 1 });
    importer.stop();
    let begin = Instant::now();
    expect(&mut exporter, &Ask::Revoke(1), "revoked");
    assert!(begin.elapsed() < BOUND, "{:?}", begin.elapsed());
    expect(&mut exporter, &Ask::Fill(2), "filled");
    importer.cont();
    let answer = importer.recv();
    let answer = String::from_utf8_lossy(&answer);
    assert!(answer.starts_with("stale after") && answer.contains("revoked"), "{answer}");
    expect(&mut importer, &Ask::Access(1), "stale");
    expect(&mut exporter, &Ask::CompareFill(2), "same");
}

/// A step of an access, which is announced, does not end while its process is stopped: the memory is used for nothing else until it has.
pub(crate) fn a_dpu_stopped_while_it_writes_keeps_the_memory() {
    let kept = (1..=5).any(|seed| {
        let (mut host, mut dpu) = Way::Shared.both(OF_LONG);
        let place = host.request(&Ask::Where.frame());
        under_way(&mut dpu, &Ask::PutOn { len: LONG, seed });
        dpu.stop();
        let begin = Instant::now();
        let answer = host.request(&Ask::Revoke(0).frame());
        assert!(begin.elapsed() < BOUND, "{:?}", begin.elapsed());
        let answer = String::from_utf8_lossy(&answer).into_owned();
        report(&answer);
        let kept = answer != "revoked"; // stopped between two steps
        if kept {
            let pid = dpu.pid().to_string();
            assert!(answer.starts_with("not revoked within") && answer.contains(&pid), "{answer}");
            expect(&mut host, &Ask::Drop, "dropped");
            expect(&mut host, &Ask::IsMapped(place.clone()), "mapped");
        }
        dpu.cont();
        let answer = dpu.recv();
        assert!(answer.starts_with(b"stale after"), "{}", String::from_utf8_lossy(&answer));
        expect(&mut dpu, &Ask::Access(0), "stale");
        if kept {
            let is_mapped = Ask::IsMapped(place).frame();
            soon("the memory is given back", || host.request(&is_mapped) == b"unmapped");
        }
        kept
    });
    assert!(kept, "none was stopped within a step");
}
