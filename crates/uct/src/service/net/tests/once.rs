//! A call is taken once at most, whatever becomes of its connection; and what a responder does harms no other.

use super::client::Stream;
use super::*;

/// Answers a call with the token.
fn answer(stream: &mut TcpStream, greeting: &Greeting) {
    let bytes = next_call(stream).unwrap();
    let call = Call::decode(&bytes).unwrap();
    let mut reply = Reply::without(call.sequence, Verdict::Answered(Status::Ok));
    greeting.prove_reply(&token(), &call.mac, &mut reply);
    stream.write_all(&reply.encode().unwrap()).unwrap();
}

/// A second call, of a peer that takes these requests and ends the connection: after `before` it is sent, and not again.
fn is_not_sent_again(takes: &'static [&'static [u8]], before: impl FnOnce(&NetLink)) {
    let (client, listener) = (service(), TcpListener::bind((LOCAL, 0)).unwrap());
    let at = [listener.local_addr().unwrap()];
    let server = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let greeting = greet(&mut stream).unwrap();
        answer(&mut stream, &greeting);
        for request in takes {
            let taken = next_call(&mut stream).unwrap();
            assert_eq!(Call::decode(&taken).unwrap().request, *request);
        }
        drop(stream);
        listener
    });
    let (link, _) = client.call_net(0, &[1; 16], &at, &asks(3, b"", &token(), b""), &soon()).unwrap();
    before(&link);
    let second = client.call_net(0, &[1; 16], &at, &asks(3, b"", &token(), b"once"), &soon());
    assert_eq!(second.unwrap_err(), NetError::Unanswered { address: at[0] });
    assert!(link.state().is_gone());
    let listener = server.join().unwrap();
    listener.set_nonblocking(true).unwrap();
    assert!(listener.accept().is_err(), "it came again");
}

#[test]
fn a_call_that_may_have_been_taken_is_not_sent_again() {
    is_not_sent_again(&[b"once"], |_| {});
}

/// Also while the answer to something told before is waited for.
#[test]
fn a_call_behind_what_was_told_is_not_sent_again() {
    is_not_sent_again(&[b"told", b"once"], |link| {
        assert!(link.tell(&asks(3, b"", &token(), b"told"), Duration::ZERO));
    });
}

/// As many as one likes, of which nobody waits for an answer: those that have come make room.
#[test]
fn what_is_told_is_told_however_much_it_is() {
    let pair = pair(LOCAL);
    let (link, _) = pair.call(b"region", &token()).unwrap();
    for told in 1..2000 {
        until("there is room", || link.tell(&asks(3, b"region", &token(), b"told"), Duration::ZERO));
        if told % 400 == 0 {
            until("all have come", || pair.echo.calls() > told);
        }
    }
    until("all have come", || pair.echo.calls() == 2000);
    assert!(link.call(&asks(3, b"region", &token(), b""), &soon()).is_ok());
}

#[test]
fn a_call_to_an_ended_connection_is_not_sent() {
    let listener = TcpListener::bind((LOCAL, 0)).unwrap();
    let at = listener.local_addr().unwrap();
    let server = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let greeting = greet(&mut stream).unwrap();
        answer(&mut stream, &greeting);
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        stream
    });
    let mut stream = Stream::open(&[1; 16], at, &soon()).unwrap();
    let asked = NetCall { kind: 3, subject: b"", token: &token(), request: b"" };
    stream.call(&asked, &soon()).unwrap();
    let mut other = server.join().unwrap();
    assert_eq!(stream.call(&asked, &soon()), Err(NetError::Closed { address: at }));
    stream.shut_down();
    assert_eq!(other.read(&mut [0; 1]).unwrap(), 0, "not a byte of it");
}

#[test]
fn a_call_that_was_not_sent_goes_by_a_new_connection() {
    let (client, listener) = (service(), TcpListener::bind((LOCAL, 0)).unwrap());
    let at = [listener.local_addr().unwrap()];
    let server = std::thread::spawn(move || {
        for _ in 0..2 {
            let (mut stream, _) = listener.accept().unwrap();
            let greeting = greet(&mut stream).unwrap();
            answer(&mut stream, &greeting);
        }
    });
    let (link, _) = client.call_net(0, &[1; 16], &at, &asks(3, b"", &token(), b""), &soon()).unwrap();
    until("its end is told", || link.state().is_gone());
    let (other, _) = client.call_net(0, &[1; 16], &at, &asks(3, b"", &token(), b""), &soon()).unwrap();
    assert!(!Arc::ptr_eq(&link, &other));
    assert_eq!(link.call(&asks(3, b"", &token(), b""), &soon()), Err(NetError::Closed { address: at[0] }));
    server.join().unwrap();
}

#[test]
fn a_responder_that_panics_harms_no_other() {
    let pair = pair(LOCAL);
    let address = pair.at[0];
    let (link, _) = pair.call(b"region", &token()).unwrap();
    let panicked = link.call(&asks(3, b"region", &token(), b"panic"), &soon());
    assert_eq!(panicked, Err(NetError::Refused { address, status: Status::IoError }));
    assert_eq!(link.call(&asks(3, b"ill", &token(), b""), &soon()), Err(NetError::Unknown { address }));
    assert_eq!(link.call(&asks(3, b"region", &token(), b"on"), &soon()).unwrap(), b"on");
}

#[test]
fn a_responder_that_panics_at_an_end_harms_no_other() {
    #[derive(Debug, Default)]
    struct AtEnd(Echo);
    impl Responder for AtEnd {
        fn secret(&self, subject: &[u8]) -> Secret {
            self.0.secret(subject)
        }
        fn call(&self, conn: ConnId, subject: &[u8], request: &[u8]) -> Result<Vec<u8>, Status> {
            self.0.call(conn, subject, request)
        }
        fn ended(&self, conn: ConnId) {
            self.0.ended(conn);
            panic!("of no consequence to others");
        }
    }
    let pair = pair(LOCAL);
    let ill = Arc::new(AtEnd::default());
    pair.server.respond(4, weak(&ill));
    let (link, _) =
        pair.client.call_net(0, &pair.uuid, &pair.at, &asks(4, b"region", &token(), b""), &soon()).unwrap();
    link.call(&asks(3, b"region", &token(), b""), &soon()).unwrap();
    drop(link);
    until("both are told", || ill.0.ended.lock().len() == 1 && pair.echo.ended.lock().len() == 1);
    assert!(pair.call(b"region", &token()).is_ok());
}
