//! Peers that do not answer, or not in time.

use super::*;

/// Calls whoever listens there, with this patience, and wants to hear that it was too late, in time.
fn is_late(at: &[SocketAddr], patience: Duration) {
    let (client, begin) = (service(), Instant::now());
    let answer =
        client.call_net(0, &[1; 16], at, &asks(3, b"region", &token(), b""), &Deadline::after(patience));
    let error = answer.unwrap_err();
    assert!(matches!(error, NetError::TimedOut { .. }), "{error}");
    assert!(begin.elapsed() >= patience && begin.elapsed() < patience + Duration::from_secs(2));
}

fn listen() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind((LOCAL, 0)).unwrap();
    let at = listener.local_addr().unwrap();
    (listener, at)
}

const PATIENCE: Duration = Duration::from_millis(200);

#[test]
fn who_never_says_hello_is_waited_for_no_longer_than_asked() {
    let (_listener, at) = listen();
    is_late(&[at], PATIENCE);
}

/// One that says hello, and then does this with the first call, if it comes in time.
fn talking(then: impl FnOnce(TcpStream) + Send + 'static) -> (SocketAddr, std::thread::JoinHandle<()>) {
    let (listener, at) = listen();
    let talking = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        if greet(&mut stream).is_some() {
            then(stream);
        }
    });
    (at, talking)
}

#[test]
fn who_never_reads_or_answers_a_call_is_waited_for_no_longer_than_asked() {
    let (at, silent) = talking(|stream| {
        std::thread::sleep(3 * PATIENCE);
        drop(stream);
    });
    is_late(&[at], PATIENCE);
    silent.join().unwrap();
}

fn trickle(stream: &mut TcpStream, bytes: &[u8]) {
    for byte in bytes {
        std::thread::sleep(PATIENCE / 4);
        if stream.write_all(&[*byte]).is_err() {
            return;
        }
    }
}

/// The bound is for all of it: a byte now and then does not lengthen it.
#[test]
fn who_sends_a_byte_at_a_time_is_waited_for_no_longer_than_asked() {
    let (listener, at) = listen();
    let slow = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        trickle(&mut stream, &Welcome { nonce: [1; 16] }.encode());
    });
    is_late(&[at], PATIENCE);
    slow.join().unwrap();
    let (at, slow) = talking(|mut stream| {
        if next_call(&mut stream).is_some() {
            trickle(&mut stream, &Reply::without(1, Verdict::Denied).encode().unwrap());
        }
    });
    is_late(&[at], PATIENCE);
    slow.join().unwrap();
}

/// The kernel drops who comes to a full queue, as a machine does that is not there.
#[test]
fn who_does_not_take_connections_is_waited_for_no_longer_than_asked() {
    let address = SocketAddr::new(LOCAL, 0);
    let full = socket::socket(&address).unwrap();
    rustix::net::bind(&full, &address).unwrap();
    rustix::net::listen(&full, 0).unwrap();
    let at = SocketAddr::try_from(rustix::net::getsockname(&full).unwrap()).unwrap();
    let mut crowd = Vec::new();
    while let Ok(stream) = TcpStream::connect_timeout(&at, Duration::from_millis(100)) {
        crowd.push(stream);
        assert!(crowd.len() < 100, "a queue of none takes them all");
    }
    is_late(&[at], PATIENCE);
}

#[test]
fn an_address_that_is_silent_leaves_time_for_the_next() {
    let pair = pair(LOCAL);
    let (_listener, silent) = listen();
    let at = [silent, pair.at[0]];
    let deadline = Deadline::after(Duration::from_secs(4));
    let (link, reply) =
        pair.client.call_net(0, &pair.uuid, &at, &asks(3, b"region", &token(), b"hello"), &deadline).unwrap();
    assert_eq!((link.peer_addr(), reply), (pair.at[0], b"hello".to_vec()));
}

#[test]
fn who_waits_for_another_s_call_waits_no_longer_than_asked() {
    let (listener, at) = listen();
    let (done, stay) = std::sync::mpsc::channel::<()>();
    let silent = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let greeting = greet(&mut stream).unwrap();
        let bytes = next_call(&mut stream).unwrap();
        let mut reply = Reply::without(1, Verdict::Answered(Status::Ok));
        greeting.prove_reply(&token(), &Call::decode(&bytes).unwrap().mac, &mut reply);
        stream.write_all(&reply.encode().unwrap()).unwrap();
        let _ = stay.recv();
    });
    let client = service();
    let (link, _) = client.call_net(0, &[1; 16], &[at], &asks(3, b"", &token(), b""), &soon()).unwrap();
    let long = Deadline::after(Duration::from_secs(4));
    std::thread::scope(|scope| {
        let first = scope.spawn(|| client.call_net(0, &[1; 16], &[at], &asks(3, b"", &token(), b""), &long));
        std::thread::sleep(PATIENCE);
        let begin = Instant::now();
        for _ in 0..2 {
            let second = link.call(&asks(3, b"", &token(), b""), &Deadline::after(PATIENCE));
            assert!(matches!(second, Err(NetError::TimedOut { .. })), "{second:?}");
            let shared =
                client.call_net(0, &[1; 16], &[at], &asks(3, b"", &token(), b""), &Deadline::after(PATIENCE));
            assert!(matches!(shared, Err(NetError::TimedOut { .. })), "{shared:?}");
        }
        assert!(begin.elapsed() < Duration::from_secs(3) && !first.is_finished());
        assert!(matches!(first.join().unwrap(), Err(NetError::TimedOut { .. })));
    });
    drop(done);
    silent.join().unwrap();
}

#[test]
fn a_call_in_no_time_leaves_the_connection_as_it_is() {
    let pair = pair(LOCAL);
    let (link, _) = pair.call(b"region", &token()).unwrap();
    let late = link.call(&asks(3, b"region", &token(), b"late"), &Deadline::after(Duration::ZERO));
    assert!(matches!(late, Err(NetError::TimedOut { .. })), "{late:?}");
    assert_eq!(link.call(&asks(3, b"region", &token(), b"more"), &soon()).unwrap(), b"more");
    assert_eq!(*pair.echo.calls.lock(), [b"hello".to_vec(), b"more".to_vec()]);
}

/// Work that another peer has asked for takes no time from who is about to prove itself.
#[test]
fn who_comes_while_the_service_is_busy_is_answered() {
    let pair = pair(LOCAL);
    let (mut stream, server) = welcomed(&pair);
    std::thread::scope(|scope| {
        let slow = scope.spawn(|| {
            pair.client.call_net(0, &pair.uuid, &pair.at, &asks(3, b"region", &token(), b"slow"), &soon())
        });
        until("it is busy", || pair.echo.calls() == 1);
        stream.write_all(&Hello { uuid: pair.uuid, nonce: [5; 16] }.encode()).unwrap();
        stream.read_exact(&mut [0; HEADER_LEN]).unwrap();
        let greeting = Greeting { uuid: pair.uuid, server, client: [5; 16] };
        stream.write_all(&proven(&greeting, 1).encode().unwrap()).unwrap();
        until("its call is taken", || pair.echo.calls() == 2);
        slow.join().unwrap().unwrap();
    });
}
