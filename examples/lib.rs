//! The programs of this folder are cargo examples: `cargo run --example host | cargo run --example dpu`.
