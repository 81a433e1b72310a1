//! A position of a source, as a checkpoint has it, with the list of files of a watched directory.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let _ = connectors::hostile::position(bytes);
});
