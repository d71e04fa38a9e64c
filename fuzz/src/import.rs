//! The whole import: a handle that was just packed is changed as the input says, and imported.
//!
//! Tokens and ids differ in every run, so that a corpus cannot hold handles; it holds changes. The first byte says what begins:
//!
//! | bits | meaning |
//! |---|---|
//! | 0 | the checksum is put right at the end |
//! | 1 | the exporting context imports, by `self`; otherwise another one, by `shm` or `cma` |
//! | 2–3 | which handle is changed: 0, 1 of one context, 2 of another; 3: none, the rest of the input is the handle |
//! | 4–5 | which handle parts are taken from |
//!
//! Steps follow, each an opcode and its operands; see [`step`]. Positions are taken modulo the length.

use std::sync::OnceLock;

use ucp::wire::handle::{Entry, Handle};
use ucp::{Context, Features, ImportError, ImportedRegion, MemMap, PackedMemh, Region};
use uct::transports::{cma, self_, shm, verbs};

use crate::input::Input;
use crate::repair;

const SELF: u16 = 1;
const SHM: u16 = 2;
const CMA: u16 = 3;
const VERBS: u16 = 4;

struct Exported {
    region: Region,
    _packed: PackedMemh,
    bytes: Vec<u8>,
    handle: Handle,
}

struct World {
    host: Context,
    dpu: Context,
    exports: Vec<Exported>,
}

fn context() -> Context {
    let builder = Context::builder().ignore_env().features(Features::EXPORTED_MEMH);
    builder.set("UCX_IMPORT_TIMEOUT", "300ms").build().expect("a context")
}

fn content(index: usize, len: usize) -> Vec<u8> {
    let byte = |at: usize| u8::try_from((at * 7 + at / 251 + 85 * index) % 256).unwrap_or_default();
    (0..len).map(byte).collect()
}

fn world() -> &'static World {
    static WORLD: OnceLock<World> = OnceLock::new();
    WORLD.get_or_init(|| {
        let (host, other, dpu) = (context(), context(), context());
        let export = |(index, (ctx, len)): (usize, (&Context, usize))| {
            let region = ctx.mem_map(MemMap::allocate(len).exported()).expect("a few pages");
            region.write(0, &content(index, len)).expect("it fits");
            let packed = region.memh_pack().expect("a handle");
            let bytes = packed.as_bytes().to_vec();
            let handle = decode(&bytes).expect("what was packed is a handle");
            Exported { region, _packed: packed, bytes, handle }
        };
        let exports =
            [(&host, 512), (&host, 300), (&other, 512)].into_iter().enumerate().map(export).collect();
        World { host, dpu, exports }
    })
}

fn decode(bytes: &[u8]) -> Option<Handle> {
    Handle::decode(bytes, |component| matches!(component, SELF | SHM | CMA | VERBS)).ok()
}

/// Changes a handle and imports it.
///
/// # Panics
/// When an import panics, succeeds with another region's bytes, leaves something behind, or fails for a reason that no bytes
/// can cause.
pub fn handle_import(data: &[u8]) -> bool {
    let world = world();
    let mut input = Input(data);
    let flags = input.byte();
    let other = &world.exports[usize::from(flags >> 4 & 3) % 3];
    let mut bytes = match world.exports.get(usize::from(flags >> 2 & 3)) {
        Some(export) => {
            let mut bytes = export.bytes.clone();
            while !input.0.is_empty() {
                step(&mut input, &mut bytes, other);
            }
            bytes
        }
        None => input.0.to_vec(),
    };
    if flags & 1 == 1 {
        repair(&mut bytes);
    }
    let ctx = if flags & 2 == 2 { &world.host } else { &world.dpu };
    let accepted = match ctx.mem_import(&bytes) {
        Ok(imported) => {
            check(world, ctx, &bytes, &imported);
            true
        }
        Err(error) => {
            check_error(&bytes, &error);
            false
        }
    };
    assert_eq!(ctx.stats().imports, 0, "an import leaves nothing behind");
    accepted
}

/// One change.
fn step(input: &mut Input<'_>, bytes: &mut Vec<u8>, other: &Exported) {
    let opcode = input.byte();
    let kind = opcode % 10;
    let len = bytes.len().max(1);
    match kind {
        // Set a byte, flip bits of one.
        0 | 1 => {
            let at = input.number() % len;
            let value = input.byte();
            if let Some(byte) = bytes.get_mut(at) {
                *byte = if kind == 0 { value } else { *byte ^ value };
            }
        }
        2 => bytes.truncate(input.number()),
        3 => {
            let count = usize::from(input.byte());
            bytes.extend(input.bytes(count));
        }
        // Copy within the handle.
        4 => {
            let (from, to) = (input.number() % len, input.number() % len);
            let count = usize::from(input.byte()).min(bytes.len() - from.max(to).min(bytes.len()));
            bytes.copy_within(from..from + count, to);
        }
        // Take bytes of another handle, at the same place.
        5 => {
            let at = input.number() % len;
            let count = usize::from(input.byte());
            for (byte, taken) in bytes.iter_mut().zip(&other.bytes).skip(at).take(count) {
                *byte = *taken;
            }
        }
        // Write a word: all ones, or a small number.
        6 => {
            let at = input.number() % len;
            let value = input.byte();
            let word = if value == u8::MAX { u64::MAX } else { value.into() };
            for (byte, new) in bytes.iter_mut().skip(at).zip(word.to_le_bytes()) {
                *byte = new;
            }
        }
        7 => {
            let index = usize::from(input.byte());
            change(bytes, |handle| {
                let count = handle.entries.len().max(1);
                handle
                    .entries
                    .drain(..)
                    .enumerate()
                    .filter(|(at, _)| *at != index % count)
                    .map(|(_, entry)| entry)
                    .collect()
            });
        }
        8 => {
            let entry = other.handle.entries[usize::from(input.byte()) % other.handle.entries.len()].clone();
            change(bytes, |handle| handle.entries.drain(..).chain([entry]).collect());
        }
        _ => {
            let component = u16::from(input.byte() % 6);
            let (id, key) = (usize::from(input.byte()), input.number() % 1025);
            let entry = Entry {
                component,
                mandatory: opcode & 0x80 != 0,
                global_id: vec![opcode; id],
                mkey: vec![opcode; key],
            };
            change(bytes, |handle| handle.entries.drain(..).chain([entry]).collect());
        }
    }
}

/// Changes the entries of a handle; what is none stays as it is.
fn change(bytes: &mut Vec<u8>, entries: impl FnOnce(&mut Handle) -> Vec<Entry>) {
    let Some(mut handle) = decode(bytes) else { return };
    handle.entries = entries(&mut handle);
    handle.entries.sort_by(|a, b| (a.component, &a.global_id).cmp(&(b.component, &b.global_id)));
    if let Ok(encoded) = handle.encode() {
        *bytes = encoded;
    }
}

fn token(component: u16, mkey: &[u8]) -> Option<[u8; 16]> {
    match component {
        SELF => Some(*self_::mkey::Mkey::decode(mkey)?.token.as_bytes()),
        SHM => Some(*shm::mkey::Mkey::decode(mkey).ok()?.token.as_bytes()),
        CMA => Some(*cma::mkey::Mkey::decode(mkey).ok()?.token.as_bytes()),
        VERBS => Some(*verbs::mkey::Mkey::decode(mkey).ok()?.token.as_bytes()),
        _ => None,
    }
}

/// What was imported is the region of the token, all of it, and the handle describes it.
fn check(world: &World, ctx: &Context, bytes: &[u8], imported: &ImportedRegion) {
    let handle = decode(bytes).expect("what is imported is a handle");
    if handle.registration_id == 0 {
        assert_eq!((imported.len(), handle.length), (0, 0), "only memory without bytes has no export");
        return;
    }
    let mut mds = ctx.transports().filter(|(component, _)| component.name() == imported.transport());
    let (_, md) = mds.next().expect("it was imported by a transport");
    let attr = md.attr();
    let fits =
        |entry: &&Entry| entry.component == attr.component.0 && entry.global_id == attr.global_id.as_bytes();
    let entry = handle.entries.iter().find(fits).expect("the transport used its entry");
    let token = token(entry.component, &entry.mkey).expect("the entry holds a key");
    let carries = |export: &&Exported| {
        export.handle.entries.iter().any(|entry| self::token(entry.component, &entry.mkey) == Some(token))
    };
    let (index, export) = world
        .exports
        .iter()
        .enumerate()
        .find(|(_, export)| carries(export))
        .expect("a token that was packed");
    assert_eq!(imported.len(), export.region.len() as u64);
    let mut found = vec![0; export.region.len()];
    imported.read(0, &mut found).expect("the export lives");
    assert!(found == content(index, found.len()), "another region's bytes");
    let described = |handle: &Handle| (handle.registration_id, handle.epoch, handle.address, handle.length);
    assert_eq!(described(&handle), described(&export.handle));
}

/// The error is one that bytes can cause.
fn check_error(bytes: &[u8], error: &ImportError) {
    assert!(!error.to_string().is_empty() && !error.remedy().is_empty());
    let is_handle = match error {
        ImportError::InvalidHandle(_) => false,
        ImportError::Forged { .. }
        | ImportError::AccessDenied { .. }
        | ImportError::Stale { .. }
        | ImportError::Unreachable { .. } => true,
        other => panic!("{other:?}"),
    };
    assert_eq!(decode(bytes).is_some(), is_handle, "{error}");
}
