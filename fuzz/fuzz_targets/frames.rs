//! What a peer says over a TCP connection.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    fabric::hostile::frames(bytes);
});
