//! Memory, a monitor of it, and what registers it: as a test says.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::mem::Access;
use crate::mem::page::{PageRange, page_size};
use crate::monitor::{Backing, Change, Refused, Sink, Verdict};
use crate::rcache::{Cache, MemMonitor, Options, RegionRef, Registrar};
use crate::sync::{AtomicBool, AtomicU64, Ordering};

/// Where the cache is when it asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum At {
    Seq,
    Watch,
    Check,
    Suspect,
    Register,
    Deregister,
}

type Step = Box<dyn FnOnce(&World) + Send>;

/// Whether something is to be refused.
type Refusal = Box<dyn Fn(PageRange, Access) -> bool + Send + Sync>;

/// Memory whose pages all change at once, and what is known of it.
pub(super) struct World {
    /// What is mapped now. A registration holds what was mapped when it was made.
    pub(super) page: AtomicU64,
    pub(super) seq: AtomicU64,
    /// Whether it can be hooked; whether hooks have announced everything.
    pub(super) hookable: AtomicBool,
    pub(super) announced: AtomicBool,
    sink: Mutex<Option<Arc<dyn Sink>>>,
    /// What happens when the cache is at a point: the first step, when it is that one's.
    script: Mutex<VecDeque<(At, Step)>>,
    /// What the next checks answer; then: live.
    pub(super) verdicts: Mutex<VecDeque<Verdict>>,
    pub(super) suspect: Mutex<Option<PageRange>>,
    pub(super) refuse_watch: Mutex<Option<(Refused, Option<PageRange>)>>,
    pub(super) refuse: Mutex<Option<Refusal>>,
    live: Mutex<BTreeMap<u64, (PageRange, Access)>>,
    pub(super) registered: AtomicU64,
    pub(super) deregistered: AtomicU64,
}

/// A registration.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Handle {
    pub(super) id: u64,
    /// What it holds.
    pub(super) page: u64,
    pub(super) access: Access,
}

pub(super) struct Counting(pub(super) &'static World);

/// Pages `[from, to)` of the memory.
pub(super) fn pages(from: usize, to: usize) -> PageRange {
    PageRange::new((16 + from) * page_size(), (16 + to) * page_size()).unwrap()
}

impl World {
    /// A new one, that stays. All are known from one place: none looks lost to LeakSanitizer, nor does what they keep.
    pub(super) fn new() -> &'static Self {
        static ALL: Mutex<Vec<&World>> = Mutex::new(Vec::new());
        let world: &'static Self = Box::leak(Box::new(Self {
            page: AtomicU64::new(1),
            seq: AtomicU64::new(0),
            hookable: AtomicBool::new(false),
            announced: AtomicBool::new(false),
            sink: Mutex::new(None),
            script: Mutex::new(VecDeque::new()),
            verdicts: Mutex::new(VecDeque::new()),
            suspect: Mutex::new(None),
            refuse_watch: Mutex::new(None),
            refuse: Mutex::new(None),
            live: Mutex::new(BTreeMap::new()),
            registered: AtomicU64::new(0),
            deregistered: AtomicU64::new(0),
        }));
        ALL.lock().push(world);
        world
    }

    pub(super) fn cache(&'static self, options: Options) -> Cache<Counting> {
        Cache::new(Counting(self), self, options).unwrap()
    }

    /// Has `step` happen when the cache is at `at`, after the steps before it.
    pub(super) fn then(&self, at: At, step: impl FnOnce(&World) + Send + 'static) {
        self.script.lock().push_back((at, Box::new(step)));
    }

    pub(super) fn script_is_over(&self) -> bool {
        self.script.lock().is_empty()
    }

    fn at(&self, at: At) {
        // Events of other memory come at any time. Where the cache holds its lock now, that hangs.
        if !matches!(at, At::Seq) {
            self.tell(pages(1 << 20, (1 << 20) + 1));
        }
        let mut script = self.script.lock();
        let step =
            if script.front().is_some_and(|(next, _)| *next == at) { script.pop_front() } else { None };
        drop(script);
        if let Some((_, step)) = step {
            step(self);
        }
    }

    /// Applies an event.
    pub(super) fn tell(&self, range: PageRange) {
        let sink = self.sink.lock().clone();
        if let Some(sink) = sink {
            sink.invalidate(range, Change::Unmapped);
        }
    }

    /// So many steps of reading and applying, of which nobody is told.
    pub(super) fn count(&self, steps: u64) {
        self.seq.fetch_add(steps, Ordering::SeqCst);
    }

    /// Other memory is mapped there, and the event of it is read and applied. The count is odd before: a check, which would find other
    /// memory until then, always says live here.
    pub(super) fn replace(&self, range: PageRange) {
        self.seq.fetch_add(1, Ordering::SeqCst);
        self.page.fetch_add(1, Ordering::SeqCst);
        self.tell(range);
        self.seq.fetch_add(1, Ordering::SeqCst);
    }

    pub(super) fn mapped(&self) -> u64 {
        self.page.load(Ordering::SeqCst)
    }

    pub(super) fn counts(&self) -> (u64, u64) {
        (self.registered.load(Ordering::SeqCst), self.deregistered.load(Ordering::SeqCst))
    }

    /// Whether a registration has not been ended.
    pub(super) fn is_live(&self, id: u64) -> bool {
        self.live.lock().contains_key(&id)
    }
}

impl MemMonitor for World {
    fn subscribe(&'static self, sink: Arc<dyn Sink>) -> Option<Box<dyn Send + Sync>> {
        struct Ended(&'static World);
        impl Drop for Ended {
            fn drop(&mut self) {
                drop(self.0.sink.lock().take());
            }
        }
        *self.sink.lock() = Some(sink);
        Some(Box::new(Ended(self)))
    }

    fn hook(&self) {
        self.announced.store(self.hookable.load(Ordering::SeqCst), Ordering::SeqCst);
    }

    fn announces(&self) -> bool {
        self.announced.load(Ordering::SeqCst)
    }

    fn watch(&self, range: PageRange) -> Result<Backing, Refused> {
        self.at(At::Watch);
        match *self.refuse_watch.lock() {
            Some((refused, within)) if within.is_none_or(|within| within.overlaps(range)) => Err(refused),
            _ => Ok(Backing::anonymous()),
        }
    }

    fn seq(&self) -> u64 {
        self.at(At::Seq);
        self.seq.load(Ordering::SeqCst)
    }

    fn check(&self, _: PageRange, _: Backing) -> Verdict {
        self.at(At::Check);
        self.verdicts.lock().pop_front().unwrap_or(Verdict::Live)
    }

    fn is_suspect(&self, range: PageRange) -> bool {
        self.at(At::Suspect);
        self.suspect.lock().is_some_and(|suspect| suspect.overlaps(range))
    }
}

impl Registrar for Counting {
    type Handle = Handle;
    type Error = &'static str;

    fn register(&self, range: PageRange, access: Access) -> Result<Handle, &'static str> {
        let Self(world) = self;
        if world.refuse.lock().as_ref().is_some_and(|refuse| refuse(range, access)) {
            return Err("refused");
        }
        let page = world.mapped();
        world.at(At::Register);
        let id = world.registered.fetch_add(1, Ordering::SeqCst);
        world.live.lock().insert(id, (range, access));
        Ok(Handle { id, page, access })
    }

    fn deregister(&self, handle: Handle) {
        let Self(world) = self;
        world.at(At::Deregister);
        assert!(world.live.lock().remove(&handle.id).is_some(), "ended once");
        world.deregistered.fetch_add(1, Ordering::SeqCst);
    }
}

/// As [`Cache::get`], of whole pages.
pub(super) fn get(cache: &Cache<Counting>, range: PageRange, access: Access) -> RegionRef<Counting> {
    cache.get(range.start(), range.len(), access).unwrap()
}

pub(super) fn wait_until(what: &str, done: impl Fn() -> bool) {
    let begin = Instant::now();
    while !done() {
        assert!(begin.elapsed() < Duration::from_secs(30), "in vain until {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}
