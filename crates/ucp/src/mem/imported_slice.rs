//! Parts of imports, as operands.

use std::fmt;
use std::ops::{Range, RangeBounds};

use ucs::mem::shared::BoundsError;
use uct::memory::{AccessError, Destination, Local, LocalMut, Source};

use super::ImportedRegion;
use super::slice::within;

/// A part of an [`ImportedRegion`], as an operand of another import's [`put`](ImportedRegion::put) and [`get`](ImportedRegion::get): bytes go from
/// one process's memory to another's. Clone, Send + Sync; it keeps the import.
///
/// Each side takes part in its own owner's revocation, and none waits for the other's: bytes are read from the one side by its transport, into
/// memory of the calling thread, and written to the other side by that one's. So any two transports go together, and peers may change
/// both sides meanwhile. What fails says which side it was: [`AccessError::Operand`] is this one.
///
/// ```
/// # use ucp::{Context, Features, MemMap};
/// # fn main() -> Result<(), ucp::Error> {
/// # let ctx = Context::builder().features(Features::EXPORTED_MEMH).build()?;
/// # let one = ctx.mem_map(MemMap::allocate(1 << 20).exported())?;
/// # let two = ctx.mem_map(MemMap::allocate(1 << 20).exported())?;
/// # one.write(0, b"from the host")?;
/// # let (host, other) = (one.memh_pack()?, two.memh_pack()?);
/// let (host, peer) = (ctx.mem_import(host.as_bytes())?, ctx.mem_import(other.as_bytes())?);
/// let slice = peer.put(4096, host.slice(0..8192)?)?; // from the host's memory to the peer's
/// peer.get(4096, slice)?; //                            and back
/// # let mut seen = [0; 13];
/// # two.read(4096, &mut seen)?;
/// # assert_eq!(&seen, b"from the host");
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct ImportedSlice {
    region: ImportedRegion,
    range: Range<u64>,
}

impl ImportedRegion {
    /// A part of it, as an operand of another import's `put` and `get`: as many bytes as `range` has. It may be of the same import, too; where
    /// both sides overlap then, which bytes come to lie there is not specified.
    ///
    /// # Errors
    /// Out of range, or longer than an address space.
    pub fn slice(&self, range: impl RangeBounds<u64>) -> Result<ImportedSlice, AccessError> {
        let range = within(range, self.len())?;
        let len = range.end - range.start;
        if usize::try_from(len).is_err() {
            return Err(BoundsError::OutOfRange { offset: range.start, len, size: usize::MAX as u64 }.into());
        }
        Ok(ImportedSlice { region: self.clone(), range })
    }
}

impl ImportedSlice {
    /// How many bytes.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.range.end - self.range.start
    }

    /// Whether it has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.range.is_empty()
    }

    /// Which bytes of the import it is.
    #[must_use]
    pub fn range(&self) -> Range<u64> {
        self.range.clone()
    }

    /// The import that it is a part of.
    #[must_use]
    pub fn region(&self) -> &ImportedRegion {
        &self.region
    }

    fn check_fork(&self) -> Result<(), AccessError> {
        match self.region.imported() {
            Some(imported) if imported.ctx().is_forked() => Err(AccessError::Forked),
            _ => Ok(()),
        }
    }
}

impl Source for ImportedSlice {
    fn local(&self) -> Local<'_> {
        match self.region.imported() {
            Some(imported) => Local::imported(imported.memory(), self.range()),
            None => Local::bytes(&[]),
        }
    }

    fn check(&self) -> Result<(), AccessError> {
        self.check_fork()
    }
}

impl Destination for ImportedSlice {
    fn local_mut(&mut self) -> LocalMut<'_> {
        match self.region.imported() {
            Some(imported) => LocalMut::imported(imported.memory(), self.range()),
            None => LocalMut::bytes(&mut []),
        }
    }

    /// Also whether it may be written: before anything is read for it.
    fn check(&self) -> Result<(), AccessError> {
        self.check_fork()?;
        match self.region.imported() {
            Some(imported) => LocalMut::imported(imported.memory(), self.range()).check(),
            None => Ok(()),
        }
    }
}

impl fmt::Debug for ImportedSlice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ImportedSlice").field("range", &self.range).field("of", &self.region).finish()
    }
}
