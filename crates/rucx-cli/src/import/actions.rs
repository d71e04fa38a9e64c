//! What can be done with imported memory at once.

use std::io::{self, Write as _};
use std::time::Instant;

use ucp::ImportedRegion;

use super::hex::{self, Dump};
use crate::args::{Span, Write};
use crate::export;
use crate::memory::each_chunk_of;
use crate::pattern::Pattern;
use crate::trouble::{By, Failure, Trouble, refused};
use crate::ui::{Ui, Who};
use crate::units;

/// The part of the memory that is meant.
///
/// # Errors
/// There is less.
pub(super) fn part(mem: &ImportedRegion, span: Span) -> Result<(u64, u64), Failure> {
    span.within(mem.len()).map_err(|reason| {
        let remedy = format!("stay within 0..{}", mem.len());
        Trouble::own("cannot access the memory: OutOfRange", reason, remedy)
    })
}

/// How long what began then has taken.
fn since(begin: Instant) -> String {
    units::nanos(units::in_nanos(begin.elapsed()))
}

/// A part, in words.
pub(super) fn described(offset: u64, len: u64) -> String {
    format!("{} at {offset} ({offset:#x})", units::bytes(len))
}

pub(super) fn fill(mem: &ImportedRegion, pattern: &Pattern, ui: &mut Ui) -> Result<(), Failure> {
    let begin = Instant::now();
    export::fill(mem, pattern).map_err(|error| refused("fill it", error, By::Importer))?;
    Ok(ui.say(Who::Dpu, &format!("filled {} in {}: {pattern}", units::bytes(mem.len()), since(begin)))?)
}

pub(super) fn write(mem: &ImportedRegion, write: &Write, ui: &mut Ui) -> Result<(), Failure> {
    let bytes = write.text.as_bytes();
    mem.write(write.offset, bytes).map_err(|error| refused("write", error, By::Importer))?;
    Ok(ui.say(Who::Dpu, &format!("wrote {}", described(write.offset, bytes.len() as u64)))?)
}

/// Prints a part in hexadecimal; or when `raw`, its bytes to standard output.
pub(super) fn read(mem: &ImportedRegion, span: Span, raw: bool, ui: &mut Ui) -> Result<(), Failure> {
    let (offset, len) = part(mem, span)?;
    let mut output = io::stdout().lock();
    let mut dump = Dump::default();
    let head = format!("{}:", described(offset, len));
    if len == 0 {
        ui.say(Who::Dpu, &head)?;
    }
    each_chunk_of(mem, offset, len, |at, chunk| {
        // Only above bytes that there are.
        if at == offset {
            ui.say(Who::Dpu, &head)?;
        }
        if raw {
            output.write_all(chunk)?;
        } else {
            ui.whole_lines(&dump.rows(at, chunk))?;
        }
        Ok::<_, Failure>(())
    })?;
    output.flush()?;
    Ok(ui.whole_lines(dump.end().as_slice())?)
}

/// Compares all of it. What held, or what did not.
pub(super) fn verify(
    mem: &ImportedRegion,
    pattern: &Pattern,
    ui: &mut Ui,
) -> Result<Result<String, String>, Failure> {
    let begin = Instant::now();
    let mut expected = Vec::new();
    let (mut differ, mut first) = (0_u64, None);
    each_chunk_of(mem, 0, mem.len(), |offset, chunk| {
        expected.resize(chunk.len(), 0);
        pattern.fill(offset, &mut expected);
        if *chunk == expected[..] {
            return Ok(());
        }
        let same = chunk.iter().zip(&expected).map(|(found, expected)| found == expected);
        differ += same.clone().filter(|same| !same).count() as u64;
        if first.is_none()
            && let Some(at) = same.clone().position(|same| !same)
        {
            let row = at - at % hex::ROW;
            let part = row..chunk.len().min(row + hex::ROW);
            first = Some((
                offset + at as u64,
                offset + row as u64,
                chunk[part.clone()].to_vec(),
                expected[part].to_vec(),
            ));
        }
        Ok::<_, Failure>(())
    })?;
    let len = units::bytes(mem.len());
    let Some((at, row, found, expected)) = first else {
        let held = format!("all of {len} is as expected: {pattern}");
        ui.check(true, &format!("{held} (in {})", since(begin)))?;
        return Ok(Ok(held));
    };
    let bytes = units::count(differ);
    let differ = if differ == 1 { "differs" } else { "differ" };
    let differs = format!("{bytes} {differ} from {pattern}, the first at {at} ({at:#x})");
    ui.check(false, &differs)?;
    ui.note("there is:")?;
    ui.whole_lines(&[hex::row(row, &found)])?;
    ui.note("expected:")?;
    ui.whole_lines(&[hex::row(row, &expected)])?;
    Ok(Err(differs))
}
