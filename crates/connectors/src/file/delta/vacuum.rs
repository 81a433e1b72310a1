//! `VACUUM`: files below a table that no version within the retention has, as rows of a source.
//!
//! ```text
//! list the files ─▶ read the log ─▶ files that are old, and that it has neither added nor removed
//!                                   within the retention ─▶ removed, some at a time ─▶ rows
//! ```
//!
//! The files are listed first: a file that is listed and that a commit has added meanwhile is in
//! the log. Names that begin with `.` or `_` are none of the table's, unless they are directories
//! of a partition. A table with anything that this program does not keep in its checkpoints may
//! have files of which it does not know, and is refused.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::thread;

use arrow::array::{ArrayRef, Int64Array, StringArray};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use arrow::record_batch::RecordBatch;
use dataflow::connector::Vacuum;
use dataflow::error::ConnectorError;
use dataflow::position::refused;
use dataflow::source::{Next, Position, ReaderContext, Source, Split, SplitReader};
use tokio::sync::mpsc::Receiver;
use tokio::sync::mpsc::error::TryRecvError;

use super::files::below;
use super::interval::HOUR_MS;
use super::log::{damaged, unread};
use super::place::{TablePlace, now_ms};
use super::snapshot::Snapshot;
use crate::format::partitions::decoded;
use crate::object::AgedName;
use crate::remote::{QueueSender, died, queue};

/// Files that are removed at a time.
const REMOVED_MAX: usize = 1000;
/// How long files stay at least, whatever the table says: a writer may have files that it has not
/// committed, and a reader may have listed those that were removed just now.
const STAYS_LEAST_MS: i64 = HOUR_MS;

/// The files that a statement removes, as a table.
pub(super) struct VacuumSource {
    place: TablePlace,
    how: Vacuum,
}

impl VacuumSource {
    /// # Errors
    /// When there is no table, or it has to keep its files for longer.
    pub(super) fn new(place: TablePlace, how: Vacuum) -> Result<Self, ConnectorError> {
        let source = Self { place, how };
        source.retained(&source.snapshot()?)?;
        Ok(source)
    }

    fn snapshot(&self) -> Result<Snapshot, ConnectorError> {
        let table = self.place.display("");
        let snapshot = Snapshot::read(&self.place, now_ms())?.ok_or_else(|| {
            let hint = "a table of Delta Lake has a directory '_delta_log'";
            unread(&table, "there is no table of Delta Lake", hint)
        })?;
        if snapshot.is_partial {
            let message = "its log has what this program does not know, which may have files";
            return Err(unread(&table, message, "vacuum it by the program that writes it"));
        }
        Ok(snapshot)
    }

    /// How long files stay, in milliseconds.
    fn retained(&self, snapshot: &Snapshot) -> Result<i64, ConnectorError> {
        let table = self.place.display("");
        let key = "delta.deletedFileRetentionDuration";
        let Some(least) = snapshot.removed_stay().map(|stay| stay.max(STAYS_LEAST_MS)) else {
            let of = snapshot.setting(key).unwrap_or_default();
            let message = format!("the table has '{key}' = '{of}', which is not understood");
            return Err(unread(&table, message, "it is a span such as 'interval 7 days'"));
        };
        let asked = self.how.retain_ms.map_or(least, |of| i64::try_from(of).unwrap_or(i64::MAX));
        if asked < least {
            let hours = least.saturating_add(HOUR_MS - 1) / HOUR_MS;
            let message = format!(
                "the table keeps the files of its versions for {hours} hours: versions that can be \
                 read would lose files"
            );
            let hint = format!("write RETAIN {hours} HOURS, or set its '{key}'");
            return Err(unread(&table, message, &hint));
        }
        Ok(asked)
    }

    /// The files that go, sorted.
    fn needless(&self) -> Result<Vec<AgedName>, ConnectorError> {
        let files = self.place.aged_files()?;
        let mut snapshot = self.snapshot()?;
        let before = snapshot.now_ms.saturating_sub(self.retained(&snapshot)?);
        snapshot.forget_removed(before);
        needless(&self.place.display(""), files, &snapshot, before)
    }
}

/// The files of a listing that are older than `before_ms` and not in the snapshot, sorted.
fn needless(
    table: &str,
    files: Vec<AgedName>,
    snapshot: &Snapshot,
    before_ms: i64,
) -> Result<Vec<AgedName>, ConnectorError> {
    let mut kept = BTreeSet::new();
    for path in snapshot.files.keys().chain(snapshot.removed.keys()) {
        // Some writers do not encode names.
        for name in [path.clone(), decoded(path)] {
            kept.insert(below(table, path, &name)?);
        }
    }
    let is_needless = |file: &AgedName| {
        file.modified_ms < before_ms && !is_hidden(&file.name) && !kept.contains(&file.name)
    };
    let mut needless: Vec<AgedName> = files.into_iter().filter(is_needless).collect();
    needless.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(needless)
}

/// Whether a file is none of the table's, by its name.
fn is_hidden(name: &str) -> bool {
    let (directories, file) = name.rsplit_once('/').unwrap_or(("", name));
    let hidden = |name: &str| name.starts_with(['.', '_']);
    hidden(file) || directories.split('/').any(|of| hidden(of) && !of.contains('='))
}

impl Source for VacuumSource {
    fn schema(&self) -> SchemaRef {
        let file = Field::new("file", DataType::Utf8, false);
        Arc::new(Schema::new(vec![file, Field::new("bytes", DataType::Int64, false)]))
    }

    fn bounded(&self) -> bool {
        true
    }

    /// Files that were removed are gone.
    fn repeats(&self) -> bool {
        false
    }

    fn splits(&self, _: u32, _: Option<usize>) -> Result<Vec<Split>, ConnectorError> {
        Ok(vec![Split { name: self.place.display(""), ..Split::default() }])
    }

    fn describe(&self) -> Option<String> {
        let what = if self.how.dry_run { "tells" } else { "removes" };
        Some(format!("{what} files that no version has"))
    }

    fn open(
        &self,
        split: &Split,
        from: Option<&Position>,
        context: &ReaderContext,
    ) -> Result<Box<dyn SplitReader>, ConnectorError> {
        if from.is_some() {
            return Err(refused(&split.name, "files that were removed are gone".into()));
        }
        let source = Self { place: self.place.clone(), how: self.how };
        let (to, batches) = queue(1, &context.waker);
        let split = split.name.clone();
        // A reader that is gone ends it, with the files that were removed so far.
        let run = move || source.run(&to);
        let started = thread::Builder::new().name("millstream-vacuum".into()).spawn(run);
        started.map_err(|error| {
            let message = format!("cannot start its thread: {error}");
            unread(&split, message, "the system has no room for another thread")
        })?;
        Ok(Box::new(VacuumReader { split, batches, rest: None, passed: 0 }))
    }
}

impl VacuumSource {
    /// Removes the files, some at a time, and gives them.
    fn run(&self, to: &QueueSender<Removed>) {
        let files = match self.needless() {
            Ok(files) => files,
            Err(error) => {
                to.send_blocking(Err(error));
                return;
            }
        };
        for files in files.chunks(REMOVED_MAX) {
            if !to.send_blocking(self.remove(files)) {
                return;
            }
        }
        to.send_blocking(Ok(None));
    }

    fn remove(&self, files: &[AgedName]) -> Removed {
        let names: Vec<String> = files.iter().map(|file| file.name.clone()).collect();
        if !self.how.dry_run {
            self.place.remove(&names)?;
        }
        let bytes = files.iter().map(|file| i64::try_from(file.bytes).unwrap_or(i64::MAX));
        let bytes = Int64Array::from_iter_values(bytes);
        let columns: Vec<ArrayRef> = vec![Arc::new(StringArray::from(names)), Arc::new(bytes)];
        let batch = RecordBatch::try_new(self.schema(), columns);
        batch.map(Some).map_err(|error| damaged(&self.place.display(""), error.to_string()))
    }
}

/// Some of the files that were removed; `None` at the end.
type Removed = Result<Option<RecordBatch>, ConnectorError>;

/// Gives the files that a thread of its own removes.
struct VacuumReader {
    split: String,
    batches: Receiver<Removed>,
    /// Rows that did not fit into the last batch that was given.
    rest: Option<RecordBatch>,
    passed: u64,
}

impl SplitReader for VacuumReader {
    fn next(&mut self, rows_max: usize) -> Result<Next, ConnectorError> {
        let batch = match self.rest.take() {
            Some(batch) => batch,
            None => match self.batches.try_recv() {
                Ok(removed) => match removed? {
                    Some(batch) => batch,
                    None => return Ok(Next::End),
                },
                Err(TryRecvError::Empty) => return Ok(Next::Pending),
                Err(TryRecvError::Disconnected) => return Err(died(&self.split)),
            },
        };
        let count = batch.num_rows().min(rows_max);
        if count < batch.num_rows() {
            self.rest = Some(batch.slice(count, batch.num_rows() - count));
        }
        self.passed += count as u64;
        Ok(Next::Batch(batch.slice(0, count)))
    }

    fn position(&self) -> Position {
        Position::new("vacuum", 1, &self.split, &[self.passed])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_are_none_of_the_table_are_passed_over() {
        for (name, hidden) in [
            ("a.parquet", false),
            ("k=1/a", false),
            ("_k=1/.b=2/a", false),
            (".a", true),
            ("_a", true),
            ("k=1/_a", true),
            ("_delta_log/0.json", true),
            ("k=1/_staged/a", true),
            (".hidden/a", true),
        ] {
            assert_eq!(is_hidden(name), hidden, "{name}");
        }
    }
}
