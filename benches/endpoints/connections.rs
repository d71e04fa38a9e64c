//! Endpoints that come and go.

use rucx_benches::rows::{Row, Rows};
use rucx_benches::{Target, timed};
use ucp::CloseMode;

use crate::bare::{CONNECTION, connections};
use crate::world::{World, ended};

pub(crate) fn measure(rows: &mut Rows) {
    // Half of what C UCX takes at best, 0.6 ms, without the closing.
    let row = Row {
        name: "connect + flush + close",
        reference: CONNECTION,
        target: Some(Target::Nanoseconds(300e3)),
    };
    if rows.wants(row) {
        let world = World::new();
        let address = world.b.address().expect("an address");
        let ours = timed(|n| {
            for _ in 0..n {
                let ep = world.a.connect(address.as_bytes()).expect("an endpoint");
                ended(ep.flush());
                ended(ep.close(CloseMode::Flush));
                world.b.progress(); // the other side takes it in, and lets those go that are closed
            }
        });
        rows.measure(row, ours, connections());
    }
}
