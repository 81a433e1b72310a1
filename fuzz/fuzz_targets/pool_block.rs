//! A block of a table in a pool.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let _ = connectors::hostile::pool_block(bytes);
});
