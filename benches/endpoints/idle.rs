//! Where there is nothing to do.

use std::hint::black_box;

use rucx_benches::rows::{Row, Rows};
use rucx_benches::timed;

use crate::world::{ADDITION, World, additions, ended};

pub(crate) fn measure(rows: &mut Rows) {
    let world = World::new();
    let row = Row { name: "progress, idle, one endpoint", reference: ADDITION, target: None };
    rows.measure(row, timed(|n| (0..n).for_each(|_| _ = black_box(world.a.progress()))), additions());
    let row = Row { name: "flush of an endpoint, nothing to do", ..row };
    rows.measure(row, timed(|n| (0..n).for_each(|_| ended(world.ep.flush()))), additions());
    let row = Row { name: "flush of a worker, nothing to do", ..row };
    rows.measure(row, timed(|n| (0..n).for_each(|_| ended(world.a.flush()))), additions());
}
