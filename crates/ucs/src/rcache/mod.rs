//! The registration cache: registrations that behave as if they were bound to the address.

pub mod word;
