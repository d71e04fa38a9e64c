//! The files of the workspace.

use std::path::{Path, PathBuf};

use super::lexer::Source;
use crate::command;

/// A text file.
#[derive(Debug)]
pub(crate) struct File {
    /// From the root, with slashes.
    pub(crate) path: String,
    pub(crate) text: String,
    /// Of a Rust file, by kind of text.
    pub(crate) source: Option<Source>,
}

impl File {
    /// Whether it belongs to `dir` (without a slash at its end).
    pub(crate) fn is_in(&self, dir: &str) -> bool {
        self.path.strip_prefix(dir).is_some_and(|rest| rest.starts_with('/'))
    }

    /// The file's name.
    pub(crate) fn name(&self) -> &str {
        self.path.rsplit('/').next().unwrap_or(&self.path)
    }

    /// Whether it is a test: in a `tests` directory, or a module of tests in a file of its own.
    pub(crate) fn is_test(&self) -> bool {
        let name = self.name();
        self.path.split('/').any(|part| part == "tests") || name == "tests.rs" || name.ends_with("_tests.rs")
    }
}

/// The files that are, or would be, committed.
#[derive(Debug)]
pub(crate) struct Tree {
    pub(crate) root: PathBuf,
    pub(crate) files: Vec<File>,
}

impl Tree {
    /// Reads the files git tracks or does not ignore; outside a repository all that is no build output.
    pub(crate) fn read(root: &Path) -> Result<Self, String> {
        let mut paths = match root.join(".git").exists() {
            true => git_files(root).unwrap_or_else(|| walk(root)),
            false => walk(root),
        };
        paths.sort();
        paths.dedup();
        let mut files = Vec::new();
        for path in paths {
            match std::fs::read(root.join(&path)) {
                Ok(bytes) => {
                    let Ok(text) = String::from_utf8(bytes) else { continue };
                    let source = path.ends_with(".rs").then(|| Source::new(&text));
                    files.push(File { path, text, source });
                }
                // Deleted, and not committed yet.
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
                Err(error) => return Err(format!("{path}: {error}")),
            }
        }
        Ok(Self { root: root.to_path_buf(), files })
    }

    /// The file at this path.
    pub(crate) fn file(&self, path: &str) -> Option<&File> {
        self.files.iter().find(|file| file.path == path)
    }

    /// Rust files.
    pub(crate) fn sources(&self) -> impl Iterator<Item = (&File, &Source)> {
        self.files.iter().filter_map(|file| Some((file, file.source.as_ref()?)))
    }
}

fn git_files(root: &Path) -> Option<Vec<String>> {
    let dir = root.to_string_lossy();
    let list = command::output(
        "git",
        &["-C", &dir, "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
    )?;
    Some(list.split('\0').filter(|path| !path.is_empty()).map(str::to_owned).collect())
}

fn walk(root: &Path) -> Vec<String> {
    let mut found = Vec::new();
    let mut dirs = vec![root.to_path_buf()];
    while let Some(dir) = dirs.pop() {
        for entry in std::fs::read_dir(&dir).into_iter().flatten().flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            let Ok(kind) = entry.file_type() else { continue };
            if kind.is_dir() {
                if name != ".git" && !name.starts_with("target") {
                    dirs.push(entry.path());
                }
            } else if kind.is_file()
                && let Ok(path) = entry.path().strip_prefix(root)
            {
                found.push(path.to_string_lossy().into_owned());
            }
        }
    }
    found
}
