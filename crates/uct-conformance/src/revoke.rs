//! Revocation: nothing gets in after it, and nothing else is hit by it.

use std::thread;
use std::time::{Duration, Instant};

use testkit::Rng;
use ucs::mem::page::page_size;
use uct::api::{AttachError, Attachment, MdFlags, PackFlags};
use uct::memory::{AccessError, Rights};

use crate::bench::{Bench, assert_holds, assert_refused_as_stale, assert_revoked};
use crate::exporter::Ticket;
use crate::fixture::pattern;
use crate::{Check, list};

pub(crate) const CHECKS: &[Check] = list![revoke:
    nothing_gets_in_after_it in Everywhere,
    again_and_again in Everywhere,
    other_exports_live_on in Everywhere,
    a_newer_export_at_the_same_line in Everywhere,
    a_newer_region_at_the_same_address in Everywhere,
    views_that_are_held in Everywhere,
    invalidation_flags in Everywhere,
    accesses_in_flight in Everywhere,
];

fn nothing_gets_in_after_it(bench: &Bench) {
    for kind in bench.local().registered() {
        let region = bench.exporter.create(kind, 2 * page_size(), Rights::READ_WRITE, 5);
        let ticket = bench.exporter.export(region);
        let attachments = [bench.attach(&ticket), bench.attach(&ticket)];
        assert_holds(&*attachments[0], 5);
        bench.exporter.revoke(&ticket);
        for attachment in &attachments {
            assert_revoked(&**attachment);
            let mut bytes = vec![0x77; 2 * page_size()];
            let answer = attachment.read(0, &mut bytes);
            assert!(matches!(answer, Err(AccessError::Stale { done: 0, .. })), "{kind:?}: {answer:?}");
            assert!(bytes.iter().all(|byte| *byte == 0x77));
            if attachment.rights().contains(Rights::WRITE) {
                let answer = attachment.write(0, &bytes);
                assert!(matches!(answer, Err(AccessError::Stale { done: 0, .. })), "{kind:?}: {answer:?}");
            }
        }
        assert!(bench.exporter.read(region, 0, 2 * page_size()) == pattern(5, 2 * page_size()), "{kind:?}");
        assert_refused_as_stale(&bench.importer, &ticket);
        bench.exporter.drop_region(region);
        assert_revoked(&*attachments[0]);
    }
}

fn again_and_again(bench: &Bench) {
    let (region, ticket, attachment) = bench.attached(page_size(), 5);
    for _ in 0..3 {
        bench.exporter.revoke(&ticket);
        assert_revoked(&*attachment);
    }
    let newer = bench.exporter.export(region);
    let attached = bench.attach(&newer);
    bench.exporter.revoke(&ticket);
    assert_holds(&*attached, 5);
    bench.exporter.drop_region(region);
    bench.exporter.revoke(&ticket);
    assert_holds(&*attached, 5);
    bench.exporter.revoke(&newer);
    assert_revoked(&*attached);
}

fn other_exports_live_on(bench: &Bench) {
    let region = bench.region(page_size(), 5);
    let tickets: Vec<Ticket> = (0..3).map(|_| bench.exporter.export(region)).collect();
    let attached: Vec<_> = tickets.iter().map(|ticket| bench.attach(ticket)).collect();
    bench.exporter.revoke(&tickets[1]);
    assert_revoked(&*attached[1]);
    for other in [0, 2] {
        assert_eq!(attached[other].check(), Ok(()));
        assert_holds(&*attached[other], 5);
        attached[other].write(0, &pattern(5, 10)).unwrap();
        assert_holds(&*bench.attach(&tickets[other]), 5);
    }
    bench.exporter.revoke(&tickets[0]);
    assert_holds(&*attached[2], 5);
    assert_revoked(&*attached[0]);
}

/// Exports regions of seed 6 until one has the line that `old` had.
fn at_the_line_of(bench: &Bench, old: &Ticket) -> Ticket {
    for _ in 0..1000 {
        let newer = bench.exporter.export(bench.region(page_size(), 6));
        if newer.slot == old.slot {
            assert_ne!(newer.epoch, old.epoch, "a line is used again in another epoch");
            assert_ne!(newer.id, old.id, "an id is never used again");
            assert_ne!(newer.token, old.token);
            return newer;
        }
    }
    panic!("line {} is not used again", old.slot)
}

fn a_newer_export_at_the_same_line(bench: &Bench) {
    let (_, old, attached) = bench.attached(page_size(), 5);
    bench.exporter.revoke(&old);
    let newer = at_the_line_of(bench, &old);
    assert_revoked(&*attached);
    assert_refused_as_stale(&bench.importer, &old);
    assert_refused_as_stale(&bench.cold(), &old);
    let at = newer.token_at();
    let mut old_token = newer.clone();
    old_token.mkey[at..at + 16].copy_from_slice(&old.token);
    let forgeries = [
        ("the newer key under the old id", Ticket { id: old.id, ..newer.clone() }),
        ("the newer key in the old epoch", Ticket { epoch: old.epoch, ..newer.clone() }),
        ("the old key under the newer id", Ticket { id: newer.id, ..old.clone() }),
        ("the old key in the newer epoch", Ticket { epoch: newer.epoch, ..old.clone() }),
        ("the old key with all else newer", Ticket { mkey: old.mkey.clone(), ..newer.clone() }),
        ("the newer key with all else old", Ticket { mkey: newer.mkey.clone(), ..old.clone() }),
        ("the old token in the newer key", old_token),
    ];
    for (what, forged) in &forgeries {
        let answer = bench.try_attach(forged).map(|_| "an attachment");
        assert!(
            matches!(answer, Err(AttachError::Stale(_) | AttachError::WrongToken | AttachError::Mismatch)),
            "{what}: {answer:?}"
        );
    }
    assert_holds(&*bench.attach(&newer), 6);
    assert_revoked(&*attached);
}

/// The importer of a region that is gone never sees what was put in its place.
fn a_newer_region_at_the_same_address(bench: &Bench) {
    let mut met = false;
    for _ in 0..20 {
        let (region, old, attached) = bench.attached(16 * page_size(), 5);
        bench.exporter.revoke(&old);
        bench.exporter.drop_region(region);
        let newer = bench.exporter.export(bench.region(16 * page_size(), 6));
        met |= newer.address == old.address;
        assert_revoked(&*attached);
        assert_refused_as_stale(&bench.importer, &old);
        assert_holds(&*bench.attach(&newer), 6);
        bench.exporter.revoke(&newer);
    }
    assert!(met, "an address was used again at least once");
}

/// A view that is held is either not there, or outlives the revocation: then the transport does not call itself revocable.
fn views_that_are_held(bench: &Bench) {
    let (region, ticket, attachment) = bench.attached(page_size(), 5);
    bench.exporter.revoke(&ticket);
    assert_revoked(&*attachment);
    let Some(view) = attachment.view() else { return };
    bench.exporter.write(region, 0, b"after the revocation");
    let mut seen = [0; 20];
    let reached = view.read(0, &mut seen).is_ok() && &seen == b"after the revocation";
    assert_eq!(bench.importer.has(MdFlags::REVOCABLE), !reached, "REVOCABLE, and what a held view sees");
}

fn invalidation_flags(bench: &Bench) {
    let side = bench.local();
    let kept = side.usual().make(&*side.md, page_size(), Rights::READ_WRITE, 5);
    let memh = side.md.reg(&kept.mem).unwrap();
    for flags in [
        PackFlags::INVALIDATE_RMA,
        PackFlags::INVALIDATE_AMO,
        PackFlags::INVALIDATE_RMA | PackFlags::INVALIDATE_AMO,
    ] {
        let flags = flags | PackFlags::EXPORT;
        assert_eq!(memh.packed_size(flags).is_ok(), side.has(MdFlags::INVALIDATE), "{flags:?}");
        if !side.has(MdFlags::INVALIDATE) {
            continue;
        }
        let region = bench.region(page_size(), 5);
        let ticket = bench.exporter.export_with(region, flags);
        let attachment = bench.attach(&ticket);
        assert_holds(&*attachment, 5);
        bench.exporter.revoke(&ticket);
        assert_revoked(&*attachment);
        let again = bench.exporter.export_with(region, flags);
        assert_holds(&*bench.attach(&again), 5);
    }
}

/// Writers and readers are inside all the time; once revoked, the exporter has the memory to itself.
fn accesses_in_flight(bench: &Bench) {
    let len = 3 * page_size();
    let region = bench.region(len, 5);
    let mut rng = Rng::new(testkit::seed() ^ 0x7265_766f);
    let mut landed = 0;
    for round in 0..400_u64 {
        if round >= 40 && landed > 0 {
            break; // on a busy machine it takes longer until all three have had their turn
        }
        let ticket = bench.exporter.export(region);
        let attachment = bench.attach(&ticket);
        let done = thread::scope(|scope| {
            let users = [
                scope.spawn(|| until_stale(&*attachment, |attachment| attachment.write(0, &vec![0xee; len]))),
                scope.spawn(|| until_stale(&*attachment, |attachment| attachment.write(8, &[0xee; 8]))),
                scope.spawn(|| until_stale(&*attachment, |attachment| attachment.read(0, &mut vec![0; len]))),
            ];
            thread::sleep(Duration::from_micros(rng.below(1500) as u64 * (1 + round / 40)));
            bench.exporter.revoke(&ticket);
            let mine = pattern(round, len);
            bench.exporter.write(region, 0, &mine);
            let done = users.map(|user| user.join().unwrap().unwrap());
            assert!(
                bench.exporter.read(region, 0, len) == mine,
                "round {round}: a write landed after the revocation"
            );
            done
        });
        landed += u64::from(done.iter().all(|count| *count > 0));
        assert_revoked(&*attachment);
    }
    assert!(landed > 0, "accesses were under way in at least one round");
}

/// How long an access may go on after it was to be revoked.
const BOUND: Duration = Duration::from_secs(2);

/// Repeats an access until it is stale, and then some more; answers how many succeeded.
fn until_stale(
    attachment: &dyn Attachment,
    mut access: impl FnMut(&dyn Attachment) -> Result<(), AccessError>,
) -> Result<u64, String> {
    let begin = Instant::now();
    let mut done = 0;
    loop {
        match access(attachment) {
            Ok(()) if begin.elapsed() < BOUND => done += 1,
            Ok(()) => return Err("it never becomes stale".to_owned()),
            Err(AccessError::Stale { .. }) => break,
            Err(error) => return Err(error.to_string()),
        }
    }
    for _ in 0..100 {
        let answer = access(attachment);
        if !matches!(answer, Err(AccessError::Stale { .. })) {
            return Err(format!("stale once, and then {answer:?}"));
        }
    }
    Ok(done)
}
