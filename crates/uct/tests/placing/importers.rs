//! Who asks: other users' processes, and those that die.

use std::os::unix::fs::MetadataExt;
use std::time::Duration;

use testkit::{Child, Role, open_fds};
use uct::export::Export;

use super::fake::Asked;
use super::peer::{DOMAIN, Exporter, file, until};

/// An importer that asks so often; as another user, where that is given.
fn asking(exporter: &Exporter, export: &Export, times: usize, uid: Option<u32>) -> (Child, Vec<String>) {
    let name = std::str::from_utf8(exporter.service.name()).unwrap();
    let role = Role::new("peer::importer").arg(name).arg(times.to_string());
    let mut child = uid.into_iter().fold(role, Role::as_uid).start();
    child.send(&exporter.request(export.claim()).encode());
    let told = (0..times).map(|_| String::from_utf8(child.recv()).unwrap()).collect();
    (child, told)
}

/// It has the token, and its accesses are taken note of: all but this it may have.
pub fn another_user_s_process_has_nothing_asked_for_it() {
    let exporter = Exporter::new();
    let export = exporter.export();
    let (mut other, told) = asking(&exporter, &export, 2, Some(65534));
    assert_eq!(told, ["NotPlaced", "NotPlaced"]);
    assert_eq!(exporter.fake.asked(), []);
    // It is who asks that makes the difference.
    let (_same, told) = asking(&exporter, &export, 1, None);
    assert_eq!((told, exporter.fake.asked().len()), (vec!["placed".to_owned()], 1));
    assert_eq!(other.request(b"again"), b"NotPlaced");
    assert_eq!(exporter.fake.asked().len(), 1);
}

pub fn a_process_of_the_same_user_is_placed() {
    let exporter = Exporter::new();
    let export = exporter.export();
    let (mut child, told) = asking(&exporter, &export, 1, None);
    assert_eq!(told, ["placed"]);
    let asked = Asked {
        domain: DOMAIN,
        importer: u32::try_from(child.pid()).unwrap(),
        address: export.claim().address,
        inode: file().metadata().unwrap().ino(),
    };
    assert_eq!(exporter.fake.asked(), [asked]);
    assert_eq!(exporter.fake.ended(), 0);
    child.close();
    child.expect_exit(0);
    until("its placement ends", || exporter.fake.ended() == 1);
    assert_eq!(export.revoke(), Ok(()));
    assert_eq!(exporter.fake.ended(), 1);
}

pub fn a_killed_importer_s_placements_end() {
    let exporter = Exporter::new();
    let (export, other) = (exporter.export(), exporter.export());
    exporter.serves_others(); // all that is made once is there
    let (good, _) = asking(&exporter, &other, 1, None);
    let before = (open_fds(), exporter.fake.ended());
    let (mut child, told) = asking(&exporter, &export, 3, None);
    assert_eq!(told, ["placed"; 3]);
    child.kill();
    until("its placements end", || exporter.fake.ended() == before.1 + 3);
    drop(child);
    until("its descriptors are closed", || open_fds() == before.0);
    assert_eq!(
        (exporter.fake.ended(), exporter.fake.dropped()),
        (before.1 + 3, before.1 + 3),
        "nobody else's"
    );
    assert_eq!(export.revoke(), Ok(()));
    assert_eq!(exporter.fake.ended_again(), 0);
    exporter.serves_others();
    drop(good);
    until("so does that of the other", || exporter.fake.ended() == before.1 + 5);
}

pub fn a_stopped_importer_keeps_its_placements() {
    let exporter = Exporter::new();
    let export = exporter.export();
    let (mut child, _) = asking(&exporter, &export, 2, None);
    child.stop();
    exporter.serves_others();
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(exporter.fake.ended(), 1, "that of the other one");
    // It announces no access: nothing to wait for.
    assert_eq!(export.revoke(), Ok(()));
    assert_eq!(exporter.fake.ended(), 3, "as soon as the export has ended, they have");
    child.cont();
    assert_eq!(child.request(b"again"), b"Denied(Stale)");
}

pub fn placements_end_with_their_connection() {
    let exporter = Exporter::new();
    let exports = [exporter.export(), exporter.export()];
    let mut importer = exporter.importer(&exports[0]);
    for export in exports.iter().chain(&exports) {
        exporter.place(&mut importer, export).unwrap();
    }
    assert_eq!(exports[0].revoke(), Ok(()));
    assert_eq!(exporter.fake.ended(), 2, "those of the export that was revoked");
    drop(importer);
    until("the others end", || exporter.fake.ended() == 4);
    assert_eq!(exports[1].revoke(), Ok(()));
    assert_eq!(exporter.fake.ended(), 4);
}
