//! What the benchmarks that count instructions, too, do with their command line.

use std::process::ExitCode;

use crate::Standings;

/// What one of them can do, each with the words behind what names it.
#[derive(Debug)]
pub struct Command {
    /// What `--help` prints.
    pub help: &'static str,
    /// Runs one operation, for a tool to count.
    pub repeat: fn(&[String]) -> Result<(), String>,
    /// Counts the instructions of all.
    pub compare: fn(&[String]) -> Result<(), String>,
    /// Measures: with all words.
    pub measure: fn(Vec<String>) -> Result<(), String>,
}

impl Command {
    /// Does what the words behind the program's name say.
    #[must_use]
    pub fn run(&self) -> ExitCode {
        let words = words();
        ended(match words.first().map_or("", String::as_str) {
            "--help" | "-h" => {
                println!("{}", self.help);
                Ok(())
            }
            "--count-instructions" => (self.repeat)(&words[1..]),
            "--instructions" => (self.compare)(&words[1..]),
            _ => (self.measure)(words),
        })
    }
}

/// The words behind the program's name, but for the one that cargo adds.
#[must_use]
pub fn words() -> Vec<String> {
    std::env::args().skip(1).filter(|word| word != "--bench").collect()
}

/// The program's end.
#[must_use]
pub fn ended(verdict: Result<(), String>) -> ExitCode {
    match verdict {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            println!("{why}");
            ExitCode::FAILURE
        }
    }
}

/// Takes `--pin` out of the words; whether it was there.
pub fn take_pin(words: &mut Vec<String>) -> bool {
    let all = words.len();
    words.retain(|word| word != "--pin");
    words.len() < all
}

/// Prints what was measured.
pub fn print(standings: &Standings, json: bool) {
    if json {
        println!("{}", standings.to_json());
    } else {
        println!("{standings}");
    }
}
