//! Scans of a version: splits are strips of about equal cost together.

use std::sync::{Arc, OnceLock};
use std::task::Waker;

use arrow::datatypes::{DataType, SchemaRef};
use dataflow::connector::TableDef;
use dataflow::costs::ReadCosts;
use dataflow::error::ConnectorError;
use dataflow::peers::PeerCheck;
use dataflow::predicate::ColumnPredicate;
use dataflow::source::{
    BucketColumn, BucketPart, ColumnBounds, NeededRows, NewestVersion, Position, Pruning,
    ReadBlocks, ReaderContext, RowBuckets, SharedReads, Source, Split, SplitReader,
};
use pool::access::{At, PoolAccess};
use pool::manifest::{Block, Buckets, Definition};

use super::PoolOptions;
use super::cache::check_origin;
use super::columns::{StoredColumns, numbers};
use super::costs::{CostBook, ScanCosts};
use super::decode::BlockType;
use super::errors::{damaged, refused};
use super::index::{KeyIndex, KeyLookup, keys_of};
use super::interrupt::Interrupt;
use super::lists::NodeCache;
use super::newest::AskedVersion;
use super::origin::CacheOrigin;
use super::partition::{KeyBuckets, is_led_alike};
use super::prune::{Directory, Pruned};
use super::reader::{PoolReader, ReadStrips};
use super::version::{Version, listed};
use crate::options::sql_type;

/// A scan of some columns of a table.
#[derive(Clone)]
pub(super) struct PoolSource {
    pub(super) table: Arc<PinnedTable>,
    /// The columns of the table that are read.
    pub(super) projection: Vec<usize>,
    types: Vec<BlockType>,
    schema: SchemaRef,
    prefetch: Option<usize>,
    refresh_ns: Option<u64>,
    pub(super) pruned: Option<Pruned>,
    /// The buckets that are read, if not all are: by the number of the bucket column.
    pub(super) cell: Vec<(usize, BucketPart)>,
    pub(super) placed: Option<Placed>,
    /// The rows that joins need, if it listens.
    needed: Option<NeededRows>,
    pub(super) costs: Option<Arc<ScanCosts>>,
    index: Option<KeyIndex>,
}

/// How each worker reads partitions of its own.
#[derive(Debug, Clone, Copy)]
pub(super) struct Placed {
    /// The bucket column that decides, by its number among them.
    pub(super) by: usize,
    pub(super) workers: u32,
}

/// How much of the mean a worker may have to read of its own partitions, in per cent.
const UNEVEN_MAX_PERCENT: u64 = 150;

/// Bytes of its own partitions that a worker may have to read, whatever the others have.
const UNEVEN_BYTES: u64 = 1 << 20;

/// A table of which a version is pinned, or will be.
pub(super) struct PinnedTable {
    pub(super) access: Arc<dyn PoolAccess>,
    pub(super) name: String,
    pub(super) at: At,
    pub(super) columns: StoredColumns,
    /// Whether it was pinned when the statement was planned.
    pub(super) early: bool,
    pub(super) version: OnceLock<Arc<Version>>,
    /// The nodes of lists that this process has read.
    pub(super) nodes: Arc<NodeCache>,
}

impl PinnedTable {
    /// The version that is read.
    pub(super) fn version(&self) -> Result<&Arc<Version>, ConnectorError> {
        if let Some(version) = self.version.get() {
            return Ok(version);
        }
        let pinned = self.access.pin(&self.name, self.at).map_err(refused)?;
        let version = Version::checked(pinned, &self.nodes)?;
        self.check_same(&version)?;
        Ok(self.version.get_or_init(|| Arc::new(version)))
    }

    /// Refuses a version with other columns.
    pub(super) fn check_same(&self, version: &Version) -> Result<(), ConnectorError> {
        if version.columns.layouts != self.columns.layouts
            || version.columns.schema.fields() != self.columns.schema.fields()
        {
            return Err(damaged(&self.name, "it became another table while the script ran"));
        }
        Ok(())
    }
}

impl PeerCheck for PinnedTable {
    fn check(&self) -> Result<(), ConnectorError> {
        // Before a version is pinned there is no lease that could be lost.
        self.version.get().map_or(Ok(()), |version| version.pinned.blocks.check().map_err(refused))
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
        nodes: &Arc<NodeCache>,
    ) -> Result<Self, ConnectorError> {
        let pinned = access.pin(&options.table, options.at).map_err(refused)?;
        let version = Version::checked(pinned, nodes)?;
        let columns = version.columns.clone();
        Ok(Self::of(access, options, columns, OnceLock::from(Arc::new(version)), nodes))
    }

    /// Refuses to be read as a cache of something else.
    ///
    /// # Errors
    /// When it is no cache of this origin.
    pub(super) fn check_origin(&self, origin: &CacheOrigin) -> Result<(), ConnectorError> {
        check_origin(self.table.version()?.manifest(), origin)
    }

    /// Of the version that is there when the first split is opened.
    ///
    /// # Errors
    /// When the table cannot be read.
    pub(super) fn later(
        access: Arc<dyn PoolAccess>,
        options: &PoolOptions,
        definition: &Definition,
        nodes: &Arc<NodeCache>,
    ) -> Result<Self, ConnectorError> {
        let columns = StoredColumns::of(definition, &options.table)?;
        Ok(Self::of(access, options, columns, OnceLock::new(), nodes))
    }

    fn of(
        access: Arc<dyn PoolAccess>,
        options: &PoolOptions,
        columns: StoredColumns,
        version: OnceLock<Arc<Version>>,
        nodes: &Arc<NodeCache>,
    ) -> Self {
        let (name, at, early) = (options.table.clone(), options.at, version.get().is_some());
        let schema = Arc::clone(&columns.schema);
        let nodes = Arc::clone(nodes);
        let table = PinnedTable { access, name, at, columns, early, version, nodes };
        let (prefetch, types) = (options.prefetch, vec![]);
        let table = Arc::new(table);
        Self {
            table,
            projection: vec![],
            types,
            schema,
            prefetch,
            refresh_ns: options.refresh_ns,
            pruned: None,
            cell: vec![],
            placed: None,
            needed: None,
            costs: None,
            index: None,
        }
    }

    /// The same, with the index that a declaration names.
    ///
    /// # Errors
    /// When the table has not got its column.
    pub(super) fn indexed(
        self,
        options: &PoolOptions,
        interrupt: &Interrupt,
    ) -> Result<Self, ConnectorError> {
        let PinnedTable { access, name, columns, .. } = &*self.table;
        let of = (name.as_str(), columns);
        let index = options.index.as_ref().map(|by| KeyIndex::new(access, of, by, interrupt));
        Ok(Self { index: index.transpose()?, ..self })
    }

    /// The lookup of the keys that a predicate names, if there is an index of their column.
    fn lookup(&self, by: &ColumnPredicate, strips: usize) -> Option<Arc<KeyLookup>> {
        let (index, version) = (self.index.as_ref()?, self.table.version.get()?);
        let column = self.projection.iter().position(|at| *at == index.column)?;
        index.lookup(version, &keys_of(by, column)?, strips).map(Arc::new)
    }

    /// The same, whose partitions are measured, and read by what they cost.
    pub(super) fn measured(self, book: &Arc<CostBook>) -> Self {
        let costs = ScanCosts::new(book, &self.table.name, &self.projection);
        Self { costs: Some(Arc::new(costs)), ..self }
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

    fn directory<'a>(&'a self, version: &'a Version) -> Directory<'a> {
        let (projection, types) = (&self.projection, &self.types);
        Directory { manifest: version.manifest(), projection, types }
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

/// Bytes for a reader: `68.7 MiB`.
fn human(bytes: u64) -> String {
    match bytes {
        0..=9_999 => format!("{bytes} B"),
        10_000..=0xff_ffff => format!("{:.1} KiB", bytes as f64 / 1024.0),
        _ => format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20)),
    }
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
        self.cut(workers, time_column, false)
    }

    fn costs(&self) -> Option<Arc<dyn ReadCosts>> {
        self.costs.clone().map(|costs| costs as Arc<dyn ReadCosts>)
    }

    fn splits_by_cost(&self, workers: u32) -> Result<Vec<Split>, ConnectorError> {
        self.cut(workers, None, self.rates(true).is_some())
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
        let all: Vec<u32> = (0..version.manifest().strips.len() as u32).collect();
        let before = self.pruned.as_ref();
        let from = before.map_or(&all[..], |pruned| &pruned.kept);
        let kept = self.directory(version).may_match(from, &by.kept);
        let within_splits = by.within_splits && before.is_none_or(|before| before.within_splits);
        let known = before.and_then(|before| before.keys.clone()).filter(|_| within_splits);
        let new = within_splits && known.is_none();
        let new = new.then(|| self.lookup(&by.kept, kept.len())).flatten();
        if kept.len() == from.len() && new.is_none() {
            return None;
        }
        let by = match before {
            None => by.kept.clone(),
            Some(before) => ColumnPredicate::All(vec![before.by.clone(), by.kept.clone()]),
        };
        let pruned = Pruned { by, kept: kept.into(), within_splits, keys: known.or(new) };
        Some(Arc::new(Self { pruned: Some(pruned), ..self.clone() }))
    }

    fn validate(&self) -> Result<(), ConnectorError> {
        self.index.as_ref().map_or(Ok(()), KeyIndex::check)
    }

    fn is_shared(&self) -> bool {
        true
    }

    fn pulled(&self) -> Option<Arc<dyn Source>> {
        Some(Arc::new(Self { placed: None, ..self.clone() }))
    }

    fn buckets(&self) -> Vec<BucketColumn> {
        let Some(version) = self.table.version.get().filter(|_| self.table.early) else {
            return vec![];
        };
        let by = version.manifest().definition.buckets.iter();
        let column = |by: &Buckets| {
            let read = self.projection.iter().position(|at| *at == usize::from(by.column))?;
            Some(BucketColumn { column: read, bits: by.bits, family: by.family as u8 })
        };
        by.filter_map(column).collect()
    }

    fn row_buckets(&self, column: usize) -> Option<Arc<dyn RowBuckets>> {
        let version = self.table.version.get().filter(|_| self.table.early)?;
        let column = *self.projection.get(column)?;
        let mut buckets = version.manifest().definition.buckets.iter();
        let by = buckets.find(|by| usize::from(by.column) == column)?;
        Some(Arc::new(KeyBuckets(*by)))
    }

    fn shared_reads(&self) -> Option<SharedReads> {
        let version = self.table.version.get().filter(|_| self.table.early)?;
        let servers = version.manifest().holders.len() as u32 + 1;
        Some(SharedReads { servers, is_mapped: version.pinned.blocks.is_mapped() })
    }

    fn in_cell(&self, parts: &[BucketPart]) -> Option<Arc<dyn Source>> {
        let version = self.table.version.get().filter(|_| self.table.early)?;
        let buckets = &version.manifest().definition.buckets;
        let of = |part: &BucketPart| {
            let column = *self.projection.get(part.column)?;
            let by = buckets.iter().position(|by| usize::from(by.column) == column)?;
            Some((by, *part))
        };
        let cell = parts.iter().map(of).collect::<Option<Vec<_>>>()?;
        Some(Arc::new(Self { cell, placed: None, ..self.clone() }))
    }

    fn version(&self) -> Option<(String, u64)> {
        let is_free = self.table.at == At::Newest && self.refresh_ns.is_none();
        let version = self.table.version.get().filter(|_| is_free)?;
        Some((self.table.name.clone(), version.manifest().version))
    }

    fn refresh_ns(&self) -> Option<u64> {
        self.refresh_ns
    }

    fn newest(&self, waker: Waker) -> Option<Box<dyn NewestVersion>> {
        Some(Box::new(AskedVersion::new(self.clone(), waker)))
    }

    /// Leaves out strips of a split when it is opened.
    fn listen(&self, needed: NeededRows) -> Option<Arc<dyn Source>> {
        Some(Arc::new(Self { needed: Some(needed), ..self.clone() }))
    }

    fn placed(&self, workers: u32) -> Option<(Arc<dyn Source>, usize)> {
        let version = self.table.version.get().filter(|_| self.table.early)?;
        let buckets = &version.manifest().definition.buckets;
        let column = |by: &Buckets| {
            let is_led_so = is_led_alike(by.family) && (1_u32 << by.bits).is_multiple_of(workers);
            let read = self.projection.iter().position(|at| *at == usize::from(by.column));
            read.filter(|_| is_led_so)
        };
        let (by, column) =
            buckets.iter().enumerate().find_map(|(at, by)| Some((at, column(by)?)))?;
        let placed = Self { placed: Some(Placed { by, workers }), ..self.clone() };
        let cost = |own: &Vec<u32>| own.iter().map(|at| self.cost(version, *at)).sum::<u64>();
        let costs: Vec<u64> = placed.parts(version, 0, None).iter().map(cost).collect();
        let mean = costs.iter().sum::<u64>() / u64::from(workers);
        let most = (mean.saturating_mul(UNEVEN_MAX_PERCENT) / 100).max(UNEVEN_BYTES);
        let is_even = costs.iter().all(|cost| *cost <= most);
        is_even.then(|| (Arc::new(placed) as Arc<dyn Source>, column))
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
        let lists = match version.nodes {
            None => String::new(),
            Some(1) => " in lists of 1 node".to_owned(),
            Some(nodes) => format!(" in lists of {nodes} nodes"),
        };
        Some(format!(
            "pool '{name}', version {}: {strips}{lists}, {} rows; reads {read} of {all} columns: \
             {}; {}",
            manifest.version,
            manifest.rows(),
            human(bytes),
            version.pinned.blocks.describe(),
        ))
    }

    fn peer_check(&self) -> Option<Arc<dyn PeerCheck>> {
        Some(Arc::clone(&self.table) as Arc<dyn PeerCheck>)
    }

    fn describe_pruning(&self) -> Option<String> {
        let Pruned { by, kept, keys, .. } = self.pruned.as_ref()?;
        let all = self.table.version.get()?.manifest().strips.len();
        let by = by.describe(&self.schema);
        let index = keys.as_ref().map(|keys| format!("; {}", keys.describe()));
        Some(format!("strips {} of {all}, by {by}{}", kept.len(), index.unwrap_or_default()))
    }

    fn open(
        &self,
        split: &Split,
        from: Option<&Position>,
        context: &ReaderContext,
    ) -> Result<Box<dyn SplitReader>, ConnectorError> {
        let version = self.table.version()?;
        let mut own = self.strips_of(version, split);
        let mut pruned = 0;
        if split.number == 0 {
            // The first reader counts what was left out before rows were assigned.
            pruned += version.manifest().strips.len() - self.strips(version).len();
        }
        if let Some(needed) = self.needed.as_ref().and_then(|needed| needed()) {
            let all = own.len();
            own = self.directory(version).may_match(&own, &needed);
            pruned += all - own.len();
            tracing::debug!(split = split.name, strips = all, needed = own.len());
        }
        if let Some(keys) = self.pruned.as_ref().and_then(|pruned| pruned.keys.as_ref()) {
            let all = own.len();
            if let Some(found) = keys.strips(version.manifest().strips.len(), &context.blocks)? {
                own.retain(|strip| found.binary_search(strip).is_ok());
            }
            pruned += all - own.len();
        }
        let pruned = (pruned * self.projection.len()) as u64;
        context.blocks.add(&ReadBlocks { pruned, ..ReadBlocks::default() });
        let meter = self.meter(version, &own);
        let read = ReadStrips {
            version: Arc::clone(version),
            strips: own.into(),
            projection: self.projection.as_slice().into(),
            types: self.types.as_slice().into(),
            schema: Arc::clone(&self.schema),
            meter,
        };
        Ok(Box::new(PoolReader::open(read, split, from, self.prefetch, context)?))
    }
}
