//! Handles made to be mistaken for others.

use super::*;

/// A handle that borrows the uuid of another context, and would lead to a socket of its own, leads nowhere: the socket's name follows
/// from the uuid. No key can have an importer connect to whatever listens on this system, either.
pub fn a_borrowed_uuid_gets_no_tokens() {
    let mut host = Actor::host(4096);
    let genuine = host.export();
    let name = b"hostile-borrower";
    let listener = bind_to(name);
    let mut borrowed = shm_handle(uuid(), name, Identity::of_self());
    borrowed[32..48].copy_from_slice(&genuine[32..48]);
    let borrowed = crate::roles::repaired(borrowed);
    let ctx = patient("2s");
    for bytes in [borrowed, shm_handle(uuid(), name, Identity::of_self())] {
        let error = ctx.mem_import(&bytes).unwrap_err();
        assert_eq!(error.status(), Status::InvalidHandle, "{error}");
        assert!(
            error.to_string().contains("its service socket is not that of the exporting context"),
            "{error}"
        );
    }
    rustix::io::ioctl_fionbio(&listener, true).unwrap();
    assert_eq!(accept(&listener).unwrap_err(), rustix::io::Errno::AGAIN, "nobody connected");
    let import = ctx.mem_import(&genuine).unwrap();
    let mut seen = [0; 8];
    import.read(0, &mut seen).unwrap();
    assert_eq!(seen, [FILL; 8], "the genuine memory");
}

/// By cma such a handle leads to the context whose uuid it borrows, and says that this is another process: nothing is shown to it.
pub fn a_borrowed_uuid_by_cma() {
    let mut host = Actor::host(4096);
    let genuine = host.export();
    let borrowed: [u8; 16] = genuine[32..48].try_into().unwrap();
    let ctx = patient("2s");
    let error = ctx.mem_import(&handle(CMA, borrowed, Identity::of_self())).unwrap_err();
    assert_eq!(error.status(), Status::Stale);
    assert!(error.to_string().contains("another one has its place"), "{error}");
    // It stands in no genuine handle's way, and with the genuine identity the token is still wanting.
    ctx.mem_import(&genuine).unwrap();
    let content = Handle::decode(&genuine, |_| true).unwrap();
    let entry = content.entries.iter().find(|entry| entry.component == CMA).unwrap();
    let exporter = cma::mkey::Mkey::decode(&entry.mkey).unwrap().exporter;
    let error = ctx.mem_import(&handle(CMA, borrowed, exporter)).unwrap_err();
    assert_eq!(error.status(), Status::AccessDenied, "{error}");
}

/// A handle with one more entry, of a component nobody knows.
fn variant(handle: &[u8], number: u16) -> Vec<u8> {
    let mut content = Handle::decode(handle, |_| true).unwrap();
    let entry = Entry { component: 1000 + number, mandatory: false, global_id: vec![], mkey: vec![] };
    content.entries.push(entry);
    content.encode().unwrap()
}

/// Whoever sends handles can vary their bytes: each is an import, and counts as one.
pub fn variants_of_a_handle_are_counted() {
    let mut host = Actor::host(4096);
    let exported = host.export();
    let ctx =
        Context::builder().features(Features::EXPORTED_MEMH).set("UCX_MAX_IMPORTS", "4").build().unwrap();
    let imports: Vec<_> = (0..10).map(|number| ctx.mem_import(&variant(&exported, number))).collect();
    assert_eq!(imports.iter().filter(|import| import.is_ok()).count(), 4);
    assert_eq!(ctx.stats().imports, 4);
    let refused = imports[9].as_ref().unwrap_err();
    assert_eq!(refused.status(), Status::ExceedsLimit);
    drop(imports);
    assert_eq!(ctx.stats().imports, 0);
    ctx.mem_import(&exported).unwrap();
}

/// A handle that names the same context and export as another, and another process, which never answers, delays its own import only.
pub fn a_silent_namesake_delays_nobody() {
    let mut host = Actor::host(4096);
    let genuine = host.export();
    let silent = uuid();
    let _listener = bind_to(&name_of(&silent)); // and never accepts
    let mut namesake = handle(SHM, silent, Identity::of_self());
    namesake[48..56].copy_from_slice(&genuine[48..56]);
    let namesake = crate::roles::repaired(namesake);
    let ctx = patient("2s");
    let slow = {
        let ctx = ctx.clone();
        thread::spawn(move || ctx.mem_import(&namesake).unwrap_err().status())
    };
    thread::sleep(Duration::from_millis(100));
    let begin = Instant::now();
    ctx.mem_import(&genuine).unwrap();
    assert!(begin.elapsed() < Duration::from_secs(1), "{:?}", begin.elapsed());
    assert_eq!(slow.join().unwrap(), Status::Unreachable);
}
