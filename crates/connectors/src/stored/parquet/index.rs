//! The page index of a column, which has the places of its pages and their least and greatest
//! values; and its Bloom filters.
//!
//! Both are read when a row group that is left is opened. They are not trusted: a place outside of
//! the column, pages whose rows are not consecutive, or a filter whose length is not the stated one
//! end the query with the name of the file.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Field, Int32Type, Int64Type};
use bytes::Bytes;
use dataflow::predicate::{ColumnPredicate, ColumnSummary, Membership};
use parquet::basic::Type as Physical;
use parquet::bloom_filter::Sbbf;
use parquet::file::metadata::{
    ColumnChunkMetaData, FileMetaData, PageIndexPolicy, ParquetMetaData, ParquetMetaDataReader,
    RowGroupMetaData,
};
use parquet::schema::types::{SchemaDescriptor, Type};

use super::ParquetFile;
use super::compact::{Compact, kind};
use super::runs::RowRuns;
use super::statistics::{LeafColumn, LeafStatistics, keeps_order};
use crate::format::TargetColumns;
use crate::format::rows::{fitted, is_text};
use crate::format::typed::guarded;
use crate::stored::{Blob, read_exactly};

/// The most bytes of a Bloom filter that is read.
const BLOOM_BYTES_MAX: u64 = 16 << 20;

/// The most bytes of a part of a page index that is read.
const INDEX_BYTES_MAX: u64 = 64 << 20;

/// The pages of a column of a row group.
#[derive(Debug, Clone)]
pub(super) struct PageList {
    /// The dictionary in front of them.
    pub(super) dictionary: Option<Range<u64>>,
    /// The place of each in the file, and its rows.
    pub(super) pages: Vec<(Range<u64>, Range<u64>)>,
}

impl PageList {
    /// The places of the dictionary and of the pages that have some of the rows.
    pub(super) fn ranges(&self, rows: &RowRuns) -> Vec<Range<u64>> {
        let all = rows.are_short().then(|| rows.span());
        let is_read = |of: &Range<u64>| match &all {
            Some(all) => of.start < all.end && all.start < of.end,
            None => rows.overlaps(of),
        };
        let pages = self.pages.iter().filter(|(_, rows)| is_read(rows));
        self.dictionary.iter().chain(pages.map(|(place, _)| place)).cloned().collect()
    }

    /// The number of pages that have none of the rows.
    pub(super) fn skipped(&self, rows: &RowRuns) -> u64 {
        self.pages.iter().filter(|(_, of)| !rows.overlaps(of)).count() as u64
    }
}

/// The indexes of a row group.
#[derive(Default)]
pub(super) struct GroupIndex {
    /// The pages of each leaf.
    pub(super) pages: BTreeMap<usize, PageList>,
    /// By output column of the predicate: its leaf, and its statistics by page.
    statistics: BTreeMap<usize, (usize, LeafStatistics)>,
    blooms: BTreeMap<usize, Membership>,
}

/// The indexes to read for a row group.
pub(super) struct IndexPlan {
    /// The leaves that are read and are not a part of a list, map or row.
    leaves: Vec<usize>,
    /// The output columns of the predicate, and their leaves.
    columns: Vec<(usize, usize)>,
    /// The output columns for which the predicate asks for single values, and their leaves.
    equal: Vec<(usize, usize)>,
}

/// The place of an index, if it has at most `bytes_max` bytes.
fn place(offset: Option<i64>, length: Option<i32>, bytes_max: u64) -> Option<Range<u64>> {
    let (offset, length) = (u64::try_from(offset?).ok()?, u64::try_from(length?).ok()?);
    (length > 0 && length <= bytes_max).then(|| offset..offset.saturating_add(length))
}

fn column_index(chunk: &ColumnChunkMetaData) -> Option<Range<u64>> {
    place(chunk.column_index_offset(), chunk.column_index_length(), INDEX_BYTES_MAX)
}

fn offset_index(chunk: &ColumnChunkMetaData) -> Option<Range<u64>> {
    place(chunk.offset_index_offset(), chunk.offset_index_length(), INDEX_BYTES_MAX)
}

fn bloom(chunk: &ColumnChunkMetaData) -> Option<Range<u64>> {
    place(chunk.bloom_filter_offset(), chunk.bloom_filter_length(), BLOOM_BYTES_MAX)
}

impl IndexPlan {
    /// The plan for a row group; `kept` is the predicate on its rows.
    pub(super) fn new(
        file: &ParquetFile,
        target: &TargetColumns,
        (group, columns_read): (usize, &[usize]),
        kept: &ColumnPredicate,
    ) -> Self {
        let chunks = file.metadata.metadata().row_group(group).columns();
        let leaf = |column: usize| LeafColumn::new(file, column).map(|leaf| leaf.leaf);
        let leaves = columns_read.iter().filter_map(|column| leaf(*column));
        let leaves = leaves.filter(|leaf| offset_index(&chunks[*leaf]).is_some()).collect();
        let of = |position: usize| {
            let column = file.mapping.column_of(target.column_at(position)?)?;
            Some((position, leaf(column)?))
        };
        let mut values = vec![];
        equal_columns(kept, &mut values);
        let equal = values.into_iter().filter_map(of);
        let columns: Vec<(usize, usize)> = kept.columns().into_iter().filter_map(of).collect();
        let has_index = |(_, leaf): &(usize, usize)| {
            column_index(&chunks[*leaf]).is_some() && offset_index(&chunks[*leaf]).is_some()
        };
        Self {
            leaves,
            columns: columns.into_iter().filter(has_index).collect(),
            equal: equal.filter(|(_, leaf)| bloom(&chunks[*leaf]).is_some()).collect(),
        }
    }

    /// The byte ranges of the indexes.
    pub(super) fn ranges(&self, file: &ParquetFile, group: usize) -> Vec<Range<u64>> {
        let chunks = file.metadata.metadata().row_group(group).columns();
        let offsets = self.leaves.iter().filter_map(|leaf| offset_index(&chunks[*leaf]));
        let columns = self.columns.iter().filter_map(|(_, leaf)| column_index(&chunks[*leaf]));
        let blooms = self.equal.iter().filter_map(|(_, leaf)| bloom(&chunks[*leaf]));
        let end = file.blob.bytes();
        // A range outside of the file is an error when it is read.
        offsets.chain(columns).chain(blooms).filter(|range| range.end <= end).collect()
    }

    /// Reads the indexes.
    pub(super) fn read(
        &self,
        file: &ParquetFile,
        target: &TargetColumns,
        blob: &dyn Blob,
        group: usize,
    ) -> Result<GroupIndex, String> {
        let metadata = file.metadata.metadata().row_group(group);
        let mut index = GroupIndex::default();
        for &leaf in &self.leaves {
            let statistics = self.columns.iter().find(|(_, of)| *of == leaf);
            let of = |column: usize| format!("column {}", metadata.column(column).column_path());
            let read = ColumnPages::read(blob, metadata, leaf, statistics.is_some())
                .map_err(|message| format!("the page index of {}: {message}", of(leaf)))?;
            if let Some(&(position, _)) = statistics {
                let field = target.projected.field(position);
                if let Some(statistics) = read.statistics(file, leaf, field) {
                    index.statistics.insert(position, (leaf, statistics));
                }
            }
            index.pages.insert(leaf, read.pages);
        }
        for &(position, leaf) in &self.equal {
            let chunk = metadata.column(leaf);
            let of = file.metadata.schema();
            let field = of.field(LeafColumn::of_leaf(file, leaf));
            let Some(place) = bloom(chunk) else { continue };
            let declared = target.projected.field(position).data_type();
            let membership = read_bloom(blob, place, field, declared, chunk.column_type());
            let membership = membership.map_err(|message| {
                format!("the Bloom filter of column {}: {message}", chunk.column_path())
            })?;
            index.blooms.extend(membership.map(|membership| (position, membership)));
        }
        Ok(index)
    }
}

/// The columns for which a predicate asks for single values.
fn equal_columns(kept: &ColumnPredicate, found: &mut Vec<usize>) {
    match kept {
        ColumnPredicate::All(parts) | ColumnPredicate::Any(parts) => {
            parts.iter().for_each(|part| equal_columns(part, found));
        }
        ColumnPredicate::Range(range) if range.only().is_some() => found.push(range.column),
        ColumnPredicate::In { column, .. } => found.push(*column),
        _ => {}
    }
    found.sort_unstable();
    found.dedup();
}

impl GroupIndex {
    /// Whether some row may match, by the Bloom filters alone.
    pub(super) fn may_match(&self, kept: &ColumnPredicate) -> bool {
        kept.may_match(&|position| ColumnSummary {
            members: self.blooms.get(&position).cloned(),
            ..ColumnSummary::default()
        })
    }

    /// The rows of the pages that may have matching rows.
    pub(super) fn rows(&self, kept: &ColumnPredicate, rows: u64) -> RowRuns {
        let mut bounds: Vec<u64> = vec![0, rows];
        for (leaf, _) in self.statistics.values() {
            let pages = self.pages.get(leaf).into_iter().flat_map(|list| &list.pages);
            bounds.extend(pages.map(|(_, rows)| rows.start));
        }
        bounds.sort_unstable();
        bounds.dedup();
        let parts = bounds.windows(2).map(|two| two[0]..two[1]);
        RowRuns::new(parts.filter(|part| kept.may_match(&|at| self.summary(at, part.start))))
    }

    /// The statistics of a column in the page that contains a row.
    fn summary(&self, position: usize, row: u64) -> ColumnSummary {
        let Some((leaf, statistics)) = self.statistics.get(&position) else {
            return ColumnSummary::default();
        };
        let Some(list) = self.pages.get(leaf) else { return ColumnSummary::default() };
        let page = list.pages.partition_point(|(_, rows)| rows.end <= row);
        let Some((_, rows)) = list.pages.get(page) else { return ColumnSummary::default() };
        let value = |of: &Option<ArrayRef>| {
            of.as_ref().filter(|of| of.is_valid(page)).map(|of| of.slice(page, 1))
        };
        ColumnSummary {
            least: value(&statistics.least),
            greatest: value(&statistics.greatest),
            nulls: statistics.nulls.get(page).copied().flatten(),
            rows: Some(rows.end - rows.start),
            members: None,
        }
    }
}

/// The page index of one column, as the library reads it from a file with this column alone.
struct ColumnPages {
    metadata: ParquetMetaData,
    pages: PageList,
}

impl ColumnPages {
    fn read(
        blob: &dyn Blob,
        group: &RowGroupMetaData,
        leaf: usize,
        with_statistics: bool,
    ) -> Result<Self, String> {
        let chunk = group.column(leaf);
        let bytes = |place: Option<Range<u64>>| {
            let Some(place) = place else { return Ok(Bytes::new()) };
            let length = usize::try_from(place.end - place.start).map_err(|e| e.to_string())?;
            let bytes = read_exactly(blob, place.start, length)
                .map_err(|error| format!("it is not where the footer says ({error})"))?;
            // Refuses a list whose stated length its bytes cannot have.
            Compact::new(&bytes)
                .skip(kind::STRUCT, 0)
                .map_err(|_| "it is unreadable".to_owned())?;
            Ok::<_, String>(bytes)
        };
        let offsets = bytes(offset_index(chunk))?;
        let columns = bytes(column_index(chunk).filter(|_| with_statistics))?;
        let metadata = guarded(|| alone(group, chunk, &offsets, &columns))?;
        let pages = page_list(group, chunk, &metadata)?;
        Ok(Self { metadata, pages })
    }

    /// The statistics of the column index, as values of the declared type.
    fn statistics(
        &self,
        file: &ParquetFile,
        leaf: usize,
        declared: &Field,
    ) -> Option<LeafStatistics> {
        let column = LeafColumn::new(file, LeafColumn::of_leaf(file, leaf))?;
        if !column.is_ordered(false) || !keeps_order(column.field.data_type(), declared.data_type())
        {
            return None;
        }
        let (values, places) = (self.metadata.column_index()?, self.metadata.offset_index()?);
        let schema = self.metadata.file_metadata().schema_descr();
        let converter = LeafColumn::converter(0, column.field, schema)?;
        let ends = |ends: Result<ArrayRef, String>| {
            let ends = fitted(&ends.ok()?, declared.data_type()).ok()?;
            (ends.len() == self.pages.pages.len()).then_some(ends)
        };
        let least = ends(guarded(|| converter.data_page_mins(values, places, [&0])));
        let greatest = ends(guarded(|| converter.data_page_maxes(values, places, [&0])));
        let nulls = guarded(|| converter.data_page_null_counts(values, places, [&0])).ok()?;
        Some(LeafStatistics { least, greatest, nulls: nulls.iter().collect() })
    }
}

/// The metadata of a file that has only the page index of one column of a row group.
fn alone(
    group: &RowGroupMetaData,
    chunk: &ColumnChunkMetaData,
    offsets: &Bytes,
    columns: &Bytes,
) -> parquet::errors::Result<ParquetMetaData> {
    let descriptor = chunk.column_descr();
    let root = Type::group_type_builder("schema")
        .with_fields(vec![Arc::new(descriptor.self_type().clone())])
        .build()?;
    let schema = Arc::new(SchemaDescriptor::new(Arc::new(root)));
    let length = |bytes: &Bytes| (!bytes.is_empty()).then_some(bytes.len() as i32);
    let chunk = ColumnChunkMetaData::builder(schema.column(0))
        .set_num_values(chunk.num_values())
        .set_total_compressed_size(chunk.compressed_size())
        .set_total_uncompressed_size(chunk.uncompressed_size())
        .set_data_page_offset(chunk.data_page_offset())
        .set_offset_index_offset(Some(0))
        .set_offset_index_length(length(offsets))
        .set_column_index_offset(length(columns).map(|_| offsets.len() as i64))
        .set_column_index_length(length(columns))
        .build()?;
    let rows = group.num_rows();
    let group = RowGroupMetaData::builder(Arc::clone(&schema))
        .set_num_rows(rows)
        .set_total_byte_size(0)
        .add_column_metadata(chunk)
        .build()?;
    let metadata = FileMetaData::new(2, rows, None, None, schema, None);
    let metadata = ParquetMetaData::new(metadata, vec![group]);
    let columns_policy =
        if columns.is_empty() { PageIndexPolicy::Skip } else { PageIndexPolicy::Required };
    let mut reader = ParquetMetaDataReader::new_with_metadata(metadata)
        .with_offset_index_policy(PageIndexPolicy::Required)
        .with_column_index_policy(columns_policy);
    // One byte more, since the library takes an index that ends with the file for one beyond it.
    let bytes: Bytes = [offsets.as_ref(), columns.as_ref(), &[0]].concat().into();
    reader.read_page_indexes(&bytes)?;
    reader.finish()
}

/// The pages that an offset index states, if they are valid for the column.
fn page_list(
    group: &RowGroupMetaData,
    chunk: &ColumnChunkMetaData,
    metadata: &ParquetMetaData,
) -> Result<PageList, String> {
    let index = metadata.offset_index().and_then(|index| index.first()?.first());
    let places = index.map_or(&[][..], |index| index.page_locations());
    let (begin, length) = chunk.byte_range();
    let chunk = begin..begin.saturating_add(length);
    let all = group.num_rows().max(0) as u64;
    let mut pages = Vec::with_capacity(places.len());
    let (mut byte, mut row) = (chunk.start, 0);
    for (at, place) in places.iter().enumerate() {
        let next = places.get(at + 1).map_or(group.num_rows(), |next| next.first_row_index);
        let numbers =
            [place.offset, i64::from(place.compressed_page_size), place.first_row_index, next];
        let [offset, bytes, first, next] = numbers.map(|number| u64::try_from(number).ok());
        let (Some(offset), Some(bytes), Some(first), Some(next)) = (offset, bytes, first, next)
        else {
            return Err("it states a place below zero".into());
        };
        let end = offset.saturating_add(bytes);
        if offset < byte || end > chunk.end {
            return Err("it states a page outside of the column".into());
        }
        if first != row || next <= first || next > all {
            return Err("it states pages whose rows do not follow one another".into());
        }
        pages.push((offset..end, first..next));
        (byte, row) = (end, next);
    }
    if row != all {
        return Err(format!("it states {row} rows, and its row group {all}"));
    }
    let first = pages.first().map_or(chunk.start, |(place, _)| place.start);
    let dictionary = (first > chunk.start).then_some(chunk.start..first);
    Ok(PageList { dictionary, pages })
}

/// Reads a Bloom filter, if values of the declared type can be looked up in it.
fn read_bloom(
    blob: &dyn Blob,
    place: Range<u64>,
    field: &Field,
    declared: &DataType,
    physical: Physical,
) -> Result<Option<Membership>, String> {
    let of = field.data_type().clone();
    let is_found = match physical {
        Physical::INT32 | Physical::INT64 => {
            of.is_integer() && declared.is_integer()
                || of == *declared && matches!(of, DataType::Date32 | DataType::Timestamp(..))
        }
        Physical::BYTE_ARRAY => is_text(&of) && is_text(declared),
        _ => false,
    };
    if !is_found {
        return Ok(None);
    }
    let bytes = read_exactly(blob, place.start, (place.end - place.start) as usize)
        .map_err(|error| format!("it is not where the footer says ({error})"))?;
    let filter = guarded(|| Sbbf::from_bytes(&bytes))?;
    if filter.num_blocks() == 0 {
        return Err("it is empty".into());
    }
    Ok(Some(Membership::new(move |value| may_have(&filter, value, &of, physical))))
}

/// Whether a Bloom filter may have a value; `of` is the type of the column in the file.
fn may_have(filter: &Sbbf, value: &ArrayRef, of: &DataType, physical: Physical) -> bool {
    if physical == Physical::BYTE_ARRAY {
        let text = cast(value, &DataType::Utf8);
        return text.map_or(true, |text| filter.check(text.as_string::<i32>().value(0)));
    }
    // The file cannot have a number that its type cannot hold; the library makes it NULL.
    let Ok(value) = cast(value, of) else { return true };
    if value.is_null(0) {
        return false;
    }
    let wide = |value: &ArrayRef| match of {
        DataType::UInt64 => {
            let value = value.as_primitive::<arrow::datatypes::UInt64Type>().value(0);
            Some(value.cast_signed())
        }
        _ => Some(cast(value, &DataType::Int64).ok()?.as_primitive::<Int64Type>().value(0)),
    };
    match (physical, of) {
        (Physical::INT32, DataType::Date32) => cast(&value, &DataType::Int32)
            .map_or(true, |days| filter.check(&days.as_primitive::<Int32Type>().value(0))),
        (Physical::INT32, _) => wide(&value).is_none_or(|value| filter.check(&(value as i32))),
        _ => wide(&value).is_none_or(|value| filter.check(&value)),
    }
}
