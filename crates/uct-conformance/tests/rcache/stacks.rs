//! Stacks of threads that end: the C library drops their pages, keeps them for other threads, or unmaps them.

use std::sync::Arc;

use crate::world::{World, tag};

/// 21: buffers on stacks.
pub(crate) fn t21_buffers_on_stacks() {
    let world = Arc::new(World::new());
    let mut addresses = Vec::new();
    for round in 0..300_usize {
        let threads: Vec<_> = (0..2)
            .map(|thread| {
                let world = Arc::clone(&world);
                // Small ones are kept when the thread ends, large ones are unmapped at the latest when there are many.
                let size = if (round + thread) % 3 == 0 { 24 << 20 } else { 256 << 10 };
                let look = move || {
                    let mut buffer = [0_u64; 4 << 10];
                    let mut address = 0;
                    for place in [7, 2_000, 4_000] {
                        buffer[place] = tag();
                        let words = std::hint::black_box(&buffer);
                        address = words.as_ptr().addr();
                        let region = world.get(address, size_of_val(words));
                        let seen = world.nic.dma_out_u64(&region, (&raw const words[place]).addr());
                        assert_eq!(seen, Ok(words[place]), "in round {round}");
                    }
                    address
                };
                std::thread::Builder::new().stack_size(size).spawn(look).unwrap()
            })
            .collect();
        addresses.extend(threads.into_iter().map(|thread| thread.join().unwrap()));
    }
    let all = addresses.len();
    addresses.sort_unstable();
    addresses.dedup();
    assert!(addresses.len() < all / 2, "stacks are used again: {} of {all}", addresses.len());
    world.ends_empty();
}
