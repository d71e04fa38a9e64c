//! What the registration cache costs: a hit, a hit that the kernel checks, a miss, and hits beside others.
//!
//! ```text
//! cargo bench -p rucx-benches --bench rcache -- [--json] [--samples N] [--sample-us N] [words a row's name contains]
//! cargo bench -p rucx-benches --bench rcache -- --instructions [--write]
//! ```

#![allow(clippy::print_stdout)]

mod instructions;
mod rows;
mod world;

use std::process::ExitCode;

use rucx_benches::{Command, Options};

const HELP: &str = "\
What the registration cache costs, each operation beside a reference that runs by turns with it.

  cargo bench -p rucx-benches --bench rcache -- [OPTIONS] [WORDS]

  WORDS                      only rows whose name contains one of them
  --json                     JSON instead of a table
  --samples N                measurements of each side (101)
  --sample-us N              microseconds of one measurement (50), in which an operation runs as often as it fits
  --instructions             counts instructions of one call by valgrind, and compares with the baseline
  --instructions --write     writes the baseline anew
  --count-instructions OP N  only runs OP N times, for a tool to count; without OP, lists them
  --help                     this";

fn main() -> ExitCode {
    let (repeat, compare) = (instructions::repeat, instructions::compare);
    Command { help: HELP, repeat, compare, measure }.run()
}

fn measure(words: Vec<String>) -> Result<(), String> {
    let options = Options::parse(words)?;
    let json = options.json;
    let (standings, bytes) = rows::measure(options);
    if json {
        println!("{}", standings.to_json());
    } else {
        println!("{standings}\n{} registrations, {bytes:.0} bytes each", world::REGIONS);
    }
    Ok(())
}
