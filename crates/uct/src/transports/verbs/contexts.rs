//! What tests on a device have of a context: one that exports, and one that attaches.

#![allow(clippy::unwrap_used)] // tests

use std::sync::Arc;
use std::time::Duration;

use ucs::config::Config;
use ucs::time::Deadline;

use super::VerbsComponent;
use crate::api::{AttachError, AttachRequest, Attached, Component, Md, MdParams};
use crate::export::{Export, ExportTable};
use crate::service::Service;

/// Longer than anything takes.
pub(super) const BOUND: Duration = Duration::from_secs(30);

/// Of a context with these settings.
pub(super) fn params(settings: &[(&'static str, &'static str)]) -> MdParams {
    let exports = Arc::new(ExportTable::new(BOUND).unwrap());
    let service = Arc::new(Service::new(Arc::clone(&exports), None));
    let config = Config::builder(crate::config::VARS).vars(VerbsComponent.vars()).ignore_env();
    let config = settings.iter().fold(config, |config, (name, value)| config.set(*name, *value));
    MdParams { exports, service, config: config.build().unwrap() }
}

/// Attaches what another one exports under this key.
pub(super) fn attach(
    importer: &dyn Md,
    exporter: &MdParams,
    export: &Export,
    mkey: &[u8],
) -> Result<Attached, AttachError> {
    let claim = export.claim();
    importer.attach(&AttachRequest {
        context_uuid: *exporter.exports.uuid(),
        id: claim.id,
        epoch: claim.epoch,
        address: claim.address,
        length: claim.length,
        mkey,
        deadline: Deadline::after(BOUND),
    })
}
