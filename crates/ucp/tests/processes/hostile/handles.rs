//! Handles made to be mistaken for others.

use super::*;

/// A handle that borrows the uuid of another context, and leads to a socket of its own, comes first. The handles of that context
/// are still asked for where they lead: their tokens are not shown to the impostor, nor is its memory taken for theirs.
pub fn a_borrowed_uuid_gets_no_tokens() {
    let mut host = Actor::host(4096);
    let genuine = host.export();
    let name = b"hostile-borrower";
    let mut borrowed = shm_handle(uuid(), name, Identity::of_self());
    borrowed[32..48].copy_from_slice(&genuine[32..48]);
    let borrowed = crate::roles::repaired(borrowed);
    let impostor = exporter(name, |socket, request| {
        grant(socket, &request, with_region(memfd(4096, SEALS)));
    });
    let ctx = patient("2s");
    let first = ctx.mem_import(&borrowed).unwrap();
    let import = ctx.mem_import(&genuine).unwrap();
    let mut seen = [0; 8];
    import.read(0, &mut seen).unwrap();
    assert_eq!(seen, [FILL; 8], "the genuine memory");
    first.read(0, &mut seen).unwrap();
    assert_eq!(seen, [0; 8], "the impostor's");
    drop((first, import));
    // The end of the connection, or another request.
    let more = recv(impostor.join().unwrap(), &mut [0; 200][..], RecvFlags::empty()).unwrap().1;
    assert_eq!(more, 0, "the impostor was asked once");
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

/// A handle that names the same context and export as another, and leads to somebody who never answers, delays its own import
/// only.
pub fn a_silent_namesake_delays_nobody() {
    let mut host = Actor::host(4096);
    let genuine = host.export();
    let name = b"hostile-namesake";
    let mut namesake = shm_handle(uuid(), name, Identity::of_self());
    namesake[32..56].copy_from_slice(&genuine[32..56]);
    let namesake = crate::roles::repaired(namesake);
    let _listener = bind_to(name); // and never accepts
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
