//! Active messages: posted by one worker, handled by the other. What is announced is received into memory.

use std::hint::black_box;
use std::time::Duration;

use rucx_benches::rows::{Row, Rows, size};
use rucx_benches::timed;

use crate::world::World;

/// The longest is a little less than fits into a message.
const EAGER: [usize; 3] = [8, 4 << 10, 31 << 10];
const RENDEZVOUS: [usize; 3] = [32 << 10, 64 << 10, 1 << 20];

pub(crate) fn measure(rows: &mut Rows) {
    let world = World::new();
    for len in EAGER {
        let mut data = Some(vec![1; len]);
        let ours = timed(|n| data = (0..n).fold(data.take(), |data, _| data.map(|data| world.eager(data))));
        rows.measure(row(&format!("am {}, eager", size(len))), ours, copies(len));
    }
    for len in RENDEZVOUS {
        let mut both = Some([vec![1; len], vec![2; len]]);
        let ours =
            timed(|n| both = (0..n).fold(both.take(), |both, _| both.map(|both| world.rendezvous(both))));
        rows.measure(row(&format!("am {}, rendezvous", size(len))), ours, copies(len));
    }
}

fn row(name: &str) -> Row<'_> {
    Row { name, reference: "two copies", target: None }
}

/// Into memory and out of it again: what a message through memory takes at least.
fn copies(len: usize) -> impl FnMut(u64) -> Duration {
    let (from, mut between, mut to) = (vec![1_u8; len], vec![2; len], vec![3; len]);
    timed(move |n| {
        for _ in 0..n {
            black_box(&mut between).copy_from_slice(black_box(&from));
            black_box(&mut to).copy_from_slice(black_box(&between));
        }
    })
}
