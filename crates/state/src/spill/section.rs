//! Sections: batches in a file, each with a checksum (CRC-32C).
//!
//! A section is an Arrow IPC stream of one batch. Where it lies is kept in memory, beside what it
//! must add up to.

use std::sync::atomic::{AtomicU64, Ordering};

use arrow::compute::cast;
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use arrow::ipc::reader::StreamReader;
use arrow::ipc::writer::StreamWriter;
use arrow::record_batch::{RecordBatch, RecordBatchOptions};

use super::{Disk, DiskFile, Spilled};
use crate::StateError;

/// Where a batch lies in a file.
#[derive(Debug, Clone, Copy)]
pub(super) struct Section {
    at: u64,
    pub(super) bytes: usize,
    crc: u32,
}

/// Bytes written and read so far.
#[derive(Debug, Default)]
pub(super) struct SpillCounters {
    runs: AtomicU64,
    bytes: AtomicU64,
    read_bytes: AtomicU64,
}

impl SpillCounters {
    pub(super) fn spilled(&self) -> Spilled {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Spilled { runs: of(&self.runs), bytes: of(&self.bytes), read_bytes: of(&self.read_bytes) }
    }
}

/// A file, and its number among those of its operator.
pub(super) type NumberedFile = (Box<dyn DiskFile>, u64);

/// A file that is being written.
pub(super) struct Appending<'a> {
    disk: &'a dyn Disk,
    counters: &'a SpillCounters,
    /// Made for the first section.
    file: Option<Box<dyn DiskFile>>,
    at: u64,
}

impl<'a> Appending<'a> {
    pub(super) fn new(disk: &'a dyn Disk, counters: &'a SpillCounters) -> Self {
        Self { disk, counters, file: None, at: 0 }
    }

    /// Writes a batch behind the others.
    ///
    /// # Errors
    /// [`StateError::Disk`] if it cannot be written.
    pub(super) fn append(&mut self, batch: &RecordBatch) -> Result<Section, StateError> {
        let mut stream = StreamWriter::try_new(Vec::new(), &batch.schema())?;
        stream.write(batch)?;
        let bytes = stream.into_inner()?;
        let file = match &mut self.file {
            Some(file) => file,
            None => {
                let name = || "a new file".to_owned();
                let failed = |source| StateError::Disk { doing: "written", file: name(), source };
                self.file.insert(self.disk.create().map_err(failed)?)
            }
        };
        let failed = |source, name| StateError::Disk { doing: "written", file: name, source };
        file.append(&bytes).map_err(|source| failed(source, file.name()))?;
        let (at, len) = (self.at, bytes.len());
        self.at += len as u64;
        self.counters.bytes.fetch_add(len as u64, Ordering::Relaxed);
        Ok(Section { at, bytes: len, crc: crc32c::crc32c(&bytes) })
    }

    /// The file; nothing if no batch was written.
    ///
    /// # Errors
    /// [`StateError::Disk`] if it cannot be written.
    pub(super) fn finish(self) -> Result<Option<NumberedFile>, StateError> {
        let Some(mut file) = self.file else { return Ok(None) };
        let failed = |source, name| StateError::Disk { doing: "written", file: name, source };
        file.finish().map_err(|source| failed(source, file.name()))?;
        // A number alone: nothing else is ordered by it.
        let number = self.counters.runs.fetch_add(1, Ordering::Relaxed);
        Ok(Some((file, number)))
    }
}

/// The batch of a section.
///
/// # Errors
/// [`StateError::Disk`] if it cannot be read; [`StateError::Damaged`] if it is not what was
/// written.
pub(super) fn read(
    file: &dyn DiskFile,
    section: &Section,
    counters: &SpillCounters,
) -> Result<RecordBatch, StateError> {
    let mut bytes = vec![0; section.bytes];
    let failed = |source| StateError::Disk { doing: "read", file: file.name(), source };
    file.read(section.at, &mut bytes).map_err(failed)?;
    counters.read_bytes.fetch_add(section.bytes as u64, Ordering::Relaxed);
    let damaged = || StateError::Damaged { file: file.name(), at: section.at };
    if crc32c::crc32c(&bytes) != section.crc {
        return Err(damaged());
    }
    Ok(StreamReader::try_new(&bytes[..], None)?.next().ok_or_else(damaged)??)
}

/// The type as which a column lies on a disk: the rows of a part must not take all strings of the
/// whole with them.
pub(super) fn plain(of: &DataType) -> DataType {
    match of {
        DataType::Utf8View => DataType::Utf8,
        DataType::BinaryView => DataType::Binary,
        DataType::Dictionary(_, values) => plain(values),
        other => other.clone(),
    }
}

/// The columns as they lie on a disk.
pub(super) fn plain_schema(of: &Schema) -> SchemaRef {
    let field = |field: &std::sync::Arc<Field>| {
        Field::new(field.name(), plain(field.data_type()), field.is_nullable())
    };
    std::sync::Arc::new(Schema::new(of.fields().iter().map(field).collect::<Vec<_>>()))
}

/// The batch with columns of other types that have the same values.
pub(super) fn recast(batch: &RecordBatch, to: &SchemaRef) -> Result<RecordBatch, StateError> {
    let columns = batch.columns().iter().zip(to.fields());
    let columns = columns.map(|(column, field)| {
        if column.data_type() == field.data_type() {
            Ok(column.clone())
        } else {
            cast(column, field.data_type())
        }
    });
    let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
    let columns = columns.collect::<Result<_, _>>()?;
    Ok(RecordBatch::try_new_with_options(to.clone(), columns, &options)?)
}
