//! Events of userfaultfd: `struct uffd_msg` (`include/uapi/linux/userfaultfd.h`, userfaultfd(2)).

use crate::mem::page::{PageRange, page_size};

/// `struct uffd_msg`: 32 bytes. The kernel's is packed, with every field where its size puts it anyway.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Message {
    event: u8,
    reserved1: u8,
    reserved2: u16,
    reserved3: u32,
    /// The union: three words, or less.
    arg: [u64; 3],
}

const _: () = assert!(size_of::<Message>() == 32);

/// `UFFD_EVENT_*`.
const PAGEFAULT: u8 = 0x12;
const REMAP: u8 = 0x14;
const REMOVE: u8 = 0x15;
const UNMAP: u8 = 0x16;

/// What a message tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Event {
    /// This is unmapped.
    Unmapped(PageRange),
    /// This was moved elsewhere.
    Moved(PageRange),
    /// The pages here are about to be dropped.
    Removed(PageRange),
    /// Somebody waits for this page, though nothing was protected.
    Fault(PageRange),
    /// Something of which nothing is known: anything may have changed.
    Unknown,
}

impl Message {
    /// What it tells. Never fails: what is not understood is [`Event::Unknown`].
    pub(super) fn decode(&self) -> Event {
        let [a, b, c] = self.arg;
        let event = match self.event {
            UNMAP => range(a, Some(b)).map(Event::Unmapped),
            REMOVE => range(a, Some(b)).map(Event::Removed),
            // from, to, len
            REMAP => range(a, a.checked_add(c)).map(Event::Moved),
            // flags, address
            PAGEFAULT => {
                usize::try_from(b).ok().and_then(|at| PageRange::containing(at, 1)).map(Event::Fault)
            }
            _ => None,
        };
        event.unwrap_or(Event::Unknown)
    }

    /// A message as the kernel would send it.
    #[cfg(test)]
    pub(super) fn of(event: u8, arg: [u64; 3]) -> Self {
        Self { event, arg, ..Self::default() }
    }
}

/// From `start` to `end`, in whole pages.
fn range(start: u64, end: Option<u64>) -> Option<PageRange> {
    let (start, end) = (usize::try_from(start).ok()?, usize::try_from(end?).ok()?);
    // Lengths of mremap, among others, need not be whole pages.
    PageRange::new(start & !(page_size() - 1), end.checked_next_multiple_of(page_size())?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind() {
        let page = page_size() as u64;
        let pages = |from: usize, to: usize| PageRange::new(from * page_size(), to * page_size()).unwrap();
        let of = |event, arg| Message::of(event, arg).decode();
        assert_eq!(of(0x16, [page, 3 * page, 0]), Event::Unmapped(pages(1, 3)));
        assert_eq!(of(0x15, [page, 3 * page, 0]), Event::Removed(pages(1, 3)));
        assert_eq!(of(0x14, [page, 64 * page, 2 * page]), Event::Moved(pages(1, 3)));
        assert_eq!(of(0x14, [page, 64 * page, page + 1]), Event::Moved(pages(1, 3)));
        assert_eq!(of(0x12, [0, page + 8, 0]), Event::Fault(pages(1, 2)));
    }

    #[test]
    fn what_makes_no_sense_may_be_anything() {
        let of = |event, arg| Message::of(event, arg).decode();
        assert_eq!(of(0x13, [0; 3]), Event::Unknown);
        assert_eq!(of(0, [1, 2, 3]), Event::Unknown);
        assert_eq!(of(0x16, [4096, 4096, 0]), Event::Unknown);
        assert_eq!(of(0x16, [8192, 4096, 0]), Event::Unknown);
        assert_eq!(of(0x15, [0, u64::MAX, 0]), Event::Unknown);
        assert_eq!(of(0x14, [u64::MAX, 0, 4096]), Event::Unknown);
        assert_eq!(of(0x12, [0, u64::MAX, 0]), Event::Unknown);
    }
}
