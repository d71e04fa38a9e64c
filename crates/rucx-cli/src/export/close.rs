//! The end of an export: it is revoked, and its accesses in flight are waited for, which a signal cuts short.

use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use tracing::subscriber::{NoSubscriber, with_default};
use ucp::{NotRevoked, PackedMemh};
use ucs::config::Value;

use super::place::{Place, Removed};
use super::wait::End;
use crate::signals::Signals;
use crate::trouble::{Failure, Trouble};
use crate::ui::{Ui, Who};
use crate::units;

/// How long one call of the library may wait: signals are looked for in between. Contexts of this command are made with it.
pub(super) const STEP: Duration = Duration::from_millis(20);
/// What takes longer is told.
const SHORT: Duration = Duration::from_millis(200);

/// How waiting for accesses in flight ended.
enum Drained {
    /// None is under way.
    All,
    /// These are, after so long.
    Not(NotRevoked, Duration),
    /// A signal came.
    Signal,
}

/// Revokes, and removes what was made. Whether all accesses had ended within `patience`.
pub(super) fn close(
    ui: &mut Ui,
    end: End,
    given: Option<u64>,
    place: Place,
    handle: &PackedMemh,
    patience: Duration,
    signals: &Signals,
) -> Result<bool, Failure> {
    signals.forget(); // what ended it does not cut the wait short
    // Whether or not there is anybody to tell.
    let (begin, path) = (Instant::now(), place.path().to_owned());
    let first = revoke(handle);
    let removed = place.remove();
    let told = tell_end(ui, end, given, &path, &removed);
    let drained = match first {
        Ok(()) => Drained::All,
        Err(error) => drain(ui, handle, error, begin, patience, signals)?,
    };
    told?;
    match drained {
        Drained::All => {
            ui.close(removed.is_ok(), "revoked: no access is under way, and none will begin")?;
            Ok(removed.is_ok())
        }
        Drained::Signal => {
            let what = "no access begins any more, but those in flight were not waited for";
            ui.say(Who::Host, "ended at once, by another signal")?;
            ui.note("the memory is given back with the end of this program")?;
            ui.close(false, what)?;
            Ok(false)
        }
        Drained::Not(error, waited) => Err(not_drained(&error, waited)),
    }
}

fn tell_end(
    ui: &mut Ui,
    end: End,
    given: Option<u64>,
    path: &Path,
    removed: &io::Result<Removed>,
) -> io::Result<()> {
    ui.say(Who::Host, end.as_str())?;
    if let Some(given) = given {
        ui.note(&format!("the handle was given away {}", units::times(given)))?;
    }
    let path = path.display();
    ui.note(&match removed {
        Ok(Removed::Now) => format!("removed {path}"),
        Ok(Removed::Before) => format!("{path} was removed already"),
        Ok(Removed::Another) => format!("{path} is not removed: it is another by now"),
        Err(error) => format!("{path} cannot be removed: {error}"),
    })
}

/// One step. What the library would log of an access in flight, this command tells.
fn revoke(handle: &PackedMemh) -> Result<(), NotRevoked> {
    let verdict = with_default(NoSubscriber::new(), || handle.revoke());
    tracing::debug!(drained = verdict.is_ok(), "revoked");
    verdict
}

/// Goes on waiting, after a first step that met an access in flight.
fn drain(
    ui: &mut Ui,
    handle: &PackedMemh,
    first: NotRevoked,
    begin: Instant,
    patience: Duration,
    signals: &Signals,
) -> Result<Drained, Failure> {
    let (mut error, mut told) = (first, None);
    loop {
        let waited = begin.elapsed();
        if waited >= patience || error.importers().is_empty() {
            told.unwrap_or(Ok(()))?;
            return Ok(Drained::Not(error, waited));
        }
        if waited >= SHORT && told.is_none() {
            let most = patience.print();
            told = Some(ui.say(
                Who::Host,
                &format!("waiting for accesses in flight, at most {most} (UCX_REVOKE_TIMEOUT); another signal ends it at once"),
            ));
        }
        if signals.wait(Duration::ZERO).unwrap_or(false) {
            return Ok(Drained::Signal);
        }
        match revoke(handle) {
            Ok(()) => return told.unwrap_or(Ok(())).map(|()| Drained::All).map_err(Failure::from),
            Err(next) => error = next,
        }
    }
}

fn not_drained(error: &NotRevoked, waited: Duration) -> Failure {
    let (mut seen, hidden): (Vec<u32>, Vec<u32>) = error.importers().iter().partition(|pid| **pid != 0);
    seen.dedup();
    if seen.is_empty() && hidden.is_empty() {
        return Trouble::own("revoked, but not drained", error.to_string(), error.remedy());
    }
    let mut who: Vec<String> = seen.iter().map(|pid| format!("an access of process {pid}")).collect();
    if !hidden.is_empty() {
        who.push("an access of a process that is not visible from here".to_owned());
    }
    let is = if who.len() == 1 { "is" } else { "are" };
    let reason = format!(
        "after {} {} {is} still in flight. No other begins: an importer that was stopped is told Stale when it goes on. The \
         memory is given back with the end of this program",
        rounded(waited),
        who.join(", ")
    );
    let pids: Vec<String> = seen.iter().map(ToString::to_string).collect();
    let remedy = if pids.is_empty() {
        "continue what was stopped, or end it".to_owned()
    } else {
        let pids = pids.join(" ");
        format!("continue what was stopped (kill -CONT {pids}), or end it (kill -KILL {pids})")
    };
    Trouble::own("revoked, but not drained", reason, remedy)
}

/// A time as people say it: `2 s`, `1.5 s`, `100 ms`.
fn rounded(time: Duration) -> String {
    let tenths = (time.as_millis() + 50) / 100;
    match (time.as_millis(), tenths % 10) {
        (..1000, _) if tenths < 10 => format!("{} ms", time.as_millis()),
        (_, 0) => format!("{} s", tenths / 10),
        (_, tenth) => format!("{}.{tenth} s", tenths / 10),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_rounded() {
        for (micros, text) in [
            (2_000_254, "2 s"),
            (1_549_000, "1.5 s"),
            (999_000, "1 s"),
            (120_300, "120 ms"),
            (60_049_000, "60 s"),
        ] {
            assert_eq!(rounded(Duration::from_micros(micros)), text);
        }
    }
}
