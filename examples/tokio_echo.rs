//! An echo between two processes, each with a tokio runtime: one drives its worker within the runtime's thread, the other has it on a
//! thread of its own, and its tasks may run anywhere.
//!
//! ```sh
//! cargo run --example tokio_echo
//! ```

#![allow(clippy::print_stderr)] // a program, and this is what it has to say

use std::process::{ExitCode, Stdio};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::Command;
use tokio::sync::mpsc;
use ucp::{Context, Endpoint, Error, Features, WorkerThread};

const ECHO: u16 = 1;
const TASKS: u8 = 8;

fn main() -> ExitCode {
    let is_client = std::env::args().nth(1).as_deref() == Some("client");
    let mut runtime = match is_client {
        true => tokio::runtime::Builder::new_multi_thread(),
        false => tokio::runtime::Builder::new_current_thread(),
    };
    let result = runtime.enable_all().build().map_err(Error::from).and_then(|runtime| {
        let run = async { if is_client { client().await } else { server().await } };
        runtime.block_on(run)
    });
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("echo: {error}\n      what to do: {}", error.remedy());
            ExitCode::FAILURE
        }
    }
}

/// Sends back what comes, until the client has ended. All on one thread.
async fn server() -> Result<(), Error> {
    let worker = Context::builder().features(Features::AM).build()?.worker()?;
    worker.am_handler(ECHO, |message| {
        let _detached = message.reply().am_send(ECHO, message.header(), message.data().to_vec());
    })?;
    let mut child = Command::new(std::env::current_exe()?).arg("client").stdin(Stdio::piped()).spawn()?;
    if let Some(mut stdin) = child.stdin.take() {
        stdin.write_all(worker.address()?.as_bytes()).await?;
    }
    tokio::select! {
        ended = child.wait() => eprintln!("echo: the client has ended: {}", ended?),
        never = worker.drive() => match never? {},
    }
    Ok(())
}

/// Has many tasks, on all threads, use one endpoint.
async fn client() -> Result<(), Error> {
    let mut address = Vec::new();
    tokio::io::stdin().read_to_end(&mut address).await?;
    let ctx = Context::builder().features(Features::AM).build()?;
    let remote = WorkerThread::spawn(&ctx)?;
    let (told, mut echoes) = mpsc::unbounded_channel::<(u8, Vec<u8>)>();
    let ep = remote.keep(move |worker| {
        worker.am_handler(ECHO, move |message| {
            let number = message.header().first().copied().unwrap_or(0);
            let _ = told.send((number, message.data().to_vec()));
        })?;
        Ok::<Endpoint, Error>(worker.connect(&address)?)
    });
    let ep = ep.await??; // a handle to what stays on the worker's thread

    let mut tasks = tokio::task::JoinSet::new();
    for number in 0..TASKS {
        tasks.spawn(ep.run(move |ep| async move {
            Ok::<_, Error>(ep.am_send(ECHO, &[number], vec![number; 1000]).await?)
        }));
    }
    while let Some(sent) = tasks.join_next().await {
        sent.map_err(std::io::Error::other)???;
    }
    for _ in 0..TASKS {
        match echoes.recv().await {
            Some((number, data)) => eprintln!("echo: {} bytes of task {number} are back", data.len()),
            None => return Err(std::io::Error::other("the worker has ended").into()),
        }
    }
    Ok(())
}
