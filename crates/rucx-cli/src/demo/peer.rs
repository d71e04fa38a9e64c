//! The PEER: has memory that others reach by an endpoint, and does nothing.

use std::process::ExitCode;
use std::time::Instant;

use ucp::{Context, Features, MemMap, Region, Worker};

use super::protocol::{Command, Descriptor, Fault, Report};
use super::role::{self, Link, Role, fault, mistake};
use crate::frame::Secret;
use crate::units::in_nanos;

pub(crate) fn main(descriptors: Vec<Descriptor>) -> ExitCode {
    role::serve(descriptors, Features::RMA, |ctx| Peer { met: None, ctx })
}

struct Peer {
    met: Option<(Region, Worker)>,
    ctx: Context,
}

impl Peer {
    fn region(&self) -> Result<&Region, Fault> {
        self.met.as_ref().map(|(region, _)| region).ok_or_else(|| mistake("no region"))
    }

    fn meet(&mut self, size: u64) -> Result<Report, Fault> {
        let size = usize::try_from(size).map_err(|_| mistake("more than this machine can address"))?;
        let start = Instant::now();
        let worker = self.ctx.worker().map_err(fault)?;
        let region = self.ctx.mem_map(MemMap::allocate(size)).map_err(fault)?;
        let (address, rkey) = (worker.address().map_err(fault)?, region.rkey_pack().map_err(fault)?);
        let report = Report::Met {
            address: Secret(address.as_bytes().to_vec()),
            rkey: Secret(rkey.as_bytes().to_vec()),
            nanos: in_nanos(start.elapsed()),
        };
        self.met = Some((region, worker));
        Ok(report)
    }
}

impl Role for Peer {
    fn answer(&mut self, command: Command, _: &mut Link) -> Result<Report, Fault> {
        match command {
            Command::Meet { size } => self.meet(size),
            Command::Usage {} => Ok(role::usage()),
            Command::Fill { seed, .. } => role::fill(self.region()?, seed),
            Command::Sum { .. } => role::sum(self.region()?),
            _ => Err(mistake("this is not for the PEER")),
        }
    }
}
