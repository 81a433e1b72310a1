//! Bytes unpacked and read as CSV.
#![no_main]

use libfuzzer_sys::fuzz_target;

// The first byte chooses the packing.
fuzz_target!(|bytes: &[u8]| {
    let names = ["t.csv.gz", "t.csv.zst", "t.csv.bz2", "t.csv.xz"];
    if let Some((first, rest)) = bytes.split_first() {
        reading::read(names[usize::from(*first) % names.len()], rest);
    }
});
