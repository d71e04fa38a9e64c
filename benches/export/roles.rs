//! The process beside the benchmark: an exporter, or importers that stay connected.

use std::io::{Read, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::OnceLock;

use rucx_benches::processors::{self, keep_to};
use ucp::{Context, Features, MemMap, PackedMemh, read_handle};

use crate::bare;
use crate::rows::context;

/// The first argument of a process beside the benchmark.
pub(crate) const FLAG: &str = "--role";

/// Before the processor a role keeps to.
const CPU: &str = "cpu=";

/// Bytes of the region for accesses.
pub(crate) const LARGEST: usize = 16 << 20;

/// The processor for the process beside the benchmark; unset: any.
static BESIDE: OnceLock<usize> = OnceLock::new();

/// Keeps this process to the first processor it may use, and the one beside it to the last.
pub(crate) fn pin() -> Result<(), String> {
    let (_, last) = processors::pin()?;
    let _ = BESIDE.set(last);
    Ok(())
}

/// Runs a role: until its stdin ends, which it does with the benchmark.
pub(crate) fn run(words: &[String]) -> Result<(), String> {
    // What came with the process is the benchmark's one processor.
    let words = match words {
        [cpu, rest @ ..] if cpu.starts_with(CPU) => {
            keep_to(cpu[CPU.len()..].parse().map_err(|_| "which processor?")?)?;
            rest
        }
        words => words,
    };
    match words {
        [role] if role == "exporter" => exporter(),
        [role, count] if role == "importers" => importers(count.parse().map_err(|_| "how many?")?),
        _ => return Err(format!("no such role: {words:?}")),
    }
    Ok(())
}

fn tell(bytes: &[u8]) {
    let mut out = std::io::stdout().lock();
    out.write_all(bytes).expect("the benchmark listens");
    out.flush().expect("the benchmark listens");
}

fn wait_for_the_end() {
    let _ = std::io::copy(&mut std::io::stdin().lock(), &mut std::io::sink());
}

/// Exports three regions, and serves the bare loops on two sockets.
fn exporter() {
    let ctx = context();
    let small = ctx.mem_map(MemMap::allocate(bare::REGION).exported()).expect("a region");
    let large = ctx.mem_map(MemMap::allocate(LARGEST).exported()).expect("a region");
    for at in (0..LARGEST as u64).step_by(bare::PAGE) {
        large.store(at, 1_u8).expect("within");
    }
    let names = [bare_name(std::process::id(), "new"), bare_name(std::process::id(), "kept")];
    for name in names {
        bare::serve(name.as_bytes(), [bare::REGION, bare::TABLE, bare::SLOTS]);
    }
    let own = ctx.mem_map(MemMap::buffer(vec![1_u8; LARGEST]).exported()).expect("a region");
    for region in [&small, &large, &own] {
        tell(region.memh_pack().expect("a handle").as_bytes());
    }
    wait_for_the_end();
}

fn bare_name(pid: u32, which: &str) -> String {
    format!("rucx-bench-{pid}-{which}")
}

/// So many contexts, each of which imports the handle that comes in.
fn importers(count: usize) {
    let bytes = read_handle(&mut std::io::stdin().lock()).expect("a handle");
    let import = |_| {
        let ctx =
            Context::builder().features(Features::EXPORTED_MEMH).ignore_env().set("UCX_SHM_ATTACH", "socket");
        ctx.build().expect("a context").mem_import(&bytes).expect("an import")
    };
    let imports: Vec<_> = (0..count).map(import).collect();
    tell(b"!");
    wait_for_the_end();
    drop(imports);
}

/// A process beside this one. Dropping it ends it.
#[derive(Debug)]
struct Beside {
    child: Child,
    // Its stdin; `None` only while it is being dropped.
    to: Option<ChildStdin>,
    from: ChildStdout,
}

impl Beside {
    fn start(words: &[&str]) -> Self {
        let mut command = Command::new(std::env::current_exe().expect("this executable"));
        command.arg(FLAG).args(BESIDE.get().map(|cpu| format!("{CPU}{cpu}")));
        command.args(words).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("this executable, again");
        let (to, from) = (child.stdin.take(), child.stdout.take().expect("piped"));
        Self { child, to, from }
    }
}

impl Drop for Beside {
    fn drop(&mut self) {
        drop(self.to.take());
        let _ = self.child.wait();
    }
}

/// A process that exports.
#[derive(Debug)]
pub(crate) struct Exporter {
    beside: Beside,
    /// The handle of [`bare::REGION`] bytes.
    pub(crate) small: Vec<u8>,
    /// The handle of [`LARGEST`] bytes.
    pub(crate) large: Vec<u8>,
    /// As many in a vector, which rucx did not allocate.
    pub(crate) own: Vec<u8>,
}

impl Exporter {
    pub(crate) fn start() -> Self {
        let mut beside = Beside::start(&["exporter"]);
        let small = read_handle(&mut beside.from).expect("a handle");
        let large = read_handle(&mut beside.from).expect("a handle");
        let own = read_handle(&mut beside.from).expect("a handle");
        Self { beside, small, large, own }
    }

    /// Its process.
    pub(crate) fn pid(&self) -> u32 {
        self.beside.child.id()
    }

    /// The socket for bare loops that connect each time.
    pub(crate) fn bare_new(&self) -> Vec<u8> {
        bare_name(self.beside.child.id(), "new").into_bytes()
    }

    /// The socket for the bare loop that keeps its connection.
    pub(crate) fn bare_kept(&self) -> Vec<u8> {
        bare_name(self.beside.child.id(), "kept").into_bytes()
    }
}

/// Processes with importers of an export of this one.
#[derive(Debug)]
pub(crate) struct Importers {
    _beside: Vec<Beside>,
}

/// Contexts of one process that import: an exporter serves a process no more than so many connections at once.
const EACH: usize = 16;

impl Importers {
    pub(crate) fn start(count: usize, handle: &PackedMemh) -> Self {
        let sizes = (0..count).step_by(EACH).map(|before| EACH.min(count - before));
        let beside = sizes.map(|size| {
            let mut beside = Beside::start(&["importers", &size.to_string()]);
            let to = beside.to.as_mut().expect("open until it is dropped");
            to.write_all(handle.as_bytes()).expect("it reads");
            beside.from.read_exact(&mut [0]).expect("all have imported");
            beside
        });
        Self { _beside: beside.collect() }
    }
}
