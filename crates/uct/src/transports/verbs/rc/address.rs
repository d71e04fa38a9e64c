//! Where the service listens, for an interface's peers.

use std::net::{IpAddr, Ipv6Addr};

use ucs::config::{Config, Var};

use super::wire::{Link, MAX_SOCKETS};
use crate::api::IfaceError;
use crate::transports::verbs::device::{Device, Port};

/// Where peers of other machines find this process: IP addresses of this machine.
pub const SERVICE_ADDRESS: Var<String> = Var::new(
    "UCX_VERBS_SERVICE_ADDRESS",
    "",
    "IP addresses of this machine, 4 at most, by which verbs is found by peers; by default that of the device's port (RoCE)",
);

/// What kind of network a port is in.
pub(super) fn link_of(port: &Port) -> Link {
    if port.gid.is_some() { Link::Ethernet } else { Link::InfiniBand }
}

/// The addresses that the service is to listen at.
pub(super) fn to_listen_at(device: &Device, config: &Config) -> Result<Vec<IpAddr>, IfaceError> {
    let set = config.get(&SERVICE_ADDRESS);
    if !set.trim().is_empty() {
        return parse(&set).ok_or(IfaceError::Missing {
            what: "a list of 1 to 4 IP addresses in UCX_VERBS_SERVICE_ADDRESS",
            remedy: "set it to addresses of this machine, separated by commas",
        });
    }
    let own = device.port.gid.and_then(|gid| of_gid(gid.raw));
    own.map(|ip| vec![ip]).ok_or(IfaceError::Missing {
        what: "an IP address for peers to find this process by: the RDMA port has none,",
        remedy: "set UCX_VERBS_SERVICE_ADDRESS to one of this machine that peers reach",
    })
}

fn parse(list: &str) -> Option<Vec<IpAddr>> {
    let ips: Option<Vec<IpAddr>> = list.split(',').map(|ip| ip.trim().parse().ok()).collect();
    let is_good = |ips: &Vec<IpAddr>| {
        (1..=MAX_SOCKETS).contains(&ips.len())
            && ips.iter().all(|ip| !ip.is_unspecified() && !ip.is_multicast())
    };
    ips.filter(is_good)
}

/// The IP address that a GID of RoCE v2 is; that of a link is of no use to others without its interface.
fn of_gid(raw: [u8; 16]) -> Option<IpAddr> {
    let ip = Ipv6Addr::from(raw);
    let is_of_link = ip.segments()[0] & 0xffc0 == 0xfe80;
    (!is_of_link && !ip.is_unspecified()).then(|| ip.to_canonical())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn a_gid_is_an_address() {
        let mut v4 = [0; 16];
        v4[10..].copy_from_slice(&[0xff, 0xff, 192, 0, 2, 7]);
        assert_eq!(of_gid(v4), Some(ip("192.0.2.7")));
        let IpAddr::V6(global) = ip("2001:db8::1") else { unreachable!() };
        assert_eq!(of_gid(global.octets()), Some(ip("2001:db8::1")));
        let IpAddr::V6(link) = ip("fe80::1") else { unreachable!() };
        assert_eq!((of_gid(link.octets()), of_gid([0; 16])), (None, None));
    }

    #[test]
    fn lists_of_addresses() {
        assert_eq!(parse(" 192.0.2.7, 2001:db8::1"), Some(vec![ip("192.0.2.7"), ip("2001:db8::1")]));
        for bad in [
            "",
            ",",
            "host",
            "192.0.2.7:80",
            "0.0.0.0",
            "::",
            "224.0.0.1",
            "1.1.1.1,1.1.1.1,1.1.1.1,1.1.1.1,1.1.1.1",
        ] {
            assert_eq!(parse(bad), None, "{bad:?}");
        }
    }
}
