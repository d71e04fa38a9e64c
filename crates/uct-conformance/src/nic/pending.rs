//! Operations that have been started and are held back: between start and finish a test unmaps, deregisters, forks.
//!
//! An operation out is held back by a pipe that is full, one in by a pipe that is empty. Both wait in the kernel, with the pages
//! in hand, and move nothing before they are let go.

use super::ring::{Direction, Pipe};
use super::{DmaError, Mr, Nic};

/// What both directions hold.
#[derive(Debug)]
struct Held<'nic> {
    nic: &'nic Nic,
    number: u64,
    pipe: Pipe,
    len: usize,
    /// The operation has been let go and waited for.
    over: bool,
}

impl<'nic> Held<'nic> {
    fn start(
        nic: &'nic Nic,
        direction: Direction,
        mr: Mr,
        addr: usize,
        len: usize,
    ) -> Result<Self, DmaError> {
        nic.check(mr, addr, len)?;
        let pipe = Pipe::holding(len)?;
        if direction == Direction::Out {
            pipe.put(&vec![0; pipe.capacity]).map_err(DmaError::Failed)?;
        }
        let mut inner = nic.lock().ok_or(DmaError::Stale)?;
        let part = inner.part(mr, addr, len)?;
        let number = inner.ring.start(direction, part, &pipe)?;
        drop(inner);
        Ok(Self { nic, number, pipe, len, over: false })
    }

    /// Waits for the operation, which has been let go.
    fn wait(&mut self) -> Result<(), DmaError> {
        self.over = true;
        let mut inner = self.nic.lock().ok_or(DmaError::Stale)?;
        let moved = inner.ring.wait(self.number).map_err(DmaError::Failed)?;
        drop(inner);
        if moved == self.len { Ok(()) } else { Err(DmaError::Short { moved, len: self.len }) }
    }

    /// Lets an operation out go on: all that fills the pipe is read at once.
    fn release_out(&self) -> Result<(), DmaError> {
        self.nic.check_process()?;
        self.pipe.take(&mut vec![0; self.pipe.capacity]).map_err(DmaError::Failed)
    }
}

/// An operation out that has been started: [`Nic::start_out`]. Dropped, it is ended and its bytes are lost.
#[derive(Debug)]
#[must_use = "dropped, the operation ends"]
pub struct PendingOut<'nic>(Held<'nic>);

impl<'nic> PendingOut<'nic> {
    pub(super) fn start(nic: &'nic Nic, mr: Mr, addr: usize, len: usize) -> Result<Self, DmaError> {
        Held::start(nic, Direction::Out, mr, addr, len).map(Self)
    }

    /// Lets it happen: the bytes that are in the registered pages now.
    ///
    /// # Errors
    /// Of the operation: never because the registration has ended meanwhile.
    pub fn finish(mut self) -> Result<Vec<u8>, DmaError> {
        self.0.release_out()?;
        self.0.wait()?;
        let mut bytes = vec![0; self.0.len];
        self.0.pipe.take(&mut bytes).map_err(DmaError::Failed)?;
        Ok(bytes)
    }
}

impl Drop for PendingOut<'_> {
    fn drop(&mut self) {
        if !self.0.over && self.0.release_out().is_ok() {
            let _ = self.0.wait();
        }
    }
}

/// An operation in that has been started: [`Nic::start_in`]. Dropped, it is ended and moves nothing.
#[derive(Debug)]
#[must_use = "dropped, the operation ends"]
pub struct PendingIn<'nic>(Held<'nic>);

impl<'nic> PendingIn<'nic> {
    pub(super) fn start(nic: &'nic Nic, mr: Mr, addr: usize, len: usize) -> Result<Self, DmaError> {
        Held::start(nic, Direction::In, mr, addr, len).map(Self)
    }

    /// Lets it happen: writes `bytes`, as many as it was started for, to the registered pages.
    ///
    /// # Errors
    /// Of the operation: never because the registration has ended meanwhile.
    ///
    /// # Panics
    /// Another number of bytes.
    pub fn finish(mut self, bytes: &[u8]) -> Result<(), DmaError> {
        assert_eq!(bytes.len(), self.0.len, "the bytes it was started for");
        self.0.nic.check_process()?;
        self.0.pipe.put(bytes).map_err(DmaError::Failed)?;
        self.0.wait()
    }
}

impl Drop for PendingIn<'_> {
    fn drop(&mut self) {
        if !self.0.over {
            // No writer: the read ends with no bytes. (In a fork's child, the parent still has one.)
            self.0.pipe.hang_up();
            let _ = self.0.wait();
        }
    }
}
