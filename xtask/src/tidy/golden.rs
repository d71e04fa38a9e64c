//! Golden vectors are never edited: a committed list holds their digests.

use std::collections::BTreeSet;
use std::process::{Command, Stdio};

use super::{Finding, Tree};

const DIR: &str = "tests/golden";
const LIST: &str = "tests/golden/SHA256SUMS";

/// The list names every file, each has its digest, and the list only grows (a line is added with its file).
pub(crate) fn check(tree: &Tree) -> Vec<Finding> {
    let mut present = BTreeSet::new();
    let mut dirs = vec![tree.root.join(DIR)];
    while let Some(dir) = dirs.pop() {
        for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                dirs.push(entry.path());
            } else if let Ok(path) = entry.path().strip_prefix(tree.root.join(DIR)) {
                present.insert(path.to_string_lossy().into_owned());
            }
        }
    }
    present.remove("SHA256SUMS");
    let Some(list) = tree.file(LIST) else {
        let missing = present
            .first()
            .map(|first| Finding::new(LIST, 1, format!("{first} and others need their digests here")));
        return missing.into_iter().collect();
    };
    let mut findings = Vec::new();
    for (line, number) in list.text.lines().zip(1..) {
        let name = line.split_once("  ").map_or("", |(_, name)| name);
        if !present.remove(name) {
            findings.push(Finding::new(
                LIST,
                number,
                format!("{name:?} is gone: vectors stay, as the bytes in the world do"),
            ));
        }
    }
    findings.extend(present.iter().map(|name| {
        Finding::new(LIST, 1, format!("{name} has no digest here: sha256sum {name} >> SHA256SUMS"))
    }));
    let mut command = Command::new("sha256sum");
    command
        .args(["--check", "--strict", "--quiet", "SHA256SUMS"])
        .current_dir(tree.root.join(DIR))
        .stdin(Stdio::null());
    match command.output() {
        Ok(output) => {
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            let edited = text.lines().filter_map(|line| line.strip_suffix(": FAILED"));
            let message = "edited: golden vectors never are; a new version of a format gets new files";
            findings.extend(edited.map(|name| Finding::new(&format!("{DIR}/{name}"), 1, message)));
            if !output.status.success() && findings.is_empty() {
                findings.push(Finding::new(
                    LIST,
                    1,
                    String::from_utf8_lossy(&output.stderr).trim().to_owned(),
                ));
            }
        }
        Err(error) => findings.push(Finding::new(LIST, 1, format!("sha256sum (of coreutils): {error}"))),
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::super::testing::found;
    use super::check;

    const OF_A: &str = "ca978112ca1bbdcafac231b39a23dc4da786eff8147c4e72b9807785afee48bb";

    #[test]
    fn edited_missing_and_unlisted_vectors() {
        let list = format!("{OF_A}  v1/a.bin\n{OF_A}  v1/gone.bin\n{OF_A}  v1/edited.bin\n");
        let files = [
            ("tests/golden/SHA256SUMS", list.as_str()),
            ("tests/golden/v1/a.bin", "a"),
            ("tests/golden/v1/edited.bin", "b"),
            ("tests/golden/v1/new.bin", "a"),
        ];
        let expected =
            ["tests/golden/SHA256SUMS:2", "tests/golden/SHA256SUMS:1", "tests/golden/v1/edited.bin:1"];
        assert_eq!(found(check, &files), expected);
        assert_eq!(found(check, &[("tests/golden/v1/a.bin", "a")]), ["tests/golden/SHA256SUMS:1"]);
        let fine = format!("{OF_A}  a.bin\n");
        assert!(found(check, &[("tests/golden/SHA256SUMS", &fine), ("tests/golden/a.bin", "a")]).is_empty());
        assert!(found(check, &[("README.md", "")]).is_empty());
    }
}
