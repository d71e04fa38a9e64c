//! The cache with a monitor that does what a test tells it, and a registrar that counts.

mod bounds;
mod calls;
mod double;
mod forks;
mod lives;
mod merging;
mod races;
