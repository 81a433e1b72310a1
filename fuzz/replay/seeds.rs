//! The seeds of a corpus: `fuzz/corpus/TARGET`. What a fuzz target finds is added by its own name.

use std::fs;
use std::path::{Path, PathBuf};

/// Where the seeds of a target are, seen from a crate.
pub fn corpus(manifest_dir: &str, target: &str) -> PathBuf {
    Path::new(manifest_dir).join("../../fuzz/corpus").join(target)
}

/// The seeds in a directory by name, sorted; with `UPDATE_CORPUS=1` those of `write` are written
/// before.
pub fn read(
    directory: &Path,
    write: impl FnOnce() -> Vec<(String, Vec<u8>)>,
) -> Vec<(String, Vec<u8>)> {
    if std::env::var_os("UPDATE_CORPUS").is_some() {
        fs::create_dir_all(directory).expect("a directory");
        for (name, bytes) in write() {
            fs::write(directory.join(name), bytes).expect("a file");
        }
    }
    let seed = |entry: std::io::Result<fs::DirEntry>| {
        let path = entry.expect("an entry").path();
        let name = path.file_name().expect("a name").to_string_lossy().into_owned();
        (name, fs::read(&path).expect("a file"))
    };
    let mut seeds: Vec<_> = fs::read_dir(directory).expect("a corpus").map(seed).collect();
    seeds.sort();
    seeds
}

/// What is in them.
pub fn contents(seeds: &[(String, Vec<u8>)]) -> Vec<Vec<u8>> {
    seeds.iter().map(|(_, bytes)| bytes.clone()).collect()
}
