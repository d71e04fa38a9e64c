//! What is tried: a function of memory and of a device, whatever these are.

use super::Unproven;

/// What becomes of a request of the trial that does not succeed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Failure {
    Error(String),
    Late,
}

impl Failure {
    fn of(self, what: &'static str) -> Unproven {
        match self {
            Self::Error(why) => Unproven::Failed { what, why },
            Self::Late => Unproven::Late { what },
        }
    }
}

/// Memory that a device has registered by its address: whole pages, and the same of it twice, by the device and by the processor.
pub(super) trait Pages {
    /// Has the device write there. It takes [`PATIENCE`](super::PATIENCE) at most.
    fn write(&mut self, at: usize, bytes: &[u8]) -> Result<(), Failure>;
    /// Has the device read there, as long.
    fn read(&mut self, at: usize, bytes: &mut [u8]) -> Result<(), Failure>;
    /// All bytes, by the processor.
    fn load(&self) -> Result<Vec<u8>, Failure>;
    /// Sets all bytes, by the processor.
    fn store(&mut self, all: &[u8]) -> Result<(), Failure>;
    /// Unmaps the pages; fresh ones of zeros are mapped at their address.
    fn map_anew(&mut self) -> Result<(), Failure>;
}

/// Bytes of a request of the trial, and how far before the second page it begins if it reaches into that.
const LEN: usize = 100;
const BEFORE: usize = 37;

/// Tries whether requests of a device to two `pages` of `page` bytes each, which are fresh, reach what is mapped there, and nothing else.
pub(super) fn prove(pages: &mut impl Pages, page: usize) -> Result<(), Unproven> {
    let (within, across) = (page / 2 + 9, page - BEFORE);
    let zeros = vec![0; 2 * page];
    let mut trial = Trial { page, expected: zeros.clone(), before: None };
    trial.write(pages, within, 1)?; // there is no page yet
    trial.write(pages, across, 2)?;
    trial.store(pages, 3)?;
    trial.read(pages, within)?;
    trial.read(pages, across)?;
    for salt in [4, 6] {
        pages.map_anew().map_err(|failure| failure.of("mapping pages anew"))?;
        trial.before = Some(std::mem::replace(&mut trial.expected, zeros.clone()));
        if salt == 4 {
            trial.write(pages, across, salt)?; // first by the device, then by the processor
        }
        trial.store(pages, salt + 1)?;
        trial.read(pages, across)?;
        trial.write(pages, within, salt)?;
    }
    Ok(())
}

/// What the pages must hold.
struct Trial {
    page: usize,
    expected: Vec<u8>,
    /// What the pages before held, if these are not the first.
    before: Option<Vec<u8>>,
}

/// Bytes that tell where they are, and which they are.
fn pattern(len: usize, salt: u8) -> Vec<u8> {
    let byte = |at: usize| u8::try_from((at * 7 + usize::from(salt) * 31) % 251 + 1).unwrap_or(1);
    (0..len).map(byte).collect()
}

impl Trial {
    /// The parts of a request, page by page: where each begins in memory, in the request, and how long it is.
    fn parts(&self, at: usize) -> impl Iterator<Item = (usize, usize, usize)> + use<> {
        let page = self.page;
        let first = LEN.min(page - at % page);
        [(at, 0, first), (at + first, first, LEN - first)].into_iter().filter(|(.., len)| *len > 0)
    }

    fn store(&mut self, pages: &mut impl Pages, salt: u8) -> Result<(), Unproven> {
        self.expected = pattern(2 * self.page, salt);
        pages.store(&self.expected).map_err(|failure| failure.of("storing"))
    }

    fn write(&mut self, pages: &mut impl Pages, at: usize, salt: u8) -> Result<(), Unproven> {
        let bytes = pattern(LEN, salt);
        let unchanged = self.expected.clone();
        self.expected[at..at + LEN].copy_from_slice(&bytes);
        pages.write(at, &bytes).map_err(|failure| failure.of("writing by the device"))?;
        let seen = pages.load().map_err(|failure| failure.of("loading"))?;
        if seen == self.expected {
            return Ok(());
        }
        let mut at_beginning = unchanged.clone();
        for (to, from, len) in self.parts(at) {
            let to = to / self.page * self.page;
            at_beginning[to..to + len].copy_from_slice(&bytes[from..from + len]);
        }
        Err(match () {
            () if seen == at_beginning => Unproven::WrittenAtBeginning,
            () if seen == unchanged && self.before.is_some() => Unproven::OldPages,
            () if seen == unchanged => Unproven::NotWritten,
            () => Unproven::WrittenElsewhere,
        })
    }

    fn read(&mut self, pages: &mut impl Pages, at: usize) -> Result<(), Unproven> {
        let mut seen = vec![0; LEN];
        pages.read(at, &mut seen).map_err(|failure| failure.of("reading by the device"))?;
        let is = |held: &[u8], from_beginning: bool| {
            self.parts(at).all(|(from, to, len)| {
                let from = if from_beginning { from / self.page * self.page } else { from };
                held[from..from + len] == seen[to..to + len]
            })
        };
        match () {
            () if is(&self.expected, false) => Ok(()),
            () if is(&self.expected, true) => Err(Unproven::ReadFromBeginning),
            () if self.before.as_ref().is_some_and(|before| is(before, false)) => Err(Unproven::OldPages),
            () => Err(Unproven::ReadElsewhere),
        }
    }
}
