//! A ring of messages, both ends of it, in memory that a third one writes, too.
//!
//! The first byte says how many lines the ring has: 8, 16, 32 or 64. Two bytes follow, a number, and as many bytes of the ring's
//! memory; the rest of it is zero. Then come steps, each an opcode and its operands; see [`step`].

use std::collections::VecDeque;
use std::sync::{Arc, OnceLock};

use ucs::mem::Mapping;
use uct::ring::{Consumer, LINE, MAX_TAG, Producer, ring_len};

use crate::input::Input;

/// Where the ring begins in its mapping, and what lies behind it.
const AROUND: usize = 2 * LINE;
/// Lines of the largest ring.
const MOST_LINES: u32 = 64;

struct World {
    map: Arc<Mapping>,
    lines: u32,
    producer: Producer,
    consumer: Consumer,
    /// What was sent and not yet received, as long as only the two ends have written: then it must arrive as it is.
    sent: Option<VecDeque<(u32, Vec<u8>)>>,
    /// Nobody was found out to be hostile.
    sound: bool,
}

/// Both ends of a ring, in any memory.
///
/// # Panics
/// When a ring without foreign writes loses or changes a message, when anything is written beside a ring, or when a message is
/// longer than messages are.
pub fn ring(data: &[u8]) -> bool {
    static MAP: OnceLock<Arc<Mapping>> = OnceLock::new();
    let map = MAP
        .get_or_init(|| Arc::new(Mapping::anonymous(2 * AROUND + ring_len(MOST_LINES)).expect("two pages")));
    let mut input = Input(data);
    let lines = 8 << (input.byte() % 4);
    let image_len = input.number().min(ring_len(lines));
    let image = input.bytes(image_len);
    map.bytes().write(0, &vec![0; map.bytes().len()]).expect("it is that long");
    map.bytes().write(AROUND as u64, image).expect("it fits");
    let mut world = World {
        map: Arc::clone(map),
        lines,
        producer: Producer::new(Arc::clone(map), AROUND, lines).expect("a ring fits"),
        consumer: Consumer::new(Arc::clone(map), AROUND, lines).expect("a ring fits"),
        sent: image.iter().all(|byte| *byte == 0).then(VecDeque::new),
        sound: true,
    };
    while !input.0.is_empty() {
        step(&mut input, &mut world);
    }
    // Garbage may be messages lap after lap, but each takes a line.
    for _ in 0..2 * lines {
        receive(&mut world);
    }
    world.sound &= !world.producer.is_corrupt();
    assert!(world.sound || world.sent.is_none(), "a ring without foreign writes is sound");
    for at in [0, AROUND + ring_len(lines)] {
        let mut around = [1; AROUND];
        map.bytes().read(at as u64, &mut around).expect("it is there");
        assert_eq!(around, [0; AROUND], "somebody wrote beside the ring");
    }
    world.sound
}

/// One step.
fn step(input: &mut Input<'_>, world: &mut World) {
    let opcode = input.byte();
    match opcode % 8 {
        0 | 1 => send(input, world, true),
        2 => send(input, world, false),
        3 | 4 => receive(world),
        5 => {
            // One that sleeps is woken once.
            let sleeps = world.consumer.arm();
            assert!(sleeps == world.consumer.is_empty() || world.sent.is_none());
            assert!(world.producer.must_wake() == sleeps && !world.producer.must_wake());
            world.consumer.disarm();
        }
        // A foreign word, anywhere; or only where positions and headers are.
        6 => {
            let at = input.number() % (ring_len(world.lines) / 8);
            poke(input, world, at * 8);
        }
        _ => {
            let at = input.number() % (ring_len(world.lines) / LINE);
            poke(input, world, at * LINE);
        }
    }
}

fn poke(input: &mut Input<'_>, world: &mut World, at: usize) {
    let mut word = [0; 8];
    word.iter_mut().for_each(|byte| *byte = input.byte());
    world.map.bytes().store((AROUND + at) as u64, u64::from_le_bytes(word)).expect("it lies in the ring");
    world.sent = None;
}

/// Writes a message, and publishes it or not.
fn send(input: &mut Input<'_>, world: &mut World, publish: bool) {
    let (len, tag) = (input.number() % 1100, u32::from(input.byte()) << 16 | 0x55aa);
    let has_room = world.producer.has_room(len);
    assert!(!has_room || len <= world.producer.max_len());
    let Some(mut outgoing) = world.producer.begin(len) else {
        let is_empty = world.sent.as_ref().is_some_and(VecDeque::is_empty);
        assert!(!has_room && (!is_empty || len > world.producer.max_len()), "an empty ring has room");
        return;
    };
    assert!(has_room);
    let bytes: Vec<u8> = (0..len).map(|at| (at % 251).to_le_bytes()[0] ^ tag.to_le_bytes()[2]).collect();
    outgoing.write(0, &bytes);
    if publish {
        outgoing.publish(tag);
        if let Some(sent) = &mut world.sent {
            sent.push_back((tag, bytes));
        }
    }
}

/// Receives a message, if one is there, and all of it.
fn receive(world: &mut World) {
    let expected = world.sent.as_mut().map(VecDeque::pop_front);
    let max = world.producer.max_len();
    let received = match world.consumer.receive() {
        Ok(None) => None,
        Ok(Some(incoming)) => {
            assert!(incoming.len() <= max && incoming.tag() <= MAX_TAG);
            let mut bytes = vec![0; incoming.len()];
            incoming.read(0, &mut bytes).expect("a message lies within its ring");
            assert!(incoming.read(1, &mut bytes).is_err(), "and nothing else is its");
            Some((incoming.tag(), bytes))
        }
        Err(error) => {
            assert!(!error.to_string().is_empty());
            world.sound = false;
            None
        }
    };
    assert!(expected.is_none_or(|expected| expected == received), "what was sent arrives");
}
