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
//! `--scheme all` runs each scheme in a process of its own, because a process has one monitor: `compare.rs`. So does `--prove`, which
//! asks for more than that nothing was wrong: `prove.rs`.

mod churn;
mod compare;
mod prove;
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
use ucs::config::{Config, OrAuto, Origin};
use ucs::rcache::Mode;
use ucs::rcache::config::{ENABLE, MAX_REGIONS, MAX_SIZE, MEM_EVENTS, MODE, RegionCount, Settings};

use self::report::{NotRun, Problem, Report};
use self::schemes::{Announce, Scheme};
use crate::args;
use crate::info;
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
weaker scheme, it is 0 only if one was: else the comparison proves nothing. It
is 77 where there is no io_uring, or nothing that tells of changes.";

/// Below that.
pub(crate) const EXAMPLES: &str = "\
Examples:
  rucx rcache-torture                         10 s, three threads
  rucx rcache-torture --seconds 60 --quiet    one line: was it ever wrong?
  rucx rcache-torture --seconds 60 --prove    and was there enough to be wrong?
  rucx rcache-torture --unsafe-no-protection  what happens without
  rucx rcache-torture --scheme all            all known ways, compared
  rucx rcache-torture --scheme lock-before-read --handler-delay 30us
  rucx rcache-torture --pattern malloc        malloc and free only
  UCX_MEM_EVENTS=n rucx rcache-torture        as such a program would fare

Schemes: naive is told of a change when its event is read and applied;
lock-before-read makes look-ups wait meanwhile; pre-hooks are told before each
call, as malloc hooks tell; rucx is told, and asks the kernel before each hit.

UCX_MEM_EVENTS and UCX_RCACHE_* are the defaults of --monitor, --mode and
--regions, where neither --scheme nor --prove is given.";

/// Registrations in the cache, if nothing else is said: few enough to be evicted now and then.
const REGIONS: u32 = 2048;
/// Most: the NIC has so many, and pins no more.
const MOST_REGIONS: u32 = 4096;
const MOST_BYTES: u64 = 32 << 20;

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
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Tells {
    /// The kernel, by userfaultfd
    Uffd,
    /// The threads announce each change
    Explicit,
    /// Nobody: then nothing is cached
    None,
}

/// How hits are checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Check {
    /// As strict; not at all while hooks, if built in, announce all
    Auto,
    /// Each hit is checked by the kernel
    Strict,
    /// Not at all: the threads announce changes before and after
    Hooks,
    /// Nothing is cached
    Off,
}

/// The schemes one can choose.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Chosen {
    /// Told when the event is applied
    Naive,
    /// The same, and look-ups wait meanwhile
    LockBeforeRead,
    /// Told before each call, as by malloc hooks
    PreHooks,
    /// Told by the kernel, and asks before each hit
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
    /// Who tells of changes [default: uffd; none if UCX_MEM_EVENTS=n]
    #[arg(long, value_name = "WHO")]
    monitor: Option<Tells>,
    /// How hits are checked [default: auto, or as UCX_RCACHE_MODE says]
    #[arg(long, value_name = "MODE")]
    mode: Option<Check>,
    /// How the cache is kept right [default: rucx]
    #[arg(long, value_name = "SCHEME", conflicts_with_all = ["monitor", "mode"])]
    scheme: Option<Chosen>,
    /// Nobody tells of anything: shows corruption
    #[arg(long, conflicts_with_all = ["monitor", "mode", "scheme"])]
    unsafe_no_protection: bool,
    /// Fails also if too little happened to show anything
    #[arg(long, conflicts_with_all = ["monitor", "mode", "scheme", "unsafe_no_protection"])]
    prove: bool,
    /// The handler waits so long before it applies events: 30us, 1ms
    #[arg(long, value_name = "TIME", default_value = "0", value_parser = args::time)]
    handler_delay: Duration,
    /// Most registrations: few are evicted often [default: 2048]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(MOST_REGIONS)))]
    regions: Option<u32>,
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

impl Check {
    fn mode(self) -> Mode {
        match self {
            Self::Auto => Mode::Auto,
            Self::Strict => Mode::Strict,
            Self::Hooks => Mode::Hooks,
            Self::Off => Mode::Off,
        }
    }
}

/// A run of one scheme.
#[derive(Clone, Debug)]
struct Plan {
    scheme: Scheme,
    tells: Tells,
    settings: Settings,
    announce: Announce,
    patterns: Vec<Pattern>,
    threads: usize,
    time: Duration,
    delay: Duration,
    seed: u64,
}

/// What the environment says, and the command line, which wins.
fn configured(args: &Args) -> Result<Config, Problem> {
    let mut config = info::config::builder();
    let by_scheme = args.unsafe_no_protection || args.scheme.is_some();
    if by_scheme || args.monitor.is_some() || args.mode.is_some() {
        config = config.set_var(&ENABLE, OrAuto::Auto);
    }
    if by_scheme {
        config = config.set_var(&MODE, OrAuto::Set(Mode::Strict)).set_var(&MEM_EVENTS, true);
    }
    if let Some(tells) = args.monitor {
        config = config.set_var(&MEM_EVENTS, tells != Tells::None);
    }
    if let Some(check) = args.mode {
        config = config.set_var(&MODE, OrAuto::Set(check.mode()));
    }
    if let Some(regions) = args.regions.and_then(RegionCount::new) {
        config = config.set_var(&MAX_REGIONS, regions);
    }
    config.build().map_err(|error| wrong_variables(&error, error.remedy()))
}

fn wrong_variables(why: &impl ToString, remedy: String) -> Problem {
    let what = "a variable is wrong".to_owned();
    Problem { what, why: why.to_string(), remedy, lacking: false }
}

impl Plan {
    /// # Errors
    /// What the variables say is wrong.
    fn of(args: &Args, seed: u64) -> Result<Self, Problem> {
        let config = configured(args)?;
        let mut settings =
            Settings::from_config(&config).map_err(|error| wrong_variables(&error, error.remedy()))?;
        let options = &mut settings.options;
        if config.origin(&MAX_REGIONS) == Origin::Default {
            options.max_regions = REGIONS;
        }
        options.max_regions = options.max_regions.min(MOST_REGIONS);
        if config.origin(&MAX_SIZE) == Origin::Default {
            options.max_bytes = MOST_BYTES;
        }
        options.max_bytes = options.max_bytes.min(MOST_BYTES);
        let mode = options.mode;
        // Where nothing is cached, nobody has to tell.
        let tells = args.monitor.unwrap_or(if mode == Mode::Off { Tells::None } else { Tells::Uffd });
        let scheme = match args.scheme.unwrap_or(Chosen::Rucx) {
            _ if args.unsafe_no_protection => Scheme::Nothing,
            Chosen::Naive => Scheme::Naive,
            Chosen::LockBeforeRead => Scheme::LockBeforeRead,
            Chosen::PreHooks => Scheme::PreHooks,
            Chosen::Rucx if tells == Tells::Explicit || mode == Mode::Hooks => Scheme::BothHooks,
            Chosen::Rucx | Chosen::All => Scheme::Rucx,
        };
        let announce = match scheme {
            Scheme::PreHooks => Announce::Before,
            Scheme::BothHooks => Announce::Around,
            _ => Announce::Nothing,
        };
        Ok(Self {
            scheme,
            tells,
            settings,
            announce,
            patterns: args.pattern.expanded(),
            threads: usize::from(args.threads),
            time: Duration::from_secs(args.seconds.into()),
            delay: args.handler_delay,
            seed,
        })
    }
}

/// What came of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    /// It has shown what it should have.
    Shown,
    Wrong,
    /// The system has not what it needs.
    Lacking,
}

impl Outcome {
    fn of(ok: bool) -> Self {
        if ok { Self::Shown } else { Self::Wrong }
    }
}

impl From<Outcome> for ExitCode {
    fn from(outcome: Outcome) -> Self {
        match outcome {
            Outcome::Shown => Self::SUCCESS,
            Outcome::Wrong => Self::FAILURE,
            // What test drivers take for "skipped" (automake(info), "Scripts-based Testsuites").
            Outcome::Lacking => Self::from(77),
        }
    }
}

/// Runs it.
pub(crate) fn run(args: &Args) -> ExitCode {
    let mut ui = Ui::new(args.quiet || args.json);
    match play(args, &mut ui) {
        Ok(outcome) => outcome.into(),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => ExitCode::FAILURE,
        Err(error) => {
            ui::complain(&error.to_string());
            ExitCode::FAILURE
        }
    }
}

fn play(args: &Args, ui: &mut Ui) -> io::Result<Outcome> {
    let seed = match args.seed {
        Some(seed) => seed,
        None => fresh_seed()?,
    };
    let plan = match Plan::of(args, seed) {
        Ok(plan) => plan,
        Err(error) => return not_run(args, error, ui),
    };
    if args.prove {
        return prove::run(args, seed, ui);
    }
    if args.scheme == Some(Chosen::All) {
        return compare::run(args, seed, ui);
    }
    ui.title(concat!("rucx ", env!("CARGO_PKG_VERSION"), " rcache-torture"), &format!("seed {seed:#x}"))?;
    match run::run(&plan, ui) {
        Ok(measured) => {
            let report = Report::of(args, &plan, measured);
            if args.json {
                report.json()?
            } else {
                report.print(ui)?
            }
            Ok(Outcome::of(report.ok))
        }
        Err(run::Stopped::Output(error)) => Err(error),
        Err(run::Stopped::Trouble(error)) => {
            ui.end_progress()?;
            not_run(args, error, ui)
        }
    }
}

/// Says why there is nothing to report.
fn not_run(args: &Args, error: Problem, ui: &mut Ui) -> io::Result<Outcome> {
    let outcome = if error.lacking { Outcome::Lacking } else { Outcome::Wrong };
    let line = error.to_string();
    if args.json {
        ui::complain(&line);
        report::json(&NotRun { rucx: env!("CARGO_PKG_VERSION").to_owned(), ok: false, error })?;
    } else {
        ui.end_progress()?;
        ui.close(false, &line)?;
    }
    Ok(outcome)
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
