//! What exported memory costs: mapping, packing, importing, accessing, revoking; each beside a bare loop of what cannot be avoided.
//!
//! ```text
//! cargo bench -p rucx-benches --bench export -- [--json] [--samples N] [--sample-us N] [words a row's name contains]
//! cargo bench -p rucx-benches --bench export -- --instructions [--write]
//! ```
//!
//! Exporter and importer are two processes: the benchmark starts itself again as whichever the rows need beside it.

#![allow(clippy::print_stdout)]

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

use rucx_benches::Options;

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
    let words: Vec<String> = std::env::args().skip(1).filter(|word| word != "--bench").collect();
    let first = words.first().map_or("", String::as_str);
    let verdict = match first {
        roles::FLAG => roles::run(&words[1..]),
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
    let standings = rows.into_standings();
    if json {
        println!("{}", standings.to_json());
    } else {
        println!("{standings}");
    }
    Ok(())
}
