//! The importer's side of the service socket.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, IoSlice, IoSliceMut, dup};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, recvmsg, sendmsg,
    socket_with,
};
use ucs::mem::{Limit, MemError};
use ucs::time::Deadline;

use super::wire::{
    DecodeError, Introduction, MAX_FDS, PlacedKeys, Placing, REPLY_LEN, Reply, Request, Verdict,
    encode_unplace,
};
use crate::export::Refusal;
use crate::memory::Rights;
use crate::process::Process;

/// No connection to a service socket, or no answer on it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// Nobody listens under that name in this network namespace, or at that path.
    #[error("nobody listens on the exporter's service socket")]
    Refused,
    /// No file has that path.
    #[error("there is no service socket of the exporter")]
    NotThere,
    /// The address is none a socket can have.
    #[error("the handle holds no usable service address")]
    BadAddress,
    /// No answer in time.
    #[error("no answer on the service socket within {waited:?}")]
    TimedOut {
        /// How long was waited.
        waited: Duration,
    },
    /// The exporter closed the connection: it has too many, or ended.
    #[error("the exporter closed the connection")]
    Closed,
    /// What came is no reply of this protocol.
    #[error("the exporter's reply: {0}")]
    BadReply(#[from] DecodeError),
    /// The reply came without the descriptors it promised.
    #[error("the exporter's reply came with {found} descriptors where {expected} were announced")]
    MissingDescriptors {
        /// Descriptors announced.
        expected: usize,
        /// Descriptors received.
        found: usize,
    },
    /// The exporter has not the means now.
    #[error("the exporter has no room for another importer")]
    NoResource,
    /// The worker has as many connections as it lets come, or as it lets this process have.
    #[error("the peer has as many connections as it lets come, or as one process may have of them")]
    TooMany,
    /// The exporter does not place memory in other processes' protection domains.
    #[error(
        "the exporter registers no memory for other processes: it has no such RDMA device, or is another user's, or has not allowed it"
    )]
    NotPlaced,
    /// The memory has no descriptor to pass.
    #[error("the exporter's memory has no descriptor to pass")]
    NoDescriptor,
    /// The exporter refused.
    #[error(transparent)]
    Denied(Refusal),
    /// A limit of this process.
    #[error(transparent)]
    Mem(#[from] MemError),
    /// A system call failed.
    #[error("{call}: {errno}")]
    Sys {
        /// The system call.
        call: &'static str,
        /// Its error.
        errno: Errno,
    },
}

/// What a granted request brings.
#[derive(Debug)]
pub struct Granted {
    /// What may be done.
    pub rights: Rights,
    /// The region's memfd, when it was wanted.
    pub memory: Option<OwnedFd>,
    /// The export table and the in-flight page, when they were wanted.
    pub control: Option<(OwnedFd, OwnedFd)>,
}

/// What came: its bytes, its descriptors, and whether there are less of those than were sent.
type Received = (Vec<u8>, Vec<OwnedFd>, bool);

/// A connection to an exporter's service socket.
#[derive(Debug)]
pub struct Connection {
    socket: Arc<OwnedFd>,
    sequence: u32,
}

fn timed_out(deadline: &Deadline) -> ConnectError {
    ConnectError::TimedOut { waited: deadline.elapsed() }
}

/// Longest wait asked of the kernel at once: any Duration is a deadline, not every one is a timespec.
const LONG: Duration = Duration::from_secs(3600);

/// Waits until `fd` is ready for `events`.
fn wait(deadline: &Deadline, fd: BorrowedFd<'_>, events: PollFlags) -> Result<(), ConnectError> {
    loop {
        let left = deadline.left().ok_or_else(|| timed_out(deadline))?.min(LONG);
        let mut fds = [PollFd::from_borrowed_fd(fd, events)];
        let timeout = Timespec::try_from(left).map_err(|_| timed_out(deadline))?;
        match poll(&mut fds, Some(&timeout)) {
            Ok(0) | Err(Errno::INTR) => {}
            Ok(_) => return Ok(()),
            Err(errno) => return Err(ConnectError::Sys { call: "poll", errno }),
        }
    }
}

impl Connection {
    /// Connects to the abstract socket `name`, which is one of this network namespace.
    ///
    /// # Errors
    /// [`ConnectError`].
    pub fn open(name: &[u8], deadline: &Deadline) -> Result<Self, ConnectError> {
        let address = SocketAddrUnix::new_abstract_name(name).map_err(|_| ConnectError::BadAddress)?;
        Self::to(&address, deadline)
    }

    /// Connects to the socket at `path`, whatever the network namespace.
    ///
    /// # Errors
    /// [`ConnectError`]; `NotThere` where there is no such file.
    pub fn open_path(path: &Path, deadline: &Deadline) -> Result<Self, ConnectError> {
        let address = SocketAddrUnix::new(path).map_err(|_| ConnectError::BadAddress)?;
        Self::to(&address, deadline).map_err(|error| match error {
            ConnectError::Sys { errno: Errno::NOENT | Errno::NOTDIR, .. } => ConnectError::NotThere,
            error => error,
        })
    }

    fn to(address: &SocketAddrUnix, deadline: &Deadline) -> Result<Self, ConnectError> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).map_err(
            |errno| match errno {
                Errno::PERM | Errno::ACCESS | Errno::NOSYS => ConnectError::Sys { call: "socket", errno },
                errno => ConnectError::Mem(MemError::of("socket", errno, 0)),
            },
        )?;
        loop {
            match connect(&socket, address) {
                Ok(()) => return Ok(Self { socket: Arc::new(socket), sequence: 0 }),
                // The exporter's backlog is full: a non-blocking connect(2) answers EAGAIN and cannot be polled for.
                Err(Errno::AGAIN | Errno::INTR) => {
                    let pause = deadline.left().ok_or_else(|| timed_out(deadline))?;
                    std::thread::sleep(pause.min(Duration::from_millis(1)));
                }
                Err(Errno::CONNREFUSED) => return Err(ConnectError::Refused),
                Err(errno) => return Err(ConnectError::Sys { call: "connect", errno }),
            }
        }
    }

    /// The process that listens.
    ///
    /// # Errors
    /// ESRCH when it is gone; what else [`Process::of_peer`] answers.
    pub fn peer(&self) -> Result<Process, Errno> {
        Process::of_peer(self.socket.as_fd())
    }

    /// The socket, to be watched for its end.
    #[must_use]
    pub fn socket(&self) -> Arc<OwnedFd> {
        Arc::clone(&self.socket)
    }

    /// Sends a request and waits for its reply. After an error other than [`ConnectError::Denied`] the connection is of no
    /// further use.
    ///
    /// # Errors
    /// [`ConnectError`].
    pub fn ask(&mut self, mut request: Request, deadline: &Deadline) -> Result<Granted, ConnectError> {
        request.sequence = self.next();
        self.tell(&request.encode(), &[], deadline)?;
        let (reply, mut fds) = self.granted(self.receive()?)?;
        let expected = request.fds();
        if fds.len() != expected || reply.fds as usize != expected {
            return Err(self.missing(expected, fds.len()));
        }
        if reply.length != request.claim.length {
            return Err(ConnectError::Denied(Refusal::Mismatch));
        }
        let control = if request.want_control { fds.pop().zip(fds.pop()) } else { None };
        let control = control.map(|(page, table)| (table, page));
        Ok(Granted { rights: reply.rights, memory: fds.pop(), control })
    }

    /// Asks to be connected with a worker, giving the memory that both share. The connection is the workers' from then on.
    ///
    /// # Errors
    /// [`ConnectError`].
    pub fn introduce(
        &mut self,
        mut asked: Introduction,
        memory: BorrowedFd<'_>,
        deadline: &Deadline,
    ) -> Result<(), ConnectError> {
        asked.sequence = self.next();
        self.tell(&asked.encode(), &[memory], deadline)?;
        self.granted(self.receive()?).map(drop)
    }

    /// Asks to have the memory of an export, whose token was shown on this connection, registered in a domain of this process's: that of which
    /// `command` is the command descriptor. After an error other than [`ConnectError::Denied`], [`ConnectError::NotPlaced`],
    /// [`ConnectError::TooMany`] and [`ConnectError::NoResource`] the connection is of no further use.
    ///
    /// # Errors
    /// [`ConnectError`].
    pub fn place(
        &mut self,
        mut asked: Placing,
        command: BorrowedFd<'_>,
        deadline: &Deadline,
    ) -> Result<PlacedKeys, ConnectError> {
        asked.sequence = self.next();
        self.tell(&asked.encode(), &[command], deadline)?;
        let received = self.receive()?;
        match PlacedKeys::decode(&received.0)? {
            Some(keys) if keys.sequence == self.sequence => Ok(keys),
            Some(_) => Err(DecodeError::Unknown("sequence number").into()),
            // It grants nothing that was asked.
            None => self.granted(received).and(Err(DecodeError::Unknown("verdict").into())),
        }
    }

    fn next(&mut self) -> u32 {
        self.sequence = self.sequence.wrapping_add(1);
        self.sequence
    }

    /// Says that a placement is needed no more, if that can be said at once: otherwise it ends with the connection.
    pub fn unplace(&self, sequence: u32) {
        let mut control = SendAncillaryBuffer::default();
        let bytes = encode_unplace(sequence);
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        let _ = sendmsg(&*self.socket, &[IoSlice::new(&bytes)], &mut control, flags);
    }

    /// Sends a message and waits for its reply.
    fn tell(&self, bytes: &[u8], fds: &[BorrowedFd<'_>], deadline: &Deadline) -> Result<(), ConnectError> {
        loop {
            let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut control = SendAncillaryBuffer::new(&mut space);
            if !fds.is_empty() {
                control.push(SendAncillaryMessage::ScmRights(fds));
            }
            match sendmsg(&*self.socket, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL) {
                Ok(_) => break,
                Err(Errno::AGAIN | Errno::INTR) => wait(deadline, self.socket.as_fd(), PollFlags::OUT)?,
                Err(Errno::PIPE | Errno::CONNRESET) => break, // perhaps it has said why
                Err(errno) => return Err(ConnectError::Sys { call: "sendmsg", errno }),
            }
        }
        wait(deadline, self.socket.as_fd(), PollFlags::IN)
    }

    /// The reply that is to grant what was asked.
    fn granted(&self, (bytes, fds, is_cut): Received) -> Result<(Reply, Vec<OwnedFd>), ConnectError> {
        let reply = Reply::decode(&bytes)?;
        if is_cut {
            return Err(self.missing(reply.fds as usize, fds.len()));
        }
        if reply.verdict == Verdict::NoResource {
            return Err(ConnectError::NoResource);
        }
        if reply.sequence != self.sequence {
            return Err(DecodeError::Unknown("sequence number").into());
        }
        match reply.verdict {
            Verdict::Granted => Ok((reply, fds)),
            Verdict::Refused(refusal) => Err(ConnectError::Denied(refusal)),
            Verdict::NoDescriptor => Err(ConnectError::NoDescriptor),
            Verdict::NoResource => Err(ConnectError::NoResource),
            Verdict::TooMany => Err(ConnectError::TooMany),
            Verdict::NotPlaced => Err(ConnectError::NotPlaced),
        }
    }

    fn receive(&self) -> Result<Received, ConnectError> {
        let mut bytes = [0; REPLY_LEN + 1];
        let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut parts = [IoSliceMut::new(&mut bytes)];
        let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
        let mut answer = recvmsg(&*self.socket, &mut parts, &mut control, flags);
        if answer.is_err() {
            // That the other end was closed with our request unread is told once, before what it had sent (`unix(7)`).
            answer = recvmsg(&*self.socket, &mut parts, &mut control, flags);
        }
        let received = match answer {
            Ok(received) if received.bytes == 0 => return Err(ConnectError::Closed),
            Ok(received) => received,
            Err(Errno::CONNRESET | Errno::AGAIN) => return Err(ConnectError::Closed),
            Err(errno) => return Err(ConnectError::Sys { call: "recvmsg", errno }),
        };
        let mut fds = Vec::with_capacity(MAX_FDS);
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(rights) = message {
                fds.extend(rights);
            }
        }
        let bytes = bytes.get(..received.bytes).unwrap_or_default().to_vec();
        Ok((bytes, fds, received.flags.contains(ReturnFlags::CTRUNC)))
    }

    /// Descriptors are missing: because this process can have no more, or because the exporter lied.
    fn missing(&self, expected: usize, found: usize) -> ConnectError {
        match dup(&*self.socket) {
            Err(errno @ (Errno::MFILE | Errno::NFILE)) => {
                ConnectError::Mem(MemError::of("recvmsg", errno, 0))
            }
            _ if found < expected && Limit::OpenFiles.value() <= open_files() + expected as u64 => {
                ConnectError::Mem(MemError::of("recvmsg", Errno::MFILE, 0))
            }
            _ => ConnectError::MissingDescriptors { expected, found },
        }
    }
}

/// How many descriptors this process has open (`proc_pid_fd(5)`).
fn open_files() -> u64 {
    std::fs::read_dir("/proc/self/fd").map_or(0, |entries| entries.count() as u64)
}
