//! A table as a sink: workers write Parquet parts, and one commit adds them to the log.
//!
//! A part lies under a hidden name until it is published, as those of a directory do; then it gets
//! a name that no other part has, and the log names it. A reader of the log sees the rows of a
//! checkpoint all at once. In a job without checkpoints each process makes one commit, when the
//! query has ended.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use arrow::array::{ArrayRef, RecordBatch};
use arrow::compute::{CastOptions, cast_with_options};
use arrow::datatypes::{DataType, Schema, SchemaRef};
use dataflow::connector::{TableDef, WriteMode};
use dataflow::error::ConnectorError;
use dataflow::sink::{
    ExclusiveTarget, Placement, Publishing, RunId, Sink, SinkVisibility, SinkWriter, StagedOutput,
    StagingContext, WriterContext,
};

use super::columns::DeltaColumns;
use super::commit::{NewFile, Transaction, WrittenTable};
use super::log::unread;
use super::place::TablePlace;
use super::statistics::{is_written, rows_alone, written};
use super::{APP_ID, CHECKPOINT_INTERVAL, PATH_HINT};
use crate::file::directory::{DirectoryWriter, Layout, PARTITION_BY, WrittenPart};
use crate::file::staged::{Part, is_below};
use crate::format::partitions;
use crate::options::{OptionReader, refuse, sql_type};

/// Commits from one checkpoint of the log to the next, where nobody says it.
const CHECKPOINT_EVERY: u64 = 10;
/// The encoding of what is staged.
const VERSION: &str = "2";
/// Bytes of the statistics of the parts that a worker stages at once, at most: the record of a
/// checkpoint has them. Further parts have their rows alone.
const STAGED_STATISTICS_BYTES_MAX: usize = 256 << 10;
/// Bytes of the name of a sink at most.
const APP_ID_BYTES_MAX: usize = 255;

/// A table to be written.
pub(super) struct DeltaSink {
    layout: Arc<Layout>,
    table: Arc<WrittenTable>,
    app_id: Option<String>,
    /// Whether the statement makes the table.
    makes: bool,
    /// The job, once a writer was opened.
    job: OnceLock<u64>,
    ended: Arc<Mutex<Ended>>,
}

/// The writers of this process in a job that stages nothing.
#[derive(Default)]
struct Ended {
    /// Writers that are open.
    open: usize,
    /// Whether one was dropped with rows that nobody will see.
    has_failed: bool,
    /// The files of those that have ended.
    files: Vec<NewFile>,
}

impl Ended {
    /// A writer has ended, with its files if it ends well. Gives those of all writers once none is
    /// open any more, if all have ended well: the next run of the sink begins anew.
    fn end(&mut self, files: Option<Vec<NewFile>>) -> Option<Vec<NewFile>> {
        self.open -= 1;
        match files {
            Some(files) => self.files.extend(files),
            None => self.has_failed = true,
        }
        if self.open > 0 {
            return None;
        }
        let Self { has_failed, files, .. } = std::mem::take(self);
        (!has_failed).then_some(files)
    }
}

fn lock(ended: &Mutex<Ended>) -> MutexGuard<'_, Ended> {
    ended.lock().unwrap_or_else(PoisonError::into_inner)
}

impl DeltaSink {
    pub(super) fn new(table: &TableDef, mode: WriteMode) -> Result<Self, ConnectorError> {
        let options = OptionReader(&table.options);
        let path = options.required("path", PATH_HINT)?;
        let place = TablePlace::open(path, options)?;
        let columns = DeltaColumns::of(&table.schema)?;
        let given = options
            .text(PARTITION_BY.key)
            .map(|text| text.split(',').map(str::trim).map(str::to_owned).collect::<Vec<String>>());
        let every = options.integer(CHECKPOINT_INTERVAL, 0)?.unwrap_or(CHECKPOINT_EVERY);
        let app_id = options.text(APP_ID).map(str::to_owned);
        if let Some(id) = &app_id
            && (id.is_empty() || id.len() > APP_ID_BYTES_MAX)
        {
            let message = format!("a name has 1 to {APP_ID_BYTES_MAX} bytes");
            return Err(refuse(APP_ID, message, None));
        }
        let schema = Arc::new(columns.schema.clone());
        let written = WrittenTable::new(place, columns, given, every);
        let (partitioned_by, summarized) = written.layout()?;
        check_partitions(&schema, &partitioned_by)?;
        let of_files = TableDef { schema, ..table.clone() };
        let name = app_id.as_deref();
        let layout = Layout::of_table(&of_files, path, &partitioned_by, &summarized, name)?;
        let layout = Arc::new(layout);
        let (table, job, ended) = (Arc::new(written), OnceLock::new(), Arc::default());
        Ok(Self { layout, table, app_id, makes: mode == WriteMode::Create, job, ended })
    }

    /// The name of the transactions of a job.
    fn name_for(&self, job: u64) -> String {
        self.app_id.clone().unwrap_or_else(|| format!("millstream-{job:016x}"))
    }

    fn check_made(&self) -> Result<(), ConnectorError> {
        if self.makes && self.table.is_there()? {
            let place = self.table.place.display("");
            let hint = "declare it, and write INSERT INTO to add rows";
            return Err(unread(&place, "there is a table of Delta Lake already", hint));
        }
        Ok(())
    }
}

/// Checks that the values of these columns can name directories.
fn check_partitions(schema: &Schema, columns: &[String]) -> Result<(), ConnectorError> {
    for name in columns {
        let Some((_, field)) = schema.column_with_name(name) else { continue };
        let is_named = matches!(
            field.data_type(),
            DataType::Utf8
                | DataType::Int8
                | DataType::Int16
                | DataType::Int32
                | DataType::Int64
                | DataType::Boolean
                | DataType::Date32
        );
        if !is_named {
            let of = sql_type(field.data_type());
            let message = format!("column '{name}' is {of}, which no table is partitioned by");
            let hint = "choose columns of STRING, DATE, BOOLEAN or whole numbers";
            return Err(refuse(PARTITION_BY.key, message, Some(hint.into())));
        }
    }
    Ok(())
}

impl Sink for DeltaSink {
    fn placement(&self) -> Placement {
        Placement::Everywhere
    }

    /// Two sinks of one name would count each other's publications as their own.
    fn replaces(&self) -> Option<ExclusiveTarget> {
        let name = self.app_id.as_deref().unwrap_or_default();
        let place = format!("{}, transactions '{name}'", self.table.place.one_name());
        Some(ExclusiveTarget { place, option: Some(APP_ID) })
    }

    fn staging(&self) -> SinkVisibility {
        SinkVisibility::ByCheckpoint
    }

    fn mark(&self) -> Result<Option<[u64; 2]>, ConnectorError> {
        let Some(job) = self.job.get() else { return Ok(None) };
        Ok(Some([self.table.count(&self.name_for(*job))?, *job]))
    }

    fn publish(&self, staged: &[Vec<u8>], how: Publishing) -> Result<(), ConnectorError> {
        let place = self.table.place.display("");
        let staged = staged.iter().map(|staged| StagedParts::decode(&place, staged));
        let staged = staged.collect::<Result<Vec<_>, _>>()?;
        let job = staged.first().map(|staged| staged.job);
        let staged: Vec<StagedPart> = staged.into_iter().flat_map(|staged| staged.parts).collect();
        let Some(job) = job.filter(|_| !staged.is_empty()) else {
            // A query without rows makes an empty table.
            return if how.last { self.table.commit(&[], None, true) } else { Ok(()) };
        };
        let Some([before, _]) = how.mark else {
            let message = "the checkpoint has no number of its publications";
            return Err(unread(&place, message, "begin anew: --from none"));
        };
        let own = Transaction { name: self.name_for(job), before, again: how.again };
        if own.again && before.checked_add(1) == Some(self.table.count(&own.name)?) {
            return Ok(());
        }
        let parts: Vec<Part> = staged.iter().map(|staged| staged.part.clone()).collect();
        self.layout.place.publish(&parts, how.again)?;
        if how.again {
            for Part { visible, .. } in &parts {
                if !self.table.place.has(visible)? {
                    let message = format!("'{visible}', which a checkpoint has written, is gone");
                    return Err(unread(&place, message, "begin anew: --from none"));
                }
            }
        }
        let files: Vec<NewFile> = staged.iter().map(new_file).collect();
        self.table.commit(&files, Some(&own), true)
    }

    fn sweep(&self, run: RunId, kept: &[Vec<u8>]) -> Result<(), ConnectorError> {
        let place = self.table.place.display("");
        let mut names = vec![];
        for kept in kept {
            let StagedParts { parts, .. } = StagedParts::decode(&place, kept)?;
            names.extend(parts.into_iter().map(|staged| staged.part.hidden));
        }
        self.layout.sweep(run, &names)
    }

    fn check_new(&self) -> Result<(), ConnectorError> {
        self.check_made()
    }

    fn open(&self, context: &WriterContext) -> Result<Box<dyn SinkWriter>, ConnectorError> {
        if context.staging.as_ref().is_none_or(|staging| !staging.goes_on) {
            self.check_made()?;
        }
        self.layout.place.make()?;
        if let Some(StagingContext { run, .. }) = &context.staging {
            self.job.get_or_init(|| run.job);
        }
        lock(&self.ended).open += 1;
        Ok(Box::new(DeltaWriter {
            parts: Some(DirectoryWriter::new(Arc::clone(&self.layout), context)),
            schema: Arc::new(self.table.columns.schema.clone()),
            table: Arc::clone(&self.table),
            job: context.staging.as_ref().map(|staging| staging.run.job),
            ended: Arc::clone(&self.ended),
        }))
    }
}

/// Writes the parts of a worker.
struct DeltaWriter {
    /// Until it has ended.
    parts: Option<DirectoryWriter>,
    /// The columns with the types of the table.
    schema: SchemaRef,
    table: Arc<WrittenTable>,
    /// The job, if it stages.
    job: Option<u64>,
    ended: Arc<Mutex<Ended>>,
}

impl DeltaWriter {
    /// Rows with the types of the table.
    fn fitted(&self, batch: &RecordBatch) -> Result<RecordBatch, ConnectorError> {
        let place = || self.table.place.display("");
        let options = CastOptions { safe: false, ..CastOptions::default() };
        let columns = batch.columns().iter().zip(self.schema.fields());
        let columns: Result<Vec<ArrayRef>, _> = columns
            .map(|(column, field)| {
                let fitted = cast_with_options(column, field.data_type(), &options);
                fitted.map_err(|error| {
                    let message = format!("column '{}': {error}", field.name());
                    unread(&place(), message, "a value is beyond the times of Delta Lake")
                })
            })
            .collect();
        RecordBatch::try_new(Arc::clone(&self.schema), columns?)
            .map_err(|error| unread(&place(), error.to_string(), "check NOT NULL columns"))
    }

    fn gone(&self) -> ConnectorError {
        unread(&self.table.place.display(""), "its writer has ended", "report this")
    }
}

impl SinkWriter for DeltaWriter {
    fn write(&mut self, batch: &RecordBatch) -> Result<(), ConnectorError> {
        let fitted = self.fitted(batch)?;
        let error = self.gone();
        self.parts.as_mut().ok_or(error)?.write(&fitted)
    }

    fn flush(&mut self) -> Result<(), ConnectorError> {
        self.parts.as_mut().map_or(Ok(()), SinkWriter::flush)
    }

    fn stage(&mut self, checkpoint: u64, _: bool) -> Result<StagedOutput, ConnectorError> {
        let error = self.gone();
        let (parts, job) = (self.parts.as_mut().ok_or(error)?, self.job.unwrap_or_default());
        let (parts, unsynced) = parts.stage_parts(checkpoint)?;
        let parts = StagedPart::all(parts, STAGED_STATISTICS_BYTES_MAX);
        Ok(StagedOutput { staged: StagedParts { job, parts }.encode(), unsynced })
    }

    /// The last writer of the process commits the files of all.
    fn commit(mut self: Box<Self>) -> Result<(), ConnectorError> {
        let Some(parts) = self.parts.take() else { return Err(self.gone()) };
        let parts = parts.commit_parts().map(|parts| StagedPart::all(parts, usize::MAX));
        let files = parts.as_ref().ok().map(|parts| parts.iter().map(new_file).collect());
        let files = lock(&self.ended).end(files);
        parts?;
        files.map_or(Ok(()), |files| self.table.commit(&files, None, true))
    }
}

impl Drop for DeltaWriter {
    fn drop(&mut self) {
        if self.parts.is_some() {
            // Its rows are lost, and those of the others with it.
            let _ = lock(&self.ended).end(None);
        }
    }
}

/// A part as the log has it.
fn new_file(StagedPart { part, bytes, statistics }: &StagedPart) -> NewFile {
    let directories = part.visible.rsplit_once('/').map_or("", |(directories, _)| directories);
    let value = |directory: &str| {
        let (column, value) = directory.split_once('=')?;
        Some((partitions::decoded(column), partitions::value_of(value)))
    };
    let values = directories.split('/').filter_map(value).collect();
    let (name, statistics) = (part.visible.clone(), statistics.clone());
    NewFile { name, bytes: *bytes, statistics, values }
}

/// A part with what the log will say of it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct StagedPart {
    part: Part,
    bytes: u64,
    /// As the log has them: JSON in one line.
    statistics: String,
}

impl StagedPart {
    /// Parts with statistics of at most `statistics_bytes_max` bytes together. The others have
    /// their number of rows alone.
    fn all(parts: Vec<WrittenPart>, statistics_bytes_max: usize) -> Vec<Self> {
        let mut left = statistics_bytes_max;
        let each = parts.into_iter().map(|WrittenPart { part, bytes, rows, columns }| {
            let statistics = Some(written(rows, &columns)).filter(|text| text.len() <= left);
            left -= statistics.as_ref().map_or(0, String::len);
            Self { part, bytes, statistics: statistics.unwrap_or_else(|| rows_alone(rows)) }
        });
        each.collect()
    }
}

/// The parts that a writer has staged.
#[derive(Debug, Clone, PartialEq, Eq)]
struct StagedParts {
    job: u64,
    parts: Vec<StagedPart>,
}

impl StagedParts {
    fn encode(&self) -> Vec<u8> {
        let each = |StagedPart { part, bytes, statistics }: &StagedPart| {
            format!("\t{}\t{}\t{bytes}\t{statistics}", part.hidden, part.visible)
        };
        let parts: String = self.parts.iter().map(each).collect();
        format!("{VERSION}\td\t{:016x}{parts}", self.job).into_bytes()
    }

    /// The value that `encode` was given.
    ///
    /// # Errors
    /// When nothing did, or a name leads out of the table.
    fn decode(place: &str, staged: &[u8]) -> Result<Self, ConnectorError> {
        std::str::from_utf8(staged).ok().and_then(decoded).ok_or_else(|| {
            let message = "what the checkpoint says of its staged rows is damaged, or of a later \
                           version";
            unread(place, message, "go on from an older checkpoint: --from N")
        })
    }
}

fn decoded(text: &str) -> Option<StagedParts> {
    let mut fields = text.split('\t');
    // The first encoding has the rows in place of the statistics.
    let (version @ ("1" | VERSION), "d") = (fields.next()?, fields.next()?) else { return None };
    let is_old = version != VERSION;
    let job = u64::from_str_radix(fields.next()?, 16).ok()?;
    let fields: Vec<&str> = fields.collect();
    let (chunks, []) = fields.as_chunks::<4>() else { return None };
    let part = |[hidden, visible, bytes, known]: &[&str; 4]| {
        let is_below = is_below(hidden) && is_below(visible);
        let part = Part { hidden: (*hidden).into(), visible: (*visible).into() };
        let statistics = if is_old {
            rows_alone(known.parse().ok()?)
        } else {
            is_written(known).then(|| (*known).to_owned())?
        };
        let staged = StagedPart { part, bytes: bytes.parse().ok()?, statistics };
        is_below.then_some(staged)
    };
    let parts: Vec<StagedPart> = chunks.iter().map(part).collect::<Option<_>>()?;
    let names: BTreeSet<&str> = parts.iter().map(|staged| staged.part.visible.as_str()).collect();
    (names.len() == parts.len()).then_some(StagedParts { job, parts })
}

#[cfg(test)]
mod tests {
    use dataflow::predicate::ColumnSummary;

    use super::*;

    #[test]
    fn what_is_staged_is_read_again_and_nothing_that_leads_elsewhere() {
        let part = |name: &str| StagedPart {
            part: Part { hidden: format!(".{name}"), visible: format!("k=a b/{name}") },
            bytes: 7,
            statistics: written(u64::MAX, &[("a\tb\n".to_owned(), ColumnSummary::default())]),
        };
        for parts in [vec![], vec![part("a"), part("b")]] {
            let staged = StagedParts { job: 5, parts };
            assert_eq!(StagedParts::decode("t", &staged.encode()).unwrap(), staged);
        }
        let old = StagedParts::decode("t", b"1\td\t5\t.a\ta\t1\t3").unwrap();
        assert_eq!(old.parts[0].statistics, "{\"numRecords\":3}");
        let twice = StagedParts { job: 5, parts: vec![part("a"), part("a")] }.encode();
        let texts: [&[u8]; 10] = [
            &twice,
            b"",
            b"2\td",
            b"2\tp\t5",
            b"3\td\t5",
            b"2\td\t5\t.a\ta\t1",
            b"1\td\t5\t../a\ta\t1\t1",
            b"1\td\t5\t.a\t/a\t1\t1",
            b"2\td\t5\t.a\ta\t1\t1",
            b"2\td\t5\t.a\ta\t1\t{}",
        ];
        for text in texts {
            assert!(StagedParts::decode("t", text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn values_of_partitions_are_in_the_names_of_directories() {
        let visible = "town=a%2Fb/day=__HIVE_DEFAULT_PARTITION__/p.parquet".to_owned();
        let part = Part { hidden: ".p".into(), visible };
        let file = new_file(&StagedPart { part, bytes: 1, statistics: rows_alone(2) });
        let values = [("town".to_owned(), Some("a/b".to_owned())), ("day".to_owned(), None)];
        assert_eq!(file.values, values);
    }
}
