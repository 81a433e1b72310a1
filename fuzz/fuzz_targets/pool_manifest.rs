//! The manifest of a version of a table in a pool.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let _ = pool::hostile::manifest(bytes);
});
