//! libFuzzer's entry to [`rucx_fuzz::verbs_queue_pair`].

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    rucx_fuzz::verbs_queue_pair(data);
});
