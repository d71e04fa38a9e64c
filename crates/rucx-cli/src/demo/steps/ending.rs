//! Part 7: the host is killed.

use std::time::Instant;

use super::SECOND;
use super::revoke::count;
use crate::demo::child::Failure;
use crate::demo::protocol::Command;
use crate::demo::stage::{Stage, take_apart};
use crate::ui::Who;
use crate::units;

pub(crate) fn play(stage: &mut Stage) -> Result<(), Failure> {
    stage.part("The HOST is killed")?;
    take_apart!(stage, Dpu: stage.dpu(&Command::ReadOn { slot: SECOND })? => Reading {});
    stage.say(Who::Dpu, "reads its first page through the second handle, again and again")?;
    let start = Instant::now();
    stage.roles.kill(Who::Host)?;
    take_apart!(stage, Dpu: stage.roles.wait(Who::Dpu)? => Refused { same, other, fault });
    let took = units::in_nanos(start.elapsed());
    let text = format!("reads that worked: {}; {} after the HOST's end", same + other, units::nanos(took));
    stage.fault(Who::Dpu, &text, &fault)?;
    stage.check(fault.status == "Stale", "memory of a dead process is stale")?;
    stage.check(other == 0, &format!("{} saw anything but what the page was", count(other)))
}
