//! The transports: each a folder with its capability table (`mod.rs`), memory domain (`md.rs`) and key bytes (`mkey.rs`).

#[cfg(feature = "self")]
pub mod self_;
pub mod shm;

use crate::api::Component;

/// All transports of this build, the most direct first.
#[must_use]
pub fn components() -> &'static [&'static dyn Component] {
    &[
        #[cfg(feature = "self")]
        &self_::SelfComponent,
        #[cfg(feature = "shm")]
        &shm::ShmComponent,
    ]
}
