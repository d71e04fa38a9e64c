//! Atomic operations on imported memory.

use uct::api::{AmoOp, AtomicWord};
use uct::memory::{AccessError, check_range};

use super::ImportedRegion;

/// Atomics, on words of 32 and 64 bits (`u32`, `u64`) in this machine's byte order. Each answers the word as it was before.
///
/// They are atomic, and sequentially consistent, towards each other and towards the words of the owner's
/// ([`Region::atomic_u64`](super::Region::atomic_u64), `atomic_u32`). They take part in the owner's revocation as `read` and `write`
/// do, and are usable by many threads at once. With `UCX_ATOMIC_MODE=device` they are done by RDMA devices, on words of 64 bits, and atomic
/// towards each other alone, by one device.
///
/// ```
/// # use ucp::{Context, Features, MemMap};
/// # fn main() -> Result<(), ucp::Error> {
/// # let ctx = Context::builder().features(Features::EXPORTED_MEMH).build()?;
/// # let mem = ctx.mem_map(MemMap::allocate(4096).exported())?;
/// # let host = ctx.mem_import(mem.memh_pack()?.as_bytes())?;
/// let before = host.fetch_add(8, 1_u64)?;
/// assert_eq!(host.cswap(8, before + 1, 100)?, 1); // it was what was expected, and is 100 now
/// assert_eq!(host.swap(8, 0_u64)?, 100);
/// # Ok(())
/// # }
/// ```
impl ImportedRegion {
    /// Does `op` to the word at `offset`: its address in the owner's memory must be a multiple of its size. Answers the word before.
    ///
    /// # Errors
    /// [`AccessError`]: out of range, misaligned, `AccessDenied` for memory exported read-only; `Unsupported` where the transport has
    /// no atomics (`cma`: the kernel has none on another process's memory) and on raw memory. After `Stale` it may have been done
    /// all the same: when the owner has ended, or given up waiting for it, in that moment.
    #[doc(alias = "ucp_atomic_op_nbx")]
    pub fn atomic<T: AtomicWord>(&self, offset: u64, op: AmoOp<T>) -> Result<T, AccessError> {
        let op = T::operation(op);
        match self.imported() {
            Some(imported) => imported.atomic(offset, op).map(T::from_answer),
            None => Err(check_range(offset, op.size(), 0)
                .err()
                .unwrap_or(AccessError::Unsupported { why: "there is no word in memory without bytes" })),
        }
    }

    /// Adds `value` to the word at `offset`, and wraps around; answers the word before.
    ///
    /// # Errors
    /// As [`ImportedRegion::atomic`].
    pub fn fetch_add<T: AtomicWord>(&self, offset: u64, value: T) -> Result<T, AccessError> {
        self.atomic(offset, AmoOp::Add(value))
    }

    /// Keeps the bits of the word at `offset` that `value` has, too; answers the word before.
    ///
    /// # Errors
    /// As [`ImportedRegion::atomic`].
    pub fn fetch_and<T: AtomicWord>(&self, offset: u64, value: T) -> Result<T, AccessError> {
        self.atomic(offset, AmoOp::And(value))
    }

    /// Sets the bits of the word at `offset` that `value` has; answers the word before.
    ///
    /// # Errors
    /// As [`ImportedRegion::atomic`].
    pub fn fetch_or<T: AtomicWord>(&self, offset: u64, value: T) -> Result<T, AccessError> {
        self.atomic(offset, AmoOp::Or(value))
    }

    /// Turns the bits of the word at `offset` over that `value` has; answers the word before.
    ///
    /// # Errors
    /// As [`ImportedRegion::atomic`].
    pub fn fetch_xor<T: AtomicWord>(&self, offset: u64, value: T) -> Result<T, AccessError> {
        self.atomic(offset, AmoOp::Xor(value))
    }

    /// Puts `value` in place of the word at `offset`; answers the word before.
    ///
    /// # Errors
    /// As [`ImportedRegion::atomic`].
    pub fn swap<T: AtomicWord>(&self, offset: u64, value: T) -> Result<T, AccessError> {
        self.atomic(offset, AmoOp::Swap(value))
    }

    /// Puts `new` in place of the word at `offset` if that is `expected`; answers the word before: it was done if that is `expected`.
    ///
    /// # Errors
    /// As [`ImportedRegion::atomic`].
    #[doc(alias = "compare_exchange")]
    pub fn cswap<T: AtomicWord>(&self, offset: u64, expected: T, new: T) -> Result<T, AccessError> {
        self.atomic(offset, AmoOp::Cswap { expected, new })
    }
}
