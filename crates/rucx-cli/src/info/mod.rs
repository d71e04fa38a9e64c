//! `rucx info`: what works here, what does not, and what to do about it.
//!
//! ```mermaid
//! flowchart LR
//!     C["transports, variables"] --> R["Report"]
//!     F["system/facts.rs: reads, probes"] --> J["system/judge.rs: facts → rows"] --> R
//!     R --> T["text.rs: a page"]
//!     R --> D["--json: the same, for programs"]
//! ```
//!
//! # The JSON document
//! One object. Keys are never renamed or taken away, and get no other meaning; others may be added.
//!
//! | key | what |
//! |---|---|
//! | `rucx` | the version |
//! | `error` | null, or what keeps a context from being made: `text`, `remedy`, `status` (a name of `ucs::Status`) |
//! | `devices` | null if not asked for, else the transports: `name`, `id`, `used`, `reason` (null if used), `export_fault` (null, or why it exports nothing here), `memory_domains` (the attributes of `uct_md_attr_t`, in bytes and seconds, and `notes`: sentences), `capabilities` (`name`, `supported`, `note`), `variables` (names) |
//! | `config` | null if not asked for, else the variables: `name`, `value` (null if wrong), `origin` (`default`, `environment`, `builder`), `default`, `accepts`, `doc`, `error` (null, or as above) |
//! | `system` | null if not asked for, else the rows: `key` (stable), `group` (`kernel`, `calls`, `rights`, `namespaces`, `registrations`, `limits`, `memory`), `name`, `value` (for people), `state` (`good`, `note`, `limited`, `missing`), `cost` and `remedy` (null if `state` is `good`) |
//! | `endpoints` | null if not asked for, else what an endpoint to another process of this machine is for: `what` (`messages`, `memory`, `buffers`), `doc`, `transport` (null if none), `error` (null, or as above) and `candidates`: `transport`, `cost_base` and `cost_per_byte` (seconds, by its attributes; null if it does not do that), `why` |
//! | `stats` | null if not asked for, else what was counted: `what` was done, `error` (null, or why it was not), and `figures`: `group` (`rcache`, `monitor`), `name` (the field in the library), `value`, `doc` |
//!
//! Numbers may be as large as 2⁶⁴ − 1.

pub(crate) mod config;
mod devices;
mod endpoints;
mod stats;
pub(crate) mod system;
mod text;

use std::io::{self, Write};
use std::process::ExitCode;

use serde::Serialize;
use ucp::InitError;
use ucs::rcache::config::SettingsError;

use self::config::Variable;
use self::devices::Transport;
use self::endpoints::Use;
use self::stats::Exercise;
use self::system::{Row, State};
use crate::ui;

/// What `rucx info --help` says.
pub(crate) const ABOUT: &str = "\
Tells what works here, what does not, what that costs and what to do about it.
Without -d, -c, -s and -e: a summary of the first three.
The exit status is 1 if no context can be made with the variables as they are
set (-s and --stats alone ask for none), if they contradict each other, or if a
part of rucx does not work.";

/// Below that.
pub(crate) const EXAMPLES: &str = "\
Examples:
  rucx info                  a summary
  rucx info -d               transports, and what each can do
  UCX_TLS=shm rucx info -dc  the same as set here, and all variables
  rucx info -s               what this system offers, lacks, and the remedies
  rucx info -e               which transport reaches other processes, and why
  rucx info --stats          what can be counted, after a short exercise
  rucx info --json           transports, variables and system, for programs
  rucx info -s --json | jq '.system[] | select(.state != \"good\")'

JSON: error, devices, config, system, endpoints and stats are null if there is
none, or if not asked for. A row of system has key, group, name, value, state
(good, note, limited, missing), cost and remedy. Keys stay as they are; some
may be added.";

/// Arguments of `rucx info`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Transports: memory domains, their attributes, what each can do
    #[arg(long, short)]
    devices: bool,
    /// Variables: value, where it comes from, what each is for
    #[arg(long, short)]
    config: bool,
    /// The system: calls, rights, namespaces, limits, and what to do
    #[arg(long, short)]
    system: bool,
    /// Endpoints: which transport one to another process goes by, and why
    #[arg(long, short)]
    endpoints: bool,
    /// Figures that programs can read, after a short exercise here
    #[arg(long)]
    stats: bool,
    /// Print one JSON document with the same content
    #[arg(long)]
    json: bool,
}

impl Args {
    /// None of them: a summary.
    fn is_summary(&self) -> bool {
        !(self.devices || self.config || self.system || self.endpoints || self.stats)
    }
}

/// Something that is wrong.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Problem {
    /// What.
    pub(crate) text: String,
    /// What to do about it.
    pub(crate) remedy: String,
    /// The one-byte status, by its name.
    pub(crate) status: String,
}

impl Problem {
    fn of_context(error: &InitError) -> Self {
        Self { text: error.to_string(), remedy: error.remedy(), status: format!("{:?}", error.status()) }
    }

    fn of_settings(error: &SettingsError) -> Self {
        Self { text: error.to_string(), remedy: error.remedy(), status: format!("{:?}", error.status()) }
    }
}

/// All that was asked for.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Report {
    rucx: &'static str,
    error: Option<Problem>,
    devices: Option<Vec<Transport>>,
    config: Option<Vec<Variable>>,
    system: Option<Vec<Row>>,
    endpoints: Option<Vec<Use>>,
    stats: Option<Exercise>,
}

impl Report {
    fn gather(args: &Args) -> Self {
        let all = args.is_summary();
        let rows = (all || args.system || args.devices).then(system::rows);
        let nothing = rows.as_deref().and_then(system::nothing_exports);
        let (mut devices, mut error) = (None, None);
        if all || args.devices || args.config {
            let (mut transports, problem) = devices::transports();
            if let Some(why) = &nothing {
                transports.iter_mut().for_each(|one| one.exports_nothing(why));
            }
            error = problem;
            devices = (all || args.devices).then_some(transports);
        }
        Self {
            rucx: env!("CARGO_PKG_VERSION"),
            error,
            devices,
            config: (all || args.config).then(config::variables),
            system: rows.filter(|_| all || args.system),
            endpoints: args.endpoints.then(endpoints::uses),
            stats: args.stats.then(stats::exercise),
        }
    }

    /// What is wrong, as a program has to be told it: a context that cannot be made, a variable that does not go with others, figures
    /// that cannot be had.
    fn problem(&self) -> Option<&Problem> {
        let of_stats = || self.stats.as_ref().and_then(|stats| stats.error.as_ref());
        let of_config = || self.config.iter().flatten().find_map(|one| one.error.as_ref());
        // A use that has no transport is one that was asked about: the first is as good as any.
        let of_endpoints = || self.endpoints.iter().flatten().find_map(|one| one.error.as_ref());
        self.error.as_ref().or_else(of_config).or_else(of_endpoints).or_else(of_stats)
    }

    /// What does not work, of what was asked for.
    fn broken(&self) -> Vec<&str> {
        let rows = self.system.iter().flatten().filter(|row| row.state == State::Missing);
        let transports = self.devices.iter().flatten().filter(|one| one.export_fault.is_some());
        rows.map(|row| row.name).chain(transports.map(|one| one.name)).collect()
    }
}

/// Tells.
pub(crate) fn run(args: &Args) -> ExitCode {
    let report = Report::gather(args);
    let printed = if args.json {
        json(&report)
    } else if args.is_summary() {
        text::summary(&report).print()
    } else {
        text::page(&report).print()
    };
    match printed {
        Ok(()) => {}
        // Who has closed the pipe has read what was wanted.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return ExitCode::SUCCESS,
        Err(error) => {
            ui::complain(&format!("standard output: {error}"));
            return ExitCode::FAILURE;
        }
    }
    // A page has said so.
    let broken = report.broken();
    if args.json && !broken.is_empty() {
        ui::complain(&format!("this does not work here: {}", broken.join(", ")));
    }
    let problem = report.problem();
    if let Some(problem) = problem.filter(|_| args.json) {
        ui::complain(&format!("{}; remedy: {}", problem.text, problem.remedy));
    }
    if problem.is_none() && broken.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn json(report: &Report) -> io::Result<()> {
    let mut out = io::stdout().lock();
    serde_json::to_writer_pretty(&mut out, report)?;
    writeln!(out)?;
    out.flush()
}
