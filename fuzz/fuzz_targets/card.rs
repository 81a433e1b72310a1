//! What a node leaves for others in a file.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let _ = cluster::hostile::card(bytes);
});
