//! Rows into a directory of files: every worker writes parts of its own.
//!
//! ```text
//! 'path' = 'out/'    out/part-<checkpoint>-<worker>.csv
//!                    out/country=DE/part-<checkpoint>-<worker>.csv     'partition.by' = 'country'
//! ```
//!
//! A part is written under a hidden name or none. In a job that keeps checkpoints it ends with the
//! checkpoint, at the latest, and gets its name when the manifest of that is stored; a part whose
//! name is there was published before. Else parts get their names when the job has ended, or as
//! they roll. They lie in a directory or [below a path of a store](PartPlace).

use std::collections::BTreeMap;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use arrow::array::UInt32Array;
use arrow::compute::take_record_batch;
use arrow::record_batch::RecordBatch;
use arrow::util::display::{ArrayFormatter, FormatOptions};
use dataflow::calendar::check_times;
use dataflow::connector::{OptionSpec, TableDef};
use dataflow::error::ConnectorError;
use dataflow::predicate::ColumnSummary;
use dataflow::sink::{
    ExclusiveTarget, Placement, Publishing, RunId, Sink, SinkVisibility, SinkWriter, StagedOutput,
    StagingContext, UnsyncedOutput, WriterContext,
};

use super::PATH_HINT;
use super::encoder::{Encoder, FormatWriter, Output};
use super::part_place::{PartPlace, VISIBLE};
use super::part_summary::PartSummary;
use super::roll::Roll;
use super::staged::{self, Part, Staged};
use crate::format::fnv;
use crate::options::{OptionReader, nearest, refuse};

/// Parts that a worker has open at most.
const OPEN_PARTS_MAX: usize = 500;
/// Bytes of the name of a directory at most, as file systems have it.
const NAME_BYTES_MAX: usize = 255;
/// The beginning of the hidden names of parts.
const HIDDEN: &str = ".part-";
/// The name of a directory of rows whose column is NULL.
const NULL: &str = "__HIVE_DEFAULT_PARTITION__";

/// The columns whose values name directories.
pub(super) const PARTITION_BY: OptionSpec = OptionSpec {
    key: "partition.by",
    values: "columns, separated by commas",
    default: "none",
    doc: "Columns by whose values a sink sorts rows into directories, as in 'country=DE/'; the \
          files do not have them.",
};

/// Whether a sink writes a directory of parts, by its path.
pub(super) fn is_directory(path: &str) -> bool {
    path.ends_with('/')
}

/// A directory to be written.
pub(super) struct DirectorySink(Arc<Layout>);

/// The files of a directory.
pub(super) struct Layout {
    /// The path, for messages.
    directory: PathBuf,
    pub(super) place: PartPlace,
    encoder: Encoder,
    roll: Roll,
    /// The columns whose values name directories, and the others.
    by: Vec<usize>,
    rest: Vec<usize>,
    /// The columns of files whose values are summarized: places among those of a file.
    summarized: Vec<usize>,
    names: PartNames,
    /// The prefix of hidden names.
    hidden: String,
}

/// The visible names of parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PartNames {
    /// Of a checkpoint: the same rows have the same name.
    ByCheckpoint,
    /// Names that no other part has: those of a table whose log names them. An empty text of a
    /// column that names directories is NULL, as the log has it.
    Unique,
}

impl DirectorySink {
    pub(super) fn new(table: &TableDef) -> Result<Self, ConnectorError> {
        let options = OptionReader(&table.options);
        let path = options.required("path", PATH_HINT)?;
        let by = match options.text(PARTITION_BY.key) {
            Some(text) => columns(table, text.split(',').map(str::trim))?,
            None => vec![],
        };
        Ok(Self(Arc::new(Layout::new(table, path, path, (by, PartNames::ByCheckpoint))?)))
    }
}

impl Layout {
    /// The parts of a table whose log names them, in Parquet. `name` tells this sink apart from
    /// others of the job that write to the table: each has hidden names of its own. Parts tell the
    /// ends of the columns of these names, as far as files have them.
    ///
    /// # Errors
    /// When options or columns do not fit.
    pub(super) fn of_table(
        table: &TableDef,
        path: &str,
        partitioned_by: &[String],
        summarized: &[String],
        name: Option<&str>,
    ) -> Result<Self, ConnectorError> {
        let by = columns(table, partitioned_by.iter().map(String::as_str))?;
        let path = format!("{}/", path.trim_end_matches('/'));
        let layout = Self::new(table, &path, "part.parquet", (by, PartNames::Unique))?;
        // With 15 digits it is no number of a job, which has 16.
        let own = |name: &str| format!("{HIDDEN}{:015x}-", fnv(name.as_bytes()) >> 4);
        let is_summarized = |column: &usize| {
            let field = table.schema.field(*column).name();
            summarized.iter().any(|name| name == field)
        };
        let places = layout.rest.iter().enumerate();
        let places = places.filter(|(_, column)| is_summarized(column)).map(|(place, _)| place);
        let (summarized, hidden) = (places.collect(), name.map_or(layout.hidden, own));
        Ok(Self { hidden, summarized, ..layout })
    }

    /// `named` is a name that tells the format, where no option does.
    fn new(
        table: &TableDef,
        path: &str,
        named: &str,
        (by, names): (Vec<usize>, PartNames),
    ) -> Result<Self, ConnectorError> {
        let options = OptionReader(&table.options);
        let place = PartPlace::of(path, options)?;
        let given = Roll::given(options)?;
        let bytes = given.bytes.into_iter().chain(place.part_bytes_max()).min();
        let roll = Roll { bytes, ..given };
        let rest: Vec<usize> =
            (0..table.schema.fields().len()).filter(|column| !by.contains(column)).collect();
        if rest.is_empty() {
            let message = "every column names directories, so that none is left for the files";
            return Err(refuse(PARTITION_BY.key, message, None));
        }
        let schema = table
            .schema
            .project(&rest)
            .map_err(|error| refuse(PARTITION_BY.key, error.to_string(), None))?;
        let of_files = TableDef { schema: Arc::new(schema), ..table.clone() };
        let encoder = Encoder::new(&of_files, Path::new(named))?;
        let directory = PathBuf::from(path);
        let hidden = HIDDEN.to_owned();
        let summarized = vec![];
        Ok(Self { directory, place, encoder, roll, by, rest, summarized, names, hidden })
    }

    /// The summary of a part, by the names of its columns.
    fn named(&self, summary: PartSummary) -> Vec<(String, ColumnSummary)> {
        let name = |place: usize| self.encoder.schema().field(place).name().clone();
        summary.columns().into_iter().map(|(place, of)| (name(place), of)).collect()
    }

    /// Removes what earlier runs of a job have staged and is not `kept`.
    pub(super) fn sweep(&self, run: RunId, kept: &[String]) -> Result<(), ConnectorError> {
        self.place.sweep(&self.hidden, run, kept)
    }

    /// The directory of each row below this one, with its rows.
    fn split(&self, batch: &RecordBatch) -> Result<Vec<(String, RecordBatch)>, ConnectorError> {
        if self.by.is_empty() {
            return Ok(vec![(String::new(), batch.clone())]);
        }
        let refused = |message: String| ConnectorError::Io {
            place: self.directory.display().to_string(),
            message,
            hint: None,
        };
        let unfit = |error: arrow::error::ArrowError| refused(error.to_string());
        check_times(&batch.project(&self.by).map_err(unfit)?).map_err(refused)?;
        let options = FormatOptions::default();
        let schema = batch.schema();
        let mut columns = Vec::with_capacity(self.by.len());
        for &at in &self.by {
            let values = batch.column(at);
            let texts = ArrayFormatter::try_new(values.as_ref(), &options).map_err(unfit)?;
            columns.push((encoded(schema.field(at).name()), values, texts));
        }
        let mut rows = BTreeMap::<String, Vec<u32>>::new();
        for row in 0..batch.num_rows() {
            let directory = columns.iter().map(|(name, values, texts)| {
                let text = texts.value(row).to_string();
                let is_null = text.is_empty() && self.names == PartNames::Unique;
                let value =
                    if values.is_null(row) || is_null { NULL.to_owned() } else { encoded(&text) };
                format!("{name}={value}/")
            });
            rows.entry(directory.collect()).or_default().push(row as u32);
        }
        let rest = batch.project(&self.rest).map_err(unfit)?;
        let taken = rows.into_iter().map(|(directory, rows)| {
            Ok((directory, take_record_batch(&rest, &UInt32Array::from(rows)).map_err(unfit)?))
        });
        taken.collect()
    }
}

/// The columns with these names.
fn columns<'a>(
    table: &TableDef,
    names: impl Iterator<Item = &'a str>,
) -> Result<Vec<usize>, ConnectorError> {
    let mut columns = Vec::new();
    for name in names {
        let fields = table.schema.fields();
        let Some((at, _)) = table.schema.column_with_name(name) else {
            let near = nearest(name, fields.iter().map(|field| field.name().as_str()));
            let hint = near.map(|near| format!("did you mean '{near}'?"));
            return Err(refuse(PARTITION_BY.key, format!("there is no column '{name}'"), hint));
        };
        if columns.contains(&at) {
            return Err(refuse(PARTITION_BY.key, format!("it names '{name}' twice"), None));
        }
        columns.push(at);
    }
    Ok(columns)
}

/// A text as the name of a directory, as in a URL.
fn encoded(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_. :,+@".contains(&byte);
    // These stand for NULL.
    let all = ["NULL", NULL].contains(&text);
    let each = text.bytes().enumerate().map(|(at, byte)| {
        let plain = plain(byte) && !(all && at == 0);
        if plain { char::from(byte).to_string() } else { format!("%{byte:02X}") }
    });
    each.collect()
}

impl Sink for DirectorySink {
    fn placement(&self) -> Placement {
        Placement::Everywhere
    }

    fn replaces(&self) -> Option<ExclusiveTarget> {
        Some(ExclusiveTarget::whole(self.0.place.one_name()))
    }

    fn staging(&self) -> SinkVisibility {
        SinkVisibility::ByCheckpoint
    }

    fn publish(&self, staged: &[Vec<u8>], how: Publishing) -> Result<(), ConnectorError> {
        let mut parts = Vec::new();
        for staged in staged {
            if let Staged::Parts(of) = Staged::decode(staged, &self.0.directory)? {
                parts.extend(of);
            }
        }
        self.0.place.publish(&parts, how.again)
    }

    fn sweep(&self, run: RunId, kept: &[Vec<u8>]) -> Result<(), ConnectorError> {
        let mut names = Vec::new();
        for kept in kept {
            if let Staged::Parts(parts) = Staged::decode(kept, &self.0.directory)? {
                names.extend(parts.into_iter().map(|part| part.hidden));
            }
        }
        self.0.sweep(run, &names)
    }

    fn check_new(&self) -> Result<(), ConnectorError> {
        self.0.place.prepare(true, !self.0.by.is_empty())
    }

    fn open(&self, context: &WriterContext) -> Result<Box<dyn SinkWriter>, ConnectorError> {
        let is_new = context.staging.as_ref().is_none_or(|staging| !staging.goes_on);
        self.0.place.prepare(is_new, !self.0.by.is_empty())?;
        Ok(Box::new(DirectoryWriter::new(Arc::clone(&self.0), context)))
    }
}

/// A file that counts its bytes.
struct Counted {
    file: Box<dyn Output>,
    bytes: Arc<AtomicU64>,
}

impl Write for Counted {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.file.write(bytes)?;
        self.bytes.fetch_add(written as u64, Ordering::Relaxed);
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl Output for Counted {
    fn commit(self: Box<Self>) -> Result<(), ConnectorError> {
        self.file.commit()
    }
}

/// A part with all of its rows, as others find it.
#[derive(Debug, Clone)]
pub(super) struct WrittenPart {
    /// Its names; it has the visible one alone in a job that stages nothing.
    pub(super) part: Part,
    pub(super) bytes: u64,
    pub(super) rows: u64,
    /// What is known of its columns, by their names.
    pub(super) columns: Vec<(String, ColumnSummary)>,
}

/// Parts that belong to a checkpoint, with the rest of the work until they are durable, if there is
/// any.
pub(super) type StagedParts = (Vec<WrittenPart>, Option<Arc<dyn UnsyncedOutput>>);

/// A part that has all of its rows.
struct WholePart {
    /// The directory below.
    directory: String,
    /// Its number among those of the worker.
    number: u64,
    bytes: u64,
    rows: u64,
    summary: PartSummary,
    /// The part, if it is not durable.
    unsynced: Option<Box<dyn Output>>,
}

/// A part that takes rows.
struct OpenPart {
    writer: Box<dyn FormatWriter>,
    /// Its number among those of the worker.
    number: u64,
    bytes: Arc<AtomicU64>,
    rows: u64,
    summary: PartSummary,
    since: Instant,
}

impl OpenPart {
    fn is_due(&self, roll: Roll) -> bool {
        let bytes = || self.bytes.load(Ordering::Relaxed) + self.writer.unwritten();
        roll.after.is_some_and(|after| self.since.elapsed() >= after)
            || roll.bytes.is_some_and(|max| bytes() >= max)
    }
}

/// Writes the parts of a worker.
pub(super) struct DirectoryWriter {
    layout: Arc<Layout>,
    worker: u32,
    /// A number that no other writer has.
    unique: u64,
    staging: Option<StagingContext>,
    /// By the directory below.
    open: BTreeMap<String, OpenPart>,
    /// Parts that were begun.
    begun: u64,
    /// Parts that are to be staged or, where names are unique, told.
    whole: Vec<WholePart>,
}

impl DirectoryWriter {
    /// A writer without parts.
    pub(super) fn new(layout: Arc<Layout>, context: &WriterContext) -> Self {
        Self {
            layout,
            worker: context.worker,
            unique: RandomState::new().build_hasher().finish(),
            staging: context.staging.clone(),
            open: BTreeMap::new(),
            begun: 0,
            whole: Vec::new(),
        }
    }

    /// The name of a part from when it is whole.
    fn name(&self, directory: &str, number: u64) -> String {
        match &self.staging {
            Some(_) => self.hidden(number),
            None => format!("{directory}{}", self.visible(0, number, number)),
        }
    }

    /// The hidden name of a part. All lie in one directory.
    fn hidden(&self, number: u64) -> String {
        let run = self.staging.as_ref().map_or(RunId { job: 0, generation: 0 }, |it| it.run);
        let name = staged::name(&self.layout.hidden, run, &format!("-{}-{number}", self.worker));
        self.layout.place.hidden(name)
    }

    /// The name of the part of a checkpoint that is the worker's `nth` of that; its `number` is
    /// that among all of the worker.
    fn visible(&self, checkpoint: u64, nth: u64, number: u64) -> String {
        let (worker, extension) = (self.worker, self.layout.encoder.extension());
        if self.layout.names == PartNames::Unique {
            return format!("{VISIBLE}{number:05}-{:016x}-{worker:04}.{extension}", self.unique);
        }
        let nth = if nth == 0 { String::new() } else { format!("-{nth:06}") };
        format!("{VISIBLE}{checkpoint:010}-{worker:04}{nth}.{extension}")
    }

    fn begin(&mut self, directory: &str) -> Result<OpenPart, ConnectorError> {
        let number = self.begun;
        let name = self.name(directory, number);
        let path = self.layout.directory.join(&name);
        let bytes = Arc::<AtomicU64>::default();
        let file = self.layout.place.create(&name, self.staging.is_some())?;
        let file = Counted { file, bytes: Arc::clone(&bytes) };
        let writer = self.layout.encoder.begin(&path, Box::new(file))?;
        self.begun += 1;
        let summary = PartSummary::new(&self.layout.summarized);
        Ok(OpenPart { writer, number, bytes, rows: 0, summary, since: Instant::now() })
    }

    /// Ends the parts that are due. In a job that stages, no more than `unsynced_max` may be not
    /// durable then: this thread waits for the rest.
    fn end(
        &mut self,
        unsynced_max: usize,
        is_due: impl Fn(&OpenPart) -> bool,
    ) -> Result<(), ConnectorError> {
        let mut unsynced = self.whole.iter().filter(|part| part.unsynced.is_some()).count();
        for (directory, part) in self.open.extract_if(.., |_, part| is_due(part)) {
            let OpenPart { writer, number, bytes, rows, summary, .. } = part;
            let mut whole =
                WholePart { directory, number, bytes: 0, rows, summary, unsynced: None };
            if self.staging.is_some() && unsynced < unsynced_max {
                whole.unsynced = Some(writer.finish()?);
                unsynced += 1;
            } else {
                writer.commit()?;
            }
            // All of them are written.
            whole.bytes = bytes.load(Ordering::Relaxed);
            if self.staging.is_some() || self.layout.names == PartNames::Unique {
                self.whole.push(whole);
            }
        }
        Ok(())
    }

    /// Ends all parts, and gives those of the checkpoint, with the rest of the work until they are
    /// durable.
    ///
    /// # Errors
    /// When they cannot be written.
    pub(super) fn stage_parts(&mut self, checkpoint: u64) -> Result<StagedParts, ConnectorError> {
        self.end(usize::MAX, |_| true)?;
        let mut of_directories = BTreeMap::<String, u64>::new();
        let mut parts = Vec::with_capacity(self.whole.len());
        let mut outputs = Vec::with_capacity(self.whole.len());
        for whole in std::mem::take(&mut self.whole) {
            let WholePart { directory, number, bytes, rows, summary, unsynced } = whole;
            let nth = of_directories.entry(directory.clone()).or_default();
            let visible = format!("{directory}{}", self.visible(checkpoint, *nth, number));
            let part = Part { hidden: self.hidden(number), visible };
            let columns = self.layout.named(summary);
            parts.push(WrittenPart { part, bytes, rows, columns });
            *nth += 1;
            outputs.extend(unsynced);
        }
        let unsynced = (!parts.is_empty()).then(|| self.layout.place.unsynced(outputs));
        Ok((parts, unsynced))
    }

    /// Ends all parts, which have their names then, in a job that stages nothing.
    ///
    /// # Errors
    /// When they cannot be written.
    pub(super) fn commit_parts(mut self) -> Result<Vec<WrittenPart>, ConnectorError> {
        self.end(0, |_| true)?;
        let whole = std::mem::take(&mut self.whole).into_iter();
        let written = whole.map(|WholePart { directory, number, bytes, rows, summary, .. }| {
            let visible = self.name(&directory, number);
            let part = Part { hidden: String::new(), visible };
            WrittenPart { part, bytes, rows, columns: self.layout.named(summary) }
        });
        Ok(written.collect())
    }

    /// Ends parts whose time is over.
    fn roll(&mut self) -> Result<(), ConnectorError> {
        let roll = self.layout.roll;
        self.end(self.layout.place.unsynced_max(), |part| part.is_due(roll))
    }
}

impl SinkWriter for DirectoryWriter {
    fn write(&mut self, batch: &RecordBatch) -> Result<(), ConnectorError> {
        for (directory, rows) in self.layout.split(batch)? {
            if !self.open.contains_key(&directory) {
                if directory.split('/').any(|name| name.len() > NAME_BYTES_MAX) {
                    let message = format!("a value is too long for a name: '{directory}'");
                    return Err(refuse(PARTITION_BY.key, message, None));
                }
                if self.open.len() == OPEN_PARTS_MAX {
                    let message = format!("more than {OPEN_PARTS_MAX} directories at a time");
                    let hint = "choose columns with fewer values, or a coarser one".to_owned();
                    return Err(refuse(PARTITION_BY.key, message, Some(hint)));
                }
                let part = self.begin(&directory)?;
                self.open.insert(directory.clone(), part);
            }
            if let Some(part) = self.open.get_mut(&directory) {
                part.writer.write(&rows)?;
                part.rows += rows.num_rows() as u64;
                part.summary.add(&rows);
            }
        }
        self.roll()
    }

    fn flush(&mut self) -> Result<(), ConnectorError> {
        self.roll()
    }

    fn stage(&mut self, checkpoint: u64, _: bool) -> Result<StagedOutput, ConnectorError> {
        let (parts, unsynced) = self.stage_parts(checkpoint)?;
        let parts = parts.into_iter().map(|written| written.part).collect();
        Ok(StagedOutput { staged: Staged::Parts(parts).encode(), unsynced })
    }

    fn commit(mut self: Box<Self>) -> Result<(), ConnectorError> {
        self.end(0, |_| true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_directories_are_read_as_what_they_were() {
        assert_eq!(encoded("DE"), "DE");
        assert_eq!(encoded("a/b=c%"), "a%2Fb%3Dc%25");
        assert_eq!(encoded("NULL"), "%4EULL");
        assert_eq!(encoded(".."), "..");
    }
}
