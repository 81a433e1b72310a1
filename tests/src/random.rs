//! Random streams and random queries over them, each a function of a seed.

use std::fmt::Write;
use std::sync::Arc;

use arrow::array::{Float64Array, Int64Array, StringArray, TimestampMillisecondArray};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef, TimeUnit};
use arrow::record_batch::RecordBatch;

use crate::memory::{Event, Table};

/// The delay of the streams' watermark.
pub const DELAY_MS: i64 = 5_000;

/// After so long a silence a flow is idle.
pub const IDLE_MS: i64 = 1_000;

/// The columns of every random stream.
pub const COLUMNS: &str = "k BIGINT, s STRING, v BIGINT, w DOUBLE, ts TIMESTAMP(3)";

/// Numbers that look random (splitmix64).
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    /// A sequence for each seed.
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15))
    }

    /// Any number.
    pub fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A number in `0..n`.
    pub fn below(&mut self, n: u64) -> u64 {
        self.number() % n
    }

    /// True with a chance of `percent`.
    pub fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    /// One of these.
    pub fn one_of<'a, T>(&mut self, all: &'a [T]) -> &'a T {
        &all[self.below(all.len() as u64) as usize]
    }
}

/// A row of a random stream.
#[derive(Debug, Clone, PartialEq)]
pub struct Row {
    /// A skewed integer key.
    pub k: i64,
    /// A short string key, sometimes NULL.
    pub s: Option<String>,
    /// A value, sometimes NULL.
    pub v: Option<i64>,
    /// A value whose sums are exact.
    pub w: f64,
    /// Event time.
    pub ts: i64,
}

/// The schema of random streams.
pub fn schema() -> SchemaRef {
    Arc::new(Schema::new(vec![
        Field::new("k", DataType::Int64, true),
        Field::new("s", DataType::Utf8, true),
        Field::new("v", DataType::Int64, true),
        Field::new("w", DataType::Float64, true),
        Field::new("ts", DataType::Timestamp(TimeUnit::Millisecond, None), true),
    ]))
}

/// Rows as a batch.
pub fn batch(rows: &[Row]) -> RecordBatch {
    RecordBatch::try_new(
        schema(),
        vec![
            Arc::new(rows.iter().map(|r| Some(r.k)).collect::<Int64Array>()),
            Arc::new(rows.iter().map(|r| r.s.clone()).collect::<StringArray>()),
            Arc::new(rows.iter().map(|r| r.v).collect::<Int64Array>()),
            Arc::new(rows.iter().map(|r| Some(r.w)).collect::<Float64Array>()),
            Arc::new(rows.iter().map(|r| Some(r.ts)).collect::<TimestampMillisecondArray>()),
        ],
    )
    .expect("the columns fit")
}

/// A random stream: its flows as rows, and as a table for the engine.
#[derive(Debug, Clone)]
pub struct Stream {
    /// The rows of each flow, in order.
    pub flows: Vec<Vec<Row>>,
    /// The same as a table, cut into batches, with silences.
    pub table: Table,
    /// Whether some flow falls silent for so long that it is idle.
    pub idle: bool,
}

/// A random stream: late, out of order, duplicate, skewed, and with idle flows; some flows have no
/// rows or one, some streams no rows at all, some columns NULLs only.
pub fn stream(random: &mut Random) -> Stream {
    let count = 1 + random.below(6) as usize;
    let idle = random.chance(25);
    let (empty, unknown) = (random.chance(4), random.chance(4));
    let mut flows = Vec::new();
    let mut events = Vec::new();
    for _ in 0..count {
        let rows = match random.below(100) {
            _ if empty => 0,
            0..10 => 0,
            10..17 => 1,
            _ => random.below(400) as usize,
        };
        let nulls = match unknown || random.chance(5) {
            true => [100, 100],
            false => [10, 15],
        };
        let rows = flow(random, rows, nulls);
        events.push(cut(random, &rows, idle));
        flows.push(rows);
    }
    let bounded = !idle && random.chance(60);
    Stream { flows, table: Table { schema: schema(), bounded, flows: events }, idle }
}

/// Rows of which so many in a hundred have no `s`, and so many no `v`.
fn flow(random: &mut Random, count: usize, [without_s, without_v]: [u64; 2]) -> Vec<Row> {
    let keys = *random.one_of(&[1, 3, 50, 1_000]);
    let step = *random.one_of(&[10, 200, 3_000]);
    let disorder = *random.one_of(&[0, 1_000, DELAY_MS, 4 * DELAY_MS]);
    let mut clock = random.below(20_000) as i64;
    let mut rows: Vec<Row> = Vec::with_capacity(count);
    for _ in 0..count {
        if random.chance(5)
            && let Some(last) = rows.last().cloned()
        {
            rows.push(last);
            continue;
        }
        clock += random.below(2 * step) as i64;
        let back = if random.chance(20) { random.below(disorder as u64 + 1) as i64 } else { 0 };
        // Half of the rows have the least key.
        let k = if random.chance(50) { 0 } else { random.below(keys) as i64 };
        let s = *random.one_of(&["a", "b", "", "a longer string than fits inline", "é"]);
        rows.push(Row {
            k,
            s: (!random.chance(without_s)).then(|| s.to_string()),
            v: (!random.chance(without_v)).then(|| random.below(200) as i64 - 100),
            w: random.below(1_000) as f64 / 4.0,
            ts: clock - back,
        });
    }
    rows
}

fn cut(random: &mut Random, rows: &[Row], idle: bool) -> Vec<Event> {
    let mut events = Vec::new();
    let mut rest = rows;
    while !rest.is_empty() {
        let take = (1 + random.below(80) as usize).min(rest.len());
        events.push(Event::Rows(batch(&rest[..take])));
        rest = &rest[take..];
        if idle && random.chance(20) {
            events.push(Event::Silence(random.below(3 * IDLE_MS as u64) * 1_000_000));
        }
    }
    events
}

/// The columns of the table `b`, which is no stream.
pub const BESIDE_COLUMNS: &str = "id BIGINT, g BIGINT";

/// The `g` that the table `b` has for a `k`, if it has one.
pub fn of_b(k: i64) -> Option<i64> {
    (k % 5 != 4).then_some(k * 7 % 31 - 10)
}

/// The table `b`, in two flows.
pub fn beside() -> Table {
    let column = |name: &str| Field::new(name, DataType::Int64, true);
    let schema = Arc::new(Schema::new(vec![column("id"), column("g")]));
    let flow = |keys: std::ops::Range<i64>| {
        let rows = || keys.clone().rev().filter_map(|k| Some((k, of_b(k)?)));
        let ids = rows().map(|(id, _)| id).collect::<Int64Array>();
        let of_ids = rows().map(|(_, g)| g).collect::<Int64Array>();
        let batch = RecordBatch::try_new(schema.clone(), vec![Arc::new(ids), Arc::new(of_ids)]);
        vec![Event::Rows(batch.expect("the columns fit"))]
    };
    Table { schema: schema.clone(), bounded: true, flows: vec![flow(0..300), flow(300..1_000)] }
}

/// A random query, in parts, so that several dialects and an oracle can read it.
#[derive(Debug, Clone)]
pub struct Query {
    /// Grouping expressions.
    pub keys: Vec<Key>,
    /// The window's size, if there is one.
    pub window_s: Option<i64>,
    /// What is computed.
    pub aggregates: Vec<Aggregate>,
    /// Which rows.
    pub filter: Option<Filter>,
    /// Only groups with more rows than this.
    pub more_than: Option<i64>,
}

/// A grouping expression.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Key {
    /// `k`
    K,
    /// `s`
    S,
    /// `k % 3`
    KMod3,
    /// `k / 3`
    KDiv3,
    /// `g` of the row of the table `b` whose `id` is `k`.
    OfB,
}

/// An aggregate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Aggregate {
    /// `count(*)`
    Count,
    /// `count(v)`
    CountV,
    /// `sum(v)`
    SumV,
    /// `min(v)`
    MinV,
    /// `max(v)`
    MaxV,
    /// `avg(v)`
    AvgV,
    /// `sum(w)`
    SumW,
    /// `max(s)`
    MaxS,
    /// `min(ts)`
    MinTs,
}

/// A condition on rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Filter {
    /// `v > 0`
    PositiveV,
    /// `s <> 'a'`
    NotA,
    /// `k % 2 = 0 AND w < 200`
    EvenK,
}

impl Key {
    /// In SQL.
    pub fn sql(self) -> &'static str {
        match self {
            Key::K => "k",
            Key::S => "s",
            Key::KMod3 => "k % 3",
            Key::KDiv3 => "k / 3",
            Key::OfB => "g",
        }
    }
}

impl Aggregate {
    /// All of them.
    pub const ALL: [Aggregate; 9] = [
        Aggregate::Count,
        Aggregate::CountV,
        Aggregate::SumV,
        Aggregate::MinV,
        Aggregate::MaxV,
        Aggregate::AvgV,
        Aggregate::SumW,
        Aggregate::MaxS,
        Aggregate::MinTs,
    ];

    /// In SQL.
    pub fn sql(self) -> &'static str {
        match self {
            Aggregate::Count => "count(*)",
            Aggregate::CountV => "count(v)",
            Aggregate::SumV => "sum(v)",
            Aggregate::MinV => "min(v)",
            Aggregate::MaxV => "max(v)",
            Aggregate::AvgV => "avg(v)",
            Aggregate::SumW => "sum(w)",
            Aggregate::MaxS => "max(s)",
            Aggregate::MinTs => "min(ts)",
        }
    }
}

impl Filter {
    /// In SQL.
    pub fn sql(self) -> &'static str {
        match self {
            Filter::PositiveV => "v > 0",
            Filter::NotA => "s <> 'a'",
            Filter::EvenK => "k % 2 = 0 AND w < 200",
        }
    }

    /// As SQL's logic has it: unknown is not true.
    pub fn keeps(self, row: &Row) -> bool {
        match self {
            Filter::PositiveV => row.v.is_some_and(|v| v > 0),
            Filter::NotA => row.s.as_ref().is_some_and(|s| s != "a"),
            Filter::EvenK => row.k % 2 == 0 && row.w < 200.0,
        }
    }
}

/// A random query.
pub fn query(random: &mut Random, windowed: bool) -> Query {
    let keys: &[&[Key]] = &[
        &[],
        &[Key::K],
        &[Key::S],
        &[Key::K, Key::S],
        &[Key::KMod3],
        &[Key::KDiv3],
        &[Key::S, Key::KMod3],
    ];
    let mut aggregates: Vec<Aggregate> =
        Aggregate::ALL.into_iter().filter(|_| random.chance(40)).collect();
    if aggregates.is_empty() {
        aggregates.push(Aggregate::Count);
    }
    let filters = [Filter::PositiveV, Filter::NotA, Filter::EvenK];
    Query {
        keys: random.one_of(keys).to_vec(),
        window_s: windowed.then(|| *random.one_of(&[1, 7, 60, 3_600])),
        aggregates,
        filter: random.chance(50).then(|| *random.one_of(&filters)),
        more_than: random.chance(25).then(|| random.below(4) as i64),
    }
}

impl Query {
    /// Whether it asks for a row.
    pub fn keeps(&self, row: &Row) -> bool {
        let is_met = !self.keys.contains(&Key::OfB) || of_b(row.k).is_some();
        is_met && self.filter.is_none_or(|filter| filter.keeps(row))
    }

    /// The query in our dialect, over table `t`.
    pub fn ours(&self) -> String {
        let from = match self.window_s {
            Some(size) => {
                format!("TUMBLE(TABLE t, DESCRIPTOR(ts), INTERVAL '{size}' SECOND)")
            }
            None => "t".into(),
        };
        let window = self.window_s.map(|_| ("window_start", "window_start, window_end"));
        self.text(&from, window)
    }

    /// The query as a batch engine has it, over table `t`.
    pub fn batch(&self) -> String {
        let window = self.window_s.map(|size| {
            format!("date_bin(INTERVAL '{size} seconds', ts, TIMESTAMP '1970-01-01T00:00:00')")
        });
        self.text("t", window.as_ref().map(|window| (window.as_str(), window.as_str())))
    }

    fn text(&self, from: &str, window: Option<(&str, &str)>) -> String {
        let keys: Vec<&str> = self.keys.iter().map(|key| key.sql()).collect();
        let aggregates: Vec<&str> = self.aggregates.iter().map(|a| a.sql()).collect();
        let select: Vec<&str> =
            keys.iter().copied().chain(window.map(|(start, _)| start)).chain(aggregates).collect();
        let mut sql = format!("SELECT {} FROM {from}", select.join(", "));
        if self.keys.contains(&Key::OfB) {
            sql.push_str(" JOIN b ON k = id");
        }
        if let Some(filter) = self.filter {
            write!(sql, " WHERE {}", filter.sql()).expect("a string takes all");
        }
        let group: Vec<&str> = keys.into_iter().chain(window.map(|(_, group)| group)).collect();
        if !group.is_empty() {
            write!(sql, " GROUP BY {}", group.join(", ")).expect("a string takes all");
        }
        if let Some(least) = self.more_than {
            write!(sql, " HAVING count(*) > {least}").expect("a string takes all");
        }
        sql
    }
}
