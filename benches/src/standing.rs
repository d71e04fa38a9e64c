//! Operations, each beside a reference of its own and a target.

use std::fmt;

use crate::Comparison;
use crate::report::{number, string};

/// What an operation is to reach.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Target {
    /// At most so many times the reference's time.
    Ratio(f64),
    /// At most so many nanoseconds.
    Nanoseconds(f64),
}

impl Target {
    /// Whether it is reached.
    #[must_use]
    pub fn is_met(self, comparison: &Comparison) -> bool {
        match self {
            Self::Ratio(most) => comparison.ratio <= most,
            Self::Nanoseconds(most) => comparison.a_ns <= most,
        }
    }
}

/// The words of a table.
impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ratio(most) => write!(f, "≤ {} ×", (most * 100.0).round() / 100.0),
            Self::Nanoseconds(most) => write!(f, "≤ {most} ns"),
        }
    }
}

/// An operation, measured.
#[derive(Debug, Clone, PartialEq)]
pub struct Standing {
    /// The operation.
    pub name: String,
    /// The reference that ran by turns with it.
    pub reference: String,
    /// A is the operation, B the reference; so the ratio is how many times as long as the reference the operation takes.
    pub comparison: Comparison,
    /// What it is to reach, where that was said.
    pub target: Option<Target>,
}

/// All operations of a benchmark.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Standings(pub Vec<Standing>);

/// The table.
impl fmt::Display for Standings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{:<42} {:>13} {:>13} {:>7} {:>12}  {:<26} target",
            "", "p50 ns", "reference ns", "ratio", "10–90 %", "reference"
        )?;
        for Standing { name, reference, comparison: c, target } in &self.0 {
            let spread = format!("{:.2}–{:.2}", c.ratio_low, c.ratio_high);
            write!(
                f,
                "{name:<42} {:>13.1} {:>13.1} {:>7.2} {spread:>12}  {reference:<26}",
                c.a_ns, c.b_ns, c.ratio
            )?;
            match target {
                Some(target) if target.is_met(c) => writeln!(f, " {target}: met")?,
                Some(target) => writeln!(f, " {target}: MISSED")?,
                None => writeln!(f)?,
            }
        }
        write!(f, "ratio: the operation's time by its reference's, the median of samples taken by turns")
    }
}

impl Standings {
    /// One JSON object.
    #[must_use]
    pub fn to_json(&self) -> String {
        let rows: Vec<String> = self.0.iter().map(json_row).collect();
        format!("{{\"rows\":[{}]}}", rows.join(","))
    }
}

fn json_row(row: &Standing) -> String {
    let c = &row.comparison;
    let target = match row.target {
        None => String::new(),
        Some(target) => {
            let (kind, most) = match target {
                Target::Ratio(most) => ("target_ratio", most),
                Target::Nanoseconds(most) => ("target_ns", most),
            };
            format!(",\"{kind}\":{},\"met\":{}", number(most), target.is_met(c))
        }
    };
    format!(
        "{{\"name\":{},\"reference\":{},\"ns\":{},\"reference_ns\":{},\"ratio\":{},\"ratio_p10\":{},\"ratio_p90\":{}{target}}}",
        string(&row.name),
        string(&row.reference),
        number(c.a_ns),
        number(c.b_ns),
        number(c.ratio),
        number(c.ratio_low),
        number(c.ratio_high)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn says_what_is_missed() {
        let comparison = Comparison { a_ns: 3.0, b_ns: 2.0, ratio: 1.5, ratio_low: 1.0, ratio_high: 2.0 };
        let row = |target| Standing {
            name: "a".into(),
            reference: "b".into(),
            comparison: comparison.clone(),
            target,
        };
        let rows = [Some(Target::Ratio(1.5)), Some(Target::Nanoseconds(2.9)), None].map(row);
        let standings = Standings(rows.to_vec());
        let table = standings.to_string();
        assert!(table.contains("≤ 1.5 ×: met\n") && table.contains("≤ 2.9 ns: MISSED\n"), "{table}");
        assert_eq!(
            standings.to_json().split_inclusive('}').next().unwrap(),
            r#"{"rows":[{"name":"a","reference":"b","ns":3.0000,"reference_ns":2.0000,"ratio":1.5000,"ratio_p10":1.0000,"ratio_p90":2.0000,"target_ratio":1.5000,"met":true}"#
        );
    }
}
