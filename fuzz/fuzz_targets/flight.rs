//! The messages of a Flight server.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let _ = connectors::hostile::flight(bytes);
});
