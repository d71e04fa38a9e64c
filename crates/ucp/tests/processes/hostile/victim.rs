//! A worker that hostile peers connect to, in a process of its own.

use std::cell::RefCell;
use std::fmt::Write;
use std::rc::Rc;
use std::time::{Duration, Instant};

use testkit::{Rng, role};
use ucp::{AmFlags, AmMessage, Context, Endpoint, EpError, Features, MemMap, Request, Worker};

/// Messages to this handler are sent back.
pub const ECHO: u16 = 0;
/// Who sends a message to this one is talked to from then on.
pub const TALK: u16 = 1;
/// Messages to this one are noted; what is announced is asked for, or refused, or kept.
pub const TAKE: u16 = 2;

/// What is taken of announced data at most.
const MOST: u64 = 1 << 20;

#[derive(Default)]
struct Books {
    peers: Vec<Endpoint>,
    errors: Vec<EpError>,
    requests: Vec<Request<Vec<u8>>>,
    flushes: Vec<Request<()>>,
    kept: Vec<AmMessage>,
    /// The first bytes of what [`TAKE`] was sent, and `!` for each error.
    log: String,
    turn: usize,
}

type Shared = Rc<RefCell<Books>>;

pub fn victim() {
    let features = Features::AM | Features::EXPORTED_MEMH;
    let ctx = Context::builder().features(features).set("UCX_TLS", "sm").build().unwrap();
    let region = ctx.mem_map(MemMap::allocate(4096).exported()).unwrap();
    let handle = region.memh_pack().unwrap();
    let books = Shared::default();
    let mut worker = Some(ctx.worker().unwrap());
    handlers(worker.as_ref().unwrap(), &books);
    while let Some(command) = role::try_recv() {
        let command = String::from_utf8(command).unwrap();
        let mut words = command.split(' ');
        let verb = words.next().unwrap();
        let mut number = || words.next().unwrap().parse::<u64>().unwrap();
        let answer = match verb {
            "address" => worker.as_ref().unwrap().address().unwrap().as_bytes().to_vec(),
            "export" => handle.as_bytes().to_vec(),
            "fds" => testkit::open_fds().to_string().into_bytes(),
            "maps" => testkit::mappings().to_string().into_bytes(),
            "peers" => books.borrow().peers.len().to_string().into_bytes(),
            "errors" => books.borrow().errors.len().to_string().into_bytes(),
            "rss" => resident().to_string().into_bytes(),
            "work" => {
                let (time, seed) = (Duration::from_millis(number()), number());
                work(worker.as_ref().unwrap(), &books, time, seed);
                Vec::new()
            }
            "settle" => settle(worker.as_ref().unwrap(), &books).into_bytes(),
            "fork" => {
                fork();
                Vec::new()
            }
            "drop" => {
                worker = None;
                Vec::new()
            }
            other => panic!("unknown command {other}"),
        };
        role::send(&[b"ok:", answer.as_slice()].concat());
    }
}

/// A child that has copies of all descriptors, and does nothing until its parent ends.
fn fork() {
    let parent = rustix::process::getpid();
    // SAFETY: the child sleeps, asks for its parent, and ends.
    if unsafe { libc::fork() } == 0 {
        while rustix::process::getppid() == Some(parent) {
            std::thread::sleep(Duration::from_millis(20));
        }
        // SAFETY: ends this process.
        unsafe { libc::_exit(0) }
    }
}

/// Bytes of memory that are there (`proc_pid_statm(5)`).
fn resident() -> usize {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap();
    text.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * rustix::param::page_size()
}

fn handlers(worker: &Worker, books: &Shared) {
    worker
        .am_handler(ECHO, |message| {
            let _detached = message.reply().am_send(ECHO, message.header(), message.data().to_vec());
        })
        .unwrap();
    let these = Rc::clone(books);
    worker
        .am_handler(TALK, move |message| {
            let ep = message.reply();
            let errors = Rc::clone(&these);
            ep.on_error(move |error| {
                let mut books = errors.borrow_mut();
                books.errors.push(error);
                books.log.push('!');
            });
            these.borrow_mut().peers.push(ep);
        })
        .unwrap();
    let these = Rc::clone(books);
    worker
        .am_handler(TAKE, move |message| {
            let mut books = these.borrow_mut();
            let first = message.data().first().or(message.header().first()).copied().unwrap_or(b'-');
            if books.log.len() < 1000 {
                books.log.push(char::from(first));
            }
            books.turn += 1;
            match books.turn % 3 {
                0 if message.len() <= MOST => {
                    let len = usize::try_from(message.len()).unwrap();
                    drop(books);
                    let request = message.recv_data(vec![0; len]);
                    these.borrow_mut().requests.push(request);
                }
                1 if books.kept.len() < 64 => books.kept.push(message),
                _ => {
                    drop(books);
                    drop(message); // refuses, which may send
                }
            }
        })
        .unwrap();
}

/// The seed with which all is sent at once, and nothing waits for the peer to ask for it.
pub const EAGER: u64 = 2;

/// Makes progress for that long; with a seed that is not 0, talks at the same time to whom it is to.
fn work(worker: &Worker, books: &Shared, time: Duration, seed: u64) {
    let mut rng = Rng::new(seed);
    let begin = Instant::now();
    while begin.elapsed() < time {
        worker.progress();
        let mut books = books.borrow_mut();
        books.requests.retain(|request| !request.is_ended());
        books.flushes.retain(|request| !request.is_ended());
        if seed == 0 || books.peers.is_empty() || books.requests.len() >= 64 {
            continue;
        }
        let peer = books.peers[rng.below(books.peers.len())].clone();
        let len = [0, 10, 60, 5000, 40_000, 200_000][rng.below(if seed == EAGER { 4 } else { 6 })];
        let flags = if seed != EAGER && rng.below(3) == 0 { AmFlags::RNDV } else { AmFlags::empty() };
        let header = vec![1; [0, 0, 3, 100][rng.below(4)]];
        let request = peer.am_send_with(flags, 5, &header, vec![2; len]);
        books.requests.push(request);
        if rng.below(8) == 0 && books.flushes.len() < 64 {
            books.flushes.push(peer.flush());
        }
    }
}

/// Makes progress until all peers have failed and all operations have ended; answers what was noted and the errors.
fn settle(worker: &Worker, books: &Shared) -> String {
    let begin = Instant::now();
    loop {
        worker.progress();
        let mut now = books.borrow_mut();
        now.requests.retain(|request| !request.is_ended());
        now.flushes.retain(|request| !request.is_ended());
        // A peer may have asked twice to be talked to: it is there twice then, and fails once.
        let alive = now.peers.iter().filter(|peer| peer.check().is_ok()).count();
        let left = (now.requests.len(), now.flushes.len(), alive);
        if left == (0, 0, 0) {
            break;
        }
        assert!(begin.elapsed() < Duration::from_secs(20), "left: {left:?}");
    }
    let Books { peers, errors, kept, log, .. } = books.take();
    let mut text = log;
    for error in &errors {
        write!(text, " {error:?}").unwrap();
    }
    // They hold endpoints, and answer when they are dropped: nobody has the books then.
    drop((peers, kept));
    worker.progress();
    text
}
