//! The formats of this crate against the golden vectors, and against changed bytes: keys of `self`, `shm` and `cma`, addresses of
//! their interfaces, what interfaces of `verbs` tell each other, the messages on the service socket, and those between services of two
//! machines.

#[path = "wire/net.rs"]
mod net;
#[path = "wire/verbs.rs"]
mod verbs;

use std::fmt::Debug;

use proptest::prelude::*;
use testkit::golden::{hex, vectors};
use uct::export::{Claim, Refusal, Token};
use uct::memory::Rights;
use uct::process::Identity;
use uct::service::wire::{
    Introduction, MAX_FDS, Message, PlacedKeys, Placing, REPLY_LEN, REQUEST_LEN, Reply, Request, Verdict,
    encode_unplace,
};
use uct::transports::{cma, self_, shm};

/// A format: bytes to content and back, and the content as the vectors write it down.
struct Format<T> {
    /// Where its vectors are.
    vectors: &'static str,
    len: usize,
    decode: fn(&[u8]) -> Result<T, String>,
    encode: fn(&T) -> Vec<u8>,
    lines: fn(&T) -> Vec<String>,
}

fn self_key() -> Format<self_::mkey::Mkey> {
    Format {
        vectors: "mkey-self/v1",
        len: self_::mkey::LEN,
        decode: |bytes| self_::mkey::Mkey::decode(bytes).ok_or("no key".to_owned()),
        encode: |key| {
            let mut bytes = vec![0xaa; self_::mkey::LEN];
            key.encode(&mut bytes).expect("LEN holds a key");
            bytes
        },
        lines: |key| vec![format!("slot = {}", key.slot), format!("token = {}", hex(key.token.as_bytes()))],
    }
}

fn shm_key() -> Format<shm::mkey::Mkey> {
    Format {
        vectors: "mkey-shm/v1",
        len: shm::mkey::LEN,
        decode: |bytes| shm::mkey::Mkey::decode(bytes).map_err(str::to_owned),
        encode: |key| {
            let mut bytes = vec![0xaa; shm::mkey::LEN];
            key.encode(&mut bytes).expect("LEN holds a key");
            bytes
        },
        lines: |key| {
            let mut lines = who(&key.exporter, key.slot, &key.token);
            lines.extend([
                format!("region_inode = {}", key.region.1),
                format!("table_inode = {}", key.files.table.1),
                format!("vault_inode = {}", key.files.vault.1),
                format!("region_fd = {}", key.region.0),
                format!("table_fd = {}", key.files.table.0),
                format!("vault_fd = {}", key.files.vault.0),
                format!("service_name = {}", hex(&key.service)),
            ]);
            lines.extend(key.in_directory.then(in_directory));
            lines
        },
    }
}

fn cma_key() -> Format<cma::mkey::Mkey> {
    Format {
        vectors: "mkey-cma/v1",
        len: cma::mkey::LEN,
        decode: |bytes| cma::mkey::Mkey::decode(bytes).map_err(str::to_owned),
        encode: |key| {
            let mut bytes = vec![0xaa; cma::mkey::LEN];
            key.encode(&mut bytes).expect("LEN holds a key");
            bytes
        },
        lines: |key| {
            let mut lines = who(&key.exporter, key.slot, &key.token);
            lines.extend(key.in_directory.then(in_directory));
            lines
        },
    }
}

/// What the keys of `shm`, `cma` and `verbs` begin with.
fn who(exporter: &Identity, slot: u32, token: &Token) -> Vec<String> {
    let Identity { pid, pidfd_inode, start_time, pid_ns, net_ns, user_ns } = exporter;
    vec![
        format!("pid = {pid}"),
        format!("slot = {slot}"),
        format!("pidfd_inode = {pidfd_inode}"),
        format!("start_time = {start_time}"),
        format!("pid_ns = {pid_ns}"),
        format!("net_ns = {net_ns}"),
        format!("user_ns = {user_ns}"),
        format!("token = {}", hex(token.as_bytes())),
    ]
}

/// Written only where it holds, as is `want_memory = false`: there are vectors from before there was either.
fn in_directory() -> String {
    "in_directory = true".to_owned()
}

fn request() -> Format<Request> {
    Format {
        vectors: "service-request/v1",
        len: REQUEST_LEN,
        decode: |bytes| Request::decode(bytes).map_err(|error| error.to_string()),
        encode: |request| request.encode().to_vec(),
        lines: |request| {
            let Claim { slot, id, epoch, address, length, token } = &request.claim;
            let mut lines = vec![
                format!("sequence = {}", request.sequence),
                format!("want_control = {}", request.want_control),
            ];
            lines.extend((!request.want_memory).then(|| "want_memory = false".to_owned()));
            lines.extend([
                format!("context_uuid = {}", hex(&request.uuid)),
                format!("id = {id}"),
                format!("epoch = {epoch}"),
                format!("address = {address:#x}"),
                format!("length = {length}"),
                format!("slot = {slot}"),
                format!("token = {}", hex(token.as_bytes())),
            ]);
            lines
        },
    }
}

fn reply() -> Format<Reply> {
    Format {
        vectors: "service-reply/v1",
        len: REPLY_LEN,
        decode: |bytes| Reply::decode(bytes).map_err(|error| error.to_string()),
        encode: |reply| reply.encode().to_vec(),
        lines: |reply| {
            let verdict = match reply.verdict {
                Verdict::Granted => "granted",
                Verdict::Refused(Refusal::Stale) => "stale",
                Verdict::Refused(Refusal::WrongToken) => "wrong-token",
                Verdict::Refused(Refusal::Mismatch) => "mismatch",
                Verdict::NoDescriptor => "no-descriptor",
                Verdict::NoResource => "no-resource",
                Verdict::TooMany => "too-many",
                Verdict::NotPlaced => "not-placed",
            };
            vec![
                format!("sequence = {}", reply.sequence),
                format!("verdict = {verdict}"),
                format!("rights = {}", reply.rights.bits()),
                format!("length = {}", reply.length),
                format!("fds = {}", reply.fds),
            ]
        },
    }
}

fn introduction() -> Format<Introduction> {
    Format {
        vectors: "service-introduction/v1",
        len: REQUEST_LEN,
        decode: |bytes| Introduction::decode(bytes).map_err(|error| error.to_string()),
        encode: |asked| asked.encode().to_vec(),
        lines: |asked| {
            vec![
                format!("sequence = {}", asked.sequence),
                format!("context_uuid = {}", hex(&asked.uuid)),
                format!("from = {}", hex(&asked.from)),
                format!("length = {}", asked.length),
                format!("worker = {}", asked.worker),
                format!("token = {}", hex(asked.token.as_bytes())),
            ]
        },
    }
}

fn placing() -> Format<Placing> {
    Format {
        vectors: "service-placing/v1",
        len: REQUEST_LEN,
        decode: |bytes| Placing::decode(bytes).map_err(|error| error.to_string()),
        encode: |asked| asked.encode().to_vec(),
        lines: |asked| {
            let Claim { slot, id, epoch, address, length, token } = &asked.claim;
            vec![
                format!("sequence = {}", asked.sequence),
                format!("context_uuid = {}", hex(&asked.uuid)),
                format!("id = {id}"),
                format!("epoch = {epoch}"),
                format!("address = {address:#x}"),
                format!("length = {length}"),
                format!("slot = {slot}"),
                format!("token = {}", hex(token.as_bytes())),
                format!("domain = {}", asked.domain),
            ]
        },
    }
}

fn placed() -> Format<PlacedKeys> {
    Format {
        vectors: "service-placed/v1",
        len: REPLY_LEN,
        decode: |bytes| match PlacedKeys::decode(bytes) {
            Ok(keys) => keys.ok_or_else(|| "another reply".to_owned()),
            Err(error) => Err(error.to_string()),
        },
        encode: |keys| keys.encode().to_vec(),
        lines: |keys| {
            vec![
                format!("sequence = {}", keys.sequence),
                format!("lkey = {}", keys.lkey),
                format!("rkey = {}", keys.rkey),
                format!("handle = {}", keys.handle),
            ]
        },
    }
}

/// Any of what a service is asked, against the vectors of one of them.
fn message(vectors: &'static str) -> Format<Message> {
    Format {
        vectors,
        len: REQUEST_LEN,
        decode: |bytes| Message::decode(bytes).map_err(|error| error.to_string()),
        encode: |message| match message {
            Message::Attach(request) => request.encode().to_vec(),
            Message::Connect(asked) => asked.encode().to_vec(),
            Message::Place(asked) => asked.encode().to_vec(),
            Message::Unplace(sequence) => encode_unplace(*sequence).to_vec(),
        },
        lines: |message| match message {
            Message::Attach(asked) => (request().lines)(asked),
            Message::Connect(asked) => (introduction().lines)(asked),
            Message::Place(asked) => (placing().lines)(asked),
            Message::Unplace(sequence) => vec![format!("sequence = {sequence}")],
        },
    }
}

fn self_address() -> Format<self_::wire::Address> {
    Format {
        vectors: "address-self/v1",
        len: self_::wire::LEN,
        decode: |bytes| self_::wire::Address::decode(bytes).map_err(str::to_owned),
        encode: |address| address.encode().to_vec(),
        lines: |address| {
            vec![
                format!("context_uuid = {}", hex(&address.context_uuid)),
                format!("secret = {}", hex(address.secret.as_bytes())),
            ]
        },
    }
}

fn shm_address() -> Format<shm::wire::Address> {
    Format {
        vectors: "address-shm/v1",
        len: shm::wire::LEN,
        decode: |bytes| shm::wire::Address::decode(bytes).map_err(str::to_owned),
        encode: |address| address.encode().to_vec(),
        lines: |address| {
            let mut lines = who(&address.process, address.worker, &address.token);
            lines.extend([
                format!("context_uuid = {}", hex(&address.context_uuid)),
                format!("in_directory = {}", address.in_directory),
                format!("boot_id = {}", hex(&address.boot)),
            ]);
            lines
        },
    }
}

fn verbs_address() -> Format<uct::transports::verbs::rc::wire::Address> {
    Format {
        vectors: "address-verbs/v1",
        len: uct::transports::verbs::rc::wire::ADDRESS_LEN,
        decode: |bytes| uct::transports::verbs::rc::wire::Address::decode(bytes).map_err(str::to_owned),
        encode: |address| address.encode().to_vec(),
        lines: |address| {
            let mut lines = vec![
                format!("context_uuid = {}", hex(&address.context_uuid)),
                format!("token = {}", hex(address.token.as_bytes())),
                format!("instance = {}", hex(&address.instance)),
                format!("kind = {}", address.kind),
                format!("link = {:?}", address.link),
            ];
            lines.extend(address.sockets.iter().map(|socket| format!("socket = {socket}")));
            lines
        },
    }
}

fn queue_pair(qp: &uct::transports::verbs::wire::QpAddress) -> Vec<String> {
    vec![
        format!("number = {}", qp.number),
        format!("psn = {}", qp.psn),
        format!("gid = {}", qp.gid.map_or("none".to_owned(), |gid| hex(&gid))),
        format!("lid = {}", qp.lid),
        format!("mtu = {}", qp.mtu),
        format!("reads = {}", qp.reads),
    ]
}

fn verbs_call() -> Format<uct::transports::verbs::rc::wire::Call> {
    Format {
        vectors: "verbs-call/v1",
        len: uct::transports::verbs::rc::wire::CALL_LEN,
        decode: |bytes| uct::transports::verbs::rc::wire::Call::decode(bytes).map_err(str::to_owned),
        encode: |call| call.encode().to_vec(),
        lines: |call| {
            let mut lines = queue_pair(&call.qp);
            lines.extend([
                format!("context_uuid = {}", hex(&call.context_uuid)),
                format!("life = {}", call.life),
                format!("receives = {}", call.receives),
            ]);
            lines
        },
    }
}

fn verbs_reply() -> Format<uct::transports::verbs::rc::wire::Reply> {
    Format {
        vectors: "verbs-reply/v1",
        len: uct::transports::verbs::rc::wire::REPLY_LEN,
        decode: |bytes| uct::transports::verbs::rc::wire::Reply::decode(bytes).map_err(str::to_owned),
        encode: |reply| reply.encode().to_vec(),
        lines: |reply| {
            let mut lines = queue_pair(&reply.qp);
            lines.extend([format!("life = {}", reply.life), format!("receives = {}", reply.receives)]);
            lines
        },
    }
}

/// What begins a SEND: with no bytes behind it, but for one that is refused for them.
fn verbs_header() -> Format<uct::transports::verbs::rc::wire::Header> {
    use uct::transports::verbs::rc::wire::{HEADER_LEN, Header};
    Format {
        vectors: "verbs-header/v1",
        len: HEADER_LEN,
        decode: |bytes| {
            let mut begin = [0; HEADER_LEN];
            let len = bytes.len().min(HEADER_LEN);
            begin[..len].copy_from_slice(&bytes[..len]);
            Header::decode(&begin, bytes.len()).map_err(str::to_owned)
        },
        encode: |header| header.encode().to_vec(),
        lines: |header| vec![format!("kind = {:?}", header.kind), format!("credits = {}", header.credits)],
    }
}

impl<T: Debug + PartialEq> Format<T> {
    fn vectors_hold(&self) {
        let (mut good, mut bad) = (0, 0);
        for (name, bytes, expected) in vectors(self.vectors) {
            match (self.decode)(&bytes) {
                Ok(content) => {
                    let text = (self.lines)(&content)
                        .iter()
                        .fold(String::new(), |text, line| text + line.trim_end() + "\n");
                    assert_eq!(text, expected, "{name}");
                    assert_eq!((self.encode)(&content), bytes, "{name} is encoded to the same bytes");
                    good += 1;
                }
                Err(error) => {
                    assert_eq!(format!("error = {error}\n"), expected, "{name}");
                    assert!(name.starts_with("bad-"), "{name}");
                    bad += 1;
                }
            }
        }
        assert!(good >= 3 && bad >= 7, "{good} good and {bad} bad vectors were found");
    }

    /// Accepted bytes are those that the content is encoded to.
    fn is_canonical(&self, bytes: &[u8]) -> Option<T> {
        let content = (self.decode)(bytes).ok()?;
        assert_eq!((self.encode)(&content), bytes);
        Some(content)
    }

    fn every_byte_counts(&self) {
        let good = vectors(self.vectors).into_iter().filter(|(name, ..)| !name.starts_with("bad-"));
        for (name, bytes, _) in good {
            for len in (0..bytes.len()).chain([bytes.len() + 1, 4096]) {
                let mut other = bytes.clone();
                other.resize(len, 0);
                assert!((self.decode)(&other).is_err(), "{name}: {len} bytes");
            }
            let content = (self.decode)(&bytes);
            for at in 0..bytes.len() {
                for value in 0..=255 {
                    let mut changed = bytes.clone();
                    changed[at] = value;
                    if let Some(other) = self.is_canonical(&changed) {
                        assert_eq!(
                            content.as_ref() == Ok(&other),
                            changed == bytes,
                            "{name}: byte {at} = {value}"
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn vectors_of_version_1_hold() {
    self_key().vectors_hold();
    shm_key().vectors_hold();
    cma_key().vectors_hold();
    self_address().vectors_hold();
    shm_address().vectors_hold();
    verbs_address().vectors_hold();
    verbs_call().vectors_hold();
    verbs_reply().vectors_hold();
    verbs_header().vectors_hold();
    request().vectors_hold();
    introduction().vectors_hold();
    placing().vectors_hold();
    message("service-unplacing/v1").vectors_hold();
    placed().vectors_hold();
    reply().vectors_hold();
}

/// What a service is asked.
const FAMILIES: [&str; 4] =
    ["service-request/v1", "service-introduction/v1", "service-placing/v1", "service-unplacing/v1"];

/// A service reads a message before it knows which. What was refused before there were introductions still is, but for its text.
#[test]
fn either_message_is_read_as_the_one_it_is() {
    for directory in FAMILIES {
        let format = message(directory);
        for (name, bytes, expected) in vectors(directory) {
            match (format.decode)(&bytes) {
                // One kind put in place of another may give a message.
                Ok(_) if name.starts_with("bad-kind-3") => assert_eq!(directory, "service-introduction/v1"),
                Ok(_) if name.starts_with("bad-kind-1") => assert_ne!(directory, "service-request/v1"),
                Ok(content) => {
                    assert_eq!((format.lines)(&content).join("\n") + "\n", expected, "{name}");
                    assert_eq!((format.encode)(&content), bytes, "{name}");
                }
                Err(_) if name.starts_with("bad-kind-2") => assert_eq!(directory, "service-request/v1"),
                Err(error) => assert_eq!(format!("error = {error}\n"), expected, "{name}"),
            }
        }
        format.every_byte_counts();
    }
}

#[test]
fn other_lengths_are_refused_and_every_byte_is_canonical() {
    self_key().every_byte_counts();
    shm_key().every_byte_counts();
    cma_key().every_byte_counts();
    self_address().every_byte_counts();
    shm_address().every_byte_counts();
    verbs_address().every_byte_counts();
    verbs_call().every_byte_counts();
    verbs_reply().every_byte_counts();
    request().every_byte_counts();
    introduction().every_byte_counts();
    placing().every_byte_counts();
    placed().every_byte_counts();
    reply().every_byte_counts();
}

#[test]
fn keys_are_not_written_into_less_room_nor_with_longer_names() {
    let key = self_::mkey::Mkey { slot: 1, token: Token::from_bytes([1; 16]) };
    assert!(key.encode(&mut [0; self_::mkey::LEN - 1]).is_err());
    let (_, bytes, _) = &vectors("mkey-shm/v1").into_iter().find(|(name, ..)| name == "key").unwrap();
    let mut key = shm::mkey::Mkey::decode(bytes).unwrap();
    assert!(key.encode(&mut [0; shm::mkey::LEN - 1]).is_err());
    key.service = vec![1; shm::mkey::NAME_MAX + 1];
    assert!(key.encode(&mut [0; shm::mkey::LEN]).is_err());
    let (_, bytes, _) = &vectors("mkey-cma/v1").into_iter().find(|(name, ..)| name == "key").unwrap();
    let key = cma::mkey::Mkey::decode(bytes).unwrap();
    assert!(key.encode(&mut [0; cma::mkey::LEN - 1]).is_err());
}

/// As many descriptors come with a reply as were wanted: memory is one, table and in-flight page are two.
#[test]
fn descriptors_are_those_that_were_wanted() {
    let (_, bytes, _) =
        &vectors("service-request/v1").into_iter().find(|(name, ..)| name == "attach").unwrap();
    let request = Request::decode(bytes).unwrap();
    for (want_memory, want_control, fds) in
        [(true, false, 1), (true, true, 3), (false, false, 0), (false, true, 2)]
    {
        let request = Request { want_memory, want_control, ..request.clone() };
        assert_eq!(request.fds(), fds);
        assert!(request.fds() <= MAX_FDS);
        assert_eq!(Request::decode(&request.encode()), Ok(request));
    }
}

fn claims() -> impl Strategy<Value = Claim> {
    let numbers = (any::<u32>(), any::<u64>(), any::<u64>(), any::<u64>(), any::<u64>(), any::<[u8; 16]>());
    numbers.prop_map(|(slot, id, epoch, address, length, token)| Claim {
        slot,
        id,
        epoch,
        address,
        length,
        token: Token::from_bytes(token),
    })
}

fn verdicts() -> impl Strategy<Value = Verdict> {
    let refusals = [Refusal::Stale, Refusal::WrongToken, Refusal::Mismatch].map(Verdict::Refused);
    let others = [Verdict::Granted, Verdict::NoDescriptor, Verdict::NoResource, Verdict::TooMany];
    prop::sample::select(refusals.into_iter().chain(others).collect::<Vec<_>>())
}

fn exporters() -> impl Strategy<Value = Identity> {
    (any::<u32>(), any::<[u64; 5]>()).prop_map(|(pid, numbers)| {
        let [pidfd_inode, start_time, pid_ns, net_ns, user_ns] = numbers;
        Identity { pid, pidfd_inode, start_time, pid_ns, net_ns, user_ns }
    })
}

fn shm_keys() -> impl Strategy<Value = shm::mkey::Mkey> {
    let who = (exporters(), any::<u32>(), any::<[u8; 16]>());
    let files = (any::<[u32; 3]>(), any::<[u64; 3]>());
    let name = prop::collection::vec(any::<u8>(), 0..=shm::mkey::NAME_MAX);
    (who, files, name, any::<bool>()).prop_map(
        |((exporter, slot, token), (fds, inodes), service, in_directory)| shm::mkey::Mkey {
            exporter,
            slot,
            token: Token::from_bytes(token),
            region: (fds[0], inodes[0]),
            files: uct::export::table::FileNumbers { table: (fds[1], inodes[1]), vault: (fds[2], inodes[2]) },
            service,
            in_directory,
        },
    )
}

fn cma_keys() -> impl Strategy<Value = cma::mkey::Mkey> {
    (exporters(), any::<u32>(), any::<[u8; 16]>(), any::<bool>()).prop_map(
        |(exporter, slot, token, in_directory)| cma::mkey::Mkey {
            exporter,
            slot,
            token: Token::from_bytes(token),
            in_directory,
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn contents_come_back(
        claim in claims(), sequence: u32, want_control: bool, want_memory: bool, uuid: [u8; 16],
        verdict in verdicts(), rights in 0_u32..4, length: u64, fds in 0..=u32::try_from(MAX_FDS).unwrap_or(0),
        key in shm_keys(), address in cma_keys(), from: [u8; 16], boot: [u8; 16],
    ) {
        let asked = Request { sequence, want_control, want_memory, uuid, claim };
        prop_assert_eq!(Request::decode(&asked.encode()), Ok(asked));
        let asked = Introduction { sequence, uuid, worker: claim.slot, token: claim.token, from, length };
        prop_assert_eq!(Message::decode(&asked.encode()), Ok(Message::Connect(asked)));
        let asked = Placing { sequence, uuid, claim, domain: fds };
        prop_assert_eq!(Message::decode(&asked.encode()), Ok(Message::Place(asked)));
        prop_assert_eq!(Message::decode(&encode_unplace(sequence)), Ok(Message::Unplace(sequence)));
        let keys = PlacedKeys { sequence, lkey: claim.slot, rkey: rights, handle: fds };
        prop_assert_eq!(PlacedKeys::decode(&keys.encode()), Ok(Some(keys)));
        let own = self_::wire::Address { context_uuid: uuid, secret: claim.token };
        prop_assert_eq!(self_::wire::Address::decode(&own.encode()), Ok(own));
        let cma::mkey::Mkey { exporter: process, slot: worker, token, in_directory } = address;
        let far = shm::wire::Address { process, worker, token, context_uuid: uuid, in_directory, boot };
        prop_assert_eq!(shm::wire::Address::decode(&far.encode()), Ok(far));
        let answer = Reply { sequence, verdict, rights: Rights::from_bits_truncate(rights), length, fds };
        prop_assert_eq!(Reply::decode(&answer.encode()), Ok(answer));
        let own = self_::mkey::Mkey::of(&claim);
        prop_assert_eq!(self_::mkey::Mkey::decode(&(self_key().encode)(&own)), Some(own));
        prop_assert_eq!(shm::mkey::Mkey::decode(&(shm_key().encode)(&key)), Ok(key));
        prop_assert_eq!(cma::mkey::Mkey::decode(&(cma_key().encode)(&address)), Ok(address));
    }

    #[test]
    fn arbitrary_bytes_are_refused_or_canonical(bytes in prop::collection::vec(any::<u8>(), 0..300), magic: bool) {
        fn check<T: Debug + PartialEq>(format: &Format<T>, bytes: &[u8], head: &[u8]) {
            format.is_canonical(bytes);
            let mut fitted = bytes.to_vec();
            fitted.resize(format.len, 0);
            fitted[..head.len()].copy_from_slice(head);
            format.is_canonical(&fitted);
        }
        check(&self_key(), &bytes, &[]);
        check(&shm_key(), &bytes, &[]);
        check(&cma_key(), &bytes, &[]);
        check(&self_address(), &bytes, &[]);
        check(&shm_address(), &bytes, &[]);
        check(&verbs_address(), &bytes, &[]);
        check(&verbs_call(), &bytes, &[]);
        check(&verbs_reply(), &bytes, &[]);
        check(&verbs_header(), &bytes[..bytes.len().min(8)], &[]);
        check(&introduction(), &bytes, if magic { b"RXSQ\x01\x00\x02\x00\0\0\0\0\0\0\0\0" } else { b"" });
        check(&placing(), &bytes, if magic { b"RXSQ\x01\x00\x03\x00\0\0\0\0\0\0\0\0" } else { b"" });
        check(&placed(), &bytes, if magic { b"RXSP\x01\x00\0\0" } else { b"" });
        let unplace = b"RXSQ\x01\x00\x04\x00\0\0\0\0\0\0\0\0";
        check(&message("service-unplacing/v1"), &bytes, if magic { unplace } else { b"" });
        check(&request(), &bytes, if magic { b"RXSQ\x01\x00\x01\x00" } else { b"" });
        check(&reply(), &bytes, if magic { b"RXSA\x01\x00" } else { b"" });
    }
}
