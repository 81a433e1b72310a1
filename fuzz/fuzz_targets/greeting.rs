//! What is said before a connection stands, and of where to make one.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    fabric::hostile::greeting(bytes);
});
