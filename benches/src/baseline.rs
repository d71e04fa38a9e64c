//! Counts that are committed, and compared with later ones.
//!
//! ```text
//! # a comment
//! toolchain: rustc 1.95.0 (…), x86_64, valgrind-3.19.0
//!    123.0  read 8 B
//! ```

use std::fmt;

/// How much more than before is too much.
pub const TOLERANCE: f64 = 0.02;

/// What operations cost, and by which tools that was found.
#[derive(Debug, Clone, PartialEq)]
pub struct Baseline {
    /// What built and counted them: counts by other tools tell nothing of the code.
    pub toolchain: String,
    /// Operations and what one of each costs.
    pub counts: Vec<(String, f64)>,
}

impl Baseline {
    /// Reads a file's text.
    ///
    /// # Errors
    /// The first line that is not understood.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut baseline = Self { toolchain: String::new(), counts: Vec::new() };
        for line in text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#')) {
            if let Some(toolchain) = line.strip_prefix("toolchain:") {
                toolchain.trim().clone_into(&mut baseline.toolchain);
                continue;
            }
            let parsed = line.split_once("  ").and_then(|(count, name)| Some((count.parse().ok()?, name)));
            let (count, name) = parsed.ok_or_else(|| format!("neither a count nor a toolchain: {line}"))?;
            baseline.counts.push((name.trim().to_owned(), count));
        }
        Ok(baseline)
    }

    /// Compares what was found now, by `self`'s tools or others.
    #[must_use]
    pub fn compare(&self, now: &Self) -> Outcome {
        let same_tools = self.toolchain == now.toolchain;
        let lines = now.counts.iter().map(|(name, count)| {
            let before = self.counts.iter().find(|(known, _)| known == name).map(|(_, count)| *count);
            Line { name: name.clone(), before, now: *count }
        });
        Outcome { same_tools, before_by: self.toolchain.clone(), lines: lines.collect() }
    }
}

/// The file's text.
impl fmt::Display for Baseline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "toolchain: {}", self.toolchain)?;
        self.counts.iter().try_for_each(|(name, count)| writeln!(f, "{count:>10.1}  {name}"))
    }
}

/// An operation before and now.
#[derive(Debug, Clone, PartialEq)]
pub struct Line {
    name: String,
    before: Option<f64>,
    now: f64,
}

/// What a comparison found.
#[derive(Debug, Clone, PartialEq)]
pub struct Outcome {
    same_tools: bool,
    before_by: String,
    lines: Vec<Line>,
}

impl Outcome {
    /// Whether the same tools count more than before, or something that was not counted before.
    #[must_use]
    pub fn is_regression(&self) -> bool {
        self.same_tools && self.lines.iter().any(|line| line.verdict().1)
    }
}

impl Line {
    /// In words, and whether it is a failure where the tools are the same.
    fn verdict(&self) -> (String, bool) {
        match self.before {
            None => ("not in the baseline".to_owned(), true),
            Some(before) => {
                let change = self.now / before - 1.0;
                let words = match change {
                    _ if change > TOLERANCE => "MORE",
                    _ if change < -TOLERANCE => "less: write the baseline anew to keep it so",
                    _ => "as before",
                };
                (format!("{before:>10.1}  {:>+6.1} %  {words}", change * 100.0), change > TOLERANCE)
            }
        }
    }
}

/// The table.
impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:<28} {:>10} {:>10}", "instructions of one call", "now", "before")?;
        for line in &self.lines {
            writeln!(f, "{:<28} {:>10.1} {}", line.name, line.now, line.verdict().0)?;
        }
        if self.same_tools {
            write!(f, "the same tools as the baseline's: more than {:.0} % is a failure", TOLERANCE * 100.0)
        } else {
            write!(f, "other tools than the baseline's ({}): reported only", self.before_by)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counted(toolchain: &str, count: f64) -> Baseline {
        Baseline { toolchain: toolchain.into(), counts: vec![("read 8 B".into(), count)] }
    }

    #[test]
    fn comes_back_as_it_went() {
        let written = format!("# why\n\n{}", counted("rustc 1, x86_64", 123.5));
        assert_eq!(Baseline::parse(&written), Ok(counted("rustc 1, x86_64", 123.5)));
        assert!(Baseline::parse("read 8 B").is_err());
    }

    #[test]
    fn only_the_same_tools_and_more_than_the_tolerance_fail() {
        let before = counted("rustc 1", 100.0);
        assert!(before.compare(&counted("rustc 1", 102.1)).is_regression());
        assert!(!before.compare(&counted("rustc 1", 101.9)).is_regression());
        assert!(!before.compare(&counted("rustc 1", 50.0)).is_regression());
        assert!(!before.compare(&counted("rustc 2", 150.0)).is_regression());
        let unknown = Baseline { counts: vec![("new".into(), 1.0)], ..before.clone() };
        assert!(before.compare(&unknown).is_regression());
    }
}
