//! The processes: who exports memory, and who uses it.

use std::fmt::Debug;
use std::time::Instant;

use testkit::{Child, Rng, role};
use ucp::{
    AccessError, Context, Features, ImportedRegion, MemMap, OperandReason, PackedMemh, Region, TransferError,
};

/// Bytes of each region: no multiple of anything that they are moved by.
pub(crate) const LEN: usize = (1 << 20) + 12_345;
/// Operations of one work.
const OPERATIONS: usize = 24;
/// Their lengths: within a packet, several packets, fragments, requests.
const LENGTHS: [usize; 8] = [1, 7, 4096, 4097, 100_000, 131_072, 300_001, LEN];

/// What a process is asked for. It answers with a word, or with a handle.
#[derive(Clone, Debug)]
pub(crate) enum Ask {
    /// An exporter: pack another handle.
    Export,
    /// An exporter: revoke the export of this number.
    Revoke(u8),
    /// An exporter: fill the memory.
    Fill(u8),
    /// An exporter: has it what a work left?
    Compare(u8),
    /// An exporter: has it what a `Fill` left?
    CompareFill(u8),
    /// An importer: import this.
    Import(Vec<u8>),
    /// An importer: operations on the first import, against a model.
    Work(u8),
    /// An importer: read from the import of this number.
    Access(u8),
    /// An importer: read from the import of this number, and tell the error in its own words.
    Words(u8),
    /// An exporter: where is the memory?
    Where,
    /// An importer: is anything mapped at that address of another process's?
    IsMapped(Vec<u8>),
    /// An importer: import this, if that can be done.
    TryImport(Vec<u8>),
    /// An importer: put so many bytes, of memory that is registered for that, to the first import.
    Put(u32),
    /// Make a child by fork, in which nothing of this is there.
    Fork,
    /// An importer: what do getting all of the first import, putting all of the second, and copying all of the first to the second take?
    Time,
    /// An importer: copy all of one import into another one.
    Carry { from: u8, to: u8, parts: u8 },
}

impl Ask {
    pub(crate) fn frame(&self) -> Vec<u8> {
        match self {
            Self::Export => vec![0],
            Self::Revoke(number) => vec![1, *number],
            Self::Fill(seed) => vec![2, *seed],
            Self::Compare(seed) => vec![3, *seed],
            Self::CompareFill(seed) => vec![4, *seed],
            Self::Import(handle) => [&[5], handle.as_slice()].concat(),
            Self::Work(seed) => vec![6, *seed],
            Self::Access(number) => vec![7, *number],
            Self::Words(number) => vec![14, *number],
            Self::Where => vec![9],
            Self::IsMapped(address) => [&[10], address.as_slice()].concat(),
            Self::TryImport(handle) => [&[11], handle.as_slice()].concat(),
            Self::Put(len) => [&[12], &len.to_ne_bytes()[..]].concat(),
            Self::Fork => vec![13],
            Self::Time => vec![15],
            Self::Carry { from, to, parts } => vec![8, *from, *to, *parts],
        }
    }

    fn read(frame: &[u8]) -> Self {
        match frame {
            [0] => Self::Export,
            [1, number] => Self::Revoke(*number),
            [2, seed] => Self::Fill(*seed),
            [3, seed] => Self::Compare(*seed),
            [4, seed] => Self::CompareFill(*seed),
            [5, handle @ ..] => Self::Import(handle.to_vec()),
            [6, seed] => Self::Work(*seed),
            [7, number] => Self::Access(*number),
            [8, from, to, parts] => Self::Carry { from: *from, to: *to, parts: *parts },
            [9] => Self::Where,
            [10, address @ ..] => Self::IsMapped(address.to_vec()),
            [11, handle @ ..] => Self::TryImport(handle.to_vec()),
            [12, len @ ..] => Self::Put(u32::from_ne_bytes(len.try_into().unwrap())),
            [13] => Self::Fork,
            [15] => Self::Time,
            [14, number] => Self::Words(*number),
            other => panic!("no order: {other:?}"),
        }
    }
}

/// Has a process do it, which answers with these words.
#[track_caller]
pub(crate) fn expect(child: &mut Child, ask: &Ask, words: &str) {
    let answer = child.request(&ask.frame());
    assert_eq!(String::from_utf8_lossy(&answer), words);
}

fn context() -> Context {
    if let Ok(limit) = std::env::var("RUCX_TEST_MEMLOCK") {
        testkit::limits::limit_pinned(limit.parse().unwrap());
    }
    let builder = Context::builder().features(Features::EXPORTED_MEMH);
    builder.set("UCX_TLS", "verbs").build().unwrap()
}

fn random(seed: u8) -> Vec<u8> {
    let mut bytes = vec![0; LEN];
    Rng::new(u64::from(seed)).fill(&mut bytes);
    bytes
}

/// The operations of a work: whether it writes, where, and what.
fn work(seed: u8) -> impl Iterator<Item = (bool, usize, Vec<u8>)> {
    let mut rng = Rng::new(u64::from(seed) << 8);
    (0..OPERATIONS).map(move |number| {
        let len = LENGTHS[number % LENGTHS.len()];
        let mut bytes = vec![0; len];
        rng.fill(&mut bytes);
        (number % 3 != 2, rng.below(LEN - len + 1), bytes)
    })
}

pub(crate) fn bytes_of_work() -> u64 {
    work(1).map(|(_, _, bytes)| bytes.len() as u64).sum()
}

pub(crate) fn exporter() {
    let ctx = context();
    let len = std::env::var("RUCX_TEST_LEN").map_or(LEN, |len| len.parse().unwrap());
    let region: Region = ctx.mem_map(MemMap::allocate(len).exported()).unwrap();
    let mut exports: Vec<PackedMemh> = Vec::new();
    let holds = |expected: &[u8]| {
        let mut bytes = vec![0; LEN];
        region.read(0, &mut bytes).unwrap();
        let differs = (0..LEN).find(|at| bytes[*at] != expected[*at]);
        differs.map_or_else(|| "same".to_owned(), |at| format!("byte {at} differs"))
    };
    while let Some(frame) = role::try_recv() {
        let answer = match Ask::read(&frame) {
            Ask::Export => {
                exports.push(region.memh_pack().unwrap());
                role::send(exports.last().unwrap().as_bytes());
                continue;
            }
            Ask::Where => {
                role::send(&region.address().to_ne_bytes());
                continue;
            }
            Ask::Revoke(number) => {
                exports[usize::from(number)].revoke().unwrap();
                "revoked".to_owned()
            }
            Ask::Fill(seed) => {
                region.write(0, &random(seed)).unwrap();
                "filled".to_owned()
            }
            Ask::CompareFill(seed) => holds(&random(seed)),
            Ask::Fork => in_a_child(|| region.memh_pack().is_err()),
            Ask::Compare(seed) => {
                let mut model = vec![0; LEN];
                for (_, at, bytes) in work(seed).filter(|(writes, ..)| *writes) {
                    model[at..at + bytes.len()].copy_from_slice(&bytes);
                }
                holds(&model)
            }
            other => panic!("not for an exporter: {other:?}"),
        };
        role::send(answer.as_bytes());
    }
}

pub(crate) fn importer() {
    let ctx = context();
    let mut imports: Vec<ImportedRegion> = Vec::new();
    while let Some(frame) = role::try_recv() {
        let answer = match Ask::read(&frame) {
            Ask::Import(handle) => {
                let import = ctx.mem_import(&handle).unwrap();
                let by = import.transport().to_owned();
                imports.push(import);
                by
            }
            Ask::Work(seed) => {
                do_work(&imports[0], seed);
                "done".to_owned()
            }
            Ask::TryImport(handle) => match ctx.mem_import(&handle) {
                Ok(_) => "imported".to_owned(),
                Err(error) => format!("{error}: {}", error.remedy()),
            },
            Ask::Put(len) => match imports[0].put(0, vec![1; len as usize]) {
                Ok(_) => "done".to_owned(),
                Err(failed) => format!("{}: {}", failed.error, failed.error.remedy()),
            },
            Ask::Fork => in_a_child(|| imports[0].read(0, &mut [0; 8]).is_err()),
            Ask::Access(number) => match imports[usize::from(number)].read(0, &mut [0; 8]) {
                Ok(()) => "fine".to_owned(),
                Err(error) => in_words(&error),
            },
            Ask::Words(number) => match imports[usize::from(number)].read(0, &mut [0; 8]) {
                Ok(()) => "fine".to_owned(),
                Err(error) => format!("{error}: {}", error.remedy()),
            },
            Ask::IsMapped(address) => {
                let address = u64::from_ne_bytes(address.try_into().unwrap());
                if is_mapped(address) { "mapped" } else { "unmapped" }.to_owned()
            }
            Ask::Carry { from, to, parts } => {
                let (from, to) = (&imports[usize::from(from)], &imports[usize::from(to)]);
                carry(from, to, usize::from(parts))
                    .map_or_else(|error| in_words(&error), |()| "done".to_owned())
            }
            Ask::Time => times(&imports[0], &imports[1]),
            other => panic!("not for an importer: {other:?}"),
        };
        role::send(answer.as_bytes());
    }
}

/// Whether a byte of the region of another process that begins there is mapped here (`proc_pid_maps(5)`).
fn is_mapped(address: u64) -> bool {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines().any(|line| {
        let range = line.split(' ').next().unwrap();
        let (start, end) = range.split_once('-').unwrap();
        let [start, end] = [start, end].map(|word| u64::from_str_radix(word, 16).unwrap());
        start < address + LEN as u64 && address < end
    })
}

/// Whether a child of this process says yes.
fn in_a_child(check: impl FnOnce() -> bool) -> String {
    if testkit::in_plain_child(check) { "forked" } else { "the child says no" }.to_owned()
}

fn in_words(error: &AccessError) -> String {
    match error {
        AccessError::Stale { .. } => "stale".to_owned(),
        AccessError::Device { .. } => "device".to_owned(),
        AccessError::Operand { why: OperandReason::Stale(_), .. } => "stale operand".to_owned(),
        other => format!("{other:?}"),
    }
}

/// By operands and by slices; what is read is what the model has.
fn do_work(import: &ImportedRegion, seed: u8) {
    let mut model = vec![0; LEN];
    for (number, (writes, at, bytes)) in work(seed).enumerate() {
        let range = at..at + bytes.len();
        let offset = at as u64;
        let by_operand = number % 2 == 0;
        match (writes, by_operand) {
            (true, true) => drop(told(import.put(offset, bytes.clone()))),
            (true, false) => import.write(offset, &bytes).unwrap(),
            (false, true) => {
                let got = told(import.get(offset, vec![0; bytes.len()]));
                assert!(got == model[range.clone()], "{} bytes at {at}", bytes.len());
            }
            (false, false) => {
                let mut got = vec![0; bytes.len()];
                import.read(offset, &mut got).unwrap();
                assert!(got == model[range.clone()], "{} bytes at {at}", bytes.len());
            }
        }
        if writes {
            model[range].copy_from_slice(&bytes);
        }
    }
}

/// In milliseconds: getting all of `from`, putting all of `to`, and copying all of `from` to `to`.
fn times(from: &ImportedRegion, to: &ImportedRegion) -> String {
    let time = |moves: &mut dyn FnMut()| {
        let begin = Instant::now();
        moves();
        begin.elapsed().as_millis()
    };
    [from, to].iter().for_each(|import| told(import.read(0, &mut [0; 8])));
    let mut memory = Some(vec![0; usize::try_from(from.len()).unwrap()]);
    let get = time(&mut || memory = memory.take().map(|memory| told(from.get(0, memory))));
    let put = time(&mut || memory = memory.take().map(|memory| told(to.put(0, memory))));
    let both = time(&mut || drop(told(to.put(0, from.slice(..).unwrap()))));
    format!("{get} {put} {both}")
}

#[track_caller]
fn told<T, E: Debug>(result: Result<T, E>) -> T {
    result.unwrap_or_else(|error| panic!("{error:?}"))
}

/// Copies all of `from` into `to`, as operand of the one and of the other by turns.
fn carry(from: &ImportedRegion, to: &ImportedRegion, parts: usize) -> Result<(), AccessError> {
    for part in 0..parts {
        let range = (LEN * part / parts) as u64..(LEN * (part + 1) / parts) as u64;
        let start = range.start;
        let moved = if part % 2 == 0 {
            to.put(start, from.slice(range).unwrap()).map(drop).map_err(|failed| failed.error)
        } else {
            from.get(start, to.slice(range).unwrap()).map(drop).map_err(|failed| failed.error)
        };
        moved.map_err(|error| match error {
            TransferError::Access(error) => error,
            other => panic!("{other:?}"),
        })?;
    }
    Ok(())
}
