//! Bytes read as a file: parquet.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    reading::read("t.parquet", bytes);
});
