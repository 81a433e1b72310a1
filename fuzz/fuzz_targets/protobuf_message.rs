//! A message of Protobuf, and the file that describes it.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let _ = connectors::hostile::protobuf(bytes);
});
