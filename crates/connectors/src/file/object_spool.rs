//! Rows of a single object that a job has written before it ends: kept in objects beside it, where
//! a checkpoint finds them again.
//!
//! ```text
//! a/out.csv ◀─publish─ a/_staged/.out.csv.<job>-<generation>-0.staged    an Arrow stream
//!                      a/_staged/.out.csv.<job>-<generation>-1.staged    …
//! ```
//!
//! Each checkpoint adds one with its rows, and names all: objects never change, so a run goes on
//! with those of the run before. Many small ones are merged into one.

use std::io::{BufReader, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arrow::datatypes::SchemaRef;
use arrow::ipc::reader::StreamReader;
use arrow::ipc::writer::StreamWriter;
use arrow::record_batch::RecordBatch;
use dataflow::error::ConnectorError;
use dataflow::sink::{RunId, SinkWriter, StagedOutput, StagingContext, UnsyncedOutput};

use super::encoder::{arrow_error, as_schema, flat};
use super::paths::io_error;
use super::staged::{self, Staged};
use super::unsynced::UnsyncedParts;
use crate::object::{ObjectDirectory, Upload};
use crate::options::OptionReader;
use crate::stored::{Blob, Tail};

/// Bytes of a request when objects are read again.
const READ_BYTES: usize = 8 << 20;
/// Objects of fewer bytes are small: they are merged when there are [`SMALL_MAX`] of them at the
/// end.
const SMALL_BYTES: u64 = 8 << 20;
/// The number of small objects that are merged.
const SMALL_MAX: usize = 32;

/// An object whose rows are kept, and its columns.
pub(super) struct ObjectSpoolPlace<'a> {
    pub(super) url: &'a Path,
    pub(super) options: OptionReader<'a>,
    pub(super) schema: &'a SchemaRef,
}

impl ObjectSpoolPlace<'_> {
    /// The directory of the object, and the beginning of the names of staged objects.
    fn open(&self) -> Result<(ObjectDirectory, String), ConnectorError> {
        let url = self.url.to_str().unwrap_or_default();
        let (directory, name) = ObjectDirectory::open(url, self.options)?;
        Ok((directory, format!(".{name}.")))
    }

    fn decode(&self, staged: &[u8]) -> Result<Vec<(String, u64)>, ConnectorError> {
        match Staged::decode(staged, self.url)? {
            Staged::Rows(objects) => Ok(objects),
            Staged::Length { .. } | Staged::Parts(_) => Err(ConnectorError::Io {
                place: self.url.display().to_string(),
                message: "the checkpoint has rows of a file".into(),
                hint: Some("begin anew with --from none".into()),
            }),
        }
    }

    /// Whether rows that were staged are not there any more: they are removed when they were
    /// published.
    pub(super) fn is_gone(&self, staged: &[u8]) -> Result<bool, ConnectorError> {
        let (directory, _) = self.open()?;
        match self.decode(staged)?.first() {
            Some((first, _)) => Ok(directory.blob(first)?.is_none()),
            None => Ok(false),
        }
    }

    /// Gives the rows that were staged, in their order.
    pub(super) fn each(
        &self,
        staged: &[u8],
        mut take: impl FnMut(&RecordBatch) -> Result<(), ConnectorError>,
    ) -> Result<(), ConnectorError> {
        let (directory, _) = self.open()?;
        for (name, _) in self.decode(staged)? {
            each_of(&directory, &name, |batch| {
                let batch = as_schema(batch, self.schema);
                take(&batch.map_err(|error| arrow_error(self.url, error))?)
            })?;
        }
        Ok(())
    }

    /// Removes rows that were published. The first goes first: [`is_gone`](Self::is_gone) asks for
    /// it.
    pub(super) fn remove(&self, staged: &[u8]) -> Result<(), ConnectorError> {
        let (directory, _) = self.open()?;
        let objects: Vec<String> = self.decode(staged)?.into_iter().map(|(name, _)| name).collect();
        let (first, rest) = objects.split_at(objects.len().min(1));
        directory.remove(first)?;
        directory.remove(rest)
    }

    /// Removes what earlier runs left that no checkpoint names.
    pub(super) fn sweep(&self, run: RunId, kept: &[Vec<u8>]) -> Result<(), ConnectorError> {
        let (directory, prefix) = self.open()?;
        let mut names = Vec::new();
        for kept in kept {
            names.extend(self.decode(kept)?.into_iter().map(|(name, _)| name));
        }
        staged::sweep_objects(&directory, &prefix, run, &names)
    }
}

/// An object with rows of a checkpoint.
fn staged_blob(directory: &ObjectDirectory, name: &str) -> Result<Arc<dyn Blob>, ConnectorError> {
    directory.blob(name)?.ok_or_else(|| ConnectorError::Io {
        place: directory.place(name),
        message: "rows of the checkpoint were staged in it, and it is gone".into(),
        hint: Some(
            "they are removed when the job has ended and they are published; --from none begins \
             anew"
                .into(),
        ),
    })
}

/// Gives the rows of an object.
fn each_of(
    directory: &ObjectDirectory,
    name: &str,
    mut take: impl FnMut(&RecordBatch) -> Result<(), ConnectorError>,
) -> Result<(), ConnectorError> {
    let (place, blob) = (PathBuf::from(directory.place(name)), staged_blob(directory, name)?);
    let bytes = BufReader::with_capacity(READ_BYTES, Tail::new(blob, 0));
    let mut rows = StreamReader::try_new(bytes, None);
    let rows = rows.as_mut().map_err(|error| {
        let message = error.to_string();
        ConnectorError::Io { place: place.display().to_string(), message, hint: None }
    })?;
    rows.try_for_each(|batch| take(&batch.map_err(|error| arrow_error(&place, error))?))
}

/// An upload that counts its bytes.
struct CountedUpload {
    upload: Upload,
    bytes: Arc<AtomicU64>,
}

impl Write for CountedUpload {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let written = self.upload.write(bytes)?;
        self.bytes.fetch_add(written as u64, Ordering::Relaxed);
        Ok(written)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// An object that takes rows.
struct OpenObject {
    name: String,
    place: PathBuf,
    bytes: Arc<AtomicU64>,
    writer: StreamWriter<BufWriter<CountedUpload>>,
}

impl OpenObject {
    fn begin(
        directory: &ObjectDirectory,
        name: String,
        schema: &SchemaRef,
    ) -> Result<Self, ConnectorError> {
        let (bytes, place) = (Arc::<AtomicU64>::default(), PathBuf::from(directory.place(&name)));
        let upload = CountedUpload { upload: directory.upload(&name)?, bytes: Arc::clone(&bytes) };
        let writer = StreamWriter::try_new(BufWriter::new(upload), schema);
        let writer = writer.map_err(|error| arrow_error(&place, error))?;
        Ok(Self { name, place, bytes, writer })
    }

    fn write(&mut self, batch: &RecordBatch) -> Result<(), ConnectorError> {
        self.writer.write(batch).map_err(|error| arrow_error(&self.place, error))
    }

    /// Writes the rest of it. Gives its name and bytes, and the upload to be committed.
    fn finish(self) -> Result<((String, u64), Upload), ConnectorError> {
        let Self { name, place, bytes, writer } = self;
        let buffered = writer.into_inner().map_err(|error| arrow_error(&place, error))?;
        let counted = buffered.into_inner().map_err(|error| io_error(&place, error.error()))?;
        Ok(((name, bytes.load(Ordering::Relaxed)), counted.upload))
    }
}

/// Writes rows beside their object.
pub(super) struct ObjectSpool {
    url: PathBuf,
    directory: ObjectDirectory,
    prefix: String,
    run: RunId,
    schema: SchemaRef,
    /// Those that are whole, in order.
    objects: Vec<(String, u64)>,
    open: Option<OpenObject>,
    /// Objects that were begun.
    begun: u64,
    /// The last one that was staged.
    unsynced: Option<Arc<UnsyncedParts>>,
}

impl ObjectSpool {
    /// Begins behind the rows of the checkpoint that a run goes on from.
    pub(super) fn begin(
        place: &ObjectSpoolPlace<'_>,
        staging: &StagingContext,
    ) -> Result<Self, ConnectorError> {
        let (directory, prefix) = place.open()?;
        let mut objects = Vec::new();
        for before in &staging.before {
            objects.extend(place.decode(before)?);
        }
        // A store that cannot be reached, or refuses the key, is found before the first row, and so
        // is a checkpoint whose rows were published: those are removed, the first one first.
        match objects.first() {
            Some((first, _)) => staged_blob(&directory, first).map(drop)?,
            None => directory.entries().map(drop)?,
        }
        let (url, schema) = (place.url.to_owned(), SchemaRef::new(flat(place.schema)));
        let (run, open, begun) = (staging.run, None, 0);
        let unsynced = None;
        Ok(Self { url, directory, prefix, run, schema, objects, open, begun, unsynced })
    }

    fn object(&mut self) -> Result<OpenObject, ConnectorError> {
        let name = staged::name(&self.prefix, self.run, &format!("-{}", self.begun));
        self.begun += 1;
        OpenObject::begin(&self.directory, ObjectDirectory::staged(&name), &self.schema)
    }

    /// Merges the last objects, if many of them are small and all are there. They stay until the
    /// next run sweeps: earlier checkpoints name them.
    fn merge(&mut self) -> Result<(), ConnectorError> {
        if self.unsynced.as_ref().is_some_and(|last| !last.is_synced()) {
            return Ok(());
        }
        let is_small = |(_, bytes): &&(String, u64)| *bytes < SMALL_BYTES;
        let small = self.objects.iter().rev().take_while(is_small).count();
        if small < SMALL_MAX {
            return Ok(());
        }
        let mut merged = self.object()?;
        let last = self.objects.split_off(self.objects.len() - small);
        for (name, _) in &last {
            each_of(&self.directory, name, |batch| merged.write(batch))?;
        }
        let (merged, upload) = merged.finish()?;
        upload.commit()?;
        self.objects.push(merged);
        Ok(())
    }
}

impl SinkWriter for ObjectSpool {
    fn write(&mut self, batch: &RecordBatch) -> Result<(), ConnectorError> {
        let batch = as_schema(batch, &self.schema);
        let batch = batch.map_err(|error| arrow_error(&self.url, error))?;
        let mut open = match self.open.take() {
            Some(open) => open,
            None => self.object()?,
        };
        open.write(&batch)?;
        self.open = Some(open);
        Ok(())
    }

    fn flush(&mut self) -> Result<(), ConnectorError> {
        Ok(())
    }

    fn stage(&mut self, _: u64, _: bool) -> Result<StagedOutput, ConnectorError> {
        let mut unsynced: Option<Arc<dyn UnsyncedOutput>> = None;
        if let Some(open) = self.open.take() {
            self.merge()?;
            let (object, upload) = open.finish()?;
            self.objects.push(object);
            let last = Arc::new(UnsyncedParts::new(None, vec![Box::new(upload)]));
            self.unsynced = Some(last.clone());
            unsynced = Some(last);
        }
        Ok(StagedOutput { staged: Staged::Rows(self.objects.clone()).encode(), unsynced })
    }

    /// A writer that stages is dropped in place of a commit.
    fn commit(self: Box<Self>) -> Result<(), ConnectorError> {
        Err(staged::not_committed(&self.url))
    }
}
