//! What is told of how much was put into connections.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    reading::pulse::read(bytes);
});
