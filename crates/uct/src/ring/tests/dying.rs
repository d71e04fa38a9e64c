//! A producer that is killed between any two of its steps: what it has sent arrives, what it has not is not there.

use std::rc::Rc;

use ucs::sync::{Word, Word64, fence};

use super::*;

/// Memory of words; stores come through as long as their writer lives.
#[derive(Clone)]
struct Steps {
    words: Rc<Vec<Step>>,
}

struct Step {
    value: Word64,
    /// How many stores are left until the writer's death; shared by all words.
    left: Rc<Word64>,
}

impl Steps {
    fn new(lines: u32, left: &Rc<Word64>) -> Self {
        let word = || Step { value: Word64::new(0), left: Rc::clone(left) };
        Self { words: Rc::new(std::iter::repeat_with(word).take(ring_len(lines) / 8).collect()) }
    }
}

impl Word for Step {
    fn load(&self, order: Ordering) -> u64 {
        self.value.load(order)
    }

    fn store(&self, value: u64, order: Ordering) {
        let left = self.left.load(Ordering::Relaxed);
        if left > 0 {
            self.left.store(left - 1, Ordering::Relaxed);
            self.value.store(value, order);
        }
    }

    fn compare_exchange(&self, old: u64, new: u64, success: Ordering, failure: Ordering) -> Result<u64, u64> {
        self.value.compare_exchange(old, new, success, failure)
    }
}

impl Memory for Steps {
    type Word = Step;

    fn word(&self, offset: u64) -> Option<&Step> {
        assert_eq!(offset % 8, 0);
        self.words.get(offset as usize / 8)
    }

    fn write(&self, offset: u64, src: &[u8]) -> Result<(), BoundsError> {
        for (at, word) in (offset..).step_by(8).zip(src.chunks_exact(8)) {
            let value = u64::from_le_bytes(word.try_into().unwrap());
            self.word(at).unwrap().store(value, Ordering::Relaxed);
        }
        Ok(())
    }

    fn read(&self, offset: u64, dst: &mut [u8]) -> Result<(), BoundsError> {
        for (at, word) in (offset..).step_by(8).zip(dst.chunks_exact_mut(8)) {
            word.copy_from_slice(&self.word(at).unwrap().load(Ordering::Relaxed).to_le_bytes());
        }
        Ok(())
    }

    fn fence(&self) {
        fence(Ordering::SeqCst);
    }
}

fn receive_all(consumer: &mut Consumer<Steps>) -> Vec<(u32, Vec<u8>)> {
    let mut all = Vec::new();
    while let Some(incoming) = consumer.receive().expect("nothing but messages") {
        let mut bytes = vec![0; incoming.len()];
        incoming.read(0, &mut bytes).unwrap();
        all.push((incoming.tag(), bytes));
    }
    all
}

#[test]
fn a_producer_is_killed_at_each_step() {
    // Two laps and padding, with each content that looks like a header.
    let lens = [40, 112, 8, 104, 56, 64, 112, 0, 80, 112, 16, 96, 112];
    let messages: Vec<_> = (0..).zip(lens).map(|(tag, len)| (tag, content(tag.into(), len))).collect();
    let mut died = 0;
    for steps in 0.. {
        let left = Rc::new(Word64::new(0));
        let memory = Steps::new(8, &left);
        let mut producer = Producer::over(memory.clone(), 0, 8).unwrap();
        let mut consumer = Consumer::over(memory, 0, 8).unwrap();
        let (mut received, mut lives, mut budget) = (Vec::new(), true, steps);
        for (tag, bytes) in &messages {
            let mut outgoing = producer.begin(bytes.len()).expect("the ring is empty");
            left.store(budget, Ordering::Relaxed);
            outgoing.write(0, bytes);
            outgoing.publish(*tag);
            budget = left.load(Ordering::Relaxed);
            lives = budget > 0;
            left.store(u64::MAX, Ordering::Relaxed); // for the consumer
            let arrived = receive_all(&mut consumer);
            assert!(!lives || arrived.len() == 1, "what is sent arrives");
            received.extend(arrived);
            if !lives {
                break;
            }
        }
        assert_eq!(received, messages[..received.len()], "killed after {steps} steps");
        assert!(consumer.is_empty() && consumer.arm(), "and then there is nothing");
        if lives {
            assert_eq!(received.len(), messages.len());
            break;
        }
        died += 1;
    }
    assert!(died > 100, "{died} deaths");
}

/// What was begun and dropped is not there, and what comes after it is.
#[test]
fn an_unpublished_message_was_never_there() {
    let (mut producer, mut consumer, _) = ring(8);
    for number in 0..100 {
        for len in [8, 120, 56, 57] {
            producer.begin(len).unwrap().write(0, &content(number, len));
            assert!(consumer.is_empty());
            assert_eq!(receive(&mut consumer), None);
        }
        let bytes = content(number, number as usize);
        assert!(send(&mut producer, 9, &bytes));
        assert_eq!(receive(&mut consumer), Some((9, bytes)));
    }
}
