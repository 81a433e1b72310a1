//! A segment of a checkpoint.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let _ = checkpoint::hostile::segment(bytes);
});
