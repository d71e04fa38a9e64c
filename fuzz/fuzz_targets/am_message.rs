//! libFuzzer's entry to [`rucx_fuzz::am_message`].

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    rucx_fuzz::am_message(data);
});
