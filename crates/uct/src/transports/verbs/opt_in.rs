//! `UCX_VERBS_SHARE` of one side only, on a device: `cargo xtask rxe --filter opt_in`.

#![allow(clippy::unwrap_used)] // tests

use std::sync::Arc;

use super::VerbsComponent;
use super::contexts::{attach, params};
use super::mkey::{self, Mkey};
use crate::api::{AttachError, Component, Md, MdParams, PackError, PackFlags};
use crate::memory::{LocalMem, Rights};

/// What `UCX_VERBS_SHARE` and `UCX_VERBS_REMOTE` are.
type Settings = [&'static str; 2];

fn open([share, remote]: Settings) -> (Arc<dyn Md>, MdParams) {
    let params = params(&[("UCX_VERBS_SHARE", share), ("UCX_VERBS_REMOTE", remote)]);
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
    let mut seen = [0; 8];
    attach(&*importer, &params, &export, &bytes)?.memory.read(0, &mut seen).unwrap();
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
