//! Where the service of other machines listens, for peers of a device.

use std::net::{IpAddr, UdpSocket};

use ucs::config::{Config, Var};

use super::device::Device;
use super::rc::wire::MAX_SOCKETS;
use crate::api::IfaceError;

/// Where peers of other machines find this process: IP addresses of this machine.
pub const SERVICE_ADDRESS: Var<String> = Var::new(
    "UCX_VERBS_SERVICE_ADDRESS",
    "",
    "IP addresses of this machine, 4 at most, by which verbs is found by peers; by default that of the device's port (RoCE)",
);

/// The addresses that the service is to listen at: all are this machine's, in this network namespace.
pub(super) fn to_listen_at(device: &Device, config: &Config) -> Result<Vec<IpAddr>, IfaceError> {
    let set = config.get(&SERVICE_ADDRESS);
    let all = if set.trim().is_empty() {
        device.port.ip().map(|ip| vec![ip]).ok_or(IfaceError::Missing {
            what: "an IP address for peers to find this process by: the RDMA port has none,",
            remedy: "set UCX_VERBS_SERVICE_ADDRESS to one of this machine that peers reach",
        })?
    } else {
        parse(&set).ok_or(IfaceError::Missing {
            what: "a list of 1 to 4 IP addresses in UCX_VERBS_SERVICE_ADDRESS",
            remedy: "set it to addresses of this machine, separated by commas",
        })?
    };
    // A device may be one that other network namespaces have in common with this one.
    if let Some(ip) = all.iter().find(|ip| UdpSocket::bind((**ip, 0)).is_err()) {
        tracing::debug!(%ip, "no address of this network namespace");
        return Err(IfaceError::Missing {
            what: "the IP address of the RDMA port, or one in UCX_VERBS_SERVICE_ADDRESS, in this network namespace",
            remedy: "set UCX_VERBS_SERVICE_ADDRESS to one of this machine that peers reach",
        });
    }
    Ok(all)
}

fn parse(list: &str) -> Option<Vec<IpAddr>> {
    let ips: Option<Vec<IpAddr>> = list.split(',').map(|ip| ip.trim().parse().ok()).collect();
    let is_good = |ips: &Vec<IpAddr>| {
        (1..=MAX_SOCKETS).contains(&ips.len())
            && ips.iter().all(|ip| !ip.is_unspecified() && !ip.is_multicast())
    };
    ips.filter(is_good)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
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
