//! Jobs of streams on simulated clusters of several sizes, against plain loops over all rows.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use arrow::array::{ArrayRef, Int64Array, RecordBatch, StringArray, TimestampMillisecondArray};
use arrow::datatypes::{DataType, Field, Int64Type, Schema, SchemaRef, TimeUnit};
use arrow::util::display::{ArrayFormatter, FormatOptions};
use dataflow::connector::{Connector, TableDef};
use dataflow::fusion::fuse;
use dataflow::job::{JobGraph, OperatorKind, Settings};
use stream::{Agg, Columns, EventTime, Exchange, JoinKind, Setup, Stream, StreamError, Window};

use tests::cluster::Cluster;
use tests::memory::{Event, Memory, Table};
use tests::remainder::ByRemainder;

/// Cluster sizes: nodes and workers of each.
const SIZES: [(u32, u32); 4] = [(1, 1), (2, 1), (1, 3), (2, 2)];
const SECOND: Duration = Duration::from_secs(1);

/// Milliseconds, key, word and value of an event, none of which is late.
type Row = (i64, i64, &'static str, Option<i64>);

fn rows() -> Vec<Row> {
    let mut state = 7u64;
    let mut next = |n: u64| {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % n
    };
    let row = |at: i64| {
        let word = ["view", "click", "purchase"][next(3) as usize];
        let value = Some(next(1_000) as i64).filter(|value| value % 10 != 0);
        (at * 20 + next(1_500) as i64, next(30) as i64, word, value)
    };
    (0..3_000).map(row).collect()
}

fn schema() -> SchemaRef {
    Arc::new(Schema::new(vec![
        Field::new("ts", DataType::Timestamp(TimeUnit::Millisecond, None), true),
        Field::new("k", DataType::Int64, true),
        Field::new("word", DataType::Utf8, true),
        Field::new("v", DataType::Int64, true),
    ]))
}

fn batch(rows: &[Row]) -> RecordBatch {
    let columns: Vec<ArrayRef> = vec![
        Arc::new(TimestampMillisecondArray::from_iter_values(rows.iter().map(|row| row.0))),
        Arc::new(Int64Array::from_iter_values(rows.iter().map(|row| row.1))),
        Arc::new(StringArray::from_iter_values(rows.iter().map(|row| row.2))),
        Arc::new(rows.iter().map(|row| row.3).collect::<Int64Array>()),
    ];
    RecordBatch::try_new(schema(), columns).expect("they are alike")
}

fn table(memory: &Memory, name: &str, table: Table, time: Option<EventTime>) -> Stream {
    let schema = table.schema.clone();
    memory.add(name, table);
    let all: Vec<usize> = (0..schema.fields().len()).collect();
    let (options, metadata) = Default::default();
    let def = TableDef { name: name.into(), schema, options, metadata, buckets: vec![] };
    let source = memory.source(&def, &all).expect("it was added");
    Stream::read(name, source, time).expect("the time is a column")
}

/// The events in four flows, with their time.
fn events(memory: &Memory) -> Stream {
    events_within(memory, 2 * SECOND)
}

/// The same with another watermark: rows stray by 1.5 seconds.
fn events_within(memory: &Memory, delay: Duration) -> Stream {
    let rows = rows();
    let flow = |flow: usize| {
        let own: Vec<Row> = rows.iter().skip(flow).step_by(4).copied().collect();
        own.chunks(97).map(|rows| Event::Rows(batch(rows))).collect()
    };
    let table_of = Table { schema: schema(), bounded: true, flows: (0..4).map(flow).collect() };
    let time = EventTime::of("ts").delay(delay);
    table(memory, "events", table_of, Some(time))
}

/// Ten keys of a campaign.
fn campaigns(memory: &Memory) -> Stream {
    let fields = ["k", "campaign"].map(|name| Field::new(name, DataType::Int64, true));
    let schema = Arc::new(Schema::new(fields.to_vec()));
    let (keys, of): (Vec<i64>, Vec<i64>) = (0..30).map(|key| (key, key / 10)).unzip();
    let columns: Vec<ArrayRef> =
        vec![Arc::new(Int64Array::from(keys)), Arc::new(Int64Array::from(of))];
    let rows = RecordBatch::try_new(schema.clone(), columns).expect("they are alike");
    let flows = vec![vec![Event::Rows(rows)]];
    table(memory, "campaigns", Table { schema, bounded: true, flows }, None)
}

fn setup(workers: u32, exchange: Option<Exchange>) -> Setup {
    let epoch = Settings::default().epoch;
    Setup {
        workers,
        beside: 1,
        exchange,
        epoch,
        state_bytes_max: 1 << 30,
        table_bytes_max: 1 << 20,
    }
}

/// The rows of a stream as text, sorted; and how many operators are `forward`.
fn run(
    memory: &Memory,
    stream: Stream,
    (nodes, workers): (u32, u32),
    exchange: Option<Exchange>,
) -> (Vec<String>, usize) {
    memory.clear();
    let (schema, options, metadata) =
        (stream.schema().clone(), Default::default(), Default::default());
    let def = TableDef { name: "out".into(), schema, options, metadata, buckets: vec![] };
    let output = stream.into_sink("out", memory.sink(&def).expect("it takes all"));
    let operators = stream::job(&[output], &setup(nodes * workers, exchange)).expect("it fits");
    let forward = operators.iter().filter(|operator| match &operator.kind {
        OperatorKind::Aggregate(spec) => spec.exchange == Exchange::Forward,
        OperatorKind::Keyed(spec) => spec.exchange == Exchange::Forward,
        _ => false,
    });
    let forward = forward.count();
    let mut job = JobGraph { operators, settings: Settings::default() };
    fuse(&mut job, nodes * workers);
    let job = Arc::new(job);
    let ran = Cluster::seeded(nodes, workers, 5).run(&job).expect("nothing fails");
    assert_eq!(ran.sum(|metrics| &metrics.late), 0, "no row is late");
    let format = FormatOptions::default().with_null("NULL");
    let mut lines = vec![];
    for batch in memory.all_committed() {
        let columns = batch.columns().iter();
        let columns: Vec<_> = columns
            .map(|column| ArrayFormatter::try_new(column, &format).expect("it prints"))
            .collect();
        lines.extend((0..batch.num_rows()).map(|row| {
            let values: Vec<_> = columns.iter().map(|c| c.value(row).to_string()).collect();
            values.join("|")
        }));
    }
    lines.sort();
    (lines, forward)
}

fn sorted(lines: impl Iterator<Item = String>) -> Vec<String> {
    let mut lines: Vec<String> = lines.collect();
    lines.sort();
    lines
}

fn null(value: Option<i64>) -> String {
    value.map_or("NULL".into(), |value| value.to_string())
}

#[test]
fn a_filtered_tumbling_aggregate() -> Result<(), StreamError> {
    let mut groups: BTreeMap<(i64, i64), (i64, Option<i64>)> = BTreeMap::new();
    for (ts, key, word, value) in rows() {
        if word != "view" {
            let group = groups.entry((key, ts / 10_000)).or_default();
            group.0 += 1;
            group.1 = group.1.map(|sum| sum + value.unwrap_or(0)).or(value);
        }
    }
    let line = |((key, _), (n, sum)): (&(i64, i64), &(i64, Option<i64>))| {
        format!("{key}|{n}|{}", null(*sum))
    };
    let expected = sorted(groups.iter().map(line));
    let memory = Memory::new(None);
    let stream = events(&memory)
        .filter_rows(|row| Ok(row.get::<&str>("word")? != Some("view")))
        .key_by(&["k"])?
        .window(&Window::tumble(10 * SECOND))?
        .aggregate(&[Agg::count("n"), Agg::sum("v", "sum")])?;
    assert_eq!(stream.time(), Some("window_time"));
    let stream = stream.select(&["k", "n", "sum"])?;
    for size in SIZES {
        let fixed = [Exchange::Merge, Exchange::Shuffle, Exchange::UpPar].map(Some);
        for exchange in [None].into_iter().chain(fixed) {
            let (rows, _) = run(&memory, stream.clone(), size, exchange);
            assert_eq!(rows, expected, "{size:?} {exchange:?}");
        }
    }
    Ok(())
}

#[test]
fn windows_wait_for_late_rows() -> Result<(), StreamError> {
    let mut groups: BTreeMap<(i64, i64), i64> = BTreeMap::new();
    rows().iter().for_each(|(ts, key, ..)| *groups.entry((*key, ts / 1_000)).or_default() += 1);
    let counted = sorted(groups.iter().map(|((key, _), n)| format!("{key}|{n}")));
    // Each row of a second meets each of its key.
    let met = groups.iter().flat_map(|((key, _), n)| vec![key.to_string(); (n * n) as usize]);
    let met = sorted(met);
    let memory = Memory::new(None);
    let events = events_within(&memory, Duration::ZERO);
    let patient = Window::tumble(SECOND).lateness(2 * SECOND);
    let counts = events.clone().key_by(&["k"])?.window(&patient)?;
    let counts = counts.aggregate(&[Agg::count("n")])?;
    let error = counts.clone().key_by(&["k"])?.window(&patient).err().expect("it has waited");
    assert!(error.to_string().contains("has waited for them"), "{error}");
    let counts = counts.select(&["k", "n"])?;
    let side = |name: &str| events.clone().select(&["ts", "k"])?.rename("k", name);
    let (left, right) = (side("k")?.in_windows(&patient)?, side("other")?.in_windows(&patient)?);
    let pairs = left.key_by(&["k"])?.join(right.key_by(&["other"])?, JoinKind::Inner)?;
    let pairs = pairs.select(&["k"])?;
    for size in SIZES {
        // The watermark passes rows before they come, and yet none is late.
        assert_eq!(run(&memory, counts.clone(), size, None).0, counted, "{size:?}");
        assert_eq!(run(&memory, pairs.clone(), size, None).0, met, "{size:?}");
    }
    Ok(())
}

/// Views and clicks of each campaign in windows, side by side.
fn ratios(memory: &Memory) -> Result<Stream, StreamError> {
    let tagged = events(memory).lookup(&campaigns(memory), &[("k", "k")])?;
    let branches = tagged.split(&["view", "click"], |row| row.get("word"));
    let counts = |branch: &str| {
        let rows = branches.branch(branch)?.key_by(&["campaign"])?;
        let counts = rows.window(&Window::tumble(10 * SECOND))?.aggregate(&[Agg::count(branch)])?;
        counts.key_by(&["campaign"])
    };
    let joined = counts("view")?.join(counts("click")?, JoinKind::Inner)?;
    let columns = Columns::of(&["campaign", "view", "click"]).and("hundredths", DataType::Int64);
    joined.map_rows(columns, |row| {
        let (views, clicks) = (row.get::<i64>("view")?, row.get::<i64>("click")?);
        Ok(vec![views.zip(clicks).map(|(views, clicks)| 100 * clicks / views).into()])
    })
}

#[test]
fn branches_of_a_static_join_are_counted_and_joined_where_they_are() -> Result<(), StreamError> {
    let mut counts: BTreeMap<(i64, i64), [i64; 2]> = BTreeMap::new();
    for (ts, key, word, _) in rows() {
        if let Some(of) = ["view", "click"].iter().position(|other| *other == word) {
            counts.entry((key / 10, ts / 10_000)).or_default()[of] += 1;
        }
    }
    let both = counts.iter().filter(|(_, counts)| counts.iter().all(|n| *n > 0));
    let expected = sorted(both.map(|((campaign, _), [views, clicks])| {
        format!("{campaign}|{views}|{clicks}|{}", 100 * clicks / views)
    }));
    let memory = Memory::new(None);
    for size in SIZES {
        // The groups are led by their campaign, and so is the join: its rows need not travel.
        for (exchange, forward) in
            [(None, 1), (Some(Exchange::Shuffle), 0), (Some(Exchange::UpPar), 0)]
        {
            let (rows, was) = run(&memory, ratios(&memory)?, size, exchange);
            assert_eq!(rows, expected, "{size:?} {exchange:?}");
            if size != (1, 1) {
                assert_eq!(was, forward, "{size:?} {exchange:?}");
            }
        }
    }
    Ok(())
}

#[test]
fn a_forward_exchange_that_does_not_fit_is_refused() -> Result<(), StreamError> {
    let memory = Memory::new(None);
    let refused = stream::fragment(&ratios(&memory)?, &setup(3, Some(Exchange::Forward))).err();
    assert!(refused.is_some_and(|error| error.to_string().contains("rows of 3 workers")));
    Ok(())
}

#[test]
fn rows_that_are_routed_and_reduced() -> Result<(), StreamError> {
    let mut greatest: BTreeMap<i64, Option<i64>> = BTreeMap::new();
    for (_, key, _, value) in rows() {
        let known = greatest.entry(key).or_default();
        *known = (*known).max(value);
    }
    let expected = sorted(greatest.iter().map(|(key, value)| format!("{key}|{}", null(*value))));
    let memory = Memory::new(None);
    let reduce = [Agg::reduce::<Int64Type>("v", "v", |a, b| a.max(b))];
    for size in SIZES {
        let hashed = events(&memory).key_by(&["k"])?.aggregate(&reduce)?;
        let routed = events(&memory).route(Arc::new(ByRemainder(1))).key_by(&["k"])?;
        // After the route, the rows of a key are together: each worker's own groups are whole.
        let routed = routed.exchange(Exchange::Forward).aggregate(&reduce)?;
        for stream in [hashed, routed] {
            assert_eq!(run(&memory, stream, size, None).0, expected, "{size:?}");
        }
    }
    Ok(())
}

/// Each worker's own count of its rows shows where they are.
#[test]
fn rows_are_rebalanced_or_gathered() -> Result<(), StreamError> {
    let memory = Memory::new(None);
    let counts = |stream: Stream, size: (u32, u32)| -> Result<Vec<u64>, StreamError> {
        let own = stream.key_by(&[])?.exchange(Exchange::Forward);
        let rows = run(&memory, own.aggregate(&[Agg::count("n")])?, size, None).0;
        Ok(rows.iter().map(|n| n.parse().expect("a count")).collect())
    };
    let total = rows().len() as u64;
    for size in SIZES {
        let workers = u64::from(size.0 * size.1);
        let shares = counts(events(&memory).rebalance(), size)?;
        assert_eq!((shares.iter().sum(), shares.len() as u64), (total, workers), "{size:?}");
        let spread = shares.iter().max().zip(shares.iter().min()).map(|(most, least)| most - least);
        assert!(spread <= Some(workers), "each of {workers} senders may begin anew: {shares:?}");
        let gathered = counts(events(&memory).global(), size)?;
        assert_eq!(gathered.iter().filter(|n| **n > 0).collect::<Vec<_>>(), [&total], "{size:?}");
    }
    Ok(())
}

#[test]
fn rows_unfold_unite_and_are_aggregated_in_two_stages() -> Result<(), StreamError> {
    let mut sums: BTreeMap<i64, i64> = BTreeMap::new();
    for (ts, key, word, _) in rows() {
        let times = ["purchase", "view", "click"].iter().position(|other| *other == word);
        let all = times.unwrap_or_default() as i64 + i64::from(key < 10);
        *sums.entry(ts / 10_000).or_default() += all;
    }
    let expected = sorted(sums.values().map(i64::to_string));
    let memory = Memory::new(None);
    let events = events(&memory);
    let columns = Columns::of(&["ts", "k"]).and("one", DataType::Int64);
    let unfolded = events.clone().flat_map_rows(columns.clone(), |row, out| {
        let word = row.get::<&str>("word")?.unwrap_or_default();
        let times = ["purchase", "view", "click"].iter().position(|other| *other == word);
        out.extend((0..times.unwrap_or_default()).map(|_| vec![1.into()]));
        Ok(())
    })?;
    let first = events.filter_rows(|row| Ok(row.get::<i64>("k")? < Some(10)));
    let first = first.map_rows(columns, |_| Ok(vec![1.into()]))?;
    let local = unfolded
        .union(first)?
        .key_by(&["k"])?
        .exchange(Exchange::Forward)
        .window(&Window::tumble(10 * SECOND))?
        .aggregate(&[Agg::sum("one", "n")])?;
    let total = local.key_by(&[])?.same_windows()?.aggregate(&[Agg::sum("n", "n")])?;
    let total = total.select(&["n"])?;
    for size in SIZES {
        assert_eq!(run(&memory, total.clone(), size, None).0, expected, "{size:?}");
    }
    Ok(())
}

#[test]
fn rows_of_windows_join_with_rows_of_the_same_windows() -> Result<(), StreamError> {
    let mut counts: BTreeMap<(i64, i64), [i64; 2]> = BTreeMap::new();
    for (ts, key, word, _) in rows() {
        if let Some(of) = ["view", "click"].iter().position(|other| *other == word) {
            for slide in 0..2 {
                counts.entry((key, ts / 1_000 - slide)).or_default()[of] += 1;
            }
        }
    }
    let pairs: i64 = counts.values().map(|[views, clicks]| views * clicks).sum();
    let alone: i64 = counts.values().filter(|[_, clicks]| *clicks == 0).map(|[n, _]| n).sum();
    let memory = Memory::new(None);
    let branches = events(&memory).split(&["view", "click"], |row| row.get("word"));
    let side = |name: &str| {
        let rows = branches.branch(name)?.select(&["ts", "k"])?;
        rows.in_windows(&Window::hop(2 * SECOND, SECOND))?.key_by(&["k"])
    };
    for size in SIZES {
        for (kind, rows) in
            [(JoinKind::Inner, pairs), (JoinKind::Left, pairs + alone), (JoinKind::LeftAnti, alone)]
        {
            let joined = side("view")?.join(side("click")?, kind)?;
            let got = run(&memory, joined, size, None).0.len();
            assert_eq!(got as i64, rows, "{kind:?} on {size:?}");
        }
    }
    Ok(())
}

#[test]
fn what_is_wrong_is_said_where_it_is_built() -> Result<(), StreamError> {
    let memory = Memory::new(None);
    let events = events(&memory);
    let unknown = events.clone().key_by(&["key"]).err().expect("there is no such column");
    assert_eq!(unknown.to_string(), "there is no column 'key'");
    assert_eq!(unknown.hint().as_deref(), Some("the columns are: ts, k, word, v"));
    let twice = events.clone().select(&["k", "k"]).err();
    assert_eq!(twice, Some(StreamError::Duplicate { name: "k".into() }));
    let text = events.clone().key_by(&[])?.aggregate(&[Agg::sum("word", "x")]).err();
    assert!(matches!(text, Some(StreamError::Type { .. })), "{text:?}");
    let timeless = events.clone().select(&["k"])?.key_by(&["k"])?;
    assert!(timeless.window(&Window::tumble(SECOND)).is_err());
    let fine = Window::tumble(Duration::from_micros(1));
    assert!(events.clone().key_by(&[])?.window(&fine).is_err());
    assert!(events.clone().key_by(&[])?.join(events.key_by(&[])?, JoinKind::Inner).is_err());
    Ok(())
}
