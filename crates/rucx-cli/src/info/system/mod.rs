//! What the system offers: facts are read, then judged.

mod facts;
mod judge;
mod places;
pub(crate) mod probe;
mod sys;

pub(crate) use judge::{NOT_SET, Row, SERVICE_DIR, State, nothing_exports};

/// Whether the memory monitor of this process can be started, or fails to start: a seccomp filter may kill instead.
pub(crate) fn monitor_can_start() -> bool {
    matches!(facts::Facts::read().probes.watcher, probe::Watcher::Started { .. })
}

/// One row for each thing the system has, or lacks.
pub(crate) fn rows() -> Vec<Row> {
    judge::rows(&facts::Facts::read())
}
