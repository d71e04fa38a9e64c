//! What the facts mean for rucx: pure functions from facts to rows.

mod calls;
mod limits;
mod rights;

use serde::Serialize;

use super::facts::Facts;

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

/// A row for each fact that matters to rucx.
pub(crate) fn rows(facts: &Facts) -> Vec<Row> {
    let mut rows = vec![release(facts), machine(facts), proc(facts), calls::seccomp(facts)];
    rows.extend(calls::rows(facts));
    rows.extend(rights::rows(facts));
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

fn proc(facts: &Facts) -> Row {
    let row = |value| Row::good(Group::Kernel, "proc", "/proc", value);
    if facts.boot_id {
        return row("mounted");
    }
    row("boot_id cannot be read").lacks(
        State::Missing,
        "shm cannot be opened: it tells one system from another by /proc/sys/kernel/random/boot_id",
        "mount /proc: mount -t proc proc /proc",
    )
}

#[cfg(test)]
mod tests;
