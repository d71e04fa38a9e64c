//! The packed handle: its bytes, and what an import makes of bytes that were changed on the way. And the formats of workers.

#[path = "wire/decoder.rs"]
mod decoder;
#[path = "wire/golden.rs"]
mod golden;
#[path = "wire/import.rs"]
mod import;
#[path = "wire/import_mutated.rs"]
mod import_mutated;
#[path = "wire/support.rs"]
mod support;
#[path = "wire/workers.rs"]
mod workers;
