//! Memory: mapped, exported, imported.

mod atomic;
mod buf;
mod cursor;
mod export;
mod import;
mod import_cache;
mod imported_slice;
mod map;
mod results;
mod slice;
mod transfer;

pub use buf::Buf;
pub use cursor::{RegionReader, RegionWriter};
pub use export::{PackError, PackedMemh, read_handle};
pub use import::{ImportError, ImportedRegion, Offer};
pub(crate) use import_cache::ImportCache;
pub use imported_slice::ImportedSlice;
pub use map::{MapError, MemMap, RegMode, Region};
pub use results::{MdOutcome, MdResult, MdResults};
pub use slice::MemSlice;
pub use transfer::{OpError, TransferError};
