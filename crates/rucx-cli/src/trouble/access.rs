//! Accesses that fail: what the user of a command can do about it, where the library speaks of its interface.

use std::path::Path;

use ucp::{AccessError, DeniedReason};

use super::{Failure, Trouble};
use crate::shell;

/// Whose access it was.
#[derive(Clone, Copy, Debug)]
pub(crate) enum By<'a> {
    /// That of `rucx import`.
    Importer,
    /// That of `rucx export` itself, to this file if it exports one.
    Exporter(Option<&'a Path>),
}

/// An access failed: `cannot` says what cannot be done because of it.
pub(crate) fn refused(cannot: &str, error: AccessError, by: By<'_>) -> Failure {
    let remedy = remedy(&error, by);
    let trouble = Trouble::of(cannot, error);
    match remedy {
        Some(remedy) => trouble.with_remedy(remedy),
        None => trouble,
    }
}

/// What to do, if that is another thing than the library says.
fn remedy(error: &AccessError, by: By<'_>) -> Option<String> {
    let why = match error {
        AccessError::Bounds(_) => return Some("stay within the memory: its size stands above".to_owned()),
        AccessError::AccessDenied { why, .. } => *why,
        _ => return None,
    };
    Some(match (why, by) {
        (DeniedReason::ReadOnlyExport, By::Importer) => {
            "the exporter decides: begin rucx export without --read-only; a --file must be one that it may write \
             (chmod, or another file)"
                .to_owned()
        }
        (DeniedReason::Protection, By::Exporter(Some(file))) => writable(file),
        (DeniedReason::NotBacked, By::Exporter(Some(file))) => {
            let file = shell::path(file);
            format!("the file is shorter than it was, or the disk is full: ls -l {file}; df {file}")
        }
        (DeniedReason::NotBacked, By::Importer) => {
            "where it is exported, the file is shorter than it was, or the disk is full: see ls -l and df there, and begin \
             rucx export again"
                .to_owned()
        }
        (DeniedReason::NotAllowed, By::Importer) => {
            "run both as one user, and begin both again; or import what needs no such rights: rucx export without --heap \
             and --file"
                .to_owned()
        }
        _ => return None,
    })
}

/// How a file becomes one that can be written.
pub(crate) fn writable(file: &Path) -> String {
    format!("make it writable (chmod u+w {}), or export another file", shell::path(file))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remedies_follow_the_cause() {
        let denied = |why, by| remedy(&AccessError::AccessDenied { done: 0, why }, by).unwrap_or_default();
        let file = By::Exporter(Some(Path::new("/tmp/a b")));
        for (why, by, part) in [
            (DeniedReason::ReadOnlyExport, By::Importer, "without --read-only"),
            (DeniedReason::Protection, file, r"chmod u+w /tmp/a\ b"),
            (DeniedReason::NotBacked, file, "shorter than it was, or the disk is full"),
            (DeniedReason::NotBacked, By::Importer, "shorter than it was, or the disk is full"),
            (DeniedReason::NotAllowed, By::Importer, "as one user"),
            (DeniedReason::Protection, By::Importer, ""),
            (DeniedReason::NotBacked, By::Exporter(None), ""),
        ] {
            let remedy = denied(why, by);
            assert!(
                remedy.contains(part) && remedy.is_empty() == part.is_empty(),
                "{why:?} {by:?}: {remedy}"
            );
            let is_read_only = why == DeniedReason::ReadOnlyExport;
            assert_eq!(remedy.contains("--read-only"), is_read_only, "{why:?} {by:?}: {remedy}");
        }
    }
}
