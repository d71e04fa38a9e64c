//! The stream of the side that connects.

use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, Shutdown, connect, recv, send, shutdown, sockopt};
use ucs::Status;
use ucs::mem::MemError;
use ucs::time::Deadline;

use super::error::NetError;
use super::links::NetCall;
use super::socket;
use super::wire::{
    Call, DecodeError, Greeting, HEADER_LEN, Hello, MAC_LEN, MAX_BODY, MAX_SUBJECT, Reply, Verdict,
    WELCOME_LEN, Welcome,
};

/// Longest wait asked of the kernel at once.
const LONG: Duration = Duration::from_secs(3600);

/// A connection on which both sides have said hello.
#[derive(Debug)]
pub(super) struct Stream {
    pub(super) socket: Arc<OwnedFd>,
    pub(super) peer: SocketAddr,
    greeting: Greeting,
    sequence: u32,
    /// Answers that nobody waits for, and that have not been taken.
    untaken: usize,
    /// The part of one that has come.
    input: Vec<u8>,
    /// A part of a call has gone, and the rest has not.
    is_broken: bool,
}

/// Most of these: more than a peer that answers lets come about.
const MAX_UNTAKEN: usize = 256;

impl Stream {
    /// Connects to the context with this uuid, if it is there.
    pub(super) fn open(uuid: &[u8; 16], peer: SocketAddr, deadline: &Deadline) -> Result<Self, NetError> {
        let socket = socket::socket(&peer).map_err(|errno| MemError::of("socket", errno, 0))?;
        let failed = |errno| NetError::Connect { address: peer, errno };
        socket::prepare(socket.as_fd()).map_err(failed)?;
        let client = socket::nonce().map_err(|errno| MemError::of("getrandom", errno, 0))?;
        let greeting = Greeting { uuid: *uuid, server: [0; 16], client };
        let mut stream = Self {
            socket: Arc::new(socket),
            peer,
            greeting,
            sequence: 0,
            untaken: 0,
            input: Vec::new(),
            is_broken: false,
        };
        match connect(&*stream.socket, &peer) {
            Ok(()) => {}
            Err(Errno::INPROGRESS | Errno::INTR) => {
                stream.wait(PollFlags::OUT, deadline)?;
                sockopt::socket_error(&*stream.socket).map_err(failed)?.map_err(failed)?;
            }
            Err(errno) => return Err(failed(errno)),
        }
        let bad = |error| NetError::BadReply { address: peer, error };
        let mut welcome = [0; WELCOME_LEN];
        stream.read(&mut welcome, deadline)?;
        stream.greeting.server = Welcome::decode(&welcome).map_err(bad)?.nonce;
        stream.write(&Hello { uuid: *uuid, nonce: client }.encode(), deadline)?;
        let answer = stream.answer(deadline)?;
        match Reply::decode(&answer).map_err(bad)? {
            Reply { sequence: 0, verdict: Verdict::Ready, .. } => Ok(stream),
            Reply { sequence: 0, verdict: Verdict::OtherContext, .. } => {
                Err(NetError::OtherContext { address: peer })
            }
            _ => Err(bad(DecodeError::Unknown("verdict"))),
        }
    }

    /// Whether the other side has sent its end already, or something that nobody asked for: no call will be answered.
    fn has_ended(&self) -> bool {
        let mut byte = [0; 1];
        match recv(&*self.socket, &mut byte, RecvFlags::DONTWAIT | RecvFlags::PEEK) {
            Ok((_, 1..)) => self.untaken == 0,
            Err(Errno::AGAIN | Errno::INTR) => false,
            _ => true,
        }
    }

    /// Calls, and waits for the answer. [`NetError::Closed`]: not all of the call was sent, so it was not taken. Other errors that
    /// do not come from the peer leave that open.
    pub(super) fn call(&mut self, call: &NetCall<'_>, deadline: &Deadline) -> Result<Vec<u8>, NetError> {
        let (token, address) = (call.token, self.peer);
        while self.untaken >= MAX_UNTAKEN {
            self.take_one(deadline)?;
        }
        let (call_mac, bytes) = self.next(call)?;
        let sequence = self.sequence;
        self.is_broken = true;
        self.write(&bytes, deadline)?;
        self.is_broken = false;
        self.untaken += 1;
        let bad = |error| NetError::BadReply { address, error };
        // It may have been taken: never again as one that was not.
        let unanswered = |error| match error {
            NetError::Closed { address } => NetError::Unanswered { address },
            error => error,
        };
        while self.untaken > 1 {
            self.take_one(deadline).map_err(unanswered)?;
        }
        let answer = self.take_one(deadline).map_err(unanswered)?;
        let reply = Reply::decode(&answer).map_err(bad)?;
        if reply.sequence != sequence {
            return Err(bad(DecodeError::Unknown("sequence number")));
        }
        match reply.verdict {
            Verdict::Answered(_) | Verdict::Stale
                if !self.greeting.is_reply_proven(token, &call_mac, &reply) =>
            {
                Err(NetError::Unproven { address })
            }
            Verdict::Answered(Status::Ok) => Ok(reply.content.to_vec()),
            Verdict::Answered(status) => Err(NetError::Refused { address, status }),
            Verdict::Stale => Err(NetError::Stale { address }),
            Verdict::Denied => Err(NetError::Denied { address }),
            Verdict::Unknown => Err(NetError::Unknown { address }),
            Verdict::Ready | Verdict::OtherContext => Err(bad(DecodeError::Unknown("verdict"))),
        }
    }

    /// Calls, and waits for nothing: whatever the answer is, it is taken before the next one. `false`: that cannot be done now, and nothing
    /// is sent.
    pub(super) fn tell(&mut self, call: &NetCall<'_>) -> Result<bool, NetError> {
        // What has been answered meanwhile makes room.
        let now = Deadline::after(Duration::ZERO);
        while self.untaken >= MAX_UNTAKEN {
            match self.take_one(&now) {
                Ok(_) => {}
                Err(NetError::TimedOut { .. }) => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        let before = self.sequence;
        let (_, bytes) = self.next(call)?;
        match send(&*self.socket, &bytes, SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
            Ok(sent) if sent == bytes.len() => {
                self.untaken += 1;
                Ok(true)
            }
            Err(Errno::AGAIN | Errno::INTR) => {
                self.sequence = before;
                Ok(false)
            }
            _ => Err(NetError::Closed { address: self.peer }),
        }
    }

    /// The next call, and its proof.
    fn next(&mut self, call: &NetCall<'_>) -> Result<([u8; MAC_LEN], Vec<u8>), NetError> {
        let NetCall { kind, subject, token, request } = *call;
        let closed = NetError::Closed { address: self.peer };
        // A number is used once: after the last there is none.
        let Some(sequence) = self.sequence.checked_add(1) else { return Err(closed) };
        let mut message = Call { sequence, kind, subject, request, mac: [0; MAC_LEN] };
        self.greeting.prove(token, &mut message);
        let bytes = message.encode().map_err(|_| too_long(call))?;
        if self.has_ended() {
            return Err(closed);
        }
        self.sequence = sequence;
        Ok((message.mac, bytes))
    }

    /// Ends it for all who have it open, a fork's child included.
    pub(super) fn shut_down(&self) {
        let _ = shutdown(&*self.socket, Shutdown::Both);
    }

    fn wait(&self, events: PollFlags, deadline: &Deadline) -> Result<(), NetError> {
        let late = || NetError::TimedOut { address: self.peer, waited: deadline.elapsed() };
        loop {
            let left = deadline.left().ok_or_else(late)?.min(LONG);
            let mut fds = [PollFd::new(&*self.socket, events)];
            match poll(&mut fds, Some(&Timespec::try_from(left).map_err(|_| late())?)) {
                Ok(0) | Err(Errno::INTR) => {}
                Ok(_) => return Ok(()),
                Err(errno) => return Err(MemError::of("poll", errno, 0).into()),
            }
        }
    }

    fn write(&self, mut bytes: &[u8], deadline: &Deadline) -> Result<(), NetError> {
        while !bytes.is_empty() {
            match send(&*self.socket, bytes, SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
                Ok(sent) => bytes = bytes.get(sent..).unwrap_or_default(),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => self.wait(PollFlags::OUT, deadline)?,
                Err(_) => return Err(NetError::Closed { address: self.peer }),
            }
        }
        Ok(())
    }

    fn read(&self, mut bytes: &mut [u8], deadline: &Deadline) -> Result<(), NetError> {
        while !bytes.is_empty() {
            let received = self.read_some(bytes, deadline)?;
            bytes = bytes.get_mut(received..).unwrap_or_default();
        }
        Ok(())
    }

    /// Waits for one byte at least.
    fn read_some(&self, bytes: &mut [u8], deadline: &Deadline) -> Result<usize, NetError> {
        loop {
            match recv(&*self.socket, &mut *bytes, RecvFlags::DONTWAIT) {
                Ok((_, 0)) => return Err(NetError::Closed { address: self.peer }),
                Ok((_, received)) => return Ok(received),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => self.wait(PollFlags::IN, deadline)?,
                Err(_) => return Err(NetError::Closed { address: self.peer }),
            }
        }
    }

    /// The next answer to a call. Where it does not come in time, the part that has come is kept.
    fn take_one(&mut self, deadline: &Deadline) -> Result<Vec<u8>, NetError> {
        let answer = self.answer(deadline)?;
        self.untaken -= 1;
        Ok(answer)
    }

    fn answer(&mut self, deadline: &Deadline) -> Result<Vec<u8>, NetError> {
        let bad = |error| NetError::BadReply { address: self.peer, error };
        loop {
            let needed = match self.input.get(..HEADER_LEN) {
                None => HEADER_LEN,
                Some(header) => Reply::frame_len(header).map_err(bad)?,
            };
            if self.input.len() >= needed.max(HEADER_LEN) {
                return Ok(std::mem::take(&mut self.input));
            }
            let mut bytes = vec![0; needed - self.input.len()];
            let received = self.read_some(&mut bytes, deadline)?;
            self.input.extend_from_slice(bytes.get(..received).unwrap_or_default());
        }
    }

    /// Whether nothing that is sent on it would be understood.
    pub(super) fn is_broken(&self) -> bool {
        self.is_broken
    }
}

fn too_long(call: &NetCall<'_>) -> NetError {
    if call.subject.len() > MAX_SUBJECT {
        NetError::TooLong { what: "subject", found: call.subject.len(), most: MAX_SUBJECT }
    } else {
        NetError::TooLong { what: "request", found: call.request.len(), most: MAX_BODY }
    }
}
