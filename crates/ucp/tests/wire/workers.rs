//! The formats of workers against the golden vectors, and against changed bytes: addresses, messages of endpoints, rkeys.

use std::fmt::Debug;
use std::num::NonZeroU64;

use proptest::prelude::*;
use testkit::golden::{hex, vectors};
use ucp::wire::address::{self, Entry, MAX_ENTRIES, MAX_ENTRY_LEN};
use ucp::wire::am::{Kind, MAX_HEADER, Message, Pair, Rts};
use ucp::wire::rkey;

/// The content's lines, and its bytes again; or what is wrong.
type Read = Result<(Vec<String>, Vec<u8>), String>;

/// A format: bytes to what they mean, as the vectors write it down, and to the bytes that its encoder makes of that.
struct Format {
    /// Where its vectors are.
    vectors: &'static str,
    read: fn(&[u8]) -> Read,
    /// Whether any bytes may follow a good one's: then the message before them is not whole by itself.
    is_open: bool,
}

const ADDRESS: Format = Format {
    vectors: "address/v1",
    read: |bytes| {
        let entries = address::decode(bytes).map_err(|error| error.to_string())?;
        let mut lines = vec![format!("entries = {}", entries.len())];
        for (index, Entry { component, bytes }) in entries.iter().enumerate() {
            lines.push(format!("entry.{index}.component = {component}"));
            lines.push(format!("entry.{index}.bytes = {}", hex(bytes)));
        }
        Ok((lines, address::encode(&entries).map_err(|error| error.to_string())?))
    },
    is_open: false,
};

/// The handle in it tells its own end.
const RKEY: Format = Format {
    vectors: "rkey/v1",
    read: |bytes| {
        let handle = rkey::decode(bytes).map_err(|error| error.to_string())?;
        Ok((vec![format!("handle = {}", hex(handle))], rkey::encode(handle)))
    },
    is_open: true,
};

/// A vector is the tag, in four bytes, and then the message's bytes, whose end is told by the transport.
const MESSAGE: Format = Format {
    vectors: "am/v1",
    read: |bytes| {
        let (tag, bytes) = bytes.split_first_chunk().ok_or("no tag")?;
        let message = Message::decode(u32::from_le_bytes(*tag), bytes).map_err(|error| error.to_string())?;
        let (tag, bytes) = message.encode();
        Ok((message_lines(&message), [&tag.to_le_bytes()[..], &bytes].concat()))
    },
    is_open: true,
};

fn message_lines(message: &Message<'_>) -> Vec<String> {
    let line = |name: &str, value: &dyn std::fmt::Display| format!("{name} = {value}");
    match *message {
        Message::Data(id, header, data) => {
            let kind = if header.is_empty() { "eager" } else { "header" };
            let mut lines = vec![line("kind", &kind), line("id", &id)];
            lines.extend((!header.is_empty()).then(|| line("header", &hex(header))));
            lines.push(line("data", &hex(data)));
            lines
        }
        Message::Announced(id, Rts { request, length, address, .. }, header) => {
            let kind = if address.is_some() { "offer" } else { "rts" };
            let mut lines = vec![line("kind", &kind), line("id", &id), line("request", &request)];
            lines.push(line("length", &length));
            lines.extend(address.map(|address| line("address", &format_args!("{address:#x}"))));
            lines.push(line("header", &hex(header)));
            lines
        }
        Message::Control(kind, Pair(first, second), data) => match kind {
            Kind::Cts => vec![line("kind", &"cts"), line("request", &first), line("receive", &second)],
            Kind::Data => vec![line("kind", &"data"), line("receive", &first), line("data", &hex(data))],
            Kind::Drop => vec![line("kind", &"drop"), line("request", &first), line("status", &second)],
            Kind::Abort => vec![line("kind", &"abort"), line("receive", &first), line("status", &second)],
            other => unreachable!("{other:?} begins with no pair"),
        },
    }
}

impl Format {
    fn good(&self) -> impl Iterator<Item = (String, Vec<u8>)> {
        let good = vectors(self.vectors).into_iter().filter(|(name, ..)| !name.starts_with("bad-"));
        good.map(|(name, bytes, _)| (name, bytes))
    }

    fn vectors_hold(&self) {
        let (mut good, mut bad) = (0, 0);
        for (name, bytes, expected) in vectors(self.vectors) {
            match (self.read)(&bytes) {
                Ok((lines, again)) => {
                    let text = lines.iter().fold(String::new(), |text, line| text + line.trim_end() + "\n");
                    assert_eq!(text, expected, "{name}");
                    assert_eq!(again, bytes, "{name} is encoded to the same bytes");
                    good += 1;
                }
                Err(error) => {
                    assert_eq!(format!("error = {error}\n"), expected, "{name}");
                    assert!(name.starts_with("bad-"), "{name}");
                    bad += 1;
                }
            }
        }
        assert!(good >= 4 && bad >= 11, "{good} good and {bad} bad vectors were found");
    }

    /// Accepted bytes are those that the content is encoded to.
    fn is_canonical(&self, bytes: &[u8]) -> bool {
        match (self.read)(bytes) {
            Ok((_, again)) => {
                assert_eq!(again, bytes, "{}", self.vectors);
                true
            }
            Err(_) => false,
        }
    }

    fn every_byte_counts(&self) {
        for (name, bytes) in self.good() {
            for len in (0..bytes.len()).chain([bytes.len() + 1, bytes.len() + 100]) {
                let mut other = bytes.clone();
                other.resize(len, 0);
                assert!(!self.is_canonical(&other) || self.is_open, "{name}: {len} bytes");
            }
            // That bytes come back is enough: two byte strings that both do have different contents.
            for at in 0..bytes.len().min(100) {
                for value in 0..=255 {
                    let mut changed = bytes.clone();
                    changed[at] = value;
                    self.is_canonical(&changed);
                }
            }
        }
    }
}

#[test]
fn vectors_of_workers_hold() {
    ADDRESS.vectors_hold();
    RKEY.vectors_hold();
    MESSAGE.vectors_hold();
}

#[test]
fn other_lengths_are_refused_and_every_byte_of_workers_is_canonical() {
    ADDRESS.every_byte_counts();
    RKEY.every_byte_counts();
    MESSAGE.every_byte_counts();
}

/// Writes the right checksum of an address: over all bytes, its own four taken as zero.
fn repair(bytes: &mut [u8]) {
    if bytes.len() >= address::HEADER_LEN {
        bytes[12..16].fill(0);
        let crc = crc32c::crc32c(bytes);
        bytes[12..16].copy_from_slice(&crc.to_le_bytes());
    }
}

/// The checksum hides what is behind it: so each change is tried with a right one, too.
#[test]
fn every_changed_bit_of_an_address_is_told_or_canonical_behind_the_checksum() {
    for (name, bytes) in ADDRESS.good().filter(|(name, _)| !name.starts_with("longest")) {
        for bit in 0..bytes.len() * 8 {
            let mut changed = bytes.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            assert!(!ADDRESS.is_canonical(&changed), "{name}: bit {bit}");
            repair(&mut changed);
            ADDRESS.is_canonical(&changed);
        }
        for len in 0..bytes.len() {
            let mut cut = bytes[..len].to_vec();
            if let Some(total) = cut.get_mut(8..12) {
                total.copy_from_slice(&u32::try_from(len).unwrap().to_le_bytes());
            }
            repair(&mut cut);
            assert!(!ADDRESS.is_canonical(&cut), "{name}: {len} bytes");
        }
    }
}

#[test]
fn more_than_any_address_has_is_refused_before_it_is_read() {
    let bytes = vec![0; address::MAX_LEN + 1];
    let error = address::decode(&bytes).unwrap_err();
    assert_eq!(error.to_string(), "16385 bytes where 16384 are announced");
    let entry = |len| Entry { component: 0, bytes: vec![0; len] };
    let many: Vec<_> = (0..33).map(|component| Entry { component, bytes: Vec::new() }).collect();
    assert!(address::encode(&many).is_err() && address::encode(&many[1..]).is_ok());
    assert!(address::encode(&[entry(MAX_ENTRY_LEN + 1)]).is_err());
    assert!(address::encode(&[entry(MAX_ENTRY_LEN)]).is_ok());
}

fn entries() -> impl Strategy<Value = Vec<Entry>> {
    let bytes = prop::collection::vec(any::<u8>(), 0..200);
    prop::collection::btree_map(any::<u16>(), bytes, 0..MAX_ENTRIES)
        .prop_map(|all| all.into_iter().map(|(component, bytes)| Entry { component, bytes }).collect())
}

fn come_back<T: Debug + PartialEq>(found: T, expected: T) -> Result<(), TestCaseError> {
    prop_assert_eq!(found, expected);
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn contents_of_workers_come_back(
        entries in entries(), id: u16, a: u32, b: u32, length: u64, address: u64,
        header in prop::collection::vec(any::<u8>(), 1..=MAX_HEADER), data in prop::collection::vec(any::<u8>(), 1..300),
    ) {
        come_back(address::decode(&address::encode(&entries).unwrap()), Ok(entries))?;
        come_back(rkey::decode(&rkey::encode(&data)), Ok(&data[..]))?;
        let header_len = u16::try_from(header.len()).unwrap();
        let rts = Rts { request: a, header_len, length, address: NonZeroU64::new(address) };
        let messages = [
            Message::Data(id, &[], &data),
            Message::Data(id, &header, &data),
            Message::Announced(id, rts, &header),
            Message::Announced(id, Rts { address: None, ..rts }, &header),
            Message::Control(Kind::Cts, Pair(a, b), &[]),
            Message::Control(Kind::Data, Pair(a, 0), &data),
            Message::Control(Kind::Drop, Pair(a, b & 255), &[]),
            Message::Control(Kind::Abort, Pair(a, b & 255), &[]),
        ];
        for message in messages {
            let (tag, bytes) = message.encode();
            prop_assert!(tag < 1 << 24);
            come_back(Message::decode(tag, &bytes), Ok(message))?;
        }
    }

    #[test]
    fn arbitrary_bytes_of_workers_are_refused_or_canonical(
        bytes in prop::collection::vec(any::<u8>(), 0..300), kind in 0_u8..8, count in 0_u8..4,
    ) {
        RKEY.is_canonical(&[b"RXRK\x01\0\0\0", &bytes[..]].concat());
        MESSAGE.is_canonical(&[&[0, 0, kind, 0], &bytes[..]].concat());
        let total = u32::try_from(16 + bytes.len()).unwrap().to_le_bytes();
        let mut address = [b"RXWA\x01\0", &[count, 0][..], &total, &[0; 4], &bytes].concat();
        repair(&mut address);
        ADDRESS.is_canonical(&address);
        for format in [ADDRESS, RKEY, MESSAGE] {
            format.is_canonical(&bytes);
        }
    }
}
