//! The README's first picture: what `rucx demo` prints in a terminal, as an SVG.

use std::fmt::Write as _;
use std::path::Path;
use std::process::{Command, ExitCode};

/// Sections of the demo that are shown; the others are left out, marked by an ellipsis.
const SECTIONS: [char; 4] = ['1', '2', '3', '6'];
/// Pixels of a character cell, and of the margin.
const CELL: (f64, f64) = (8.4, 18.0);
const MARGIN: f64 = 16.0;
const COLUMNS: u32 = 80;

/// Runs the demo and writes the picture.
pub(crate) fn main(root: &Path) -> ExitCode {
    let demo = Command::new("cargo")
        .args(["run", "-q", "--release", "-p", "rucx-cli", "--", "demo"])
        .env("CLICOLOR_FORCE", "1")
        .current_dir(root)
        .output();
    let output = match demo {
        Ok(output) if output.status.success() => output,
        other => {
            eprintln!("rucx demo: {other:?}");
            return ExitCode::FAILURE;
        }
    };
    let text = String::from_utf8_lossy(&output.stdout);
    let path = root.join("docs/images/demo.svg");
    let written = std::fs::create_dir_all(root.join("docs/images"))
        .and_then(|()| std::fs::write(&path, svg(&shown(&text))));
    match written {
        Ok(()) => {
            println!("wrote {}", path.display());
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{}: {error}", path.display());
            ExitCode::FAILURE
        }
    }
}

/// The title, the chosen sections and the last line.
fn shown(text: &str) -> Vec<&str> {
    let lines: Vec<&str> = text.trim_end().lines().collect();
    let mut shown = vec!["\u{1b}[1m$ ./run demo\u{1b}[0m"];
    let mut keep = true;
    for line in &lines[..lines.len().saturating_sub(1)] {
        if let Some(number) = section(line) {
            let before = keep;
            keep = SECTIONS.contains(&number);
            if before && !keep {
                shown.extend(["\u{1b}[2m               ⋮\u{1b}[0m", ""]);
            }
        }
        if keep {
            shown.push(line);
        }
    }
    if !keep {
        shown.push("");
    }
    shown.extend(lines.last());
    shown
}

/// The number of the section whose title this line is.
fn section(line: &str) -> Option<char> {
    let plain: String = spans(line).into_iter().map(|(_, text)| text).collect();
    plain.strip_prefix("── ")?.chars().next().filter(char::is_ascii_digit)
}

/// How characters look: the parameters of "select graphic rendition" that the demo uses (ECMA-48, 8.3.117).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Style {
    bold: bool,
    dim: bool,
    colour: Option<u8>,
}

impl Style {
    fn apply(&mut self, parameter: u8) {
        match parameter {
            0 => *self = Self::default(),
            1 => self.bold = true,
            2 => self.dim = true,
            30..=37 => self.colour = Some(parameter - 30),
            _ => {}
        }
    }

    fn fill(self) -> &'static str {
        match self.colour {
            Some(1) => "#ff7b72",
            Some(2) => "#3fb950",
            Some(3) => "#d29922",
            Some(5) => "#d2a8ff",
            Some(6) => "#56d4dd",
            _ if self.dim => "#7d8590",
            _ => "#e6edf3",
        }
    }
}

/// Splits a line into runs of one look.
fn spans(line: &str) -> Vec<(Style, String)> {
    let mut style = Style::default();
    let mut spans: Vec<(Style, String)> = Vec::new();
    let mut rest = line;
    while let Some(start) = rest.find("\u{1b}[") {
        let (before, escape) = rest.split_at(start);
        spans.push((style, before.to_owned()));
        let Some(end) = escape.find('m') else { break };
        for parameter in escape[2..end].split(';') {
            style.apply(parameter.parse().unwrap_or(0));
        }
        rest = &escape[end + 1..];
    }
    spans.push((style, rest.to_owned()));
    spans.retain(|(_, text)| !text.is_empty());
    spans
}

fn svg(lines: &[&str]) -> String {
    let width = f64::from(COLUMNS) * CELL.0 + 2.0 * MARGIN;
    let height = lines.len() as f64 * CELL.1 + 2.0 * MARGIN;
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" role=\"img\">\n\
         <title>rucx demo in a terminal</title>\n\
         <rect width=\"{width}\" height=\"{height}\" rx=\"8\" fill=\"#0d1117\"/>\n\
         <g font-family=\"ui-monospace, 'DejaVu Sans Mono', Menlo, Consolas, monospace\" font-size=\"14\" \
         xml:space=\"preserve\">\n"
    );
    for (row, line) in lines.iter().enumerate() {
        let y = MARGIN + (row as f64 + 0.75) * CELL.1;
        let mut column = 0;
        for (style, text) in spans(line) {
            let count = text.chars().count();
            if !text.trim().is_empty() {
                let x = MARGIN + f64::from(column) * CELL.0;
                let length = count as f64 * CELL.0;
                let weight = if style.bold { " font-weight=\"bold\"" } else { "" };
                let text = text.replace('&', "&amp;").replace('<', "&lt;").replace(' ', "\u{a0}");
                // textLength keeps the columns whatever font is there.
                let _ = writeln!(
                    out,
                    "<text x=\"{x:.1}\" y=\"{y:.1}\" fill=\"{}\"{weight} textLength=\"{length:.1}\" \
                     lengthAdjust=\"spacingAndGlyphs\">{text}</text>",
                    style.fill()
                );
            }
            column += u32::try_from(count).unwrap_or(0);
        }
    }
    out.push_str("</g>\n</svg>\n");
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sections_are_chosen_and_the_last_line_stays() {
        let text =
            "title\n\n── 1  One ──\na\n── 4  Four ──\nb\n── 6  Six ──\nc\n── 7  Seven ──\nd\n\nall held\n";
        let shown = shown(text);
        assert!(
            shown.contains(&"a") && shown.contains(&"c") && !shown.contains(&"b") && !shown.contains(&"d")
        );
        assert_eq!(shown.last(), Some(&"all held"));
    }

    #[test]
    fn looks_become_colours() {
        let spans = spans("\u{1b}[1m\u{1b}[32m✓\u{1b}[0m held <&>");
        assert_eq!(spans[0], (Style { bold: true, dim: false, colour: Some(2) }, "✓".to_owned()));
        assert_eq!(spans[1], (Style::default(), " held <&>".to_owned()));
        let picture = svg(&["\u{1b}[32m✓\u{1b}[0m a <&>"]);
        assert!(picture.contains("#3fb950") && picture.contains("a\u{a0}&lt;&amp;>"), "{picture}");
    }
}
