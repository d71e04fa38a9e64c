//! Each crate takes its lints, and that it is not published, from the workspace, and is a member of it.

use super::{Finding, Tree};

pub(crate) fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    let members = tree.file("Cargo.toml").map(|file| members(&file.text)).unwrap_or_default();
    for file in tree.files.iter().filter(|file| file.name() == "Cargo.toml" && file.path != "Cargo.toml") {
        if !section(&file.text, "[lints]").any(|line| line == "workspace = true") {
            findings.push(Finding::new(
                &file.path,
                1,
                "a crate has the workspace's lints: [lints] workspace = true",
            ));
        }
        let inherits = ["publish.workspace = true", "publish = { workspace = true }"];
        if !section(&file.text, "[package]").any(|line| inherits.contains(&line)) {
            findings.push(Finding::new(&file.path, 1, "a crate has publish.workspace = true"));
        }
        let dir = file.path.trim_end_matches("/Cargo.toml");
        if !members.iter().any(|member| member == dir) {
            findings.push(Finding::new(&file.path, 1, "a crate is a member of the workspace"));
        }
    }
    findings
}

/// The lines of a section, without spaces around.
fn section<'a>(text: &'a str, header: &'a str) -> impl Iterator<Item = &'a str> {
    let lines = text.lines().map(str::trim).skip_while(move |line| *line != header).skip(1);
    lines.take_while(|line| !line.starts_with('['))
}

/// `members = [...]` of the workspace, one name a line or several.
fn members(text: &str) -> Vec<String> {
    let list = text
        .split_once("members = [")
        .and_then(|(_, rest)| rest.split_once(']'))
        .map_or("", |(list, _)| list);
    list.split('"').skip(1).step_by(2).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::super::testing::found;
    use super::check;

    #[test]
    fn crates_of_their_own_mind() {
        let good = "[package]\npublish.workspace = true\n\n[lints]\nworkspace = true\n";
        let files = [
            ("Cargo.toml", "[workspace]\nmembers = [\"a\", \"b\",\n \"c\"]\n"),
            ("a/Cargo.toml", good),
            ("b/Cargo.toml", "[package]\npublish.workspace = true\n[dependencies.x]\nworkspace = true\n"),
            ("c/Cargo.toml", "[package]\npublish = true\n[lints]\nworkspace = true\n"),
            ("d/Cargo.toml", good),
        ];
        assert_eq!(found(check, &files), ["b/Cargo.toml:1", "c/Cargo.toml:1", "d/Cargo.toml:1"]);
    }
}
