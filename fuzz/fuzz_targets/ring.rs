//! Frames as a hostile peer writes them into a ring.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    reading::ring::read(bytes);
});
