//! The file of a table of a memory server that keeps its tables.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let _ = pool::hostile::saved(bytes);
});
