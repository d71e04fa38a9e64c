//! Looks at imported memory again and again, and tells what changes.

use std::time::Duration;

use ucp::{AccessError, ImportedRegion, StaleReason};

use super::actions::{described, part};
use super::hex;
use crate::args::Span;
use crate::memory::each_chunk_of;
use crate::signals::Signals;
use crate::trouble::{Failure, Trouble};
use crate::ui::{Ui, Who};
use crate::units;

/// How much is watched when nothing else is said: a copy of it is kept.
const MOST: u64 = 256 << 20;
/// Rows shown of one change.
const ROWS: usize = 4;

/// What has changed between two looks.
#[derive(Debug, Default, PartialEq, Eq)]
struct Changes {
    bytes: u64,
    /// The first byte that changed, and the last.
    ends: Option<(u64, u64)>,
    /// The first rows that changed.
    rows: Vec<String>,
}

impl Changes {
    /// Adds what differs between two states of the bytes at `offset`.
    fn add(&mut self, offset: u64, old: &[u8], new: &[u8]) {
        if old == new {
            return;
        }
        let mut at = offset;
        for (old, new) in old.chunks(hex::ROW).zip(new.chunks(hex::ROW)) {
            let changed = old.iter().zip(new).zip(at..).filter(|((old, new), _)| old != new);
            let mut changed = changed.map(|(_, at)| at).peekable();
            if let Some(first) = changed.peek().copied() {
                let mut last = first;
                for at in changed {
                    self.bytes += 1;
                    last = at;
                }
                self.ends = Some((self.ends.map_or(first, |(first, _)| first), last));
                if self.rows.len() < ROWS {
                    self.rows.push(hex::row(at, new));
                }
            }
            at += new.len() as u64;
        }
    }

    fn tell(&self, ui: &mut Ui) -> Result<bool, Failure> {
        let Some((first, last)) = self.ends else { return Ok(false) };
        let bytes = units::count(self.bytes);
        let place = match (last - first).checked_add(1) {
            Some(len) if len != self.bytes => format!("within {}", described(first, len)),
            _ => format!("at {first} ({first:#x})"),
        };
        ui.say(Who::Dpu, &format!("changed: {bytes} {place}"))?;
        ui.whole_lines(&self.rows)?;
        Ok(true)
    }
}

/// Watches until the memory is stale or a signal comes; how it ended, in words.
///
/// # Errors
/// The memory cannot be read, for another reason than that it was revoked.
pub(super) fn watch(
    mem: &ImportedRegion,
    span: Span,
    interval: Duration,
    ui: &mut Ui,
) -> Result<String, Failure> {
    let (offset, mut len) = part(mem, span)?;
    if !span.has_end() {
        len = len.min(MOST);
    }
    let signals = Signals::catch().map_err(|error| {
        Trouble::own("cannot catch signals", error.to_string(), "see the error of the system")
    })?;
    let mut known = copy_for(len)?;
    match look(mem, offset, &mut known, None) {
        Err(AccessError::Stale { why: StaleReason::Revoked, .. }) => return revoked(ui, 0),
        other => other?,
    }
    let every = units::nanos(units::in_nanos(interval));
    let what = match () {
        () if len == mem.len() => format!("all of it, {}", described(offset, len)),
        () if !span.has_end() && offset + len < mem.len() => {
            format!("the first {} of {}", described(offset, len), units::bytes(mem.len() - offset))
        }
        () => described(offset, len),
    };
    ui.say(Who::Dpu, &format!("watching {what}, every {every}, until Ctrl-C"))?;
    let mut times = 0_u64;
    loop {
        if signals.wait(interval)? {
            return Ok(format!("ended by a signal; it changed {}", units::times(times)));
        }
        let mut changes = Changes::default();
        let looked = look(mem, offset, &mut known, Some(&mut changes));
        if changes.tell(ui)? {
            times += 1;
        }
        match looked {
            Err(AccessError::Stale { why: StaleReason::Revoked, .. }) => return revoked(ui, times),
            other => other?,
        }
    }
}

fn revoked(ui: &mut Ui, times: u64) -> Result<String, Failure> {
    ui.say(Who::Dpu, &format!("stale: {}", StaleReason::Revoked))?;
    Ok(format!("revoked by its owner; it changed {}", units::times(times)))
}

fn copy_for(len: u64) -> Result<Vec<u8>, Failure> {
    let mut known = Vec::new();
    let wanted = usize::try_from(len).unwrap_or(usize::MAX);
    known.try_reserve_exact(wanted).map_err(|error| {
        let remedy = "watch less of it: --watch OFFSET:LEN";
        Trouble::own(
            format!("cannot keep a copy of {} to compare", units::bytes(len)),
            error.to_string(),
            remedy,
        )
    })?;
    known.resize(wanted, 0);
    Ok(known)
}

/// Looks once, and keeps what it sees; adds what has changed.
fn look(
    mem: &ImportedRegion,
    offset: u64,
    known: &mut [u8],
    mut changes: Option<&mut Changes>,
) -> Result<(), AccessError> {
    let mut rest = known;
    each_chunk_of(mem, offset, rest.len() as u64, |offset, chunk| {
        let (known, later) = std::mem::take(&mut rest).split_at_mut(chunk.len());
        if let Some(changes) = &mut changes {
            changes.add(offset, known, chunk);
        }
        known.copy_from_slice(chunk);
        rest = later;
        Ok::<_, AccessError>(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_counted_and_the_first_are_shown() {
        let (old, mut new) = (vec![0; 256], vec![0; 256]);
        let mut changes = Changes::default();
        changes.add(4096, &old, &new);
        assert_eq!(changes, Changes::default());
        new[17..19].copy_from_slice(b"ab");
        new[31] = b'c';
        changes.add(4096, &old, &new);
        assert_eq!((changes.bytes, changes.ends), (3, Some((4113, 4127))));
        assert_eq!(changes.rows.len(), 1);
        assert!(changes.rows[0].starts_with("00001010  00 61 62 "), "{:?}", changes.rows);
        let mut all = Changes::default();
        all.add(0, &old, &[1; 256]);
        assert_eq!((all.bytes, all.ends, all.rows.len()), (256, Some((0, 255)), ROWS));
        all.add(1 << 20, &[0], &[1]);
        assert_eq!((all.bytes, all.ends, all.rows.len()), (257, Some((0, 1 << 20)), ROWS));
    }
}
