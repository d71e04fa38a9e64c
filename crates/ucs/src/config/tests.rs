use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::time::Duration;

use super::*;
use crate::Status;

const TLS: Var<AllowList> = Var::new("UCX_TLS", "all", "Transports to use");
const TIMEOUT: Var<Duration> = Var::new("UCX_IMPORT_TIMEOUT", "5s", "How long an import may wait");
const MAX_SIZE: Var<OrInf<Bytes>> = Var::new("UCX_RCACHE_MAX_SIZE", "inf", "Bytes the cache may hold");
const ENABLE: Var<bool> = Var::new("UCX_RCACHE_ENABLE", "yes", "Whether to cache registrations");
const DIR: Var<Option<PathBuf>> = Var::new("UCX_SERVICE_DIR", "", "Where service sockets are made");
const VARS: &[&dyn AnyVar] = &[&TLS, &TIMEOUT, &MAX_SIZE, &ENABLE, &DIR];

fn builder(pairs: &[(&str, &str)]) -> ConfigBuilder {
    Config::builder(VARS).env(Env::from_pairs(pairs.iter().copied()))
}

#[test]
fn a_later_origin_wins() {
    let env = [("UCX_IMPORT_TIMEOUT", "1s"), ("UCX_RCACHE_ENABLE", "n"), ("UCX_TLS", "tcp")];
    let config = builder(&env).set("UCX_TLS", "cma").set("UCX_TLS", "self").build().expect("valid");
    assert_eq!((config.get(&MAX_SIZE), config.origin(&MAX_SIZE)), (OrInf::Inf, Origin::Default));
    assert_eq!((config.get(&TIMEOUT), config.origin(&TIMEOUT)), (Duration::from_secs(1), Origin::Env));
    assert_eq!((config.get(&ENABLE), config.origin(&ENABLE)), (false, Origin::Env));
    assert!(config.get(&TLS).allows("self") && !config.get(&TLS).allows("cma"));
    assert_eq!(config.origin(&TLS), Origin::Builder);

    let config = builder(&env).ignore_env().build().expect("valid");
    assert_eq!(config.get(&TIMEOUT), Duration::from_secs(5));
    assert!(config.iter().all(|setting| setting.origin == Origin::Default));
}

#[test]
fn typed_values_are_set_and_checked_too() {
    let config = builder(&[])
        .set_var(&MAX_SIZE, OrInf::Finite(Bytes::new(1 << 20)))
        .set_var(&DIR, Some("/run/rucx".into()))
        .build()
        .expect("valid");
    assert_eq!(config.get(&MAX_SIZE), OrInf::Finite(Bytes::new(1 << 20)));
    assert_eq!(config.get(&DIR), Some("/run/rucx".into()));
    let not_utf8 = PathBuf::from(OsString::from_vec(b"/run/\xff".to_vec()));
    for path in [PathBuf::from("run"), not_utf8] {
        assert!(matches!(builder(&[]).set_var(&DIR, Some(path)).build(), Err(ConfigError::Invalid { .. })));
    }
}

#[test]
fn settings_are_listed_by_name() {
    let config = builder(&[("UCX_RCACHE_MAX_SIZE", "1024kb")]).build().expect("valid");
    let settings: Vec<_> = config.iter().collect();
    assert!(settings.is_sorted_by_key(|setting| setting.name));
    assert_eq!(settings.len(), VARS.len());
    let size = settings.iter().find(|s| s.name == "UCX_RCACHE_MAX_SIZE").expect("listed");
    assert_eq!((size.value, size.origin, size.default), ("1M", Origin::Env, "inf"));
    assert_eq!(size.doc, "Bytes the cache may hold");
}

#[test]
fn a_wrong_value_is_told_with_its_origin_and_remedy() {
    let error = builder(&[("UCX_IMPORT_TIMEOUT", "soon")]).build().expect_err("no time");
    assert_eq!(
        error.to_string(),
        "UCX_IMPORT_TIMEOUT=\"soon\" (environment): unknown unit; expected a time such as 10us, 5ms, 2s, 1m (a minute) or \
         0.5 (seconds)"
    );
    assert_eq!((error.variable(), error.origin()), ("UCX_IMPORT_TIMEOUT", Origin::Env));
    assert_eq!(error.status(), Status::InvalidParam);
    assert!(error.remedy().starts_with("set UCX_IMPORT_TIMEOUT to a time such as"), "{}", error.remedy());

    let error = builder(&[]).set("UCX_RCACHE_ENABLE", "perhaps").build().expect_err("no switch");
    assert_eq!((error.origin(), error.remedy().as_str()), (Origin::Builder, "give UCX_RCACHE_ENABLE y or n"));

    // Overridden, so not looked at.
    assert!(builder(&[("UCX_RCACHE_ENABLE", "perhaps")]).set("UCX_RCACHE_ENABLE", "y").build().is_ok());
}

#[test]
fn a_value_that_is_not_utf8_is_an_error() {
    let env = Env::from_pairs([("UCX_TLS", OsString::from_vec(b"tc\xffp".to_vec()))]);
    let error = Config::builder(VARS).env(env).build().expect_err("not UTF-8");
    assert!(matches!(error, ConfigError::NotUnicode { variable: "UCX_TLS", .. }));
    assert_eq!((error.origin(), error.status()), (Origin::Env, Status::InvalidParam));
}

#[test]
fn the_builder_refuses_unknown_names() {
    for (name, remedy) in [
        ("UCX_IMPORT_TIMEOT", "did you mean UCX_IMPORT_TIMEOUT?"),
        ("UCX_RNDV_THRESH", "leave UCX_RNDV_THRESH out: C UCX has it, rucx does not"),
        ("PATH", "`Context::config` lists the variables"),
    ] {
        let error = builder(&[]).set(name, "1").build().expect_err(name);
        assert_eq!(
            (error.variable(), error.status(), error.remedy().as_str()),
            (name, Status::NoElem, remedy)
        );
    }
}

#[test]
fn declarations_of_one_name_must_agree() {
    const SAME: &[&dyn AnyVar] = &[&TLS];
    const OTHER_TYPE: &[&dyn AnyVar] = &[&Var::<String>::new("UCX_TLS", "all", "")];
    const OTHER_DEFAULT: &[&dyn AnyVar] = &[&Var::<AllowList>::new("UCX_TLS", "tcp", "")];
    assert!(builder(&[]).vars(SAME).build().is_ok());
    for vars in [OTHER_TYPE, OTHER_DEFAULT] {
        let error = builder(&[]).vars(vars).build().expect_err("a conflict");
        assert_eq!(error, ConfigError::Conflict { variable: "UCX_TLS" });
    }
}

#[test]
fn a_wrong_default_is_found_when_built() {
    const WRONG: &[&dyn AnyVar] = &[&Var::<Bytes>::new("UCX_WRONG", "many", "")];
    let error = Config::builder(WRONG).ignore_env().build().expect_err("no number");
    assert_eq!(error.origin(), Origin::Default);
}

#[test]
#[should_panic(expected = "UCX_OTHER is not among the variables")]
fn asking_for_a_variable_that_was_not_declared_is_a_mistake() {
    const OTHER: Var<u32> = Var::new("UCX_OTHER", "1", "");
    let _ = builder(&[]).build().expect("valid").get(&OTHER);
}

#[test]
#[should_panic(expected = "has another type there")]
fn asking_with_another_type_is_a_mistake() {
    const OTHER: Var<u32> = Var::new("UCX_TLS", "1", "");
    let _ = builder(&[]).build().expect("valid").origin(&OTHER);
}

#[test]
fn strange_variables_are_logged_by_name_only() {
    use crate::log::capture::captured;

    let env = [
        ("UCX_TSL", "secret"),
        ("UCX_SERVICE_DIRR", "secret"),
        ("UCX_RNDV_THRESH", "secret"),
        ("HOME", "secret"),
    ];
    let ((), events) = captured(|| drop(builder(&env).build().expect("valid")));
    assert_eq!(events.len(), 2, "{events:?}");
    assert_eq!(events[0].0, tracing::Level::WARN);
    assert!(
        events[0].1.contains("UCX_TSL (nearest: UCX_TLS), UCX_SERVICE_DIRR (nearest: UCX_SERVICE_DIR)"),
        "{events:?}"
    );
    assert_eq!(events[1].0, tracing::Level::DEBUG);
    assert!(events[1].1.contains("UCX_RNDV_THRESH") && !events[1].1.contains("HOME"), "{events:?}");
    assert!(!format!("{events:?}").contains("secret"));
}

#[test]
fn a_config_is_shared_between_threads() {
    fn shared<T: Send + Sync + Clone>(_: &T) {}
    shared(&builder(&[]).build().expect("valid"));
}
