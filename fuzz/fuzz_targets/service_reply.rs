//! libFuzzer's entry to [`rucx_fuzz::service_reply`].

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    rucx_fuzz::service_reply(data);
});
