//! Where a context listens, and what becomes of it without descriptors.

use std::os::fd::AsFd;
use std::sync::atomic::{AtomicUsize, Ordering as Order};

use rustix::event::epoll::{self, CreateFlags};
use tracing::span::{Attributes, Id, Record};

use super::*;
use crate::service::watch::Watches;

/// An address for documents, which no machine has (RFC 5737).
const NOBODY_S: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));

#[test]
fn an_address_of_another_machine_is_told() {
    let service = service();
    let error = service.serve_net(&[LOCAL, NOBODY_S]).unwrap_err();
    assert!(matches!(error, ServiceError::ListenNet(_)), "{error:?}");
    assert!(
        error.to_string().starts_with("peers of other machines cannot be listened for at 192.0.2.1: "),
        "{error}"
    );
    assert_eq!(error.status(), Status::InvalidAddr);
    assert!(error.remedy().contains("ip addr"));
    assert!(service.net.listening.lock().is_empty(), "half of it");
}

#[test]
fn an_address_named_twice_is_listened_at_once() {
    let service = service();
    let at = service.serve_net(&[LOCAL, LOCAL]).unwrap();
    assert_eq!(at[0], at[1]);
    assert_eq!(service.serve_net(&[LOCAL]).unwrap(), at[..1]);
}

/// Counts events.
struct Counting(Arc<AtomicUsize>);

impl tracing::Subscriber for Counting {
    fn enabled(&self, _: &tracing::Metadata<'_>) -> bool {
        true
    }
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn event(&self, _: &tracing::Event<'_>) {
        self.0.fetch_add(1, Order::Relaxed);
    }
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

fn paused() -> (NetServer, Arc<Watches>) {
    let watches = Watches::new(epoll::create(CreateFlags::CLOEXEC).unwrap());
    let net = Net::new([1; 16]);
    let mut server = net.server(&watches, &Arc::new(AtomicU64::new(1)));
    server.listen(NetListener::at(LOCAL).unwrap());
    server.pause();
    (server, watches)
}

fn go_on(server: &mut NetServer) {
    std::thread::sleep(server::PAUSE);
    server.tidy();
    assert!(!server.needs_time(), "the pause is over");
}

#[test]
fn a_listener_that_comes_in_a_pause_is_looked_at_once_that_ends() {
    let (mut server, watches) = paused();
    let listener = NetListener::at(LOCAL).unwrap();
    let copy = listener.as_fd().try_clone_to_owned().unwrap();
    server.listen(listener);
    let events = || {
        let _peer =
            TcpStream::connect(SocketAddr::try_from(rustix::net::getsockname(&copy).unwrap()).unwrap());
        let mut buffer = [const { std::mem::MaybeUninit::uninit() }; 4];
        epoll::wait(watches.epoll(), &mut buffer, Some(&rustix::event::Timespec::default())).unwrap().0.len()
    };
    assert_eq!(events(), 0);
    let told = Arc::new(AtomicUsize::new(0));
    tracing::subscriber::with_default(Counting(Arc::clone(&told)), || go_on(&mut server));
    assert_eq!(told.load(Order::Relaxed), 0, "added twice");
    assert_eq!(events(), 1);
}

#[test]
fn that_descriptors_are_short_is_told_once() {
    let told = Arc::new(AtomicUsize::new(0));
    tracing::subscriber::with_default(Counting(Arc::clone(&told)), || {
        let (mut server, _watches) = paused();
        for _ in 0..3 {
            go_on(&mut server);
            server.pause();
        }
    });
    assert_eq!(told.load(Order::Relaxed), 1);
}
