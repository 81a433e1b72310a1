//! Rows of a single file that a job has written before it ends: kept beside the file, hidden, where
//! a checkpoint finds them again.
//!
//! ```text
//! out.csv ◀─publish─ .out.csv.<job>-<generation>.staged   an Arrow stream up to a length
//! ```
//!
//! A run copies what the checkpoint names of the run before into a file of its own: that of a run
//! that is taken for dead may still grow.

use std::fs::{self, File, OpenOptions};
use std::io::{BufReader, BufWriter, ErrorKind, Read, Seek, Take};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use arrow::ipc::reader::StreamReader;
use arrow::ipc::writer::StreamWriter;
use arrow::record_batch::RecordBatch;
use dataflow::error::ConnectorError;
use dataflow::sink::{RunId, SinkWriter, StagedOutput, StagingContext};

use super::encoder::{arrow_error, as_schema, flat};
use super::paths::io_error;
use super::staged::{self, Staged};
use super::unsynced::UnsyncedSpool;

/// Bytes of rows gathered before they are written.
const BUFFER_BYTES: usize = 1 << 20;

/// The file whose rows are kept, and its columns.
#[derive(Clone, Copy)]
pub(super) struct SpoolPlace<'a> {
    pub(super) path: &'a Path,
    pub(super) schema: &'a SchemaRef,
}

/// Rows that a checkpoint names.
pub(super) struct SpooledRows {
    path: PathBuf,
    /// The columns of the file, which may be dictionaries.
    schema: SchemaRef,
    rows: StreamReader<BufReader<Take<File>>>,
}

impl SpooledRows {
    /// Gives all of them, in their order.
    pub(super) fn each(
        mut self,
        mut take: impl FnMut(&RecordBatch) -> Result<(), ConnectorError>,
    ) -> Result<(), ConnectorError> {
        self.rows.try_for_each(|batch| {
            let batch = batch.and_then(|batch| as_schema(&batch, &self.schema));
            take(&batch.map_err(|error| arrow_error(&self.path, error))?)
        })
    }
}

impl SpoolPlace<'_> {
    fn directory(&self) -> &Path {
        match self.path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        }
    }

    fn prefix(&self) -> String {
        format!(".{}.", self.path.file_name().unwrap_or_default().to_string_lossy())
    }

    fn hidden(&self, name: &str) -> PathBuf {
        self.directory().join(name)
    }

    /// Whether rows that were staged are not there any more: they are removed when they were
    /// published.
    pub(super) fn is_gone(&self, staged: &[u8]) -> Result<bool, ConnectorError> {
        Ok(match Staged::decode(staged, self.path)? {
            Staged::Length { name, .. } => !self.hidden(&name).exists(),
            Staged::Parts(_) | Staged::Rows(_) => false,
        })
    }

    /// The rows that were staged.
    pub(super) fn read(&self, staged: &[u8]) -> Result<SpooledRows, ConnectorError> {
        let Staged::Length { name, bytes } = Staged::decode(staged, self.path)? else {
            let error = std::io::Error::from(ErrorKind::InvalidData);
            return Err(staged::gone(self.path, "a directory", &error));
        };
        let path = self.hidden(&name);
        let file = File::open(&path).map_err(|error| staged::gone(self.path, &name, &error))?;
        let has = file.metadata().map_err(|error| io_error(&path, &error))?.len();
        if has < bytes {
            return Err(ConnectorError::Io {
                place: path.display().to_string(),
                message: format!("it has {has} bytes in place of {bytes}"),
                hint: Some("begin anew with --from none".into()),
            });
        }
        let rows = StreamReader::try_new(BufReader::new(file.take(bytes)), None);
        let rows = rows.map_err(|error| arrow_error(&path, error))?;
        Ok(SpooledRows { path, schema: SchemaRef::clone(self.schema), rows })
    }

    /// Removes rows that were published.
    pub(super) fn remove(&self, staged: &[u8]) -> Result<(), ConnectorError> {
        let Staged::Length { name, .. } = Staged::decode(staged, self.path)? else {
            return Ok(());
        };
        let path = self.hidden(&name);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(io_error(&path, &error)),
            _ => Ok(()),
        }
    }

    /// Removes what earlier runs left that no checkpoint names.
    pub(super) fn sweep(&self, run: RunId, kept: &[Vec<u8>]) -> Result<(), ConnectorError> {
        let kept: Result<Vec<_>, _> =
            kept.iter().map(|staged| Staged::decode(staged, self.path)).collect();
        let kept = kept?;
        staged::sweep(self.directory(), &self.prefix(), run, |name| {
            kept.iter().any(|staged| matches!(staged, Staged::Length { name: n, .. } if n == name))
        })
    }
}

/// Writes rows beside their file.
pub(super) struct Spool {
    path: PathBuf,
    name: String,
    schema: SchemaRef,
    writer: StreamWriter<BufWriter<File>>,
}

impl Spool {
    /// Begins with the rows of the checkpoint that a run goes on from.
    pub(super) fn begin(
        place: &SpoolPlace<'_>,
        staging: &StagingContext,
    ) -> Result<Self, ConnectorError> {
        let name = staged::name(&place.prefix(), staging.run, "");
        let path = place.hidden(&name);
        if !place.directory().is_dir() {
            let directory = place.directory().display();
            return Err(ConnectorError::Io {
                place: place.path.display().to_string(),
                message: format!("there is no directory '{directory}'"),
                hint: Some(format!("make it first: mkdir -p '{directory}'")),
            });
        }
        let mut options = OpenOptions::new();
        let file = options.write(true).create_new(true).mode(0o600).open(&path);
        let file = file.map_err(|error| io_error(place.path, &error))?;
        // A checkpoint may name it from now on.
        staged::sync(place.directory())?;
        let schema = SchemaRef::new(flat(place.schema));
        let to = BufWriter::with_capacity(BUFFER_BYTES, file);
        let writer = StreamWriter::try_new(to, &schema);
        let writer = writer.map_err(|error| arrow_error(place.path, error))?;
        let mut spool = Self { path: place.path.to_owned(), name, schema, writer };
        for before in &staging.before {
            place.read(before)?.each(|batch| spool.write(batch))?;
        }
        Ok(spool)
    }

    /// Writes what was gathered. Gives the bytes of the file, and the file.
    fn written(&mut self) -> std::io::Result<(u64, File)> {
        let to = self.writer.get_mut();
        std::io::Write::flush(to)?;
        Ok((to.get_mut().stream_position()?, to.get_ref().try_clone()?))
    }
}

impl SinkWriter for Spool {
    fn write(&mut self, batch: &RecordBatch) -> Result<(), ConnectorError> {
        let written = as_schema(batch, &self.schema).and_then(|batch| self.writer.write(&batch));
        written.map_err(|error| arrow_error(&self.path, error))
    }

    fn flush(&mut self) -> Result<(), ConnectorError> {
        Ok(())
    }

    fn stage(&mut self, _: u64, last: bool) -> Result<StagedOutput, ConnectorError> {
        if last {
            self.writer.finish().map_err(|error| arrow_error(&self.path, error))?;
        }
        let (bytes, file) = self.written().map_err(|error| io_error(&self.path, &error))?;
        let staged = Staged::Length { name: self.name.clone(), bytes }.encode();
        let unsynced = UnsyncedSpool { path: self.path.clone(), file };
        Ok(StagedOutput { staged, unsynced: Some(Arc::new(unsynced)) })
    }

    /// A writer that stages is dropped in place of a commit.
    fn commit(self: Box<Self>) -> Result<(), ConnectorError> {
        Err(staged::not_committed(&self.path))
    }
}
