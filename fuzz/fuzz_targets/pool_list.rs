//! A node of the list of a table in a pool.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let _ = pool::hostile::list_node(bytes);
});
