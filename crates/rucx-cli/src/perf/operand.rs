//! What is sent from and received into: memory of the process itself, or imported memory.

use std::fmt;
use std::sync::Arc;

use ucp::{AccessError, Destination, ImportedRegion, ImportedSlice, Local, LocalMut, Source};

use super::side::Place;

/// An operand of either kind.
#[derive(Clone)]
pub(super) enum Operand {
    Own(Vec<u8>),
    /// The same bytes for many: nothing is received into them.
    Shared(Arc<[u8]>),
    Imported(ImportedSlice),
}

/// Where operands come from.
#[derive(Clone, Debug)]
pub(super) enum Operands {
    /// Each is made anew.
    Own,
    /// Parts of this memory, which has room for two of each size.
    Imported(ImportedRegion),
}

impl Operands {
    /// Bytes of imported memory for operands of `largest` bytes.
    pub(super) fn room(largest: u64) -> u64 {
        2 * Place::of(largest).end
    }

    /// An operand of `size` bytes, all of which are `byte`. Of imported memory there are two, for even and for odd bytes.
    pub(super) fn of(&self, size: u64, byte: u8) -> Result<Operand, AccessError> {
        let bytes = vec![byte; usize::try_from(size).unwrap_or(usize::MAX)];
        match self {
            Self::Own => Ok(Operand::Own(bytes)),
            Self::Imported(memory) => {
                let start = u64::from(byte % 2) * (memory.len() / 2);
                memory.write(start, &bytes)?;
                Ok(Operand::Imported(memory.slice(start..start + size)?))
            }
        }
    }
}

impl Default for Operand {
    /// None, while one is under way.
    fn default() -> Self {
        Self::Own(Vec::new())
    }
}

impl Source for Operand {
    #[inline]
    fn local(&self) -> Local<'_> {
        match self {
            Self::Own(bytes) => bytes.local(),
            Self::Shared(bytes) => bytes.local(),
            Self::Imported(slice) => slice.local(),
        }
    }

    #[inline]
    fn check(&self) -> Result<(), AccessError> {
        match self {
            Self::Own(bytes) => Source::check(bytes),
            Self::Shared(bytes) => Source::check(bytes),
            Self::Imported(slice) => Source::check(slice),
        }
    }
}

impl Destination for Operand {
    #[inline]
    fn local_mut(&mut self) -> LocalMut<'_> {
        match self {
            Self::Own(bytes) => bytes.local_mut(),
            Self::Shared(_) => LocalMut::bytes(&mut []),
            Self::Imported(slice) => slice.local_mut(),
        }
    }

    #[inline]
    fn check(&self) -> Result<(), AccessError> {
        match self {
            Self::Own(bytes) => Destination::check(bytes),
            Self::Shared(_) => Ok(()),
            Self::Imported(slice) => Destination::check(slice),
        }
    }
}

impl fmt::Debug for Operand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Own(bytes) => write!(f, "Own({} bytes)", bytes.len()),
            Self::Shared(bytes) => write!(f, "Shared({} bytes)", bytes.len()),
            Self::Imported(slice) => write!(f, "Imported({} bytes)", slice.len()),
        }
    }
}

#[cfg(test)]
mod tests {
    use ucp::{Context, Features, MemMap};

    use super::*;

    #[test]
    fn imported_operands_have_room_side_by_side() {
        let ctx = Context::builder().ignore_env().features(Features::EXPORTED_MEMH).build().unwrap();
        let size = 1001;
        let room = usize::try_from(Operands::room(size)).unwrap();
        let mem = ctx.mem_map(MemMap::allocate(room).exported()).unwrap();
        let memory = ctx.mem_import(mem.memh_pack().unwrap().as_bytes()).unwrap();
        for operands in [Operands::Own, Operands::Imported(memory)] {
            let (odd, even) = (operands.of(size, 1).unwrap(), operands.of(size, 2).unwrap());
            for (operand, byte) in [(odd, 1), (even, 2)] {
                let mut seen = vec![0; 1001];
                operand.local().read(0, &mut seen).unwrap();
                assert_eq!(seen, [byte; 1001]);
            }
        }
    }
}
