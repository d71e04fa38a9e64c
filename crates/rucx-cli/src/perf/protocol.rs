//! What the two processes say to each other by pipes; what is measured goes another way.

use super::Problem;
use crate::frame::{Secret, messages, record};

/// No CPU: the process runs wherever the kernel has it run.
pub(super) const ANY_CPU: u32 = u32::MAX;

record! {
    /// How one side is reached by the other.
    struct Card {
        /// Its worker's address.
        address: Secret,
        /// The key to its memory.
        rkey: Secret,
        /// The handle of memory that it exports for the other one's operands; empty if there is none.
        handle: Secret,
    }
}

messages! {
    /// What the peer is asked to do.
    enum Command {
        /// First: make a worker and memory of that size, and connect to the worker of that address.
        0 Hello { parent: u32, cpu: u32, spins: u32, size: u64, card: Card },
        /// Answer puts of that many bytes, until the last.
        1 EchoPuts { size: u64 },
        /// Answer messages with such of that many bytes, until the last.
        2 EchoMessages { size: u64 },
        /// Take messages of that many bytes, until the last.
        3 Take { size: u64 },
    }
}

messages! {
    /// What it answers.
    enum Answer {
        /// It could not.
        0 Failed { what: String, why: String, remedy: String },
        /// To `Hello`.
        1 Ready { card: Card },
        /// To the others, at once: it has begun.
        2 Begun {},
        /// To the others, when it is over.
        3 Done {},
    }
}

impl From<Problem> for Answer {
    fn from(problem: Problem) -> Self {
        let Problem { what, why, remedy } = problem;
        Self::Failed { what, why, remedy }
    }
}
