//! Which `UCX_*` variables are set.

use std::ffi::{OsStr, OsString};

/// Those variables of this process that configure rucx, with `UCX_TLS` as given, if it is.
pub(crate) fn variables(tls: Option<&str>) -> Vec<(OsString, OsString)> {
    let ours = |name: &OsStr| name.to_string_lossy().starts_with("UCX_");
    let mut variables: Vec<_> = std::env::vars_os().filter(|(name, _)| ours(name)).collect();
    if let Some(tls) = tls {
        variables.retain(|(name, _)| name != "UCX_TLS");
        variables.push(("UCX_TLS".into(), tls.into()));
    }
    variables
}

/// The same in words, for the first line of what a command prints.
pub(crate) fn in_words(variables: &[(OsString, OsString)]) -> String {
    let text = |(name, value): &(OsString, OsString)| {
        format!("{}={}", name.to_string_lossy(), value.to_string_lossy())
    };
    let all: Vec<_> = variables.iter().map(text).collect();
    if all.is_empty() { "no UCX_* variable set".to_owned() } else { all.join(" ") }
}
