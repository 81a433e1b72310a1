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
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use arrow::array::UInt32Array;
use arrow::compute::take_record_batch;
use arrow::record_batch::RecordBatch;
use arrow::util::display::{ArrayFormatter, FormatOptions};
use dataflow::calendar::check_times;
use dataflow::connector::{OptionSpec, TableDef};
use dataflow::error::ConnectorError;
use dataflow::sink::{
    ExclusiveTarget, Placement, Publishing, RunId, Sink, SinkVisibility, SinkWriter, StagedOutput,
    StagingContext, WriterContext,
};

use super::PATH_HINT;
use super::encoder::{Encoder, FormatWriter, Output};
use super::part_place::{PartPlace, VISIBLE};
use super::staged::{self, Part, Staged};
use crate::options::{OptionReader, nearest, refuse};

/// Parts that a worker has open at most.
const OPEN_PARTS_MAX: usize = 500;
/// Bytes of the name of a directory at most, as file systems have it.
const NAME_BYTES_MAX: usize = 255;
/// The beginning of the hidden names of parts.
const HIDDEN: &str = ".part-";
/// The name of a directory of rows whose column is NULL.
const NULL: &str = "__HIVE_DEFAULT_PARTITION__";

/// When a part ends before its time.
pub(super) const ROLL: OptionSpec = OptionSpec {
    key: "roll",
    values: "duration | bytes | both",
    default: "at the end, and with each checkpoint",
    doc: "When a sink that writes a directory begins another part: '1 min', '128 MiB', or \
          '1 min, 128 MiB' for whatever comes first.",
};

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

/// When a part ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Roll {
    after: Option<Duration>,
    bytes: Option<u64>,
}

impl Roll {
    fn given(options: OptionReader<'_>) -> Result<Self, ConnectorError> {
        let mut roll = Self { after: None, bytes: None };
        let Some(text) = options.text(ROLL.key) else { return Ok(roll) };
        for one in text.split(',') {
            let only = [(ROLL.key.to_owned(), one.to_owned())].into_iter().collect();
            let given = match bytes_of(one) {
                Some(bytes) => roll.bytes.replace(bytes).is_some(),
                None => {
                    let ns =
                        OptionReader(&only).duration_ns(ROLL.key).map_err(|_| not_a_roll(text))?;
                    let after = ns.filter(|ns| *ns > 0).ok_or_else(|| not_a_roll(text))?;
                    roll.after.replace(Duration::from_nanos(after)).is_some()
                }
            };
            if given {
                return Err(not_a_roll(text));
            }
        }
        Ok(roll)
    }
}

fn not_a_roll(text: &str) -> ConnectorError {
    let message = format!("'{text}' is neither a duration nor a number of bytes, nor one of each");
    refuse(ROLL.key, message, Some("write 'roll' = '1 min, 128 MiB'".into()))
}

/// The number of bytes that a text with a unit says; `None` if it has none.
fn bytes_of(text: &str) -> Option<u64> {
    let text = text.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '_').unwrap_or(text.len());
    let unit: u64 = match text[digits..].trim().to_ascii_lowercase().as_str() {
        "b" | "bytes" => 1,
        "kib" => 1 << 10,
        "mib" => 1 << 20,
        "gib" => 1 << 30,
        "kb" => 1_000,
        "mb" => 1_000_000,
        "gb" => 1_000_000_000,
        _ => return None,
    };
    let number = text[..digits].replace('_', "").parse::<u64>().ok()?;
    number.checked_mul(unit).filter(|bytes| *bytes > 0)
}

/// A directory to be written.
pub(super) struct DirectorySink(Arc<Layout>);

/// The files of a directory.
struct Layout {
    /// The path, for messages.
    directory: PathBuf,
    place: PartPlace,
    encoder: Encoder,
    roll: Roll,
    /// The columns whose values name directories, and the others.
    by: Vec<usize>,
    rest: Vec<usize>,
}

impl DirectorySink {
    pub(super) fn new(table: &TableDef) -> Result<Self, ConnectorError> {
        let options = OptionReader(&table.options);
        let path = options.required("path", PATH_HINT)?;
        let place = PartPlace::of(path, options)?;
        let given = Roll::given(options)?;
        let bytes = given.bytes.into_iter().chain(place.part_bytes_max()).min();
        let roll = Roll { bytes, ..given };
        let by = columns(table, options)?;
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
        let encoder = Encoder::new(&of_files, Path::new(path))?;
        let directory = PathBuf::from(path);
        Ok(Self(Arc::new(Layout { directory, place, encoder, roll, by, rest })))
    }
}

impl Layout {
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
                let value = if values.is_null(row) {
                    NULL.to_owned()
                } else {
                    encoded(&texts.value(row).to_string())
                };
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

/// The columns that the option names.
fn columns(table: &TableDef, options: OptionReader<'_>) -> Result<Vec<usize>, ConnectorError> {
    let Some(text) = options.text(PARTITION_BY.key) else { return Ok(Vec::new()) };
    let mut columns = Vec::new();
    for name in text.split(',').map(str::trim) {
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
        self.0.place.sweep(HIDDEN, run, &names)
    }

    fn check_new(&self) -> Result<(), ConnectorError> {
        self.0.place.prepare(true, !self.0.by.is_empty())
    }

    fn open(&self, context: &WriterContext) -> Result<Box<dyn SinkWriter>, ConnectorError> {
        let is_new = context.staging.as_ref().is_none_or(|staging| !staging.goes_on);
        self.0.place.prepare(is_new, !self.0.by.is_empty())?;
        Ok(Box::new(DirectoryWriter {
            layout: Arc::clone(&self.0),
            worker: context.worker,
            staging: context.staging.clone(),
            open: BTreeMap::new(),
            begun: 0,
            whole: Vec::new(),
        }))
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

/// A part that has all of its rows.
struct WholePart {
    /// The directory below.
    directory: String,
    /// Its number among those of the worker.
    number: u64,
    /// The part, if it is not durable.
    unsynced: Option<Box<dyn Output>>,
}

/// A part that takes rows.
struct OpenPart {
    writer: Box<dyn FormatWriter>,
    /// Its number among those of the worker.
    number: u64,
    bytes: Arc<AtomicU64>,
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
struct DirectoryWriter {
    layout: Arc<Layout>,
    worker: u32,
    staging: Option<StagingContext>,
    /// By the directory below.
    open: BTreeMap<String, OpenPart>,
    /// Parts that were begun.
    begun: u64,
    /// Parts that are to be staged.
    whole: Vec<WholePart>,
}

impl DirectoryWriter {
    /// The name of a part from when it is whole.
    fn name(&self, directory: &str, number: u64) -> String {
        match &self.staging {
            Some(_) => self.hidden(number),
            None => format!("{directory}{}", self.visible(0, number)),
        }
    }

    /// The hidden name of a part. All lie in one directory.
    fn hidden(&self, number: u64) -> String {
        let run = self.staging.as_ref().map_or(RunId { job: 0, generation: 0 }, |it| it.run);
        let name = staged::name(HIDDEN, run, &format!("-{}-{number}", self.worker));
        self.layout.place.hidden(name)
    }

    /// The name of the part of a checkpoint that is the worker's `nth` of that.
    fn visible(&self, checkpoint: u64, nth: u64) -> String {
        let (worker, extension) = (self.worker, self.layout.encoder.extension());
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
        Ok(OpenPart { writer, number, bytes, since: Instant::now() })
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
            let OpenPart { writer, number, .. } = part;
            if self.staging.is_none() {
                writer.commit()?;
                continue;
            }
            let mut whole = WholePart { directory, number, unsynced: None };
            if unsynced < unsynced_max {
                whole.unsynced = Some(writer.finish()?);
                unsynced += 1;
            } else {
                writer.commit()?;
            }
            self.whole.push(whole);
        }
        Ok(())
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
            }
        }
        self.roll()
    }

    fn flush(&mut self) -> Result<(), ConnectorError> {
        self.roll()
    }

    fn stage(&mut self, checkpoint: u64, _: bool) -> Result<StagedOutput, ConnectorError> {
        self.end(usize::MAX, |_| true)?;
        let mut of_directories = BTreeMap::<String, u64>::new();
        let mut parts = Vec::with_capacity(self.whole.len());
        let mut outputs = Vec::with_capacity(self.whole.len());
        for WholePart { directory, number, unsynced } in std::mem::take(&mut self.whole) {
            let nth = of_directories.entry(directory.clone()).or_default();
            let visible = format!("{directory}{}", self.visible(checkpoint, *nth));
            parts.push(Part { hidden: self.hidden(number), visible });
            *nth += 1;
            outputs.extend(unsynced);
        }
        let unsynced = (!parts.is_empty()).then(|| self.layout.place.unsynced(outputs));
        Ok(StagedOutput { staged: Staged::Parts(parts).encode(), unsynced })
    }

    fn commit(mut self: Box<Self>) -> Result<(), ConnectorError> {
        self.end(0, |_| true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn roll(text: &str) -> Result<Roll, ConnectorError> {
        let options = [(ROLL.key.to_owned(), text.to_owned())].into_iter().collect();
        Roll::given(OptionReader(&options))
    }

    #[test]
    fn a_part_rolls_by_time_by_bytes_or_by_both() {
        let min = Some(Duration::from_secs(60));
        assert_eq!(roll("1 min").unwrap(), Roll { after: min, bytes: None });
        assert_eq!(roll("128MiB").unwrap(), Roll { after: None, bytes: Some(128 << 20) });
        assert_eq!(roll("5 kB, 1 min").unwrap(), Roll { after: min, bytes: Some(5_000) });
        for text in ["", "0 s", "0 MiB", "1 min, 2 min", "1 MiB, 2 MiB", "-1 s", "often", "1 s,"] {
            let error = roll(text).unwrap_err().to_string();
            assert!(error.contains("neither a duration"), "{text:?}: {error}");
        }
    }

    #[test]
    fn names_of_directories_are_read_as_what_they_were() {
        assert_eq!(encoded("DE"), "DE");
        assert_eq!(encoded("a/b=c%"), "a%2Fb%3Dc%25");
        assert_eq!(encoded("NULL"), "%4EULL");
        assert_eq!(encoded(".."), "..");
    }
}
