//! How many instructions an operation takes: what a change made cheaper or dearer, whatever else the machine does.
//!
//! An operation runs many times under callgrind, which counts in that loop only, and in the thread that runs it. The loop's own few
//! instructions count, too.

#![allow(clippy::print_stdout)] // benchmarks print

use std::hint::black_box;
use std::process::{Command, Stdio};

use crate::baseline::Baseline;

/// How often an operation runs for a count: fewer than an export table has lines.
const TIMES: u64 = 10_000;

/// Where callgrind begins to count, and ends: it knows [`counted`] by its name.
const COUNTED: &str = "--toggle-collect=*::instructions::counted";

/// What a benchmark has counted.
#[derive(Debug, Clone, Copy)]
pub struct Counts<'a> {
    /// The benchmark, which counts when it is started with `--instructions`, and runs an operation with `--count-instructions`.
    pub bench: &'a str,
    /// The file of the baseline.
    pub baseline: &'a str,
    /// What can be counted.
    pub operations: &'a [&'a str],
}

/// Runs what is to be counted.
#[inline(never)]
pub fn counted(run: &mut dyn FnMut()) {
    run();
    black_box(()); // no tail call: the function would be left before the operation begins
}

impl Counts<'_> {
    /// The operation that the words behind `--count-instructions` name, by its place, and how often it is to run.
    ///
    /// # Errors
    /// What is not understood; all operations, where none is named.
    pub fn repeated(&self, words: &[String]) -> Result<(usize, u64), String> {
        let known = || self.operations.join("\n");
        let [name, times] = words else { return Err(known()) };
        let operation = self.operations.iter().position(|known| known == name).ok_or_else(known)?;
        Ok((operation, times.parse().map_err(|_| format!("not a number: {times}"))?))
    }

    /// Counts all, and compares with the baseline, or writes it: as the words behind `--instructions` say.
    ///
    /// # Errors
    /// More instructions than the baseline has; or what failed.
    pub fn compare(&self, words: &[String]) -> Result<(), String> {
        let write = match words {
            [] => false,
            [word] if word == "--write" => true,
            _ => return Err(format!("--instructions takes --write and nothing else, not {words:?}")),
        };
        let mut now = Baseline { toolchain: toolchain()?, counts: Vec::new() };
        for name in self.operations {
            now.counts.push(((*name).to_owned(), count(name, TIMES)? as f64 / TIMES as f64));
        }
        let file = self.baseline;
        if write {
            print!("{now}");
            return std::fs::write(file, format!("{}{now}", self.header()))
                .map_err(|error| format!("{file}: {error}"));
        }
        let text = std::fs::read_to_string(file).map_err(|error| format!("{file}: {error}"))?;
        let outcome = Baseline::parse(&text)?.compare(&now);
        println!("{outcome}");
        if outcome.is_regression() {
            Err("more instructions than the baseline has".to_owned())
        } else {
            Ok(())
        }
    }

    fn header(&self) -> String {
        let command = format!("cargo bench -p rucx-benches --bench {} -- --instructions", self.bench);
        format!(
            "# Instructions of one call, counted by callgrind.\n\
             # Compared by:      {command}\n\
             # Written anew by:  {command} --write\n"
        )
    }
}

/// What counts depend on beside the code.
fn toolchain() -> Result<String, String> {
    let valgrind = said(Command::new("valgrind").arg("--version"))
        .map_err(|_| "valgrind is missing: apt-get install valgrind".to_owned())?;
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let rustc = said(Command::new(rustc).arg("--version"))?;
    Ok(format!("{rustc}, {}, {valgrind}", std::env::consts::ARCH))
}

fn said(command: &mut Command) -> Result<String, String> {
    let output = command.output().map_err(|error| format!("{command:?}: {error}"))?;
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// Instructions of a process that runs an operation so many times.
fn count(name: &str, times: u64) -> Result<u64, String> {
    let exe = std::env::current_exe().map_err(|error| error.to_string())?;
    let mut command = Command::new("valgrind");
    command.args(["--tool=callgrind", "--callgrind-out-file=/dev/null", COUNTED]).arg(exe);
    command.args(["--count-instructions", name, &times.to_string()]).stdin(Stdio::null());
    let output = command.output().map_err(|error| format!("{command:?}: {error}"))?;
    let text = String::from_utf8_lossy(&output.stderr);
    // "==PID== Collected : 12345", valgrind manual, 6.2.
    let collected = text.lines().find_map(|line| line.split_once("Collected :"));
    let found = collected.and_then(|(_, count)| count.trim().parse().ok());
    found.filter(|_| output.status.success()).ok_or_else(|| format!("{command:?}: {}\n{text}", output.status))
}
