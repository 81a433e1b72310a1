//! A frame from another worker: its header and its payload.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let _ = dataflow::hostile::frame(bytes);
});
