//! Parquet, read: each row group is a split.
//!
//! Footers are read when the source is made, so that a truncated file or a column that does not
//! fit is reported before anything runs. Only the columns of the query are read. A value that the
//! declared type cannot hold is a bad row, at `file:row` counted from 1 over the whole file.
//!
//! The statements of a file are not trusted: its schema is looked at (`footer`) and its pages are
//! read and unpacked (`pages`) here and not by the library, and the rows that came are counted.
//! Where a query needs no column, the smallest one is read, so that its rows are counted too.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Int64Type, Schema, SchemaRef};
use dataflow::error::ConnectorError;
use dataflow::source::{
    ColumnBounds, NeededRows, Position, Pruning, ReaderContext, Source, Split, SplitReader,
};
use parquet::arrow::arrow_reader::ArrowReaderMetadata;
use parquet::arrow::arrow_reader::statistics::StatisticsConverter;

use super::{Blob, of_several, rows_passed};
use crate::format::TargetColumns;
use crate::format::rows::fitted;
use crate::format::typed::{Mapping, guarded, plain};

mod columns;
mod compact;
mod distinct;
mod footer;
mod index;
mod matching;
mod pages;
mod prune;
mod reader;
mod runs;
mod statistics;

use columns::GroupOf;
use footer::Footer;
use prune::{LastStatistics, Listening, Pruned};
use reader::ParquetReader;

pub(crate) use statistics::{always_fits, keeps_order};

/// Parquet files, cut into row groups.
pub(super) struct ParquetSource {
    files: Arc<[Arc<ParquetFile>]>,
    /// File and row group of each flow.
    flows: Vec<(usize, usize)>,
    target: Arc<TargetColumns>,
    pruned: Option<Pruned>,
    /// The rows that joins need, if it listens.
    listening: Option<Listening>,
    /// The statistics of the file of which a row group was last opened.
    last: LastStatistics,
}

struct ParquetFile {
    blob: Arc<dyn Blob>,
    metadata: ArrowReaderMetadata,
    /// Why leaves are not read: see [`Footer`].
    unread: BTreeMap<usize, String>,
    mapping: Mapping,
}

impl ParquetSource {
    pub(super) fn open(
        blobs: Vec<Arc<dyn Blob>>,
        target: Arc<TargetColumns>,
    ) -> Result<Self, ConnectorError> {
        let footers: Result<Vec<_>, _> = blobs.iter().map(footer::read).collect();
        let footers = footers?;
        let schemas = footers.iter().map(|footer| footer.metadata.schema().as_ref());
        let target = of_several(target, schemas);
        let mut files = Vec::with_capacity(blobs.len());
        let mut flows = Vec::new();
        for (blob, Footer { metadata, unread }) in blobs.into_iter().zip(footers) {
            let mapping = Mapping::new(&target, metadata.schema(), &blob.name())?;
            let groups = metadata.metadata().num_row_groups();
            flows.extend((0..groups).map(|group| (files.len(), group)));
            let file = ParquetFile { blob, metadata, unread, mapping };
            file.check_read()?;
            files.push(Arc::new(file));
        }
        Ok(Self {
            files: files.into(),
            flows,
            target,
            pruned: None,
            listening: None,
            last: Default::default(),
        })
    }

    fn describe(&self, flow: usize, time_column: Option<usize>) -> Split {
        let (file, group) = self.flows[flow];
        let file = &self.files[file];
        let rows = file.metadata.metadata().row_group(group);
        let roots = file.metadata.parquet_schema();
        let read = file.columns_read(group);
        let bytes = (0..rows.num_columns())
            .filter(|leaf| read.contains(&roots.get_column_root_idx(*leaf)))
            .map(|leaf| rows.column(leaf).compressed_size().max(0) as u64)
            .sum();
        Split {
            number: flow,
            name: format!("{} row group {group}", file.blob.name()),
            rows: Some(rows.num_rows().max(0) as u64),
            bytes: Some(bytes),
            event_time_min: time_column
                .filter(|&column| {
                    let declared = self.target.projected.fields().get(column);
                    declared
                        .is_some_and(|field| matches!(field.data_type(), DataType::Timestamp(..)))
                })
                .and_then(|column| guarded(|| self.range(file, group, column).ok_or("")).ok())
                .map(|[least, _]| least),
            ..Split::default()
        }
    }

    /// The least and the greatest whole number or point in time of a row group, in ticks of the
    /// declared type. The cast keeps their order, so the least stays the least.
    fn range(&self, file: &ParquetFile, group: usize, column: usize) -> Option<[i64; 2]> {
        let declared = self.target.projected.fields().get(column)?.data_type();
        let schema = file.metadata.schema();
        let field = schema.field(file.mapping.column_of(self.target.column_at(column)?)?);
        let is_time = |of: &DataType| matches!(of, DataType::Timestamp(..) | DataType::Date32);
        let [times, numbers] = [is_time, DataType::is_integer]
            .map(|fits| [field.data_type(), declared].into_iter().all(fits));
        if !times && !numbers {
            return None;
        }
        let roots = file.metadata.parquet_schema();
        let statistics = StatisticsConverter::try_new(field.name(), schema, roots).ok()?;
        let group = file.metadata.metadata().row_group(group);
        let ends = [statistics.row_group_mins([group]), statistics.row_group_maxes([group])];
        let ticks = |ends: ArrayRef| {
            let ends = cast(&fitted(&ends, declared).ok()?, &DataType::Int64).ok()?;
            ends.is_valid(0).then(|| ends.as_primitive::<Int64Type>().value(0))
        };
        let [least, greatest] = ends.map(|ends| ends.ok().and_then(ticks));
        least.zip(greatest).map(|(least, greatest)| [least, greatest])
    }
}

impl Source for ParquetSource {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.target.projected)
    }

    fn bounded(&self) -> bool {
        true
    }

    fn splits(
        &self,
        _workers: u32,
        time_column: Option<usize>,
    ) -> Result<Vec<Split>, ConnectorError> {
        Ok((0..self.flows.len()).map(|flow| self.describe(flow, time_column)).collect())
    }

    fn bounds(&self, column: usize) -> ColumnBounds {
        let groups = self.flows.iter();
        let range = |&(file, group): &(usize, usize)| {
            // The library trusts the statistics of a file.
            guarded(|| self.range(&self.files[file], group, column).ok_or("")).ok()
        };
        let ranges = groups.map(range);
        let all = ranges.reduce(|a, b| a.zip(b).map(|([a, b], [c, d])| [a.min(c), b.max(d)]));
        all.flatten().map_or_else(Default::default, |[a, b]| ColumnBounds::between(a, b))
    }

    /// Reads the header of a dictionary of the first file.
    fn distinct(&self, column: usize) -> Option<u64> {
        let file = self.files.first()?;
        file.distinct(file.mapping.column_of(self.target.column_at(column)?)?)
    }

    fn pruned(&self, by: &Pruning) -> Option<Arc<dyn Source>> {
        let pruned = self.without_groups(by)?;
        Some(Arc::new(pruned))
    }

    fn listen(&self, needed: NeededRows) -> Option<Arc<dyn Source>> {
        Some(Arc::new(self.listening(needed)))
    }

    fn describe_pruning(&self) -> Option<String> {
        self.describe_pruned()
    }

    fn open(
        &self,
        split: &Split,
        from: Option<&Position>,
        context: &ReaderContext,
    ) -> Result<Box<dyn SplitReader>, ConnectorError> {
        let (number, group) = self.flows[split.number];
        let file = Arc::clone(&self.files[number]);
        let passed = rows_passed(FORMAT, &split.name, file.blob.version(), from)?;
        let groups = file.metadata.metadata().row_groups();
        let before = groups[..group].iter().map(|rows| rows.num_rows().max(0));
        let before = before.fold(0, i64::saturating_add);
        let columns = file.columns_read(group);
        let predicate = self.row_predicate(number, group);
        let of = GroupOf { file, group, columns, first: before.max(0) as u64 + 1 };
        let reader = ParquetReader::open(of, split, passed, predicate, &self.target, context)?;
        Ok(Box::new(reader))
    }
}

impl ParquetFile {
    /// Refuses to read what cannot be read as what it is.
    fn check_read(&self) -> Result<(), ConnectorError> {
        let roots = self.metadata.parquet_schema();
        let groups = 0..self.metadata.metadata().num_row_groups();
        let read: BTreeSet<usize> = groups.flat_map(|group| self.columns_read(group)).collect();
        let unread =
            |(leaf, _): &(&usize, &String)| read.contains(&roots.get_column_root_idx(**leaf));
        let Some((leaf, how)) = self.unread.iter().find(unread) else { return Ok(()) };
        Err(ConnectorError::Column {
            column: roots.get_column_root(*leaf).name().to_owned(),
            message: format!("{} has it {how}, which is not read", self.blob.name()),
            hint: Some("leave it out of the query, or write the file anew".into()),
        })
    }

    /// The columns of a row group that are read: the smallest one where the query needs none.
    fn columns_read(&self, group: usize) -> Vec<usize> {
        let read = self.mapping.columns_read();
        if !read.is_empty() {
            return read;
        }
        let roots = self.metadata.parquet_schema();
        let columns = self.metadata.metadata().row_group(group).columns().iter().enumerate();
        let smallest = columns.min_by_key(|(leaf, chunk)| {
            let is_unread = self.unread.contains_key(leaf);
            (is_unread, chunk.column_descr().max_rep_level(), chunk.uncompressed_size())
        });
        smallest.map(|(leaf, _)| roots.get_column_root_idx(leaf)).into_iter().collect()
    }
}

/// The name of positions in a row group.
const FORMAT: &str = "parquet";

/// The file's own columns.
pub(super) fn infer(blob: &Arc<dyn Blob>) -> Result<Schema, ConnectorError> {
    Ok(plain(footer::read(blob)?.metadata.schema()))
}

/// The message of an error that says where it is: of our own reader of `name`, and of no library.
fn of_reader<'a>(message: &'a str, name: &str) -> Option<&'a str> {
    message.strip_prefix("External: ")?.strip_prefix(name)?.strip_prefix(": ")
}

/// The error of a reader at a place, which is a file or a row of it.
fn damaged(place: String, message: &str) -> ConnectorError {
    let message = message.trim_start_matches("Parquet error: ");
    let message = message.trim_start_matches("Parquet argument error: ");
    // The file may be whole, but has what is not read.
    if let Some(message) = message.strip_prefix("NYI: ") {
        return ConnectorError::Io { place, message: message.into(), hint: None };
    }
    let message = message.trim_start_matches("Parquet error: ");
    let is_row = |row: &str| row.bytes().all(|byte| byte.is_ascii_digit());
    let name = place.rsplit_once(':').filter(|(_, row)| is_row(row)).map_or(&*place, |of| of.0);
    // The file could not be read.
    if let Some(message) = of_reader(message, name) {
        return ConnectorError::Io { place: name.into(), message: message.into(), hint: None };
    }
    ConnectorError::Io {
        place,
        message: format!("not a whole Parquet file: {message}"),
        hint: Some("it may be truncated or of another format: check 'format'".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::damaged;

    #[test]
    fn a_file_that_cannot_be_read_is_not_called_damaged() {
        let error_of = |message: &str| damaged("/a b.parquet:7".into(), message).to_string();
        let error =
            error_of("Parquet error: External: /a b.parquet: it was cut while the query ran");
        assert_eq!(error, "/a b.parquet: it was cut while the query ran");
        let error = error_of("External: /a b.parquet: cannot read it: the disk: an error");
        assert_eq!(error, "/a b.parquet: cannot read it: the disk: an error");
        let error = error_of("External: snappy: corrupt input (empty)");
        assert!(error.starts_with("/a b.parquet:7: not a whole Parquet file: "), "{error}");
        let error = error_of("Parquet error: a page is too short");
        assert!(
            error.starts_with("/a b.parquet:7: not a whole Parquet file: a page is"),
            "{error}"
        );
    }
}
