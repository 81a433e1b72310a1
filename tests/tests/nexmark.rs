//! NEXMark as in `examples/nexmark`, on clusters of several sizes and by every exchange, against
//! DataFusion in batch over the rows of the generator. There the windows are written out as
//! arithmetic, sessions as pauses, ranks as maxima.

use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use arrow::record_batch::RecordBatch;
use connectors::Generator;
use dataflow::bad::BadRows;
use dataflow::connector::{Connector, Options, TableDef};
use dataflow::source::{Next, ReaderContext, Split};
use fabric::Clock;
use plan::{Planner, Stage, Workers};
use tests::cluster::Cluster;
use tests::memory::Memory;
use tests::rows::sorted;

/// Cluster sizes: nodes, workers of each, and the exchange.
const LAYOUTS: [(u32, u32, &str); 3] = [(1, 1, "auto"), (1, 3, "merge"), (2, 2, "shuffle")];

/// How many events each table has, and how far they are apart.
struct Size {
    interval: &'static str,
    bids: u64,
}

/// A minute and a quarter; two days, for statistics by day.
const SECONDS: Size = Size { interval: "5ms", bids: 13_800 };
const DAYS: Size = Size { interval: "10s", bids: 13_800 };
const SMALL: Size = Size { interval: "5ms", bids: 1_380 };

/// A published query, what it means in batch, and whether it may run for ever.
struct Query {
    number: u32,
    size: Size,
    batch: &'static str,
    refused: Option<&'static str>,
}

const fn streams(number: u32, size: Size, batch: &'static str) -> Query {
    Query { number, size, batch, refused: None }
}

const fn ends(number: u32, size: Size, refused: &'static str, batch: &'static str) -> Query {
    Query { number, size, batch, refused: Some(refused) }
}

const QUERIES: [Query; 24] = [
    streams(0, SECONDS, "SELECT auction, bidder, price, date_time, extra FROM bid"),
    streams(
        1,
        SECONDS,
        "SELECT auction, bidder, concat(CAST(price * 908 / 1000 AS VARCHAR), '.',
           lpad(CAST(price * 908 % 1000 AS VARCHAR), 3, '0')), date_time, extra FROM bid",
    ),
    streams(2, SECONDS, "SELECT auction, price FROM bid WHERE auction % 123 = 0"),
    ends(
        3,
        SECONDS,
        "a join would have to remember every row",
        "SELECT name, city, state, auction.id FROM auction, person
         WHERE seller = person.id AND category = 10 AND state IN ('OR', 'ID', 'CA')",
    ),
    ends(
        4,
        SECONDS,
        "a join whose times are bounded on one side would have to remember every row of the other",
        "SELECT category, sum(final) / count(*) FROM (
           SELECT id, category, max(price) AS final FROM auction JOIN bid ON id = auction
           WHERE bid.date_time >= auction.date_time AND bid.date_time <= expires
           GROUP BY id, category)
         GROUP BY category",
    ),
    streams(
        5,
        SECONDS,
        "WITH counts AS (
           SELECT auction, date_bin(INTERVAL '2 second', date_time) - back AS start, count(*) AS num
           FROM bid CROSS JOIN (VALUES (INTERVAL '0 second'), (INTERVAL '2 second'),
             (INTERVAL '4 second'), (INTERVAL '6 second'), (INTERVAL '8 second')) AS slides (back)
           GROUP BY 1, 2)
         SELECT auction, num FROM (
           SELECT auction, num, rank() OVER (PARTITION BY start ORDER BY num DESC) AS place
           FROM counts)
         WHERE place = 1",
    ),
    ends(
        6,
        SECONDS,
        "a join whose times are bounded on one side would have to remember every row of the other",
        "WITH met AS (
           SELECT id, seller, price, bid.date_time AS at FROM auction JOIN bid ON id = auction
           WHERE bid.date_time >= auction.date_time AND bid.date_time <= expires),
         most AS (SELECT id AS of, max(price) AS most FROM met GROUP BY id),
         won AS (SELECT seller, price, at FROM met JOIN most ON id = of AND price = most)
         SELECT seller, sum(price) OVER nearby / count(*) OVER nearby FROM won
         WINDOW nearby AS
           (PARTITION BY seller ORDER BY at ROWS BETWEEN 10 PRECEDING AND CURRENT ROW)",
    ),
    streams(
        7,
        SECONDS,
        "SELECT auction, price, bidder, date_time, extra FROM bid JOIN (
           SELECT max(price) AS most, date_bin(INTERVAL '10 second', date_time) AS start FROM bid
           GROUP BY 2)
         ON price = most AND date_time >= start AND date_time <= start + INTERVAL '10 second'",
    ),
    streams(
        8,
        SECONDS,
        "SELECT DISTINCT person.id, name, date_bin(INTERVAL '10 second', person.date_time)
         FROM person JOIN auction ON person.id = seller
         WHERE date_bin(INTERVAL '10 second', person.date_time)
           = date_bin(INTERVAL '10 second', auction.date_time)",
    ),
    ends(
        9,
        SECONDS,
        "a join whose times are bounded on one side would have to remember every row of the other",
        "WITH met AS (
           SELECT auction.*, auction, bidder, price, bid.date_time AS at, bid.extra AS bid_extra
           FROM auction JOIN bid ON id = auction
           WHERE bid.date_time >= auction.date_time AND bid.date_time <= expires),
         most AS (SELECT id AS of, max(price) AS most FROM met GROUP BY id),
         first AS (SELECT of, min(at) AS since FROM met JOIN most ON id = of AND price = most
                   GROUP BY of)
         SELECT met.* FROM met JOIN first ON id = of AND at = since",
    ),
    streams(
        10,
        DAYS,
        "SELECT auction, bidder, price, date_time, extra, to_char(date_time, '%Y-%m-%d'),
           to_char(date_time, '%H:%M') FROM bid",
    ),
    streams(
        11,
        SECONDS,
        "WITH paused AS (
           SELECT bidder, date_time, coalesce(CAST(date_time - lag(date_time) OVER by_bidder
             > INTERVAL '10 second' AS INT), 1) AS begins FROM bid
           WINDOW by_bidder AS (PARTITION BY bidder ORDER BY date_time)),
         numbered AS (
           SELECT bidder, date_time,
             sum(begins) OVER (PARTITION BY bidder ORDER BY date_time) AS session FROM paused)
         SELECT bidder, count(*), min(date_time), max(date_time) + INTERVAL '10 second'
         FROM numbered GROUP BY bidder, session",
    ),
    // When a bid is worked on is not known: its windows are put together again.
    streams(12, SECONDS, "SELECT bidder, count(*) FROM bid GROUP BY bidder"),
    streams(
        13,
        SECONDS,
        "SELECT auction, bidder, price, date_time, value FROM bid JOIN side_input
         ON auction % 10000 = key",
    ),
    streams(
        14,
        DAYS,
        "SELECT auction, bidder, concat(CAST(price * 908 / 1000 AS VARCHAR), '.',
           lpad(CAST(price * 908 % 1000 AS VARCHAR), 3, '0')),
           CASE WHEN to_char(date_time, '%H') BETWEEN '08' AND '18' THEN 'dayTime'
             WHEN to_char(date_time, '%H') IN ('07', '19') THEN 'otherTime'
             ELSE 'nightTime' END,
           date_time, extra, char_length(extra) - char_length(replace(extra, 'c', ''))
         FROM bid WHERE price * 908 > 1000000000 AND price * 908 < 50000000000",
    ),
    ends(
        15,
        DAYS,
        "rows that never end cannot be grouped without a window",
        "SELECT to_char(date_time, '%Y-%m-%d'), count(*),
           sum(CAST(price < 10000 AS INT)),
           sum(CAST(price BETWEEN 10000 AND 999999 AS INT)),
           sum(CAST(price > 999999 AS INT)),
           count(DISTINCT bidder),
           count(DISTINCT CASE WHEN price < 10000 THEN bidder END),
           count(DISTINCT CASE WHEN price BETWEEN 10000 AND 999999 THEN bidder END),
           count(DISTINCT CASE WHEN price > 999999 THEN bidder END),
           count(DISTINCT auction),
           count(DISTINCT CASE WHEN price < 10000 THEN auction END),
           count(DISTINCT CASE WHEN price BETWEEN 10000 AND 999999 THEN auction END),
           count(DISTINCT CASE WHEN price > 999999 THEN auction END)
         FROM bid GROUP BY 1",
    ),
    ends(
        16,
        DAYS,
        "rows that never end cannot be grouped without a window",
        "SELECT channel, to_char(date_time, '%Y-%m-%d'), max(to_char(date_time, '%H:%M')), count(*),
           sum(CAST(price < 10000 AS INT)),
           sum(CAST(price BETWEEN 10000 AND 999999 AS INT)),
           sum(CAST(price > 999999 AS INT)),
           count(DISTINCT bidder),
           count(DISTINCT CASE WHEN price < 10000 THEN bidder END),
           count(DISTINCT CASE WHEN price BETWEEN 10000 AND 999999 THEN bidder END),
           count(DISTINCT CASE WHEN price > 999999 THEN bidder END),
           count(DISTINCT auction),
           count(DISTINCT CASE WHEN price < 10000 THEN auction END),
           count(DISTINCT CASE WHEN price BETWEEN 10000 AND 999999 THEN auction END),
           count(DISTINCT CASE WHEN price > 999999 THEN auction END)
         FROM bid GROUP BY 1, 2",
    ),
    ends(
        17,
        DAYS,
        "rows that never end cannot be grouped without a window",
        "SELECT auction, to_char(date_time, '%Y-%m-%d'), count(*),
           sum(CAST(price < 10000 AS INT)),
           sum(CAST(price BETWEEN 10000 AND 999999 AS INT)),
           sum(CAST(price > 999999 AS INT)),
           min(price), max(price), sum(price) / count(*), sum(price)
         FROM bid GROUP BY 1, 2",
    ),
    ends(
        18,
        SECONDS,
        "ROW_NUMBER without a window needs all rows",
        "SELECT bid.* FROM bid JOIN (
           SELECT bidder AS who, auction AS what, max(date_time) AS latest FROM bid GROUP BY 1, 2)
         ON bidder = who AND auction = what AND date_time = latest",
    ),
    ends(
        19,
        SECONDS,
        "ROW_NUMBER without a window needs all rows",
        "SELECT a.auction, a.bidder, a.price, a.channel, a.url, a.date_time, a.extra, count(*)
         FROM bid AS a JOIN bid AS b ON a.auction = b.auction AND b.price >= a.price
         GROUP BY 1, 2, 3, 4, 5, 6, 7 HAVING count(*) <= 10",
    ),
    ends(
        20,
        SECONDS,
        "a join would have to remember every row",
        "SELECT bid.*, item_name, description, initial_bid, reserve, auction.date_time, expires,
           seller, category, auction.extra
         FROM bid, auction WHERE auction = id AND category = 10",
    ),
    streams(
        21,
        SECONDS,
        "SELECT auction, bidder, price, channel, coalesce(
           array_position(['Apple', 'Google', 'Facebook', 'Baidu'], channel) - 1,
           CAST(split_part(url, '&channel_id=', 2) AS BIGINT UNSIGNED))
         FROM bid WHERE channel NOT LIKE 'channel-%' OR split_part(url, '&channel_id=', 2) <> ''",
    ),
    streams(
        22,
        SECONDS,
        "SELECT auction, bidder, price, channel, split_part(url, '/', 4), split_part(url, '/', 5),
           split_part(url, '/', 6) FROM bid",
    ),
    ends(
        23,
        SMALL,
        "a join would have to remember every row",
        "SELECT bidder, price, channel, url, bid.extra, person.id, name, email_address, credit_card,
           city, state, person.extra, item_name, description, initial_bid, reserve,
           auction.date_time, expires, seller, category, auction.extra
         FROM bid, person, auction WHERE person.id = bidder AND seller = bidder",
    ),
];

/// The script of a query, with its rows into memory.
fn script(number: u32) -> String {
    let root = env!("CARGO_MANIFEST_DIR");
    let text = std::fs::read_to_string(format!("{root}/../examples/nexmark/q{number}.sql"));
    let text = text.expect("there is such an example");
    let to_file = "'connector' = 'file', 'path' = 'nexmark_q10.csv'";
    text.replace("'connector' = 'blackhole'", "'connector' = 'memory'")
        .replace(to_file, "'connector' = 'memory'")
}

/// The only stage of a script.
fn plan(memory: &Memory, script: &str, workers: Workers) -> Result<Stage, String> {
    let connectors: Vec<Arc<dyn Connector>> = vec![Arc::new(memory.clone()), Arc::new(Generator)];
    let planned = Planner::new(connectors, workers).plan(script);
    planned.map(|mut stages| stages.remove(0)).map_err(|errors| errors[0].message.clone())
}

/// A clock for what does not ask for the time.
struct Stopped;

impl Clock for Stopped {
    fn now_ns(&self) -> u64 {
        0
    }
}

/// Rows of a generated table.
fn generated(name: &str, options: &[(&str, &str)], schema: Option<SchemaRef>) -> RecordBatch {
    let options = options.iter().map(|(key, value)| (key.to_string(), value.to_string()));
    let options: Options = options.collect();
    let schema = schema.or_else(|| Generator.infer(&options).expect("they are right"));
    let schema = schema.expect("a workload has columns");
    let all: Vec<usize> = (0..schema.fields().len()).collect();
    let def = TableDef {
        name: name.into(),
        schema,
        options,
        metadata: Default::default(),
        buckets: vec![],
    };
    let source = Generator.source(&def, &all).expect("it can be made");
    let (clock, bad) = (Arc::new(Stopped), Arc::new(BadRows::default()));
    let mut flow = source
        .open(&Split::default(), None, &ReaderContext::new(clock, bad))
        .expect("there is one flow");
    let mut batches = vec![];
    while let Next::Batch(batch) = flow.next(8_192).expect("it is generated") {
        batches.push(batch);
    }
    arrow::compute::concat_batches(&source.schema(), &batches).expect("they are alike")
}

/// DataFusion's rows.
fn by_datafusion(query: &Query) -> Vec<String> {
    let Size { interval, bids } = query.size;
    let keys = (bids / 46 * 3).to_string();
    let workload = |table: &str, rows: u64| {
        let common = [("kind", "nexmark"), ("flows", "1"), ("interval", interval)];
        let rows = rows.to_string();
        let skew = [("keys", &*keys), ("exponent", "0.5")];
        let own = [("table", table), ("rows", &*rows)];
        let options = [&common[..], &skew, &own].concat();
        generated(table, &options, None)
    };
    let tables = [
        ("bid", workload("bid", bids)),
        ("auction", workload("auction", bids / 46 * 3)),
        ("person", workload("person", bids / 46)),
        ("side_input", side_input()),
    ];
    sorted(&oracle::rows(query.batch, &tables))
}

/// The table that query 13 joins with.
fn side_input() -> RecordBatch {
    use arrow::datatypes::{DataType, Field, Schema};
    let fields = [("key", DataType::Int64), ("value", DataType::Utf8)];
    let fields = fields.map(|(name, of)| Field::new(name, of, true));
    let options = [
        ("rows", "10000"),
        ("flows", "1"),
        ("fields.key.kind", "sequence"),
        ("fields.value.kind", "choice"),
        ("fields.value.values", "low, middle, high"),
    ];
    generated("side_input", &options, Some(Arc::new(Schema::new(fields.to_vec()))))
}

/// Bids of a person over all windows of ten seconds, each of which is one of the clock's.
fn over_windows(rows: &[String]) -> Vec<String> {
    let mut counts = std::collections::BTreeMap::<&str, u64>::new();
    for row in rows {
        let values: Vec<&str> = row.split('|').collect();
        let [bidder, count, start, end] = values[..] else { panic!("{row}") };
        assert!(start.ends_with('0') && end.ends_with('0') && start < end, "{row}");
        *counts.entry(bidder).or_default() += count.parse::<u64>().expect("a number");
    }
    let mut rows: Vec<String> =
        counts.iter().map(|(who, count)| format!("{who}|{count}")).collect();
    rows.sort();
    rows
}

#[test]
fn the_published_queries_give_what_batch_gives() {
    for query in &QUERIES {
        let expected = by_datafusion(query);
        assert!(!expected.is_empty(), "query {} is too tame", query.number);
        for (seed, (nodes, workers, exchange)) in LAYOUTS.into_iter().enumerate() {
            let at = format!("query {} on {nodes}x{workers} by {exchange}", query.number);
            let memory = Memory::new(None);
            let set = format!("SET millstream.exchange = {exchange};");
            let script = set + &script(query.number);
            let stage = plan(&memory, &script, Workers { nodes, per_node: workers });
            let stage = stage.unwrap_or_else(|error| panic!("{at}: {error}"));
            let run = Cluster::seeded(nodes, workers, seed as u64).run(&Arc::new(stage.job));
            let run = run.unwrap_or_else(|error| panic!("{at}: {error}"));
            assert_eq!(run.sum(|metrics| &metrics.late), 0, "{at}");
            let mut got = sorted(&memory.all_committed());
            if query.number == 12 {
                got = over_windows(&got);
            }
            assert_eq!(got.len(), expected.len(), "{at}");
            let differs = got.iter().zip(&expected).find(|(got, expected)| got != expected);
            assert_eq!(differs, None, "{at}");
        }
    }
}

#[test]
fn those_without_retractions_run_for_ever_and_the_others_say_why_not() {
    for query in &QUERIES {
        let rows = |count: u64| format!("'rows' = '{count}'");
        let bids = query.size.bids;
        let mut script = script(query.number);
        for count in [bids, bids / 46 * 3, bids / 46] {
            let (before, alone) = (format!(", {}", rows(count)), format!(",\n  {}", rows(count)));
            script = script.replace(&before, "").replace(&alone, "");
        }
        let workers = Workers { nodes: 2, per_node: 2 };
        let planned = plan(&Memory::new(None), &script, workers);
        let refused = planned.as_ref().err().map(String::as_str);
        assert_eq!(refused, query.refused, "query {}", query.number);
        assert!(planned.is_err() || planned.is_ok_and(|stage| !stage.bounded), "{script}");
    }
}
