//! The statistics of row groups, as far as they can be trusted.
//!
//! A footer states the least value, the greatest value and the number of NULLs of each column of a
//! row group. They are used if their order is that of the values, and if the declared type keeps
//! that order:
//!
//! ```text
//! order of values      unknown for INT96, intervals, and types of later versions of the format
//! old statistics       signed numbers alone: all other types were ordered as if they were signed
//! texts                may be cut: the least is then no greater, and the greatest no less
//! floats               NaN is in no statistics
//! another type         integers, times, texts, decimals of one scale: casts keep the order
//! ```
//!
//! Wrong statistics of a footer are trusted, as other engines trust them: rows outside of the
//! stated range are then missing from a query that asks for them.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef};
use arrow::datatypes::{DataType, Field};
use dataflow::predicate::ColumnSummary;
use parquet::arrow::arrow_reader::statistics::StatisticsConverter;
use parquet::basic::{ColumnOrder, SortOrder, Type};
use parquet::file::metadata::{ParquetMetaData, RowGroupMetaData};
use parquet::schema::types::SchemaDescriptor;

use super::ParquetFile;
use crate::format::TargetColumns;
use crate::format::rows::{fitted, is_text};
use crate::format::typed::guarded;

/// The statistics of one output column in a file, by row group.
pub(super) struct GroupStatistics {
    summaries: Vec<ColumnSummary>,
}

impl GroupStatistics {
    /// The statistics of the output column at `position`.
    pub(super) fn new(file: &ParquetFile, target: &TargetColumns, position: usize) -> Self {
        let groups = file.metadata.metadata().row_groups();
        let rows = |group: &RowGroupMetaData| Some(group.num_rows().max(0) as u64);
        let unknown = |group| ColumnSummary { rows: rows(group), ..ColumnSummary::default() };
        let Some(declared) = target.column_at(position) else {
            let constant = target.constant(position, &file.blob.name()).ok().flatten();
            let of = constant.as_ref().filter(|value| value.is_valid(0));
            let summary = |group| ColumnSummary {
                least: of.cloned(),
                greatest: of.cloned(),
                nulls: constant.as_ref().and_then(|_| match of {
                    Some(_) => Some(0),
                    None => rows(group),
                }),
                rows: rows(group),
                members: None,
            };
            return Self { summaries: groups.iter().map(summary).collect() };
        };
        let Some(column) = file.mapping.column_of(declared) else {
            let absent = |group| ColumnSummary { nulls: rows(group), ..unknown(group) };
            return Self { summaries: groups.iter().map(absent).collect() };
        };
        let field = target.declared.field(declared);
        let found = LeafColumn::new(file, column).and_then(|leaf| leaf.of_groups(field));
        let Some(LeafStatistics { least, greatest, nulls }) = found else {
            return Self { summaries: groups.iter().map(unknown).collect() };
        };
        let value = |of: &Option<ArrayRef>, group: usize| {
            of.as_ref().filter(|of| of.is_valid(group)).map(|of| of.slice(group, 1))
        };
        let summaries = groups.iter().enumerate().map(|(at, group)| ColumnSummary {
            least: value(&least, at),
            greatest: value(&greatest, at),
            nulls: nulls[at],
            rows: rows(group),
            members: None,
        });
        Self { summaries: summaries.collect() }
    }

    pub(super) fn of(&self, group: usize) -> ColumnSummary {
        self.summaries.get(group).cloned().unwrap_or_default()
    }
}

/// A column of a file that is not a list, map or row.
pub(super) struct LeafColumn<'a> {
    pub(super) leaf: usize,
    pub(super) field: &'a Field,
    metadata: &'a ParquetMetaData,
}

/// The statistics of a column, by row group or by page.
pub(super) struct LeafStatistics {
    pub(super) least: Option<ArrayRef>,
    pub(super) greatest: Option<ArrayRef>,
    pub(super) nulls: Vec<Option<u64>>,
}

impl<'a> LeafColumn<'a> {
    /// The column with this number in the file's schema.
    pub(super) fn new(file: &'a ParquetFile, column: usize) -> Option<Self> {
        let field = file.metadata.schema().field(column);
        let schema = file.metadata.parquet_schema();
        let mut leaves =
            (0..schema.num_columns()).filter(|leaf| schema.get_column_root_idx(*leaf) == column);
        let leaf = leaves.next()?;
        let is_flat = schema.column(leaf).max_rep_level() == 0 && !field.data_type().is_nested();
        let is_read = !file.unread.contains_key(&leaf);
        (is_flat && leaves.next().is_none() && is_read).then(|| Self {
            leaf,
            field,
            metadata: file.metadata.metadata(),
        })
    }

    /// The column of the file's schema that contains a leaf.
    pub(super) fn of_leaf(file: &ParquetFile, leaf: usize) -> usize {
        file.metadata.parquet_schema().get_column_root_idx(leaf)
    }

    /// The library's converter of the statistics of a leaf of `schema` to values.
    pub(super) fn converter(
        leaf: usize,
        field: &'a Field,
        schema: &'a SchemaDescriptor,
    ) -> Option<StatisticsConverter<'a>> {
        let of = StatisticsConverter::from_column_index(leaf, field, schema).ok()?;
        Some(of.with_missing_null_counts_as_zero(false))
    }

    /// Whether the order of statistics is that of the values; `is_old` says whether they are of the
    /// first version of the format, which had no other order than that of signed numbers.
    pub(super) fn is_ordered(&self, is_old: bool) -> bool {
        let column = self.metadata.file_metadata().schema_descr().column(self.leaf);
        let is_number = matches!(
            column.physical_type(),
            Type::INT32 | Type::INT64 | Type::FLOAT | Type::DOUBLE
        );
        match (column.sort_order(), self.metadata.file_metadata().column_order(self.leaf)) {
            (SortOrder::UNDEFINED, _) | (_, ColumnOrder::UNKNOWN) => false,
            (_, ColumnOrder::TYPE_DEFINED_ORDER(SortOrder::UNDEFINED)) => false,
            (_, ColumnOrder::TYPE_DEFINED_ORDER(_)) if !is_old => true,
            (order, _) => {
                order == SortOrder::SIGNED && is_number || column.physical_type() == Type::BOOLEAN
            }
        }
    }

    /// The statistics of the footer, as values of the declared type.
    fn of_groups(&self, declared: &Field) -> Option<LeafStatistics> {
        let groups = self.metadata.row_groups();
        let schema = self.metadata.file_metadata().schema_descr();
        let converter = Self::converter(self.leaf, self.field, schema)?;
        let nulls = guarded(|| converter.row_group_null_counts(groups)).ok()?;
        let nulls = nulls.iter().collect();
        if !keeps_order(self.field.data_type(), declared.data_type()) {
            return Some(LeafStatistics { least: None, greatest: None, nulls });
        }
        let believed = |group: &RowGroupMetaData| {
            let statistics = group.column(self.leaf).statistics();
            statistics.is_some_and(|of| self.is_ordered(of.is_min_max_deprecated()))
        };
        let believed: arrow::array::BooleanArray =
            groups.iter().map(|group| Some(!believed(group))).collect();
        let ends = |ends: Result<ArrayRef, String>| {
            let ends = fitted(&ends.ok()?, declared.data_type()).ok()?;
            arrow::compute::nullif(&ends, &believed).ok()
        };
        let least = ends(guarded(|| converter.row_group_mins(groups)));
        let greatest = ends(guarded(|| converter.row_group_maxes(groups)));
        Some(LeafStatistics { least, greatest, nulls })
    }
}

/// Whether a column of the type `of` has the same order after a cast to the declared type.
pub(crate) fn keeps_order(of: &DataType, declared: &DataType) -> bool {
    use DataType::{Boolean, Date32, Date64, Decimal128, Decimal256};
    match (of, declared) {
        _ if of == declared => !of.is_nested(),
        _ if of.is_integer() && declared.is_integer() => true,
        _ if of.is_floating() && declared.is_floating() => true,
        _ if is_text(of) && is_text(declared) => true,
        _ if is_bytes(of) && is_bytes(declared) => true,
        (Date32 | Date64, Date32 | Date64) | (Boolean, Boolean) => true,
        (DataType::Timestamp(_, from), DataType::Timestamp(_, to)) => {
            let is_utc = |zone: &Option<Arc<str>>| {
                zone.as_deref().is_none_or(|zone| matches!(zone, "UTC" | "+00:00"))
            };
            from == to || is_utc(from) && is_utc(to)
        }
        (Decimal128(_, a) | Decimal256(_, a), Decimal128(_, b) | Decimal256(_, b)) => a == b,
        _ => false,
    }
}

fn is_bytes(of: &DataType) -> bool {
    matches!(of, DataType::Binary | DataType::LargeBinary | DataType::BinaryView)
}

/// Whether each value of the type `of` is valid for the declared type: none can make a bad row.
pub(crate) fn always_fits(of: &DataType, declared: &DataType) -> bool {
    use DataType::{Decimal128, Float32, Float64, Timestamp};
    let bits = |of: &DataType| of.primitive_width().unwrap_or(0) * 8;
    match (of, declared) {
        _ if of == declared => true,
        _ if is_text(of) && is_text(declared) || is_bytes(of) && is_bytes(declared) => true,
        _ if of.is_integer() && declared.is_integer() => {
            match (of.is_signed_integer(), declared.is_signed_integer()) {
                (true, false) => false,
                (false, true) => bits(of) < bits(declared),
                _ => bits(of) <= bits(declared),
            }
        }
        (Float32, Float64) => true,
        (Timestamp(from, _), Timestamp(to, _)) => keeps_order(of, declared) && to <= from,
        (Decimal128(wide, a), Decimal128(other, b)) => a == b && wide <= other,
        _ => false,
    }
}
