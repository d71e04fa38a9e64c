//! The handler: reads events and tells of them.
//!
//! Each thread that unmaps memory waits until its event is *read*. So nothing here may wait for such a thread: the handler allocates
//! nothing, logs nothing, drops nothing that is shared, and takes no lock. The count [`Signs`](super::super::signs::Signs) goes odd before
//! events are read, because reading releases the thread that unmaps, and even when all that were read are applied.

use std::panic::{AssertUnwindSafe, catch_unwind};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;

use super::Uffd;
use super::events::{Event, Message};
use crate::mem::page::PageRange;
use crate::monitor::{Change, Monitor, Why};

/// Events read at once.
const BATCH: usize = 32;

/// Handles events until that cannot go on; then nothing is watched any more.
pub(super) fn serve(monitor: &'static Monitor) {
    let Some(uffd) = monitor.uffd() else { return };
    // A sink that panics ends the watching, not the process; and no thread waits for an event that nobody reads.
    let why = catch_unwind(AssertUnwindSafe(|| run(monitor, uffd))).unwrap_or(Why::SinkPanicked);
    monitor.fail(why);
}

/// Handles events; answers what ended it.
fn run(monitor: &Monitor, uffd: &Uffd) -> Why {
    let mut messages = [Message::default(); BATCH];
    loop {
        let mut fds = [PollFd::new(uffd, PollFlags::IN)];
        match poll(&mut fds, None) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(_) => return Why::Broken,
        }
        if fds[0].revents().intersects(PollFlags::ERR | PollFlags::NVAL | PollFlags::HUP) {
            return Why::Broken;
        }
        let before = monitor.signs.enter();
        match uffd.read(&mut messages) {
            Ok(count) => {
                monitor.linger();
                monitor.counters.reads.add(1);
                messages.iter().take(count).for_each(|message| apply(monitor, uffd, message.decode()));
                monitor.signs.leave(before, true);
            }
            Err(Errno::AGAIN | Errno::INTR) => monitor.signs.leave(before, false),
            Err(_) => return Why::Broken, // still odd; `fail` goes on from there
        }
    }
}

/// Tells everybody of one event.
fn apply(monitor: &Monitor, uffd: &Uffd, event: Event) {
    let counters = &monitor.counters;
    match event {
        Event::Unmapped(range) => {
            counters.unmapped.add(1);
            monitor.note(range);
            monitor.sinks.tell(range, Change::Unmapped);
        }
        Event::Moved(range) => {
            counters.moved.add(1);
            monitor.note(range);
            monitor.sinks.tell(range, Change::Moved);
        }
        Event::Removed(range) => {
            counters.removed.add(1);
            monitor.note(range);
            // First, so that who registers after it was told finds it. Whose window it is that is open there, if one is, cannot be told:
            // so that it is over is proven in any case.
            monitor.suspects.add(range);
            monitor.sinks.tell(range, Change::Removed);
        }
        Event::Fault(page) => {
            counters.faults.add(1);
            let _ = uffd.unprotect(page); // wakes it
        }
        Event::Unknown => {
            counters.unknown.add(1);
            monitor.note(PageRange::everything());
            monitor.suspects.add(PageRange::everything());
            monitor.sinks.tell(PageRange::everything(), Change::Unmapped);
        }
    }
}

#[cfg(not(loom))]
#[cfg(test)]
mod tests {
    use super::*;
    use crate::mem::page::page_size;

    /// Somebody else's window over pages that are dropped says nothing about when they have gone.
    #[test]
    fn dropped_pages_are_suspect_whoever_has_a_window_there() {
        let monitor = Monitor::process();
        monitor.start();
        let Some(uffd) = monitor.uffd() else { return };
        let pages = PageRange::new(0x7000_0000_0000, 0x7000_0000_0000 + 4 * page_size()).unwrap();
        let window = monitor.begin(pages);
        apply(monitor, uffd, Event::Removed(pages));
        window.end();
        let before = monitor.stats().scans;
        let begin = std::time::Instant::now();
        // Looked at, at most a fifth of the time.
        while monitor.is_suspect(pages) && begin.elapsed() < std::time::Duration::from_secs(30) {}
        assert!(monitor.stats().scans > before, "it was asked what threads do");
    }
}
