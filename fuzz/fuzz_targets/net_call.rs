//! libFuzzer's entry to [`rucx_fuzz::net_call`].

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    rucx_fuzz::net_call(data);
});
