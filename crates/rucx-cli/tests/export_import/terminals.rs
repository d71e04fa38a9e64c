//! Two terminals: an export under way in one, imports in the other.

use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::process::Signal;
use tempfile::TempDir;

use crate::support::{Running, assert_no_secret, finish, rucx, text};

/// A directory for one test.
pub(crate) struct Place(pub(crate) TempDir);

impl Place {
    pub(crate) fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    pub(crate) fn name(&self, name: &str) -> String {
        self.path(name).to_str().unwrap().to_owned()
    }

    /// An export whose handle is in the file `handle`.
    pub(crate) fn export(&self, args: &[&str]) -> Export {
        self.export_with(args, &[])
    }

    pub(crate) fn export_with(&self, args: &[&str], env: &[(&str, &str)]) -> Export {
        let handle = self.name("handle");
        let mut command = rucx(&[&["export", "--out", &handle], args].concat());
        Export::of(command.envs(env.iter().copied()), handle)
    }

    /// An export that listens at the socket `socket`.
    pub(crate) fn listen(&self, args: &[&str]) -> Export {
        let socket = self.name("socket");
        Export::of(&mut rucx(&[&["export", "--listen", &socket], args].concat()), socket)
    }
}

/// An export under way.
pub(crate) struct Export {
    pub(crate) process: Running,
    /// Where the handle is.
    pub(crate) at: String,
}

impl Export {
    pub(crate) fn of(command: &mut Command, at: String) -> Self {
        let mut process = Running::of(command);
        process.wait_for("To end it: ");
        Self { process, at }
    }

    /// What `rucx import` prints, which must end with `code`.
    pub(crate) fn import(&self, args: &[&str], code: i32) -> String {
        import(&mut rucx(&[&["import", self.at.as_str()], args].concat()), code)
    }

    /// Ends it by a signal; what it printed. The memory must be revoked, and the handle gone.
    pub(crate) fn end(self) -> String {
        self.process.signal(Signal::TERM);
        self.ended()
    }

    pub(crate) fn ended(self) -> String {
        let (status, story) = self.process.finish();
        assert_eq!(status.code(), Some(0), "{story}");
        assert!(fs::symlink_metadata(&self.at).is_err(), "{} is removed", self.at);
        assert!(story.contains(&format!("removed {}", self.at)) || self.at.len() > 40, "{story}");
        let last = story.lines().last().unwrap_or_default();
        assert_eq!(last, "✓  revoked: no access is under way, and none will begin", "{story}");
        assert_fits(&story);
        story
    }
}

pub(crate) fn import(command: &mut Command, code: i32) -> String {
    let output = finish(command);
    let (story, errors) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(code), "{story}{errors}");
    assert_eq!(errors, "");
    assert_fits(&story);
    story
}

/// As [`import`], of what fails with a reason and a remedy.
pub(crate) fn refused(command: &mut Command, parts: &[&str]) -> String {
    let story = import(command, 1);
    let joined = words(&story);
    for part in parts.iter().chain(&["remedy: "]) {
        assert!(joined.contains(part), "{part:?}: {story}");
    }
    assert!(story.lines().last().is_some_and(|line| line.starts_with("✗  cannot ")), "{story}");
    story
}

/// Without the line breaks that made it fit.
pub(crate) fn words(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// All lines fit a terminal; there are no escape codes in a pipe, and no secrets.
pub(crate) fn assert_fits(story: &str) {
    assert!(!story.contains('\u{1b}'), "{story}");
    for line in story.lines() {
        assert!(line.chars().count() <= 80, "{line:?}");
    }
    // An error may say how handles begin.
    assert_no_secret(&story.replace("\"RXMH\"", ""));
}

pub(crate) fn mode(path: impl AsRef<Path>) -> u32 {
    fs::symlink_metadata(path).unwrap().permissions().mode() & 0o7777
}

/// What `rucx import -` prints when it is given these bytes.
pub(crate) fn piped(bytes: &[u8], args: &[&str], code: i32) -> String {
    let mut command = rucx(&[&["import", "-"], args].concat());
    let mut child = Running::of(command.stdin(Stdio::piped()));
    child.input().write_all(bytes).unwrap();
    let (status, story) = child.finish();
    assert_eq!(status.code(), Some(code), "{story}");
    assert_fits(&story);
    story
}

/// Where Yama restricts what one process may do with another, exporters of this test allow it.
pub(crate) const CMA: &[(&str, &str)] = &[("UCX_CMA_PTRACER_ANY", "y")];
