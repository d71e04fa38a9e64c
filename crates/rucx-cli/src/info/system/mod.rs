//! What the system offers: facts are read, then judged.

mod facts;
mod judge;
pub(crate) mod probe;
mod sys;

pub(crate) use judge::{Row, State};

/// One row for each thing the system has, or lacks.
pub(crate) fn rows() -> Vec<Row> {
    judge::rows(&facts::Facts::read())
}
