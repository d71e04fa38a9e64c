//! Packing handles and revoking them.

use std::time::{Duration, Instant};

use rucx_benches::{Target, timed};
use ucp::{Context, MemMap, PackedMemh, Region};

use crate::bare::{self, Revocation};
use crate::roles::Importers;
use crate::rows::{Row, Rows, context};

/// Handles packed at once, at most: an export table holds 65,535.
const BATCH: u64 = 8192;

const SYSTEM_CALL: &str = "getppid";

pub(crate) fn measure(rows: &mut Rows) {
    let ctx = context();
    let system_calls = || timed(bare::system_calls);
    let row = Row { name: "memh_pack", reference: SYSTEM_CALL, target: Some(Target::Nanoseconds(300.0)) };
    rows.measure(row, |n| in_batches(&ctx, n).0, system_calls());
    let row = Row { name: "memh_pack + revoke", reference: SYSTEM_CALL, target: None };
    rows.measure(
        row,
        |n| {
            let (pack, revoke) = in_batches(&ctx, n);
            pack + revoke
        },
        system_calls(),
    );
    for count in [0, 1, 64] {
        let name = format!("revoke, {count} importers connected");
        let row = Row { name: &name, reference: "a look at their slots", target: None };
        if rows.wants(row) {
            let ctx = context();
            let region = region(&ctx);
            let handle = region.memh_pack().expect("a handle");
            let _importers = Importers::start(count, &handle);
            // Beside the importers' pages, the vault's slots are looked at.
            let bare = Revocation::of(count + 1);
            let reference = timed(|n| assert!((0..n).all(|_| std::hint::black_box(&bare).run())));
            rows.measure(row, |n| in_batches(&ctx, n).1, reference);
        }
    }
}

fn region(ctx: &Context) -> Region {
    ctx.mem_map(MemMap::allocate(bare::PAGE).exported()).expect("a region")
}

/// Packs and revokes `n` handles, and tells how long the packing took, and the revoking.
fn in_batches(ctx: &Context, n: u64) -> (Duration, Duration) {
    let (mut pack, mut revoke) = (Duration::ZERO, Duration::ZERO);
    let mut left = n;
    while left > 0 {
        let count = left.min(BATCH);
        left -= count;
        // A fresh one each time: what a region lists of its exports does not add up from sample to sample.
        let region = region(ctx);
        let mut handles: Vec<PackedMemh> = Vec::with_capacity(usize::try_from(count).unwrap_or(0));
        let begin = Instant::now();
        handles.extend((0..count).map(|_| region.memh_pack().expect("a handle")));
        pack += begin.elapsed();
        let begin = Instant::now();
        for handle in &handles {
            handle.revoke().expect("nobody is inside");
        }
        revoke += begin.elapsed();
    }
    (pack, revoke)
}
