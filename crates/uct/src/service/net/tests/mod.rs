//! Two contexts of one process, over the loopback interface. Those with processes are in `tests/net`.

mod deadlines;
mod formats;
mod hostile;
mod listening;
mod once;
mod relay;

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use ucs::Status;
use ucs::time::Deadline;

use super::wire::*;
use super::*;

fn asks<'a>(kind: u16, subject: &'a [u8], token: &'a Token, request: &'a [u8]) -> NetCall<'a> {
    NetCall { kind, subject, token, request }
}
use crate::export::ExportTable;
use crate::service::server::PROOF_TIME;

const LOCAL: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

#[derive(Debug, Default)]
struct Echo {
    /// What it was asked.
    calls: Mutex<Vec<Vec<u8>>>,
    ended: Mutex<Vec<ConnId>>,
}

fn token() -> Token {
    Token::from_bytes([7; 16])
}

impl Responder for Echo {
    fn secret(&self, subject: &[u8]) -> Secret {
        match subject {
            b"region" => Secret::Live(token()),
            b"revoked" => Secret::Ended(token()),
            b"ill" => panic!("of no consequence to others"),
            _ => Secret::Unknown,
        }
    }

    fn call(&self, _: ConnId, _: &[u8], request: &[u8]) -> Result<Vec<u8>, Status> {
        self.calls.lock().push(request.to_vec());
        match request {
            b"busy" => Err(Status::Busy),
            b"panic" => panic!("of no consequence to others"),
            b"slow" => {
                std::thread::sleep(PROOF_TIME + Duration::from_millis(500));
                Ok(Vec::new())
            }
            _ => Ok(request.to_vec()),
        }
    }

    fn ended(&self, conn: ConnId) {
        self.ended.lock().push(conn);
    }
}

impl Echo {
    fn calls(&self) -> usize {
        self.calls.lock().len()
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

fn weak<T: Responder + 'static>(responder: &Arc<T>) -> Weak<dyn Responder> {
    Arc::downgrade(&(Arc::clone(responder) as Arc<dyn Responder>))
}

fn pair(address: IpAddr) -> Pair {
    let (server, client, echo) = (service(), service(), Arc::new(Echo::default()));
    server.respond(3, weak(&echo));
    let at = server.serve_net(&[address]).unwrap();
    let uuid = server.net.uuid;
    Pair { server, client, echo, uuid, at }
}

impl Pair {
    fn call(&self, subject: &[u8], token: &Token) -> Result<(Arc<NetLink>, Vec<u8>), NetError> {
        self.client.call_net(0, &self.uuid, &self.at, &asks(3, subject, token, b"hello"), &soon())
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
        let busy = link.call(&asks(3, b"region", &token(), b"busy"), &soon()).unwrap_err();
        assert_eq!(busy.status(), Status::Busy);
        assert_eq!(link.peer_addr(), pair.at[0]);
        let token = token();
        let call = asks(3, b"region", &token, b"");
        let (others, _) = pair.client.call_net(1, &pair.uuid, &pair.at, &call, &soon()).unwrap();
        assert!(!Arc::ptr_eq(&link, &others), "another user has its own");
        drop(others);
        until("its end is told", || pair.echo.ended.lock().pop().is_some());
        assert!(!link.state().is_gone() && pair.echo.ended.lock().is_empty());
        drop((link, same));
        until("its end is told", || !pair.echo.ended.lock().is_empty());
        std::thread::sleep(Duration::from_millis(20));
        assert_eq!(pair.echo.ended.lock().len(), 1);
    }
}

#[test]
fn refusals_say_no_more_than_is_known() {
    let pair = pair(LOCAL);
    let denied = pair.call(b"region", &Token::from_bytes([8; 16])).unwrap_err();
    assert_eq!(denied.status(), Status::AccessDenied);
    let address = pair.at[0];
    assert_eq!(pair.call(b"other", &token()).unwrap_err(), NetError::Unknown { address });
    assert_eq!(pair.call(b"revoked", &token()).unwrap_err(), NetError::Stale { address });
    let wrong = pair.call(b"revoked", &Token::from_bytes([8; 16])).unwrap_err();
    assert_eq!(wrong, NetError::Denied { address });
    let nobody = pair.client.call_net(0, &pair.uuid, &pair.at, &asks(4, b"region", &token(), b""), &soon());
    assert_eq!(nobody.unwrap_err(), NetError::Unknown { address });
    let other = pair.client.call_net(0, &[9; 16], &pair.at, &asks(3, b"region", &token(), b""), &soon());
    assert_eq!(other.unwrap_err(), NetError::OtherContext { address });
    assert_eq!(pair.echo.calls(), 0);
}

#[test]
fn errors_have_a_status_and_a_remedy() {
    let address = SocketAddr::new(LOCAL, 1);
    let mem = ucs::mem::MemError::of("socket", rustix::io::Errno::MFILE, 0);
    let all = [
        (NetError::NoAddress, Status::Unreachable),
        (NetError::TooLong { what: "request", found: 2, most: 1 }, Status::InvalidParam),
        (NetError::Closed { address }, Status::Unreachable),
        (NetError::Unanswered { address }, Status::Unreachable),
        (NetError::Unproven { address }, Status::Unreachable),
        (NetError::Unknown { address }, Status::Unreachable),
        (NetError::OtherContext { address }, Status::Unreachable),
        (NetError::Stale { address }, Status::Stale),
        (NetError::Denied { address }, Status::AccessDenied),
        (NetError::Refused { address, status: Status::Busy }, Status::Busy),
        (NetError::Mem(mem.clone()), mem.status()),
        (NetError::Service(ServiceError::Forked), Status::Forked),
    ];
    for (error, status) in all {
        assert_eq!(error.status(), status, "{error}");
        assert!(!error.remedy().is_empty(), "{error}");
    }
}

#[test]
fn the_end_of_a_service_is_told_to_its_callers() {
    let Pair { server, client, echo, uuid, at } = pair(LOCAL);
    let (link, _) = client.call_net(0, &uuid, &at, &asks(3, b"region", &token(), b""), &soon()).unwrap();
    let state = Arc::default();
    let _watching = link.watch(&client, &state).unwrap();
    drop(server);
    until("both are told", || link.state().is_gone() && state.is_gone());
    assert_eq!(echo.ended.lock().len(), 1);
    assert!(TcpStream::connect(at[0]).is_err(), "nobody listens");
}

/// A peer by hand, that has said nothing; the number it was told.
fn welcomed(pair: &Pair) -> (TcpStream, [u8; 16]) {
    let mut stream = TcpStream::connect(pair.at[0]).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    let mut welcome = [0; WELCOME_LEN];
    stream.read_exact(&mut welcome).unwrap();
    (stream, Welcome::decode(&welcome).unwrap().nonce)
}

/// A peer by hand, that has said hello.
fn raw(pair: &Pair) -> (TcpStream, Greeting) {
    let (mut stream, server) = welcomed(pair);
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

/// What a context that listens says, by hand: hellos are exchanged, and calls may come.
fn greet(stream: &mut TcpStream) -> Option<Greeting> {
    stream.set_read_timeout(Some(Duration::from_secs(5))).ok()?;
    stream.write_all(&Welcome { nonce: [1; 16] }.encode()).ok()?;
    let mut hello = [0; HELLO_LEN];
    stream.read_exact(&mut hello).ok()?;
    let Hello { uuid, nonce } = Hello::decode(&hello).ok()?;
    stream.write_all(&Reply::without(0, Verdict::Ready).encode().ok()?).ok()?;
    Some(Greeting { uuid, server: [1; 16], client: nonce })
}

/// The bytes of the next call.
fn next_call(stream: &mut TcpStream) -> Option<Vec<u8>> {
    let mut bytes = vec![0; HEADER_LEN];
    stream.read_exact(&mut bytes).ok()?;
    bytes.resize(Call::frame_len(&bytes).ok()?, 0);
    stream.read_exact(&mut bytes[HEADER_LEN..]).ok()?;
    Some(bytes)
}

/// The bytes of the next reply.
fn next_reply(stream: &mut TcpStream) -> Option<Vec<u8>> {
    let mut bytes = vec![0; HEADER_LEN];
    stream.read_exact(&mut bytes).ok()?;
    bytes.resize(Reply::frame_len(&bytes).ok()?, 0);
    stream.read_exact(&mut bytes[HEADER_LEN..]).ok()?;
    Some(bytes)
}

#[test]
fn a_call_alone_harms_no_other_when_it_is_refused() {
    let pair = pair(LOCAL);
    let (link, _) = pair.call(b"region", &token()).unwrap();
    let alone = |token: &Token| {
        pair.client.call_net_alone(&pair.uuid, &pair.at, &asks(3, b"region", token, b"alone"), &soon())
    };
    for _ in 0..2 * MAX_FAILURES {
        assert_eq!(alone(&Token::from_bytes([8; 16])).unwrap_err().status(), Status::AccessDenied);
    }
    let (other, reply) = alone(&token()).unwrap();
    assert_eq!(reply, b"alone");
    assert!(!Arc::ptr_eq(&link, &other) && !link.state().is_gone());
    drop(other);
    until("the end of that one is told", || pair.echo.ended.lock().len() == 1);
    assert_eq!(link.call(&asks(3, b"region", &token(), b"here"), &soon()).unwrap(), b"here");
}

#[test]
fn a_kind_is_given_again_once_nobody_answers_it() {
    let service = service();
    let new = || -> Arc<dyn Responder> { Arc::new(Echo::default()) };
    let (first, second, third) = (new(), new(), new());
    assert_eq!(service.respond_in(10..=11, Arc::downgrade(&first)), Some(10));
    assert_eq!(service.respond_in(10..=11, Arc::downgrade(&second)), Some(11));
    assert_eq!(service.respond_in(10..=11, Arc::downgrade(&third)), None);
    drop(first);
    assert_eq!(service.respond_in(10..=11, Arc::downgrade(&third)), Some(10));
}
