//! A peer, and what a test knows of it.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::{Duration, Instant};

use testkit::{Child, Role, role};
use ucp::{AmMessage, ConnectError, Context, Endpoint, Features, MemMap, Request, Worker};

/// Long enough for anything, on any machine.
pub const PATIENCE: Duration = Duration::from_secs(30);
/// In the guest of `cargo xtask rxe` processes are connected by its device, which is emulated.
pub const BY_DEVICE: bool = cfg!(feature = "rxe-tests");
/// All transports; there the one of its device.
pub const ALL: &str = if BY_DEVICE { "verbs" } else { "all" };
/// What is said of a service that does not answer.
pub const NO_ANSWER: &str = if BY_DEVICE { "no answer from" } else { "no answer on the service socket" };
/// Bytes of a long message.
pub const LONG: usize = if BY_DEVICE { 4 << 20 } else { 64 << 20 };
/// Bytes of a peer's region.
pub const REGION: usize = 1 << 20;

/// Handlers of a peer: it counts what comes; sends back what comes; sends a long message.
pub const COUNT: u16 = 1;
pub const ECHO: u16 = 2;
pub const ASK: u16 = 3;
/// Handlers of this side: an echo, and a long message.
pub const BACK: u16 = 4;
pub const GIVEN: u16 = 5;

pub fn context() -> Context {
    context_of(ALL)
}

/// One with these transports.
pub fn context_of(tls: &str) -> Context {
    let features = Features::AM | Features::RMA | Features::EXPORTED_MEMH;
    Context::builder().features(features).set("UCX_TLS", tls).build().unwrap()
}

/// A worker that does what it is asked. With the argument `deaf` it makes no progress.
pub fn peer() {
    std::thread::spawn(|| {
        while let Some(command) = role::try_recv() {
            if command == b"fork" {
                role::send(fork().to_string().as_bytes());
            } else if command == b"exec" {
                use std::os::unix::process::CommandExt as _;
                let error = std::process::Command::new("sleep").arg("60").exec();
                panic!("{error}");
            } else if command == b"fds" {
                role::send(testkit::open_fds().to_string().as_bytes());
            } else if let Some(spare) = command.strip_prefix(b"starve ") {
                crate::floods::starve(std::str::from_utf8(spare).unwrap().parse().unwrap());
            }
        }
        std::process::exit(0); // the test has gone
    });
    let ctx = context();
    let worker = ctx.worker().unwrap();
    let region = ctx.mem_map(MemMap::allocate(REGION)).unwrap();
    let receiving: Rc<RefCell<Vec<Request<Vec<u8>>>>> = Rc::default();
    let list = Rc::clone(&receiving);
    worker
        .am_handler(COUNT, move |message| {
            if message.is_rendezvous() {
                let buffer = vec![0; message.len() as usize];
                list.borrow_mut().retain(|request| !request.is_ended());
                list.borrow_mut().push(message.recv_data(buffer));
            }
        })
        .unwrap();
    worker
        .am_handler(ECHO, |message| {
            let _detached = message.reply().am_send(BACK, message.header(), message.data().to_vec());
        })
        .unwrap();
    worker
        .am_handler(ASK, |message| {
            let _detached = message.reply().am_send(GIVEN, b"", vec![7; LONG]);
        })
        .unwrap();
    role::send(worker.address().unwrap().as_bytes());
    role::send(region.rkey_pack().unwrap().as_bytes());
    if role::args().first().is_some_and(|arg| arg == "forks") {
        role::send(fork().to_string().as_bytes());
    }
    loop {
        if role::args().first().is_some_and(|arg| arg == "deaf") {
            std::thread::sleep(Duration::from_millis(10));
        } else {
            worker.wait_any(Duration::from_secs(1)).unwrap();
        }
    }
}

/// Ends this process with its test.
pub fn go_with_the_test() {
    std::thread::spawn(|| {
        while role::try_recv().is_some() {}
        std::process::exit(0);
    });
}

/// Forks a child that does nothing; answers its pid.
#[allow(unsafe_code)]
fn fork() -> i32 {
    // SAFETY: the child only sleeps.
    match unsafe { libc::fork() } {
        0 => loop {
            // SAFETY: no preconditions.
            unsafe { libc::pause() };
        },
        pid => pid,
    }
}

/// A peer's process.
pub struct Peer {
    pub child: Child,
    pub address: Vec<u8>,
    pub rkey: Vec<u8>,
}

impl Peer {
    pub fn start(args: &[&str]) -> Self {
        Self::start_by(ALL, args)
    }

    /// With these transports.
    pub fn start_by(tls: &str, args: &[&str]) -> Self {
        let role = args.iter().fold(Role::new("roles::peer"), |role, arg| role.arg(*arg));
        Self::of(role.env("UCX_TLS", tls))
    }

    pub fn of(role: Role) -> Self {
        let mut child = role.start();
        let address = child.recv();
        let rkey = child.recv();
        Self { child, address, rkey }
    }
}

/// Connects as soon as the peer has a place: it gives those of connections that have ended back when it has looked.
#[track_caller]
pub fn connect_soon(worker: &Worker, address: &[u8]) -> Endpoint {
    let end = Instant::now() + PATIENCE;
    loop {
        match worker.connect(address) {
            Ok(ep) => return ep,
            Err(ConnectError::TooMany { .. }) => assert!(Instant::now() < end, "nothing is given back"),
            Err(error) => panic!("{error}"),
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// This side: a worker with an endpoint to a peer.
pub struct Side {
    pub worker: Worker,
    pub ep: Endpoint,
    /// What failed endpoints have told.
    pub errors: Rc<RefCell<Vec<ucp::EpError>>>,
    /// Messages that came back.
    pub back: Rc<RefCell<Vec<AmMessage>>>,
}

impl Side {
    pub fn connect(peer: &Peer) -> Self {
        Self::connect_by(ALL, peer)
    }

    /// With these transports.
    pub fn connect_by(tls: &str, peer: &Peer) -> Self {
        let worker = context_of(tls).worker().unwrap();
        let back: Rc<RefCell<Vec<AmMessage>>> = Rc::default();
        for id in [BACK, GIVEN] {
            let into = Rc::clone(&back);
            worker.am_handler(id, move |message| into.borrow_mut().push(message)).unwrap();
        }
        let ep = connect_soon(&worker, &peer.address);
        let errors: Rc<RefCell<Vec<ucp::EpError>>> = Rc::default();
        let into = Rc::clone(&errors);
        ep.on_error(move |error| into.borrow_mut().push(error));
        Self { worker, ep, errors, back }
    }

    /// Makes progress, sleeping in between, until that holds.
    #[track_caller]
    pub fn until(&self, what: &str, holds: impl Fn() -> bool) {
        let end = Instant::now() + PATIENCE;
        while !holds() {
            assert!(Instant::now() < end, "not in time: {what}");
            self.worker.wait_any(Duration::from_millis(100)).unwrap();
        }
    }

    /// One message there and back.
    #[track_caller]
    pub fn round_trip(&self) {
        let before = self.back.borrow().len();
        let _detached = self.ep.am_send(ECHO, b"h", vec![1; 100]);
        self.until("an echo", || self.back.borrow().len() > before);
    }
}
