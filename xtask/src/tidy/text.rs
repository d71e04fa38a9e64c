//! Rules about any text file: sizes, unfinished work, a developer's machine.

use super::tree::{File, Tree};
use super::{Check, Finding};

/// A longer file is a design question; see CONTRIBUTING.md.
const TOO_LONG: usize = 1000;
/// A longer one is worth a look.
const LONG: usize = 600;

/// Files that no person writes.
fn is_generated(file: &File) -> bool {
    let generated = |path| path == "Cargo.lock" || crate::codegen::PATHS.contains(&path);
    generated(file.path.as_str()) || file.is_in("tests/golden")
}

fn lines_containing(tree: &Tree, patterns: &[String], message: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in tree.files.iter().filter(|file| !is_generated(file)) {
        for (line, number) in file.text.lines().zip(1..) {
            if let Some(pattern) = patterns.iter().find(|pattern| starts_somewhere(line, pattern)) {
                findings.push(Finding::new(&file.path, number, format!("{pattern}: {message}")));
            }
        }
    }
    findings
}

/// Whether the pattern stands in the line, not as the continuation of a longer word or path.
fn starts_somewhere(line: &str, pattern: &str) -> bool {
    line.match_indices(pattern).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        before.is_none_or(|c| !(c.is_alphanumeric() || matches!(c, '_' | '-' | '.' | '/' | '}' | '*' | '~')))
    })
}

/// No file over 1,000 lines.
pub(crate) fn file_sizes(tree: &Tree) -> Vec<Finding> {
    let sized =
        tree.files.iter().filter(|file| !is_generated(file)).map(|file| (file, file.text.lines().count()));
    let long = sized.filter(|(_, lines)| *lines > LONG);
    long.map(|(file, lines)| {
        let warning = lines <= TOO_LONG;
        let limit = if warning { LONG } else { TOO_LONG };
        Finding {
            warning,
            ..Finding::new(&file.path, limit + 1, format!("{lines} lines: has it two subjects?"))
        }
    })
    .collect()
}

/// Nothing unfinished is committed. (The patterns are put together here so that this file does not hold them.)
pub(crate) fn unfinished(tree: &Tree) -> Vec<Finding> {
    let patterns = [["TO", "DO"], ["FIX", "ME"], ["to", "do!"], ["unimpl", "emented!"], ["#[ig", "nore"]]
        .map(|halves| halves.concat());
    lines_containing(tree, &patterns, "do it, or write down in an issue or in docs/decisions why not")
}

/// No path of a developer's machine.
pub(crate) fn developer_paths(tree: &Tree) -> Vec<Finding> {
    let patterns = [["/wo", "rk/"], ["/ro", "ot/"], ["/ho", "me/"]].map(|halves| halves.concat());
    lines_containing(tree, &patterns, "a path that exists on one machine only")
}

/// Packages come from crates.io, by the name everybody uses for it.
pub(crate) fn registries(tree: &Tree) -> Vec<Finding> {
    const CONFIG: [&str; 6] = ["[source", "[registr", "replace-with", "index =", "proxy", "credential"];
    const HOSTS: [&str; 6] =
        ["artifactory", "jfrog", "nexus.", "verdaccio", "sparse+http", "index.crates.io-"];
    let mut findings = Vec::new();
    for file in tree.files.iter().filter(|file| !file.path.starts_with("xtask/src/tidy/")) {
        let is_config = file.is_in(".cargo");
        for (line, number) in file.text.lines().zip(1..) {
            let words: &[&str] = if is_config { &CONFIG } else { &[] };
            if let Some(word) = words.iter().chain(&HOSTS).find(|word| line.contains(**word)) {
                findings.push(Finding::new(
                    &file.path,
                    number,
                    format!("{word}: packages come from crates.io, as everybody's do"),
                ));
            }
        }
    }
    findings
}

const _: [Check; 4] = [file_sizes, unfinished, developer_paths, registries];

#[cfg(test)]
mod tests {
    use super::super::testing::found;
    use super::*;

    #[test]
    fn long_files() {
        let files = [("a.rs", "x\n".repeat(1001)), ("b.rs", "x\n".repeat(601)), ("c.rs", "x\n".repeat(600))];
        let files: Vec<(&str, &str)> = files.iter().map(|(path, text)| (*path, text.as_str())).collect();
        assert_eq!(found(file_sizes, &files), ["a.rs:1001", "b.rs:601"]);
        assert_eq!(
            found(|tree| file_sizes(tree).into_iter().filter(|f| !f.warning).collect(), &files),
            ["a.rs:1001"]
        );
    }

    #[test]
    fn unfinished_work() {
        let text = format!(
            "fine\n// {}: later\n{}()\n#[ig{}]\n",
            "TO".to_owned() + "DO",
            "to".to_owned() + "do!",
            "nore"
        );
        assert_eq!(found(unfinished, &[("a.rs", &text)]), ["a.rs:2", "a.rs:3", "a.rs:4"]);
    }

    #[test]
    fn paths_of_one_machine() {
        let text = format!(
            "see docs{0}x\n\"{0}x\"\n`{1}u/x`\nhttps://host{0}\n",
            "/wo".to_owned() + "rk/",
            "/ho".to_owned() + "me/"
        );
        assert_eq!(found(developer_paths, &[("README.md", &text)]), ["README.md:2", "README.md:3"]);
    }

    #[test]
    fn other_registries() {
        let config = "[alias]\nx = \"run\"\n[source.crates-io]\nreplace-with = \"mirror\"\n";
        let files = [(".cargo/config.toml", config), ("ci/x.sh", "curl https://artifactory.example/x\n")];
        assert_eq!(found(registries, &files), [".cargo/config.toml:3", ".cargo/config.toml:4", "ci/x.sh:1"]);
    }
}
