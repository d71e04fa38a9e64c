//! Memfds.
