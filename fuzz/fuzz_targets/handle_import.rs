//! libFuzzer's entry to [`rucx_fuzz::handle_import`].

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    rucx_fuzz::handle_import(data);
});
