//! Many threads at once, against a model.
//!
//! Every word ever written to a region names it in its upper half, so that a read tells whose memory it reached.

use std::sync::Arc;
use std::thread;

use parking_lot::Mutex;
use testkit::Rng;
use ucs::sync::{AtomicBool, Ordering};
use uct::api::{AttachError, Attachment};
use uct::memory::AccessError;

use crate::bench::{Bench, assert_holds};
use crate::exporter::{Region, Ticket};
use crate::fixture::{Place, pattern};
use crate::{Check, list};

pub(crate) const CHECKS: &[Check] = list![concurrent:
    threads_share_one_attachment in Everywhere,
    threads_attach_one_key in Everywhere,
    everything_at_once in Everywhere,
];

const THREADS: usize = 8;
const REGIONS: u32 = 8;
const WORDS: usize = 512;

fn threads_share_one_attachment(bench: &Bench) {
    const PART: usize = 1000;
    let (region, _, attachment) = bench.attached(THREADS * PART, 9);
    thread::scope(|scope| {
        for index in 0..THREADS {
            let attachment = &attachment;
            scope.spawn(move || {
                let at = (index * PART) as u64;
                let mut back = vec![0; PART];
                for round in 0..200 {
                    let mine = pattern(round + at, PART);
                    attachment.write(at, &mine).unwrap();
                    attachment.read(at, &mut back).unwrap();
                    assert!(back == mine, "thread {index}, round {round}");
                }
            });
        }
    });
    for index in 0..THREADS {
        let at = (index * PART) as u64;
        assert!(bench.exporter.read(region, at, PART) == pattern(199 + at, PART));
    }
}

fn threads_attach_one_key(bench: &Bench) {
    let ticket = bench.exporter.export(bench.region(5000, 9));
    thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                for _ in 0..50 {
                    assert_holds(&*bench.attach(&ticket), 9);
                }
            });
        }
    });
}

/// An export that the threads know of.
#[derive(Debug)]
struct Known {
    ticket: Ticket,
    tag: u32,
    attachment: Mutex<Option<Arc<dyn Attachment>>>,
    /// Set before it is revoked, ...
    revoking: AtomicBool,
    /// ... and after that was answered.
    revoked: AtomicBool,
}

struct Model<'a> {
    bench: &'a Bench,
    regions: Vec<Region>,
    known: Mutex<Vec<Arc<Known>>>,
}

fn word(tag: u32, count: u32) -> [u8; 8] {
    (u64::from(tag) << 32 | u64::from(count)).to_ne_bytes()
}

/// What did not hold.
type Verdict = Result<(), String>;

fn hold(condition: bool, what: &str) -> Verdict {
    if condition { Ok(()) } else { Err(what.to_owned()) }
}

fn all_of(tag: u32, bytes: &[u8]) -> Verdict {
    bytes.chunks_exact(8).try_for_each(|chunk| {
        let word = u64::from_ne_bytes(chunk.try_into().unwrap());
        hold(word >> 32 == u64::from(tag), "a word of another region")
    })
}

impl Model<'_> {
    fn pick(&self, rng: &mut Rng) -> Arc<Known> {
        let known = self.known.lock();
        Arc::clone(&known[rng.below(known.len())])
    }

    fn publish(&self, rng: &mut Rng) -> Arc<Known> {
        let tag = rng.below(self.regions.len());
        let ticket = self.bench.exporter.export(self.regions[tag]);
        Arc::new(Known {
            ticket,
            tag: u32::try_from(tag).unwrap(),
            attachment: Mutex::default(),
            revoking: AtomicBool::new(false),
            revoked: AtomicBool::new(false),
        })
    }

    fn attach(&self, known: &Known) -> Verdict {
        let late = known.revoked.load(Ordering::Acquire);
        match self.bench.try_attach(&known.ticket) {
            Ok(attachment) => {
                *known.attachment.lock() = Some(attachment);
                hold(!late, "attached after it was revoked")
            }
            Err(AttachError::Stale(_)) => {
                hold(known.revoking.load(Ordering::Acquire), "stale, and not revoked")
            }
            Err(error) => Err(error.to_string()),
        }
    }

    fn access(&self, known: &Known, rng: &mut Rng, counter: u32) -> Verdict {
        let Some(attachment) = known.attachment.lock().clone() else { return Ok(()) };
        let count = if rng.below(2) == 0 { 1 } else { 1 + rng.below(WORDS) };
        let at = 8 * rng.below(WORDS - count + 1) as u64;
        let late = known.revoked.load(Ordering::Acquire);
        let answer = if rng.below(2) == 0 {
            let mut bytes = vec![0; 8 * count];
            let answer = attachment.read(at, &mut bytes);
            if answer.is_ok() {
                all_of(known.tag, &bytes)?;
            }
            answer
        } else {
            attachment.write(at, &word(known.tag, counter).repeat(count))
        };
        match answer {
            Ok(()) => hold(!late, "an access succeeds after it was revoked"),
            Err(AccessError::Stale { .. }) => {
                hold(known.revoking.load(Ordering::Acquire), "stale, and not revoked")
            }
            Err(error) => Err(error.to_string()),
        }
    }

    fn revoke(&self, known: &Known) {
        known.revoking.store(true, Ordering::Release);
        self.bench.exporter.revoke(&known.ticket);
        known.revoked.store(true, Ordering::Release);
    }

    fn operate(&self, rng: &mut Rng, counter: u32) -> Verdict {
        let known = self.pick(rng);
        match rng.below(100) {
            0..8 => {
                let new = self.publish(rng);
                let mut all = self.known.lock();
                if all.len() < 64 {
                    all.push(new);
                } else {
                    // One that is forgotten lives on in the exporter, unless it was revoked.
                    let at = rng.below(64);
                    all[at] = new;
                }
            }
            8..23 => self.attach(&known)?,
            23..28 => self.revoke(&known),
            28..31 => *known.attachment.lock() = None,
            _ => self.access(&known, rng, counter)?,
        }
        Ok(())
    }
}

fn everything_at_once(bench: &Bench) {
    let operations = if bench.place == Place::TwoProcesses { 400 } else { 2000 };
    let fill = |tag: u32| {
        let region = bench.region(8 * WORDS, 0);
        bench.exporter.write(region, 0, &word(tag, 0).repeat(WORDS));
        region
    };
    let model = Model { bench, regions: (0..REGIONS).map(fill).collect(), known: Mutex::default() };
    let mut rng = Rng::new(testkit::seed() ^ 0x636f_6e63);
    let first: Vec<_> = (0..8).map(|_| model.publish(&mut rng)).collect();
    *model.known.lock() = first;
    let verdicts = thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|_| {
                let (mut rng, model) = (Rng::new(rng.next_u64()), &model);
                scope.spawn(move || (0..operations).try_for_each(|counter| model.operate(&mut rng, counter)))
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
    });
    assert_eq!(verdicts, vec![Ok(()); THREADS]);
    let known = std::mem::take(&mut *model.known.lock());
    for known in &known {
        model.revoke(known);
        let attachment = known.attachment.lock().take();
        attachment.iter().for_each(|attachment| crate::bench::assert_revoked(&**attachment));
    }
    for (region, tag) in model.regions.iter().zip(0..) {
        assert_eq!(all_of(tag, &bench.exporter.read(*region, 0, 8 * WORDS)), Ok(()));
    }
}
