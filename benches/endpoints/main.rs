//! What workers and endpoints cost: keys, connections, remote memory, messages; each beside a bare loop of what cannot be avoided.
//!
//! ```text
//! cargo bench -p rucx-benches --bench endpoints -- [--json] [--samples N] [--sample-us N] [words a row's name contains]
//! cargo bench -p rucx-benches --bench endpoints -- --instructions [--write]
//! ```
//!
//! Both sides are contexts of this process, and one thread makes the progress of both: rows show what is done, not how far processors
//! are from each other, which `rucx perf` shows. Targets in nanoseconds are figures of C UCX on a machine of this kind, where a side does
//! all of it alone.

#![allow(clippy::print_stdout)]

mod bare;
mod connections;
mod idle;
mod instructions;
mod keys;
mod memory;
mod messages;
mod processors;
mod world;

use std::process::ExitCode;

use rucx_benches::Options;
use rucx_benches::rows::Rows;

const HELP: &str = "\
What workers and endpoints cost, each operation beside a reference that runs by turns with it.

  cargo bench -p rucx-benches --bench endpoints -- [OPTIONS] [WORDS]

  WORDS                      only rows whose name or reference contains one of them
  --json                     JSON instead of a table
  --samples N                measurements of each side (101)
  --sample-us N              microseconds of one measurement (50), in which an operation runs as often as it fits
  --pin                      what is measured on the first processor, the threads beside it on the last
  --instructions             counts instructions of one call by valgrind, and compares with the baseline
  --instructions --write     writes the baseline anew
  --count-instructions OP N  only runs OP N times, for a tool to count; without OP, lists them
  --help                     this";

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).filter(|word| word != "--bench").collect();
    let verdict = match words.first().map_or("", String::as_str) {
        "--help" | "-h" => {
            println!("{HELP}");
            Ok(())
        }
        "--count-instructions" => instructions::repeat(&words[1..]),
        "--instructions" => instructions::compare(&words[1..]),
        _ => measure(words),
    };
    match verdict {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            println!("{why}");
            ExitCode::FAILURE
        }
    }
}

fn measure(mut words: Vec<String>) -> Result<(), String> {
    let all = words.len();
    words.retain(|word| word != "--pin");
    if words.len() < all {
        processors::pin()?;
    }
    let options = Options::parse(words)?;
    let json = options.json;
    let mut rows = Rows::new(options);
    keys::measure(&mut rows);
    connections::measure(&mut rows);
    memory::measure(&mut rows);
    messages::measure(&mut rows);
    idle::measure(&mut rows);
    let standings = rows.into_standings();
    if json {
        println!("{}", standings.to_json());
    } else {
        println!("{standings}");
    }
    Ok(())
}
