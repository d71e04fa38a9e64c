//! A device, its port, and what its queue pairs and registrations are made of.

use std::sync::Arc;

use rdma_core_sys::{DeviceList, ibv_access_flags as Access, ibv_atomic_cap, ibv_qp_cap};
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};

use super::command;
use super::events::Events;
use super::port::{Choice, Port};
use super::queue::{self, Connect};
use super::sys::{Context, Cq, Mr, Pd, Qp};
use crate::api::{OpenError, RegError};
use crate::memory::{AccessError, DeviceReason};

/// Requests on their way at once in one queue pair.
pub(super) const DEPTH: u32 = 16;
/// A queue pair that sends that many requests, and takes no messages.
pub(super) const REQUESTS: ibv_qp_cap =
    ibv_qp_cap { max_send_wr: DEPTH, max_recv_wr: 1, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 };
/// Most READs and atomics at once, in a queue pair: a device has them in common for all of them.
const READS: i32 = 16;

/// An opened device with a protection domain.
#[derive(Debug)]
pub(super) struct Device {
    pub(super) context: Arc<Context>,
    pub(super) pd: Arc<Pd>,
    pub(super) port: Port,
    pub(super) events: Arc<Events>,
    pub(super) max_mr: u64,
    /// Whether it does atomics, towards which its own are atomic.
    pub(super) has_atomics: bool,
    /// Whether imports are given it for theirs: see [`AtomicMode::Device`](crate::config::AtomicMode).
    pub(super) does_atomics: bool,
    /// READs and atomics that a queue pair answers at once, and asks for at once.
    pub(super) reads_in: u8,
    pub(super) reads_out: u8,
    /// Whether a request may name two places.
    pub(super) gathers: bool,
    /// The driver's number for commands that come from other processes; `None`: this kernel takes none.
    pub(super) driver: Option<u32>,
}

/// The names of all devices.
pub(super) fn names() -> Vec<String> {
    match DeviceList::get() {
        Ok(list) => list.names(),
        Err(error) => {
            tracing::debug!(%error, "no RDMA devices");
            Vec::new()
        }
    }
}

fn failed(what: &'static str) -> impl Fn(Errno) -> OpenError {
    move |errno| OpenError::Device { what, errno }
}

impl Connect for Device {
    /// A queue pair that is connected to itself: what is written by it arrives in this device, in memory of the same protection domain.
    fn connect(&self, _lane: u8) -> Result<Qp, AccessError> {
        let call = |call| move |errno| queue::device(DeviceReason::Call { call, errno });
        let cq = Cq::new(&self.context, DEPTH).map_err(call("ibv_create_cq"))?;
        let unconnected = self.queue_pair(cq, REQUESTS, self.peers()).map_err(call("ibv_create_qp"))?;
        let itself = unconnected.address();
        unconnected.connect(&itself).map_err(call("ibv_modify_qp"))
    }
}

impl Device {
    /// The first device there is, whichever port and GID of it: for tests.
    #[cfg(all(test, feature = "rxe-tests"))]
    pub(super) fn any() -> Arc<Self> {
        let choice = Choice { devices: ucs::config::NetDevices::all(), gid_index: ucs::config::OrAuto::Auto };
        let names = names();
        Arc::new(Self::open(names.first().expect("a device"), &choice).expect("it can be opened"))
    }

    /// Opens the device of this name, to be used by the port and GID of the user's choice.
    pub(super) fn open(name: &str, choice: &Choice) -> Result<Self, OpenError> {
        choice.check_device(name)?;
        let absent = OpenError::Missing {
            what: "the RDMA device of this name",
            remedy: "name one that `rdma link` shows",
        };
        let context = Context::open(name).ok_or(absent)?.map_err(failed("ibv_open_device"))?;
        let context = Arc::new(context);
        let properties = context.properties().map_err(failed("ibv_query_device"))?.orig_attr;
        let port = choice.port_of(name, &*context, properties.phys_port_cnt)?;
        let pd = Arc::new(Pd::new(&context).map_err(failed("ibv_alloc_pd"))?);
        let driver = command::driver(context.command_fd());
        let reads = |most: i32| u8::try_from(most.clamp(1, READS)).unwrap_or(1);
        let events = Events::new(&context, name, port.number);
        Ok(Self {
            context,
            pd,
            port,
            events,
            max_mr: properties.max_mr_size,
            has_atomics: properties.atomic_cap != ibv_atomic_cap::IBV_ATOMIC_NONE,
            does_atomics: false,
            reads_in: reads(properties.max_qp_rd_atom),
            reads_out: reads(properties.max_qp_init_rd_atom),
            gathers: properties.max_sge >= 2,
            driver,
        })
    }

    /// What peers may do by a queue pair.
    pub(super) fn peers(&self) -> Access {
        remote_access(true, false, self.has_atomics)
    }

    /// What peers may do with exported memory: read it, and write it where `writes`; where `by_address`, with whatever is mapped there.
    pub(super) fn exported(&self, writes: bool, by_address: bool) -> Access {
        remote_access(writes, by_address, self.has_atomics)
    }

    /// Registers pages of this process for local use.
    pub(super) fn register(&self, address: usize, len: usize, writes: bool) -> Result<Mr, RegError> {
        Mr::local(&self.pd, address, len, writes).map_err(|errno| reg_error(errno, len as u64))
    }
}

/// Atomics, too, where `writes` and the device has some; but not `by_address`, for which no trial has shown that they are done right.
fn remote_access(writes: bool, by_address: bool, has_atomics: bool) -> Access {
    let mut access = Access::IBV_ACCESS_REMOTE_READ;
    if writes {
        access |= Access::IBV_ACCESS_LOCAL_WRITE | Access::IBV_ACCESS_REMOTE_WRITE;
    }
    if by_address {
        access |= Access::IBV_ACCESS_ON_DEMAND;
    } else if writes && has_atomics {
        access |= Access::IBV_ACCESS_REMOTE_ATOMIC;
    }
    access
}

/// Why `len` bytes could not be registered.
pub(super) fn reg_error(errno: Errno, len: u64) -> RegError {
    match errno {
        Errno::NOMEM | Errno::AGAIN | Errno::NOSPC => {
            let limit = getrlimit(Resource::Memlock).current;
            let limit = limit.map_or_else(|| "unlimited".to_owned(), |bytes| format!("{bytes} bytes"));
            RegError::Limit {
                why: format!("{len} bytes could not be pinned ({errno}): RLIMIT_MEMLOCK is {limit}"),
                remedy: "raise `ulimit -l` (LimitMEMLOCK= of a service), or register less at once: the device, too, has a limit, and so may a cgroup \
                         (`rdma.max`)",
            }
        }
        Errno::FAULT => {
            RegError::Pages { why: "not all pages are mapped for that, or they cannot be pinned".to_owned() }
        }
        errno => RegError::Refused { why: format!("ibv_reg_mr of {len} bytes: {errno}") },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peers_may_do_what_the_rights_say_and_by_address_where_that_is_proven() {
        let has = |access: Access, bit: Access| access.0 & bit.0 != 0;
        let both = [false, true];
        let all = both.map(|writes| both.map(|by_address| both.map(|atomics| (writes, by_address, atomics))));
        for (writes, by_address, has_atomics) in all.into_iter().flatten().flatten() {
            let access = remote_access(writes, by_address, has_atomics);
            assert!(has(access, Access::IBV_ACCESS_REMOTE_READ));
            assert_eq!(has(access, Access::IBV_ACCESS_REMOTE_WRITE), writes);
            assert_eq!(
                has(access, Access::IBV_ACCESS_LOCAL_WRITE),
                writes,
                "the other needs it: ibv_reg_mr(3)"
            );
            assert_eq!(has(access, Access::IBV_ACCESS_ON_DEMAND), by_address);
            let atomics = writes && has_atomics && !by_address;
            assert_eq!(has(access, Access::IBV_ACCESS_REMOTE_ATOMIC), atomics);
        }
    }

    #[test]
    fn limits_say_which_and_what_to_do() {
        let error = reg_error(Errno::NOMEM, 1 << 20);
        assert!(error.to_string().contains("RLIMIT_MEMLOCK is"), "{error}");
        assert!(error.remedy().contains("ulimit -l") && error.remedy().contains(" (`rdma.max`)"));
        assert_eq!(reg_error(Errno::FAULT, 1).status(), ucs::Status::InvalidAddr);
        assert_eq!(reg_error(Errno::INVAL, 1).status(), ucs::Status::IoError);
    }
}
