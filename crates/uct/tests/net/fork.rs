//! Forks: a child has nothing of its parent's, and harms nothing of it.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use testkit::{Child, Role, role};
use ucs::Status;
use ucs::time::Deadline;
use uct::service::{NetCall, NetError};

use super::faults::hex;
use super::peer::{At, LOCAL, Serving, call, token, until};

const PATIENCE: Duration = Duration::from_millis(300);
const LONG: Duration = Duration::from_secs(10);

/// A context that answers and has a connection to another, and forks where it is told to.
pub fn forking() {
    let [port, uuid] = role::args() else { panic!("where the other is") };
    let other = At { uuid: unhex(uuid), port: port.parse().unwrap() };
    let serving = Serving::new(IpAddr::V4(std::net::Ipv4Addr::UNSPECIFIED));
    let (link, _) = other.call(&serving.service, LONG).unwrap();
    serving.tell();
    let stays = match role::recv().as_slice() {
        b"fork" => false,
        b"fork one that stays" => true,
        _ => return,
    };
    // SAFETY: this role has one other thread, the service's, which is asleep: the test does nothing until it is answered. The child
    // makes its checks, allocates, and exits.
    match unsafe { libc::fork() } {
        0 => {
            if stays {
                role::send(b"the child stays");
                std::thread::sleep(Duration::from_secs(30));
                // SAFETY: ends this process.
                unsafe { libc::_exit(0) }
            }
            let told = [
                serving.service.serve_net(&[LOCAL]).unwrap_err().status(),
                other.call(&serving.service, LONG).unwrap_err().status(),
                serving
                    .service
                    .call_net(
                        0,
                        &[1; 16],
                        &[],
                        &NetCall { kind: 3, subject: b"", token: &token(), request: b"" },
                        &Deadline::after(LONG),
                    )
                    .unwrap_err()
                    .status(),
                call(&link, LONG).unwrap_err().status(),
                link.watch(&serving.service, &Arc::default()).unwrap_err().status(),
            ];
            drop((link, serving));
            // A context of its own works.
            let own = Serving::new(LOCAL);
            let mine = At { uuid: own.uuid, port: own.port };
            let works = [mine, other].map(|at| at.call(&own.service, LONG).is_ok());
            drop(own);
            role::send(format!("{told:?} {works:?}").as_bytes());
            // SAFETY: ends this process.
            unsafe { libc::_exit(0) }
        }
        child => assert!(child > 0, "{}", std::io::Error::last_os_error()),
    }
    loop {
        match role::recv().as_slice() {
            b"call" => role::send(format!("{:?}", call(&link, LONG)).as_bytes()),
            b"drop" => break,
            _ => return,
        }
    }
    drop((link, serving));
    role::send(b"dropped");
    let _ = role::recv();
}

fn unhex(text: &str) -> [u8; 16] {
    std::array::from_fn(|at| u8::from_str_radix(&text[2 * at..2 * at + 2], 16).unwrap())
}

/// A context of this process and one of another, each connected with the other.
struct Both {
    mine: Serving,
    child: Child,
    at: At,
}

impl Both {
    fn new() -> Self {
        let mine = Serving::new(LOCAL);
        let mut child = Role::new("fork::forking").arg(mine.port.to_string()).arg(hex(&mine.uuid)).start();
        let at = At::told(&mut child);
        Self { mine, child, at }
    }

    fn ended(&self) -> usize {
        self.mine.echo.ended.load(Ordering::Relaxed)
    }
}

pub fn a_child_has_nothing_and_ends_nothing() {
    let mut both = Both::new();
    let (link, _) = both.at.call(&both.mine.service, LONG).unwrap();
    let told = both.child.request(b"fork");
    let forked = Status::Forked;
    assert_eq!(String::from_utf8(told).unwrap(), format!("{:?} [true, true]", [forked; 5]));
    until("the child's own connection ends", || both.ended() == 1);
    // It has dropped all of its parent's: the parent and its peer see nothing of that.
    assert_eq!(call(&link, LONG).unwrap(), b"again");
    assert_eq!(both.child.request(b"call"), format!("{:?}", Ok::<_, NetError>(b"again".to_vec())).as_bytes());
    assert_eq!(both.at.call(&both.mine.service, LONG).unwrap().1, b"hello");
    assert!(!link.state().is_gone());
    assert_eq!(both.ended(), 1);
}

/// The child has copies of all descriptors: what its parent ends is ended nevertheless.
pub fn an_end_is_told_although_a_child_lives() {
    let mut both = Both::new();
    let (link, _) = both.at.call(&both.mine.service, LONG).unwrap();
    assert_eq!(both.child.request(b"fork one that stays"), b"the child stays");
    assert_eq!(call(&link, LONG).unwrap(), b"again");
    assert_eq!(both.child.request(b"drop"), b"dropped");
    until("the ends are told", || link.state().is_gone() && both.ended() == 1);
    let anew = both.at.call(&both.mine.service, LONG).unwrap_err();
    assert!(matches!(anew, NetError::Connect { .. }), "{anew}");
}

/// Nothing tells another machine that a process was killed whose child holds its descriptors: calls come to their bound.
pub fn a_child_that_outlives_its_parent_answers_nothing() {
    let mut both = Both::new();
    let (link, _) = both.at.call(&both.mine.service, LONG).unwrap();
    assert_eq!(both.child.request(b"fork one that stays"), b"the child stays");
    both.child.kill();
    let late = call(&link, PATIENCE).unwrap_err();
    assert!(matches!(late, NetError::TimedOut { .. }), "{late}");
    let anew = both.at.call(&both.mine.service, PATIENCE).unwrap_err();
    assert!(matches!(anew, NetError::TimedOut { .. }), "{anew}");
}
