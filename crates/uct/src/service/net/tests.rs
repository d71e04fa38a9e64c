//! Two contexts of one process, over the loopback interface.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use proptest::prelude::*;
use ucs::Status;
use ucs::time::Deadline;

use super::wire::*;
use super::*;
use crate::export::ExportTable;

const LOCAL: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

#[derive(Debug, Default)]
struct Echo {
    ended: Mutex<Vec<ConnId>>,
}

fn token() -> Token {
    Token::from_bytes([7; 16])
}

impl Responder for Echo {
    fn token(&self, subject: &[u8]) -> Option<Token> {
        (subject == b"region").then(token)
    }

    fn call(&self, _: ConnId, _: &[u8], request: &[u8]) -> Result<Vec<u8>, Status> {
        if request == b"busy" { Err(Status::Busy) } else { Ok(request.to_vec()) }
    }

    fn ended(&self, conn: ConnId) {
        self.ended.lock().push(conn);
    }
}

fn service() -> Service {
    Service::new(Arc::new(ExportTable::new(Duration::from_secs(1)).unwrap()), None)
}

fn soon() -> Deadline {
    Deadline::after(Duration::from_secs(5))
}

fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !holds() {
        assert!(begin.elapsed() < Duration::from_secs(5), "{what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

struct Pair {
    server: Service,
    client: Service,
    echo: Arc<Echo>,
    uuid: [u8; 16],
    at: Vec<SocketAddr>,
}

fn pair(address: IpAddr) -> Pair {
    let (server, client, echo) = (service(), service(), Arc::new(Echo::default()));
    let weak: Weak<dyn Responder> = Arc::downgrade(&(Arc::clone(&echo) as Arc<dyn Responder>));
    server.respond(3, weak);
    let at = server.serve_net(&[address]).unwrap();
    let uuid = server.net.uuid;
    Pair { server, client, echo, uuid, at }
}

impl Pair {
    fn call(&self, subject: &[u8], token: &Token) -> Result<(Arc<NetLink>, Vec<u8>), NetError> {
        self.client.call_net(&self.uuid, &self.at, 3, subject, token, b"hello", &soon())
    }
}

#[test]
fn calls_share_a_connection_and_its_end_is_told_once() {
    for address in [LOCAL, IpAddr::V6(Ipv6Addr::LOCALHOST)] {
        let pair = pair(address);
        assert_eq!(pair.server.serve_net(&[address]).unwrap(), pair.at, "it listens already");
        let (link, reply) = pair.call(b"region", &token()).unwrap();
        assert_eq!(reply, b"hello");
        let (same, _) = pair.call(b"region", &token()).unwrap();
        assert!(Arc::ptr_eq(&link, &same));
        let busy = link.call(3, b"region", &token(), b"busy", &soon()).unwrap_err();
        assert_eq!(busy.status(), Status::Busy);
        assert_eq!(link.peer_addr(), pair.at[0]);
        assert!(!link.state().is_gone() && pair.echo.ended.lock().is_empty());
        drop((link, same));
        until("its end is told", || !pair.echo.ended.lock().is_empty());
        std::thread::sleep(Duration::from_millis(20));
        assert_eq!(pair.echo.ended.lock().len(), 1);
    }
}

#[test]
fn wrong_tokens_are_denied_and_what_is_gone_is_stale() {
    let pair = pair(LOCAL);
    let denied = pair.call(b"region", &Token::from_bytes([8; 16])).unwrap_err();
    assert_eq!(denied.status(), Status::AccessDenied);
    assert_eq!(pair.call(b"other", &token()).unwrap_err().status(), Status::Stale);
    let other = pair.client.call_net(&[9; 16], &pair.at, 3, b"region", &token(), b"", &soon());
    assert_eq!(other.unwrap_err(), NetError::OtherContext { address: pair.at[0] });
    let (link, _) = pair.call(b"region", &token()).unwrap();
    for _ in 0..MAX_FAILURES {
        let wrong = link.call(3, b"region", &Token::from_bytes([8; 16]), b"", &soon());
        assert_eq!(wrong.unwrap_err().status(), Status::AccessDenied);
    }
    until("guessing ends the connection", || link.state().is_gone());
    assert!(pair.call(b"region", &token()).is_ok());
}

#[test]
fn the_end_of_a_service_is_told_to_its_callers() {
    let Pair { server, client, echo, uuid, at } = pair(LOCAL);
    let (link, _) = client.call_net(&uuid, &at, 3, b"region", &token(), b"", &soon()).unwrap();
    let state = Arc::default();
    let _watching = link.watch(&client, &state).unwrap();
    drop(server);
    until("both are told", || link.state().is_gone() && state.is_gone());
    assert_eq!(echo.ended.lock().len(), 1);
    assert!(TcpStream::connect(at[0]).is_err(), "nobody listens");
}

/// A peer by hand, that has said hello.
fn raw(pair: &Pair) -> (TcpStream, Greeting) {
    let mut stream = TcpStream::connect(pair.at[0]).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    let mut welcome = [0; WELCOME_LEN];
    stream.read_exact(&mut welcome).unwrap();
    let server = Welcome::decode(&welcome).unwrap().nonce;
    stream.write_all(&Hello { uuid: pair.uuid, nonce: [5; 16] }.encode()).unwrap();
    stream.read_exact(&mut [0; HEADER_LEN]).unwrap();
    (stream, Greeting { uuid: pair.uuid, server, client: [5; 16] })
}

fn proven(greeting: &Greeting, sequence: u32) -> Call<'static> {
    let mut call = Call { sequence, kind: 3, subject: b"region", request: b"", mac: [0; MAC_LEN] };
    greeting.prove(&token(), &mut call);
    call
}

fn verdict(stream: &mut TcpStream, call: &Call<'_>) -> Option<Verdict> {
    stream.write_all(&call.encode().unwrap()).ok()?;
    let mut reply = [0; HEADER_LEN];
    stream.read_exact(&mut reply).ok()?;
    Some(Reply::decode(&reply).unwrap().verdict)
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
}

#[test]
fn half_a_message_delays_nobody_and_is_not_waited_for() {
    let pair = pair(LOCAL);
    let (mut slow, greeting) = raw(&pair);
    slow.write_all(&proven(&greeting, 1).encode().unwrap()[..30]).unwrap();
    assert!(pair.call(b"region", &token()).is_ok());
    assert!(matches!(slow.read(&mut [0; 1]), Ok(0) | Err(_)), "closed");
}

#[test]
fn who_has_no_token_cannot_answer() {
    let (client, listener) = (service(), TcpListener::bind((LOCAL, 0)).unwrap());
    let at = [listener.local_addr().unwrap()];
    let liar = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.write_all(&Welcome { nonce: [1; 16] }.encode()).unwrap();
        stream.read_exact(&mut [0; HELLO_LEN]).unwrap();
        stream.write_all(&Reply::without(0, Verdict::Ready).encode().unwrap()).unwrap();
        stream.read_exact(&mut [0; HEADER_LEN]).unwrap();
        let reply = Reply { mac: [3; 32], ..Reply::without(1, Verdict::Answered(Status::Ok)) };
        stream.write_all(&reply.encode().unwrap()).unwrap();
    });
    let answer = client.call_net(&[1; 16], &at, 3, b"", &token(), b"", &soon());
    assert_eq!(answer.unwrap_err(), NetError::Unproven { address: at[0] });
    liar.join().unwrap();
}

#[test]
fn one_address_cannot_keep_others_out() {
    let pair = pair(IpAddr::V4(Ipv4Addr::UNSPECIFIED));
    let at = SocketAddr::new(LOCAL, pair.at[0].port());
    let crowd: Vec<_> = (0..2 * server::MAX_PER_ADDRESS).map(|_| TcpStream::connect(at).unwrap()).collect();
    let other = [SocketAddr::new(IpAddr::V4(Ipv4Addr::new(127, 0, 0, 2)), at.port())];
    let answer = pair.client.call_net(&pair.uuid, &other, 3, b"region", &token(), b"", &soon());
    assert!(answer.is_ok());
    drop(crowd);
}

proptest! {
    #[test]
    fn decoders_are_total_and_canonical(bytes in proptest::collection::vec(any::<u8>(), 0..96), cut in 0_usize..60) {
        let mut bytes = bytes;
        if let Some(fixed) = bytes.get_mut(6..16) {
            fixed.fill(0); // else hardly any has lengths that fit
        }
        bytes.truncate(HEADER_LEN + cut);
        if let Ok(call) = Call::decode(&bytes) {
            prop_assert_eq!(call.encode().unwrap(), bytes.clone());
        }
        if let Ok(reply) = Reply::decode(&bytes) {
            prop_assert_eq!(reply.encode().unwrap(), bytes.clone());
        }
        prop_assert!(Hello::decode(&bytes).is_err() && Welcome::decode(&bytes).is_err());
    }

    #[test]
    fn calls_come_back(sequence: u32, kind: u16, subject in proptest::collection::vec(any::<u8>(), 0..=MAX_SUBJECT), request in proptest::collection::vec(any::<u8>(), 0..=MAX_BODY), mac: [u8; 32]) {
        let call = Call { sequence, kind, subject: &subject, request: &request, mac };
        let bytes = call.encode().unwrap();
        prop_assert_eq!(Call::frame_len(&bytes[..HEADER_LEN]), Ok(bytes.len()));
        prop_assert_eq!(Call::decode(&bytes), Ok(call));
    }
}
