//! Each invariant of ARCHITECTURE.md names what holds it, and that exists.
//!
//! The form: an item or paragraph with `**Invariant**` (or `**Invariant 3**`), and in it `Held by:` followed by names in
//! backticks. A name is a test's function (its path may stand before it), a check `tidy::NAME`, a lint of the workspace's or of
//! clippy's configuration, or a crate's attribute such as `forbid(unsafe_code)`.

use super::{CHECKS, Finding, Tree};

const FILE: &str = "ARCHITECTURE.md";

pub(crate) fn check(tree: &Tree) -> Vec<Finding> {
    let Some(file) = tree.file(FILE) else {
        return vec![Finding::new(FILE, 1, "the workspace has an ARCHITECTURE.md")];
    };
    let mut findings = Vec::new();
    let items = items(&file.text);
    if items.is_empty() {
        findings.push(Finding::new(FILE, 1, "no sentence is marked **Invariant**"));
    }
    for (line, text) in items {
        let lower = text.to_lowercase();
        let names = lower.find("held by").map(|at| names(&text[at..])).unwrap_or_default();
        if names.is_empty() {
            findings.push(Finding::new(
                FILE,
                line,
                "an invariant says what holds it: Held by: `a_test`, `tidy::a_check`, `a_lint`",
            ));
        }
        for name in names.iter().filter(|name| !exists(tree, name)) {
            findings.push(Finding::new(
                FILE,
                line,
                format!("`{name}` is no test, no check and no lint of this tree"),
            ));
        }
    }
    findings
}

/// Paragraphs and list items that hold an invariant, each with its first line.
fn items(text: &str) -> Vec<(usize, String)> {
    let mut items: Vec<(usize, String)> = Vec::new();
    let mut open = false;
    for (line, number) in text.lines().zip(1..) {
        let trimmed = line.trim_start();
        let numbered = trimmed.trim_start_matches(|c: char| c.is_ascii_digit());
        let starts = trimmed.is_empty()
            || ["- ", "* ", "#", "|"].iter().any(|mark| trimmed.starts_with(mark))
            || (numbered.len() < trimmed.len() && numbered.starts_with(". "));
        if line.contains("**Invariant") {
            items.push((number, line.to_owned()));
            open = true;
        } else if starts {
            open = false;
        } else if let Some((_, item)) = items.last_mut().filter(|_| open) {
            item.push(' ');
            item.push_str(line);
        }
    }
    items
}

/// What stands in backticks.
pub(super) fn names(text: &str) -> Vec<String> {
    text.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

fn exists(tree: &Tree, name: &str) -> bool {
    if let Some(check) = name.strip_prefix("tidy::") {
        return CHECKS.iter().any(|(known, _)| *known == check);
    }
    let last = name.rsplit("::").next().unwrap_or(name).trim_end_matches("()");
    // Conformance suites and `testkit::main!` may name tests by string or path only, but each has its function.
    if tree.sources().any(|(_, source)| has_function(&source.code, last)) {
        return true;
    }
    let attribute = format!("#![{name}]");
    let configured = ["Cargo.toml", "clippy.toml"].iter().filter_map(|path| tree.file(path));
    let lint = name.rsplit("::").next().unwrap_or(name);
    let is_lint = |text: &str| text.lines().any(|line| line.split([' ', '=', '"']).any(|word| word == lint));
    tree.sources().any(|(_, source)| source.code.contains(&attribute))
        || configured.into_iter().any(|file| is_lint(&file.text))
}

/// Whether a function of that name is defined there.
pub(super) fn has_function(code: &str, name: &str) -> bool {
    let function = format!("fn {name}");
    let mut found = code.match_indices(&function).map(|(at, _)| code[at + function.len()..].chars().next());
    found.any(|next| matches!(next, Some('(' | '<')))
}

#[cfg(test)]
mod tests {
    use super::super::testing::found;
    use super::check;

    #[test]
    fn invariants_name_what_holds_them() {
        let text = "# Architecture\n\n\
                    1. **Invariant**: a. Held by: `tidy::decoders`,\n   `stale_after_revoke`, `ucp::export::never_lost`.\n\
                    2. **Invariant**: b.\n\
                    3. **Invariant 3** c. Held by: `no_such_test`.\n\
                    - **Invariant** d. Held by: `undocumented_unsafe_blocks` and `forbid(unsafe_code)`.\n\n\
                    **Invariant**: e.\nHeld by: `tidy::no_such_check`.\n";
        let files = [
            ("ARCHITECTURE.md", text),
            ("Cargo.toml", "undocumented_unsafe_blocks = \"deny\"\n"),
            (
                "a.rs",
                "#![forbid(unsafe_code)]\nfn stale_after_revoke() {}\n// fn no_such_test()\nfn never_lost<T>() {}\n",
            ),
        ];
        assert_eq!(found(check, &files), ["ARCHITECTURE.md:5", "ARCHITECTURE.md:6", "ARCHITECTURE.md:9"]);
        assert_eq!(found(check, &[("README.md", "")]), ["ARCHITECTURE.md:1"]);
    }
}
