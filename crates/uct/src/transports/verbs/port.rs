//! A device's port and its GID: which of them is used, by what the user has set, or else the first that others can be reached by.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};

use rdma_core_sys::{ibv_gid_type, ibv_mtu, ibv_port_attr, ibv_port_state};
use rustix::io::Errno;
use ucs::config::{NetDevices, OrAuto};

use super::GID_INDEX;
use crate::api::OpenError;
use crate::config::NET_DEVICES;

/// `IBV_LINK_LAYER_ETHERNET`, `<infiniband/verbs.h>`.
const ETHERNET: u8 = 2;
/// Entries of a table of GIDs that queue pairs can name: `sgid_index` of `<infiniband/verbs.h>` has 8 bits.
const MAX_ENTRIES: u32 = 256;
const PLUG_IN: &str = "see `rdma link`: set the network interface up, or plug the cable in";
const GIVE_ADDRESS: &str = "give its network interface an IP address; rdma-core must be 32 or later";

/// Where a device is connected to others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Port {
    pub(super) number: u8,
    pub(super) lid: u16,
    pub(super) mtu: ibv_mtu,
    pub(super) is_ethernet: bool,
    /// Of an Ethernet port always, of others where the user has chosen one.
    pub(super) gid: Option<Gid>,
}

/// An entry of a port's table of GIDs: an address in its network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Gid {
    pub(super) index: u8,
    pub(super) raw: [u8; 16],
}

/// A GID, and its type where the library tells that.
pub(super) type Entry = ([u8; 16], Option<u32>);

/// What is asked of an opened device.
pub(super) trait Ports {
    /// The attributes of the port of this number.
    fn port(&self, number: u8) -> Result<ibv_port_attr, Errno>;

    /// An entry of a port's table of GIDs; an error also stands for one that is empty.
    fn gid(&self, port: u8, index: u8) -> Result<Entry, Errno>;
}

/// What the user has set.
#[derive(Clone, Debug)]
pub(super) struct Choice {
    pub(super) devices: NetDevices,
    pub(super) gid_index: OrAuto<u32>,
}

/// Why a port is not used, and what to do about it.
type Fault = (String, String);

impl Choice {
    /// Whether this device may be used at all: asked before it is opened.
    pub(super) fn check_device(&self, name: &str) -> Result<(), OpenError> {
        if self.devices.allows_device(name) {
            return Ok(());
        }
        let variable = NET_DEVICES.name();
        Err(OpenError::Unusable {
            why: format!("not allowed by {variable}={}", self.devices),
            remedy: format!("name {name} in {variable}, or unset it, to use this device"),
        })
    }

    /// Whether the user wants this device, or wants it so: it is to be told then that it cannot be used.
    pub(super) fn is_for(&self, name: &str) -> bool {
        let is_set = self.gid_index != OrAuto::Auto;
        self.devices.asks_for(name) || is_set && self.devices.allows_device(name)
    }

    /// Of the ports of a device that has `count`, the first that is allowed, is up, and has an address.
    pub(super) fn port_of(&self, name: &str, ports: &impl Ports, count: u8) -> Result<Port, OpenError> {
        let mut faults: Vec<Fault> = Vec::new();
        for number in self.devices.ports_of(name).into_iter().filter(|number| *number > count) {
            let why = format!("there is no port {number}: it has {count}");
            faults.push((why, format!("correct {}={}", NET_DEVICES.name(), self.devices)));
        }
        for number in (1..=count).filter(|number| self.devices.allows(name, *number)) {
            match self.look_at(ports, number) {
                Ok(port) => return Ok(port),
                Err((why, remedy)) => faults.push((format!("port {number} {why}"), remedy)),
            }
        }
        if faults.is_empty() {
            let why = format!(
                "{}={} allows none of its ports, of which it has {count}",
                NET_DEVICES.name(),
                self.devices
            );
            faults.push((why, format!("correct {}, or unset it", NET_DEVICES.name())));
        }
        let (whys, mut remedies): (Vec<_>, Vec<_>) = faults.into_iter().unzip();
        remedies.dedup();
        Err(OpenError::Unusable { why: whys.join("; "), remedy: remedies.join("; ") })
    }

    fn look_at(&self, ports: &impl Ports, number: u8) -> Result<Port, Fault> {
        let attr = ports.port(number).map_err(|errno| {
            (
                format!("cannot be asked (ibv_query_port: {errno})"),
                "see what the kernel says (`dmesg`)".to_owned(),
            )
        })?;
        if attr.state != ibv_port_state::IBV_PORT_ACTIVE {
            return Err(not_active(attr.state));
        }
        let is_ethernet = attr.link_layer == ETHERNET;
        let entry = |index: u8| ports.gid(number, index).ok();
        let len = u32::try_from(attr.gid_tbl_len).unwrap_or(0).min(MAX_ENTRIES);
        let table = || (0..=u8::MAX).zip(0..len).filter_map(|(index, _)| Some((index, entry(index)?)));
        let gid = match (self.gid_index, is_ethernet) {
            (OrAuto::Set(index), _) => Some(chosen(index, len, is_ethernet, table().collect())?),
            (OrAuto::Auto, true) => {
                let none = || ("has no address of RoCE v2".to_owned(), GIVE_ADDRESS.to_owned());
                Some(best(table()).ok_or_else(none)?)
            }
            (OrAuto::Auto, false) => None,
        };
        Ok(Port { number, lid: attr.lid, mtu: attr.active_mtu, is_ethernet, gid })
    }
}

/// Why a port in this state cannot be used.
fn not_active(state: ibv_port_state) -> Fault {
    let subnet = "see that a subnet manager runs in this InfiniBand network";
    let (why, remedy) = match state {
        ibv_port_state::IBV_PORT_DOWN => ("is down", PLUG_IN),
        ibv_port_state::IBV_PORT_INIT => ("is not configured yet (INIT)", subnet),
        ibv_port_state::IBV_PORT_ARMED => ("is not active yet (ARMED)", subnet),
        ibv_port_state::IBV_PORT_ACTIVE_DEFER => {
            ("has lost its link and waits for it (ACTIVE_DEFER)", PLUG_IN)
        }
        _ => ("is in no state that can be used", PLUG_IN),
    };
    (why.to_owned(), remedy.to_owned())
}

/// How good an Ethernet port's GID is to be reached by, of those that RoCE v2 can use: an address that routers know before one of the link.
fn rank((raw, kind): Entry) -> Option<u8> {
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
fn best(entries: impl IntoIterator<Item = (u8, Entry)>) -> Option<Gid> {
    let ranked = entries.into_iter().filter_map(|(index, entry)| Some((rank(entry)?, index, entry.0)));
    ranked.min().map(|(_, index, raw)| Gid { index, raw })
}

/// The entry that the user has chosen, of a table with room for `len`.
fn chosen(index: u32, len: u32, is_ethernet: bool, table: Vec<(u8, Entry)>) -> Result<Gid, Fault> {
    let name = GID_INDEX.name();
    let good = |entry: &Entry| if is_ethernet { rank(*entry).is_some() } else { entry.0 != [0; 16] };
    let found = table.iter().find(|(at, _)| u32::from(*at) == index);
    let why = match found {
        _ if index >= len => format!("has {len} GIDs, and none of index {index}, which {name} names"),
        Some((at, entry)) if good(entry) => return Ok(Gid { index: *at, raw: entry.0 }),
        Some((_, (raw, kind))) if *raw != [0; 16] => {
            let address = Gid { index: 0, raw: *raw }.address();
            format!("has {address} as its GID of index {index}, which {name} names, {}", kind_of(*kind))
        }
        _ => format!("has no GID of index {index}, which {name} names: that entry is empty"),
    };
    let good: Vec<String> = table
        .iter()
        .filter(|(_, entry)| good(entry))
        .map(|(index, (raw, _))| format!("{index} ({})", Gid { index: *index, raw: *raw }.address()))
        .collect();
    let remedy = match good.as_slice() {
        [] if is_ethernet => format!("it has none that would do: {GIVE_ADDRESS}"),
        [] => format!("it has none that would do: unset {name}"),
        _ => format!("set {name} to {}, or to auto", good.join(" or ")),
    };
    Err((why, remedy))
}

/// What is wrong with a type that is not that of RoCE v2.
fn kind_of(kind: Option<u32>) -> &'static str {
    match kind {
        Some(kind) if kind == ibv_gid_type::IBV_GID_TYPE_ROCE_V1.0 => "and that is one of RoCE v1",
        Some(_) => "and that is none of RoCE v2",
        None => "and whether that is one of RoCE v2, rdma-core does not tell before its version 32",
    }
}

impl Gid {
    /// As an IP address, which those of RoCE v2 are.
    fn address(self) -> IpAddr {
        Ipv6Addr::from(self.raw).to_canonical()
    }
}

impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "index {}: {}", self.index, self.address())
    }
}

impl Port {
    /// The IP address that its GID stands for (InfiniBand Architecture, annex A17: RoCE v2); `None`: it has none that can be told to others.
    pub(super) fn ip(self) -> Option<IpAddr> {
        let address = Ipv6Addr::from(self.gid.filter(|_| self.is_ethernet)?.raw);
        (!address.is_unicast_link_local()).then(|| address.to_canonical())
    }

    /// What a person is to know of it.
    pub(super) fn details(self) -> Vec<(&'static str, String)> {
        let network = if self.is_ethernet { "Ethernet (RoCE v2)" } else { "InfiniBand" };
        let gid = self.gid.map_or_else(|| format!("none: LID {} is used", self.lid), |gid| gid.to_string());
        vec![("port", format!("{}, {network}", self.number)), ("GID", gid)]
    }
}

#[cfg(test)]
mod tests;
