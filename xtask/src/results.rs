//! Reading what `cargo test` prints.

/// A test or step that could not run here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Skip {
    pub(crate) name: String,
    /// Why, and what would let it run.
    pub(crate) reason: String,
}

/// Counts of a step.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Results {
    pub(crate) passed: u64,
    pub(crate) failed: u64,
    pub(crate) skips: Vec<Skip>,
    /// Names of failed tests, or what else went wrong.
    pub(crate) failures: Vec<String>,
}

impl Results {
    /// Of a step that counts as one and has passed.
    pub(crate) fn pass() -> Self {
        Self { passed: 1, ..Self::default() }
    }

    /// Of a step that counts as one and has failed.
    pub(crate) fn fail(why: impl Into<String>) -> Self {
        Self { failed: 1, failures: vec![why.into()], ..Self::default() }
    }

    /// Adds a failure that is none of a test.
    pub(crate) fn add_failure(&mut self, why: impl Into<String>) {
        self.failed += 1;
        self.failures.push(why.into());
    }

    /// Notes the name of a failed test, once.
    fn name_failure(&mut self, name: &str) {
        if !self.failures.iter().any(|known| known == name) {
            self.failures.push(name.to_owned());
        }
    }

    /// Adds the counts of another.
    pub(crate) fn add(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skips.extend(other.skips);
        self.failures.extend(other.failures);
    }
}

/// Adds up the `test result:` lines of a `cargo test` run; `ok` is its exit status.
pub(crate) fn of_cargo_test(output: &str, ok: bool) -> Results {
    let mut results = Results::default();
    let mut ignored = 0;
    let mut is_list = false; // of libtest's, at the end: lines of failed tests are torn by what these print
    for line in output.lines() {
        let was_list = std::mem::replace(&mut is_list, line == "failures:");
        if let Some(counts) = line.strip_prefix("test result: ") {
            results.passed += count(counts, "passed");
            results.failed += count(counts, "failed");
            ignored += count(counts, "ignored");
        } else if let Some((name, reason)) = line.strip_prefix("SKIP ").and_then(|skip| skip.split_once(": "))
        {
            results.skips.push(Skip { name: name.to_owned(), reason: reason.to_owned() });
        } else if let Some(name) =
            line.strip_prefix("test ").and_then(|test| test.strip_suffix(" ... FAILED"))
        {
            results.name_failure(name.trim_end());
        } else if let Some(name) = line.strip_prefix("    ").filter(|_| was_list) {
            results.name_failure(name);
            is_list = true;
        }
    }
    let explained = results.skips.len() as u64;
    if ignored != explained {
        results.add_failure(format!("{ignored} tests ignored, but {explained} said why (testkit::skip)"));
    }
    if results.passed + results.failed == 0 {
        results.add_failure(if ok { "no test ran" } else { "no test ran: it could not be built or started" });
    } else if !ok && results.failed == 0 {
        results.add_failure("it failed without a failed test");
    }
    results
}

/// The number before `what` in `ok. 31 passed; 0 failed; …`.
fn count(counts: &str, what: &str) -> u64 {
    let words: Vec<&str> = counts.split([' ', ';']).collect();
    let found = words.windows(2).find(|pair| pair[1] == what);
    found.and_then(|pair| pair[0].parse().ok()).unwrap_or(0)
}

/// What to show of a failed step: all of a short output; else the parts of test binaries that failed, and the end.
pub(crate) fn excerpt(output: &str) -> String {
    const SHORT: usize = 200;
    let lines: Vec<&str> = output.lines().collect();
    if lines.len() <= SHORT {
        return output.to_owned();
    }
    let is_start = |line: &str| {
        ["Running ", "Doc-tests ", "Compiling "].iter().any(|start| line.trim_start().starts_with(start))
    };
    let mut starts: Vec<usize> = (0..lines.len()).filter(|&at| is_start(lines[at])).collect();
    starts.insert(0, 0);
    starts.push(lines.len());
    let mut shown = Vec::new();
    for part in starts.windows(2).map(|pair| &lines[pair[0]..pair[1]]) {
        let is_bad = |line: &&str| {
            line.starts_with("test result: FAILED") || line.starts_with("error") || line.contains("WATCHDOG:")
        };
        if part.iter().any(is_bad) {
            shown.extend(part.iter().filter(|line| !line.ends_with("... ok")));
        }
    }
    let end = &lines[lines.len() - 40..];
    if shown.len() > 2 * SHORT {
        let left_out = format!("[{} lines left out]", shown.len() - 2 * SHORT);
        return [&shown[..SHORT], &[left_out.as_str()], &shown[shown.len() - SHORT..], &["[…]"], end]
            .concat()
            .join("\n");
    }
    [&shown[..], &["[…]"], end].concat().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failed_tests_are_named_once_whatever_they_print() {
        let output = "test a::b ... note: something\nFAILED\ntest c ... FAILED\n\nfailures:\n\n---- a::b ----\n    at file.rs\n\n\
            failures:\n    a::b\n    c\n\ntest result: FAILED. 1 passed; 2 failed; 0 ignored\n";
        assert_eq!(of_cargo_test(output, false).failures, ["c", "a::b"]);
    }

    #[test]
    fn all_runs_add_up() {
        let output = "test a ... ok\ntest result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 2 filtered out; finished in 0.1s\n\
                      SKIP b::c: no device — plug one in\n\
                      test d      ... FAILED\ntest result: FAILED. 4 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out\n";
        let results = of_cargo_test(output, false);
        assert_eq!((results.passed, results.failed), (7, 1));
        assert_eq!(results.failures, ["d"]);
        assert_eq!(results.skips, [Skip { name: "b::c".into(), reason: "no device — plug one in".into() }]);
    }

    #[test]
    fn nothing_run_is_a_failure() {
        let output =
            "test result: ok. 0 passed; 0 failed; 0 ignored; 0 measured; 9 filtered out; finished in 0.0s\n";
        assert_eq!(of_cargo_test(output, true).failed, 1);
        assert_eq!(of_cargo_test("error: could not compile", false).failed, 1);
    }

    #[test]
    fn a_silent_skip_is_a_failure() {
        let output = "test result: ok. 1 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out\n";
        assert_eq!(of_cargo_test(output, true).failed, 1);
    }

    #[test]
    fn a_crash_is_a_failure() {
        let output = "test result: ok. 5 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out\nerror: test failed, signal: 6\n";
        assert_eq!(of_cargo_test(output, false).failed, 1);
    }

    #[test]
    fn long_outputs_show_the_parts_that_failed() {
        let fine = "     Running fine\n".to_owned() + &"test x ... ok\n".repeat(300);
        let bad = "     Running bad\nthread panicked\ntest y ... FAILED\ntest result: FAILED. 0 passed; 1 failed; 0 ignored\n";
        let output = format!("{fine}{bad}{fine}");
        let shown = excerpt(&output);
        assert!(shown.contains("thread panicked"));
        assert!(shown.lines().count() < 60);
    }
}
