//! Caches, and what is in them.
//!
//! The registrar registers nothing, so that what is measured is the cache. *checked*: memory of this process that the monitor
//! watches, asked for in strict mode. Otherwise a monitor that always says yes, as under hooks.

use std::convert::Infallible;
use std::hint::black_box;

use ucs::mem::page::PageRange;
use ucs::mem::{Access, Mapping};
use ucs::monitor::Monitor;
use ucs::rcache::{self, Cache, MemMonitor, Mode, RegionRef, Registrar};
use uct_conformance::Blind;

/// Registers nothing.
#[derive(Debug)]
pub(crate) struct Nothing;

impl Registrar for Nothing {
    type Handle = usize;
    type Error = Infallible;

    fn register(&self, range: PageRange, _access: Access) -> Result<usize, Infallible> {
        Ok(range.start())
    }

    fn deregister(&self, _handle: usize) {}
}

pub(crate) const PAGE: usize = 4096;

/// How many are registered.
pub(crate) const REGIONS: usize = 100_000;

pub(crate) fn cache(monitor: &'static dyn MemMonitor, mode: Mode, regions: u32) -> Cache<Nothing> {
    let mut options = rcache::Options::default();
    (options.mode, options.max_regions, options.max_bytes) = (mode, regions, u64::MAX);
    Cache::new(Nothing, monitor, options).expect("memory")
}

/// Regions of a page each, two pages apart, at addresses that nobody touches.
pub(crate) fn address(number: usize) -> usize {
    (1 << 44) + number * 2 * PAGE
}

/// Takes a reference to a registration.
#[inline(always)]
pub(crate) fn take(cache: &Cache<Nothing>, address: usize) -> RegionRef<Nothing> {
    cache.get(black_box(address), 100, Access::Read).expect("registered")
}

/// And gives it back.
#[inline(always)]
pub(crate) fn get(cache: &Cache<Nothing>, address: usize) {
    drop(black_box(take(cache, address)));
}

/// A cache with room for some more than [`REGIONS`].
pub(crate) fn full() -> Cache<Nothing> {
    let cache = cache(&Blind, Mode::Hooks, u32::try_from(REGIONS).unwrap_or(u32::MAX) + 1024);
    (0..REGIONS).for_each(|number| get(&cache, address(number)));
    cache
}

/// A cache that has hits checked, and memory that it has registered.
pub(crate) fn checked() -> (Cache<Nothing>, Mapping) {
    let cache = cache(Monitor::process(), Mode::Strict, 1024);
    let memory = mapping();
    get(&cache, start(&memory));
    (cache, memory)
}

/// A page that has been written.
pub(crate) fn mapping() -> Mapping {
    let memory = Mapping::anonymous(PAGE).expect("memory");
    memory.bytes().write(0, &[1; PAGE]).expect("within");
    memory
}

pub(crate) fn start(memory: &Mapping) -> usize {
    memory.bytes().as_ptr().addr()
}
