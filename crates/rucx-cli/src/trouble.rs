//! What goes wrong, and how a command says so.

mod access;

use std::io;
use std::process::ExitCode;

use ucp::{AccessError, MdResults};

use crate::ui::{self, Ui, Who};

pub(crate) use access::{By, refused, writable};

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
        Failure::Trouble(Box::new(Self { what, reason, said, remedy: for_commands(error.remedy()) }))
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
    pub(crate) fn with_remedy(mut self, remedy: impl Into<String>) -> Self {
        if let Self::Trouble(trouble) = &mut self {
            trouble.remedy = remedy.into();
        }
        self
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::Output(error)
    }
}

/// Imported memory could not be read.
impl From<AccessError> for Failure {
    fn from(error: AccessError) -> Self {
        refused("read it", error, By::Importer)
    }
}

/// A remedy of the library's, and what it means to who types commands.
fn for_commands(mut remedy: String) -> String {
    if remedy.contains("MemMap::allocate") {
        remedy.push_str(" (that is rucx export without --heap and --file)");
    }
    remedy
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
            Ok(how) => (true, how.clone()),
            Err(why) => (false, for_commands(why.clone())),
        };
        ui.said(&result.component.to_string(), yes, &what)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remedies_of_the_library_are_told_in_terms_of_the_commands() {
        let library = AccessError::Unsupported { why: "x" }.remedy();
        assert!(library.contains("MemMap::allocate"));
        let told = for_commands(library.to_owned());
        assert!(told.starts_with(library) && told.contains("without --heap and --file"), "{told}");
        assert_eq!(for_commands("map less".to_owned()), "map less");
    }
}
