//! Contexts over a NIC.

use std::sync::Arc;
use std::time::{Duration, Instant};

use testkit::role;
use ucp::{Context, Features, ImportedRegion, MemMap, PackedMemh, RcacheStats, Region};
use ucs::monitor::{Active, Monitor};
use uct_conformance::nic::{Nic, NicComponent};

/// Bytes of the exported region.
pub(crate) const LEN: usize = 4 << 20;

/// Bytes that the NIC of a test may pin.
pub(crate) const PINNED: usize = 64 << 20;

/// Runs a role, where there is a NIC. It may have itself skipped: [`caches`].
pub(crate) fn in_a_process(name: &str) {
    drop(Nic::open_or_skip(1, PINNED));
    let mut child = testkit::Role::new(name).deadline(Duration::from_secs(110)).start();
    if let Ok(skipped) = child.try_recv(Duration::from_secs(110)) {
        let skipped = String::from_utf8(skipped).unwrap();
        let (reason, remedy) = skipped.split_once('\n').unwrap();
        testkit::skip(reason, remedy);
    }
    child.expect_exit(0);
}

/// Whether registrations are kept here; the test of this role is skipped otherwise.
pub(crate) fn caches() -> bool {
    let active = Monitor::process().start();
    if matches!(active, Active::Uffd { .. }) {
        return true;
    }
    role::send(
        format!(
            "nothing is cached without userfaultfd: {active:?}\nallow userfaultfd in the seccomp profile"
        )
        .as_bytes(),
    );
    false
}

/// Waits.
pub(crate) fn wait_until(what: &str, done: impl Fn() -> bool) {
    let begin = Instant::now();
    while !done() {
        assert!(begin.elapsed() < Duration::from_secs(60), "in vain until {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// An owner that exports memory, and an importer, over one NIC. Dropped in the order of its fields.
pub(crate) struct World {
    pub(crate) import: ImportedRegion,
    pub(crate) importer: Context,
    pub(crate) handle: PackedMemh,
    pub(crate) region: Region,
    pub(crate) owner: Context,
    pub(crate) component: &'static NicComponent,
    pub(crate) nic: Arc<Nic>,
}

/// A context that has the NIC, and by `tls` perhaps others.
pub(crate) fn context(component: &'static NicComponent, tls: &str) -> Context {
    context_from(component, tls, "0") // short operands, too, are to be registered
}

/// One that registers operands of so many bytes, and longer ones.
pub(crate) fn context_from(component: &'static NicComponent, tls: &str, thresh: &str) -> Context {
    let builder = Context::builder().features(Features::EXPORTED_MEMH).ignore_env();
    builder.component(component).set("UCX_TLS", tls).set("UCX_ZCOPY_THRESH", thresh).build().unwrap()
}

impl World {
    pub(crate) fn new() -> Self {
        Self::with(PINNED)
    }

    /// Of a NIC that may pin `limit` bytes.
    pub(crate) fn with(limit: usize) -> Self {
        let nic = Arc::new(Nic::with_limit(4096, limit).unwrap());
        let component = NicComponent::leak(&[Arc::clone(&nic)]);
        let owner = context(component, "nic");
        let region = owner.mem_map(MemMap::buffer(vec![0; LEN]).exported()).unwrap();
        let handle = region.memh_pack().unwrap();
        let importer = context(component, "nic");
        let import = importer.mem_import(handle.as_bytes()).unwrap();
        assert_eq!(import.transport(), "nic");
        Self { import, importer, handle, region, owner, component, nic }
    }

    pub(crate) fn stats(&self) -> RcacheStats {
        self.importer.rcache_stats()
    }

    /// Bytes of the exporter's memory.
    pub(crate) fn at(&self, offset: usize, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.region.read(offset as u64, &mut bytes).unwrap();
        bytes
    }
}

/// Bytes that no other number gives.
pub(crate) fn pattern(number: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    fill(&mut bytes, number);
    bytes
}

/// As [`pattern`], in place: in a page here and there, and at both ends.
pub(crate) fn fill(bytes: &mut [u8], number: u64) {
    let len = bytes.len();
    for at in (0..len.saturating_sub(8)).step_by(1000).chain(len.checked_sub(8)) {
        bytes[at..at + 8].copy_from_slice(&(number << 24 | at as u64).to_ne_bytes());
    }
}
