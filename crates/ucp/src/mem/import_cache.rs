//! Importing the same handle twice shares one attachment.

use std::collections::HashMap;
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Weak};
use std::time::Duration;

use constant_time_eq::constant_time_eq;
use parking_lot::{ArcMutexGuard, Mutex, RawMutex};

use super::import::Imported;

/// What a handle is filed under: a keyed hash of all its bytes. Nobody can choose handles that share a place, and every handle
/// that is imported has one of its own.
pub(crate) type Key = u64;

/// One import, or the place where one is being made: locked meanwhile, so that many threads make one.
type Place = Arc<Mutex<Weak<Imported>>>;

/// The imports of a context that are alive. Bounded.
#[derive(Debug)]
pub(crate) struct ImportCache {
    places: Mutex<HashMap<Key, Place>>,
    hash: RandomState,
    limit: usize,
}

/// Where an import goes when it has been made; other threads that import the same handle wait.
pub(super) struct Vacancy(ArcMutexGuard<RawMutex, Weak<Imported>>);

impl fmt::Debug for Vacancy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Vacancy")
    }
}

impl Vacancy {
    pub(super) fn fill(mut self, imported: &Arc<Imported>) {
        *self.0 = Arc::downgrade(imported);
    }
}

/// What the cache says of a handle.
#[derive(Debug)]
pub(super) enum Lookup {
    /// It is imported already.
    Hit(Arc<Imported>),
    /// It is not: make it.
    Miss(Vacancy),
    /// There is no room.
    Full,
    /// Another thread has been importing it all the time.
    TimedOut,
}

impl ImportCache {
    pub(crate) fn new(limit: usize) -> Self {
        Self { places: Mutex::new(HashMap::new()), hash: RandomState::new(), limit }
    }

    /// How many may be alive.
    pub(crate) fn limit(&self) -> usize {
        self.limit
    }

    /// How many imports are alive, or being made.
    pub(crate) fn len(&self) -> usize {
        self.places.lock().len()
    }

    /// Looks for a handle. A hit has the same bytes, compared in constant time, and an export that lives as far as is known.
    pub(super) fn lookup(&self, bytes: &[u8], patience: Duration) -> (Key, Lookup) {
        let key = self.hash.hash_one(bytes);
        let place = {
            let mut places = self.places.lock();
            if !places.contains_key(&key) && places.len() >= self.limit {
                return (key, Lookup::Full);
            }
            Arc::clone(places.entry(key).or_default())
        };
        let locked = place.try_lock_arc_for(patience);
        drop(place);
        let Some(place) = locked else {
            self.forget(&key); // whoever was importing it has seen us waiting, and left that to us
            return (key, Lookup::TimedOut);
        };
        let lookup = match place.upgrade() {
            Some(imported) if constant_time_eq(imported.bytes(), bytes) && imported.is_alive() => {
                Lookup::Hit(imported)
            }
            _ => Lookup::Miss(Vacancy(place)),
        };
        (key, lookup)
    }

    /// Forgets a key whose import is gone, unless another has taken its place.
    pub(super) fn forget(&self, key: &Key) {
        let mut places = self.places.lock();
        let empty = places.get(key).is_some_and(|place| {
            Arc::strong_count(place) == 1 && place.try_lock().is_some_and(|weak| weak.strong_count() == 0)
        });
        if empty {
            places.remove(key);
        }
    }
}
