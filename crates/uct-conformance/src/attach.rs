//! Attaching keys: good ones, and all that are not.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use ucs::Status;
use ucs::mem::page::page_size;
use uct::api::{AttachError, Attachment, ComponentId, GlobalId, PackFlags};
use uct::memory::{AccessError, Rights};
use uct::transports;

use crate::bench::{Bench, assert_holds, assert_refused_as_stale, assert_stale, attach, whole};
use crate::exporter::Ticket;
use crate::fixture::{Place, Side, pattern};
use crate::{Check, list};

pub(crate) const CHECKS: &[Check] = list![attach:
    good in Everywhere,
    foreign_keys_are_not_for_it in Everywhere,
    every_truncation in Everywhere,
    every_byte_changed in Everywhere,
    wrong_token in Everywhere,
    forged_fields in Everywhere,
    garbage in Everywhere,
    stale_when_revoked in Everywhere,
    stale_when_the_context_is_gone in Apart,
    stale_when_the_process_is_gone in OtherProcess,
    deadline_is_kept in OtherProcess,
    twice in Everywhere,
    in_any_order in Everywhere,
    dropped_in_any_order in Once,
];

/// Seeds of the region asked for, and of one beside it that must never be reached.
const MINE: u64 = 1;
const OTHER: u64 = 2;

fn good(bench: &Bench) {
    for kind in bench.local().registered() {
        for (len, asked) in
            [(1, Rights::READ_WRITE), (page_size(), Rights::READ), (3 * page_size() + 13, Rights::READ_WRITE)]
        {
            let region = bench.exporter.create(kind, len, asked, MINE);
            let ticket = bench.exporter.export(region);
            assert_eq!((ticket.length, ticket.component), (len as u64, bench.fixture.component.id()));
            assert_eq!(ticket.mkey.len(), bench.importer.md.attr().exported_mkey_packed_size);
            let attachment = bench.attach(&ticket);
            assert_eq!(attachment.rights(), kind.granted(asked), "{kind:?}");
            assert_eq!((attachment.len(), attachment.is_empty()), (len as u64, false));
            assert_eq!(attachment.check(), Ok(()));
            assert_holds(&*attachment, MINE);
        }
    }
}

fn foreign_keys_are_not_for_it(bench: &Bench) {
    let ticket = bench.exporter.export(bench.region(page_size(), MINE));
    let (md, mine, id) = (&bench.importer.md, ticket.component, ticket.global_id.clone());
    assert!(md.can_attach(mine, &id));
    let others = transports::components().iter().map(|component| component.id()).filter(|id| *id != mine);
    for other in others.chain([0, 99, u16::MAX].map(ComponentId)) {
        assert!(!md.can_attach(other, &id), "a key of {other}");
    }
    for at in 0..id.len() {
        let mut changed = id.clone();
        changed[at] ^= 0x40;
        assert!(!md.can_attach(mine, &changed), "byte {at} of the global id changed");
        assert!(!md.can_attach(mine, &id[..at]), "{at} bytes of the global id");
    }
    let longest = [id.as_slice(), &[0; GlobalId::MAX]].concat();
    for len in [id.len() + 1, GlobalId::MAX] {
        assert!(!md.can_attach(mine, &longest[..len]), "{len} bytes of a global id");
    }
}

/// A key that is refused says so by a status of its own.
fn assert_typed(error: &AttachError) {
    let refusals = [Status::InvalidHandle, Status::AccessDenied, Status::Stale, Status::Unreachable];
    assert!(refusals.contains(&error.status()), "{error:?} is no verdict on a key");
    assert!(!error.to_string().is_empty() && !error.remedy().is_empty());
}

#[track_caller]
fn assert_malformed(importer: &Side, ticket: &Ticket) {
    let answer = attach(importer, ticket).map(|_| "an attachment");
    assert!(matches!(answer, Err(AttachError::Malformed(_))), "{} bytes: {answer:?}", ticket.mkey.len());
}

fn every_truncation(bench: &Bench) {
    let ticket = bench.exporter.export(bench.region(page_size(), MINE));
    let warm = bench.attach(&ticket);
    for importer in [&bench.importer, &bench.cold()] {
        for len in 0..ticket.mkey.len() {
            assert_malformed(importer, &Ticket { mkey: ticket.mkey[..len].to_vec(), ..ticket.clone() });
            assert_malformed(importer, &Ticket { mkey: ticket.mkey[len + 1..].to_vec(), ..ticket.clone() });
        }
        for more in [1, 2, 16, 4096] {
            let mkey = [ticket.mkey.as_slice(), &vec![0; more]].concat();
            assert_malformed(importer, &Ticket { mkey, ..ticket.clone() });
        }
    }
    assert_holds(&*warm, MINE);
}

/// A region of [`MINE`] beside one of [`OTHER`] at the next line of the table: its ticket, and what keeps the other alive.
fn beside_another(bench: &Bench) -> (Ticket, Arc<dyn Attachment>) {
    let other = bench.exporter.export(bench.region(page_size(), OTHER));
    let mine = bench.exporter.export(bench.region(page_size(), MINE));
    let attached = bench.attach(&other);
    assert_holds(&*attached, OTHER);
    (mine, attached)
}

/// Refused by a typed error; or, where the transport does not rely on what was changed, exactly the right region.
fn refused_or_right(importer: &Side, ticket: &Ticket, what: impl std::fmt::Display) -> bool {
    match attach(importer, ticket) {
        Err(error) => {
            assert_typed(&error);
            true
        }
        Ok(attachment) => {
            assert!(whole(&*attachment) == pattern(MINE, page_size()), "{what}: another region is reached");
            false
        }
    }
}

fn every_byte_changed(bench: &Bench) {
    let (ticket, other) = beside_another(bench);
    let mut refused = 0;
    for at in 0..ticket.mkey.len() {
        let changed = |mask: u8| {
            let mut changed = ticket.clone();
            changed.mkey[at] ^= mask;
            changed
        };
        for mask in [0x01, 0x80, 0xff] {
            refused +=
                usize::from(refused_or_right(&bench.importer, &changed(mask), format_args!("byte {at}")));
        }
        refused_or_right(&bench.cold(), &changed(0x02), format_args!("byte {at}, cold"));
    }
    assert!(refused >= 16 * 3, "at least the token's bytes matter");
    assert_holds(&*bench.attach(&ticket), MINE);
    assert_holds(&*other, OTHER);
}

fn wrong_token(bench: &Bench) {
    let (ticket, other) = beside_another(bench);
    let at = ticket.token_at();
    let others = bench.exporter.export(bench.region(page_size(), OTHER)).token;
    let mut tokens = vec![[0; 16], [0xff; 16], others];
    for bit in 0..128 {
        let mut token = ticket.token;
        token[bit / 8] ^= 1 << (bit % 8);
        tokens.push(token);
    }
    for (number, token) in tokens.into_iter().enumerate() {
        let mut forged = ticket.clone();
        forged.mkey[at..at + 16].copy_from_slice(&token);
        let importer = if number % 8 == 0 { &bench.cold() } else { &bench.importer };
        let answer = attach(importer, &forged).map(|_| "an attachment");
        assert_eq!(answer.map_err(|error| error.status()), Err(Status::AccessDenied));
        let answer = attach(importer, &forged).map(|_| "an attachment");
        assert_eq!(answer, Err(AttachError::WrongToken), "the second time");
    }
    assert_holds(&*bench.attach(&ticket), MINE);
    assert_holds(&*other, OTHER);
}

fn forged_fields(bench: &Bench) {
    let (ticket, other) = beside_another(bench);
    let forge = |change: fn(&mut Ticket)| {
        let mut forged = ticket.clone();
        change(&mut forged);
        forged
    };
    let mut forgeries: Vec<(&str, Ticket)> = vec![
        ("id + 1", forge(|ticket| ticket.id += 1)),
        ("id - 1", forge(|ticket| ticket.id -= 1)),
        ("id 0", forge(|ticket| ticket.id = 0)),
        ("id max", forge(|ticket| ticket.id = u64::MAX)),
        ("epoch + 1", forge(|ticket| ticket.epoch += 1)),
        ("epoch + 2", forge(|ticket| ticket.epoch += 2)),
        ("epoch 0", forge(|ticket| ticket.epoch = 0)),
        ("epoch max", forge(|ticket| ticket.epoch = u64::MAX)),
        ("address + 1", forge(|ticket| ticket.address += 1)),
        ("address + a page", forge(|ticket| ticket.address += page_size() as u64)),
        ("address 0", forge(|ticket| ticket.address = 0)),
        ("address max", forge(|ticket| ticket.address = u64::MAX)),
        ("length + 1", forge(|ticket| ticket.length += 1)),
        ("length - 1", forge(|ticket| ticket.length -= 1)),
        ("length 1", forge(|ticket| ticket.length = 1)),
        ("length 0", forge(|ticket| ticket.length = 0)),
        ("length 1 TiB", forge(|ticket| ticket.length = 1 << 40)),
        ("length max", forge(|ticket| ticket.length = u64::MAX)),
    ];
    for bit in [0, 1, 7, 31, 63] {
        let mut forged = ticket.clone();
        forged.epoch ^= 1 << bit;
        forgeries.push(("a bit of the epoch", forged));
    }
    for (what, forged) in &forgeries {
        for importer in [&bench.importer, &bench.cold()] {
            match attach(importer, forged) {
                Err(error) => {
                    let status = error.status();
                    let unproven = matches!(status, Status::Unreachable | Status::AccessDenied);
                    let may_be = unproven && importer.proves_less();
                    let refused = matches!(status, Status::InvalidHandle | Status::Stale);
                    assert!(refused || may_be, "{what}: {error:?}");
                }
                Ok(_) => panic!("{what}: attached"),
            }
        }
    }
    // A transport need not rely on the exporting context's id, whose part its own global id may play.
    for at in 0..16 {
        let mut forged = ticket.clone();
        forged.context_uuid[at] ^= 0x10;
        refused_or_right(&bench.importer, &forged, "context uuid");
        refused_or_right(&bench.cold(), &forged, "context uuid, cold");
    }
    assert_holds(&*bench.attach(&ticket), MINE);
    assert_holds(&*other, OTHER);
}

fn garbage(bench: &Bench) {
    let (ticket, other) = beside_another(bench);
    let mut rng = testkit::Rng::new(testkit::seed() ^ 0x6761_7262);
    for _ in 0..500 {
        let mut forged = ticket.clone();
        let from = rng.below(forged.mkey.len());
        let len = rng.below(forged.mkey.len() - from) + 1;
        rng.fill(&mut forged.mkey[from..from + len]);
        refused_or_right(&bench.importer, &forged, "bytes at random");
    }
    assert_holds(&*bench.attach(&ticket), MINE);
    assert_holds(&*other, OTHER);
}

fn stale_when_revoked(bench: &Bench) {
    let ticket = bench.exporter.export(bench.region(page_size(), MINE));
    let attachment = bench.attach(&ticket);
    bench.exporter.revoke(&ticket);
    for _ in 0..2 {
        assert_refused_as_stale(&bench.importer, &ticket);
        assert_refused_as_stale(&bench.cold(), &ticket);
    }
    drop(attachment);
    assert_refused_as_stale(&bench.importer, &ticket);
    // Never attached before it was revoked.
    let region = bench.region(page_size(), MINE);
    let ticket = bench.exporter.export(region);
    bench.exporter.revoke(&ticket);
    bench.exporter.drop_export(&ticket);
    bench.exporter.drop_region(region);
    assert_refused_as_stale(&bench.importer, &ticket);
    assert_refused_as_stale(&bench.cold(), &ticket);
}

/// What is attached learns of it a little later than what is being attached.
#[track_caller]
fn assert_stale_soon(attachment: &dyn Attachment) {
    let begin = Instant::now();
    while attachment.check().is_ok() && begin.elapsed() < Duration::from_secs(2) {
        thread::sleep(Duration::from_millis(1));
    }
    assert_stale(attachment);
}

/// As stale; over a network nobody can prove that.
#[track_caller]
fn assert_refused_as_gone(importer: &Side, ticket: &Ticket) {
    match attach(importer, ticket) {
        Err(AttachError::Unreachable { .. }) if importer.proves_less() => {}
        _ => assert_refused_as_stale(importer, ticket),
    }
}

fn stale_when_the_context_is_gone(bench: &Bench) {
    let (_, ticket, attachment) = bench.attached(page_size(), MINE);
    bench.exporter.close();
    assert_stale_soon(&*attachment);
    assert_refused_as_gone(&bench.importer, &ticket);
    assert_refused_as_gone(&bench.cold(), &ticket);
}

fn stale_when_the_process_is_gone(bench: &Bench) {
    let (_, ticket, attachment) = bench.attached(page_size(), MINE);
    bench.exporter.process().lock().kill();
    assert_stale_soon(&*attachment);
    assert_refused_as_gone(&bench.importer, &ticket);
    assert_refused_as_gone(&bench.cold(), &ticket);
}

/// An exporter that is stopped is waited for as long as was asked, where it is waited for at all.
fn deadline_is_kept(bench: &Bench) {
    const PATIENCE: Duration = Duration::from_millis(300);
    let ticket = bench.exporter.export(bench.region(page_size(), MINE));
    let (cold, warm) = (bench.cold(), bench.attach(&ticket));
    bench.exporter.process().lock().stop();
    for importer in [&bench.importer, &cold] {
        let begin = Instant::now();
        let answer = importer.md.attach(&ticket.request_within(PATIENCE));
        let took = begin.elapsed();
        assert!(took < PATIENCE + Duration::from_secs(2), "it took {took:?}");
        match answer {
            Ok(attached) => assert_holds(&*attached.memory, MINE),
            Err(error) => assert_eq!(error.status(), Status::Unreachable, "{error}"),
        }
    }
    bench.exporter.process().lock().cont();
    assert_holds(&*warm, MINE);
    for importer in [&bench.importer, &cold] {
        assert_holds(&*attach(importer, &ticket).unwrap(), MINE);
    }
}

fn twice(bench: &Bench) {
    let (region, ticket, first) = bench.attached(page_size(), MINE);
    let second = bench.attach(&ticket);
    let cold = attach(&bench.cold(), &ticket).unwrap();
    first.write(8, b"by the first").unwrap();
    for other in [&second, &cold] {
        let mut bytes = [0; 12];
        other.read(8, &mut bytes).unwrap();
        assert_eq!(&bytes, b"by the first");
    }
    drop(first);
    second.write(8, b"by 2nd").unwrap();
    assert_eq!(bench.exporter.read(region, 8, 12), b"by 2nd first");
    drop(second);
    assert_eq!(cold.check(), Ok(()));
    assert_holds_after(&*cold, b"by 2nd first");
}

#[track_caller]
fn assert_holds_after(attachment: &dyn Attachment, written: &[u8]) {
    let mut expected = pattern(MINE, page_size());
    expected[8..8 + written.len()].copy_from_slice(written);
    assert!(whole(attachment) == expected);
}

/// All orders of the numbers below `count`.
fn permutations(count: usize) -> Vec<Vec<usize>> {
    let Some(last) = count.checked_sub(1) else { return vec![Vec::new()] };
    let shorter = permutations(last);
    let with = |order: &Vec<usize>, at: usize| {
        let mut order = order.clone();
        order.insert(at, last);
        order
    };
    shorter.iter().flat_map(|order| (0..count).map(move |at| with(order, at))).collect()
}

fn in_any_order(bench: &Bench) {
    for order in permutations(4) {
        let tickets: Vec<_> = (0..4).map(|seed| bench.exporter.export(bench.region(777, seed))).collect();
        let attached: Vec<_> = order.iter().map(|seed| (*seed, bench.attach(&tickets[*seed]))).collect();
        for (seed, attachment) in &attached {
            assert_holds(&**attachment, *seed as u64);
        }
        tickets.iter().for_each(|ticket| bench.exporter.revoke(ticket));
    }
}

/// Attachment, export, memory with its registration, memory domains, exporting context: whichever goes first, the attachment
/// answers with the right bytes or that they are stale.
fn dropped_in_any_order(bench: &Bench) {
    let same_context = bench.place == Place::SameContext;
    for order in permutations(5) {
        let side = Side::open(&bench.fixture);
        let importer = if same_context { side.clone() } else { Side::open(&bench.fixture) };
        let made = side.usual().make(&*side.md, page_size(), Rights::READ_WRITE, MINE);
        let memh = side.md.reg(&made.mem).unwrap();
        let export = side.exports.publish(&made.mem).unwrap();
        let mut mkey = vec![0; memh.packed_size(PackFlags::EXPORT).unwrap()];
        memh.pack(&export, PackFlags::EXPORT, &mut mkey).unwrap();
        let ticket = Ticket::of(&side, &export, 0, mkey);
        let mut attachment = Some(attach(&importer, &ticket).unwrap());
        let mut export = Some(export);
        let mut memory = Some((made, memh));
        let mut domains = Some((Arc::clone(&side.md), importer));
        let mut context = Some(side);
        for (step, what) in order.iter().enumerate() {
            match what {
                0 => attachment = None,
                1 => export = None,
                2 => memory = None,
                3 => domains = None,
                _ => context = None,
            }
            let Some(attachment) = &attachment else { continue };
            let mut bytes = vec![0; page_size()];
            match attachment.read(0, &mut bytes) {
                Ok(()) => assert!(bytes == pattern(MINE, page_size()), "{order:?}, after {step}"),
                Err(AccessError::Stale { done: 0, .. }) => {
                    // In one context, domains and importer hold the table too.
                    assert!(
                        context.is_none(),
                        "{order:?}, after {step}: stale while the exporting context lives"
                    );
                }
                Err(error) => panic!("{order:?}, after {step}: {error}"),
            }
        }
        drop((export, memory, domains, context));
    }
}
