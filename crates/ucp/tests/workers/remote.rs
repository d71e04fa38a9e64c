//! Workers with a thread of their own.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering}; // std's atomics: a test of real threads
use std::sync::mpsc;
use std::time::{Duration, Instant};

use futures_channel::oneshot;
use ucp::{Endpoint, Error, WorkerThread};

use crate::{BETWEEN, PATIENCE, context};

/// Polls a future that is woken from other threads: no runtime is needed.
fn block_on<F: Future>(future: F) -> F::Output {
    struct Unpark(std::thread::Thread);
    impl std::task::Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Arc::new(Unpark(std::thread::current())).into();
    let mut future = std::pin::pin!(future);
    loop {
        if let std::task::Poll::Ready(output) =
            future.as_mut().poll(&mut std::task::Context::from_waker(&waker))
        {
            return output;
        }
        std::thread::park_timeout(PATIENCE);
    }
}

fn sendable<T: Send>(value: T) -> T {
    value
}

#[test]
fn jobs_run_at_once_and_their_futures_go_anywhere() {
    let remote = WorkerThread::spawn(&context(BETWEEN)).unwrap();
    // The first waits for the second.
    let (sender, receiver) = oneshot::channel();
    let first = sendable(remote.run(|_| async { receiver.await.unwrap() }));
    let second = sendable(remote.run(|_| async move { sender.send(7).unwrap() }));
    let thread = std::thread::spawn(move || block_on(first));
    block_on(second).unwrap();
    assert_eq!(thread.join().unwrap(), Ok(7));
}

#[test]
fn residents_send_and_are_dropped_on_their_thread() {
    struct Noted(mpsc::Sender<String>);
    impl Drop for Noted {
        fn drop(&mut self) {
            self.0.send(std::thread::current().name().unwrap_or_default().to_owned()).unwrap();
        }
    }
    let got = Arc::new(AtomicU32::new(0));
    let (a, b) =
        (WorkerThread::spawn(&context(BETWEEN)).unwrap(), WorkerThread::spawn(&context(BETWEEN)).unwrap());
    let count = Arc::clone(&got);
    let address = block_on(a.run(|worker| async move {
        worker
            .am_handler(1, move |message| {
                count.fetch_add(message.data().len() as u32, Ordering::Relaxed);
            })
            .unwrap();
        worker.address().unwrap()
    }));
    let address = address.unwrap();
    let ep = block_on(b.keep(move |worker| Ok::<Endpoint, Error>(worker.connect(address.as_bytes())?)));
    let ep = ep.unwrap().unwrap();
    let threads: Vec<_> = (0..4)
        .map(|_| {
            let ep = ep.clone();
            std::thread::spawn(move || {
                for _ in 0..100 {
                    let sent = ep.run(|ep| async move { ep.am_send(1, b"", vec![0; 10]).await.is_ok() });
                    assert_eq!(block_on(sent), Ok(true));
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    let end = Instant::now() + PATIENCE;
    while got.load(Ordering::Relaxed) < 4000 {
        assert!(Instant::now() < end);
        std::thread::sleep(Duration::from_millis(1));
    }
    let (sender, dropped) = mpsc::channel();
    let noted = block_on(b.keep(move |_| Ok::<_, ()>(Noted(sender)))).unwrap().unwrap();
    assert!(dropped.try_recv().is_err());
    drop(noted);
    assert_eq!(dropped.recv_timeout(PATIENCE).unwrap(), "rucx-worker");
    let failed = block_on(b.keep(|_| Err::<Cell<u8>, _>("no"))).unwrap();
    assert_eq!(failed.unwrap_err(), "no");
}

#[test]
fn the_thread_ends_with_the_last_of_it_and_jobs_that_nobody_awaits_with_it() {
    let (sender, ended) = mpsc::channel::<()>();
    let remote = WorkerThread::spawn(&context(BETWEEN)).unwrap();
    // Waits for ever, and is not awaited.
    let job = remote.run(move |_| async move {
        let _sender = sender;
        std::future::pending::<()>().await;
    });
    {
        let mut job = Box::pin(job);
        let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
        assert!(job.as_mut().poll(&mut cx).is_pending());
    }
    block_on(remote.run(|_| async {})).unwrap();
    assert_eq!(ended.try_recv(), Err(mpsc::TryRecvError::Empty), "it runs");
    drop(remote);
    assert_eq!(ended.recv_timeout(PATIENCE), Err(mpsc::RecvTimeoutError::Disconnected));
}

#[test]
fn a_job_that_panics_ends_the_thread_and_is_told() {
    let remote = WorkerThread::spawn(&context(BETWEEN)).unwrap();
    let panics = block_on(remote.run(|_| async {
        if Rc::new(Cell::new(true)).get() {
            panic!("meant to");
        }
    }));
    assert_eq!(panics.unwrap_err().to_string(), "the worker's thread has ended");
    assert!(block_on(remote.run(|_| async {})).is_err());
}

/// Polls it once: then what it asks for is on its way to the thread.
fn begin<F: Future>(future: F) -> std::pin::Pin<Box<F>> {
    let mut future = Box::pin(future);
    let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
    assert!(future.as_mut().poll(&mut cx).is_pending());
    future
}

#[test]
fn residents_that_nobody_awaits_are_dropped_after_what_was_asked_of_them() {
    struct Noted(mpsc::Sender<&'static str>);
    impl Drop for Noted {
        fn drop(&mut self) {
            self.0.send("dropped").unwrap();
        }
    }
    let remote = WorkerThread::spawn(&context(BETWEEN)).unwrap();
    // Keeps the thread busy, so that what follows waits for it.
    let busy = || {
        let (go, waits) = mpsc::channel::<()>();
        let (begun, begins) = mpsc::channel::<()>();
        let busy = begin(remote.run(move |_| async move {
            begun.send(()).unwrap();
            waits.recv().unwrap();
        }));
        begins.recv_timeout(PATIENCE).unwrap();
        (go, busy)
    };
    let (sender, told) = mpsc::channel();
    let (go, _busy) = busy();
    let theirs = sender.clone();
    drop(begin(remote.keep(move |_| Ok::<_, ()>(Noted(theirs)))));
    go.send(()).unwrap();
    assert_eq!(told.recv_timeout(PATIENCE), Ok("dropped"), "made for nobody");

    let theirs = sender.clone();
    let noted = block_on(remote.keep(move |_| Ok::<_, ()>(Noted(theirs)))).unwrap().unwrap();
    let (go, _busy) = busy();
    drop(begin(noted.run(|noted| async move { noted.0.send("run").unwrap() })));
    drop(noted);
    go.send(()).unwrap();
    assert_eq!(told.recv_timeout(PATIENCE), Ok("run"), "it was asked for before");
    assert_eq!(told.recv_timeout(PATIENCE), Ok("dropped"));
}

#[test]
fn the_thread_ends_also_when_no_more_jobs_fit() {
    let (sender, ended) = mpsc::channel::<()>();
    let (begun, begins) = mpsc::channel::<()>();
    let remote = WorkerThread::spawn(&context(BETWEEN)).unwrap();
    for _ in 0..1100 {
        let (sender, begun) = (sender.clone(), begun.clone());
        drop(begin(remote.run(move |_| async move {
            let _sender = sender;
            begun.send(()).unwrap();
            std::future::pending::<()>().await;
        })));
    }
    drop(sender);
    (0..1024).for_each(|_| begins.recv_timeout(PATIENCE).unwrap());
    assert_eq!(begins.recv_timeout(Duration::from_millis(50)), Err(mpsc::RecvTimeoutError::Timeout));
    drop(remote);
    assert_eq!(ended.recv_timeout(PATIENCE), Err(mpsc::RecvTimeoutError::Disconnected));
}
