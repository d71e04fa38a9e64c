//! What an endpoint to another process of this machine goes by, and why.
//!
//! Tried, with two contexts of this process as the two sides: what one context reaches of another one's, it reaches in another process,
//! too, but for rights that the kernel asks for between processes. Those are told by what the transport says of itself.

use serde::Serialize;
use ucp::{Context, EpInfo, Features, LaneUse, MdResults, MemMap, Status};
use uct::api::{Component, IfaceFlags, LinearCost, MdFlags};

use super::Problem;
use crate::units;

/// Bytes of the memory that is exported to see which transport imports it.
const BYTES: usize = 4096;

/// One thing that an endpoint is for.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Use {
    /// Its name: `messages`, `long messages`, `memory`, `buffers`.
    pub(crate) what: &'static str,
    /// The same in words.
    pub(crate) doc: &'static str,
    /// The transport that does it; null: none.
    pub(crate) transport: Option<&'static str>,
    /// Why none.
    pub(crate) error: Option<Problem>,
    /// All transports of this build.
    pub(crate) candidates: Vec<Candidate>,
}

/// A transport that could.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Candidate {
    pub(crate) transport: &'static str,
    /// What it costs, by its attributes, in seconds: whatever the size, and for each byte. Null: it does not do that.
    pub(crate) cost_base: Option<f64>,
    pub(crate) cost_per_byte: Option<f64>,
    /// Why it is the one, or is not.
    pub(crate) why: String,
}

/// Both sides.
struct Sides {
    here: Context,
    there: Context,
}

/// Tries all uses.
pub(super) fn uses() -> Vec<Use> {
    let build = || {
        let features = Features::AM | Features::RMA | Features::EXPORTED_MEMH;
        Context::builder().features(features).build().map_err(|error| Problem::of_context(&error))
    };
    let sides = build().and_then(|here| Ok(Sides { here, there: build()? }));
    let use_of = |what, doc, of: &dyn Fn(&Sides) -> Tried| match &sides {
        Ok(sides) => {
            let (transport, candidates) = of(sides);
            let (transport, error) = match transport {
                Ok(name) => (Some(name), None),
                Err(problem) => (None, Some(problem)),
            };
            Use { what, doc, transport, error, candidates }
        }
        Err(problem) => {
            Use { what, doc, transport: None, error: Some(problem.clone()), candidates: Vec::new() }
        }
    };
    vec![
        use_of("messages", "active messages", &messages),
        use_of("long messages", "their data, which the receiver reads where the sender has it", &announced),
        use_of("memory", "put, get and atomics; memory of MemMap::allocate", &|sides| {
            memory(sides, MemMap::allocate(BYTES))
        }),
        use_of("buffers", "put and get; a buffer of the program's", &|sides| {
            memory(sides, MemMap::buffer(vec![0_u8; BYTES]))
        }),
    ]
}

/// The transport, and what each has to say.
type Tried = (Result<&'static str, Problem>, Vec<Candidate>);

fn problem(error: impl Into<ucp::Error>) -> Problem {
    let error = error.into();
    Problem { text: error.to_string(), remedy: error.remedy(), status: format!("{:?}", error.status()) }
}

fn messages(sides: &Sides) -> Tried {
    let connected = || -> Result<_, ucp::Error> {
        let (ours, theirs) = (sides.here.worker()?, sides.there.worker()?);
        Ok(ours.connect(theirs.address()?.as_bytes())?.info())
    };
    let info = connected().map_err(problem);
    let chosen = info.as_ref().ok().map(|info| info.transport);
    let candidates = each(sides, |component| {
        let md = sides.here.transports().find(|(of, _)| of.id() == component.id()).map(|(_, md)| md);
        let Some(md) = md else { return (None, left_out(sides, component)) };
        match md.open_iface() {
            Err(error) => (None, error.to_string()),
            Ok(None) => (None, "it moves memory, and sends no messages".to_owned()),
            Ok(Some(iface)) => {
                let attr = iface.attr();
                let why = if !attr.flags.contains(IfaceFlags::INTER_PROCESS) {
                    "it reaches the same worker only".to_owned()
                } else if chosen == Some(component.name()) {
                    let most = units::bytes(attr.max_am as u64);
                    let gathered = info.as_ref().ok().and_then(gathered).unwrap_or_default();
                    format!(
                        "costs least of those that reach; up to {most} at once, more by rendezvous{gathered}"
                    )
                } else {
                    "not needed: another one costs no more".to_owned()
                };
                (Some(attr.am_cost), why)
            }
        }
    });
    (info.map(|info| info.transport), candidates)
}

/// That long data is not copied by who sends it, where that is so.
fn gathered(info: &EpInfo) -> Option<String> {
    let lane = info.lanes.iter().find(|lane| lane.of == LaneUse::Gathered)?;
    Some(format!(", and from {} on by the device, from where it lies", units::bytes(lane.from)))
}

/// Between processes only: so nothing is tried here.
fn announced(sides: &Sides) -> Tried {
    let md_of = |component: &dyn Component| {
        let of_component = |(of, _): &(&dyn Component, _)| of.id() == component.id();
        sides.here.transports().find(of_component).map(|(_, md)| md)
    };
    let costs = |component: &dyn Component| {
        let attr = md_of(component)?.attr();
        attr.flags.contains(MdFlags::PEER_MEMORY).then_some(attr.access_cost)
    };
    let all = uct::transports::components().iter().filter(|component| costs(**component).is_some());
    let chosen = all.min_by(|a, b| {
        let cost =
            |component: &dyn Component| costs(component).map_or(f64::INFINITY, |cost| cost.at(BYTES as u64));
        cost(**a).total_cmp(&cost(**b))
    });
    let chosen = chosen.map(|component| component.name());
    let candidates = each(sides, |component| {
        let note = component.capabilities().iter().find(|one| one.name == "peer-memory");
        let note = note.map_or("", |one| one.note).to_owned();
        match (md_of(component), costs(component)) {
            (None, _) => (None, left_out(sides, component)),
            (Some(_), None) => (None, format!("it cannot: {note}")),
            (Some(_), cost) if chosen == Some(component.name()) => (cost, note),
            (Some(_), cost) => (cost, "not needed: another one costs no more".to_owned()),
        }
    });
    let without = Problem {
        text: "no transport that is allowed reads the memory of other processes by its addresses".to_owned(),
        remedy: "none is needed: the data goes by messages. Allow cma in UCX_TLS to have it read".to_owned(),
        status: format!("{:?}", Status::Unsupported),
    };
    (chosen.ok_or(without), candidates)
}

fn memory(sides: &Sides, map: MemMap) -> Tried {
    let import = || -> Result<_, ucp::Error> {
        let region = sides.there.mem_map(map)?;
        let handle = region.memh_pack()?;
        let import = sides.here.mem_import(handle.as_bytes())?;
        Ok((import.transport(), import.md_results()))
    };
    let tried = import();
    let results = match &tried {
        Ok((_, results)) => Some(results.clone()),
        Err(error) => error.md_results().cloned(),
    };
    let chosen = tried.as_ref().ok().map(|(name, _)| *name);
    let candidates = each(sides, |component| {
        let md = sides.here.transports().find(|(of, _)| of.id() == component.id()).map(|(_, md)| md);
        let Some(md) = md else { return (None, left_out(sides, component)) };
        let said = results.as_ref().and_then(|results| said(results, component));
        let why = said.unwrap_or_else(|| "it was not asked".to_owned());
        if chosen != Some(component.name()) {
            return (Some(md.attr().access_cost), why);
        }
        let export = component.capabilities().iter().find(|one| one.name == "export");
        let reach = export.map(|one| format!("; {}", one.note)).unwrap_or_default();
        (Some(md.attr().access_cost), format!("{why}{reach}"))
    });
    (tried.map(|(name, _)| name).map_err(problem), candidates)
}

fn each(sides: &Sides, of: impl Fn(&dyn Component) -> (Option<LinearCost>, String)) -> Vec<Candidate> {
    debug_assert_eq!(sides.here.transports().count(), sides.there.transports().count());
    let all = uct::transports::components().iter().map(|component| {
        let (cost, why) = of(*component);
        Candidate {
            transport: component.name(),
            cost_base: cost.map(|cost| cost.base),
            cost_per_byte: cost.map(|cost| cost.per_byte),
            why,
        }
    });
    all.collect()
}

fn said(results: &MdResults, component: &dyn Component) -> Option<String> {
    let one = results.iter().find(|one| one.component == component.id())?;
    Some(match &one.outcome {
        Ok(how) => how.clone(),
        Err(why) => why.clone(),
    })
}

fn left_out(sides: &Sides, component: &dyn Component) -> String {
    said(sides.here.left_out(), component).unwrap_or_else(|| "it has no memory domain here".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sides(tls: &str) -> Sides {
        let build = || {
            let features = Features::AM | Features::RMA | Features::EXPORTED_MEMH;
            Context::builder().ignore_env().features(features).set("UCX_TLS", tls).build().unwrap()
        };
        Sides { here: build(), there: build() }
    }

    #[test]
    fn messages_go_by_what_reaches_other_processes() {
        let (transport, candidates) = messages(&sides("all"));
        assert_eq!(transport, Ok("shm"));
        let of = |name| candidates.iter().find(|one| one.transport == name).unwrap();
        assert!(of("shm").cost_base.is_some() && of("shm").why.contains("costs least"), "{candidates:?}");
        // It costs less, and is of no use.
        assert!(of("self").cost_base < of("shm").cost_base && of("self").why.contains("same worker"));
        assert_eq!(of("cma").cost_base, None);
        let (transport, candidates) = messages(&sides("self"));
        assert!(transport.is_err_and(|problem| problem.remedy.contains("UCX_TLS")));
        assert!(candidates.iter().any(|one| one.why == "not allowed by UCX_TLS"), "{candidates:?}");
    }

    #[test]
    fn announced_data_is_read_by_what_reads_other_processes() {
        let (transport, candidates) = announced(&sides("all"));
        assert_eq!(transport, Ok("cma"), "{candidates:?}");
        assert!(candidates.iter().all(|one| one.cost_base.is_some() == (one.transport == "cma")));
        let (transport, candidates) = announced(&sides("posix"));
        assert!(transport.is_err_and(|problem| problem.remedy.contains("UCX_TLS")));
        assert!(candidates.iter().any(|one| one.why == "not allowed by UCX_TLS"), "{candidates:?}");
    }

    #[test]
    fn memory_goes_by_what_can_reach_it() {
        let (transport, candidates) = memory(&sides("all"), MemMap::allocate(BYTES));
        assert_eq!(transport, Ok("shm"), "{candidates:?}");
        let (transport, candidates) = memory(&sides("self"), MemMap::buffer(vec![0_u8; BYTES]));
        assert!(transport.is_err() && candidates.len() == 4, "{candidates:?}");
    }
}
