//! `rucx rcache-torture`: the registration cache under fire, and what would happen without it.
//!
//! ```mermaid
//! flowchart LR
//!     T["churn.rs: threads change memory"] -- "what is mapped now" --> M["memory"]
//!     T -- "get" --> C["ucs::rcache"] -- "told, and asks" --> S["schemes.rs: a monitor"]
//!     C -- "registration" --> N["page-bound NIC"] -- "what the NIC sees" --> W["world.rs: is it the same?"]
//!     M --> W
//!     W --> R["report.rs: one table"]
//! ```
//!
//! `--scheme all` runs each scheme in a process of its own, because a process has one monitor: `compare.rs`.

mod churn;
mod compare;
mod report;
mod run;
mod schemes;
mod sys;
mod world;

use std::fmt;
use std::io;
use std::process::ExitCode;
use std::time::Duration;

use clap::ValueEnum;
use ucs::rcache::Mode;

use self::report::{NotRun, Problem, Report};
use self::schemes::{Announce, Scheme};
use crate::args;
use crate::ui::{self, Ui};

/// What `rucx rcache-torture --help` says.
pub(crate) const ABOUT: &str = "\
Threads unmap, map, move and drop memory at the same addresses, all the time,
while operations run there by cached registrations. The NIC is page-bound, as
real ones are: a registration (here a fixed buffer of an io_uring) holds the
pages that were mapped when it was made. So a cache that misses one change has
the NIC read or write pages that nobody has mapped any more. Each operation is
compared with what is mapped at that time.

The exit status is 0 if no operation was wrong. Without protection, or with a
weaker scheme, it is 0 only if one was: else the comparison proves nothing.";

/// Below that.
pub(crate) const EXAMPLES: &str = "\
Examples:
  rucx rcache-torture                         10 s, three threads
  rucx rcache-torture --seconds 60 --quiet    one line: was it ever wrong?
  rucx rcache-torture --unsafe-no-protection  what happens without
  rucx rcache-torture --scheme all            all known ways, compared
  rucx rcache-torture --scheme lock-before-read --handler-delay 30us
  rucx rcache-torture --pattern malloc        malloc and free only

Schemes: naive is told of a change when its event is read and applied;
lock-before-read makes look-ups wait meanwhile; pre-hooks are told before each
call, as malloc hooks tell; rucx is told, and asks the kernel before each hit.";

/// What the threads do to memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Pattern {
    /// All of these
    All,
    /// munmap and mmap, mmap over what is there
    Remap,
    /// madvise: DONTNEED, DONTNEED_LOCKED, FREE
    Madvise,
    /// mremap: away and back, onto others, shrink and grow
    Mremap,
    /// A heap that shrinks and grows again
    Brk,
    /// malloc and free of large blocks
    Malloc,
}

impl Pattern {
    const EACH: [Self; 5] = [Self::Remap, Self::Madvise, Self::Mremap, Self::Brk, Self::Malloc];

    fn expanded(self) -> Vec<Self> {
        if self == Self::All { Self::EACH.to_vec() } else { vec![self] }
    }
}

/// The name on the command line.
fn name_of(value: impl ValueEnum) -> String {
    value.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&name_of(*self))
    }
}

/// Who tells of changes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Tells {
    /// The kernel, by userfaultfd
    #[default]
    Uffd,
    /// The threads announce each change
    Explicit,
    /// Nobody: then nothing is cached
    None,
}

/// How hits are checked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Check {
    /// Each hit is checked by the kernel
    #[default]
    Strict,
    /// Not at all: the threads announce changes before and after
    Hooks,
    /// Nothing is cached
    Off,
}

/// The schemes one can choose.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Chosen {
    /// Told when the event is applied
    Naive,
    /// The same, and look-ups wait meanwhile
    LockBeforeRead,
    /// Told before each call, as by malloc hooks
    PreHooks,
    /// Told by the kernel, and asks before each hit
    #[default]
    Rucx,
    /// All of them, and none: a table
    All,
}

/// Arguments of `rucx rcache-torture`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// How long; with --scheme all, for each
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=86_400))]
    seconds: u32,
    /// How many threads
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u8).range(1..=64))]
    threads: u8,
    /// What they do to memory
    #[arg(long, value_name = "PATTERN", default_value = "all")]
    pattern: Pattern,
    /// Who tells of changes
    #[arg(long, value_name = "WHO", default_value = "uffd")]
    monitor: Tells,
    /// How hits are checked
    #[arg(long, value_name = "MODE", default_value = "strict")]
    mode: Check,
    /// How the cache is kept right
    #[arg(long, value_name = "SCHEME", default_value = "rucx", conflicts_with_all = ["monitor", "mode"])]
    scheme: Chosen,
    /// Nobody tells of anything: shows corruption
    #[arg(long, conflicts_with_all = ["monitor", "mode", "scheme"])]
    unsafe_no_protection: bool,
    /// The handler waits so long before it applies events: 30us, 1ms
    #[arg(long, value_name = "TIME", default_value = "0", value_parser = args::time)]
    handler_delay: Duration,
    /// Most registrations in the cache: few are evicted often
    #[arg(long, value_name = "N", default_value_t = 2048, value_parser = clap::value_parser!(u32).range(1..=4096))]
    regions: u32,
    /// Seed of what each thread does next; random if not given
    #[arg(long, value_name = "N", value_parser = seed)]
    seed: Option<u64>,
    /// Print one JSON document
    #[arg(long)]
    json: bool,
    /// Print the last line only
    #[arg(long, short)]
    quiet: bool,
}

fn seed(text: &str) -> Result<u64, String> {
    let number = match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    };
    number.ok_or_else(|| "a number of 64 bits, as 7 or 0x1f".to_owned())
}

/// A run of one scheme.
#[derive(Clone, Debug)]
struct Plan {
    scheme: Scheme,
    tells: Tells,
    mode: Mode,
    announce: Announce,
    patterns: Vec<Pattern>,
    threads: usize,
    time: Duration,
    delay: Duration,
    regions: u32,
    seed: u64,
}

impl Plan {
    fn of(args: &Args, seed: u64) -> Self {
        let scheme = match args.scheme {
            _ if args.unsafe_no_protection => Scheme::Nothing,
            Chosen::Naive => Scheme::Naive,
            Chosen::LockBeforeRead => Scheme::LockBeforeRead,
            Chosen::PreHooks => Scheme::PreHooks,
            Chosen::Rucx if args.monitor == Tells::Explicit || args.mode == Check::Hooks => Scheme::BothHooks,
            Chosen::Rucx | Chosen::All => Scheme::Rucx,
        };
        let mode = match args.mode {
            Check::Strict => Mode::Strict,
            Check::Hooks => Mode::Hooks,
            Check::Off => Mode::Off,
        };
        let announce = match scheme {
            Scheme::PreHooks => Announce::Before,
            Scheme::BothHooks => Announce::Around,
            _ => Announce::Nothing,
        };
        Self {
            scheme,
            tells: args.monitor,
            mode,
            announce,
            patterns: args.pattern.expanded(),
            threads: usize::from(args.threads),
            time: Duration::from_secs(args.seconds.into()),
            delay: args.handler_delay,
            regions: args.regions,
            seed,
        }
    }
}

/// Runs it.
pub(crate) fn run(args: &Args) -> ExitCode {
    let mut ui = Ui::new(args.quiet || args.json);
    match play(args, &mut ui) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => ExitCode::FAILURE,
        Err(error) => {
            ui::complain(&error.to_string());
            ExitCode::FAILURE
        }
    }
}

fn play(args: &Args, ui: &mut Ui) -> io::Result<bool> {
    let seed = match args.seed {
        Some(seed) => seed,
        None => fresh_seed()?,
    };
    if args.scheme == Chosen::All {
        return compare::run(args, seed, ui);
    }
    let plan = Plan::of(args, seed);
    ui.title(concat!("rucx ", env!("CARGO_PKG_VERSION"), " rcache-torture"), &format!("seed {seed:#x}"))?;
    match run::run(&plan, ui) {
        Ok(measured) => {
            let report = Report::of(args, &plan, measured);
            if args.json {
                report.json()?
            } else {
                report.print(ui)?
            }
            Ok(report.ok)
        }
        Err(run::Stopped::Output(error)) => Err(error),
        Err(run::Stopped::Trouble(error)) => {
            ui.end_progress()?;
            let Problem { what, why, remedy } = &error;
            let line = format!("{what}: {why}; remedy: {remedy}");
            if args.json {
                ui::complain(&line);
                report::json(&NotRun { rucx: env!("CARGO_PKG_VERSION"), ok: false, error })?;
            } else {
                ui.close(false, &line)?;
            }
            Ok(false)
        }
    }
}

fn fresh_seed() -> io::Result<u64> {
    let mut bytes = [0; 8];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
    // Short enough to be typed.
    Ok(u64::from_ne_bytes(bytes) >> 32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds() {
        assert_eq!((seed("7"), seed("0x1f")), (Ok(7), Ok(31)));
        assert!(seed("x").is_err() && seed("").is_err() && seed("-1").is_err());
    }

    #[test]
    fn patterns_have_their_names() {
        assert_eq!(Pattern::Madvise.to_string(), "madvise");
        assert_eq!(Pattern::All.expanded().len(), 5);
        assert_eq!(Pattern::Brk.expanded(), [Pattern::Brk]);
    }
}
