//! A NIC, a cache of its registrations, and what was seen through them.

use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use ucs::mem::Access;
use ucs::rcache::{Cache, GetError, MemMonitor, Options};
use uct_conformance::nic::{Mr, Nic, NicRegistrar, RegisterError, Unavailable};

use super::Pattern;
use super::schemes::Announce;
use super::sys::{Block, Held};

/// Registrations of the NIC at once.
const SLOTS: u16 = 4096;
/// Bytes that the NIC may pin. Without CAP_IPC_LOCK it is less, often 8 MiB.
const PINNED: usize = 64 << 20;
/// How often a registration is tried that a limit forbids: others end meanwhile.
const TRIES: u32 = 100;

/// What is done through a registration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// The NIC reads what the processor wrote.
    Out,
    /// The processor reads what the NIC wrote.
    In,
}

/// What a region turned out to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Region {
    /// Of the cache: this registration.
    Cached(Mr),
    /// For that one use.
    OneShot,
    /// Refused.
    None,
}

/// Counts of all threads.
#[derive(Debug, Default)]
pub(super) struct Tally {
    pub(super) operations: AtomicU64,
    pub(super) corrupted: AtomicU64,
    pub(super) refused: AtomicU64,
    pub(super) changes: AtomicU64,
    pub(super) bystander_operations: AtomicU64,
    pub(super) bystander_one_shots: AtomicU64,
    pub(super) bystander_lost: AtomicU64,
}

pub(super) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

/// What all threads share.
#[derive(Debug)]
pub(super) struct World {
    pub(super) nic: Arc<Nic>,
    pub(super) cache: Cache<NicRegistrar>,
    pub(super) announce: Announce,
    pub(super) tally: Tally,
    pub(super) stop: AtomicBool,
    /// The first operation that went wrong.
    pub(super) first: OnceLock<String>,
    /// The first registration that was refused.
    pub(super) refusal: OnceLock<String>,
}

/// There is no NIC, or no memory for a cache.
#[derive(Debug)]
pub(super) enum NoWorld {
    Nic(Unavailable),
    Cache(ucs::mem::MemError),
}

impl World {
    pub(super) fn new(
        monitor: &'static dyn MemMonitor,
        options: Options,
        announce: Announce,
    ) -> Result<Self, NoWorld> {
        let nic = Arc::new(Nic::with_limit(SLOTS, PINNED).map_err(NoWorld::Nic)?);
        let cache = Cache::new(NicRegistrar(Arc::clone(&nic)), monitor, options).map_err(NoWorld::Cache)?;
        let (tally, stop) = (Tally::default(), AtomicBool::new(false));
        let (first, refusal) = (OnceLock::new(), OnceLock::new());
        Ok(Self { nic, cache, announce, tally, stop, first, refusal })
    }

    pub(super) fn is_over(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// One operation on the word at `at`, by a registration of the `span`: address and length. `tag` is new.
    pub(super) fn look(&self, look: &Look<'_>) -> Region {
        let Look { held, at, tag, way, .. } = *look;
        if way == Way::Out && !look.late && !look.as_is {
            held.write(at, tag);
        }
        let access = if way == Way::Out && look.read_only { Access::Read } else { Access::ReadWrite };
        // Of others' memory some may be missing.
        let whole = look.span.1 > held.len();
        let Some(region) = self.get(look.span, access, whole) else { return Region::None };
        let mr = *region;
        let (expected, seen) = match way {
            Way::Out => {
                if look.late && !look.as_is {
                    held.write(at, tag);
                }
                (held.read(at), self.nic.dma_out_u64(&mr, held.address(at)))
            }
            Way::In => (tag, held.dma_in(&self.nic, mr, at, tag).map(|()| held.read(at))),
        };
        let kind = if region.is_one_shot() { Region::OneShot } else { Region::Cached(mr) };
        drop(region);
        self.judge(look.pattern, (way, kind), held.address(at), expected, seen);
        kind
    }

    /// One operation on the word at `at` of a block, by a registration of the whole block.
    pub(super) fn look_at_block(&self, block: &Block, len: usize, at: usize, tag: u64, pattern: Pattern) {
        block.write(at, tag);
        let span = (block.address(), len);
        let Some(region) = self.get(span, Access::ReadWrite, false) else { return };
        let address = block.address() + at;
        let seen = self.nic.dma_out_u64(&region, address);
        let kind = if region.is_one_shot() { Region::OneShot } else { Region::Cached(*region) };
        drop(region);
        self.judge(pattern, (Way::Out, kind), address, tag, seen);
    }

    /// A registration; `None`: it is refused, which counts unless a part of it `may_be_missing`.
    fn get(
        &self,
        (address, len): (usize, usize),
        access: Access,
        may_be_missing: bool,
    ) -> Option<ucs::rcache::RegionRef<NicRegistrar>> {
        for attempt in 0.. {
            let error = match self.cache.get(address, len, access) {
                Ok(region) => return Some(region),
                Err(GetError::Register(RegisterError::Fault)) if may_be_missing => return None,
                Err(error) => error,
            };
            let for_now = matches!(
                error,
                GetError::Register(
                    RegisterError::MemLock { .. } | RegisterError::Full { .. } | RegisterError::Limit { .. }
                )
            );
            if !for_now || attempt == TRIES || self.is_over() {
                count(&self.tally.refused);
                self.refusal.get_or_init(|| error.to_string());
                break;
            }
            thread::sleep(Duration::from_millis(1));
        }
        None
    }

    fn judge(
        &self,
        pattern: Pattern,
        (way, kind): (Way, Region),
        address: usize,
        expected: u64,
        seen: Result<u64, uct_conformance::nic::DmaError>,
    ) {
        count(&self.tally.operations);
        if seen == Ok(expected) {
            return;
        }
        count(&self.tally.corrupted);
        self.first.get_or_init(|| {
            let seen = match seen {
                Ok(tag) => format!("{} was there", tag_in_words(tag)),
                Err(error) => error.to_string(),
            };
            let way = match way {
                Way::Out => "the NIC read",
                Way::In => "the NIC wrote",
            };
            let kind = if kind == Region::OneShot { "one-shot" } else { "cached" };
            format!(
                "{pattern}: {way} at {address:#x} by a {kind} registration: not {}: {seen}",
                tag_in_words(expected)
            )
        });
    }
}

/// An operation.
#[derive(Clone, Copy, Debug)]
pub(super) struct Look<'a> {
    pub(super) pattern: Pattern,
    pub(super) held: &'a Held,
    pub(super) at: usize,
    pub(super) tag: u64,
    pub(super) way: Way,
    /// What is registered: address and length.
    pub(super) span: (usize, usize),
    /// The tag is written after the registration is there.
    pub(super) late: bool,
    /// Nothing is written: what is there is to be seen.
    pub(super) as_is: bool,
    /// A registration to read suffices.
    pub(super) read_only: bool,
}

/// Bits of a tag that count.
const COUNT: u32 = 48;

/// A tag: whose, and which one.
pub(super) fn tag(thread: usize, count: u64) -> u64 {
    (thread as u64 + 1) << COUNT | count
}

fn tag_in_words(tag: u64) -> String {
    match tag >> COUNT {
        0 => format!("{tag:#x}"),
        thread => format!("tag {} of thread {thread}", tag & ((1 << COUNT) - 1)),
    }
}
