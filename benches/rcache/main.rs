//! What the registration cache costs: a hit, a hit that the kernel checks, a miss, and hits beside others.
//!
//! The registrar registers nothing, so that what is measured is the cache. *checked*: memory of this process that the monitor
//! watches, asked for in strict mode. *unchecked*: a monitor that always says yes, as under hooks.
//!
//! ```text
//! cargo bench -p rucx-benches --bench rcache -- [--json] [--samples N] [--sample-us N] [words a row's name contains]
//! ```

#![allow(clippy::print_stdout)]

use std::convert::Infallible;
use std::hint::black_box;
use std::process::ExitCode;
use std::sync::Arc;

use rucx_benches::{Options, Standing, Standings, Target, interleave_timed, timed};
use ucs::mem::page::PageRange;
use ucs::mem::{Access, Mapping};
use ucs::monitor::Monitor;
use ucs::rcache::{self, Cache, MemMonitor, Mode, Registrar};
use ucs::sync::{AtomicBool, Ordering, Word64};
use uct_conformance::Blind;

/// Registers nothing.
struct Nothing;

impl Registrar for Nothing {
    type Handle = usize;
    type Error = Infallible;

    fn register(&self, range: PageRange, _access: Access) -> Result<usize, Infallible> {
        Ok(range.start())
    }

    fn deregister(&self, _handle: usize) {}
}

const PAGE: usize = 4096;
const REGIONS: usize = 100_000;

fn cache(monitor: &'static dyn MemMonitor, mode: Mode, regions: u32) -> Cache<Nothing> {
    let mut options = rcache::Options::default();
    (options.mode, options.max_regions, options.max_bytes) = (mode, regions, u64::MAX);
    Cache::new(Nothing, monitor, options).expect("memory")
}

/// Regions of a page each, two pages apart, at addresses that nobody touches.
fn address(number: usize) -> usize {
    (1 << 44) + number * 2 * PAGE
}

fn main() -> ExitCode {
    let options = match Options::parse(std::env::args().skip(1)) {
        Ok(options) => options,
        Err(why) => {
            println!("{why}");
            return ExitCode::FAILURE;
        }
    };
    let json = options.json;
    let standings = measure(&options);
    if json {
        println!("{}", standings.to_json());
    } else {
        println!("{standings}");
    }
    ExitCode::SUCCESS
}

fn measure(options: &Options) -> Standings {
    let mut standings = Standings::default();
    let mut row = |name: &str, target: Option<Target>, ours: &mut dyn FnMut(u64)| {
        if !options.wants(name) {
            return;
        }
        let word = Word64::new(0);
        let reference = timed(|n| {
            (0..n).for_each(|_| {
                let _ = black_box(word.fetch_add(1, Ordering::AcqRel));
            })
        });
        let comparison = interleave_timed(options, timed(ours), reference);
        standings.0.push(Standing {
            name: name.to_owned(),
            reference: "fetch_add".to_owned(),
            comparison,
            target,
        });
    };
    let get = |cache: &Cache<Nothing>, address: usize, len: usize| {
        drop(black_box(cache.get(black_box(address), len, Access::Read).expect("registered")));
    };

    let quiet = cache(&Blind, Mode::Hooks, 2 * 100_000);
    (0..REGIONS).for_each(|number| get(&quiet, address(number), 100));
    row("hit, hot", Some(Target::Nanoseconds(10.0)), &mut |n| {
        (0..n).for_each(|_| get(&quiet, address(7), 100));
    });
    let mut random = 1_usize;
    row("hit, random of 100,000", Some(Target::Nanoseconds(75.0)), &mut |n| {
        for _ in 0..n {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            get(&quiet, address((random >> 33) % REGIONS), 100);
        }
    });

    let stop = Arc::new(AtomicBool::new(false));
    let beside = {
        let (quiet, stop) = (quiet.clone(), Arc::clone(&stop));
        std::thread::spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                drop(black_box(quiet.get(address(9), 100, Access::Read).expect("registered")));
            }
        })
    };
    row("hit, hot, beside another thread's hits", None, &mut |n| {
        (0..n).for_each(|_| get(&quiet, address(7), 100));
    });
    stop.store(true, Ordering::Relaxed);
    drop(beside.join());

    let checked = cache(Monitor::process(), Mode::Strict, 1024);
    let memory = Mapping::anonymous(64 * PAGE).expect("memory");
    memory.bytes().write(0, &[1; 64 * PAGE]).expect("within");
    let at = memory.bytes().as_ptr().addr();
    get(&checked, at, 64 * PAGE);
    row("hit, checked", Some(Target::Nanoseconds(1010.0)), &mut |n| {
        (0..n).for_each(|_| get(&checked, at, 64 * PAGE));
    });

    let misses = cache(&Blind, Mode::Hooks, 1024);
    row("miss and invalidation", Some(Target::Nanoseconds(3000.0)), &mut |n| {
        for _ in 0..n {
            get(&misses, address(3), 100);
            misses.purge();
        }
    });
    standings
}
