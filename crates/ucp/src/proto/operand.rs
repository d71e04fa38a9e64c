//! How an operand's bytes get to a transport that wants operands registered.

use uct::api::LinearCost;

use super::least;

/// How they do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operand {
    /// Copied: by the transport's own memory.
    Copied,
    /// From where they are, or to there: by their registration.
    Registered,
}

/// Finding a registration that is there, and checking it with the kernel: "hit, checked" of `cargo bench -p rucx-benches --bench rcache`.
const FOUND: LinearCost = LinearCost { base: 400e-9, per_byte: 0.0 };
/// A copy of memory that is in no near cache: `cargo bench -p rucx-benches --bench copy`.
const COPIED: LinearCost = LinearCost { base: 20e-9, per_byte: 0.03e-9 };

/// How an operand of `len` bytes goes. `from`: the length from which on it is registered, where the user has said so; else what costs less.
/// Of another process's memory nothing can be registered here.
pub(crate) fn operand(len: usize, imported: bool, from: Option<u64>) -> Operand {
    let len = len as u64;
    let is_short = match from {
        Some(from) => len < from,
        None => COPIED.at(len) < FOUND.at(len),
    };
    if imported || is_short { Operand::Copied } else { Operand::Registered }
}

/// The length from which on operands are registered; `None`: the user has said that none are.
pub(crate) fn registered_from(from: Option<u64>) -> Option<u64> {
    let is_registered =
        |len| operand(usize::try_from(len).unwrap_or(usize::MAX), false, from) == Operand::Registered;
    least(is_registered)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_operands_are_copied_and_long_ones_registered() {
        let auto = |len| operand(len, false, None);
        assert_eq!(
            (auto(0), auto(4096), auto(12 << 10)),
            (Operand::Copied, Operand::Copied, Operand::Copied)
        );
        assert_eq!((auto(13 << 10), auto(usize::MAX)), (Operand::Registered, Operand::Registered));
        assert_eq!(operand(0, false, Some(0)), Operand::Registered);
        assert_eq!(operand(99, false, Some(100)), Operand::Copied);
        assert_eq!(operand(100, false, Some(100)), Operand::Registered);
        assert_eq!(operand(usize::MAX, false, Some(u64::MAX)), Operand::Registered);
        assert_eq!(operand(1 << 30, true, Some(0)), Operand::Copied, "it is another process's");
        assert_eq!((registered_from(Some(0)), registered_from(Some(100))), (Some(0), Some(100)));
        assert_eq!(registered_from(Some(u64::MAX)), None);
        let least = registered_from(None).and_then(|len| usize::try_from(len).ok()).unwrap_or_default();
        assert_eq!((auto(least - 1), auto(least)), (Operand::Copied, Operand::Registered));
    }
}
