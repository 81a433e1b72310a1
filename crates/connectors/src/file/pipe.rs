//! A pipe as a table: one that has a name (`mkfifo`), or the `/dev/fd/N` of a shell's `<(…)`.
//!
//! ```text
//! writer ─▶ pipe ─▶ task of the thread `millstream-io` ─▶ byte queue ─▶ decoder of worker 0
//! ```
//!
//! Its bytes come once and at the pace of the writer. So it is one split that cannot be replayed,
//! nothing of it is read before the query runs, and a worker never waits for it. The split ends
//! when the last writer has closed the pipe; where none has opened it yet, the query waits for one,
//! and ends like any other when it is interrupted.
//!
//! Invariant: a pipe is read by one scan of a session, as long as the scan's job is there: two
//! scans would each get some of the bytes, or one of them none.

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::Waker;

use arrow::datatypes::SchemaRef;
use bytes::Bytes;
use dataflow::connector::TableDef;
use dataflow::error::ConnectorError;
use dataflow::source::{Next, Position, ReaderContext, Source, Split, SplitReader};
use tokio::net::unix::pipe::{OpenOptions, Receiver};

use super::paths::{self, io_error};
use crate::format::{ByteInput, Compression, Format, Kind, RecordDecoder, Refuser};
use crate::format::{TargetColumns, input::read_error};
use crate::options::{OptionReader, refuse};
use crate::remote::{ByteQueueReader, ByteQueueSender, Io, PIECE_BYTES, Task, byte_queue};

/// The pipes that jobs of a session read, by device and inode.
#[derive(Debug, Clone, Default)]
pub(super) struct PipesInUse(Arc<Mutex<BTreeSet<(u64, u64)>>>);

/// The names of the descriptors of a process, which differ from process to process.
const DESCRIPTORS: [&str; 3] = ["/dev/fd/", "/dev/stdin", "/proc/self/fd/"];

/// Whether a path names a pipe. The descriptors of the process that the user started may be others,
/// or none, in the processes of other nodes: what is no file there is taken for the same pipe.
pub(super) fn is_pipe(path: &str) -> bool {
    match fs::metadata(path) {
        Ok(metadata) if metadata.file_type().is_fifo() => true,
        Ok(metadata) if metadata.is_file() || metadata.is_dir() => false,
        _ => DESCRIPTORS.iter().any(|names| path.starts_with(names)),
    }
}

/// The error that something needs to look at the rows of a pipe before the query runs.
pub(super) fn not_inferred(path: &str) -> ConnectorError {
    ConnectorError::Io {
        place: path.to_owned(),
        message: "is a pipe: to infer its columns would take rows from the query".into(),
        hint: Some(format!(
            "declare them: CREATE TABLE t (name TYPE, …) WITH ('connector' = 'file', \
             'path' = '{path}', 'format' = 'csv')"
        )),
    }
}

/// The rows of a pipe.
pub(super) struct PipeSource {
    path: PathBuf,
    format: Format,
    packed: Compression,
    target: Arc<TargetColumns>,
    pipes: PipesInUse,
    /// From the first reader on, until the job is dropped.
    claim: OnceLock<Claim>,
}

impl PipeSource {
    pub(super) fn new(
        path: &str,
        table: &TableDef,
        projection: &[usize],
        pipes: PipesInUse,
    ) -> Result<Self, ConnectorError> {
        let options = OptionReader(&table.options);
        let kind = match Kind::given(options)? {
            Some(kind) => kind,
            None => paths::common_format(&[path.into()])?,
        };
        let packed = Compression::given(options)?.unwrap_or_else(|| Compression::of(path));
        let format = Format::new(kind, options, path)?.ok_or_else(|| {
            refuse(
                "format",
                format!("{path} is a pipe, and Parquet is not read in order"),
                Some("write its bytes to a file first, or send CSV, JSON or Arrow".into()),
            )
        })?;
        let target = Arc::new(TargetColumns::new(table, projection)?);
        format.check(&target.declared)?;
        Ok(Self { path: path.into(), format, packed, target, pipes, claim: OnceLock::new() })
    }

    fn place(&self) -> String {
        self.path.display().to_string()
    }
}

impl Source for PipeSource {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.target.projected)
    }

    fn bounded(&self) -> bool {
        true
    }

    fn repeats(&self) -> bool {
        false
    }

    fn comes_once(&self) -> bool {
        true
    }

    fn splits(
        &self,
        _workers: u32,
        _time_column: Option<usize>,
    ) -> Result<Vec<Split>, ConnectorError> {
        Ok(vec![Split { name: self.place(), ..Split::default() }])
    }

    fn open(
        &self,
        split: &Split,
        from: Option<&Position>,
        context: &ReaderContext,
    ) -> Result<Box<dyn SplitReader>, ConnectorError> {
        split.begins(from)?;
        if self.claim.get().is_none() {
            let claim = self.pipes.claim(&self.path)?;
            self.claim.get_or_init(|| claim);
        }
        let (bytes, task) = receive(self.path.clone(), &context.waker)?;
        let input = ByteInput::new(self.packed.unpack(Box::new(bytes))?, self.place());
        let decoder = self.format.decoder(input, Refuser::new(&self.target, context));
        let split = split.name.clone();
        Ok(Box::new(PipeReader { split, decoder, _task: task }))
    }
}

struct PipeReader {
    split: String,
    decoder: Box<dyn RecordDecoder>,
    _task: Task,
}

impl SplitReader for PipeReader {
    fn next(&mut self, rows_max: usize) -> Result<Next, ConnectorError> {
        self.decoder.decode(rows_max).map(Next::from)
    }

    fn position(&self) -> Position {
        Position::none(&self.split)
    }
}

/// The right to read a pipe, until it is dropped.
#[derive(Debug)]
struct Claim {
    pipe: (u64, u64),
    among: PipesInUse,
}

impl PipesInUse {
    /// Claims a pipe for a scan.
    ///
    /// # Errors
    /// When the pipe is gone, or another scan reads it.
    fn claim(&self, path: &Path) -> Result<Claim, ConnectorError> {
        let metadata = fs::metadata(path).map_err(|error| io_error(path, &error))?;
        let pipe = (metadata.dev(), metadata.ino());
        if self.lock().insert(pipe) {
            return Ok(Claim { pipe, among: self.clone() });
        }
        Err(ConnectorError::Io {
            place: path.display().to_string(),
            message: "is a pipe that another scan reads, and can be read once".into(),
            hint: Some("write its rows to a file first, and read that as often as you like".into()),
        })
    }

    fn lock(&self) -> MutexGuard<'_, BTreeSet<(u64, u64)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.among.lock().remove(&self.pipe);
    }
}

/// Starts the task that reads.
fn receive(path: PathBuf, waker: &Waker) -> Result<(ByteQueueReader, Task), ConnectorError> {
    let (sender, bytes) = byte_queue(waker);
    let task = Io::shared()?.spawn(async move {
        if let Err(error) = pass_on(&path, &sender).await {
            sender.fail(read_error(&path.display().to_string(), error)).await;
        }
    });
    Ok((bytes, task))
}

/// Passes on the bytes of a pipe until its last writer has closed it, or nobody reads them.
async fn pass_on(path: &Path, sender: &ByteQueueSender) -> io::Result<()> {
    let pipe: Receiver = OpenOptions::new().open_receiver(path)?;
    let mut buffer = vec![0; PIECE_BYTES];
    loop {
        // A pipe that no writer has opened yet is not readable, and not at its end either.
        pipe.readable().await?;
        match pipe.try_read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(bytes) if !sender.send(Bytes::copy_from_slice(&buffer[..bytes])).await => {
                return Ok(());
            }
            Ok(_) => {}
            Err(error)
                if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
            Err(error) => return Err(error),
        }
    }
}
