//! libFuzzer's entry to [`rucx_fuzz::worker_address`].

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    rucx_fuzz::worker_address(data);
});
