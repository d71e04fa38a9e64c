//! The environment as a source of values, and what is strange in it.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::sync::Once;

use super::nearest::nearest;
use super::ucx_names;

const PREFIX: &[u8] = b"UCX_";

/// An environment to take values from: that of the process, none, or given pairs.
///
/// Only names that begin with `UCX_` are kept.
#[derive(Clone, Debug, Default)]
pub struct Env {
    pairs: Vec<(OsString, OsString)>,
    is_process: bool,
}

impl Env {
    /// The environment of the process, as it is now.
    #[must_use]
    pub fn process() -> Self {
        Self { is_process: true, ..Self::from_pairs(std::env::vars_os()) }
    }

    /// An empty environment.
    #[must_use]
    pub fn none() -> Self {
        Self::default()
    }

    /// The given names and values; of equal names the last one counts.
    #[must_use]
    pub fn from_pairs<N: Into<OsString>, V: Into<OsString>>(pairs: impl IntoIterator<Item = (N, V)>) -> Self {
        let pairs = pairs.into_iter().map(|(name, value)| (name.into(), value.into()));
        Self {
            pairs: pairs.filter(|(name, _)| name.as_bytes().starts_with(PREFIX)).collect(),
            is_process: false,
        }
    }

    pub(super) fn get(&self, name: &str) -> Option<&OsStr> {
        self.pairs.iter().rev().find(|(n, _)| n == name).map(|(_, value)| value.as_os_str())
    }

    /// Logs what is not `declared`: for the environment of the process, once per process and kind of event.
    pub(super) fn report<'a>(&self, declared: impl Iterator<Item = &'a str> + Clone) {
        static TYPOS: Once = Once::new();
        static FOREIGN: Once = Once::new();

        let Strange { typos, foreign } = self.strange(declared);
        if !typos.is_empty() {
            self.once(&TYPOS, || {
                let typos: Vec<_> =
                    typos.iter().map(|(name, ours)| format!("{name} (nearest: {ours})")).collect();
                tracing::warn!("unknown variables in the environment, misspelt? {}", typos.join(", "));
            });
        }
        if !foreign.is_empty() {
            self.once(&FOREIGN, || {
                tracing::debug!(
                    "variables of C UCX in the environment that rucx does not have: {}",
                    foreign.join(", ")
                );
            });
        }
    }

    fn once(&self, once: &Once, f: impl FnOnce()) {
        if self.is_process {
            once.call_once(f);
        } else {
            f();
        }
    }

    fn strange<'a>(&self, declared: impl Iterator<Item = &'a str> + Clone) -> Strange<'_, 'a> {
        let mut strange = Strange::default();
        for name in self.pairs.iter().filter_map(|(name, _)| name.to_str()) {
            if declared.clone().any(|ours| ours == name) {
                continue;
            }
            // A name that C UCX is known to have is none of our misspellings, however near; a mere family may hide one.
            if ucx_names::is_listed(name) {
                strange.foreign.push(name);
            } else if let Some(ours) = nearest(name, declared.clone()) {
                strange.typos.push((name, ours));
            } else if ucx_names::is_in_family(name) {
                strange.foreign.push(name);
            }
        }
        strange
    }
}

/// Names in an environment that are not declared.
#[derive(Debug, Default)]
struct Strange<'e, 'd> {
    /// With the declared name that was probably meant.
    typos: Vec<(&'e str, &'d str)>,
    /// Known to C UCX.
    foreign: Vec<&'e str>,
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStringExt;

    use super::*;
    use crate::log::capture::captured;

    const DECLARED: [&str; 3] = ["UCX_TLS", "UCX_IMPORT_TIMEOUT", "UCX_TCP_KEEPIDLE"];

    fn strange_names(name: &str) -> (Option<String>, bool) {
        let env = Env::from_pairs([(name, "secret")]);
        let strange = env.strange(DECLARED.into_iter());
        (strange.typos.first().map(|(_, ours)| (*ours).to_owned()), !strange.foreign.is_empty())
    }

    #[test]
    fn misspellings_and_variables_of_c_ucx_are_told_apart() {
        for (name, typo, foreign) in [
            ("UCX_TLS", None, false),
            ("UCX_TSL", Some("UCX_TLS"), false),
            ("UCX_TL", Some("UCX_TLS"), false),
            ("UCX_INPORT_TIMEOUT", Some("UCX_IMPORT_TIMEOUT"), false),
            ("UCX_TCP_KEPIDLE", Some("UCX_TCP_KEEPIDLE"), false),
            ("UCX_RNDV_THRESH", None, true),
            ("UCX_TCP_KEEPINTVL", None, true),
            ("UCX_CUDA_IPC_CACHE", None, true),
            ("UCX_SOMETHING_ELSE", None, false),
            ("PATH", None, false),
            ("ucx_tls", None, false),
        ] {
            assert_eq!(strange_names(name), (typo.map(str::to_owned), foreign), "{name}");
        }
    }

    #[test]
    fn the_process_environment_is_reported_once() {
        let env = Env { is_process: true, ..Env::from_pairs([("UCX_TSL", "1"), ("UCX_RNDV_THRESH", "1")]) };
        let ((), events) = captured(|| {
            env.report(["UCX_UNLIKE"].into_iter()); // nothing misspelt: the warning is still to come
            env.report(DECLARED.into_iter());
            env.report(DECLARED.into_iter());
        });
        let levels: Vec<_> = events.iter().map(|(level, _)| *level).collect();
        assert_eq!(levels, [tracing::Level::DEBUG, tracing::Level::WARN], "{events:?}");
    }

    #[test]
    fn the_last_of_equal_names_counts() {
        let env = Env::from_pairs([("UCX_A", "1"), ("UCX_A", "2")]);
        assert_eq!(env.get("UCX_A"), Some(OsStr::new("2")));
        assert_eq!(env.get("UCX_B"), None);
        assert_eq!(Env::none().get("UCX_A"), None);
    }

    #[test]
    fn a_name_that_is_not_utf8_is_passed_over() {
        let name = OsString::from_vec(b"UCX_TL\xff".to_vec());
        let env = Env::from_pairs([(name, "1")]);
        assert!(env.strange(DECLARED.into_iter()).typos.is_empty());
    }
}
