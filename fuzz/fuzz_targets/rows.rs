//! Rows from another worker, of one of some schemas.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let _ = dataflow::hostile::rows(bytes);
});
