//! Mapping memory.

use std::hint::black_box;

use rucx_benches::timed;
use ucp::MemMap;

use crate::bare;
use crate::rows::{Row, Rows, context, size};

const SIZES: [usize; 3] = [4 << 10, 1 << 20, 64 << 20];

pub(crate) fn measure(rows: &mut Rows) {
    let ctx = context();
    for len in SIZES {
        for touch in [false, true] {
            let touched = if touch { ", touched" } else { "" };
            let name = format!("mem_map + drop {}{touched}", size(len));
            let row = Row { name: &name, reference: "memfd, mmap, seals", target: None };
            let ours = timed(|n| {
                for _ in 0..n {
                    let region = ctx.mem_map(MemMap::allocate(black_box(len)));
                    let region = region.expect("memory");
                    if touch {
                        for at in (0..len as u64).step_by(bare::PAGE) {
                            region.store(at, 1_u8).expect("within");
                        }
                    }
                }
            });
            let reference = timed(|n| (0..n).for_each(|_| bare::memfd(black_box(len), touch)));
            if touch && len > 1 << 20 {
                rows.measure_slow(row, ours, reference);
            } else {
                rows.measure(row, ours, reference);
            }
        }
    }
}
