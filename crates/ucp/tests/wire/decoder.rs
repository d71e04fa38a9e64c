//! The decoder: total, bounded, canonical.

use std::collections::BTreeMap;

use proptest::collection::{btree_map, vec};
use proptest::prelude::*;
use ucp::wire::handle::{
    Entry, HEADER_LEN, Handle, HandleError, HandleReason, MAX_ENTRIES, MAX_LEN, MAX_MKEY_LEN, PREFIX_LEN,
    entry_len, total_len,
};

use crate::support::{CRC, decode, encode, entry, repair, sample};

fn error(reason: HandleReason, offset: usize) -> Result<Handle, HandleError> {
    Err(HandleError { reason, offset })
}

fn put(bytes: &mut [u8], at: usize, value: &[u8]) {
    bytes[at..at + value.len()].copy_from_slice(value);
}

#[test]
fn every_truncation_is_told_with_what_is_missing() {
    let bytes = encode(&sample());
    for len in 0..bytes.len() {
        // Short of the prefix, the field that is cut is all that can be told to be missing.
        let end = [4, 6, 8, 12].into_iter().find(|end| len < *end).unwrap_or(bytes.len());
        assert_eq!(
            decode(&bytes[..len]),
            error(HandleReason::Truncated { needed: end - len }, len),
            "{len} bytes"
        );
    }
}

#[test]
fn bytes_after_the_end_are_refused() {
    let bytes = encode(&sample());
    for extra in [1, 7, 8, 72, bytes.len()] {
        let mut longer = bytes.clone();
        longer.resize(bytes.len() + extra, 0);
        assert_eq!(decode(&longer), error(HandleReason::Trailing { extra }, bytes.len()));
    }
}

#[test]
fn every_single_bit_flip_is_told() {
    let bytes = encode(&sample());
    for bit in 0..bytes.len() * 8 {
        let (at, mask) = (bit / 8, 1 << (bit % 8));
        let mut changed = bytes.clone();
        changed[at] ^= mask;
        let announced =
            usize::from(changed[8]) + (usize::from(changed[9]) << 8) + (usize::from(changed[10]) << 16);
        let announced = announced + (usize::from(changed[11]) << 24);
        let expected = match at {
            0..4 => error(HandleReason::Magic { hint: "this is no packed memory handle" }, 0),
            4..6 => error(
                HandleReason::Version { found: u16::from(changed[4]) + (u16::from(changed[5]) << 8) },
                4,
            ),
            6..8 => error(HandleReason::Field("the header has another length than in this version"), 6),
            8..12 if announced > MAX_LEN => error(HandleReason::TooLong { found: announced }, 8),
            8..12 if announced < HEADER_LEN => {
                error(HandleReason::Field("the whole is shorter than its header"), 8)
            }
            8..12 if announced < bytes.len() => {
                error(HandleReason::Trailing { extra: bytes.len() - announced }, announced)
            }
            8..12 => error(HandleReason::Truncated { needed: announced - bytes.len() }, bytes.len()),
            _ => error(HandleReason::Checksum, CRC.start),
        };
        assert_eq!(decode(&changed), expected, "bit {bit}");
    }
}

#[test]
fn every_byte_change_with_the_right_checksum_is_refused_or_canonical() {
    let original = sample();
    let bytes = encode(&original);
    let mut accepted = 0;
    for at in 0..bytes.len() {
        for value in 0..=255 {
            let mut changed = bytes.clone();
            changed[at] = value;
            repair(&mut changed);
            let Ok(handle) = decode(&changed) else { continue };
            assert_eq!(encode(&handle), changed, "byte {at} = {value}");
            assert_eq!(
                handle == original,
                changed == bytes,
                "byte {at} = {value}: another content, other bytes"
            );
            accepted += 1;
        }
    }
    // Else the test would say nothing of what is accepted: ids, keys, the address, the uuid.
    assert!(accepted > 50 * 255, "{accepted}");
}

#[test]
fn no_handle_is_longer_than_the_caps_allow() {
    let longest = Handle {
        entries: (0..32).map(|component| entry(component, &[1; 255], &[2; MAX_MKEY_LEN])).collect(),
        ..sample()
    };
    let bytes = encode(&longest);
    assert_eq!(bytes.len(), HEADER_LEN + MAX_ENTRIES * entry_len(255, MAX_MKEY_LEN));
    assert_eq!(Handle::decode(&bytes, |_| true).as_ref(), Ok(&longest));

    let mut beyond = bytes.clone();
    beyond.resize(MAX_LEN + 1, 0);
    assert_eq!(decode(&beyond), error(HandleReason::TooLong { found: MAX_LEN + 1 }, MAX_LEN));
    beyond.pop();
    assert_eq!(decode(&beyond), error(HandleReason::Trailing { extra: MAX_LEN - bytes.len() }, bytes.len()));
    let len = u32::try_from(MAX_LEN).unwrap();
    put(&mut beyond, 8, &len.to_le_bytes());
    repair(&mut beyond);
    assert_eq!(decode(&beyond), error(HandleReason::Trailing { extra: MAX_LEN - bytes.len() }, bytes.len()));
}

#[test]
fn the_encoder_refuses_what_no_decoder_takes() {
    let of = |entries| Handle { entries, ..sample() }.encode();
    assert!(of((0..32).map(|component| entry(component, b"", b"")).collect()).is_ok());
    assert!(of((0..33).map(|component| entry(component, b"", b"")).collect()).is_err(), "33 entries");
    assert!(of(vec![entry(1, b"", &[0; MAX_MKEY_LEN])]).is_ok());
    assert!(of(vec![entry(1, b"", &[0; MAX_MKEY_LEN + 1])]).is_err(), "a key of 1025 bytes");
    assert!(of(vec![entry(1, b"", &[0; 1 << 16])]).is_err(), "a key of 64 KiB");
    assert!(of(vec![entry(1, &[0; 256], b"")]).is_err(), "an id of 256 bytes");
}

#[test]
fn lengths_that_lie_are_refused() {
    let bytes = encode(&sample());
    let first = HEADER_LEN;
    let second = first + entry_len(2, 8);
    // Where a length lies, how many bytes it has, and what it could say.
    let lies = [
        (6, 2, vec![0, 1, 71, 73, 80, 0xffff]),
        (8, 4, vec![0, 1, 71, 72, 73, 0x1_0000, 0x1_0001, 0x7fff_ffff, 0xffff_ffff]),
        (first + 4, 4, vec![0, 1, 8, 0x1000, 0xffff_ffff]),
        (first + 8, 1, vec![0, 1, 255]),
        (first + 10, 2, vec![0, 1, 1024, 1025, 0xffff]),
        (second + 4, 4, vec![0, 1, 0xffff_fff8]),
        (second + 8, 1, vec![0, 7, 255]),
        (second + 10, 2, vec![0, 10, 0xffff]),
    ];
    for (at, len, values) in lies {
        for value in values {
            let mut changed = bytes.clone();
            put(&mut changed, at, &u64::to_le_bytes(value)[..len]);
            repair(&mut changed);
            assert!(decode(&changed).is_err(), "{value} at byte {at}");
        }
    }
    // An entry as long as the file says, with the length of its parts moved between id and key: another content.
    let mut moved = bytes.clone();
    moved[first + 8] += 1;
    moved[first + 10] -= 1;
    repair(&mut moved);
    let handle = decode(&moved).unwrap();
    assert_eq!(
        (handle.entries[0].global_id.as_slice(), handle.entries[0].mkey.as_slice()),
        (&b"idk"[..], &b"ey of 1"[..])
    );
    assert_eq!(encode(&handle), moved);
}

#[test]
fn entries_are_in_order_and_no_two_alike() {
    let of = |entries: &[(u16, &[u8])]| {
        let entries = entries.iter().map(|(component, id)| entry(*component, id, b"k")).collect();
        decode(&encode(&Handle { entries, ..sample() })).map(|_| ())
    };
    let unordered = |offset| error(HandleReason::Field("entries are not in order"), offset).map(|_| ());
    assert_eq!(of(&[(1, b"a"), (1, b"aa"), (1, b"b"), (2, b"")]), Ok(()));
    assert_eq!(of(&[(2, b""), (1, b"")]), unordered(HEADER_LEN + 16));
    assert_eq!(of(&[(1, b"aa"), (1, b"a")]), unordered(HEADER_LEN + 16));
    assert_eq!(of(&[(1, b"a"), (1, b"a")]), unordered(HEADER_LEN + 16));
    assert_eq!(of(&[(1, b"a"), (2, b"a"), (2, b"a")]), unordered(HEADER_LEN + 32));
}

#[test]
fn unknown_components_are_skipped_unless_mandatory() {
    let mut handle = sample();
    handle.entries.insert(0, entry(0, b"", b"?"));
    handle.entries.push(entry(900, b"far", b"?"));
    assert_eq!(decode(&encode(&handle)), Ok(handle.clone()));
    handle.entries[1].mandatory = true; // component 1 is known
    assert_eq!(decode(&encode(&handle)), Ok(handle.clone()));
    handle.entries[3].mandatory = true;
    let at = encode(&handle).len() - entry_len(3, 1);
    let bytes = encode(&handle);
    assert_eq!(decode(&bytes), error(HandleReason::UnknownMandatory { component: 900 }, at));
    assert_eq!(Handle::decode(&bytes, |_| true), Ok(handle), "somebody who knows it reads it");
}

#[test]
fn other_versions_are_told_before_anything_else_of_them_is_read() {
    for version in (0..=9).chain([0x7fff, 0xffff]).filter(|version| *version != 1) {
        let mut bytes = encode(&sample());
        put(&mut bytes, 4, &u16::to_le_bytes(version));
        // All that another version may do otherwise.
        for byte in &mut bytes[6..] {
            *byte = byte.wrapping_mul(3).wrapping_add(1);
        }
        let told = error(HandleReason::Version { found: version }, 4);
        assert_eq!(decode(&bytes), told);
        assert_eq!(total_len(&bytes[..PREFIX_LEN]).map(|_| sample()), told);
    }
}

#[test]
fn memory_without_bytes_has_nothing_else() {
    let empty = Handle { length: 0, registration_id: 0, epoch: 0, entries: Vec::new(), ..sample() };
    assert_eq!(decode(&encode(&empty)), Ok(empty.clone()));
    let refused = |handle: Handle| decode(&encode(&handle)).expect_err("half of an export").offset;
    assert_eq!(refused(Handle { registration_id: 1, ..empty.clone() }), 48);
    assert_eq!(refused(Handle { epoch: 1, ..empty.clone() }), 56);
    assert_eq!(refused(Handle { entries: sample().entries, ..empty }), 15);
    assert_eq!(refused(Handle { registration_id: 0, ..sample() }), 48);
    assert_eq!(refused(Handle { registration_id: 0, epoch: 0, ..sample() }), 48);
    assert_eq!(refused(Handle { epoch: 0, ..sample() }), 56);
    assert_eq!(refused(Handle { epoch: 4, ..sample() }), 56);
}

fn entries() -> impl Strategy<Value = Vec<Entry>> {
    let names = (any::<u16>(), vec(any::<u8>(), 0..=255));
    let content = (any::<bool>(), vec(any::<u8>(), 0..=MAX_MKEY_LEN));
    btree_map(names, content, 0..=MAX_ENTRIES).prop_map(|entries: BTreeMap<_, _>| {
        let entry =
            |((component, global_id), (mandatory, mkey))| Entry { component, mandatory, global_id, mkey };
        entries.into_iter().map(entry).collect()
    })
}

fn handles() -> impl Strategy<Value = Handle> {
    let numbers = (any::<u64>(), any::<u64>(), any::<[u8; 16]>(), 1_u64.., any::<u64>());
    (numbers, entries(), 0..10).prop_map(
        |((address, length, context_uuid, registration_id, epoch), entries, empty)| {
            let handle = Handle {
                address,
                length: 0,
                context_uuid,
                registration_id: 0,
                epoch: 0,
                entries: Vec::new(),
            };
            match length.min(u64::MAX - address) {
                1.. if empty == 0 => handle,
                0 => handle,
                length => Handle { length, registration_id, epoch: epoch | 1, entries, ..handle },
            }
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(300) })]

    #[test]
    fn any_handle_within_the_caps_comes_back(handle in handles()) {
        let bytes = encode(&handle);
        prop_assert_eq!(Handle::decode(&bytes, |_| true), Ok(handle.clone()));
        prop_assert_eq!(total_len(&bytes[..PREFIX_LEN]), Ok(bytes.len()));
        let lens = handle.entries.iter().map(|entry| entry_len(entry.global_id.len(), entry.mkey.len()));
        prop_assert_eq!(HEADER_LEN + lens.sum::<usize>(), bytes.len(), "the size is known before");
    }

    #[test]
    fn arbitrary_bytes_are_refused_or_canonical(bytes in vec(any::<u8>(), 0..2048), begin in 0_usize..5) {
        // The first fields right, one more each time: else all ends at the magic.
        let mut bytes = bytes;
        let mut head = encode(&sample());
        put(&mut head, 8, &u32::try_from(bytes.len()).unwrap().to_le_bytes());
        let kept = [0, 4, 8, 12, 16][begin].min(bytes.len());
        bytes[..kept].copy_from_slice(&head[..kept]);
        repair(&mut bytes);
        let _ = total_len(&bytes);
        if let Ok(handle) = Handle::decode(&bytes, |_| true) {
            prop_assert_eq!(encode(&handle), bytes);
        }
    }

    #[test]
    fn entries_cut_and_pasted_are_refused_or_canonical(
        handle in handles(), cut in any::<prop::sample::Index>(), paste in any::<prop::sample::Index>(), len in 0_usize..64,
    ) {
        let mut bytes = encode(&handle);
        let (from, to) = (cut.index(bytes.len()), paste.index(bytes.len()));
        let len = len.min(bytes.len() - from).min(bytes.len() - to);
        bytes.copy_within(from..from + len, to);
        repair(&mut bytes);
        if let Ok(handle) = Handle::decode(&bytes, |_| true) {
            prop_assert_eq!(encode(&handle), bytes);
        }
    }
}
