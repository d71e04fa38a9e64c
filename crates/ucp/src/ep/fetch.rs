//! Data of a rendezvous that is read where the sender has it.

use std::collections::VecDeque;
use std::fmt;

use ucs::Status;
use uct::api::PeerMemory;
use uct::memory::AccessError;

use super::op::{AnyOp, Done, ReceiveOp};
use super::state::{Corrupt, State, out_of_range};
use crate::wire::am::{Kind, Pair};

/// Bytes that are read by one step of progress: a tenth of a millisecond.
const STEP: usize = 1 << 20;

/// The peer's memory.
#[derive(Default)]
pub(crate) enum Reach {
    /// Nobody has wanted it.
    #[default]
    Untried,
    /// It cannot be read.
    Never,
    By(Box<dyn PeerMemory>),
}

/// Data that is being read.
#[derive(Debug)]
pub(crate) struct Fetch {
    /// The peer's number of it.
    request: u32,
    /// Where the peer has it.
    address: u64,
    length: usize,
    pub(super) op: Box<dyn ReceiveOp>,
    /// Bytes that have been read.
    done: usize,
}

impl Fetch {
    pub(crate) fn new(request: u32, address: u64, length: usize, op: Box<dyn ReceiveOp>) -> Self {
        Self { request, address, length, op, done: 0 }
    }

    /// Reads the next bytes.
    fn step(&mut self, memory: &mut dyn PeerMemory) -> Result<(), AccessError> {
        let (from, to) = (self.done, self.length.min(self.done + STEP));
        let operand = self.op.local_mut();
        // As long as was announced, when it was given: what an operand says later is not believed.
        if operand.len() < to {
            return Err(out_of_range(from, to - from, operand.len()).into());
        }
        let read = memory.get(self.address.wrapping_add(from as u64), &mut operand.range(from..to));
        read.map_err(|error| error.after(from as u64))?;
        self.done = to;
        Ok(())
    }
}

impl State {
    /// Reads a part of the first of what is to be read.
    pub(crate) fn fetch(&mut self, done: &mut VecDeque<Done>) -> Result<(), Corrupt> {
        let Some(mut fetch) = self.fetches.pop_front() else { return Ok(()) };
        let result = match &mut self.reach {
            Reach::By(memory) => fetch.step(&mut **memory),
            _ => Err(AccessError::Unsupported { why: "the peer's memory cannot be read" }),
        };
        let ended = match result {
            Ok(()) if fetch.done < fetch.length => {
                self.fetches.push_front(fetch);
                return Ok(());
            }
            Ok(()) => Ok(()),
            Err(error @ (AccessError::Operand { .. } | AccessError::Bounds(_))) => Err(error),
            // The peer sends it, or says why not.
            Err(error) => {
                tracing::debug!(%error, "data is asked for that cannot be read");
                if !matches!(error, AccessError::Stale { .. }) {
                    self.reach = Reach::Never;
                }
                return self.receive(fetch.request, fetch.length, fetch.op);
            }
        };
        let status = ended.as_ref().map_or_else(AccessError::status, |()| Status::Ok);
        done.push_back((AnyOp::Receive(fetch.op), ended.map_err(Into::into)));
        self.answer(Kind::Drop, Pair(fetch.request, status as u32))
    }
}

impl fmt::Debug for Reach {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Untried => "Untried",
            Self::Never => "Never",
            Self::By(_) => "By",
        })
    }
}
