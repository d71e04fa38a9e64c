//! Decoders: what they accept is what the encoder writes.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use ucp::wire::address;
use ucp::wire::am::Message;
use ucp::wire::handle::{self, Handle};
use ucp::wire::rkey;
use uct::LocalMem;
use uct::export::{Claim, Export, ExportTable, Refusal, Token};
use uct::memory::Rights;
use uct::service::net::wire as net;
use uct::service::wire::{Introduction, Message as Asked, Reply, Request, encode_unplace};
use uct::transports::{cma, self_, shm, verbs};

use crate::{ADDRESS_CRC, repair, repair_at};

/// A packed handle, as it is, and then with its length and checksum put right: by chance neither ever would be.
///
/// # Panics
/// When bytes are accepted that the encoder does not write, or when two readers of the same bytes differ.
pub fn handle_decode(data: &[u8]) -> bool {
    let found = decode(data);
    let mut repaired = data.to_vec();
    if let (Some(field), Ok(len)) = (repaired.get_mut(8..12), u32::try_from(data.len())) {
        field.copy_from_slice(&len.to_le_bytes());
    }
    repair(&mut repaired);
    found | decode(&repaired)
}

fn decode(bytes: &[u8]) -> bool {
    let all = Handle::decode(bytes, |_| true);
    let some = Handle::decode(bytes, |component| component <= 2);
    let Ok(handle) = all else {
        assert!(some.is_err(), "whoever knows less accepts no more");
        return false;
    };
    assert_eq!(handle.encode().as_deref(), Ok(bytes), "the encoding is canonical");
    assert!(some.is_err() || some == Ok(handle.clone()), "what is known changes no content");
    assert_eq!(handle::total_len(bytes), Ok(bytes.len()), "the prefix tells the length");
    assert_eq!(handle.length == 0, handle.registration_id == 0, "only memory without bytes has no export");
    let lens = handle.entries.iter().map(|entry| handle::entry_len(entry.global_id.len(), entry.mkey.len()));
    assert_eq!(handle::HEADER_LEN + lens.sum::<usize>(), bytes.len());
    true
}

/// A key of `self`.
///
/// # Panics
/// When bytes are accepted that the encoder does not write.
pub fn mkey_self(data: &[u8]) -> bool {
    let Some(key) = self_::mkey::Mkey::decode(data) else { return false };
    let mut bytes = [0xff; self_::mkey::LEN];
    assert!(key.encode(&mut bytes).is_ok());
    assert_eq!(bytes, data, "the encoding is canonical");
    true
}

/// A key of `shm`.
///
/// # Panics
/// When bytes are accepted that the encoder does not write.
pub fn mkey_shm(data: &[u8]) -> bool {
    let Ok(key) = shm::mkey::Mkey::decode(data) else { return false };
    let mut bytes = [0xff; shm::mkey::LEN];
    assert!(key.encode(&mut bytes).is_ok());
    assert_eq!(bytes, data, "the encoding is canonical");
    true
}

/// A key of `cma`.
///
/// # Panics
/// When bytes are accepted that the encoder does not write.
pub fn mkey_cma(data: &[u8]) -> bool {
    let Ok(key) = cma::mkey::Mkey::decode(data) else { return false };
    let mut bytes = [0xff; cma::mkey::LEN];
    assert!(key.encode(&mut bytes).is_ok());
    assert_eq!(bytes, data, "the encoding is canonical");
    true
}

/// A key of `verbs`.
///
/// # Panics
/// When bytes are accepted that the encoder does not write.
pub fn mkey_verbs(data: &[u8]) -> bool {
    let Ok(key) = verbs::mkey::Mkey::decode(data) else { return false };
    let mut bytes = [0xff; verbs::mkey::LEN];
    assert!(key.encode(&mut bytes).is_ok());
    assert_eq!(bytes, data, "the encoding is canonical");
    true
}

/// Where a queue pair is.
///
/// # Panics
/// When bytes are accepted that the encoder does not write.
pub fn verbs_queue_pair(data: &[u8]) -> bool {
    let Ok(address) = verbs::wire::QpAddress::decode(data) else { return false };
    assert_eq!(address.encode(), data, "the encoding is canonical");
    true
}

/// What an importer of another machine asks of `verbs`: a subject or a request; or the reply to an attachment.
///
/// # Panics
/// When bytes are accepted that the encoder does not write, or as two of them.
pub fn verbs_remote(data: &[u8]) -> bool {
    use verbs::remote::wire::{Attached, Request, Subject};
    let read = [
        Subject::decode(data).ok().map(|subject| subject.encode().to_vec()),
        Request::decode(data).ok().map(|request| request.encode()),
        Attached::decode(data).ok().map(|attached| attached.encode().to_vec()),
    ];
    let written: Vec<_> = read.into_iter().flatten().collect();
    assert!(written.len() <= 1, "it is one of them");
    assert!(written.iter().all(|bytes| bytes == data), "the encoding is canonical");
    !written.is_empty()
}

/// A reply on the service socket.
///
/// # Panics
/// When bytes are accepted that the encoder does not write.
pub fn service_reply(data: &[u8]) -> bool {
    let Ok(reply) = Reply::decode(data) else { return false };
    assert_eq!(reply.encode(), data, "the encoding is canonical");
    true
}

/// What the other side of a connection between machines says first, whichever it is.
///
/// # Panics
/// When bytes are accepted that the encoder does not write, or as both.
pub fn net_hello(data: &[u8]) -> bool {
    match (net::Welcome::decode(data), net::Hello::decode(data)) {
        (Ok(welcome), Err(_)) => assert_eq!(welcome.encode(), data, "the encoding is canonical"),
        (Err(_), Ok(hello)) => assert_eq!(hello.encode(), data, "the encoding is canonical"),
        (Err(_), Err(_)) => return false,
        (Ok(_), Ok(_)) => panic!("it is one of both"),
    }
    true
}

/// The token and the connection that the golden vectors' proofs are of: numbers that go on from one to the next.
fn proving() -> (Token, net::Greeting) {
    let from = |first: u8| {
        let mut bytes = [first; 16];
        bytes.iter_mut().zip(0..).for_each(|(byte, at)| *byte += at);
        bytes
    };
    let greeting = net::Greeting { uuid: from(0x10), server: from(0x20), client: from(0x30) };
    (Token::from_bytes(from(0)), greeting)
}

/// A call of another machine, and whether it is proven.
///
/// # Panics
/// When bytes are accepted that the encoder does not write, or a proof that the token does not make.
pub fn net_call(data: &[u8]) -> bool {
    let Ok(call) = net::Call::decode(data) else { return false };
    assert_eq!(call.encode().as_deref(), Ok(data), "the encoding is canonical");
    assert_eq!(net::Call::frame_len(data), Ok(data.len()), "its header tells its length");
    let (token, greeting) = proving();
    let mut proven = call;
    greeting.prove(&token, &mut proven);
    assert_eq!(greeting.is_proven(&token, &call), proven.mac == call.mac);
    assert!(greeting.is_proven(&token, &proven));
    true
}

/// A reply of another machine, and whether it is proven to answer a call with a proof of zeros.
///
/// # Panics
/// When bytes are accepted that the encoder does not write, or a proof that the token does not make.
pub fn net_reply(data: &[u8]) -> bool {
    let Ok(reply) = net::Reply::decode(data) else { return false };
    assert_eq!(reply.encode().as_deref(), Ok(data), "the encoding is canonical");
    assert_eq!(net::Reply::frame_len(data), Ok(data.len()), "its header tells its length");
    let ((token, greeting), asked) = (proving(), [0; net::MAC_LEN]);
    let mut proven = reply;
    greeting.prove_reply(&token, &asked, &mut proven);
    assert_eq!(greeting.is_reply_proven(&token, &asked, &reply), proven.mac == reply.mac);
    assert!(greeting.is_reply_proven(&token, &asked, &proven));
    true
}

/// A message of an endpoint: its tag, in four bytes, and its bytes.
///
/// # Panics
/// When bytes are accepted that the encoder does not write.
pub fn am_message(data: &[u8]) -> bool {
    let Some((tag, bytes)) = data.split_first_chunk() else { return false };
    let tag = u32::from_le_bytes(*tag);
    let Ok(message) = Message::decode(tag, bytes) else { return false };
    assert_eq!(message.encode(), (tag, bytes.to_vec()), "the encoding is canonical");
    true
}

/// An rkey. What it holds is a handle, or is told to be none.
///
/// # Panics
/// When bytes are accepted that the encoder does not write.
pub fn rkey(data: &[u8]) -> bool {
    let Ok(handle) = rkey::decode(data) else { return false };
    assert_eq!(rkey::encode(handle), data, "the encoding is canonical");
    handle_decode(handle)
}

/// The address of a worker, as it is, and then with its length and checksum put right; and what its interfaces say of their parts.
///
/// # Panics
/// When bytes are accepted that the encoder does not write.
pub fn worker_address(data: &[u8]) -> bool {
    let found = decode_address(data);
    let mut repaired = data.to_vec();
    if let (Some(field), Ok(len)) = (repaired.get_mut(8..12), u32::try_from(data.len())) {
        field.copy_from_slice(&len.to_le_bytes());
    }
    repair_at(&mut repaired, ADDRESS_CRC);
    found | decode_address(&repaired)
}

fn decode_address(bytes: &[u8]) -> bool {
    let Ok(entries) = address::decode(bytes) else { return false };
    assert_eq!(address::encode(&entries).as_deref(), Ok(bytes), "the encoding is canonical");
    assert!(entries.is_sorted_by(|a, b| a.component < b.component));
    for entry in &entries {
        address_self(&entry.bytes);
        address_shm(&entry.bytes);
    }
    true
}

/// The address of an interface of `self`.
///
/// # Panics
/// When bytes are accepted that the encoder does not write.
pub fn address_self(data: &[u8]) -> bool {
    let Ok(address) = self_::wire::Address::decode(data) else { return false };
    assert_eq!(address.encode(), data, "the encoding is canonical");
    true
}

/// The address of an interface of `shm`.
///
/// # Panics
/// When bytes are accepted that the encoder does not write.
pub fn address_shm(data: &[u8]) -> bool {
    let Ok(address) = shm::wire::Address::decode(data) else { return false };
    assert_eq!(address.encode(), data, "the encoding is canonical");
    true
}

/// The address of an interface of `verbs`.
///
/// # Panics
/// When bytes are accepted that the encoder does not write.
pub fn address_verbs(data: &[u8]) -> bool {
    let Ok(address) = verbs::rc::wire::Address::decode(data) else { return false };
    assert_eq!(address.encode(), data, "the encoding is canonical");
    assert!(!address.sockets.is_empty() && address.sockets.len() <= verbs::rc::wire::MAX_SOCKETS);
    true
}

/// A call by which one interface of `verbs` connects to another.
///
/// # Panics
/// When bytes are accepted that the encoder does not write.
pub fn verbs_call(data: &[u8]) -> bool {
    let Ok(call) = verbs::rc::wire::Call::decode(data) else { return false };
    assert_eq!(call.encode(), data, "the encoding is canonical");
    true
}

/// The reply to such a call.
///
/// # Panics
/// When bytes are accepted that the encoder does not write.
pub fn verbs_reply(data: &[u8]) -> bool {
    let Ok(reply) = verbs::rc::wire::Reply::decode(data) else { return false };
    assert_eq!(reply.encode(), data, "the encoding is canonical");
    true
}

/// A SEND between interfaces of `verbs`: its header, and how long it is.
///
/// # Panics
/// When a header is accepted that the encoder does not write.
pub fn verbs_header(data: &[u8]) -> bool {
    use verbs::rc::wire::{HEADER_LEN, Header};
    let mut begin = [0; HEADER_LEN];
    begin.iter_mut().zip(data).for_each(|(to, from)| *to = *from);
    let Ok(header) = Header::decode(&begin, data.len()) else { return false };
    assert_eq!(header.encode(), begin, "the encoding is canonical");
    true
}

/// A request on the service socket, and what an export table with two exports, one of them revoked, says to it: as it is, and
/// with those parts taken from a living export that the sequence number selects. Or an introduction, or about placing.
///
/// # Panics
/// When bytes are accepted that the encoder does not write, or when the table grants what it has not published.
pub fn service_request(data: &[u8]) -> bool {
    let request = match Asked::decode(data) {
        Ok(Asked::Attach(request)) => request,
        Ok(Asked::Connect(asked)) => {
            assert_eq!(asked.encode(), data, "the encoding is canonical");
            assert!(Request::decode(data).is_err(), "it is one of both");
            return true;
        }
        Ok(Asked::Place(asked)) => {
            assert_eq!(asked.encode(), data, "the encoding is canonical");
            return true;
        }
        Ok(Asked::Unplace(sequence)) => {
            assert_eq!(encode_unplace(sequence), data, "the encoding is canonical");
            return true;
        }
        Err(_) => return false,
    };
    assert!(Introduction::decode(data).is_err(), "it is one of both");
    assert_eq!(request.encode(), data, "the encoding is canonical");
    let table = table();
    check(table, &request.claim);
    for source in [&table.alive, &table.revoked] {
        check(table, &mix(&request, source.claim()));
    }
    true
}

struct Table {
    exports: Arc<ExportTable>,
    alive: Export,
    revoked: Export,
}

fn table() -> &'static Table {
    static TABLE: OnceLock<Table> = OnceLock::new();
    TABLE.get_or_init(|| {
        let exports = Arc::new(ExportTable::new(Duration::from_secs(1)).expect("random bytes"));
        let publish = |len| {
            let mem = LocalMem::memfd(len, Rights::READ_WRITE).expect("a few pages");
            exports.publish(&Arc::new(mem)).expect("a line of the table")
        };
        let (alive, revoked) = (publish(4096), publish(8192));
        revoked.revoke().expect("nobody is inside");
        Table { exports, alive, revoked }
    })
}

/// The request's claim with parts of `real`, by the bits of the sequence number.
fn mix(request: &Request, real: &Claim) -> Claim {
    let takes = |bit: u32| request.sequence >> bit & 1 == 1;
    let claim = &request.claim;
    Claim {
        slot: if takes(0) { real.slot } else { claim.slot },
        id: if takes(1) { real.id } else { claim.id },
        epoch: if takes(2) { real.epoch } else { claim.epoch },
        address: if takes(3) { real.address } else { claim.address },
        length: if takes(4) { real.length } else { claim.length },
        token: if takes(5) { real.token } else { claim.token },
    }
}

fn check(table: &Table, claim: &Claim) {
    let real = table.alive.claim();
    let expected = if (claim.slot, claim.id) != (real.slot, real.id) {
        Err(Refusal::Stale)
    } else if claim.token != real.token {
        Err(Refusal::WrongToken)
    } else if claim == real {
        Ok(real.length)
    } else {
        Err(Refusal::Mismatch)
    };
    assert_eq!(table.exports.verify(claim).map(|mem| mem.len() as u64), expected);
}
