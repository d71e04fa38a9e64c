//! Part 4: how long it takes.

use super::MAIN;
use crate::demo::child::Failure;
use crate::demo::measure::SIZES;
use crate::demo::protocol::{Command, Timing};
use crate::demo::stage::{Stage, take_apart};
use crate::units;

const HEAD: [&str; 2] = [
    "                        time of a call                 GB/s",
    "                 8 B    4 KiB   64 KiB    1 MiB   64 KiB    1 MiB",
];

pub(crate) fn play(stage: &mut Stage) -> Result<(), Failure> {
    stage.part("How long it takes")?;
    take_apart!(stage, Dpu: stage.dpu(&Command::Measure { slot: MAIN })? => Measured { transport, timings });
    let across = transport;
    let mut rows = rows(&across, &timings);
    take_apart!(stage, Host: stage.host(&Command::MeasureOwn { slot: MAIN })? => Measured { transport, timings });
    let within = (transport != across).then_some(transport);
    if let Some(within) = &within {
        rows.extend(self::rows(within, &timings));
    }
    stage.ui.table(&HEAD, &rows)?;
    let within = within.map(|within| format!("; {within}: the HOST's own import")).unwrap_or_default();
    stage.ui.note(&format!(
        "Median time of one read or write call through the library, which checks bounds, rights and revocation each time; one \
         thread, the same bytes again and again. {across}: from process to process{within}."
    ))?;
    Ok(())
}

fn rows(transport: &str, timings: &[Timing]) -> Vec<Vec<String>> {
    let cell = |write, size, show: fn(&Timing) -> String| {
        let timing = timings.iter().find(|timing| timing.write == write && timing.size == size);
        timing.map_or_else(|| "-".to_owned(), show)
    };
    [false, true]
        .into_iter()
        .map(|write| {
            let name = if write { String::new() } else { transport.to_owned() };
            let mut row = vec![name, if write { "write" } else { "read" }.to_owned()];
            row.extend(SIZES.map(|size| cell(write, size, |timing| units::time(timing.median_ps))));
            row.extend(
                [SIZES[2], SIZES[3]].map(|size| cell(write, size, |it| units::rate(it.size, it.median_ps))),
            );
            row
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_not_measured_is_a_dash() {
        let timings = [Timing { write: false, size: 8, median_ps: 20_000 }];
        let rows = rows("shm", &timings);
        assert_eq!(rows[0], ["shm", "read", "20.0 ns", "-", "-", "-", "-", "-"]);
        assert_eq!(rows[1], ["", "write", "-", "-", "-", "-", "-", "-"]);
    }
}
