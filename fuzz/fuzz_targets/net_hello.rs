//! libFuzzer's entry to [`rucx_fuzz::net_hello`].

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    rucx_fuzz::net_hello(data);
});
