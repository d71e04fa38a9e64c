//! libFuzzer's entry to [`rucx_fuzz::address_verbs`].

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    rucx_fuzz::address_verbs(data);
});
