//! The variables of the registration cache, and what they mean together.
//!
//! Those that C UCX has, as `ucx_info -c` prints them, have its names; [`MODE`] and [`FILES`] are rucx's own. Three of C UCX have nothing
//! to set here: `UCX_RCACHE_MAX_UNRELEASED` (what is stale counts within [`MAX_SIZE`] until it is deregistered, by a thread if by nobody
//! else), `UCX_RCACHE_PURGE_ON_FORK` (a child never has the parent's registrations) and `UCX_RCACHE_MEM_PRIO` (there are no hooks to be
//! ordered).
//!
//! ```
//! use ucs::config::{Config, Env};
//! use ucs::rcache::{Mode, config::{Settings, VARS}};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let env = Env::from_pairs([("UCX_RCACHE_MAX_REGIONS", "1000"), ("UCX_RCACHE_MAX_SIZE", "1G")]);
//! let settings = Settings::from_config(&Config::builder(VARS).env(env).build()?)?;
//! assert_eq!((settings.options.max_regions, settings.options.max_bytes), (1000, 1 << 30));
//! assert_eq!(settings.options.mode, Mode::Auto);
//! # Ok(())
//! # }
//! ```

use std::borrow::Cow;

use super::options::{Mode, Options};
use crate::Status;
use crate::config::{AnyVar, Bytes, Config, OrAuto, OrInf, Origin, Value, ValueError, Var, one_of};
use crate::mem::page::page_size;
use crate::monitor::{Active, Monitor, Why};

/// Whether there is a cache: `n`, `y` (it is an error where there cannot be one), or `auto`, which C UCX calls `try`.
pub const ENABLE: Var<OrAuto<bool>> = Var::new(
    "UCX_RCACHE_ENABLE",
    "auto",
    "Whether registrations are kept for a next use; y: an error where a transport needs them and nothing tells of changes of memory",
);

/// [`Options::mode`].
pub const MODE: Var<OrAuto<Mode>> = Var::new(
    "UCX_RCACHE_MODE",
    "auto",
    "How a kept registration is checked before it is used: strict asks the kernel each time; auto does, too, unless this build \
     hooks memory calls; hooks is for programs that announce what they unmap, and set it themselves",
);

/// [`Options::max_regions`].
pub const MAX_REGIONS: Var<RegionCount> =
    Var::new("UCX_RCACHE_MAX_REGIONS", "16384", "How many registrations are kept at most");

/// [`Options::max_bytes`].
pub const MAX_SIZE: Var<OrInf<Bytes>> = Var::new(
    "UCX_RCACHE_MAX_SIZE",
    "16G",
    "How many bytes are registered at most before unused registrations make room; a larger buffer is registered for each use; less \
     than a page: no cache",
);

/// [`Options::alignment`].
pub const ADDR_ALIGN: Var<Alignment> = Var::new(
    "UCX_RCACHE_ADDR_ALIGN",
    "4K",
    "Registrations begin and end at multiples of this, where what they gain by it can be registered; at least a page",
);

/// [`Options::files`].
pub const FILES: Var<bool> = Var::new(
    "UCX_RCACHE_FILES",
    "n",
    "Whether registrations of mapped files and of shared memory are kept, too: only if nobody shortens them, or punches holes",
);

/// Whether memory is watched; without that nothing is kept.
pub const MEM_EVENTS: Var<bool> = Var::new(
    "UCX_MEM_EVENTS",
    "y",
    "Whether to have the kernel tell of memory being unmapped; n: no registration is kept",
);

/// All of them.
pub const VARS: &[&dyn AnyVar] = &[&ENABLE, &MODE, &MAX_REGIONS, &MAX_SIZE, &ADDR_ALIGN, &FILES, &MEM_EVENTS];

/// How many registrations a cache may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegionCount(u32);

impl RegionCount {
    /// So that the tables, of some 100 bytes for each, stay below 200 MiB.
    pub const MOST: u32 = 1 << 20;

    /// So many, if at least 1 and at most [`RegionCount::MOST`].
    #[must_use]
    pub const fn new(count: u32) -> Option<Self> {
        if count == 0 || count > Self::MOST { None } else { Some(Self(count)) }
    }

    /// The number.
    #[must_use]
    pub const fn get(self) -> u32 {
        self.0
    }
}

impl Value for RegionCount {
    fn accepts() -> Cow<'static, str> {
        format!("a whole number from 1 to {}", Self::MOST).into()
    }

    fn parse(text: &str) -> Result<Self, ValueError> {
        // The default of C UCX.
        if text.trim().eq_ignore_ascii_case("inf") {
            return Err(ValueError::new::<Self>("the tables of registrations have a bound"));
        }
        let count = u32::parse(text).map_err(ValueError::within::<Self>)?;
        let why = if count == 0 { "too few: UCX_RCACHE_ENABLE=n is for none" } else { "too large" };
        Self::new(count).ok_or_else(|| ValueError::new::<Self>(why))
    }

    fn print(&self) -> String {
        self.0.to_string()
    }
}

/// A power of two bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Alignment(usize);

impl Alignment {
    /// As little as C UCX accepts. Less than a page is a page.
    pub const LEAST: usize = 16;
    /// The largest page there is.
    pub const MOST: usize = 1 << 30;

    /// So many bytes, if that is a power of two from [`Alignment::LEAST`] to [`Alignment::MOST`].
    #[must_use]
    pub const fn new(bytes: usize) -> Option<Self> {
        if bytes.is_power_of_two() && bytes >= Self::LEAST && bytes <= Self::MOST {
            Some(Self(bytes))
        } else {
            None
        }
    }

    /// The number of bytes.
    #[must_use]
    pub const fn get(self) -> usize {
        self.0
    }
}

impl Value for Alignment {
    fn accepts() -> Cow<'static, str> {
        "a power of two bytes from 16 to 1G, such as 4K or 2M".into()
    }

    fn parse(text: &str) -> Result<Self, ValueError> {
        let bytes = Bytes::parse(text).map_err(ValueError::within::<Self>)?.to_usize();
        let why = if bytes.is_power_of_two() { "too small, or too large" } else { "no power of two" };
        Self::new(bytes).ok_or_else(|| ValueError::new::<Self>(why))
    }

    fn print(&self) -> String {
        Bytes::new(self.0 as u64).print()
    }
}

impl Value for Mode {
    fn accepts() -> Cow<'static, str> {
        "strict, hooks or off".into()
    }

    fn parse(text: &str) -> Result<Self, ValueError> {
        one_of(text, [Self::Strict, Self::Hooks, Self::Off], "no such mode")
    }

    fn print(&self) -> String {
        match self {
            Self::Auto => "auto",
            Self::Strict => "strict",
            Self::Hooks => "hooks",
            Self::Off => "off",
        }
        .to_owned()
    }
}

/// What the variables say together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Settings {
    /// For [`super::Cache::new`]. The mode is [`Mode::Off`] if a variable turns the cache off.
    pub options: Options,
    /// Whether it is an error if nothing can be kept: [`Settings::prepare`].
    pub required: bool,
    /// The variable that turns the cache off, and its value.
    pub off_by: Option<(&'static str, &'static str)>,
}

impl Settings {
    /// Reads [`VARS`] of a configuration that has them.
    ///
    /// # Errors
    /// [`SettingsError`]: they contradict each other, or the environment sets what only the program can know.
    ///
    /// # Panics
    /// If the configuration was built without [`VARS`]: a mistake in the program, whatever the input.
    #[track_caller]
    pub fn from_config(config: &Config) -> Result<Self, SettingsError> {
        let enable = config.get(&ENABLE);
        let mode = config.get(&MODE);
        let off = OrAuto::Set(Mode::Off);
        // Less than a page holds nothing, as 0.
        let max_bytes = config.get(&MAX_SIZE).finite().map_or(u64::MAX, Bytes::get);
        let off_by = [
            (enable == OrAuto::Set(false), (ENABLE.name(), "n")),
            (mode == off, (MODE.name(), "off")),
            (!config.get(&MEM_EVENTS), (MEM_EVENTS.name(), "n")),
            (max_bytes < page_size() as u64, (MAX_SIZE.name(), "0")),
        ];
        let off_by = off_by.into_iter().find_map(|(is_off, by)| is_off.then_some(by));
        let required = enable == OrAuto::Set(true);
        if let Some((variable, value)) = off_by.filter(|_| required) {
            return Err(SettingsError::Contradiction { variable, value });
        }
        // Whether all changes are announced the program alone can know.
        if mode == OrAuto::Set(Mode::Hooks) && config.origin(&MODE) == Origin::Env {
            return Err(SettingsError::HooksByEnvironment);
        }
        let options = Options {
            mode: if off_by.is_some() { Mode::Off } else { mode.unwrap_or(Mode::Auto) },
            max_regions: config.get(&MAX_REGIONS).get(),
            max_bytes,
            alignment: config.get(&ADDR_ALIGN).get(),
            files: config.get(&FILES),
        };
        Ok(Self { options, required, off_by })
    }

    /// Makes sure that registrations can be kept, if that is required: starts `monitor` then. If not, it is started by the first
    /// registration.
    ///
    /// # Errors
    /// [`Unavailable`]: it is required, and nothing tells of changes of memory.
    pub fn prepare(&self, monitor: &Monitor) -> Result<(), Unavailable> {
        if !self.required {
            return Ok(());
        }
        match monitor.start() {
            Active::None { why } => Err(Unavailable { why }),
            _ => Ok(()),
        }
    }
}

/// Variables do not go together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SettingsError {
    /// A cache is asked for, and turned off.
    #[error("{}=y asks for a registration cache, and {variable}={value} turns it off", ENABLE.name())]
    #[non_exhaustive]
    Contradiction {
        /// The variable that turns it off.
        variable: &'static str,
        /// Its value.
        value: &'static str,
    },
    /// The environment says that all changes of memory are announced.
    #[error(
        "{}=hooks in the environment: hits would not be checked, though nothing says that this program announces what it unmaps",
        MODE.name()
    )]
    HooksByEnvironment,
}

impl SettingsError {
    /// The variable to change.
    #[must_use]
    pub fn variable(&self) -> &'static str {
        match self {
            Self::Contradiction { variable, .. } => variable,
            Self::HooksByEnvironment => MODE.name(),
        }
    }

    /// Always [`Status::InvalidParam`].
    pub const fn status(&self) -> Status {
        Status::InvalidParam
    }

    /// What to do about it.
    #[must_use]
    pub fn remedy(&self) -> String {
        match self {
            Self::Contradiction { variable, .. } => {
                format!("set one of {} and {variable} only", ENABLE.name())
            }
            Self::HooksByEnvironment => format!(
                "set {0}=strict, or leave it out; a program that opens a window around each change (Monitor::begin) sets {0} \
                 itself",
                MODE.name()
            ),
        }
    }
}

/// Registrations have to be kept, and cannot be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}=y, but nothing tells of changes of memory: {why}", ENABLE.name())]
#[non_exhaustive]
pub struct Unavailable {
    /// Why not.
    pub why: Why,
}

impl Unavailable {
    /// Always [`Status::Unsupported`].
    pub const fn status(&self) -> Status {
        Status::Unsupported
    }

    /// What to do about it.
    #[must_use]
    pub fn remedy(&self) -> String {
        format!("{}; or set {}=auto, which does without", self.why.remedy(), ENABLE.name())
    }
}

#[cfg(not(loom))]
#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::config::{ConfigBuilder, ConfigError, Env};
    use crate::mem::Access;
    use crate::mem::page::PageRange;
    use crate::rcache::{Cache, Registrar};

    fn builder(pairs: &[(&str, &str)]) -> ConfigBuilder {
        Config::builder(VARS).env(Env::from_pairs(pairs.iter().copied()))
    }

    fn settings(pairs: &[(&str, &str)]) -> Result<Settings, SettingsError> {
        Settings::from_config(&builder(pairs).build().unwrap())
    }

    /// Registers nothing.
    struct Nothing;

    impl Registrar for Nothing {
        type Handle = ();
        type Error = std::convert::Infallible;

        fn register(&self, _: PageRange, _: Access) -> Result<(), Self::Error> {
            Ok(())
        }

        fn deregister(&self, (): ()) {}
    }

    #[test]
    fn nothing_set_is_the_default_of_the_options() {
        let settings = settings(&[]).unwrap();
        let options = Options { mode: Mode::Auto, ..Options::default() };
        assert_eq!(settings, Settings { options, required: false, off_by: None });
    }

    #[test]
    fn each_variable_sets_its_option() {
        let all = settings(&[
            ("UCX_RCACHE_ENABLE", "y"),
            ("UCX_RCACHE_MODE", "strict"),
            ("UCX_RCACHE_MAX_REGIONS", "7"),
            ("UCX_RCACHE_MAX_SIZE", "inf"),
            ("UCX_RCACHE_ADDR_ALIGN", "2M"),
            ("UCX_RCACHE_FILES", "y"),
            ("UCX_MEM_EVENTS", "y"),
        ])
        .unwrap();
        let options = Options {
            mode: Mode::Strict,
            max_regions: 7,
            max_bytes: u64::MAX,
            alignment: 2 << 20,
            files: true,
        };
        assert_eq!(all, Settings { options, required: true, off_by: None });
        assert_eq!(VARS.len(), 7, "one that is not tested here");
    }

    #[test]
    fn each_way_to_turn_it_off_is_named() {
        for (variable, value) in [
            ("UCX_RCACHE_ENABLE", "n"),
            ("UCX_RCACHE_MODE", "off"),
            ("UCX_MEM_EVENTS", "n"),
            ("UCX_RCACHE_MAX_SIZE", "0"),
        ] {
            let off = settings(&[(variable, value)]).unwrap();
            assert_eq!((off.options.mode, off.off_by), (Mode::Off, Some((variable, value))));
            if variable == "UCX_RCACHE_ENABLE" {
                continue;
            }
            let error = settings(&[("UCX_RCACHE_ENABLE", "y"), (variable, value)]).unwrap_err();
            assert_eq!(error, SettingsError::Contradiction { variable, value });
            assert_eq!((error.variable(), error.status()), (variable, Status::InvalidParam));
            assert!(error.to_string().contains(&format!("{variable}={value}")), "{error}");
            assert_eq!(error.remedy(), format!("set one of UCX_RCACHE_ENABLE and {variable} only"));
        }
    }

    #[test]
    fn that_changes_are_announced_only_the_program_can_say() {
        let error = settings(&[("UCX_RCACHE_MODE", "hooks")]).unwrap_err();
        assert_eq!((error, error.variable()), (SettingsError::HooksByEnvironment, "UCX_RCACHE_MODE"));
        assert!(error.remedy().starts_with("set UCX_RCACHE_MODE=strict"), "{}", error.remedy());
        let program = builder(&[("UCX_RCACHE_MODE", "strict")]).set("UCX_RCACHE_MODE", "hooks");
        let settings = Settings::from_config(&program.build().unwrap()).unwrap();
        assert_eq!(settings.options.mode, Mode::Hooks);
    }

    #[test]
    fn wrong_values_are_told_with_what_is_accepted() {
        for (variable, value, reason) in [
            ("UCX_RCACHE_ENABLE", "perhaps", "expected y or n, or auto"),
            ("UCX_RCACHE_MODE", "lazy", "no such mode; expected strict, hooks or off, or auto"),
            (
                "UCX_RCACHE_MAX_REGIONS",
                "inf",
                "tables of registrations have a bound; expected a whole number from 1 to 1048576",
            ),
            ("UCX_RCACHE_MAX_REGIONS", "0", "UCX_RCACHE_ENABLE=n is for none"),
            ("UCX_RCACHE_MAX_REGIONS", "1048577", "too large"),
            ("UCX_RCACHE_MAX_REGIONS", "many", "not a whole number"),
            ("UCX_RCACHE_MAX_SIZE", "much", "expected a number of bytes"),
            ("UCX_RCACHE_ADDR_ALIGN", "3K", "no power of two"),
            ("UCX_RCACHE_ADDR_ALIGN", "8", "too small"),
            ("UCX_RCACHE_ADDR_ALIGN", "2G", "too large"),
            ("UCX_RCACHE_ADDR_ALIGN", "0", "no power of two"),
            ("UCX_RCACHE_FILES", "some", "expected y or n"),
            ("UCX_MEM_EVENTS", "try", "expected y or n"),
        ] {
            let error = builder(&[(variable, value)]).build().unwrap_err();
            assert!(matches!(error, ConfigError::Invalid { .. }) && error.variable() == variable, "{error}");
            assert!(error.to_string().contains(reason), "{error}");
            assert!(error.remedy().starts_with(&format!("set {variable} to ")), "{}", error.remedy());
        }
    }

    #[test]
    fn values_of_c_ucx_are_accepted() {
        let like_there = settings(&[
            ("UCX_RCACHE_ENABLE", "try"),
            ("UCX_RCACHE_ADDR_ALIGN", "64"),
            ("UCX_RCACHE_MAX_SIZE", "inf"),
            ("UCX_MEM_EVENTS", "yes"),
        ]);
        assert_eq!(like_there.unwrap().options.alignment, 64, "the cache takes a page at least");
    }

    #[test]
    fn values_survive_printing() {
        fn survives<T: Value + PartialEq>(value: T) {
            assert_eq!(T::parse(&value.print()), Ok(value));
        }
        [Mode::Strict, Mode::Hooks, Mode::Off].into_iter().for_each(survives);
        [1, RegionCount::MOST].into_iter().filter_map(RegionCount::new).for_each(survives);
        [Alignment::LEAST, 4096, Alignment::MOST].into_iter().filter_map(Alignment::new).for_each(survives);
        assert_eq!((RegionCount::new(0), Alignment::new(48)), (None, None));
    }

    proptest! {
        #[test]
        fn every_text_is_a_value_or_an_error(text in ".*", number in "[0-9]{0,12}[kKmMgG]?") {
            for text in [text, number] {
                if let Ok(count) = RegionCount::parse(&text) {
                    prop_assert_eq!(RegionCount::parse(&count.print()), Ok(count));
                }
                if let Ok(alignment) = Alignment::parse(&text) {
                    prop_assert_eq!(Alignment::parse(&alignment.print()), Ok(alignment));
                }
                let _ = Mode::parse(&text);
            }
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "a table of gigabytes of addresses")]
    fn the_largest_cache_can_be_made() {
        let (regions, align) = (("UCX_RCACHE_MAX_REGIONS", "1048576"), ("UCX_RCACHE_ADDR_ALIGN", "1G"));
        // Hooks would be this process's for good.
        let settings = settings(&[regions, align, ("UCX_RCACHE_MODE", "strict")]);
        let cache = Cache::new(Nothing, Monitor::process(), settings.unwrap().options).unwrap();
        assert!(cache.is_empty());
    }

    #[test]
    fn what_is_required_is_made_sure_of() {
        let wanted = |enable| settings(&[("UCX_RCACHE_ENABLE", enable)]).unwrap();
        assert_eq!(wanted("auto").prepare(Monitor::process()), Ok(()));
        match (wanted("y").prepare(Monitor::process()), Monitor::process().mode()) {
            (Ok(()), Active::Uffd { .. }) => {}
            (Err(error), Active::None { why }) => {
                assert_eq!((error.why, error.status()), (why, Status::Unsupported));
                assert!(error.remedy().contains("UCX_RCACHE_ENABLE=auto"), "{}", error.remedy());
            }
            other => panic!("{other:?}"),
        }
    }
}
