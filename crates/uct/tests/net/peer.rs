//! A context that answers, in a process of its own; and its peers, by the library and by hand.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, connect, socket_with};
use testkit::{Child, Resource, Role, role, with_rlimit};
use ucs::Status;
use ucs::time::Deadline;
use uct::export::{ExportTable, Token};
use uct::service::net::wire::{
    Call, Greeting, HEADER_LEN, Hello, MAC_LEN, Reply, Verdict, WELCOME_LEN, Welcome,
};
use uct::service::{ConnId, NetCall, NetError, NetLink, Responder, Secret, Service};

pub const LOCAL: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

pub fn token() -> Token {
    Token::from_bytes([7; 16])
}

/// Answers what it is asked, and counts.
#[derive(Debug, Default)]
pub struct Echo {
    pub calls: AtomicUsize,
    pub ended: AtomicUsize,
}

impl Responder for Echo {
    fn secret(&self, _: &[u8]) -> Secret {
        Secret::Live(token())
    }

    fn call(&self, _: ConnId, _: &[u8], request: &[u8]) -> Result<Vec<u8>, Status> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        Ok(request.to_vec())
    }

    fn ended(&self, _: ConnId) {
        self.ended.fetch_add(1, Ordering::Relaxed);
    }
}

pub fn service() -> (Service, [u8; 16]) {
    let exports = Arc::new(ExportTable::new(Duration::from_secs(1)).unwrap());
    let uuid = *exports.uuid();
    (Service::new(exports, None), uuid)
}

/// One that answers.
pub struct Serving {
    pub service: Service,
    pub uuid: [u8; 16],
    pub echo: Arc<Echo>,
    pub port: u16,
}

impl Serving {
    pub fn new(at: IpAddr) -> Self {
        let ((service, uuid), echo) = (service(), Arc::<Echo>::default());
        let weak: Weak<dyn Responder> = Arc::downgrade(&(Arc::clone(&echo) as Arc<dyn Responder>));
        service.respond(3, weak);
        let port = service.serve_net(&[at]).unwrap()[0].port();
        Self { service, uuid, echo, port }
    }

    /// Tells the test where it is.
    pub fn tell(&self) {
        role::send(&[self.uuid.as_slice(), &self.port.to_be_bytes()].concat());
    }
}

/// Answers at all addresses of this machine, until it is told to end. Tells how many connections have ended. The argument, if any: how many
/// descriptors this process may have.
pub fn server() {
    let files = role::args().first().map(|files| files.parse().unwrap());
    match files {
        Some(files) => with_rlimit(Resource::Nofile, files, serve),
        None => serve(),
    }
}

fn serve() {
    let serving = Serving::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED));
    serving.tell();
    while role::recv() == b"ended" {
        role::send(serving.echo.ended.load(Ordering::Relaxed).to_string().as_bytes());
    }
}

/// A process that answers.
pub struct Server {
    pub child: Child,
    pub at: At,
}

impl Server {
    pub fn start() -> Self {
        Self::of(Role::new("peer::server"))
    }

    /// With so many descriptors.
    pub fn with_files(files: u64) -> Self {
        Self::of(Role::new("peer::server").arg(files.to_string()))
    }

    fn of(role: Role) -> Self {
        let mut child = role.start();
        let at = At::told(&mut child);
        Self { child, at }
    }

    pub fn ended(&mut self) -> usize {
        String::from_utf8(self.child.request(b"ended")).unwrap().parse().unwrap()
    }
}

/// Where a context answers.
#[derive(Clone, Copy)]
pub struct At {
    pub uuid: [u8; 16],
    pub port: u16,
}

impl At {
    pub fn told(child: &mut Child) -> Self {
        let told = child.recv();
        Self {
            uuid: told[..16].try_into().unwrap(),
            port: u16::from_be_bytes(told[16..].try_into().unwrap()),
        }
    }

    pub fn address(&self) -> SocketAddr {
        SocketAddr::new(LOCAL, self.port)
    }

    pub fn call(&self, by: &Service, within: Duration) -> Result<(Arc<NetLink>, Vec<u8>), NetError> {
        let deadline = Deadline::after(within);
        by.call_net(
            0,
            &self.uuid,
            &[self.address()],
            &NetCall { kind: 3, subject: b"region", token: &token(), request: b"hello" },
            &deadline,
        )
    }
}

pub fn call(link: &NetLink, within: Duration) -> Result<Vec<u8>, NetError> {
    call_with(link, b"again", within)
}

pub fn call_with(link: &NetLink, request: &[u8], within: Duration) -> Result<Vec<u8>, NetError> {
    link.call(&NetCall { kind: 3, subject: b"region", token: &token(), request }, &Deadline::after(within))
}

pub fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !holds() {
        assert!(begin.elapsed() < Duration::from_secs(10), "{what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// A peer by hand, whose address is 127.0.0.`host`, and which has said hello.
pub struct Raw {
    stream: TcpStream,
    greeting: Greeting,
    sequence: u32,
}

impl Raw {
    /// `None`: it was turned away.
    pub fn from(host: u8, at: &At) -> Option<Self> {
        let mut stream = connected(host, at);
        stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        let mut welcome = [0; WELCOME_LEN];
        stream.read_exact(&mut welcome).ok()?;
        let server = Welcome::decode(&welcome).unwrap().nonce;
        stream.write_all(&Hello { uuid: at.uuid, nonce: [5; 16] }.encode()).ok()?;
        stream.read_exact(&mut [0; HEADER_LEN]).ok()?;
        Some(Self { stream, greeting: Greeting { uuid: at.uuid, server, client: [5; 16] }, sequence: 0 })
    }

    /// Whether it is answered to a call.
    pub fn is_answered(&mut self) -> bool {
        self.sequence += 1;
        let mut call =
            Call { sequence: self.sequence, kind: 3, subject: b"", request: b"", mac: [0; MAC_LEN] };
        self.greeting.prove(&token(), &mut call);
        let mut reply = [0; HEADER_LEN];
        self.stream.write_all(&call.encode().unwrap()).is_ok()
            && self.stream.read_exact(&mut reply).is_ok()
            && Reply::decode(&reply).unwrap().verdict == Verdict::Answered(Status::Ok)
    }
}

fn connected(host: u8, at: &At) -> TcpStream {
    let socket: OwnedFd =
        socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
    bind(&socket, &SocketAddr::from(([127, 0, 0, host], 0))).unwrap();
    connect(&socket, &at.address()).unwrap();
    TcpStream::from(socket)
}
