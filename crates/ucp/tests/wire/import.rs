//! What an import makes of handles that were changed on the way, class by class.

use ucp::wire::handle::{Handle, MAX_ENTRIES};
use ucp::{Context, Features, ImportError, ImportedRegion, MemMap, PackedMemh, Region, Status};
use uct::transports::{self_, shm};

use crate::support::{decode, encode, entry, repair};

/// Component numbers, as in handles.
const SELF: u16 = 1;
const SHM: u16 = 2;

/// Two exporting contexts with three regions, and an importing one: all in this process.
#[derive(Debug)]
pub(crate) struct World {
    pub(crate) host: Context,
    pub(crate) dpu: Context,
    pub(crate) exports: Vec<(Region, PackedMemh)>,
    /// What the exports' handles say, and their bytes.
    pub(crate) handles: Vec<(Handle, Vec<u8>)>,
}

/// The bytes of region `index`: no two regions have the same.
pub(crate) fn content(index: usize, len: usize) -> Vec<u8> {
    let byte = |at: usize| u8::try_from((at * 7 + at / 251 + 85 * index) % 256).expect("below 256");
    (0..len).map(byte).collect()
}

fn context() -> Context {
    let builder = Context::builder().ignore_env().features(Features::EXPORTED_MEMH);
    builder.set("UCX_IMPORT_TIMEOUT", "500ms").build().expect("a context")
}

/// A context that imports over a connection or not at all.
fn by_socket() -> Context {
    let builder = Context::builder().ignore_env().features(Features::EXPORTED_MEMH);
    builder.set("UCX_SHM_ATTACH", "socket").set("UCX_IMPORT_TIMEOUT", "500ms").build().expect("a context")
}

impl World {
    pub(crate) fn new() -> Self {
        let (host, other, dpu) = (context(), context(), context());
        let mut exports = Vec::new();
        for (index, (ctx, len)) in [(&host, 8192), (&host, 5000), (&other, 8192)].into_iter().enumerate() {
            let region = ctx.mem_map(MemMap::allocate(len).exported()).expect("memory");
            region.write(0, &content(index, len)).expect("it fits");
            let packed = region.memh_pack().expect("a handle");
            exports.push((region, packed));
        }
        let bytes = exports.iter().map(|(_, packed)| packed.as_bytes().to_vec());
        let handles = bytes.map(|bytes| (decode(&bytes).expect("a handle"), bytes)).collect();
        Self { host, dpu, exports, handles }
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

/// What both ways to the memory say: within the exporting context, and from another one.
fn both(world: &World, bytes: &[u8]) -> (Status, Status) {
    (status(&world.host.mem_import(bytes)), status(&world.dpu.mem_import(bytes)))
}

#[test]
fn unchanged_handles_are_imported() {
    let world = World::new();
    for (index, (_, bytes)) in world.handles.iter().enumerate() {
        let imported = world.dpu.mem_import(bytes).unwrap();
        assert_eq!(imported.transport(), "shm");
        world.assert_is(&imported, index);
        let imported = world.host.mem_import(bytes).unwrap();
        assert_eq!(imported.transport(), if index < 2 { "self" } else { "shm" });
        world.assert_is(&imported, index);
    }
    assert_eq!((world.dpu.stats().imports, world.host.stats().imports), (0, 0));
}

#[test]
fn bytes_changed_on_the_way_are_no_handle() {
    let world = World::new();
    let bytes = &world.handles[0].1;
    for at in 0..bytes.len() {
        let mut flipped = bytes.clone();
        flipped[at] ^= 0x10;
        assert_eq!(both(&world, &flipped), (Status::InvalidHandle, Status::InvalidHandle), "byte {at}");
        assert_eq!(both(&world, &bytes[..at]), (Status::InvalidHandle, Status::InvalidHandle), "{at} bytes");
    }
    let mut longer = bytes.clone();
    longer.push(0);
    assert_eq!(both(&world, &longer), (Status::InvalidHandle, Status::InvalidHandle));
    assert_eq!(world.dpu.stats().imports, 0);
}

#[test]
fn a_wrong_token_is_denied() {
    let world = World::new();
    for (component, at) in [(SELF, 8), (SHM, 48)] {
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
        for ctx in [&world.host, &world.dpu] {
            let error = ctx.mem_import(&bytes).unwrap_err();
            assert!(matches!(error, ImportError::Forged { .. }), "change {index}: {error}");
        }
    }
    // Not so large that it only fails for want of memory here.
    let huge = changed(&world, |handle| handle.length = u64::MAX - handle.address);
    assert_eq!(both(&world, &huge), (Status::InvalidHandle, Status::InvalidHandle));
}

#[test]
fn another_export_s_id_or_line_is_stale() {
    let world = World::new();
    let other_id = world.handles[1].0.registration_id;
    assert_eq!(
        both(&world, &changed(&world, |handle| handle.registration_id = other_id)),
        (Status::Stale, Status::Stale)
    );
    assert_eq!(
        both(&world, &changed(&world, |handle| handle.registration_id = 1 << 60)),
        (Status::Stale, Status::Stale)
    );
    let slot = |slot: u32| {
        move |handle: &mut Handle| {
            handle.entries[0].mkey[..4].copy_from_slice(&slot.to_le_bytes());
            handle.entries[1].mkey[4..8].copy_from_slice(&slot.to_le_bytes());
        }
    };
    for line in [0, 2, 3, 65_535, 65_536, u32::MAX] {
        assert_eq!(both(&world, &changed(&world, slot(line))), (Status::Stale, Status::Stale), "line {line}");
    }
}

#[test]
fn entries_of_two_handles_do_not_mix() {
    let world = World::new();
    let (first, second) = (&world.handles[0].0, &world.handles[1].0);
    let mixed = Handle { entries: second.entries.clone(), ..first.clone() };
    assert_eq!(both(&world, &encode(&mixed)), (Status::Stale, Status::Stale));
    let of_another_context = Handle { entries: world.handles[2].0.entries.clone(), ..first.clone() };
    assert_eq!(status(&world.dpu.mem_import(&encode(&of_another_context))), Status::Stale);
    // One entry from each: the one that belongs to the header is good, whichever it is.
    let one_each = |shm: &Handle, own: &Handle, header: &Handle| {
        let entries = vec![own.entries[0].clone(), shm.entries[1].clone()];
        encode(&Handle { entries, ..header.clone() })
    };
    let bytes = one_each(second, first, first);
    world.assert_is(&world.host.mem_import(&bytes).unwrap(), 0);
    assert_eq!(status(&world.dpu.mem_import(&bytes)), Status::Stale);
    let bytes = one_each(first, second, first);
    world.assert_is(&world.dpu.mem_import(&bytes).unwrap(), 0);
    world.assert_is(&world.host.mem_import(&bytes).unwrap(), 0);
}

#[test]
fn dropped_entries_leave_the_other_ways() {
    let world = World::new();
    let without = |component: u16| {
        changed(&world, |handle| handle.entries.retain(|entry| entry.component != component))
    };
    let imported = world.host.mem_import(&without(SELF)).unwrap();
    assert_eq!(imported.transport(), "shm");
    world.assert_is(&imported, 0);
    drop(imported);
    world.assert_is(&world.dpu.mem_import(&without(SELF)).unwrap(), 0);
    assert_eq!(both(&world, &without(SHM)), (Status::Ok, Status::Unreachable));
    assert_eq!(
        both(&world, &changed(&world, |handle| handle.entries.clear())),
        (Status::Unreachable, Status::Unreachable)
    );
}

#[test]
fn ids_of_elsewhere_are_not_tried() {
    let world = World::new();
    for (index, ctx) in [(0, &world.host), (1, &world.dpu)] {
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
    for (index, ctx) in [(0, &world.host), (1, &world.dpu)] {
        for key in [&b""[..], b"short", &[0xff; 32], &[0xff; 216], &[0; 1024]] {
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
    assert_eq!(with(&|key| key.service[10] ^= 1), Status::Stale, "nobody listens there");
    assert_eq!(
        with(&|key| key.service = other.service.clone()),
        Status::Stale,
        "another context listens there"
    );
    assert_eq!(with(&|key| key.exporter.pidfd_inode ^= 2), Status::Stale, "another process listens there");
    assert_eq!(with(&|key| key.service = vec![0; 108]), Status::Unreachable, "no such address");
    // Hints for importers without a connection: with one they do nothing.
    assert_eq!(with(&|key| key.exporter.pid += 1), Status::Ok);
    assert_eq!(with(&|key| key.region = other.region), Status::Ok);
    assert_eq!(with(&|key| key.files = other.files), Status::Ok);
}

/// Without a connection, the key's descriptors and inodes are all that leads to the region.
#[test]
fn descriptors_that_lead_elsewhere_are_never_another_region() {
    for way in ["proc", "pidfd"] {
        let world = World::new();
        let builder = Context::builder().ignore_env().features(Features::EXPORTED_MEMH).set("UCX_TLS", "shm");
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
    for tls in ["all", "self", "shm"] {
        for count in [0, 1, 15, MAX_ENTRIES - 2] {
            let bytes = changed(&world, |handle| {
                // Some of unknown components, some of known ones that mean something elsewhere only; before and after.
                let foreign = (0..count).map(|n| {
                    let tag = u8::try_from(n).expect("at most 32");
                    let component = [0, SELF, SHM, 3, u16::MAX][n % 5];
                    entry(component, &vec![tag; n * 8], &vec![tag; n * 32])
                });
                handle.entries.extend(foreign);
                handle.entries.sort_by(|a, b| (a.component, &a.global_id).cmp(&(b.component, &b.global_id)));
            });
            let builder =
                Context::builder().ignore_env().features(Features::EXPORTED_MEMH).set("UCX_TLS", tls);
            let dpu = builder.build().unwrap();
            match dpu.mem_import(&bytes) {
                Ok(imported) => world.assert_is(&imported, 0),
                Err(error) => {
                    assert!(tls == "self" && error.status() == Status::Unreachable, "{tls}, {count}: {error}")
                }
            }
            world.assert_is(&world.host.mem_import(&bytes).unwrap(), 0);
        }
    }
    let too_many =
        changed(&world, |handle| handle.entries.extend((3..33).map(|component| entry(component, b"", b""))));
    assert_eq!(both(&world, &too_many), (Status::Ok, Status::Ok));
    let mut handle = world.handles[0].0.clone();
    handle.entries.extend((3..34).map(|component| entry(component, b"", b"")));
    assert!(handle.encode().is_err(), "33 entries");
}

#[test]
fn a_revoked_handle_stays_stale_whatever_is_changed() {
    let world = World::new();
    world.exports[0].1.revoke().unwrap();
    // The same line is taken again at once: by another export, with another token.
    let again = world.exports[0].0.memh_pack().unwrap();
    let renewed = decode(again.as_bytes()).unwrap();
    assert_eq!(renewed.entries[0].mkey[..4], world.handles[0].0.entries[0].mkey[..4], "the line is the same");
    assert_eq!(both(&world, &world.handles[0].1), (Status::Stale, Status::Stale));
    let renumbered = changed(&world, |handle| handle.epoch = renewed.epoch);
    assert_eq!(both(&world, &renumbered), (Status::Stale, Status::Stale));
    let renamed = changed(&world, |handle| {
        (handle.epoch, handle.registration_id) = (renewed.epoch, renewed.registration_id);
    });
    assert_eq!(both(&world, &renamed), (Status::AccessDenied, Status::AccessDenied));
    world.assert_is(&world.dpu.mem_import(again.as_bytes()).unwrap(), 0);
}

#[test]
fn a_region_without_bytes_is_imported_as_such_and_nothing_else_is() {
    let world = World::new();
    let empty = world.host.mem_map(MemMap::allocate(0).exported()).unwrap().memh_pack().unwrap();
    let imported = world.dpu.mem_import(empty.as_bytes()).unwrap();
    assert_eq!((imported.len(), imported.transport()), (0, "none"));
    // A handle of memory with bytes, and with the id of none: once taken for a region without bytes.
    let mut nameless = world.handles[0].1.clone();
    nameless[48..56].fill(0);
    repair(&mut nameless);
    assert_eq!(both(&world, &nameless), (Status::InvalidHandle, Status::InvalidHandle));
}
