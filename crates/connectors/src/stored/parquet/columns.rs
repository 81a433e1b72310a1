//! Reads some columns of a row group: of all of its rows, or of some of them.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use arrow::record_batch::RecordBatch;
use dataflow::error::ConnectorError;
use dataflow::source::ReaderContext;
use parquet::arrow::arrow_reader::ParquetRecordBatchReader;
use parquet::arrow::{ProjectionMask, parquet_to_arrow_field_levels};

use super::index::PageList;
use super::runs::RowRuns;
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
}

/// Some columns of the rows of a row group.
pub(super) struct ColumnReader {
    of: GroupOf,
    pub(super) fetching: FetchingBlob,
    pub(super) columns: Vec<usize>,
    /// The rows that are read, if not all are.
    runs: Option<RowRuns>,
    pub(super) pages: Arc<BTreeMap<usize, PageList>>,
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
            reader: None,
            row: 0,
        })
    }

    /// The next rows as the file has them.
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
        let hint = Some(metadata.schema().fields());
        let levels = parquet_to_arrow_field_levels(roots, mask, hint)?;
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
