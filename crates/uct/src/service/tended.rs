//! Descriptors that the service thread looks after beside its own, as long as it runs: they are told before it is started, and do not start it.

use std::collections::HashMap;
use std::fmt;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use parking_lot::Mutex;
use rustix::event::epoll::{self, EventData, EventFlags};
use ucs::fork::{self, Generation};

use super::watch::Watches;

/// What the numbers of all these have in common in the epoll set, and no others have.
const IS_TENDED: u64 = 1 << 63;

/// A descriptor, and what is done when it is readable.
pub trait Tended: Send + Sync + fmt::Debug {
    /// The descriptor: the same one as long as this lives.
    fn fd(&self) -> BorrowedFd<'_>;

    /// Reads from it, without waiting. Called by the service thread when it is readable, again and again until it is not; `false`: it is to be
    /// left alone from now on.
    fn ready(&self) -> bool;
}

/// All that are tended: in common to a service and its thread.
#[derive(Debug, Default)]
pub(super) struct AllTended(Mutex<Inner>);

#[derive(Debug, Default)]
struct Inner {
    next: u64,
    all: HashMap<u64, Arc<dyn Tended>>,
    /// `None`: the thread does not run.
    watches: Option<Arc<Watches>>,
}

impl AllTended {
    pub(super) fn add(self: &Arc<Self>, tended: Arc<dyn Tended>) -> Tending {
        let mut inner = self.0.lock();
        let id = IS_TENDED | inner.next;
        inner.next += 1;
        if let Some(watches) = &inner.watches {
            look_after(watches, id, &*tended);
        }
        inner.all.insert(id, tended);
        Tending { all: Arc::clone(self), id, generation: fork::generation() }
    }

    /// The thread runs: from now on with this epoll set.
    pub(super) fn begin(&self, watches: &Arc<Watches>) {
        let mut inner = self.0.lock();
        inner.all.iter().for_each(|(id, tended)| look_after(watches, *id, &**tended));
        inner.watches = Some(Arc::clone(watches));
    }

    /// Whether it is the number of one of these, which is looked after then.
    pub(super) fn ready(&self, id: u64) -> bool {
        if id & IS_TENDED == 0 {
            return false;
        }
        let tended = self.0.lock().all.get(&id).cloned();
        if let Some(tended) = tended
            && !tended.ready()
        {
            self.leave_alone(&*tended);
        }
        true
    }

    fn leave_alone(&self, tended: &dyn Tended) {
        if let Some(watches) = &self.0.lock().watches {
            let _ = epoll::delete(watches.epoll(), tended.fd());
        }
    }
}

fn look_after(watches: &Watches, id: u64, tended: &dyn Tended) {
    if let Err(error) = epoll::add(watches.epoll(), tended.fd(), EventData::new_u64(id), EventFlags::IN) {
        tracing::warn!(%error, ?tended, "a descriptor is not looked after");
    }
}

/// A descriptor is looked after as long as this lives.
#[derive(Debug)]
pub struct Tending {
    all: Arc<AllTended>,
    id: u64,
    generation: Generation,
}

impl Drop for Tending {
    fn drop(&mut self) {
        // A fork's child shares the epoll set with its parent, whose it is.
        if self.generation.is_current() {
            let tended = self.all.0.lock().all.remove(&self.id);
            if let Some(tended) = tended {
                self.all.leave_alone(&*tended);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::{AsFd, OwnedFd};
    use std::time::{Duration, Instant};

    use rustix::event::{EventfdFlags, eventfd};
    use ucs::sync::{AtomicUsize, Ordering};

    use super::*;
    use crate::export::ExportTable;
    use crate::service::Service;

    /// A counter, which is read until its number is this.
    #[derive(Debug)]
    struct Counter {
        fd: OwnedFd,
        last: u64,
        reads: AtomicUsize,
    }

    impl Counter {
        fn new(last: u64) -> Arc<Self> {
            let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap();
            Arc::new(Self { fd, last, reads: AtomicUsize::new(0) })
        }

        fn add(&self, number: u64) {
            rustix::io::write(&self.fd, &number.to_ne_bytes()).unwrap();
        }

        fn until_read(&self, times: usize) {
            let begin = Instant::now();
            while self.reads.load(Ordering::Acquire) < times {
                assert!(begin.elapsed() < Duration::from_secs(20), "{self:?}");
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }

    impl Tended for Counter {
        fn fd(&self) -> BorrowedFd<'_> {
            self.fd.as_fd()
        }

        fn ready(&self) -> bool {
            let mut number = [0; 8];
            let read = rustix::io::read(&self.fd, &mut number);
            self.reads.fetch_add(1, Ordering::AcqRel);
            read.is_ok() && u64::from_ne_bytes(number) != self.last
        }
    }

    fn service() -> Service {
        Service::new(Arc::new(ExportTable::new(Duration::from_secs(2)).unwrap()), None)
    }

    #[test]
    fn what_comes_before_the_thread_runs_waits_for_it() {
        let (service, [early, late]) = (service(), [1, 2].map(|_| Counter::new(7)));
        let _early = service.tend(early.clone());
        early.add(1);
        std::thread::sleep(Duration::from_millis(20));
        assert_eq!(early.reads.load(Ordering::Acquire), 0, "the thread is not started for that");
        service.serve().unwrap();
        early.until_read(1);
        let _late = service.tend(late.clone());
        late.add(1);
        late.until_read(1);
        early.add(1);
        early.until_read(2);
    }

    #[test]
    fn what_has_ended_is_left_alone() {
        let (service, counter) = (service(), Counter::new(7));
        service.serve().unwrap();
        let tending = service.tend(counter.clone());
        counter.add(7);
        counter.until_read(1);
        counter.add(1); // nobody looks any more, nor is woken again and again
        std::thread::sleep(Duration::from_millis(20));
        assert_eq!(counter.reads.load(Ordering::Acquire), 1);
        drop(tending);

        let dropped = Counter::new(7);
        drop(service.tend(dropped.clone()));
        dropped.add(1);
        std::thread::sleep(Duration::from_millis(20));
        assert_eq!((dropped.reads.load(Ordering::Acquire), Arc::strong_count(&dropped)), (0, 1));
    }
}
