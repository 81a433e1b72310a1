//! Scans of a version: splits are runs of strips of about equal bytes.

use std::ops::Range;
use std::sync::{Arc, OnceLock};

use arrow::datatypes::{DataType, SchemaRef};
use dataflow::connector::TableDef;
use dataflow::error::ConnectorError;
use dataflow::predicate::ColumnPredicate;
use dataflow::source::{
    ColumnBounds, Position, Pruning, ReaderContext, Source, Split, SplitReader,
};
use pool::access::{At, PoolAccess};
use pool::manifest::{Block, Definition};

use super::PoolOptions;
use super::columns::{StoredColumns, numbers};
use super::decode::BlockType;
use super::errors::{damaged, refused};
use super::prune::{Directory, Pruned};
use super::reader::{PoolReader, ReadStrips};
use super::version::{Version, listed};
use crate::options::sql_type;

/// A scan of some columns of a table.
pub(super) struct PoolSource {
    table: Arc<PinnedTable>,
    /// The columns of the table that are read.
    projection: Vec<usize>,
    types: Vec<BlockType>,
    schema: SchemaRef,
    prefetch: Option<usize>,
    pruned: Option<Pruned>,
}

/// A table of which a version is pinned, or will be.
struct PinnedTable {
    access: Arc<dyn PoolAccess>,
    name: String,
    at: At,
    columns: StoredColumns,
    /// Whether it was pinned when the statement was planned.
    early: bool,
    version: OnceLock<Arc<Version>>,
}

impl PinnedTable {
    /// The version that is read.
    fn version(&self) -> Result<&Arc<Version>, ConnectorError> {
        if let Some(version) = self.version.get() {
            return Ok(version);
        }
        let version = Version::checked(self.access.pin(&self.name, self.at).map_err(refused)?)?;
        if version.columns.layouts != self.columns.layouts
            || version.columns.schema.fields() != self.columns.schema.fields()
        {
            return Err(damaged(&self.name, "it became another table while the script ran"));
        }
        Ok(self.version.get_or_init(|| Arc::new(version)))
    }
}

impl PoolSource {
    /// Of the version that is there now.
    ///
    /// # Errors
    /// When there is none, or it cannot be read.
    pub(super) fn pinned(
        access: Arc<dyn PoolAccess>,
        options: &PoolOptions,
    ) -> Result<Self, ConnectorError> {
        let version = Version::checked(access.pin(&options.table, options.at).map_err(refused)?)?;
        let columns = version.columns.clone();
        Ok(Self::of(access, options, columns, OnceLock::from(Arc::new(version))))
    }

    /// Of the version that is there when the first split is opened.
    ///
    /// # Errors
    /// When the table cannot be read.
    pub(super) fn later(
        access: Arc<dyn PoolAccess>,
        options: &PoolOptions,
        definition: &Definition,
    ) -> Result<Self, ConnectorError> {
        let columns = StoredColumns::of(definition, &options.table)?;
        Ok(Self::of(access, options, columns, OnceLock::new()))
    }

    fn of(
        access: Arc<dyn PoolAccess>,
        options: &PoolOptions,
        columns: StoredColumns,
        version: OnceLock<Arc<Version>>,
    ) -> Self {
        let (name, at, early) = (options.table.clone(), options.at, version.get().is_some());
        let schema = Arc::clone(&columns.schema);
        let table = PinnedTable { access, name, at, columns, early, version };
        let (prefetch, types) = (options.prefetch, vec![]);
        let table = Arc::new(table);
        Self { table, projection: vec![], types, schema, prefetch, pruned: None }
    }

    /// The columns of a declaration, by their names.
    ///
    /// # Errors
    /// When the table has not got one of them, or it is of another type.
    pub(super) fn projected(
        mut self,
        declared: &TableDef,
        projection: &[usize],
    ) -> Result<Self, ConnectorError> {
        let StoredColumns { schema, layouts } = &self.table.columns;
        let (mut read, mut types) = (vec![], vec![]);
        let mut fields = vec![];
        for &at in projection {
            let field = declared.schema.field(at);
            let refuse = |message: String| ConnectorError::Column {
                column: field.name().clone(),
                message,
                hint: Some(format!("its columns are {}", listed(schema))),
            };
            let Ok(column) = schema.index_of(field.name()) else {
                return Err(refuse(format!("the pool's '{}' does not have it", self.table.name)));
            };
            let data_type = schema.field(column).data_type().clone();
            if &data_type != field.data_type() && !same_stored(&data_type, field.data_type()) {
                let (has, wants) = (sql_type(&data_type), sql_type(field.data_type()));
                return Err(refuse(format!("the pool has it as {has}, and not as {wants}")));
            }
            read.push(column);
            types.push(BlockType { data_type, layout: layouts[column] });
            fields.push(schema.field(column).clone());
        }
        (self.projection, self.types) = (read, types);
        self.schema = Arc::new(arrow::datatypes::Schema::new(fields));
        Ok(self)
    }

    fn strips(&self, version: &Version) -> Arc<[u32]> {
        match &self.pruned {
            Some(pruned) if pruned.within_splits => Arc::clone(&pruned.kept),
            _ => (0..version.manifest().strips.len() as u32).collect(),
        }
    }

    /// Bytes of a strip that are read.
    fn bytes(&self, version: &Version, strip: u32) -> u64 {
        let blocks = &version.manifest().strips[strip as usize].blocks;
        self.projection.iter().map(|&column| u64::from(blocks[column].bytes)).sum()
    }

    /// Cuts strips into at most `parts` runs of about equal bytes.
    fn cut(&self, version: &Version, strips: &[u32], parts: usize) -> Vec<Range<usize>> {
        let rows = |strip: u32| u64::from(version.manifest().strips[strip as usize].rows);
        // A strip costs something even if none of its bytes are read.
        let cost = |strip: u32| self.bytes(version, strip) + rows(strip).max(1);
        let all: u64 = strips.iter().map(|strip| cost(*strip)).sum();
        let parts = parts.clamp(1, strips.len().max(1));
        let (mut ranges, mut from, mut cost_before) = (Vec::with_capacity(parts), 0, 0);
        for (at, strip) in strips.iter().enumerate() {
            cost_before += cost(*strip);
            let reached = cost_before as u128 * parts as u128 / u128::from(all.max(1));
            if reached > ranges.len() as u128 {
                ranges.push(from..at + 1);
                from = at + 1;
            }
        }
        ranges
    }

    /// The blocks of a column of the scan in the strips that are read.
    fn blocks(&self, column: usize) -> Option<Vec<(&Block, u32)>> {
        let version = self.table.version.get().filter(|_| self.table.early)?;
        let kept = self.pruned.as_ref().map(|pruned| &pruned.kept);
        let all = 0..version.manifest().strips.len() as u32;
        let strips: Vec<u32> = kept.map_or_else(|| all.collect(), |kept| kept.to_vec());
        let strip = |at: u32| &version.manifest().strips[at as usize];
        let block = |at: u32| (&strip(at).blocks[self.projection[column]], strip(at).rows);
        Some(strips.into_iter().map(block).collect())
    }

    /// The least and the greatest number of a column, and how many rows have one.
    fn range(&self, column: usize) -> Option<([i64; 2], u64)> {
        let of = &self.types.get(column)?.data_type;
        numbers(of).filter(|_| !of.is_decimal())?;
        let (mut range, mut count) = ([i64::MAX, i64::MIN], 0);
        for (block, rows) in self.blocks(column)? {
            if block.nulls >= rows {
                continue;
            }
            if block.least == i64::MIN || block.greatest == i64::MAX {
                return None;
            }
            range = [range[0].min(block.least), range[1].max(block.greatest)];
            count += u64::from(rows - block.nulls);
        }
        (count > 0).then_some((range, count))
    }
}

/// Whether values of two types are stored as the same.
fn same_stored(stored: &DataType, declared: &DataType) -> bool {
    let field = arrow::datatypes::Field::new("", declared.clone(), true);
    let schema = arrow::datatypes::Schema::new(vec![field]);
    StoredColumns::declared(&schema)
        .is_ok_and(|columns| columns.schema.field(0).data_type() == stored)
}

/// The name of a split.
fn name(part: usize, parts: usize, table: &str) -> String {
    format!("part {part} of {parts} of '{table}'")
}

/// The part and the number of parts in the name of a split.
fn part_of(name: &str) -> Option<(usize, usize)> {
    let mut words = name.strip_prefix("part ")?.split(' ');
    let part = words.next()?.parse().ok()?;
    let parts = words.nth(1)?.parse().ok()?;
    Some((part, parts))
}

impl Source for PoolSource {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }

    fn bounded(&self) -> bool {
        true
    }

    fn splits(
        &self,
        workers: u32,
        time_column: Option<usize>,
    ) -> Result<Vec<Split>, ConnectorError> {
        let parts = workers.max(1) as usize;
        let named = |part: usize| Split {
            number: part,
            name: name(part, parts, &self.table.name),
            ..Split::default()
        };
        if !self.table.early {
            return Ok((0..parts).map(named).collect());
        }
        let version = self.table.version()?;
        let strips = self.strips(version);
        let cut = self.cut(version, &strips, parts);
        let kept = self.pruned.as_ref().map(|pruned| &*pruned.kept);
        let is_kept = |part: &Range<usize>| {
            let mut own = strips[part.clone()].iter();
            kept.is_none_or(|kept| own.any(|strip| kept.binary_search(strip).is_ok()))
        };
        let split = |(at, range): (usize, Range<usize>)| {
            let own = &strips[range];
            let strip = |at: &u32| &version.manifest().strips[*at as usize];
            let least = |column: usize| {
                let block = |at| strip(at).blocks[self.projection[column]];
                own.iter().map(|at| block(at).least).min().filter(|least| *least != i64::MIN)
            };
            Split {
                rows: Some(own.iter().map(|at| u64::from(strip(at).rows)).sum()),
                bytes: Some(own.iter().map(|at| self.bytes(version, *at)).sum()),
                event_time_min: time_column.and_then(least),
                ..named(at)
            }
        };
        let parts = cut.into_iter().enumerate().filter(|(_, part)| is_kept(part));
        Ok(parts.map(split).collect())
    }

    fn bounds(&self, column: usize) -> ColumnBounds {
        self.range(column).map_or_else(ColumnBounds::default, |([least, greatest], _)| {
            ColumnBounds::between(least, greatest)
        })
    }

    /// Where the numbers of a column lie so close together that most of them occur.
    fn distinct(&self, column: usize) -> Option<u64> {
        let ([least, greatest], rows) = self.range(column)?;
        let span = greatest.checked_sub(least)?.checked_add(1)? as u64;
        (span <= rows).then_some(span)
    }

    fn pruned(&self, by: &Pruning) -> Option<Arc<dyn Source>> {
        let version = self.table.version.get().filter(|_| self.table.early)?;
        let directory = Directory {
            manifest: version.manifest(),
            projection: &self.projection,
            types: &self.types,
        };
        let all: Vec<u32> = (0..version.manifest().strips.len() as u32).collect();
        let before = self.pruned.as_ref();
        let from = before.map_or(&all[..], |pruned| &pruned.kept);
        let kept = directory.may_match(from, &by.kept);
        if kept.len() == from.len() {
            return None;
        }
        let pruned = match before {
            None => {
                Pruned { by: by.kept.clone(), kept: kept.into(), within_splits: by.within_splits }
            }
            Some(before) => Pruned {
                by: ColumnPredicate::All(vec![before.by.clone(), by.kept.clone()]),
                kept: kept.into(),
                within_splits: before.within_splits && by.within_splits,
            },
        };
        Some(Arc::new(Self {
            table: Arc::clone(&self.table),
            projection: self.projection.clone(),
            types: self.types.clone(),
            schema: Arc::clone(&self.schema),
            prefetch: self.prefetch,
            pruned: Some(pruned),
        }))
    }

    fn describe(&self) -> Option<String> {
        let name = &self.table.name;
        let Some(version) = self.table.version.get().filter(|_| self.table.early) else {
            return Some(format!("pool '{name}', as the statement before leaves it"));
        };
        let manifest = version.manifest();
        let strips = self.strips(version);
        let bytes: u64 = strips.iter().map(|strip| self.bytes(version, *strip)).sum();
        let (read, all) = (self.projection.len(), manifest.definition.columns.len());
        let strips = match manifest.strips.len() {
            1 => "1 strip".to_owned(),
            strips => format!("{strips} strips"),
        };
        Some(format!(
            "pool '{name}', version {}: {strips}, {} rows; reads {read} of {all} columns, {} \
             bytes; {}",
            manifest.version,
            manifest.rows(),
            bytes,
            version.pinned.blocks.describe(),
        ))
    }

    fn describe_pruning(&self) -> Option<String> {
        let Pruned { by, kept, .. } = self.pruned.as_ref()?;
        let all = self.table.version.get()?.manifest().strips.len();
        Some(format!("strips {} of {all}, by {}", kept.len(), by.describe(&self.schema)))
    }

    fn open(
        &self,
        split: &Split,
        from: Option<&Position>,
        context: &ReaderContext,
    ) -> Result<Box<dyn SplitReader>, ConnectorError> {
        let version = self.table.version()?;
        let strips = self.strips(version);
        let range = part_of(&split.name)
            .and_then(|(part, parts)| self.cut(version, &strips, parts).get(part).cloned());
        // A table with fewer strips than splits has none for some of them.
        let own = range.map_or(&[][..], |range| &strips[range]);
        let read = ReadStrips {
            version: Arc::clone(version),
            strips: own.into(),
            projection: self.projection.as_slice().into(),
            types: self.types.as_slice().into(),
            schema: Arc::clone(&self.schema),
        };
        Ok(Box::new(PoolReader::open(read, split, from, self.prefetch, context)?))
    }
}
