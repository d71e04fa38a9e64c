//! One side that writes what it likes, anywhere, at any time.

use super::*;

const LINES: u32 = 16;

/// A word that may be anything, and often is nearly a header or a position.
fn garbage(rng: &mut Rng) -> u64 {
    let near = rng.below(80) as u64;
    match rng.below(8) {
        0 => 0,
        1 => wire::PADDING,
        2 => 1 << 56 | near,
        3 => (1 << 56 | 1 << 32) - near,
        4 => wire::message(rng.next_u64() as u32, rng.below(300)),
        5 => near,
        6 => u64::MAX - near,
        _ => rng.next_u64(),
    }
}

fn poke(map: &Mapping, rng: &mut Rng) {
    let words = if rng.below(2) == 0 { 1 } else { 8 }; // of a line: only the header, or all
    let at = OFFSET + 64 * rng.below(ring_len(LINES) / 64) + 8 * rng.below(words);
    map.bytes().store(at as u64, garbage(rng)).unwrap();
}

/// Receives once, and checks all that may be relied on. `false`: nothing came.
fn try_receive(consumer: &mut Consumer) -> bool {
    let max = LINES as usize / 4 * 64 - 8;
    match consumer.receive() {
        Ok(None) => false,
        Ok(Some(incoming)) => {
            assert!(incoming.len() <= max && incoming.tag() <= MAX_TAG);
            let mut bytes = vec![0; incoming.len()];
            incoming.read(0, &mut bytes).unwrap();
            assert!(incoming.read(1, &mut bytes).is_err());
            true
        }
        Err(error) => {
            assert!(!error.to_string().is_empty());
            false
        }
    }
}

#[test]
fn a_consumer_bears_any_memory() {
    let mut rng = Rng::new(seed());
    let mut received = 0;
    for _ in 0..1_000 {
        let (_, mut consumer, map) = ring(LINES);
        (0..ring_len(LINES) / 8).for_each(|_| poke(&map, &mut rng));
        for _ in 0..50 {
            received += u32::from(try_receive(&mut consumer));
            let _ = (consumer.is_empty(), consumer.arm());
            poke(&map, &mut rng);
        }
        check_surroundings(&map, LINES);
    }
    assert!(received > 200, "{received} were taken for messages");
}

/// Also run under the thread sanitizer.
#[test]
fn both_bear_a_thread_that_scribbles() {
    let (mut producer, mut consumer, map) = ring(LINES);
    let (stop, seen) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let scribbler = thread::spawn({
        let (map, stop, seen, mut rng) =
            (Arc::clone(&map), Arc::clone(&stop), Arc::clone(&seen), Rng::new(seed()));
        move || {
            while !stop.load(Ordering::Relaxed) {
                poke(&map, &mut rng);
                seen.store(true, Ordering::Relaxed);
            }
        }
    });
    while !seen.load(Ordering::Relaxed) {
        thread::yield_now();
    }
    let mut rng = Rng::new(!seed());
    for _ in 0..if cfg!(rucx_sanitizer) { 20_000 } else { 200_000 } {
        let len = rng.below(300);
        send(&mut producer, 1, &content(3, len));
        let _ = producer.must_wake();
        try_receive(&mut consumer);
        let _ = consumer.arm();
    }
    stop.store(true, Ordering::Relaxed);
    scribbler.join().unwrap();
    check_surroundings(&map, LINES);
}

#[test]
fn reasons_are_told() {
    let found = |line: u64, header: u64| {
        let (mut producer, mut consumer, map) = ring(LINES);
        for _ in 0..line {
            assert!(send(&mut producer, 0, b"before"));
            receive(&mut consumer).unwrap();
        }
        map.bytes().store(OFFSET as u64 + 128 + 64 * line, header).unwrap();
        let error = consumer.receive().unwrap_err();
        assert_eq!(consumer.receive().unwrap_err(), error, "it stays so");
        assert!(!consumer.is_empty() && !consumer.arm());
        error
    };
    for header in [1, 1 << 55, wire::PADDING | 1, 3 << 56, u64::MAX] {
        assert_eq!(found(2, header), Corrupt::NoHeader { line: 2, header });
    }
    assert_eq!(found(0, wire::message(7, 249)), Corrupt::TooLong { line: 0, len: 249, max: 248 });
    let len = u32::MAX as usize;
    assert_eq!(found(0, wire::message(7, len)), Corrupt::TooLong { line: 0, len, max: 248 });
    assert_eq!(found(13, wire::message(7, 248)), Corrupt::Wraps { line: 13, len: 248 });
    assert_eq!(found(15, wire::message(7, 57)), Corrupt::Wraps { line: 15, len: 57 });
    // Line 0 has the first message still, which has room behind line 9.
    assert_eq!(found(9, wire::PADDING), Corrupt::NeedlessPadding { line: 9 });
    // And without any message behind it.
    assert_eq!(found(0, wire::PADDING), Corrupt::NoHeader { line: 0, header: wire::PADDING });
}

#[test]
fn a_producer_believes_no_impossible_position() {
    // 23 lines were sent, 8 were told to be received.
    let filled = || {
        let (mut producer, mut consumer, map) = ring(LINES);
        for _ in 0..8 {
            assert!(send(&mut producer, 0, b"x"));
            receive(&mut consumer).unwrap();
        }
        while send(&mut producer, 0, b"y") {}
        (producer, map)
    };
    let position = |map: &Mapping| map.bytes().load::<u64>(OFFSET as u64).unwrap();
    let (_, map) = filled();
    assert_eq!(position(&map), 8);
    for told in [0, 7, 24, 39, 1 << 63, u64::MAX, u64::MAX - 15, u64::MAX - 16] {
        let (mut producer, map) = filled();
        map.bytes().store(OFFSET as u64, told).unwrap();
        assert!(!producer.has_room(0), "{told}");
        assert!(producer.is_corrupt(), "{told}");
        map.bytes().store(OFFSET as u64, 20_u64).unwrap();
        assert!(producer.begin(0).is_none() && producer.is_corrupt(), "once given up, for ever");
    }
    for told in 8..=23_u64 {
        let (mut producer, map) = filled();
        map.bytes().store(OFFSET as u64, told).unwrap();
        let sent = std::iter::repeat_with(|| send(&mut producer, 0, b"z")).take_while(|sent| *sent).count();
        assert_eq!((sent as u64, producer.is_corrupt()), (told - 8, false), "{told}");
    }
}

#[test]
fn any_flag_wakes_once() {
    let (producer, consumer, map) = ring(LINES);
    for flag in [1, 2, 1 << 63, u64::MAX] {
        map.bytes().store(OFFSET as u64 + 64, flag).unwrap();
        assert!(producer.must_wake());
        assert!(!producer.must_wake());
    }
    assert!(consumer.arm());
}
