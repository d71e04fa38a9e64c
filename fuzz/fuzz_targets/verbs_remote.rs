//! libFuzzer's entry to [`rucx_fuzz::verbs_remote`].

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    rucx_fuzz::verbs_remote(data);
});
