//! Part 5: read-only memory stays as it is.

use super::bytes::moved;
use super::export::Exported;
use super::{MAIN, READ_ONLY, map};
use crate::demo::child::Failure;
use crate::demo::past::keeps_writers_away;
use crate::demo::protocol::{Command, Report};
use crate::demo::stage::{Stage, take_apart};
use crate::ui::Who;
use crate::units;

/// Not a size that anything else in these processes has.
const SIZE: u64 = 11 * 16 * 1024;

pub(crate) fn play(stage: &mut Stage, exported: &Exported) -> Result<(), Failure> {
    stage.part("Read-only memory stays as it is")?;
    map(stage, READ_ONLY, SIZE, true, false)?;
    let before = moved(stage, Who::Host, "wrote a pattern", &Command::Fill { slot: READ_ONLY, seed: 5 })?;
    take_apart!(stage, Host: stage.host(&Command::Pack { slot: READ_ONLY, region: READ_ONLY })? => Packed { handle });
    take_apart!(stage, Dpu: stage.dpu(&Command::Import { slot: READ_ONLY, handle })? => Imported { rights, nanos });
    stage.say(Who::Dpu, &format!("imported it, {rights}, in {}", units::nanos(nanos)))?;

    let report = stage.dpu(&Command::Store { slot: READ_ONLY, offset: 0, value: 1 })?;
    let status = match &report {
        Report::Failed { fault } => {
            stage.fault(Who::Dpu, "tried to write", fault)?;
            fault.status.clone()
        }
        _ => {
            stage.say(Who::Dpu, "tried to write: it was written")?;
            "none".to_owned()
        }
    };
    stage.check(status == "AccessDenied", "the library refuses the write")?;

    past_the_library(stage, exported.host)?;
    let after = moved(stage, Who::Host, "read all of it", &Command::Sum { slot: READ_ONLY })?;
    stage.check(before == after, "the memory is as the HOST wrote it")
}

/// The same write to both exports, on the file itself: one must be refused, the other not.
fn past_the_library(stage: &mut Stage, host: u32) -> Result<(), Failure> {
    let denied = u32::try_from(rustix::io::Errno::PERM.raw_os_error()).unwrap_or(u32::MAX);
    let read_only = stage.dpu(&Command::WritePast { slot: READ_ONLY, exporter: host })?;
    let writable = stage.dpu(&Command::WritePast { slot: MAIN, exporter: host })?;
    match (read_only, writable) {
        (Report::WrotePast { seals, errno }, Report::WrotePast { errno: control, .. }) => {
            stage.say(
                Who::Dpu,
                &format!(
                    "wrote past the library, into the HOST's files (/proc/{host}/fd): read-write {}, read-only {}",
                    answer(control),
                    answer(errno)
                ),
            )?;
            let held = errno == denied && control == 0 && keeps_writers_away(seals);
            stage.check(held, "the kernel refuses it as well: the file has F_SEAL_FUTURE_WRITE")
        }
        (Report::NotTried { why }, _) | (_, Report::NotTried { why }) => {
            stage.say(Who::Dpu, &format!("cannot try to write past the library: {why}"))
        }
        (other, _) => Err(stage.roles.unexpected(Who::Dpu, other)),
    }
}

fn answer(errno: u32) -> String {
    match errno {
        0 => "written".to_owned(),
        1 => "EPERM".to_owned(),
        _ => format!("error {errno}"),
    }
}
