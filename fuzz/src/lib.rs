//! What a fuzz target and the replay of its corpus (`tests/corpus.rs` of the crate that reads, and
//! for SQL `tests/`) do with some bytes: read them as a file to the end, as a query would; plan
//! them as a script; or take them as what a peer says. Replays also read the seeds changed at
//! random (`replay/`).
#![forbid(unsafe_code)]

pub mod list;
pub mod pulse;
mod read;
pub mod ring;
pub mod sql;

/// Reads `bytes` as a file of this name.
///
/// # Panics
/// When the reader breaks its word; what it answers to bad bytes is no panic.
pub fn read(name: &str, bytes: &[u8]) {
    let directory = std::env::temp_dir().join(format!("millstream-fuzz-{}", std::process::id()));
    std::fs::create_dir_all(&directory).expect("a temporary directory");
    let path = directory.join(name);
    std::fs::write(&path, bytes).expect("a temporary file");
    let _ = read::file(&path.display().to_string());
}
