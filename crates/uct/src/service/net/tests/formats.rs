//! Messages at random.

use proptest::prelude::*;

use super::*;

proptest! {
    #[test]
    fn decoders_are_total_and_canonical(bytes in proptest::collection::vec(any::<u8>(), 0..96), cut in 0_usize..60) {
        let mut bytes = bytes;
        if let Some(fixed) = bytes.get_mut(6..16) {
            fixed.fill(0); // else hardly any has lengths that fit
        }
        bytes.truncate(HEADER_LEN + cut);
        if let Ok(call) = Call::decode(&bytes) {
            prop_assert_eq!(call.encode().unwrap(), bytes.clone());
        }
        if let Ok(reply) = Reply::decode(&bytes) {
            prop_assert_eq!(reply.encode().unwrap(), bytes.clone());
        }
        prop_assert!(Hello::decode(&bytes).is_err() && Welcome::decode(&bytes).is_err());
    }

    #[test]
    fn calls_come_back(
        (sequence, kind, mac) in any::<(u32, u16, [u8; 32])>(),
        subject in proptest::collection::vec(any::<u8>(), 0..=MAX_SUBJECT),
        request in proptest::collection::vec(any::<u8>(), 0..=MAX_BODY),
    ) {
        let call = Call { sequence, kind, subject: &subject, request: &request, mac };
        let bytes = call.encode().unwrap();
        prop_assert_eq!(Call::frame_len(&bytes[..HEADER_LEN]), Ok(bytes.len()));
        prop_assert_eq!(Call::decode(&bytes), Ok(call));
    }

    #[test]
    fn replies_come_back(
        (sequence, mac, code, status) in (any::<u32>(), any::<[u8; 32]>(), 0_u16..6, 0_usize..4),
        content in proptest::collection::vec(any::<u8>(), 0..=MAX_BODY),
    ) {
        let status = [Status::Ok, Status::Ok, Status::Stale, Status::NotRevoked][status];
        let verdict = [
            Verdict::Answered(status), Verdict::Ready, Verdict::OtherContext, Verdict::Stale, Verdict::Denied, Verdict::Unknown,
        ][usize::from(code)];
        let content = if verdict == Verdict::Answered(Status::Ok) { content.as_slice() } else { &[] };
        let is_proof = matches!(verdict, Verdict::Answered(_) | Verdict::Stale);
        let reply = Reply { sequence, verdict, content, mac: if is_proof { mac } else { [0; MAC_LEN] } };
        let bytes = reply.encode().unwrap();
        prop_assert_eq!(Reply::frame_len(&bytes[..HEADER_LEN]), Ok(bytes.len()));
        prop_assert_eq!(Reply::decode(&bytes), Ok(reply));
    }
}

#[test]
fn what_is_asked_and_answered_is_not_shown() {
    let call = Call { sequence: 1, kind: 3, subject: b"sub", request: b"requested", mac: [9; MAC_LEN] };
    let shown = "Call { sequence: 1, kind: 3, subject: <3 bytes>, request: <9 bytes>, .. }";
    assert_eq!(format!("{call:?}"), shown);
    let reply = Reply { content: b"answer", ..Reply::without(1, Verdict::Answered(Status::Ok)) };
    assert_eq!(format!("{reply:?}"), "Reply { sequence: 1, verdict: Answered(Ok), content: <6 bytes>, .. }");
}

#[test]
fn no_message_is_longer_than_it_may_be() {
    let (subject, request) = (vec![1; MAX_SUBJECT + 1], vec![2; MAX_BODY + 1]);
    let call =
        Call { sequence: 1, kind: 3, subject: &subject[1..], request: &request[1..], mac: [0; MAC_LEN] };
    assert_eq!(call.encode().unwrap().len(), MAX_FRAME);
    assert!(Call { subject: &subject, ..call }.encode().is_err());
    assert!(Call { request: &request, ..call }.encode().is_err());
    let reply = Reply { content: &request, ..Reply::without(1, Verdict::Answered(Status::Ok)) };
    assert!(reply.encode().is_err());
}
