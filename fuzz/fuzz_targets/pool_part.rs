//! The file of what a memory server holds for another one.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let _ = pool::hostile::part(bytes);
});
