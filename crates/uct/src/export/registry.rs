//! The export tables of this process, by the uuid of their contexts.
//!
//! Contexts share nothing, and this only tells what is a region of this process: memory of it may be accessed by its address if one of
//! its contexts exports it, and not because somebody says so on a socket.

use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use super::ExportTable;

static TABLES: Mutex<Vec<Weak<ExportTable>>> = Mutex::new(Vec::new());

/// Enters a table, which is forgotten when it is dropped.
pub(super) fn enter(table: &Arc<ExportTable>) {
    let mut tables = TABLES.lock();
    tables.retain(|table| table.strong_count() > 0);
    tables.push(Arc::downgrade(table));
}

/// The table of the context with this uuid, if that is one of this process.
#[must_use]
pub fn find(uuid: &[u8; 16]) -> Option<Arc<ExportTable>> {
    let tables: Vec<_> = TABLES.lock().iter().filter_map(Weak::upgrade).collect();
    tables.into_iter().find(|table| table.is_mine() && table.uuid() == uuid)
}
