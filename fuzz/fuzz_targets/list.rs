//! A list of workers in front of a frame.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    reading::list::read(bytes);
});
