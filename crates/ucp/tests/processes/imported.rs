//! A DPU that moves bytes between a host's memory and a peer's: three processes, by every pair of transports.

use testkit::{Role, role};
use ucp::{AccessError, ImportedRegion, ImportedSlice, OpError, OperandReason, Status, TransferError};

use super::roles::{Actor, Answer, BY_DEVICE, FILL, NEARBY, REMOTE, context_by, words_of_gone};
use super::transports;

/// By which transports the DPU reaches the host, and the peer.
const PAIRS: [(&str, &str); 4] = if BY_DEVICE {
    [(NEARBY, NEARBY), (REMOTE, REMOTE), (NEARBY, REMOTE), (REMOTE, NEARBY)]
} else {
    [("mm", "mm"), ("cma", "cma"), ("mm", "cma"), ("cma", "mm")]
};

/// Bytes of either: of two by `cma` so many that one thread reads while another one writes.
fn len_of(pair: (&str, &str)) -> usize {
    if pair == ("cma", "cma") { 9 << 20 } else { 3 << 20 }
}

fn failed(failed: &OpError<ImportedSlice>) -> String {
    let side = match &failed.error {
        TransferError::Access(AccessError::Operand { why: OperandReason::Stale(_), .. }) => "operand",
        TransferError::Access(AccessError::Stale { .. }) => "target",
        other => panic!("{other}"),
    };
    format!("err:{:?}:{side}:{failed}", failed.status())
}

/// A DPU: imports two handles by `args[0]` and `args[1]`, then moves parts of the first's memory to the second's, or back.
pub fn mover() {
    let [host_by, peer_by] = role::args() else { panic!("two lists of transports") };
    let host: ImportedRegion = context_by(host_by).mem_import(&role::recv()).unwrap();
    let peer: ImportedRegion = context_by(peer_by).mem_import(&role::recv()).unwrap();
    role::send(format!("ok:{} {}", host.transport(), peer.transport()).as_bytes());
    while let Some(command) = role::try_recv() {
        let command = String::from_utf8(command).unwrap();
        let mut words = command.split(' ');
        let what = words.next().unwrap();
        let mut number = || words.next().unwrap().parse::<u64>().unwrap();
        let answer = match what {
            "put" | "get" => {
                let (at, len, to) = (number(), number(), number());
                let slice = host.slice(at..at + len).unwrap();
                let moved = if what == "put" { peer.put(to, slice) } else { peer.get(to, slice) };
                moved.map_or_else(
                    |error| failed(&error),
                    |slice| {
                        assert_eq!(slice.range(), at..at + len, "the operand comes back");
                        "ok:".to_owned()
                    },
                )
            }
            // Again and again, until one side has gone; both ways.
            "hammer" => {
                role::send(b"ok:inside");
                let mut slice = host.slice(..).unwrap();
                loop {
                    match peer.put(0, slice).and_then(|slice| peer.get(0, slice)) {
                        Ok(back) => slice = back,
                        Err(error) => {
                            assert_eq!(error.operand.len(), host.len(), "also from a failure");
                            break failed(&error);
                        }
                    }
                }
            }
            "lives" => format!("ok:{} {}", host.check().is_ok(), peer.check().is_ok()),
            other => panic!("unknown command {other}"),
        };
        role::send(answer.as_bytes());
    }
}

struct Three {
    host: Actor,
    peer: Actor,
    dpu: Actor,
    len: usize,
}

impl Three {
    fn by(pair: (&str, &str)) -> Self {
        let ((host_by, peer_by), len) = (pair, len_of(pair));
        let (mut host, mut peer) = (Actor::host(len), Actor::host(len));
        peer.write(0, &vec![1; len]).ok();
        let mut dpu = Actor(Role::new("imported::mover").arg(host_by).arg(peer_by).start());
        dpu.0.send(&host.export());
        let transport = |way| if way == "mm" { "shm" } else { transports::name(way) };
        let expected = format!("{} {}", transport(host_by), transport(peer_by));
        assert_eq!(Answer::parse(&dpu.0.request(&peer.export())).text(), expected);
        Self { host, peer, dpu, len }
    }

    /// Has the DPU begin, and be in the midst of it.
    fn hammer(&mut self) {
        assert_eq!(self.dpu.ask("hammer").text(), "inside");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }

    /// What the DPU says in the end, of which side.
    fn verdict(&mut self, side: &str) -> String {
        let text = Answer::parse(&self.dpu.0.recv()).err(Status::Stale);
        text.strip_prefix(&format!("{side}:")).unwrap_or_else(|| panic!("{side}: {text}")).to_owned()
    }
}

pub fn from_host_to_peer_and_back() {
    for pair in PAIRS {
        let Three { mut host, mut peer, mut dpu, len } = Three::by(pair);
        host.write(1000, b"from the host").ok();
        dpu.ask(&format!("put 3 {} 1", len - 3)).ok();
        assert_eq!(peer.read(0, 2).ok(), [1, FILL], "{pair:?}");
        assert_eq!(peer.read(998, 13).ok(), b"from the host", "{pair:?}");
        assert_eq!(peer.read(len as u64 - 3, 3).ok(), [FILL, 1, 1], "{pair:?}");
        peer.write(70_000, b"from the peer").ok();
        dpu.ask("get 1 300000 7").ok();
        assert_eq!(host.read(69_994, 13).ok(), b"from the peer", "{pair:?}");
        // Neither of them takes part.
        host.0.stop();
        peer.0.stop();
        dpu.ask(&format!("put 0 {len} 0")).ok();
        dpu.ask("get 100 8 200").ok();
        host.0.cont();
        peer.0.cont();
        assert_eq!(peer.read(69_994, 13).ok(), b"from the peer", "{pair:?}");
    }
}

pub fn host_is_killed_in_mid_transfer() {
    for pair in PAIRS {
        for _ in 0..2 {
            let mut three = Three::by(pair);
            three.hammer();
            three.host.0.kill();
            let text = three.verdict("operand");
            assert!(text.starts_with("the operand could not be used after "), "{pair:?}: {text}");
            assert!(
                text.ends_with(&format!(": it is imported, and {}", words_of_gone(pair.0))),
                "{pair:?}: {text}"
            );
            assert_eq!(three.dpu.ask("lives").text(), "false true");
            // What lies there is the host's, or what was there before.
            let seen = three.peer.read(0, three.len).ok();
            assert!(seen.iter().all(|byte| [1, FILL].contains(byte)), "{pair:?}");
        }
    }
}

pub fn peer_is_killed_in_mid_transfer() {
    for pair in PAIRS {
        let mut three = Three::by(pair);
        three.hammer();
        three.peer.0.kill();
        let text = three.verdict("target");
        assert!(text.starts_with("stale after ") && text.ends_with(words_of_gone(pair.1)), "{text}");
        assert_eq!(three.dpu.ask("lives").text(), "true false");
        let seen = three.host.read(0, three.len).ok();
        assert!(seen.iter().all(|byte| *byte == FILL), "{pair:?}: it got its own bytes back");
    }
}

/// The host takes its memory back while it is moved: from then on it is the host's alone.
pub fn host_revokes_in_mid_transfer() {
    for pair in PAIRS {
        let mut three = Three::by(pair);
        three.hammer();
        three.host.ask("revoke 0").ok();
        three.host.write(0, &vec![0x77; three.len]).ok();
        let text = three.verdict("operand");
        assert!(text.ends_with(": it is imported, and the export was revoked or dropped"), "{text}");
        assert!(three.host.read(0, three.len).ok().iter().all(|byte| *byte == 0x77), "{pair:?}");
        let text = three.dpu.ask("put 0 8 0").err(Status::Stale);
        assert!(text.starts_with("operand:the operand could not be used after 0 bytes"), "{text}");
    }
}
