//! A message of Avro, and the schema by which it is read.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let _ = connectors::hostile::avro(bytes);
});
