//! Lines for a shell to read.

use std::ffi::OsStr;
use std::path::{Component, Path, PathBuf};

/// How this program is called from any directory: as it was called, if the shell searched for it.
pub(crate) fn program() -> String {
    let called = std::env::args_os().next().map(PathBuf::from).unwrap_or_default();
    if called.components().count() > 1 { path(&called) } else { "rucx".to_owned() }
}

/// A path as one word, which means the same in any directory.
pub(crate) fn path(path: &Path) -> String {
    let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let parts = absolute.components().filter(|part| *part != Component::CurDir);
    word(parts.collect::<PathBuf>().as_os_str())
}

/// A word that a shell reads as it is: what means something to it stands behind a backslash.
fn word(text: &OsStr) -> String {
    let mut word = String::new();
    for c in text.to_string_lossy().chars() {
        if !(c.is_alphanumeric() || "/._-+,:=@%".contains(c)) {
            word.push('\\');
        }
        word.push(c);
    }
    word
}

/// Lines of at most `width` columns which a shell reads as one: all but the last end with a backslash, and none with two.
pub(crate) fn broken(line: &str, width: usize) -> Vec<String> {
    let mut rest: Vec<char> = line.chars().collect();
    let mut lines = Vec::new();
    while rest.len() > width {
        let mut at = width - 1;
        while at > 1 && rest[at - 1] == '\\' {
            at -= 1;
        }
        let later = rest.split_off(at);
        rest.push('\\');
        lines.push(rest.into_iter().collect());
        rest = later;
    }
    lines.push(rest.into_iter().collect());
    lines
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn a_shell_reads_what_was_meant() {
        let path = "/tmp/a b/it's $HOME/*?#~;&|<>()`\"[]{}!^/é/".to_owned() + &"long\\ ".repeat(40);
        let line = format!("printf %s {}", word(OsStr::new(&path)));
        for width in [20, 33, 80] {
            let lines = broken(&line, width);
            assert!(lines.iter().all(|line| line.chars().count() <= width), "{lines:?}");
            let output = Command::new("sh").arg("-c").arg(lines.join("\n")).output().unwrap();
            assert_eq!(String::from_utf8(output.stdout).unwrap(), path, "{lines:?}");
        }
        assert_eq!(broken("rucx import x", 80), ["rucx import x"]);
    }

    #[test]
    fn paths_are_absolute() {
        assert_eq!(path(Path::new("/tmp/./x")), "/tmp/x");
        assert!(path(Path::new("x")).starts_with('/') && path(Path::new("./x")).ends_with("/x"));
    }
}
