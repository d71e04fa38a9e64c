//! A fork's child that has its parent's workers: it can do nothing with them, and harms none.

use std::time::{Duration, Instant};

use testkit::{Role, role};
use ucp::{
    AmMessage, CloseMode, EpError, Remote, Request, Resident, Status, ThreadEnded, WorkerError, WorkerThread,
};

use crate::roles::{ASK, COUNT, LONG, Peer, Side};

/// What a child may do with a worker, an endpoint and a message of its parent's: all that there is.
fn child(
    side: Side,
    mut kept: Vec<AmMessage>,
    request: Request<Vec<u8>>,
    thread: (Remote, Resident<u8>),
) -> String {
    let Side { worker, ep, .. } = side;
    assert!(format!("{ep:?}").contains("Forked") && ep.info().lanes.len() == 1);
    let told = [
        ep.am_send(COUNT, b"", vec![1]).into_result().unwrap().unwrap_err().status(),
        ep.am_send(COUNT, b"", vec![1; 100_000]).into_result().unwrap().unwrap_err().status(),
        ep.flush().into_result().unwrap().unwrap_err().status(),
        ep.clone().close(CloseMode::Flush).into_result().unwrap().unwrap_err().status(),
        ep.clone().close(CloseMode::Force).into_result().unwrap().unwrap_err().status(),
        kept.pop().unwrap().recv_data(vec![0; LONG]).into_result().unwrap().unwrap_err().status(),
        kept[0].reply().close(CloseMode::Force).into_result().unwrap().unwrap_err().status(),
        worker.wait_any(Duration::from_secs(1)).unwrap_err().status(),
        worker.block_on(std::future::pending::<()>()).unwrap_err().status(),
        worker.wait(request, Duration::from_secs(1)).unwrap_err().status(),
        worker.connect(&[]).unwrap_err().status(),
    ];
    assert!(told.iter().all(|status| *status == Status::Forked), "{told:?}");
    assert_eq!((ep.check(), worker.address().unwrap_err()), (Err(EpError::Forked), WorkerError::Forked));
    assert_eq!((worker.progress(), worker.arm()), (0, false));
    ep.on_error(|_| {});
    worker.signaler().signal();
    // Of a thread that is not here.
    let (remote, resident) = thread;
    assert_eq!(once(remote.run(|_| async {})), Some(Err(ThreadEnded)));
    assert_eq!(once(resident.run(|value| async move { *value })), Some(Err(ThreadEnded)));
    assert!(once(remote.keep(|_| Ok::<u8, ()>(1))).is_some_and(|kept| kept.is_err()));
    drop((remote, resident));
    drop(kept);
    drop((ep, worker));
    // Workers of its own.
    let peer = Peer::start(&[]);
    Side::connect(&peer).round_trip();
    "done".to_owned()
}

/// What a future answers at once.
fn once<F: Future>(future: F) -> Option<F::Output> {
    let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
    match std::pin::pin!(future).poll(&mut cx) {
        std::task::Poll::Ready(output) => Some(output),
        std::task::Poll::Pending => None,
    }
}

/// A worker with an endpoint, messages kept, and an operation on its way, whose process forks.
#[allow(unsafe_code)]
pub fn parent() {
    let peer = Peer::start(&[]);
    let side = Side::connect(&peer);
    side.round_trip();
    side.back.borrow_mut().clear();
    for count in 1..=3 {
        let _detached = side.ep.am_send(ASK, b"", Vec::new());
        side.until("an announcement", || side.back.borrow().len() == count);
    }
    let kept = side.back.take();
    let request = kept[0].reply().am_send(COUNT, b"", vec![1; LONG]);
    assert!(!request.is_ended());
    let remote = WorkerThread::spawn(&crate::roles::context()).unwrap();
    let resident = side.worker.block_on(remote.keep(|_| Ok::<u8, ()>(7))).unwrap().unwrap().unwrap();
    let thread = (remote, resident);
    // SAFETY: this thread is the only one that the child needs anything of.
    let pid = match unsafe { libc::fork() } {
        0 => {
            role::send(child(side, kept, request, thread).as_bytes());
            // SAFETY: ends this process.
            unsafe { libc::_exit(0) }
        }
        pid => rustix::process::Pid::from_raw(pid).unwrap(),
    };
    let status = rustix::process::waitpid(Some(pid), rustix::process::WaitOptions::empty()).unwrap();
    assert!(status.is_some_and(|(_, status)| status.exit_status() == Some(0)), "{status:?}");
    // Nothing has happened here.
    assert_eq!(side.ep.check(), Ok(()));
    side.until("its message", || request.is_ended());
    assert!(request.into_result().unwrap().is_ok());
    for message in kept {
        let received = message.recv_data(vec![0; LONG]);
        side.until("its data", || received.is_ended());
        assert!(received.into_result().unwrap().is_ok());
    }
    side.round_trip();
    let value = side.worker.block_on(thread.1.run(|value| async move { *value }));
    assert_eq!(value.unwrap(), Ok(7));
    let (begin, before) = (Instant::now(), cpu());
    while begin.elapsed() < Duration::from_millis(300) {
        side.worker.wait_any(Duration::from_millis(100)).unwrap();
    }
    let spent = cpu() - before;
    assert!(spent < Duration::from_millis(100), "it spins: {spent:?}");
    role::send(b"unharmed");
    while role::try_recv().is_some() {}
}

/// Processor time of this thread.
fn cpu() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::try_from(time).unwrap()
}

pub fn a_child_is_refused_everything_and_harms_nothing() {
    let mut parent = Role::new("forks::parent").start();
    assert_eq!(parent.recv(), b"done");
    assert_eq!(parent.recv(), b"unharmed");
}
