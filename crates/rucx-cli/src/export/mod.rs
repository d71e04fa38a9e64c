//! `rucx export`: memory for whoever is given the handle, until it is revoked.
//!
//! ```text
//!  memory ──▶ Region ──▶ handle ──▶ file or socket ──▶ rucx import
//!    │                                                      │
//!    └◀──────────────── reads, writes ◀─────────────────────┘
//! ```

mod close;
mod memory;
mod place;
mod serve;
mod sys;
mod wait;

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::ArgGroup;
use tracing::subscriber::{NoSubscriber, with_default};
use ucp::{ComponentId, Context, Features};
use ucs::config::Value;

use self::memory::Source;
pub(crate) use self::memory::fill;
use self::place::Place;
use self::serve::Server;
use crate::pattern::Pattern;
use crate::signals::Signals;
use crate::trouble::{self, Failure, Trouble};
use crate::ui::{Ui, Who};
use crate::{args, settings, shell, units};

/// What `rucx export --help` says.
pub(crate) const ABOUT: &str = "\
Maps memory, exports it, and leaves the handle where the other terminal can
find it: in a file or at a socket, for this user alone. `rucx import` reads
and writes the memory until this program ends: on Enter, Ctrl-C or a signal
that would end it (SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGALRM, ...),
or after --for. Then it revokes the handle, says whether all accesses had
ended, and removes the file or socket: only SIGKILL leaves one behind. While
accesses in flight are waited for, another signal ends it at once. Who has the
handle has the memory.";

/// Below that.
pub(crate) const EXAMPLES: &str = "\
Sizes may end with K, M, G or T (or KiB, ...); 0x10000 is hexadecimal.
Patterns:
  zero  count (each 8-byte word is its index)  random:SEED (SplitMix64)
  text:STRING (again and again)
--fill with --file overwrites all that is in the file.

Examples:
  rucx export --out /tmp/handle          64 MiB, until Enter or Ctrl-C
  rucx import /tmp/handle --read 0:64    in the other terminal
  rucx export --listen /tmp/rucx.sock    a socket instead of a file
  rucx export --file data.bin --read-only --out /tmp/handle --for 10m
  rucx export --size 1G --fill random:7 --out /tmp/handle
  rucx import /tmp/handle --verify random:7

The exit status is 0 if the export was revoked and all accesses had ended,
1 if something failed, 2 for wrong arguments.";

/// Arguments of `rucx export`.
#[derive(Debug, clap::Args)]
#[command(group = ArgGroup::new("place").required(true).args(["out", "listen"]))]
pub(crate) struct Args {
    /// How much memory to export: 8192, 4K, 1M, 2G
    #[arg(long, value_name = "SIZE", default_value = "64M", value_parser = size)]
    size: u64,
    /// Export this file, mapped, instead of fresh memory
    #[arg(long, value_name = "PATH", conflicts_with_all = ["size", "heap"])]
    file: Option<PathBuf>,
    /// Export a Vec of this process's heap instead
    #[arg(long)]
    heap: bool,
    /// Fill it first: zero, count, random:SEED or text:STRING (a --file too)
    #[arg(long, value_name = "PATTERN")]
    fill: Option<Pattern>,
    /// Write the handle to a new file
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Give the handle to each who connects to this new socket
    #[arg(long, value_name = "SOCKET")]
    listen: Option<PathBuf>,
    /// Importers may only read
    #[arg(long)]
    read_only: bool,
    /// End by itself after this time: 500ms, 10s, 5m, 1h
    #[arg(long = "for", value_name = "DURATION", value_parser = args::time)]
    time: Option<Duration>,
}

fn size(text: &str) -> Result<u64, String> {
    let size = args::bytes(text)?;
    if size == 0 { Err("there is nothing in 0 bytes".to_owned()) } else { Ok(size) }
}

/// Exports until the end.
pub(crate) fn run(args: &Args) -> ExitCode {
    let mut ui = Ui::new(false);
    let outcome = export(args, &mut ui);
    trouble::end(&mut ui, Who::Host, outcome)
}

fn export(args: &Args, ui: &mut Ui) -> Result<bool, Failure> {
    if [&args.out, &args.listen].into_iter().flatten().any(|path| path.as_os_str() == OsStr::new("-")) {
        return Err(Failure::Usage(
            "standard output is where this command speaks: name a file, which `cat FILE | rucx import -` can pass on; \
             one that is really called so is ./-",
        ));
    }
    if args.file.is_some() && args.read_only && args.fill.is_some() {
        return Err(Failure::Usage("--fill writes to the file, and --read-only says not to"));
    }
    ui.title(
        concat!("rucx ", env!("CARGO_PKG_VERSION"), " export"),
        &settings::in_words(&settings::variables(None)),
    )?;
    let (ctx, patience) = context()?;
    let source = Source::map(&ctx, args)?;
    let (region, len) = (&source.region, units::bytes(source.region.len() as u64));
    let rights = region.rights().as_str();
    ui.say(Who::Host, &format!("mapped {len} at {:#x}, {rights}: {}", region.address(), source.kind))?;
    trouble::said(ui, region.md_results())?;
    if let Some(unwritable) = &source.unwritable {
        ui.note(&format!("{}; to have it written: {}", unwritable.reason, unwritable.remedy))?;
    }
    if region.md_results().iter().all(|said| said.outcome.is_err() || said.component == ComponentId::SELF) {
        ui.note("warning: no other process can import it: allow more transports in UCX_TLS, or export fresh memory")?;
    }
    source.fill(args)?;
    if let Some(pattern) = &args.fill {
        let over = args.file.as_ref().map(|file| format!("; {} is overwritten", file.display()));
        ui.say(Who::Host, &format!("filled it: {pattern}{}", over.unwrap_or_default()))?;
    }
    let handle = region.memh_pack().map_err(|error| Trouble::of("pack a handle", error))?;
    ui.say(Who::Host, &format!("packed a handle of {}", units::bytes(handle.as_bytes().len() as u64)))?;
    trouble::said(ui, &handle.md_results())?;

    // From here on there is something to remove: whatever ends this, ends it in order.
    let signals = Signals::catch().map_err(|error| {
        Trouble::own("cannot catch signals", error.to_string(), "see the error of the system")
    })?;
    let place = match (&args.out, &args.listen) {
        (Some(path), _) => Place::file(path, handle.as_bytes())?,
        (None, Some(path)) => Place::socket(path)?,
        (None, None) => return Err(Failure::Usage("one of --out and --listen is needed")),
    };
    let mut server = args.listen.is_some().then(|| Server::new(&place, handle.as_bytes()));
    let until = args.time.and_then(|time| Instant::now().checked_add(time));
    tell_how(ui, args, place.path())?;
    let end = wait::until_the_end(&signals, server.as_mut(), until).map_err(|error| {
        Trouble::own("cannot wait for the end", error.to_string(), "see the error of the system")
    })?;
    let given = server.map(|server| server.given());
    let closed = close::close(ui, end, given, place, &handle, patience, &signals);
    // What it would log of accesses in flight was told.
    with_default(NoSubscriber::new(), || drop(source));
    closed
}

/// A context, and how long a revocation may wait as the user has it: this one waits in steps of less.
fn context() -> Result<(Context, Duration), Failure> {
    let builder = || Context::builder().features(Features::EXPORTED_MEMH);
    let failed = |error| Trouble::of("make a context", error);
    let variable = &uct::config::REVOKE_TIMEOUT;
    let patience = builder().build().map_err(failed)?.config().get(variable);
    let step = patience.min(close::STEP).print();
    let ctx = builder().set(variable.name(), step).build().map_err(failed)?;
    Ok((ctx, patience))
}

/// What to do in the other terminal, and in this one.
fn tell_how(ui: &mut Ui, args: &Args, path: &Path) -> Result<(), Failure> {
    let shown = path.display();
    let (told, socket) = match args.listen {
        None => (format!("the handle is in {shown}, mode 0600"), false),
        Some(_) => (format!("the handle is given to who connects to {shown}, mode 0600"), true),
    };
    ui.say(Who::Host, &told)?;
    let has = if socket { "Who may connect has" } else { "Who reads it has" };
    ui.note(&format!("{has} the memory. In the other terminal:"))?;
    ui.command(&format!("{} import {}", shell::program(), shell::path(path)))?;
    let by_time =
        args.time.map(|time| format!("; after {} it ends by itself", time.print())).unwrap_or_default();
    let how = if wait::has_terminal() {
        "Enter or Ctrl-C here".to_owned()
    } else {
        format!("kill {}", std::process::id())
    };
    ui.note(&format!("To end it: {how}{by_time}."))?;
    Ok(())
}
