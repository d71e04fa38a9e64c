//! The DPU: imports what the HOST has exported, reads and writes it.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use ucp::{Context, Features, ImportedRegion, RemoteRegion, Worker};

use super::measure::measure;
use super::protocol::{Command, Descriptor, Fault, Report};
use super::role::{self, Link, Role, fault, mistake, said};
use super::{bell, past};
use crate::units::in_nanos;

/// How long it reads on, waiting to be refused.
const PATIENCE: Duration = Duration::from_secs(5);

pub(crate) fn main(descriptors: Vec<Descriptor>) -> ExitCode {
    let features = Features::EXPORTED_MEMH | Features::RMA;
    role::serve(descriptors, features, |ctx| Dpu { imports: BTreeMap::new(), peer: None, ctx })
}

struct Dpu {
    imports: BTreeMap<u8, ImportedRegion>,
    peer: Option<Peer>,
    ctx: Context,
}

/// The PEER, as the DPU reaches it.
struct Peer {
    memory: RemoteRegion,
    worker: Worker,
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

    fn connect(&mut self, address: &[u8], rkey: &[u8]) -> Result<Report, Fault> {
        let start = Instant::now();
        let worker = self.ctx.worker().map_err(fault)?;
        let ep = worker.connect(address).map_err(fault)?;
        let memory = ep.rkey_unpack(rkey).map_err(fault)?;
        let report = Report::Connected {
            messages: ep.info().transport.to_owned(),
            memory: memory.transport().to_owned(),
            len: memory.len(),
            nanos: in_nanos(start.elapsed()),
        };
        self.peer = Some(Peer { memory, worker });
        Ok(report)
    }

    /// The HOST's memory is the operand: no byte comes to lie in memory of this process that anybody would have to copy on.
    fn offload(&self, slot: u8, time: Duration) -> Result<Report, Fault> {
        let host = self.import(slot)?;
        let Peer { memory, worker } = self.peer.as_ref().ok_or_else(|| mistake("no peer"))?;
        let half = host.len() / 2;
        let (mut pulled, mut pull_nanos, mut pushed, mut push_nanos) = (0, 0, 0, 0);
        let begin = Instant::now();
        while pulled == 0 || begin.elapsed() < time {
            let start = Instant::now();
            let slice = host.slice(..half).map_err(fault)?;
            let slice = worker.wait(memory.get(0, slice), PATIENCE).map_err(fault)?;
            pull_nanos += in_nanos(start.elapsed());
            pulled += slice.len();
            let start = Instant::now();
            let slice = host.slice(half..).map_err(fault)?;
            let slice = worker.wait(memory.put(half, slice), PATIENCE).map_err(fault)?;
            worker.wait(memory.endpoint().flush(), PATIENCE).map_err(fault)?;
            push_nanos += in_nanos(start.elapsed());
            pushed += slice.len();
        }
        Ok(Report::Offloaded { pulled, pull_nanos, pushed, push_nanos })
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
            Command::Connect { address, rkey } => self.connect(&address.0, &rkey.0),
            Command::Offload { slot, millis } => self.offload(slot, Duration::from_millis(millis)),
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
