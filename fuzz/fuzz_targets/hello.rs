//! What a node says first.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let _ = cluster::hostile::hello(bytes);
});
