//! Part 6: the host takes it back.

use super::bytes::moved;
use super::{MAIN, SECOND};
use crate::demo::child::Failure;
use crate::demo::protocol::{Command, Report};
use crate::demo::stage::{Stage, take_apart};
use crate::frame::Secret;
use crate::ui::Who;
use crate::units;

pub(crate) fn play(stage: &mut Stage, first: Secret) -> Result<(), Failure> {
    stage.part("The HOST takes it back")?;
    take_apart!(stage, Host: stage.host(&Command::Pack { slot: SECOND, region: MAIN })? => Packed { handle });
    stage.say(Who::Host, "packed a second handle of the same memory")?;
    take_apart!(stage, Dpu: stage.dpu(&Command::Import { slot: SECOND, handle })? => Imported { nanos });
    stage.say(Who::Dpu, &format!("imported it in {}", units::nanos(nanos)))?;

    while_reading(stage)?;
    let report = stage.dpu(&Command::Load { slot: MAIN, offset: 0 })?;
    stage.check(
        status(&report) == "Stale",
        &format!("another read through the first handle: {}", status(&report)),
    )?;
    let report = stage.dpu(&Command::Import { slot: MAIN, handle: first })?;
    stage.check(
        status(&report) == "Stale",
        &format!("importing the first handle again: {}", status(&report)),
    )?;

    let by_dpu = moved(stage, Who::Dpu, "wrote via second", &Command::Fill { slot: SECOND, seed: 6 })?;
    let at_host = moved(stage, Who::Host, "read all of it", &Command::Sum { slot: MAIN })?;
    stage.check(by_dpu == at_host, "the second handle works as before")
}

/// Revokes the first handle while the DPU reads through it.
fn while_reading(stage: &mut Stage) -> Result<(), Failure> {
    take_apart!(stage, Dpu: stage.dpu(&Command::ReadOn { slot: MAIN })? => Reading {});
    stage.say(Who::Dpu, "reads its first page through the first handle, again and again")?;
    take_apart!(stage, Host: stage.host(&Command::Revoke { slot: MAIN })? => Done { nanos });
    stage.say(
        Who::Host,
        &format!("revoked the first handle in {}, and wrote over the page", units::nanos(nanos)),
    )?;
    take_apart!(stage, Dpu: stage.roles.wait(Who::Dpu)? => Refused { same, other, fault });
    stage.fault(Who::Dpu, &format!("reads that worked: {}; the next one", same + other), &fault)?;
    stage.check(fault.status == "Stale", "the revoked handle is stale")?;
    stage.check(other == 0, &format!("{} saw what the HOST wrote after that", count(other)))
}

/// So many reads, in words.
pub(super) fn count(reads: u64) -> String {
    if reads == 0 { "no read".to_owned() } else { format!("{reads} reads") }
}

/// The status by name; of a report that is no error, that.
fn status(report: &Report) -> &str {
    match report {
        Report::Failed { fault } => &fault.status,
        _ => "it worked",
    }
}
