//! A worker's address, and connecting to another's.

use std::fmt;
use std::rc::Rc;

use ucs::time::Deadline;
use uct::api::AttachError;
use zeroize::Zeroizing;

use super::{Worker, WorkerError};
use crate::ep::state::Ep;
use crate::ep::{ConnectError, Endpoint};
use crate::mem::MdResults;
use crate::proto;
use crate::wire::address::{self, Entry};

/// The address of a worker, for [`Worker::connect`] of another. Send + Sync.
///
/// **The bytes are a secret**: who has them may connect. `Debug` does not show them.
#[doc(alias = "ucp_address_t")]
pub struct WorkerAddress(Zeroizing<Vec<u8>>);

impl WorkerAddress {
    /// Its bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for WorkerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "WorkerAddress(<{} secret bytes>)", self.0.len())
    }
}

impl Worker {
    /// Its address, for peers that connect to it.
    ///
    /// # Errors
    /// [`WorkerError`].
    #[doc(alias = "ucp_worker_get_address")]
    pub fn address(&self) -> Result<WorkerAddress, WorkerError> {
        self.inner.check_fork()?;
        let ifaces = self.inner.ifaces.borrow();
        let mut entries: Vec<Entry> = ifaces
            .iter()
            .zip(&self.inner.lanes)
            .map(|(iface, lane)| Entry { component: lane.component.0, bytes: iface.address() })
            .collect();
        entries.sort_by_key(|entry| entry.component);
        let bytes = address::encode(&entries).map_err(|_| WorkerError::AddressTooLong)?;
        Ok(WorkerAddress(Zeroizing::new(bytes)))
    }

    /// Connects to the worker whose address these bytes are, by the transport whose messages cost least of those that reach it.
    ///
    /// Blocks, at most `UCX_CONNECT_TIMEOUT`; the other worker need not do anything meanwhile.
    ///
    /// # Errors
    /// [`ConnectError`].
    #[doc(alias = "ucp_ep_create")]
    pub fn connect(&self, address: &[u8]) -> Result<Endpoint, ConnectError> {
        self.inner.check_fork().map_err(|_| ConnectError::Forked)?;
        let entries = address::decode(address)?;
        let deadline = Deadline::after(self.inner.connect_timeout);
        let lanes = &self.inner.lanes;
        let mut results = self.inner.ctx.left_out.clone();
        let mut failures = Vec::new();
        let mut order: Vec<usize> = (0..lanes.len()).collect();
        proto::rank(&mut order, 0, |index| lanes[*index].cost);
        for index in order {
            let component = lanes[index].component;
            let Some(entry) = entries.iter().find(|entry| entry.component == component.0) else {
                results.push(component, Err("not offered by the peer".to_owned()));
                continue;
            };
            let connected = self.inner.ifaces.borrow_mut()[index].connect(&entry.bytes, &deadline);
            match connected {
                Ok(new) => {
                    let ep = Rc::new(Ep::new(index, new.ep, new.peer, true));
                    self.inner.core.borrow_mut().add(&ep);
                    return Ok(Endpoint::new(&self.inner, &ep));
                }
                Err(error) => {
                    results.push(component, Err(error.to_string()));
                    failures.push(error);
                }
            }
        }
        Err(verdict(failures, results))
    }
}

/// The one error for what the interfaces said.
fn verdict(failures: Vec<AttachError>, results: MdResults) -> ConnectError {
    // Of those that lead elsewhere the last, which leads farthest; of others the first.
    let key = |(index, error): &(usize, AttachError)| {
        let is_elsewhere = matches!(error, AttachError::Elsewhere { .. });
        (error.rank(), if is_elsewhere { usize::MAX - index } else { *index })
    };
    let most = failures.into_iter().enumerate().min_by_key(key);
    match most.map(|(_, error)| error) {
        Some(AttachError::WrongToken | AttachError::Malformed(_) | AttachError::Mismatch) => {
            ConnectError::AccessDenied { results }
        }
        Some(AttachError::Mem(error)) => ConnectError::Mem { error, results },
        Some(AttachError::Stale(_)) => ConnectError::Stale { results },
        Some(error @ AttachError::TooMany) => ConnectError::TooMany { results, advice: error.remedy() },
        Some(error) => ConnectError::Unreachable { results, advice: error.remedy() },
        None => ConnectError::Unreachable {
            results,
            advice: "allow the same transports in UCX_TLS on both sides",
        },
    }
}

#[cfg(test)]
mod tests {
    use ucs::Status;

    use super::*;

    #[test]
    fn a_limit_of_the_peer_s_says_more_than_what_is_out_of_reach_and_less_than_what_is_stale() {
        let status = |failures: &[AttachError]| verdict(failures.to_vec(), MdResults::default()).status();
        let far = AttachError::Unreachable { reason: "far".to_owned(), remedy: "go there" };
        assert_eq!(status(&[far.clone(), AttachError::TooMany]), Status::ExceedsLimit);
        assert_eq!(status(&[AttachError::TooMany, AttachError::Stale("gone"), far.clone()]), Status::Stale);
        let elsewhere = AttachError::Elsewhere { reason: "elsewhere", remedy: "use another one" };
        assert_eq!(verdict(vec![elsewhere.clone(), far], MdResults::default()).remedy(), "go there");
        let farther = AttachError::Elsewhere { reason: "farther", remedy: "go far" };
        let of_both = verdict(vec![elsewhere, farther], MdResults::default());
        assert_eq!(of_both.remedy(), "go far", "of shm rather than of self");
        let error = verdict(vec![AttachError::TooMany], MdResults::default());
        assert_eq!(error.remedy(), AttachError::TooMany.remedy());
    }
}
