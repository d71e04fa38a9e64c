//! Fragments on their way from one thread to another.

use std::mem::replace;

use parking_lot::{Condvar, Mutex};

use crate::memory::AccessError;

/// Fragments that there is memory for. One is written and one read; a third has neither thread wait for the other's waking up.
pub(super) const BUFFERS: usize = 3;

/// A place for a fragment.
enum Buffer<'m> {
    Free(&'m mut [u8]),
    /// One thread reads into it, or writes from it.
    InUse,
    /// What was read, not yet written.
    Full(&'m mut [u8]),
    /// It could not be read whole.
    Failed(AccessError),
}

struct State<'m> {
    /// Fragment `n` uses number `n` modulo their number, once its forerunner there has been written.
    buffers: [Buffer<'m>; BUFFERS],
    /// How many fragments somebody has read, or reads.
    claimed: usize,
    /// One of both threads has left.
    ended: bool,
}

/// Fragments of so many bytes, each read by whichever thread comes first, in order, and written by one, in order.
///
/// Either thread waits only while the other one is within an access to its side, and holds no lock meanwhile: such a wait lasts no longer
/// than that access. A thread that waits is not within an access itself, so nobody's revocation waits for both.
pub(super) struct Pipe<'m> {
    len: usize,
    fragment: usize,
    state: Mutex<State<'m>>,
    /// A buffer is another's to use, or a thread has left. At most one of both waits.
    changed: Condvar,
}

/// When it is dropped, also by a panic, the other thread is told that this one has left.
pub(super) struct End<'a, 'm>(pub(super) &'a Pipe<'m>);

impl Drop for End<'_, '_> {
    fn drop(&mut self) {
        self.0.state.lock().ended = true;
        self.0.changed.notify_one();
    }
}

impl<'m> State<'m> {
    fn buffer(&mut self, n: usize) -> &mut Buffer<'m> {
        &mut self.buffers[n % BUFFERS]
    }

    /// Takes the next fragment that nobody reads, if there is a buffer for it.
    fn claim(&mut self) -> Option<&'m mut [u8]> {
        let next = self.buffer(self.claimed);
        match replace(next, Buffer::InUse) {
            Buffer::Free(buffer) => {
                self.claimed += 1;
                Some(buffer)
            }
            other => {
                *next = other;
                None
            }
        }
    }
}

impl<'m> Pipe<'m> {
    /// `None`: `memory` is not enough.
    pub(super) fn new(len: usize, fragment: usize, memory: &'m mut [u8]) -> Option<Self> {
        let mut parts = memory.chunks_exact_mut(fragment).map(Buffer::Free);
        let buffers = [parts.next()?, parts.next()?, parts.next()?];
        let state = Mutex::new(State { buffers, claimed: 0, ended: false });
        Some(Self { len, fragment, state, changed: Condvar::new() })
    }

    fn count(&self) -> usize {
        self.len.div_ceil(self.fragment)
    }

    /// Where fragment `n` begins, and how long it is.
    fn place(&self, n: usize) -> (usize, usize) {
        let at = n * self.fragment;
        (at, self.fragment.min(self.len - at))
    }

    fn set(&self, n: usize, buffer: Buffer<'m>) {
        *self.state.lock().buffer(n) = buffer;
        self.changed.notify_one();
    }

    /// Reads what the other thread does not read itself, as far ahead as there are buffers, until all is read, or it has left.
    pub(super) fn ahead(&self, read: &impl Fn(usize, &mut [u8]) -> Result<(), AccessError>) {
        let _end = End(self);
        while let Some((n, buffer)) = self.next() {
            let (at, len) = self.place(n);
            if let Err(error) = read(at, &mut buffer[..len]) {
                return self.set(n, Buffer::Failed(error));
            }
            self.set(n, Buffer::Full(buffer));
        }
    }

    /// A fragment to read ahead, once there is a buffer for it.
    fn next(&self) -> Option<(usize, &'m mut [u8])> {
        let mut state = self.state.lock();
        while state.claimed < self.count() && !state.ended {
            let n = state.claimed;
            if let Some(buffer) = state.claim() {
                return Some((n, buffer));
            }
            self.changed.wait(&mut state);
        }
        None
    }

    /// Writes all fragments, and reads those itself that nobody has begun to read. `None`: the other thread has left in the midst of a fragment.
    pub(super) fn through(
        &self,
        read: &impl Fn(usize, &mut [u8]) -> Result<(), AccessError>,
        write: &impl Fn(usize, &[u8]) -> Result<(), AccessError>,
    ) -> Option<Result<(), AccessError>> {
        for n in 0..self.count() {
            let (at, len) = self.place(n);
            let buffer = match self.take(n)? {
                Taken::Read(buffer) => Ok(buffer),
                Taken::ToRead(buffer) => read(at, &mut buffer[..len]).map(|()| buffer),
                Taken::Failed(error) => Err(error),
            };
            // Of a piece that did not come whole, nothing is written.
            let moved = buffer.map_err(|error| error.moved(at as u64)).and_then(|buffer| {
                write(at, &buffer[..len]).map_err(|error| error.after(at as u64))?;
                Ok(buffer)
            });
            match moved {
                Ok(buffer) => self.set(n, Buffer::Free(buffer)),
                Err(error) => return Some(Err(error)),
            }
        }
        Some(Ok(()))
    }

    /// Fragment `n`, of which those before it have been written.
    fn take(&self, n: usize) -> Option<Taken<'m>> {
        let mut state = self.state.lock();
        if state.claimed == n {
            return state.claim().map(Taken::ToRead);
        }
        loop {
            match replace(state.buffer(n), Buffer::InUse) {
                Buffer::Full(buffer) => return Some(Taken::Read(buffer)),
                Buffer::Failed(error) => return Some(Taken::Failed(error)),
                Buffer::InUse if !state.ended => self.changed.wait(&mut state),
                Buffer::InUse | Buffer::Free(_) => return None,
            }
        }
    }
}

/// What has become of a fragment that is to be written.
enum Taken<'m> {
    Read(&'m mut [u8]),
    ToRead(&'m mut [u8]),
    Failed(AccessError),
}
