//! Trace events whose disabled levels cost nothing.
//!
//! rucx reports through [`tracing`](https://docs.rs/tracing) and never installs a subscriber: without one nothing is
//! printed, and the program that uses rucx decides where events go.
//!
//! | level | used for | path |
//! |---|---|---|
//! | `error` | something is broken and stays so: a worker's device is gone, an invariant does not hold | control |
//! | `warn` | it works, but not as asked: a misspelt variable, a transport that had to be left out | control |
//! | `info` | what was chosen, a few lines per context: transports, devices, the memory monitor | control |
//! | `debug` | each object's life: regions, exports, imports, endpoints, and why a candidate was refused | control |
//! | `trace` | steps inside one of these | control |
//! | [`trace_data!`](crate::trace_data) | operations: every put, get, message, completion, cache lookup | data |
//!
//! Events carry no tokens, keys or user data, only names, addresses and numbers.
//!
//! A disabled `tracing` event still costs a load and a branch, and an enabled one at the wrong place an allocation. The data
//! path therefore has its own macro, which is compiled out with its arguments unless the feature `trace-data` of this crate
//! is on. With the feature, its events have the level `trace` and the module of the caller as target.

/// Whether data-path events are compiled in: the feature `trace-data`.
pub const DATA: bool = cfg!(feature = "trace-data");

/// Emits a data-path event, as `tracing::trace!` with the same arguments, if the feature `trace-data` of `ucs` is on.
///
/// Off, which is the default: the arguments are checked by the compiler, never evaluated, and leave no code.
///
/// ```
/// let (addr, len) = (0x1000_u64, 64);
/// ucs::trace_data!(addr, len, "put");
/// ucs::trace_data!("put of {len} bytes");
/// ```
#[macro_export]
macro_rules! trace_data {
    ($($event:tt)+) => {
        // A constant of this crate: `cfg!` here would ask for a feature of the caller's.
        if $crate::log::DATA {
            $crate::log::__tracing::trace!($($event)+);
        }
    };
}

#[doc(hidden)]
pub use tracing as __tracing;

#[cfg(test)]
pub(crate) mod capture {
    //! A subscriber that keeps what it is told, for tests.

    use std::fmt::{Debug, Write};
    use std::sync::Arc;

    use parking_lot::Mutex;
    use tracing::field::{Field, Visit};
    use tracing::span::{Attributes, Id, Record};
    use tracing::{Event, Level, Metadata, Subscriber};

    /// Level and fields of an event.
    pub(crate) type Captured = (Level, String);

    /// Runs `f`, and returns the events of this thread during it.
    pub(crate) fn captured<R>(f: impl FnOnce() -> R) -> (R, Vec<Captured>) {
        let events = Arc::default();
        let result = tracing::subscriber::with_default(Capture(Arc::clone(&events)), f);
        let events = std::mem::take(&mut *events.lock());
        (result, events)
    }

    struct Capture(Arc<Mutex<Vec<Captured>>>);

    impl Subscriber for Capture {
        fn enabled(&self, _: &Metadata<'_>) -> bool {
            true
        }

        fn new_span(&self, _: &Attributes<'_>) -> Id {
            Id::from_u64(1)
        }

        fn record(&self, _: &Id, _: &Record<'_>) {}

        fn record_follows_from(&self, _: &Id, _: &Id) {}

        fn event(&self, event: &Event<'_>) {
            let mut text = Text(String::new());
            event.record(&mut text);
            self.0.lock().push((*event.metadata().level(), text.0));
        }

        fn enter(&self, _: &Id) {}

        fn exit(&self, _: &Id) {}
    }

    struct Text(String);

    impl Visit for Text {
        fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
            write!(self.0, "{}={value:?} ", field.name()).expect("a String takes everything");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::capture::captured;

    #[test]
    fn the_constant_is_the_feature() {
        assert_eq!(super::DATA, cfg!(feature = "trace-data"));
    }

    #[test]
    fn arguments_are_evaluated_and_events_emitted_with_the_feature_only() {
        let evaluated = Cell::new(0);
        let length = || {
            evaluated.set(evaluated.get() + 1);
            64
        };
        let ((), events) = captured(|| {
            crate::trace_data!(len = length(), "put");
            crate::trace_data!("put of {} bytes", length());
        });
        if cfg!(feature = "trace-data") {
            assert_eq!(evaluated.get(), 2);
            assert_eq!(events.len(), 2);
            assert!(events.iter().all(|(level, _)| *level == tracing::Level::TRACE), "{events:?}");
            assert!(events[0].1.contains("len=64") && events[1].1.contains("put of 64 bytes"), "{events:?}");
        } else {
            assert_eq!(evaluated.get(), 0);
            assert_eq!(events, []);
        }
    }

    #[test]
    fn control_path_events_are_emitted_whatever_the_feature() {
        let ((), events) = captured(|| tracing::debug!("region mapped"));
        assert_eq!(events.len(), 1);
    }
}
