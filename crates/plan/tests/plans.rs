//! What becomes of statements: which queries, windows, keys and sinks.

use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use arrow::datatypes::SchemaRef;
use dataflow::job::{
    Aggregation, Distribution, Edge, Exchange, FrequentKeys, Operator, OperatorKind, Scan,
    ShuffleSettings, SinkSpec, Step,
};
use plan::Stage;

use crate::support;

const TABLES: &str = "
    CREATE TABLE flights (
      ts TIMESTAMP(3), origin STRING, dest STRING, delay DOUBLE, distance INT,
      WATERMARK FOR ts AS ts - INTERVAL '5' SECOND IDLE TIMEOUT INTERVAL '1' MINUTE
    ) WITH ('connector' = 'memory');
    CREATE TABLE stream (
      ts TIMESTAMP(3), origin STRING, delay DOUBLE,
      WATERMARK FOR ts AS ts - INTERVAL '5' SECOND
    ) WITH ('connector' = 'memory', 'bounded' = 'false');
    CREATE TABLE hourly (w TIMESTAMP(3), origin STRING, n BIGINT) WITH ('connector' = 'memory');";

pub(crate) fn plan_on(workers: u32, sql: &str) -> Vec<Stage> {
    let (mut planner, _) = support::planner(workers);
    planner.plan(TABLES).expect("the tables");
    match planner.plan(sql) {
        Ok(stages) => stages,
        Err(errors) => {
            panic!("{}", errors.iter().map(|e| e.render("", sql, false)).collect::<String>())
        }
    }
}

/// A table that is read, perhaps an aggregate, a sink.
struct Query {
    input: Scan,
    step: Option<Arc<dyn Step>>,
    aggregate: Option<Aggregation>,
    /// The step behind the aggregate.
    behind: Option<Arc<dyn Step>>,
    schema: SchemaRef,
}

/// The only query of a script.
fn query(sql: &str) -> Query {
    let mut stages = plan_on(4, sql);
    assert_eq!(stages.len(), 1);
    let operators = stages.remove(0).job.operators;
    let step = |operator: &Operator| operator.inputs[0][0].step.clone();
    match &operators[..] {
        [source, sink] => Query {
            input: input(source),
            step: step(sink),
            aggregate: None,
            behind: None,
            schema: schema(sink),
        },
        [source, aggregate, sink] => {
            let OperatorKind::Aggregate(spec) = &aggregate.kind else { panic!("{sql}") };
            Query {
                input: input(source),
                step: step(aggregate),
                aggregate: Some(spec.as_ref().clone()),
                behind: step(sink),
                schema: schema(sink),
            }
        }
        _ => panic!("{} operators: {sql}", operators.len()),
    }
}

fn input(operator: &Operator) -> Scan {
    match &operator.kind {
        OperatorKind::Source(input) => input.clone(),
        _ => panic!("'{}' is no source", operator.name),
    }
}

fn schema(operator: &Operator) -> SchemaRef {
    match &operator.kind {
        OperatorKind::Sink(SinkSpec { schema, .. }) => schema.clone(),
        _ => panic!("'{}' is no sink", operator.name),
    }
}

fn aggregates(stage: &Stage) -> Vec<&Aggregation> {
    let mut all = vec![];
    for operator in &stage.job.operators {
        if let OperatorKind::Aggregate(spec) = &operator.kind {
            all.push(spec.as_ref());
        }
    }
    all
}

fn sinks(stage: &Stage) -> usize {
    let sink = |operator: &&Operator| matches!(operator.kind, OperatorKind::Sink(_));
    stage.job.operators.iter().filter(sink).count()
}

/// Whether EXPLAIN has a line that ends so.
fn has(text: &str, line: &str) {
    assert!(text.lines().any(|shown| shown.ends_with(line)), "{line}: {text}");
}

fn columns(query: &Query) -> Vec<String> {
    query.input.columns().fields().iter().map(|f| f.name().clone()).collect()
}

#[test]
fn a_window_is_taken_out_of_the_keys() {
    let windowed = query(
        "SELECT window_start, origin, count(*) AS n, avg(delay) FROM TUMBLE(TABLE stream,
         DESCRIPTOR(ts), INTERVAL '1' HOUR) GROUP BY window_start, window_end, origin",
    );
    assert_eq!(columns(&windowed), ["ts", "origin", "delay"]);
    assert!(windowed.step.is_none(), "every column is used as it comes");
    let watermark = windowed.input.watermark.expect("a watermark");
    assert_eq!((watermark.column, watermark.delay), (0, 5000));
    let aggregate = windowed.aggregate.expect("an aggregate");
    let window = aggregate.window.expect("a window");
    assert_eq!((window.column, window.windows.size()), (0, 3_600_000));
    assert_eq!((aggregate.keys, aggregate.args), (vec![1], vec![vec![], vec![2]]));
    assert_eq!(aggregate.group_by.keys.len(), 1);
    assert_eq!(aggregate.exchange, Exchange::Merge);
    let names: Vec<_> = aggregate.schema.fields().iter().map(|f| f.name().as_str()).collect();
    let expected =
        ["key_0", "aggregate_0", "aggregate_1", "window_start", "window_end", "window_time"];
    assert_eq!(names, expected);
}

#[test]
fn a_window_over_a_view_is_the_same() {
    for sql in [
        "CREATE VIEW v AS SELECT ts, upper(origin) AS o, delay FROM stream WHERE delay > 0;
         SELECT window_end, o, sum(delay) FROM TUMBLE(TABLE v, DESCRIPTOR(ts), INTERVAL '1' DAY)
         GROUP BY window_start, window_end, o HAVING sum(delay) > 5",
        "WITH v AS (SELECT ts, upper(origin) AS o, delay FROM stream WHERE delay > 0)
         SELECT window_end, o, sum(delay)
         FROM TABLE(TUMBLE(
           DATA => TABLE v, TIMECOL => DESCRIPTOR(ts), SIZE => INTERVAL '1' DAY)) AS w
         GROUP BY w.window_start, w.window_end, o HAVING sum(delay) > 5",
    ] {
        let query = query(sql);
        assert!(query.step.as_ref().expect("a step").describe()[0].0 == "Filter");
        assert!(query.aggregate.expect("an aggregate").window.is_some());
        let behind = query.behind.expect("a step behind").describe();
        assert_eq!(behind[0], ("Filter", "sum(delay) > 5".to_owned()));
    }
}

#[test]
fn the_examples_stream() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples");
    let mut examples = 0;
    for entry in std::fs::read_dir(folder).expect("the examples") {
        let path = entry.expect("an entry").path();
        if path.extension().is_none_or(|extension| extension != "sql") {
            continue;
        }
        let sql = std::fs::read_to_string(&path).expect("an example");
        if sql.contains("FROM '") {
            // Its tables are files, which the tests of the program write.
            continue;
        }
        // The tables of the test's connector instead of their own.
        let mut pieces = sql.split("WITH (");
        let mut memory = pieces.next().unwrap_or_default().to_string();
        for piece in pieces {
            let (_, rest) = piece.split_once(");").expect("the end of WITH");
            memory.push_str("WITH ('connector' = 'memory');");
            memory.push_str(rest);
        }
        let (mut planner, _) = support::planner(4);
        let stages = planner.plan(&memory).map_err(|errors| errors[0].render("", &memory, false));
        let stages = stages.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        for stage in &stages {
            assert_eq!(sinks(stage), 1, "{}", path.display());
            let windowed = aggregates(stage).iter().all(|aggregate| aggregate.window.is_some());
            let timed = stage.job.inputs().all(|input| input.watermark.is_some());
            assert!(windowed && timed, "{}", path.display());
        }
        examples += stages.len();
    }
    assert!(examples >= 4, "only {examples} statements");
}

#[test]
fn a_window_without_an_aggregate_is_computed_per_row() {
    let query = query(
        "SELECT ts, window_start, window_time FROM TUMBLE(TABLE stream, DESCRIPTOR(ts),
         INTERVAL '1' HOUR)",
    );
    assert!(query.aggregate.is_none() && query.input.watermark.is_none());
    assert_eq!(columns(&query), ["ts"]);
}

#[test]
fn functions_without_a_kernel_are_adapted() {
    let query = query(
        "SELECT origin, stddev(delay), count(*) FILTER (WHERE delay > 0) FROM flights
         GROUP BY origin",
    );
    let aggregate = query.aggregate.expect("an aggregate");
    let states: Vec<_> =
        aggregate.group_by.aggregates.iter().map(|a| a.state_types().len()).collect();
    assert_eq!(states, [3, 1]);
}

#[test]
fn columns_have_the_types_that_their_branches_agree_on() {
    let sql = "SELECT CASE WHEN delay > 1 THEN 1 ELSE 2.5 END AS c FROM flights";
    let schema = query(sql).schema;
    assert_eq!(schema.field(0).data_type(), &arrow::datatypes::DataType::Float64);
    let step = query(sql).step.expect("a step");
    let delays = std::sync::Arc::new(arrow::array::Float64Array::from(vec![0.5, 2.0]));
    let source = query(sql).input.columns();
    let times = arrow::array::new_null_array(source.field(0).data_type(), 2);
    let input = vec![times, delays];
    let input = arrow::record_batch::RecordBatch::try_new(source, input).expect("rows");
    assert_eq!(step.apply(&input).expect("runs").batch.schema(), schema);
}

#[test]
fn only_the_columns_that_are_used_are_read() {
    let used = query("SELECT dest FROM flights WHERE delay > 3");
    assert_eq!(columns(&used), ["ts", "dest", "delay"], "a row without its time is a bad row");
    let counted = query("SELECT count(*) FROM flights");
    assert_eq!(columns(&counted), ["ts"], "rows are counted by a column of fixed width");
}

#[test]
fn what_does_not_stream_goes_through_the_batch_stage() {
    // There is no index of keys that are maps.
    let sql = "SELECT a.origin FROM flights AS a JOIN flights AS b \
               ON MAP {a.dest: 1} = MAP {b.origin: 1}";
    let stages = plan_on(4, sql);
    assert_eq!(sinks(&stages[0]), 2);
    assert!(stages[0].bounded);
    let text = stages[0].explain.text();
    assert!(text.contains("  Batch\n"), "{text}");
    assert!(text.contains("memory: millstream.batch_bytes, 2.0 GiB\n"), "{text}");
}

#[test]
fn rows_are_sorted_and_limited_on_all_workers() {
    let sort = "SELECT origin, delay FROM flights ORDER BY delay DESC NULLS LAST, 1";
    for (sql, operators) in [
        (sort, vec!["order by: delay DESC NULLS LAST, origin\n"]),
        (
            "SELECT origin, count(*) AS n FROM flights GROUP BY 1 ORDER BY n DESC LIMIT 3 OFFSET 1",
            vec!["order by: count(*) DESC\n   │  limit: 3\n   │  offset: 1\n"],
        ),
        (
            "SELECT origin FROM flights UNION SELECT dest FROM flights ORDER BY 1",
            vec!["order by: origin\n"],
        ),
        // The sort skips rows itself; behind a filter there is a limit of its own.
        (
            "SELECT delay + 1 FROM (SELECT * FROM flights ORDER BY ts LIMIT 9) AS a LIMIT 3",
            vec!["order by: ts\n   │  limit: 3\n"],
        ),
        (
            "SELECT dest FROM (SELECT * FROM flights ORDER BY ts LIMIT 9) WHERE delay > 1 LIMIT 3",
            vec!["Limit [2]\n", "Sort [1]\n", "order by: ts\n      │  limit: 9\n"],
        ),
        ("SELECT origin FROM stream LIMIT 5 OFFSET 2", vec!["limit: 5\n   │  offset: 2\n"]),
    ] {
        let stage = plan_on(4, sql).remove(0);
        let text = stage.explain.text();
        assert!(!text.contains("Batch"), "{text}");
        operators.iter().for_each(|part| assert!(text.contains(part), "{part} in\n{text}"));
    }
}

#[test]
fn what_does_not_stream_is_done_by_key_on_each_worker() {
    for (sql, shown) in [
        (
            "SELECT origin FROM flights WHERE distance > (SELECT avg(distance) FROM flights)",
            ["Filter", "forward", "broadcast"],
        ),
        (
            "SELECT origin, rank() OVER (PARTITION BY origin ORDER BY delay) FROM flights",
            ["Window", "shuffle(origin)", "runs: Sort, BoundedWindowAgg of DataFusion"],
        ),
        (
            "SELECT origin, count(*) OVER () FROM flights",
            ["Window", "gather", "bound: millstream.state_bytes of worker 0"],
        ),
        (
            "SELECT origin, nth_value(dest, 2 ORDER BY ts) FROM flights GROUP BY origin",
            ["Aggregate", "shuffle(origin)", "of DataFusion"],
        ),
        (
            "SELECT origin, dest, sum(distance) FROM flights GROUP BY ROLLUP (origin, dest)",
            ["Aggregate", "gather", "bound: millstream.state_bytes of worker 0"],
        ),
        (
            "SELECT a.origin FROM flights AS a, flights AS b WHERE a.distance < b.delay",
            ["NestedLoopJoin", "forward", "broadcast: there is no equality"],
        ),
        (
            "SELECT a.origin FROM flights AS a WHERE EXISTS (SELECT 1 FROM flights AS b)",
            ["CrossJoin", "NestedLoopJoin of DataFusion", "broadcast"],
        ),
    ] {
        let stages = plan_on(4, sql);
        let text = stages[0].explain.text();
        assert_eq!(sinks(&stages[0]), 1, "{sql}:\n{text}");
        assert!(!text.contains("  Batch\n"), "{sql}:\n{text}");
        for part in shown {
            assert!(text.contains(part), "{sql}: no {part} in\n{text}");
        }
    }
}

#[test]
fn rows_partitioned_by_key_stay_behind_such_an_operator() {
    let over = "SELECT origin, rank() OVER (PARTITION BY origin ORDER BY delay) AS n FROM flights";
    let stages = plan_on(4, &format!("SELECT origin, max(n) FROM ({over}) AS t GROUP BY origin"));
    let text = stages[0].explain.text();
    let together = "forward: rows of equal keys are on one worker already";
    assert!(text.contains(together), "{text}");
}

#[test]
fn the_smaller_of_two_tables_that_end_is_had_whole() {
    for (join, table) in [
        // Of the left one fewer columns are read.
        ("flights AS l JOIN flights AS r ON l.dest = r.origin", "l"),
        ("flights AS r JOIN flights AS l ON l.dest = r.origin", "l"),
        ("flights AS l LEFT JOIN flights AS r ON l.dest = r.origin", "r"),
        ("flights AS l RIGHT JOIN flights AS r ON l.dest = r.origin", "l"),
    ] {
        let stages = plan_on(4, &format!("SELECT l.dest, r.delay FROM {join}"));
        let text = stages[0].explain.text();
        assert!(text.contains("broadcast: all input ends, and this side has at most"), "{text}");
        let stream = if table == "l" { "r.origin = l.dest" } else { "l.dest = r.origin" };
        assert!(text.contains(&format!("on: {stream}")), "{join}:\n{text}");
    }
    let tables = "SET millstream.table_bytes = '1 B'; SELECT l.dest FROM flights AS l JOIN flights \
                  AS r ON l.dest = r.origin";
    assert!(plan_on(4, tables)[0].explain.text().contains("  HashJoin ["));
}

#[test]
fn joins_that_end_are_replicated_or_by_key_and_partitioned_rows_stay() {
    let grouped = "(SELECT dest, count(*) AS n FROM flights GROUP BY dest)";
    let of = |join: &str| {
        let sql = format!("SELECT l.n, r.origin FROM {grouped} AS l {join} ON l.dest = r.origin");
        plan_on(4, &sql)[0].explain.text()
    };
    let distinct = "(SELECT DISTINCT origin FROM flights)";
    // A grouping has partitioned its rows by the key of the join.
    let text = of(&format!("FULL JOIN {distinct} AS r"));
    assert!(text.contains("  HashJoin [") && !text.contains("Batch"), "{text}");
    assert!(text.contains("forward: rows of equal keys are on one worker"), "{text}");
    // A side whose rows without a partner are emitted is not replicated.
    let text = of("FULL JOIN (SELECT origin FROM flights UNION ALL SELECT dest FROM flights) AS r");
    assert!(
        text.contains("shuffle(r.origin), UNION ALL 1 of 2: rows of equal keys meet"),
        "{text}"
    );
    let sql = format!(
        "SET millstream.exchange = 'shuffle'; SELECT l.dest FROM flights AS l JOIN {distinct} AS r \
         ON l.dest = r.origin"
    );
    let text = plan_on(4, &sql)[0].explain.text();
    assert!(text.contains("shuffle(l.dest): SET millstream.exchange = 'shuffle'"), "{text}");
    let sql = "SELECT origin FROM flights WHERE dest NOT IN (SELECT origin FROM flights)";
    let text = plan_on(4, sql)[0].explain.text();
    assert!(!text.contains("Batch"), "{text}");
    let sql = "SELECT dest FROM flights INTERSECT SELECT origin FROM flights";
    assert!(plan_on(4, sql)[0].explain.text().contains("NULL keys: equal to each other"));
}

#[test]
fn the_build_is_the_side_that_filters_make_the_smaller_one() {
    // A semi join could have only the right side as a table that every worker has.
    let sql = "SELECT l.origin FROM flights AS l WHERE l.dest = 'a'
               AND EXISTS (SELECT 1 FROM flights AS r WHERE r.origin = l.origin)";
    let text = plan_on(1, sql)[0].explain.text();
    assert!(text.contains("  HashJoin [") && text.contains("build: l"), "{text}");
    assert!(text.contains("type: RIGHT SEMI"), "{text}");
    let sql = "SELECT l.origin FROM flights AS l
               WHERE EXISTS
                 (SELECT 1 FROM flights AS r WHERE r.dest = 'a' AND r.origin = l.origin)";
    let text = plan_on(1, sql)[0].explain.text();
    assert!(text.contains("  LookupJoin [") && text.contains("type: LEFT SEMI"), "{text}");
}

#[test]
fn scans_leave_out_rows_that_a_build_does_not_have() {
    let distinct = "(SELECT DISTINCT origin FROM flights)";
    let filters = |workers: u32, sql: &str| {
        let text = plan_on(workers, sql)[0].explain.text();
        let line = text.lines().find_map(|line| line.split_once("join filters: "));
        line.map(|(_, filters)| filters.to_owned())
    };
    let join = |kind: &str, on: &str| {
        format!("SELECT l.dest, l.delay FROM flights AS l {kind} JOIN {distinct} AS r ON {on}")
    };
    let equal = "l.dest = r.origin";
    assert_eq!(filters(1, &join("", equal)).as_deref(), Some("dest in the build of [3]"));
    let broadcast = join("", equal).replace("SELECT l", "SELECT /*+ BROADCAST(r) */ l");
    assert_eq!(filters(4, &broadcast).as_deref(), Some("dest in the build of [3]"));
    assert_eq!(filters(1, &join("LEFT SEMI", equal)).as_deref(), Some("dest in the build of [3]"));
    let lookup = "SELECT l.delay FROM flights AS l JOIN flights AS r ON l.dest = r.origin";
    assert_eq!(filters(4, lookup).as_deref(), Some("dest in the build of [1]"));
    // A grouping of both sides stands between: by the key, and by what it computes.
    let grouped = |on: &str| {
        let side =
            |key: &str| format!("(SELECT {key} AS k, count(*) AS n FROM flights GROUP BY 1)");
        format!("SELECT l.k FROM {} AS l JOIN {} AS r ON {on}", side("dest"), side("origin"))
    };
    assert!(filters(1, &grouped("l.k = r.k")).is_some_and(|of| of.contains("in the build of")));
    assert_eq!(filters(1, &grouped("l.n = r.n")), None);
    // Rows without a partner are emitted; or the key is computed; or a worker has not all keys.
    assert_eq!(filters(1, &join("LEFT", equal)), None);
    assert_eq!(filters(1, &join("LEFT ANTI", equal)), None);
    assert_eq!(filters(1, &join("", "upper(l.dest) = r.origin")), None);
    let shuffled = format!("SET millstream.exchange = 'shuffle'; {}", join("", equal));
    assert_eq!(filters(4, &shuffled), None);
}

#[test]
fn the_order_of_a_subquery_that_is_lost_is_not_made() {
    let ordered = "SELECT dest, delay FROM flights ORDER BY delay";
    let flights = "SELECT delay FROM flights";
    for (sql, is_sorted) in [
        (format!("{flights} WHERE dest IN (SELECT origin FROM flights ORDER BY delay)"), false),
        (format!("{flights} UNION ALL ({flights} ORDER BY dest)"), false),
        (format!("SELECT count(*) FROM ({ordered}) AS s"), false),
        (format!("SELECT count(*) FROM ({ordered} LIMIT 5) AS s"), true),
        (format!("{flights} UNION ALL ({flights} ORDER BY dest LIMIT 5)"), true),
        (format!("{flights} ORDER BY dest"), true),
    ] {
        let text = plan_on(1, &sql)[0].explain.text();
        assert_eq!(text.contains("Sort"), is_sorted, "{sql}: {text}");
    }
}

#[test]
fn operators_follow_operators() {
    for (sql, sources, groupings) in [
        ("SELECT origin FROM flights UNION ALL SELECT dest FROM flights", 2, 0),
        ("SELECT origin, count(DISTINCT dest) FROM flights GROUP BY origin", 1, 2),
        (
            "SELECT window_start, max(n) FROM (
               SELECT window_start, window_end, origin, count(*) AS n
               FROM TUMBLE(TABLE stream, DESCRIPTOR(ts), INTERVAL '1' HOUR)
               GROUP BY window_start, window_end, origin)
             GROUP BY window_start, window_end",
            1,
            2,
        ),
    ] {
        let stage = plan_on(4, sql).remove(0);
        assert_eq!((stage.job.inputs().count(), aggregates(&stage).len()), (sources, groupings));
        assert!(!stage.explain.text().contains("Batch"), "{sql}");
    }
}

#[test]
fn rows_of_windows_are_joined() {
    let tens = "(SELECT * FROM TUMBLE(TABLE stream, DESCRIPTOR(ts), INTERVAL '10' SECOND))";
    let sql = format!(
        "SELECT l.origin, r.delay FROM {tens} AS l LEFT JOIN {tens} AS r
         ON l.origin = r.origin AND l.delay < r.delay AND l.window_start = r.window_start
            AND l.window_end = r.window_end"
    );
    let stage = plan_on(2, &sql).remove(0);
    let text = stage.explain.text();
    has(&text, "WindowJoin [2]");
    has(&text, "type: LEFT");
    has(&text, "window: l.window_end = r.window_end");
    has(&text, "on: l.origin = r.origin");
    has(&text, "filter: l.delay < r.delay");
    has(&text, "shuffle(r.origin): rows of equal keys meet on one worker");
    let keyed = |operator: &&Operator| matches!(operator.kind, OperatorKind::Keyed(_));
    let join = stage.job.operators.iter().find(keyed).expect("a join");
    let OperatorKind::Keyed(spec) = &join.kind else { panic!("a join") };
    assert_eq!((spec.exchange, spec.granularity), (Exchange::Shuffle, 10_000));
    assert!(join.inputs.iter().flatten().all(|edge| edge.timed));
}

#[test]
fn sessions_that_are_named_twice_are_found_once() {
    let session = "SESSION(TABLE stream PARTITION BY origin, DESCRIPTOR(ts), INTERVAL '1' MINUTE)";
    let on = "l.window_start = r.window_start AND l.window_end = r.window_end
              AND l.origin = r.origin";
    let sources = |stage: &Stage| {
        let is_source = |o: &&Operator| matches!(o.kind, OperatorKind::Source(_));
        stage.job.operators.iter().filter(is_source).count()
    };
    let sql = format!(
        "SELECT l.delay, r.ts FROM (SELECT * FROM {session} WHERE delay > 9) AS l
         JOIN (SELECT * FROM {session} WHERE delay < 1) AS r ON {on}"
    );
    let stage = plan_on(2, &sql).remove(0);
    let [_, sessions, join, _] = &stage.job.operators[..] else {
        panic!("{}", stage.explain.text())
    };
    let from = |inputs: &[Vec<Edge>]| inputs.iter().flatten().map(|e| e.from).collect::<Vec<_>>();
    assert_eq!((from(&sessions.inputs), from(&join.inputs)), (vec![0], vec![1, 1]));
    assert!(join.inputs.iter().flatten().all(|edge| edge.timed && edge.step.is_some()));
    let text = stage.explain.text();
    has(&text, "│  filter: delay > 9 OR delay < 1");
    has(&text, "SessionWindow [1], as above");

    // One that reads all rows has all given out.
    let sql = format!("SELECT l.delay, r.ts FROM {session} AS l JOIN {session} AS r ON {on}");
    let stage = plan_on(2, &sql).remove(0);
    assert_eq!(sources(&stage), 1);
    assert!(!stage.explain.text().contains("│  filter: "));

    // Who groups finds sessions without keeping rows; and these are not the same sessions.
    let grouped = |gap: &str| {
        format!(
            "(SELECT origin, window_start, window_end, count(*) AS n
              FROM SESSION(TABLE stream PARTITION BY origin, DESCRIPTOR(ts), INTERVAL {gap} MINUTE)
              GROUP BY origin, window_start, window_end)"
        )
    };
    for (left, right) in [("'1'", "'1'"), ("'1'", "'2'")] {
        let (left, right) = (grouped(left), grouped(right));
        let stage =
            plan_on(2, &format!("SELECT l.n, r.n FROM {left} AS l JOIN {right} AS r ON {on}"));
        assert_eq!(aggregates(&stage[0]).len(), 2);
    }
    let other = session.replace("'1'", "'2'");
    let sql = format!("SELECT l.delay, r.ts FROM {session} AS l JOIN {other} AS r ON {on}");
    assert_eq!(sources(&plan_on(2, &sql)[0]), 2);
}

#[test]
fn a_table_is_read_beside_a_stream_and_no_row_travels() {
    let sql = "SELECT s.origin, f.dest FROM stream AS s LEFT JOIN
                 (SELECT origin, dest FROM flights WHERE delay > 3) AS f ON s.origin = f.origin";
    let stage = plan_on(2, sql).remove(0);
    assert!(!stage.bounded);
    let operators = &stage.job.operators;
    let [source, lookup, sink] = &operators[..] else { panic!("{} operators", operators.len()) };
    assert_eq!(input(source).table, "stream");
    let OperatorKind::Lookup(spec) = &lookup.kind else { panic!("a lookup") };
    assert_eq!(spec.table.table, "flights");
    assert!(!lookup.inputs[0][0].timed, "nobody asks for time");
    assert!(matches!(sink.kind, OperatorKind::Sink(_)));
    let text = stage.explain.text();
    has(&text, "type: LEFT");
    has(&text, "on: s.origin = f.origin");

    let sql = "SELECT window_start, f.dest, count(*)
               FROM TUMBLE(TABLE stream, DESCRIPTOR(ts), INTERVAL '1' HOUR) AS s
               JOIN flights AS f ON s.origin = f.origin GROUP BY window_start, window_end, f.dest";
    let stage = plan_on(2, sql).remove(0);
    let lookup = |operator: &&Operator| matches!(operator.kind, OperatorKind::Lookup(_));
    let lookup = stage.job.operators.iter().find(lookup).expect("a lookup");
    assert!(lookup.inputs[0][0].timed, "a window asks for time");
}

#[test]
fn times_bound_what_a_join_remembers() {
    let sql = "SELECT a.origin, b.delay FROM stream AS a JOIN stream AS b ON a.origin = b.origin
               AND a.ts > b.ts - INTERVAL '10' SECOND AND b.ts >= a.ts - INTERVAL '1' MINUTE
               AND a.delay < b.delay";
    let stage = plan_on(2, sql).remove(0);
    let text = stage.explain.text();
    has(&text, "IntervalJoin [2]");
    has(&text, "on: a.origin = b.origin");
    has(&text, "interval: a.ts - b.ts BETWEEN -9999 ms AND 1 min");
    has(&text, "filter: a.delay < b.delay");
    let keyed = |operator: &&Operator| matches!(operator.kind, OperatorKind::Keyed(_));
    let join = stage.job.operators.iter().find(keyed).expect("a join");
    let OperatorKind::Keyed(spec) = &join.kind else { panic!("a join") };
    assert_eq!(
        (spec.exchange, spec.granularity, spec.inputs[0].grace),
        (Exchange::Shuffle, 1_000, 1)
    );
    assert!(join.inputs.iter().flatten().all(|edge| edge.timed));
}

#[test]
fn a_filter_on_the_number_bounds_what_a_ranking_remembers() {
    let ranked = |wanted: &str| {
        let sql = format!(
            "SELECT origin FROM (SELECT *, ROW_NUMBER() OVER (PARTITION BY window_start, window_end,
               origin ORDER BY delay DESC) AS rn
             FROM TUMBLE(TABLE stream, DESCRIPTOR(ts), INTERVAL '1' HOUR)) AS r WHERE {wanted}"
        );
        plan_on(2, &sql).remove(0).explain.text()
    };
    for wanted in ["rn <= 3", "4 > rn", "rn = 3", "rn BETWEEN 2 AND 3", "rn < 9 AND rn <= 3"] {
        let text = ranked(wanted);
        has(&text, "TopN [1]");
        has(&text, "limit: 3");
        has(&text, "partition by: origin, window_end");
        has(&text, "order by: delay DESC");
    }
    has(&ranked("rn > 3 OR delay > 5"), "RowNumber [1]");
}

#[test]
fn statement_sets_and_scripts_make_stages() {
    let stages = plan_on(
        1,
        "BEGIN STATEMENT SET;
         INSERT INTO hourly SELECT ts, origin, 1 FROM flights;
         INSERT INTO hourly (origin) SELECT dest FROM flights;
         END;
         EXECUTE STATEMENT SET BEGIN INSERT INTO hourly SELECT ts, origin, 2 FROM stream; END;
         SELECT 1;
         SHOW TABLES; DESCRIBE hourly; EXPLAIN SELECT origin FROM flights",
    );
    let shape: Vec<_> = stages.iter().map(|s| (sinks(s), s.statements.len(), s.bounded)).collect();
    assert_eq!(shape[..3], [(2, 2, true), (1, 1, false), (1, 1, true)]);
    assert_eq!(stages.len(), 6);
    assert_eq!(stages[0].statements[1].line, 3);
    assert!(stages[0].statements[0].sql.starts_with("INSERT INTO hourly SELECT"));
}

#[test]
fn the_exchange_is_chosen_or_set() {
    let sql = "SELECT origin, count(*) FROM flights GROUP BY origin";
    let exchange = |workers: u32, set: &str| {
        let stages = plan_on(workers, &format!("{set}{sql}"));
        aggregates(&stages[0])[0].exchange
    };
    assert_eq!(exchange(1, ""), Exchange::Forward);
    assert_eq!(exchange(2, ""), Exchange::Merge);
    assert_eq!(exchange(2, "SET millstream.exchange = shuffle;"), Exchange::Shuffle);
    assert_eq!(exchange(1, "SET millstream.exchange = merge;"), Exchange::Merge);
    let uppar = "SET millstream.exchange = uppar;";
    assert_eq!(exchange(2, uppar), Exchange::UpPar);
    let text = plan_on(4, &format!("{uppar}{sql}"))[0].explain.text();
    assert!(
        text.contains("uppar(origin): SET millstream.exchange = 'uppar': half of the"),
        "{text}"
    );
}

#[test]
fn statements_of_a_set_may_differ_in_their_exchange() {
    let insert = "INSERT INTO hourly SELECT max(ts), origin, count(*) FROM flights GROUP BY origin";
    let stages = plan_on(
        2,
        &format!(
            "BEGIN STATEMENT SET; SET millstream.exchange = 'merge'; {insert};
             SET millstream.exchange = 'shuffle'; {insert}; END;"
        ),
    );
    let exchanges: Vec<_> = aggregates(&stages[0]).iter().map(|spec| spec.exchange).collect();
    assert_eq!((stages.len(), exchanges), (1, vec![Exchange::Merge, Exchange::Shuffle]));
}

/// Each statement of a set sends its rows as the settings before it say.
#[test]
fn statements_of_a_set_may_differ_in_how_they_shuffle() {
    let insert = "INSERT INTO hourly SELECT max(ts), origin, count(*) FROM flights GROUP BY origin";
    let stages = plan_on(
        2,
        &format!(
            "SET millstream.exchange = 'shuffle'; BEGIN STATEMENT SET; {insert};
             SET millstream.shuffle_bytes = '1 KiB'; SET millstream.shuffle_wait = '0 s';
             SET millstream.frequent_keys = 'off'; {insert}; END;"
        ),
    );
    let [stage] = &stages[..] else { panic!("one job") };
    let groupings = stage.job.operators.iter();
    let groupings = groupings.filter(|one| matches!(one.kind, OperatorKind::Aggregate(_)));
    let shuffles: Vec<ShuffleSettings> = groupings.map(|one| one.shuffle).collect();
    let small = ShuffleSettings { bytes: 1024, wait_ns: 0, frequent_keys: FrequentKeys::Off };
    assert_eq!(shuffles, [ShuffleSettings::default(), small]);
}

/// A source tells 9 distances and a million destinations, but of origins nothing, and of times only
/// a range that is wider than there are rows.
#[test]
fn the_cheaper_exchange_is_chosen_where_keys_are_known() {
    let exchange = |key: &str| {
        let stages = plan_on(4, &format!("SELECT {key}, count(*) FROM flights GROUP BY {key}"));
        let text = stages[0].explain.text();
        let lines: Vec<&str> = text.lines().collect();
        let by = |line: &str| line.contains("merge(") || line.contains("shuffle(");
        let at = lines.iter().position(|line| by(line)).expect("a line");
        (aggregates(&stages[0])[0].exchange, lines[at..at + 2].concat())
    };
    for (key, right, words) in [
        ("distance", Exchange::Merge, "cost: merge 0.00 B and 10 cycles a row, shuffle"),
        ("dest", Exchange::Shuffle, "would combine only about 1.00 rows of a group in a delta"),
        ("dest, distance", Exchange::Shuffle, "would combine only about 1"),
        ("origin", Exchange::Merge, "is not known beforehand"),
        ("dest, origin", Exchange::Merge, "is not known beforehand"),
        ("ts", Exchange::Merge, "is not known beforehand"),
    ] {
        let (chosen, line) = exchange(key);
        assert_eq!(chosen, right, "{key}: {line}");
        assert!(line.contains(words), "{key}: {line}");
    }
}

#[test]
fn rows_that_are_together_stay_where_they_are() {
    let exchanges = |set: &str, keys: &str, outer: &str| {
        let sql = format!(
            "{set}SELECT {outer}, max(n) FROM (SELECT {keys}, count(*) AS n FROM flights GROUP BY \
             {keys}) GROUP BY {outer}"
        );
        let stages = plan_on(2, &sql);
        aggregates(&stages[0]).iter().map(|spec| spec.exchange).collect::<Vec<_>>()
    };
    let (merge, forward) = (Exchange::Merge, Exchange::Forward);
    assert_eq!(exchanges("", "origin", "origin"), [merge, forward]);
    assert_eq!(exchanges("", "origin", "n, origin"), [merge, forward]);
    // The rows of an origin are where its destinations are led, which may be anywhere.
    assert_eq!(exchanges("", "origin, dest", "origin"), [merge, merge]);
    assert_eq!(exchanges("", "origin", "n"), [merge, merge]);
    assert_eq!(exchanges("", "origin", "upper(origin)"), [merge, merge]);
    let set = "SET millstream.exchange = merge;";
    assert_eq!(exchanges(set, "origin", "origin"), [merge, merge]);
}

#[test]
fn what_keeps_rows_takes_them_where_they_are_together() {
    let hourly = |table: &str| {
        format!(
            "(SELECT origin, window_start AS hour, window_end, count(*) AS n
              FROM TUMBLE(TABLE {table}, DESCRIPTOR(ts), INTERVAL '1' HOUR)
              GROUP BY origin, window_start, window_end)"
        )
    };
    let exchange = |set: &str, on: &str| {
        let (a, b) = (hourly("stream"), hourly("stream"));
        let sql = format!(
            "{set}SELECT a.origin, a.n, b.n FROM {a} a JOIN {b} b
             ON a.hour = b.hour AND a.window_end = b.window_end AND {on}"
        );
        let stages = plan_on(2, &sql);
        let keyed = stages[0].job.operators.iter().find_map(|operator| match &operator.kind {
            OperatorKind::Keyed(spec) => Some(spec.exchange),
            _ => None,
        });
        keyed.unwrap()
    };
    assert_eq!(exchange("", "a.origin = b.origin"), Exchange::Forward);
    assert_eq!(exchange("", "a.n = b.n"), Exchange::Shuffle);
    assert_eq!(exchange("", "a.origin = upper(b.origin)"), Exchange::Shuffle);
    let set = "SET millstream.exchange = shuffle;";
    assert_eq!(exchange(set, "a.origin = b.origin"), Exchange::Shuffle);
}

/// The exchanges of the keyed operators of a query over endless tables x, y and z. An input that
/// stays where it is makes its operator `-right`.
fn exchanges_of(sql: &str) -> String {
    let columns = "ts TIMESTAMP(3), k INT, l INT, v INT, b BIGINT, d DECIMAL(10, 2), f DOUBLE";
    let table = |name: &str| {
        format!(
            "CREATE TABLE {name} ({columns}, WATERMARK FOR ts AS ts) \
             WITH ('connector' = 'memory', 'bounded' = 'false');"
        )
    };
    let (mut planner, _) = support::planner(4);
    planner.plan(&["x", "y", "z"].map(table).concat()).expect("the tables");
    let stages = planner.plan(sql).unwrap_or_else(|errors| panic!("{sql}: {errors:?}"));
    let of = |operator: &Operator| match &operator.kind {
        OperatorKind::Aggregate(spec) => Some(spec.exchange.to_string()),
        OperatorKind::Keyed(spec) => {
            let stays = spec.inputs.iter().any(|input| input.distribution == Distribution::Local);
            Some(spec.exchange.to_string() + if stays { "-right" } else { "" })
        }
        _ => None,
    };
    stages[0].job.operators.iter().filter_map(of).collect::<Vec<_>>().join(" ")
}

/// Joins of windows of x with those of other tables: of each join its kind, table and condition.
fn window_joins(joins: &[(&str, &str, &str)]) -> String {
    let of = |name: &str| {
        format!("(SELECT * FROM TUMBLE(TABLE {name}, DESCRIPTOR(ts), INTERVAL '9' SECOND)) {name}")
    };
    let mut sql = of("x");
    for (kind, name, on) in joins {
        let same = |bound: &str| format!("x.window_{bound} = {name}.window_{bound}");
        let (start, end) = (same("start"), same("end"));
        sql += &format!(" {kind} JOIN {} ON {start} AND {end} AND {on}", of(name));
    }
    sql
}

/// Of each case the joins, and what rows are grouped by behind them besides the window.
#[test]
fn rows_stay_where_a_join_has_led_them() {
    let joins = [
        (window_joins(&[("", "y", "x.k = y.k")]), "x.k", "shuffle forward"),
        (window_joins(&[("", "y", "x.k = y.k")]), "y.k", "shuffle forward"),
        (window_joins(&[("", "y", "x.k = y.k")]), "x.v, y.v, y.k", "shuffle forward"),
        (window_joins(&[("", "y", "x.k = y.k")]), "x.v", "shuffle merge"),
        (window_joins(&[("", "y", "x.k = y.k")]), "x.k + 1", "shuffle merge"),
        (window_joins(&[("", "y", "x.k = y.k AND x.l = y.l")]), "y.l, x.k", "shuffle forward"),
        (window_joins(&[("", "y", "x.k = y.k AND x.l = y.l")]), "x.k", "shuffle merge"),
        (window_joins(&[("LEFT", "y", "x.k = y.k")]), "x.k", "shuffle forward"),
        (window_joins(&[("LEFT", "y", "x.k = y.k")]), "y.k", "shuffle merge"),
        (window_joins(&[("", "y", "x.k = y.b")]), "y.b", "shuffle forward"),
        (window_joins(&[("", "y", "x.k = y.b")]), "x.k", "shuffle forward"),
        (window_joins(&[("", "y", "x.f = y.f")]), "y.f", "shuffle forward"),
        (window_joins(&[("", "y", "x.f = y.f")]), "CAST(x.f AS STRING)", "shuffle merge"),
        (
            window_joins(&[("", "y", "CAST(x.f AS STRING) = CAST(y.f AS STRING)")]),
            "x.f",
            "shuffle merge",
        ),
        (
            window_joins(&[("", "y", "x.k = y.k"), ("", "z", "y.k = z.k")]),
            "z.k",
            "shuffle shuffle-right forward",
        ),
        (
            window_joins(&[
                ("", "y", "x.k = y.k AND x.l = y.l"),
                ("", "z", "x.l = z.l AND y.k = z.k"),
            ]),
            "x.k, x.l",
            "shuffle shuffle forward",
        ),
        (
            window_joins(&[("LEFT", "y", "x.k = y.k"), ("LEFT", "z", "x.k = z.k")]),
            "x.k",
            "shuffle shuffle-right forward",
        ),
        (
            window_joins(&[("LEFT", "y", "x.k = y.k"), ("LEFT", "z", "y.k = z.k")]),
            "x.k",
            "shuffle shuffle merge",
        ),
    ];
    for (from, keys, expected) in joins {
        let by = format!("x.window_start, x.window_end, {keys}");
        let sql = format!("SELECT count(*) FROM {from} GROUP BY {by}");
        assert_eq!(exchanges_of(&sql), expected, "{sql}");
    }
}

#[test]
fn rows_stay_where_a_full_join_has_led_them() {
    let full = window_joins(&[("FULL", "y", "x.k = y.k")]);
    for (key, expected) in [
        ("coalesce(x.k, y.k)", "shuffle forward"),
        ("coalesce(y.k, x.k)", "shuffle forward"),
        ("x.k", "shuffle merge"),
        ("coalesce(x.k, y.l)", "shuffle merge"),
    ] {
        let end = "coalesce(x.window_end, y.window_end)";
        let sql = format!("SELECT count(*) FROM {full} GROUP BY {end}, {key}");
        assert_eq!(exchanges_of(&sql), expected, "{sql}");
    }
}

#[test]
fn rows_stay_where_an_interval_or_temporal_join_has_led_them() {
    let behind = |join: &str, column: &str| {
        format!(
            "WITH n AS (SELECT {column} AS j, x.ts AS at FROM x {join})
             SELECT count(*) FROM TUMBLE(TABLE n, DESCRIPTOR(at), INTERVAL '9' SECOND)
             GROUP BY window_start, window_end, j"
        )
    };
    let near = "JOIN y ON x.k = y.k AND x.ts BETWEEN y.ts AND y.ts + INTERVAL '9' SECOND";
    let near = |kind: &str| format!("{kind} {near}");
    let version = "JOIN y FOR SYSTEM_TIME AS OF x.ts ON x.k = y.k";
    for (sql, expected) in [
        (behind(&near(""), "x.k"), "shuffle forward"),
        (behind(&near(""), "y.k"), "shuffle forward"),
        (behind(&near(""), "x.l"), "shuffle merge"),
        (behind(&near("LEFT"), "x.k"), "shuffle forward"),
        (behind(&near("LEFT"), "y.k"), "shuffle merge"),
        (behind(&near("LEFT"), "coalesce(y.k, x.k)"), "shuffle merge"),
        (behind(version, "y.k"), "shuffle forward"),
        (behind(&format!("LEFT {version}"), "x.k"), "shuffle forward"),
        (behind(&format!("LEFT {version}"), "y.k"), "shuffle merge"),
    ] {
        assert_eq!(exchanges_of(&sql), expected, "{sql}");
    }
}

#[test]
fn a_failed_script_leaves_nothing_behind() {
    let (mut planner, _) = support::planner(1);
    let errors = planner.plan(&format!("{TABLES} SELECT nothing FROM flights;")).err();
    assert_eq!(errors.expect("an error").len(), 1);
    let errors = planner.plan("SELECT origin FROM flights").err().expect("no table");
    assert!(errors[0].message.contains("unknown table"), "{}", errors[0].message);
}

#[test]
fn explain_shows_the_pipeline_and_its_memory() {
    let stages = plan_on(
        4,
        "INSERT INTO hourly SELECT window_start, origin, count(*) FROM TUMBLE(TABLE flights,
         DESCRIPTOR(ts), INTERVAL '1' HOUR) WHERE delay > 15.0
         GROUP BY window_start, window_end, origin",
    );
    let text = stages[0].explain.text();
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/explain.txt");
    if std::env::var_os("UPDATE_EXPECTED").is_some() {
        std::fs::write(&path, &text).expect("the expected text");
    }
    assert_eq!(std::fs::read_to_string(path).expect("the expected text"), text);
}

#[test]
fn what_state_may_become_is_estimated() {
    let state = |workers: u32, sql: &str| -> Vec<String> {
        let text = plan_on(workers, sql)[0].explain.text();
        let state = text.split("state, estimated over all workers\n").nth(1);
        let state = state.and_then(|state| state.split("\n\n").next()).unwrap_or_default();
        let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
        state.lines().map(words).collect()
    };
    // A key of 4 bytes, a count, and their place in the index; NULL is a tenth distance.
    let by_distance = "SELECT distance, count(*) FROM flights GROUP BY distance";
    assert_eq!(state(1, by_distance), ["1 Aggregate at most 10 groups x 20 B 200 B"]);
    // Each worker has a part of the groups, and the leaders have them all.
    assert_eq!(state(4, by_distance), ["1 Aggregate at most 50 groups x 20 B 1000 B"]);
    // There are no more groups than rows.
    let by_origin = "SELECT origin, count(*) FROM flights GROUP BY origin";
    assert_eq!(state(1, by_origin), ["1 Aggregate at most 1000 groups x 40 B 39.1 KiB"]);
    let hourly = "SELECT distance, count(*) FROM TUMBLE(TABLE flights, DESCRIPTOR(ts),
        INTERVAL '1' HOUR) GROUP BY window_start, window_end, distance";
    let expected = "1 WindowAggregate at most 260 groups of open windows x 20 B 5.1 KiB";
    assert_eq!(state(1, hourly), [expected]);
    let median = "SELECT distance, median(delay) FROM flights GROUP BY distance";
    let expected = [
        "1 Aggregate at most 10 groups x 36 B 360 B",
        "1 Aggregate at most 1000 values that are kept one by one x 8 B 7.8 KiB",
    ];
    assert_eq!(state(1, median), expected);
    let endless = "SELECT origin, count(*) FROM TUMBLE(TABLE stream, DESCRIPTOR(ts),
        INTERVAL '1' HOUR) GROUP BY window_start, window_end, origin";
    let expected = "1 WindowAggregate unknown number of groups of open windows x 40 B unknown";
    assert_eq!(state(1, endless), [expected]);
    let near = "SELECT a.origin FROM flights a JOIN flights b ON a.distance = b.distance
        AND b.ts BETWEEN a.ts AND a.ts + INTERVAL '1' HOUR";
    let expected = [
        "2 IntervalJoin at most 1000 rows of input 0 within 1 h x 36 B 35.2 KiB",
        "2 IntervalJoin at most 1000 rows of input 1 not yet due x 12 B 11.7 KiB",
    ];
    assert_eq!(state(1, near), expected);
    let over = "SELECT distance, avg(delay) OVER (PARTITION BY distance ORDER BY ts
        ROWS 4 PRECEDING) FROM flights";
    let expected = "1 OverAggregate at most 50 rows, the newest 5 of each key x 20 B 1000 B";
    assert_eq!(state(1, over), [expected]);
    assert_eq!(state(1, "SELECT origin FROM flights"), [""; 0]);
}

#[test]
fn now_is_the_instant_that_the_planner_was_given() {
    let planned = |seconds| {
        let (mut planner, _) = support::planner(2);
        planner.set_now(UNIX_EPOCH + Duration::from_secs(seconds));
        planner.plan(TABLES).expect("the tables");
        let stages = planner.plan("SELECT origin FROM flights WHERE ts < now()").expect("a plan");
        stages[0].explain.text()
    };
    assert_eq!(planned(1_700_000_000), planned(1_700_000_000));
    assert_ne!(planned(1_700_000_000), planned(1_700_000_001));
}

#[test]
fn flows_that_never_end_fall_idle_and_others_only_where_that_is_declared() {
    let timings = |set: &str, table: &str, watermark: &str| {
        let sql = format!(
            "{set} CREATE TABLE t (ts TIMESTAMP(6), v INT, {watermark}) WITH ({table});
             SELECT window_start, count(*) FROM TUMBLE(TABLE t, DESCRIPTOR(ts), INTERVAL '1' HOUR)
             GROUP BY window_start, window_end"
        );
        let watermark = query(&sql).input.watermark.expect("there is one");
        (watermark.delay, watermark.idle_timeout_ns)
    };
    let (ends, endless) = ("'connector' = 'memory'", "'connector' = 'memory', 'bounded' = 'false'");
    let plain = "WATERMARK FOR ts AS ts - INTERVAL '1' SECOND";
    let declared = format!("{plain} IDLE TIMEOUT INTERVAL '2' SECOND");
    assert_eq!(timings("", endless, plain), (1_000_000, Some(30_000_000_000)));
    assert_eq!(timings("", ends, plain), (1_000_000, None));
    assert_eq!(timings("", endless, &declared).1, Some(2_000_000_000));
    assert_eq!(timings("", ends, &declared).1, Some(2_000_000_000));
    let set = "SET millstream.idle_timeout = '5 min';";
    assert_eq!(timings(set, endless, plain).1, Some(300_000_000_000));
    assert_eq!(timings(set, ends, plain).1, None);
    assert_eq!(timings("SET millstream.idle_timeout = '0 s';", endless, plain).1, None);
    let set = "SET millstream.allowed_lateness = '500 ms';";
    assert_eq!(timings(set, endless, plain).0, 1_500_000);
}
