//! Importing.

use std::cell::LazyCell;
use std::hint::black_box;
use std::time::{Duration, Instant};

use rucx_benches::{Target, timed};

use crate::bare::{self, Client};
use crate::roles::Exporter;
use crate::rows::{Row, Rows, context};

const CONNECT: &str = "connect, 3 fds, mmap × 3";
const CONNECTED: &str = "message, 1 fd, mmap";

pub(crate) fn measure(rows: &mut Rows) {
    let exporter = LazyCell::new(Exporter::start);

    let row =
        Row { name: "mem_import + drop, new context", reference: CONNECT, target: Some(Target::Ratio(1.5)) };
    if rows.wants(row) {
        let ours = |n| {
            sum(n, || {
                let ctx = context();
                let begin = Instant::now();
                drop(ctx.mem_import(&exporter.small).expect("an import"));
                begin.elapsed()
            })
        };
        rows.measure(row, ours, connecting(&exporter));
    }

    let row = Row { name: "mem_import + drop, new connection", ..row };
    if rows.wants(row) {
        let ctx = context();
        let ours = timed(|n| {
            for _ in 0..n {
                drop(ctx.mem_import(&exporter.small).expect("an import"));
            }
        });
        rows.measure(row, ours, connecting(&exporter));
    }

    let row = Row { name: "context + mem_import + drop", target: None, ..row };
    if rows.wants(row) {
        let ours = timed(|n| {
            for _ in 0..n {
                drop(context().mem_import(&exporter.small).expect("an import"));
            }
        });
        rows.measure(row, ours, connecting(&exporter));
    }

    let row =
        Row { name: "mem_import + drop, connected", reference: CONNECTED, target: Some(Target::Ratio(1.5)) };
    if rows.wants(row) {
        let ctx = context();
        let _kept = ctx.mem_import(&exporter.large).expect("an import");
        let client = Client::connect(&exporter.bare_kept());
        let ours = timed(|n| {
            for _ in 0..n {
                drop(ctx.mem_import(&exporter.small).expect("an import"));
            }
        });
        rows.measure(row, ours, timed(|n| (0..n).for_each(|_| client.fetch(1))));
    }

    let row = Row {
        name: "mem_import + drop, cached",
        reference: "getppid",
        target: Some(Target::Nanoseconds(500.0)),
    };
    if rows.wants(row) {
        let ctx = context();
        let _kept = ctx.mem_import(&exporter.small).expect("an import");
        let ours = timed(|n| {
            for _ in 0..n {
                drop(ctx.mem_import(black_box(&exporter.small)).expect("an import"));
            }
        });
        rows.measure(row, ours, timed(bare::system_calls));
    }
}

fn connecting(exporter: &Exporter) -> impl FnMut(u64) -> Duration + use<> {
    let name = exporter.bare_new();
    timed(move |n| (0..n).for_each(|_| Client::connect(&name).fetch(3)))
}

fn sum(n: u64, mut once: impl FnMut() -> Duration) -> Duration {
    (0..n).map(|_| once()).sum()
}
