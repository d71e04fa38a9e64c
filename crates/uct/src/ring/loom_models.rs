//! Publishing, giving back and sleeping, in all interleavings, and what goes wrong without each protection: the models run the
//! ring's own code over memory that leaves one of them out.

// std's: loom's cannot be dropped once a model has failed.
use std::sync::Arc;

use loom::cell::UnsafeCell;
use loom::sync::atomic::AtomicBool;
use loom::thread;
use ucs::mem::shared::BoundsError;
use ucs::sync::{AtomicU64, Ordering, Word, fence};

use super::wire::{LINE, Memory, ring_len};
use super::{Batches, Consumer, End, Producer};
use crate::export::PeerState;

/// What is left out.
const NOTHING: u8 = 0;
/// Each release order.
const RELEASE: u8 = 1;
/// The same, and nobody looks who owns a line: what is left to tell are contents.
const RELEASE_BY_CONTENTS: u8 = 2;
/// The 0 behind a record.
const ZERO: u8 = 3;

const LINES: u32 = 8;

/// A word that is now a header, now a part of a payload.
struct ModelWord<const WITHOUT: u8> {
    word: AtomicU64,
    /// For payloads: here loom sees that whoever reads or writes them comes after who had the line before.
    owned: UnsafeCell<()>,
}

impl<const WITHOUT: u8> Word for ModelWord<WITHOUT> {
    fn load(&self, order: Ordering) -> u64 {
        self.word.load(order)
    }

    fn store(&self, value: u64, order: Ordering) {
        match WITHOUT {
            RELEASE | RELEASE_BY_CONTENTS => self.word.store(value, Ordering::Relaxed),
            ZERO if value == 0 => {}
            _ => self.word.store(value, order),
        }
    }

    fn compare_exchange(&self, old: u64, new: u64, success: Ordering, failure: Ordering) -> Result<u64, u64> {
        self.word.compare_exchange(old, new, success, failure)
    }
}

/// The ring's memory, as one side has it.
struct Model<const WITHOUT: u8> {
    words: Arc<Vec<ModelWord<WITHOUT>>>,
    /// Whether this side's fence is one.
    fences: bool,
}

impl<const WITHOUT: u8> Model<WITHOUT> {
    fn payload(&self, offset: u64, len: usize) -> impl Iterator<Item = &ModelWord<WITHOUT>> {
        assert!(offset % 8 == 0 && len % 8 == 0, "models access whole words");
        self.words[usize::try_from(offset).unwrap() / 8..].iter().take(len / 8)
    }
}

impl<const WITHOUT: u8> Memory for Model<WITHOUT> {
    type Word = ModelWord<WITHOUT>;

    fn word(&self, offset: u64) -> Option<&Self::Word> {
        self.words.get(usize::try_from(offset).unwrap() / 8)
    }

    fn write(&self, offset: u64, src: &[u8]) -> Result<(), BoundsError> {
        for (word, bytes) in self.payload(offset, src.len()).zip(src.chunks_exact(8)) {
            if WITHOUT != RELEASE_BY_CONTENTS {
                word.owned.with_mut(|_| ());
            }
            word.word.store(u64::from_ne_bytes(bytes.try_into().unwrap()), Ordering::Relaxed);
        }
        Ok(())
    }

    fn read(&self, offset: u64, dst: &mut [u8]) -> Result<(), BoundsError> {
        for (word, bytes) in self.payload(offset, dst.len()).zip(dst.chunks_exact_mut(8)) {
            if WITHOUT != RELEASE_BY_CONTENTS {
                word.owned.with(|_| ());
            }
            bytes.copy_from_slice(&word.word.load(Ordering::Relaxed).to_ne_bytes());
        }
        Ok(())
    }

    fn fence(&self) {
        if self.fences {
            fence(Ordering::SeqCst);
        }
    }
}

type Ends<const WITHOUT: u8> = (Producer<Model<WITHOUT>>, Consumer<Model<WITHOUT>>);

/// Both ends of a ring through which `before` messages of one line have gone.
fn ring<const WITHOUT: u8>(before: u64) -> Ends<WITHOUT> {
    ring_with_fences(before, true, true)
}

/// The same; whether the producer's and the consumer's fence are there.
fn ring_with_fences<const WITHOUT: u8>(before: u64, producer: bool, consumer: bool) -> Ends<WITHOUT> {
    let word = || ModelWord { word: AtomicU64::new(0), owned: UnsafeCell::new(()) };
    let words: Arc<Vec<_>> = Arc::new(std::iter::repeat_with(word).take(ring_len(LINES) / 8).collect());
    let memory = |fences| Model { words: Arc::clone(&words), fences };
    let mut producer = Producer::over(memory(producer), 0, LINES).unwrap();
    let mut consumer = Consumer::over(memory(consumer), 0, LINES).unwrap();
    for number in 0..before {
        assert!(send(&mut producer, number, 8));
        assert_eq!(receive(&mut consumer), Some(number));
    }
    (producer, consumer)
}

/// Sends `len` bytes; only the first and the last word are written, which tell `number`.
fn send<const WITHOUT: u8>(producer: &mut Producer<Model<WITHOUT>>, number: u64, len: usize) -> bool {
    let Some(mut outgoing) = producer.begin(len) else { return false };
    outgoing.write(0, &number.to_ne_bytes());
    outgoing.write(len - 8, &number.to_ne_bytes());
    outgoing.publish(u32::try_from(number).unwrap());
    true
}

fn receive<const WITHOUT: u8>(consumer: &mut Consumer<Model<WITHOUT>>) -> Option<u64> {
    let incoming = consumer.receive().expect("nothing but messages")?;
    let number = u64::from(incoming.tag());
    for at in [0, incoming.len() - 8] {
        let mut word = [0; 8];
        incoming.read(at, &mut word).unwrap();
        assert_eq!(u64::from_ne_bytes(word), number, "a part of the message");
    }
    Some(number)
}

fn check(model: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.max_branches = 10_000;
    builder.check(model);
}

/// Messages of these lengths, sent after `before` others, arrive whole and in order.
fn stream<const WITHOUT: u8>(before: u64, lens: &'static [usize]) {
    check(move || {
        let (mut producer, mut consumer) = ring::<WITHOUT>(before);
        let sender = thread::spawn(move || {
            for (number, len) in (before..).zip(lens) {
                while !send(&mut producer, number, *len) {
                    thread::yield_now();
                }
            }
        });
        for number in (before..).take(lens.len()) {
            let received = loop {
                match receive(&mut consumer) {
                    Some(received) => break received,
                    None => thread::yield_now(),
                }
            };
            assert_eq!(received, number);
        }
        assert_eq!(receive(&mut consumer), None);
        sender.join().unwrap();
    });
}

#[test]
fn loom_messages_arrive_whole_and_in_order() {
    stream::<NOTHING>(1, &[8, 8, 64]);
}

#[test]
fn loom_messages_arrive_over_the_end_of_the_ring() {
    stream::<NOTHING>(6, &[8, 8, 8, 8]);
}

/// In the last line there is padding, and the message of two lines begins in the first.
#[test]
fn loom_padding_and_its_message_come_together() {
    stream::<NOTHING>(7, &[120, 8, 8]);
}

/// The ring is full: the producer waits for lines, and writes where messages were read just now.
#[test]
fn loom_lines_are_given_back_when_they_were_read() {
    full::<NOTHING>();
}

fn full<const WITHOUT: u8>() {
    check(|| {
        let (mut producer, mut consumer) = ring::<WITHOUT>(0);
        (0..7).for_each(|number| assert!(send(&mut producer, number, 8)));
        assert!(!producer.has_room(8));
        let receiver = thread::spawn(move || {
            for number in 0..2 {
                assert_eq!(receive(&mut consumer), Some(number));
            }
            consumer
        });
        while !send(&mut producer, 7, 8) {
            thread::yield_now();
        }
        assert!(send(&mut producer, 8, 8), "two were given back");
        let mut consumer = receiver.join().unwrap();
        assert_eq!(receive(&mut consumer), Some(2));
    });
}

/// The longest message writes where headers were, and headers come where it was.
#[test]
fn loom_payloads_are_no_headers() {
    old_payloads::<NOTHING>();
}

fn old_payloads<const WITHOUT: u8>() {
    check(|| {
        let (mut producer, mut consumer) = ring::<WITHOUT>(0);
        // Its last word lies in line 1 as a header would, and looks like one.
        let like_a_header = super::wire::message(0, 8);
        let mut outgoing = producer.begin(64).unwrap();
        outgoing.write(56, &like_a_header.to_ne_bytes());
        outgoing.publish(0);
        drop(consumer.receive().unwrap().unwrap());
        for number in 2..8 {
            assert!(send(&mut producer, number, 8));
            assert_eq!(receive(&mut consumer), Some(number));
        }
        let sender = thread::spawn(move || assert!(send(&mut producer, 8, 8)));
        while receive(&mut consumer).is_none() {
            thread::yield_now();
        }
        assert_eq!(receive(&mut consumer), None);
        sender.join().unwrap();
    });
}

/// A consumer that sleeps until it is woken finds the message.
fn sleep(producer_fences: bool, consumer_fences: bool) {
    check(move || {
        let (mut producer, mut consumer) = ring_with_fences::<NOTHING>(0, producer_fences, consumer_fences);
        let bell = Arc::new(AtomicBool::new(false));
        let sender = thread::spawn({
            let bell = Arc::clone(&bell);
            move || {
                assert!(send(&mut producer, 5, 8));
                if producer.must_wake() {
                    bell.store(true, Ordering::Release);
                }
            }
        });
        if consumer.arm() {
            // Whoever sleeps for ever is told by this: the sender has ended, and the bell was not rung.
            sender.join().unwrap();
            assert!(bell.load(Ordering::Acquire), "nobody wakes the sleeper");
            assert_eq!(receive(&mut consumer), Some(5));
        } else {
            assert_eq!(receive(&mut consumer), Some(5));
            sender.join().unwrap();
        }
    });
}

/// A producer that sleeps until there is room is woken.
fn wait_for_room(producer_fences: bool, consumer_fences: bool) {
    check(move || {
        let (mut producer, mut consumer) = ring_with_fences::<NOTHING>(0, producer_fences, consumer_fences);
        (0..7).for_each(|number| assert!(send(&mut producer, number, 8)));
        let bell = Arc::new(AtomicBool::new(false));
        let receiver = thread::spawn({
            let bell = Arc::clone(&bell);
            move || {
                // A quarter of the ring: it is given back.
                (0..2).for_each(|number| assert_eq!(receive(&mut consumer), Some(number)));
                if consumer.must_wake() {
                    bell.store(true, Ordering::Release);
                }
            }
        });
        if producer.arm(8) {
            receiver.join().unwrap();
            assert!(bell.load(Ordering::Acquire), "nobody wakes the producer");
            assert!(send(&mut producer, 7, 8));
        } else {
            assert!(send(&mut producer, 7, 8));
            receiver.join().unwrap();
        }
    });
}

#[test]
fn loom_no_producer_that_waits_is_missed() {
    wait_for_room(true, true);
}

/// The producer may look for room before its word is there.
#[test]
#[should_panic(expected = "nobody wakes the producer")]
fn loom_guard_without_the_fence_of_arm_a_producer_is_missed() {
    wait_for_room(false, true);
}

/// The consumer may look at the word before its position is there.
#[test]
#[should_panic(expected = "nobody wakes the producer")]
fn loom_guard_without_the_fence_of_giving_back_a_producer_is_missed() {
    wait_for_room(true, false);
}

#[test]
fn loom_no_sleeper_is_missed() {
    sleep(true, true);
}

/// A consumer that changes its mind, and then sleeps after all.
#[test]
fn loom_a_sleeper_may_disarm() {
    check(|| {
        let (mut producer, mut consumer) = ring::<NOTHING>(0);
        let sender = thread::spawn(move || {
            assert!(send(&mut producer, 5, 8));
            producer.must_wake()
        });
        let _ = consumer.arm();
        consumer.disarm();
        let received = receive(&mut consumer);
        let sleeps = received.is_none() && consumer.arm();
        let woken = sender.join().unwrap();
        assert!(!sleeps || woken, "nobody wakes the sleeper");
        assert_eq!(received.or_else(|| receive(&mut consumer)), Some(5));
    });
}

/// The producer may look at the flag before its message is there.
#[test]
#[should_panic(expected = "nobody wakes the sleeper")]
fn loom_guard_without_the_fence_of_must_wake_a_sleeper_is_missed() {
    sleep(false, true);
}

/// The consumer may look at the ring before its flag is there.
#[test]
#[should_panic(expected = "nobody wakes the sleeper")]
fn loom_guard_without_the_fence_of_arm_a_sleeper_is_missed() {
    sleep(true, false);
}

/// A producer sends and ends, of which the consumer is told by another thread. `take` is one look of the consumer's at both.
fn end(
    take: impl Fn(&mut Batches, &mut Consumer<Model<NOTHING>>, &PeerState, &mut u64) -> Result<usize, End>
    + Send
    + Sync
    + 'static,
) {
    check(move || {
        let (mut producer, mut consumer) = ring::<NOTHING>(0);
        let state = Arc::new(PeerState::default());
        let sender = thread::spawn(move || (0..2).for_each(|number| assert!(send(&mut producer, number, 8))));
        let service = thread::spawn({
            let state = Arc::clone(&state);
            move || {
                sender.join().unwrap(); // by the kernel
                state.set_gone();
            }
        });
        let (mut batches, mut told) = (Batches::of(LINES), 0);
        loop {
            match take(&mut batches, &mut consumer, &state, &mut told) {
                Ok(0) => thread::yield_now(),
                Ok(_) => {}
                Err(end) => {
                    assert_eq!(end, End::Gone);
                    break;
                }
            }
        }
        assert_eq!(told, 2, "its end is told before its messages");
        service.join().unwrap();
    });
}

#[test]
fn loom_messages_are_told_before_the_end() {
    end(|batches, consumer, state, told| batches.take(consumer, || state.is_gone(), |_| *told += 1));
}

/// The ring is looked at, then the producer sends and ends, and then that is asked for.
#[test]
#[should_panic(expected = "its end is told before its messages")]
fn loom_guard_with_the_end_asked_for_after_the_look_messages_are_missed() {
    end(|batches, consumer, state, told| match batches.take(consumer, || false, |_| *told += 1) {
        Ok(0) if state.is_gone() => Err(End::Gone),
        took => took,
    });
}

/// The end is seen, and what came before is not.
#[test]
#[should_panic(expected = "its end is told before its messages")]
fn loom_guard_with_a_relaxed_end_messages_are_missed() {
    check(|| {
        let (mut producer, mut consumer) = ring::<NOTHING>(0);
        let gone = Arc::new(AtomicBool::new(false));
        let sender = thread::spawn({
            let gone = Arc::clone(&gone);
            move || {
                assert!(send(&mut producer, 0, 8));
                gone.store(true, Ordering::Relaxed);
            }
        });
        let mut told = 0;
        let took = Batches::of(LINES).take(&mut consumer, || gone.load(Ordering::Relaxed), |_| told += 1);
        assert!(told == 1 || took == Ok(0), "its end is told before its messages");
        sender.join().unwrap();
    });
}

/// A header may be seen before its payload.
#[test]
#[should_panic(expected = "a part of the message")]
fn loom_guard_with_a_relaxed_header_a_payload_is_missed() {
    stream::<RELEASE_BY_CONTENTS>(1, &[8]);
}

/// The header of padding publishes the message behind it, too.
#[test]
#[should_panic(expected = "NeedlessPadding")]
fn loom_guard_with_a_relaxed_padding_its_message_is_missed() {
    stream::<RELEASE_BY_CONTENTS>(7, &[120]);
}

/// Lines may be seen to be free before they were read.
#[test]
#[should_panic(expected = "Causality violation")]
fn loom_guard_with_a_relaxed_position_lines_are_written_while_read() {
    full::<RELEASE>();
}

#[test]
#[should_panic(expected = "a part of the message")]
fn loom_guard_without_the_zero_what_is_old_is_taken_for_a_header() {
    old_payloads::<ZERO>();
}

const _: () = assert!(LINE == 64, "payloads of models know it");
