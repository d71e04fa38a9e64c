//! A monitor of memory that sees nothing: what a registration cache without protection has.

use std::sync::{Arc, LazyLock};

use ucs::mem::page::PageRange;
use ucs::monitor::{Backing, Refused, Signs, Sink, Verdict};
use ucs::rcache::MemMonitor;

/// Never tells of anything, and finds everything as it was.
#[derive(Clone, Copy, Debug)]
pub struct Blind;

impl MemMonitor for Blind {
    fn subscribe(&'static self, _: Arc<dyn Sink>) -> Option<Box<dyn Send + Sync>> {
        Some(Box::new(()))
    }

    fn watch(&self, _: PageRange) -> Result<Backing, Refused> {
        Ok(Backing::anonymous())
    }

    fn seq(&self) -> u64 {
        0
    }

    fn signs(&'static self) -> Option<&'static Signs> {
        static QUIET: LazyLock<Signs> = LazyLock::new(Signs::default);
        Some(&*QUIET)
    }

    fn check(&self, _: PageRange, _: Backing) -> Verdict {
        Verdict::Live
    }

    fn is_suspect(&self, _: PageRange) -> bool {
        false
    }
}
