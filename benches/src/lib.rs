//! Comparing two implementations on a machine that is noisy.
//!
//! ```text
//!   warm up ─▶ calibrate ─▶ A₀ B₀ A₁ B₁ A₂ … Bₙ₋₁ Aₙ
//!                              └─┬─┘
//!                   ratio₀ = mean(A₀, A₁) / B₀
//! ```
//!
//! Each measurement of B is compared with those of A right before and after it, so a clock that drifts or a neighbour
//! that wakes up hits both. What is reported is the median of these ratios and their spread; a benchmark asserts
//! nothing.

#![forbid(unsafe_code)]
// Its output is for the person who runs it.
#![allow(clippy::print_stdout)]

pub mod baseline;
pub mod command;
pub mod instructions;
pub mod interleave;
pub mod options;
pub mod processors;
pub mod report;
pub mod rows;
pub mod standing;

pub use command::Command;
pub use interleave::{Comparison, interleave, interleave_timed, timed};
pub use options::Options;
pub use report::{Report, Row};
pub use standing::{Standing, Standings, Target};
