//! The ring: a table of fixed buffers, and operations on them that move bytes to and from pipes.
//!
//! Why pipes: every kernel can wait for them, and moves their bytes within `io_uring_enter`, where a memfd is handed to a worker thread. A
//! write of 8 bytes and their `read(2)` took 0.96 µs, a write to a memfd 26 µs. Before Linux 6.5 that is so only of pipes that do not
//! block (`__io_file_supports_nowait`, `io_uring/io_uring.c`).
//!
//! # Safety
//! A fixed buffer is reached by the pages the kernel has pinned for it; the address in an operation only says where in them. So
//! no operation reaches memory by a pointer that could dangle, and what it may do to the pages is said where they are registered.

use std::fmt;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};

use io_uring::types::Fd;
use io_uring::{IoUring, opcode, squeue};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, fcntl_getpipe_size, fcntl_setpipe_size, pipe_with};

use super::error::{DmaError, Unavailable, unavailable};

/// Operations that are queued at once: each is submitted before the next.
const ENTRIES: u32 = 8;

/// A pipe has no position.
const NO_POSITION: u64 = u64::MAX;

/// A pipe.
#[derive(Debug)]
pub(super) struct Pipe {
    reader: OwnedFd,
    /// `None` once it has been hung up.
    writer: Option<OwnedFd>,
    /// Bytes it holds.
    pub(super) capacity: usize,
}

impl Pipe {
    /// One for bytes that are there, or for which there is room: its ends do not block.
    pub(super) fn passing() -> Result<Self, Errno> {
        Self::with(PipeFlags::NONBLOCK)
    }

    fn with(flags: PipeFlags) -> Result<Self, Errno> {
        let (reader, writer) = pipe_with(PipeFlags::CLOEXEC | flags)?;
        let capacity = fcntl_getpipe_size(&reader)?;
        Ok(Self { reader, writer: Some(writer), capacity })
    }

    /// One that holds at least `len` bytes. Its ends block: an operation of a ring on an end that does not is never held back.
    pub(super) fn holding(len: usize) -> Result<Self, DmaError> {
        let mut pipe = Self::with(PipeFlags::empty()).map_err(DmaError::Failed)?;
        if len > pipe.capacity {
            let too_long = DmaError::TooLong { len, max: pipe.capacity };
            pipe.capacity = fcntl_setpipe_size(&pipe.reader, len).map_err(|_| too_long)?;
        }
        Ok(pipe)
    }

    /// Writes bytes for which there is room.
    pub(super) fn put(&self, mut bytes: &[u8]) -> Result<(), Errno> {
        while !bytes.is_empty() {
            match rustix::io::write(self.writer()?, bytes) {
                Ok(n) => bytes = &bytes[n..],
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno),
            }
        }
        Ok(())
    }

    fn writer(&self) -> Result<BorrowedFd<'_>, Errno> {
        self.writer.as_ref().map(OwnedFd::as_fd).ok_or(Errno::PIPE)
    }

    /// Closes the end that is written to: who waits for bytes gets none.
    pub(super) fn hang_up(&mut self) {
        self.writer = None;
    }

    /// Reads bytes that are there, with one system call where it can.
    pub(super) fn take(&self, mut bytes: &mut [u8]) -> Result<(), Errno> {
        while !bytes.is_empty() {
            match rustix::io::read(&self.reader, &mut *bytes) {
                Ok(0) => return Err(Errno::PIPE),
                Ok(n) => bytes = &mut bytes[n..],
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno),
            }
        }
        Ok(())
    }
}

/// Which way bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    /// From the pages into a pipe.
    Out,
    /// From a pipe into the pages.
    In,
}

/// What of a slot an operation moves.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part {
    pub(super) slot: u16,
    pub(super) addr: usize,
    pub(super) len: usize,
}

/// The ring itself. Its user serialises the calls.
pub(super) struct Ring {
    ring: IoUring,
    /// The number of the next operation.
    next: u64,
    /// Results nobody has asked for yet, by the operation's number. (A vector: in a loop it allocates once.)
    done: Vec<(u64, i32)>,
    /// Why it is used no more: an operation may still be queued.
    broken: Option<Errno>,
}

impl fmt::Debug for Ring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { ring: _, next, done, broken } = self;
        let mut debug = f.debug_struct("Ring");
        debug.field("next", next).field("done", done).field("broken", broken).finish_non_exhaustive()
    }
}

impl Ring {
    /// A ring with a table of `slots` buffers, and tried out.
    pub(super) fn new(slots: u16) -> Result<Self, Unavailable> {
        let ring = IoUring::new(ENTRIES).map_err(|error| unavailable("io_uring_setup", &error))?;
        let table = ring.submitter().register_buffers_sparse(u32::from(slots));
        table.map_err(|error| unavailable("io_uring_register", &error))?;
        let mut ring = Self { ring, next: 0, done: Vec::new(), broken: None };
        let tried = ring.submit(opcode::Nop::new().build()).and_then(|nop| ring.wait(nop));
        tried.map_err(|errno| unavailable("io_uring_enter", &errno.into()))?;
        Ok(ring)
    }

    /// Pins the pages of a range, and puts them into an empty slot.
    pub(super) fn fill(&self, slot: u16, addr: usize, len: usize) -> Result<(), Errno> {
        self.update(slot, libc::iovec { iov_base: std::ptr::with_exposed_provenance_mut(addr), iov_len: len })
    }

    /// Empties a slot: its pages are unpinned when the operations on them have ended.
    pub(super) fn empty(&self, slot: u16) -> Result<(), Errno> {
        self.update(slot, libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 })
    }

    /// Source: `IORING_REGISTER_BUFFERS_UPDATE`, [`io_uring_register(2)`](https://man7.org/linux/man-pages/man2/io_uring_register.2.html).
    fn update(&self, slot: u16, range: libc::iovec) -> Result<(), Errno> {
        // SAFETY: the kernel checks that the range is mapped, and pins its pages: what is done to the mapping later changes
        // nothing for it. That the pages may be read and written is the promise of who registers them.
        let update =
            unsafe { self.ring.submitter().register_buffers_update(u32::from(slot), &[range], None) };
        update.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))
    }

    /// Starts an operation between pages and a pipe: its number. Nothing but [`Self::wait`] says how it went.
    pub(super) fn start(&mut self, direction: Direction, part: Part, pipe: &Pipe) -> Result<u64, DmaError> {
        let Part { slot, addr, len } = part;
        let len = u32::try_from(len).map_err(|_| DmaError::TooLong { len, max: pipe.capacity })?;
        let at = std::ptr::with_exposed_provenance_mut(addr);
        let entry = match direction {
            Direction::Out => {
                let writer = pipe.writer().map_err(DmaError::Failed)?;
                opcode::WriteFixed::new(Fd(writer.as_raw_fd()), at, len, slot).offset(NO_POSITION).build()
            }
            Direction::In => {
                opcode::ReadFixed::new(Fd(pipe.reader.as_raw_fd()), at, len, slot).offset(NO_POSITION).build()
            }
        };
        self.submit(entry).map_err(DmaError::Failed)
    }

    /// Hands one operation to the kernel. When this returns, the operation has its slot's pages, whatever the slot holds later.
    fn submit(&mut self, entry: squeue::Entry) -> Result<u64, Errno> {
        if let Some(errno) = self.broken {
            return Err(errno);
        }
        let number = self.next;
        self.next += 1;
        let entry = entry.user_data(number);
        // SAFETY: an operation on a fixed buffer, or none at all (module documentation). The kernel holds the descriptors from the
        // submission on, which is before this returns.
        let pushed = unsafe { self.ring.submission().push(&entry) };
        pushed.expect("each operation is submitted before the next is queued");
        while !self.ring.submission().is_empty() {
            self.enter(0)?;
        }
        Ok(number)
    }

    /// Waits for an operation: what it has moved.
    pub(super) fn wait(&mut self, number: u64) -> Result<usize, Errno> {
        loop {
            if let Some(at) = self.done.iter().position(|(known, _)| *known == number) {
                let (_, result) = self.done.swap_remove(at);
                return usize::try_from(result).map_err(|_| Errno::from_raw_os_error(-result));
            }
            if let Some(errno) = self.broken {
                return Err(errno);
            }
            self.enter(1)?;
        }
    }

    /// One [`io_uring_enter(2)`](https://man7.org/linux/man-pages/man2/io_uring_enter.2.html): submits what is queued, waits until
    /// `want` results are there, and takes all that are.
    fn enter(&mut self, want: usize) -> Result<(), Errno> {
        let entered = self.ring.submit_and_wait(want);
        self.done.extend(self.ring.completion().map(|entry| (entry.user_data(), entry.result())));
        let Err(error) = entered else { return Ok(()) };
        match Errno::from_io_error(&error).unwrap_or(Errno::IO) {
            // To be tried again.
            Errno::INTR | Errno::AGAIN | Errno::BUSY => Ok(()),
            errno => {
                self.broken = Some(errno);
                Err(errno)
            }
        }
    }

    /// Moves bytes out of a slot, by way of an empty pipe.
    pub(super) fn out(&mut self, part: Part, pipe: &Pipe, out: &mut [u8]) -> Result<(), DmaError> {
        let mut moved = 0;
        while moved < out.len() {
            let len = pipe.capacity.min(out.len() - moved);
            let number = self.start(Direction::Out, Part { addr: part.addr + moved, len, ..part }, pipe)?;
            let n = self.wait(number).map_err(DmaError::Failed)?;
            if n == 0 {
                return Err(DmaError::Short { moved, len: out.len() });
            }
            pipe.take(&mut out[moved..moved + n]).map_err(DmaError::Failed)?;
            moved += n;
        }
        Ok(())
    }

    /// Moves bytes into a slot, by way of an empty pipe.
    pub(super) fn fetch(&mut self, part: Part, pipe: &Pipe, bytes: &[u8]) -> Result<(), DmaError> {
        let mut moved = 0;
        for chunk in bytes.chunks(pipe.capacity) {
            pipe.put(chunk).map_err(DmaError::Failed)?;
            let end = moved + chunk.len();
            while moved < end {
                let part = Part { addr: part.addr + moved, len: end - moved, ..part };
                let number = self.start(Direction::In, part, pipe);
                match number.and_then(|number| self.wait(number).map_err(DmaError::Failed)) {
                    Ok(n) if n > 0 => moved += n,
                    failed => {
                        // Between operations the pipe is empty.
                        let emptied = pipe.take(&mut vec![0; end - moved]).map_err(DmaError::Failed);
                        let short = DmaError::Short { moved, len: bytes.len() };
                        return Err(failed.err().or(emptied.err()).unwrap_or(short));
                    }
                }
            }
        }
        Ok(())
    }
}
