//! Comparisons as a table for people and as JSON for programs.

use std::fmt;

use crate::Comparison;

/// A comparison and what was compared.
#[derive(Debug, Clone, PartialEq)]
pub struct Row {
    /// What was done.
    pub name: String,
    /// Bytes moved by one iteration.
    pub bytes: usize,
    /// What came of it.
    pub comparison: Comparison,
}

impl Row {
    fn gb_per_s(&self, ns: f64) -> f64 {
        // A byte per nanosecond is a gigabyte (10⁹) per second.
        self.bytes as f64 / ns
    }
}

/// All comparisons of a benchmark.
#[derive(Debug, Clone, PartialEq)]
pub struct Report {
    /// What A is.
    pub a: &'static str,
    /// What B is.
    pub b: &'static str,
    /// The comparisons.
    pub rows: Vec<Row>,
}

/// The table.
impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { a, b, .. } = self;
        writeln!(
            f,
            "{:<28} {:>9} {:>12} {:>12} {:>10} {:>10} {:>7}  10–90 %",
            "",
            "bytes",
            format!("{a} GB/s"),
            format!("{b} GB/s"),
            format!("{a} ns"),
            format!("{b} ns"),
            "ratio"
        )?;
        for row in &self.rows {
            let c = &row.comparison;
            writeln!(
                f,
                "{:<28} {:>9} {:>12.1} {:>12.1} {:>10.1} {:>10.1} {:>7.2}  {:.2}–{:.2}",
                row.name,
                row.bytes,
                row.gb_per_s(c.a_ns),
                row.gb_per_s(c.b_ns),
                c.a_ns,
                c.b_ns,
                c.ratio,
                c.ratio_low,
                c.ratio_high
            )?;
        }
        write!(f, "ratio: how many times as fast as {a} is {b}, the median of samples taken by turns")
    }
}

impl Report {
    /// One JSON object.
    #[must_use]
    pub fn to_json(&self) -> String {
        let rows: Vec<String> = self.rows.iter().map(json_row).collect();
        format!("{{\"a\":{},\"b\":{},\"rows\":[{}]}}", string(self.a), string(self.b), rows.join(","))
    }
}

fn json_row(row: &Row) -> String {
    let c = &row.comparison;
    format!(
        "{{\"name\":{},\"bytes\":{},\"a_ns\":{},\"b_ns\":{},\"a_gb_per_s\":{},\"b_gb_per_s\":{},\"ratio\":{},\"ratio_p10\":{},\"ratio_p90\":{}}}",
        string(&row.name),
        row.bytes,
        number(c.a_ns),
        number(c.b_ns),
        number(row.gb_per_s(c.a_ns)),
        number(row.gb_per_s(c.b_ns)),
        number(c.ratio),
        number(c.ratio_low),
        number(c.ratio_high)
    )
}

/// JSON has no infinities.
pub(crate) fn number(value: f64) -> String {
    if value.is_finite() { format!("{value:.4}") } else { "null".to_owned() }
}

pub(crate) fn string(text: &str) -> String {
    let mut out = String::from('"');
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            c if c < ' ' => out.push_str(&format!("\\u{:04x}", u32::from(c))),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_json() {
        let comparison =
            Comparison { a_ns: 2.0, b_ns: 1.0, ratio: 2.0, ratio_low: 1.5, ratio_high: f64::NAN };
        let report =
            Report { a: "x", b: "y", rows: vec![Row { name: "q\"\\\n".into(), bytes: 8, comparison }] };
        assert_eq!(
            report.to_json(),
            r#"{"a":"x","b":"y","rows":[{"name":"q\"\\\u000a","bytes":8,"a_ns":2.0000,"b_ns":1.0000,"a_gb_per_s":4.0000,"b_gb_per_s":8.0000,"ratio":2.0000,"ratio_p10":1.5000,"ratio_p90":null}]}"#
        );
    }
}
