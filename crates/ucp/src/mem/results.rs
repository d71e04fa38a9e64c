//! What each memory domain said.

use std::fmt;

use uct::api::ComponentId;

/// Yes, with how; or no, with why.
pub type MdOutcome = Result<String, String>;

/// What one memory domain said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MdResult {
    /// The component it belongs to.
    pub component: ComponentId,
    /// What it said.
    pub outcome: MdOutcome,
}

impl fmt::Display for MdResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.outcome {
            Ok(how) => write!(f, "{}: {how}", self.component),
            Err(why) => write!(f, "{}: no: {why}", self.component),
        }
    }
}

/// What the memory domains said, one by one, in the order of their components. Prints as `self: no: …; shm: …`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MdResults(Vec<MdResult>);

impl MdResults {
    pub(crate) fn push(&mut self, component: ComponentId, outcome: MdOutcome) {
        let place = self.0.partition_point(|result| result.component <= component);
        self.0.insert(place, MdResult { component, outcome });
    }

    /// One by one.
    pub fn iter(&self) -> impl Iterator<Item = &MdResult> {
        self.0.iter()
    }
}

impl fmt::Display for MdResults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, result) in self.0.iter().enumerate() {
            let separator = if index == 0 { "" } else { "; " };
            write!(f, "{separator}{result}")?;
        }
        Ok(())
    }
}
