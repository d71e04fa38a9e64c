//! What an import makes of handles that were changed on the way, class by class.

use ucp::wire::handle::{Handle, MAX_ENTRIES};
use ucp::{Context, Features, ImportError, ImportedRegion, MemMap, PackedMemh, Region, Status};
use uct::transports::{cma, self_, shm};

use crate::support::{decode_living, encode, entry, repair};

/// Component numbers, as in handles.
const SELF: u16 = 1;
const SHM: u16 = 2;
const CMA: u16 = 3;

/// Two exporting contexts with four regions, the last one of memory that rucx has not allocated; and importing ones: all in this
/// process.
#[derive(Debug)]
pub(crate) struct World {
    pub(crate) host: Context,
    pub(crate) dpu: Context,
    /// Two that have one transport each.
    pub(crate) by_shm: Context,
    pub(crate) by_cma: Context,
    pub(crate) exports: Vec<(Region, PackedMemh)>,
    /// What the exports' handles say, and their bytes.
    pub(crate) handles: Vec<(Handle, Vec<u8>)>,
}

/// The bytes of region `index`: no two regions have the same.
pub(crate) fn content(index: usize, len: usize) -> Vec<u8> {
    let byte = |at: usize| u8::try_from((at * 7 + at / 251 + 85 * index) % 256).expect("below 256");
    (0..len).map(byte).collect()
}

fn context(tls: &str) -> Context {
    let builder = Context::builder().ignore_env().features(Features::EXPORTED_MEMH).set("UCX_TLS", tls);
    builder.set("UCX_IMPORT_TIMEOUT", "500ms").build().expect("a context")
}

/// A context that imports by shm over a connection or not at all.
fn by_socket() -> Context {
    let builder = Context::builder().ignore_env().features(Features::EXPORTED_MEMH).set("UCX_TLS", "mm");
    builder.set("UCX_SHM_ATTACH", "socket").set("UCX_IMPORT_TIMEOUT", "500ms").build().expect("a context")
}

impl World {
    pub(crate) fn new() -> Self {
        let (host, other, dpu) = (context("all"), context("all"), context("all"));
        let (by_shm, by_cma) = (context("mm"), context("cma"));
        let maps = [
            (&host, MemMap::allocate(8192)),
            (&host, MemMap::allocate(5000)),
            (&other, MemMap::allocate(8192)),
            (&host, MemMap::buffer(vec![0; 8192])),
        ];
        let mut exports = Vec::new();
        for (index, (ctx, map)) in maps.into_iter().enumerate() {
            let region = ctx.mem_map(map.exported()).expect("memory");
            region.write(0, &content(index, region.len())).expect("it fits");
            let packed = region.memh_pack().expect("a handle");
            exports.push((region, packed));
        }
        let bytes = exports.iter().map(|(_, packed)| packed.as_bytes().to_vec());
        let handles = bytes.map(|bytes| (decode_living(&bytes).expect("a handle"), bytes)).collect();
        Self { host, dpu, by_shm, by_cma, exports, handles }
    }

    /// The contexts that import, with what each may use, best first.
    pub(crate) fn importers(&self) -> [(&Context, &'static [u16]); 4] {
        [
            (&self.host, &[SELF, SHM, CMA]),
            (&self.dpu, &[SHM, CMA]),
            (&self.by_shm, &[SHM]),
            (&self.by_cma, &[CMA]),
        ]
    }

    /// The import must be region `index`, all of it.
    pub(crate) fn assert_is(&self, imported: &ImportedRegion, index: usize) {
        let len = self.exports[index].0.len();
        assert_eq!(imported.len(), len as u64);
        let mut found = vec![0; len];
        imported.read(0, &mut found).expect("the export lives");
        assert!(found == content(index, len), "another region's bytes");
    }

    /// The index of the region whose token a key of `component` carries.
    pub(crate) fn region_of(&self, component: u16, mkey: &[u8]) -> Option<usize> {
        let token = token(component, mkey)?;
        let carries = |handle: &Handle| {
            handle.entries.iter().any(|entry| self::token(entry.component, &entry.mkey) == Some(token))
        };
        self.handles.iter().position(|(handle, _)| carries(handle))
    }
}

fn token(component: u16, mkey: &[u8]) -> Option<[u8; 16]> {
    match component {
        SELF => Some(*self_::mkey::Mkey::decode(mkey)?.token.as_bytes()),
        SHM => Some(*shm::mkey::Mkey::decode(mkey).ok()?.token.as_bytes()),
        CMA => Some(*cma::mkey::Mkey::decode(mkey).ok()?.token.as_bytes()),
        _ => None,
    }
}

/// The bytes of the first region's handle after a change of its content.
fn changed(world: &World, change: impl FnOnce(&mut Handle)) -> Vec<u8> {
    let mut handle = world.handles[0].0.clone();
    change(&mut handle);
    encode(&handle)
}

fn status(result: &Result<ImportedRegion, ImportError>) -> Status {
    result.as_ref().map_or_else(ImportError::status, |_| Status::Ok)
}

/// What all ways to the memory must say.
#[track_caller]
fn all(world: &World, bytes: &[u8], expected: Status, what: &str) {
    for (ctx, usable) in world.importers() {
        assert_eq!(status(&ctx.mem_import(bytes)), expected, "{what}, by {usable:?}");
    }
}

fn name(component: u16) -> &'static str {
    uct::api::ComponentId(component).name().expect("a component's")
}

/// The import is made by the first of those components that an importer can use and that are good, and it is region `index`.
#[track_caller]
fn by_the_first(world: &World, bytes: &[u8], index: usize, good: &[u16], otherwise: Status) {
    for (ctx, usable) in world.importers() {
        let imported = ctx.mem_import(bytes);
        match usable.iter().find(|component| good.contains(component)) {
            Some(component) => {
                let imported = imported.unwrap_or_else(|error| panic!("{good:?}, by {usable:?}: {error}"));
                assert_eq!(imported.transport(), name(*component), "{good:?}, by {usable:?}");
                world.assert_is(&imported, index);
            }
            None => assert_eq!(status(&imported), otherwise, "{good:?}, by {usable:?}"),
        }
    }
}

#[test]
fn unchanged_handles_are_imported() {
    let world = World::new();
    let components = |index: usize| -> Vec<u16> {
        world.handles[index].0.entries.iter().map(|entry| entry.component).collect()
    };
    assert_eq!(
        [0, 1, 2, 3].map(components),
        [vec![SELF, SHM, CMA], vec![SELF, SHM, CMA], vec![SELF, SHM, CMA], vec![SELF, CMA]]
    );
    for index in [0, 1, 3] {
        by_the_first(&world, &world.handles[index].1, index, &components(index), Status::Unreachable);
    }
    // Of another context: self is none of the ways.
    by_the_first(&world, &world.handles[2].1, 2, &[SHM, CMA], Status::Unreachable);
    for (ctx, _) in world.importers() {
        assert_eq!(ctx.stats().imports, 0);
    }
}

#[test]
fn bytes_changed_on_the_way_are_no_handle() {
    let world = World::new();
    for index in [0, 3] {
        let bytes = &world.handles[index].1;
        for at in 0..bytes.len() {
            let mut flipped = bytes.clone();
            flipped[at] ^= 0x10;
            all(&world, &flipped, Status::InvalidHandle, &format!("byte {at}"));
            all(&world, &bytes[..at], Status::InvalidHandle, &format!("{at} bytes"));
        }
        let mut longer = bytes.clone();
        longer.push(0);
        all(&world, &longer, Status::InvalidHandle, "longer");
    }
    assert_eq!(world.dpu.stats().imports, 0);
}

#[test]
fn a_wrong_token_is_denied() {
    let world = World::new();
    for (component, at) in [(SELF, 8), (SHM, 48), (CMA, 48)] {
        for bit in 0..128 {
            let bytes = changed(&world, |handle| {
                handle.entries.retain(|entry| entry.component == component);
                handle.entries[0].mkey[at + bit / 8] ^= 1 << (bit % 8);
            });
            let ctx = if component == SELF { &world.host } else { &world.dpu };
            let error = ctx.mem_import(&bytes).unwrap_err();
            assert!(
                matches!(error, ImportError::AccessDenied { .. }),
                "bit {bit} of component {component}: {error}"
            );
        }
    }
}

#[test]
fn the_right_token_with_another_description_is_forged() {
    type Change = fn(&mut Handle);
    let world = World::new();
    let changes: [Change; 6] = [
        |handle| handle.address += 4096,
        |handle| handle.address -= 8,
        |handle| handle.length -= 1,
        |handle| handle.length += 1,
        |handle| handle.length = 1 << 40,
        |handle| handle.epoch += 2,
    ];
    for (index, change) in changes.into_iter().enumerate() {
        let bytes = changed(&world, change);
        for (ctx, usable) in world.importers() {
            let error = ctx.mem_import(&bytes).unwrap_err();
            assert!(matches!(error, ImportError::Forged { .. }), "change {index}, by {usable:?}: {error}");
        }
    }
    // Not so large that it only fails for want of memory here.
    let huge = changed(&world, |handle| handle.length = u64::MAX - handle.address);
    all(&world, &huge, Status::InvalidHandle, "huge");
}

#[test]
fn another_export_s_id_or_line_is_stale() {
    let world = World::new();
    let other_id = world.handles[1].0.registration_id;
    for id in [other_id, 1 << 60] {
        all(&world, &changed(&world, |handle| handle.registration_id = id), Status::Stale, "another id");
    }
    for line in [0_u32, 2, 3, 65_535, 65_536, u32::MAX] {
        let moved = changed(&world, |handle| {
            for (entry, at) in handle.entries.iter_mut().zip([0, 4, 4]) {
                entry.mkey[at..at + 4].copy_from_slice(&line.to_le_bytes());
            }
        });
        all(&world, &moved, Status::Stale, &format!("line {line}"));
    }
}

#[test]
fn entries_of_two_handles_do_not_mix() {
    let world = World::new();
    let (first, second) = (&world.handles[0].0, &world.handles[1].0);
    let mixed = Handle { entries: second.entries.clone(), ..first.clone() };
    all(&world, &encode(&mixed), Status::Stale, "another region's entries");
    // The name that shm's key tells is not that of the context the header tells. By cma the header's alone leads to a context:
    // there the token is none.
    let of_another_context = encode(&Handle { entries: world.handles[2].0.entries.clone(), ..first.clone() });
    assert_eq!(status(&world.by_shm.mem_import(&of_another_context)), Status::InvalidHandle);
    for ctx in [&world.by_cma, &world.dpu] {
        assert_eq!(status(&ctx.mem_import(&of_another_context)), Status::AccessDenied);
    }
    // Each entry from the one or from the other: those that belong to the header are good, whichever they are.
    for choice in 0..8 {
        let belongs = |index: usize| choice >> index & 1 == 1;
        let entries =
            (0..3).map(|index| if belongs(index) { &first.entries[index] } else { &second.entries[index] });
        let bytes = encode(&Handle { entries: entries.cloned().collect(), ..first.clone() });
        let good: Vec<u16> =
            (0..3).filter(|index| belongs(*index)).map(|index| first.entries[index].component).collect();
        by_the_first(&world, &bytes, 0, &good, Status::Stale);
    }
}

#[test]
fn dropped_entries_leave_the_other_ways() {
    let world = World::new();
    for (index, components) in [(0, &[SELF, SHM, CMA][..]), (3, &[SELF, CMA])] {
        for choice in 0..1 << components.len() {
            let stays = |at: usize| choice >> at & 1 == 1;
            let mut handle = world.handles[index].0.clone();
            let mut at = 0..;
            handle.entries.retain(|_| at.next().is_some_and(stays));
            let left: Vec<u16> = handle.entries.iter().map(|entry| entry.component).collect();
            by_the_first(&world, &encode(&handle), index, &left, Status::Unreachable);
        }
    }
}

#[test]
fn ids_of_elsewhere_are_not_tried() {
    let world = World::new();
    for (index, ctx) in [(0, &world.host), (1, &world.dpu), (2, &world.dpu)] {
        for id in [&b""[..], b"elsewhere", &[0; 255]] {
            let bytes = changed(&world, |handle| {
                handle.entries.swap(0, index);
                handle.entries.truncate(1);
                handle.entries[0].global_id = id.to_vec();
            });
            let error = ctx.mem_import(&bytes).unwrap_err();
            assert!(matches!(error, ImportError::Unreachable { .. }), "{error}");
        }
    }
}

#[test]
fn keys_that_are_none_are_told() {
    let world = World::new();
    for (index, ctx) in [(0, &world.host), (1, &world.dpu), (2, &world.dpu)] {
        for key in [&b""[..], b"short", &[0xff; 32], &[0xff; 80], &[0; 80], &[0xff; 216], &[0; 1024]] {
            let bytes = changed(&world, |handle| {
                handle.entries.swap(0, index);
                handle.entries.truncate(1);
                handle.entries[0].mkey = key.to_vec();
            });
            let error = ctx.mem_import(&bytes).unwrap_err();
            assert!(matches!(error, ImportError::Forged { .. }), "{} bytes: {error}", key.len());
        }
    }
}

/// Fields of the shm key that only lead to the exporter: a wrong one leads nowhere, never elsewhere.
#[test]
fn a_key_that_leads_elsewhere_is_never_another_region() {
    let world = World::new();
    let with = |change: &dyn Fn(&mut shm::mkey::Mkey)| {
        let bytes = changed(&world, |handle| {
            let mut key = shm::mkey::Mkey::decode(&handle.entries[1].mkey).expect("a key");
            change(&mut key);
            key.encode(&mut handle.entries[1].mkey).expect("216 bytes");
        });
        status(&by_socket().mem_import(&bytes))
    };
    let other = shm::mkey::Mkey::decode(&world.handles[2].0.entries[1].mkey).expect("a key");
    assert_eq!(with(&|key| key.service[10] ^= 1), Status::InvalidHandle, "not this context's socket");
    assert_eq!(
        with(&|key| key.service = other.service.clone()),
        Status::InvalidHandle,
        "another context listens there"
    );
    assert_eq!(with(&|key| key.exporter.pidfd_inode ^= 2), Status::Stale, "another process listens there");
    assert_eq!(with(&|key| key.service = vec![0; 108]), Status::InvalidHandle, "no such address");
    // Hints for importers without a connection: with one they do nothing.
    assert_eq!(with(&|key| key.exporter.pid += 1), Status::Ok);
    assert_eq!(with(&|key| key.region = other.region), Status::Ok);
    assert_eq!(with(&|key| key.files = other.files), Status::Ok);
}

/// The same of cma's key, by which a process is accessed: only the exporter's, which holds the socket and the nonce.
#[test]
fn a_cma_key_that_leads_elsewhere_is_never_another_memory() {
    let world = World::new();
    let key_of = |index: usize, at: usize| {
        cma::mkey::Mkey::decode(&world.handles[index].0.entries[at].mkey).expect("a key")
    };
    for (index, at) in [(0, 2), (3, 1)] {
        let with = |change: &dyn Fn(&mut cma::mkey::Mkey)| {
            let mut handle = world.handles[index].0.clone();
            let mut key = key_of(index, at);
            change(&mut key);
            key.encode(&mut handle.entries[at].mkey).expect("72 bytes");
            let imported = context("cma").mem_import(&encode(&handle));
            if let Ok(imported) = &imported {
                world.assert_is(imported, index);
            }
            status(&imported)
        };
        assert_eq!(
            with(&|key| key.exporter.pidfd_inode ^= 2),
            Status::Stale,
            "another process listens there"
        );
        assert_eq!(
            with(
                &|key| (key.exporter.pidfd_inode, key.exporter.start_time) = (0, key.exporter.start_time + 1)
            ),
            Status::Stale,
            "another process listens there, as kernels before 6.9 tell"
        );
        assert_eq!(
            with(&|key| (key.exporter.pidfd_inode, key.exporter.start_time) = (0, 0)),
            Status::Unreachable,
            "it cannot be told which process it is"
        );
        assert_eq!(with(&|key| key.exporter.net_ns += 1), Status::Unreachable, "another network namespace");
        // The process is the one behind the socket: what the key tells of it beside its identity is nothing to go by.
        assert_eq!(with(&|key| key.exporter.pid = 1), Status::Ok);
        assert_eq!(with(&|key| key.exporter.pid_ns += 1), Status::Ok);
        assert_eq!(with(&|key| key.exporter.user_ns += 1), Status::Ok);
        assert_eq!(with(&|key| key.exporter.net_ns = 0), Status::Ok);
        assert_eq!(with(&|key| key.in_directory = true), Status::Ok);
    }
}

/// Without a connection, the key's descriptors and inodes are all that leads to the region.
#[test]
fn descriptors_that_lead_elsewhere_are_never_another_region() {
    for way in ["proc", "pidfd"] {
        let world = World::new();
        let builder = Context::builder().ignore_env().features(Features::EXPORTED_MEMH).set("UCX_TLS", "mm");
        let dpu = builder.set("UCX_SHM_ATTACH", way).build().unwrap();
        let with = |change: &dyn Fn(&mut shm::mkey::Mkey)| {
            let bytes = changed(&world, |handle| {
                let mut key = shm::mkey::Mkey::decode(&handle.entries[1].mkey).expect("a key");
                change(&mut key);
                key.encode(&mut handle.entries[1].mkey).expect("216 bytes");
            });
            let imported = dpu.mem_import(&bytes);
            if let Ok(imported) = &imported {
                world.assert_is(imported, 0);
            }
            status(&imported)
        };
        assert_eq!(with(&|_| ()), Status::Ok, "{way}");
        let second = shm::mkey::Mkey::decode(&world.handles[1].0.entries[1].mkey).expect("a key");
        assert_eq!(with(&|key| key.region.1 += 1), Status::Stale, "{way}: the descriptor is another file");
        assert_eq!(
            with(&|key| key.region.0 = second.region.0),
            Status::Stale,
            "{way}: the descriptor is another file"
        );
        assert_eq!(with(&|key| key.region.0 = 1 << 30), Status::Stale, "{way}: no such descriptor");
        assert_eq!(with(&|key| key.region.0 = u32::MAX), Status::Stale, "{way}: no descriptor at all");
        assert_eq!(with(&|key| key.files.table = key.region), Status::Unreachable, "{way}: no table");
        assert_eq!(with(&|key| key.files.vault = key.region), Status::Unreachable, "{way}: no vault");
        assert_eq!(with(&|key| key.exporter.pid = 0), Status::InvalidHandle, "{way}: no pid");
        assert_eq!(with(&|key| key.exporter.pid = 1 << 31), Status::InvalidHandle, "{way}: no pid");
        assert_eq!(
            with(&|key| key.exporter.pid_ns += 1),
            Status::Unreachable,
            "{way}: another pid namespace"
        );
        assert_eq!(with(&|key| key.exporter.pidfd_inode ^= 2), Status::Stale, "{way}: another process");
        assert_eq!(with(&|_| ()), Status::Ok, "{way}, again");
    }
}

/// After openucx/ucx issue 10233: any number of entries against any number of memory domains.
#[test]
fn as_many_entries_as_there_may_be_around_the_valid_one() {
    let world = World::new();
    for (tls, used) in [("all", "shm"), ("self", ""), ("mm", "shm"), ("shm", "shm"), ("cma", "cma")] {
        for count in [0, 1, 15, MAX_ENTRIES - 3] {
            let bytes = changed(&world, |handle| {
                // Some of unknown components, some of known ones that mean something elsewhere only; before and after.
                let foreign = (0..count).map(|n| {
                    let tag = u8::try_from(n).expect("at most 32");
                    let component = [0, SELF, SHM, CMA, 4, u16::MAX][n % 6];
                    entry(component, &vec![tag; n * 8], &vec![tag; n * 32])
                });
                handle.entries.extend(foreign);
                handle.entries.sort_by(|a, b| (a.component, &a.global_id).cmp(&(b.component, &b.global_id)));
            });
            match context(tls).mem_import(&bytes) {
                Ok(imported) => {
                    assert_eq!(imported.transport(), used);
                    world.assert_is(&imported, 0);
                }
                Err(error) => {
                    assert!(tls == "self" && error.status() == Status::Unreachable, "{tls}, {count}: {error}")
                }
            }
            world.assert_is(&world.host.mem_import(&bytes).unwrap(), 0);
        }
    }
    let foreign = |handle: &mut Handle, components: std::ops::Range<u16>| {
        handle.entries.extend(components.map(|component| entry(component, b"", b"")));
    };
    all(&world, &changed(&world, |handle| foreign(handle, 4..33)), Status::Ok, "32 entries");
    let mut handle = world.handles[0].0.clone();
    foreign(&mut handle, 4..34);
    assert!(handle.encode().is_err(), "33 entries");
}

#[test]
fn a_revoked_handle_stays_stale_whatever_is_changed() {
    let world = World::new();
    world.exports[0].1.revoke().unwrap();
    // The same line is taken again at once: by another export, with another token.
    let again = world.exports[0].0.memh_pack().unwrap();
    let renewed = decode_living(again.as_bytes()).unwrap();
    assert_eq!(renewed.entries[0].mkey[..4], world.handles[0].0.entries[0].mkey[..4], "the line is the same");
    all(&world, &world.handles[0].1, Status::Stale, "as it was");
    let renumbered = changed(&world, |handle| handle.epoch = renewed.epoch);
    all(&world, &renumbered, Status::Stale, "with the new epoch");
    let renamed = changed(&world, |handle| {
        (handle.epoch, handle.registration_id) = (renewed.epoch, renewed.registration_id);
    });
    all(&world, &renamed, Status::AccessDenied, "with all but the new token");
    by_the_first(&world, again.as_bytes(), 0, &[SELF, SHM, CMA], Status::Stale);
}

#[test]
fn a_region_without_bytes_is_imported_as_such_and_nothing_else_is() {
    let world = World::new();
    let empty = world.host.mem_map(MemMap::allocate(0).exported()).unwrap().memh_pack().unwrap();
    for (ctx, _) in world.importers() {
        let imported = ctx.mem_import(empty.as_bytes()).unwrap();
        assert_eq!((imported.len(), imported.transport()), (0, "none"));
    }
    // A handle of memory with bytes, and with the id of none: once taken for a region without bytes.
    let mut nameless = world.handles[0].1.clone();
    nameless[48..56].fill(0);
    repair(&mut nameless);
    all(&world, &nameless, Status::InvalidHandle, "nameless");
}
