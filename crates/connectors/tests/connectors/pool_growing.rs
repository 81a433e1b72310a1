//! Tables of a pool that grow: whatever the versions, each has rows that were written, once, and
//! the last has them all.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::array::{Int64Array, RecordBatch, StringArray};
use arrow::compute::concat_batches;
use arrow::datatypes::{DataType, Field, Schema};
use connectors::PoolConnector;
use connectors::pool::in_memory::InMemoryPool;
use dataflow::connector::{Connector, HashBuckets, TableDef};
use dataflow::sink::{Room, SinkWriter, WriterContext};
use pool::manifest::Manifest;

use crate::bed::{context, drain, hint, put, refused, rows, source, table};

const STRIP_ROWS: usize = 256;

/// Numbers from `from` on, with their texts.
fn batch(from: i64, count: i64) -> RecordBatch {
    let fields = [Field::new("n", DataType::Int64, true), Field::new("t", DataType::Utf8, true)];
    let numbers = Int64Array::from_iter_values(from..from + count);
    let texts = StringArray::from_iter_values((from..from + count).map(|n| format!("text {n}")));
    let schema = Arc::new(Schema::new(fields.to_vec()));
    RecordBatch::try_new(schema, vec![Arc::new(numbers), Arc::new(texts)]).unwrap()
}

fn growing(buckets: u32, options: &[(&str, &str)]) -> TableDef {
    let options = [&[("strip.rows", "256"), ("commit.interval", "1 h")], options].concat();
    by_number(buckets, table(&batch(0, 1).schema(), &options))
}

/// The table, cut into buckets by its column `n`.
pub(crate) fn by_number(buckets: u32, table: TableDef) -> TableDef {
    let by = HashBuckets { column: "n".into(), count: buckets };
    let buckets = if buckets > 1 { vec![by] } else { vec![] };
    TableDef { buckets, ..table }
}

/// Goes on until the writers take rows.
fn settle(writers: &mut [Box<dyn SinkWriter>]) {
    for writer in writers {
        while writer.room() == Room::Full {}
        writer.flush().unwrap();
        while writer.room() == Room::Full {}
    }
}

fn end(writers: Vec<Box<dyn SinkWriter>>) {
    for mut writer in writers {
        while writer.drain().unwrap() == Room::Full {}
        writer.commit().unwrap();
    }
}

/// The rows of the newest version, sorted.
pub(crate) fn newest(connector: &PoolConnector, def: &TableDef) -> Vec<String> {
    let source = source(connector, def).unwrap();
    let mut batches = vec![RecordBatch::new_empty(source.schema())];
    for split in source.splits(2, None).unwrap() {
        let mut reader = source.open(&split, None, &context()).unwrap();
        let rows = drain(&mut *reader).unwrap();
        batches.extend((rows.num_rows() > 0).then_some(rows));
    }
    let mut rows = rows(&concat_batches(&source.schema(), &batches).unwrap());
    rows.sort();
    rows
}

/// Strips that are not full, by partition.
fn short_strips(manifest: &Manifest) -> BTreeMap<usize, usize> {
    let mut short = BTreeMap::new();
    for partition in 0..manifest.partitions.len() - 1 {
        let [from, to] = [partition, partition + 1].map(|at| manifest.partitions[at] as usize);
        let strips = &manifest.strips[from..to];
        let count = strips.iter().filter(|strip| (strip.rows as usize) < STRIP_ROWS).count();
        short.insert(partition, count);
    }
    short
}

#[test]
fn versions_have_all_rows_so_far_and_no_more_strips_than_these_need() {
    for (writers, buckets, is_slow) in [(1, 1, false), (3, 1, true), (2, 4, false), (2, 4, true)] {
        let pool = InMemoryPool::new(writers);
        let connector = PoolConnector::new(Arc::clone(&pool) as _);
        pool.set_slow(is_slow);
        let def = growing(buckets, &[("commit.bytes", "1")]);
        let sink = connector.sink(&def).unwrap();
        let open = |worker| sink.open(&WriterContext::of(worker)).unwrap();
        let mut open: Vec<_> = (0..writers).map(open).collect();
        let (mut from, mut expected) = (0, vec![]);
        for step in 0..40_usize {
            let count = [7, 300, 1, 90, 700][step % 5];
            let next = batch(from, count);
            put(&mut *open[step % writers as usize], &next).unwrap();
            settle(&mut open);
            from += count;
            expected.extend(rows(&next));
            expected.sort();
            assert_eq!(newest(&connector, &def), expected, "step {step} of {writers} writers");
            let manifest = pool.newest("t").unwrap();
            assert_eq!(manifest.version, step as u64 + 1);
            for (partition, short) in short_strips(&manifest) {
                assert!(short <= writers as usize, "{short} in partition {partition}");
            }
        }
        let last = batch(from, 33);
        open[0].write(&last).unwrap();
        end(open);
        expected.extend(rows(&last));
        expected.sort();
        assert_eq!(newest(&connector, &def), expected);
    }
}

#[test]
fn rows_of_a_worker_whose_turn_has_not_come_are_of_no_version() {
    let pool = InMemoryPool::new(2);
    let connector = PoolConnector::new(Arc::clone(&pool) as _);
    let def = growing(1, &[("commit.bytes", "1")]);
    let sink = connector.sink(&def).unwrap();
    let mut open = [0, 1].map(|worker| sink.open(&WriterContext::of(worker)).unwrap());
    put(&mut *open[0], &batch(0, 10)).unwrap();
    settle(&mut open[..1]);
    assert_eq!(pool.newest("t"), None, "the other worker has not handed in");
    // The first one goes on meanwhile, and hands in again.
    put(&mut *open[0], &batch(10, 10)).unwrap();
    settle(&mut open[..1]);
    assert_eq!(pool.newest("t"), None);
    settle(&mut open[1..]);
    assert_eq!(pool.newest("t").unwrap().rows(), 20);
    assert_eq!(pool.newest("t").unwrap().strips.len(), 1, "the first strip was replaced");
}

#[test]
fn rows_that_come_while_a_worker_hands_in_are_of_the_next_version() {
    let pool = InMemoryPool::new(1);
    let connector = PoolConnector::new(Arc::clone(&pool) as _);
    let def = growing(1, &[("commit.bytes", "1")]);
    let sink = connector.sink(&def).unwrap();
    let mut writer = sink.open(&WriterContext::of(0)).unwrap();
    pool.set_slow(true);
    put(&mut *writer, &batch(0, 10)).unwrap();
    assert_eq!(writer.room(), Room::Full, "it waits for the pool");
    writer.write(&batch(10, 5)).unwrap();
    pool.set_slow(false);
    assert_eq!(writer.room(), Room::Ready);
    assert_eq!(pool.newest("t").unwrap().rows(), 10);
    settle(std::slice::from_mut(&mut writer));
    assert_eq!(pool.newest("t").unwrap().rows(), 15);
    end(vec![writer]);
    assert_eq!(pool.newest("t").unwrap().rows(), 15);
}

#[test]
fn an_overwrite_that_grows_replaces_what_was_there_once() {
    let pool = InMemoryPool::new(1);
    let connector = PoolConnector::new(Arc::clone(&pool) as _);
    for (mode, all) in [
        (dataflow::connector::WriteMode::Create, 30),
        (dataflow::connector::WriteMode::Overwrite, 30),
        (dataflow::connector::WriteMode::Insert, 60),
    ] {
        let def = growing(1, &[("commit.bytes", "1")]);
        let sink = connector.sink_for(&def, mode).unwrap();
        let mut writer = sink.open(&WriterContext::of(0)).unwrap();
        for from in [0, 10, 20] {
            put(&mut *writer, &batch(from, 10)).unwrap();
            settle(std::slice::from_mut(&mut writer));
        }
        end(vec![writer]);
        assert_eq!(pool.newest("t").unwrap().rows(), all, "{mode:?}");
    }
}

#[test]
fn a_writer_with_too_little_memory_writes_short_strips_early() {
    let pool = InMemoryPool::new(1);
    let connector = PoolConnector::new(Arc::clone(&pool) as _);
    let small = [("load.bytes", "1048576"), ("commit.bytes", "1")];
    let def = growing(4096, &small);
    let sink = connector.sink(&def).unwrap();
    let mut writer = sink.open(&WriterContext::of(0)).unwrap();
    let (mut expected, mut from) = (vec![], 0);
    for _ in 0..4 {
        let next = batch(from, 10_000);
        from += 10_000;
        put(&mut *writer, &next).unwrap();
        settle(std::slice::from_mut(&mut writer));
        expected.extend(rows(&next));
        expected.sort();
        assert_eq!(newest(&connector, &def), expected);
    }
    end(vec![writer]);
    assert_eq!(newest(&connector, &def), expected);
}

#[test]
fn an_interval_is_a_duration_that_is_not_too_short() {
    let connector = PoolConnector::new(InMemoryPool::new(1) as _);
    let declare = |options: &[(&str, &str)]| {
        connector.sink(&table(&batch(0, 1).schema(), options)).map(|_| ())
    };
    let error = refused(declare(&[("commit.interval", "10 ms")]));
    assert!(error.to_string().contains("each 100ms at most"), "{error}");
    assert!(hint(&error).contains("'10 s'"), "{}", hint(&error));
    refused(declare(&[("commit.interval", "often")]));
    refused(declare(&[("commit.bytes", "0")]));
    declare(&[("commit.bytes", "1000000")]).unwrap();
    declare(&[("commit.interval", "2 min")]).unwrap();
}

/// Rows of a table of many columns, so that a node of a list has a few strips.
fn wide(from: i64, count: i64) -> RecordBatch {
    let numbers = Arc::new(Int64Array::from_iter_values(from..from + count));
    let name = |at: usize| if at == 0 { "n".to_owned() } else { format!("c{at}") };
    let fields = (0..100).map(|at| Field::new(name(at), DataType::Int64, true));
    let schema = Arc::new(Schema::new(fields.collect::<Vec<_>>()));
    RecordBatch::try_new(schema, vec![numbers as _; 100]).unwrap()
}

#[test]
fn lists_have_the_rows_of_a_directory_and_a_version_needs_its_new_nodes_alone() {
    for (writers, buckets, is_slow) in [(1, 1, false), (2, 4, false), (3, 2, true)] {
        let pool = InMemoryPool::new(writers);
        let connector = PoolConnector::new(Arc::clone(&pool) as _);
        pool.set_slow(is_slow);
        let options = [("strip.rows", "256"), ("commit.bytes", "1"), ("layout", "lists")];
        let def = by_number(buckets, table(&wide(0, 1).schema(), &options));
        let read = table(&batch(0, 1).project(&[0]).unwrap().schema(), &[]);
        let sink = connector.sink(&def).unwrap();
        let open = |worker| sink.open(&WriterContext::of(worker)).unwrap();
        let mut open: Vec<_> = (0..writers).map(open).collect();
        let (mut from, mut expected, mut most) = (0, vec![], 0);
        for step in 0..25_usize {
            let count = [40, 3000, 1, 500, 1400][step % 5];
            let next = wide(from, count);
            put(&mut *open[step % writers as usize], &next).unwrap();
            settle(&mut open);
            from += count;
            expected.extend(rows(&next.project(&[0]).unwrap()));
            expected.sort();
            let before = connector.list_reads();
            assert_eq!(newest(&connector, &read), expected, "step {step} of {writers} writers");
            let nodes = connector.list_reads().read - before.read;
            // Of each list that has grown: its open node, and those that were filled. A node has
            // nine strips.
            let full = (count as u64).div_ceil(256).div_ceil(8);
            assert!(nodes <= u64::from(buckets) * (1 + full), "step {step}: {nodes} were read");
            let manifest = pool.newest("t").unwrap();
            assert_eq!(manifest.rows(), from as u64, "the server counts them by the heads");
            let heads = manifest.strips.len();
            assert!(heads <= (writers * buckets) as usize, "{heads} heads");
            most = most.max(nodes);
        }
        end(open);
        // A reader that knows nothing follows all nodes.
        let stranger = PoolConnector::new(Arc::clone(&pool) as _);
        assert_eq!(newest(&stranger, &read), expected);
        let all = stranger.list_reads();
        assert!(all.read > most && all.read > 10, "{all:?}, {most}");
        assert_eq!(newest(&stranger, &read), expected);
        assert_eq!(stranger.list_reads().read, all.read, "all nodes are known");
        let text = source(&stranger, &read).unwrap().describe().unwrap();
        assert!(text.contains(&format!("in lists of {} nodes", all.read)), "{text}");
    }
}

#[test]
fn a_table_stays_in_the_layout_in_which_it_was_made() {
    let pool = InMemoryPool::new(1);
    let connector = PoolConnector::new(Arc::clone(&pool) as _);
    let def = |layout| table(&batch(0, 1).schema(), &[("layout", layout)]);
    let error = refused(connector.sink(&def("chain")).map(drop));
    assert!(error.to_string().contains("'chain' is no layout"), "{error}");
    let load = |def: &TableDef, from| {
        let mut writer = connector.sink(def).unwrap().open(&WriterContext::of(0)).unwrap();
        put(&mut *writer, &batch(from, 10)).unwrap();
        end(vec![writer]);
    };
    load(&def("lists"), 0);
    let error = refused(connector.sink(&def("directory")).map(drop));
    assert!(error.to_string().contains("kept in lists, and not in a directory"), "{error}");
    load(&table(&batch(0, 1).schema(), &[]), 10);
    assert!(pool.newest("t").unwrap().definition.is_listed());
    assert_eq!(newest(&connector, &def("lists")), sorted_rows(0, 20));
}

fn sorted_rows(from: i64, count: i64) -> Vec<String> {
    let mut rows = rows(&batch(from, count));
    rows.sort();
    rows
}

#[test]
fn a_node_that_is_not_what_its_pointer_promised_is_refused() {
    let pool = InMemoryPool::new(1);
    let connector = PoolConnector::new(Arc::clone(&pool) as _);
    let def = growing(1, &[("layout", "lists")]);
    let mut writer = connector.sink(&def).unwrap().open(&WriterContext::of(0)).unwrap();
    put(&mut *writer, &batch(0, 700)).unwrap();
    end(vec![writer]);
    let read = || source(&PoolConnector::new(Arc::clone(&pool) as _), &def).map(drop);
    read().unwrap();
    pool.damage("t", |manifest, _| manifest.strips[0].rows += 1);
    assert!(refused(read()).to_string().contains("malformed list of strips"));
    pool.damage("t", |manifest, _| manifest.strips[0].rows -= 1);
    read().unwrap();
    pool.damage("t", |_, bytes| {
        if bytes.starts_with(b"MSLIST") {
            bytes[20] ^= 1;
        }
    });
    assert!(refused(read()).to_string().contains("malformed list of strips"));
}
