//! The log of a table: what its versions say, in order.
//!
//! ```text
//! _delta_log/ ─▶ the last checkpoint ─▶ the commits behind it ─▶ a [`LogState`]
//! ```
//!
//! A checkpoint is a Parquet file of the same actions that commits have as lines of JSON.

use std::collections::BTreeMap;

use arrow::json::LineDelimitedWriter;
use dataflow::error::ConnectorError;
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use parquet::file::reader::ChunkReader;
use serde_json::Value;

use super::LOG;
use super::place::TablePlace;

/// Digits of a version in names.
pub(super) const VERSION_DIGITS: usize = 20;
/// Bytes of a commit at most.
pub(super) const COMMIT_BYTES_MAX: u64 = 256 << 20;
/// Bytes of a part of a checkpoint in a store at most.
pub(super) const CHECKPOINT_BYTES_MAX: u64 = 1 << 30;
/// Actions of a checkpoint that are in memory as text at a time.
pub(super) const BATCH_ACTIONS: usize = 256;
/// Their bytes at most: a few bytes of Parquet may be the same value many times.
pub(super) const BATCH_BYTES_MAX: usize = 64 << 20;
/// Actions of a log at most: files that are there, were removed, or are named again.
pub(super) const ACTIONS_MAX: usize = 40_000_000;

/// What the actions of a log make.
pub(super) trait LogState {
    /// The columns of a checkpoint that are read.
    fn columns(&self) -> &'static [&'static str];

    /// Applies an action, of which one kind is there.
    ///
    /// # Errors
    /// When it is damaged, or asks for what is not read.
    fn apply(&mut self, place: &str, action: &Value) -> Result<(), ConnectorError>;

    /// A commit ends, or some actions of a checkpoint, which removes none. A file that one commit
    /// removes and adds is there, in whichever order.
    ///
    /// # Errors
    /// When there is more than is kept.
    fn end(&mut self, place: &str) -> Result<(), ConnectorError>;
}

/// The name of a commit below the table.
pub(super) fn commit_name(version: u64) -> String {
    format!("{LOG}/{version:0VERSION_DIGITS$}.json")
}

/// The name of a checkpoint of one part below the table.
pub(super) fn checkpoint_name(version: u64) -> String {
    format!("{LOG}/{version:0VERSION_DIGITS$}.checkpoint.parquet")
}

pub(super) fn unread(place: &str, message: impl Into<String>, hint: &str) -> ConnectorError {
    let place = place.to_owned();
    ConnectorError::Io { place, message: message.into(), hint: Some(hint.into()) }
}

pub(super) fn damaged(place: &str, message: impl Into<String>) -> ConnectorError {
    unread(place, message, "the log of the table is damaged, or of a newer kind")
}

/// The value of a kind of action, if it is one.
pub(super) fn of<'a>(action: &'a Value, kind: &str) -> Option<&'a Value> {
    action.get(kind).filter(|value| !value.is_null())
}

/// The files of a log.
pub(super) struct DeltaLog {
    /// The newest checkpoint that is there whole, and the names of its parts.
    checkpoint: Option<(u64, Vec<String>)>,
    /// The versions that have a commit.
    commits: Vec<u64>,
    newest: u64,
}

impl DeltaLog {
    /// The log of a table, or the part of it from a version on; `None` if there is no version.
    ///
    /// # Errors
    /// When it cannot be listed.
    pub(super) fn list(
        table: &TablePlace,
        from: Option<u64>,
    ) -> Result<Option<Self>, ConnectorError> {
        // Names of the version are behind its number.
        let from = from.map(|version| format!("{version:0VERSION_DIGITS$}"));
        let Some(names) = table.log_names(from.as_deref())? else { return Ok(None) };
        let commit = |name: &String| match LogName::of(name)? {
            (version, LogName::Commit) => Some(version),
            _ => None,
        };
        let mut commits: Vec<u64> = names.iter().filter_map(commit).collect();
        commits.sort_unstable();
        let checkpoint = checkpoints(names.iter().map(String::as_str)).pop();
        let owned = |parts: Vec<&str>| parts.into_iter().map(str::to_owned).collect();
        let checkpoint = checkpoint.map(|(version, parts)| (version, owned(parts)));
        let of_checkpoint = checkpoint.as_ref().map(|(version, _)| *version);
        let newest = commits.last().copied().max(of_checkpoint);
        Ok(newest.map(|newest| Self { checkpoint, commits, newest }))
    }

    /// The version of the newest checkpoint.
    pub(super) fn checkpoint(&self) -> Option<u64> {
        self.checkpoint.as_ref().map(|(version, _)| *version)
    }

    /// Whether versions up to the newest are commits behind `from`.
    pub(super) fn continues(&self, from: u64) -> bool {
        let next = from.checked_add(1);
        let has = |next: u64| self.commits.binary_search(&next).is_ok();
        self.newest == from || next.is_some_and(has)
    }

    /// Applies all versions behind `from`, or all that there are. Gives the newest.
    ///
    /// # Errors
    /// When a version is missing or damaged, or `state` refuses an action.
    pub(super) fn replay(
        &self,
        table: &TablePlace,
        from: Option<u64>,
        state: &mut dyn LogState,
    ) -> Result<u64, ConnectorError> {
        let (mut next, mut actions) = (0, 0);
        let last = || damaged(&table.display(""), "its checkpoint has the last number");
        if let Some(from) = from {
            next = from.checked_add(1).ok_or_else(last)?;
        } else if let Some((version, parts)) = &self.checkpoint {
            for part in parts {
                table.read_checkpoint(&format!("{LOG}/{part}"), state, &mut actions)?;
            }
            next = version.checked_add(1).ok_or_else(last)?;
        }
        for version in next..=self.newest {
            let name = commit_name(version);
            // A listing of a directory may lack what came while it was made.
            let Some(lines) = table.read(&name, COMMIT_BYTES_MAX)? else {
                let message = format!("its log lacks version {version}, of {}", self.newest);
                return Err(unread(&table.display(""), message, "restore the files of its log"));
            };
            let place = table.display(&name);
            apply_commit(&place, &lines, state, &mut actions)?;
        }
        Ok(self.newest)
    }
}

/// The kind of a file of the log, by its name behind the version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LogName {
    Commit,
    /// Part `part` of a checkpoint that has `of` parts.
    Checkpoint {
        part: u64,
        of: u64,
    },
    /// Commits up to a version in one file, which no reader needs.
    Compacted {
        to: u64,
    },
    /// A sum of the bytes of a commit, which no reader needs.
    Sum,
}

impl LogName {
    /// The version of a name, and what it is; `None` if it is of another kind.
    pub(super) fn of(name: &str) -> Option<(u64, Self)> {
        let (version, kind) = version_of(name)?;
        let kind: Vec<&str> = kind.split('.').collect();
        let of = match kind.as_slice() {
            ["json"] => Self::Commit,
            ["crc"] => Self::Sum,
            ["checkpoint", "parquet"] => Self::Checkpoint { part: 1, of: 1 },
            ["checkpoint", part, of, "parquet"] => {
                Self::Checkpoint { part: part.parse().ok()?, of: of.parse().ok()? }
            }
            [to, "compacted", "json"] => Self::Compacted { to: to.parse().ok()? },
            _ => return None,
        };
        Some((version, of))
    }
}

/// The checkpoints among the names of a log that are there whole, by version, with their parts.
pub(super) fn checkpoints<'a>(names: impl Iterator<Item = &'a str>) -> Vec<(u64, Vec<&'a str>)> {
    let mut parts = BTreeMap::<_, BTreeMap<_, _>>::new();
    for name in names {
        if let Some((version, LogName::Checkpoint { part, of })) = LogName::of(name) {
            parts.entry((version, of)).or_default().insert(part, name);
        }
    }
    let is_whole = |of: u64, parts: &BTreeMap<u64, &str>| {
        parts.len() as u64 == of && parts.keys().copied().eq(1..=of)
    };
    let whole = parts.into_iter().filter(|((_, of), parts)| is_whole(*of, parts));
    whole.map(|((version, _), parts)| (version, parts.into_values().collect())).collect()
}

/// The version at the beginning of a name, and what is behind its point.
fn version_of(name: &str) -> Option<(u64, &str)> {
    let (version, kind) = name.split_once('.')?;
    let is_version =
        version.len() == VERSION_DIGITS && version.bytes().all(|byte| byte.is_ascii_digit());
    Some((version.parse().ok().filter(|_| is_version)?, kind))
}

/// Applies the actions of a commit.
///
/// # Errors
/// When one is no JSON, or `state` refuses it.
pub(super) fn apply_commit(
    place: &str,
    lines: &[u8],
    state: &mut dyn LogState,
    actions: &mut usize,
) -> Result<(), ConnectorError> {
    count_actions(place, actions, lines.split(|byte| *byte == b'\n').count())?;
    apply_lines(place, lines, state)
}

/// Applies the actions of a part of a checkpoint, some at a time.
///
/// # Errors
/// When it is damaged, or `state` refuses an action.
pub(super) fn apply_checkpoint<T: ChunkReader + 'static>(
    place: &str,
    builder: ParquetRecordBatchReaderBuilder<T>,
    state: &mut dyn LogState,
    actions: &mut usize,
) -> Result<(), ConnectorError> {
    let unfit = |error: &dyn std::fmt::Display| damaged(place, error.to_string());
    let wanted = state.columns().iter().copied();
    let mask = ProjectionMask::columns(builder.parquet_schema(), wanted);
    let builder = builder.with_projection(mask).with_batch_size(BATCH_ACTIONS);
    for batch in builder.build().map_err(|error| unfit(&error))? {
        let batch = batch.map_err(|error| unfit(&error))?;
        // Actions that are not read are empty rows.
        count_actions(place, actions, batch.num_rows())?;
        let bytes = batch.get_array_memory_size();
        if bytes > BATCH_BYTES_MAX {
            let message = format!("{} of its actions have {bytes} bytes", batch.num_rows());
            return Err(damaged(place, message));
        }
        let mut writer = LineDelimitedWriter::new(Vec::new());
        writer.write(&batch).map_err(|error| unfit(&error))?;
        writer.finish().map_err(|error| unfit(&error))?;
        apply_lines(place, &writer.into_inner(), state)?;
    }
    Ok(())
}

fn count_actions(place: &str, actions: &mut usize, more: usize) -> Result<(), ConnectorError> {
    *actions += more;
    if *actions > ACTIONS_MAX {
        let message = format!("the log has over {ACTIONS_MAX} actions");
        return Err(unread(place, message, "compact the table, and write a checkpoint"));
    }
    Ok(())
}

fn apply_lines(place: &str, lines: &[u8], state: &mut dyn LogState) -> Result<(), ConnectorError> {
    let lines = lines.split(|byte| *byte == b'\n').filter(|line| !line.trim_ascii().is_empty());
    for line in lines {
        let action = serde_json::from_slice(line)
            .map_err(|error| damaged(place, format!("an action is no JSON: {error}")))?;
        state.apply(place, &action)?;
    }
    state.end(place)
}
