//! Building a configuration.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::nearest::nearest;
use super::{AnyVar, Config, ConfigError, Entry, Env, Origin, Value, Var, ucx_names};

/// Collects where values come from; see [`Config::builder`].
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until build()"]
pub struct ConfigBuilder {
    vars: Vec<&'static dyn AnyVar>,
    /// `None`: the environment of the process at the time of `build`.
    env: Option<Env>,
    set: Vec<(String, String)>,
}

impl ConfigBuilder {
    pub(super) fn new(vars: &'static [&'static dyn AnyVar]) -> Self {
        Self { vars: vars.to_vec(), env: None, set: Vec::new() }
    }

    /// Adds the declared variables of another crate; a variable may be in several lists.
    pub fn vars(mut self, vars: &'static [&'static dyn AnyVar]) -> Self {
        self.vars.extend_from_slice(vars);
        self
    }

    /// Takes values from `env` in place of the environment of the process.
    pub fn env(mut self, env: Env) -> Self {
        self.env = Some(env);
        self
    }

    /// Takes no values from the environment: short for `env(Env::none())`.
    pub fn ignore_env(self) -> Self {
        self.env(Env::none())
    }

    /// Sets a variable by name; of several values for one variable the last counts.
    pub fn set(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.set.push((name.into(), value.into()));
        self
    }

    /// Sets a variable to a value of its type.
    pub fn set_var<T: Value>(self, var: &Var<T>, value: T) -> Self {
        self.set(var.name(), value.print())
    }

    /// Parses and checks the value of every variable.
    ///
    /// A value that a later origin overrides is not looked at. Misspellings in the environment are logged here.
    ///
    /// # Errors
    /// A value is not accepted or not UTF-8, the builder was given a variable that is not declared, or two declarations
    /// contradict each other.
    pub fn build(self) -> Result<Config, ConfigError> {
        let mut declared: BTreeMap<&'static str, &'static dyn AnyVar> = BTreeMap::new();
        for var in self.vars {
            let known = declared.entry(var.name()).or_insert(var);
            if known.type_id() != var.type_id() || known.default() != var.default() {
                return Err(ConfigError::Conflict { variable: var.name() });
            }
        }
        let mut set: BTreeMap<&str, &str> = BTreeMap::new();
        for (name, value) in &self.set {
            if !declared.contains_key(name.as_str()) {
                return Err(unknown(name, &declared));
            }
            set.insert(name, value);
        }
        let env = self.env.unwrap_or_else(Env::process);
        env.report(declared.keys().copied());

        let mut entries = BTreeMap::new();
        for (name, var) in declared {
            let (text, origin) = match (set.get(name), env.get(name)) {
                (Some(text), _) => (*text, Origin::Builder),
                (None, Some(value)) => match value.to_str() {
                    Some(text) => (text, Origin::Env),
                    None => {
                        let value = value.to_string_lossy().into_owned();
                        return Err(ConfigError::NotUnicode {
                            variable: name,
                            value,
                            accepts: var.accepts(),
                        });
                    }
                },
                (None, None) => (var.default(), Origin::Default),
            };
            let (value, text) = var.parse(text).map_err(|reason| ConfigError::Invalid {
                variable: name,
                value: text.to_owned(),
                origin,
                reason,
            })?;
            entries.insert(name, Entry { value, text, origin, var });
        }
        Ok(Config { entries: Arc::new(entries) })
    }
}

fn unknown(name: &str, declared: &BTreeMap<&'static str, &'static dyn AnyVar>) -> ConfigError {
    let in_c_ucx = ucx_names::is_listed(name);
    let nearest = if in_c_ucx { None } else { nearest(name, declared.keys().copied()) };
    ConfigError::Unknown { variable: name.to_owned(), nearest, in_c_ucx }
}
