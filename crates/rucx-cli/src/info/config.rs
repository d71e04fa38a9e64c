//! The variables: what each is set to, and by whom.

use serde::Serialize;
use ucs::config::{AnyVar, Config, ConfigBuilder, ConfigError, Env, Setting};
use ucs::rcache::config::{Settings, SettingsError};

use super::Problem;
use crate::log;

/// A variable.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Variable {
    /// `UCX_…`.
    pub(crate) name: &'static str,
    /// Its value in canonical form; none if what it is set to is wrong.
    pub(crate) value: Option<String>,
    /// `default`, `environment` or `builder`.
    pub(crate) origin: String,
    /// Its default.
    pub(crate) default: &'static str,
    /// What it may be set to.
    pub(crate) accepts: String,
    /// What it is for.
    pub(crate) doc: &'static str,
    /// What is wrong with its value.
    pub(crate) error: Option<Problem>,
}

/// The lists of variables: rucx's, all transports', each transport's.
fn lists() -> impl Iterator<Item = &'static [&'static dyn AnyVar]> {
    let own = uct::transports::components().iter().map(|component| component.vars());
    [ucp::config::VARS, uct::config::VARS].into_iter().chain(own)
}

/// A configuration of all variables.
pub(crate) fn builder() -> ConfigBuilder {
    lists().fold(Config::builder(&[]), ConfigBuilder::vars)
}

/// What the variables say of the registration cache; `None`: one of all variables has no value.
pub(crate) fn settings() -> Option<Result<Settings, SettingsError>> {
    // Of names that are unknown, who makes a context tells.
    let build = || builder().build();
    let config = tracing::subscriber::with_default(tracing::subscriber::NoSubscriber::new(), build);
    config.ok().map(|config| Settings::from_config(&config))
}

/// All variables in the order of their names, as the environment sets them.
pub(crate) fn variables() -> Vec<Variable> {
    match builder().build() {
        Ok(config) => of_config(&config),
        Err(_) => one_by_one(&Env::process()),
    }
}

/// Each is right by itself: perhaps not together.
fn of_config(config: &Config) -> Vec<Variable> {
    let wrong = Settings::from_config(config).err();
    let told = |setting: Setting<'_>| {
        let error =
            wrong.filter(|error| error.variable() == setting.name).map(|error| Problem::of_settings(&error));
        Variable { error, ..good(setting) }
    };
    config.iter().map(told).collect()
}

/// One is wrong: the others can be told all the same.
fn one_by_one(env: &Env) -> Vec<Variable> {
    let mut all: Vec<Variable> = lists().flatten().map(|var| single(var, env)).collect();
    all.sort_by_key(|variable| variable.name);
    all.dedup_by_key(|variable| variable.name);
    all
}

fn single(var: &'static &'static dyn AnyVar, env: &Env) -> Variable {
    // Nothing is logged here of names that are unknown to this one variable: the whole was built before.
    let build = || Config::builder(std::slice::from_ref(var)).env(env.clone()).build();
    let error = match tracing::subscriber::with_default(tracing::subscriber::NoSubscriber::new(), build) {
        Ok(config) => match config.iter().next() {
            Some(setting) => return good(setting),
            None => None,
        },
        Err(error) => Some(error),
    };
    Variable {
        name: var.name(),
        value: None,
        origin: error.as_ref().map(ConfigError::origin).map_or_else(String::new, |origin| origin.to_string()),
        default: var.default(),
        accepts: accepts(var.name(), var.accepts()),
        doc: var.doc(),
        error: error.map(|error| Problem {
            text: error.to_string(),
            remedy: error.remedy(),
            status: format!("{:?}", error.status()),
        }),
    }
}

/// What a variable accepts, with the names that its type does not know.
fn accepts(name: &str, of_type: String) -> String {
    if name == ucp::config::LOG_LEVEL.name() {
        return log::accepted();
    }
    if name == ucp::config::TLS.name() {
        return format!("{of_type}; names: {}", transports());
    }
    of_type
}

/// The names that UCX_TLS knows: `shm = sm (shm and cma), mm = posix (shm alone), …`.
fn transports() -> String {
    let aliases = uct::transports::ALIASES;
    let named = |name: &str| aliases.iter().find(|(alias, _)| *alias == name).map(|(_, meant)| *meant);
    let components = uct::transports::components().iter().map(|component| component.name());
    let mut told: Vec<&str> = Vec::new();
    let mut names = Vec::new();
    for name in components.chain(aliases.iter().map(|(alias, _)| *alias)) {
        if told.contains(&name) {
            continue;
        }
        let Some(meant) = named(name) else {
            names.push(name.to_owned());
            continue;
        };
        let same =
            aliases.iter().filter(|(alias, of)| *of == meant && *alias != name).map(|(alias, _)| *alias);
        let same: Vec<&str> = std::iter::once(name).chain(same).collect();
        let meaning = if let [one] = meant { format!("{one} alone") } else { meant.join(" and ") };
        names.push(format!("{} ({meaning})", same.join(" = ")));
        told.extend(same);
    }
    names.join(", ")
}

fn good(setting: Setting<'_>) -> Variable {
    Variable {
        name: setting.name,
        value: Some(setting.value.to_owned()),
        origin: setting.origin.to_string(),
        default: setting.default,
        accepts: accepts(setting.name, setting.accepts),
        doc: setting.doc,
        error: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_value_hides_no_other_variable() {
        let env = Env::from_pairs([("UCX_MAX_IMPORTS", "many"), ("UCX_IMPORT_TIMEOUT", "7s")]);
        let all = one_by_one(&env);
        let of = |name| all.iter().find(|variable| variable.name == name).unwrap();
        let wrong = of("UCX_MAX_IMPORTS");
        assert_eq!((wrong.value.as_deref(), wrong.origin.as_str()), (None, "environment"));
        assert!(wrong.error.as_ref().unwrap().text.contains("many"), "{wrong:?}");
        assert!(wrong.error.as_ref().unwrap().remedy.contains("UCX_MAX_IMPORTS"), "{wrong:?}");
        let right = of("UCX_IMPORT_TIMEOUT");
        assert_eq!((right.value.as_deref(), right.origin.as_str()), (Some("7s"), "environment"));
        assert_eq!(of("UCX_TLS").origin, "default");
    }

    #[test]
    fn what_does_not_go_together_is_told_at_the_variable_to_change() {
        let env = Env::from_pairs([("UCX_RCACHE_ENABLE", "y"), ("UCX_MEM_EVENTS", "n")]);
        let all = of_config(&builder().env(env).build().unwrap());
        let wrong: Vec<_> = all.iter().filter(|variable| variable.error.is_some()).collect();
        assert_eq!(wrong.iter().map(|variable| variable.name).collect::<Vec<_>>(), ["UCX_MEM_EVENTS"]);
        assert_eq!(wrong[0].value.as_deref(), Some("n"));
        assert!(wrong[0].error.as_ref().unwrap().remedy.contains("UCX_RCACHE_ENABLE"), "{wrong:?}");
    }

    #[test]
    fn names_that_are_accepted_are_told() {
        assert_eq!(
            transports(),
            "self, shm = sm (shm and cma), cma, verbs, mm = posix (shm alone), ib = rc = rc_v = rc_verbs (verbs alone)"
        );
        let all = one_by_one(&Env::none());
        let of = |name| &all.iter().find(|variable| variable.name == name).unwrap().accepts;
        assert!(of("UCX_TLS").contains("names: self, "), "{}", of("UCX_TLS"));
        assert!(of("UCX_LOG_LEVEL").starts_with("fatal, error, warn, "), "{}", of("UCX_LOG_LEVEL"));
    }

    #[test]
    fn every_declared_variable_is_told() {
        let names: Vec<_> = one_by_one(&Env::none()).into_iter().map(|variable| variable.name).collect();
        assert!(names.is_sorted_by(|a, b| a < b), "{names:?}");
        for var in lists().flatten() {
            assert!(names.contains(&var.name()), "{var:?}");
        }
    }
}
