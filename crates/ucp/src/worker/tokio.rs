//! A worker within a tokio runtime.

use std::convert::Infallible;
use std::os::fd::AsFd as _;

use tokio::io::unix::AsyncFd;

use super::{Worker, WorkerError};

/// How often it is looked for events, other tasks running in between, before the runtime is told to wait for the descriptor.
const ROUNDS: u32 = 32;

impl Worker {
    /// Makes progress for ever, within a tokio runtime with I/O enabled, and sleeps when there is nothing to do: run it beside what awaits
    /// the worker's operations, on the same thread, by `tokio::select!` or as a task of a `LocalSet`.
    ///
    /// # Errors
    /// [`WorkerError`]: it cannot wait any more.
    pub async fn drive(&self) -> Result<Infallible, WorkerError> {
        let failed = |error: std::io::Error| {
            let errno = rustix::io::Errno::from_io_error(&error);
            WorkerError::Wait(errno.unwrap_or(rustix::io::Errno::IO))
        };
        // Deprecated for types that may lie about their descriptor, or close it: this one does neither. What replaces it is unsafe.
        #[allow(deprecated)]
        let fd = AsyncFd::new(self.as_fd()).map_err(failed)?;
        let mut idle = 0;
        loop {
            self.inner.check_fork()?;
            idle = if self.progress() > 0 { 0 } else { idle + 1 };
            if idle < ROUNDS || !self.arm() {
                tokio::task::yield_now().await;
                continue;
            }
            fd.readable().await.map_err(failed)?.clear_ready();
            idle = 0;
        }
    }
}
