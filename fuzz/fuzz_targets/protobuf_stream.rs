//! A stream of messages of Protobuf, and the file that describes them.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let _ = connectors::hostile::protobuf_stream(bytes);
});
