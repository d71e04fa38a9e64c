//! Operands: memory that an operation reads or writes on this side: of this process, or imported by it.
//!
//! # Safety
//! An operand that carries a registration was given it by [`crate::registrations`]: it is of the pages that hold the operand, during
//! the operation.

#![allow(unsafe_code)]

use std::any::Any;
use std::fmt;
use std::ops::Range;
use std::ptr::NonNull;

use ucs::mem::shared::BoundsError;

use crate::api::{Attachment, LocalMemh};

use super::imported::Imported;
use super::pieces;
use super::{AccessError, DeniedReason, LocalMem, OperandReason, RawMem, StaleReason, raw};

/// What an operation can read from (`put`): it is given by value, kept until the operation has ended, and given back.
///
/// All [`StableBuf`](super::StableBuf)s are: vectors, boxes, static slices, `Arc<[u8]>`; so is [`RawMem`], and in `ucp` a part of an import.
pub trait Source: Send + Sync + 'static {
    /// Its bytes. Asked for again and again while an operation goes on: always the same ones, where they are, as long as the value does not
    /// move. Otherwise the value is not touched until the operation has ended.
    fn local(&self) -> Local<'_>;

    /// Whether there are such bytes in this process; asked before them.
    ///
    /// # Errors
    /// [`AccessError::Forked`]: they are the parent process's.
    fn check(&self) -> Result<(), AccessError> {
        Ok(())
    }
}

/// What an operation can write to (`get`): it is given by value, kept until the operation has ended, and given back.
///
/// All [`StableBufMut`](super::StableBufMut)s are: vectors and boxes; so is [`RawMem`], and in `ucp` a part of an import.
pub trait Destination: Send + Sync + 'static {
    /// Its bytes. Asked for again and again while an operation goes on: always the same ones, where they are, as long as the value does not
    /// move. Otherwise the value is not touched until the operation has ended.
    fn local_mut(&mut self) -> LocalMut<'_>;

    /// Whether there are such bytes in this process; asked before them.
    ///
    /// # Errors
    /// [`AccessError::Forked`]: they are the parent process's.
    fn check(&self) -> Result<(), AccessError> {
        Ok(())
    }
}

impl Source for RawMem {
    fn local(&self) -> Local<'_> {
        let (start, len) = self.range();
        Local { place: Place::Raw(start, len), whole: None, memh: None }
    }
}

impl Destination for RawMem {
    fn local_mut(&mut self) -> LocalMut<'_> {
        let (start, len) = self.range();
        LocalMut { place: PlaceMut::Raw(start, len), whole: None, memh: None }
    }
}

/// Memory that an operation reads, borrowed while it does.
pub struct Local<'a> {
    place: Place<'a>,
    /// The memory that its bytes are a part of, where that was allocated here.
    whole: Option<&'a LocalMem>,
    memh: Option<&'a (dyn LocalMemh + 'static)>,
}

enum Place<'a> {
    /// Nobody else writes it meanwhile.
    Bytes(&'a [u8]),
    /// Its owner may unmap it meanwhile.
    Raw(NonNull<u8>, usize),
    /// Peers may write it meanwhile.
    Mem(&'a LocalMem, Range<usize>),
    /// It is another process's.
    Imported(Imported<'a>),
}

/// Memory that an operation writes, borrowed while it does.
pub struct LocalMut<'a> {
    place: PlaceMut<'a>,
    /// The memory that its bytes are a part of, where that was allocated here.
    whole: Option<&'a LocalMem>,
    memh: Option<&'a (dyn LocalMemh + 'static)>,
}

enum PlaceMut<'a> {
    Bytes(&'a mut [u8]),
    Raw(NonNull<u8>, usize),
    Mem(&'a LocalMem, Range<usize>),
    Imported(Imported<'a>),
}

impl<'a> Local<'a> {
    /// These bytes.
    #[inline]
    #[must_use]
    pub fn bytes(bytes: &'a [u8]) -> Self {
        Self { place: Place::Bytes(bytes), whole: None, memh: None }
    }

    /// The part of memory that peers may reach: what of it lies within.
    #[must_use]
    pub fn part(mem: &'a LocalMem, part: Range<usize>) -> Self {
        let whole = mem.is_allocated().then_some(mem);
        Self { place: Place::Mem(mem, within(mem, part)), whole, memh: None }
    }

    /// The part of attached memory: what of it lies within. It is reached through the attachment's own `read` and `write`, and takes part in
    /// *its* revocation; there is nothing of it here that could be registered.
    #[must_use]
    pub fn imported(memory: &'a (dyn Attachment + 'static), part: Range<u64>) -> Self {
        Self { place: Place::Imported(Imported::new(memory, part)), whole: None, memh: None }
    }

    /// Whether it is a part of attached memory.
    #[inline]
    #[must_use]
    pub fn is_imported(&self) -> bool {
        self.as_imported().is_some()
    }

    /// It, with a registration of its memory.
    ///
    /// # Safety
    /// `memh` is a registration of pages that were mapped at its addresses at an instant at which it was borrowed, for as much as is
    /// done with it.
    pub(crate) unsafe fn registered<'b>(self, memh: &'b dyn LocalMemh) -> Local<'b>
    where
        'a: 'b,
    {
        Local { place: self.place, whole: self.whole, memh: Some(memh) }
    }

    /// Whether it is there in this process, a fork's child perhaps.
    ///
    /// # Errors
    /// [`AccessError::Forked`].
    pub fn check(&self) -> Result<(), AccessError> {
        match &self.place {
            Place::Mem(mem, _) => mem.direct().map(|_| ()),
            _ => Ok(()),
        }
    }

    /// The registration of its memory with the memory domain that the operation is of, where that needs one: a value of that domain's own
    /// type.
    #[inline]
    #[must_use]
    pub fn memh<M: LocalMemh>(&self) -> Option<&'a M> {
        (self.memh? as &dyn Any).downcast_ref()
    }

    /// These bytes, which are all of `mem`.
    pub(super) fn private(bytes: &'a [u8], mem: &'a LocalMem) -> Self {
        Self { place: Place::Bytes(bytes), whole: Some(mem), memh: None }
    }

    /// The memory that its bytes are a part of, where that was allocated here: it stays mapped as long as it lives.
    pub(crate) fn whole(&self) -> Option<&'a LocalMem> {
        self.whole
    }

    /// How many bytes.
    #[inline]
    #[must_use]
    pub fn len(&self) -> usize {
        match &self.place {
            Place::Bytes(bytes) => bytes.len(),
            Place::Raw(_, len) => *len,
            Place::Mem(_, part) => part.len(),
            Place::Imported(imported) => imported.len,
        }
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Where it begins in this process; `None` of attached memory, which has no address here.
    #[inline]
    #[must_use]
    pub fn address(&self) -> Option<usize> {
        match &self.place {
            Place::Bytes(bytes) => Some(bytes.as_ptr().addr()),
            Place::Raw(start, _) => Some(start.addr().get()),
            Place::Mem(mem, part) => Some(address_in(mem, part)),
            Place::Imported(_) => None,
        }
    }

    /// What of it lies within `part`, without its registration.
    #[must_use]
    pub fn range(&self, part: Range<usize>) -> Self {
        let end = part.end.min(self.len());
        let part = part.start.min(end)..end;
        let place = match &self.place {
            Place::Bytes(bytes) => Place::Bytes(&bytes[part]),
            Place::Raw(start, _) => Place::Raw(moved(*start, part.start), part.len()),
            Place::Mem(mem, whole) => Place::Mem(mem, whole.start + part.start..whole.start + part.end),
            Place::Imported(whole) => Place::Imported(whole.range(part)),
        };
        Self { place, whole: self.whole, memh: None }
    }

    /// The bytes, where nobody else can change or unmap them meanwhile.
    #[inline]
    #[must_use]
    pub fn as_bytes(&self) -> Option<&'a [u8]> {
        match &self.place {
            Place::Bytes(bytes) => Some(bytes),
            _ => None,
        }
    }

    /// Copies from its byte `at` on into `dst`.
    ///
    /// # Errors
    /// [`AccessError::Bounds`]; [`AccessError::Operand`]: raw memory that is not mapped for reading.
    pub fn read(&self, at: usize, dst: &mut [u8]) -> Result<(), AccessError> {
        let end = check_within(at, dst.len(), self.len())?;
        match &self.place {
            Place::Bytes(bytes) => {
                dst.copy_from_slice(&bytes[at..end]);
                Ok(())
            }
            Place::Raw(start, _) => raw::read(moved(*start, at), dst).map_err(AccessError::of_operand),
            Place::Mem(mem, part) => mem.read((part.start + at) as u64, dst).map_err(AccessError::of_operand),
            Place::Imported(imported) => imported.read(at, dst),
        }
    }

    /// Has `each` take all of it, piece by piece, in order: with where the piece begins, and its bytes. Bytes that nobody else
    /// changes are one piece; others are copied out first, those of attached memory in pieces of about `good` bytes
    /// ([`Attachment::good_piece`] of the other side).
    ///
    /// # Errors
    /// Those of `each`, and [`AccessError::Operand`]; both tell how many bytes of all were moved before.
    #[inline]
    pub fn in_pieces(
        &self,
        good: usize,
        mut each: impl FnMut(usize, &[u8]) -> Result<(), AccessError>,
    ) -> Result<(), AccessError> {
        if let Some(bytes) = self.as_bytes() {
            return each(0, bytes);
        }
        match &self.place {
            Place::Imported(imported) => imported.with_pieces(good, |copy| self.through(copy, &mut each)),
            Place::Mem(..) => pieces::with(self.len().min(good), |copy| self.through(copy, &mut each)),
            // Page by page: so it is told where they end.
            _ => self.through(&mut [0; pieces::SHORT], &mut each),
        }
    }

    /// The attached memory that it is a part of, if it is one, and where it begins there.
    #[inline]
    #[must_use]
    pub fn attached(&self) -> Option<(&'a (dyn Attachment + 'static), u64)> {
        self.as_imported().map(|imported| (imported.memory, imported.start))
    }

    /// The part of attached memory, if it is one.
    #[inline]
    pub(super) fn as_imported(&self) -> Option<&Imported<'a>> {
        match &self.place {
            Place::Imported(imported) => Some(imported),
            _ => None,
        }
    }

    /// Has `each` take all of it by way of `copy`. Of no bytes there is one piece, too: so both sides are asked.
    fn through(
        &self,
        copy: &mut [u8],
        each: &mut impl FnMut(usize, &[u8]) -> Result<(), AccessError>,
    ) -> Result<(), AccessError> {
        let (mut at, len) = (0, self.len());
        loop {
            let next = copy.len().min(len - at);
            let piece = &mut copy[..next];
            // Of a piece that is not all there, nothing was moved.
            self.read(at, piece).map_err(|error| error.moved(at as u64))?;
            each(at, piece).map_err(|error| error.after(at as u64))?;
            at += next;
            if at == len {
                return Ok(());
            }
        }
    }
}

impl<'a> LocalMut<'a> {
    /// These bytes.
    #[inline]
    #[must_use]
    pub fn bytes(bytes: &'a mut [u8]) -> Self {
        Self { place: PlaceMut::Bytes(bytes), whole: None, memh: None }
    }

    /// The part of memory that peers may reach: what of it lies within.
    #[must_use]
    pub fn part(mem: &'a LocalMem, part: Range<usize>) -> Self {
        let whole = mem.is_allocated().then_some(mem);
        Self { place: PlaceMut::Mem(mem, within(mem, part)), whole, memh: None }
    }

    /// The part of attached memory: what of it lies within. It is reached through the attachment's own `read` and `write`, and takes part in
    /// *its* revocation; there is nothing of it here that could be registered.
    #[must_use]
    pub fn imported(memory: &'a (dyn Attachment + 'static), part: Range<u64>) -> Self {
        Self { place: PlaceMut::Imported(Imported::new(memory, part)), whole: None, memh: None }
    }

    /// Whether it is a part of attached memory.
    #[inline]
    #[must_use]
    pub fn is_imported(&self) -> bool {
        self.as_imported().is_some()
    }

    /// It, with a registration of its memory.
    ///
    /// # Safety
    /// `memh` is a registration of pages that were mapped at its addresses at an instant at which it was borrowed, for as much as is
    /// done with it.
    pub(crate) unsafe fn registered<'b>(self, memh: &'b dyn LocalMemh) -> LocalMut<'b>
    where
        'a: 'b,
    {
        LocalMut { place: self.place, whole: self.whole, memh: Some(memh) }
    }

    /// Whether it is there in this process, a fork's child perhaps, and may be written.
    ///
    /// # Errors
    /// [`AccessError::Forked`]; [`AccessError::Operand`]: memory that is for reading only.
    pub fn check(&self) -> Result<(), AccessError> {
        match &self.place {
            PlaceMut::Mem(mem, _) => {
                mem.direct()?;
                mem.check_writable().map_err(AccessError::of_operand)
            }
            PlaceMut::Imported(imported) => {
                imported.memory.rights().check_write().map_err(AccessError::of_imported_operand)
            }
            _ => Ok(()),
        }
    }

    /// The registration of its memory with the memory domain that the operation is of, where that needs one: a value of that domain's own
    /// type.
    #[inline]
    #[must_use]
    pub fn memh<M: LocalMemh>(&self) -> Option<&'a M> {
        (self.memh? as &dyn Any).downcast_ref()
    }

    /// These bytes, which are all of `mem`.
    pub(super) fn private(bytes: &'a mut [u8], mem: &'a LocalMem) -> Self {
        Self { place: PlaceMut::Bytes(bytes), whole: Some(mem), memh: None }
    }

    /// The memory that its bytes are a part of, where that was allocated here: it stays mapped as long as it lives.
    pub(crate) fn whole(&self) -> Option<&'a LocalMem> {
        self.whole
    }

    /// How many bytes.
    #[inline]
    #[must_use]
    pub fn len(&self) -> usize {
        match &self.place {
            PlaceMut::Bytes(bytes) => bytes.len(),
            PlaceMut::Raw(_, len) => *len,
            PlaceMut::Mem(_, part) => part.len(),
            PlaceMut::Imported(imported) => imported.len,
        }
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Where it begins in this process; `None` of attached memory, which has no address here.
    #[inline]
    #[must_use]
    pub fn address(&self) -> Option<usize> {
        match &self.place {
            PlaceMut::Bytes(bytes) => Some(bytes.as_ptr().addr()),
            PlaceMut::Raw(start, _) => Some(start.addr().get()),
            PlaceMut::Mem(mem, part) => Some(address_in(mem, part)),
            PlaceMut::Imported(_) => None,
        }
    }

    /// What of it lies within `part`, without its registration.
    #[must_use]
    pub fn range(self, part: Range<usize>) -> Self {
        let end = part.end.min(self.len());
        let part = part.start.min(end)..end;
        let place = match self.place {
            PlaceMut::Bytes(bytes) => PlaceMut::Bytes(&mut bytes[part]),
            PlaceMut::Raw(start, _) => PlaceMut::Raw(moved(start, part.start), part.len()),
            PlaceMut::Mem(mem, whole) => PlaceMut::Mem(mem, whole.start + part.start..whole.start + part.end),
            PlaceMut::Imported(whole) => PlaceMut::Imported(whole.range(part)),
        };
        Self { place, whole: self.whole, memh: None }
    }

    /// The bytes, where nobody else can use or unmap them meanwhile.
    #[inline]
    #[must_use]
    pub fn as_bytes(&mut self) -> Option<&mut [u8]> {
        match &mut self.place {
            PlaceMut::Bytes(bytes) => Some(bytes),
            _ => None,
        }
    }

    /// Copies `src` to its byte `at` and on.
    ///
    /// # Errors
    /// [`AccessError::Bounds`]; [`AccessError::Operand`]: raw memory that is not mapped for writing, a buffer taken for reading only.
    pub fn write(&mut self, at: usize, src: &[u8]) -> Result<(), AccessError> {
        let end = check_within(at, src.len(), self.len())?;
        match &mut self.place {
            PlaceMut::Bytes(bytes) => {
                bytes[at..end].copy_from_slice(src);
                Ok(())
            }
            PlaceMut::Raw(start, _) => raw::write(moved(*start, at), src).map_err(AccessError::of_operand),
            PlaceMut::Mem(mem, part) => {
                mem.write((part.start + at) as u64, src).map_err(AccessError::of_operand)
            }
            PlaceMut::Imported(imported) => imported.write(at, src),
        }
    }

    /// Has `each` fill all of it, piece by piece, in order: with where the piece begins, and its bytes. Bytes that nobody else uses
    /// are one piece; others are copied in afterwards, to attached memory as [`Local::in_pieces`] copies from it.
    ///
    /// # Errors
    /// Those of `each`, and [`AccessError::Operand`]; both tell how many bytes of all were moved before.
    #[inline]
    pub fn in_pieces(
        &mut self,
        good: usize,
        mut each: impl FnMut(usize, &mut [u8]) -> Result<(), AccessError>,
    ) -> Result<(), AccessError> {
        if let Some(bytes) = self.as_bytes() {
            return each(0, bytes);
        }
        match self.place {
            PlaceMut::Imported(imported) => imported.with_pieces(good, |copy| self.through(copy, &mut each)),
            PlaceMut::Mem(..) => pieces::with(self.len().min(good), |copy| self.through(copy, &mut each)),
            _ => self.through(&mut [0; pieces::SHORT], &mut each),
        }
    }

    /// The attached memory that it is a part of, if it is one, and where it begins there.
    #[inline]
    #[must_use]
    pub fn attached(&self) -> Option<(&'a (dyn Attachment + 'static), u64)> {
        self.as_imported().map(|imported| (imported.memory, imported.start))
    }

    /// The part of attached memory, if it is one.
    #[inline]
    pub(super) fn as_imported(&self) -> Option<&Imported<'a>> {
        match &self.place {
            PlaceMut::Imported(imported) => Some(imported),
            _ => None,
        }
    }

    /// Has `each` fill all of it by way of `copy`: also of no bytes.
    fn through(
        &mut self,
        copy: &mut [u8],
        each: &mut impl FnMut(usize, &mut [u8]) -> Result<(), AccessError>,
    ) -> Result<(), AccessError> {
        let (mut at, len) = (0, self.len());
        loop {
            let next = copy.len().min(len - at);
            let piece = &mut copy[..next];
            // Of a piece that did not come whole, nothing is written.
            each(at, piece).map_err(|error| error.moved(at as u64))?;
            self.write(at, piece).map_err(|error| error.after(at as u64))?;
            at += next;
            if at == len {
                return Ok(());
            }
        }
    }
}

fn within(mem: &LocalMem, part: Range<usize>) -> Range<usize> {
    let end = part.end.min(mem.len());
    part.start.min(end)..end
}

/// Where a part of memory begins.
#[allow(clippy::cast_possible_truncation)] // an address is a usize
fn address_in(mem: &LocalMem, part: &Range<usize>) -> usize {
    mem.address() as usize + part.start
}

/// Checks that `len` bytes at `at` are within `size` bytes; answers where they end.
fn check_within(at: usize, len: usize, size: usize) -> Result<usize, AccessError> {
    let out = BoundsError::OutOfRange { offset: at as u64, len: len as u64, size: size as u64 };
    at.checked_add(len).filter(|end| *end <= size).ok_or(AccessError::Bounds(out))
}

/// The address `by` bytes on: within a range that ends within the address space.
fn moved(start: NonNull<u8>, by: usize) -> NonNull<u8> {
    start.map_addr(|address| address.saturating_add(by))
}

impl AccessError {
    /// The error for memory of this process that an operation was given.
    fn of_operand(self) -> Self {
        let (done, why) = match self {
            Self::Stale { done, why: StaleReason::Unmapped } => (done, OperandReason::Unmapped),
            Self::AccessDenied { done, why: DeniedReason::Protection } => (done, OperandReason::Protection),
            Self::AccessDenied { done, why: DeniedReason::ReadOnlyBuffer } => {
                (done, OperandReason::ReadOnlyBuffer)
            }
            Self::AccessDenied { done, why: DeniedReason::Untold } => (done, OperandReason::Untold),
            Self::AccessDenied { done, .. } => (done, OperandReason::NotBacked),
            other => return other,
        };
        Self::Operand { done, why }
    }

    /// The error for memory of another process that an operation was given.
    #[cold]
    pub(crate) fn of_imported_operand(self) -> Self {
        let (done, why) = match self {
            Self::Stale { done, why } => (done, OperandReason::Stale(why)),
            Self::AccessDenied { done, why } => (done, OperandReason::AccessDenied(why)),
            Self::Busy { waited } => (0, OperandReason::Busy { waited }),
            Self::Unsupported { why } => (0, OperandReason::Unsupported { why }),
            Self::Device { done, why } => {
                tracing::debug!(%why, "imported memory that is an operand");
                (done, OperandReason::Device)
            }
            other => return other,
        };
        Self::Operand { done, why }
    }

    /// It, with what was moved: so many bytes in all.
    #[must_use]
    #[cold]
    pub(crate) fn moved(mut self, all: u64) -> Self {
        match &mut self {
            Self::Stale { done, .. }
            | Self::AccessDenied { done, .. }
            | Self::Operand { done, .. }
            | Self::Device { done, .. } => *done = all,
            _ => {}
        }
        self
    }

    /// It, of an access that was a later part of a longer one: `before` bytes had been moved.
    #[must_use]
    #[cold]
    pub fn after(mut self, before: u64) -> Self {
        match &mut self {
            Self::Stale { done, .. }
            | Self::AccessDenied { done, .. }
            | Self::Operand { done, .. }
            | Self::Device { done, .. } => *done += before,
            _ => {}
        }
        self
    }
}

impl fmt::Debug for Local<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Local").field("len", &self.len()).finish_non_exhaustive()
    }
}

impl fmt::Debug for LocalMut<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LocalMut").field("len", &self.len()).finish_non_exhaustive()
    }
}
