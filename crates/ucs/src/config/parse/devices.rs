//! Lists of network devices.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use super::super::nearest::nearest;
use super::super::{UnknownNames, Value, ValueError};
use super::write_list;

/// Network devices that may be used, with the meaning of UCX: `all`, some (`mlx5_0,mlx5_1:2`), or all but some (`^mlx5_0,mlx5_1:2`). After a
/// colon stands a port; without one an entry means all ports of its device.
///
/// ```
/// use ucs::config::NetDevices;
///
/// let list: NetDevices = "mlx5_0,mlx5_1:2".parse()?;
/// assert!(list.allows("mlx5_0", 1) && list.allows("mlx5_1", 2));
/// assert!(!list.allows("mlx5_1", 1) && !list.allows_device("mlx5_2"));
/// let list: NetDevices = "^mlx5_0:1".parse()?;
/// assert!(list.allows("mlx5_0", 2) && !list.allows("mlx5_0", 1));
/// # Ok::<(), ucs::config::ValueError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NetDevices(Rule);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Rule {
    Only(Vec<Entry>),
    /// `all` is: all but none.
    Except(Vec<Entry>),
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Entry {
    device: String,
    port: Option<u8>,
}

const ALL: &str = "all";

impl Entry {
    fn means(&self, device: &str, port: u8) -> bool {
        self.device == device && self.port.is_none_or(|own| own == port)
    }
}

impl NetDevices {
    /// All devices, with all ports.
    #[must_use]
    pub const fn all() -> Self {
        Self(Rule::Except(Vec::new()))
    }

    fn entries(&self) -> &[Entry] {
        let (Rule::Only(entries) | Rule::Except(entries)) = &self.0;
        entries
    }

    /// Whether this port may be used; the first one of a device is 1.
    #[must_use]
    pub fn allows(&self, device: &str, port: u8) -> bool {
        let is_named = self.entries().iter().any(|entry| entry.means(device, port));
        is_named == matches!(self.0, Rule::Only(_))
    }

    /// Whether the device may be used, by some port at least: by which, [`allows`](Self::allows) tells.
    #[must_use]
    pub fn allows_device(&self, device: &str) -> bool {
        let mut own = self.entries().iter().filter(|entry| entry.device == device);
        match self.0 {
            Rule::Only(_) => own.next().is_some(),
            Rule::Except(_) => own.all(|entry| entry.port.is_some()),
        }
    }

    /// Whether the list asks for this device by its name.
    #[must_use]
    pub fn asks_for(&self, device: &str) -> bool {
        matches!(self.0, Rule::Only(_)) && self.allows_device(device)
    }

    /// The ports by which alone a device may be used, in the order of the list; empty where the list leaves that open.
    #[must_use]
    pub fn ports_of(&self, device: &str) -> Vec<u8> {
        let Rule::Only(entries) = &self.0 else { return Vec::new() };
        let ports: Option<Vec<u8>> =
            entries.iter().filter(|entry| entry.device == device).map(|entry| entry.port).collect();
        ports.unwrap_or_default() // one entry means all of them
    }

    /// The entries that mean none of the devices there are, which are `known`; `None`: there is no such entry.
    #[must_use]
    pub fn unknown(&self, known: &[&str]) -> Option<UnknownNames> {
        let unknown: Vec<&Entry> =
            self.entries().iter().filter(|entry| !known.contains(&entry.device.as_str())).collect();
        let first = unknown.first()?;
        Some(UnknownNames {
            nearest: nearest(&first.device, known.iter().copied()).map(str::to_owned),
            names: unknown.iter().map(ToString::to_string).collect(),
            known: known.iter().map(|name| (*name).to_owned()).collect(),
        })
    }
}

impl Value for NetDevices {
    fn accepts() -> Cow<'static, str> {
        "all, a list of devices such as mlx5_0,mlx5_1:2 (a port from 1 to 255 after the colon), or ^mlx5_0 for all but these"
            .into()
    }

    fn parse(text: &str) -> Result<Self, ValueError> {
        let text = text.trim();
        let (entries, deny) = text.strip_prefix('^').map_or((text, false), |entries| (entries, true));
        if entries.trim().is_empty() {
            return Err(no_list(if deny {
                "^ stands before a list, and there is none"
            } else {
                "the list is empty"
            }));
        }
        let entries =
            entries.split(',').map(|entry| entry_of(entry.trim())).collect::<Result<Vec<_>, _>>()?;
        let all = entries.iter().find(|entry| entry.device == ALL);
        match (deny, all) {
            (_, Some(Entry { port: Some(_), .. })) => Err(no_list("all stands alone, without a port")),
            (true, Some(_)) => Err(no_list("^all leaves nothing")),
            (true, None) => Ok(Self(Rule::Except(entries))),
            (false, Some(_)) => Ok(Self::all()),
            (false, None) => Ok(Self(Rule::Only(entries))),
        }
    }

    fn print(&self) -> String {
        self.to_string()
    }
}

fn no_list(reason: impl Into<Cow<'static, str>>) -> ValueError {
    ValueError::new::<NetDevices>(reason)
}

fn entry_of(text: &str) -> Result<Entry, ValueError> {
    let (device, port) = text.split_once(':').map_or((text, None), |(device, port)| (device, Some(port)));
    let reason = if text.is_empty() {
        "an entry is empty"
    } else if device.is_empty() {
        "no device before the colon"
    } else if device.contains('^') {
        "^ stands once, before the whole list"
    } else if device.contains(|c: char| c.is_whitespace() || c.is_control()) {
        "a blank inside a name"
    } else {
        let port = port.map(|port| port_of(text, port)).transpose()?;
        return Ok(Entry { device: device.to_owned(), port });
    };
    Err(no_list(reason))
}

fn port_of(entry: &str, text: &str) -> Result<u8, ValueError> {
    if text.is_empty() {
        return Err(no_list(format!("{entry:?}: no port after the colon")));
    }
    if !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(no_list(format!("{entry:?}: the port after the colon is no number")));
    }
    let port = text.parse().ok().filter(|port| *port > 0);
    port.ok_or_else(|| no_list(format!("{entry:?}: ports have numbers from 1 to 255")))
}

impl FromStr for NetDevices {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        Self::parse(text)
    }
}

impl fmt::Display for NetDevices {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (deny, entries) = match &self.0 {
            Rule::Except(entries) if entries.is_empty() => return f.write_str(ALL),
            Rule::Except(entries) => ("^", entries),
            Rule::Only(entries) => ("", entries),
        };
        f.write_str(deny)?;
        write_list(f, entries)
    }
}

impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.device)?;
        self.port.map_or(Ok(()), |port| write!(f, ":{port}"))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ALL_PORTS: [(&str, u8); 5] = [("a", 1), ("a", 2), ("b", 1), ("b", 2), ("c", 1)];

    fn allowed(text: &str) -> String {
        let list = NetDevices::parse(text).expect(text);
        for (device, _) in ALL_PORTS {
            let some = ALL_PORTS.iter().any(|(other, port)| *other == device && list.allows(device, *port));
            assert!(list.allows_device(device) || !some, "{text}: {device}");
        }
        let ports = ALL_PORTS.iter().filter(|(device, port)| list.allows(device, *port));
        ports.map(|(device, port)| format!("{device}{port}")).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn what_is_allowed() {
        for (text, ports) in [
            ("all", "a1 a2 b1 b2 c1"),
            ("a", "a1 a2"),
            ("a:2", "a2"),
            (" b:1 , a ", "a1 a2 b1"),
            ("a:1,a", "a1 a2"),
            ("a:1,a:2", "a1 a2"),
            ("^a", "b1 b2 c1"),
            ("^a:1", "a2 b1 b2 c1"),
            ("^a,b:2", "b1 c1"),
            ("^ a", "b1 b2 c1"),
            ("nothing", ""),
            ("^nothing", "a1 a2 b1 b2 c1"),
            ("a:1,all", "a1 a2 b1 b2 c1"),
            ("c:255", ""),
        ] {
            assert_eq!(allowed(text), ports, "{text}");
        }
        let list = NetDevices::parse("^a,b:1").expect("a list");
        assert_eq!(["a", "b", "c"].map(|name| list.allows_device(name)), [false, true, true]);
        assert!(NetDevices::parse("a:1,b").expect("a list").asks_for("a"));
        assert!(["b", "all", "^b"].iter().all(|text| !NetDevices::parse(text).expect(text).asks_for("a")));
    }

    #[test]
    fn what_is_no_list_is_told_with_what_is_one() {
        for (text, why) in [
            ("", "the list is empty"),
            (" ", "the list is empty"),
            ("^", "^ stands before a list, and there is none"),
            (",", "an entry is empty"),
            ("a,", "an entry is empty"),
            ("a,,b", "an entry is empty"),
            ("^a,^b", "^ stands once, before the whole list"),
            ("^^a", "^ stands once, before the whole list"),
            ("a b", "a blank inside a name"),
            (":1", "no device before the colon"),
            ("a:", "\"a:\": no port after the colon"),
            ("a:b", "\"a:b\": the port after the colon is no number"),
            ("a:-1", "\"a:-1\": the port after the colon is no number"),
            ("a:1:2", "\"a:1:2\": the port after the colon is no number"),
            ("a: 1", "\"a: 1\": the port after the colon is no number"),
            ("a:0", "\"a:0\": ports have numbers from 1 to 255"),
            ("a:300", "\"a:300\": ports have numbers from 1 to 255"),
            ("a:99999999999999999999", "\"a:99999999999999999999\": ports have numbers from 1 to 255"),
            ("^all", "^all leaves nothing"),
            ("all:1", "all stands alone, without a port"),
        ] {
            let error = NetDevices::parse(text).expect_err(text).to_string();
            assert_eq!(error, format!("{why}; expected {}", NetDevices::accepts()), "{text:?}");
        }
    }

    #[test]
    fn ports_that_are_named_are_told() {
        let ports = |text: &str| NetDevices::parse(text).expect(text).ports_of("a");
        assert_eq!(ports("a:3,b:1,a:2"), [3, 2]);
        for open in ["a", "a:1,a", "b:1", "all", "^a:1"] {
            assert_eq!(ports(open), [], "{open}");
        }
    }

    #[test]
    fn entries_that_mean_nothing_are_told_together() {
        let unknown = |text: &str, known: &[&str]| NetDevices::parse(text).expect(text).unknown(known);
        let known = ["mlx5_0", "mlx5_1"];
        assert_eq!(unknown("all", &[]), None);
        assert_eq!(unknown("mlx5_0,mlx5_1:7", &known), None, "whether it has such a port, the device tells");
        let names = unknown("mxl5_0:1,mlx5_1,eth0", &known).expect("two of them");
        assert_eq!(names.names, ["mxl5_0:1", "eth0"]);
        assert_eq!(names.nearest.as_deref(), Some("mlx5_0"));
        assert_eq!(names.remedy(), "did you mean mlx5_0? There are: mlx5_0, mlx5_1");
        assert!(unknown("^eth0", &known).is_some(), "nor does this one exclude anything");
    }

    proptest! {
        #[test]
        fn total_and_round_trip(text in ".*", list in r"\^?([a-z0-9_]{1,4}(:[0-9]{1,3})?,){0,4}(all|[a-z]{1,3})") {
            for text in [text, list] {
                if let Ok(list) = NetDevices::parse(&text) {
                    prop_assert_eq!(NetDevices::parse(&list.print()), Ok(list.clone()));
                }
            }
        }

        #[test]
        fn a_deny_list_allows_what_the_same_allow_list_does_not(
            names in "[a-c](:[12])?(,[a-c](:[12])?){0,3}",
            device in "[a-d]",
            port in 1_u8..4,
        ) {
            let only = NetDevices::parse(&names).expect("a list");
            let except = NetDevices::parse(&format!("^{names}")).expect("a list");
            prop_assert_ne!(only.allows(&device, port), except.allows(&device, port));
            prop_assert!(only.allows_device(&device) || !only.allows(&device, port));
            prop_assert!(except.allows_device(&device) || !except.allows(&device, port));
        }
    }
}
