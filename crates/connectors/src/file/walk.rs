//! The files that a glob names.
//!
//! A pattern is taken part by part, each between two slashes; `**` stands for any number of
//! directories. Links are followed. A directory is entered once for each part of the pattern,
//! whatever its names are, so that links that lead upwards end the walk; the shortest name of it
//! comes first.

use std::collections::{HashSet, VecDeque};
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use dataflow::error::ConnectorError;
use glob::{MatchOptions, Pattern, PatternError};

use super::paths::io_error;
use crate::options::refuse;

/// Directories that a glob enters.
const DIRECTORIES_MAX: usize = 250_000;

/// A part of a pattern.
enum Part {
    /// A name.
    Plain(String),
    Special(Pattern),
    /// `**`.
    Directories,
}

/// The files that a glob names, in no order.
///
/// # Errors
/// When the pattern is no glob, or a directory cannot be read.
pub(super) fn files(pattern: &str) -> Result<Vec<PathBuf>, ConnectorError> {
    let parts = parts(pattern)
        .map_err(|error| refuse("path", format!("'{pattern}' is no glob: {error}"), None))?;
    let root = PathBuf::from(if pattern.starts_with('/') { "/" } else { "" });
    let mut walk = Walk { pattern, parts, entered: HashSet::new(), todo: VecDeque::new() };
    walk.todo.push_back((root, 0));
    let mut files = vec![];
    while let Some((path, at)) = walk.todo.pop_front() {
        walk.step(path, at, &mut files)?;
    }
    Ok(files)
}

fn parts(pattern: &str) -> Result<Vec<Part>, PatternError> {
    // As a whole it tells of a `**` that is a part of a name.
    Pattern::new(pattern)?;
    let mut parts = vec![];
    for text in pattern.split('/').filter(|text| !text.is_empty() && *text != ".") {
        match text {
            // Two of them are one.
            "**" if matches!(parts.last(), Some(Part::Directories)) => {}
            "**" => parts.push(Part::Directories),
            text if text.contains(['*', '?', '[']) => {
                parts.push(Part::Special(Pattern::new(text)?));
            }
            text => parts.push(Part::Plain(text.to_owned())),
        }
    }
    // A path that ends with a slash is no file.
    if pattern.ends_with('/') {
        parts.push(Part::Directories);
    }
    Ok(parts)
}

struct Walk<'a> {
    pattern: &'a str,
    parts: Vec<Part>,
    /// Directories, without links in their names, and the part that was looked for in them.
    entered: HashSet<(PathBuf, usize)>,
    /// Paths, and the part that is looked for behind each.
    todo: VecDeque<(PathBuf, usize)>,
}

impl Walk<'_> {
    fn step(
        &mut self,
        path: PathBuf,
        at: usize,
        files: &mut Vec<PathBuf>,
    ) -> Result<(), ConnectorError> {
        let Some(part) = self.parts.get(at) else {
            if path.is_file() {
                files.push(path);
            }
            return Ok(());
        };
        let options = MatchOptions::new();
        match part {
            Part::Plain(name) => {
                let path = path.join(name);
                if path.exists() {
                    self.todo.push_back((path, at + 1));
                }
            }
            Part::Special(pattern) => {
                let pattern = pattern.clone();
                for (name, path) in self.entries(&path, at)? {
                    if pattern.matches_with(&name, options) {
                        self.todo.push_back((path, at + 1));
                    }
                }
            }
            Part::Directories => {
                // The directories themselves are no files.
                if at + 1 < self.parts.len() {
                    self.todo.push_back((path.clone(), at + 1));
                }
                for (_, path) in self.entries(&path, at)? {
                    if path.is_dir() {
                        self.todo.push_back((path, at));
                    }
                }
            }
        }
        Ok(())
    }

    /// The entries of a directory, by name; nothing if it was entered for this part before, or is
    /// none.
    fn entries(
        &mut self,
        directory: &Path,
        at: usize,
    ) -> Result<Vec<(String, PathBuf)>, ConnectorError> {
        let here = if directory.as_os_str().is_empty() { Path::new(".") } else { directory };
        let Ok(real) = fs::canonicalize(here) else { return Ok(vec![]) };
        if !real.is_dir() || !self.entered.insert((real, at)) {
            return Ok(vec![]);
        }
        if self.entered.len() > DIRECTORIES_MAX {
            let message =
                format!("'{}' enters more than {DIRECTORIES_MAX} directories", self.pattern);
            let hint = "name the directories more closely: '**' stands for all below".to_owned();
            return Err(refuse("path", message, Some(hint)));
        }
        let read = match fs::read_dir(here) {
            Ok(read) => read,
            // It is gone by now.
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(vec![]),
            Err(error) => return Err(io_error(directory, &error)),
        };
        let mut entries = vec![];
        for entry in read {
            let name = entry.map_err(|error| io_error(directory, &error))?.file_name();
            // A pattern is text, and matches no name that is none.
            if let Some(name) = name.to_str() {
                entries.push((name.to_owned(), directory.join(name)));
            }
        }
        entries.sort();
        Ok(entries)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    /// The paths that a glob below a directory matches, without the directory.
    fn names(directory: &Path, pattern: &str) -> Vec<String> {
        let pattern = format!("{}/{pattern}", directory.display());
        let mut found = files(&pattern).expect("files");
        found.sort();
        let name = |path: &PathBuf| path.strip_prefix(directory).map(|p| p.display().to_string());
        found.iter().map(name).collect::<Result<_, _>>().expect("below the directory")
    }

    #[test]
    fn links_that_lead_upwards_end_the_walk() {
        let name = format!("millstream-walk-{}", std::process::id());
        let directory = &std::env::temp_dir().join(name);
        fs::create_dir_all(directory.join("a/b")).expect("directories");
        for file in ["x.csv", "a/y.csv", "a/b/z.csv", "a/b/z.json"] {
            fs::write(directory.join(file), "k\n1\n").expect("a file");
        }
        for (to, link) in [(".", "self"), ("..", "a/up"), ("../..", "a/b/top"), ("a/b", "short")] {
            symlink(to, directory.join(link)).expect("a link");
        }
        symlink("nowhere", directory.join("broken.csv")).expect("a link");
        assert_eq!(names(directory, "**/*.csv"), ["a/y.csv", "short/z.csv", "x.csv"]);
        assert_eq!(names(directory, "*.csv"), ["x.csv"]);
        assert_eq!(names(directory, "a/**/z.*"), ["a/b/z.csv", "a/b/z.json"]);
        assert_eq!(names(directory, "**/**/b/[yz].csv"), ["a/b/z.csv"]);
        assert_eq!(names(directory, "./a/../?.csv"), ["a/../x.csv"]);
        assert_eq!(names(directory, "a/*/*"), ["a/b/z.csv", "a/b/z.json", "a/up/x.csv"]);
        for none in ["**", "a/**", "**/b/", "a/b", "nope/*.csv", "x.csv/*"] {
            assert!(names(directory, none).is_empty(), "{none}");
        }
        let refused = files("a/***.csv").expect_err("no glob").to_string();
        assert!(refused.contains("no glob"), "{refused}");
        fs::remove_dir_all(directory).expect("it goes away");
    }
}
