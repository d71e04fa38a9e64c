//! An exporter and an importer in a place: what every check gets.

use std::sync::Arc;

use uct::api::{AmoOp, AtomicOp, AttachError, Attachment};
use uct::memory::{AccessError, Rights, StaleReason};

use crate::exporter::{Exporter, Host, Region, Ticket};
use crate::fixture::{Fixture, Place, Side, pattern};

/// An exporter and an importer in a place.
#[derive(Debug)]
pub struct Bench {
    pub(crate) fixture: Fixture,
    pub(crate) place: Place,
    pub(crate) exporter: Exporter,
    pub(crate) importer: Side,
}

impl Bench {
    /// A new exporter and a new importer.
    #[must_use]
    pub fn new(fixture: &Fixture, place: Place) -> Self {
        let importer = Side::open(fixture);
        let exporter = match place {
            Place::SameContext => Exporter::Here(Host::new(importer.clone())),
            Place::TwoContexts => Exporter::Here(Host::new(Side::open(fixture))),
            Place::TwoProcesses => Exporter::there(fixture),
        };
        Self { fixture: *fixture, place, exporter, importer }
    }

    /// A context of this process that can export.
    pub(crate) fn local(&self) -> Side {
        match &self.exporter {
            Exporter::Here(host) => host.side(),
            Exporter::There(_) => Side::open(&self.fixture),
        }
    }

    /// An importer that has not reached the exporter before; the same one where there is only one context.
    pub(crate) fn cold(&self) -> Side {
        match self.place {
            Place::SameContext => self.importer.clone(),
            _ => Side::open(&self.fixture),
        }
    }

    /// A region of the usual kind, readable and writable.
    pub(crate) fn region(&self, len: usize, seed: u64) -> Region {
        self.exporter.create(self.importer.usual(), len, Rights::READ_WRITE, seed)
    }

    pub(crate) fn try_attach(&self, ticket: &Ticket) -> Result<Arc<dyn Attachment>, AttachError> {
        attach(&self.importer, ticket)
    }

    #[track_caller]
    pub(crate) fn attach(&self, ticket: &Ticket) -> Arc<dyn Attachment> {
        match self.try_attach(ticket) {
            Ok(attachment) => attachment,
            Err(error) => panic!("a good key is refused: {error}"),
        }
    }

    /// A region, exported and attached.
    #[track_caller]
    pub(crate) fn attached(&self, len: usize, seed: u64) -> (Region, Ticket, Arc<dyn Attachment>) {
        let region = self.region(len, seed);
        let ticket = self.exporter.export(region);
        let attachment = self.attach(&ticket);
        (region, ticket, attachment)
    }
}

pub(crate) fn attach(importer: &Side, ticket: &Ticket) -> Result<Arc<dyn Attachment>, AttachError> {
    let attached = importer.md.attach(&ticket.request())?;
    assert!(!attached.how.is_empty(), "an attachment says how it came about");
    assert_eq!(attached.memory.len(), ticket.length);
    Ok(attached.memory)
}

/// All bytes of an attachment.
#[track_caller]
pub(crate) fn whole(attachment: &dyn Attachment) -> Vec<u8> {
    let mut bytes = vec![0; usize::try_from(attachment.len()).unwrap()];
    attachment.read(0, &mut bytes).unwrap();
    bytes
}

/// The attachment holds the pattern of `seed`.
#[track_caller]
pub(crate) fn assert_holds(attachment: &dyn Attachment, seed: u64) {
    let bytes = whole(attachment);
    let expected = pattern(seed, bytes.len());
    let differs = bytes.iter().zip(&expected).position(|(found, expected)| found != expected);
    assert_eq!(differs, None, "a byte of another region, or a wrong one");
}

/// No way that the library mediates leads to the memory any more.
#[track_caller]
pub(crate) fn assert_stale(attachment: &dyn Attachment) {
    let mut byte = [0x77];
    let read = attachment.read(0, &mut byte);
    assert!(matches!(read, Err(AccessError::Stale { done: 0, .. })), "a read answers {read:?}");
    assert_eq!(byte, [0x77], "a refused read touches nothing");
    if attachment.rights().contains(Rights::WRITE) {
        let write = attachment.write(0, &[0x77]);
        assert!(matches!(write, Err(AccessError::Stale { done: 0, .. })), "a write answers {write:?}");
    }
    let atomic = attachment.atomic(0, AtomicOp::U32(AmoOp::Swap(0)));
    assert!(atomic.is_err(), "an atomic operation answers {atomic:?}");
    assert!(attachment.check().is_err(), "check() says that the export lives");
}

/// As [`assert_stale`], and by revocation.
#[track_caller]
pub(crate) fn assert_revoked(attachment: &dyn Attachment) {
    assert_stale(attachment);
    assert_eq!(attachment.check(), Err(StaleReason::Revoked));
}

/// An attachment is refused as stale.
#[track_caller]
pub(crate) fn assert_refused_as_stale(importer: &Side, ticket: &Ticket) {
    let answer = attach(importer, ticket).map(|_| "an attachment");
    assert!(matches!(answer, Err(AttachError::Stale(_))), "a stale key gets {answer:?}");
}
