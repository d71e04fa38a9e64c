//! Handles changed at random: an import never panics, and never reaches another region than the token's.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;
use ucp::wire::handle::{Entry, Handle};
use ucp::{Context, ImportError, ImportedRegion};

use crate::import::World;
use crate::support::{decode_living, entry, repair};

/// A change of a handle's content, with parts of another handle.
#[derive(Clone, Debug)]
enum Change {
    Drop(Index),
    /// An entry of the other handle instead of the one of that component here.
    TakeEntry(Index),
    /// The other's key, under the id that is here.
    TakeKey(Index),
    TakeAddress,
    TakeLength,
    TakeContext,
    TakeRegistration,
    TakeEpoch,
    Foreign(u16, Vec<u8>, Vec<u8>),
    Mandatory(Index),
}

/// A change of the bytes.
#[derive(Clone, Debug)]
enum Edit {
    Flip(Index, u8),
    Set(Index, u8),
    Copy(Index, Index, u8),
    Truncate(Index),
    Extend(Vec<u8>),
}

fn changes() -> impl Strategy<Value = Change> {
    let index = any::<Index>;
    prop_oneof![
        index().prop_map(Change::Drop),
        index().prop_map(Change::TakeEntry),
        index().prop_map(Change::TakeKey),
        Just(Change::TakeAddress),
        Just(Change::TakeLength),
        Just(Change::TakeContext),
        Just(Change::TakeRegistration),
        Just(Change::TakeEpoch),
        (0_u16..5, vec(any::<u8>(), 0..20), vec(any::<u8>(), 0..300))
            .prop_map(|(component, id, key)| Change::Foreign(component, id, key)),
        index().prop_map(Change::Mandatory),
    ]
}

fn edits() -> impl Strategy<Value = Edit> {
    let index = any::<Index>;
    prop_oneof![
        4 => (index(), 0_u8..8).prop_map(|(at, bit)| Edit::Flip(at, bit)),
        4 => (index(), prop_oneof![Just(0), Just(1), Just(0xff), any::<u8>()]).prop_map(|(at, byte)| Edit::Set(at, byte)),
        1 => (index(), index(), any::<u8>()).prop_map(|(from, to, len)| Edit::Copy(from, to, len)),
        1 => index().prop_map(Edit::Truncate),
        1 => vec(any::<u8>(), 1..80).prop_map(Edit::Extend),
    ]
}

fn apply_change(handle: &mut Handle, other: &Handle, change: &Change) {
    let entries = &mut handle.entries;
    match change {
        Change::Drop(at) if !entries.is_empty() => drop(entries.remove(at.index(entries.len()))),
        Change::TakeEntry(at) => {
            let taken = at.get(&other.entries);
            entries.retain(|entry| entry.component != taken.component);
            entries.push(taken.clone());
        }
        Change::TakeKey(at) => {
            let taken = at.get(&other.entries);
            for entry in entries.iter_mut().filter(|entry| entry.component == taken.component) {
                entry.mkey.clone_from(&taken.mkey);
            }
        }
        Change::TakeAddress => handle.address = other.address,
        Change::TakeLength => handle.length = other.length,
        Change::TakeContext => handle.context_uuid = other.context_uuid,
        Change::TakeRegistration => handle.registration_id = other.registration_id,
        Change::TakeEpoch => handle.epoch = other.epoch,
        Change::Foreign(component, id, key) => entries.push(entry(*component, id, key)),
        Change::Mandatory(at) if !entries.is_empty() => {
            let at = at.index(entries.len());
            entries[at].mandatory = true;
        }
        Change::Drop(_) | Change::Mandatory(_) => {}
    }
    handle.entries.sort_by(|a, b| (a.component, &a.global_id).cmp(&(b.component, &b.global_id)));
}

fn apply_edit(bytes: &mut Vec<u8>, edit: &Edit) {
    if bytes.is_empty() {
        return;
    }
    let len = bytes.len();
    match edit {
        Edit::Flip(at, bit) => bytes[at.index(len)] ^= 1 << bit,
        Edit::Set(at, byte) => bytes[at.index(len)] = *byte,
        Edit::Copy(from, to, count) => {
            let (from, to) = (from.index(len), to.index(len));
            let count = usize::from(*count).min(len - from).min(len - to);
            bytes.copy_within(from..from + count, to);
        }
        Edit::Truncate(at) => bytes.truncate(at.index(len)),
        Edit::Extend(more) => bytes.extend(more),
    }
}

/// Imports, and checks what an import may be.
fn check(world: &World, ctx: &Context, bytes: &[u8]) -> Result<(), TestCaseError> {
    let imported = match ctx.mem_import(bytes) {
        Ok(imported) => imported,
        Err(error) => return check_error(bytes, &error),
    };
    let handle = decode_living(bytes).expect("what is imported is a handle");
    let entry = used_entry(ctx, &handle, &imported).expect("an entry of the transport that is used");
    let region = world.region_of(entry.component, &entry.mkey);
    prop_assert!(region.is_some(), "a token of no export");
    let region = region.unwrap_or_default();
    world.assert_is(&imported, region);
    prop_assert_eq!(handle.registration_id, world.handles[region].0.registration_id);
    prop_assert_eq!(handle.epoch, world.handles[region].0.epoch);
    prop_assert_eq!(handle.length, world.handles[region].0.length);
    prop_assert_eq!(handle.address, world.handles[region].0.address);
    Ok(())
}

/// The entry by which it was imported.
fn used_entry<'a>(ctx: &Context, handle: &'a Handle, imported: &ImportedRegion) -> Option<&'a Entry> {
    let (_, md) = ctx.transports().find(|(component, _)| component.name() == imported.transport())?;
    let attr = md.attr();
    let fits =
        |entry: &&Entry| entry.component == attr.component.0 && entry.global_id == attr.global_id.as_bytes();
    handle.entries.iter().find(fits)
}

/// An error is of a kind that the bytes can cause; limits and time-outs are not among them.
fn check_error(bytes: &[u8], error: &ImportError) -> Result<(), TestCaseError> {
    let says_why = !error.to_string().is_empty() && !error.remedy().is_empty();
    prop_assert!(says_why);
    match error {
        ImportError::InvalidHandle(why) => {
            prop_assert_eq!(decode_living(bytes).err(), Some(*why));
        }
        ImportError::Forged { .. }
        | ImportError::AccessDenied { .. }
        | ImportError::Stale { .. }
        | ImportError::Unreachable { .. } => prop_assert!(decode_living(bytes).is_ok()),
        other => return Err(TestCaseError::fail(format!("{other:?}"))),
    }
    Ok(())
}

fn run(cases: u32, strategy: impl Strategy<Value = (usize, usize, Vec<Change>, Vec<Edit>, bool)>) {
    let world = World::new();
    let config = ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(cases) };
    let mut runner = proptest::test_runner::TestRunner::new(config);
    let outcome = runner.run(&strategy, |(of, other, changes, edits, repaired)| {
        let mut handle = world.handles[of].0.clone();
        changes.iter().for_each(|change| apply_change(&mut handle, &world.handles[other].0, change));
        let mut bytes = handle.encode().expect("within the caps");
        edits.iter().for_each(|edit| apply_edit(&mut bytes, edit));
        if repaired {
            repair(&mut bytes);
        }
        world.importers().iter().try_for_each(|(ctx, _)| check(&world, ctx, &bytes))
    });
    outcome.unwrap_or_else(|error| panic!("{error}"));
    for (ctx, _) in world.importers() {
        assert_eq!(ctx.stats().imports, 0, "an import that failed, or was dropped, leaves nothing");
    }
    for (index, (_, bytes)) in world.handles.iter().enumerate() {
        world.assert_is(
            &world.dpu.mem_import(bytes).expect("the unchanged handle is as good as before"),
            index,
        );
    }
}

#[test]
fn bytes_changed_at_random() {
    run(600, (0_usize..4, Just(0), Just(Vec::new()), vec(edits(), 1..4), any::<bool>()));
}

#[test]
fn parts_of_two_handles_mixed_at_random() {
    run(600, (0_usize..4, 0_usize..4, vec(changes(), 1..5), Just(Vec::new()), Just(true)));
}

#[test]
fn parts_mixed_and_bytes_changed_at_random() {
    run(600, (0_usize..4, 0_usize..4, vec(changes(), 1..4), vec(edits(), 1..3), any::<bool>()));
}
