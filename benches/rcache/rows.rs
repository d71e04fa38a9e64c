//! What is measured.

use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rucx_benches::{Options, Standing, Standings, Target, interleave_timed, timed};
use ucs::mem::page::PageRange;
use ucs::rcache::{Cache, RegionRef};
use ucs::sync::{AtomicU32, Ordering, Word64};

use crate::world::{Nothing, PAGE, REGIONS, address, checked, full, get, mapping, start, take};

/// How many references are held before they are given back, where that is not measured.
const HELD: u64 = 512;

struct Rows {
    options: Options,
    standings: Standings,
}

impl Rows {
    /// Measures `ours` by turns with `reference`.
    fn against(
        &mut self,
        name: &str,
        target: Option<Target>,
        ours: impl FnMut(u64) -> Duration,
        (reference, theirs): (&str, impl FnMut(u64) -> Duration),
    ) {
        if self.options.wants(name) {
            let comparison = interleave_timed(&self.options, ours, theirs);
            let (name, reference) = (name.to_owned(), reference.to_owned());
            self.standings.0.push(Standing { name, reference, comparison, target });
        }
    }

    /// As [`Rows::against`] what each reference takes at least: an atomic addition.
    fn row(&mut self, name: &str, target: Option<f64>, ours: impl FnMut(u64) -> Duration) {
        let word = Word64::new(0);
        let add = |n| (0..n).for_each(|_| _ = black_box(word.fetch_add(1, Ordering::AcqRel)));
        self.against(name, target.map(Target::Nanoseconds), ours, ("fetch_add", timed(add)));
    }
}

/// Of `n` steps, so many at a time are timed; what `clear` does then is not.
fn in_parts<T>(n: u64, mut step: impl FnMut(u64) -> T, mut clear: impl FnMut(&mut Vec<T>)) -> Duration {
    let mut all = Vec::with_capacity(usize::try_from(HELD).unwrap_or(0));
    let mut time = Duration::ZERO;
    for from in (0..n).step_by(usize::try_from(HELD).unwrap_or(1)) {
        let begin = Instant::now();
        all.extend((from..n.min(from + HELD)).map(&mut step));
        time += begin.elapsed();
        clear(&mut all);
    }
    time
}

/// Takes references, and gives them back when that is not counted.
fn taking(cache: &Cache<Nothing>, address: &mut impl FnMut() -> usize, n: u64) -> Duration {
    in_parts(n, |_| take(cache, address()), Vec::clear)
}

/// Any of the registered ones.
fn random() -> impl FnMut() -> usize {
    let mut state = 1_usize;
    move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        address((state >> 33) % REGIONS)
    }
}

/// All rows, and how many bytes a registration takes.
pub(crate) fn measure(options: Options) -> (Standings, f64) {
    let mut rows = Rows { options, standings: Standings::default() };
    let before = resident();
    let full = full();
    let bytes = (resident() - before) / REGIONS as f64;
    hits(&mut rows, &full);
    threads(&mut rows, "hit, hot, another thread has its own", &full, address(7), address(9_000));
    changes(&mut rows, &full);
    with_the_kernel(&mut rows, &full);
    (rows.standings, bytes)
}

fn hits(rows: &mut Rows, full: &Cache<Nothing>) {
    rows.row("hit and reference, hot", Some(10.0), |n| taking(full, &mut || address(7), n));
    let mut any = random();
    rows.row("hit and reference, random of 100,000", Some(75.0), |n| taking(full, &mut any, n));
    rows.row("hit, reference, given back, hot", None, timed(|n| (0..n).for_each(|_| get(full, address(7)))));
    let mut any = random();
    rows.row("hit, reference, given back, random", None, timed(|n| (0..n).for_each(|_| get(full, any()))));
}

/// Hits of a thread while another has its own, and while that waits.
fn threads(rows: &mut Rows, name: &str, cache: &Cache<Nothing>, mine: usize, other: usize) {
    const WAIT: u32 = 0;
    const RUN: u32 = 1;
    const RUNS: u32 = 2;
    const END: u32 = 3;
    let state = Arc::new(AtomicU32::new(WAIT));
    let beside = {
        let (cache, state) = (cache.clone(), Arc::clone(&state));
        std::thread::spawn(move || {
            loop {
                match state.load(Ordering::Acquire) {
                    WAIT => std::thread::park(),
                    RUN => _ = state.compare_exchange(RUN, RUNS, Ordering::AcqRel, Ordering::Relaxed),
                    RUNS => (0..64).for_each(|_| get(&cache, other)),
                    _ => return,
                }
            }
        })
    };
    let hits = |n| (0..n).for_each(|_| get(cache, mine));
    let (mut alone, mut ours) = (timed(hits), timed(hits));
    rows.against(
        name,
        Some(Target::Ratio(1.1)),
        |n| {
            state.store(RUN, Ordering::Release);
            beside.thread().unpark();
            while state.load(Ordering::Acquire) != RUNS {
                std::thread::yield_now();
            }
            let time = ours(n);
            state.store(WAIT, Ordering::Release);
            time
        },
        ("alone", &mut alone),
    );
    state.store(END, Ordering::Release);
    beside.thread().unpark();
    drop(beside.join());
}

/// Registrations that come and go, among all the others.
fn changes(rows: &mut Rows, full: &Cache<Nothing>) {
    let new = |number: u64| address(REGIONS + usize::try_from(number % HELD).unwrap_or(0));
    let of = |address: usize| PageRange::new(address, address + PAGE).expect("a page");
    let all = PageRange::new(new(0), new(HELD - 1) + PAGE).expect("pages");
    let clear = |held: &mut Vec<RegionRef<Nothing>>| {
        held.clear();
        full.invalidate(all);
    };
    rows.row("miss", Some(3000.0), |n| in_parts(n, |number| take(full, new(number)), clear));
    rows.row("invalidation", None, |n| {
        let mut time = Duration::ZERO;
        for from in (0..n).step_by(usize::try_from(HELD).unwrap_or(1)) {
            let numbers = from..n.min(from + HELD);
            numbers.clone().for_each(|number| get(full, new(number)));
            let begin = Instant::now();
            numbers.for_each(|number| full.invalidate(of(new(number))));
            time += begin.elapsed();
        }
        time
    });
    rows.row(
        "miss and invalidation",
        None,
        timed(|n| {
            for number in 0..n {
                get(full, new(number));
                full.invalidate(of(new(number)));
            }
        }),
    );
}

/// What the kernel has a part in.
fn with_the_kernel(rows: &mut Rows, full: &Cache<Nothing>) {
    let (cache, memory) = checked();
    let at = start(&memory);
    rows.row("hit, checked", Some(1010.0), timed(|n| (0..n).for_each(|_| get(&cache, at))));
    let others = mapping();
    get(&cache, start(&others));
    threads(rows, "hit, checked, another thread has its own", &cache, at, start(&others));
    after_a_munmap(rows, "hit, hot, after a munmap elsewhere", (full, address(7)), None);
    after_a_munmap(rows, "hit, checked, after a munmap elsewhere", (&cache, at), None);
    after_a_munmap(rows, "hit, checked, after one of a registration", (&cache, at), Some(&cache));
}

/// One hit at a time, the clock's reading with it: after other memory was unmapped, which `registered` may have had, and before.
fn after_a_munmap(
    rows: &mut Rows,
    name: &str,
    (cache, address): (&Cache<Nothing>, usize),
    registered: Option<&Cache<Nothing>>,
) {
    let once = || {
        let begin = Instant::now();
        get(cache, address);
        begin.elapsed()
    };
    let prepare = |_| {
        let other = mapping();
        registered.into_iter().for_each(|cache| get(cache, start(&other)));
        once(); // so that both sides have the cache's own memory at hand
        other
    };
    let after = |n: u64| (0..n).map(prepare).map(drop).map(|()| once()).sum();
    let before = |n: u64| (0..n).map(prepare).map(|other| (once(), drop(other)).0).sum();
    rows.against(name, None, after, ("before it", before));
}

/// Bytes of memory that this process has.
fn resident() -> f64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    text.split(' ').nth(1).and_then(|pages| pages.parse::<f64>().ok()).unwrap_or(0.0) * PAGE as f64
}
