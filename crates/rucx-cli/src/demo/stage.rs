//! What every step needs: somewhere to speak, the roles, the checks so far.

use super::child::{Failure, Roles};
use super::protocol::{Command, Fault, Report, Said};
use crate::ui::{Ui, Who};
use crate::units;

/// Between the steps.
pub(crate) struct Stage<'a> {
    pub(crate) ui: &'a mut Ui,
    pub(crate) roles: Roles,
    /// Bytes to export.
    pub(crate) size: u64,
    part: usize,
    held: usize,
    failed: Vec<String>,
}

impl<'a> Stage<'a> {
    pub(crate) fn new(ui: &'a mut Ui, roles: Roles, size: u64) -> Self {
        Self { ui, roles, size, part: 0, held: 0, failed: Vec::new() }
    }

    /// Begins a part of the story.
    pub(crate) fn part(&mut self, title: &str) -> Result<(), Failure> {
        self.part += 1;
        self.roles.now(format!("in part {}", self.part));
        Ok(self.ui.section(self.part, title)?)
    }

    /// Somebody says something.
    pub(crate) fn say(&mut self, who: Who, text: &str) -> Result<(), Failure> {
        Ok(self.ui.say(who, text)?)
    }

    /// What transports said, under what was said before.
    pub(crate) fn said(&mut self, said: &[Said]) -> Result<(), Failure> {
        for line in said {
            self.ui.said(&line.transport, line.yes, &line.what)?;
        }
        Ok(())
    }

    /// An error of the library, with its remedy.
    pub(crate) fn fault(&mut self, who: Who, doing: &str, fault: &Fault) -> Result<(), Failure> {
        self.say(who, &format!("{doing}: {}", fault.status))?;
        self.ui.note(&fault.error)?;
        Ok(self.ui.note(&format!("remedy: {}", fault.remedy))?)
    }

    /// Counts and tells whether something holds.
    pub(crate) fn check(&mut self, held: bool, text: &str) -> Result<(), Failure> {
        if held {
            self.held += 1;
        } else {
            self.roles.all_alive()?;
            self.failed.push(format!("{text} (part {})", self.part));
        }
        Ok(self.ui.check(held, text)?)
    }

    /// Asks the HOST.
    pub(crate) fn host(&mut self, command: &Command) -> Result<Report, Failure> {
        self.roles.ask(Who::Host, command)
    }

    /// Asks the DPU.
    pub(crate) fn dpu(&mut self, command: &Command) -> Result<Report, Failure> {
        self.roles.ask(Who::Dpu, command)
    }

    /// Asks the PEER.
    pub(crate) fn peer(&mut self, command: &Command) -> Result<Report, Failure> {
        self.roles.ask(Who::Peer, command)
    }

    /// The last line. Whether all checks held, and there were some.
    pub(crate) fn close(&mut self) -> Result<bool, Failure> {
        let all = self.held + self.failed.len();
        let held = self.failed.is_empty() && self.held > 0;
        let text = if held {
            let took = units::nanos(units::in_nanos(self.ui.elapsed()));
            format!("all {all} checks held, in {took}")
        } else {
            format!("{} of {all} checks failed: {}", self.failed.len(), self.failed.join("; "))
        };
        self.ui.close(held, &text)?;
        Ok(held)
    }
}

/// Takes the report that is expected apart; any other is a [`Failure`].
macro_rules! take_apart {
    ($stage:expr, $who:ident: $report:expr => $variant:ident { $($field:ident),* $(,)? }) => {
        let ($($field,)*) = match $report {
            $crate::demo::protocol::Report::$variant { $($field,)* .. } => ($($field,)*),
            other => return Err($stage.roles.unexpected($crate::ui::Who::$who, other)),
        };
    };
}

pub(crate) use take_apart;
