//! What is sent: messages that are none, and descriptors that nobody asked for.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::Resource;
use testkit::limits::with_rlimit;
use testkit::{Role, open_fds, role};
use uct::export::Claim;
use uct::service::wire::{Placing, REPLY_LEN, REQUEST_LEN, Reply, Request, Verdict};
use uct::service::{ConnectError, Connection};

use super::peer::{
    Answer, DOMAIN, Exporter, answer, answer_within, deadline, file, send, send_placing, send_unplacing,
    until,
};

/// For what does not come.
const A_WHILE: Duration = Duration::from_millis(100);

pub fn a_placing_before_anything_else_ends_its_connection() {
    let exporter = Exporter::new();
    let export = exporter.export();
    for with_descriptor in [true, false] {
        let connection = exporter.connection();
        let fds = [file()];
        let fds: Vec<BorrowedFd<'_>> = fds.iter().filter(|_| with_descriptor).map(AsFd::as_fd).collect();
        send(&connection, &exporter.placing(export.claim()).encode(), &fds);
        assert_eq!(answer(&connection), Answer::End, "its token is right, and it was not shown before");
    }
    let connection = exporter.connection();
    send_unplacing(&connection, 1);
    drop(connection);
    assert_eq!(exporter.fake.asked(), []);
    exporter.serves_others();
}

/// It has shown a token, and its accesses would not be known.
pub fn a_placing_without_a_page_is_as_a_message_that_is_none() {
    let exporter = Exporter::new();
    let export = exporter.export();
    let mut importer = exporter.connection();
    let request = Request { want_control: false, ..exporter.request(export.claim()) };
    assert_eq!(importer.ask(request, &deadline()).unwrap_err(), ConnectError::NoResource);
    send_placing(&importer, &exporter.placing(export.claim()));
    assert_eq!(answer_within(&importer, A_WHILE), Answer::Nothing);
    assert_eq!(exporter.fake.asked(), []);
    exporter.serves_others();
    // With its page the same message is answered.
    let importer = exporter.importer(&export);
    send_placing(&importer, &exporter.placing(export.claim()));
    assert!(matches!(answer(&importer), Answer::Keys(_)));
}

/// A connection has nothing done by this message, nor by any later one. What it had before stays until it ends.
pub fn what_is_no_message_is_listened_to_no_more() {
    let exporter = Exporter::new();
    let export = exporter.export();
    exporter.serves_others();
    let before = open_fds();
    let right = exporter.placing(export.claim()).encode();
    let changed = |at: usize, byte: u8| {
        let mut bytes = right.to_vec();
        bytes[at] = byte;
        bytes
    };
    let messages = [
        ("too long", [&right[..], &[0]].concat()),
        ("much too long", vec![b'R'; 1 << 14]),
        ("too short", right[..REQUEST_LEN - 1].to_vec()),
        ("nothing", Vec::new()),
        ("another magic", changed(0, b'X')),
        ("another version", changed(4, 2)),
        ("another kind", changed(6, 5)),
        ("an introduction", changed(6, 2)),
        ("flags", changed(12, 1)),
        ("more flags", changed(15, 0x80)),
    ];
    for (what, bytes) in messages {
        let mut importer = exporter.importer(&export);
        exporter.place(&mut importer, &export).unwrap();
        let (asked, ended) = (exporter.fake.asked().len(), exporter.fake.ended());
        send(&importer, &bytes, &[file().as_fd(), file().as_fd()]);
        send_placing(&importer, &exporter.placing(export.claim()));
        assert_eq!(answer_within(&importer, A_WHILE), Answer::Nothing, "{what}");
        assert_eq!((exporter.fake.asked().len(), exporter.fake.ended()), (asked, ended), "{what}");
        exporter.serves_others();
        drop(importer);
        until("its placement ends with it", || exporter.fake.ended() == ended + 2);
    }
    // As is one that has come without its descriptor.
    let importer = exporter.importer(&export);
    send(&importer, &right, &[]);
    send_placing(&importer, &exporter.placing(export.claim()));
    assert_eq!(answer_within(&importer, A_WHILE), Answer::Nothing);
    drop(importer);
    until("no descriptor is left", || open_fds() == before);
}

pub fn one_descriptor_is_taken_and_no_other_kept() {
    let exporter = Exporter::new();
    let export = exporter.export();
    exporter.serves_others();
    let before = open_fds();
    let files: Vec<_> = (0..16).map(|_| file()).collect();
    let all: Vec<BorrowedFd<'_>> = files.iter().map(AsFd::as_fd).collect();
    let importer = exporter.importer(&export);
    std::thread::sleep(A_WHILE); // the exporter closes its copies after it has answered
    let with_importer = open_fds();
    for count in [1, 2, 3, 16] {
        send(&importer, &exporter.placing(export.claim()).encode(), &all[..count]);
        assert!(matches!(answer(&importer), Answer::Keys(_)), "{count} descriptors");
    }
    until("one is kept for each placement", || open_fds() == with_importer + 4);
    // With what needs none, and what is refused.
    send(&importer, &Request { want_control: false, ..exporter.request(export.claim()) }.encode(), &all);
    assert_eq!(reply_verdict(&importer), Some(Verdict::Granted));
    send(&importer, &exporter.placing(&Claim { id: 99, ..*export.claim() }).encode(), &all);
    assert!(matches!(answer(&importer), Answer::Verdict(0, Verdict::Refused(_))));
    until("and no other", || open_fds() == with_importer + 4);
    drop((importer, files));
    until("its placements end", || exporter.fake.ended() == 1 + 4);
    until("no descriptor is left", || open_fds() == before);
}

/// The verdict of a reply that may grant.
fn reply_verdict(by: &Connection) -> Option<Verdict> {
    let socket = by.socket();
    poll(&mut [PollFd::new(&*socket, PollFlags::IN)], None).ok()?;
    let mut bytes = [0; REPLY_LEN];
    rustix::io::read(&*socket, &mut bytes).ok()?;
    Reply::decode(&bytes).ok().map(|reply| reply.verdict)
}

/// They come back, and tell the placement to be ended: the exporter reads no more into them.
pub fn sequence_numbers_are_the_importer_s() {
    let exporter = Exporter::new();
    let export = exporter.export();
    let importer = exporter.importer(&export);
    for sequence in [5, 5, 0, u32::MAX] {
        send_placing(&importer, &Placing { sequence, ..exporter.placing(export.claim()) });
        assert!(matches!(answer(&importer), Answer::Keys(keys) if keys.sequence == sequence));
    }
    let ended_after = |sequence| {
        send_unplacing(&importer, sequence);
        send_placing(&importer, &exporter.placing(&Claim { id: 99, ..*export.claim() }));
        assert!(matches!(answer(&importer), Answer::Verdict(..)));
        exporter.fake.ended()
    };
    assert_eq!(ended_after(6), 0, "nobody's");
    assert_eq!([ended_after(5), ended_after(5), ended_after(5)], [1, 2, 2], "one after another");
    assert_eq!([ended_after(u32::MAX), ended_after(0)], [3, 4]);
    exporter.serves_others();
}

/// An exporter that can have no more descriptors, until it is told so.
pub fn exporter_without_descriptors() {
    let exporter = Exporter::new();
    let export = exporter.export();
    role::send(exporter.service.name());
    role::send(&exporter.request(export.claim()).encode());
    let _ = role::recv();
    with_rlimit(Resource::Nofile, 3, || {
        role::send(b"none left");
        let _ = role::recv();
    });
    role::send(format!("{} asked", exporter.fake.asked().len()).as_bytes());
    let _ = role::recv();
}

/// That is no fault of the importer's: what it has stays, and it may ask again.
pub fn without_descriptors_it_says_so() {
    let mut child = Role::spawn("messages::exporter_without_descriptors");
    let name = child.recv();
    let request = Request::decode(&child.recv()).unwrap();
    let mut importer = Connection::open(&name, &deadline()).unwrap();
    importer.ask(request.clone(), &deadline()).unwrap();
    let placing = Placing { sequence: 0, uuid: request.uuid, claim: request.claim, domain: DOMAIN };
    let mut place = || importer.place(placing.clone(), file().as_fd(), &deadline());
    place().unwrap();
    assert_eq!(child.request(b"no more"), b"none left");
    assert_eq!(place(), Err(ConnectError::NoResource));
    assert_eq!(child.request(b"again"), b"1 asked");
    place().unwrap();
}
