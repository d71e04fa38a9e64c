//! Peers that were let in, and then write into the memory they share with us, and send, whatever they like.

use std::sync::atomic::{AtomicBool, Ordering};

use std::num::NonZeroU64;
use testkit::{Rng, Role};
use ucp::wire::am::{Kind, Message, Pair, Rts};
use ucs::mem::{Mapping, Memfd};
use uct::ring::{Consumer, Producer, ring_len};

use super::victim::{EAGER, TAKE, TALK};
use super::workers::{connect_to_worker, ends_soon, genuine, introduction, say, shared_len, shm_part};
use super::*;

const LINES: u32 = 2048;

/// A peer that has introduced itself.
struct Peer {
    socket: OwnedFd,
    memory: Arc<Mapping>,
    sends: Producer,
    receives: Consumer,
    /// Numbers of the victim's: of what it has announced, and of what it has asked for.
    announced: Vec<u32>,
    asked: Vec<u32>,
}

impl Peer {
    fn new(address: &[u8]) -> Self {
        let to = shm_part(address);
        let socket = connect_to_worker(&to);
        let (file, memory) = Memfd::create("rucx-rings", shared_len(), false).unwrap();
        let fd = file.as_fd().try_clone_to_owned().unwrap();
        assert_eq!(say(&socket, &introduction(&to).encode(), &[fd]), Some(Verdict::Granted));
        let memory = Arc::new(memory);
        let sends = Producer::new(Arc::clone(&memory), 0, LINES).unwrap();
        let receives = Consumer::new(Arc::clone(&memory), ring_len(LINES), LINES).unwrap();
        let peer = Self { socket, memory, sends, receives, announced: Vec::new(), asked: Vec::new() };
        // Its memory may be read: so the victim tries that at whatever addresses it is told.
        let address = peer.memory.bytes().as_ptr().addr() as u64;
        peer.store(2 * ring_len(LINES), address);
        peer
    }

    /// One that the victim talks to from now on.
    fn talked_to(victim: &mut Actor, address: &[u8]) -> Self {
        let mut peer = Self::new(address);
        assert!(peer.send(Kind::Eager.tag(TALK), b"talk"));
        while victim.ask("peers").text() == "0" {
            victim.ask("work 1 0").ok();
        }
        peer
    }

    fn send(&mut self, tag: u32, bytes: &[u8]) -> bool {
        let Some(mut message) = self.sends.begin(bytes.len()) else { return false };
        message.write(0, bytes);
        message.publish(tag);
        let _ = send(&self.socket, &[1], SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
        true
    }

    fn say(&mut self, message: &Message<'_>) -> bool {
        let (tag, bytes) = message.encode();
        self.send(tag, &bytes)
    }

    /// Takes what has come, and notes its numbers.
    fn take(&mut self) {
        while let Ok(Some(message)) = self.receives.receive() {
            let (tag, mut bytes) = (message.tag(), vec![0; message.len()]);
            message.read(0, &mut bytes).unwrap();
            drop(message);
            let message = Message::decode(tag, &bytes);
            match message.unwrap_or_else(|_| panic!("the victim sends {tag:#x} {bytes:x?}")) {
                Message::Announced(_, rts, _) => self.announced.push(rts.request),
                Message::Control(Kind::Cts, Pair(_, receive), _) => self.asked.push(receive),
                _ => {}
            }
        }
    }

    fn store(&self, offset: usize, value: u64) {
        self.memory.bytes().store(offset as u64, value).unwrap();
    }

    /// One change, at random.
    fn scribble(&self, rng: &mut Rng) {
        let whole = shared_len();
        let mut bytes = [0; 256];
        match rng.below(16) {
            // Bytes anywhere.
            0..=3 => {
                let len = 1 + rng.below(bytes.len());
                if rng.below(3) > 0 {
                    rng.fill(&mut bytes[..len]);
                }
                self.memory.bytes().write(rng.below(whole - len) as u64, &bytes[..len]).unwrap();
            }
            // A position, who sleeps, or what both know each other by.
            4..=6 => {
                let channel = 2 * ring_len(LINES);
                let at = [0, 64, ring_len(LINES), ring_len(LINES) + 64, channel, channel + 8, channel + 16];
                let at = at[rng.below(7)];
                self.store(at, number(rng));
            }
            // What looks like a header, at the beginning of a line.
            7..=11 => {
                let kind = [1, 1, 1, 2, 3][rng.below(5)];
                let tag = u64::from(Kind::Eager.tag(0)) | (rng.below(9) as u64) << 16 | rng.below(3) as u64;
                let len = [0, 8, 56, 100, 5000, 32_704, 1 << 31][rng.below(7)];
                let ring = [0, ring_len(LINES)][rng.below(2)];
                self.store(ring + 64 * (2 + rng.below(LINES as usize)), kind << 56 | tag << 32 | len);
            }
            12 => {
                let mut all = vec![0; whole];
                if rng.below(2) == 0 {
                    rng.fill(&mut all);
                }
                self.memory.bytes().write(0, &all).unwrap();
            }
            13 => {
                let fds = if rng.below(4) == 0 { vec![memfd(1, SEALS)] } else { Vec::new() };
                let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
                let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
                let mut control = SendAncillaryBuffer::new(&mut space);
                assert!(fds.is_empty() || control.push(SendAncillaryMessage::ScmRights(&fds)));
                let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
                let _ = sendmsg(&self.socket, &[IoSlice::new(&bytes[..rng.below(90)])], &mut control, flags);
            }
            _ => thread::sleep(Duration::from_micros(rng.below(500) as u64)),
        }
    }
}

/// Numbers near those at which something changes, and any.
fn number(rng: &mut Rng) -> u64 {
    match rng.below(6) {
        0 => 0,
        1 => u64::MAX - rng.below(3) as u64,
        2 => rng.below(5000) as u64,
        3 => 1 << rng.below(64),
        _ => rng.next_u64(),
    }
}

fn small(rng: &mut Rng) -> u32 {
    u32::try_from(number(rng) & 0xffff_ffff).unwrap()
}

/// A seed that is not 0, by which the victim would only listen.
fn seed_of(rng: &mut Rng) -> u64 {
    rng.next_u64() | 1
}

fn resident(victim: &mut Actor) -> usize {
    victim.ask("rss").text().parse().unwrap()
}

/// Every peer that was talked to is told of once, and for a reason that is true.
fn check_errors(text: &str, round: u64) {
    let errors = text.split_once(' ').map_or("", |(_, errors)| errors);
    assert!(
        errors.split(' ').all(|error| error.is_empty() || ["Peer(Corrupt)", "Peer(Closed)"].contains(&error)),
        "round {round}: {text}"
    );
}

pub fn peers_that_scribble_over_their_rings() {
    let mut victim = Actor(Role::spawn("hostile::victim"));
    let address = victim.ask("address").ok();
    let (mut before, mut corrupt) = (0, 0);
    for round in 0..60 {
        let mut rng = Rng::new(testkit::seed() ^ round);
        let peer = if round % 4 == 3 { Peer::new(&address) } else { Peer::talked_to(&mut victim, &address) };
        victim.ask("work 2 0").ok();
        let stop = AtomicBool::new(false);
        let peer = thread::scope(|scope| {
            let (stop, mut its) = (&stop, Rng::new(rng.next_u64()));
            let scribbler = scope.spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    peer.scribble(&mut its);
                }
                peer
            });
            victim.ask(&format!("work 30 {}", seed_of(&mut rng))).ok();
            stop.store(true, Ordering::Relaxed);
            scribbler.join().unwrap()
        });
        drop(peer);
        let text = victim.ask("settle").text();
        check_errors(&text, round);
        corrupt += usize::from(text.contains("Corrupt"));
        if round == 10 {
            before = resident(&mut victim);
        }
    }
    assert!(corrupt > 10, "{corrupt} rounds were noticed");
    let after = resident(&mut victim);
    assert!(after < before + (64 << 20), "{before} bytes, then {after}");
    genuine(&mut victim, &address);
}

/// A message of any kind: mostly one that could be, sometimes with some byte changed.
fn wild(peer: &Peer, rng: &mut Rng) -> (u32, Vec<u8>) {
    let pick = |known: &[u32], rng: &mut Rng| match known {
        [] => small(rng),
        known if rng.below(4) > 0 => known[rng.below(known.len())],
        _ => small(rng),
    };
    let status = [0, 1, 23, 255, 256][rng.below(5)];
    let (request, receive) = (pick(&peer.announced, rng), pick(&peer.asked, rng));
    let (header, data) = (vec![b'h'; rng.below(200)], vec![b'd'; [0, 1, 100, 20_000][rng.below(4)]]);
    let id = [TAKE, TAKE, TAKE, 0, 9, u16::MAX][rng.below(6)];
    let message = match rng.below(8) {
        0 => Message::Data(id, &[], &data),
        1 => Message::Data(id, &header, &data),
        2 | 3 => {
            let header_len = u16::try_from(header.len()).unwrap();
            let length = [0, 1, 100, 100_000, 1 << 40, u64::MAX][rng.below(6)];
            let address = NonZeroU64::new(
                [0, peer.memory.bytes().as_ptr().addr() as u64, 8, 1 << 46, u64::MAX][rng.below(5)],
            );
            Message::Announced(id, Rts { request: small(rng), header_len, length, address }, &header)
        }
        4 => Message::Control(Kind::Cts, Pair(request, small(rng)), &[]),
        5 => Message::Control(Kind::Data, Pair(receive, 0), &data),
        6 => Message::Control(Kind::Drop, Pair(request, status), &[]),
        _ => Message::Control(Kind::Abort, Pair(receive, status), &[]),
    };
    let (mut tag, mut bytes) = message.encode();
    match rng.below(24) {
        0 => tag = small(rng) & 0xff_ffff,
        1 => tag ^= 1 << rng.below(24),
        2 if !bytes.is_empty() => {
            let at = rng.below(bytes.len().min(20));
            bytes[at] ^= 1 << rng.below(8);
        }
        3 => bytes.truncate(rng.below(20)),
        4 => bytes.extend([0; 9]),
        5 => {
            bytes = vec![0; rng.below(3000)];
            rng.fill(&mut bytes);
        }
        _ => {}
    }
    (tag, bytes)
}

pub fn peers_that_send_whatever_they_like() {
    let mut victim = Actor(Role::spawn("hostile::victim"));
    let address = victim.ask("address").ok();
    let (mut before, mut corrupt) = (0, 0);
    for round in 0..150 {
        let mut rng = Rng::new(testkit::seed().wrapping_add(round));
        let mut peer = Peer::talked_to(&mut victim, &address);
        for _ in 0..10 {
            for _ in 0..rng.below(12) {
                let (tag, bytes) = wild(&peer, &mut rng);
                peer.send(tag, &bytes);
            }
            victim.ask(&format!("work 1 {}", seed_of(&mut rng))).ok();
            if rng.below(4) > 0 {
                peer.take();
            }
        }
        drop(peer);
        let text = victim.ask("settle").text();
        check_errors(&text, round);
        corrupt += usize::from(text.contains("Corrupt"));
        if round == 20 {
            before = resident(&mut victim);
        }
    }
    assert!(corrupt > 50, "{corrupt} rounds were noticed");
    let after = resident(&mut victim);
    assert!(after < before + (64 << 20), "{before} bytes, then {after}");
    genuine(&mut victim, &address);
}

/// What came before is told, then that the peer is none, once; and nothing of its ever after.
pub fn nothing_is_told_after_garbage() {
    let mut victim = Actor(Role::spawn("hostile::victim"));
    let address = victim.ask("address").ok();
    let longer = Rts { request: 1, header_len: 100, length: u64::MAX, address: None };
    let garbage: [(u32, Vec<u8>); 11] = [
        (7 << 16, vec![]),
        (8 << 16, vec![]),
        (0xff_ffff, vec![1; 100]),
        Message::Control(Kind::Cts, Pair(77, 1), &[]).encode(),
        Message::Control(Kind::Data, Pair(77, 0), b"data of nothing").encode(),
        Message::Control(Kind::Data, Pair(77, 0), &[]).encode(),
        Message::Control(Kind::Drop, Pair(77, 0), &[]).encode(),
        Message::Control(Kind::Abort, Pair(77, 0), &[]).encode(),
        (Kind::Header.tag(TAKE), b"\xff\xff a header longer than the message".to_vec()),
        (Kind::Rts.tag(TAKE), longer.encode().as_bytes().to_vec()),
        (Kind::Cts.tag(0), vec![]),
    ];
    for (tag, bytes) in garbage {
        let mut peer = Peer::talked_to(&mut victim, &address);
        assert!(peer.say(&Message::Data(TAKE, &[], b"1")));
        assert!(peer.send(tag, &bytes));
        for _ in 0..40 {
            assert!(peer.say(&Message::Data(TAKE, &[], b"2")));
            assert!(peer.send(tag, &bytes));
        }
        victim.ask("work 2 0").ok();
        for _ in 0..40 {
            assert!(peer.say(&Message::Data(TAKE, &[], b"3")));
        }
        victim.ask("work 2 0").ok();
        assert_eq!(victim.ask("settle").text(), "1! Peer(Corrupt)", "{tag:#x} {bytes:?}");
        assert!(ends_soon(&peer.socket), "it is disconnected");
    }
    genuine(&mut victim, &address);
}

/// A position where no consumer can be: there is no room any more, and what waits for it fails.
pub fn a_position_that_cannot_be_is_told() {
    let mut victim = Actor(Role::spawn("hostile::victim"));
    let address = victim.ask("address").ok();
    for position in [u64::MAX, 1 << 63, 1 << 20] {
        let peer = Peer::talked_to(&mut victim, &address);
        peer.store(ring_len(LINES), position);
        victim.ask(&format!("work 20 {EAGER}")).ok();
        assert_eq!(victim.ask("settle").text(), "! Peer(Corrupt)");
        drop(peer);
    }
    genuine(&mut victim, &address);
}

/// Every line of a ring is a message, and their sender has gone: they are not taken for ever.
pub fn a_ring_that_goes_round_and_round() {
    let mut victim = Actor(Role::spawn("hostile::victim"));
    let address = victim.ask("address").ok();
    let peer = Peer::talked_to(&mut victim, &address);
    let header = 1 << 56 | u64::from(Kind::Eager.tag(TAKE)) << 32 | 8;
    for line in 0..LINES as usize {
        peer.store(64 * (2 + line), header);
    }
    victim.ask("work 20 0").ok();
    drop(peer);
    let text = victim.ask("settle").text();
    assert!(text.ends_with(" Peer(Corrupt)"), "{text}");
    genuine(&mut victim, &address);
}

/// It announces on and on, and takes no answer: what it has coming is bounded.
pub fn announcements_without_end() {
    let mut victim = Actor(Role::spawn("hostile::victim"));
    let address = victim.ask("address").ok();
    let mut peer = Peer::talked_to(&mut victim, &address);
    let before = resident(&mut victim);
    let rts = Rts { request: 1, header_len: 0, length: u64::MAX, address: None };
    let mut sent = 0;
    while victim.ask("errors").text() == "0" {
        while sent < 400_000 && peer.say(&Message::Announced(9, rts, &[])) {
            sent += 1;
        }
        assert!(sent < 400_000, "it is still listened to");
        victim.ask("work 5 0").ok();
    }
    let after = resident(&mut victim);
    assert!(after < before + (64 << 20), "{before} bytes, then {after}");
    assert_eq!(victim.ask("settle").text(), "! Peer(Corrupt)");
    genuine(&mut victim, &address);
}

/// A fork's child has all descriptors, too: peers are told nevertheless that the worker is gone.
pub fn a_worker_dropped_while_a_fork_s_child_lives() {
    let mut victim = Actor(Role::spawn("hostile::victim"));
    let address = victim.ask("address").ok();
    let taken = Peer::talked_to(&mut victim, &address);
    let waiting = Peer::new(&address);
    victim.ask("fork").ok();
    victim.ask("drop").ok();
    assert!(ends_soon(&taken.socket) && ends_soon(&waiting.socket));
}
