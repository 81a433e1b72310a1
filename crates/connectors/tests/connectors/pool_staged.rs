//! Tables of a pool that are written by jobs with checkpoints: a version for each, with each row
//! once.

use std::sync::Arc;

use arrow::array::{Int64Array, RecordBatch};
use arrow::datatypes::{DataType, Field, Schema};
use connectors::PoolConnector;
use connectors::pool::in_memory::InMemoryPool;
use dataflow::connector::{Connector, TableDef, WriteMode};
use dataflow::sink::{
    Publishing, Room, RunId, Sink, SinkVisibility, SinkWriter, StagingContext, WriterContext,
};

use crate::bed::{hint, refused, stage_durably, table};
use crate::pool_growing::{self, by_number};

fn batch(from: i64, to: i64) -> RecordBatch {
    let schema = Schema::new(vec![Field::new("n", DataType::Int64, true)]);
    let numbers = Int64Array::from_iter_values(from..to);
    RecordBatch::try_new(Arc::new(schema), vec![Arc::new(numbers)]).unwrap()
}

fn grown(buckets: u32, options: &[(&str, &str)]) -> TableDef {
    by_number(buckets, table(&batch(0, 1).schema(), options))
}

const GROWS: &[(&str, &str)] = &[("strip.rows", "256"), ("commit.interval", "1 h")];

fn open(sink: &dyn Sink, worker: u32) -> Box<dyn SinkWriter> {
    let run = RunId { job: 7, generation: 3 };
    let staging = Some(StagingContext { run, goes_on: false, before: vec![] });
    sink.open(&WriterContext { staging, ..WriterContext::of(worker) }).unwrap()
}

/// The numbers of the newest version, sorted.
fn newest(connector: &PoolConnector, def: &TableDef) -> Vec<i64> {
    let rows = pool_growing::newest(connector, def);
    let mut numbers: Vec<i64> = rows.iter().map(|row| row.parse().unwrap()).collect();
    numbers.sort_unstable();
    numbers
}

fn first(mark: Option<[u64; 2]>) -> Publishing {
    Publishing { last: false, again: false, mark }
}

fn again(mark: Option<[u64; 2]>) -> Publishing {
    Publishing { again: true, ..first(mark) }
}

#[test]
fn a_version_appears_with_each_checkpoint_and_once() {
    for (buckets, is_slow) in [(1, false), (4, true)] {
        let pool = InMemoryPool::new(2);
        pool.set_slow(is_slow);
        let (connector, def) = (PoolConnector::new(pool.clone()), grown(buckets, GROWS));
        let sink = connector.sink(&def).unwrap();
        assert_eq!(sink.staging(), SinkVisibility::ByCheckpoint);
        let mut writers = [0, 1].map(|worker| open(&*sink, worker));
        for round in 0..4 {
            let mark = sink.mark().unwrap();
            let before = 1000 * round;
            assert_eq!(mark, Some([round as u64, before as u64]), "no version beside these");
            writers[0].write(&batch(before, before + 300)).unwrap();
            writers[0].write(&batch(before + 300, before + 500)).unwrap();
            writers[1].write(&batch(before + 500, before + 1000)).unwrap();
            let staged = writers.each_mut().map(|writer| stage_durably(&mut **writer, 9, false));
            // Half of the runs die before the publication, and the next one makes it.
            let how = if round % 2 == 0 { first(mark) } else { again(mark) };
            sink.publish(&staged, how).unwrap();
            assert!(newest(&connector, &def).into_iter().eq(0..before + 1000));
            // It is published already.
            sink.publish(&staged, again(mark)).unwrap();
            assert_eq!(pool.newest("t").unwrap().version, round as u64 + 1);
            let nothing = writers.each_mut().map(|writer| stage_durably(&mut **writer, 10, false));
            sink.publish(&nothing, first(sink.mark().unwrap())).unwrap();
            assert_eq!(pool.newest("t").unwrap().version, round as u64 + 1, "it has no rows");
        }
    }
}

#[test]
fn a_table_that_somebody_else_has_written_is_not_guessed_at() {
    let pool = InMemoryPool::new(1);
    let (connector, def) = (PoolConnector::new(pool.clone()), grown(1, GROWS));
    let sink = connector.sink(&def).unwrap();
    let mut writer = open(&*sink, 0);
    writer.write(&batch(0, 10)).unwrap();
    sink.publish(&[stage_durably(&mut *writer, 1, false)], first(None)).unwrap();
    let mark = sink.mark().unwrap();
    writer.write(&batch(10, 20)).unwrap();
    let staged = stage_durably(&mut *writer, 2, false);
    // The job dies here, and another one loads the table.
    let mut other = connector.sink(&def).unwrap().open(&WriterContext::of(0)).unwrap();
    other.write(&batch(90, 97)).unwrap();
    while other.drain().unwrap() == Room::Full {}
    other.commit().unwrap();
    let error = refused(sink.publish(std::slice::from_ref(&staged), again(mark)));
    let text = error.to_string();
    assert!(
        text.contains("with version 1 and 10 rows, and it has version 2 and 17 rows"),
        "{text}"
    );
    assert!(hint(&error).contains("--from none"), "{text}");
    // Nor is a table that is gone.
    connector_drop(&pool);
    let error = refused(sink.publish(&[staged], again(mark)));
    assert!(error.to_string().contains("it has version 0 and 0 rows"), "{error}");
    let error = refused(sink.publish(&[b"other".to_vec()], first(mark)));
    assert!(error.to_string().contains("other rows for it"), "{error}");
}

fn connector_drop(pool: &InMemoryPool) {
    pool::access::PoolAccess::drop_table(pool, "t").unwrap();
}

#[test]
fn a_load_that_does_not_grow_is_one_version_at_the_end() {
    let connector = PoolConnector::new(InMemoryPool::new(1));
    let at_end = |options: &[(&str, &str)], mode| {
        let sink = connector.sink_for(&grown(1, options), mode).unwrap();
        assert_eq!((sink.staging(), sink.publishes_end()), (SinkVisibility::AtEnd, true));
    };
    at_end(&[], WriteMode::Insert);
    at_end(GROWS, WriteMode::Create);
    at_end(GROWS, WriteMode::Overwrite);
}

#[test]
fn a_load_appears_when_the_end_of_its_job_is_recorded_and_once() {
    let modes = [WriteMode::Create, WriteMode::Insert, WriteMode::Overwrite];
    for (mode, expected) in modes.into_iter().zip([0..500, 0..500, 100..500]) {
        let pool = InMemoryPool::new(1);
        let (connector, def) = (PoolConnector::new(pool.clone()), grown(1, &GROWS[..1]));
        if mode != WriteMode::Create {
            let first = connector.sink_for(&def, WriteMode::Create).unwrap();
            let mut writer = first.open(&WriterContext::of(0)).unwrap();
            writer.write(&batch(0, 100)).unwrap();
            while writer.drain().unwrap() == Room::Full {}
            writer.commit().unwrap();
        }
        let from = if mode == WriteMode::Create { 0 } else { 100 };
        pool.set_writers(2);
        let sink = || connector.sink_for(&def, mode).unwrap();
        // The rows of a run, and what it has recorded; it dies if it is dropped.
        let run = |sink: &dyn Sink| {
            let mut writers = [0, 1].map(|worker| open(sink, worker));
            writers[0].write(&batch(from, 300)).unwrap();
            writers[1].write(&batch(300, 500)).unwrap();
            let staged = writers.each_mut().map(|writer| {
                while writer.drain().unwrap() == Room::Full {}
                stage_durably(&mut **writer, 9, true)
            });
            (sink.mark().unwrap(), staged)
        };
        let before = pool.newest("t").map(|newest| newest.version);
        let dead = sink();
        let (mark, staged) = run(&*dead);
        assert_eq!(pool.newest("t").map(|newest| newest.version), before, "nobody sees it yet");
        drop(dead);
        assert!(sink().has_lost(&staged, mark).unwrap(), "it is gone with the process");
        let sink = sink();
        let (mark, staged) = run(&*sink);
        sink.publish(&staged, first(mark)).unwrap();
        assert!(newest(&connector, &def).into_iter().eq(expected));
        // The run dies before it is recorded that this was done, and so does the next one.
        for _ in 0..2 {
            assert!(!sink.has_lost(&staged, mark).unwrap());
            sink.publish(&staged, again(mark)).unwrap();
        }
        assert_eq!(pool.newest("t").unwrap().version, before.unwrap_or(0) + 1);
        // Somebody else has written the table since.
        let wrong = mark.map(|[version, rows]| [version + 1, rows + 7]);
        let error = refused(sink.has_lost(&staged, wrong));
        assert!(error.to_string().contains("somebody else has written it"), "{error}");
        assert!(
            refused(sink.has_lost(&[b"other".to_vec()], mark)).to_string().contains("does not")
        );
    }
}
