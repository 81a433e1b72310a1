//! Indexes of keys: with one, a scan gives the rows of its keys that it gives without, and reads
//! the strips that have them.

use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, BinaryArray, Date32Array, Decimal128Array, Int16Array, Int64Array,
    StringArray, TimestampMillisecondArray, UInt64Array,
};
use arrow::compute::{concat_batches, filter_record_batch};
use arrow::datatypes::{Int64Type, SchemaRef};
use arrow::record_batch::RecordBatch;
use connectors::PoolConnector;
use connectors::pool::in_memory::InMemoryPool;
use dataflow::connector::{Connector, TableDef, WriteMode};
use dataflow::error::ConnectorError;
use dataflow::predicate::{ColumnPredicate, ColumnRange, RangeEnd, in_order};
use dataflow::sink::{Room, WriterContext};
use dataflow::source::{Pruning, ReadBlocks, Source};

use crate::bed::{batch, context, drain, hint, put, rows, table};

const ROWS: i64 = 20_000;

fn pool() -> (Arc<InMemoryPool>, PoolConnector) {
    let pool = InMemoryPool::new(1);
    (Arc::clone(&pool), PoolConnector::new(pool))
}

/// Strips of 256 rows, each of which has keys from everywhere.
fn def(schema: &SchemaRef, index: &str) -> TableDef {
    table(schema, &[("strip.rows", "256"), ("index", index)])
}

/// A number far from that of the row before; every seventh has none.
fn scattered(row: i64) -> Option<i64> {
    (row % 7 != 3).then_some((row * 7_919) % (ROWS / 2) * 3)
}

/// Rows whose columns all have keys of the same rows: each twice, or not at all.
fn keyed(count: i64) -> RecordBatch {
    let keys = || (0..count).map(scattered);
    let text = |of: i64| format!("key {of}");
    let decimals = Decimal128Array::from_iter(keys().map(|of| of.map(|of| i128::from(of) * 10)));
    let decimals = decimals.with_precision_and_scale(30, 2).unwrap();
    let columns: Vec<(&str, ArrayRef)> = vec![
        ("row", Arc::new(Int64Array::from_iter_values(0..count))),
        ("number", Arc::new(Int64Array::from_iter(keys()))),
        ("short", Arc::new(Int16Array::from_iter(keys().map(|of| of.map(|of| of as i16))))),
        ("high", Arc::new(UInt64Array::from_iter(keys().map(|of| of.map(|of| !(of as u64)))))),
        ("day", Arc::new(Date32Array::from_iter(keys().map(|of| of.map(|of| of as i32))))),
        ("at", Arc::new(TimestampMillisecondArray::from_iter(keys()))),
        ("text", Arc::new(StringArray::from_iter(keys().map(|of| of.map(text))))),
        ("bytes", Arc::new(BinaryArray::from_iter(keys().map(|of| of.map(text))))),
        ("decimal", Arc::new(decimals)),
    ];
    batch(&columns)
}

fn load(
    connector: &PoolConnector,
    def: &TableDef,
    mode: WriteMode,
    rows: &RecordBatch,
) -> Result<(), ConnectorError> {
    let mut writer = connector.sink_for(def, mode)?.open(&WriterContext::of(0))?;
    put(&mut *writer, rows)?;
    while writer.drain()? == Room::Full {
        std::thread::yield_now();
    }
    writer.commit()
}

fn source(connector: &PoolConnector, def: &TableDef) -> Arc<dyn Source> {
    let all: Vec<usize> = (0..def.schema.fields().len()).collect();
    connector.source(def, &all).unwrap()
}

fn equal(column: usize, value: ArrayRef) -> ColumnPredicate {
    let end = || Some(RangeEnd { value: Arc::clone(&value), inclusive: true });
    ColumnPredicate::Range(ColumnRange { column, from: end(), to: end() })
}

/// The rows that match, and the blocks that were read to find them.
fn matching(
    source: &Arc<dyn Source>,
    kept: &ColumnPredicate,
    workers: u32,
) -> Result<(RecordBatch, ReadBlocks), ConnectorError> {
    let by = Pruning { kept: kept.clone(), within_splits: true };
    let pruned = source.pruned(&by).unwrap_or_else(|| Arc::clone(source));
    pruned.validate()?;
    let context = context();
    let mut found = vec![RecordBatch::new_empty(source.schema())];
    for split in pruned.splits(workers, None)? {
        let rows = drain(&mut *pruned.open(&split, None, &context)?)?;
        if rows.num_rows() > 0 {
            let matches = kept.matches(&|at| Arc::clone(rows.column(at)), rows.num_rows()).unwrap();
            found.push(filter_record_batch(&rows, &matches.into()).unwrap());
        }
    }
    let read = context.blocks.take().unwrap_or_default();
    Ok((concat_batches(&source.schema(), &found).unwrap(), read))
}

fn sorted(batch: &RecordBatch) -> Vec<String> {
    let mut texts = rows(batch);
    texts.sort();
    texts
}

#[test]
fn rows_of_a_key_are_those_of_a_scan_without_an_index() {
    let all = keyed(ROWS);
    for column in 1..all.num_columns() {
        let name = all.schema().field(column).name().clone();
        let (_, connector) = pool();
        let with = def(&all.schema(), &name);
        let without = table(&all.schema(), &[]);
        load(&connector, &with, WriteMode::Create, &all).unwrap();
        let strips = (ROWS as usize).div_ceil(256);
        let mut blocks = 0;
        for row in [0, 1, 3, 500, 9_999, 10_000, ROWS - 1] {
            let key = all.column(column).slice(row as usize, 1);
            // NULL is equal to nothing, and no literal of a filter.
            let Some(keys) = in_order(&key).filter(|keys| !keys.is_empty()) else { continue };
            let equal = equal(column, keys);
            for workers in [1, 3] {
                let (expected, _) =
                    matching(&source(&connector, &without), &equal, workers).unwrap();
                let (found, read) = matching(&source(&connector, &with), &equal, workers).unwrap();
                assert!(expected.num_rows() >= 1, "{name}, row {row}");
                assert_eq!(sorted(&found), sorted(&expected), "{name}, row {row}");
                blocks = blocks.max(read.blocks);
            }
        }
        // Two rows of a key, but of `short`, where many keys are the same.
        let most = if name == "short" { 8 } else { 2 } * all.num_columns() as u64 + 8;
        assert!(blocks <= most, "{name}: {blocks} blocks of {} are read", strips * 9);
    }
}

#[test]
fn lists_of_keys_and_keys_that_are_not_there() {
    let all = keyed(ROWS);
    let (_, connector) = pool();
    let with = def(&all.schema(), "number");
    load(&connector, &with, WriteMode::Create, &all).unwrap();
    let source = source(&connector, &with);
    let of = |keys: &[i64]| {
        let values = in_order(&(Arc::new(Int64Array::from(keys.to_vec())) as ArrayRef)).unwrap();
        ColumnPredicate::In { column: 1, values }
    };
    let is = |row: &i64, keys: &[i64]| scattered(*row).is_some_and(|key| keys.contains(&key));
    let few: Vec<i64> = (0..9).map(|at| at * 300).collect();
    let many: Vec<i64> = (0..6_000).map(|at| at * 3).collect();
    for (keys, most) in [(&few[..], 300), (&[10_000, 20_000, 4_001][..], 8), (&many[..], u64::MAX)]
    {
        let expected: Vec<i64> = (0..ROWS).filter(|row| is(row, keys)).collect();
        let either = ColumnPredicate::Any(keys.iter().map(|key| of(&[*key])).collect());
        let and = ColumnPredicate::All(vec![ColumnPredicate::NotNull(0), of(keys)]);
        for kept in [of(keys), either, and] {
            let (found, read) = matching(&source, &kept, 2).unwrap();
            let mut found = found.column(0).as_primitive::<Int64Type>().values().to_vec();
            found.sort_unstable();
            assert_eq!(found, expected, "{} keys", keys.len());
            assert!(read.blocks <= most, "{} keys: {read:?}", keys.len());
        }
    }
    // A key of one side of an OR alone decides nothing.
    let or = ColumnPredicate::Any(vec![of(&[0]), ColumnPredicate::Null(1)]);
    let (found, _) = matching(&source, &or, 1).unwrap();
    let expected = (0..ROWS).filter(|row| scattered(*row).is_none_or(|key| key == 0)).count();
    assert_eq!(found.num_rows(), expected);
}

#[test]
fn small_tables_and_each_new_version_of_a_table() {
    let schema = keyed(0).schema();
    let (pool, connector) = pool();
    let with = def(&schema, "number");
    let index = "t (index of number)";
    assert_eq!(with.name, "t");
    load(&connector, &with, WriteMode::Create, &keyed(0)).unwrap();
    let count = |connector: &PoolConnector, key: i64| {
        let kept = equal(1, Arc::new(Int64Array::from(vec![key])));
        matching(&source(connector, &with), &kept, 1).unwrap().0.num_rows()
    };
    assert_eq!(count(&connector, 0), 0);
    load(&connector, &with, WriteMode::Overwrite, &keyed(1)).unwrap();
    assert_eq!((count(&connector, 0), count(&connector, 3)), (1, 0));
    assert!(pool.newest(index).is_none(), "strips are few");
    // Each version has an index of its own, which is read by another process, too.
    for version in 1..4 {
        load(&connector, &with, WriteMode::Overwrite, &keyed(ROWS)).unwrap();
        load(&connector, &with, WriteMode::Insert, &keyed(700)).unwrap();
        let key = scattered(650).unwrap();
        let expected = |row: &i64| scattered(*row) == Some(key);
        let expected = (0..ROWS).chain(0..700).filter(expected).count();
        for connector in [&connector, &PoolConnector::new(Arc::<InMemoryPool>::clone(&pool))] {
            assert_eq!(count(connector, key), expected);
            assert_eq!(pool.newest(index).unwrap().version, version);
        }
    }
    // A statement on the version before reads without it, and leaves it as it is.
    let mut before = with.clone();
    before.options.insert("version".into(), "6".into());
    let kept = equal(1, Arc::new(Int64Array::from(vec![3])));
    let expected = (0..ROWS).filter(|row| scattered(*row) == Some(3)).count();
    let found = matching(&source(&connector, &before), &kept, 1).unwrap().0;
    assert_eq!(found.num_rows(), expected);
    assert_eq!(pool.newest(index).unwrap().version, 3);
}

#[test]
fn an_index_that_cannot_be_loaded_or_read() {
    let all = keyed(ROWS);
    let (pool, connector) = pool();
    let with = def(&all.schema(), "number");
    load(&connector, &with, WriteMode::Create, &all).unwrap();
    let kept = equal(1, Arc::new(Int64Array::from(vec![300])));
    let expected = (0..ROWS).filter(|row| scattered(*row) == Some(300)).count();
    // Without room for it the table is read as it is.
    pool.fail_after(Some(1));
    let (found, read) = matching(&source(&connector, &with), &kept, 1).unwrap();
    assert_eq!(found.num_rows(), expected);
    assert!(read.blocks > 300, "{read:?}");
    pool.fail_after(None);
    let (found, read) = matching(&source(&connector, &with), &kept, 1).unwrap();
    assert_eq!(found.num_rows(), expected);
    assert!(read.blocks < 40, "{read:?}");
    // Leaves that name strips which the table has not got, and bytes that are cut.
    let name = "t (index of number)";
    pool.damage(name, |manifest, _| {
        for leaf in &mut manifest.strips {
            leaf.blocks[1].least = i64::from(i32::MAX) - 9;
        }
    });
    let error = matching(&source(&connector, &with), &kept, 1).unwrap_err().to_string();
    assert!(error.contains(name) && error.contains("names a strip beyond"), "{error}");
    pool.damage(name, |manifest, _| {
        for leaf in &mut manifest.strips {
            leaf.rows = 8_000;
        }
    });
    let error = matching(&source(&connector, &with), &kept, 1).unwrap_err().to_string();
    assert!(error.contains(name) && error.contains("a block of"), "{error}");
    // Another table of that name is not taken for the index, and not written over.
    pool.damage(name, |manifest, _| manifest.origin = None);
    let (found, _) = matching(&source(&connector, &with), &kept, 1).unwrap();
    assert_eq!(found.num_rows(), expected);
    assert!(pool.newest(name).unwrap().origin.is_none());
}

#[test]
fn a_column_that_has_no_index_is_refused_with_what_to_do() {
    let floats: ArrayRef = Arc::new(arrow::array::Float64Array::from(vec![1.5]));
    let all = batch(&[("number", Arc::new(Int64Array::from(vec![1])) as ArrayRef), ("x", floats)]);
    let (_, connector) = pool();
    load(&connector, &table(&all.schema(), &[]), WriteMode::Create, &all).unwrap();
    for (index, hints) in [("numbr", "'number'"), ("x", "whole numbers")] {
        let with = def(&all.schema(), index);
        let errors = [
            connector.declare(&with).err(),
            connector.source(&with, &[0]).err(),
            connector.sink_for(&with, WriteMode::Insert).err(),
        ];
        for error in errors {
            let error = error.expect("it is refused");
            let ConnectorError::Option { key, .. } = &error else { panic!("{error}") };
            assert!(key == "index" && hint(&error).contains(hints), "{error}");
        }
    }
}
