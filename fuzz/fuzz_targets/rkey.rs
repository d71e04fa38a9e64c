//! libFuzzer's entry to [`rucx_fuzz::rkey`].

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    rucx_fuzz::rkey(data);
});
