//! Thousands of regions and exports, and a full table.

use std::collections::HashSet;

use uct::api::{Memh, PackFlags};
use uct::export::{Export, ExportError};
use uct::memory::Rights;

use crate::bench::{Bench, assert_holds, assert_refused_as_stale, assert_revoked, attach};
use crate::exporter::Ticket;
use crate::fixture::{Place, Side};
use crate::{Check, list};

pub(crate) const CHECKS: &[Check] = list![many:
    a_thousand_regions in Everywhere,
    ten_thousand_exports_of_one_memory in Once,
    a_full_table in Once,
];

fn a_thousand_regions(bench: &Bench) {
    const COUNT: u64 = 1000;
    let len = |seed: u64| usize::try_from(100 + seed % 4000).unwrap();
    let tickets: Vec<Ticket> =
        (0..COUNT).map(|seed| bench.exporter.export(bench.region(len(seed), seed))).collect();
    let attached: Vec<_> = tickets.iter().map(|ticket| bench.attach(ticket)).collect();
    for (attachment, seed) in attached.iter().zip(0..) {
        assert_holds(&**attachment, seed);
    }
    for (ticket, seed) in tickets.iter().zip(0_u64..) {
        if seed % 2 == 1 {
            bench.exporter.revoke(ticket);
        }
    }
    for (attachment, seed) in attached.iter().zip(0..) {
        if seed % 2 == 1 {
            assert_revoked(&**attachment);
        } else {
            assert_holds(&**attachment, seed);
        }
    }
}

fn packed(side: &Side, memh: &dyn Memh, export: &Export) -> Ticket {
    let mut mkey = vec![0; memh.packed_size(PackFlags::EXPORT).unwrap()];
    memh.pack(export, PackFlags::EXPORT, &mut mkey).unwrap();
    Ticket::of(side, export, 0, mkey)
}

/// An importer of what `side` exports.
fn importer(bench: &Bench, side: &Side) -> Side {
    if bench.place == Place::SameContext { side.clone() } else { Side::open(&bench.fixture) }
}

fn ten_thousand_exports_of_one_memory(bench: &Bench) {
    const COUNT: usize = 10_000;
    let side = bench.local();
    let importer = importer(bench, &side);
    let made = side.usual().make(&*side.md, 1000, Rights::READ_WRITE, 8);
    let memh = side.md.reg(&made.mem).unwrap();
    let exports: Vec<Export> = (0..COUNT).map(|_| side.exports.publish(&made.mem).unwrap()).collect();
    let tickets: Vec<Ticket> = exports.iter().map(|export| packed(&side, &*memh, export)).collect();
    assert_eq!(side.exports.stats().live, COUNT);
    assert_eq!(tickets.iter().map(|ticket| ticket.id).collect::<HashSet<_>>().len(), COUNT);
    assert_eq!(tickets.iter().map(|ticket| ticket.token).collect::<HashSet<_>>().len(), COUNT);
    assert_eq!(tickets.iter().map(|ticket| &ticket.mkey).collect::<HashSet<_>>().len(), COUNT);
    let sample = |index: &usize| index % 99 < 2;
    let attached: Vec<_> =
        (0..COUNT).filter(sample).map(|index| (index, attach(&importer, &tickets[index]).unwrap())).collect();
    for export in exports.iter().skip(1).step_by(2) {
        export.revoke().unwrap();
    }
    for (index, attachment) in &attached {
        if index % 2 == 1 {
            assert_revoked(&**attachment);
            assert_refused_as_stale(&importer, &tickets[*index]);
        } else {
            assert_holds(&**attachment, 8);
            assert_holds(&*attach(&importer, &tickets[*index]).unwrap(), 8);
        }
    }
    exports.iter().for_each(|export| export.revoke().unwrap());
    assert_eq!(side.exports.stats().live, 0);
    assert_eq!(side.exports.stats().kept_bytes, 0);
}

fn a_full_table(bench: &Bench) {
    const LIMIT: usize = 65_535;
    let side = Side::open(&bench.fixture);
    let importer = importer(bench, &side);
    let made = side.usual().make(&*side.md, 1000, Rights::READ_WRITE, 8);
    let memh = side.md.reg(&made.mem).unwrap();
    let mut exports: Vec<Export> = (0..LIMIT).map(|_| side.exports.publish(&made.mem).unwrap()).collect();
    let full = || side.exports.publish(&made.mem).map(|export| export.claim().id);
    for _ in 0..2 {
        assert_eq!(full(), Err(ExportError::TableFull { limit: LIMIT }));
    }
    let last = packed(&side, &*memh, &exports[LIMIT - 1]);
    assert_holds(&*attach(&importer, &last).unwrap(), 8);
    let victim = exports.swap_remove(LIMIT / 2);
    let old = packed(&side, &*memh, &victim);
    victim.revoke().unwrap();
    let newer = side.exports.publish(&made.mem).expect("there is room again");
    assert_eq!(full(), Err(ExportError::TableFull { limit: LIMIT }), "for one");
    assert_holds(&*attach(&importer, &packed(&side, &*memh, &newer)).unwrap(), 8);
    assert_refused_as_stale(&importer, &old);
    assert_holds(&*attach(&importer, &last).unwrap(), 8);
}
