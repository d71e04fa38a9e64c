//! The committed table of capabilities: what the components say, each line of it proved.

use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ucs::mem::page::page_size;
use uct::api::{AmoOp, AtomicOp, Component, MdFlags, PackFlags};
use uct::channel::Channel;
use uct::memory::{AccessError, LocalMut, Rights, StaleReason};
use uct::process::Process;
use uct::transports;

use crate::bench::{Bench, assert_holds, assert_revoked, whole};
use crate::fixture::{Fixture, Kind, Place, pattern};
use crate::{Check, iface, list};

pub(crate) const CHECKS: &[Check] = list![capabilities:
    the_table_is_what_components_say in Once,
    flags_are_what_the_table_says in Once,
    alloc in Once,
    reg in Once,
    export in Once,
    read_only in Once,
    mapped_view in Once,
    invalidate in Once,
    address_bound in Once,
    revocable in Once,
    atomics in Once,
    survives_exporter_stop in Once,
    peer_memory in Once,
    messages in Once,
];

/// Every capability, with the flag that announces it; each has a check of the same name, which proves it.
const ALL: [(&str, Option<MdFlags>); 12] = [
    ("alloc", Some(MdFlags::ALLOC)),
    ("reg", Some(MdFlags::REG)),
    ("export", Some(MdFlags::EXPORTED_MKEY)),
    ("read-only", None),
    ("mapped-view", Some(MdFlags::RKEY_PTR)),
    ("invalidate", Some(MdFlags::INVALIDATE)),
    ("address-bound", Some(MdFlags::VA_BOUND)),
    ("revocable", Some(MdFlags::REVOCABLE)),
    ("atomics", Some(MdFlags::ATOMICS)),
    ("survives-exporter-stop", None),
    ("peer-memory", Some(MdFlags::PEER_MEMORY)),
    ("messages", None),
];

/// A line of the committed table.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Line {
    transport: &'static str,
    capability: &'static str,
    supported: bool,
    note: String,
}

fn table() -> Vec<Line> {
    let text: &'static str = include_str!("../capabilities.txt");
    let lines = text.lines().filter(|line| !line.starts_with('#') && !line.trim().is_empty());
    lines
        .map(|line| {
            let mut words = line.split_whitespace();
            let mut word = || words.next().unwrap_or_else(|| panic!("a line with too few words: {line:?}"));
            let (transport, capability, answer) = (word(), word(), word());
            let supported = match answer {
                "yes" => true,
                "no" => false,
                other => panic!("neither yes nor no: {other:?}"),
            };
            Line { transport, capability, supported, note: words.collect::<Vec<_>>().join(" ") }
        })
        .collect()
}

fn lines_of(component: &dyn Component) -> Vec<Line> {
    let lines = component.capabilities().iter().map(|capability| Line {
        transport: component.name(),
        capability: capability.name,
        supported: capability.supported,
        note: capability.note.to_owned(),
    });
    lines.collect()
}

fn the_table_is_what_components_say(bench: &Bench) {
    let mut said = Vec::new();
    for &component in transports::components() {
        // The one under test speaks for itself.
        let mine = bench.fixture.component;
        said.extend(lines_of(if component.name() == mine.name() { mine } else { component }));
    }
    let committed = table();
    for line in &said {
        assert!(committed.contains(line), "not in capabilities.txt: {line:?}");
    }
    for line in &committed {
        assert!(said.contains(line), "capabilities.txt has, and no component says: {line:?}");
    }
    assert_eq!(said.len(), committed.len(), "no line stands there twice");
    for component in transports::components() {
        for (capability, _) in ALL {
            let of = |line: &&Line| line.transport == component.name() && line.capability == capability;
            assert_eq!(said.iter().filter(of).count(), 1, "{}: {capability}", component.name());
        }
    }
    assert_eq!(said.len(), transports::components().len() * ALL.len(), "every capability has a proof here");
    for (capability, _) in ALL {
        let proof = format!("capabilities::{}", capability.replace('-', "_"));
        assert!(CHECKS.iter().any(|check| check.name == proof), "no check is called {proof}");
    }
}

fn flags_are_what_the_table_says(bench: &Bench) {
    for (capability, flag) in ALL {
        let Some(flag) = flag else { continue };
        let (has, line) = (bench.importer.has(flag), announced(bench, capability));
        if !is_by_device(&line) {
            assert_eq!(has, line.supported, "{capability} and {flag:?}");
        }
    }
}

/// Whether a memory domain's flags may have what its transport has not in general: it depends on the device.
fn is_by_device(line: &Line) -> bool {
    !line.supported && line.note.contains("where the memory domain says ")
}

/// What the table says of the component under test.
fn announced(bench: &Bench, capability: &str) -> Line {
    let name = bench.fixture.component.name();
    let mut lines =
        table().into_iter().filter(|line| line.transport == name && line.capability == capability);
    lines.next().unwrap_or_else(|| panic!("{capability} of {name} is not in capabilities.txt"))
}

/// The table's answer and the component's own are what was found.
#[track_caller]
fn proved(bench: &Bench, capability: &str, found: bool) {
    let said = bench.fixture.component.capabilities().iter().find(|said| said.name == capability);
    let said = said.unwrap_or_else(|| panic!("the component does not say whether it has {capability}"));
    assert_eq!(said.supported, found, "{capability}: what the component says, and what was found");
    assert_eq!(announced(bench, capability).supported, found, "{capability}: the table, and what was found");
}

/// A bench in a place of the fixture's.
fn bench_in(fixture: &Fixture, place: Place) -> Option<Bench> {
    fixture.places.contains(&place).then(|| Bench::new(fixture, place))
}

fn alloc(bench: &Bench) {
    let mem = bench.local().md.alloc(page_size() + 1, Rights::READ_WRITE);
    proved(bench, "alloc", mem.is_ok_and(|mem| mem.len() == page_size() + 1));
}

/// Memory that others allocated: all kinds of it, or none.
fn reg(bench: &Bench) {
    let registered = bench.local().registered();
    let others = [Kind::Anonymous, Kind::Owned, Kind::OwnedReadOnly, Kind::Raw];
    let found = others.iter().filter(|kind| registered.contains(kind)).count();
    assert!(found == 0 || found == others.len(), "only {registered:?}");
    proved(bench, "reg", found > 0);
}

fn export(bench: &Bench) {
    let side = bench.local();
    let made = side.usual().make(&*side.md, 100, Rights::READ_WRITE, 3);
    let packs = side.md.reg(&made.mem).unwrap().packed_size(PackFlags::EXPORT).is_ok();
    if packs {
        let (_, _, attachment) = bench.attached(page_size(), 3);
        assert_holds(&*attachment, 3);
    }
    proved(bench, "export", packs);
}

fn read_only(bench: &Bench) {
    let len = page_size();
    let region = bench.exporter.create(bench.importer.usual(), len, Rights::READ, 3);
    let attachment = bench.attach(&bench.exporter.export(region));
    let denied = matches!(attachment.write(0, &[0x77]), Err(AccessError::AccessDenied { .. }));
    let kept = denied && bench.exporter.read(region, 0, len) == pattern(3, len);
    assert_holds(&*attachment, 3);
    proved(bench, "read-only", kept);
    let line = announced(bench, "read-only");
    if line.note.contains("kept by the kernel") {
        let bench =
            bench_in(&bench.fixture, Place::TwoContexts).expect("a place where both sides' descriptors are");
        assert!(written_through_descriptor(&bench, Rights::READ_WRITE), "the probe works");
        assert!(!written_through_descriptor(&bench, Rights::READ), "the kernel keeps it");
    } else {
        assert!(
            !kept || line.note.contains("kept by the library"),
            "the note says who keeps it: {:?}",
            line.note
        );
    }
}

/// Whether an importer who leaves the library aside can write: by its mapping, or through any descriptor of the memory.
fn written_through_descriptor(bench: &Bench, rights: Rights) -> bool {
    let region = bench.exporter.create(bench.importer.usual(), page_size(), rights, 3);
    let ticket = bench.exporter.export(region);
    let attachment = bench.attach(&ticket);
    let mappings = mappings();
    let exported = format!("{:x}-", ticket.address);
    let (_, _, inode) =
        mappings.iter().find(|(range, ..)| range.starts_with(&exported)).expect("both sides are here");
    let imported = mappings.iter().filter(|(range, _, of)| of == inode && !range.starts_with(&exported));
    let permissions: Vec<&str> = imported.map(|(_, permissions, _)| permissions.as_str()).collect();
    let expected = if rights.contains(Rights::WRITE) { "rw-s" } else { "r--s" };
    assert_eq!(permissions, [expected], "the importer's mapping");
    let mut tried = 0;
    let mut written = false;
    for entry in std::fs::read_dir("/proc/self/fd").unwrap().flatten() {
        let path = entry.path();
        if std::fs::metadata(&path).is_ok_and(|file| file.ino() == *inode) {
            tried += 1;
            let file = std::fs::OpenOptions::new().read(true).write(true).open(&path);
            written |= file.is_ok_and(|file| file.write_all_at(b"\x77", 0).is_ok());
        }
    }
    assert!(tried > 0, "the exporter's descriptor is in this process");
    assert_eq!(
        written,
        whole(&*attachment) != pattern(3, page_size()),
        "what was answered, and what is there"
    );
    written
}

/// Range, permissions and inode of each mapping of this process (`proc_pid_maps(5)`).
fn mappings() -> Vec<(String, String, u64)> {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let parse = |line: &str| {
        let mut words = line.split_whitespace();
        let mut word = || words.next().unwrap().to_owned();
        let (range, permissions, _, _) = (word(), word(), word(), word());
        (range, permissions, word().parse().unwrap())
    };
    maps.lines().map(parse).collect()
}

fn mapped_view(bench: &Bench) {
    let (region, _, attachment) = bench.attached(page_size(), 3);
    let view = attachment.view();
    if let Some(view) = view {
        view.write(5, b"by a store").unwrap();
        assert_eq!(bench.exporter.read(region, 5, 10), b"by a store");
    }
    proved(bench, "mapped-view", view.is_some());
}

/// A key becomes invalid while its memory stays registered.
fn invalidate(bench: &Bench) {
    let side = bench.local();
    let made = side.usual().make(&*side.md, 100, Rights::READ_WRITE, 3);
    let flags = PackFlags::EXPORT | PackFlags::INVALIDATE_RMA | PackFlags::INVALIDATE_AMO;
    let packs = side.md.reg(&made.mem).unwrap().packed_size(flags).is_ok();
    if packs {
        let region = bench.region(page_size(), 3);
        let ticket = bench.exporter.export_with(region, flags);
        let attachment = bench.attach(&ticket);
        bench.exporter.revoke(&ticket);
        assert_revoked(&*attachment);
        assert_holds(&*bench.attach(&bench.exporter.export_with(region, flags)), 3);
    }
    proved(bench, "invalidate", packs);
}

/// Puts other memory at the address that was exported, and looks which of the two is reached: the flag of the memory domain says it.
fn address_bound(bench: &Bench) {
    let side = bench.local();
    let kind = if side.registered().contains(&Kind::Raw) { Kind::Raw } else { side.usual() };
    let region = bench.exporter.create(kind, page_size(), Rights::READ_WRITE, 3);
    let attachment = bench.attach(&bench.exporter.export(region));
    assert_holds(&*attachment, 3);
    bench.exporter.replace(region, b"other memory");
    let mut seen = [0; 12];
    attachment.read(0, &mut seen).unwrap();
    let other = &seen == b"other memory";
    assert!(other || seen == pattern(3, 12)[..], "neither the one nor the other");
    assert_eq!(
        other,
        bench.importer.has(MdFlags::VA_BOUND),
        "what the memory domain says, and what was found"
    );
    let line = announced(bench, "address-bound");
    proved(bench, "address-bound", if is_by_device(&line) { line.supported } else { other });
}

/// Whether a revocation ends every access, also through what the importer holds.
fn revocable(bench: &Bench) {
    let (region, ticket, attachment) = bench.attached(page_size(), 3);
    bench.exporter.revoke(&ticket);
    assert_revoked(&*attachment);
    bench.exporter.write(region, 0, b"after it");
    let view = attachment.view();
    let mut seen = [0; 8];
    let read = view.is_some_and(|view| view.read(0, &mut seen).is_ok()) && &seen == b"after it";
    let stored = view.is_some_and(|view| view.write(8, b"a store").is_ok());
    let written = stored && bench.exporter.read(region, 8, 7) == b"a store";
    proved(bench, "revocable", !read && !written);
}

/// Operations on words; where there are none, that they leave the memory alone.
fn atomics(bench: &Bench) {
    let (region, _, attachment) = bench.attached(page_size(), 3);
    bench.exporter.write(region, 0, &[0; 16]);
    let answers = [
        attachment.atomic(0, AtomicOp::U64(AmoOp::Add(1 << 40))),
        attachment.atomic(8, AtomicOp::U32(AmoOp::Cswap { expected: 0, new: 7 })),
    ];
    let found = answers.iter().all(|answer| *answer == Ok(0));
    let refused = answers.iter().all(|answer| matches!(answer, Err(AccessError::Unsupported { .. })));
    assert!(found || refused, "neither the one nor the other: {answers:?}");
    let (word, half): (u64, u32) = if found { (1 << 40, 7) } else { (0, 0) };
    let expected = [&word.to_ne_bytes()[..], &half.to_ne_bytes(), &[0; 4]].concat();
    assert_eq!(bench.exporter.read(region, 0, 16), expected);
    proved(bench, "atomics", found);
}

/// What is attached can be reached while the exporter's process is stopped.
fn survives_exporter_stop(bench: &Bench) {
    let Some(bench) = bench_in(&bench.fixture, Place::TwoProcesses) else {
        // No other process can attach (see `attr::other_scopes_are_told_apart`): there is none to be stopped.
        return proved(bench, "survives-exporter-stop", false);
    };
    let (region, _, attachment) = bench.attached(page_size(), 3);
    bench.exporter.process().lock().stop();
    let begin = Instant::now();
    let mut bytes = vec![0; page_size()];
    let read = attachment.read(0, &mut bytes).is_ok() && bytes == pattern(3, page_size());
    let written = attachment.write(0, b"meanwhile").is_ok();
    let survives = read && written && attachment.check().is_ok() && begin.elapsed() < Duration::from_secs(1);
    bench.exporter.process().lock().cont();
    assert_eq!(bench.exporter.read(region, 0, 9) == b"meanwhile", written);
    proved(&bench, "survives-exporter-stop", survives);
}

/// The memory of another process, by its addresses, where nothing was exported: as long as that process keeps it, and is the one meant.
fn peer_memory(bench: &Bench) {
    let Some(bench) = bench_in(&bench.fixture, Place::TwoProcesses) else {
        let (_, memory) = ucs::mem::Memfd::create("test", page_size(), false).unwrap();
        let process = Process::open(rustix::process::getpid()).unwrap();
        let channel = Channel::new(Arc::new(memory), 0, true, Arc::new(process)).unwrap();
        return proved(bench, "peer-memory", bench.importer.md.peer_memory(channel).is_some());
    };
    let region = bench.region(3 * page_size(), 3);
    let address = bench.exporter.export(region).address;
    let pid = |pid| rustix::process::Pid::from_raw(pid).unwrap();
    let other = pid(bench.exporter.process().lock().pid());
    let channel = bench.exporter.share(Process::open(other).unwrap());
    let Some(mut memory) = bench.importer.md.peer_memory(channel) else {
        return proved(&bench, "peer-memory", false);
    };
    let mut get = |address, len| {
        let mut bytes = vec![0; len];
        memory.get(address, &mut LocalMut::bytes(&mut bytes)).map(|()| bytes)
    };
    assert_eq!(get(address, 3 * page_size()).unwrap(), pattern(3, 3 * page_size()));
    assert_eq!(get(address + 5, 3).unwrap(), pattern(3, 8)[5..]);
    assert!(matches!(get(8, 8), Err(AccessError::Stale { why: StaleReason::Unmapped, .. })));
    bench.exporter.process().lock().stop();
    assert_eq!(get(address, 8).unwrap(), pattern(3, 8), "a process that is stopped");
    bench.exporter.process().lock().cont();
    // Another process has the pid, for all that is known: it lacks what both share.
    let stranger = testkit::Role::new("exporter").arg(bench.fixture.component.name()).start();
    let mistaken = bench.exporter.share(Process::open(pid(stranger.pid())).unwrap());
    assert!(bench.importer.md.peer_memory(mistaken).is_none());
    // The other side has another channel now: what both shared is not there any more.
    assert!(matches!(get(address, 8), Err(AccessError::Stale { why: StaleReason::ExporterGone, .. })));
    let channel = bench.exporter.share(Process::open(other).unwrap());
    let mut memory = bench.importer.md.peer_memory(channel).unwrap();
    bench.exporter.give_up();
    let given_up = memory.get(address, &mut LocalMut::bytes(&mut [0; 8]));
    assert!(matches!(given_up, Err(AccessError::Stale { why: StaleReason::Revoked, .. })), "{given_up:?}");
    bench.exporter.process().lock().kill();
    let dead = memory.get(address, &mut LocalMut::bytes(&mut [0; 8]));
    assert!(dead.is_err(), "its process has ended");
    proved(&bench, "peer-memory", true);
}

/// An interface, by which a message arrives.
fn messages(bench: &Bench) {
    proved(bench, "messages", iface::has_messages(bench));
}
