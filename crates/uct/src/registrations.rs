//! Registrations of operands: with the memory domains of a context that need them, kept in one registration cache.
//!
//! ```text
//!   put(offset, operand) ──▶ needs its memory domain memory registered?  ── no ──▶ Attachment::put
//!                                   │ yes
//!                                   ▼
//!                     Cache::get(address, len): a hit, or registered with all such memory domains
//!                                   ▼
//!                     Attachment::put, with the registration in the operand; then it is given back to the cache
//! ```
//!
//! Memory that was allocated here is registered once, by itself: it stays where it is.
//!
//! # Safety
//! An operand is given a registration (`Local::registered`) here only, for the time of one call: the cache was asked for
//! it while the operand was borrowed, and answers registrations of pages that were mapped there during that question. Or the operand is a part
//! of memory that was allocated here, is borrowed with it, and has a registration of its own. What is [`Held`] has both for as long as it lives.

#![allow(unsafe_code)]

mod held;

use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;
use std::{fmt, mem, ptr, thread};

use parking_lot::Mutex;
use ucs::Status;
use ucs::fork::{self, Generation};
use ucs::mem::page::PageRange;
use ucs::mem::{Access, MemError};
use ucs::monitor::Monitor;
use ucs::rcache::{self, Cache, GetError, MemMonitor, Mode, Options, Registrar, Stats};

use crate::api::{ComponentId, LocalMemh, Md, MdFlags, RegError};
use crate::memory::{AccessError, Local, LocalMem, LocalMut, OperandReason};

pub use held::Held;

/// An operand could not be registered.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RegisterError {
    /// No range of addresses.
    #[error("{len} bytes at {address:#x} are no range of addresses")]
    BadRange {
        /// Where it begins.
        address: usize,
        /// How many bytes.
        len: usize,
    },
    /// A memory domain that needs it could not register it.
    #[error("the operand cannot be registered with {component}: {error}")]
    Md {
        /// The component of that memory domain.
        component: ComponentId,
        /// Why.
        error: RegError,
    },
    /// It may not be used so, or is another process's.
    #[error(transparent)]
    Operand(#[from] AccessError),
    /// The cache could not be made.
    #[error("the registration cache cannot be made: {0}")]
    Cache(MemError),
    /// What the operation needs was asked of another context's registrations.
    #[error("what this operation needs was asked of another context")]
    OtherContext,
    /// The registrations belong to the parent process of a fork.
    #[error("registrations belong to the parent process: a fork's child must make its own context")]
    Forked,
}

impl RegisterError {
    /// The one-byte status.
    pub fn status(&self) -> Status {
        match self {
            Self::BadRange { .. } => Status::InvalidAddr,
            Self::Md { error, .. } => error.status(),
            Self::Operand(error) => error.status(),
            Self::Cache(error) => error.status(),
            Self::OtherContext => Status::InvalidParam,
            Self::Forked => Status::Forked,
        }
    }

    /// What to do about it.
    #[must_use]
    pub fn remedy(&self) -> &'static str {
        match self {
            Self::BadRange { .. } => "name memory of this process",
            Self::Md { error, .. } => error.remedy(),
            Self::Operand(error) => error.remedy(),
            Self::Cache(error) => error.remedy(),
            Self::OtherContext => "ask the registrations that the operation is given to",
            Self::Forked => "create a new Context in the child",
        }
    }
}

/// Of memory that was allocated here, all is registered by an operation on at least this part of it; one on less registers pages of its
/// own, so that a few bytes of it do not bring in gigabytes.
const GOOD_PART: usize = 8;

/// How long it is waited, after what is not in use was given up, before a registration is tried once more: 38 ms in all.
const PAUSES_US: [u64; 8] = [0, 100, 400, 1000, 2500, 4000, 10_000, 20_000];

/// Which of the memory domains that need operands registered: see [`Registrations::of`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Needs {
    index: usize,
    /// Where the list is that it is an index of.
    list: usize,
}

/// The registrations of operands of one context. Send + Sync.
///
/// The cache is made by the first operation that needs it. Dropping this ends what is cached. Memory that was allocated here keeps the
/// registration it has, if any, until it is freed; operations of other contexts on it go by their caches.
pub struct Registrations {
    /// Those that need it.
    mds: Arc<[Arc<dyn Md>]>,
    cache: OnceLock<Cache<Mds>>,
    /// Held while it is made.
    making: Mutex<()>,
    monitor: &'static dyn MemMonitor,
    options: Options,
    generation: Generation,
}

impl fmt::Debug for Registrations {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Registrations").field("mds", &self.mds).finish_non_exhaustive()
    }
}

impl Registrations {
    /// For those of `mds` that need operands registered ([`MdFlags::NEED_MEMH`]). `options` bound the cache, whose registrations begin and
    /// end where all of them can. [`Mode::Hooks`] is taken as [`Mode::Auto`]: whether all changes are announced, this process's monitor knows.
    pub fn new<'a>(mds: impl IntoIterator<Item = &'a Arc<dyn Md>>, mut options: Options) -> Self {
        if options.mode == Mode::Hooks {
            options.mode = Mode::Auto;
        }
        // SAFETY: the process's monitor tells of all changes, or says that it does not; each hit is checked, unless hooks have announced
        // all changes so far.
        unsafe { Self::with_monitor(mds, Monitor::process(), options) }
    }

    /// As [`Registrations::new`], told of changes by `monitor`.
    ///
    /// # Safety
    /// What `monitor` answers is true, and with [`Mode::Hooks`] it tells of all changes before and after they happen. Otherwise operations
    /// may write pages that are others' by then.
    pub unsafe fn with_monitor<'a>(
        mds: impl IntoIterator<Item = &'a Arc<dyn Md>>,
        monitor: &'static dyn MemMonitor,
        mut options: Options,
    ) -> Self {
        let needs = |md: &&Arc<dyn Md>| md.attr().flags.contains(MdFlags::NEED_MEMH);
        let mds: Arc<[Arc<dyn Md>]> = mds.into_iter().filter(needs).cloned().collect();
        let alignments = mds.iter().map(|md| md.attr().reg_alignment);
        options.alignment = alignments.fold(options.alignment, usize::max);
        Self {
            mds,
            cache: OnceLock::new(),
            making: Mutex::new(()),
            monitor,
            options,
            generation: fork::generation(),
        }
    }

    /// Whether any of them needs it.
    #[must_use]
    pub fn is_needed(&self) -> bool {
        !self.mds.is_empty()
    }

    /// What operations by `md` need; `None`: nothing.
    #[must_use]
    pub fn of(&self, md: &Arc<dyn Md>) -> Option<Needs> {
        let index = self.mds.iter().position(|other| Arc::ptr_eq(other, md))?;
        Some(Needs { index, list: self.list() })
    }

    fn list(&self) -> usize {
        self.mds.as_ptr().addr()
    }

    fn check(&self, needs: Needs) -> Result<(), RegisterError> {
        if needs.list == self.list() { Ok(()) } else { Err(RegisterError::OtherContext) }
    }

    /// Figures of the cache; zeroes until there is one.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.cache.get().map(Cache::stats).unwrap_or_default()
    }

    /// Has `operation` run with `src` registered. What it answers is the answer.
    ///
    /// The operation reads the pages that were mapped there at some instant during this call. They stay registered until it has
    /// returned.
    ///
    /// # Errors
    /// [`RegisterError`]: `operation` was not called. Attached memory ([`Local::is_imported`]) cannot be registered: it is for
    /// [`put_by_write`](crate::api::put_by_write).
    pub fn with_source<T>(
        &self,
        needs: Needs,
        src: Local<'_>,
        operation: impl FnOnce(&Local<'_>) -> T,
    ) -> Result<T, RegisterError> {
        self.check(needs)?;
        if src.is_empty() {
            return Ok(operation(&src));
        }
        src.check()?;
        if let Some(kept) = src.whole().and_then(|mem| self.kept(mem, src.len())) {
            // SAFETY: of all of the memory that `src` is a part of, and borrowed with it (module rule).
            let src = unsafe { src.registered(kept.memhs.of(needs)) };
            return Ok(operation(&src));
        }
        let region = self.get((here(src.address())?, src.len()), Access::Read, &PAUSES_US)?;
        // SAFETY: `src` is there, and borrowed since before the question, and `region` is held until the operation has returned (module rule).
        let src = unsafe { src.registered(region.of(needs)) };
        Ok(operation(&src))
    }

    /// Has `operation` run with `dst` registered, as [`Registrations::with_source`].
    ///
    /// # Errors
    /// [`RegisterError`]: `operation` was not called.
    pub fn with_destination<T>(
        &self,
        needs: Needs,
        dst: LocalMut<'_>,
        operation: impl FnOnce(&mut LocalMut<'_>) -> T,
    ) -> Result<T, RegisterError> {
        let mut dst = dst;
        self.check(needs)?;
        if dst.is_empty() {
            return Ok(operation(&mut dst));
        }
        dst.check()?;
        if let Some(kept) = dst.whole().and_then(|mem| self.kept(mem, dst.len())) {
            // SAFETY: as in `with_source`.
            let mut dst = unsafe { dst.registered(kept.memhs.of(needs)) };
            return Ok(operation(&mut dst));
        }
        let region = self.get((here(dst.address())?, dst.len()), Access::ReadWrite, &PAUSES_US)?;
        // SAFETY: as in `with_source`, and it may be written.
        let mut dst = unsafe { dst.registered(region.of(needs)) };
        Ok(operation(&mut dst))
    }

    /// The registration of all of `mem`, which was allocated here, for good: made by the first operation that moves a good part of it,
    /// `len` bytes. `None`: it is for the cache.
    ///
    /// Nobody tells of changes of it, and nobody needs to: it stays mapped as long as it lives, with the pages it has, but that a peer
    /// which may write can punch holes into a memfd. So it is not for memory that a peer was ever given a way to.
    fn kept<'m>(&self, mem: &'m LocalMem, len: usize) -> Option<&'m Kept> {
        if mem.was_packed() || !self.generation.is_current() {
            return None;
        }
        let kept = match mem.registered().get() {
            Some(kept) => kept,
            None if len < mem.len() / GOOD_PART => return None,
            // By one thread; others wait for it. What was refused once is for the cache from then on.
            None => mem.registered().get_or_init(|| {
                let range = PageRange::containing(usize::try_from(mem.address()).ok()?, mem.len())?;
                let memhs = Mds(Arc::clone(&self.mds)).register(range, Access::ReadWrite).ok()?;
                Some(Kept { by: Arc::downgrade(&self.mds), memhs, generation: self.generation })
            }),
        };
        let kept = kept.as_ref()?;
        // Memory of one context can be an operand of another's, which has other memory domains.
        ptr::addr_eq(kept.by.as_ptr(), Arc::as_ptr(&self.mds)).then_some(kept)
    }

    /// A registration of that range. Where a limit is reached, once more after each of `pauses`, in microseconds.
    fn get(
        &self,
        (address, len): (usize, usize),
        access: Access,
        pauses: &[u64],
    ) -> Result<rcache::RegionRef<Mds>, RegisterError> {
        let cache = self.cache()?;
        let mut answer = cache.get(address, len, access);
        for pause in pauses {
            let Err(GetError::Register(Refusal { error: RegError::Limit { .. }, .. })) = &answer else {
                break;
            };
            // What is cached and not in use may be what the limit is used up by. Other threads may be ending some of it just now, or
            // take what was given up.
            tracing::debug!(len, "a limit of registrations is reached: those not in use are given up");
            cache.purge();
            thread::sleep(Duration::from_micros(*pause));
            answer = cache.get(address, len, access);
        }
        answer.map_err(register_error)
    }

    fn cache(&self) -> Result<&Cache<Mds>, RegisterError> {
        match self.cache.get() {
            Some(cache) => Ok(cache),
            None if !self.generation.is_current() => Err(RegisterError::Forked),
            None => self.make(),
        }
    }

    #[cold]
    fn make(&self) -> Result<&Cache<Mds>, RegisterError> {
        let _making = self.making.lock();
        if let Some(cache) = self.cache.get() {
            return Ok(cache);
        }
        let made = Cache::new(Mds(Arc::clone(&self.mds)), self.monitor, self.options);
        let cache = made.map_err(RegisterError::Cache)?;
        tracing::debug!(?cache, mds = self.mds.len(), "a registration cache");
        Ok(self.cache.get_or_init(|| cache))
    }
}

fn register_error(error: GetError<Refusal>) -> RegisterError {
    match error {
        GetError::BadRange { address, len } => RegisterError::BadRange { address, len },
        GetError::Register(Refusal { component, error }) => RegisterError::Md { component, error },
        _ => RegisterError::Forked,
    }
}

/// The address of an operand; of one that is another process's memory there is nothing to register.
fn here(address: Option<usize>) -> Result<usize, AccessError> {
    address.ok_or(AccessError::Operand { done: 0, why: OperandReason::NotRegistered })
}

/// Memory domains, all of which register a range, or none.
struct Mds(Arc<[Arc<dyn Md>]>);

/// One registration by each of the memory domains, in their order.
struct Memhs(Box<[Box<dyn LocalMemh>]>);

impl Memhs {
    /// That of one of them: [`Registrations::check`] has compared the list.
    fn of(&self, needs: Needs) -> &dyn LocalMemh {
        &*self.0[needs.index]
    }
}

/// The registration of memory that was allocated here, which it keeps as long as it lives.
pub(crate) struct Kept {
    /// Whose memory domains have registered it.
    by: Weak<[Arc<dyn Md>]>,
    memhs: Memhs,
    generation: Generation,
}

impl Drop for Kept {
    fn drop(&mut self) {
        if !self.generation.is_current() {
            mem::forget(mem::take(&mut self.memhs.0)); // they are the parent's
        }
    }
}

impl fmt::Debug for Kept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Kept").field("memhs", &self.memhs.0).finish_non_exhaustive()
    }
}

/// Which memory domain refused, and why.
#[derive(Debug)]
struct Refusal {
    component: ComponentId,
    error: RegError,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.component, self.error)
    }
}

impl Registrar for Mds {
    type Handle = Memhs;
    type Error = Refusal;

    fn register(&self, range: PageRange, access: Access) -> Result<Memhs, Refusal> {
        let one = |md: &Arc<dyn Md>| {
            let refusal = |error| Refusal { component: md.attr().component, error };
            md.reg_local(range, access).map_err(refusal)
        };
        self.0.iter().map(one).collect::<Result<_, _>>().map(Memhs)
    }

    fn deregister(&self, memhs: Memhs) {
        drop(memhs);
    }
}
