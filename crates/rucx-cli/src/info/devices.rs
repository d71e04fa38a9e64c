//! The transports: which are in use, their memory domains, what each can do.

use std::sync::Arc;

use serde::Serialize;
use ucp::{Context, InitError};
use uct::api::{Component, Md, MdAttr, MemTypes};

use super::Problem;

/// A transport.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Transport {
    /// Its name, as in `UCX_TLS`.
    pub(crate) name: &'static str,
    /// Its number in packed handles.
    pub(crate) id: u16,
    /// Whether a context made now uses it.
    pub(crate) used: bool,
    /// Why not.
    pub(crate) reason: Option<String>,
    /// Why it exports nothing here, though it is used and could elsewhere.
    pub(crate) export_fault: Option<String>,
    /// Its memory domains in use.
    pub(crate) memory_domains: Vec<Domain>,
    /// What it can do and what it cannot.
    pub(crate) capabilities: Vec<Capability>,
    /// The variables that are its own.
    pub(crate) variables: Vec<&'static str>,
}

/// A line of a capability table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Capability {
    /// What.
    pub(crate) name: &'static str,
    /// Whether the transport has it.
    pub(crate) supported: bool,
    /// What a user should know about it.
    pub(crate) note: &'static str,
}

/// A memory domain: `uct_md_attr_t`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Domain {
    /// Its name, unique within the transport.
    pub(crate) name: String,
    /// Abilities, under the names of `UCT_MD_FLAG_*`.
    pub(crate) flags: Vec<String>,
    /// Most bytes of an allocation; 0: it does not allocate.
    pub(crate) max_alloc: u64,
    /// Most bytes of a registration; 0: it registers only what it allocated.
    pub(crate) max_reg: u64,
    /// Registrations begin and end at multiples of so many bytes.
    pub(crate) reg_alignment: usize,
    /// Seconds a registration costs, whatever its size.
    pub(crate) reg_cost_base: f64,
    /// Seconds it costs for each byte.
    pub(crate) reg_cost_per_byte: f64,
    /// Kinds of memory it allocates.
    pub(crate) alloc_mem_types: Vec<String>,
    /// Kinds of memory it registers.
    pub(crate) reg_mem_types: Vec<String>,
    /// Kinds of memory it accesses.
    pub(crate) access_mem_types: Vec<String>,
    /// Bytes of a packed remote key; 0: none is needed.
    pub(crate) rkey_packed_size: usize,
    /// Bytes of an exported memory key; 0: it exports none.
    pub(crate) exported_mkey_packed_size: usize,
    /// Where its exported keys mean something: the beginning, in hexadecimal.
    pub(crate) global_id: String,
    /// CPUs near it; empty: all.
    pub(crate) local_cpus: String,
    /// What else is to be known of it.
    pub(crate) notes: Vec<String>,
}

/// Asks all transports of this build. With what stands in the way of a context, if something does.
pub(crate) fn transports() -> (Vec<Transport>, Option<Problem>) {
    let context = Context::builder().build();
    let all = uct::transports::components().iter().map(|component| transport(*component, &context)).collect();
    (all, context.err().map(|error| Problem::of_context(&error)))
}

fn transport(component: &dyn Component, context: &Result<Context, InitError>) -> Transport {
    let domains = context.as_ref().map(|context| domains(component, context)).unwrap_or_default();
    let left_out = match context {
        Ok(context) => Some(context.left_out()),
        Err(InitError::NoTransports { reasons }) => Some(reasons),
        Err(_) => None,
    };
    let reason = left_out.and_then(|all| all.iter().find(|one| one.component == component.id()));
    let reason = reason.and_then(|one| one.outcome.clone().err());
    let used = !domains.is_empty();
    let fallback = match context {
        Ok(_) => "it has no memory domain here",
        Err(_) => "no context can be made",
    };
    Transport {
        name: component.name(),
        id: component.id().0,
        used,
        export_fault: None,
        reason: reason.or_else(|| (!used).then(|| fallback.to_owned())),
        memory_domains: domains,
        capabilities: component
            .capabilities()
            .iter()
            .map(|one| Capability { name: one.name, supported: one.supported, note: one.note })
            .collect(),
        variables: component.vars().iter().map(|var| var.name()).collect(),
    }
}

impl Transport {
    /// Notes why nothing can be exported here.
    pub(crate) fn exports_nothing(&mut self, why: &str) {
        let could = self.capabilities.iter().any(|one| one.name == "export" && one.supported);
        self.export_fault = (self.used && could).then(|| why.to_owned());
    }
}

fn domains(component: &dyn Component, context: &Context) -> Vec<Domain> {
    let open: Vec<&Arc<dyn Md>> =
        context.transports().filter(|(of, _)| of.id() == component.id()).map(|(_, md)| md).collect();
    let names = component.query_mds();
    let all_open = names.len() == open.len();
    let name = |index: usize| match names.get(index) {
        Some(resource) if all_open => resource.name.clone(),
        _ => index.to_string(),
    };
    open.iter().enumerate().map(|(index, md)| domain(name(index), md.attr())).collect()
}

fn domain(name: String, attr: &MdAttr) -> Domain {
    let flags = attr.flags.iter_names().map(|(name, _)| name.to_ascii_lowercase()).collect();
    let types = |types: MemTypes| types.iter_names().map(|(name, _)| name.to_ascii_lowercase()).collect();
    Domain {
        name,
        flags,
        max_alloc: attr.max_alloc,
        max_reg: attr.max_reg,
        reg_alignment: attr.reg_alignment,
        reg_cost_base: attr.reg_cost.base,
        reg_cost_per_byte: attr.reg_cost.per_byte,
        alloc_mem_types: types(attr.alloc_mem_types),
        reg_mem_types: types(attr.reg_mem_types),
        access_mem_types: types(attr.access_mem_types),
        rkey_packed_size: attr.rkey_packed_size,
        exported_mkey_packed_size: attr.exported_mkey_packed_size,
        global_id: attr.global_id.to_string(),
        local_cpus: attr.local_cpus.clone(),
        notes: attr.notes.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_used_and_what_is_not() {
        let context = Context::builder().ignore_env().set("UCX_TLS", "self").build();
        let all: Vec<_> =
            uct::transports::components().iter().map(|component| transport(*component, &context)).collect();
        assert!(all.len() >= 2);
        for one in &all {
            let is_self = one.name == "self";
            assert_eq!(
                (one.used, one.reason.is_none(), one.memory_domains.len()),
                (is_self, is_self, is_self.into())
            );
            assert!(is_self || one.reason.as_deref() == Some("not allowed by UCX_TLS"), "{one:?}");
            assert!(!one.capabilities.is_empty());
        }
        assert!(all.iter().flat_map(|one| &one.memory_domains).all(|domain| domain.name == "self"));
    }

    #[test]
    fn without_a_context_each_transport_says_why() {
        let none = Context::builder().ignore_env().set("UCX_TLS", "").build();
        let unknown = Context::builder().ignore_env().set("UCX_TLS", "shn").build();
        for component in uct::transports::components() {
            assert_eq!(transport(*component, &none).reason.as_deref(), Some("not allowed by UCX_TLS"));
            assert_eq!(transport(*component, &unknown).reason.as_deref(), Some("no context can be made"));
        }
        let problem = Problem::of_context(&unknown.unwrap_err());
        assert!(problem.remedy.contains("did you mean shm?"), "{problem:?}");
    }
}
