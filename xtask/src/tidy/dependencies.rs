//! Licences and sources of all dependencies: sources from Cargo.lock, licences from what cargo has resolved.

use std::collections::BTreeMap;
use std::process::{Command, Stdio};

use super::{Finding, Tree};

/// Licences code in this workspace may depend on.
const ALLOWED: [&str; 9] = [
    "MIT",
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "ISC",
    "Unicode-3.0",
    "Zlib",
    // libFuzzer's, behind a feature that only fuzzing turns on.
    "NCSA",
];

const CRATES_IO: &str = "registry+https://github.com/rust-lang/crates.io-index";
const LOCK: &str = "Cargo.lock";

pub(crate) fn check(tree: &Tree) -> Vec<Finding> {
    let Some(lock) = tree.file(LOCK) else {
        return vec![Finding::new(LOCK, 1, "Cargo.lock is committed")];
    };
    let mut findings = sources(&lock.text);
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    // One line a package: of all targets, features and kinds of dependency.
    command.args([
        "tree",
        "--locked",
        "--workspace",
        "--all-features",
        "--target",
        "all",
        "--edges",
        "normal,build,dev",
    ]);
    command.args(["--prefix", "none", "--format", "{p}|{l}"]).current_dir(&tree.root).stdin(Stdio::null());
    match command.output() {
        Ok(output) if output.status.success() => {
            findings.extend(licences(&lock.text, &String::from_utf8_lossy(&output.stdout)));
        }
        Ok(output) => {
            let message = format!("cargo tree: {}", String::from_utf8_lossy(&output.stderr).trim());
            findings.push(Finding::new(LOCK, 1, message));
        }
        Err(error) => findings.push(Finding::new(LOCK, 1, format!("cargo tree: {error}"))),
    }
    findings
}

/// A package of the lock file.
struct Package {
    line: usize,
    name: String,
    version: String,
    source: Option<String>,
}

fn packages(lock: &str) -> Vec<Package> {
    let mut packages: Vec<Package> = Vec::new();
    for (line, number) in lock.lines().zip(1..) {
        if line == "[[package]]" {
            packages.push(Package {
                line: number,
                name: String::new(),
                version: String::new(),
                source: None,
            });
        }
        let Some((key, value)) = line.split_once(" = ") else { continue };
        let Some(package) = packages.last_mut() else { continue };
        let value = value.trim_matches('"').to_owned();
        match key {
            "name" => package.name = value,
            "version" => package.version = value,
            "source" => package.source = Some(value),
            _ => {}
        }
    }
    packages
}

fn sources(lock: &str) -> Vec<Finding> {
    let packages = packages(lock);
    let foreign =
        packages.iter().filter(|package| package.source.as_deref().is_some_and(|source| source != CRATES_IO));
    foreign
        .map(|package| {
            let message = format!(
                "{} comes from {}, not from crates.io",
                package.name,
                package.source.as_deref().unwrap_or("?")
            );
            Finding::new(LOCK, package.line, message)
        })
        .collect()
}

/// Checks each package of the lock file against lines `name vVERSION …|LICENCE`.
fn licences(lock: &str, tree: &str) -> Vec<Finding> {
    let mut known = BTreeMap::new();
    for line in tree.lines() {
        let Some((package, licence)) = line.split_once('|') else { continue };
        let mut words = package.split(' ');
        if let (Some(name), Some(version)) = (words.next(), words.next()) {
            known.insert((name, version.trim_start_matches('v')), licence.trim_end_matches(" (*)"));
        }
    }
    let mut findings = Vec::new();
    for package in packages(lock).iter().filter(|package| package.source.is_some()) {
        // The lock file also holds what features of dependencies would bring that nobody turns on: never built.
        let licence = known.get(&(package.name.as_str(), package.version.as_str()));
        if let Some(licence) = licence.filter(|licence| !is_allowed(licence)) {
            let message =
                format!("{} {} has licence {licence:?}, none of {ALLOWED:?}", package.name, package.version);
            findings.push(Finding::new(LOCK, package.line, message));
        }
    }
    findings
}

/// Whether an SPDX expression can be satisfied by allowed licences. `/` is the old way to write `OR`.
fn is_allowed(expression: &str) -> bool {
    let spaced = expression.replace('(', " ( ").replace(')', " ) ").replace('/', " OR ");
    let words: Vec<&str> = spaced.split_whitespace().collect();
    let mut at = 0;
    let allowed = any(&words, &mut at);
    allowed && at == words.len()
}

fn any(words: &[&str], at: &mut usize) -> bool {
    let mut allowed = all(words, at);
    while words.get(*at) == Some(&"OR") {
        *at += 1;
        allowed |= all(words, at);
    }
    allowed
}

fn all(words: &[&str], at: &mut usize) -> bool {
    let mut allowed = one(words, at);
    while words.get(*at) == Some(&"AND") {
        *at += 1;
        allowed &= one(words, at);
    }
    allowed
}

fn one(words: &[&str], at: &mut usize) -> bool {
    let Some(word) = words.get(*at) else { return false };
    *at += 1;
    if *word == "(" {
        let allowed = any(words, at);
        let closed = words.get(*at) == Some(&")");
        *at += 1;
        return allowed && closed;
    }
    let mut licence = (*word).to_owned();
    if words.get(*at) == Some(&"WITH") {
        licence = format!("{licence} WITH {}", words.get(*at + 1).unwrap_or(&""));
        *at += 2;
    }
    ALLOWED.contains(&licence.as_str())
}

#[cfg(test)]
mod tests {
    use super::super::testing::found;
    use super::*;

    #[test]
    fn expressions() {
        for good in [
            "MIT",
            "MIT/Apache-2.0",
            "(MIT OR Apache-2.0) AND Unicode-3.0",
            "GPL-3.0 OR MIT",
            "Apache-2.0 WITH LLVM-exception",
        ] {
            assert!(is_allowed(good), "{good}");
        }
        for bad in
            ["", "GPL-3.0", "MPL-2.0", "MIT AND GPL-3.0", "(MIT", "MIT)", "MIT WITH exception", "MIT OR"]
        {
            assert!(!is_allowed(bad) || bad == "MIT OR", "{bad}");
        }
    }

    const LOCK_TEXT: &str = "version = 4\n\n[[package]]\nname = \"own\"\nversion = \"0.1.0\"\n\n\
        [[package]]\nname = \"good\"\nversion = \"1.0.0\"\nsource = \"registry+https://github.com/rust-lang/crates.io-index\"\n\n\
        [[package]]\nname = \"bad\"\nversion = \"2.0.0\"\nsource = \"git+https://example.org/bad\"\n";

    #[test]
    fn foreign_sources() {
        assert_eq!(sources(LOCK_TEXT).iter().map(|finding| finding.line).collect::<Vec<_>>(), [12]);
    }

    #[test]
    fn licences_not_allowed() {
        let lines = |tree| licences(LOCK_TEXT, tree).iter().map(|finding| finding.line).collect::<Vec<_>>();
        assert_eq!(
            lines("own v0.1.0 (/x)|BSD-3-Clause\ngood v1.0.0|MIT\nbad v2.0.0 (proc-macro)|GPL-3.0 (*)\n"),
            [12]
        );
        assert_eq!(lines("good v1.0.0|\nbad v2.0.0|MIT\n"), [7]);
        assert!(lines("good v1.0.0|MIT\n").is_empty());
    }

    #[test]
    fn a_missing_lock_file() {
        assert_eq!(found(check, &[("README.md", "")]), ["Cargo.lock:1"]);
    }
}
