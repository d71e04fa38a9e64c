//! Peers by hand that do what they may not.

use super::*;
use crate::service::server::PROOF_TIME;

/// Before a connection would be ended for its silence.
const SOON: Duration = PROOF_TIME.checked_div(5).unwrap().saturating_mul(4);

/// Whether the other side ends the connection within this time.
fn is_ended(stream: &mut TcpStream, within: Duration) -> bool {
    stream.set_read_timeout(Some(within)).unwrap();
    loop {
        match stream.read(&mut [0; 64]) {
            Ok(1..) => {}
            Ok(0) => return true,
            Err(error) => {
                return !matches!(
                    error.kind(),
                    std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut
                );
            }
        }
    }
}

/// Sends what is no message, by whom has proven something or not: the connection ends before one would that is silent.
fn is_refused(pair: &Pair, bytes: &[u8]) {
    for is_proven in [false, true] {
        let (mut stream, greeting) = raw(pair);
        if is_proven {
            assert_eq!(verdict(&mut stream, &proven(&greeting, 1)), Some(Verdict::Answered(Status::Ok)));
        }
        stream.write_all(bytes).unwrap();
        let within = if is_proven { 5 * PROOF_TIME } else { SOON };
        assert!(is_ended(&mut stream, within), "{bytes:?}");
    }
}

#[test]
fn what_is_no_call_ends_the_connection() {
    let pair = pair(LOCAL);
    let header = |subject: u16, request: u16| {
        let mut bytes = [0; HEADER_LEN];
        bytes[6..8].copy_from_slice(&subject.to_le_bytes());
        bytes[8..10].copy_from_slice(&request.to_le_bytes());
        bytes
    };
    is_refused(&pair, &[0xff; HEADER_LEN]);
    is_refused(&pair, &header(257, 0));
    is_refused(&pair, &header(0, 1025));
    is_refused(&pair, &header(u16::MAX, u16::MAX));
    let mut reserved = header(0, 0);
    reserved[12] = 1;
    is_refused(&pair, &reserved);
    is_refused(&pair, &header(0, 0)); // number 0
    until("whoever was called is told", || pair.echo.ended.lock().len() == 6);
    assert!(pair.call(b"region", &token()).is_ok());
}

#[test]
fn what_is_no_hello_ends_the_connection() {
    let pair = pair(LOCAL);
    let hello = Hello { uuid: pair.uuid, nonce: [5; 16] }.encode();
    for at in 0..8 {
        let mut bytes = hello;
        bytes[at] ^= 0x80;
        let mut stream = TcpStream::connect(pair.at[0]).unwrap();
        stream.write_all(&bytes).unwrap();
        assert!(is_ended(&mut stream, SOON), "byte {at}");
    }
    let mut other = TcpStream::connect(pair.at[0]).unwrap();
    other.write_all(&Hello { uuid: [9; 16], nonce: [5; 16] }.encode()).unwrap();
    other.read_exact(&mut [0; WELCOME_LEN]).unwrap();
    let reply = next_reply(&mut other).unwrap();
    assert_eq!(Reply::decode(&reply).unwrap().verdict, Verdict::OtherContext);
    assert!(is_ended(&mut other, SOON));
}

#[test]
fn half_a_message_delays_nobody_and_is_not_waited_for() {
    let pair = pair(LOCAL);
    let begin = Instant::now();
    let (mut slow, greeting) = raw(&pair);
    slow.write_all(&proven(&greeting, 1).encode().unwrap()[..30]).unwrap();
    let mut silent = TcpStream::connect(pair.at[0]).unwrap();
    let mut half = TcpStream::connect(pair.at[0]).unwrap();
    half.write_all(&Hello { uuid: pair.uuid, nonce: [5; 16] }.encode()[..20]).unwrap();
    assert!(pair.call(b"region", &token()).is_ok());
    assert!(begin.elapsed() < SOON, "delayed");
    for stream in [&mut slow, &mut silent, &mut half] {
        assert!(is_ended(stream, 3 * PROOF_TIME));
    }
    assert!(begin.elapsed() >= PROOF_TIME, "they have that long");
}

/// Messages that prove nothing do not lengthen the time for a proof.
#[test]
fn who_proves_nothing_is_ended_however_much_he_says() {
    let pair = pair(LOCAL);
    let (mut stream, greeting) = raw(&pair);
    let begin = Instant::now();
    let mut call = Call { subject: b"revoked", ..proven(&greeting, 1) };
    greeting.prove(&token(), &mut call);
    while let Some(verdict) = verdict(&mut stream, &call) {
        assert_eq!(verdict, Verdict::Stale);
        assert!(begin.elapsed() < 3 * PROOF_TIME, "a token that has ended keeps a connection");
        call.sequence += 1;
        greeting.prove(&token(), &mut call);
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn guessing_ends_a_connection() {
    let pair = pair(LOCAL);
    for subject in [b"region".as_slice(), b"other"] {
        let (mut stream, greeting) = raw(&pair);
        let mut call = Call { subject, mac: [9; MAC_LEN], ..proven(&greeting, 1) };
        let mut guesses = 0;
        while let Some(verdict) = verdict(&mut stream, &call) {
            assert!(matches!(verdict, Verdict::Denied | Verdict::Unknown));
            guesses += 1;
            call.sequence += 1;
        }
        assert_eq!(guesses, MAX_FAILURES);
    }
}

/// An importer may be given handles with wrong tokens: what it has of others goes on.
#[test]
fn wrong_tokens_do_not_end_a_connection_that_others_use() {
    let pair = pair(LOCAL);
    let (link, _) = pair.call(b"region", &token()).unwrap();
    for _ in 0..=MAX_FAILURES {
        let wrong = pair.call(b"region", &Token::from_bytes([8; 16])).unwrap_err();
        assert_eq!(wrong.status(), Status::AccessDenied);
        assert_eq!(pair.call(b"other", &token()).unwrap_err().status(), Status::Unreachable);
        assert_eq!(pair.call(b"revoked", &token()).unwrap_err().status(), Status::Stale);
    }
    assert_eq!(link.call(&asks(3, b"region", &token(), b""), &soon()).unwrap(), b"");
    assert!(!link.state().is_gone());
}

/// Answers that nobody takes fill a connection, and then no more of its calls are read.
#[test]
fn who_never_reads_delays_nobody() {
    #[derive(Debug)]
    struct Long;
    impl Responder for Long {
        fn secret(&self, _: &[u8]) -> Secret {
            Secret::Live(token())
        }
        fn call(&self, _: ConnId, _: &[u8], _: &[u8]) -> Result<Vec<u8>, Status> {
            Ok(vec![1; MAX_BODY])
        }
        fn ended(&self, _: ConnId) {}
    }
    let pair = pair(LOCAL);
    let long = Arc::new(Long);
    pair.server.respond(7, weak(&long));
    let (mut stream, greeting) = raw(&pair);
    stream.set_write_timeout(Some(Duration::from_millis(200))).unwrap();
    let mut sent = 0;
    loop {
        let mut call = Call { kind: 7, request: &[0; MAX_BODY], ..proven(&greeting, sent + 1) };
        greeting.prove(&token(), &mut call);
        if stream.write_all(&call.encode().unwrap()).is_err() {
            break;
        }
        sent += 1;
        assert!(sent < 1_000_000, "all of it is kept somewhere");
    }
    let begin = Instant::now();
    assert!(pair.call(b"region", &token()).is_ok());
    assert!(begin.elapsed() < Duration::from_secs(1));
    for sequence in 1..=sent {
        let bytes = next_reply(&mut stream).expect("no reply is lost");
        let reply = Reply::decode(&bytes).unwrap();
        assert_eq!((reply.sequence, reply.content.len()), (sequence, MAX_BODY));
    }
}

#[test]
fn a_reply_that_is_too_long_is_an_error_of_its_responder() {
    #[derive(Debug)]
    struct TooLong;
    impl Responder for TooLong {
        fn secret(&self, _: &[u8]) -> Secret {
            Secret::Live(token())
        }
        fn call(&self, _: ConnId, _: &[u8], _: &[u8]) -> Result<Vec<u8>, Status> {
            Ok(vec![1; MAX_BODY + 1])
        }
        fn ended(&self, _: ConnId) {}
    }
    let pair = pair(LOCAL);
    let responder = Arc::new(TooLong);
    pair.server.respond(7, weak(&responder));
    let answer = pair.client.call_net(0, &pair.uuid, &pair.at, &asks(7, b"", &token(), b""), &soon());
    assert_eq!(answer.unwrap_err(), NetError::Refused { address: pair.at[0], status: Status::IoError });
}

#[test]
fn one_address_cannot_keep_others_out() {
    let pair = pair(IpAddr::V4(Ipv4Addr::UNSPECIFIED));
    let at = SocketAddr::new(LOCAL, pair.at[0].port());
    let crowd: Vec<_> =
        (0..2 * server::MAX_UNPROVEN_PER_ADDRESS).map(|_| TcpStream::connect(at).unwrap()).collect();
    let other = [SocketAddr::new(IpAddr::V4(Ipv4Addr::new(127, 0, 0, 2)), at.port())];
    let answer = pair.client.call_net(0, &pair.uuid, &other, &asks(3, b"region", &token(), b""), &soon());
    assert!(answer.is_ok());
    drop(crowd);
}
