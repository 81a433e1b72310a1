//! Commits of the log of a table of Delta Lake.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let _ = connectors::hostile::delta_log(bytes);
});
