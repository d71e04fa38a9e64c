//! What a benchmark can be told on its command line.

use std::time::Duration;

/// The options every benchmark takes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// Whether to print JSON, not a table.
    pub json: bool,
    /// How many measurements of each side a comparison takes.
    pub samples: usize,
    /// How long one measurement is to take.
    pub sample: Duration,
    /// Words of which a row's name has to contain one; none for all rows.
    pub filter: Vec<String>,
}

impl Default for Options {
    fn default() -> Self {
        Self { json: false, samples: 101, sample: Duration::from_micros(50), filter: Vec::new() }
    }
}

impl Options {
    /// How they are given.
    pub const USAGE: &str = "options: [--json] [--samples N] [--sample-us N] [words a row's name contains]";

    /// Reads options from the words behind the program's name. `--bench`, which cargo adds, says nothing.
    ///
    /// # Errors
    /// What is not understood.
    pub fn parse(words: impl IntoIterator<Item = String>) -> Result<Self, String> {
        let mut options = Self::default();
        let mut words = words.into_iter();
        while let Some(word) = words.next() {
            match word.as_str() {
                "--bench" => {}
                "--json" => options.json = true,
                "--samples" => options.samples = number(&word, words.next())?,
                "--sample-us" => options.sample = Duration::from_micros(number(&word, words.next())?),
                _ if word.starts_with('-') => return Err(format!("unknown option {word}; {}", Self::USAGE)),
                _ => options.filter.push(word),
            }
        }
        Ok(options)
    }

    /// Whether a row of this name is wanted.
    #[must_use]
    pub fn wants(&self, name: &str) -> bool {
        self.filter.is_empty() || self.filter.iter().any(|word| name.contains(word.as_str()))
    }
}

fn number<T: std::str::FromStr>(option: &str, value: Option<String>) -> Result<T, String> {
    value.and_then(|v| v.parse().ok()).ok_or_else(|| format!("{option} takes a number; {}", Options::USAGE))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Options, String> {
        Options::parse(line.split_whitespace().map(str::to_owned))
    }

    #[test]
    fn reads_what_cargo_and_people_write() {
        assert_eq!(parse("--bench"), Ok(Options::default()));
        let options = parse("--json --samples 7 --sample-us 9 fill --bench").unwrap();
        assert!(options.json);
        assert_eq!((options.samples, options.sample), (7, Duration::from_micros(9)));
        assert!(options.wants("fill 8") && !options.wants("copy 8"));
        assert!(parse("--samples").is_err());
        assert!(parse("--frobnicate").is_err());
    }
}
