//! Processes killed while bytes are on their way. That they were is told by the device: it has sent more than nothing, and less than the whole.

use std::time::Instant;

use rxe_tests::Host;

use crate::faults::BOUND;
use crate::roles::{Ask, expect};
use crate::{LONG, OF_LONG, Way, objects, report, sent, soon, under_way};

/// Tries until one of them is within.
const ROUNDS: u8 = 5;

/// How many packets all of it takes.
fn whole(way: Way) -> u64 {
    let (_exporter, mut importer) = way.both(OF_LONG);
    let before = sent(Host::A);
    expect(&mut importer, &Ask::Put { len: LONG, seed: 0 }, "done");
    sent(Host::A) - before
}

/// Whether a try was within, told to who reads the results.
fn is_within(before: u64, whole: u64) -> bool {
    let rise = sent(Host::A) - before;
    report(&format!("killed after {rise} packets of {whole}"));
    0 < rise && rise < whole
}

/// Whatever of its requests has arrived: the exporter lives, nothing of the DPU's stays registered, and others reach its memory.
fn importers(way: Way) {
    let whole = whole(way);
    let mut exporter = way.exporter(OF_LONG);
    let handle = exporter.request(&Ask::Export.frame());
    let killed = (0..ROUNDS).any(|round| {
        let mut importer = way.importer();
        expect(&mut importer, &Ask::Import(handle.clone()), "verbs");
        let before = under_way(&mut importer, &Ask::Put { len: LONG, seed: round });
        importer.kill();
        soon("nothing is registered for it", || objects(way.host(), "mr") == 0);
        is_within(before, whole)
    });
    assert!(killed, "none was killed within a WRITE");
    expect(&mut exporter, &Ask::Fill(1), "filled");
    expect(&mut exporter, &Ask::CompareFill(1), "same");
    let mut other = way.importer();
    expect(&mut other, &Ask::Import(handle), "verbs");
    expect(&mut other, &Ask::Put { len: LONG, seed: 9 }, "done");
    expect(&mut exporter, &Ask::ComparePut { len: LONG, seed: 9 }, "same");
}

/// The importer is told in time, and reaches memory of others.
fn exporters(way: Way) {
    let whole = whole(way);
    let mut importer = way.importer();
    let killed = (0..ROUNDS).any(|round| {
        let mut exporter = way.exporter(OF_LONG);
        let handle = exporter.request(&Ask::Export.frame());
        expect(&mut importer, &Ask::Import(handle), "verbs");
        let before = under_way(&mut importer, &Ask::Put { len: LONG, seed: round });
        exporter.kill();
        let begin = Instant::now();
        let answer = importer.recv();
        assert!(begin.elapsed() < BOUND, "{:?}", begin.elapsed());
        let answer = String::from_utf8_lossy(&answer);
        report(&answer);
        if answer == "done" {
            return false;
        }
        assert!(answer.starts_with("stale after") && answer.contains("process is gone"), "{answer}");
        expect(&mut importer, &Ask::Access(round), "stale");
        is_within(before, whole)
    });
    assert!(killed, "none was killed while a WRITE was on its way to it");
    let mut other = way.exporter(OF_LONG);
    let handle = other.request(&Ask::Export.frame());
    expect(&mut importer, &Ask::Import(handle), "verbs");
    expect(&mut importer, &Ask::Put { len: LONG, seed: 9 }, "done");
    expect(&mut other, &Ask::ComparePut { len: LONG, seed: 9 }, "same");
}

pub(crate) fn a_dpu_killed_while_it_writes_leaves_its_peers_whole() {
    importers(Way::Connected);
}

pub(crate) fn a_dpu_killed_while_it_writes_leaves_its_host_whole() {
    importers(Way::Shared);
}

pub(crate) fn an_exporter_killed_while_it_is_written_to_is_told() {
    exporters(Way::Connected);
}

pub(crate) fn a_host_killed_while_it_is_written_to_is_told() {
    exporters(Way::Shared);
}
