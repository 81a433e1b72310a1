//! Parquet, read: each row group is a flow.
//!
//! Footers are read when the source is made, so that a truncated file or a column that does not
//! fit is reported before anything runs. Only the columns of the query are read. A value that the
//! declared type cannot hold is a bad row, at `file:row` counted from 1 over the whole file.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Field, Int64Type, Schema};
use arrow::error::ArrowError;
use arrow::record_batch::RecordBatch;
use bytes::Bytes;
use dataflow::error::ConnectorError;
use dataflow::source::{Flow, FlowContext, FlowInfo, Next, Source};
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::statistics::StatisticsConverter;
use parquet::arrow::arrow_reader::{
    ArrowReaderMetadata, ArrowReaderOptions, ParquetRecordBatchReader,
    ParquetRecordBatchReaderBuilder,
};
use parquet::errors::ParquetError;
use parquet::file::reader::{ChunkReader, Length};

use super::{Blob, Tail, read_exactly};
use crate::format::rows::{
    Refuser, Target, check_castable, convert, first_reasons, is_text, match_columns, shown, without,
};
use crate::options::sql_type;

/// Parquet files, cut into row groups.
pub(super) struct ParquetSource {
    files: Vec<ParquetFile>,
    /// File and row group of each flow.
    flows: Vec<(usize, usize)>,
    target: Arc<Target>,
}

struct ParquetFile {
    blob: Arc<dyn Blob>,
    metadata: ArrowReaderMetadata,
    /// The file's column of each projected column.
    columns: Vec<usize>,
}

impl ParquetSource {
    pub(super) fn open(
        blobs: Vec<Arc<dyn Blob>>,
        target: Arc<Target>,
    ) -> Result<Self, ConnectorError> {
        let mut files = Vec::with_capacity(blobs.len());
        let mut flows = Vec::new();
        for blob in blobs {
            let metadata = read_footer(&blob)?;
            let place = blob.name();
            let schema = metadata.schema();
            let names: Vec<String> =
                schema.fields().iter().map(|field| field.name().clone()).collect();
            let all = match_columns(&target.declared, &names, &place)?;
            for (field, column) in target.declared.fields().iter().zip(&all) {
                check_type(field, schema.field(*column).data_type(), &place)?;
            }
            let columns = target.projection.iter().map(|index| all[*index]).collect();
            let groups = metadata.metadata().num_row_groups();
            flows.extend((0..groups).map(|group| (files.len(), group)));
            files.push(ParquetFile { blob, metadata, columns });
        }
        Ok(Self { files, flows, target })
    }

    fn describe(&self, flow: usize, time_column: Option<usize>) -> FlowInfo {
        let (file, group) = self.flows[flow];
        let file = &self.files[file];
        let rows = file.metadata.metadata().row_group(group);
        let roots = file.metadata.parquet_schema();
        let bytes = (0..rows.num_columns())
            .filter(|leaf| file.columns.contains(&roots.get_column_root_idx(*leaf)))
            .map(|leaf| rows.column(leaf).compressed_size().max(0) as u64)
            .sum();
        FlowInfo {
            name: format!("{} row group {group}", file.blob.name()),
            rows: Some(rows.num_rows().max(0) as u64),
            bytes: Some(bytes),
            event_time_min: time_column.and_then(|column| self.time_min(file, group, column)),
        }
    }

    /// The smallest point in time of a row group, in ticks of the declared type. The cast keeps
    /// the order of points in time, so the least stays the least.
    fn time_min(&self, file: &ParquetFile, group: usize, column: usize) -> Option<i64> {
        let declared = self.target.projected.fields().get(column)?.data_type();
        let schema = file.metadata.schema();
        let field = schema.field(*file.columns.get(column)?);
        let is_time = matches!(field.data_type(), DataType::Timestamp(..) | DataType::Date32);
        if !is_time || !matches!(declared, DataType::Timestamp(..)) {
            return None;
        }
        let roots = file.metadata.parquet_schema();
        let statistics = StatisticsConverter::try_new(field.name(), schema, roots).ok()?;
        let mins = statistics.row_group_mins([file.metadata.metadata().row_group(group)]).ok()?;
        let ticks = cast(&cast(&mins, declared).ok()?, &DataType::Int64).ok()?;
        ticks.is_valid(0).then(|| ticks.as_primitive::<Int64Type>().value(0))
    }
}

/// A Parquet file knows its types: what is text there becomes a number or a time by a CAST only.
fn check_type(field: &Field, from: &DataType, place: &str) -> Result<(), ConnectorError> {
    if is_text(from) && !is_text(field.data_type()) {
        return Err(ConnectorError::Column {
            column: field.name().clone(),
            message: format!("{place} has it as {}", sql_type(from)),
            hint: Some(format!("declare it as {}, and CAST it in the query", sql_type(from))),
        });
    }
    check_castable(field, from, place)
}

impl Source for ParquetSource {
    fn schema(&self) -> arrow::datatypes::SchemaRef {
        Arc::clone(&self.target.projected)
    }

    fn bounded(&self) -> bool {
        true
    }

    fn flows(
        &self,
        _workers: u32,
        time_column: Option<usize>,
    ) -> Result<Vec<FlowInfo>, ConnectorError> {
        Ok((0..self.flows.len()).map(|flow| self.describe(flow, time_column)).collect())
    }

    fn open(&self, flow: usize, context: &FlowContext) -> Result<Box<dyn Flow>, ConnectorError> {
        let (file, group) = self.flows[flow];
        let file = &self.files[file];
        let groups = file.metadata.metadata().row_groups();
        let before: i64 = groups[..group].iter().map(|rows| rows.num_rows()).sum();
        let columns = file.columns.clone();
        let mut read = columns.clone();
        read.sort_unstable();
        read.dedup();
        Ok(Box::new(ParquetFlow {
            blob: Arc::clone(&file.blob),
            metadata: file.metadata.clone(),
            group,
            // The reader gives columns in the file's order.
            order: columns.iter().filter_map(|column| read.binary_search(column).ok()).collect(),
            read,
            reader: None,
            rest: None,
            row: before.max(0) as u64 + 1,
            refuser: Refuser::new(&self.target, context),
        }))
    }
}

/// A row group that is being read.
struct ParquetFlow {
    blob: Arc<dyn Blob>,
    metadata: ArrowReaderMetadata,
    group: usize,
    /// The file's columns that are read.
    read: Vec<usize>,
    /// Where each projected column is among them.
    order: Vec<usize>,
    reader: Option<ParquetRecordBatchReader>,
    /// What did not fit into the last batch asked for.
    rest: Option<RecordBatch>,
    /// The number in the file of the row to be read next, counted from 1.
    row: u64,
    refuser: Refuser,
}

impl ParquetFlow {
    fn reader(&mut self, rows_max: usize) -> Result<&mut ParquetRecordBatchReader, ConnectorError> {
        if self.reader.is_none() {
            let mask =
                ProjectionMask::roots(self.metadata.parquet_schema(), self.read.iter().copied());
            let builder = ParquetRecordBatchReaderBuilder::new_with_metadata(
                Chunks(Arc::clone(&self.blob)),
                self.metadata.clone(),
            )
            .with_row_groups(vec![self.group])
            .with_projection(mask)
            .with_batch_size(rows_max);
            self.reader = Some(builder.build().map_err(|error| damaged(&*self.blob, &error))?);
        }
        self.reader.as_mut().ok_or_else(|| unfit(&*self.blob, &"the reader is gone"))
    }

    /// Casts a batch to the declared types and takes out what they cannot hold.
    fn convert(&mut self, batch: &RecordBatch) -> Result<RecordBatch, ConnectorError> {
        let target = Arc::clone(&self.refuser.target);
        let mut refused = Vec::new();
        let columns: Result<Vec<ArrayRef>, ArrowError> = target
            .projected
            .fields()
            .iter()
            .zip(&self.order)
            .map(|(field, column)| convert(batch.column(*column), field, &mut refused))
            .collect();
        let columns = columns.map_err(|error| unfit(&*self.blob, &error))?;
        let refused = first_reasons(refused);
        for refused in &refused {
            let place = format!("{}:{}", self.blob.name(), self.row + refused.row as u64);
            let text = shown(batch, refused.row).map_err(|error| unfit(&*self.blob, &error))?;
            self.refuser.refuse(place, refused.reason.clone(), text.as_bytes())?;
        }
        self.row += batch.num_rows() as u64;
        without(&target.projected, columns, batch.num_rows(), &refused)
            .map_err(|error| unfit(&*self.blob, &error))
    }
}

impl Flow for ParquetFlow {
    fn next(&mut self, rows_max: usize) -> Result<Next, ConnectorError> {
        loop {
            let batch = match self.rest.take() {
                Some(batch) => batch,
                None => match self.reader(rows_max)?.next() {
                    None => return Ok(Next::End),
                    Some(Err(error)) => return Err(damaged_rows(&*self.blob, &error)),
                    Some(Ok(batch)) => self.convert(&batch)?,
                },
            };
            if batch.num_rows() > rows_max {
                self.rest = Some(batch.slice(rows_max, batch.num_rows() - rows_max));
                return Ok(Next::Batch(batch.slice(0, rows_max)));
            }
            if batch.num_rows() > 0 {
                return Ok(Next::Batch(batch));
            }
        }
    }
}

/// A blob as the Parquet reader wants it.
struct Chunks(Arc<dyn Blob>);

impl Length for Chunks {
    fn len(&self) -> u64 {
        self.0.bytes()
    }
}

impl ChunkReader for Chunks {
    type T = Tail;

    fn get_read(&self, start: u64) -> Result<Tail, ParquetError> {
        Ok(Tail::new(Arc::clone(&self.0), start))
    }

    fn get_bytes(&self, start: u64, length: usize) -> Result<Bytes, ParquetError> {
        read_exactly(&*self.0, start, length).map_err(|error| ParquetError::External(error.into()))
    }
}

/// The file's own columns.
pub(super) fn infer(blob: &Arc<dyn Blob>) -> Result<Schema, ConnectorError> {
    Ok(read_footer(blob)?.schema().as_ref().clone().with_metadata(Default::default()))
}

fn read_footer(blob: &Arc<dyn Blob>) -> Result<ArrowReaderMetadata, ConnectorError> {
    // Opened once for its own errors: what the reader says of a file that is not there is long.
    blob.read()?;
    ArrowReaderMetadata::load(&Chunks(Arc::clone(blob)), ArrowReaderOptions::new())
        .map_err(|error| damaged(&**blob, &error))
}

fn damaged(blob: &dyn Blob, error: &ParquetError) -> ConnectorError {
    unreadable(blob, error.to_string())
}

fn damaged_rows(blob: &dyn Blob, error: &ArrowError) -> ConnectorError {
    unreadable(blob, error.to_string())
}

fn unreadable(blob: &dyn Blob, message: String) -> ConnectorError {
    let message = message.trim_start_matches("Parquet error: ");
    ConnectorError::Io {
        place: blob.name(),
        message: format!("not a whole Parquet file: {message}"),
        hint: Some("it may be truncated or of another format: check 'format'".into()),
    }
}

fn unfit(blob: &dyn Blob, error: &dyn std::fmt::Display) -> ConnectorError {
    let place = blob.name();
    ConnectorError::Io { place, message: error.to_string(), hint: None }
}
