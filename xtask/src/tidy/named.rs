//! Tests that documents name by module and function are there.
//!
//! What is looked at: in Markdown, `a::b` in backticks, of small letters, digits and underscores. There has to be a function `b` in a
//! file or folder `a`, or a file or folder `b`: a module.

use super::invariants::{has_function, names};
use super::links::prose;
use super::{Finding, Tree};

pub(crate) fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in tree.files.iter().filter(|file| file.path.ends_with(".md")) {
        for (number, line) in prose(&file.text) {
            for name in names(line).iter().filter(|name| is_path(name) && !exists(tree, name)) {
                let message = format!("`{name}` is neither a function of such a module nor a module");
                findings.push(Finding::new(&file.path, number, message));
            }
        }
    }
    findings
}

fn is_path(name: &str) -> bool {
    let is_small = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    name.contains("::") && name.split("::").all(|part| !part.is_empty() && part.chars().all(is_small))
}

fn exists(tree: &Tree, name: &str) -> bool {
    let mut parts = name.rsplit("::");
    let (Some(last), Some(module)) = (parts.next(), parts.next()) else { return false };
    let is_of = |path: &str, module: &str| {
        path.split('/').any(|part| part.strip_suffix(".rs").unwrap_or(part) == module)
    };
    tree.sources().any(|(file, source)| {
        is_of(&file.path, last) || is_of(&file.path, module) && has_function(&source.code, last)
    })
}

#[cfg(test)]
mod tests {
    use super::super::testing::found;
    use super::check;

    #[test]
    fn tests_of_documents_exist_where_they_are_said_to_be() {
        let text = "`churn::t02` `churn::t03` `remap::t02`\n`deep::t02`, `MemMap::allocate` `ucs::churn` `churn`\n\
                    ```\n`churn::t04`\n```\n`churn::t04`\n";
        let files = [
            ("docs/a.md", text),
            ("tests/churn.rs", "fn t02() {}\n// fn t03()\n"),
            ("src/remap/b.rs", "fn t01() {}\n"),
            ("src/deep/b.rs", "fn t02() {}\n"),
        ];
        assert_eq!(found(check, &files), ["docs/a.md:1", "docs/a.md:1", "docs/a.md:6"]);
    }
}
