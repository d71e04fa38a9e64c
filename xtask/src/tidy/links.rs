//! Relative links of Markdown files lead somewhere, down to the heading.

use std::path::{Component, Path, PathBuf};

use super::{Finding, Tree};

pub(crate) fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in tree.files.iter().filter(|file| file.path.ends_with(".md")) {
        for (line, target) in links(&file.text) {
            let is_elsewhere = target.contains("://") || target.starts_with("mailto:");
            if is_elsewhere {
                continue;
            }
            let (path, heading) = target
                .split_once('#')
                .map_or((target.as_str(), None), |(path, heading)| (path, Some(heading)));
            let path = match path {
                "" => file.path.clone(),
                path => resolve(&file.path, path),
            };
            if !tree.root.join(&path).exists() {
                findings.push(Finding::new(
                    &file.path,
                    line,
                    format!("a link to {target}, which is not there"),
                ));
            } else if let (Some(heading), Some(text)) =
                (heading, tree.file(&path).filter(|file| file.path.ends_with(".md")))
                && !headings(&text.text).any(|known| known == heading)
            {
                findings.push(Finding::new(
                    &file.path,
                    line,
                    format!("a link to {target}, a heading that is not there"),
                ));
            }
        }
    }
    findings
}

/// The path a link leads to, from the root.
fn resolve(from: &str, to: &str) -> String {
    let mut path = Path::new(from).parent().map(Path::to_path_buf).unwrap_or_default();
    for part in Path::new(to).components() {
        match part {
            Component::ParentDir => {
                path.pop();
            }
            Component::Normal(name) => path.push(name),
            Component::RootDir => path = PathBuf::new(),
            Component::CurDir | Component::Prefix(_) => {}
        }
    }
    path.to_string_lossy().into_owned()
}

/// Lines outside blocks of code, with their numbers.
pub(super) fn prose(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut in_code = false;
    (1..).zip(text.lines()).filter(move |(_, line)| {
        let fence = line.trim_start().starts_with("```");
        in_code ^= fence;
        !in_code && !fence
    })
}

/// The targets of `[text](target)` and `[name]: target`.
fn links(text: &str) -> Vec<(usize, String)> {
    let mut links = Vec::new();
    for (number, line) in prose(text) {
        // Code in backticks may look like a link.
        let parts: Vec<&str> = line.split('`').collect();
        let plain: String =
            parts.iter().enumerate().map(|(at, part)| if at % 2 == 0 { *part } else { "x" }).collect();
        for (at, _) in plain.match_indices("](") {
            let target = plain[at + 2..].split(')').next().unwrap_or_default();
            links.push((
                number,
                target.split_whitespace().next().unwrap_or_default().trim_matches(['<', '>']).to_owned(),
            ));
        }
        if let Some((_, target)) = plain.strip_prefix('[').and_then(|rest| rest.split_once("]: ")) {
            links.push((number, target.trim().to_owned()));
        }
    }
    links
}

/// The names that links use for the headings: lower case, spaces as hyphens, no punctuation.
fn headings(text: &str) -> impl Iterator<Item = String> {
    prose(text).filter_map(|(_, line)| {
        let title = line.strip_prefix('#')?.trim_start_matches('#').strip_prefix(' ')?;
        let kept = title
            .trim()
            .to_lowercase()
            .chars()
            .filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'))
            .collect::<String>();
        Some(kept.replace(' ', "-"))
    })
}

#[cfg(test)]
mod tests {
    use super::super::testing::found;
    use super::check;

    #[test]
    fn links_to_nowhere() {
        let text = "# Some `title`, with words\n[a](docs/b.md) [c](missing.md)\n```\n[d](missing.md)\n```\n\
                    `[e](missing.md)` [f](https://example.org/x) [g](#some-title-with-words)\n[h](#no-such)\n\
                    [`i`](docs/b.md#there) [j](docs/b.md#gone)\n[k]: gone.md\n[dir](docs/)\n";
        let files = [("README.md", text), ("docs/b.md", "## There\n[up](../README.md) [bad](README.md)\n")];
        let expected = ["README.md:2", "README.md:7", "README.md:8", "README.md:9", "docs/b.md:2"];
        assert_eq!(found(check, &files), expected);
    }
}
