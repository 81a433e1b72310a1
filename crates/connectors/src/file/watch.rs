//! A directory or glob that is watched for new files: `'watch' = '1s'`.
//!
//! ```text
//! every interval: list ─▶ settled? ─▶ whose? ─▶ queue, oldest first ─▶ all know? ─▶ file by file
//! ```
//!
//! There are as many flows as workers, and a file belongs to the one that a hash of its path names:
//! the nodes need not talk about it. A file is known by path, time of change and size; a file that
//! is replaced is another one and is read as a whole. It is read once it has stayed as it is for
//! the settle time, or at once where that is nothing, for writers that rename a finished file into
//! place. Hidden names (`.name`, `_name`) are passed over, also in a glob: such writers use them.
//!
//! **A file that was found holds the watermark back until it is read.** Flows of one process list
//! together, so that all know of a file as soon as one does: a flow that has one to read, or that
//! waits until one has settled, [owes](SplitReader::owes) rows and is not idle. No flow gives rows
//! until all that owe some have been asked once more, since by then the job knows that they are not
//! idle ([`listing`]). Flows of other processes see a file within an interval; where there are
//! such, none is read before it has been known for that long.
//!
//! **A position** of a flow has the files that it has read and that are still there, by a number
//! of eight bytes each, and the place in the file that it reads. A job that goes on is cut into as
//! many flows as it had, so that each file stays with its flow.
//!
//! Absent on purpose: files that grow while they are read, and notices of the operating system,
//! which shared file systems do not give.

use std::collections::HashSet;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arrow::datatypes::SchemaRef;
use dataflow::connector::TableDef;
use dataflow::error::ConnectorError;
use dataflow::position::refused;
use dataflow::source::{Next, Position, ReaderContext, Source, Split, SplitReader};

use self::listing::{ListTimes, Listing, Step, number_of};
use self::progress::{Begun, WatchProgress};
use super::PATH_HINT;
use super::blob::FileBlob;
use super::{delta, paths};
use crate::format::{Kind, Refuser, TargetColumns};
use crate::options::{OptionReader, refuse};
use crate::stored;

mod listing;
mod progress;

pub(crate) use progress::watched;

/// How soon a flow that waits for others asks again.
const LOOK_NS: u64 = 1_000_000;

/// The shortest interval: a directory is listed at most a hundred times a second.
const INTERVAL_NS_MIN: u64 = 10_000_000;

/// A watched directory or glob.
pub(super) struct WatchSource {
    table: TableDef,
    path: String,
    kind: Kind,
    interval_ns: u64,
    settle_ns: u64,
    target: Arc<TargetColumns>,
    /// The listing that the flows of this process share.
    listing: Mutex<Listing>,
}

impl WatchSource {
    /// `None` where the table is not watched.
    pub(super) fn new(
        table: &TableDef,
        projection: &[usize],
    ) -> Result<Option<Self>, ConnectorError> {
        let options = OptionReader(&table.options);
        let Some(interval_ns) = options.duration_ns("watch")? else {
            return match options.text("watch.settle") {
                None => Ok(None),
                Some(_) => Err(refuse(
                    "watch.settle",
                    "is for directories that are watched",
                    Some("write 'watch' = '1s' too".into()),
                )),
            };
        };
        if interval_ns < INTERVAL_NS_MIN {
            let hint = Some("write 'watch' = '1s'".to_owned());
            return Err(refuse("watch", "is an interval of at least 10ms", hint));
        }
        let path = options.required("path", PATH_HINT)?.to_owned();
        delta::refuse_table(&path, "watch", "watched", None)?;
        let kind = match Kind::given(options)?.or_else(|| Kind::of(&path)) {
            Some(kind) => kind,
            None => paths::expand(&path, None).map(|(_, kind)| kind).map_err(|error| {
                let hint = "write 'format' = 'csv', 'json', 'parquet' or 'arrow'";
                refuse("format", format!("no file tells it yet: {error}"), Some(hint.into()))
            })?,
        };
        // Looked at once, so that a directory that does not exist is reported before anything runs.
        let files = paths::list(&path, Some(kind))?;
        let mut target = Arc::new(TargetColumns::new(table, projection)?);
        if let Some(first) = files.first() {
            stored::source(vec![FileBlob::open(first)?], kind, options, Arc::clone(&target))?;
            target = target.of_several();
        }
        Ok(Some(Self {
            table: table.clone(),
            path,
            kind,
            interval_ns,
            settle_ns: options.duration_ns("watch.settle")?.unwrap_or(interval_ns),
            target,
            listing: Mutex::default(),
        }))
    }

    fn listing(&self) -> MutexGuard<'_, Listing> {
        self.listing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn file(&self, path: &Path) -> Result<Arc<dyn Source>, ConnectorError> {
        let options = OptionReader(&self.table.options);
        let blob = FileBlob::open(path)?;
        stored::source(vec![blob], self.kind, options, Arc::clone(&self.target))
    }

    /// Opens a file; `number` is that of the version that is meant.
    fn opened(&self, path: &Path, number: u64) -> Result<OpenFile, ConnectorError> {
        let source = self.file(path)?;
        let splits = source.splits_in_order(1)?;
        Ok(OpenFile { path: path.to_path_buf(), number, source, splits, next: 0, reader: None })
    }

    /// Opens the file that the run before was reading, where it had come to.
    ///
    /// # Errors
    /// When it is gone or another one.
    fn reopened(
        &self,
        Begun { path, number, split, position }: &Begun,
        context: &ReaderContext,
    ) -> Result<OpenFile, ConnectorError> {
        let place = path.display().to_string();
        match number_of(path) {
            None => return Err(refused(&place, "it was read in part, and is gone".into())),
            Some(now) if now != *number => {
                return Err(refused(&place, "it was read in part, and was replaced since".into()));
            }
            Some(_) => {}
        }
        let mut file = self.opened(path, *number)?;
        file.next = *split;
        if let Some(position) = position {
            let Some(split) = file.splits.get(file.next) else {
                return Err(refused(&place, "it has not as many parts as it had".into()));
            };
            file.reader = Some(file.source.open(split, Some(position), context)?);
            file.next += 1;
        }
        Ok(file)
    }
}

/// A source that is watched; its flows share what is known of it.
pub(super) struct Watched(pub(super) Arc<WatchSource>);

impl Source for Watched {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.0.target.projected)
    }

    fn bounded(&self) -> bool {
        false
    }

    fn replays(&self) -> bool {
        true
    }

    fn splits(
        &self,
        workers: u32,
        _time_column: Option<usize>,
    ) -> Result<Vec<Split>, ConnectorError> {
        let split = |number: u32| Split {
            number: number as usize,
            of: workers,
            name: format!("{} part {number} of {workers}", self.0.path),
            ..Split::default()
        };
        Ok((0..workers).map(split).collect())
    }

    fn open(
        &self,
        split: &Split,
        from: Option<&Position>,
        context: &ReaderContext,
    ) -> Result<Box<dyn SplitReader>, ConnectorError> {
        let progress = from.map(|from| WatchProgress::of(from, &split.name)).transpose()?;
        let WatchProgress { mut done, begun } = progress.unwrap_or_default();
        let reading = begun.map(|begun| self.0.reopened(&begun, context)).transpose()?;
        done.extend(reading.iter().map(|reading| reading.number));
        let flows = u64::from(split.of);
        Ok(Box::new(WatchReader {
            seat: self.0.listing().join(split.number as u64, flows, done),
            split: split.name.clone(),
            source: Arc::clone(&self.0),
            refuser: Refuser::new(&self.0.target, context),
            context: context.clone(),
            reading,
        }))
    }
}

/// The files of one flow.
struct WatchReader {
    split: String,
    source: Arc<WatchSource>,
    /// Its place on the listing.
    seat: u64,
    refuser: Refuser,
    context: ReaderContext,
    reading: Option<OpenFile>,
}

/// A file whose splits are read one after the other.
struct OpenFile {
    path: PathBuf,
    /// The number of its version.
    number: u64,
    source: Arc<dyn Source>,
    splits: Vec<Split>,
    /// The first that has not been opened.
    next: usize,
    reader: Option<Box<dyn SplitReader>>,
}

impl OpenFile {
    fn next(
        &mut self,
        rows_max: usize,
        context: &ReaderContext,
    ) -> Result<Option<Next>, ConnectorError> {
        loop {
            if let Some(reader) = &mut self.reader {
                match reader.next(rows_max)? {
                    Next::End => self.reader = None,
                    next => return Ok(Some(next)),
                }
            }
            let Some(split) = self.splits.get(self.next) else { return Ok(None) };
            self.reader = Some(self.source.open(split, None, context)?);
            self.next += 1;
        }
    }

    /// Where it was read to.
    fn begun(&self) -> Begun {
        let position = self.reader.as_ref().map(|reader| reader.position());
        let split = self.next - usize::from(position.is_some());
        Begun { path: self.path.clone(), number: self.number, split, position }
    }
}

impl WatchReader {
    /// The next action.
    fn step(&self) -> Result<Step, ConnectorError> {
        let (now_ns, source) = (self.context.clock.now_ns(), &self.source);
        let mut listing = source.listing();
        if listing.is_due(now_ns) {
            let paths = paths::list(&source.path, Some(source.kind))?;
            let (interval_ns, settle_ns) = (source.interval_ns, source.settle_ns);
            listing.list(paths, now_ns, ListTimes { interval_ns, settle_ns });
        }
        Ok(listing.step(self.seat, self.reading.is_some()))
    }

    fn open(&self, path: &Path) -> Result<OpenFile, ConnectorError> {
        // One that is gone is an error of opening it.
        let number = number_of(path).unwrap_or(0);
        self.source.opened(path, number)
    }

    /// A file that cannot be read, or not to its end, is like a bad row: the others are read.
    fn refuse_file(&self, path: &Path, error: ConnectorError) -> Result<(), ConnectorError> {
        match error {
            ConnectorError::Io { place, message, .. } => self.refuser.refuse(place, message, b""),
            other => self.refuser.refuse(path.display().to_string(), other.to_string(), b""),
        }
    }
}

impl SplitReader for WatchReader {
    fn next(&mut self, rows_max: usize) -> Result<Next, ConnectorError> {
        loop {
            let path = match self.step()? {
                Step::List { until_ns } => return Ok(Next::Wait { until_ns }),
                Step::Tell => return Ok(Next::Wait { until_ns: self.context.clock.now_ns() }),
                Step::Look => {
                    let until_ns = self.context.clock.now_ns() + LOOK_NS;
                    return Ok(Next::Wait { until_ns });
                }
                Step::GoOn => None,
                Step::Read(path) => Some(path),
            };
            if let Some(path) = path {
                match self.open(&path) {
                    Ok(file) => self.reading = Some(file),
                    Err(_) if is_gone(&path) => {
                        tracing::warn!(file = %path.display(), "gone before it was read");
                    }
                    Err(error) => self.refuse_file(&path, error)?,
                }
            }
            if let Some(mut reading) = self.reading.take() {
                match reading.next(rows_max, &self.context) {
                    Ok(Some(next)) => {
                        self.reading = Some(reading);
                        return Ok(next);
                    }
                    Ok(None) => {}
                    Err(error) => self.refuse_file(&reading.path, error)?,
                }
            }
        }
    }

    fn position(&self) -> Position {
        let reading = self.reading.as_ref();
        let begun = self.source.listing().begun(self.seat).into_iter();
        let own = reading.map(|reading| reading.number);
        let done: HashSet<u64> = begun.filter(|number| Some(*number) != own).collect();
        WatchProgress { done, begun: reading.map(OpenFile::begun) }.position(&self.split)
    }

    fn owes(&self) -> bool {
        self.reading.is_some() || self.source.listing().owes(self.seat)
    }
}

impl Drop for WatchReader {
    fn drop(&mut self) {
        self.source.listing().leave(self.seat);
    }
}

fn is_gone(path: &Path) -> bool {
    fs::metadata(path).is_err_and(|error| error.kind() == ErrorKind::NotFound)
}
