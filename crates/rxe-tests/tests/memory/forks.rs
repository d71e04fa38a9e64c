//! Children of processes that export and import.

use crate::roles::{Ask, LEN, expect};
use crate::{Way, both};

/// The parent goes on, and so does who exports to it.
pub(crate) fn a_child_has_none_of_it() {
    let (mut exporter, mut importer) = both();
    expect(&mut importer, &Ask::Fork, "forked");
    expect(&mut importer, &Ask::Work(10), "done");
    expect(&mut exporter, &Ask::Fork, "forked");
    expect(&mut exporter, &Ask::Compare(10), "same");
    expect(&mut importer, &Ask::Access(0), "fine");
}

/// While a child lives, a page that either of the two writes to is copied, if the child has it at all: the device's is to be the parent's.
fn beside_a_child(way: Way, memory: &[(&str, &str)]) {
    let len = u32::try_from(LEN).unwrap();
    let (mut exporter, mut importer) = way.both(memory);
    // What both sides' memory is registered for is, before there is a child.
    expect(&mut importer, &Ask::Put { len, seed: 11 }, "done");
    expect(&mut exporter, &Ask::ComparePut { len, seed: 11 }, "same");
    for parent in [&mut exporter, &mut importer] {
        expect(parent, &Ask::Bear, "born");
    }
    expect(&mut exporter, &Ask::Fill(12), "filled");
    expect(&mut importer, &Ask::Get(12), "same");
    expect(&mut importer, &Ask::Put { len, seed: 13 }, "done");
    expect(&mut exporter, &Ask::ComparePut { len, seed: 13 }, "same");
    for parent in [&mut exporter, &mut importer] {
        expect(parent, &Ask::Bury, "buried");
    }
    expect(&mut importer, &Ask::Access(0), "fine");
}

const BUFFER: &[(&str, &str)] = &[("RUCX_TEST_BUFFER", "y")];

pub(crate) fn a_child_that_lives_changes_nothing() {
    beside_a_child(Way::Connected, &[]);
    beside_a_child(Way::Connected, BUFFER);
}

pub(crate) fn a_child_that_lives_changes_nothing_of_a_host_s() {
    beside_a_child(Way::Shared, BUFFER);
}
