//! Remote procedure calls by active messages: a server of blocks, which come at once when they are short, and by rendezvous, straight
//! into the caller's buffer, when they are long.
//!
//! ```sh
//! cargo run --example am_rpc
//! ```

#![allow(clippy::print_stderr)] // a program, and this is what it has to say

use std::cell::RefCell;
use std::io::{Read, Write};
use std::process::{Command, ExitCode, Stdio};
use std::rc::Rc;
use std::time::{Duration, Instant};

use ucp::{AmMessage, Context, Error, Features, Request};

const GET: u16 = 1;
const BLOCK: u16 = 2;
const BYE: u16 = 3;
/// No block of this server is longer: what a peer announces is not believed beyond that.
const LONGEST: u64 = 64 << 20;
const PATIENCE: Duration = Duration::from_secs(10);

fn main() -> ExitCode {
    let is_client = std::env::args().nth(1).as_deref() == Some("client");
    match if is_client { client() } else { server() } {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("am_rpc: {error}\n        what to do: {}", error.remedy());
            ExitCode::FAILURE
        }
    }
}

fn server() -> Result<(), Error> {
    let ctx = Context::builder().features(Features::AM).build()?;
    let worker = ctx.worker()?;
    worker.am_handler(GET, |call| {
        let Some((number, len)) = call.header().split_first() else { return };
        let Ok(len) = len.try_into().map(u64::from_le_bytes) else { return };
        let block = vec![7; usize::try_from(len.min(LONGEST)).unwrap_or(0)];
        // The number of the call goes back in the header; the block is the operand, and is freed when it has been sent.
        let _detached = call.reply().am_send(BLOCK, &[*number], block);
    })?;
    let done = Rc::new(RefCell::new(false));
    let flag = Rc::clone(&done);
    worker.am_handler(BYE, move |_| *flag.borrow_mut() = true)?;

    let mut child = Command::new(std::env::current_exe()?).arg("client").stdin(Stdio::piped()).spawn()?;
    if let Some(mut stdin) = child.stdin.take() {
        stdin.write_all(worker.address()?.as_bytes())?;
    }
    let end = Instant::now() + PATIENCE;
    while !*done.borrow() && Instant::now() < end {
        worker.wait_any(PATIENCE)?;
    }
    child.wait()?;
    Ok(())
}

/// A block that has come, or is coming.
enum Block {
    Here(Vec<u8>),
    Coming(Request<Vec<u8>>),
}

fn client() -> Result<(), Error> {
    let mut address = Vec::new();
    std::io::stdin().read_to_end(&mut address)?;
    let ctx = Context::builder().features(Features::AM).build()?;
    let worker = ctx.worker()?;
    let blocks: Rc<RefCell<Vec<(u8, Block)>>> = Rc::default();
    let into = Rc::clone(&blocks);
    worker.am_handler(BLOCK, move |message: AmMessage| {
        let number = message.header().first().copied().unwrap_or(0);
        let block = match usize::try_from(message.len().min(LONGEST)) {
            Ok(len) if message.is_rendezvous() => Block::Coming(message.recv_data(vec![0; len])),
            _ => Block::Here(message.data().to_vec()),
        };
        into.borrow_mut().push((number, block));
    })?;

    let ep = worker.connect(&address)?;
    let lengths = [10_u64, 5000, 16 << 20];
    for (number, len) in (1_u8..).zip(lengths) {
        // Short arguments are all header: that is copied, and may be borrowed.
        let call = [&[number], &len.to_le_bytes()[..]].concat();
        worker.wait(ep.am_send(GET, &call, Vec::new()), PATIENCE)?;
    }
    let end = Instant::now() + PATIENCE;
    while blocks.borrow().len() < lengths.len() && Instant::now() < end {
        worker.wait_any(PATIENCE)?;
    }
    for (number, block) in blocks.take() {
        let (how, block) = match block {
            Block::Here(block) => ("at once", block),
            Block::Coming(request) => ("by rendezvous", worker.wait(request, PATIENCE)?),
        };
        eprintln!("am_rpc: call {number}: {} bytes, {how}", block.len());
    }
    worker.wait(ep.am_send(BYE, b"", Vec::new()), PATIENCE)?;
    Ok(())
}
