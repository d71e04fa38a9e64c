//! Part 3: bytes go both ways.

use std::hash::{BuildHasher, RandomState};

use super::MAIN;
use crate::demo::bell;
use crate::demo::child::Failure;
use crate::demo::protocol::{Command, Report};
use crate::demo::stage::{Stage, take_apart};
use crate::ui::Who;
use crate::units;

const ROUNDS: u64 = 2000;

pub(crate) fn play(stage: &mut Stage) -> Result<(), Failure> {
    stage.part("Bytes go both ways")?;
    // Other patterns each time: nothing that an earlier run has left behind can pass for them.
    let seed = RandomState::new().hash_one("host");
    let by_host = moved(stage, Who::Host, "wrote a pattern", &Command::Fill { slot: MAIN, seed })?;
    stage.ui.note("with the first touch of each page")?;
    let at_dpu = moved(stage, Who::Dpu, "read all of it", &Command::Sum { slot: MAIN })?;
    stage.check(by_host == at_dpu, "the DPU read what the HOST wrote")?;

    let seed = RandomState::new().hash_one("dpu");
    let by_dpu = moved(stage, Who::Dpu, "wrote another", &Command::Fill { slot: MAIN, seed })?;
    let at_host = moved(stage, Who::Host, "read all of it", &Command::Sum { slot: MAIN })?;
    stage.check(by_dpu == at_host && by_dpu != by_host, "the HOST read what the DPU wrote")?;

    doorbell(stage)
}

/// Has a role move all bytes; their sum.
pub(super) fn moved(stage: &mut Stage, who: Who, what: &str, command: &Command) -> Result<u32, Failure> {
    let report = stage.roles.ask(who, command)?;
    let Report::Moved { bytes, crc, nanos } = report else { return Err(stage.roles.unexpected(who, report)) };
    let rate = units::rate(bytes, nanos.saturating_mul(1000));
    stage.say(who, &format!("{what:<16} crc32c {crc:08x}  {:>8}  {rate:>5} GB/s", units::nanos(nanos)))?;
    Ok(crc)
}

fn doorbell(stage: &mut Stage) -> Result<(), Failure> {
    for offset in [bell::RING, bell::ANSWER] {
        let clear = Command::Store { slot: MAIN, offset, value: 0 };
        take_apart!(stage, Host: stage.host(&clear)? => Done {});
    }
    stage.roles.tell(Who::Host, &Command::Answer { region: MAIN })?;
    let rung = stage.dpu(&Command::Ring { slot: MAIN, rounds: ROUNDS })?;
    let answered = stage.roles.wait(Who::Host)?;
    take_apart!(stage, Dpu: rung => Rang { right, wrong, median_ps });
    let (answers, wrong_answers) = (right, wrong);
    take_apart!(stage, Host: answered => Rang { right, wrong });
    let (rings, wrong_rings) = (right, wrong);
    stage.say(Who::Dpu, &format!("rang a doorbell {answers} times: stores a word, awaits the HOST's"))?;
    stage.ui.note(&format!("median round trip {}", units::time(median_ps)))?;
    let held = rings > 0 && rings == answers && wrong_rings + wrong_answers == 0;
    stage.check(
        held,
        &format!("{rings} rings and {answers} answers arrived, {} wrong", wrong_rings + wrong_answers),
    )
}
