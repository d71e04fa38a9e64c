//! Having memory watched, and asking whether it is still what was watched.

use rustix::io::Errno;

use super::maps::{Source, Vma};
use super::uffd::{Found, Uffd};
use super::{Active, Backing, Kind, Monitor, Refused, Verdict, maps};
use crate::mem::error::Limit;
use crate::mem::page::{PageRange, page_size};

/// Mappings that a watched range may consist of: each is asked for on its own by the exact check.
const MAX_MAPPINGS: usize = 64;

/// The mappings of a range, one after the other without a gap.
#[derive(Clone, Copy, Debug)]
struct Layout {
    first: Vma,
    mappings: usize,
}

impl Monitor {
    pub(super) fn watch_now(&self, range: PageRange) -> Result<Backing, Refused> {
        if !self.generation.is_current() {
            return Err(Refused::Forked);
        }
        let active = self.start();
        if let Active::None { why } = active {
            return Err(Refused::Off { why });
        }
        if self.arena.is_none_or(|arena| arena.all.overlaps(range)) {
            return Err(Refused::Own);
        }
        if self.windows.overlap(range) {
            return Err(Refused::Window);
        }
        // First registered, then looked at: whatever of it changes after the look is told. What was put into a hole in between is not
        // registered and looks as if it were: the exact check tells, which who relies on the answer asks afterwards.
        let hugetlb = match self.uffd() {
            Some(uffd) => match self.whole_mappings(range) {
                Some(whole) => self.register(uffd, whole).or_else(|_| self.register(uffd, range))?,
                None => self.register(uffd, range)?,
            },
            None => false,
        };
        let layout = self.layout(range)?;
        let kind = match layout.first.source {
            _ if hugetlb || layout.first.page_size > page_size() => Kind::Hugetlb,
            Source::Anonymous | Source::AnonymousHuge => Kind::Anonymous,
            Source::Memory => Kind::Shmem,
            Source::File | Source::Unasked => Kind::File,
            Source::SysV => return Err(Refused::SysV),
            Source::Special => return Err(Refused::Unwatchable),
        };
        let page_size = match kind {
            Kind::Hugetlb if layout.first.page_size <= page_size() => {
                maps::page_size_by_text(range.start()).ok_or(Refused::Unwatchable)?
            }
            _ => layout.first.page_size,
        };
        let shared = layout.first.shared;
        let may_shrink = shared || !matches!(layout.first.source, Source::Anonymous | Source::AnonymousHuge);
        Ok(Backing { kind, shared, may_shrink, page_size, split: layout.mappings > 1 })
    }

    /// Registers it; answers whether it is of huge pages of hugetlbfs.
    fn register(&self, uffd: &Uffd, range: PageRange) -> Result<bool, Refused> {
        let registered = uffd.register(range).or_else(|errno| match errno {
            // Huge pages of hugetlbfs are registered whole.
            Errno::INVAL => self.whole_huge_pages(range).map_or(Err(errno), |range| uffd.register(range)),
            errno => Err(errno),
        });
        registered.map(|registered| registered.hugetlb).map_err(|errno| match errno {
            Errno::BUSY => Refused::OtherOwner,
            Errno::PERM => Refused::Unwatchable,
            Errno::NOMEM if self.layout(range).is_ok() => Refused::Limit { limit: Limit::MapCount },
            // The kind of memory, unless there is a hole, or it is a kind that is refused in any case.
            Errno::INVAL | Errno::NOMEM => match self.layout(range) {
                Ok(layout) if layout.first.source == Source::SysV => Refused::SysV,
                Ok(_) => Refused::Unwatchable,
                Err(refused) => refused,
            },
            errno => Refused::Sys { call: "ioctl(UFFDIO_REGISTER)", errno },
        })
    }

    /// All of the mappings that `range` begins and ends in, if they are to be watched whole.
    pub(super) fn whole_mappings(&self, range: PageRange) -> Option<PageRange> {
        if !self.pieces.next_is_whole() {
            return None;
        }
        let first = self.maps().extent(range.start()).ok()??;
        let last = self.maps().extent(range.end() - 1).ok()??;
        let whole = PageRange::new(first.start, last.end)?;
        if self.arena.is_none_or(|arena| arena.all.overlaps(whole)) {
            return None;
        }
        self.counters.whole.add(1);
        Some(whole)
    }

    fn whole_huge_pages(&self, range: PageRange) -> Option<PageRange> {
        let vma = self.maps().extent(range.start()).ok()??;
        let size =
            if vma.page_size > page_size() { vma.page_size } else { maps::page_size_by_text(range.start())? };
        (size > page_size()).then(|| range.widened(size)).flatten()
    }

    /// The mappings of `range`: without a gap, and all of the same kind.
    fn layout(&self, range: PageRange) -> Result<Layout, Refused> {
        let at = |address| {
            let vma = self.maps().at(address);
            vma.map_err(|errno| Refused::Sys { call: "ioctl(PROCMAP_QUERY)", errno })?
                .ok_or(Refused::Unmapped)
        };
        let first = at(range.start())?;
        let (mut mappings, mut end) = (1, first.end);
        while end < range.end() {
            let next = at(end)?;
            let same =
                (next.source, next.shared, next.page_size) == (first.source, first.shared, first.page_size);
            if !same || mappings == MAX_MAPPINGS {
                return Err(Refused::Mixed);
            }
            (mappings, end) = (mappings + 1, next.end);
        }
        Ok(Layout { first, mappings })
    }

    pub(super) fn check_now(&self, range: PageRange, backing: Backing) -> Verdict {
        if !self.generation.is_current() {
            return Verdict::Replaced;
        }
        let uffd = match (self.mode(), self.uffd()) {
            (Active::Uffd { .. }, Some(uffd)) => uffd,
            (Active::Explicit, _) => return Verdict::Live, // who changes memory says so
            _ => return Verdict::Replaced,
        };
        let zeros = matches!(backing.kind, Kind::Anonymous | Kind::Shmem);
        if zeros && !backing.split {
            return uffd.zero_page(range).into();
        }
        // Each mapping of it by itself. What is seen at different times fits together: a change in between is an event that makes the
        // later question answer EAGAIN, or one that was read, which the caller's comparison of `seq` tells.
        let mut start = range.start();
        for _ in 0..MAX_MAPPINGS {
            let Ok(Some(vma)) = self.maps().extent(start) else { return Verdict::Replaced };
            let Some(part) = PageRange::new(start, vma.end.min(range.end())) else {
                return Verdict::Replaced;
            };
            let found = if zeros {
                uffd.zero_page(part)
            } else {
                // Any one page of the mapping stands for all of it.
                let size = if backing.kind == Kind::Hugetlb { backing.page_size } else { page_size() };
                match PageRange::containing(part.start(), 1).and_then(|page| page.widened(size)) {
                    Some(page) => uffd.unprotect(page),
                    None => Found::Missing,
                }
            };
            match Verdict::from(found) {
                Verdict::Live if part.end() == range.end() => return Verdict::Live,
                Verdict::Live if backing.split => start = part.end(),
                Verdict::Live => return Verdict::Replaced, // one mapping then, several now
                other => return other,
            }
        }
        Verdict::Replaced
    }
}

impl From<Found> for Verdict {
    fn from(found: Found) -> Self {
        match found {
            Found::Live => Self::Live,
            Found::Pending => Self::Pending,
            Found::Missing | Found::Other(_) => Self::Replaced,
        }
    }
}
