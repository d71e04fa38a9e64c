//! `rucx import`: reads and writes the memory that `rucx export` exports.

mod actions;
mod hex;
mod source;
mod watch;

use std::io::{self, IsTerminal};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use ucp::wire::handle::HandleReason;
use ucp::{Context, Features, ImportError, ImportedRegion, Status};

use crate::args::{self, Span, Write};
use crate::pattern::Pattern;
use crate::trouble::{self, Failure, Trouble};
use crate::ui::{Ui, Who};
use crate::{settings, units};

/// What `rucx import --help` says.
pub(crate) const ABOUT: &str = "\
Imports the memory whose handle `rucx export` has left in a file or gives away
at a socket, and says by which transport it is reached, and why. Then does
what it is told, in this order: fill, write, read, verify, watch.";

/// Below that.
pub(crate) const EXAMPLES: &str = "\
Ranges are OFFSET:LEN or OFFSET..END; numbers may end with K, M, G
or T (or KiB, ...); 0x10000 is hexadecimal.
Patterns are those of rucx export: zero, count, random:SEED, text:STRING.

--watch without a range, or with one without an end, watches 256 MiB at most.

Examples:
  rucx export --out /tmp/handle            in the other terminal, first
  rucx import /tmp/handle                  which transport, and why?
  rucx import /tmp/handle --read 4K:256
  rucx import /tmp/handle --write 4096=hello
  rucx import /tmp/handle --verify count
  rucx import /tmp/handle --watch          what changes, until it is revoked
  rucx import /tmp/rucx.sock --read 0..1M --raw > first.bin
  cat /tmp/handle | rucx import - --read 0:64

UCX_IMPORT_TIMEOUT bounds each wait for the other side. The exit status is 0
if all was done, 1 if something failed or differs, 2 for wrong arguments.";

/// Arguments of `rucx import`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The file or socket that rucx export has made; - is standard input
    #[arg(value_name = "FILE|SOCKET")]
    from: PathBuf,
    /// Print this part of the memory in hexadecimal
    #[arg(long, value_name = "RANGE")]
    read: Option<Span>,
    /// With --read: the bytes themselves, to a file or a pipe
    #[arg(long, requires = "read")]
    raw: bool,
    /// Write this text; may be given several times
    #[arg(long, value_name = "OFFSET=TEXT")]
    write: Vec<Write>,
    /// Fill all of it: zero, count, random:SEED or text:STRING
    #[arg(long, value_name = "PATTERN")]
    fill: Option<Pattern>,
    /// Compare all of it, and say where the first difference is
    #[arg(long, value_name = "PATTERN")]
    verify: Option<Pattern>,
    /// Print what changes, there or anywhere, until it is revoked or Ctrl-C
    #[arg(long, value_name = "RANGE", num_args = 0..=1, default_missing_value = "..", value_parser = watched)]
    watch: Option<Span>,
    /// How often --watch looks: 1ms or more
    #[arg(long, value_name = "DURATION", default_value = "200ms", value_parser = args::interval)]
    interval: Duration,
}

fn watched(text: &str) -> Result<Span, String> {
    text.parse().map_err(|error| format!("{error}; a FILE or SOCKET stands before --watch"))
}

/// Imports, and does what the arguments say.
pub(crate) fn run(args: &Args) -> ExitCode {
    let mut ui = if args.raw { Ui::beside_output() } else { Ui::new(false) };
    let outcome = import(args, &mut ui);
    trouble::end(&mut ui, Who::Dpu, outcome)
}

fn import(args: &Args, ui: &mut Ui) -> Result<bool, Failure> {
    if args.raw && io::stdout().is_terminal() {
        return Err(Failure::Usage("--raw is nothing for a terminal: redirect it to a file or a pipe"));
    }
    ui.title(
        concat!("rucx ", env!("CARGO_PKG_VERSION"), " import"),
        &settings::in_words(&settings::variables(None)),
    )?;
    let ctx = Context::builder()
        .features(Features::EXPORTED_MEMH)
        .build()
        .map_err(|error| Trouble::of("make a context", error))?;
    let patience = ctx.config().get(&uct::config::IMPORT_TIMEOUT);
    let found = source::find(&args.from, patience)?;
    if let Some(warning) = &found.warning {
        ui.say(Who::Dpu, warning)?;
    }
    let begin = Instant::now();
    let mem = ctx.mem_import(&found.bytes).map_err(refused)?;
    let took = units::nanos(units::in_nanos(begin.elapsed()));
    let (len, rights, transport) = (units::bytes(mem.len()), mem.rights().as_str(), mem.transport());
    ui.say(Who::Dpu, &format!("imported {len}, {rights}, over {transport} in {took}; why {transport}:"))?;
    trouble::said(ui, &mem.md_results())?;
    act(args, &mem, ui)
}

/// The handle cannot be imported. The remedy is of the command, where that of the library is of its interface.
fn refused(error: ImportError) -> Failure {
    let remedy = match &error {
        ImportError::InvalidHandle(error) if is_of_another_version(error.reason) => {
            Some("use the same version of rucx on both sides")
        }
        _ if matches!(error.status(), Status::InvalidHandle | Status::AccessDenied) => {
            Some("pass on exactly the bytes that rucx export gave")
        }
        _ => None,
    };
    let trouble = Trouble::of("import the handle", error);
    match remedy {
        Some(remedy) => trouble.with_remedy(remedy),
        None => trouble,
    }
}

/// Whether a handle is well formed, as far as can be told, and made by another version.
fn is_of_another_version(reason: HandleReason) -> bool {
    matches!(reason, HandleReason::Version { .. } | HandleReason::UnknownMandatory { .. })
}

/// Does what the arguments say; whether nothing differs.
fn act(args: &Args, mem: &ImportedRegion, ui: &mut Ui) -> Result<bool, Failure> {
    if let Some(pattern) = &args.fill {
        actions::fill(mem, pattern, ui)?;
    }
    for write in &args.write {
        actions::write(mem, write, ui)?;
    }
    if let Some(span) = args.read {
        actions::read(mem, span, args.raw, ui)?;
    }
    let mut last = format!("{} imported over {}", units::bytes(mem.len()), mem.transport());
    if let Some(pattern) = &args.verify {
        last = match actions::verify(mem, pattern, ui)? {
            Ok(same) => same,
            Err(differs) => {
                ui.close(false, &differs)?;
                return Ok(false);
            }
        };
    }
    if let Some(span) = args.watch {
        last = watch::watch(mem, span, args.interval, ui)?;
    }
    ui.close(true, &last)?;
    Ok(true)
}
