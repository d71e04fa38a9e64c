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

use rucx_benches::rows::Rows;
use rucx_benches::{Command, Options, command};

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
    let (repeat, compare) = (instructions::repeat, instructions::compare);
    Command { help: HELP, repeat, compare, measure }.run()
}

fn measure(mut words: Vec<String>) -> Result<(), String> {
    if command::take_pin(&mut words) {
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
    command::print(&rows.into_standings(), json);
    Ok(())
}
