//! Lists of what is allowed.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use super::super::nearest::nearest;
use super::super::{UnknownNames, Value, ValueError};
use super::write_list;

/// Names that are allowed: `all`, some (`a,b`), or all but some (`^a,b`). The empty list allows none.
///
/// A name may stand for a group, as `sm` does for all that uses shared memory; [`resolve`](Self::resolve) puts the members in
/// its place. After a backslash it is exactly the thing of that name: `\shm`.
///
/// ```
/// use ucs::config::AllowList;
///
/// const ALIASES: &[(&str, &[&str])] = &[("sm", &["shm", "cma"]), ("shm", &["shm", "cma"]), ("mm", &["shm"])];
///
/// let list: AllowList = r"^sm".parse()?;
/// let list = list.resolve(&["self", "shm", "cma", "tcp"], ALIASES).expect("all names are known");
/// assert!(list.allows("tcp") && !list.allows("cma"));
/// # Ok::<(), ucs::config::ValueError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AllowList(Rule);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Rule {
    Only(Vec<Name>),
    /// `all` is: all but none.
    Except(Vec<Name>),
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Name {
    text: String,
    /// Written after a backslash: no alias.
    exact: bool,
}

const ALL: &str = "all";

impl AllowList {
    /// Allows everything.
    #[must_use]
    pub const fn all() -> Self {
        Self(Rule::Except(Vec::new()))
    }

    /// Whether `name` is allowed. Aliases mean nothing here: [`resolve`](Self::resolve) the list first if there are any.
    #[must_use]
    pub fn allows(&self, name: &str) -> bool {
        let (Rule::Only(names) | Rule::Except(names)) = &self.0;
        names.iter().any(|n| n.text == name) == matches!(self.0, Rule::Only(_))
    }

    /// Whether the list was empty, which allows nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        matches!(&self.0, Rule::Only(names) if names.is_empty())
    }

    /// Checks the names, and puts the members in the place of aliases.
    ///
    /// An alias may have the name of a thing that is known, and then comes first; members need not be known. What is returned
    /// has exact names only, so resolving it again changes nothing.
    ///
    /// # Errors
    /// Names that are neither known nor aliases, all of them in one error.
    pub fn resolve(&self, known: &[&str], aliases: &[(&str, &[&str])]) -> Result<Self, UnknownNames> {
        let (Rule::Only(names) | Rule::Except(names)) = &self.0;
        let mut resolved: Vec<Name> = Vec::new();
        let mut unknown = Vec::new();
        for name in names {
            let alias = aliases.iter().find(|(alias, _)| !name.exact && *alias == name.text);
            let members = match alias {
                Some((_, members)) => *members,
                None if known.contains(&name.text.as_str()) => &[name.text.as_str()],
                None => {
                    unknown.push(name);
                    continue;
                }
            };
            for member in members {
                if !resolved.iter().any(|n| n.text == *member) {
                    resolved.push(Name { text: (*member).to_owned(), exact: true });
                }
            }
        }
        if let Some(first) = unknown.first() {
            let mut candidates = known.to_vec();
            candidates.extend(aliases.iter().map(|(alias, _)| *alias));
            candidates.sort_unstable();
            candidates.dedup();
            return Err(UnknownNames {
                nearest: nearest(&first.text, candidates.iter().copied()).map(str::to_owned),
                names: unknown.iter().map(ToString::to_string).collect(),
                known: candidates.into_iter().map(str::to_owned).collect(),
            });
        }
        Ok(Self(match self.0 {
            Rule::Only(_) => Rule::Only(resolved),
            Rule::Except(_) => Rule::Except(resolved),
        }))
    }
}

impl Value for AllowList {
    fn accepts() -> Cow<'static, str> {
        "all, a list such as a,b, or ^a,b for all but these".into()
    }

    fn parse(text: &str) -> Result<Self, ValueError> {
        let text = text.trim();
        let (names, deny) = match text.strip_prefix('^') {
            Some(names) => (names, true),
            None if text.is_empty() => return Ok(Self(Rule::Only(Vec::new()))),
            None => (text, false),
        };
        let names = names.split(',').map(|name| name_of(name.trim())).collect::<Result<Vec<_>, _>>()?;
        let has_all = names.iter().any(|name| name.text == ALL && !name.exact);
        match (deny, has_all) {
            (false, false) => Ok(Self(Rule::Only(names))),
            (false, true) => Ok(Self::all()),
            (true, false) => Ok(Self(Rule::Except(names))),
            (true, true) => Err(ValueError::new::<Self>("^all leaves nothing")),
        }
    }

    fn print(&self) -> String {
        self.to_string()
    }
}

fn name_of(text: &str) -> Result<Name, ValueError> {
    let (text, exact) = text.strip_prefix('\\').map_or((text, false), |text| (text, true));
    let reason = if text.is_empty() {
        "a name is empty"
    } else if text.contains('^') {
        "^ stands once, before the whole list"
    } else if text.contains('\\') {
        r"\ stands before a name only"
    } else if text.contains(|c: char| c.is_whitespace() || c.is_control()) {
        "a blank inside a name"
    } else {
        return Ok(Name { text: text.to_owned(), exact });
    };
    Err(ValueError::new::<AllowList>(reason))
}

impl FromStr for AllowList {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        Self::parse(text)
    }
}

impl fmt::Display for AllowList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (deny, names) = match &self.0 {
            Rule::Except(names) if names.is_empty() => return f.write_str(ALL),
            Rule::Except(names) => ("^", names),
            Rule::Only(names) => ("", names),
        };
        f.write_str(deny)?;
        write_list(f, names)
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", if self.exact { "\\" } else { "" }, self.text)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const KNOWN: &[&str] = &["self", "shm", "cma", "tcp"];
    const ALIASES: &[(&str, &[&str])] =
        &[("sm", &["shm", "cma"]), ("shm", &["shm", "cma"]), ("mm", &["shm"]), ("posix", &["shm"])];

    fn allowed(text: &str) -> String {
        let list = AllowList::parse(text).expect(text).resolve(KNOWN, ALIASES).expect(text);
        assert_eq!(list.resolve(KNOWN, ALIASES).as_ref(), Ok(&list), "{text}");
        KNOWN.iter().copied().filter(|name| list.allows(name)).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn what_is_allowed() {
        for (text, names) in [
            ("all", "self shm cma tcp"),
            ("", ""),
            ("tcp", "tcp"),
            ("tcp,self", "self tcp"),
            (" tcp , self ", "self tcp"),
            ("^tcp", "self shm cma"),
            ("^tcp,self", "shm cma"),
            ("sm", "shm cma"),
            ("shm", "shm cma"),
            (r"\shm", "shm"),
            (r"^\shm", "self cma tcp"),
            ("^sm", "self tcp"),
            ("mm,tcp", "shm tcp"),
            ("posix,mm,shm", "shm cma"),
            ("tcp,all", "self shm cma tcp"),
        ] {
            assert_eq!(allowed(text), names, "{text}");
        }
    }

    #[test]
    fn what_is_no_list() {
        for text in [
            "^", "a,,b", "a,", ",", "a,^b", "^a,^b", "^^a", "a b", r"\", r"\\a", r"a\b", "^all", "^a,all",
            "a\0",
        ] {
            assert!(AllowList::parse(text).is_err(), "{text:?}");
        }
        let error = AllowList::parse("shm,^cma").expect_err("^ inside");
        assert_eq!(
            error.to_string(),
            "^ stands once, before the whole list; expected all, a list such as a,b, or ^a,b for all but these"
        );
    }

    #[test]
    fn unknown_names_are_told_together() {
        let list = AllowList::parse(r"tpc,shm,\sm").expect("a list");
        let error = list.resolve(KNOWN, ALIASES).expect_err("two unknown");
        assert_eq!(error.names, ["tpc", r"\sm"]);
        assert_eq!(error.nearest.as_deref(), Some("tcp"));
        assert!(error.remedy().contains("cma, mm, posix, self, shm, sm, tcp"), "{}", error.remedy());
        assert!(AllowList::parse("^nonsense").expect("a list").resolve(KNOWN, ALIASES).is_err());
    }

    #[test]
    fn without_aliases_names_are_themselves() {
        let list = AllowList::parse(r"eth0,\lo").expect("a list");
        assert!(list.allows("eth0") && list.allows("lo") && !list.allows("eth1"));
        assert!(AllowList::all().allows("anything"));
        assert!(AllowList::parse("").expect("empty").is_empty());
    }

    proptest! {
        #[test]
        fn total_and_round_trip(text in ".*", list in r"\^?(\\?[a-z0-9_:]{1,4},){0,4}\\?(all|[a-z]{1,3})") {
            for text in [text, list] {
                if let Ok(list) = AllowList::parse(&text) {
                    prop_assert_eq!(AllowList::parse(&list.print()), Ok(list.clone()));
                    let _ = list.resolve(KNOWN, ALIASES);
                }
            }
        }

        #[test]
        fn a_deny_list_allows_what_the_same_allow_list_does_not(names in "[a-d](,[a-d]){0,3}", name in "[a-d]") {
            let only = AllowList::parse(&names).expect("a list");
            let except = AllowList::parse(&format!("^{names}")).expect("a list");
            prop_assert_ne!(only.allows(&name), except.allows(&name));
        }
    }
}
