//! Atomic operations on words of memory that others use at the same time.

use std::fmt;

use ucs::mem::SharedBytes;
use ucs::mem::shared::BoundsError;
use ucs::sync::Ordering;

/// The order of every atomic operation: all that are done to one memory, by its owner's words or by whoever has it imported, have one
/// order which all of them see, so that two sides can decide by two words who comes first. On x86-64 it is the locked instruction that
/// any order takes, on AArch64 the acquiring and releasing one.
const ORDER: Ordering = Ordering::SeqCst;

/// What is done to a word of type `T`, `u32` or `u64` (`ucp_atomic_op_t`). All answer the word as it was before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[doc(alias = "ucp_atomic_op_t")]
pub enum AmoOp<T> {
    /// Adds, and wraps around.
    #[doc(alias = "UCP_ATOMIC_OP_ADD")]
    Add(T),
    /// Keeps the bits that are in both.
    #[doc(alias = "UCP_ATOMIC_OP_AND")]
    And(T),
    /// Adds the bits that are in either.
    #[doc(alias = "UCP_ATOMIC_OP_OR")]
    Or(T),
    /// Turns the bits over that are in the operand.
    #[doc(alias = "UCP_ATOMIC_OP_XOR")]
    Xor(T),
    /// Puts another word in its place.
    #[doc(alias = "UCP_ATOMIC_OP_SWAP")]
    Swap(T),
    /// Puts another word in its place if it is the one expected: if that is what is answered.
    #[doc(alias = "UCP_ATOMIC_OP_CSWAP")]
    Cswap {
        /// What it must be.
        expected: T,
        /// What it becomes.
        new: T,
    },
}

/// An atomic operation on a word of either size, in this machine's byte order: what an [`Attachment`](super::Attachment) is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AtomicOp {
    /// On 32 bits.
    U32(AmoOp<u32>),
    /// On 64 bits.
    U64(AmoOp<u64>),
}

mod sealed {
    pub trait Sealed {}
    impl Sealed for u32 {}
    impl Sealed for u64 {}
}

/// The words that atomic operations are done to: `u32` and `u64`.
pub trait AtomicWord: sealed::Sealed + Copy + fmt::Debug + PartialEq + Send + Sync + 'static {
    /// The operation, whatever the size of its word.
    fn operation(op: AmoOp<Self>) -> AtomicOp
    where
        Self: Sized;

    /// The word that an operation on words of this size has answered.
    fn from_answer(answer: u64) -> Self;
}

impl AtomicWord for u32 {
    #[inline]
    fn operation(op: AmoOp<Self>) -> AtomicOp {
        AtomicOp::U32(op)
    }

    #[inline]
    #[allow(clippy::cast_possible_truncation)] // it was widened from as many bits
    fn from_answer(answer: u64) -> Self {
        answer as Self
    }
}

impl AtomicWord for u64 {
    #[inline]
    fn operation(op: AmoOp<Self>) -> AtomicOp {
        AtomicOp::U64(op)
    }

    #[inline]
    fn from_answer(answer: u64) -> Self {
        answer
    }
}

macro_rules! run {
    ($word:expr, $op:expr) => {{
        let word = $word;
        match $op {
            AmoOp::Add(value) => word.fetch_add(value, ORDER),
            AmoOp::And(value) => word.fetch_and(value, ORDER),
            AmoOp::Or(value) => word.fetch_or(value, ORDER),
            AmoOp::Xor(value) => word.fetch_xor(value, ORDER),
            AmoOp::Swap(value) => word.swap(value, ORDER),
            AmoOp::Cswap { expected, new } => match word.compare_exchange(expected, new, ORDER, ORDER) {
                Ok(before) | Err(before) => before,
            },
        }
    }};
}

impl AtomicOp {
    /// Bytes of the word, which its address must be a multiple of: 4 or 8.
    #[inline]
    #[must_use]
    pub fn size(&self) -> usize {
        match self {
            Self::U32(_) => 4,
            Self::U64(_) => 8,
        }
    }

    /// Does it, sequentially consistent, to the word at `offset` of memory that is mapped here. Answers the word before it.
    ///
    /// # Errors
    /// Out of range, misaligned, or mapped for reading only.
    #[inline]
    pub fn run(self, bytes: &SharedBytes, offset: u64) -> Result<u64, BoundsError> {
        Ok(match self {
            Self::U32(op) => u64::from(run!(bytes.atomic_u32(offset)?, op)),
            Self::U64(op) => run!(bytes.atomic_u64(offset)?, op),
        })
    }
}
