//! A record of the chain of a job, without its header.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let _ = checkpoint::hostile::record(bytes);
});
