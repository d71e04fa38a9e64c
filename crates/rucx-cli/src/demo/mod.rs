//! `rucx demo`: two processes share memory by a handle.
//!
//! ```text
//!  HOST ── reports, handle ──▶ demo ── commands, handle ──▶ DPU
//!   ▲                           │ ▲                          │
//!   └──────── commands ─────────┘ └───────── reports ────────┘
//! ```
//!
//! `rucx demo offload` has a third role, the PEER. All roles are this program, executed anew. All arrows are pipes; the memory itself is what this is about.

mod bell;
mod child;
pub(crate) mod dpu;
pub(crate) mod host;
pub(crate) mod isolation;
mod measure;
mod offload;
mod past;
pub(crate) mod peer;
mod protocol;
mod role;
mod secrecy;
mod stage;
mod steps;

use std::process::ExitCode;
use std::time::Duration;

use clap::builder::NonEmptyStringValueParser;
use ucs::config::{Bytes, Value};

use self::child::{Failure, Roles, Start};
use self::protocol::Descriptor;
use self::stage::Stage;
use crate::settings;
use crate::ui::{self, Ui, Who};

/// What `rucx demo --help` says.
pub(crate) const ABOUT: &str = "\
Runs two processes which share nothing but pipes. The HOST maps memory and
exports it; the bytes of the handle go through the pipes to the DPU, which
imports it, and reads and writes the HOST's memory. Then the HOST revokes it.
Every step is checked by comparing what the two processes report.
The exit status is 0 only if all checks held.";

/// Below that.
pub(crate) const EXAMPLES: &str = "\
Examples:
  rucx demo               64 MiB, all transports
  rucx demo --size 1G     1 GiB
  rucx demo --tls self    what fails when no transport reaches the other side
  rucx demo --quiet       the last line only
  rucx demo offload       a DPU moves bytes between a HOST that does nothing,
                          not even run, and a third process";

/// The least memory that the steps need.
const LEAST: u64 = 4096;

/// Arguments of `rucx demo`.
#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    story: Option<Story>,
    #[command(flatten)]
    options: Options,
}

/// Another story than the first one.
#[derive(Debug, clap::Subcommand)]
enum Story {
    /// A DPU moves bytes for a HOST that sleeps, and is stopped
    #[command(long_about = offload::ABOUT, after_help = offload::EXAMPLES)]
    Offload(OffloadArgs),
}

/// Options of `rucx demo offload`.
#[derive(Debug, clap::Args)]
struct OffloadArgs {
    #[command(flatten)]
    options: Options,
    /// Run the PEER in this network namespace, by `ip netns exec`
    #[arg(long, value_name = "NAME", value_parser = NonEmptyStringValueParser::new())]
    peer_netns: Option<String>,
}

/// Options of all stories.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// How much memory to export: 8192, 4K, 1M, 2G
    #[arg(long, value_name = "BYTES", default_value = "64M", value_parser = size)]
    size: Bytes,
    /// Transports all processes may use, as UCX_TLS: shm,self
    #[arg(long, value_name = "LIST", value_parser = NonEmptyStringValueParser::new())]
    tls: Option<String>,
    /// Print the last line only
    #[arg(long, short)]
    quiet: bool,
}

fn size(text: &str) -> Result<Bytes, String> {
    let size = Bytes::parse(text).map_err(|error| error.to_string())?;
    if size.get() < LEAST { Err(format!("the demo needs {LEAST} bytes at least")) } else { Ok(size) }
}

/// How long an answer may take: filling memory takes longer the more there is.
fn patience(size: u64) -> Duration {
    Duration::from_secs(10 + (size >> 27))
}

/// Runs the demo. `inherited`: the descriptors this process was started with.
pub(crate) fn run(args: &Args, inherited: &[Descriptor]) -> ExitCode {
    let (story, options) = match &args.story {
        None => (None, &args.options),
        Some(story @ Story::Offload(args)) => (Some(story), &args.options),
    };
    let mut ui = Ui::new(options.quiet);
    match play(story, options, inherited, &mut ui) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        // Who has closed the pipe does not want to read on.
        Err(Failure::Output(error)) if error.kind() == std::io::ErrorKind::BrokenPipe => ExitCode::FAILURE,
        Err(Failure::Output(error)) => {
            ui::complain(&format!("standard output: {error}"));
            ExitCode::FAILURE
        }
        Err(failure) => {
            let closed = ui.close(false, &failure.to_string());
            if closed.is_err() {
                ui::complain(&failure.to_string());
            }
            ExitCode::FAILURE
        }
    }
}

fn play(
    story: Option<&Story>,
    options: &Options,
    inherited: &[Descriptor],
    ui: &mut Ui,
) -> Result<bool, Failure> {
    let variables = settings::variables(options.tls.as_deref());
    let settings = settings::in_words(&variables);
    let title = match story {
        None => concat!("rucx ", env!("CARGO_PKG_VERSION"), " demo"),
        Some(Story::Offload(_)) => concat!("rucx ", env!("CARGO_PKG_VERSION"), " demo offload"),
    };
    ui.title(title, &settings)?;
    let size = options.size.get();
    let netns = story.and_then(|Story::Offload(args)| args.peer_netns.as_deref());
    let all = [
        Start { who: Who::Host, command: "demo-host", netns: None },
        Start { who: Who::Dpu, command: "demo-dpu", netns: None },
        Start { who: Who::Peer, command: "demo-peer", netns },
    ];
    let roles = if story.is_some() { &all[..] } else { &all[..2] };
    let roles = Roles::start(roles, &variables, patience(size))?;
    let mut stage = Stage::new(ui, roles, size);
    match story {
        None => steps::all(&mut stage, inherited),
        Some(Story::Offload(_)) => offload::play(&mut stage, inherited),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        assert_eq!(size("4K"), Ok(Bytes::new(4096)));
        assert_eq!(size("64M"), Ok(Bytes::new(64 << 20)));
        assert!(size("4095").is_err_and(|error| error.contains("4096 bytes at least")));
        assert!(size("lots").is_err());
    }

    #[test]
    fn more_memory_may_take_longer() {
        assert!(patience(1 << 40) > patience(64 << 20));
        assert!(patience(0) >= Duration::from_secs(10));
    }
}
