//! Sessions whose nodes are threads of one process.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, ThreadId};
use std::time::Duration;

use arrow::array::{ArrayRef, Int64Array, RecordBatch, TimestampMillisecondArray};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use dataflow::connector::{Connector, OptionSpec, Options, TableDef};
use dataflow::error::{ConnectorError, DataflowError};
use dataflow::sink::Sink;
use dataflow::source::{Next, Position, ReaderContext, Source, Split, SplitReader};
use fabric::affinity::processors;
use millstream::embedded::AppendResult;
use millstream::{Error, FabricKind, FaultKind, JobProgress, RunOptions, Session, SessionBuilder};

const BIDS: &str = "CREATE TABLE bids (
    ts TIMESTAMP(3), auction BIGINT, price BIGINT, WATERMARK FOR ts AS ts - INTERVAL '1' SECOND
  ) WITH (
    'connector' = 'generator', 'rows' = '50000', 'interval' = '1ms', 'disorder' = '900ms',
    'fields.auction.max' = '99'
  );";

const WINDOWS: &str = "SELECT window_start, auction, count(*) AS n, sum(price) AS total
  FROM TUMBLE(TABLE bids, DESCRIPTOR(ts), INTERVAL '10' SECOND)
  GROUP BY window_start, window_end, auction";

/// The rows as sorted lines.
fn lines(batches: &[RecordBatch]) -> Vec<String> {
    let table = arrow::util::pretty::pretty_format_batches(batches).unwrap().to_string();
    let mut lines: Vec<_> = table.lines().map(str::to_owned).collect();
    lines.sort();
    lines
}

#[test]
fn every_layout_fabric_and_exchange_gives_the_same_rows() {
    let sql = format!("{BIDS} {WINDOWS}");
    let expected = lines(&Session::builder().build().unwrap().collect(&sql).unwrap());
    assert!(expected.len() > 500, "five windows of a hundred auctions, and a head");
    for fabric in [FabricKind::Shm, FabricKind::Tcp] {
        for (nodes, workers) in [(1, 3), (3, 1), (2, 2)] {
            for exchange in ["merge", "shuffle", "uppar"] {
                let mut session = Session::builder()
                    .nodes(nodes)
                    .workers(workers)
                    .fabric(fabric)
                    .set("millstream.exchange", exchange)
                    .build()
                    .unwrap();
                let rows = lines(&session.collect(&sql).unwrap());
                assert!(rows == expected, "{session:?} by {exchange}");
            }
        }
    }
}

#[test]
fn rings_that_lie_beside_each_other_give_the_same_rows_in_every_statement() {
    let sql = format!("{BIDS} {WINDOWS}");
    let expected = lines(&Session::builder().build().unwrap().collect(&sql).unwrap());
    for fabric in [FabricKind::Shm, FabricKind::Tcp] {
        for (nodes, workers) in [(1, 2), (3, 1), (2, 2)] {
            for mode in ["write", "read", "region"] {
                let mut session = Session::builder()
                    .nodes(nodes)
                    .workers(workers)
                    .fabric(fabric)
                    .set("millstream.exchange", "shuffle")
                    .set("millstream.ring_pages", "huge")
                    .set("millstream.ring_mode", mode)
                    .build()
                    .unwrap();
                session.collect(BIDS).unwrap();
                for _ in 0..2 {
                    let rows = lines(&session.collect(WINDOWS).unwrap());
                    assert!(rows == expected, "{session:?}, {mode}");
                }
            }
        }
    }
}

/// Statements that end well, fail, are dropped, are full early or are cancelled, one behind the
/// other on the connections of one session.
#[test]
fn a_statement_gives_its_rows_whatever_became_of_the_one_before() {
    let sql = format!("{BIDS} {WINDOWS}");
    let expected = lines(&Session::builder().build().unwrap().collect(&sql).unwrap());
    for fabric in [FabricKind::Shm, FabricKind::Tcp] {
        let builder = Session::builder().nodes(2).workers(2).fabric(fabric);
        let mut session = builder.build().unwrap();
        session.collect(BIDS).unwrap();
        let rows = |session: &mut Session| lines(&session.collect(WINDOWS).unwrap());
        for before in ["", "a failure", "a limit", "other rings", "an abort", "a cancellation", ""]
        {
            match before {
                "a failure" => {
                    let wrong = "SELECT sum(1 / (auction - 7)) FROM bids GROUP BY price";
                    let failure = session.collect(wrong).unwrap_err().to_string();
                    assert!(failure.contains("zero"), "{failure}");
                }
                "a limit" => {
                    let full = "SELECT auction, price FROM bids LIMIT 3";
                    let taken = session.collect(full).unwrap();
                    assert_eq!(taken.iter().map(RecordBatch::num_rows).sum::<usize>(), 3);
                }
                "other rings" => session.set("millstream.slots", "5").unwrap(),
                "an abort" | "a cancellation" => ended_early(&mut session, before == "an abort"),
                _ => {}
            }
            for _ in 0..2 {
                assert!(rows(&mut session) == expected, "{fabric}, behind {before:?}");
            }
        }
    }
}

/// Runs a query that has no end until it has read rows.
fn ended_early(session: &mut Session, aborts: bool) {
    let sql = "CREATE TABLE IF NOT EXISTS endless (k BIGINT)
          WITH ('connector' = 'generator', 'rate' = '10000');
        CREATE TABLE IF NOT EXISTS none WITH ('connector' = 'blackhole');
        INSERT INTO none SELECT k FROM endless";
    let script = session.sql(sql).unwrap();
    let (cancel, abort) = (AtomicBool::new(false), AtomicBool::new(false));
    let flag = if aborts { &abort } else { &cancel };
    let show = |progress: &JobProgress| {
        flag.store(progress.counters.rows_in > 0, Ordering::Relaxed);
    };
    let result = script.run(&RunOptions {
        cancel: Some(&cancel),
        abort: Some(&abort),
        observer: Some(&show),
        ..RunOptions::default()
    });
    match result {
        Ok(report) => assert!(!aborts && report.cancelled),
        Err(Error::Interrupted) => assert!(aborts),
        Err(error) => panic!("{error}"),
    }
}

/// A source that notes on which thread each of its splits was read, and on which processors that
/// may run. It has no rows.
#[derive(Debug, Clone, Default)]
struct Threads(Arc<Mutex<BTreeMap<usize, ThreadOfSplit>>>);

/// A thread, and the processors on which it may run.
type ThreadOfSplit = (ThreadId, Vec<u32>);

impl Source for Threads {
    fn schema(&self) -> SchemaRef {
        Arc::new(Schema::new(vec![Field::new("k", DataType::Int64, true)]))
    }

    fn bounded(&self) -> bool {
        true
    }

    fn splits(&self, workers: u32, _: Option<usize>) -> Result<Vec<Split>, ConnectorError> {
        let split = |number| Split { name: format!("split {number}"), ..Split::default() };
        Ok((0..workers).map(split).collect())
    }

    fn open(
        &self,
        split: &Split,
        _: Option<&Position>,
        _: &ReaderContext,
    ) -> Result<Box<dyn SplitReader>, ConnectorError> {
        let thread = (thread::current().id(), processors().unwrap());
        self.0.lock().unwrap().insert(split.number, thread);
        Ok(Box::new(NoRows))
    }
}

struct NoRows;

impl SplitReader for NoRows {
    fn next(&mut self, _: usize) -> Result<Next, ConnectorError> {
        Ok(Next::End)
    }

    fn position(&self) -> Position {
        Position::none("t")
    }
}

#[test]
fn statements_run_on_the_threads_of_the_first_one_until_the_session_lets_go() {
    for (nodes, workers) in [(1, 1), (1, 3), (2, 2)] {
        let threads = Threads::default();
        let mut session = Session::builder()
            .nodes(nodes)
            .workers(workers)
            .connector(Arc::new(OneSource("threads", threads.clone())))
            .build()
            .unwrap();
        session.collect("CREATE TABLE t (k BIGINT) WITH ('connector' = 'threads')").unwrap();
        let sql = "SELECT k, count(*) FROM t GROUP BY k";
        let ran_on = |session: &mut Session| {
            session.collect(sql).unwrap();
            std::mem::take(&mut *threads.0.lock().unwrap())
        };
        let first = ran_on(&mut session);
        assert_eq!(first.len(), (nodes * workers) as usize);
        assert_eq!(ran_on(&mut session), first);
        session.set("millstream.slots", "5").unwrap();
        assert_eq!(ran_on(&mut session), first, "other rings need no other threads");
        session.disconnect();
        session.disconnect();
        let others = ran_on(&mut session);
        assert!(others.values().all(|now| first.values().all(|before| before.0 != now.0)));
        assert_eq!(ran_on(&mut session), others);
        // A script runs also where its session is gone, on threads of its own.
        let script = session.sql(sql).unwrap();
        drop(session);
        script.run(&RunOptions::default()).unwrap();
        let last = std::mem::take(&mut *threads.0.lock().unwrap());
        assert!(last.values().all(|now| others.values().all(|before| before.0 != now.0)));
    }
}

#[test]
fn workers_are_pinned_as_long_as_that_is_wanted() {
    let threads = Threads::default();
    let given = processors().unwrap();
    let builder = Session::builder().workers(given.len().min(2) as u32);
    let mut session =
        builder.connector(Arc::new(OneSource("threads", threads.clone()))).build().unwrap();
    session.collect("CREATE TABLE t (k BIGINT) WITH ('connector' = 'threads')").unwrap();
    let mut ran_on = |pin: &str| {
        session.set("millstream.pin", pin).unwrap();
        session.collect("SELECT k, count(*) FROM t GROUP BY k").unwrap();
        let ran = std::mem::take(&mut *threads.0.lock().unwrap());
        ran.into_values().map(|(_, processors)| processors).collect::<Vec<_>>()
    };
    let every = vec![given.clone(); given.len().min(2)];
    assert_eq!(ran_on("off"), every);
    // Splits are not in the order of workers.
    let mut pinned = ran_on("on");
    pinned.sort();
    assert_eq!(pinned, given.iter().take(2).map(|one| vec![*one]).collect::<Vec<_>>());
    assert_eq!(ran_on("off"), every, "on the same threads");

    let many = Session::builder().nodes(2).workers(given.len() as u32);
    let mut session = many.set("millstream.pin", "on").build().unwrap();
    let error = session.collect(&format!("{BIDS} {WINDOWS}")).unwrap_err();
    let text = error.to_string();
    assert!(text.contains("node 1 finds 0 processors for"), "{text}");
    assert!(error.hint().is_some_and(|hint| hint.contains("--workers")), "{text}");
}

#[test]
fn tables_outlive_the_script_that_made_them() {
    let mut session = Session::builder().build().unwrap();
    assert!(session.collect(BIDS).unwrap().is_empty());
    let rows = session.collect("SELECT count(*) AS n FROM bids").unwrap();
    let count = rows[0].column(0).as_any().downcast_ref::<Int64Array>().unwrap();
    assert_eq!(count.value(0), 50_000);
}

#[test]
fn a_report_counts_rows_of_all_nodes() {
    let mut session = Session::builder().nodes(2).workers(2).build().unwrap();
    let sql = format!(
        "{BIDS} CREATE TABLE none WITH ('connector' = 'blackhole');
        INSERT INTO none SELECT auction FROM bids; INSERT INTO none SELECT price FROM bids"
    );
    let script = session.sql(&sql).unwrap();
    assert_eq!(script.jobs().len(), 2);
    let report = script.run(&RunOptions::default()).unwrap();
    assert_eq!((report.total.rows_in, report.total.rows_out), (100_000, 100_000));
    assert_eq!(report.nodes.len(), 2);
    assert_eq!(report.nodes.iter().map(|node| node.rows_in).sum::<u64>(), 100_000);
    assert!(report.nodes.iter().all(|node| node.rows_in > 0));
    assert!(!report.cancelled);
}

#[test]
fn a_query_without_end_ends_when_it_is_asked() {
    let sql = "CREATE TABLE endless (k BIGINT) WITH ('connector' = 'generator', 'rate' = '10000');
        CREATE TABLE none WITH ('connector' = 'blackhole');
        INSERT INTO none SELECT k FROM endless; INSERT INTO none SELECT k FROM endless";
    let mut session = Session::builder().nodes(2).build().unwrap();
    let script = session.sql(sql).unwrap();
    assert!(!script.jobs()[0].bounded());
    let cancel = AtomicBool::new(false);
    let looks = AtomicUsize::new(0);
    let show = |progress: &JobProgress| {
        assert_eq!(progress.done, None);
        looks.fetch_add(1, Ordering::Relaxed);
        cancel.store(progress.counters.rows_in > 0, Ordering::Relaxed);
    };
    let options =
        RunOptions { cancel: Some(&cancel), observer: Some(&show), ..RunOptions::default() };
    let report = script.run(&options).unwrap();
    assert!(report.cancelled && report.total.rows_in > 0 && looks.into_inner() > 0);
}

#[test]
fn wrong_sql_is_told_with_its_place() {
    let mut session = Session::builder().build().unwrap();
    match session.sql("SELECT 1;\nSELECT nothing") {
        Err(Error::Sql(diagnostics)) => assert_eq!(diagnostics[0].line, 2),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_session_that_cannot_be_is_refused_with_a_way_out() {
    let refused = |builder: SessionBuilder, message: &str, hint: &str| {
        let error = builder.build().unwrap_err();
        assert!(error.to_string().contains(message), "{error}");
        assert!(error.hint().unwrap().contains(hint), "{:?}", error.hint());
    };
    refused(Session::builder().nodes(0), "a job cannot have 0 nodes", "1 to 256");
    refused(Session::builder().nodes(257), "a job cannot have 257 nodes", "1 to 256");
    refused(Session::builder().workers(0), "a node cannot have 0 workers", "1 to 1024");
    let exchang = Session::builder().set("millstream.exchang", "merge");
    refused(exchang, "unknown setting 'millstream.exchang'", "millstream.exchange");
    let short = Session::builder().set("exchange", "merge");
    refused(short, "unknown setting 'exchange'", "did you mean 'millstream.exchange'?");
    let quoted = Session::builder().set("millstream.exchange", "it's");
    refused(quoted, "it's", "merge");
}

#[test]
fn memory_is_known_beforehand() {
    let mut session = Session::builder().nodes(3).workers(2).build().unwrap();
    let memory = session.sql(&format!("{BIDS} {WINDOWS}")).unwrap().memory();
    let rings = memory.needs.iter().find(|need| need.name == "rings").unwrap();
    // Two workers with four links to other nodes, of a mebibyte each.
    assert_eq!((rings.node_bytes, rings.all_bytes), (8 << 20, 24 << 20));
    assert!(memory.all_bytes() > rings.all_bytes, "state comes on top");
}

/// How a faulty source fails when its second flow is read.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Fault {
    Error,
    Panic,
    Open,
}

/// A source of one flow per worker, the second of which is at fault.
#[derive(Debug, Clone)]
struct Faulty(Fault);

/// A connector of one source.
#[derive(Debug)]
struct OneSource<S>(&'static str, S);

impl<S: Source + Clone + std::fmt::Debug + 'static> Connector for OneSource<S> {
    fn name(&self) -> &'static str {
        self.0
    }

    fn options(&self) -> &'static [OptionSpec] {
        &[]
    }

    fn infer(&self, _: &Options) -> Result<Option<SchemaRef>, ConnectorError> {
        Ok(None)
    }

    fn source(&self, _: &TableDef, _: &[usize]) -> Result<Arc<dyn Source>, ConnectorError> {
        Ok(Arc::new(self.1.clone()))
    }

    fn sink(&self, _: &TableDef) -> Result<Arc<dyn Sink>, ConnectorError> {
        Err(broken())
    }
}

fn broken() -> ConnectorError {
    ConnectorError::Io { place: "tape 2".into(), message: "it is torn".into(), hint: None }
}

impl Source for Faulty {
    fn schema(&self) -> SchemaRef {
        Arc::new(Schema::new(vec![Field::new("k", DataType::Int64, true)]))
    }

    fn bounded(&self) -> bool {
        true
    }

    fn splits(&self, workers: u32, _: Option<usize>) -> Result<Vec<Split>, ConnectorError> {
        let flow = |flow| Split { name: format!("tape {flow}"), ..Split::default() };
        Ok((0..workers).map(flow).collect())
    }

    fn open(
        &self,
        split: &Split,
        _: Option<&Position>,
        _: &ReaderContext,
    ) -> Result<Box<dyn SplitReader>, ConnectorError> {
        if split.number == 1 && self.0 == Fault::Open {
            return Err(broken());
        }
        Ok(Box::new(FaultyFlow {
            fault: (split.number == 1).then_some(self.0),
            schema: self.schema(),
        }))
    }
}

struct FaultyFlow {
    fault: Option<Fault>,
    schema: SchemaRef,
}

impl SplitReader for FaultyFlow {
    fn next(&mut self, rows_max: usize) -> Result<Next, ConnectorError> {
        match self.fault {
            // Others go on for ever: only the failure ends them.
            None => {
                let column = Arc::new(Int64Array::from(vec![1; rows_max.min(8)]));
                let batch = RecordBatch::try_new(Arc::clone(&self.schema), vec![column]);
                batch.map(Next::Batch).map_err(|_| broken())
            }
            Some(Fault::Panic) => panic!("the tape is torn"),
            Some(_) => Err(broken()),
        }
    }

    fn position(&self) -> Position {
        Position::none("t")
    }
}

#[test]
fn the_cause_of_a_failure_comes_out_wherever_it_was() {
    for (nodes, workers) in [(1, 3), (3, 1), (2, 2)] {
        for fault in [Fault::Error, Fault::Panic, Fault::Open] {
            let mut session = Session::builder()
                .nodes(nodes)
                .workers(workers)
                .connector(Arc::new(OneSource("faulty", Faulty(fault))))
                .build()
                .unwrap();
            let sql = "CREATE TABLE tapes (k BIGINT) WITH ('connector' = 'faulty');
                SELECT k, count(*) FROM tapes GROUP BY k";
            let error = session.collect(sql).unwrap_err();
            let place = format!("{nodes} x {workers} workers, {fault:?}: {error}");
            assert_eq!(error.statement().map(|statement| statement.line), Some(2), "{place}");
            let Error::Dataflow(failed) = error.cause() else { panic!("{place}") };
            match (fault, failed.cause()) {
                (Fault::Panic, DataflowError::Panicked(panicked)) => {
                    assert_eq!(panicked.message, "the tape is torn", "{place}");
                    assert_eq!(error.blame(), FaultKind::Bug, "{place}");
                    let reported = "this is a bug in millstream: the tape is torn";
                    assert_eq!(error.to_string(), reported, "{place}");
                    assert!(error.hint().unwrap().contains("please report it"), "{place}");
                    assert_eq!(error.details(), ["while it read tape 1"], "{place}");
                }
                (_, DataflowError::Connector(failed)) => {
                    assert_eq!(*failed, broken(), "{place}");
                    assert_eq!(error.blame(), FaultKind::Failure, "{place}");
                }
                _ => panic!("{place}"),
            }
        }
    }
}

#[test]
fn the_name_of_a_file_is_a_table_unless_that_is_refused() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/data/airports.parquet");
    let sql = format!("SELECT count(*) AS n FROM '{path}'");
    let rows = Session::builder().build().unwrap().collect(&sql).unwrap();
    assert!(rows[0].column(0).as_any().downcast_ref::<Int64Array>().unwrap().value(0) > 0);
    let mut session = Session::builder().file_names(false).build().unwrap();
    let error = session.collect(&sql).unwrap_err().to_string();
    assert!(error.contains("unknown table"), "{error}");
    let declared = format!(
        "CREATE TABLE airports WITH ('connector' = 'file', 'path' = '{path}');
        SELECT count(*) AS n FROM airports"
    );
    assert_eq!(session.collect(&declared).unwrap(), rows);
}

/// A table that one worker reads has a watermark, whatever the others have to read.
#[test]
fn workers_without_rows_do_not_hide_the_watermark() {
    let mut session = Session::builder().workers(3).build().unwrap();
    let times: ArrayRef = Arc::new(TimestampMillisecondArray::from(vec![60_000, 65_000]));
    let rows = RecordBatch::try_from_iter([("ts", times)]).unwrap();
    let declared = "WATERMARK FOR ts AS ts - INTERVAL '5' SECOND";
    let source = session.add_source("clicks", rows.schema(), declared, 1 << 20).unwrap();
    assert_eq!(source.append(&rows, Duration::ZERO), AppendResult::Appended);
    let sql = "CREATE TABLE none WITH ('connector' = 'blackhole');
        INSERT INTO none SELECT window_start, count(*)
        FROM TUMBLE(TABLE clicks, DESCRIPTOR(ts), INTERVAL '10' SECOND)
        GROUP BY window_start, window_end";
    let script = session.sql(sql).unwrap();
    let cancel = AtomicBool::new(false);
    let seen = AtomicI64::new(i64::MIN);
    let looks = AtomicUsize::new(0);
    let show = |progress: &JobProgress| {
        let lag = progress.lag.is_some();
        seen.store(progress.counters.watermark_ms, Ordering::Relaxed);
        let looks = looks.fetch_add(1, Ordering::Relaxed);
        cancel.store(lag || looks > 10_000, Ordering::Relaxed);
    };
    let options =
        RunOptions { cancel: Some(&cancel), observer: Some(&show), ..RunOptions::default() };
    let report = script.run(&options).unwrap();
    assert_eq!((report.total.rows_in, seen.into_inner()), (2, 60_000));
}
