//! Choices between ways of doing the same thing: pure functions of sizes, limits and costs.

mod message;
mod operand;
mod rank;

pub(crate) use message::{Data, Message, data, message, read_from};
pub(crate) use operand::{Operand, operand};
pub(crate) use rank::{TYPICAL, rank};
