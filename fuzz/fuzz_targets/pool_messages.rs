//! Messages between a client and a memory server.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let _ = pool::hostile::messages(bytes);
});
