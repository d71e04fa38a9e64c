//! A device, its port, and what its queue pairs and registrations are made of.

use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

use rdma_core_sys::{DeviceList, ibv_access_flags, ibv_gid_type, ibv_mtu, ibv_port_state, ibv_qp_cap};
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};

use super::command;
use super::queue::{self, Connect};
use super::sys::{Context, Cq, Mr, Pd, Qp};
use crate::api::{OpenError, RegError};
use crate::memory::{AccessError, DeviceReason};

/// `IBV_LINK_LAYER_ETHERNET`, `<infiniband/verbs.h>`.
const ETHERNET: u8 = 2;
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
    pub(super) max_mr: u64,
    /// READs and atomics that a queue pair answers at once, and asks for at once.
    pub(super) reads_in: u8,
    pub(super) reads_out: u8,
    /// The driver's number for commands that come from other processes; `None`: this kernel takes none.
    pub(super) driver: Option<u32>,
}

/// Where a device is connected to others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Port {
    pub(super) number: u8,
    pub(super) lid: u16,
    pub(super) mtu: ibv_mtu,
    pub(super) is_ethernet: bool,
    /// Of an Ethernet port always, of others where there is one.
    pub(super) gid: Option<Gid>,
}

/// An entry of a port's table of GIDs: an address in its network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Gid {
    pub(super) index: u8,
    pub(super) raw: [u8; 16],
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

/// How good an Ethernet port's GID is to be reached by, of those that RoCE v2 can use: an address that routers know before one of the link.
fn rank(raw: [u8; 16], kind: Option<u32>) -> Option<u8> {
    let is_v2 = kind == Some(ibv_gid_type::IBV_GID_TYPE_ROCE_V2.0);
    match raw {
        _ if !is_v2 => None,
        raw if raw == [0; 16] => None,
        [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, ..] => Some(0), // IPv4
        [0xfe, 0x80..=0xbf, ..] => Some(2),
        _ => Some(1),
    }
}

/// Of the entries of an Ethernet port, the one to be reached by.
fn choose(entries: impl IntoIterator<Item = (u8, [u8; 16], Option<u32>)>) -> Option<Gid> {
    let ranked = entries.into_iter().filter_map(|(index, raw, kind)| Some((rank(raw, kind)?, index, raw)));
    ranked.min().map(|(_, index, raw)| Gid { index, raw })
}

impl Port {
    /// The IP address that its GID stands for (InfiniBand Architecture, annex A17: RoCE v2); `None`: it has none that can be told to others.
    pub(super) fn ip(self) -> Option<IpAddr> {
        let address = Ipv6Addr::from(self.gid.filter(|_| self.is_ethernet)?.raw);
        (!address.is_unicast_link_local()).then(|| address.to_canonical())
    }

    /// The first port of `count` that is up, with an address.
    fn find(context: &Context, count: u8) -> Result<Self, OpenError> {
        let mut why = OpenError::Missing {
            what: "a port of the RDMA device that is up",
            remedy: "see `rdma link`: set the network interface up, or plug the cable in",
        };
        for number in 1..=count {
            let Ok(attr) = context.port(number) else { continue };
            if attr.state != ibv_port_state::IBV_PORT_ACTIVE {
                continue;
            }
            let length = u8::try_from(attr.gid_tbl_len).unwrap_or(u8::MAX);
            let entries = (0..length).filter_map(|index| {
                let (raw, kind) = context.gid(number, index).ok()?;
                Some((index, raw, kind))
            });
            let gid = if attr.link_layer == ETHERNET { choose(entries) } else { None };
            if attr.link_layer == ETHERNET && gid.is_none() {
                why = OpenError::Missing {
                    what: "an address of RoCE v2 at the RDMA device's port",
                    remedy: "give its network interface an IP address; rdma-core must be 32 or later",
                };
                continue;
            }
            let is_ethernet = attr.link_layer == ETHERNET;
            return Ok(Self { number, lid: attr.lid, mtu: attr.active_mtu, is_ethernet, gid });
        }
        Err(why)
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
        let access = ibv_access_flags::IBV_ACCESS_REMOTE_WRITE | ibv_access_flags::IBV_ACCESS_REMOTE_READ;
        let unconnected = self.queue_pair(cq, REQUESTS, access).map_err(call("ibv_create_qp"))?;
        let itself = unconnected.address();
        unconnected.connect(&itself).map_err(call("ibv_modify_qp"))
    }
}

impl Device {
    /// Opens the device of this name.
    pub(super) fn open(name: &str) -> Result<Self, OpenError> {
        let absent = OpenError::Missing {
            what: "the RDMA device of this name",
            remedy: "name one that `rdma link` shows",
        };
        let context = Context::open(name).ok_or(absent)?.map_err(failed("ibv_open_device"))?;
        let context = Arc::new(context);
        let properties = context.properties().map_err(failed("ibv_query_device"))?.orig_attr;
        let port = Port::find(&context, properties.phys_port_cnt)?;
        let pd = Arc::new(Pd::new(&context).map_err(failed("ibv_alloc_pd"))?);
        let driver = command::driver(context.command_fd());
        let reads = |most: i32| u8::try_from(most.clamp(1, READS)).unwrap_or(1);
        Ok(Self {
            context,
            pd,
            port,
            max_mr: properties.max_mr_size,
            reads_in: reads(properties.max_qp_rd_atom),
            reads_out: reads(properties.max_qp_init_rd_atom),
            driver,
        })
    }

    /// Registers pages of this process for local use.
    pub(super) fn register(&self, address: usize, len: usize, writes: bool) -> Result<Mr, RegError> {
        Mr::local(&self.pd, address, len, writes).map_err(|errno| reg_error(errno, len as u64))
    }
}

/// What peers may do with exported memory: read it, and write it where `writes`; where `by_address`, with whatever is mapped there.
pub(super) fn remote_access(writes: bool, by_address: bool) -> ibv_access_flags {
    let mut access = ibv_access_flags::IBV_ACCESS_REMOTE_READ;
    if writes {
        access |= ibv_access_flags::IBV_ACCESS_LOCAL_WRITE | ibv_access_flags::IBV_ACCESS_REMOTE_WRITE;
    }
    if by_address {
        access |= ibv_access_flags::IBV_ACCESS_ON_DEMAND;
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
                remedy: "raise `ulimit -l` (LimitMEMLOCK= of a service), or register less at once: the device, too, has a limit",
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

    const V1: Option<u32> = Some(ibv_gid_type::IBV_GID_TYPE_ROCE_V1.0);
    const V2: Option<u32> = Some(ibv_gid_type::IBV_GID_TYPE_ROCE_V2.0);

    fn gid(begin: &[u8], end: u8) -> [u8; 16] {
        let mut raw = [0; 16];
        raw[..begin.len()].copy_from_slice(begin);
        raw[15] = end;
        raw
    }

    #[test]
    fn an_address_that_routers_know_is_chosen_and_never_none() {
        let link = gid(&[0xfe, 0x80], 1);
        let global = gid(&[0x20, 1], 2);
        let v4 = gid(&[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10], 1);
        let index =
            |entries: &[(u8, [u8; 16], Option<u32>)]| choose(entries.iter().copied()).map(|gid| gid.index);
        assert_eq!(index(&[(0, link, V1), (1, link, V2), (2, v4, V1), (3, v4, V2)]), Some(3));
        assert_eq!(index(&[(0, link, V2), (1, global, V2)]), Some(1));
        assert_eq!(index(&[(0, [0; 16], V2), (1, link, V2)]), Some(1));
        assert_eq!(index(&[(4, v4, V2), (5, v4, V2)]), Some(4));
        assert_eq!(index(&[(0, [0; 16], V2)]), None, "no address");
        assert_eq!(index(&[(0, v4, V1), (1, v4, None)]), None, "RoCE v1, and what the library does not tell");
    }

    #[test]
    fn peers_may_do_what_the_rights_say_and_by_address_where_that_is_proven() {
        use ibv_access_flags as Access;
        let has = |access: Access, bit: Access| access.0 & bit.0 != 0;
        for (writes, by_address) in [(false, false), (true, false), (false, true), (true, true)] {
            let access = remote_access(writes, by_address);
            assert!(has(access, Access::IBV_ACCESS_REMOTE_READ));
            assert_eq!(has(access, Access::IBV_ACCESS_REMOTE_WRITE), writes);
            assert_eq!(
                has(access, Access::IBV_ACCESS_LOCAL_WRITE),
                writes,
                "the other needs it: ibv_reg_mr(3)"
            );
            assert_eq!(has(access, Access::IBV_ACCESS_ON_DEMAND), by_address);
            assert!(!has(access, Access::IBV_ACCESS_REMOTE_ATOMIC));
        }
    }

    #[test]
    fn limits_say_which_and_what_to_do() {
        let error = reg_error(Errno::NOMEM, 1 << 20);
        assert!(error.to_string().contains("RLIMIT_MEMLOCK is"), "{error}");
        assert!(error.remedy().contains("ulimit -l"));
        assert_eq!(reg_error(Errno::FAULT, 1).status(), ucs::Status::InvalidAddr);
        assert_eq!(reg_error(Errno::INVAL, 1).status(), ucs::Status::IoError);
    }

    /// What is told to other machines: no address of the link alone, and none that is no IP address.
    #[test]
    fn a_port_has_the_ip_address_that_its_gid_stands_for() {
        let ip = |is_ethernet, raw: Option<[u8; 16]>| {
            let gid = raw.map(|raw| Gid { index: 1, raw });
            Port { number: 1, lid: 0, mtu: ibv_mtu::IBV_MTU_1024, is_ethernet, gid }.ip()
        };
        let v4 = gid(&[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10], 1);
        assert_eq!(ip(true, Some(v4)), Some(IpAddr::from([10, 0, 0, 1])));
        let global = gid(&[0x20, 1], 2);
        assert_eq!(ip(true, Some(global)), Some(IpAddr::from(global)));
        assert_eq!(ip(true, Some(gid(&[0xfe, 0x80], 1))), None, "of the link");
        assert_eq!(ip(false, Some(global)), None, "a GID of InfiniBand is no IP address");
        assert_eq!(ip(true, None), None);
    }
}
