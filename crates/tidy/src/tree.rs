//! The files of the checkout, read once, and what a rule says about them.

use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Names of directories that hold nothing written by hand.
const SKIPPED: [&str; 3] = ["target", ".git", "node_modules"];
/// Endings of the files that are text and ours.
const TEXT: [&str; 10] = ["rs", "toml", "md", "py", "sh", "sql", "slt", "svg", "html", "yaml"];
/// Text files without an ending.
const TEXT_NAMES: [&str; 3] = ["Makefile", "run", "Dockerfile"];

/// A text file.
#[derive(Debug, Clone)]
pub struct File {
    /// Its path below the root, with `/` between the parts.
    pub path: String,
    /// Its content.
    pub text: String,
}

impl File {
    /// A file made of `text`, for tests.
    #[must_use]
    pub fn new(path: &str, text: &str) -> Self {
        Self { path: path.to_owned(), text: text.to_owned() }
    }

    /// Whether the path ends in `.ending`.
    #[must_use]
    pub fn is(&self, ending: &str) -> bool {
        self.path.rsplit_once('.').is_some_and(|(_, found)| found == ending)
    }

    /// The lines with their numbers, from 1.
    pub fn lines(&self) -> impl Iterator<Item = (usize, &str)> {
        self.text.lines().enumerate().map(|(i, line)| (i + 1, line))
    }
}

/// All text files below a root.
#[derive(Debug)]
pub struct Tree {
    /// Where the checkout is.
    pub root: PathBuf,
    /// Its text files, in the order of their paths.
    pub files: Vec<File>,
}

impl Tree {
    /// Reads the checkout that this crate is part of.
    ///
    /// # Errors
    /// When a directory or a file cannot be read, or a file is not UTF-8.
    pub fn of_checkout() -> io::Result<Self> {
        Self::read(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../.."))
    }

    /// Reads the text files below `root`.
    ///
    /// # Errors
    /// When a directory or a file cannot be read, or a file is not UTF-8.
    pub fn read(root: &Path) -> io::Result<Self> {
        let root = root.canonicalize()?;
        let mut files = Vec::new();
        let mut directories = vec![root.clone()];
        while let Some(directory) = directories.pop() {
            for entry in fs::read_dir(&directory)? {
                let entry = entry?;
                let name = entry.file_name().to_string_lossy().into_owned();
                let path = entry.path();
                if entry.file_type()?.is_dir() {
                    if !SKIPPED.contains(&name.as_str()) {
                        directories.push(path);
                    }
                } else if is_text(&name) {
                    let below = path.strip_prefix(&root).unwrap_or(&path).to_string_lossy();
                    files.push(File::new(&below.replace('\\', "/"), &fs::read_to_string(&path)?));
                }
            }
        }
        files.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(Self { root, files })
    }

    /// The files with one of these endings.
    pub fn with(&self, endings: &[&str]) -> impl Iterator<Item = &File> {
        self.files.iter().filter(move |file| endings.iter().any(|ending| file.is(ending)))
    }

    /// The manifests of the members of the workspace: all but the root's.
    pub fn manifests(&self) -> impl Iterator<Item = &File> {
        self.files.iter().filter(|file| file.path.ends_with("/Cargo.toml"))
    }
}

fn is_text(name: &str) -> bool {
    TEXT_NAMES.contains(&name)
        || name.rsplit_once('.').is_some_and(|(_, ending)| TEXT.contains(&ending))
}

/// One breach of a rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// The file.
    pub path: String,
    /// The line, from 1; 0 for the file as a whole.
    pub line: usize,
    /// The fault, and how to fix it.
    pub message: String,
}

impl Finding {
    /// A breach at a line of a file.
    pub fn new(path: &str, line: usize, message: impl Into<String>) -> Self {
        Self { path: path.to_owned(), line, message: message.into() }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { path, line, message } = self;
        match line {
            0 => write!(f, "{path}: {message}"),
            _ => write!(f, "{path}:{line}: {message}"),
        }
    }
}

/// Panics with all findings, if there are any.
///
/// # Panics
/// When `findings` is not empty: this is how a rule fails its test.
pub fn expect_none(rule: &str, findings: &[Finding]) {
    let list: Vec<String> = findings.iter().map(Finding::to_string).collect();
    assert!(list.is_empty(), "{rule}: {} findings\n  {}", list.len(), list.join("\n  "));
}
