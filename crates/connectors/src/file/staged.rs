//! The entries of a checkpoint for files that are written and not visible yet.
//!
//! ```text
//! 1 l .out.csv.<job>-<generation>.staged 4096         rows up to a length
//! 1 p <hidden> <final> <hidden> <final> …             parts, to be given their names
//! 1 s <hidden> <bytes> <hidden> <bytes> …             rows of all of these objects, in order
//! ```
//!
//! Hidden names carry the run that writes them, so that two runs that both believe that they are
//! the job never write one file; final names do not, so that the same part is published once.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path};

use dataflow::error::ConnectorError;
use dataflow::sink::RunId;

use super::paths::io_error;
use crate::object::ObjectDirectory;

/// The end of hidden names.
const SUFFIX: &str = ".staged";
/// Digits of the number of a job in them.
const JOB_DIGITS: usize = 16;
/// The encoding of what is staged.
const VERSION: &str = "1";

/// A part, with its names below the directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Part {
    pub(super) hidden: String,
    pub(super) visible: String,
}

/// The files that a writer has staged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Staged {
    /// Rows up to a length of a hidden file.
    Length { name: String, bytes: u64 },
    /// Files that are whole.
    Parts(Vec<Part>),
    /// Objects of rows, each with its bytes.
    Rows(Vec<(String, u64)>),
}

impl Staged {
    pub(super) fn encode(&self) -> Vec<u8> {
        let text = match self {
            Self::Length { name, bytes } => format!("{VERSION}\tl\t{name}\t{bytes}"),
            Self::Parts(parts) => {
                let each = |part: &Part| format!("\t{}\t{}", part.hidden, part.visible);
                format!("{VERSION}\tp{}", parts.iter().map(each).collect::<String>())
            }
            Self::Rows(objects) => {
                let each = |(name, bytes): &(String, u64)| format!("\t{name}\t{bytes}");
                format!("{VERSION}\ts{}", objects.iter().map(each).collect::<String>())
            }
        };
        text.into_bytes()
    }

    /// The value that `encode` was given.
    ///
    /// # Errors
    /// When nothing did, or a name leads out of the directory.
    pub(super) fn decode(staged: &[u8], of: &Path) -> Result<Self, ConnectorError> {
        let text = std::str::from_utf8(staged).ok();
        text.and_then(decoded).ok_or_else(|| ConnectorError::Io {
            place: of.display().to_string(),
            message: "what the checkpoint says of its staged rows is damaged, or of a later \
                      version"
                .into(),
            hint: Some("go on from an older checkpoint: --from N".into()),
        })
    }
}

fn decoded(text: &str) -> Option<Staged> {
    let mut fields = text.split('\t');
    let (VERSION, kind) = (fields.next()?, fields.next()?) else { return None };
    let names: Vec<&str> = fields.collect();
    match (kind, &names[..]) {
        ("l", [name, bytes]) if is_below(name) => {
            Some(Staged::Length { name: (*name).to_owned(), bytes: bytes.parse().ok()? })
        }
        ("p", names) if names.len() % 2 == 0 && names.iter().all(|name| is_below(name)) => {
            let part = |pair: &[&str]| Part { hidden: pair[0].into(), visible: pair[1].into() };
            Some(Staged::Parts(names.chunks(2).map(part).collect()))
        }
        ("s", fields) if fields.len() % 2 == 0 => {
            let object = |pair: &[&str]| Some((pair[0].to_owned(), pair[1].parse().ok()?));
            let objects: Option<Vec<_>> = fields.chunks(2).map(object).collect();
            let objects = objects.filter(|all| all.iter().all(|(name, _)| is_below(name)))?;
            Some(Staged::Rows(objects))
        }
        _ => None,
    }
}

/// Whether a name stays below the directory that it is taken in.
pub(super) fn is_below(name: &str) -> bool {
    let path = Path::new(name);
    !name.is_empty() && path.components().all(|part| matches!(part, Component::Normal(_)))
}

/// A hidden name of a run.
pub(super) fn name(prefix: &str, run: RunId, rest: &str) -> String {
    let RunId { job, generation } = run;
    format!("{prefix}{job:0JOB_DIGITS$x}-{generation}{rest}{SUFFIX}")
}

/// The run that has given a hidden name; `None` if it is another name.
fn run_of(name: &str, prefix: &str) -> Option<RunId> {
    let (job, rest) = name.strip_prefix(prefix)?.strip_suffix(SUFFIX)?.split_once('-')?;
    let digits = rest.find(|of: char| !of.is_ascii_digit()).unwrap_or(rest.len());
    let generation = rest[..digits].parse().ok()?;
    let job = (job.len() == JOB_DIGITS).then(|| u64::from_str_radix(job, 16).ok()).flatten()?;
    Some(RunId { job, generation })
}

/// Whether an earlier run of the same job has given this name.
fn is_of_earlier(name: &str, prefix: &str, run: RunId) -> bool {
    run_of(name, prefix).is_some_and(|of| of.job == run.job && of.generation < run.generation)
}

/// Removes from a directory what earlier runs of a job have staged and is not kept.
pub(super) fn sweep(
    directory: &Path,
    prefix: &str,
    run: RunId,
    is_kept: impl Fn(&str) -> bool,
) -> Result<(), ConnectorError> {
    let entries = match fs::read_dir(directory) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        entries => entries.map_err(|error| io_error(directory, &error))?,
    };
    for entry in entries.flatten() {
        let Ok(name) = entry.file_name().into_string() else { continue };
        if is_of_earlier(&name, prefix, run) && !is_kept(&name) {
            match fs::remove_file(entry.path()) {
                Ok(()) => tracing::info!(file = %entry.path().display(), "removed what was staged"),
                Err(error) => tracing::warn!(file = %entry.path().display(), %error, "it stays"),
            }
        }
    }
    Ok(())
}

/// The same for objects that are staged in a store.
pub(super) fn sweep_objects(
    objects: &ObjectDirectory,
    prefix: &str,
    run: RunId,
    kept: &[String],
) -> Result<(), ConnectorError> {
    let left = objects.staged_names()?.into_iter();
    let left = left.filter(|name| is_of_earlier(name, prefix, run));
    let left = left.map(|name| ObjectDirectory::staged(&name));
    let left: Vec<String> = left.filter(|name| !kept.contains(name)).collect();
    if !left.is_empty() {
        let place = objects.place("");
        tracing::info!(place, count = left.len(), "removes what was staged");
    }
    objects.remove(&left)
}

/// Gives parts their visible names. A part that has it already stays as it is. With `again`, one
/// that has no name any more was published, and somebody has taken it.
///
/// A hidden name goes when the visible one is on the disk.
///
/// # Errors
/// When another file has the name, or a part is gone.
pub(super) fn publish(directory: &Path, parts: &[Part], again: bool) -> Result<(), ConnectorError> {
    let mut named = BTreeSet::new();
    for part in parts {
        link(directory, part, again)?;
        // The directories from the top to the part: some may be new.
        let below = Path::new(&part.visible).ancestors().skip(1);
        named.extend(below.map(|below| directory.join(below)));
    }
    named
        .iter()
        .filter(|directory| directory.is_dir())
        .try_for_each(|directory| sync(directory))?;
    parts.iter().try_for_each(|part| remove(&directory.join(&part.hidden)))
}

/// Whether no part has any name.
pub(super) fn are_all_gone(directory: &Path, parts: &[Part]) -> bool {
    let is_gone = |name: &str| !directory.join(name).exists();
    !parts.is_empty() && parts.iter().all(|part| is_gone(&part.hidden) && is_gone(&part.visible))
}

/// The error that a place has none of the output that it should have.
pub(super) fn unmounted(of: &Path, parts: usize) -> ConnectorError {
    ConnectorError::Io {
        place: of.display().to_string(),
        message: format!(
            "the {parts} parts of the checkpoint are gone, and it has no others: it may not be the \
             place that they were written to"
        ),
        hint: Some(
            "mount it; if somebody has taken all parts, say so by an empty file 'part-taken' in it"
                .into(),
        ),
    }
}

fn link(directory: &Path, part: &Part, again: bool) -> Result<(), ConnectorError> {
    let (hidden, visible) = (directory.join(&part.hidden), directory.join(&part.visible));
    if again && !hidden.exists() && !visible.exists() {
        tracing::info!(part = %visible.display(), "it was published, and taken");
        return Ok(());
    }
    if let Some(parent) = visible.parent() {
        fs::create_dir_all(parent).map_err(|error| io_error(parent, &error))?;
    }
    match fs::hard_link(&hidden, &visible) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == ErrorKind::AlreadyExists => taken(&hidden, &visible),
        Err(error) if error.kind() == ErrorKind::NotFound && visible.exists() => Ok(()),
        Err(error) if error.kind() == ErrorKind::NotFound => {
            Err(gone(directory, &part.hidden, &error))
        }
        // There are file systems without links.
        Err(_) if !visible.exists() => {
            fs::rename(&hidden, &visible).map_err(|error| io_error(&visible, &error))
        }
        Err(error) => Err(io_error(&visible, &error)),
    }
}

/// There is a file of the visible name: it is the part, or that of somebody else.
fn taken(hidden: &Path, visible: &Path) -> Result<(), ConnectorError> {
    let inode = |path: &Path| fs::metadata(path).map(|file| (file.dev(), file.ino()));
    let same = match (inode(hidden), inode(visible)) {
        (Ok(hidden), Ok(visible)) => hidden == visible,
        // Another process has published it meanwhile.
        (Err(error), Ok(_)) => error.kind() == ErrorKind::NotFound,
        (_, Err(error)) => return Err(io_error(visible, &error)),
    };
    if same {
        return Ok(());
    }
    Err(ConnectorError::Io {
        place: visible.display().to_string(),
        message: "there is a file of that name that this job has not written".into(),
        hint: Some("give each job a directory of its own".into()),
    })
}

fn remove(hidden: &Path) -> Result<(), ConnectorError> {
    match fs::remove_file(hidden) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(io_error(hidden, &error)),
        _ => Ok(()),
    }
}

/// Makes names of a directory durable.
pub(super) fn sync(directory: &Path) -> Result<(), ConnectorError> {
    let synced = File::open(directory).and_then(|directory| directory.sync_all());
    synced.map_err(|error| io_error(directory, &error))
}

/// The error that a writer that stages is committed.
pub(super) fn not_committed(of: &Path) -> ConnectorError {
    ConnectorError::Io {
        place: of.display().to_string(),
        message: "rows that are kept for checkpoints are published by their job".into(),
        hint: None,
    }
}

/// The error that rows are gone that a checkpoint names.
pub(super) fn gone(of: &Path, hidden: &str, error: &io::Error) -> ConnectorError {
    ConnectorError::Io {
        place: of.display().to_string(),
        message: format!("rows of the checkpoint were staged as '{hidden}': {error}"),
        hint: Some("the output has to lie where all nodes see it; --from none begins anew".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decode(text: &str) -> Result<Staged, ConnectorError> {
        Staged::decode(text.as_bytes(), Path::new("out"))
    }

    #[test]
    fn what_is_staged_is_read_again_and_nothing_that_leads_elsewhere() {
        let part = |name: &str| Part { hidden: format!(".{name}"), visible: name.into() };
        let parts = Staged::Parts(vec![part("a"), part("b c")]);
        assert_eq!(Staged::decode(&parts.encode(), Path::new("out")).unwrap(), parts);
        let none = Staged::Parts(vec![]);
        assert_eq!(Staged::decode(&none.encode(), Path::new("out")).unwrap(), none);
        let rows = Staged::Rows(vec![("_staged/.a".into(), 9), ("_staged/.b".into(), 0)]);
        assert_eq!(Staged::decode(&rows.encode(), Path::new("out")).unwrap(), rows);
        let length = Staged::Length { name: ".a".into(), bytes: 9 };
        assert_eq!(Staged::decode(&length.encode(), Path::new("out")).unwrap(), length);
        let out =
            ["1\tl\t../a\t9", "1\tl\t/a\t9", "1\tp\ta\tb\tc", "1\tp\ta\t../b", "2\tp", "", "1"];
        let rows = ["1\ts\ta", "1\ts\ta\tb", "1\ts\t../a\t1"];
        for text in out.into_iter().chain(rows) {
            assert!(decode(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn only_earlier_runs_of_the_same_job_left_something() {
        let run = |job, generation| RunId { job, generation };
        let of = |run| name(".part-", run, "-3-17");
        assert!(is_of_earlier(&of(run(5, 9)), ".part-", run(5, 10)));
        assert!(!is_of_earlier(&of(run(5, 10)), ".part-", run(5, 10)));
        assert!(!is_of_earlier(&of(run(5, 11)), ".part-", run(5, 10)));
        assert!(!is_of_earlier(&of(run(6, 9)), ".part-", run(5, 10)));
        assert!(!is_of_earlier("part-9", ".part-", run(5, 10)));
        assert!(is_of_earlier(&name(".o.csv.", run(5, 9), ""), ".o.csv.", run(5, 10)));
    }
}
