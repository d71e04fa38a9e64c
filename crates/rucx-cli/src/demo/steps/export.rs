//! Part 1: the host exports memory.

use super::{MAIN, map};
use crate::demo::child::Failure;
use crate::demo::isolation::surplus;
use crate::demo::protocol::{Command, Descriptor};
use crate::demo::secrecy::shows;
use crate::demo::stage::{Stage, take_apart};
use crate::frame::Secret;
use crate::ui::Who;
use crate::units;

/// What has been exported.
pub(crate) struct Exported {
    pub(crate) handle: Secret,
    pub(crate) len: u64,
    pub(crate) rights: String,
    pub(crate) host: u32,
    pub(crate) dpu: u32,
}

pub(crate) fn play(stage: &mut Stage, inherited: &[Descriptor]) -> Result<Exported, Failure> {
    stage.part("The HOST exports memory")?;
    let parent = std::process::id();
    take_apart!(stage, Host: stage.host(&Command::Hello { parent })?
        => Ready { pid, environment, descriptors, arguments });
    let (host, mut unasked) = (pid, unasked(&environment, &descriptors, &arguments, inherited));
    take_apart!(stage, Dpu: stage.dpu(&Command::Hello { parent })?
        => Ready { pid, environment, descriptors, arguments });
    let dpu = pid;
    unasked.extend(self::unasked(&environment, &descriptors, &arguments, inherited));
    stage.say(Who::Host, &format!("process {host}, a program of its own"))?;
    stage.say(Who::Dpu, &format!("process {dpu}, another one"))?;
    let text = if unasked.is_empty() {
        "nothing in common: three pipes each, no variable but UCX_*".to_owned()
    } else {
        format!("nothing in common, but they were given: {}", unasked.join(", "))
    };
    stage.check(host != dpu && unasked.is_empty(), &text)?;

    let (len, rights) = map(stage, MAIN, stage.size, false, true)?;
    stage.check(len == stage.size, &format!("{len} bytes, as asked for"))?;
    take_apart!(stage, Host: stage.host(&Command::Pack { slot: MAIN, region: MAIN })?
        => Packed { handle, debug, said, nanos });
    let size = units::bytes(handle.0.len() as u64);
    stage.say(Who::Host, &format!("packed a handle of {size} in {}", units::nanos(nanos)))?;
    stage.said(&said)?;
    stage.ui.note("Who has its bytes has the memory: a secret, never printed.")?;
    stage.ui.note(&debug)?;
    stage.check(!shows(&debug, &handle.0), "Debug does not show them")?;
    Ok(Exported { handle, len, rights, host, dpu })
}

/// What a role has that it was not meant to have.
pub(crate) fn unasked(
    environment: &[String],
    descriptors: &[Descriptor],
    arguments: &[String],
    inherited: &[Descriptor],
) -> Vec<String> {
    let variables = environment.iter().filter(|name| !name.starts_with("UCX_"));
    let descriptors = surplus(descriptors, inherited);
    variables
        .cloned()
        .chain(descriptors.iter().map(|one| format!("descriptor {}: {}", one.number, one.what)))
        .chain(arguments.iter().skip(1).cloned())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_a_role_should_not_have_is_named() {
        let texts = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
        let file = Descriptor { number: 5, what: "/etc/passwd".to_owned() };
        let found = unasked(&texts(&["UCX_TLS", "HOME"]), &[file], &texts(&["demo-dpu", "deadbeef"]), &[]);
        assert_eq!(found, ["HOME", "descriptor 5: /etc/passwd", "deadbeef"]);
    }
}
