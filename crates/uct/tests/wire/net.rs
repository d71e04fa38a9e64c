//! The messages between services of two machines.

use super::*;
use uct::service::net::wire::{
    Call, Greeting, HELLO_LEN, Hello, MAC_LEN, MAX_FRAME, Reply, Verdict, WELCOME_LEN, Welcome,
};

fn welcome() -> Format<Welcome> {
    Format {
        vectors: "net-welcome/v1",
        len: WELCOME_LEN,
        decode: |bytes| Welcome::decode(bytes).map_err(|error| error.to_string()),
        encode: |welcome| welcome.encode().to_vec(),
        lines: |welcome| vec![format!("nonce = {}", hex(&welcome.nonce))],
    }
}

fn hello() -> Format<Hello> {
    Format {
        vectors: "net-hello/v1",
        len: HELLO_LEN,
        decode: |bytes| Hello::decode(bytes).map_err(|error| error.to_string()),
        encode: |hello| hello.encode().to_vec(),
        lines: |hello| {
            vec![format!("context_uuid = {}", hex(&hello.uuid)), format!("nonce = {}", hex(&hello.nonce))]
        },
    }
}

/// A call that has its parts.
#[derive(Debug, PartialEq)]
struct OwnCall {
    sequence: u32,
    kind: u16,
    subject: Vec<u8>,
    request: Vec<u8>,
    mac: [u8; MAC_LEN],
}

impl OwnCall {
    fn lend(&self) -> Call<'_> {
        let Self { sequence, kind, ref subject, ref request, mac } = *self;
        Call { sequence, kind, subject, request, mac }
    }
}

fn call() -> Format<OwnCall> {
    Format {
        vectors: "net-call/v1",
        len: MAX_FRAME,
        decode: |bytes| {
            let call = Call::decode(bytes).map_err(|error| error.to_string())?;
            let Call { sequence, kind, subject, request, mac } = call;
            Ok(OwnCall { sequence, kind, subject: subject.to_vec(), request: request.to_vec(), mac })
        },
        encode: |call| call.lend().encode().expect("it was decoded"),
        lines: |call| {
            vec![
                format!("sequence = {}", call.sequence),
                format!("kind = {}", call.kind),
                format!("subject = {}", hex(&call.subject)),
                format!("request = {}", hex(&call.request)),
                format!("proof = {}", hex(&call.mac)),
            ]
        },
    }
}

/// A reply that has its content.
#[derive(Debug, PartialEq)]
struct OwnReply {
    sequence: u32,
    verdict: Verdict,
    content: Vec<u8>,
    mac: [u8; MAC_LEN],
}

impl OwnReply {
    fn lend(&self) -> Reply<'_> {
        let Self { sequence, verdict, ref content, mac } = *self;
        Reply { sequence, verdict, content, mac }
    }
}

fn reply() -> Format<OwnReply> {
    Format {
        vectors: "net-reply/v1",
        len: MAX_FRAME,
        decode: |bytes| {
            let reply = Reply::decode(bytes).map_err(|error| error.to_string())?;
            let Reply { sequence, verdict, content, mac } = reply;
            Ok(OwnReply { sequence, verdict, content: content.to_vec(), mac })
        },
        encode: |reply| reply.lend().encode().expect("it was decoded"),
        lines: |reply| {
            let (verdict, status) = match reply.verdict {
                Verdict::Answered(status) => ("answered", status as u8),
                Verdict::Ready => ("ready", 0),
                Verdict::OtherContext => ("other-context", 0),
                Verdict::Stale => ("stale", 0),
                Verdict::Denied => ("denied", 0),
                Verdict::Unknown => ("unknown", 0),
            };
            vec![
                format!("sequence = {}", reply.sequence),
                format!("verdict = {verdict}"),
                format!("status = {status}"),
                format!("content = {}", hex(&reply.content)),
                format!("proof = {}", hex(&reply.mac)),
            ]
        },
    }
}

#[test]
fn vectors_of_net_messages_hold() {
    welcome().vectors_hold();
    hello().vectors_hold();
    call().vectors_hold();
    reply().vectors_hold();
}

#[test]
fn every_byte_of_net_messages_counts() {
    welcome().every_byte_counts();
    hello().every_byte_counts();
    call().every_byte_counts();
    reply().every_byte_counts();
}

/// What the vectors' proofs are of: numbers that go on from one to the next. The replies are to `proven-call`.
#[test]
fn vectors_prove_what_they_say() {
    let from = |first: u8| std::array::from_fn(|at| first + u8::try_from(at).unwrap());
    let token = Token::from_bytes(from(0));
    let greeting = Greeting { uuid: from(0x10), server: from(0x20), client: from(0x30) };
    let mut proofs = 0;
    let mut asked = None;
    for (name, bytes, _) in vectors("net-call/v1") {
        let Ok(call) = (call().decode)(&bytes) else { continue };
        assert_eq!(greeting.is_proven(&token, &call.lend()), name.starts_with("proven-"), "{name}");
        proofs += usize::from(name.starts_with("proven-"));
        let mut anew = Call { mac: [0; MAC_LEN], ..call.lend() };
        greeting.prove(&token, &mut anew);
        assert!(!name.starts_with("proven-") || anew.mac == call.mac, "{name}");
        if name == "proven-call" {
            asked = Some(call.mac);
        }
    }
    let asked = asked.expect("the vector proven-call");
    for (name, bytes, _) in vectors("net-reply/v1") {
        let Ok(reply) = (reply().decode)(&bytes) else { continue };
        let is_proven = greeting.is_reply_proven(&token, &asked, &reply.lend());
        assert_eq!(is_proven, name.starts_with("proven-"), "{name}");
        proofs += usize::from(is_proven);
    }
    assert!(proofs >= 7, "{proofs} vectors with a proof");
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn arbitrary_bytes_are_no_net_message_or_canonical(bytes in prop::collection::vec(any::<u8>(), 0..300), fitting: bool) {
        welcome().is_canonical(&bytes);
        hello().is_canonical(&bytes);
        let mut bytes = bytes;
        if let Some(header) = bytes.get_mut(..16).filter(|_| fitting) {
            header[6..].fill(0); // lengths and reserved fields
        }
        call().is_canonical(&bytes);
        reply().is_canonical(&bytes);
        if let Some(rest) = bytes.len().checked_sub(48).and_then(|rest| u16::try_from(rest).ok()).filter(|_| fitting) {
            bytes[8..10].copy_from_slice(&rest.to_le_bytes());
            assert!(call().is_canonical(&bytes).is_some(), "a call of which all lies in its request");
            bytes[4..8].fill(0);
            assert!(reply().is_canonical(&bytes).is_some(), "an answer");
        }
    }
}
