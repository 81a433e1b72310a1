//! Bytes read as a file: avro.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    reading::read("t.avro", bytes);
});
