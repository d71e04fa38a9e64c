//! The index of the registration cache against what the standard library offers: a B-tree, and a sorted array searched by halving.
//!
//! 100,000 ranges of 1 to 64 pages with gaps of as many. *random*: any page of any range, each lookup independent of the one before.
//! *after one another*: the same, but each waits for the one before. *hot*: one page again and again.
//!
//! ```text
//! cargo bench -p rucx-benches --bench rcache_index -- [--json] [--samples N] [--sample-us N] [words a row's name contains]
//! ```

#![allow(clippy::print_stdout)]

use std::collections::BTreeMap;
use std::hint::black_box;
use std::process::ExitCode;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Instant;

use rucx_benches::{Comparison, Options, Standing, Standings, Target, interleave, interleave_timed, timed};
use ucs::mem::page::PageRange;
use ucs::rcache::index::Index;
use ucs::sync::{AtomicBool, AtomicU32, Ordering};

const RANGES: u32 = 100_000;
const PAGE: usize = 4096;

/// Lookups are taken from so many, in turn: several for each leaf, and few enough to leave the cache to the index.
const LOOKUPS: usize = 1 << 14;

fn main() -> ExitCode {
    let options = match Options::parse(std::env::args().skip(1)) {
        Ok(options) => options,
        Err(why) => {
            println!("{why}");
            return ExitCode::FAILURE;
        }
    };
    let bench = Bench::new(options);
    let standings = bench.run();
    if bench.options.json {
        println!("{}", standings.to_json());
    } else {
        let each = bench.index.touched_bytes() as f64 / f64::from(RANGES);
        println!("{standings}\n{RANGES} ranges, {each:.1} bytes each");
    }
    ExitCode::SUCCESS
}

/// A sequence that is the same at every run.
struct Random(u64);

impl Random {
    fn next(&mut self, below: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % below
    }
}

struct Bench {
    options: Options,
    index: Arc<Index>,
    /// First page; behind the last page, and slot.
    tree: BTreeMap<usize, (usize, u32)>,
    starts: Vec<usize>,
    rest: Vec<(usize, u32)>,
    random: Vec<usize>,
    hot: Vec<usize>,
}

impl Bench {
    fn new(options: Options) -> Self {
        let mut random = Random(1);
        let mut start = 0x7f00_0000_0000;
        let mut ranges: Vec<PageRange> = Vec::new();
        for _ in 0..RANGES {
            let end = start + PAGE * (1 + random.next(64));
            ranges.extend(PageRange::new(start, end));
            start = end + PAGE * random.next(64);
        }
        // As they come, not in order: leaves are then as full as they usually are.
        (1..ranges.len()).for_each(|at| ranges.swap(at, random.next(at + 1)));
        let index = Index::new(RANGES + 1000).expect("memory");
        let mut tree = BTreeMap::new();
        for (range, slot) in ranges.iter().zip(0..) {
            index.lock().insert(*range, slot).expect("room");
            tree.insert(range.start(), (range.end(), slot));
        }
        let lookups = (0..LOOKUPS).map(|_| {
            let range = ranges[random.next(ranges.len())];
            range.start() + random.next(range.len())
        });
        let lookups: Vec<usize> = lookups.collect();
        Self {
            options,
            index: Arc::new(index),
            starts: tree.keys().copied().collect(),
            rest: tree.values().copied().collect(),
            tree,
            hot: vec![lookups[0]; LOOKUPS],
            random: lookups,
        }
    }

    #[inline(always)]
    fn find(&self, address: usize) -> Option<u32> {
        self.index.find(address).map(|hit| hit.slot)
    }

    #[inline(always)]
    fn find_settled(&self, address: usize) -> Option<u32> {
        let version = self.index.version();
        let found = self.index.find(address);
        if self.index.settled_since(version) { found.map(|hit| hit.slot) } else { None }
    }

    #[inline(always)]
    fn find_in_tree(&self, address: usize) -> Option<u32> {
        let (end, slot) = self.tree.range(..=address).next_back()?.1;
        (address < *end).then_some(*slot)
    }

    #[inline(always)]
    fn find_in_array(&self, address: usize) -> Option<u32> {
        let at = self.starts.partition_point(|start| *start <= address).checked_sub(1)?;
        let (end, slot) = self.rest[at];
        (address < end).then_some(slot)
    }

    fn run(&self) -> Standings {
        let (tree, array) = ("BTreeMap", "sorted array");
        let (random, hot) = (self.random.as_slice(), self.hot.as_slice());
        let index = |addresses| lookups(addresses, |address| self.find(address));
        let settled = |addresses| lookups(addresses, |address| self.find_settled(address));
        let in_tree = |addresses| lookups(addresses, |address| self.find_in_tree(address));
        let in_array = |addresses| lookups(addresses, |address| self.find_in_array(address));
        let chain = || lookups_in_turn(random, |address| self.find(address));
        let mut rows = Rows { options: &self.options, rows: Vec::new() };
        rows.add_alone("random, alone, p10", tree, 15.0, || (index(random), in_tree(random)));
        rows.add_alone("random, alone, p10", array, 15.0, || (index(random), in_array(random)));
        rows.add_alone("hot, alone, p10", tree, 10.0, || (index(hot), in_tree(hot)));
        rows.add_alone("hot, alone, p10", array, 10.0, || (index(hot), in_array(hot)));
        rows.add("random, by turns", tree, None, || (index(random), in_tree(random)));
        rows.add("random, by turns", array, None, || (index(random), in_array(random)));
        rows.add("random, version checked", "unchecked", None, || (settled(random), index(random)));
        rows.add("random, after one another", array, None, || {
            (chain(), lookups_in_turn(random, |address| self.find_in_array(address)))
        });
        let invalidation = || {
            let mut of = cycle(random);
            move |iterations: u64| {
                for _ in 0..iterations {
                    let writer = self.index.lock();
                    let range = PageRange::containing(of(), PAGE);
                    range.into_iter().for_each(|range| {
                        writer.overlapping(range, |_, slot| {
                            black_box(slot);
                        })
                    });
                }
            }
        };
        rows.add("overlapping one page", "find", None, || (invalidation(), index(random)));
        rows.add("insert and remove", "find", None, || {
            let mut of = cycle(random);
            let replace = move |iterations: u64| {
                for _ in 0..iterations {
                    let mut writer = self.index.lock();
                    let page = PageRange::containing(of(), 1).and_then(|page| writer.ranges(page).next());
                    if let Some((range, slot)) = page {
                        writer.remove(range);
                        let _ = black_box(writer.insert(range, slot));
                    }
                }
            };
            (replace, index(random))
        });
        for (name, other) in [
            ("random, another reads", Other::Reads),
            ("random, another writes", Other::Writes),
            ("random, version checked, another writes", Other::Writes),
        ] {
            if self.options.wants(name) {
                let thread = Beside::start(Arc::clone(&self.index), self.random.clone(), other);
                let checked = name.contains("checked");
                let find = |address| if checked { self.find_settled(address) } else { self.find(address) };
                let (mut beside, mut alone) = (timed(lookups_or_less(random, find)), timed(index(random)));
                let comparison = interleave_timed(
                    &self.options,
                    |n| {
                        thread.work(true);
                        beside(n)
                    },
                    |n| {
                        thread.work(false);
                        alone(n)
                    },
                );
                rows.push(name, "alone", None, comparison);
            }
        }
        Standings(rows.rows)
    }
}

struct Rows<'a> {
    options: &'a Options,
    rows: Vec<Standing>,
}

impl Rows<'_> {
    fn add<A: FnMut(u64), B: FnMut(u64)>(
        &mut self,
        name: &str,
        reference: &str,
        target: Option<Target>,
        sides: impl FnOnce() -> (A, B),
    ) {
        if self.options.wants(name) {
            let (a, b) = sides();
            self.push(name, reference, target, interleave(self.options, a, b));
        }
    }

    /// Not by turns, where each would find its memory gone from the cache: one, then the other. Their fastest tenth, which others on the
    /// machine disturbed least.
    fn add_alone<A: FnMut(u64), B: FnMut(u64)>(
        &mut self,
        name: &str,
        reference: &str,
        target: f64,
        sides: impl FnOnce() -> (A, B),
    ) {
        if self.options.wants(name) {
            let (mut a, mut b) = sides();
            let (a_ns, b_ns) = (tenth(self.options, &mut a), tenth(self.options, &mut b));
            let ratio = a_ns / b_ns;
            let comparison = Comparison { a_ns, b_ns, ratio, ratio_low: ratio, ratio_high: ratio };
            self.push(name, reference, Some(Target::Nanoseconds(target)), comparison);
        }
    }

    fn push(&mut self, name: &str, reference: &str, target: Option<Target>, comparison: Comparison) {
        self.rows.push(Standing {
            name: name.to_owned(),
            reference: reference.to_owned(),
            comparison,
            target,
        });
    }
}

/// The 10th percentile of many short measurements, in nanoseconds of an iteration.
fn tenth(options: &Options, run: &mut impl FnMut(u64)) -> f64 {
    const ITERATIONS: u64 = 2000;
    let mut times: Vec<f64> = Vec::new();
    for _ in 0..10 * options.samples {
        let start = Instant::now();
        run(ITERATIONS);
        times.push(start.elapsed().as_nanos() as f64 / ITERATIONS as f64);
    }
    times.sort_by(f64::total_cmp);
    times[times.len() / 10]
}

/// One after the other, and again from the beginning. Each call starts elsewhere: of two that are measured by turns, neither is to
/// find in the cache what the other has just looked for.
fn cycle(addresses: &[usize]) -> impl FnMut() -> usize {
    static STARTS: AtomicU32 = AtomicU32::new(0);
    let mut at = STARTS.fetch_add(7777, Ordering::Relaxed) as usize % LOOKUPS;
    move || {
        at = (at + 1) % LOOKUPS;
        addresses[at]
    }
}

/// Finds what is there.
fn lookups(addresses: &[usize], find: impl Fn(usize) -> Option<u32>) -> impl FnMut(u64) {
    let mut of = cycle(addresses);
    move |iterations| {
        let mut sum = 0_u64;
        for _ in 0..iterations {
            sum += u64::from(find(of()).expect("it is there"));
        }
        black_box(sum);
    }
}

/// Where what is looked for may be away for a moment.
fn lookups_or_less(addresses: &[usize], find: impl Fn(usize) -> Option<u32>) -> impl FnMut(u64) {
    let mut of = cycle(addresses);
    move |iterations| {
        let mut sum = 0_u64;
        for _ in 0..iterations {
            sum += u64::from(find(of()).unwrap_or(0));
        }
        black_box(sum);
    }
}

/// Each lookup's address depends on what the one before found.
fn lookups_in_turn(addresses: &[usize], find: impl Fn(usize) -> Option<u32>) -> impl FnMut(u64) {
    let mut of = cycle(addresses);
    let zero = black_box(0);
    move |iterations| {
        let mut last = 0_u32;
        for _ in 0..iterations {
            last = find(of() + (last as usize & zero)).expect("it is there");
        }
        black_box(last);
    }
}

/// What the other thread does.
#[derive(Clone, Copy)]
enum Other {
    Reads,
    Writes,
}

const ENDS: u32 = 2;

/// Another thread, which works when it is told.
struct Beside {
    order: Arc<AtomicU32>,
    works: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Beside {
    fn start(index: Arc<Index>, addresses: Vec<usize>, other: Other) -> Self {
        let (order, works) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicBool::new(false)));
        let (ordered, working) = (Arc::clone(&order), Arc::clone(&works));
        let thread = std::thread::spawn(move || {
            let mut of = cycle(&addresses);
            loop {
                let order = ordered.load(Ordering::Relaxed);
                working.store(order == 1, Ordering::Relaxed);
                match order {
                    0 => std::thread::yield_now(),
                    1 => work(&index, other, &mut of),
                    _ => break,
                }
            }
        });
        Self { order, works, thread: Some(thread) }
    }

    /// Has it work or not, from now on.
    fn work(&self, works: bool) {
        self.order.store(u32::from(works), Ordering::Relaxed);
        while self.works.load(Ordering::Relaxed) != works {
            std::thread::yield_now();
        }
    }
}

impl Drop for Beside {
    fn drop(&mut self) {
        self.order.store(ENDS, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// A few microseconds of it.
fn work(index: &Index, other: Other, of: &mut impl FnMut() -> usize) {
    for _ in 0..16 {
        let address = of();
        match other {
            Other::Reads => {
                black_box(index.find(address));
            }
            Other::Writes => {
                let mut writer = index.lock();
                let found = PageRange::containing(address, 1).and_then(|page| writer.ranges(page).next());
                if let Some((range, slot)) = found {
                    writer.remove(range);
                    let _ = black_box(writer.insert(range, slot));
                }
            }
        }
    }
}
