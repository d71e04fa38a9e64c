//! Keys to a region.

use std::hint::black_box;

use rucx_benches::rows::{Row, Rows};
use rucx_benches::{Target, timed};
use ucp::MemMap;

use crate::bare::{CONNECTION, connections};
use crate::world::{ADDITION, LARGEST, World, additions, region, unpack};

pub(crate) fn measure(rows: &mut Rows) {
    let world = World::new();
    // C UCX takes 62 ns at best.
    let row = Row { name: "rkey_pack + drop", reference: ADDITION, target: Some(Target::Nanoseconds(62.0)) };
    let ours = timed(|n| {
        (0..n).for_each(|_| drop(black_box(world.region.rkey_pack().expect("a key"))));
    });
    rows.measure(row, ours, additions());

    // A twentieth of C UCX's 8.5 µs.
    let row = Row {
        name: "rkey_unpack + drop, attached",
        reference: ADDITION,
        target: Some(Target::Nanoseconds(425.0)),
    };
    let ours = timed(|n| (0..n).for_each(|_| unpack(&world.ep, &world.key)));
    rows.measure(row, ours, additions());

    let cold = [
        Row { name: "rkey_unpack + drop, connected", reference: CONNECTION, target: None },
        Row { name: "rkey_unpack + drop, new connection", reference: CONNECTION, target: None },
    ];
    if cold.iter().any(|row| rows.wants(*row)) {
        let another = region(&world.owner, MemMap::allocate(LARGEST));
        let key = another.rkey_pack().expect("a key");
        // With the last import from a context goes the connection.
        let World { a: _a, b: _b, ep, remote, .. } = world;
        let ours = || timed(|n| (0..n).for_each(|_| unpack(&ep, &key)));
        rows.measure(cold[0], ours(), connections());
        drop(remote);
        rows.measure(cold[1], ours(), connections());
    }
}
