//! Two processes say hello: an active message there, and one back.
//!
//! ```sh
//! cargo run --example hello
//! ```

#![allow(clippy::print_stderr)] // a program, and this is what it has to say

use std::cell::Cell;
use std::io::{Read, Write};
use std::process::{Command, ExitCode, Stdio};
use std::rc::Rc;
use std::time::{Duration, Instant};

use ucp::{Context, Error, Features, Worker};

const HELLO: u16 = 1;
const PATIENCE: Duration = Duration::from_secs(10);

fn main() -> ExitCode {
    let is_peer = std::env::args().nth(1).as_deref() == Some("peer");
    match if is_peer { peer() } else { hello() } {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("hello: {error}\n       what to do: {}", error.remedy());
            ExitCode::FAILURE
        }
    }
}

/// Makes a worker, and answers whoever says hello.
fn hello() -> Result<(), Error> {
    let ctx = Context::builder().features(Features::AM).build()?;
    let worker = ctx.worker()?;
    let answered = Rc::new(Cell::new(false));
    let flag = Rc::clone(&answered);
    worker.am_handler(HELLO, move |message| {
        eprintln!("hello: {}", String::from_utf8_lossy(message.data()));
        let _detached = message.reply().am_send(HELLO, b"", b"hello to you".to_vec());
        flag.set(true);
    })?;

    // The other process. An address is a secret: it goes by a pipe, not in the arguments.
    let mut child = Command::new(std::env::current_exe()?).arg("peer").stdin(Stdio::piped()).spawn()?;
    if let Some(mut stdin) = child.stdin.take() {
        stdin.write_all(worker.address()?.as_bytes())?;
    }
    until(&worker, &answered)?;
    child.wait()?;
    Ok(())
}

/// Connects to the worker whose address comes on stdin.
fn peer() -> Result<(), Error> {
    let mut address = Vec::new();
    std::io::stdin().read_to_end(&mut address)?;

    let ctx = Context::builder().features(Features::AM).build()?;
    let worker = ctx.worker()?;
    let answered = Rc::new(Cell::new(false));
    let flag = Rc::clone(&answered);
    worker.am_handler(HELLO, move |message| {
        eprintln!("peer:  {}", String::from_utf8_lossy(message.data()));
        flag.set(true);
    })?;

    let ep = worker.connect(&address)?;
    eprintln!("peer:  connected over {}", ep.info().transport);
    let text = format!("hello from process {}", std::process::id());
    worker.wait(ep.am_send(HELLO, b"", text.into_bytes()), PATIENCE)?;
    until(&worker, &answered)
}

/// Waits for a flag that a handler sets.
fn until(worker: &Worker, flag: &Cell<bool>) -> Result<(), Error> {
    let end = Instant::now() + PATIENCE;
    while !flag.get() {
        if Instant::now() > end {
            return Err(Error::TimedOut);
        }
        worker.wait_any(PATIENCE)?;
    }
    Ok(())
}
