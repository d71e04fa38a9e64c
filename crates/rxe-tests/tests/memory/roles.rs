//! The processes: who exports memory, and who uses it.

use std::fmt::Debug;
use std::os::unix::process::parent_id;
use std::time::{Duration, Instant};

use testkit::{Child, Forked, Rng, role};
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
    /// An exporter: revoke the export of this number; why not, if it cannot.
    Revoke(u8),
    /// An exporter: give the memory up, and all exports of it.
    Drop,
    /// An exporter: fill the memory.
    Fill(u8),
    /// An exporter: has it what a work left?
    Compare(u8),
    /// An exporter: has it what a `Fill` left?
    CompareFill(u8),
    /// An exporter: has it what a `Put` left?
    ComparePut { len: u32, seed: u8 },
    /// An importer: import this.
    Import(Vec<u8>),
    /// An importer: operations on the first import, against a model.
    Work(u8),
    /// An importer: read from the import of this number.
    Access(u8),
    /// An importer: read from the import of this number, and tell the error in its own words.
    Words(u8),
    /// An exporter: where is the memory, and how long is it?
    Where,
    /// Is anything mapped there, where an exporter has said that its memory is?
    IsMapped(Vec<u8>),
    /// An importer: import this, if that can be done.
    TryImport(Vec<u8>),
    /// An importer: in a new context, import this.
    Anew(Vec<u8>),
    /// An importer: put so many bytes to the last import, from memory that is registered for that, and used again.
    Put { len: u32, seed: u8 },
    /// An importer: do that until it fails.
    PutOn { len: u32, seed: u8 },
    /// An importer: get what a `Fill` left from the last import, to that memory.
    Get(u8),
    /// Make a child by fork, in which nothing of this is there.
    Fork,
    /// Make a child by fork, which lives.
    Bear,
    /// Kill that child.
    Bury,
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
            Self::Put { len, seed } => [&[12, *seed], &len.to_ne_bytes()[..]].concat(),
            Self::Fork => vec![13],
            Self::Time => vec![15],
            Self::Drop => vec![16],
            Self::ComparePut { len, seed } => [&[17, *seed], &len.to_ne_bytes()[..]].concat(),
            Self::Anew(handle) => [&[18], handle.as_slice()].concat(),
            Self::Get(seed) => vec![19, *seed],
            Self::Bear => vec![20],
            Self::Bury => vec![21],
            Self::PutOn { len, seed } => [&[22, *seed], &len.to_ne_bytes()[..]].concat(),
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
            [12, seed, len @ ..] => {
                Self::Put { len: u32::from_ne_bytes(len.try_into().unwrap()), seed: *seed }
            }
            [13] => Self::Fork,
            [14, number] => Self::Words(*number),
            [15] => Self::Time,
            [16] => Self::Drop,
            [17, seed, len @ ..] => {
                Self::ComparePut { len: u32::from_ne_bytes(len.try_into().unwrap()), seed: *seed }
            }
            [18, handle @ ..] => Self::Anew(handle.to_vec()),
            [19, seed] => Self::Get(*seed),
            [20] => Self::Bear,
            [21] => Self::Bury,
            [22, seed, len @ ..] => {
                Self::PutOn { len: u32::from_ne_bytes(len.try_into().unwrap()), seed: *seed }
            }
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

fn random(seed: u8, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    Rng::new(u64::from(seed)).fill(&mut bytes);
    bytes
}

fn compared(found: &[u8], expected: &[u8]) -> String {
    if found == expected {
        return "same".to_owned();
    }
    let differs = found.iter().zip(expected).position(|(found, expected)| found != expected);
    format!("byte {differs:?} differs")
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

/// The memory that is exported: allocated, or, with `RUCX_TEST_BUFFER`, a buffer, which a child of a fork has, too.
fn map(ctx: &Context) -> Region {
    let len = std::env::var("RUCX_TEST_LEN").map_or(LEN, |len| len.parse().unwrap());
    let is_buffer = std::env::var("RUCX_TEST_BUFFER").is_ok();
    let of = if is_buffer { MemMap::buffer(vec![0; len]) } else { MemMap::allocate(len) };
    ctx.mem_map(of.exported()).unwrap()
}

/// Whether memory has these bytes, at its beginning.
fn holds(region: &Region, expected: &[u8]) -> String {
    let mut bytes = vec![0; expected.len()];
    region.read(0, &mut bytes).unwrap();
    compared(&bytes, expected)
}

pub(crate) fn exporter() {
    let ctx = context();
    let mut owned = Some(map(&ctx));
    let mut exports: Vec<PackedMemh> = Vec::new();
    let mut child = None;
    while let Some(frame) = role::try_recv() {
        let region = || owned.as_ref().unwrap();
        let answer = match Ask::read(&frame) {
            Ask::Export => {
                exports.push(region().memh_pack().unwrap());
                role::send(exports.last().unwrap().as_bytes());
                continue;
            }
            Ask::Where => {
                role::send(&[region().address(), region().len() as u64].map(u64::to_ne_bytes).concat());
                continue;
            }
            Ask::Revoke(number) => match exports[usize::from(number)].revoke() {
                Ok(()) => "revoked".to_owned(),
                Err(error) => format!("{error}: {}", error.remedy()),
            },
            Ask::Drop => {
                exports.clear();
                drop(owned.take());
                "dropped".to_owned()
            }
            Ask::Fill(seed) => {
                region().write(0, &random(seed, LEN)).unwrap();
                "filled".to_owned()
            }
            Ask::CompareFill(seed) => holds(region(), &random(seed, LEN)),
            Ask::ComparePut { len, seed } => holds(region(), &random(seed, len as usize)),
            Ask::Fork => in_a_child(|| region().memh_pack().is_err()),
            Ask::Bear => bear(&mut child),
            Ask::Bury => bury(&mut child),
            Ask::IsMapped(place) => is_mapped(&place),
            Ask::Compare(seed) => {
                let mut model = vec![0; LEN];
                for (_, at, bytes) in work(seed).filter(|(writes, ..)| *writes) {
                    model[at..at + bytes.len()].copy_from_slice(&bytes);
                }
                holds(region(), &model)
            }
            other => panic!("not for an exporter: {other:?}"),
        };
        role::send(answer.as_bytes());
    }
}

pub(crate) fn importer() {
    let mut ctx = context();
    let mut imports: Vec<ImportedRegion> = Vec::new();
    let mut operand: Vec<u8> = Vec::new();
    let mut child = None;
    while let Some(frame) = role::try_recv() {
        let answer = match Ask::read(&frame) {
            Ask::Import(handle) => {
                imports.push(ctx.mem_import(&handle).unwrap());
                imports.last().unwrap().transport().to_owned()
            }
            Ask::Anew(handle) => {
                ctx = context();
                imports.push(ctx.mem_import(&handle).unwrap());
                imports.last().unwrap().transport().to_owned()
            }
            Ask::Work(seed) => {
                do_work(&imports[0], seed);
                "done".to_owned()
            }
            Ask::TryImport(handle) => match ctx.mem_import(&handle) {
                Ok(_) => "imported".to_owned(),
                Err(error) => format!("{error}: {}", error.remedy()),
            },
            Ask::Put { len, seed } => {
                put(imports.last().unwrap(), &mut operand, (len, seed)).unwrap_or_else(|| "done".to_owned())
            }
            Ask::PutOn { len, seed } => {
                let last = imports.last().unwrap();
                loop {
                    if let Some(failed) = put(last, &mut operand, (len, seed)) {
                        break failed;
                    }
                }
            }
            Ask::Get(seed) => {
                operand.resize(LEN, 0);
                operand = told(imports.last().unwrap().get(0, operand));
                compared(&operand, &random(seed, LEN))
            }
            Ask::Fork => in_a_child(|| imports[0].read(0, &mut [0; 8]).is_err()),
            Ask::Bear => bear(&mut child),
            Ask::Bury => bury(&mut child),
            Ask::Access(number) => match imports[usize::from(number)].read(0, &mut [0; 8]) {
                Ok(()) => "fine".to_owned(),
                Err(error) => in_words(&error),
            },
            Ask::Words(number) => match imports[usize::from(number)].read(0, &mut [0; 8]) {
                Ok(()) => "fine".to_owned(),
                Err(error) => format!("{error}: {}", error.remedy()),
            },
            Ask::IsMapped(place) => is_mapped(&place),
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

/// Whether a byte of the memory that lies there is mapped here (`proc_pid_maps(5)`).
fn is_mapped(place: &[u8]) -> String {
    let (address, len) = place.split_at(size_of::<u64>());
    let [address, len] = [address, len].map(|bytes| u64::from_ne_bytes(bytes.try_into().unwrap()));
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let mapped = maps.lines().any(|line| {
        let range = line.split(' ').next().unwrap();
        let (start, end) = range.split_once('-').unwrap();
        let [start, end] = [start, end].map(|word| u64::from_str_radix(word, 16).unwrap());
        start < address + len && address < end
    });
    if mapped { "mapped" } else { "unmapped" }.to_owned()
}

/// Has a child of this process live until it is buried, or this process ends.
fn bear(child: &mut Option<Forked>) -> String {
    let parent = std::process::id();
    *child = Some(Forked::plain(|| {
        while parent_id() == parent {
            std::thread::sleep(Duration::from_millis(100));
        }
        false
    }));
    "born".to_owned()
}

/// The child has lived until now.
fn bury(child: &mut Option<Forked>) -> String {
    if child.take().unwrap().kill() { "buried" } else { "it had ended" }.to_owned()
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

/// Puts so many bytes, by a buffer that is used again. What has failed, in words.
fn put(import: &ImportedRegion, operand: &mut Vec<u8>, (len, seed): (u32, u8)) -> Option<String> {
    operand.resize(len as usize, 0);
    Rng::new(u64::from(seed)).fill(operand);
    match import.put(0, std::mem::take(operand)) {
        Ok(back) => {
            *operand = back;
            None
        }
        Err(failed) => {
            *operand = failed.operand;
            Some(format!("{}: {}", failed.error, failed.error.remedy()))
        }
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
