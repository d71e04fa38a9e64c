//! A page: what is known at once, printed at once.
//!
//! ```text
//! a title                                                              and more
//!
//! ── a section ────────────────────────────────────────────────── where is more ──
//! ✓  cells          text, which is wrapped
//!                   below itself
//! ```

use std::fmt::Write as _;
use std::io::{self, Write as _};

use anstyle::Style;

use super::{BAD, BOLD, DIM, GOOD, PLAIN, WIDTH, columns, locale_is_utf8, paint, printable, wrap};

/// How something looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tone {
    /// As the terminal has it.
    Plain,
    /// What is looked for.
    Bold,
    /// What is said beside.
    Dim,
    /// What works.
    Good,
    /// What does not.
    Bad,
}

impl Tone {
    pub(super) fn style(self) -> Style {
        match self {
            Self::Plain => PLAIN,
            Self::Bold => BOLD,
            Self::Dim => DIM,
            Self::Good => GOOD,
            Self::Bad => BAD,
        }
    }
}

/// A cell of a line: its text, its columns, how it looks. What is wider pushes on what follows.
pub(crate) type Cell<'a> = (&'a str, usize, Tone);

/// Lines for standard output.
#[derive(Debug)]
pub(crate) struct Page {
    /// With escape codes, which are taken out where nobody sees them.
    text: String,
    ascii: bool,
}

impl Page {
    /// An empty page, in ASCII where the locale is not UTF-8.
    pub(crate) fn new() -> Self {
        Self { text: String::new(), ascii: !locale_is_utf8() }
    }

    /// The first line, or two of them.
    pub(crate) fn title(&mut self, left: &str, right: &str) {
        let (left, right) = (printable(left, self.ascii), printable(right, self.ascii));
        let left = left.as_ref();
        if right.is_empty() {
            return self.push(&format!("{BOLD}{left}{BOLD:#}"));
        }
        match WIDTH.checked_sub(columns(left) + columns(&right)).filter(|gap| *gap >= 2) {
            Some(gap) => self.push(&format!("{BOLD}{left}{BOLD:#}{:gap$}{DIM}{right}{DIM:#}", "")),
            None => {
                self.push(&format!("{BOLD}{left}{BOLD:#}"));
                self.line(&[("", 2, Tone::Plain)], &right, Tone::Dim);
            }
        }
    }

    /// Begins a section; `more` stands at the end of its line.
    pub(crate) fn section(&mut self, title: &str, more: &str) {
        let dash = printable("─", self.ascii).into_owned();
        let more = if more.is_empty() { String::new() } else { format!(" {more} {}", dash.repeat(2)) };
        let rest = WIDTH.saturating_sub(columns(title) + columns(&more) + 4);
        let (left, right) = (dash.repeat(2), dash.repeat(rest));
        self.blank();
        self.push(&format!("{DIM}{left}{DIM:#} {BOLD}{title}{BOLD:#} {DIM}{right}{more}{DIM:#}"));
    }

    /// An empty line.
    pub(crate) fn blank(&mut self) {
        self.text.push('\n');
    }

    /// Cells, and behind them a text, wrapped below its beginning. No line is wider than the page if the cells are not.
    pub(crate) fn line(&mut self, cells: &[Cell<'_>], text: &str, tone: Tone) {
        let mut lead = String::new();
        let mut used = 0;
        for (cell, width, tone) in cells {
            let cell = printable(cell, self.ascii);
            lead.push_str(&paint(tone.style(), &cell, *width));
            used += columns(&cell).max(*width);
        }
        if text.is_empty() {
            return self.push(&lead);
        }
        let indent: usize = cells.iter().map(|(_, width, _)| width).sum();
        let style = tone.style();
        let text = printable(text, self.ascii).into_owned();
        if used > indent {
            // What is too wide for its column has a line of its own.
            self.push(&lead);
            lead = " ".repeat(indent);
        }
        for (index, line) in wrap(&text, WIDTH.saturating_sub(indent).max(1)).into_iter().enumerate() {
            if index > 0 {
                lead = " ".repeat(indent);
            }
            self.push(&format!("{lead}{style}{line}{style:#}"));
        }
    }

    /// A mark: good, to be noted, not good, bad.
    pub(crate) fn mark(&self, tone: Tone) -> &'static str {
        match (self.ascii, tone) {
            (false, Tone::Good) => "✓",
            (false, Tone::Bad) => "✗",
            (true, Tone::Good) => "ok",
            (true, Tone::Bad) => "NO",
            (_, Tone::Dim) => "-",
            (_, Tone::Plain | Tone::Bold) => "!",
        }
    }

    /// Prints it.
    ///
    /// # Errors
    /// Of writing to standard output.
    pub(crate) fn print(&self) -> io::Result<()> {
        let mut out = anstream::stdout();
        out.write_all(self.text.as_bytes())?;
        out.flush()
    }

    fn push(&mut self, line: &str) {
        let _ = writeln!(self.text, "{}", line.trim_end());
    }
}

#[cfg(test)]
impl Page {
    /// An empty page, whatever the locale.
    pub(crate) fn of(ascii: bool) -> Self {
        Self { text: String::new(), ascii }
    }

    /// Its lines, without escape codes.
    pub(crate) fn lines(&self) -> Vec<String> {
        anstream::adapter::strip_str(&self.text).to_string().lines().map(str::to_owned).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_fit_and_hang_below_their_text() {
        let mut page = Page::of(false);
        page.title("a title", &"long ".repeat(30));
        page.section("a section", "more");
        page.line(&[("✓", 3, Tone::Good), ("cell", 10, Tone::Bold)], &"word ".repeat(40), Tone::Plain);
        page.line(&[("too wide a cell", 5, Tone::Plain)], "text", Tone::Dim);
        page.line(&[("alone", 10, Tone::Plain)], "", Tone::Plain);
        let lines = page.lines();
        assert!(lines.iter().all(|line| columns(line) <= WIDTH && line.trim_end() == line), "{lines:#?}");
        assert!(
            lines.iter().any(|line| columns(line) == WIDTH && line.ends_with("─── more ──")),
            "{lines:#?}"
        );
        assert!(
            lines.iter().any(|line| line
                == "✓  cell      word word word word word word word word word word word word word")
        );
        assert!(
            lines.windows(2).any(|pair| pair[0] == "too wide a cell" && pair[1] == "     text"),
            "{lines:#?}"
        );
    }

    #[test]
    fn in_ascii() {
        let mut page = Page::of(true);
        page.section("x", "");
        page.line(&[(page.mark(Tone::Good), 3, Tone::Good)], "é — 1…", Tone::Plain);
        let lines = page.lines();
        assert!(lines.iter().all(|line| line.is_ascii()), "{lines:?}");
        assert_eq!(lines[2], "ok ? - 1~");
    }
}
