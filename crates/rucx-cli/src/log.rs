//! Events of the libraries, to standard error.

use std::io;

use anstream::{AutoStream, ColorChoice};
use tracing::Level;

const VARIABLE: &str = ucp::config::LOG_LEVEL.name();

/// Levels by their names in C UCX; those below `debug` are one here.
const LEVELS: &[(&str, Level)] = &[
    ("fatal", Level::ERROR),
    ("error", Level::ERROR),
    ("warn", Level::WARN),
    ("diag", Level::WARN),
    ("info", Level::INFO),
    ("debug", Level::DEBUG),
    ("trace", Level::TRACE),
    ("req", Level::TRACE),
    ("data", Level::TRACE),
    ("async", Level::TRACE),
    ("func", Level::TRACE),
    ("poll", Level::TRACE),
];

fn level(name: &str) -> Option<Level> {
    LEVELS.iter().find(|(known, _)| name.eq_ignore_ascii_case(known)).map(|(_, level)| *level)
}

/// What the variable accepts, in words.
pub(crate) fn accepted() -> String {
    let names: Vec<&str> = LEVELS.iter().map(|(name, _)| *name).collect();
    names.join(", ")
}

/// Begins to print events of the level of `UCX_LOG_LEVEL` and above.
///
/// # Errors
/// The variable has another value than a level, in words.
pub(crate) fn init() -> Result<(), String> {
    let level = match std::env::var(VARIABLE) {
        Ok(name) => {
            level(&name).ok_or_else(|| format!("{VARIABLE}={name:?}: expected one of {}", accepted()))?
        }
        Err(std::env::VarError::NotPresent) => Level::WARN,
        Err(error) => return Err(format!("{VARIABLE}: {error}")),
    };
    let ansi = AutoStream::choice(&io::stderr()) != ColorChoice::Never;
    tracing_subscriber::fmt().with_max_level(level).with_ansi(ansi).with_writer(io::stderr).init();
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_have_their_names_in_ucx() {
        assert_eq!(level("fatal"), Some(Level::ERROR));
        assert_eq!(level("WARN"), Some(Level::WARN));
        assert_eq!(level("data"), Some(Level::TRACE));
        assert_eq!(level(""), None);
        assert_eq!(level("loud"), None);
    }
}
