//! The DPU: imports what the HOST has exported, reads and writes it.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use ucp::{Context, ImportedRegion};

use super::measure::measure;
use super::protocol::{Command, Descriptor, Fault, Report};
use super::role::{self, Link, Role, fault, mistake, said};
use super::{bell, past};
use crate::units::in_nanos;

/// How long it reads on, waiting to be refused.
const PATIENCE: Duration = Duration::from_secs(5);

pub(crate) fn main(descriptors: Vec<Descriptor>) -> ExitCode {
    role::serve(descriptors, |ctx| Dpu { imports: BTreeMap::new(), ctx })
}

struct Dpu {
    imports: BTreeMap<u8, ImportedRegion>,
    ctx: Context,
}

impl Dpu {
    fn import(&self, slot: u8) -> Result<&ImportedRegion, Fault> {
        self.imports.get(&slot).ok_or_else(|| mistake("no such import"))
    }

    /// Imports the handle twice: the second time it is known.
    fn take(&mut self, slot: u8, handle: &[u8]) -> Result<Report, Fault> {
        let start = Instant::now();
        let import = self.ctx.mem_import(handle).map_err(fault)?;
        let nanos = in_nanos(start.elapsed());
        let start = Instant::now();
        let again = self.ctx.mem_import(handle).map_err(fault)?;
        let again_nanos = in_nanos(start.elapsed());
        let report = Report::Imported {
            transport: import.transport().to_owned(),
            len: import.len(),
            rights: import.rights().as_str().to_owned(),
            said: said(&import.md_results()),
            nanos,
            again_nanos,
            again_same: import.is_same(&again),
        };
        self.imports.insert(slot, import);
        Ok(report)
    }

    fn read_on(&self, slot: u8, link: &mut Link) -> Result<Report, Fault> {
        let import = self.import(slot)?;
        let len = usize::try_from(import.len()).map_or(4096, |len| len.min(4096));
        let (mut first, mut page) = (vec![0; len], vec![0; len]);
        import.read(0, &mut first).map_err(fault)?;
        link.send(&Report::Reading {}).map_err(|error| mistake(&error.to_string()))?;
        let deadline = Instant::now() + PATIENCE;
        let (mut same, mut other) = (1, 0);
        while Instant::now() < deadline {
            match import.read(0, &mut page) {
                Ok(()) => *(if page == first { &mut same } else { &mut other }) += 1,
                Err(error) => return Ok(Report::Refused { same, other, fault: fault(error) }),
            }
        }
        Err(mistake("nothing has refused the reads"))
    }
}

impl Role for Dpu {
    fn answer(&mut self, command: Command, link: &mut Link) -> Result<Report, Fault> {
        match command {
            Command::Import { slot, handle } => self.take(slot, &handle.0),
            Command::Ring { slot, rounds } => bell::ring(self.import(slot)?, rounds).map_err(fault),
            Command::Measure { slot } => {
                let import = self.import(slot)?;
                let timings = measure(import).map_err(fault)?;
                Ok(Report::Measured { transport: import.transport().to_owned(), timings })
            }
            Command::WritePast { slot, exporter } => Ok(past::write(self.import(slot)?, exporter)),
            Command::ReadOn { slot } => self.read_on(slot, link),
            Command::Fill { slot, seed } => role::fill(self.import(slot)?, seed),
            Command::Sum { slot } => role::sum(self.import(slot)?),
            Command::Load { slot, offset } => {
                let value = self.import(slot)?.load(offset).map_err(fault)?;
                Ok(Report::Word { value })
            }
            Command::Store { slot, offset, value } => {
                self.import(slot)?.store(offset, value).map_err(fault)?;
                Ok(Report::Done { nanos: 0 })
            }
            _ => Err(mistake("this is not for the DPU")),
        }
    }
}
