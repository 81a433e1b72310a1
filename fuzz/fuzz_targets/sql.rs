//! Text planned as a script.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    let _ = reading::sql::plan(text);
});
