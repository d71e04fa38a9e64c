//! Rules that no compiler and no linter checks. Each check is a function from the tree to its findings, in the table below.

mod dependencies;
mod golden;
mod invariants;
mod layers;
mod lexer;
mod links;
mod manifests;
mod named;
mod text;
mod tree;

use std::fmt;
use std::path::Path;
use std::process::ExitCode;

pub(crate) use tree::Tree;

/// Something against the rules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Finding {
    pub(crate) path: String,
    /// From 1.
    pub(crate) line: usize,
    pub(crate) message: String,
    /// Shown, but no failure.
    pub(crate) warning: bool,
}

impl Finding {
    pub(crate) fn new(path: &str, line: usize, message: impl Into<String>) -> Self {
        Self { path: path.to_owned(), line, message: message.into(), warning: false }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = if self.warning { "warning: " } else { "" };
        write!(f, "{}:{}: {kind}{}", self.path, self.line, self.message)
    }
}

/// A check.
pub(crate) type Check = fn(&Tree) -> Vec<Finding>;

/// The table. An invariant names a check as `tidy::NAME`.
pub(crate) const CHECKS: &[(&str, Check)] = &[
    ("file_sizes", text::file_sizes),
    ("unfinished", text::unfinished),
    ("developer_paths", text::developer_paths),
    ("registries", text::registries),
    ("unsafe_files", layers::unsafe_files),
    ("ucp_names_no_transport", layers::ucp_names_no_transport),
    ("decoders", layers::decoders),
    ("prints", layers::prints),
    ("atomics", layers::atomics),
    ("invariants", invariants::check),
    ("manifests", manifests::check),
    ("dependencies", dependencies::check),
    ("golden", golden::check),
    ("links", links::check),
    ("named_tests", named::check),
];

/// All findings in the workspace.
pub(crate) fn check(root: &Path) -> Vec<Finding> {
    let tree = match Tree::read(root) {
        Ok(tree) => tree,
        Err(error) => return vec![Finding::new(&root.to_string_lossy(), 1, error)],
    };
    let mut findings: Vec<Finding> = CHECKS.iter().flat_map(|(_, check)| check(&tree)).collect();
    findings.sort_by(|a, b| (a.warning, &a.path, a.line).cmp(&(b.warning, &b.path, b.line)));
    findings
}

/// `cargo xtask tidy`.
pub(crate) fn main(root: &Path) -> ExitCode {
    let findings = check(root);
    findings.iter().for_each(|finding| println!("{finding}"));
    let bad = findings.iter().filter(|finding| !finding.warning).count();
    println!("tidy: {} checks, {bad} findings, {} warnings", CHECKS.len(), findings.len() - bad);
    if bad == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// What the tests of the checks share.
#[cfg(test)]
pub(crate) mod testing {
    use super::*;
    use std::path::PathBuf;
    use std::sync::atomic::Ordering;

    /// A directory that goes with the value.
    pub(crate) struct TempDir(pub(crate) PathBuf);

    impl TempDir {
        pub(crate) fn with(files: &[(&str, &str)]) -> Self {
            #[allow(clippy::disallowed_types)] // a test's counter
            static NEXT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
            let name = format!("rucx-tidy-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
            let dir = Self(std::env::temp_dir().join(name));
            for (path, text) in files {
                let path = dir.0.join(path);
                std::fs::create_dir_all(path.parent().unwrap()).unwrap();
                std::fs::write(path, text).unwrap();
            }
            dir
        }
    }

    impl Drop for TempDir {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    /// The `path:line` of what a check finds in these files.
    pub(crate) fn found(check: Check, files: &[(&str, &str)]) -> Vec<String> {
        let dir = TempDir::with(files);
        let tree = Tree::read(&dir.0).unwrap();
        check(&tree).iter().map(|finding| format!("{}:{}", finding.path, finding.line)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tidy_passes() {
        let findings: Vec<String> =
            check(&crate::root()).iter().filter(|f| !f.warning).map(Finding::to_string).collect();
        assert!(findings.is_empty(), "{}", findings.join("\n"));
    }

    #[test]
    fn findings_name_file_and_line() {
        assert_eq!(Finding::new("a/b.rs", 7, "too long").to_string(), "a/b.rs:7: too long");
    }
}
