//! The rules that the repository keeps, as functions over its files.
//!
//! `tests/tidy.rs` applies each rule to the checkout; the unit tests beside each rule show that it
//! finds what it is for. A rule that a reader cannot guess from its message is explained in
//! `CONTRIBUTING.md`.
//!
//! Out of scope: format and lints (`cargo fmt`, `cargo clippy`), licences (`cargo deny`).
#![forbid(unsafe_code)]

pub mod bounds;
pub mod circles;
pub mod imports;
pub mod layers;
pub mod links;
pub mod mechanisms;
pub mod messages;
pub mod source;
pub mod suites;
pub mod tree;
pub mod words;

pub use tree::{File, Finding, Tree};
