//! A report as a page for people.

use super::config::Variable;
use super::devices::{Domain, Transport};
use super::endpoints::Use;
use super::stats::Exercise;
use super::system::{NOT_SET, Row, SERVICE_DIR, State};
use super::{Problem, Report};
use crate::ui::{Page, Tone};
use crate::units;

/// Columns of a mark.
const MARK: usize = 3;
/// Columns of a transport's name.
const TRANSPORT: usize = 7;
/// Columns of a cost: `760 ns + 0.050 ns/B`.
const COST: usize = 21;
/// Columns of a name of the system: `vm.unprivileged_userfaultfd`.
const NAME: usize = 28;

const MARGIN: (&str, usize, Tone) = ("", MARK, Tone::Plain);

/// All of what was asked for.
pub(super) fn page(report: &Report) -> Page {
    let mut page = Page::new();
    fill(&mut page, report);
    page
}

fn fill(page: &mut Page, report: &Report) {
    title(page, report);
    if let Some(transports) = &report.devices {
        devices(page, transports);
    }
    if let Some(variables) = &report.config {
        page.section("Variables", "");
        variables.iter().for_each(|one| variable(page, one));
    }
    if let Some(rows) = &report.system {
        system(page, rows);
    }
    for one in report.endpoints.iter().flatten() {
        endpoint(page, one);
    }
    if let Some(exercise) = &report.stats {
        figures(page, exercise);
    }
}

/// One use of endpoints, a line a transport.
fn endpoint(page: &mut Page, one: &Use) {
    page.section(&format!("To another process: {}", one.what), one.transport.unwrap_or("none"));
    page.line(&[MARGIN], one.doc, Tone::Dim);
    for candidate in &one.candidates {
        let is_it = one.transport == Some(candidate.transport);
        let tone = if is_it { Tone::Good } else { Tone::Dim };
        let cost = match (candidate.cost_base, candidate.cost_per_byte) {
            (Some(base), Some(per_byte)) => format!("{:.0} ns + {:.3} ns/B", base * 1e9, per_byte * 1e9),
            _ => String::new(),
        };
        let name = (candidate.transport, TRANSPORT, if is_it { Tone::Bold } else { Tone::Plain });
        let cells = [(page.mark(tone), MARK, tone), name, (&cost, COST, Tone::Plain)];
        page.line(&cells, &candidate.why, if is_it { Tone::Plain } else { Tone::Dim });
    }
    if let Some(problem) = &one.error {
        page.line(&[(page.mark(Tone::Bad), MARK, Tone::Bad)], "no transport reaches it", Tone::Bad);
        complaint(page, &[MARGIN], problem);
    }
}

/// What was done, and what was counted.
fn figures(page: &mut Page, exercise: &Exercise) {
    page.section("Figures", "");
    if let Some(problem) = &exercise.error {
        page.line(&[(page.mark(Tone::Bad), MARK, Tone::Bad)], "nothing was counted", Tone::Bad);
        complaint(page, &[MARGIN], problem);
        return;
    }
    page.line(&[MARGIN], &exercise.what, Tone::Plain);
    for (group, title) in [("rcache", "Registration cache"), ("monitor", "Memory monitor")] {
        page.section(title, "");
        for figure in exercise.figures.iter().filter(|figure| figure.group == group) {
            let number = units::grouped(figure.value);
            let cells = [MARGIN, (figure.name, 19, Tone::Bold), (&number, 13, Tone::Plain)];
            page.line(&cells, figure.doc, Tone::Dim);
        }
    }
}

/// The three in short, and which command shows more.
pub(super) fn summary(report: &Report) -> Page {
    let mut page = Page::new();
    fill_summary(&mut page, report);
    page
}

fn fill_summary(page: &mut Page, report: &Report) {
    title(page, report);
    page.section("Transports", "more: rucx info -d");
    for transport in report.devices.iter().flatten() {
        let export = transport.capabilities.iter().find(|one| one.name == "export" && one.supported);
        let reach = export.map_or("in use".to_owned(), |export| format!("in use; export: {}", export.note));
        used(page, transport, &reach);
    }
    page.section("Variables", "more: rucx info -c");
    let all = report.config.as_deref().unwrap_or_default();
    let (set, rest): (Vec<_>, Vec<_>) = all.iter().partition(|one| one.origin != "default");
    set.iter().for_each(|one| value(page, one));
    page.line(&[MARGIN], &format!("{} at their defaults", rest.len()), Tone::Dim);
    page.section("System", "more: rucx info -s");
    let rows = report.system.as_deref().unwrap_or_default();
    let count = |state| rows.iter().filter(|row| row.state == state).count();
    let mark = page.mark(Tone::Good);
    let good = format!("{} of {} things are as they should be", count(State::Good), rows.len());
    page.line(&[(mark, MARK, Tone::Good)], &good, Tone::Plain);
    // That of a directory which is set in any case: it was meant.
    let is_told = |row: &&Row| row.state >= State::Limited || row.key == SERVICE_DIR && row.value != NOT_SET;
    rows.iter().filter(is_told).for_each(|one| row(page, one));
    if count(State::Note) > 0 {
        let mark = page.mark(Tone::Dim);
        let notes: Vec<_> = rows.iter().filter(|row| row.state == State::Note).map(|row| row.name).collect();
        let notes = format!("worth a look, at little cost: {}", notes.join(", "));
        page.line(&[(mark, MARK, Tone::Dim)], &notes, Tone::Plain);
    }
}

fn title(page: &mut Page, report: &Report) {
    page.title(&format!("rucx {} info", report.rucx), "");
    if let Some(problem) = &report.error {
        page.blank();
        page.line(&[(page.mark(Tone::Bad), MARK, Tone::Bad)], "no context can be made", Tone::Bad);
        complaint(page, &[MARGIN], problem);
    }
}

fn complaint(page: &mut Page, cells: &[(&str, usize, Tone)], problem: &Problem) {
    page.line(cells, &problem.text, Tone::Plain);
    page.line(cells, &format!("remedy: {}", problem.remedy), Tone::Plain);
}

fn devices(page: &mut Page, transports: &[Transport]) {
    page.section("Transports", "");
    for transport in transports {
        let names: Vec<_> = transport.memory_domains.iter().map(|domain| domain.name.as_str()).collect();
        used(page, transport, &format!("in use; memory domains: {}", names.join(", ")));
    }
    for transport in transports {
        for one in &transport.memory_domains {
            page.section(&format!("{}: memory domain {}", transport.name, one.name), "");
            domain(page, one);
        }
    }
    page.section("What each can do", "");
    let mut names: Vec<&str> = Vec::new();
    for capability in transports.iter().flat_map(|transport| &transport.capabilities) {
        if !names.contains(&capability.name) {
            names.push(capability.name);
        }
    }
    names.iter().for_each(|name| capability(page, name, transports));
}

/// One capability, a line a transport.
fn capability(page: &mut Page, name: &str, transports: &[Transport]) {
    let mut label = name;
    for transport in transports {
        let found = transport.capabilities.iter().find(|one| one.name == name);
        let (answer, tone) = match found {
            Some(one) if one.supported => ("yes", Tone::Good),
            Some(_) => ("no", Tone::Dim),
            None => ("?", Tone::Dim),
        };
        let cells = [(label, 24, Tone::Bold), (transport.name, TRANSPORT, Tone::Plain), (answer, 5, tone)];
        page.line(&cells, found.map_or("it does not say", |one| one.note), Tone::Plain);
        label = "";
    }
}

fn used(page: &mut Page, transport: &Transport, how: &str) {
    // A transport that is not used is no failure.
    let tone = match transport {
        Transport { export_fault: Some(_), .. } => Tone::Bad,
        Transport { used: true, .. } => Tone::Good,
        _ => Tone::Dim,
    };
    let cells = [(page.mark(tone), MARK, tone), (transport.name, TRANSPORT, Tone::Bold)];
    match (&transport.reason, &transport.export_fault) {
        (None, None) => page.line(&cells, how, Tone::Plain),
        (None, Some(fault)) => {
            page.line(&cells, &format!("in use, but nothing can be exported: {fault}"), Tone::Plain);
        }
        (Some(reason), _) => page.line(&cells, &format!("not in use: {reason}"), Tone::Plain),
    }
}

/// More than any memory has.
const BOUNDLESS: u64 = i64::MAX.unsigned_abs();

fn domain(page: &mut Page, domain: &Domain) {
    let list = |all: &[String]| if all.is_empty() { "none".to_owned() } else { all.join(", ") };
    let kinds = |bytes: u64, kinds: &[String]| match bytes {
        0 => "no".to_owned(),
        BOUNDLESS.. => format!("{} memory, of any size", list(kinds)),
        _ => format!("{} memory, up to {}", list(kinds), units::bytes(bytes)),
    };
    let key = |bytes: usize| if bytes == 0 { "none".to_owned() } else { format!("{bytes} B") };
    let alignment = if domain.reg_alignment == 1 {
        "to the byte".to_owned()
    } else {
        format!("to {}", units::bytes(domain.reg_alignment as u64))
    };
    let cost = if domain.reg_cost_base == 0.0 && domain.reg_cost_per_byte == 0.0 {
        "none".to_owned()
    } else {
        format!("{:.0} ns + {:.3} ns/B", domain.reg_cost_base * 1e9, domain.reg_cost_per_byte * 1e9)
    };
    let cpus = if domain.local_cpus.is_empty() { "all" } else { &domain.local_cpus };
    for (name, value) in [
        ("flags", list(&domain.flags)),
        ("allocates", kinds(domain.max_alloc, &domain.alloc_mem_types)),
        ("registers", kinds(domain.max_reg, &domain.reg_mem_types)),
        ("aligned", alignment),
        ("registration cost", cost),
        ("accesses", format!("{} memory", list(&domain.access_mem_types))),
        ("remote key", key(domain.rkey_packed_size)),
        ("exported key", key(domain.exported_mkey_packed_size)),
        ("keys hold within", domain.global_id.clone()),
        ("near CPUs", cpus.to_owned()),
    ] {
        page.line(&[MARGIN, (name, 20, Tone::Dim)], &value, Tone::Plain);
    }
    for note in &domain.notes {
        page.line(&[MARGIN, ("note", 20, Tone::Dim)], note, Tone::Plain);
    }
}

/// `NAME=value`, and where that comes from.
fn value(page: &mut Page, variable: &Variable) {
    let text = match &variable.value {
        Some(value) => format!("{}={value} ({})", variable.name, variable.origin),
        None => variable.name.to_owned(),
    };
    match &variable.error {
        None => page.line(&[MARGIN], &text, Tone::Bold),
        Some(problem) => {
            page.line(&[(page.mark(Tone::Bad), MARK, Tone::Bad)], &text, Tone::Bold);
            complaint(page, &[MARGIN, MARGIN], problem);
        }
    }
}

fn variable(page: &mut Page, variable: &Variable) {
    value(page, variable);
    page.line(&[MARGIN, MARGIN], variable.doc, Tone::Plain);
    let mut hint = format!("accepts {}", variable.accepts);
    if variable.origin != "default" {
        hint.push_str(&format!("; default: {}", variable.default));
    }
    page.line(&[MARGIN, MARGIN], &hint, Tone::Dim);
}

fn system(page: &mut Page, rows: &[Row]) {
    let mut group = None;
    for one in rows {
        if group != Some(one.group) {
            page.section(one.group.title(), "");
            group = Some(one.group);
        }
        row(page, one);
    }
    page.blank();
    let legend = [
        (Tone::Good, "good"),
        (Tone::Dim, "costs little"),
        (Tone::Plain, "limits rucx"),
        (Tone::Bad, "a part of rucx does not work"),
    ];
    let legend: Vec<_> = legend.iter().map(|(tone, what)| format!("{} {what}", page.mark(*tone))).collect();
    page.line(&[], &legend.join("   "), Tone::Dim);
}

fn row(page: &mut Page, row: &Row) {
    let tone = match row.state {
        State::Good => Tone::Good,
        State::Note => Tone::Dim,
        State::Limited => Tone::Plain,
        State::Missing => Tone::Bad,
    };
    page.line(&[(page.mark(tone), MARK, tone), (row.name, NAME, Tone::Bold)], &row.value, Tone::Plain);
    for (label, text) in [("costs", &row.cost), ("remedy", &row.remedy)] {
        if let Some(text) = text {
            page.line(&[MARGIN, MARGIN, (label, 8, Tone::Dim)], text, Tone::Plain);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Args;
    use super::*;
    use crate::ui::WIDTH;

    fn long() -> Report {
        let args =
            Args { devices: true, config: true, system: true, endpoints: true, stats: true, json: false };
        let mut report = Report::gather(&args);
        let word = "averyveryverylongwordthatnobodywouldwriteandeverybodymusthandle".repeat(3);
        let problem = Problem { text: word.clone(), remedy: word.clone(), status: "x".to_owned() };
        report.error = Some(problem.clone());
        for transport in report.devices.iter_mut().flatten() {
            transport.reason = Some(word.clone());
            transport.export_fault = Some(word.clone());
            for domain in &mut transport.memory_domains {
                domain.flags.push(word.clone());
                domain.notes.push(word.clone());
                domain.reg_cost_base = 1e-6;
            }
        }
        for (index, variable) in report.config.iter_mut().flatten().enumerate() {
            variable.value = (index % 2 == 0).then(|| word.clone());
            variable.error = Some(problem.clone());
        }
        for one in report.endpoints.iter_mut().flatten() {
            one.error = Some(problem.clone());
            one.candidates.iter_mut().for_each(|one| one.why.push_str(&word));
        }
        for figure in report.stats.iter_mut().flat_map(|one| &mut one.figures) {
            figure.value = u64::MAX;
        }
        for row in report.system.iter_mut().flatten() {
            row.value.push_str(&word);
            row.state = State::Missing;
            row.cost = Some(word.clone());
            row.remedy = Some(format!("{word} {word}"));
        }
        report
    }

    #[test]
    fn whatever_is_told_fits_a_terminal() {
        let report = long();
        for ascii in [false, true] {
            let (mut whole, mut short) = (Page::of(ascii), Page::of(ascii));
            fill(&mut whole, &report);
            fill_summary(&mut short, &report);
            for line in whole.lines().iter().chain(&short.lines()) {
                assert!(line.chars().count() <= WIDTH, "{line:?}");
                assert!(line.trim_end() == line && (!ascii || line.is_ascii()), "{line:?}");
            }
        }
    }
}
