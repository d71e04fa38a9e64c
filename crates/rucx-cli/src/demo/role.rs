//! What all roles do alike: commands from standard input, answers to standard output.

use std::io::{self, IsTerminal, StdinLock, StdoutLock};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};
use ucp::{AccessError, Context, Features, ImportError, MapError, MdResults};

use super::isolation;
use super::protocol::{Command, Descriptor, Fault, Report, Said};
use crate::frame::{self, FrameError};
use crate::memory::{Memory, each_chunk};
use crate::parent;
use crate::pattern::Pattern;
use crate::ui::complain;
use crate::units::in_nanos;

/// A role: answers commands.
pub(crate) trait Role {
    /// Answers a command; what comes before the answer goes to `link`.
    ///
    /// # Errors
    /// What the library answered.
    fn answer(&mut self, command: Command, link: &mut Link) -> Result<Report, Fault>;
}

/// The pipes to the demo.
pub(crate) struct Link {
    from: StdinLock<'static>,
    to: StdoutLock<'static>,
}

impl Link {
    /// Tells the demo.
    pub(crate) fn send(&mut self, report: &Report) -> Result<(), FrameError> {
        frame::send(&mut self.to, report)
    }
}

/// Answers the demo's commands until it closes the pipe, with a context of these features.
pub(crate) fn serve<R: Role>(
    descriptors: Vec<Descriptor>,
    features: Features,
    make: impl FnOnce(Context) -> R,
) -> ExitCode {
    if io::stdin().is_terminal() || io::stdout().is_terminal() {
        complain("this is a part of `rucx demo`, which starts it by itself");
        return ExitCode::from(2);
    }
    let mut link = Link { from: io::stdin().lock(), to: io::stdout().lock() };
    match converse(&mut link, descriptors, features, make) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            complain(&format!("talking to the demo: {error}"));
            ExitCode::FAILURE
        }
    }
}

fn converse<R: Role>(
    link: &mut Link,
    descriptors: Vec<Descriptor>,
    features: Features,
    make: impl FnOnce(Context) -> R,
) -> Result<(), FrameError> {
    let Some(Command::Hello { parent }) = frame::receive(&mut link.from)? else {
        return Err(FrameError::Malformed("the first command is Hello"));
    };
    parent::die_with(parent)?;
    let ctx = match Context::builder().features(features).build() {
        Ok(ctx) => ctx,
        Err(error) => {
            link.send(&Report::Failed { fault: fault(error) })?;
            // Stays until the demo has read that.
            return frame::receive::<Command>(&mut link.from).map(drop);
        }
    };
    link.send(&Report::Ready {
        pid: std::process::id(),
        environment: isolation::environment(),
        arguments: std::env::args_os().skip(1).map(|arg| arg.to_string_lossy().into_owned()).collect(),
        descriptors,
    })?;
    let mut role = make(ctx);
    while let Some(command) = frame::receive(&mut link.from)? {
        let report = role.answer(command, link).unwrap_or_else(|fault| Report::Failed { fault });
        link.send(&report)?;
    }
    Ok(())
}

/// Writes the pattern of `seed` to all of `mem`; sums what it writes.
///
/// # Errors
/// What the library answered.
pub(crate) fn fill(mem: &impl Memory, seed: u64) -> Result<Report, Fault> {
    let pattern = Pattern::Random(seed);
    moved(mem.size(), |offset, chunk| {
        pattern.fill(offset, chunk);
        let start = Instant::now();
        mem.put(offset, chunk)?;
        Ok(in_nanos(start.elapsed()))
    })
}

/// Reads all of `mem`; sums what it reads.
///
/// # Errors
/// What the library answered.
pub(crate) fn sum(mem: &impl Memory) -> Result<Report, Fault> {
    moved(mem.size(), |offset, chunk| {
        let start = Instant::now();
        mem.get(offset, chunk)?;
        Ok(in_nanos(start.elapsed()))
    })
}

fn moved(
    size: u64,
    mut step: impl FnMut(u64, &mut [u8]) -> Result<u64, AccessError>,
) -> Result<Report, Fault> {
    let (mut crc, mut nanos) = (0, 0);
    each_chunk(0, size, |offset, chunk| {
        nanos += step(offset, chunk)?;
        crc = crc32c::crc32c_append(crc, chunk);
        Ok(())
    })
    .map_err(|error: AccessError| fault(error))?;
    Ok(Report::Moved { bytes: size, crc, nanos })
}

/// How much CPU time this process has taken, all threads together: what `getrusage(2)` has, in nanoseconds.
pub(crate) fn usage() -> Report {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    let nanos = Duration::try_from(time).map_or(0, in_nanos);
    Report::Used { nanos }
}

/// What transports said, for the demo.
pub(crate) fn said(results: &MdResults) -> Vec<Said> {
    let tell = |yes, what: &str| (yes, what.to_owned());
    results
        .iter()
        .map(|result| {
            let (yes, what) = match &result.outcome {
                Ok(how) => tell(true, how),
                Err(why) => tell(false, why),
            };
            Said { transport: result.component.to_string(), yes, what }
        })
        .collect()
}

/// An error of the library, for the demo.
pub(crate) fn fault(error: impl Into<ucp::Error>) -> Fault {
    let error = error.into();
    let said = match &error {
        ucp::Error::Import(
            ImportError::Unreachable { results, .. }
            | ImportError::Stale { results }
            | ImportError::AccessDenied { results }
            | ImportError::Forged { results },
        )
        | ucp::Error::Map(MapError::NotExportable { results }) => said(results),
        _ => Vec::new(),
    };
    Fault { status: format!("{:?}", error.status()), error: error.to_string(), remedy: error.remedy(), said }
}

/// A mistake of the demo itself.
pub(crate) fn mistake(what: &str) -> Fault {
    Fault {
        status: "InvalidParam".to_owned(),
        error: what.to_owned(),
        remedy: "report it: the demo has asked for what there is not".to_owned(),
        said: Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::CHUNK;

    #[test]
    fn the_sum_of_what_was_written_is_that_of_what_is_read() {
        let ctx = Context::builder().ignore_env().build().unwrap();
        let mem = ctx.mem_map(ucp::MemMap::allocate(CHUNK + 13)).unwrap();
        let crc = |report| match report {
            Report::Moved { bytes, crc, .. } => {
                assert_eq!(bytes, CHUNK as u64 + 13);
                crc
            }
            other => panic!("{other:?}"),
        };
        let written = crc(fill(&mem, 7).unwrap());
        assert_eq!(crc(sum(&mem).unwrap()), written);
        mem.write(CHUNK as u64 + 12, &[0; 1]).unwrap();
        let mut last = [0];
        mem.read(CHUNK as u64 + 12, &mut last).unwrap();
        assert_eq!(last, [0]);
        assert_ne!(crc(fill(&mem, 8).unwrap()), written);
    }
}
