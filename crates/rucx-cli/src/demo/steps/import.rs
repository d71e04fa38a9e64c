//! Part 2: the DPU imports it.

use super::MAIN;
use super::export::Exported;
use crate::demo::child::Failure;
use crate::demo::protocol::{Command, Report};
use crate::demo::stage::{Stage, take_apart};
use crate::ui::Who;
use crate::units;

/// Whether it could be imported.
pub(crate) fn play(stage: &mut Stage, exported: &Exported) -> Result<bool, Failure> {
    stage.part("The DPU imports it")?;
    let handle = exported.handle.clone();
    let report = stage.dpu(&Command::Import { slot: MAIN, handle })?;
    if let Report::Failed { fault } = &report {
        stage.roles.all_alive()?;
        stage.say(Who::Dpu, &format!("cannot import the handle: {}", fault.status))?;
        stage.said(&fault.said)?;
        stage.ui.note(&fault.error)?;
        stage.ui.note(&format!("remedy: {}", fault.remedy))?;
        if !fault.said.is_empty() {
            stage.ui.note("Without --tls and UCX_TLS, the demo may use all transports.")?;
        }
        stage.check(false, &format!("the DPU imports the handle: {}", fault.status))?;
        return Ok(false);
    }
    take_apart!(stage, Dpu: report => Imported { transport, len, rights, said, nanos, again_nanos, again_same });
    stage.say(
        Who::Dpu,
        &format!("imported it over {transport} in {}; why {transport}:", units::nanos(nanos)),
    )?;
    stage.said(&said)?;
    let same = len == exported.len && rights == exported.rights;
    stage.check(same, &format!("what arrived is what was exported: {}, {rights}", units::bytes(len)))?;
    stage.say(Who::Dpu, &format!("imported the same handle again in {}", units::nanos(again_nanos)))?;
    stage.check(again_same, "it is the same attachment")?;
    let handle = units::bytes(exported.handle.0.len() as u64);
    stage.ui.lines(&diagram(exported, &handle, &transport))?;
    Ok(true)
}

fn diagram(exported: &Exported, handle: &str, transport: &str) -> Vec<String> {
    let (host, dpu) = (format!("pid {}", exported.host), format!("pid {}", exported.dpu));
    let there = arrow(&format!("handle, {handle}, by pipes"), true);
    let back = arrow(&format!("read, write by {transport}"), false);
    vec![
        String::new(),
        format!("┌──────────────┐{:30}┌──────────────┐", ""),
        format!("│{:^14}│{there}│{:^14}│", "HOST", "DPU"),
        format!("│{host:^14}│{back}│{dpu:^14}│"),
        format!("└──────────────┘{:30}└──────────────┘", ""),
    ]
}

/// A label of 30 columns on an arrow, to the right or to the left.
fn arrow(label: &str, right: bool) -> String {
    let line = format!("{:─^27}", format!(" {label} "));
    if right { format!(" {line}▶ ") } else { format!(" ◀{line} ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrows_have_the_same_width() {
        assert_eq!(arrow("x", true), " ──────────── x ────────────▶ ");
        assert_eq!(arrow("read", false).chars().count(), 30);
    }
}
