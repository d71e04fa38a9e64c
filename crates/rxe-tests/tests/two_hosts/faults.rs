//! What goes wrong between workers of two hosts: ports and limits.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::time::{Duration, Instant};

use rxe_tests::guest::{SlowCable, Unplugged, devices_are_for_all};
use rxe_tests::{Host, Hosts, hosts, port_of};
use testkit::{Child, Role, role, skip};
use ucp::{CloseMode, Context, Endpoint, Features, Request};

use crate::PATIENCE;

/// Longer than a device tries, and much longer than an emulated one takes for that.
const BOUND: Duration = Duration::from_secs(60);
/// Messages of a flood, and their bytes: far more than there are credits for.
const FLOOD: u32 = 5000;
const LEN: usize = 4000;

/// Long data: far more than a worker may pin that is poor.
const LONG: usize = 24 << 20;

/// What a worker is asked for. It answers with words, or with its address.
#[derive(Clone, Debug)]
enum Ask {
    Address,
    /// Connect to this address.
    Connect(Vec<u8>),
    /// Begin to send [`FLOOD`] messages by the last endpoint.
    Flood,
    /// Begin to send [`LONG`] bytes by the last endpoint.
    Long,
    /// Make progress for a moment.
    Go,
    /// Close the last endpoint, whatever is on its way: how many sends have not ended then.
    Abandon,
    /// How many registrations were made, and whether each was asked for.
    Registered,
    /// Wait for all sends that have begun: how many have ended well, how many have not, and what the first of these says.
    Settle,
    /// Send one message with this tag by the endpoint of this number.
    Send(u8, u8),
    /// Wait until so many messages with this tag have come.
    Hear(u8, u32),
    /// The same of a flood; then take what comes for some seconds more.
    Drink(u32),
}

impl Ask {
    fn frame(&self) -> Vec<u8> {
        match self {
            Self::Address => vec![0],
            Self::Connect(address) => [&[1], address.as_slice()].concat(),
            Self::Flood => vec![2],
            Self::Long => vec![7],
            Self::Abandon => vec![8],
            Self::Registered => vec![9],
            Self::Go => vec![10],
            Self::Settle => vec![3],
            Self::Send(ep, tag) => vec![4, *ep, *tag],
            Self::Hear(tag, count) => [&[5, *tag], &count.to_ne_bytes()[..]].concat(),
            Self::Drink(count) => [&[6], &count.to_ne_bytes()[..]].concat(),
        }
    }

    fn read(frame: &[u8]) -> Self {
        match frame {
            [0] => Self::Address,
            [1, address @ ..] => Self::Connect(address.to_vec()),
            [2] => Self::Flood,
            [7] => Self::Long,
            [8] => Self::Abandon,
            [9] => Self::Registered,
            [10] => Self::Go,
            [3] => Self::Settle,
            [4, ep, tag] => Self::Send(*ep, *tag),
            [5, tag, count @ ..] => Self::Hear(*tag, u32::from_ne_bytes(count.try_into().unwrap())),
            [6, count @ ..] => Self::Drink(u32::from_ne_bytes(count.try_into().unwrap())),
            other => panic!("no order: {other:?}"),
        }
    }
}

/// The tag of what a flood sends.
const OF_THE_FLOOD: u8 = 0;
/// Those of an announcement of long data, and of its end.
const ANNOUNCED: u8 = 100;
const ALL_THERE: u8 = 101;
const MESSAGE: u16 = 1;

/// A worker that does as it is told.
pub(crate) fn told_worker() {
    if let Ok(limit) = std::env::var("RUCX_TEST_MEMLOCK") {
        testkit::limits::limit_pinned(limit.parse().unwrap());
    }
    let ctx = Context::builder().features(Features::AM).ignore_env().set("UCX_TLS", "verbs").build().unwrap();
    let worker = ctx.worker().unwrap();
    let came: Rc<RefCell<HashMap<u8, u32>>> = Rc::default();
    let count = Rc::clone(&came);
    let coming: Rc<RefCell<Vec<Request<Vec<u8>>>>> = Rc::default();
    let long = Rc::clone(&coming);
    worker
        .am_handler(MESSAGE, move |message| {
            *count.borrow_mut().entry(message.header()[0]).or_default() += 1;
            if message.is_rendezvous() {
                long.borrow_mut().push(message.recv_data(vec![0; LONG]));
            }
        })
        .unwrap();
    let hears = |tag, count| {
        let begin = Instant::now();
        let have = || {
            let ended = coming.borrow_mut().extract_if(.., |request| request.is_ended()).collect::<Vec<_>>();
            let whole = |request: Request<Vec<u8>>| matches!(request.into_result(), Ok(Ok(data)) if data == vec![1; LONG]);
            let whole = ended.into_iter().map(whole).filter(|whole| *whole).count();
            let mut came = came.borrow_mut();
            *came.entry(ALL_THERE).or_default() += u32::try_from(whole).unwrap();
            came.get(&tag).copied().unwrap_or_default()
        };
        while have() < count && begin.elapsed() < PATIENCE {
            worker.wait_any(Duration::from_secs(1)).unwrap();
        }
        if have() < count { format!("{} have come", have()) } else { "heard".to_owned() }
    };
    let mut eps: Vec<Endpoint> = Vec::new();
    let mut sends: Vec<Request<Vec<u8>>> = Vec::new();
    while let Some(frame) = role::try_recv() {
        let answer = match Ask::read(&frame) {
            Ask::Address => {
                role::send(worker.address().unwrap().as_bytes());
                continue;
            }
            Ask::Connect(address) => match worker.connect(&address) {
                Ok(ep) => {
                    eps.push(ep);
                    "connected".to_owned()
                }
                Err(error) => format!("{}: {error}: {}", error.status(), error.remedy()),
            },
            Ask::Flood => {
                let ep = eps.last().unwrap();
                sends.extend((0..FLOOD).map(|_| ep.am_send(MESSAGE, &[OF_THE_FLOOD], vec![1; LEN])));
                "begun".to_owned()
            }
            Ask::Long => {
                sends.push(eps.last().unwrap().am_send(MESSAGE, &[ANNOUNCED], vec![1; LONG]));
                "begun".to_owned()
            }
            Ask::Abandon => {
                let closed = eps.pop().unwrap().close(CloseMode::Force);
                closed.into_result().unwrap().unwrap();
                worker.progress();
                format!("closed, with {}", sends.iter().filter(|send| !send.is_ended()).count())
            }
            Ask::Go => {
                let begin = Instant::now();
                while begin.elapsed() < Duration::from_millis(100) {
                    worker.progress();
                }
                "gone on".to_owned()
            }
            Ask::Registered => {
                let stats = ctx.rcache_stats();
                format!("{} of {}", stats.misses, stats.gets)
            }
            Ask::Settle => {
                let (mut good, mut words) = (0, Vec::new());
                for request in sends.drain(..) {
                    match worker.wait(request, PATIENCE) {
                        Ok(data) => good += usize::from([LEN, LONG].contains(&data.len())),
                        Err(error) => words.push(format!("{}: {error}: {}", error.status(), error.remedy())),
                    }
                }
                format!("{good} {} {}", words.len(), words.first().map_or("", String::as_str))
            }
            Ask::Send(ep, tag) => {
                let sent = worker.wait(eps[usize::from(ep)].am_send(MESSAGE, &[tag], vec![1; LEN]), PATIENCE);
                sent.map_or_else(|error| error.to_string(), |_| "sent".to_owned())
            }
            Ask::Hear(tag, count) => hears(tag, count),
            Ask::Drink(count) => {
                role::send(hears(OF_THE_FLOOD, count).as_bytes());
                let begin = Instant::now();
                while begin.elapsed() < Duration::from_secs(5) {
                    worker.wait_any(Duration::from_secs(1)).unwrap();
                }
                continue;
            }
        };
        role::send(answer.as_bytes());
    }
}

/// A worker on one of the hosts, yet to be started; where hosts are no network namespaces, the test is skipped.
fn told(host: Host) -> Role {
    if hosts() != Some(Hosts::Namespaces) {
        skip(
            "both hosts are to be this guest's: network namespaces with a device of rxe each are for newer kernels",
            "cargo xtask rxe --kernel new",
        );
    }
    Role::new("told_worker").in_netns(host.namespace()).deadline(Duration::from_secs(150))
}

/// The same, of a user who may pin so many bytes, and use the devices.
fn poor(host: Host, bytes: u32) -> Child {
    const NOBODY: u32 = 65_534;
    let role = told(host);
    devices_are_for_all();
    role.as_uid(NOBODY).env("RUCX_TEST_MEMLOCK", bytes.to_string()).start()
}

fn ask(child: &mut Child, ask: &Ask) -> String {
    String::from_utf8(child.request(&ask.frame())).unwrap()
}

#[track_caller]
fn expect(child: &mut Child, what: &Ask, words: &str) {
    assert_eq!(ask(child, what), words);
}

#[track_caller]
fn soon(what: &str, mut holds: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !holds() {
        assert!(begin.elapsed() < BOUND, "{what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

pub(crate) fn a_port_that_goes_down_under_traffic() {
    goes_down(&Ask::Drink(100));
}

/// Hardly anything is on its way: the sender waits for credits. So the connection between the processes may be the first to end.
pub(crate) fn a_port_that_goes_down_while_a_sender_waits() {
    goes_down(&Ask::Hear(OF_THE_FLOOD, 100));
}

/// Each send ends once, well or not, and the same workers connect anew when the port is up.
fn goes_down(hear: &Ask) {
    let (mut b, mut a) = (told(Host::B).start(), told(Host::A).start());
    let address = b.request(&Ask::Address.frame());
    expect(&mut a, &Ask::Connect(address.clone()), "connected");
    expect(&mut a, &Ask::Flood, "begun");
    a.send(&Ask::Settle.frame());
    expect(&mut b, hear, "heard");
    let unplugged = Unplugged::now();
    let begin = Instant::now();
    let answer = String::from_utf8(a.try_recv(BOUND).unwrap()).unwrap();
    assert!(begin.elapsed() < BOUND, "{:?}", begin.elapsed());
    let mut words = answer.splitn(3, ' ');
    let [good, bad] = [(); 2].map(|()| words.next().unwrap().parse::<u32>().unwrap());
    assert!(good + bad == FLOOD && good >= 100 && bad > 0, "{answer}");
    // Of the port; or of requests, where they fail before the device has noticed: rxe says no more then than that they were flushed.
    let words = words.next().unwrap();
    assert!(
        words.contains("the way to the peer has failed: ") && words.contains("connect again"),
        "{answer}"
    );
    crate::report(words);
    drop(unplugged);
    for device in [Host::A, Host::B].map(|host| host.device(Hosts::Namespaces)) {
        soon("the port is up", || port_of(&device, "state").unwrap() == "4: ACTIVE");
    }
    // Once the kernel has forgotten that nobody answered.
    soon("a way", || ask(&mut a, &Ask::Connect(address.clone())) == "connected");
    expect(&mut a, &Ask::Send(1, 7), "sent");
    expect(&mut b, &Ask::Hear(7, 1), "heard");
    assert_ne!(ask(&mut a, &Ask::Send(0, 8)), "sent", "what has failed stays so");
}

/// What is on its way by a slow cable the device may read until it has been acknowledged: it is given back then, and not before.
pub(crate) fn long_data_that_is_given_up_comes_back_when_its_device_has_read_it() {
    let (mut b, mut a) = (told(Host::B).start(), told(Host::A).start());
    let address = b.request(&Ask::Address.frame());
    expect(&mut a, &Ask::Connect(address.clone()), "connected");
    // As much as may be on its way at once, half a megabyte, takes a second.
    let cable = SlowCable::of("4mbit");
    expect(&mut a, &Ask::Long, "begun");
    // It asks for the data, and that arrives although nobody looks for it.
    expect(&mut b, &Ask::Hear(ANNOUNCED, 1), "heard");
    std::thread::sleep(Duration::from_millis(500));
    expect(&mut a, &Ask::Registered, "0 of 0");
    expect(&mut a, &Ask::Go, "gone on");
    expect(&mut a, &Ask::Registered, "1 of 1");
    expect(&mut a, &Ask::Abandon, "closed, with 1");
    let begin = Instant::now();
    a.send(&Ask::Settle.frame());
    let answer = String::from_utf8(a.try_recv(BOUND).unwrap()).unwrap();
    crate::report(&format!("{answer}, after {:?}", begin.elapsed()));
    assert!(answer.starts_with("0 1 ") && begin.elapsed() > Duration::from_millis(300), "{answer}");
    drop(cable);
    expect(&mut a, &Ask::Connect(address), "connected");
    expect(&mut a, &Ask::Long, "begun");
    a.send(&Ask::Settle.frame());
    expect(&mut b, &Ask::Hear(ALL_THERE, 1), "heard");
    assert_eq!(a.recv(), b"1 0 ");
}

/// Long data that may not be pinned is copied, and comes all the same.
pub(crate) fn long_data_of_who_may_not_pin_it_is_copied() {
    let mut b = told(Host::B).start();
    let mut a = poor(Host::A, 2 << 20);
    let address = b.request(&Ask::Address.frame());
    expect(&mut a, &Ask::Connect(address), "connected");
    expect(&mut a, &Ask::Long, "begun");
    a.send(&Ask::Settle.frame());
    expect(&mut b, &Ask::Hear(ALL_THERE, 1), "heard");
    assert_eq!(a.recv(), b"1 0 ");
    expect(&mut a, &Ask::Registered, "0 of 2"); // once more without what is cached
}

pub(crate) fn who_may_not_pin_an_endpoint_is_told_of_the_limit() {
    let mut b = told(Host::B).start();
    let mut a = poor(Host::A, 64 << 10);
    let address = b.request(&Ask::Address.frame());
    let answer = ask(&mut a, &Ask::Connect(address));
    assert!(answer.contains("RLIMIT_MEMLOCK is 65536 bytes") && answer.contains("ulimit -l"), "{answer}");
}

/// One endpoint it may pin, and not two: the second caller is told where to look, and the first one is still heard.
pub(crate) fn who_may_pin_one_endpoint_refuses_the_second_and_goes_on() {
    let mut b = poor(Host::B, 1 << 20);
    let (mut a, mut other) = (told(Host::A).start(), told(Host::A).start());
    let address = b.request(&Ask::Address.frame());
    expect(&mut a, &Ask::Connect(address.clone()), "connected");
    let answer = ask(&mut other, &Ask::Connect(address.clone()));
    assert!(answer.contains("cannot make an endpoint") && answer.contains("ulimit -l"), "{answer}");
    expect(&mut a, &Ask::Send(0, 7), "sent");
    expect(&mut b, &Ask::Hear(7, 1), "heard");
    // What ends makes room.
    a.kill();
    b.send(&Ask::Hear(8, 1).frame());
    soon("room", || ask(&mut other, &Ask::Connect(address.clone())) == "connected");
    expect(&mut other, &Ask::Send(0, 8), "sent");
    assert_eq!(b.recv(), b"heard");
}
