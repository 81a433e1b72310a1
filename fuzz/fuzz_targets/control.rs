//! What nodes tell each other over the control plane.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let _ = cluster::hostile::control(bytes);
});
