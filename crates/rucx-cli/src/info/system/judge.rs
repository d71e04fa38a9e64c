//! What the facts mean for rucx: pure functions from facts to rows.

mod calls;
mod limits;
mod places;
mod registrations;
mod rights;

use serde::Serialize;

use super::facts::Facts;

pub(crate) use places::{NOT_SET, SERVICE_DIR};

/// How good something is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum State {
    /// Nothing is lacking.
    Good,
    /// What is lacking costs little, or nothing in this version.
    Note,
    /// Some of rucx does not work, or works for some peers only.
    Limited,
    /// A part of rucx does not work.
    Missing,
}

/// Something the system has, or lacks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Row {
    /// Its name for programs, which stays as it is.
    pub(crate) key: &'static str,
    /// What it belongs to.
    pub(crate) group: Group,
    /// Its name as an administrator knows it.
    pub(crate) name: &'static str,
    /// What was found.
    pub(crate) value: String,
    /// How good that is.
    pub(crate) state: State,
    /// What the lack costs; none if nothing is lacking.
    pub(crate) cost: Option<String>,
    /// What to do about it; none if nothing is lacking.
    pub(crate) remedy: Option<String>,
}

/// What a row belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Group {
    /// The kernel.
    Kernel,
    /// System calls.
    Calls,
    /// Rights over other processes.
    Rights,
    /// Namespaces.
    Namespaces,
    /// Registrations that are kept.
    Registrations,
    /// Limits.
    Limits,
    /// Memory.
    Memory,
}

impl Group {
    /// In words.
    pub(crate) fn title(self) -> &'static str {
        match self {
            Self::Kernel => "Kernel",
            Self::Calls => "System calls, tried on this process",
            Self::Rights => "Rights over other processes",
            Self::Namespaces => "Namespaces",
            Self::Registrations => "Registrations",
            Self::Limits => "Limits",
            Self::Memory => "Memory",
        }
    }
}

impl Row {
    fn good(group: Group, key: &'static str, name: &'static str, value: impl Into<String>) -> Self {
        Self { key, group, name, value: value.into(), state: State::Good, cost: None, remedy: None }
    }

    /// The same, with something lacking.
    fn lacks(self, state: State, cost: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { state, cost: Some(cost.into()), remedy: Some(remedy.into()), ..self }
    }
}

/// Rows without which there is no export, whatever the memory: neither its table nor its socket can be made.
const NEEDED: [&str; 4] = ["memfd_create", "seal_future_write", "rlimit_fsize", SERVICE_DIR];

/// Why nothing at all can be exported, if that is so: the names of rows that say more.
pub(crate) fn nothing_exports(rows: &[Row]) -> Option<String> {
    let broken = rows.iter().filter(|row| row.state == State::Missing && NEEDED.contains(&row.key));
    let names: Vec<&str> = broken.map(|row| row.name).collect();
    (!names.is_empty()).then(|| format!("{} (see rucx info -s)", names.join(", ")))
}

/// A row for each fact that matters to rucx.
pub(crate) fn rows(facts: &Facts) -> Vec<Row> {
    let mut rows = vec![release(facts), machine(facts), places::proc(facts), calls::seccomp(facts)];
    rows.extend(calls::rows(facts));
    rows.extend(rights::rows(facts));
    rows.extend(registrations::rows(facts));
    rows.extend(limits::rows(facts));
    rows
}

fn release(facts: &Facts) -> Row {
    Row::good(Group::Kernel, "kernel_release", "release", &facts.release)
}

fn machine(facts: &Facts) -> Row {
    let row = Row::good(Group::Kernel, "machine", "machine", &facts.machine);
    if facts.machine == "x86_64" {
        return row;
    }
    row.lacks(
        State::Note,
        "memory is copied by plain atomics, which is slower than the assembly for x86_64",
        "run on x86_64, where that matters",
    )
}

#[cfg(test)]
mod tests;
