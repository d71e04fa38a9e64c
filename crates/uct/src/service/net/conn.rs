//! One peer's connection, on the side that answers.

use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Weak};
use std::time::Instant;

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, Shutdown, recv, send, shutdown};
use ucs::Status;

use super::wire::{Call, Greeting, HEADER_LEN, HELLO_LEN, Hello, MAX_BODY, Reply, Verdict, Welcome};
use super::{ConnId, Responder, Responders, Secret};

/// Calls that are refused, on a connection that has proven nothing; then it is closed. One that has is not: its end would be
/// that of all who share it on the other side, and a token is not found by trying.
pub const MAX_FAILURES: u32 = 8;
/// Calls answered before others get their turn.
const AT_ONCE: usize = 8;

/// A connection.
#[derive(Debug)]
pub(super) struct Conn {
    socket: OwnedFd,
    id: ConnId,
    pub(super) address: IpAddr,
    pub(super) since: Instant,
    /// Whether it has proven to have a token.
    pub(super) proven: bool,
    greeting: Greeting,
    is_greeted: bool,
    sequence: u32,
    failures: u32,
    /// The part of a message that has come: never more than one message.
    input: Vec<u8>,
    /// The part of an answer that has not gone: nothing more is read before it has.
    output: Vec<u8>,
    /// Closed once its answer has gone.
    is_last: bool,
    /// Who has been called on it, to be told of its end.
    called: Vec<(u16, Weak<dyn Responder>)>,
}

/// What is waited for next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    Read,
    Write,
    Close,
}

impl Conn {
    pub(super) fn new(socket: OwnedFd, id: ConnId, address: IpAddr, uuid: [u8; 16], nonce: [u8; 16]) -> Self {
        Self {
            socket,
            id,
            address,
            since: Instant::now(),
            proven: false,
            greeting: Greeting { uuid, server: nonce, client: [0; 16] },
            is_greeted: false,
            sequence: 0,
            failures: 0,
            input: Vec::new(),
            output: Welcome { nonce }.encode().to_vec(),
            is_last: false,
            called: Vec::new(),
        }
    }

    /// Goes on as far as it can without waiting.
    pub(super) fn step(&mut self, responders: &Responders) -> Next {
        for _ in 0..AT_ONCE {
            match self.flush() {
                Ok(true) if self.is_last => return Next::Close,
                Ok(true) => {}
                Ok(false) => return Next::Write,
                Err(_) => return Next::Close,
            }
            match self.fill() {
                Ok(true) => {}
                Ok(false) => return Next::Read,
                Err(()) => return Next::Close,
            }
            let input = std::mem::take(&mut self.input);
            // A responder's last reference may be dropped there, which may panic, too.
            if guarded(|| self.take(&input, responders)).flatten().is_none() {
                return Next::Close;
            }
        }
        if self.output.is_empty() { Next::Read } else { Next::Write }
    }

    /// Whether all has gone.
    fn flush(&mut self) -> Result<bool, Errno> {
        while !self.output.is_empty() {
            match send(&self.socket, &self.output, SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
                Ok(sent) => drop(self.output.drain(..sent.min(self.output.len()))),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(false),
                Err(errno) => return Err(errno),
            }
        }
        Ok(true)
    }

    /// Whether a whole message has come. An error: none ever will.
    fn fill(&mut self) -> Result<bool, ()> {
        loop {
            let needed = self.needed()?;
            if self.input.len() >= needed {
                return Ok(true);
            }
            let mut bytes = [0; super::wire::MAX_FRAME];
            let room = bytes.get_mut(..needed - self.input.len()).ok_or(())?;
            match recv(&self.socket, room, RecvFlags::DONTWAIT) {
                Ok((_, 0)) => return Err(()),
                Ok((_, received)) => self.input.extend_from_slice(bytes.get(..received).ok_or(())?),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(false),
                Err(_) => return Err(()),
            }
        }
    }

    /// Bytes of the message that is coming, as far as that is known.
    fn needed(&self) -> Result<usize, ()> {
        match self.input.get(..HEADER_LEN) {
            _ if !self.is_greeted => Ok(HELLO_LEN),
            None => Ok(HEADER_LEN),
            Some(header) => Call::frame_len(header).map_err(drop),
        }
    }

    /// Answers a message. `None`: it is none.
    fn take(&mut self, input: &[u8], responders: &Responders) -> Option<()> {
        if !self.is_greeted {
            let hello = Hello::decode(input).ok()?;
            self.greeting.client = hello.nonce;
            self.is_greeted = true;
            let is_mine = hello.uuid == self.greeting.uuid;
            self.is_last = !is_mine;
            let verdict = if is_mine { Verdict::Ready } else { Verdict::OtherContext };
            return self.say(&Reply::without(0, verdict));
        }
        let call = Call::decode(input).ok()?;
        // One that came before, or out of its order, ends the connection: its proof is of that place alone.
        if call.sequence == 0 || call.sequence != self.sequence.wrapping_add(1) {
            return None;
        }
        self.sequence = call.sequence;
        let Some(responder) = responders.find(call.kind) else { return self.refuse(&call, Verdict::Unknown) };
        let secret = guarded(|| responder.secret(call.subject)).unwrap_or(Secret::Unknown);
        let (token, is_live) = match secret {
            Secret::Live(token) => (token, true),
            Secret::Ended(token) => (token, false),
            Secret::Unknown => return self.refuse(&call, Verdict::Unknown),
        };
        if !self.greeting.is_proven(&token, &call) {
            return self.refuse(&call, Verdict::Denied);
        }
        if !is_live {
            let mut reply = Reply::without(call.sequence, Verdict::Stale);
            self.greeting.prove_reply(&token, &call.mac, &mut reply);
            return self.say(&reply);
        }
        self.proven = true;
        // Registered anew, a kind has another responder: each that was called is told.
        let told = Arc::downgrade(&responder);
        if !self.called.iter().any(|(kind, one)| *kind == call.kind && Weak::ptr_eq(one, &told)) {
            self.called.push((call.kind, told));
        }
        let answer = guarded(|| responder.call(self.id, call.subject, call.request));
        let answer = answer.unwrap_or(Err(Status::IoError));
        let (status, content) = match &answer {
            Ok(content) if content.len() <= MAX_BODY => (Status::Ok, content.as_slice()),
            Ok(_) | Err(Status::Ok) => (Status::IoError, [].as_slice()),
            Err(status) => (*status, [].as_slice()),
        };
        let mut reply = Reply { content, ..Reply::without(call.sequence, Verdict::Answered(status)) };
        self.greeting.prove_reply(&token, &call.mac, &mut reply);
        self.say(&reply)
    }

    fn refuse(&mut self, call: &Call<'_>, verdict: Verdict) -> Option<()> {
        self.failures = self.failures.saturating_add(1);
        self.is_last = !self.proven && self.failures >= MAX_FAILURES;
        self.say(&Reply::without(call.sequence, verdict))
    }

    fn say(&mut self, reply: &Reply<'_>) -> Option<()> {
        self.output = reply.encode().ok()?;
        Some(())
    }

    /// Ends it for all who have it open, a fork's child included, and tells who was called on it.
    pub(super) fn end(self) {
        let _ = shutdown(&self.socket, Shutdown::Both);
        for (_, responder) in self.called {
            if let Some(responder) = responder.upgrade() {
                let _ = guarded(move || responder.ended(self.id));
            }
        }
    }
}

/// What a responder does, which may panic: the service thread goes on for all others.
fn guarded<T>(act: impl FnOnce() -> T) -> Option<T> {
    let done = catch_unwind(AssertUnwindSafe(act));
    if done.is_err() {
        tracing::error!("who answers peers of other machines has panicked");
    }
    done.ok()
}

impl AsFd for Conn {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
