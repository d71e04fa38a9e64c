//! Bytes go from one host to another by their devices, and nothing else: a reliable connection, a WRITE and a READ; messages of workers; memory
//! that is exported.

#![deny(unsafe_code)]
#![allow(clippy::unwrap_used, clippy::missing_panics_doc)] // tests

mod end;
mod exported;
mod faults;
mod messages;
mod workers;

use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use rxe_tests::{Host, Hosts, counters, hosts};
use testkit::{Role, role, skip};

use end::{End, Peer};
use faults::told_worker;

/// What goes over, each way.
const LEN: usize = 64 << 10;
/// Until the other host is there: a guest may begin a minute before the other.
const PATIENCE: Duration = Duration::from_secs(120);
/// For numbers to be exchanged.
const PORT: u16 = 18_515;

fn pattern() -> Vec<u8> {
    let mut bytes = vec![0; LEN];
    testkit::Rng::new(7).fill(&mut bytes);
    bytes
}

fn a_write_and_a_read() {
    on_both("one_of_two", talk);
}

fn messages_of_workers() {
    on_both("one_of_two_workers", messages::talk);
}

fn workers_talk() {
    on_both("one_of_two_ucp", workers::talk);
}

fn exported_memory() {
    on_both("one_of_two_exported", exported::talk);
}

/// Does this on both hosts: here, if this is one of them, or in two processes with this role.
fn on_both(name: &str, talk: fn(Host, Hosts)) {
    match hosts() {
        None => skip(
            "this guest has no second host: network namespaces with a device of rxe each are for newer kernels",
            "cargo xtask rxe --kernel new, or --two-hosts vm",
        ),
        Some(Hosts::Guests(host)) => talk(host, Hosts::Guests(host)),
        Some(Hosts::Namespaces) => {
            let start = |host: Host| {
                let role = Role::new(name).arg(host.name()).in_netns(host.namespace());
                role.deadline(PATIENCE).start()
            };
            let (mut b, mut a) = (start(Host::B), start(Host::A));
            a.expect_exit(0);
            b.expect_exit(0);
        }
    }
}

fn one_of_two() {
    talk(Host::of(&role::args()[0]), Hosts::Namespaces);
}

fn one_of_two_ucp() {
    workers::talk(Host::of(&role::args()[0]), Hosts::Namespaces);
}

fn one_of_two_exported() {
    exported::talk(Host::of(&role::args()[0]), Hosts::Namespaces);
}

fn one_of_two_workers() {
    messages::talk(Host::of(&role::args()[0]), Hosts::Namespaces);
}

/// What this host does, and what its device has counted then.
fn talk(host: Host, hosts: Hosts) {
    let device = host.device(hosts);
    let before = counters(&device).unwrap();
    let end = End::open(&device, LEN);
    let mut line = Line::open(host);
    let peer = line.swap(&end.own());
    end.connect(&peer);
    // Both are connected, before one sends.
    line.swap_words("connected");
    if host == Host::A {
        end.fill(&pattern());
        end.write(&peer);
        end.fill(&[0; LEN]);
        end.read(&peer);
        assert!(end.bytes() == pattern(), "what was written is read back");
    }
    line.swap_words("done");
    if host == Host::B {
        assert!(end.bytes() == pattern(), "what was written is there");
    }
    let packets = (LEN / end.mtu()) as u64;
    let rise = counters(&device).unwrap().since(&before);
    assert!(rise.sent() >= packets && rise.received() >= packets, "{packets} packets each way: {rise:?}");
    line.swap_words("counted");
}

/// A line of text to the other host.
struct Line {
    read: BufReader<TcpStream>,
    write: TcpStream,
}

impl Line {
    /// B listens, A comes.
    fn open(host: Host) -> Self {
        let address = SocketAddr::from((Host::B.address(), PORT));
        let deadline = Instant::now() + PATIENCE;
        let stream = if host == Host::B {
            let listener = TcpListener::bind(address).unwrap();
            listener.set_nonblocking(true).unwrap();
            let stream = until(deadline, || listener.accept().ok()).0;
            stream.set_nonblocking(false).unwrap();
            stream
        } else {
            let second = Duration::from_secs(1);
            until(deadline, || TcpStream::connect_timeout(&address, second).ok())
        };
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Self { read: BufReader::new(stream.try_clone().unwrap()), write: stream }
    }

    /// Says something, and answers what the other has said.
    fn swap_text(&mut self, text: &str) -> String {
        writeln!(self.write, "{text}").unwrap();
        let mut answer = String::new();
        self.read.read_line(&mut answer).unwrap();
        answer.trim_end().to_owned()
    }

    /// Both say the same.
    fn swap_words(&mut self, words: &str) {
        assert_eq!(self.swap_text(words), words);
    }

    fn swap(&mut self, own: &Peer) -> Peer {
        let text = format!("{} {} {} {}", own.qp, own.gid, own.rkey, own.address);
        let answer = self.swap_text(&text);
        let words: Vec<&str> = answer.split(' ').collect();
        let gid: Ipv6Addr = words[1].parse().unwrap();
        let [qp, rkey] = [words[0], words[2]].map(|word| word.parse().unwrap());
        Peer { qp, gid, rkey, address: words[3].parse().unwrap() }
    }
}

/// For who reads the results.
#[allow(clippy::print_stdout)]
fn report(text: &str) {
    println!("{text}");
}

fn until<T>(deadline: Instant, mut attempt: impl FnMut() -> Option<T>) -> T {
    loop {
        if let Some(found) = attempt() {
            return found;
        }
        assert!(Instant::now() < deadline, "the other host has not come");
        std::thread::sleep(Duration::from_millis(100));
    }
}

fn main() -> std::process::ExitCode {
    testkit::main! {
        roles: [one_of_two, one_of_two_workers, one_of_two_ucp, one_of_two_exported, told_worker],
        tests: [
            a_write_and_a_read => .secs(150), messages_of_workers => .secs(150), workers_talk => .secs(150),
            exported_memory => .secs(150),
            faults::who_may_not_pin_an_endpoint_is_told_of_the_limit => .secs(120),
            faults::who_may_pin_one_endpoint_refuses_the_second_and_goes_on => .secs(120),
            faults::a_port_that_goes_down_under_traffic => .secs(150),
            faults::a_port_that_goes_down_while_a_sender_waits => .secs(150),
            faults::long_data_that_is_given_up_comes_back_when_its_device_has_read_it => .secs(120),
            faults::long_data_of_who_may_not_pin_it_is_copied => .secs(120),
        ],
    }
}
