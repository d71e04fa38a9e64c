//! The HOST: maps memory, exports it, revokes it.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::Instant;

use ucp::{Context, Features, MemMap, PackedMemh, Region};

use super::bell;
use super::measure::measure;
use super::protocol::{Command, Descriptor, Fault, Report};
use super::role::{self, Link, Role, fault, mistake, said};
use crate::frame::Secret;
use crate::units::in_nanos;

/// What is written over the first page as soon as a revocation has returned.
const AFTERWARDS: [u8; 4096] = [0xee; 4096];

pub(crate) fn main(descriptors: Vec<Descriptor>) -> ExitCode {
    role::serve(descriptors, Features::EXPORTED_MEMH, |ctx| Host {
        exports: BTreeMap::new(),
        regions: BTreeMap::new(),
        ctx,
    })
}

struct Host {
    exports: BTreeMap<u8, Exported>,
    regions: BTreeMap<u8, Region>,
    ctx: Context,
}

struct Exported {
    handle: PackedMemh,
    region: u8,
}

impl Host {
    fn region(&self, slot: u8) -> Result<&Region, Fault> {
        self.regions.get(&slot).ok_or_else(|| mistake("no such region"))
    }

    fn export(&self, slot: u8) -> Result<&Exported, Fault> {
        self.exports.get(&slot).ok_or_else(|| mistake("no such export"))
    }

    fn map(&mut self, slot: u8, size: u64, read_only: bool) -> Result<Report, Fault> {
        let size = usize::try_from(size).map_err(|_| mistake("more than this machine can address"))?;
        let map = MemMap::allocate(size).exported();
        let map = if read_only { map.read_only() } else { map };
        let start = Instant::now();
        let region = self.ctx.mem_map(map).map_err(fault)?;
        let nanos = in_nanos(start.elapsed());
        let report = Report::Mapped {
            address: region.address(),
            len: region.len() as u64,
            rights: region.rights().as_str().to_owned(),
            said: said(region.md_results()),
            nanos,
        };
        self.regions.insert(slot, region);
        Ok(report)
    }

    fn pack(&mut self, slot: u8, region: u8) -> Result<Report, Fault> {
        let start = Instant::now();
        let handle = self.region(region)?.memh_pack().map_err(fault)?;
        let nanos = in_nanos(start.elapsed());
        let report = Report::Packed {
            handle: Secret(handle.as_bytes().to_vec()),
            debug: format!("{handle:?}"),
            said: said(&handle.md_results()),
            nanos,
        };
        self.exports.insert(slot, Exported { handle, region });
        Ok(report)
    }

    fn revoke(&self, slot: u8) -> Result<Report, Fault> {
        let export = self.export(slot)?;
        let region = self.region(export.region)?;
        let start = Instant::now();
        export.handle.revoke().map_err(fault)?;
        let nanos = in_nanos(start.elapsed());
        let page = AFTERWARDS.len().min(region.len());
        region.write(0, &AFTERWARDS[..page]).map_err(fault)?;
        Ok(Report::Done { nanos })
    }

    fn measure_own(&self, slot: u8) -> Result<Report, Fault> {
        let import = self.ctx.mem_import(self.export(slot)?.handle.as_bytes()).map_err(fault)?;
        let timings = measure(&import).map_err(fault)?;
        Ok(Report::Measured { transport: import.transport().to_owned(), timings })
    }
}

impl Role for Host {
    fn answer(&mut self, command: Command, _: &mut Link) -> Result<Report, Fault> {
        match command {
            Command::Map { slot, size, read_only } => self.map(slot, size, read_only),
            Command::Pack { slot, region } => self.pack(slot, region),
            Command::Revoke { slot } => self.revoke(slot),
            Command::Answer { region } => bell::answer(self.region(region)?).map_err(fault),
            Command::MeasureOwn { slot } => self.measure_own(slot),
            Command::Usage {} => Ok(role::usage()),
            Command::Fill { slot, seed } => role::fill(self.region(slot)?, seed),
            Command::Sum { slot } => role::sum(self.region(slot)?),
            Command::Load { slot, offset } => {
                let value = self.region(slot)?.load(offset).map_err(fault)?;
                Ok(Report::Word { value })
            }
            Command::Store { slot, offset, value } => {
                self.region(slot)?.store(offset, value).map_err(fault)?;
                Ok(Report::Done { nanos: 0 })
            }
            _ => Err(mistake("this is not for the HOST")),
        }
    }
}
