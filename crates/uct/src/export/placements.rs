//! Registrations of exported memory in importers' protection domains, by export: they end with it.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;

use super::NotRevoked;
use crate::service::Placement;

/// Those of one context.
#[derive(Debug, Default)]
pub(super) struct Placements(Mutex<HashMap<u64, Vec<Arc<dyn Placement>>>>);

impl Placements {
    pub(super) fn add(&self, id: u64, placement: &Arc<dyn Placement>) {
        self.0.lock().entry(id).or_default().push(Arc::clone(placement));
    }

    pub(super) fn remove(&self, id: u64, placement: &Arc<dyn Placement>) {
        let mut all = self.0.lock();
        if let Some(of_export) = all.get_mut(&id) {
            of_export.retain(|other| !Arc::ptr_eq(other, placement));
            if of_export.is_empty() {
                all.remove(&id);
            }
        }
    }

    pub(super) fn has(&self, placement: &Arc<dyn Placement>) -> bool {
        self.0.lock().values().flatten().any(|other| Arc::ptr_eq(other, placement))
    }

    /// Ends all of export `id`; those that do not end stay, to be tried again.
    pub(super) fn end(&self, id: u64) -> Result<(), NotRevoked> {
        let of_export = self.0.lock().remove(&id).unwrap_or_default();
        let mut verdict = Ok(());
        for placement in of_export {
            if let Err(why) = placement.end() {
                verdict = Err(NotRevoked::Registered { importer: placement.importer(), why });
                self.add(id, &placement);
            }
        }
        verdict
    }
}
