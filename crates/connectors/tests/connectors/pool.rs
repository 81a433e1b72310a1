//! Tables of a pool: what is written is read, by versions, whatever the pool does meanwhile.

use std::collections::BTreeSet;
use std::sync::Arc;

use arrow::array::{
    ArrayRef, AsArray, BinaryArray, BooleanArray, Date32Array, Decimal128Array, Decimal256Array,
    Float32Array, Float64Array, Int8Array, Int16Array, Int32Array, Int64Array, StringArray,
    StringViewArray, Time64MicrosecondArray, TimestampMillisecondArray, TimestampNanosecondArray,
    UInt8Array, UInt16Array, UInt32Array, UInt64Array,
};
use arrow::compute::{concat_batches, filter_record_batch};
use arrow::datatypes::{DataType, Field, Int64Type, Schema, i256};
use arrow::record_batch::RecordBatch;
use connectors::PoolConnector;
use connectors::pool::in_memory::InMemoryPool;
use dataflow::Partitioner;
use dataflow::connector::{Connector, HashBuckets, TableDef, WriteMode};
use dataflow::error::ConnectorError;
use dataflow::predicate::{ColumnPredicate, ColumnRange, RangeEnd};
use dataflow::sink::{Room, Sink, SinkWriter, WriterContext};
use dataflow::source::{Next, Position, Pruning, Source};
use pool::manifest::Codec;

use crate::bed::{context, drain, hint, put, refused, rows, table};

/// A pool in memory, and a connector to it.
fn pool(writers: u32) -> (Arc<InMemoryPool>, PoolConnector) {
    let pool = InMemoryPool::new(writers);
    (Arc::clone(&pool), PoolConnector::new(pool))
}

fn writers(sink: &dyn Sink, count: u32) -> Vec<Box<dyn SinkWriter>> {
    (0..count).map(|worker| sink.open(&WriterContext::of(worker)).unwrap()).collect()
}

fn commit(mut writer: Box<dyn SinkWriter>) -> Result<(), ConnectorError> {
    while writer.drain()? == Room::Full {
        std::thread::yield_now();
    }
    writer.commit()
}

/// Loads batches, one after another by each of `count` writers.
fn load(
    connector: &PoolConnector,
    def: &TableDef,
    mode: WriteMode,
    batches: &[RecordBatch],
    count: u32,
) -> Result<(), ConnectorError> {
    let sink = connector.sink_for(def, mode)?;
    let mut writers = writers(&*sink, count);
    for (at, batch) in batches.iter().enumerate() {
        put(&mut *writers[at % count as usize], batch)?;
    }
    writers.into_iter().try_for_each(commit)
}

/// All rows of all splits.
fn read(source: &dyn Source, workers: u32) -> Result<RecordBatch, ConnectorError> {
    let mut batches = vec![RecordBatch::new_empty(source.schema())];
    for split in source.splits(workers, None)? {
        let mut reader = source.open(&split, None, &context())?;
        let batch = drain(&mut *reader)?;
        if let Some(rows) = split.rows {
            assert_eq!(rows, batch.num_rows() as u64, "{}", split.name);
        }
        batches.extend((batch.num_rows() > 0).then_some(batch));
    }
    Ok(concat_batches(&source.schema(), &batches).unwrap())
}

fn source(connector: &PoolConnector, def: &TableDef) -> Result<Arc<dyn Source>, ConnectorError> {
    crate::bed::source(connector, def)
}

fn sorted(batch: &RecordBatch) -> Vec<String> {
    let mut texts = rows(batch);
    texts.sort();
    texts
}

/// The values of every row but every fifth.
fn numbers(rows: usize) -> impl Iterator<Item = Option<i64>> {
    (0..rows as i64).map(|row| (row % 5 != 3).then_some(row))
}

fn decimals(rows: usize) -> Vec<(&'static str, ArrayRef)> {
    let at = || numbers(rows);
    let decimal = |row: i64| i128::from(row) * 100_003 - 77;
    vec![
        (
            "near",
            Arc::new(
                Decimal128Array::from_iter(at().map(|v| v.map(decimal)))
                    .with_precision_and_scale(15, 2)
                    .unwrap(),
            ),
        ),
        (
            "wide",
            Arc::new(
                Decimal128Array::from_iter(at().map(|v| v.map(|v| i128::MAX / 4 + i128::from(v))))
                    .with_precision_and_scale(38, 3)
                    .unwrap(),
            ),
        ),
        (
            "widest",
            Arc::new(
                Decimal256Array::from_iter(at().map(|v| v.map(|v| i256::from_i128(decimal(v)))))
                    .with_precision_and_scale(60, 5)
                    .unwrap(),
            ),
        ),
    ]
}

/// Rows of all types that are stored, every fifth value NULL; numbers near one another and far.
fn every_type(rows: usize) -> RecordBatch {
    let at = || numbers(rows);
    let text = |row: i64| if row % 7 == 0 { String::new() } else { format!("täxt {}", row * 97) };
    let columns: Vec<(&str, ArrayRef)> = vec![
        ("id", Arc::new(Int64Array::from_iter_values(0..rows as i64))),
        ("i8", Arc::new(Int8Array::from_iter(at().map(|v| v.map(|v| v as i8))))),
        ("i16", Arc::new(Int16Array::from_iter(at().map(|v| v.map(|v| v as i16 - 9000))))),
        ("i32", Arc::new(Int32Array::from_iter(at().map(|v| v.map(|v| (v % 200) as i32 - 50))))),
        ("i64", Arc::new(Int64Array::from_iter(at().map(|v| v.map(|v| v * 1_000_003))))),
        (
            "far",
            Arc::new(Int64Array::from_iter(
                at().map(|v| v.map(|v| if v % 2 == 0 { i64::MIN + v } else { i64::MAX - v })),
            )),
        ),
        ("one", Arc::new(Int32Array::from_iter(at().map(|v| v.map(|_| 42))))),
        ("none", Arc::new(Int32Array::from_iter(at().map(|_| None::<i32>)))),
        ("u8", Arc::new(UInt8Array::from_iter(at().map(|v| v.map(|v| v as u8))))),
        ("u16", Arc::new(UInt16Array::from_iter(at().map(|v| v.map(|v| v as u16))))),
        ("u32", Arc::new(UInt32Array::from_iter(at().map(|v| v.map(|v| u32::MAX - v as u32))))),
        ("u64", Arc::new(UInt64Array::from_iter(at().map(|v| v.map(|v| u64::MAX - v as u64))))),
        ("f32", Arc::new(Float32Array::from_iter(at().map(|v| v.map(|v| v as f32 / 3.0))))),
        (
            "f64",
            Arc::new(Float64Array::from_iter(
                at().map(|v| v.map(|v| if v % 11 == 0 { f64::NAN } else { v as f64 / -7.0 })),
            )),
        ),
        ("truth", Arc::new(BooleanArray::from_iter(at().map(|v| v.map(|v| v % 3 == 0))))),
        ("day", Arc::new(Date32Array::from_iter(at().map(|v| v.map(|v| v as i32 - 4000))))),
        ("time", Arc::new(Time64MicrosecondArray::from_iter(at()))),
        ("ms", Arc::new(TimestampMillisecondArray::from_iter(at().map(|v| v.map(|v| v - 500))))),
        (
            "zoned",
            Arc::new(
                TimestampNanosecondArray::from_iter(at().map(|v| v.map(|v| v << 40)))
                    .with_timezone("Europe/Berlin"),
            ),
        ),
        ("text", Arc::new(StringArray::from_iter(at().map(|v| v.map(text))))),
        ("view", Arc::new(StringViewArray::from_iter(at().map(|v| v.map(text))))),
        (
            "bytes",
            Arc::new(BinaryArray::from_iter(
                at().map(|v| v.map(|v| [0xff, v as u8].repeat(v as usize % 3))),
            )),
        ),
    ];
    let columns = columns.into_iter().chain(decimals(rows));
    let nullable = columns.map(|(name, array)| (name, array, name != "id"));
    RecordBatch::try_from_iter_with_nullable(nullable).unwrap()
}

#[test]
fn rows_of_every_type_are_read_as_they_were_written() {
    for (count, is_slow) in [(0, false), (1, true), (8191, false), (8192, true), (8193, false)] {
        for writers in [1, 2] {
            let (pool, connector) = pool(writers);
            pool.set_slow(is_slow);
            let all = every_type(count);
            let def = table(&all.schema(), &[]);
            let batches: Vec<_> = (0..count.div_ceil(1000))
                .map(|at| all.slice(at * 1000, 1000.min(count - at * 1000)))
                .collect();
            load(&connector, &def, WriteMode::Create, &batches, writers).unwrap();
            let got = read(&*source(&connector, &def).unwrap(), 2).unwrap();
            assert_eq!(got.num_rows(), count);
            assert_eq!(sorted(&got), sorted(&all), "{count} rows, {writers} writers");
            let strips = pool.newest("t").unwrap().strips.len();
            assert!(strips <= count.div_ceil(8192) + writers as usize, "{strips} strips");
        }
    }
}

#[test]
fn numbers_are_stored_short_and_the_directory_knows_them() {
    let (pool, connector) = pool(1);
    let all = every_type(5000);
    let def = table(&all.schema(), &[]);
    load(&connector, &def, WriteMode::Create, std::slice::from_ref(&all), 1).unwrap();
    let manifest = pool.newest("t").unwrap();
    let block = |name: &str| manifest.strips[0].blocks[all.schema().index_of(name).unwrap()];
    assert_eq!((block("id").codec, block("id").bytes), (Codec::Distance(2), 10_000));
    assert_eq!((block("i32").codec, block("one").codec), (Codec::Distance(1), Codec::Constant));
    assert_eq!((block("far").codec, block("u64").codec), (Codec::Plain, Codec::Plain));
    assert_eq!((block("id").least, block("id").greatest), (0, 4999));
    assert_eq!((block("id").nulls, block("none").nulls), (0, 5000));
    let source = source(&connector, &def).unwrap();
    assert_eq!(source.bounds(0).range, Some([0, 4999]));
    assert_eq!((source.distinct(0), source.distinct(4)), (Some(5000), None));
    let at = |name: &str| all.schema().index_of(name).unwrap();
    assert_eq!(source.bounds(at("text")).range, None);
    assert_eq!(source.bounds(at("none")).range, None);
    assert_eq!(source.bounds(at("u64")).range, None);
}

#[test]
fn only_columns_that_are_asked_for_are_read() {
    let (_, connector) = pool(1);
    let all = every_type(700);
    let def = table(&all.schema(), &[("strip.rows", "256")]);
    load(&connector, &def, WriteMode::Create, std::slice::from_ref(&all), 1).unwrap();
    let columns = [19, 0];
    let some = connector.source(&def, &columns).unwrap();
    let got = read(&*some, 3).unwrap();
    assert_eq!(sorted(&got), sorted(&all.project(&columns).unwrap()));
    let none = connector.source(&def, &[]).unwrap();
    let mut count = 0;
    for split in none.splits(2, None).unwrap() {
        assert_eq!(split.bytes, Some(0));
        let mut reader = none.open(&split, None, &context()).unwrap();
        while let Next::Batch(batch) = reader.next(100).unwrap() {
            count += batch.num_rows();
        }
    }
    assert_eq!(count, 700);
    let shown = some.describe().unwrap();
    assert!(shown.contains("version 1: 3 strips, 700 rows; reads 2 of 25 columns"), "{shown}");
}

fn in_buckets(schema: &Arc<Schema>, buckets: &[(&str, u32)]) -> TableDef {
    let by = |&(column, count): &(&str, u32)| HashBuckets { column: column.into(), count };
    let buckets = buckets.iter().map(by).collect();
    TableDef { buckets, ..table(schema, &[("strip.rows", "256")]) }
}

fn equals(column: usize, value: ArrayRef) -> Pruning {
    let kept = ColumnPredicate::Range(ColumnRange::equal(column, value));
    Pruning { kept, within_splits: true }
}

#[test]
fn strips_are_left_out_and_no_row_that_matches() {
    let (pool, connector) = pool(2);
    let all = every_type(6000);
    let schema = all.schema();
    let def = in_buckets(&schema, &[("i64", 8), ("text", 2)]);
    load(&connector, &def, WriteMode::Create, &[all.slice(0, 3000), all.slice(3000, 3000)], 2)
        .unwrap();
    let strips = pool.newest("t").unwrap().strips.len();
    let source = source(&connector, &def).unwrap();
    let matching = |by: &Pruning, batch: &RecordBatch| {
        let column = |at: usize| Arc::clone(batch.column(at));
        let kept = by.kept.matches(&column, batch.num_rows()).unwrap();
        sorted(&filter_record_batch(batch, &BooleanArray::new(kept, None)).unwrap())
    };
    let one = |value: i64| Arc::new(Int64Array::from(vec![value])) as ArrayRef;
    let end = |value| Some(RangeEnd { value: one(value), inclusive: true });
    let text = Arc::new(StringArray::from(vec!["täxt 97"])) as ArrayRef;
    let ids = ColumnRange { column: 0, from: end(100), to: end(300) };
    let ids = ColumnPredicate::Range(ids);
    let cases = [
        (equals(4, one(1_000_003 * 12)), strips / 4),
        (equals(schema.index_of("text").unwrap(), text), strips / 2 + 2),
        (Pruning { kept: ids.clone(), within_splits: true }, strips / 2),
        (Pruning { kept: ids, within_splits: false }, strips),
        (equals(0, one(-1)), 0),
        (Pruning { kept: ColumnPredicate::Null(6), within_splits: true }, strips),
        (Pruning { kept: ColumnPredicate::NotNull(7), within_splits: true }, 0),
    ];
    for (by, most) in cases {
        let Some(pruned) = source.pruned(&by) else {
            assert_eq!(most, strips, "{by:?}");
            continue;
        };
        for workers in [1, 3, 100] {
            let got = read(&*pruned, workers).unwrap();
            assert_eq!(matching(&by, &got), matching(&by, &all), "{by:?}");
        }
        // A join that listens leaves out the same rows when a split is opened.
        let kept = by.kept.clone();
        let listening = source.listen(Arc::new(move || Some(kept.clone()))).unwrap();
        let mut got = vec![];
        for split in listening.splits(3, None).unwrap() {
            let mut reader = listening.open(&split, None, &context()).unwrap();
            let batch = drain(&mut *reader).unwrap();
            got.extend(if batch.num_rows() > 0 {
                matching(&by, &batch)
            } else {
                Default::default()
            });
        }
        got.sort();
        assert_eq!(got, matching(&by, &all), "{by:?}");
        let shown = pruned.describe_pruning().unwrap();
        let kept: usize = shown.split(' ').nth(1).unwrap().parse().unwrap();
        assert!(kept <= most, "{shown}: more than {most}");
        assert!(shown.starts_with(&format!("strips {kept} of {strips}, by ")), "{shown}");
    }
}

#[test]
fn equal_values_of_other_widths_lie_in_partitions_of_one_number() {
    let numbers = 0..2000_i64;
    let narrow = Int32Array::from_iter(numbers.clone().map(|v| (v % 9 > 0).then_some(v as i32)));
    let wide = Int64Array::from_iter(numbers.clone().map(|v| (v % 9 > 0).then_some(v)));
    let short = Decimal128Array::from_iter_values(numbers.clone().map(|v| i128::from(v) * 10));
    let long = Decimal128Array::from_iter_values(numbers.map(|v| i128::from(v) * 1000));
    let scaled = |of: Decimal128Array, scale| of.with_precision_and_scale(20, scale).unwrap();
    let pairs: [[ArrayRef; 2]; 2] = [
        [Arc::new(narrow), Arc::new(wide)],
        [Arc::new(scaled(short, 1)), Arc::new(scaled(long, 3))],
    ];
    for pair in pairs {
        let [one, other] = pair.map(|key| {
            let (pool, connector) = pool(1);
            let id: ArrayRef = Arc::new(Int64Array::from_iter_values(0..2000));
            let batch = crate::bed::batch(&[("k", key), ("id", id)]);
            let def = in_buckets(&batch.schema(), &[("k", 16)]);
            load(&connector, &def, WriteMode::Create, &[batch], 1).unwrap();
            let manifest = pool.newest("t").unwrap();
            let source = connector.source(&def, &[1]).unwrap();
            let rows = read(&*source, 1).unwrap();
            let ids = rows.column(0).as_primitive::<Int64Type>().values().to_vec();
            let mut from = 0;
            let partitions = manifest.partitions.windows(2).map(|ends| {
                let strips = &manifest.strips[ends[0] as usize..ends[1] as usize];
                let rows: u32 = strips.iter().map(|strip| strip.rows).sum();
                from += rows as usize;
                ids[from - rows as usize..from].iter().copied().collect::<BTreeSet<i64>>()
            });
            partitions.collect::<Vec<_>>()
        });
        assert_eq!(one.len(), 16);
        assert!(one.iter().all(|rows| !rows.is_empty()));
        assert_eq!(one, other);
    }
}

#[test]
fn each_worker_can_read_the_rows_that_an_exchange_would_lead_to_it() {
    let all = every_type(6000);
    let schema = all.schema();
    for key in ["id", "i16", "i32", "u32", "u64", "day", "time", "zoned", "text", "bytes"] {
        let (_, connector) = pool(1);
        let def = in_buckets(&schema, &[("near", 2), (key, 8)]);
        load(&connector, &def, WriteMode::Create, std::slice::from_ref(&all), 1).unwrap();
        let at = schema.index_of(key).unwrap();
        let source = connector.source(&def, &[0, at]).unwrap();
        assert!(source.placed(3).is_none() && source.placed(16).is_none());
        for workers in [2, 4, 8] {
            let (placed, column) = source.placed(workers).unwrap();
            assert_eq!(placed.schema().field(column).name(), key);
            let mut rows = 0;
            for (worker, split) in placed.splits(workers, None).unwrap().iter().enumerate() {
                let mut reader = placed.open(split, None, &context()).unwrap();
                let batch = drain(&mut *reader).unwrap();
                let mut owners = vec![];
                let keys = [Arc::clone(batch.column(column))];
                Partitioner::new(workers).owners_of(&keys, &mut owners).unwrap();
                assert!(owners.iter().all(|owner| *owner == worker as u32), "{key}, {workers}");
                rows += batch.num_rows();
            }
            assert_eq!(rows, 6000);
            assert!(placed.splits(workers + 1, None).is_err());
        }
    }
    // Without the column, and with one of which most rows have one value, splits are even.
    let (_, connector) = pool(1);
    let rows = 400_000;
    let skewed: ArrayRef = Arc::new(Int64Array::from_iter_values((0..rows).map(|v| v % 20 / 19)));
    let far: ArrayRef = Arc::new(Int64Array::from_iter_values((0..rows).map(|v| v << 40)));
    let batch = crate::bed::batch(&[("k", skewed), ("far", far)]);
    let by = HashBuckets { column: "k".into(), count: 4 };
    let def = TableDef { buckets: vec![by], ..table(&batch.schema(), &[]) };
    load(&connector, &def, WriteMode::Create, &[batch], 1).unwrap();
    assert!(source(&connector, &def).unwrap().placed(2).is_none());
    assert!(connector.source(&def, &[1]).unwrap().placed(2).is_none());
}

#[test]
fn versions_follow_one_another_and_readers_keep_theirs() {
    let (_, connector) = pool(1);
    let all = every_type(900);
    let def = table(&all.schema(), &[]);
    load(&connector, &def, WriteMode::Create, &[all.slice(0, 300)], 1).unwrap();
    let first = source(&connector, &def).unwrap();
    load(&connector, &def, WriteMode::Insert, &[all.slice(300, 300)], 1).unwrap();
    let second = source(&connector, &def).unwrap();
    load(&connector, &def, WriteMode::Overwrite, &[all.slice(600, 300)], 1).unwrap();
    let third = source(&connector, &def).unwrap();
    for (source, from, rows) in [(first, 0, 300), (second, 0, 600), (third, 600, 300)] {
        assert_eq!(sorted(&read(&*source, 2).unwrap()), sorted(&all.slice(from, rows)));
    }
    let at = |version: &str| source(&connector, &table(&all.schema(), &[("version", version)]));
    assert_eq!(read(&*at("2").unwrap(), 1).unwrap().num_rows(), 600);
    let error = refused(at("7"));
    assert!(error.to_string().contains("has no version 7"), "{error}");
    let error = refused(load(&connector, &def, WriteMode::Create, &[], 1));
    assert!(error.to_string().contains("has a table 't' already"), "{error}");
    // The columns come from the pool where a table declares none.
    let open = connector.declare(&table(&Arc::new(Schema::empty()), &[])).unwrap().unwrap();
    assert_eq!(open.fields().len(), all.num_columns());
}

#[test]
fn a_table_that_is_declared_is_made_by_the_first_statement_that_writes_it() {
    let (pool, connector) = pool(2);
    let all = every_type(40);
    for mode in [WriteMode::Insert, WriteMode::Overwrite] {
        let name = format!("{mode:?}");
        let def = TableDef { name: name.clone(), ..table(&all.schema(), &[]) };
        load(&connector, &def, mode, &[all.slice(0, 20), all.slice(20, 20)], 2).unwrap();
        load(&connector, &def, WriteMode::Insert, std::slice::from_ref(&all), 2).unwrap();
        assert_eq!(pool.newest(&name).unwrap().rows(), 80);
    }
}

#[test]
fn a_scan_sees_what_a_statement_before_it_loads() {
    let (_, connector) = pool(1);
    let all = every_type(500);
    let def = table(&all.schema(), &[]);
    let sink = connector.sink_for(&def, WriteMode::Create).unwrap();
    let source = source(&connector, &def).unwrap();
    assert_eq!(source.splits(3, None).unwrap().len(), 3);
    let mut writers = writers(&*sink, 1);
    put(&mut *writers[0], &all).unwrap();
    writers.into_iter().try_for_each(commit).unwrap();
    assert_eq!(sorted(&read(&*source, 3).unwrap()), sorted(&all));
    drop(sink);
    let shown = self::source(&connector, &def).unwrap().describe().unwrap();
    assert!(shown.contains("version 1"), "{shown}");
}

#[test]
fn a_load_that_fails_leaves_the_version_that_was_there() {
    let (pool, connector) = pool(2);
    let all = every_type(3000);
    let def = table(&all.schema(), &[("strip.rows", "256")]);
    load(&connector, &def, WriteMode::Create, std::slice::from_ref(&all), 2).unwrap();
    pool.fail_after(Some(3));
    let error = refused(load(&connector, &def, WriteMode::Insert, std::slice::from_ref(&all), 2));
    assert!(error.to_string().contains("the pool is full"), "{error}");
    assert!(hint(&error).contains("--bytes"), "{}", hint(&error));
    pool.fail_after(None);
    // One of two writers is dropped before it has committed.
    let sink = connector.sink_for(&def, WriteMode::Overwrite).unwrap();
    let mut both = writers(&*sink, 2);
    put(&mut *both[0], &all.slice(0, 10)).unwrap();
    drop(both.pop());
    refused(commit(both.remove(0)));
    assert_eq!(pool.newest("t").unwrap().version, 1);
    assert_eq!(sorted(&read(&*source(&connector, &def).unwrap(), 2).unwrap()), sorted(&all));
}

#[test]
fn a_split_can_be_opened_at_each_position() {
    let (pool, connector) = pool(1);
    let all = every_type(1500);
    let def = table(&all.schema(), &[("strip.rows", "256")]);
    load(&connector, &def, WriteMode::Create, std::slice::from_ref(&all), 1).unwrap();
    pool.set_slow(true);
    let source = source(&connector, &def).unwrap();
    for split in source.splits(2, None).unwrap() {
        let whole = rows(&drain(&mut *source.open(&split, None, &context()).unwrap()).unwrap());
        let mut reader = source.open(&split, None, &context()).unwrap();
        let mut given = 0;
        loop {
            let from = Position::from_bytes(&reader.position().to_bytes()).unwrap();
            let mut rest = source.open(&split, Some(&from), &context()).unwrap();
            assert_eq!(rows(&drain(&mut *rest).unwrap()), whole[given..]);
            match reader.next(100).unwrap() {
                Next::Batch(batch) => given += batch.num_rows(),
                Next::Pending | Next::Wait { .. } => {}
                Next::End => break,
            }
        }
        assert_eq!(given, whole.len());
        let beyond = Position::new("pool", 1, &split.name, &[1, 99, 0]);
        assert!(source.open(&split, Some(&beyond), &context()).is_err());
    }
}

#[test]
fn what_a_stranger_wrote_is_refused_and_never_believed() {
    let all = every_type(600);
    let def = table(&all.schema(), &[("strip.rows", "256")]);
    let loaded = || {
        let (pool, connector) = pool(1);
        load(&connector, &def, WriteMode::Create, std::slice::from_ref(&all), 1).unwrap();
        (pool, connector)
    };
    let column = |name: &str| all.schema().index_of(name).unwrap();
    // Bytes of blocks: any are an error or rows, and never a crash.
    for byte in [0x00, 0x7f, 0x80, 0xff] {
        let (pool, connector) = loaded();
        pool.damage("t", |_, bytes| bytes.fill(byte));
        let source = source(&connector, &def).unwrap();
        let got = read(&*source, 1);
        assert!(got.is_err() || byte == 0, "{byte}");
    }
    let text = column("text");
    let (pool, connector) = loaded();
    let at = pool.newest("t").unwrap().strips[0].blocks[text].at.offset as usize;
    pool.damage("t", |_, bytes| {
        let from = at.min(bytes.len());
        bytes[from..].iter_mut().skip(257 * 4).for_each(|byte| *byte |= 0x80);
    });
    let only = connector.source(&def, &[text]).unwrap();
    let error = refused(read(&*only, 1));
    assert!(error.to_string().contains("strip 0"), "{error}");
    // Manifests whose parts do not fit together.
    type Damage = fn(&mut pool::manifest::Manifest);
    let damages: [Damage; 9] = [
        |of| of.strips[0].blocks.truncate(3),
        |of| of.strips[0].rows = 8192 + 1,
        |of| of.strips[1].rows += 1,
        |of| of.strips[0].blocks.iter_mut().for_each(|block| block.bytes = block.bytes.min(10)),
        |of| of.strips[2].blocks[0].nulls = 1,
        |of| of.partitions = vec![0],
        |of| of.partitions[1] = 1,
        |of| of.definition.schema.truncate(20),
        |of| of.definition.columns.rotate_left(1),
    ];
    for (at, damage) in damages.into_iter().enumerate() {
        let (pool, connector) = loaded();
        pool.damage("t", |manifest, _| {
            // It is called for each extent.
            if manifest.version == 1 {
                damage(manifest);
                manifest.version = 9;
            }
        });
        let result = source(&connector, &def).and_then(|source| read(&*source, 1));
        assert!(result.is_err(), "damage {at}");
    }
}

#[test]
fn errors_name_what_to_write_instead() {
    let (_, connector) = pool(1);
    let all = every_type(10);
    load(&connector, &table(&all.schema(), &[]), WriteMode::Create, std::slice::from_ref(&all), 1)
        .unwrap();
    let empty = Arc::new(Schema::empty());
    let missing = refused(connector.declare(&table(&empty, &[("table", "tt")])));
    assert_eq!(hint(&missing), "did you mean 't'?");
    let list = Field::new_list_field(DataType::Int32, true);
    let list = Schema::new(vec![Field::new("l", DataType::List(Arc::new(list)), true)]);
    let error = refused(connector.declare(&table(&Arc::new(list), &[])));
    assert_eq!(error.to_string(), "column 'l': a pool does not store ARRAY<INT>");
    let by_double = in_buckets(&all.schema(), &[("f64", 4)]);
    let error = refused(connector.declare(&by_double));
    assert_eq!(error.to_string(), "column 'f64': rows are not distributed by a DOUBLE");
    let long = "t".repeat(256);
    let wrong = [("strip.rows", "9000"), ("strip.rows", "8"), ("prefetch", "65"), ("table", &long)];
    for (key, value) in wrong {
        assert!(connector.declare(&table(&all.schema(), &[(key, value)])).is_err(), "{key}");
    }
    let other = Arc::new(Schema::new(vec![Field::new("id", DataType::Utf8, true)]));
    let error = refused(source(&connector, &table(&other, &[])));
    assert!(error.to_string().contains("has it as BIGINT, and not as VARCHAR"), "{error}");
    let error = refused(connector.sink_for(&table(&other, &[]), WriteMode::Insert));
    assert!(error.to_string().contains("has other columns"), "{error}");
    let absent = PoolConnector::absent();
    let error = refused(absent.declare(&table(&all.schema(), &[])));
    assert!(hint(&error).contains("millstream memory --bytes 8GiB"), "{}", hint(&error));
}
