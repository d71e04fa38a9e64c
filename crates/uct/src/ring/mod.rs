//! A ring of messages from one process to another, in memory that both map.
//!
//! One [`Producer`] writes, one [`Consumer`] reads; for both directions of a pair there are two rings. Either side may be
//! hostile (it maps the memory, and may write anything anywhere at any time), be killed at any instruction, or be stopped: the
//! other one neither waits for it, nor believes what it finds. Neither side allocates, locks, or calls the system.
//!
//! ```text
//!  offset      0       8                                             63
//!              +-------+---------------------------------------------+
//!            0 | posit.|  0                                          |  written by the consumer
//!              +-------+---------------------------------------------+
//!           64 | asleep| waits |  0                                  |  by the consumer, by the producer; cleared by the other
//!              +-------+---------------------------------------------+
//!          128 | header| payload, up to 56 bytes                     |  data line 0: a message of one line
//!              +-------+---------------------------------------------+
//!          192 | header| payload, bytes 0-55                         |  data line 1: a message of two lines
//!              +-------+---------------------------------------------+
//!          256 | payload, bytes 56-119                               |  data line 2: the rest of it
//!              +-------+---------------------------------------------+
//!          320 |   0   | what an earlier lap has left                |  data line 3: nothing yet, the consumer looks here
//!              +-------+---------------------------------------------+
//!              |  ...                                                |
//!              +-------+---------------------------------------------+
//!  64 (1 + n)  | padd. | what an earlier lap has left                |  data line n - 1: no message that wraps
//!              +-------+---------------------------------------------+
//!
//!  header        63     56 55            32 31                    0
//!              +----------+----------------+-----------------------+
//!              |   kind   |      tag       |        length         |    kind 1: message, 2: padding (tag, length 0)
//!              +----------+----------------+-----------------------+    all 64 bits 0: nothing here yet
//! ```
//!
//! Words are 64 bits wide, aligned, and in the machine's byte order: both sides run on one machine, and that is little-endian.
//!
//! # Publishing
//! The producer writes the payload; then 0 into the header word of the line behind the record, which it owns, too: one line
//! always stays free; then the header word, with release order. So whatever payloads of earlier laps have left in a line, the
//! consumer, which comes to it by the record before, finds 0 or a header there. Where a record would wrap, the message goes to
//! line 0 first, and the header of the padding before it publishes both.
//!
//! # Giving back
//! The consumer's position counts lines from the ring's beginning of time on. It stands in shared memory for the producer only,
//! and lags: it is stored a quarter of a ring at a time, or an eighth when all was received. A message has at most a quarter of
//! a ring, padding is shorter than that, and so what lags never keeps out a message for good.
//!
//! # Sleeping
//! A consumer that is about to sleep sets its word, and then, behind a fence, looks at the ring once more; a producer publishes,
//! and then, behind a fence, looks at the word. At least one of the two sees the other. A producer that waits for room has a word,
//! too: it sets that, and looks at the position once more; a consumer gives lines back, and looks at the word.
//!
//! # Ending
//! That the producer has ended is told by others than the ring. A consumer asks for it first, and then looks at the ring: so what was
//! sent before the end is told before it ([`Batches`]).

mod batch;
mod consumer;
mod producer;
pub mod wire;

#[cfg(all(test, loom))]
mod loom_models;
#[cfg(test)]
mod tests;

pub use batch::{BATCH, Batches, End};
pub use consumer::{Consumer, Incoming};
pub use producer::{Outgoing, Producer};
pub use wire::{Corrupt, LINE, MAX_LINES, MAX_TAG, Memory, ring_len};
