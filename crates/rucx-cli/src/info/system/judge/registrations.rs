//! The registration cache: what tells it of changes of memory, and how it checks.

use ucs::monitor::{Active, HookError, Why};
use ucs::rcache::Mode;
use ucs::rcache::config::{FILES, MEM_EVENTS};

use super::super::facts::Facts;
use super::super::probe::Watcher;
use super::{Group, Row, State, calls};

/// What it costs that there is no cache.
pub(super) const NOTHING_KEPT: &str = "no registration is kept for a next use; with the transports of this version, which pin no \
                                       memory, that costs nothing";

const CHECKED: &str = "strict: each hit is checked by the kernel";

/// Rows of the group.
pub(super) fn rows(facts: &Facts) -> Vec<Row> {
    vec![monitor(facts), cache(facts), queries(facts)]
}

/// The variable that turns the cache off, and its value.
fn off_by(facts: &Facts) -> Option<(&'static str, &'static str)> {
    facts.settings.and_then(Result::ok).and_then(|settings| settings.off_by)
}

fn leave_out((variable, _): (&str, &str)) -> String {
    format!("leave {variable} out of the environment")
}

/// The monitor, and why there is none.
fn monitor(facts: &Facts) -> Row {
    let row = |value: String| Row::good(Group::Registrations, "memory_monitor", "memory monitor", value);
    if let Some(by) = off_by(facts).filter(|by| by.0 == MEM_EVENTS.name()) {
        return row(format!("none: {}={}", by.0, by.1)).lacks(State::Note, NOTHING_KEPT, leave_out(by));
    }
    // What its row advises fits this system better than what the library knows of the reason.
    let advice = |why: Why| calls::userfaultfd(facts).remedy.unwrap_or_else(|| why.remedy().to_owned());
    match facts.probes.watcher {
        Watcher::Started { active: Active::None { why }, .. } => {
            row(format!("none: {}", reason(facts, why))).lacks(State::Note, NOTHING_KEPT, advice(why))
        }
        Watcher::Started { active: Active::Uffd { wp_async: false }, .. } => {
            row("userfaultfd, but not for memory of files".to_owned()).lacks(
                State::Note,
                format!("registrations of mapped files are for one use, also with {}=y", FILES.name()),
                "boot Linux 6.7 or newer",
            )
        }
        Watcher::Started { .. } => row("userfaultfd, for memory of all kinds but System V".to_owned()),
        Watcher::Kills => row("none: a seccomp filter kills whoever starts it".to_owned()).lacks(
            State::Note,
            "a program that registers memory is killed; with the transports of this version, none does",
            format!("{}; or set {}=n", advice(Why::Denied), MEM_EVENTS.name()),
        ),
        Watcher::Untried => row("not tried: the seccomp filter lets no child start".to_owned()).lacks(
            State::Note,
            format!("if it does not work: {NOTHING_KEPT}"),
            "allow execve in the seccomp profile, or ask outside of it",
        ),
    }
}

/// Why nothing is watched, with whose doing that is, as far as it can be told.
fn reason(facts: &Facts, why: Why) -> String {
    let filtered = facts.seccomp.is_some_and(|seccomp| seccomp.mode == 2);
    match why {
        Why::Denied if filtered => format!("{why}, probably by the seccomp filter"),
        // Where the kernel can do without privilege, another denies it.
        Why::Denied if facts.uffd_sysctl == Some(0) && calls::needs_privilege(facts) => {
            format!("{why}: vm.unprivileged_userfaultfd is 0")
        }
        why => why.to_string(),
    }
}

/// How hits are checked.
fn cache(facts: &Facts) -> Row {
    let row = |value: String| Row::good(Group::Registrations, "rcache_mode", "registration cache", value);
    let settings = match facts.settings {
        Some(Ok(settings)) => settings,
        Some(Err(error)) => {
            return row(format!("none: {} is wrong", error.variable())).lacks(
                State::Note,
                error.to_string(),
                error.remedy(),
            );
        }
        None => {
            return row("unknown: a variable has no value".to_owned()).lacks(
                State::Note,
                "no context can be made",
                "see rucx info -c",
            );
        }
    };
    if let Some(by) = settings.off_by {
        return row(format!("off: {}={}", by.0, by.1)).lacks(State::Note, NOTHING_KEPT, leave_out(by));
    }
    if !matches!(
        facts.probes.watcher,
        Watcher::Started { active: Active::Uffd { .. }, .. } | Watcher::Untried
    ) {
        let value = "off: nothing tells of changes of memory".to_owned();
        return row(value).lacks(State::Note, NOTHING_KEPT, "have a memory monitor: see there");
    }
    let how = match (settings.options.mode, facts.hooks) {
        (Mode::Hooks, _) => "hooks: hits are not checked".to_owned(),
        (Mode::Auto, Ok(())) => {
            "auto: hits are not checked while hooks of the C library tell of all changes".to_owned()
        }
        (Mode::Auto, Err(error)) if error != HookError::NotBuilt => format!("{CHECKED}; no hooks: {error}"),
        _ => CHECKED.to_owned(),
    };
    let files =
        if settings.options.files { format!("; files, too ({}=y)", FILES.name()) } else { String::new() };
    row(format!("{how}{files}"))
}

/// How it is found out what is mapped where.
fn queries(facts: &Facts) -> Row {
    let row = |value: &str| Row::good(Group::Registrations, "procmap_query", "PROCMAP_QUERY", value);
    match facts.probes.watcher {
        Watcher::Started { queries: true, .. } => row("works"),
        Watcher::Started { queries: false, .. } => row("not there").lacks(
            State::Note,
            "making a registration that is kept takes longer, the more mappings there are: they are looked up in the text of \
             /proc/self/maps",
            "boot Linux 6.11 or newer",
        ),
        Watcher::Kills | Watcher::Untried => row("not tried"),
    }
}
