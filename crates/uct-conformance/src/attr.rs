//! Attributes: sane, in agreement with the flags, and never changing.

use std::collections::HashSet;

use uct::api::{GlobalId, MdAttr, MdFlags, MemTypes, PackFlags};
use uct::memory::Rights;
use uct::transports;

use crate::bench::Bench;
use crate::exporter::Exporter;
use crate::fixture::{Place, Side, component};
use crate::{Check, list};

pub(crate) const CHECKS: &[Check] = list![attr:
    names_and_numbers_are_unique in Once,
    memory_domains_are_named_and_open in Once,
    fields_are_sane in Once,
    fields_agree_with_flags in Once,
    attributes_never_change in Everywhere,
    global_id_tells_the_scope in Everywhere,
    other_scopes_are_told_apart in Once,
];

fn names_and_numbers_are_unique(bench: &Bench) {
    let mine = bench.fixture.component;
    assert_eq!(component(mine.name()).id(), mine.id(), "its name leads back to it");
    assert_eq!(mine.id().name(), Some(mine.name()), "its number is known by its name");
    assert_eq!(mine.id().to_string(), mine.name());
    assert!(
        !mine.name().is_empty()
            && mine.name().bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit())
    );
    let (mut names, mut numbers) = (HashSet::new(), HashSet::new());
    for component in transports::components() {
        assert!(names.insert(component.name()), "two components are called {}", component.name());
        assert!(numbers.insert(component.id()), "two components have number {}", component.id().0);
    }
}

fn memory_domains_are_named_and_open(bench: &Bench) {
    let component = bench.fixture.component;
    let resources = component.query_mds();
    assert_eq!(resources, component.query_mds(), "two queries agree");
    let mut names = HashSet::new();
    for resource in &resources {
        assert!(!resource.name.is_empty());
        assert!(names.insert(&resource.name), "two memory domains are called {:?}", resource.name);
        let md = component.open_md(resource, &bench.importer.params).unwrap();
        assert_eq!(md.attr().component, component.id());
    }
}

fn fields_are_sane(bench: &Bench) {
    let attr = bench.importer.md.attr();
    assert_eq!(attr.component, bench.fixture.component.id());
    assert!(attr.reg_alignment.is_power_of_two(), "reg_alignment is {}", attr.reg_alignment);
    for cost in [attr.reg_cost.base, attr.reg_cost.per_byte, attr.reg_cost.at(1 << 30)] {
        assert!(cost.is_finite() && cost >= 0.0, "a cost of {cost} s");
    }
    assert!(attr.reg_cost.at(1 << 30) >= attr.reg_cost.at(1), "more bytes never cost less");
    assert!((1..=GlobalId::MAX).contains(&attr.global_id.as_bytes().len()), "{:?}", attr.global_id);
    assert!(attr.access_mem_types.contains(attr.alloc_mem_types | attr.reg_mem_types));
    assert!(attr.local_cpus.bytes().all(|byte| byte.is_ascii_digit() || byte == b',' || byte == b'-'));
    let known = [attr.alloc_mem_types, attr.reg_mem_types, attr.access_mem_types];
    assert!(
        known.iter().all(|types| MemTypes::all().contains(*types)) && MdFlags::all().contains(attr.flags)
    );
}

fn fields_agree_with_flags(bench: &Bench) {
    let attr = bench.importer.md.attr();
    let has = |flag| attr.flags.contains(flag);
    assert_eq!(has(MdFlags::ALLOC), attr.max_alloc > 0, "ALLOC and max_alloc");
    assert_eq!(has(MdFlags::ALLOC), !attr.alloc_mem_types.is_empty(), "ALLOC and alloc_mem_types");
    assert_eq!(has(MdFlags::REG), attr.max_reg > 0, "REG and max_reg");
    assert_eq!(has(MdFlags::REG), !attr.reg_mem_types.is_empty(), "REG and reg_mem_types");
    assert_eq!(has(MdFlags::NEED_RKEY), attr.rkey_packed_size > 0, "NEED_RKEY and rkey_packed_size");
    assert_eq!(
        has(MdFlags::EXPORTED_MKEY),
        attr.exported_mkey_packed_size > 0,
        "EXPORTED_MKEY and exported_mkey_packed_size"
    );
    assert!(has(MdFlags::ALLOC) || has(MdFlags::REG), "there is a way to give it memory");
    assert!(!has(MdFlags::VA_BOUND) || has(MdFlags::REG), "only registrations name addresses");
}

/// All of it, also what `Debug` shortens.
fn snapshot(attr: &MdAttr) -> String {
    format!("{attr:?} {:?}", attr.global_id.as_bytes())
}

fn attributes_never_change(bench: &Bench) {
    let before = snapshot(bench.importer.md.attr());
    let same = |when: &str| assert_eq!(snapshot(bench.importer.md.attr()), before, "{when}");
    same("at the second query");
    same("at the third query");
    let (region, ticket, attachment) = bench.attached(4096, 1);
    same("after an attachment");
    let local = bench.local();
    let kept = local.usual().make(&*local.md, 4096, Rights::READ_WRITE, 2);
    let memh = local.md.reg(&kept.mem).unwrap();
    let _ = memh.packed_size(PackFlags::EXPORT);
    bench.exporter.revoke(&ticket);
    drop(attachment);
    bench.exporter.drop_region(region);
    same("after a revocation");
    assert_eq!(
        snapshot(bench.cold().md.attr()).len(),
        before.len(),
        "another context differs in its ids only"
    );
}

fn global_id_tells_the_scope(bench: &Bench) {
    let ticket = bench.exporter.export(bench.region(4096, 1));
    assert!(
        bench.importer.md.can_attach(ticket.component, &ticket.global_id),
        "the importer is in the scope"
    );
    for resource in bench.fixture.component.query_mds() {
        let md = bench.fixture.component.open_md(&resource, &bench.importer.params).unwrap();
        assert!(md.can_attach(ticket.component, &ticket.global_id), "{} is in the scope", resource.name);
    }
}

/// Where no importer can be, none takes a key for its own.
fn other_scopes_are_told_apart(bench: &Bench) {
    let places = bench.fixture.places;
    let other = Side::open(&bench.fixture);
    let ticket = bench.exporter.export(bench.exporter.create(other.usual(), 4096, Rights::READ_WRITE, 1));
    let can = other.md.can_attach(ticket.component, &ticket.global_id);
    assert_eq!(can, places.contains(&Place::TwoContexts), "another context of the same process");
    let there = Exporter::there(&bench.fixture);
    let ticket = there.export(there.create(other.usual(), 4096, Rights::READ_WRITE, 1));
    let can = other.md.can_attach(ticket.component, &ticket.global_id);
    assert_eq!(can, places.contains(&Place::TwoProcesses), "another process");
}
