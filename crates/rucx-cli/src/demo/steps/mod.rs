//! The parts of the story, in their order.

mod bytes;
mod ending;
pub(super) mod export;
mod import;
mod read_only;
mod revoke;
mod speed;

use super::child::Failure;
use super::protocol::{Command, Descriptor};
use super::stage::{Stage, take_apart};
use crate::ui::Who;
use crate::units;

/// Slots: the region of the size asked for, and its first export and import.
pub(super) const MAIN: u8 = 0;
/// The region exported read-only.
const READ_ONLY: u8 = 1;
/// A second export of the region `MAIN`.
const SECOND: u8 = 2;

/// Plays all parts. Whether all checks held.
///
/// # Errors
/// The story cannot go on.
pub(crate) fn all(stage: &mut Stage, inherited: &[Descriptor]) -> Result<bool, Failure> {
    let exported = export::play(stage, inherited)?;
    if import::play(stage, &exported)? {
        bytes::play(stage)?;
        speed::play(stage)?;
        read_only::play(stage, &exported)?;
        revoke::play(stage, exported.handle)?;
        ending::play(stage)?;
    }
    stage.close()
}

/// Maps a region and says so; its length and rights.
pub(super) fn map(
    stage: &mut Stage,
    slot: u8,
    size: u64,
    read_only: bool,
    long: bool,
) -> Result<(u64, String), Failure> {
    take_apart!(stage, Host: stage.host(&Command::Map { slot, size, read_only })?
        => Mapped { address, len, rights, said, nanos });
    stage.say(
        Who::Host,
        &format!("mapped {} at {address:#x}, {rights}, in {}", units::bytes(len), units::nanos(nanos)),
    )?;
    if long {
        stage.said(&said)?;
    }
    Ok((len, rights))
}
