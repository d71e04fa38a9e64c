//! What an exporter answers who is to grant access: by every transport that asks for it on the service socket.

use uct::service::wire::{Message, PlacedKeys};

use super::*;

pub fn a_table_that_is_none() {
    for component in COMPONENTS.iter().copied() {
        for (table, page) in [(4096, SLOTS_LEN), (TABLE_LEN, 64)] {
            let error = import_from(component, move |socket, request| {
                grant(socket, &request, [memfd(4096, SEALS), memfd(table, SEALS), memfd(page, SEALS)]);
            });
            assert!(error.to_string().contains("the exporter passed unsafe memory"), "{error}");
        }
        for unsealed in [1, 2] {
            let error = import_from(component, move |socket, request| {
                let mut fds = with_region(memfd(4096, SEALS));
                fds[unsealed] = memfd([0, TABLE_LEN, SLOTS_LEN][unsealed], SealFlags::empty());
                grant(socket, &request, fds);
            });
            assert!(error.to_string().contains("not sealed"), "{error}");
        }
        // A table in which the export does not live.
        let error = import_from(component, |socket, request| {
            let table = memfd(TABLE_LEN, SEALS);
            grant(socket, &request, [memfd(4096, SEALS), table, memfd(SLOTS_LEN, SEALS)]);
        });
        assert_eq!(error.status(), Status::Stale);
    }
}

pub fn missing_descriptors() {
    for component in COMPONENTS.iter().copied() {
        let wanted = if component == SHM { 3 } else { 2 };
        for count in 0..=3 {
            if count == wanted {
                continue;
            }
            let error = import_from(component, move |socket, request| {
                let skipped = usize::from(count < 3 && !request.want_memory);
                let fds = with_region(memfd(4096, SEALS)).into_iter().skip(skipped);
                let fds: Vec<_> = fds.take(count as usize).collect();
                reply(socket, &granted(request.sequence, wanted).encode(), &fds);
            });
            let expected =
                format!("the exporter's reply came with {count} descriptors where {wanted} were announced");
            assert!(error.to_string().contains(&expected), "{error}");
        }
        let before = testkit::open_fds();
        let error = import_from(component, move |socket, request| {
            let more: Vec<_> = (0..8).map(|_| memfd(4096, SEALS)).collect();
            reply(socket, &granted(request.sequence, wanted).encode(), &more);
        });
        assert_eq!(error.status(), Status::Unreachable, "{error}");
        // Other tests open some meanwhile; eight leaked each time would show.
        assert!(testkit::open_fds() < before + 200);
    }
}

/// Memory that nobody asked for, rightly announced.
pub fn a_descriptor_nobody_asked_for() {
    let component = if BY_DEVICE { VERBS } else { CMA };
    let error = import_from(component, |socket, request| {
        assert!(!request.want_memory && request.want_control);
        reply(socket, &granted(request.sequence, 3).encode(), &with_region(memfd(4096, SEALS)));
    });
    assert_eq!(error.status(), Status::Unreachable, "{error}");
    assert!(error.to_string().contains("came with 3 descriptors where 2 were announced"), "{error}");
}

pub fn garbage() {
    let cases: [(&[u8], &str); 3] = [
        (b"HTTP/1.1 400 Bad Request\r\nlength", "a message with an unknown magic"),
        (b"RXSA", "a message of 4 bytes where 32 were expected"),
        (&[0; 100], "a message of 33 bytes where 32 were expected"),
    ];
    for component in COMPONENTS.iter().copied() {
        for (bytes, expected) in cases {
            let error = import_from(component, move |socket, _| reply(socket, bytes, &[]));
            assert!(error.to_string().contains(expected), "{error}");
            assert_eq!(error.status(), Status::Unreachable);
            assert_eq!(error.remedy(), "see that both sides run compatible versions of rucx");
        }
        let error = import_from(component, |socket, request| {
            let request = Request { sequence: request.sequence + 1, ..request };
            grant(socket, &request, with_region(memfd(4096, SEALS)));
        });
        assert!(error.to_string().contains("a message with an unknown sequence number"), "{error}");
    }
    if BY_DEVICE {
        for (bytes, expected) in cases {
            let error = import_placed(move |socket, _| reply(socket, bytes, &[]));
            assert!(error.to_string().contains(expected), "{error}");
            assert_eq!(error.status(), Status::Unreachable);
        }
        let error = import_placed(|socket, sequence| {
            let keys = PlacedKeys { sequence: sequence + 1, lkey: 1, rkey: 1, handle: 1 };
            reply(socket, &keys.encode(), &[]);
        });
        assert!(error.to_string().contains("a message with an unknown sequence number"), "{error}");
        let error = import_placed(|socket, sequence| reply(socket, &granted(sequence, 0).encode(), &[]));
        assert!(error.to_string().contains("a message with an unknown verdict"), "{error}");
    }
}

/// Imports by a device from an exporter that grants the first request, and answers by `answer` when it is asked to register the memory: by the number
/// of that message.
fn import_placed(answer: impl FnOnce(&OwnedFd, u32) + Send + 'static) -> ImportError {
    import_from(VERBS, |socket, request| {
        grant(socket, &request, with_region(memfd(4096, SEALS)));
        let mut bytes = [0; 200];
        let (_, len) = recv(socket, &mut bytes, RecvFlags::empty()).unwrap();
        let Ok(Message::Place(placing)) = Message::decode(&bytes[..len]) else { panic!("{bytes:x?}") };
        answer(socket, placing.sequence);
    })
}

pub fn silence() {
    for component in COMPONENTS.iter().copied() {
        let begin = Instant::now();
        let error = import_from(component, |_, _| thread::sleep(Duration::from_millis(700)));
        assert!(error.to_string().contains("no answer on the service socket within 5"), "{error}");
        assert!(begin.elapsed() < Duration::from_secs(3));
    }
    if BY_DEVICE {
        let begin = Instant::now();
        let error = import_placed(|_, _| thread::sleep(Duration::from_millis(700)));
        assert!(error.to_string().contains("no answer on the service socket within "), "{error}");
        assert!(begin.elapsed() < Duration::from_secs(3));
    }
}

pub fn closes_at_once() {
    for component in COMPONENTS.iter().copied() {
        let uuid = uuid();
        let listener = bind_to(&name_of(&uuid));
        let closer = thread::spawn(move || {
            for _ in 0..2 {
                drop(accept(&listener).unwrap());
            }
            listener
        });
        let error = patient("2s").mem_import(&handle(component, uuid, Identity::of_self())).unwrap_err();
        assert_eq!(error.status(), Status::Unreachable);
        assert!(error.to_string().contains("the exporter closed the connection"), "{error}");
        assert_eq!(error.remedy(), "see whether the exporter is ending, and import again");
        drop(closer.join().unwrap());
    }
}

/// The token is not shown to a process that is not the exporter.
pub fn another_process_has_taken_the_name() {
    for component in COMPONENTS.iter().copied() {
        let uuid = uuid();
        let listener = bind_to(&name_of(&uuid));
        let me = Identity::of_self();
        let other = Identity { pidfd_inode: me.pidfd_inode + 1, start_time: me.start_time + 1, ..me };
        let seen = thread::spawn(move || {
            let socket = accept(&listener).unwrap();
            let mut bytes = [0; 200];
            recv(&socket, &mut bytes, RecvFlags::empty()).unwrap().1
        });
        let error = patient("2s").mem_import(&handle(component, uuid, other)).unwrap_err();
        assert_eq!(error.status(), Status::Stale);
        assert!(error.to_string().contains("another one has its place"), "{error}");
        assert_eq!(seen.join().unwrap(), 0, "nothing was sent");
    }
}
