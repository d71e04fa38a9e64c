//! Choices between ways of doing the same thing: pure functions of sizes, limits and costs.

mod message;
mod operand;
mod rank;

pub(crate) use message::{Data, Message, data, message, read_from};
pub(crate) use operand::{Operand, operand, registered_from};
pub(crate) use rank::{TYPICAL, rank};

/// The least number for which that is true, as for all larger ones: costs are linear.
fn least(is_true: impl Fn(u64) -> bool) -> Option<u64> {
    let (mut least, mut all) = (0, 1 << 62);
    if !is_true(all) {
        return None;
    }
    while least < all {
        let middle = least + (all - least) / 2;
        if is_true(middle) { all = middle } else { least = middle + 1 }
    }
    Some(least)
}
