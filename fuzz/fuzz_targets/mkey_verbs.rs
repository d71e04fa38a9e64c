//! libFuzzer's entry to [`rucx_fuzz::mkey_verbs`].

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    rucx_fuzz::mkey_verbs(data);
});
