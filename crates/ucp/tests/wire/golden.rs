//! The golden vectors in `tests/golden/handle`.

use testkit::golden::{hex, vectors};
use ucp::wire::handle::Handle;

use crate::support::{decode, encode};

/// The content as the vectors write it down.
fn describe(handle: &Handle) -> String {
    let Handle { address, length, context_uuid, registration_id, epoch, entries } = handle;
    let mut lines = vec![
        format!("address = {address:#x}"),
        format!("length = {length}"),
        format!("context_uuid = {}", hex(context_uuid)),
        format!("registration_id = {registration_id}"),
        format!("epoch = {epoch}"),
        format!("entries = {}", entries.len()),
    ];
    for (index, entry) in entries.iter().enumerate() {
        lines.push(format!("entry.{index}.component = {}", entry.component));
        lines.push(format!("entry.{index}.mandatory = {}", entry.mandatory));
        lines.push(format!("entry.{index}.global_id = {}", hex(&entry.global_id)));
        lines.push(format!("entry.{index}.mkey = {}", hex(&entry.mkey)));
    }
    lines.iter().fold(String::new(), |text, line| text + line.trim_end() + "\n")
}

#[test]
fn vectors_of_version_1_hold() {
    let (mut good, mut bad) = (0, 0);
    for (name, bytes, expected) in vectors("handle/v1") {
        match decode(&bytes) {
            Ok(handle) => {
                assert_eq!(describe(&handle), expected, "{name}");
                assert_eq!(encode(&handle), bytes, "{name} is encoded to the same bytes");
                good += 1;
            }
            Err(error) => {
                assert_eq!(format!("error = {error}\n"), expected, "{name}");
                assert!(name.starts_with("bad-"), "{name}");
                bad += 1;
            }
        }
    }
    assert!(good >= 9 && bad >= 40, "{good} good and {bad} bad vectors were found");
}
