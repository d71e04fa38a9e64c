//! What goes wrong, and how a command says so.

use std::io;
use std::process::ExitCode;

use ucp::{AccessError, MdResults};

use crate::ui::{self, Ui, Who};

/// Something could not be done.
#[derive(Debug)]
pub(crate) struct Trouble {
    /// What, in a few words: the last line of the output.
    what: String,
    /// Why.
    reason: String,
    /// What each transport said, if they were asked.
    said: Option<MdResults>,
    /// What to do about it.
    remedy: String,
}

impl Trouble {
    /// Something of this command's own.
    pub(crate) fn own(
        what: impl Into<String>,
        reason: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Failure {
        let (what, reason, remedy) = (what.into(), reason.into(), remedy.into());
        Failure::Trouble(Box::new(Self { what, reason, said: None, remedy }))
    }

    /// An error of the library's: `cannot` says what cannot be done because of it.
    pub(crate) fn of(cannot: &str, error: impl Into<ucp::Error>) -> Failure {
        let error = error.into();
        let (mut reason, said) = (error.to_string(), error.md_results().cloned());
        // What the transports said stands in a list of its own.
        if let Some(said) = &said
            && let Some(lead) = reason.strip_suffix(&said.to_string())
        {
            reason = lead.trim_end().to_owned();
        }
        let what = format!("cannot {cannot}: {:?}", error.status());
        Failure::Trouble(Box::new(Self { what, reason, said, remedy: error.remedy() }))
    }

    fn show(&self, ui: &mut Ui, who: Who) -> io::Result<()> {
        ui.say(who, &self.what)?;
        ui.note(&self.reason)?;
        if let Some(said) = &self.said {
            self::said(ui, said)?;
        }
        ui.note(&format!("remedy: {}", self.remedy))?;
        ui.close(false, &self.what)
    }
}

/// A command has failed.
#[derive(Debug)]
pub(crate) enum Failure {
    /// At what it was to do.
    Trouble(Box<Trouble>),
    /// At telling so.
    Output(io::Error),
    /// Its arguments do not go together.
    Usage(&'static str),
}

impl Failure {
    /// The same, with another remedy.
    pub(crate) fn with_remedy(mut self, remedy: &str) -> Self {
        if let Self::Trouble(trouble) = &mut self {
            trouble.remedy = remedy.to_owned();
        }
        self
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::Output(error)
    }
}

impl From<AccessError> for Failure {
    fn from(error: AccessError) -> Self {
        Trouble::of("access the memory", error)
    }
}

/// Tells how a command ended, and is its exit code: 0 for `Ok(true)`, 2 for wrong arguments, else 1.
pub(crate) fn end(ui: &mut Ui, who: Who, outcome: Result<bool, Failure>) -> ExitCode {
    let failure = match outcome {
        Ok(true) => return ExitCode::SUCCESS,
        Ok(false) => return ExitCode::FAILURE,
        Err(failure) => failure,
    };
    let told = match failure {
        Failure::Usage(text) => return ui::usage_error(text),
        Failure::Trouble(trouble) => trouble.show(ui, who),
        Failure::Output(error) => Err(error),
    };
    // Who has closed the pipe does not want to read on.
    if let Err(error) = told
        && error.kind() != io::ErrorKind::BrokenPipe
    {
        ui::complain(&format!("output: {error}"));
    }
    ExitCode::FAILURE
}

/// What each transport said, under what was said before.
pub(crate) fn said(ui: &mut Ui, results: &MdResults) -> io::Result<()> {
    for result in results.iter() {
        let (yes, what) = match &result.outcome {
            Ok(how) => (true, how),
            Err(why) => (false, why),
        };
        ui.said(&result.component.to_string(), yes, what)?;
    }
    Ok(())
}
