//! Jobs without SQL, on several layouts, against the same written in SQL and against plain loops
//! over all rows.

mod times;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use arrow::array::{AsArray, BooleanArray, RecordBatch};
use arrow::compute::concat_batches;
use arrow::datatypes::{DataType, Int64Type, SchemaRef, TimestampMillisecondType};
use millstream::stream::{
    Agg, Columns, DataflowError, Description, Exchange, JoinKind, KeyedOperator, KeyedState,
    RowOwner, RowPartitioner, SavedPart, SavedParts, SavedRows, Stream, StreamError, Window,
    process,
};
use millstream::{Error, RunOptions, Session};
use tests::remainder::ByRemainder;
use tests::rows::sorted;

const TABLES: &str = "
  CREATE TABLE events (
    ts TIMESTAMP(3), ad_id BIGINT, event_type STRING, price BIGINT,
    WATERMARK FOR ts AS ts - INTERVAL '2' SECOND
  ) WITH (
    'connector' = 'generator', 'rows' = '20000', 'interval' = '5ms', 'disorder' = '1500ms',
    'flows' = '4', 'fields.ad_id.max' = '99', 'fields.event_type.kind' = 'choice',
    'fields.event_type.values' = 'view,click,purchase', 'fields.price.max' = '999',
    'fields.price.null_rate' = '0.1'
  );
  CREATE TABLE ads (ad_id BIGINT, campaign_id AS ad_id / 10) WITH (
    'connector' = 'generator', 'rows' = '100', 'flows' = '1', 'fields.ad_id.kind' = 'sequence'
  );
  CREATE VIEW tagged AS SELECT ts, event_type, campaign_id
    FROM events JOIN ads ON events.ad_id = ads.ad_id;";

const SECOND: Duration = Duration::from_secs(1);

/// Nodes and workers of each.
const LAYOUTS: [(u32, u32); 3] = [(1, 1), (1, 3), (2, 2)];

fn session(layout: (u32, u32)) -> Session {
    session_over(20_000, layout)
}

/// A session whose table of events has so many.
fn session_over(events: u64, (nodes, workers): (u32, u32)) -> Session {
    let mut session = Session::builder().nodes(nodes).workers(workers).build().expect("it fits");
    let tables = TABLES.replace("'rows' = '20000'", &format!("'rows' = '{events}'"));
    session.sql(&tables).expect("the tables are declared");
    session
}

fn sql(session: &mut Session, query: &str) -> Vec<String> {
    sorted(&session.collect(query).unwrap_or_else(|error| panic!("{query}: {error}")))
}

/// An event as it was read: milliseconds, advertisement, kind, price.
type Event = (i64, i64, String, Option<i64>);

fn events() -> Vec<Event> {
    let query = "SELECT ts, ad_id, event_type, price FROM events";
    let batches = session((1, 1)).collect(query).expect("they are read");
    let all = concat_batches(&batches[0].schema(), &batches).expect("they are alike");
    let ts = all.column(0).as_primitive::<TimestampMillisecondType>();
    let (ad, price) = (all.column(1).as_primitive::<Int64Type>(), all.column(3));
    let price = price.as_primitive::<Int64Type>();
    let kind = arrow::compute::cast(all.column(2), &DataType::Utf8).expect("they are strings");
    let kind = kind.as_string::<i32>();
    let event = |row| (ts.value(row), ad.value(row), kind.value(row).to_owned());
    let rows = (0..all.num_rows()).map(event).zip(price.iter());
    rows.map(|((ts, ad, kind), price)| (ts, ad, kind, price)).collect()
}

#[test]
fn a_filtered_tumbling_aggregate_is_what_sql_says() -> Result<(), Error> {
    for layout in LAYOUTS {
        let mut session = session(layout);
        let expected = sql(
            &mut session,
            "SELECT ad_id, count(*) AS n, sum(price) AS total, window_start
             FROM TUMBLE(TABLE events, DESCRIPTOR(ts), INTERVAL '10' SECOND)
             WHERE event_type <> 'view' GROUP BY ad_id, window_start, window_end",
        );
        assert!(expected.len() > 900, "ten windows of a hundred advertisements");
        let stream = session
            .table("events")?
            .filter_rows(|row| Ok(row.get::<&str>("event_type")? != Some("view")))
            .key_by(&["ad_id"])?
            .window(&Window::tumble(10 * SECOND))?
            .aggregate(&[Agg::count("n"), Agg::sum("price", "total")])?
            .select(&["ad_id", "n", "total", "window_start"])?;
        assert_eq!(sorted(&session.rows(&stream)?), expected, "{layout:?}");
    }
    Ok(())
}

/// YSB* of AIR: clicks and views of each campaign, and their ratio.
fn ratios(session: &mut Session) -> Result<Stream, Error> {
    let ads = session.table("ads")?;
    let tagged = session.table("events")?.lookup(&ads, &[("ad_id", "ad_id")])?;
    let branches = tagged.split(&["view", "click"], |row| row.get("event_type"));
    let counts = |branch: &str, name: &str| {
        let rows = branches.branch(branch)?.key_by(&["campaign_id"])?;
        rows.window(&Window::tumble(10 * SECOND))?.aggregate(&[Agg::count(name)])
    };
    let views = counts("view", "views")?.key_by(&["campaign_id"])?;
    let clicks = counts("click", "clicks")?.key_by(&["campaign_id"])?;
    let kept = Columns::of(&["campaign_id", "window_start", "views", "clicks"]);
    let ratios = views.join(clicks, JoinKind::Inner)?.map_rows(
        kept.and("ratio", DataType::Float64),
        |row| {
            let (clicks, views) = (row.get::<i64>("clicks")?, row.get::<i64>("views")?);
            let ratio = clicks.zip(views).map(|(clicks, views)| clicks as f64 / views as f64);
            Ok(vec![ratio.into()])
        },
    )?;
    Ok(ratios)
}

#[test]
fn ysb_star_is_the_same_in_sql_and_without() -> Result<(), Error> {
    let mut counts: BTreeMap<(i64, i64), [f64; 2]> = BTreeMap::new();
    for (ts, ad, kind, _) in events() {
        let of = ["view", "click"].iter().position(|other| *other == kind);
        let Some(of) = of else { continue };
        counts.entry((ad / 10, ts.div_euclid(10_000))).or_default()[of] += 1.0;
    }
    let both = counts.values().filter(|counts| counts.iter().all(|n| *n > 0.0));
    let (windows, sum) = (both.clone().count(), both.map(|[views, clicks]| clicks / views));
    let sum: f64 = sum.sum();
    for layout in LAYOUTS {
        let mut session = session(layout);
        let grouped = |kind: &str, name: &str| {
            format!(
                "(SELECT campaign_id, window_start, window_end, count(*) AS {name}
                  FROM TUMBLE(TABLE tagged, DESCRIPTOR(ts), INTERVAL '10' SECOND)
                  WHERE event_type = '{kind}' GROUP BY campaign_id, window_start, window_end)"
            )
        };
        let expected = sql(
            &mut session,
            &format!(
                "SELECT v.campaign_id, v.window_start, views, clicks,
                        CAST(clicks AS DOUBLE) / CAST(views AS DOUBLE) AS ratio
                 FROM {} v JOIN {} c ON v.window_start = c.window_start
                  AND v.window_end = c.window_end AND v.campaign_id = c.campaign_id",
                grouped("view", "views"),
                grouped("click", "clicks")
            ),
        );
        let stream = ratios(&mut session)?;
        let rows = session.rows(&stream)?;
        assert_eq!(sorted(&rows), expected, "{layout:?}");
        assert_eq!(expected.len(), windows);
        let got: f64 = rows
            .iter()
            .flat_map(|batch| {
                let ratio = batch.column_by_name("ratio").expect("it was made");
                ratio.as_primitive::<arrow::datatypes::Float64Type>().values().to_vec()
            })
            .sum();
        assert!((got - sum).abs() < 1e-6, "{got} and {sum}");
    }
    Ok(())
}

#[test]
fn a_sliding_average_is_the_same_in_sql_and_without() -> Result<(), Error> {
    let mut sums: BTreeMap<(i64, i64), (f64, u64)> = BTreeMap::new();
    for (ts, ad, _, price) in events() {
        let first = ts.div_euclid(2_000) * 2_000 - 8_000;
        for start in (first..=ts).step_by(2_000) {
            let sum = sums.entry((ad, start)).or_default();
            sum.0 += price.unwrap_or(0) as f64;
            sum.1 += u64::from(price.is_some());
        }
    }
    for layout in LAYOUTS {
        let mut session = session(layout);
        let expected = sql(
            &mut session,
            "SELECT ad_id, avg(price) AS mean, window_start
             FROM HOP(TABLE events, DESCRIPTOR(ts), INTERVAL '2' SECOND, INTERVAL '10' SECOND)
             GROUP BY ad_id, window_start, window_end",
        );
        let stream = session
            .table("events")?
            .key_by(&["ad_id"])?
            .window(&Window::hop(10 * SECOND, 2 * SECOND))?
            .aggregate(&[Agg::avg("price", "mean")])?
            .select(&["ad_id", "mean", "window_start"])?;
        let rows = session.rows(&stream)?;
        assert_eq!(sorted(&rows), expected, "{layout:?}");
        assert_eq!(expected.len(), sums.len());
        for batch in &rows {
            let ad = batch.column(0).as_primitive::<Int64Type>();
            let start = batch.column(2).as_primitive::<TimestampMillisecondType>();
            let mean = batch.column(1).as_primitive::<arrow::datatypes::Float64Type>();
            for (row, mean) in mean.iter().enumerate() {
                let (sum, n) = sums[&(ad.value(row), start.value(row))];
                assert_eq!(mean.is_some(), n > 0);
                assert!(mean.is_none_or(|mean| (mean - sum / n as f64).abs() < 1e-6));
            }
        }
    }
    Ok(())
}

#[test]
fn rows_that_are_together_stay_where_they_are_and_need_not() -> Result<(), Error> {
    let expected = {
        let mut one = session((1, 1));
        let stream = ratios(&mut one)?;
        sorted(&one.rows(&stream)?)
    };
    for (exchange, forward) in
        [("auto", true), ("shuffle", false), ("uppar", false), ("merge", false)]
    {
        let mut session = session((1, 3));
        session.set("millstream.exchange", exchange)?;
        session.sql("CREATE TABLE none WITH ('connector' = 'blackhole')")?;
        let stream = ratios(&mut session)?;
        let output = session.insert("none", stream.clone())?;
        let explained = session.job(&[output])?.explain();
        assert_eq!(
            explained.contains("─ forward: rows of equal keys are on one worker already"),
            forward,
            "{explained}"
        );
        assert_eq!(sorted(&session.rows(&stream)?), expected, "{exchange}");
    }
    let mut session = session((1, 3));
    session.set("millstream.exchange", "forward")?;
    let stream = ratios(&mut session)?;
    let refused = session.rows(&stream).expect_err("rows of a campaign are on all workers");
    assert!(refused.to_string().contains("cannot bring the rows of 3 workers"), "{refused}");
    Ok(())
}

#[test]
fn sql_reads_a_stream_and_a_stream_a_query() -> Result<(), Error> {
    for layout in LAYOUTS {
        let mut session = session(layout);
        let window = "TUMBLE(TABLE events, DESCRIPTOR(ts), INTERVAL '5' SECOND)";
        let grouped = |from: &str, rest: &str| {
            format!(
                "SELECT ad_id, window_start, window_end, window_time, max(price) AS highest
                 FROM {from} {rest} GROUP BY ad_id, window_start, window_end, window_time"
            )
        };
        let expected = sql(&mut session, &grouped(window, "WHERE price < 500"));
        let cheap = session.table("events")?.filter(|batch: &RecordBatch| {
            let prices = batch.column_by_name("price").expect("a column");
            let prices = prices.as_primitive::<Int64Type>();
            Ok(prices.iter().map(|price| price.map(|price| price < 500)).collect::<BooleanArray>())
        });
        session.register("cheap", &cheap)?;
        assert!(matches!(session.register("cheap", &cheap), Err(Error::Usage { .. })));
        let window = window.replace("events", "cheap");
        assert_eq!(sql(&mut session, &grouped(&window, "")), expected, "{layout:?}");

        // The query's rows go on: the highest of all advertisements in the windows that they have.
        let query = session.stream(&grouped(&window, ""))?;
        let highest =
            query.key_by(&[])?.same_windows()?.aggregate(&[Agg::max("highest", "highest")])?;
        let highest = highest.select(&["window_start", "window_end", "highest"])?;
        let expected = sql(
            &mut session,
            &format!(
                "SELECT window_start, window_end, max(price) AS highest FROM {window}
                 GROUP BY window_start, window_end"
            ),
        );
        assert_eq!(sorted(&session.rows(&highest)?), expected, "{layout:?}");
        // There is no index of keys that are maps, and so no operator.
        let refused = session.stream(
            "SELECT a.ad_id FROM events AS a JOIN events AS b
             ON MAP {a.ad_id: 1} = MAP {b.ad_id: 1}",
        );
        assert!(matches!(refused, Err(Error::Sql(_))));
    }
    Ok(())
}

#[test]
fn of_no_rows_and_of_few_a_job_gives_what_sql_says() -> Result<(), Error> {
    let (values, window) = (
        "count(*) AS n, sum(price) AS total, min(price) AS least, avg(price) AS mean",
        "TUMBLE(TABLE events, DESCRIPTOR(ts), INTERVAL '10' SECOND)",
    );
    let calls = [
        Agg::count("n"),
        Agg::sum("price", "total"),
        Agg::min("price", "least"),
        Agg::avg("price", "mean"),
    ];
    let columns = ["n", "total", "least", "mean"];
    let keyed = [["ad_id", "window_start"].as_slice(), &columns].concat();
    for (events, layout) in [0, 1, 3].into_iter().flat_map(|rows| LAYOUTS.map(|of| (rows, of))) {
        let mut session = session_over(events, layout);
        let all = sql(&mut session, &format!("SELECT {values} FROM events"));
        let of_keys = sql(
            &mut session,
            &format!(
                "SELECT ad_id, window_start, {values} FROM {window}
                 GROUP BY ad_id, window_start, window_end"
            ),
        );
        assert_eq!((all.len(), of_keys.len()), (1, events as usize), "{layout:?}");
        assert!(events > 0 || all == ["0|NULL|NULL|NULL"], "{all:?}");
        let stream = session.table("events")?.key_by(&[])?.aggregate(&calls)?.select(&columns)?;
        assert_eq!(sorted(&session.rows(&stream)?), all, "{events} rows, {layout:?}");
        let stream = session.table("events")?.key_by(&["ad_id"])?;
        let stream = stream.window(&Window::tumble(10 * SECOND))?.aggregate(&calls)?;
        let got = sorted(&session.rows(&stream.select(&keyed)?)?);
        assert_eq!(got, of_keys, "{events} rows, {layout:?}");
        let met = ratios(&mut session)?;
        assert!(session.rows(&met)?.iter().all(|batch| batch.num_rows() <= events as usize));
    }
    Ok(())
}

/// Gives out, at the end, the greatest price of each key, and counts what it was given.
struct Greatest(SchemaRef, u32);

impl KeyedOperator for Greatest {
    fn schema(&self) -> SchemaRef {
        self.0.clone()
    }

    fn create(&self) -> Box<dyn KeyedState> {
        Box::new(Kept { schema: self.0.clone(), rows: BTreeMap::new() })
    }

    /// The greatest row of each key.
    fn saved(&self) -> Option<SavedParts> {
        let rows = SavedPart { schema: self.0.clone(), owner: RowOwner::Input(0) };
        Some(SavedParts { version: 1, parts: vec![rows] })
    }

    fn partitioner(&self, _: usize) -> Option<Arc<dyn RowPartitioner>> {
        (self.1 > 0).then(|| Arc::new(ByRemainder(0)) as _)
    }

    fn describe(&self, _: &[Vec<String>]) -> Description {
        Description { name: "Greatest", properties: vec![] }
    }
}

struct Kept {
    schema: SchemaRef,
    rows: BTreeMap<i64, (i64, RecordBatch)>,
}

impl KeyedState for Kept {
    fn push(&mut self, _: usize, batch: RecordBatch) -> Result<(), DataflowError> {
        let column = |at: usize| batch.column(at).as_primitive::<Int64Type>();
        for row in 0..batch.num_rows() {
            let (key, price) = (column(0).value(row), column(1).value(row));
            if self.rows.get(&key).is_none_or(|(known, _)| *known < price) {
                self.rows.insert(key, (price, batch.slice(row, 1)));
            }
        }
        Ok(())
    }

    fn advance(&mut self, watermark: i64, _: usize) -> Result<Option<RecordBatch>, DataflowError> {
        if watermark != i64::MAX || self.rows.is_empty() {
            return Ok(None);
        }
        let rows = std::mem::take(&mut self.rows);
        let rows: Vec<_> = rows.into_values().map(|(_, row)| row).collect();
        Ok(Some(concat_batches(&self.schema, &rows)?))
    }

    fn save(&mut self) -> Result<Vec<SavedRows>, DataflowError> {
        let rows = self.rows.values().map(|(_, row)| SavedRows { part: 0, rows: row.clone() });
        Ok(rows.collect())
    }

    fn load(&mut self, saved: SavedRows) -> Result<(), DataflowError> {
        self.push(0, saved.rows)
    }

    fn bytes(&self) -> usize {
        self.rows.len() * 64
    }
}

#[test]
fn operators_routes_and_reductions_of_ones_own() -> Result<(), Error> {
    let mut greatest: BTreeMap<i64, i64> = BTreeMap::new();
    for (_, ad, _, price) in events() {
        let Some(price) = price else { continue };
        let known = greatest.entry(ad).or_insert(price);
        *known = (*known).max(price);
    }
    let expected: Vec<String> =
        sorted_text(greatest.iter().map(|(ad, price)| format!("{ad}|{price}")).collect());
    for layout in LAYOUTS {
        let mut session = session(layout);
        let prices = session.stream("SELECT ad_id, price FROM events WHERE price IS NOT NULL")?;
        for routed in [0, 1] {
            let operator = Greatest(prices.schema().clone(), routed);
            let inputs = [prices.clone().key_by(&["ad_id"])?];
            let stream = process("greatest", &inputs, Arc::new(operator), None)?;
            assert_eq!(sorted(&session.rows(&stream)?), expected, "{layout:?}");
        }
        let reduce = Agg::reduce::<Int64Type>("price", "price", |a, b| a.max(b));
        let routed = prices.clone().route(Arc::new(ByRemainder(0)));
        let there = routed.key_by(&["ad_id"])?.exchange(Exchange::Forward);
        for keyed in [prices.key_by(&["ad_id"])?, there] {
            let stream = keyed.aggregate(std::slice::from_ref(&reduce))?;
            assert_eq!(sorted(&session.rows(&stream)?), expected, "{layout:?}");
        }
    }
    Ok(())
}

fn sorted_text(mut lines: Vec<String>) -> Vec<String> {
    lines.sort();
    lines
}

#[test]
fn rows_unfold_unite_and_are_aggregated_in_two_stages() -> Result<(), Error> {
    let mut expected: BTreeMap<i64, i64> = BTreeMap::new();
    for (ts, ad, kind, _) in events() {
        // Clicks twice, purchases not at all, and all of the first ten once more.
        let times = match kind.as_str() {
            "view" => 1,
            "click" => 2,
            _ => 0,
        };
        *expected.entry(ts.div_euclid(10_000)).or_default() += times + i64::from(ad < 10);
    }
    let expected: Vec<i64> = expected.into_values().collect();
    for layout in LAYOUTS {
        let mut session = session(layout);
        let events = session.table("events")?;
        let number = Columns::of(&["ts", "ad_id"]).and("one", DataType::Int64);
        let unfolded = events.clone().flat_map_rows(number.clone(), |row, out| {
            let times = match row.get::<&str>("event_type")? {
                Some("view") => 1,
                Some("click") => 2,
                _ => 0,
            };
            out.extend((0..times).map(|_| vec![1.into()]));
            Ok(())
        })?;
        let first = events.filter_rows(|row| Ok(row.get::<i64>("ad_id")? < Some(10)));
        let first = first.map_rows(number, |_| Ok(vec![1.into()]))?;
        let local = unfolded
            .union(first)?
            .key_by(&["ad_id"])?
            .exchange(Exchange::Forward)
            .window(&Window::tumble(10 * SECOND))?
            .aggregate(&[Agg::sum("one", "n")])?;
        let total = local.key_by(&[])?.same_windows()?.aggregate(&[Agg::sum("n", "n")])?;
        let rows = session.rows(&total.select(&["window_start", "n"])?)?;
        let all = concat_batches(&rows[0].schema(), &rows).expect("they are alike");
        let start = all.column(0).as_primitive::<TimestampMillisecondType>().values();
        let n = all.column(1).as_primitive::<Int64Type>().values();
        let by_start: BTreeMap<_, _> = start.iter().zip(n).collect();
        assert_eq!(by_start.into_values().copied().collect::<Vec<_>>(), expected, "{layout:?}");
    }
    Ok(())
}

#[test]
fn rows_of_windows_join_with_rows_of_the_same_windows() -> Result<(), Error> {
    let (mut views, mut clicks) = (BTreeMap::<_, u64>::new(), BTreeMap::<_, u64>::new());
    for (ts, ad, kind, _) in events() {
        let side = match kind.as_str() {
            "view" => &mut views,
            "click" => &mut clicks,
            _ => continue,
        };
        *side.entry((ad, ts.div_euclid(1_000))).or_default() += 1;
    }
    let pairs: u64 = views.iter().map(|(at, n)| n * clicks.get(at).unwrap_or(&0)).sum();
    let alone: u64 = views.iter().filter(|(at, _)| !clicks.contains_key(at)).map(|(_, n)| n).sum();
    for layout in LAYOUTS {
        let mut session = session(layout);
        let branches =
            session.table("events")?.split(&["view", "click"], |row| row.get("event_type"));
        let side = |name: &str| {
            let rows = branches.branch(name)?.select(&["ts", "ad_id"])?;
            rows.in_windows(&Window::tumble(SECOND))?.key_by(&["ad_id"])
        };
        for (kind, rows) in
            [(JoinKind::Inner, pairs), (JoinKind::Left, pairs + alone), (JoinKind::LeftAnti, alone)]
        {
            let joined = side("view")?.join(side("click")?, kind)?;
            let got: usize = session.rows(&joined)?.iter().map(RecordBatch::num_rows).sum();
            assert_eq!(got as u64, rows, "{kind:?} on {layout:?}");
        }
    }
    Ok(())
}

#[test]
fn outputs_share_what_they_are_made_of_and_reach_tables() -> Result<(), Error> {
    let mut session = session((1, 2));
    session.sql(
        "CREATE TABLE a WITH ('connector' = 'blackhole');
         CREATE TABLE b (ad_id BIGINT) WITH ('connector' = 'blackhole')",
    )?;
    let events = session.table("events")?;
    let wrong = session.insert("b", events.clone());
    assert!(matches!(wrong, Err(Error::Usage { .. })));
    let outputs =
        [session.insert("a", events.clone())?, session.insert("b", events.select(&["ad_id"])?)?];
    let report = session.job(&outputs)?.run(&RunOptions::default())?;
    assert_eq!((report.total.rows_in, report.total.rows_out), (20_000, 40_000));
    Ok(())
}

#[test]
fn what_is_wrong_is_said_where_it_is_built() -> Result<(), Error> {
    let mut session = session((1, 1));
    let events = session.table("events")?;
    let unknown = events.clone().key_by(&["ad"]).err().expect("there is no such column");
    assert_eq!(unknown.to_string(), "there is no column 'ad'");
    assert_eq!(unknown.hint().as_deref(), Some("the columns are: ts, ad_id, event_type, price"));
    let twice = events.clone().select(&["ad_id", "ad_id"]).err();
    assert_eq!(twice, Some(StreamError::Duplicate { name: "ad_id".into() }));
    let text = events.clone().key_by(&[])?.aggregate(&[Agg::sum("event_type", "x")]).err();
    assert!(matches!(text, Some(StreamError::Type { .. })), "{text:?}");
    let timeless = events.clone().select(&["ad_id"])?.key_by(&["ad_id"])?;
    assert!(timeless.window(&Window::tumble(SECOND)).is_err());
    let fine = Window::tumble(Duration::from_micros(1));
    assert!(events.clone().key_by(&[])?.window(&fine).is_err());
    assert!(events.clone().key_by(&[])?.join(events.key_by(&[])?, JoinKind::Inner).is_err());
    Ok(())
}
