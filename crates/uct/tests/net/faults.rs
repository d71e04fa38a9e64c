//! Peers that are stopped, killed, or out of descriptors.

use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};

use rustix::process::Resource;
use testkit::limits::with_rlimit;
use testkit::{Role, role};
use ucs::Status;
use uct::service::NetError;

use super::peer::{At, Raw, Server, Serving, call, call_with, service, until};

const PATIENCE: Duration = Duration::from_millis(300);
const LONG: Duration = Duration::from_secs(10);

pub fn a_stopped_server_is_waited_for_no_longer_than_asked() {
    let server = Server::start();
    let (client, _) = service();
    let (link, _) = server.at.call(&client, LONG).unwrap();
    server.child.stop();
    let begin = Instant::now();
    let on_it = call(&link, PATIENCE).unwrap_err();
    assert!(matches!(on_it, NetError::TimedOut { .. }), "{on_it}");
    // The kernel still takes connections for it.
    let anew = server.at.call(&client, PATIENCE).unwrap_err();
    assert!(matches!(anew, NetError::TimedOut { .. }), "{anew}");
    assert!(begin.elapsed() < LONG / 2);
    assert!(!link.state().is_gone(), "others use the connection, too");
    server.child.cont();
    // The answers that come late are not taken for that of the next call.
    assert_eq!(call_with(&link, b"another", LONG).unwrap(), b"another");
    assert_eq!(server.at.call(&client, LONG).unwrap().1, b"hello");
}

pub fn a_killed_server_is_told() {
    let mut server = Server::start();
    let (client, _) = service();
    let (link, _) = server.at.call(&client, LONG).unwrap();
    server.child.kill();
    until("its end is told", || link.state().is_gone());
    assert!(matches!(call(&link, LONG), Err(NetError::Closed { .. })));
    let anew = server.at.call(&client, LONG).unwrap_err();
    assert!(matches!(anew, NetError::Connect { .. }), "{anew}");
    assert_eq!(anew.status(), Status::Unreachable);
}

pub fn a_killed_client_is_told() {
    let serving = Serving::new(IpAddr::V4(Ipv4Addr::LOCALHOST));
    let mut client = Role::new("fork::forking").arg(serving.port.to_string()).arg(hex(&serving.uuid)).start();
    At::told(&mut client);
    client.kill();
    until("its end is told", || serving.echo.ended.load(std::sync::atomic::Ordering::Relaxed) == 1);
}

pub fn hex(bytes: &[u8]) -> String {
    testkit::golden::hex(bytes)
}

/// A context that can have no more descriptors: its peers wait, it does not spin, and it serves them as soon as it can.
pub fn server_without_descriptors() {
    let serving = Serving::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED));
    serving.tell();
    with_rlimit(Resource::Nofile, 3, || {
        let before = cpu_time();
        role::send(b"none left");
        let _ = role::recv();
        role::send((cpu_time() - before).as_millis().to_string().as_bytes());
    });
    let _ = role::recv();
}

fn cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::try_from(time).unwrap()
}

pub fn without_descriptors_peers_wait() {
    let mut server = Role::spawn("faults::server_without_descriptors");
    let at = At::told(&mut server);
    assert_eq!(server.recv(), b"none left");
    let (client, _) = service();
    let late = at.call(&client, 2 * PATIENCE).unwrap_err();
    assert!(matches!(late, NetError::TimedOut { .. }), "{late}");
    server.send(b"go on");
    let millis: u64 = String::from_utf8(server.recv()).unwrap().parse().unwrap();
    assert!(millis < 250, "{millis} ms of processor time in half a second of waiting");
    assert_eq!(at.call(&client, LONG).unwrap().1, b"hello");
    assert!(Raw::from(2, &at).unwrap().is_answered());
}

/// Calls with no descriptor for a connection, and says what they answer.
pub fn client_without_descriptors() {
    let serving = Serving::new(IpAddr::V4(Ipv4Addr::LOCALHOST));
    let at = At { uuid: serving.uuid, port: serving.port };
    let (client, _) = service();
    let error = with_rlimit(Resource::Nofile, 3, || at.call(&client, LONG).unwrap_err());
    assert!(matches!(error, NetError::Mem(_)), "{error:?}");
    let listening = with_rlimit(Resource::Nofile, 3, || {
        client.serve_net(&[IpAddr::V4(Ipv4Addr::LOCALHOST)]).unwrap_err().to_string()
    });
    assert_eq!(at.call(&client, LONG).unwrap().1, b"hello");
    role::send(format!("{error} [{}]\n{listening}", error.remedy()).as_bytes());
}

pub fn without_descriptors_calls_say_so() {
    let mut client = Role::spawn("faults::client_without_descriptors");
    let text = String::from_utf8(client.recv()).unwrap();
    assert!(text.lines().count() == 2 && text.lines().all(|line| line.contains("RLIMIT_NOFILE")), "{text}");
    client.expect_exit(0);
}
