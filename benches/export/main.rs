//! What exported memory costs: mapping, packing, importing, accessing, revoking; each beside a bare loop of what cannot be avoided.
//!
//! ```text
//! cargo bench -p rucx-benches --bench export -- [--json] [--samples N] [--sample-us N] [words a row's name contains]
//! cargo bench -p rucx-benches --bench export -- --instructions [--write]
//! ```
//!
//! Exporter and importer are two processes: the benchmark starts itself again as whichever the rows need beside it.

mod access;
mod bare;
mod cma;
mod exports;
mod imports;
mod instructions;
mod maps;
mod roles;
mod rows;

use std::process::ExitCode;

use rucx_benches::{Command, Options, command};

const HELP: &str = "\
What exported memory costs, each operation beside a reference that runs by turns with it.

  cargo bench -p rucx-benches --bench export -- [OPTIONS] [WORDS]

  WORDS                      only rows whose name or reference contains one of them
  --json                     JSON instead of a table
  --samples N                measurements of each side (101)
  --sample-us N              microseconds of one measurement (50), in which an operation runs as often as it fits
  --pin                      this process on its first processor, the one beside it on its last
  --instructions             counts instructions of one call by valgrind, and compares with the baseline
  --instructions --write     writes the baseline anew
  --count-instructions OP N  only runs OP N times, for a tool to count; without OP, lists them
  --help                     this";

fn main() -> ExitCode {
    let words = command::words();
    if words.first().is_some_and(|word| word == roles::FLAG) {
        return command::ended(roles::run(&words[1..]));
    }
    let (repeat, compare) = (instructions::repeat, instructions::compare);
    Command { help: HELP, repeat, compare, measure }.run()
}

fn measure(mut words: Vec<String>) -> Result<(), String> {
    if command::take_pin(&mut words) {
        roles::pin()?;
    }
    let options = Options::parse(words)?;
    let json = options.json;
    let mut rows = rows::Rows::new(options);
    maps::measure(&mut rows);
    exports::measure(&mut rows);
    imports::measure(&mut rows);
    access::measure(&mut rows);
    cma::measure(&mut rows);
    command::print(&rows.into_standings(), json);
    Ok(())
}
