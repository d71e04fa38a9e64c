//! Gives the handle to each who connects. Nobody can keep others waiting: nothing in here blocks.

use std::io::{self, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::net::{SocketFlags, accept_with};

use super::place::Place;

/// How long a peer may take to read the handle.
const PATIENCE: Duration = Duration::from_secs(1);
/// How many may be reading it; others wait until one of these has it, or is dropped.
const MOST: usize = 64;
/// How long not to accept when this process has no descriptors left.
const PAUSE: Duration = Duration::from_millis(100);

/// Those who are being given the handle.
#[derive(Debug)]
pub(super) struct Server<'a> {
    place: &'a Place,
    bytes: &'a [u8],
    peers: Vec<Peer>,
    paused: Option<Instant>,
    given: u64,
}

#[derive(Debug)]
struct Peer {
    stream: UnixStream,
    sent: usize,
    until: Instant,
}

impl<'a> Server<'a> {
    /// `place` is a socket that listens, and `bytes` is what everybody is given.
    pub(super) fn new(place: &'a Place, bytes: &'a [u8]) -> Self {
        Self { place, bytes, peers: Vec::new(), paused: None, given: 0 }
    }

    /// How many have been given it.
    pub(super) fn given(&self) -> u64 {
        self.given
    }

    /// What it waits for.
    pub(super) fn waits_for<'b>(&'b self, fds: &mut Vec<PollFd<'b>>) {
        if self.peers.len() < MOST && self.paused.is_none() {
            fds.push(PollFd::new(self.place, PollFlags::IN));
        }
        fds.extend(self.peers.iter().map(|peer| PollFd::new(&peer.stream, PollFlags::OUT)));
    }

    /// When it has something to do even if nothing happens.
    pub(super) fn next(&self) -> Option<Instant> {
        self.peers.iter().map(|peer| peer.until).chain(self.paused).min()
    }

    /// Does what can be done now.
    pub(super) fn go_on(&mut self) {
        let now = Instant::now();
        if self.paused.is_some_and(|until| now >= until) {
            self.paused = None;
        }
        while self.peers.len() < MOST && self.paused.is_none() {
            match accept_with(self.place, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
                Ok(socket) => {
                    let stream = UnixStream::from(socket);
                    self.peers.push(Peer { stream, sent: 0, until: now + PATIENCE });
                }
                Err(Errno::AGAIN) => break,
                Err(Errno::INTR | Errno::CONNABORTED) => {}
                Err(error) => {
                    tracing::warn!(%error, "nobody can be given the handle for a while");
                    self.paused = Some(now + PAUSE);
                }
            }
        }
        let (bytes, given) = (self.bytes, &mut self.given);
        self.peers.retain_mut(|peer| match peer.send(bytes) {
            Ok(true) => {
                *given += 1;
                false
            }
            Ok(false) if now >= peer.until => {
                tracing::warn!("somebody connected, and has not read the handle within {PATIENCE:?}");
                false
            }
            Ok(false) => true,
            Err(error) => {
                tracing::info!(%error, "somebody connected, and went without the handle");
                false
            }
        });
    }
}

impl Peer {
    /// Sends as much as is taken at once; whether that was all.
    fn send(&mut self, bytes: &[u8]) -> io::Result<bool> {
        while let Some(rest) = bytes.get(self.sent..).filter(|rest| !rest.is_empty()) {
            match self.stream.write(rest) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(sent) => self.sent += sent,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::Read;
    use std::thread;

    use super::*;

    #[test]
    fn who_does_not_read_is_dropped_and_keeps_nobody_waiting() {
        let path = std::env::temp_dir().join(format!("rucx-serve-{}", std::process::id()));
        let place = Place::socket(&path).unwrap();
        // More than the kernel keeps for a peer that does not read.
        let bytes: Vec<u8> = (0..4_u32 << 20).map(|n| n.to_le_bytes()[0]).collect();
        let mut server = Server::new(&place, &bytes);
        let begin = Instant::now();
        let silent = UnixStream::connect(&path).unwrap();
        drop(UnixStream::connect(&path).unwrap());
        let reader = thread::spawn({
            let path = path.clone();
            move || {
                let mut got = Vec::new();
                UnixStream::connect(path).unwrap().read_to_end(&mut got).unwrap();
                (got, begin.elapsed())
            }
        });
        while server.given() == 0 || server.next().is_some() {
            server.go_on();
            assert!(begin.elapsed() < Duration::from_secs(30));
            thread::sleep(Duration::from_millis(1));
        }
        let (got, took) = reader.join().unwrap();
        assert!(got == bytes && begin.elapsed() >= PATIENCE, "{took:?} {:?}", begin.elapsed());
        assert_eq!(server.given(), 1);
        let mut got = Vec::new();
        (&silent).read_to_end(&mut got).unwrap();
        assert!(!got.is_empty() && got.len() < bytes.len(), "{} of {}", got.len(), bytes.len());
        drop(place);
        assert!(fs::symlink_metadata(&path).is_err());
    }
}
