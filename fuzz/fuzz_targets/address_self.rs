//! libFuzzer's entry to [`rucx_fuzz::address_self`].

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    rucx_fuzz::address_self(data);
});
