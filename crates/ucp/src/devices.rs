//! `UCX_NET_DEVICES`, as far as it is not for a transport to look at.

use ucs::config::{Config, NetDevices};
use uct::api::Component;
use uct::config::NET_DEVICES;

/// Tells of entries that mean no device of these transports. That is no error: a list may be written for several machines.
pub(crate) fn warn<'a>(config: &Config, components: impl Iterator<Item = &'a &'static dyn Component>) {
    let list = config.get(&NET_DEVICES);
    if list == NetDevices::all() {
        return;
    }
    let networks: Vec<_> = components.filter_map(|component| component.net_devices()).collect();
    if networks.is_empty() {
        return; // it restricts nothing
    }
    if let Some(words) = without_device(&list, &networks.concat()) {
        tracing::warn!("{words}");
    }
}

/// What is wrong with a list where these are the devices.
fn without_device(list: &NetDevices, devices: &[String]) -> Option<String> {
    let known: Vec<&str> = devices.iter().map(String::as_str).collect();
    let unknown = list.unknown(&known)?;
    let there_are = if known.is_empty() { "there are none here".to_owned() } else { unknown.remedy() };
    let (variable, names) = (NET_DEVICES.name(), unknown.names.join(", "));
    Some(format!("{variable}={list}: no network device for {names}; {there_are}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_without_a_device_are_told_with_those_there_are() {
        let words = |list: &str, devices: &[&str]| {
            let devices: Vec<String> = devices.iter().map(|name| (*name).to_owned()).collect();
            without_device(&list.parse().unwrap(), &devices)
        };
        assert_eq!(words("rxe0:1", &["rxe0"]), None);
        assert_eq!(words("all", &[]), None);
        assert_eq!(
            words("rxe1:1,rxe0,eth0", &["rxe0"]).as_deref(),
            Some(
                "UCX_NET_DEVICES=rxe1:1,rxe0,eth0: no network device for rxe1:1, eth0; did you mean rxe0? There are: rxe0"
            )
        );
        assert_eq!(
            words("^mlx5_0", &["rxe0"]).as_deref(),
            Some("UCX_NET_DEVICES=^mlx5_0: no network device for mlx5_0; use some of: rxe0")
        );
        assert_eq!(
            words("mlx5_0", &[]).as_deref(),
            Some("UCX_NET_DEVICES=mlx5_0: no network device for mlx5_0; there are none here")
        );
    }
}
