//! Two threads move what one would, and tell what one would.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::{self, ThreadId};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use proptest::prelude::*;

use super::*;
use crate::api::{get_by_read, put_by_write};
use crate::memory::{DeniedReason, MappedView, Rights, StaleReason, check_range};

/// No plan of a test needs more than one processor: threads share it.
fn two_threads(fragment: usize) -> Plan {
    Plan { fragment, stack: 256 << 10 }
}

/// Memory of another process's, which is a vector here. Its byte `fails_at` cannot be reached.
#[derive(Debug)]
struct Fake {
    bytes: Mutex<Vec<u8>>,
    fails_at: Option<usize>,
    by_system_calls: bool,
    users: Mutex<Vec<ThreadId>>,
}

impl Fake {
    fn new(bytes: Vec<u8>, fails_at: Option<usize>) -> Self {
        Self { bytes: Mutex::new(bytes), fails_at, by_system_calls: true, users: Mutex::default() }
    }

    /// How many of `len` bytes at `at` can be reached.
    fn access(&self, at: usize, len: usize) -> usize {
        let mut users = self.users.lock();
        if !users.contains(&thread::current().id()) {
            users.push(thread::current().id());
        }
        self.fails_at.map_or(len, |fails_at| len.min(fails_at.saturating_sub(at)))
    }
}

impl Attachment for Fake {
    fn len(&self) -> u64 {
        self.bytes.lock().len() as u64
    }

    fn rights(&self) -> Rights {
        Rights::READ_WRITE
    }

    fn read(&self, offset: u64, dst: &mut [u8]) -> Result<(), AccessError> {
        check_range(offset, dst.len(), self.len())?;
        let at = usize::try_from(offset).unwrap();
        let reached = self.access(at, dst.len());
        dst[..reached].copy_from_slice(&self.bytes.lock()[at..at + reached]);
        if reached == dst.len() {
            return Ok(());
        }
        Err(AccessError::Stale { done: reached as u64, why: StaleReason::Revoked })
    }

    fn write(&self, offset: u64, src: &[u8]) -> Result<(), AccessError> {
        check_range(offset, src.len(), self.len())?;
        let at = usize::try_from(offset).unwrap();
        let reached = self.access(at, src.len());
        self.bytes.lock()[at..at + reached].copy_from_slice(&src[..reached]);
        if reached == src.len() {
            return Ok(());
        }
        Err(AccessError::AccessDenied { done: reached as u64, why: DeniedReason::NotAllowed })
    }

    fn good_piece(&self) -> usize {
        256 << 10
    }

    fn is_by_system_calls(&self) -> bool {
        self.by_system_calls
    }

    fn check(&self) -> Result<(), StaleReason> {
        Ok(())
    }

    fn view(&self) -> Option<MappedView<'_>> {
        None
    }
}

fn pattern(len: usize) -> Vec<u8> {
    let mut bytes = (0..251).collect::<Vec<u8>>().repeat(len / 251 + 1);
    bytes.truncate(len);
    bytes
}

/// What one thread does.
fn one_by_one(len: usize, fragment: usize, from: &Fake, to: &Fake) -> Result<(), AccessError> {
    let mut piece = vec![0; fragment];
    for at in (0..len).step_by(fragment) {
        let piece = &mut piece[..fragment.min(len - at)];
        from.read(at as u64, piece).map_err(|error| error.moved(at as u64))?;
        to.write(at as u64, piece).map_err(|error| error.after(at as u64))?;
    }
    Ok(())
}

fn by_two(len: usize, fragment: usize, from: &Fake, to: &Fake) -> Option<Result<(), AccessError>> {
    run(
        two_threads(fragment),
        len,
        |at, piece| from.read(at as u64, piece),
        |at, piece| to.write(at as u64, piece),
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn two_threads_move_and_tell_what_one_does(
        len in 1_usize..6000,
        fragment in 1_usize..700,
        read_fails in proptest::option::weighted(0.6, 0_usize..7000),
        write_fails in proptest::option::weighted(0.6, 0_usize..7000),
    ) {
        let worlds = [(); 2].map(|()| (Fake::new(pattern(len), read_fails), Fake::new(vec![255; len], write_fails)));
        let [(from, to), (other_from, other_to)] = &worlds;
        let expected = one_by_one(len, fragment, from, to);
        prop_assert_eq!(by_two(len, fragment, other_from, other_to), Some(expected));
        prop_assert!(*to.bytes.lock() == *other_to.bytes.lock());
        prop_assert!(*from.bytes.lock() == *other_from.bytes.lock());
    }
}

/// The same operation as one thread does it and as two do, by what attachments call.
#[test]
fn operations_answer_the_same_whoever_does_them() {
    if cpus() < 2 {
        return; // one thread does all then, which other tests have seen
    }
    let len = WORTH_IT + 3000;
    let last = len - 1;
    for (read_fails, write_fails) in [
        (None, None),
        (Some(0), None),
        (None, Some(0)),
        (Some(300_000), None),
        (None, Some(300_000)),
        (Some(900_000), Some(900_001)),
        (Some(900_001), Some(900_000)),
        (Some(1_300_000), Some(900_000)),
        (Some(last), None),
        (None, Some(last)),
    ] {
        for is_put in [true, false] {
            let answers = [true, false].map(|by_system_calls| {
                let mut from = Fake::new(pattern(len + 5), read_fails.map(|at| at + 5));
                let mut to = Fake::new(vec![255; len + 9], write_fails.map(|at| at + 9));
                (from.by_system_calls, to.by_system_calls) = (true, by_system_calls);
                let moved = if is_put {
                    put_by_write(&to, 9, &Local::imported(&from, 5..from.len()))
                } else {
                    from.by_system_calls = by_system_calls;
                    get_by_read(&from, 5, &mut LocalMut::imported(&to, 9..to.len()))
                };
                assert!(by_system_calls || from.users.lock().len() <= 1, "one thread");
                assert!(to.users.lock().len() <= 1, "one thread writes");
                (moved, to.bytes.into_inner())
            });
            let [two, one] = &answers;
            assert_eq!(two.0, one.0, "{read_fails:?} {write_fails:?} put {is_put}");
            assert!(two.1 == one.1, "{read_fails:?} {write_fails:?} put {is_put}");
            assert_eq!(two.0.is_ok(), read_fails.or(write_fails).is_none());
        }
    }
}

/// What two threads have begun to read; and waiting for it, with a bound.
#[derive(Default)]
struct Begun {
    up_to: Mutex<usize>,
    changed: Condvar,
}

impl Begun {
    fn tell(&self, up_to: usize) {
        *self.up_to.lock() = up_to;
        self.changed.notify_all();
    }

    fn comes_to(&self, up_to: usize, patience: Duration) -> bool {
        let mut now = self.up_to.lock();
        self.changed.wait_while_for(&mut now, |now| *now < up_to, patience);
        *now >= up_to
    }
}

/// Whether `moves`, which moves `len` bytes by fragments, has each read while the one before it is written.
fn reads_ahead(
    (len, fragment, patience): (usize, usize, Duration),
    moves: impl FnOnce(
        &(dyn Fn(usize, &mut [u8]) -> Result<(), AccessError> + Sync),
        &dyn Fn(usize, &[u8]) -> Result<(), AccessError>,
    ) -> Result<(), AccessError>,
) -> bool {
    let begun = Begun::default();
    let read = |at: usize, _: &mut [u8]| {
        begun.tell(at + fragment);
        Ok(())
    };
    let write = |at: usize, _: &[u8]| {
        let next = len.min(at + 2 * fragment);
        let is_begun = begun.comes_to(next, patience);
        if is_begun { Ok(()) } else { Err(AccessError::Busy { waited: patience }) }
    };
    moves(&read, &write).is_ok()
}

#[test]
fn a_fragment_is_read_while_the_one_before_is_written() {
    let sizes = (40 * 1000, 1000, Duration::from_secs(10));
    assert!(reads_ahead(sizes, |read, write| run(two_threads(1000), 40 * 1000, read, write).unwrap()));
}

#[test]
fn guard_one_thread_does_not_read_ahead() {
    let sizes = (40 * 1000, 1000, Duration::from_millis(20));
    let mut piece = [0; 1000];
    assert!(!reads_ahead(sizes, |read, write| {
        (0..40).try_for_each(|n| read(n * 1000, &mut piece).and_then(|()| write(n * 1000, &piece)))
    }));
}

/// Memory is bounded.
#[test]
fn no_more_is_read_ahead_than_there_are_buffers() {
    let (len, fragment) = (100 * 100, 100);
    let written = Mutex::new(0);
    let read = |at: usize, piece: &mut [u8]| {
        let written: usize = *written.lock();
        assert!(at + piece.len() <= written + BUFFERS * fragment, "{at} is read when {written} are written");
        Ok(())
    };
    let write = |at: usize, piece: &[u8]| {
        *written.lock() = at + piece.len();
        thread::sleep(Duration::from_micros(50));
        Ok(())
    };
    assert_eq!(run(two_threads(fragment), len, read, write), Some(Ok(())));
}

/// An attachment may panic, in either thread: that reaches the caller, and nobody waits for ever.
#[test]
fn panics_reach_the_caller() {
    let (len, fragment) = (50 * 100, 100);
    for panics_at in [0, 100, 2500, 4900] {
        for by_reader in [true, false] {
            let ended = Arc::new(());
            let held = Arc::clone(&ended);
            let access = |at: usize, reads: bool| {
                let _held = Arc::clone(&held);
                assert!(at != panics_at || reads != by_reader, "the attachment's own");
                Ok(())
            };
            let moved = catch_unwind(AssertUnwindSafe(|| {
                run(two_threads(fragment), len, |at, _| access(at, true), |at, _| access(at, false))
            }));
            let panic = moved.expect_err("it panics");
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
            assert_eq!(text, Some("the attachment's own"));
            assert_eq!(Arc::strong_count(&ended), 2, "nobody is inside any more");
        }
    }
}

/// A stack that cannot be mapped: as where the system has no more threads.
#[test]
fn without_another_thread_nothing_is_done() {
    let plan = Plan { fragment: 100, stack: 1 << 46 };
    let touched = |_: usize| panic!("nobody reads or writes");
    assert_eq!(run(plan, 1000, |at, _| touched(at), |at, _| touched(at)), None);
}

#[test]
fn long_ones_on_several_processors_go_by_two_threads() {
    let good = 256 << 10;
    assert_eq!(plan(WORTH_IT - 1, good, 2), None);
    assert_eq!(plan(WORTH_IT, good, 1), None);
    assert_eq!(plan(usize::MAX, good, 0), None);
    assert_eq!(plan(WORTH_IT, good, 2).map(|plan| plan.fragment), Some(good));
    assert_eq!(plan(usize::MAX, usize::MAX, 64).map(|plan| plan.fragment), Some(pieces::LONGEST));
    assert_eq!(plan(WORTH_IT, 0, 2).map(|plan| plan.fragment), Some(pieces::SHORT));
}
