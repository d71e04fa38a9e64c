//! The formats of `verbs`: its key, the address of a queue pair, and what importers of other machines ask.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use super::*;
use uct::transports::verbs::mkey::{self, Mkey};
use uct::transports::verbs::remote::wire::{ATTACHED_LEN, Attached, LANES, Request, SUBJECT_LEN, Subject};
use uct::transports::verbs::wire::{LEN, QpAddress};

/// Bytes of the longest request.
const CONNECT_LEN: usize = 8 + LEN;

fn key() -> Format<Mkey> {
    Format {
        vectors: "mkey-verbs/v1",
        len: mkey::LEN,
        decode: |bytes| Mkey::decode(bytes).map_err(str::to_owned),
        encode: |key| {
            let mut bytes = vec![0xaa; mkey::LEN];
            key.encode(&mut bytes).expect("LEN holds a key");
            bytes
        },
        lines: |key| {
            let mut lines = who(&key.exporter, key.slot, &key.token);
            lines.push(format!("device_guid = {}", hex(&key.guid)));
            lines.extend(key.in_directory.then(in_directory));
            lines.push(format!("shares = {}", key.shares));
            lines.extend(key.by_address.then(|| "by_address = true".to_owned()));
            if let Some((kind, address)) = key.net {
                lines.extend([format!("net_kind = {kind}"), format!("net_address = {address}")]);
            }
            lines
        },
    }
}

fn queue_pair() -> Format<QpAddress> {
    Format {
        vectors: "verbs-queue-pair/v1",
        len: LEN,
        decode: |bytes| QpAddress::decode(bytes).map_err(str::to_owned),
        encode: |address| address.encode().to_vec(),
        lines: |address| {
            let QpAddress { number, psn, gid, lid, mtu, reads } = address;
            vec![
                format!("number = {number}"),
                format!("psn = {psn}"),
                format!("gid = {}", gid.map_or_else(|| "none".to_owned(), |gid| hex(&gid))),
                format!("lid = {lid}"),
                format!("mtu = {mtu}"),
                format!("reads = {reads}"),
            ]
        },
    }
}

fn subject() -> Format<Subject> {
    Format {
        vectors: "verbs-subject/v1",
        len: SUBJECT_LEN,
        decode: |bytes| Subject::decode(bytes).map_err(str::to_owned),
        encode: |subject| subject.encode().to_vec(),
        lines: |subject| {
            let Subject { guid, slot, id, epoch, address, length } = subject;
            vec![
                format!("device_guid = {}", hex(guid)),
                format!("slot = {slot}"),
                format!("id = {id}"),
                format!("epoch = {epoch}"),
                format!("address = {address:#x}"),
                format!("length = {length}"),
            ]
        },
    }
}

fn remote_request() -> Format<Request> {
    Format {
        vectors: "verbs-request/v1",
        len: CONNECT_LEN,
        decode: |bytes| Request::decode(bytes).map_err(str::to_owned),
        encode: Request::encode,
        lines: |request| match request {
            Request::Attach => vec!["request = attach".to_owned()],
            Request::Detach => vec!["request = detach".to_owned()],
            Request::Check => vec!["request = check".to_owned()],
            Request::Connect { lane, address } => {
                let mut lines = vec!["request = connect".to_owned(), format!("lane = {lane}")];
                lines.extend((queue_pair().lines)(address));
                lines
            }
        },
    }
}

fn attached() -> Format<Attached> {
    Format {
        vectors: "verbs-attached/v1",
        len: ATTACHED_LEN,
        decode: |bytes| Attached::decode(bytes).map_err(str::to_owned),
        encode: |attached| attached.encode().to_vec(),
        lines: |attached| {
            vec![format!("rkey = {}", attached.rkey), format!("rights = {}", attached.rights.bits())]
        },
    }
}

#[test]
fn vectors_of_verbs_hold() {
    key().vectors_hold();
    queue_pair().vectors_hold();
    subject().vectors_hold();
    remote_request().vectors_hold();
    attached().vectors_hold();
}

#[test]
fn every_byte_of_verbs_counts() {
    key().every_byte_counts();
    queue_pair().every_byte_counts();
    subject().every_byte_counts();
    remote_request().every_byte_counts();
    attached().every_byte_counts();
}

fn one_key() -> Mkey {
    let (_, bytes, _) =
        &vectors("mkey-verbs/v1").into_iter().find(|(name, ..)| name == "key").expect("it is there");
    Mkey::decode(bytes).expect("it is good")
}

#[test]
fn keys_of_verbs_are_not_written_into_less_room() {
    assert!(one_key().encode(&mut [0; mkey::LEN - 1]).is_err());
}

/// An IPv4 address lies in a key as an IPv6 one (RFC 4291, 2.5.5.2), and comes back as what it is: no other IPv6 address does.
#[test]
fn addresses_of_ipv4_are_mapped_and_come_back() {
    let written = |ip: IpAddr| {
        let key = Mkey { net: Some((256, SocketAddr::new(ip, 1))), ..one_key() };
        let bytes = key_of(&key);
        (<[u8; 16]>::try_from(&bytes[80..]).unwrap(), Mkey::decode(&bytes).unwrap().net.unwrap().1.ip())
    };
    for v4 in [[192, 0, 2, 7], [0, 0, 0, 0], [255, 255, 255, 255], [127, 0, 0, 1]] {
        let mapped = [[0; 4], [0; 4], [0, 0, 0xff, 0xff], v4].concat();
        let v4 = Ipv4Addr::from(v4);
        assert_eq!(written(v4.into()), (mapped.clone().try_into().unwrap(), v4.into()));
        // Written as IPv6 it is the same address.
        assert_eq!(written(v4.to_ipv6_mapped().into()), (mapped.try_into().unwrap(), v4.into()));
    }
    for v6 in [Ipv6Addr::UNSPECIFIED, Ipv6Addr::LOCALHOST, "2001:db8::7".parse().unwrap()] {
        assert_eq!(written(v6.into()), (v6.octets(), v6.into()));
    }
    let compatible: Ipv6Addr = "::192.0.2.7".parse().unwrap();
    assert_eq!(written(compatible.into()), (compatible.octets(), compatible.into()), "it is none of IPv4");
}

fn key_of(key: &Mkey) -> Vec<u8> {
    (self::key().encode)(key)
}

/// Each kind, with lanes that there are or not, and each length up to one more than the longest: what is no request is none, whatever follows.
#[test]
fn requests_of_every_kind_lane_and_length() {
    let (_, address, _) =
        &vectors("verbs-queue-pair/v1").into_iter().find(|(name, ..)| name == "ethernet").unwrap();
    let address = QpAddress::decode(address).unwrap();
    let mut found = 0;
    for kind in 0..=255 {
        for lane in [0, 1, 2, 3, 0x80, 0xff] {
            for len in 0..=CONNECT_LEN + 1 {
                let mut bytes = [&[kind, lane, 0, 0, 0, 0, 0, 0], &address.encode()[..], &[0]].concat();
                bytes.truncate(len);
                let expected = match (kind, lane, len) {
                    (1, 0, 8) => Some(Request::Attach),
                    (2, lane, CONNECT_LEN) if lane < LANES => Some(Request::Connect { lane, address }),
                    (3, 0, 8) => Some(Request::Detach),
                    (4, 0, 8) => Some(Request::Check),
                    _ => None,
                };
                found += usize::from(expected.is_some());
                assert_eq!(Request::decode(&bytes).ok(), expected, "kind {kind}, lane {lane}, {len} bytes");
            }
        }
    }
    assert_eq!(found, 3 + usize::from(LANES));
}

/// The token is not among what is sent.
#[test]
fn subjects_are_what_a_claim_says_without_its_token() {
    let token = Token::from_bytes(*b"never sent there");
    let claim = Claim { slot: 1, id: 2, epoch: 3, address: 4, length: 5, token };
    let subject = Subject::new([6; 8], &claim);
    assert_eq!(subject, Subject { guid: [6; 8], slot: 1, id: 2, epoch: 3, address: 4, length: 5 });
    let other = Claim { token: Token::from_bytes([0; 16]), ..claim };
    assert_eq!(Subject::new([6; 8], &other).encode(), subject.encode());
}

fn keys() -> impl Strategy<Value = Mkey> {
    let net = prop::option::of((any::<u16>(), any::<IpAddr>(), 1..=u16::MAX));
    (cma_keys(), any::<[u8; 8]>(), any::<[bool; 2]>(), net).prop_map(
        |(of, guid, [shares, by_address], net)| Mkey {
            exporter: of.exporter,
            slot: of.slot,
            token: of.token,
            guid,
            in_directory: of.in_directory,
            shares,
            by_address,
            net: net.map(|(kind, ip, port)| (kind, SocketAddr::new(ip.to_canonical(), port))),
        },
    )
}

fn addresses() -> impl Strategy<Value = QpAddress> {
    let numbers = (1..1_u32 << 24, 0..1_u32 << 24, any::<u16>());
    (numbers, prop::option::of(any::<[u8; 16]>()), 1..=5_u8, 1..=u8::MAX).prop_map(
        |((number, psn, lid), gid, mtu, reads)| {
            let gid = gid.filter(|gid| *gid != [0; 16]);
            QpAddress { number, psn, gid, lid, mtu, reads }
        },
    )
}

fn requests() -> impl Strategy<Value = Request> {
    let connect = (0..LANES, addresses()).prop_map(|(lane, address)| Request::Connect { lane, address });
    prop_oneof![Just(Request::Attach), Just(Request::Detach), Just(Request::Check), connect]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn contents_of_verbs_come_back(
        key in keys(), address in addresses(), claim in claims(), guid: [u8; 8], request in requests(), rkey: u32,
        rights in 0_u32..4,
    ) {
        prop_assert_eq!(Mkey::decode(&key_of(&key)), Ok(key));
        prop_assert_eq!(QpAddress::decode(&address.encode()), Ok(address));
        let subject = Subject::new(guid, &claim);
        prop_assert_eq!(Subject::decode(&subject.encode()), Ok(subject));
        prop_assert_eq!(Request::decode(&request.encode()), Ok(request));
        let attached = Attached { rkey, rights: Rights::from_bits_truncate(rights) };
        prop_assert_eq!(Attached::decode(&attached.encode()), Ok(attached));
    }

    #[test]
    fn arbitrary_bytes_are_refused_by_verbs_or_canonical(bytes in prop::collection::vec(any::<u8>(), 0..120), fitting: bool) {
        /// As they are, and with the right length and zeros where those have to be.
        fn check<T: Debug + PartialEq>(format: &Format<T>, bytes: &[u8], zeros: &[std::ops::Range<usize>]) -> bool {
            format.is_canonical(bytes);
            let mut fitted = bytes.to_vec();
            fitted.resize(format.len, 0);
            zeros.iter().for_each(|range| fitted[range.clone()].fill(0));
            format.is_canonical(&fitted).is_some()
        }
        let part = |range: std::ops::Range<usize>| if fitting { vec![range] } else { Vec::new() };
        check(&key(), &bytes, &part(73..80));
        check(&queue_pair(), &bytes, &part(28..32));
        let accepted = check(&subject(), &bytes, &part(12..16));
        prop_assert!(accepted || !fitting, "a subject is what its numbers say");
        check(&remote_request(), &bytes, &part(1..8));
        check(&attached(), &bytes, &part(5..16));
    }
}
