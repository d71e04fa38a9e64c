//! Which transport is asked first.

use uct::api::LinearCost;

/// The size of the accesses that transports of memory are compared by, in bytes, or the region's where that is smaller.
pub(crate) const TYPICAL: u64 = 4096;

/// Puts those first whose cost of `bytes` is least: the others are asked only where these cannot do it. Of equals, the first stays.
pub(crate) fn rank<T>(all: &mut [T], bytes: u64, cost: impl Fn(&T) -> LinearCost) {
    all.sort_by(|a, b| cost(a).at(bytes).total_cmp(&cost(b).at(bytes)));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_costs_least_at_that_size_comes_first() {
        let cost = |base, per_byte| LinearCost { base, per_byte };
        let ways = [("far", cost(5e-6, 0.01e-9)), ("near", cost(0.1e-6, 1e-9)), ("twin", cost(0.1e-6, 1e-9))];
        let first = |bytes| {
            let mut ways = ways;
            rank(&mut ways, bytes, |(_, cost)| *cost);
            ways.map(|(name, _)| name)
        };
        assert_eq!(first(0), ["near", "twin", "far"]);
        assert_eq!(first(1 << 20), ["far", "near", "twin"]);
    }
}
