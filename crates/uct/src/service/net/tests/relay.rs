//! Somebody in the network path, who sees and changes all bytes and has no token.

use std::sync::atomic::{AtomicUsize, Ordering as Order};

use super::*;
use crate::api::AttachError;

/// Relays one connection to `to`, and each call and reply by `change`, which answers what is sent in place of it. The first number
/// is that of the message: 0 the hello of the side that connects, then calls and replies in turn.
fn relay(
    to: SocketAddr,
    mut change: impl FnMut(usize, Vec<u8>) -> Vec<u8> + Send + 'static,
) -> (SocketAddr, std::thread::JoinHandle<Option<()>>) {
    let listener = TcpListener::bind((LOCAL, 0)).unwrap();
    let at = listener.local_addr().unwrap();
    let relaying = std::thread::spawn(move || {
        let (mut client, _) = listener.accept().ok()?;
        let mut server = TcpStream::connect(to).ok()?;
        for stream in [&client, &server] {
            stream.set_read_timeout(Some(Duration::from_millis(500))).ok()?;
        }
        let mut welcome = [0; WELCOME_LEN];
        server.read_exact(&mut welcome).ok()?;
        client.write_all(&welcome).ok()?;
        let mut hello = vec![0; HELLO_LEN];
        client.read_exact(&mut hello).ok()?;
        server.write_all(&change(0, hello)).ok()?;
        client.write_all(&next_reply(&mut server)?).ok()?;
        for number in (1..).step_by(2) {
            let call = next_call(&mut client)?;
            server.write_all(&change(number, call)).ok()?;
            let reply = next_reply(&mut server)?;
            client.write_all(&change(number + 1, reply)).ok()?;
        }
        Some(())
    });
    (at, relaying)
}

/// Calls twice by a relay; what the second call brings.
fn by(
    pair: &Pair,
    change: impl FnMut(usize, Vec<u8>) -> Vec<u8> + Send + 'static,
    patience: Duration,
) -> Result<Vec<u8>, NetError> {
    asking(pair, b"second", change, patience)
}

fn asking(
    pair: &Pair,
    request: &[u8],
    change: impl FnMut(usize, Vec<u8>) -> Vec<u8> + Send + 'static,
    patience: Duration,
) -> Result<Vec<u8>, NetError> {
    let (at, relaying) = relay(pair.at[0], change);
    let deadline = Deadline::after(patience);
    let client = service();
    let called = client.call_net(0, &pair.uuid, &[at], &asks(3, b"region", &token(), b"first"), &deadline);
    let answer = called.and_then(|(link, _)| link.call(&asks(3, b"region", &token(), request), &deadline));
    drop(client);
    relaying.join().unwrap();
    answer
}

const LONG: Duration = Duration::from_secs(5);
const SHORT: Duration = Duration::from_millis(100);

#[test]
fn who_relays_only_changes_nothing() {
    let pair = pair(LOCAL);
    assert_eq!(by(&pair, |_, bytes| bytes, LONG).unwrap(), b"second");
    assert_eq!(*pair.echo.calls.lock(), [b"first".to_vec(), b"second".to_vec()]);
}

#[test]
fn a_call_changed_anywhere_is_not_taken() {
    let pair = pair(LOCAL);
    let len = HEADER_LEN + b"region".len() + b"second".len();
    for at in 0..len {
        // A length that has grown has the server wait for the rest.
        let patience = if (6..10).contains(&at) { SHORT } else { LONG };
        let change = move |number, mut bytes: Vec<u8>| {
            if number == 3 {
                bytes[at] ^= 1;
            }
            bytes
        };
        let answer = by(&pair, change, patience);
        assert!(answer.is_err(), "byte {at}: {answer:?}");
        assert!(pair.echo.calls.lock().iter().all(|call| call == b"first"), "byte {at}");
    }
}

#[test]
fn a_reply_changed_anywhere_is_not_believed() {
    let pair = pair(LOCAL);
    for request in [b"second".as_slice(), b"", b"busy"] {
        let content = if request == b"busy" { 0 } else { request.len() };
        for (at, mask) in (0..HEADER_LEN + content).flat_map(|at| [(at, 1), (at, 3)]) {
            let patience = if (8..10).contains(&at) { SHORT } else { LONG };
            let change = move |number, mut bytes: Vec<u8>| {
                if number == 4 {
                    bytes[at] ^= mask;
                }
                bytes
            };
            let error = asking(&pair, request, change, patience).expect_err("changed");
            assert_eq!(error.status(), Status::Unreachable, "{request:?}: byte {at}: {error}");
        }
    }
}

#[test]
fn an_old_reply_is_no_answer_to_a_new_call() {
    let pair = pair(LOCAL);
    for renumbered in [false, true] {
        let mut first = Vec::new();
        let change = move |number, bytes: Vec<u8>| {
            if number == 2 {
                first.clone_from(&bytes);
            }
            if number != 4 {
                return bytes;
            }
            let mut old = first.clone();
            if renumbered {
                old[..4].copy_from_slice(&bytes[..4]);
            }
            old
        };
        assert_eq!(by(&pair, change, LONG).unwrap_err().status(), Status::Unreachable);
    }
}

#[test]
fn a_call_sent_twice_is_taken_once() {
    let pair = pair(LOCAL);
    let change = |number, bytes: Vec<u8>| if number == 3 { [bytes.clone(), bytes].concat() } else { bytes };
    assert_eq!(by(&pair, change, LONG).unwrap(), b"second");
    until("the connection is ended", || pair.echo.ended.lock().len() == 1);
    assert_eq!(pair.echo.calls(), 2);
}

#[test]
fn an_old_call_is_not_taken_again() {
    let pair = pair(LOCAL);
    for renumbered in [false, true] {
        let mut first = Vec::new();
        let change = move |number, bytes: Vec<u8>| {
            if number == 1 {
                first.clone_from(&bytes);
            }
            if number != 3 {
                return bytes;
            }
            let mut old = first.clone();
            if renumbered {
                old[..4].copy_from_slice(&bytes[..4]);
            }
            old
        };
        assert!(by(&pair, change, LONG).is_err());
        assert!(pair.echo.calls.lock().iter().all(|call| call == b"first"));
    }
    assert_eq!(pair.echo.calls(), 2, "one for each connection");
}

#[test]
fn a_proof_is_of_one_connection_and_one_place() {
    let pair = pair(LOCAL);
    let ((mut one, first), (mut two, second)) = (raw(&pair), raw(&pair));
    assert_eq!(verdict(&mut one, &proven(&first, 1)), Some(Verdict::Answered(Status::Ok)));
    assert_eq!(verdict(&mut two, &proven(&first, 1)), Some(Verdict::Denied));
    let moved = Call { sequence: 2, ..proven(&second, 1) };
    assert_eq!(verdict(&mut two, &moved), Some(Verdict::Denied));
    assert_eq!(verdict(&mut one, &proven(&first, 1)), None, "twice");
    let (mut three, third) = raw(&pair);
    assert_eq!(verdict(&mut three, &proven(&third, 2)), None, "out of order");
    assert_eq!(pair.echo.calls(), 1);
}

#[test]
fn a_proof_is_of_one_kind_and_one_subject() {
    #[derive(Debug, Default)]
    struct Any(AtomicUsize);
    impl Responder for Any {
        fn secret(&self, _: &[u8]) -> Secret {
            Secret::Live(token())
        }
        fn call(&self, _: ConnId, _: &[u8], _: &[u8]) -> Result<Vec<u8>, Status> {
            self.0.fetch_add(1, Order::Relaxed);
            Ok(Vec::new())
        }
        fn ended(&self, _: ConnId) {}
    }
    let pair = pair(LOCAL);
    let any = Arc::new(Any::default());
    pair.server.respond(5, weak(&any));
    pair.server.respond(6, weak(&any));
    let (mut stream, greeting) = raw(&pair);
    let mut call = Call { kind: 5, subject: b"ab", request: b"c", ..proven(&greeting, 1) };
    greeting.prove(&token(), &mut call);
    let denied = Some(Verdict::Denied);
    assert_eq!(verdict(&mut stream, &Call { kind: 6, ..call }), denied);
    let mut call = Call { sequence: 2, ..call };
    greeting.prove(&token(), &mut call);
    assert_eq!(verdict(&mut stream, &Call { subject: b"a", request: b"bc", ..call }), denied);
    assert_eq!(any.0.load(Order::Relaxed), 0);
}

/// All that a context said to one caller, said again to another: it is no answer to that one's call.
#[test]
fn a_recorded_conversation_is_no_answer() {
    let pair = pair(LOCAL);
    let mut stream = TcpStream::connect(pair.at[0]).unwrap();
    let mut welcome = vec![0; WELCOME_LEN];
    stream.read_exact(&mut welcome).unwrap();
    let greeting =
        Greeting { uuid: pair.uuid, server: Welcome::decode(&welcome).unwrap().nonce, client: [5; 16] };
    stream.write_all(&Hello { uuid: pair.uuid, nonce: [5; 16] }.encode()).unwrap();
    let ready = next_reply(&mut stream).unwrap();
    stream.write_all(&proven(&greeting, 1).encode().unwrap()).unwrap();
    let heard = [welcome, ready, next_reply(&mut stream).unwrap()];
    let listener = TcpListener::bind((LOCAL, 0)).unwrap();
    let at = [listener.local_addr().unwrap()];
    let replaying = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.write_all(&heard[0]).unwrap();
        stream.read_exact(&mut [0; HELLO_LEN]).unwrap();
        stream.write_all(&heard[1]).unwrap();
        next_call(&mut stream).unwrap();
        stream.write_all(&heard[2]).unwrap();
    });
    let answer = pair.client.call_net(0, &pair.uuid, &at, &asks(3, b"region", &token(), b""), &soon());
    assert_eq!(answer.unwrap_err(), NetError::Unproven { address: at[0] });
    replaying.join().unwrap();
}

/// Two contexts may know one token: whoever has a handle may publish its bytes as his own.
#[test]
fn a_proof_for_one_context_is_none_for_another() {
    let (one, other) = (pair(LOCAL), pair(LOCAL));
    let uuid = other.uuid;
    let change = move |number, mut bytes: Vec<u8>| {
        if number == 0 {
            bytes[8..24].copy_from_slice(&uuid);
        }
        bytes
    };
    let (at, relaying) = relay(other.at[0], change);
    let answer = one.client.call_net(0, &one.uuid, &[at], &asks(3, b"region", &token(), b""), &soon());
    assert_eq!(answer.unwrap_err(), NetError::Denied { address: at });
    relaying.join().unwrap();
    assert_eq!(other.echo.calls(), 0);
}

/// What somebody without a token can say to a call, and the error it makes.
fn forged(reply: Reply<'_>) -> NetError {
    let (client, listener) = (service(), TcpListener::bind((LOCAL, 0)).unwrap());
    let at = [listener.local_addr().unwrap()];
    let bytes = reply.encode().unwrap();
    let liar = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        greet(&mut stream).unwrap();
        next_call(&mut stream).unwrap();
        stream.write_all(&bytes).unwrap();
    });
    let answer = client.call_net(0, &[1; 16], &at, &asks(3, b"", &token(), b""), &soon());
    liar.join().unwrap();
    answer.unwrap_err()
}

#[test]
fn who_has_no_token_cannot_answer() {
    for verdict in [Verdict::Answered(Status::Ok), Verdict::Answered(Status::Busy)] {
        for mac in [[0; MAC_LEN], [3; MAC_LEN]] {
            let error = forged(Reply { mac, ..Reply::without(1, verdict) });
            assert!(matches!(error, NetError::Unproven { .. }), "{error}");
        }
    }
}

#[test]
fn who_has_no_token_cannot_make_anything_stale() {
    let stale = |mac| Reply { mac, ..Reply::without(1, Verdict::Stale) };
    for reply in [stale([0; MAC_LEN]), stale([3; MAC_LEN]), Reply::without(1, Verdict::Unknown)] {
        let error = forged(reply);
        assert_eq!(error.status(), Status::Unreachable, "{error}");
        assert!(matches!(AttachError::of_net(error), AttachError::Unreachable { .. }));
    }
    let pair = pair(LOCAL);
    let proven = pair.call(b"revoked", &token()).unwrap_err();
    assert!(matches!(AttachError::of_net(proven), AttachError::Stale(_)));
}

/// Not proven either, and final for nobody: an import fails, as it would if the call were changed on its way.
#[test]
fn who_has_no_token_can_deny() {
    let error = forged(Reply::without(1, Verdict::Denied));
    assert_eq!(AttachError::of_net(error), AttachError::WrongToken);
    let of_another_call = forged(Reply::without(2, Verdict::Denied));
    assert!(matches!(of_another_call, NetError::BadReply { .. }), "{of_another_call}");
}

/// That something has ended is proven for one call: said again to another one, it proves nothing.
#[test]
fn an_old_stale_is_not_believed() {
    let pair = pair(LOCAL);
    let (mut stream, greeting) = raw(&pair);
    let mut call = Call { subject: b"revoked", ..proven(&greeting, 1) };
    greeting.prove(&token(), &mut call);
    stream.write_all(&call.encode().unwrap()).unwrap();
    let old = next_reply(&mut stream).unwrap();
    let old = Reply::decode(&old).unwrap();
    assert_eq!(old.verdict, Verdict::Stale);
    assert!(greeting.is_reply_proven(&token(), &call.mac, &old));
    assert!(matches!(forged(old), NetError::Unproven { .. }));
}
