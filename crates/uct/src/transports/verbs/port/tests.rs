use super::*;

const IB: Option<u32> = Some(ibv_gid_type::IBV_GID_TYPE_IB.0);
const V1: Option<u32> = Some(ibv_gid_type::IBV_GID_TYPE_ROCE_V1.0);
const V2: Option<u32> = Some(ibv_gid_type::IBV_GID_TYPE_ROCE_V2.0);
const UP: ibv_port_state = ibv_port_state::IBV_PORT_ACTIVE;
const DOWN: ibv_port_state = ibv_port_state::IBV_PORT_DOWN;

fn gid(begin: &[u8], end: u8) -> [u8; 16] {
    let mut raw = [0; 16];
    raw[..begin.len()].copy_from_slice(begin);
    raw[15] = end;
    raw
}

fn v4(end: u8) -> [u8; 16] {
    gid(&[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10], end)
}

/// Ports: state, link layer, and a table of 8 GIDs that begins with these.
struct Fake(Vec<(ibv_port_state, u8, Vec<Entry>)>);

impl Ports for Fake {
    fn port(&self, number: u8) -> Result<ibv_port_attr, Errno> {
        let (state, link_layer, _) = self.0.get(usize::from(number) - 1).ok_or(Errno::INVAL)?;
        Ok(ibv_port_attr {
            state: *state,
            link_layer: *link_layer,
            gid_tbl_len: 8,
            lid: 5,
            ..Default::default()
        })
    }

    fn gid(&self, port: u8, index: u8) -> Result<Entry, Errno> {
        assert!(index < 8, "beyond the table");
        self.0[usize::from(port) - 1].2.get(usize::from(index)).copied().ok_or(Errno::NODATA)
    }
}

fn ask(devices: &str, gid_index: OrAuto<u32>, ports: &Fake) -> Result<Port, String> {
    let choice = Choice { devices: devices.parse().unwrap(), gid_index };
    let count = u8::try_from(ports.0.len()).unwrap();
    choice.check_device("dev").map_err(|error| error.to_string())?;
    let port = choice.port_of("dev", ports, count);
    port.map_err(|error| format!("{error} / {}", error.remedy()))
}

fn port(devices: &str, ports: &Fake) -> Result<u8, String> {
    ask(devices, OrAuto::Auto, ports).map(|port| port.number)
}

/// The words are in the text, in this order.
#[track_caller]
fn says(told: Result<impl fmt::Debug, String>, words: &[&str]) {
    let text = told.unwrap_err();
    let mut rest = text.as_str();
    for word in words {
        rest = rest.split_once(word).unwrap_or_else(|| panic!("{word:?} in its place: {text}")).1;
    }
}

#[test]
fn an_address_that_routers_know_is_chosen_and_never_none() {
    let link = gid(&[0xfe, 0x80], 1);
    let global = gid(&[0x20, 1], 2);
    let index = |entries: &[(u8, Entry)]| best(entries.iter().copied()).map(|gid| gid.index);
    assert_eq!(index(&[(0, (link, V1)), (1, (link, V2)), (2, (v4(1), V1)), (3, (v4(1), V2))]), Some(3));
    assert_eq!(index(&[(0, (link, V2)), (1, (global, V2))]), Some(1));
    assert_eq!(index(&[(0, ([0; 16], V2)), (1, (link, V2))]), Some(1));
    assert_eq!(index(&[(4, (v4(1), V2)), (5, (v4(1), V2))]), Some(4));
    assert_eq!(index(&[(0, ([0; 16], V2))]), None, "no address");
    assert_eq!(
        index(&[(0, (v4(1), V1)), (1, (v4(1), None))]),
        None,
        "RoCE v1, and what the library does not tell"
    );
}

#[test]
fn the_first_port_that_is_up_is_used_unless_one_is_named() {
    let three = Fake(vec![
        (DOWN, ETHERNET, vec![]),
        (UP, ETHERNET, vec![(v4(1), V2)]),
        (UP, ETHERNET, vec![(v4(2), V2)]),
    ]);
    for (devices, number) in [
        ("all", 2),
        ("dev", 2),
        ("dev:3", 3),
        ("dev:1,dev:3", 3),
        ("^dev:2", 3),
        ("^other", 2),
        ("dev:9,dev", 2),
    ] {
        assert_eq!(port(devices, &three), Ok(number), "{devices}");
    }
}

#[test]
fn a_port_that_is_not_used_is_named_with_the_reason() {
    let two = Fake(vec![(DOWN, ETHERNET, vec![]), (UP, ETHERNET, vec![(v4(1), V1)])]);
    says(
        port("all", &two),
        &["port 1 is down", "port 2 has no address of RoCE v2", "plug the cable in", "an IP address"],
    );
    says(port("dev:1", &two), &["port 1 is down / see `rdma link`"]);
    says(port("dev:2", &two), &["port 2 has no address of RoCE v2 / give"]);
    says(port("dev:3", &two), &["there is no port 3: it has 2 / correct UCX_NET_DEVICES=dev:3"]);
    says(
        port("^dev:1,dev:2", &two),
        &["UCX_NET_DEVICES=^dev:1,dev:2 allows none of its ports, of which it has 2"],
    );
    let waits = Fake(vec![(ibv_port_state::IBV_PORT_INIT, 1, vec![])]);
    says(port("all", &waits), &["port 1 is not configured yet (INIT) / see that a subnet manager"]);
    says(port("all", &Fake(vec![])), &["of which it has 0"]);
}

#[test]
fn a_device_that_is_not_allowed_is_refused_before_it_is_asked() {
    let one = Fake(vec![(UP, ETHERNET, vec![(v4(1), V2)])]);
    for devices in ["other", "other:1", "^dev", "^other,dev"] {
        says(port(devices, &one), &[&format!("not allowed by UCX_NET_DEVICES={devices}")]);
    }
}

#[test]
fn what_the_user_wants_is_told_apart() {
    let is_for =
        |devices: &str, gid_index| Choice { devices: devices.parse().unwrap(), gid_index }.is_for("dev");
    assert!(
        is_for("dev:1", OrAuto::Auto) && is_for("all", OrAuto::Set(1)) && is_for("^other", OrAuto::Set(1))
    );
    assert!(
        !is_for("all", OrAuto::Auto) && !is_for("^other", OrAuto::Auto) && !is_for("^dev", OrAuto::Set(1))
    );
}

#[test]
fn a_gid_that_is_named_is_used() {
    let link = gid(&[0xfe, 0x80], 1);
    let table = vec![(link, V1), (link, V2), (v4(1), V1), (v4(1), V2), ([0; 16], V2)];
    let ports = Fake(vec![(UP, ETHERNET, table)]);
    let index = |index| ask("all", OrAuto::Set(index), &ports).map(|port| port.gid.map(|gid| gid.index));
    assert_eq!((index(3), index(1)), (Ok(Some(3)), Ok(Some(1))));
    let good = "/ set UCX_IB_GID_INDEX to 1 (fe80::1) or 3 (10.0.0.1), or to auto";
    says(index(2), &["port 1 has 10.0.0.1 as its GID of index 2", "RoCE v1", good]);
    for empty in [4, 5, 7] {
        says(index(empty), &[&format!("no GID of index {empty}"), "that entry is empty", good]);
    }
    for beyond in [8, 255, 256, u32::MAX] {
        says(index(beyond), &[&format!("port 1 has 8 GIDs, and none of index {beyond}"), good]);
    }
    let untold = Fake(vec![(UP, ETHERNET, vec![(v4(1), None)])]);
    says(ask("all", OrAuto::Set(0), &untold), &["before its version 32", "none that would do: give"]);
}

#[test]
fn infiniband_goes_without_a_gid_unless_one_is_named() {
    let ports = Fake(vec![(UP, 1, vec![(gid(&[0xfe, 0x80], 7), IB)])]);
    assert_eq!(ask("all", OrAuto::Auto, &ports).unwrap().gid, None);
    let set = ask("all", OrAuto::Set(0), &ports).unwrap();
    assert_eq!((set.gid.map(|gid| gid.index), set.ip()), (Some(0), None));
    says(ask("all", OrAuto::Set(1), &ports), &["that entry is empty", "set UCX_IB_GID_INDEX to 0"]);
}

#[test]
fn what_is_used_is_told() {
    let ethernet = Fake(vec![(UP, ETHERNET, vec![(v4(1), V2)])]);
    let details = ask("all", OrAuto::Auto, &ethernet).unwrap().details();
    assert_eq!(
        details,
        [("port", "1, Ethernet (RoCE v2)".to_owned()), ("GID", "index 0: 10.0.0.1".to_owned())]
    );
    let infiniband = Fake(vec![(UP, 1, vec![])]);
    let details = ask("all", OrAuto::Auto, &infiniband).unwrap().details();
    assert_eq!(details, [("port", "1, InfiniBand".to_owned()), ("GID", "none: LID 5 is used".to_owned())]);
}

/// What is told to other machines: no address of the link alone, and none that is no IP address.
#[test]
fn a_port_has_the_ip_address_that_its_gid_stands_for() {
    let ip = |is_ethernet, raw: Option<[u8; 16]>| {
        let gid = raw.map(|raw| Gid { index: 1, raw });
        Port { number: 1, lid: 0, mtu: ibv_mtu::IBV_MTU_1024, is_ethernet, gid }.ip()
    };
    assert_eq!(ip(true, Some(v4(1))), Some(IpAddr::from([10, 0, 0, 1])));
    let global = gid(&[0x20, 1], 2);
    assert_eq!(ip(true, Some(global)), Some(IpAddr::from(global)));
    assert_eq!(ip(true, Some(gid(&[0xfe, 0x80], 1))), None, "of the link");
    assert_eq!(ip(false, Some(global)), None, "a GID of InfiniBand is no IP address");
    assert_eq!(ip(true, None), None);
}
