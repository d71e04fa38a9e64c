//! `rucx perf`: how fast two processes of this machine reach each other.
//!
//! ```mermaid
//! flowchart LR
//!     M["measure.rs: one test, one size"] --> S["side.rs: worker, region, endpoint"]
//!     S <-- "messages, put, get" --> P["peer.rs: the other process"]
//!     M -- "what comes next" --> C["child.rs: started, asked, ended"] -- "pipes" --> P
//!     M --> R["report.rs: a table, or a JSON document"]
//! ```

mod child;
mod echo;
mod measure;
mod operand;
pub(crate) mod peer;
mod place;
mod protocol;
mod report;
mod samples;
mod side;

use std::collections::BTreeSet;
use std::io;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::ValueEnum;
use clap::builder::NonEmptyStringValueParser;
use serde::Serialize;

use self::measure::{Bench, Plan};
use self::place::Placement;
use self::report::Report;
use crate::args;
use crate::settings;
use crate::ui::{self, Ui};

/// What `rucx perf --help` says.
pub(crate) const ABOUT: &str = "\
Starts a second process, and measures what goes between the two: put, get and
fetch-and-add by rkey, and active messages. Each process has a CPU of its own,
if there are two. Without a TEST: all of them.

Latency (--mode lat) is the time of one operation. For put and am it is half a
round trip: each side waits for the other's, put's by looking at the last byte
of its own memory. Bandwidth (--mode bw) and message rate (--mode rate) are of
many operations in a row, until the last has arrived.";

/// Below that.
pub(crate) const EXAMPLES: &str = "\
Examples:
  rucx perf                        latencies of all tests
  rucx perf put --size 8,64K,1M    of one test, at these sizes
  rucx perf am --mode bw           bandwidth of messages
  rucx perf put get --mode rate    how many operations of 8 bytes a second
  rucx perf put --imported         from memory of another process's
  rucx perf --tls shm --json       for programs

The same in C UCX:
  rucx perf am                 ucx_perftest -t ucp_am_lat (near: tag_lat)
  rucx perf am --mode bw       ucx_perftest -t ucp_am_bw  (near: tag_bw)
  rucx perf put                ucx_perftest -t ucp_put_lat
  rucx perf put --mode bw      ucx_perftest -t ucp_put_bw
  rucx perf get                ucx_perftest -t ucp_get
  rucx perf fadd               ucx_perftest -t ucp_fadd
  ... --mode rate              ... -s 8, the rate it prints
Its columns are in microseconds, too; its MB/s are of 1048576 bytes, the GB/s
here of 10^9. Times contain one look at the clock: the first lines say how
long that takes.

JSON: error is null, or has what, why and remedy. Each row of rows has test,
mode, size, transport, iterations, seconds, mean_us, p50_us, p90_us, p99_us,
p999_us (null but in mode lat), bytes_per_second and messages_per_second. Keys
stay as they are; some may be added.";

/// Sizes of latency and bandwidth, and of rate, if nothing else is said.
const SIZES: [u64; 4] = [8, 4 << 10, 64 << 10, 1 << 20];
const RATE_SIZES: [u64; 1] = [8];
/// Largest: each side has twice as much.
const LARGEST: u64 = 1 << 30;
/// Most operations of a row: each has a figure.
const MOST: i64 = 10_000_000;

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Test {
    /// To the peer's memory, by rkey
    Put,
    /// From the peer's memory, by rkey
    Get,
    /// Active messages
    Am,
    /// Atomic fetch-and-add on the peer's memory, of 4 or 8 bytes
    Fadd,
}

impl Test {
    fn takes(self, size: u64) -> bool {
        self != Self::Fadd || size == 4 || size == 8
    }
}

/// What of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Mode {
    /// Time of one operation
    Lat,
    /// Bytes a second
    Bw,
    /// Operations a second
    Rate,
}

/// The name on the command line.
fn name_of(value: impl ValueEnum) -> String {
    value.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
}

/// Arguments of `rucx perf`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// What to measure [default: all]
    #[arg(value_name = "TEST")]
    tests: Vec<Test>,
    /// What of it
    #[arg(long, default_value = "lat")]
    mode: Mode,
    /// Bytes of an operation [default: 8,4K,64K,1M; of rate: 8]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = size)]
    size: Vec<u64>,
    /// Most operations of a row
    #[arg(long, value_name = "N", default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(1..=MOST))]
    iters: u32,
    /// Operations before those that count [default: a tenth as many]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=MOST))]
    warmup: Option<u32>,
    /// How long a row may take at most: 2, 500ms; half as long for warm-up
    #[arg(long, value_name = "TIME", default_value = "1", value_parser = seconds)]
    seconds: Duration,
    /// Transports both processes may use, as UCX_TLS: shm,self
    #[arg(long, value_name = "LIST", value_parser = NonEmptyStringValueParser::new())]
    tls: Option<String>,
    /// Operands are imported memory: each process exports some to the other
    #[arg(long)]
    imported: bool,
    /// Print one JSON document
    #[arg(long)]
    json: bool,
}

fn size(text: &str) -> Result<u64, String> {
    match args::bytes(text)? {
        0 => Err("1 is the least".to_owned()),
        bytes if bytes > LARGEST => Err("1G is the most".to_owned()),
        bytes => Ok(bytes),
    }
}

fn seconds(text: &str) -> Result<Duration, String> {
    let time = args::interval(text)?;
    if time > Duration::from_secs(3600) { Err("1h is the longest".to_owned()) } else { Ok(time) }
}

impl Args {
    fn tests(&self) -> Vec<Test> {
        if self.tests.is_empty() { Test::value_variants().to_vec() } else { self.tests.clone() }
    }

    fn sizes(&self) -> Vec<u64> {
        let given: BTreeSet<u64> = self.size.iter().copied().collect();
        match (given.is_empty(), self.mode) {
            (false, _) => given.into_iter().collect(),
            (true, Mode::Rate) => RATE_SIZES.to_vec(),
            (true, _) => SIZES.to_vec(),
        }
    }
}

/// Why there is nothing (more) to report.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Problem {
    what: String,
    why: String,
    remedy: String,
}

impl Problem {
    fn new(what: impl Into<String>, why: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { what: what.into(), why: why.into(), remedy: remedy.into() }
    }

    /// An error of the library's: `cannot` says what cannot be done because of it.
    fn of(cannot: &str, error: impl Into<ucp::Error>) -> Self {
        let error = error.into();
        Self::new(format!("cannot {cannot}: {:?}", error.status()), error.to_string(), error.remedy())
    }
}

/// What ends a run early.
#[derive(Debug)]
enum Stopped {
    Problem(Problem),
    Output(io::Error),
}

impl From<Problem> for Stopped {
    fn from(problem: Problem) -> Self {
        Self::Problem(problem)
    }
}

impl From<io::Error> for Stopped {
    fn from(error: io::Error) -> Self {
        Self::Output(error)
    }
}

/// Measures.
pub(crate) fn run(args: &Args) -> ExitCode {
    let mut ui = Ui::new(args.json);
    let mut report = Report::default();
    let outcome = match play(args, &mut ui, &mut report) {
        Err(Stopped::Problem(problem)) => {
            report.error = Some(problem);
            Ok(())
        }
        Err(Stopped::Output(error)) => Err(error),
        Ok(()) => Ok(()),
    };
    let told = outcome.and_then(|()| if args.json { report.json() } else { report.end(&mut ui) });
    match told {
        Ok(()) if report.error.is_none() => ExitCode::SUCCESS,
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            ui::complain(&format!("standard output: {error}"));
            ExitCode::FAILURE
        }
        // Who has closed the pipe does not want to read on.
        _ => ExitCode::FAILURE,
    }
}

fn play(args: &Args, ui: &mut Ui, report: &mut Report) -> Result<(), Stopped> {
    let variables = settings::variables(args.tls.as_deref());
    ui.title(concat!("rucx ", env!("CARGO_PKG_VERSION"), " perf"), &settings::in_words(&variables))?;
    let (tests, sizes) = (args.tests(), args.sizes());
    if let Some(test) = args.tests.iter().find(|test| !sizes.iter().any(|size| test.takes(*size))) {
        let what = format!("{} of no size that was asked for", name_of(*test));
        let problem =
            Problem::new(what, "it is of words: 4 bytes or 8", "add a size of these, or leave it out");
        return Err(problem.into());
    }
    let placement = Placement::choose();
    let largest = sizes.iter().copied().max().unwrap_or(0);
    let mut bench = Bench::start(args.tls.as_deref(), &variables, &placement, (largest, args.imported))?;
    report.begin(&bench, &placement);
    report.head(ui)?;
    for test in tests {
        for size in sizes.iter().filter(|size| test.takes(**size)) {
            let plan = Plan {
                test,
                mode: args.mode,
                size: *size,
                iters: args.iters,
                warmup: args.warmup.unwrap_or(args.iters / 10),
                limit: args.seconds,
            };
            let measured = bench.measure(&plan)?;
            report.row(ui, &plan, &measured)?;
        }
    }
    report.took(ui.elapsed());
    report.met(&bench);
    bench.end()?;
    Ok(())
}

/// What one look at the clock takes, in picoseconds.
fn clock_ps() -> u64 {
    const LOOKS: u32 = 10_000;
    let start = Instant::now();
    for _ in 0..LOOKS {
        std::hint::black_box(Instant::now());
    }
    crate::units::in_nanos(start.elapsed()).saturating_mul(1000) / u64::from(LOOKS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_times_have_bounds() {
        assert_eq!((size("8"), size("4K"), size("1G")), (Ok(8), Ok(4096), Ok(1 << 30)));
        assert!(size("0").is_err() && size("1025M").is_err() && size("x").is_err());
        assert_eq!(seconds("500ms"), Ok(Duration::from_millis(500)));
        assert!(seconds("2h").is_err() && seconds("0").is_err());
    }
}
