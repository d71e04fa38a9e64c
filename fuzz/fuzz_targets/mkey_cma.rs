//! libFuzzer's entry to [`rucx_fuzz::mkey_cma`].

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    rucx_fuzz::mkey_cma(data);
});
