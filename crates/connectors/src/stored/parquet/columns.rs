//! Reads some columns of a row group: of all of its rows, or of some of them.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, Decimal128Array};
use arrow::datatypes::{DECIMAL64_MAX_PRECISION, DataType, Decimal64Type, Fields, Schema};
use arrow::error::ArrowError;
use arrow::record_batch::RecordBatch;
use dataflow::error::ConnectorError;
use dataflow::source::ReaderContext;
use parquet::arrow::arrow_reader::ParquetRecordBatchReader;
use parquet::arrow::{ProjectionMask, parquet_to_arrow_field_levels};
use parquet::basic::{ConvertedType, Encoding, Type};
use parquet::file::metadata::ColumnChunkMetaData;

use super::index::PageList;
use super::runs::RowRuns;
use super::statistics::LeafColumn;
use super::{ParquetFile, damaged, pages};
use crate::format::typed::guarded;
use crate::stored::FetchingBlob;

/// A row group to be read.
#[derive(Clone)]
pub(super) struct GroupOf {
    pub(super) file: Arc<ParquetFile>,
    pub(super) group: usize,
    /// The file's columns that are read.
    pub(super) columns: Vec<usize>,
    /// The number of its first row in the file, counted from 1.
    pub(super) first: u64,
}

impl GroupOf {
    pub(super) fn rows(&self) -> u64 {
        self.file.metadata.metadata().row_group(self.group).num_rows().max(0) as u64
    }

    fn place(&self, row: u64) -> String {
        format!("{}:{}", self.file.blob.name(), self.first + row)
    }

    /// Decoded bytes of columns.
    pub(super) fn bytes(&self, columns: &[usize]) -> i64 {
        let roots = self.file.metadata.parquet_schema();
        let group = self.file.metadata.metadata().row_group(self.group);
        let leaves = (0..group.num_columns())
            .filter(|leaf| columns.contains(&roots.get_column_root_idx(*leaf)));
        leaves.map(|leaf| group.column(leaf).uncompressed_size().max(0)).sum()
    }

    /// The columns of the file as they are read: decimals of 64 bits as such, and where
    /// `keeps_dictionaries`, texts that the row group has as dictionaries as dictionaries.
    fn read_as(&self, columns: &[usize], keeps_dictionaries: bool) -> Fields {
        let group = self.file.metadata.metadata().row_group(self.group);
        let fields = self.file.metadata.schema().fields().iter().enumerate();
        let fields = fields.map(|(at, field)| {
            let leaf = columns.contains(&at).then(|| LeafColumn::new(&self.file, at)).flatten();
            let of =
                leaf.map(|of| group.column(of.leaf)).and_then(|chunk| match field.data_type() {
                    DataType::Decimal128(precision, scale)
                        if chunk.column_type() == Type::INT64 =>
                    {
                        Some(DataType::Decimal64(*precision, *scale))
                            .filter(|_| *precision <= DECIMAL64_MAX_PRECISION)
                    }
                    of @ (DataType::Utf8 | DataType::LargeUtf8)
                        if keeps_dictionaries && is_dictionary(chunk) =>
                    {
                        Some(DataType::Dictionary(Box::new(DataType::Int32), Box::new(of.clone())))
                    }
                    _ => None,
                });
            match of {
                Some(of) => Arc::new(field.as_ref().clone().with_data_type(of)),
                None => Arc::clone(field),
            }
        });
        fields.collect()
    }

    /// Rows of all columns that are read, where decimals have the type of the file's schema.
    ///
    /// # Errors
    /// When a column is missing.
    pub(super) fn as_stated(&self, batch: RecordBatch) -> Result<RecordBatch, ArrowError> {
        let is_narrow = |column: &ArrayRef| matches!(column.data_type(), DataType::Decimal64(..));
        if !batch.columns().iter().any(is_narrow) {
            return Ok(batch);
        }
        let columns = self.columns.iter().zip(batch.columns());
        let columns: Vec<ArrayRef> = columns.map(|(at, of)| wide(of, &self.file, *at)).collect();
        let fields = batch.schema_ref().fields().iter().zip(&columns);
        let fields = fields.map(|(field, column)| {
            field.as_ref().clone().with_data_type(column.data_type().clone())
        });
        RecordBatch::try_new(Arc::new(Schema::new(fields.collect::<Vec<_>>())), columns)
    }
}

/// The column `at` of a file: a decimal has the type of the file's schema.
pub(super) fn wide(column: &ArrayRef, file: &ParquetFile, at: usize) -> ArrayRef {
    let stated = file.metadata.schema().field(at).data_type();
    match (column.as_primitive_opt::<Decimal64Type>(), stated) {
        (Some(narrow), DataType::Decimal128(..)) => {
            let wide: Decimal128Array = narrow.unary(i128::from);
            Arc::new(wide.with_data_type(stated.clone()))
        }
        _ => Arc::clone(column),
    }
}

/// Whether all pages of a column of texts refer to a dictionary, by what the footer says: should it
/// be wrong, the library makes a dictionary of the values.
fn is_dictionary(chunk: &ColumnChunkMetaData) -> bool {
    let of_dictionary =
        |of: Encoding| matches!(of, Encoding::PLAIN_DICTIONARY | Encoding::RLE_DICTIONARY);
    // The library checks that values are UTF-8 where the column has this mark.
    chunk.column_descr().converted_type() == ConvertedType::UTF8
        && chunk.dictionary_page_offset().is_some()
        && chunk
            .page_encoding_stats_mask()
            .is_some_and(|pages| pages.encodings().all(of_dictionary))
}

/// Some columns of the rows of a row group.
pub(super) struct ColumnReader {
    of: GroupOf,
    pub(super) fetching: FetchingBlob,
    pub(super) columns: Vec<usize>,
    /// The rows that are read, if not all are.
    runs: Option<RowRuns>,
    pub(super) pages: Arc<BTreeMap<usize, PageList>>,
    /// Whether texts stay dictionaries where they are.
    keeps_dictionaries: bool,
    reader: Option<ParquetRecordBatchReader>,
    /// Rows that were read.
    row: u64,
    /// Rows that have not come yet.
    left: u64,
}

impl ColumnReader {
    /// # Errors
    /// When the stated places of the columns are invalid.
    pub(super) fn new(
        of: &GroupOf,
        columns: Vec<usize>,
        (runs, pages): (Option<RowRuns>, &Arc<BTreeMap<usize, PageList>>),
        context: &ReaderContext,
    ) -> Result<Self, ConnectorError> {
        let ranges = guarded(|| Ok::<_, String>(ranges(of, &columns, runs.as_ref(), pages)))
            .map_err(|message| damaged(of.file.blob.name(), &message))?;
        Ok(Self {
            fetching: FetchingBlob::new(&of.file.blob, ranges, context),
            left: runs.as_ref().map_or_else(|| of.rows(), RowRuns::rows),
            of: of.clone(),
            columns,
            runs,
            pages: Arc::clone(pages),
            keeps_dictionaries: false,
            reader: None,
            row: 0,
        })
    }

    /// The same, where texts stay dictionaries if the row group has them as dictionaries.
    pub(super) fn keeping_dictionaries(self) -> Self {
        Self { keeps_dictionaries: true, ..self }
    }

    /// The next rows as they are [read](GroupOf::read_as).
    ///
    /// # Errors
    /// When they cannot be read, or their number differs from that in the footer.
    pub(super) fn read(&mut self, rows_max: usize) -> Result<Option<RecordBatch>, ConnectorError> {
        let place = self.of.place(self.row);
        let next = guarded(|| {
            let reader = match &mut self.reader {
                Some(reader) => reader,
                None => {
                    let reader = self.begin(rows_max).map_err(|error| error.to_string())?;
                    self.reader.insert(reader)
                }
            };
            reader.next().transpose().map_err(|error| error.to_string())
        });
        let next = next.map_err(|message| damaged(place.clone(), &message))?;
        let rows = next.as_ref().map_or(0, |batch| batch.num_rows() as u64);
        let states = |what: &str| {
            let message = format!("row group {} states {what} rows than it has", self.of.group);
            Err(damaged(place, &message))
        };
        match self.left.checked_sub(rows) {
            None => states("fewer"),
            Some(left) if left > 0 && next.is_none() => states("more"),
            Some(left) => {
                self.left = left;
                self.row += rows;
                Ok(next)
            }
        }
    }

    fn begin(&self, rows_max: usize) -> parquet::errors::Result<ParquetRecordBatchReader> {
        let metadata = &self.of.file.metadata;
        let roots = metadata.parquet_schema();
        let mask = ProjectionMask::roots(roots, self.columns.iter().copied());
        let fields = self.of.read_as(&self.columns, self.keeps_dictionaries);
        let levels = parquet_to_arrow_field_levels(roots, mask, Some(&fields))?;
        let group = pages::Group {
            blob: Arc::clone(&self.fetching.blob),
            metadata: Arc::clone(metadata.metadata()),
            index: self.of.group,
            unpacked: Arc::default(),
            pages: Arc::clone(&self.pages),
        };
        let selection = self.runs.as_ref().map(|runs| runs.selection(self.of.rows()));
        ParquetRecordBatchReader::try_new_with_row_groups(&levels, &group, rows_max, selection)
    }
}

/// The byte ranges that are read.
fn ranges(
    of: &GroupOf,
    columns: &[usize],
    runs: Option<&RowRuns>,
    pages: &BTreeMap<usize, PageList>,
) -> Vec<Range<u64>> {
    let roots = of.file.metadata.parquet_schema();
    let mask = ProjectionMask::roots(roots, columns.iter().copied());
    let chunks = of.file.metadata.metadata().row_group(of.group).columns().iter().enumerate();
    let read = chunks.filter(|(leaf, _)| mask.leaf_included(*leaf));
    let mut ranges = vec![];
    for (leaf, chunk) in read {
        if let (Some(runs), Some(list)) = (runs, pages.get(&leaf)) {
            ranges.extend(list.ranges(runs));
        } else {
            let (start, length) = chunk.byte_range();
            ranges.push(start..start.saturating_add(length).min(of.file.blob.bytes()).max(start));
        }
    }
    ranges
}
