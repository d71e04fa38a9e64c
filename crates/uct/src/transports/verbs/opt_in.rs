//! `UCX_VERBS_SHARE` of one side only, on a device: `cargo xtask rxe --filter opt_in`.

#![allow(clippy::unwrap_used)] // tests

use std::sync::Arc;
use std::time::Duration;

use ucs::config::Config;
use ucs::time::Deadline;

use super::VerbsComponent;
use super::mkey::{self, Mkey};
use crate::api::{AttachError, AttachRequest, Component, Md, MdParams, PackError, PackFlags};
use crate::export::ExportTable;
use crate::memory::{LocalMem, Rights};
use crate::service::Service;

const BOUND: Duration = Duration::from_secs(30);
/// What `UCX_VERBS_SHARE` and `UCX_VERBS_REMOTE` are.
type Settings = [&'static str; 2];

fn open([share, remote]: Settings) -> (Arc<dyn Md>, MdParams) {
    let exports = Arc::new(ExportTable::new(BOUND).unwrap());
    let service = Arc::new(Service::new(Arc::clone(&exports), None));
    let config = Config::builder(crate::config::VARS).vars(VerbsComponent.vars()).ignore_env();
    let config = config.set("UCX_VERBS_SHARE", share).set("UCX_VERBS_REMOTE", remote);
    let params = MdParams { exports, service, config: config.build().unwrap() };
    (VerbsComponent.open_md(&VerbsComponent.query_mds()[0], &params).unwrap(), params)
}

/// What comes of memory that one side exports, under a key that somebody may have changed, and the other one attaches and reads.
fn moves(there: Settings, here: Settings, change: impl Fn(&mut Mkey)) -> Result<(), AttachError> {
    let ((exporter, params), (importer, _)) = (open(there), open(here));
    let mem = LocalMem::anonymous(4096, Rights::READ_WRITE).unwrap();
    mem.write(0, &[7; 8]).unwrap();
    let mem = Arc::new(mem);
    let export = params.exports.publish(&mem).unwrap();
    let memh = exporter.reg(&mem).unwrap();
    let mut bytes = [0; mkey::LEN];
    memh.pack(&export, PackFlags::EXPORT, &mut bytes).unwrap();
    let mut key = Mkey::decode(&bytes).unwrap();
    change(&mut key);
    key.encode(&mut bytes).unwrap();
    let claim = export.claim();
    let attached = importer.attach(&AttachRequest {
        context_uuid: *params.exports.uuid(),
        id: claim.id,
        epoch: claim.epoch,
        address: claim.address,
        length: claim.length,
        mkey: &bytes,
        deadline: Deadline::after(BOUND),
    });
    let mut seen = [0; 8];
    attached?.memory.read(0, &mut seen).unwrap();
    assert_eq!(seen, [7; 8]);
    Ok(())
}

#[track_caller]
fn is_refused(there: Settings, here: Settings, change: impl Fn(&mut Mkey), remedy: &str) {
    let error = moves(there, here, change).unwrap_err();
    assert!(matches!(error, AttachError::Unreachable { .. }), "{there:?} and {here:?}: {error}");
    assert!(error.remedy().contains(remedy), "{there:?} and {here:?}: {error}: {}", error.remedy());
}

#[test]
fn memory_is_shared_by_two_that_want_it_and_by_no_one_alone() {
    moves(["y", "n"], ["y", "n"], |_| ()).unwrap();
    // The exporter alone: the importer asks for nothing.
    for remote in ["n", "y"] {
        is_refused(["y", "n"], ["n", remote], |_| (), "UCX_VERBS_SHARE=y on both sides");
    }
    // The importer alone: the exporter's key is of other machines, and none of those is asked here.
    is_refused(["n", "y"], ["y", "n"], |_| (), "UCX_VERBS_REMOTE=y");
    // Whoever says otherwise: the exporter takes no descriptor.
    let says_that_it_shares = |key: &mut Mkey| (key.shares, key.net) = (true, None);
    is_refused(["n", "y"], ["y", "n"], says_that_it_shares, "UCX_VERBS_SHARE=y on both sides");
}

#[test]
fn who_exports_neither_nearby_nor_afar_packs_no_key() {
    let (exporter, _) = open(["n", "n"]);
    let mem = Arc::new(LocalMem::anonymous(4096, Rights::READ_WRITE).unwrap());
    let size = exporter.reg(&mem).unwrap().packed_size(PackFlags::EXPORT);
    assert!(
        matches!(&size, Err(PackError::Unsupported(why)) if why.contains("UCX_VERBS_SHARE=y")),
        "{size:?}"
    );
}
