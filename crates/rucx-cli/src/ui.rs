//! How things look: columns, marks, colours.
//!
//! ```text
//! seconds  who   what is said, wrapped
//!   0.012  HOST  mapped 64 MiB
//!                ✓  shm    can be exported
//!   0.013  ✓     a check that held
//! ```

mod page;

use std::borrow::Cow;
use std::fmt::Write as _;
use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anstyle::{AnsiColor, Style};

use crate::shell;

pub(crate) use page::{Page, Tone};

/// Columns of a line.
pub(crate) const WIDTH: usize = 80;
/// Where text begins.
const TEXT: usize = 15;
/// Where what a figure is of begins.
const FIGURE: usize = 30;
/// Where what a transport said begins.
const SAID: usize = TEXT + 9;

const PLAIN: Style = Style::new();
const BOLD: Style = Style::new().bold();
const DIM: Style = Style::new().dimmed();
const GOOD: Style = AnsiColor::Green.on_default().bold();
const BAD: Style = AnsiColor::Red.on_default().bold();
const HOST: Style = AnsiColor::Cyan.on_default().bold();
const DPU: Style = AnsiColor::Magenta.on_default().bold();
const PEER: Style = AnsiColor::Yellow.on_default().bold();

/// Who speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Who {
    /// The exporting process.
    Host,
    /// The importing process.
    Dpu,
    /// A third one, whose memory the importing process reaches by an endpoint.
    Peer,
}

impl Who {
    /// Its name.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Host => "HOST",
            Self::Dpu => "DPU",
            Self::Peer => "PEER",
        }
    }

    fn style(self) -> Style {
        match self {
            Self::Host => HOST,
            Self::Dpu => DPU,
            Self::Peer => PEER,
        }
    }
}

/// Where a command tells what it does.
pub(crate) struct Ui {
    out: Box<dyn Write>,
    start: Instant,
    ascii: bool,
    quiet: bool,
    /// A line is begun that the next one takes the place of.
    in_progress: bool,
    last_progress: Instant,
}

/// How often progress is told where it cannot be told in place.
const PROGRESS: Duration = Duration::from_secs(3);

impl Ui {
    /// Writes to standard output; when `quiet`, only what [`Ui::close`] is given.
    pub(crate) fn new(quiet: bool) -> Self {
        let now = Instant::now();
        Self {
            out: Box::new(anstream::stdout()),
            start: now,
            ascii: !locale_is_utf8(),
            quiet,
            in_progress: false,
            last_progress: now,
        }
    }

    /// Writes to standard error: where standard output is for the user's bytes.
    pub(crate) fn beside_output() -> Self {
        Self { out: Box::new(anstream::stderr()), ..Self::new(false) }
    }

    /// The first line: what this is, and under which settings.
    pub(crate) fn title(&mut self, left: &str, right: &str) -> io::Result<()> {
        let (left, right) = (self.text(left).into_owned(), self.text(right).into_owned());
        let Some(gap) = WIDTH.checked_sub(columns(&left) + columns(&right)).filter(|gap| *gap >= 2) else {
            self.line(&format!("{BOLD}{left}{BOLD:#}"))?;
            return self.wrapped(&" ".repeat(TEXT), TEXT, DIM, &right);
        };
        self.line(&format!("{BOLD}{left}{BOLD:#}{:gap$}{DIM}{right}{DIM:#}", ""))
    }

    /// Begins a section.
    pub(crate) fn section(&mut self, number: usize, title: &str) -> io::Result<()> {
        let (dash, title) = (self.text("─").into_owned(), self.text(title).into_owned());
        let rest = WIDTH.saturating_sub(columns(&title) + 7);
        let (left, right) = (dash.repeat(2), dash.repeat(rest));
        self.line("")?;
        self.line(&format!("{DIM}{left}{DIM:#} {number}  {BOLD}{title}{BOLD:#} {DIM}{right}{DIM:#}"))
    }

    /// Somebody says something.
    pub(crate) fn say(&mut self, who: Who, text: &str) -> io::Result<()> {
        let name = paint(who.style(), who.name(), 4);
        self.stamped(&name, PLAIN, text)
    }

    /// The demo explains something, below what was said before.
    pub(crate) fn note(&mut self, text: &str) -> io::Result<()> {
        let lead = " ".repeat(TEXT);
        self.wrapped(&lead, TEXT, DIM, text)
    }

    /// A line of what a transport said.
    pub(crate) fn said(&mut self, transport: &str, yes: bool, what: &str) -> io::Result<()> {
        // A transport that is not used is no failure.
        let mark = if yes { paint(GOOD, self.mark(true), 3) } else { paint(DIM, &self.text("–"), 3) };
        let lead = format!("{:TEXT$}{mark}{:<6}", "", self.text(transport));
        self.wrapped(&lead, SAID, if yes { PLAIN } else { DIM }, what)
    }

    /// A check, and whether it held.
    pub(crate) fn check(&mut self, held: bool, text: &str) -> io::Result<()> {
        let style = if held { GOOD } else { BAD };
        let mark = paint(style, self.mark(held), 4);
        self.stamped(&mark, if held { PLAIN } else { BAD }, text)
    }

    /// Lines as they are, from the text's column on.
    pub(crate) fn lines(&mut self, lines: &[String]) -> io::Result<()> {
        for line in lines {
            let line = self.text(line).into_owned();
            self.line(format!("{:TEXT$}{line}", "").trim_end())?;
        }
        Ok(())
    }

    /// Lines as they are, over the whole width.
    pub(crate) fn whole_lines(&mut self, lines: &[String]) -> io::Result<()> {
        for line in lines {
            let line = self.text(line).into_owned();
            self.line(&line)?;
        }
        Ok(())
    }

    /// A line for a shell, to be copied: as near to the text's column as there is room for it, and broken where it must be.
    pub(crate) fn command(&mut self, line: &str) -> io::Result<()> {
        let indent = (WIDTH - columns(line).min(WIDTH)).min(TEXT);
        for line in shell::broken(line, WIDTH) {
            let line = self.text(&line).into_owned();
            self.line(&format!("{:indent$}{BOLD}{line}{BOLD:#}", ""))?;
        }
        Ok(())
    }

    /// A table: the first two columns to the left, numbers to the right. Its head as it is.
    pub(crate) fn table(&mut self, head: &[&str], rows: &[Vec<String>]) -> io::Result<()> {
        for line in head {
            let line = self.text(line).into_owned();
            self.line(&format!("{:TEXT$}{DIM}{line}{DIM:#}", ""))?;
        }
        let rule = self.text("─").repeat(WIDTH - TEXT);
        self.line(&format!("{:TEXT$}{DIM}{rule}{DIM:#}", ""))?;
        for row in rows {
            let row = self.cells(&mut row.iter().map(String::as_str));
            self.line(&format!("{:TEXT$}{row}", ""))?;
        }
        Ok(())
    }

    fn cells(&self, cells: &mut dyn Iterator<Item = &str>) -> String {
        let mut line = String::new();
        for (index, cell) in cells.enumerate() {
            let cell = self.text(cell);
            // Writing to a String does not fail.
            let _ = match index {
                0 => write!(line, "{cell:<5}"),
                1 => write!(line, "{cell:<6}"),
                _ => write!(line, "{cell:>9}"),
            };
        }
        line
    }

    /// A figure: its name, the number, what it is of.
    pub(crate) fn figure(&mut self, name: &str, number: &str, text: &str, tone: Tone) -> io::Result<()> {
        let style = tone.style();
        let lead = if number.is_empty() { name.to_owned() } else { format!("{name:<15}{number:>13}") };
        let lead = self.text(&lead).into_owned();
        if text.is_empty() {
            return self.line(&format!("{style}{lead}{style:#}"));
        }
        let indent = if number.is_empty() { TEXT } else { FIGURE };
        let text_style = if tone == Tone::Plain { DIM } else { style };
        self.wrapped(&paint(style, &lead, indent), indent, text_style, text)
    }

    /// How it goes: one line of a terminal, over and over; else a line now and then.
    pub(crate) fn progress(&mut self, text: &str) -> io::Result<()> {
        if self.quiet {
            return Ok(());
        }
        if io::stdout().is_terminal() {
            let text: String = self.text(text).chars().take(WIDTH - 1).collect();
            write!(self.out, "\r{text:<0$}", WIDTH - 1)?;
            self.in_progress = true;
            return self.out.flush();
        }
        if self.last_progress.elapsed() < PROGRESS {
            return Ok(());
        }
        self.last_progress = Instant::now();
        let text = self.text(text).into_owned();
        self.line(&format!("{DIM}{text}{DIM:#}"))?;
        self.out.flush()
    }

    /// Makes room for what comes after the progress.
    pub(crate) fn end_progress(&mut self) -> io::Result<()> {
        if !std::mem::take(&mut self.in_progress) {
            return Ok(());
        }
        write!(self.out, "\r{:1$}\r", "", WIDTH - 1)
    }

    /// How long ago the first line was.
    pub(crate) fn elapsed(&self) -> Duration {
        self.start.elapsed()
    }

    /// The last line, which is printed even when quiet.
    pub(crate) fn close(&mut self, held: bool, text: &str) -> io::Result<()> {
        let style = if held { GOOD } else { BAD };
        let lead = paint(style, self.mark(held), 3);
        if self.quiet {
            let text = self.text(text).into_owned();
            writeln!(self.out, "{lead}{style}{text}{style:#}")?;
        } else {
            self.line("")?;
            self.wrapped(&lead, 3, style, text)?;
        }
        self.out.flush()
    }

    fn stamped(&mut self, name: &str, style: Style, text: &str) -> io::Result<()> {
        let seconds = self.start.elapsed().as_secs_f64();
        let lead = format!("{DIM}{seconds:>7.3}{DIM:#}  {name}  ");
        self.wrapped(&lead, TEXT, style, text)
    }

    fn wrapped(&mut self, lead: &str, indent: usize, style: Style, text: &str) -> io::Result<()> {
        let text = self.text(text).into_owned();
        for (index, line) in wrap(&text, WIDTH - indent).into_iter().enumerate() {
            if index == 0 {
                self.line(&format!("{lead}{style}{line}{style:#}"))?;
            } else {
                self.line(&format!("{:indent$}{style}{line}{style:#}", ""))?;
            }
        }
        Ok(())
    }

    fn line(&mut self, line: &str) -> io::Result<()> {
        if self.quiet { Ok(()) } else { writeln!(self.out, "{line}") }
    }

    fn mark(&self, yes: bool) -> &'static str {
        match (self.ascii, yes) {
            (false, true) => "✓",
            (false, false) => "✗",
            (true, true) => "ok",
            (true, false) => "NO",
        }
    }

    fn text<'a>(&self, text: &'a str) -> Cow<'a, str> {
        printable(text, self.ascii)
    }
}

/// Tells that the program was called wrongly.
pub(crate) fn usage_error(error: &str) -> ExitCode {
    complain(error);
    ExitCode::from(2)
}

/// A line on standard error.
pub(crate) fn complain(line: &str) {
    // When standard error is closed there is nobody to tell.
    let _ = writeln!(anstream::stderr(), "rucx: {}", printable(line, !locale_is_utf8()));
}

/// A line which a role wrote to its standard error.
pub(crate) fn forward(who: Who, line: &str) {
    let name = paint(who.style(), who.name(), 4);
    let _ = writeln!(anstream::stderr(), "{name} {}", printable(line, !locale_is_utf8()));
}

fn paint(style: Style, text: &str, width: usize) -> String {
    let fill = width.saturating_sub(columns(text));
    format!("{style}{text}{style:#}{:fill$}", "")
}

/// Whether standard output may be given UTF-8: the first of these variables that is set decides, as in `setlocale(3)`.
fn locale_is_utf8() -> bool {
    let set = ["LC_ALL", "LC_CTYPE", "LANG"].into_iter().filter_map(std::env::var_os);
    set.into_iter().find(|value| !value.is_empty()).is_some_and(|value| {
        let value = value.to_string_lossy().to_ascii_lowercase();
        value.contains("utf-8") || value.contains("utf8")
    })
}

/// Without control characters, and where asked in ASCII: column by column.
fn printable(text: &str, ascii: bool) -> Cow<'_, str> {
    let fits = |c: char| !c.is_control() && (!ascii || c.is_ascii());
    if text.chars().all(fits) {
        return Cow::Borrowed(text);
    }
    let replace = |c: char| match c {
        _ if fits(c) => c,
        '─' | '–' | '—' => '-',
        '│' => '|',
        '┌' | '┐' | '└' | '┘' | '┬' | '┴' => '+',
        '▶' | '→' => '>',
        '◀' | '←' => '<',
        'µ' => 'u',
        '×' => 'x',
        '…' => '~',
        '\t' => ' ',
        _ => '?',
    };
    Cow::Owned(text.chars().map(replace).collect())
}

fn columns(text: &str) -> usize {
    text.chars().count()
}

/// What fits stays as it is. The rest is broken at spaces; a word that is too long is broken where it must be. At least one line.
fn wrap(text: &str, width: usize) -> Vec<String> {
    if columns(text) <= width {
        return vec![text.to_owned()];
    }
    let mut lines = Vec::new();
    let mut line = String::new();
    let mut used = 0;
    for word in text.split(' ').filter(|word| !word.is_empty()) {
        let mut word = word;
        if used > 0 && used + 1 + columns(word) <= width {
            line.push(' ');
            used += 1;
        } else if used > 0 {
            lines.push(std::mem::take(&mut line));
            used = 0;
        }
        while used + columns(word) > width {
            let at = word.char_indices().nth(width - used).map_or(word.len(), |(at, _)| at);
            line.push_str(&word[..at]);
            lines.push(std::mem::take(&mut line));
            word = &word[at..];
            used = 0;
        }
        line.push_str(word);
        used += columns(word);
    }
    lines.push(line);
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrapped_lines_fit_and_lose_nothing() {
        let text = "the exporter offers self (0a1b2c3d…), here: shm: no: not offered by the exporter aaaaaaaaaaaaaaaaaaaaaaaaa";
        for width in [10, 20, 65] {
            let lines = wrap(text, width);
            assert!(lines.iter().all(|line| columns(line) <= width && !line.is_empty()), "{lines:?}");
            let joined: String = lines.concat().split(' ').collect();
            assert_eq!(joined, text.split(' ').collect::<String>());
        }
        assert_eq!(wrap("", 10), [""]);
        assert_eq!(wrap("a  b", 4), ["a  b"]);
        assert_eq!(wrap("a  b c", 5), ["a b c"]);
    }

    #[test]
    fn texts_in_ascii_keep_their_columns() {
        let text = "┌─┐ ──▶ 1.5 µs … 4×é";
        let ascii = printable(text, true);
        assert_eq!(ascii, "+-+ --> 1.5 us ~ 4x?");
        assert_eq!(columns(text), ascii.len());
        assert_eq!(printable(text, false), text);
    }

    #[test]
    fn control_characters_are_not_printed() {
        assert_eq!(printable("a\x1b[31mb\n", false), "a?[31mb?");
    }
}
