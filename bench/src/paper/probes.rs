//! A fact table of a pool whose key is skewed, and streams that look up a large table of it.

use std::sync::Arc;
use std::time::Instant;

use arrow::array::AsArray;
use arrow::datatypes::{DataType, Field, Int64Type, Schema};
use connectors::PoolConnector;
use dataflow::connector::{Connector, Options, TableDef};
use millstream::pool::{Client, PoolAccess, PoolOptions};
use millstream::{FabricKind, RowTarget, RunOptions, Session};

use super::{cell, section, table};
use crate::report::{Bar, ReportSection};

/// Rows of the skewed table in an ordinary sweep, and the readers that share it.
const FACTS: f64 = 4e6;
const READERS: [u32; 3] = [2, 4, 8];
/// Nodes that process the skewed table, and the bound for the processor time of the busiest one, as
/// a multiple of the mean.
const NODES: u32 = 4;
const UNEVEN_ASKED: f64 = 1.1;
/// Keys of the skewed table, and how often it is processed.
const SKEWED_KEYS: u64 = 10_000;
const STATEMENTS: usize = 6;

/// Keys that are looked up, and rows of the shorter of two streams, in an ordinary sweep.
const KEYS: f64 = 1e7;
const STREAM: f64 = 1e7;

/// Pairs of a short and a long stream, by whose median difference a rate is known.
const PAIRS: usize = 5;
/// The long stream must take longer by this part of its time at least: two timings that hardly
/// differ tell no rate.
const LONGER: f64 = 0.05;

/// Rows a second that are asked of a stream, by fabric.
const PROBES_ASKED: [(FabricKind, f64); 2] = [(FabricKind::Shm, 20e6), (FabricKind::Tcp, 1e6)];

type Failed = Box<dyn std::error::Error>;

/// A pool, and names of tables that nobody else has.
struct Place<'a> {
    addresses: Vec<String>,
    prefix: &'a str,
}

impl Place<'_> {
    fn name(&self, table: &str) -> String {
        format!("{}-{table}-{}", self.prefix, std::process::id())
    }

    fn options(&self, fabric: FabricKind) -> PoolOptions {
        PoolOptions { fabric, ..PoolOptions::new(self.addresses.clone()) }
    }

    /// The first row of a SELECT behind other statements.
    fn first(&self, fabric: FabricKind, sql: &str) -> Result<Vec<i64>, Failed> {
        let session = Session::builder().rows_to(RowTarget::default()).pool(self.options(fabric));
        let batches = session.build()?.collect(sql)?;
        let batch = batches.iter().find(|batch| batch.num_rows() > 0);
        let Some(batch) = batch else { return Ok(vec![]) };
        let value = |column: &arrow::array::ArrayRef| {
            column.as_primitive_opt::<Int64Type>().map(|values| values.value(0))
        };
        batch.columns().iter().map(value).collect::<Option<_>>().ok_or_else(|| "no numbers".into())
    }

    fn drop(&self, name: &str) {
        // A failed measurement leaves no table behind.
        let client = Client::new(self.options(FabricKind::Auto));
        let _ = client.map(|client| client.drop_table(name));
    }
}

fn place<'a>(pool: &str, prefix: &'a str) -> Place<'a> {
    Place { addresses: pool.split(',').map(str::to_owned).collect(), prefix }
}

/// How evenly a table whose key has the skew of Zipf 1.0 is divided: its bytes among readers, and
/// the work of four nodes that process it.
pub(super) fn skew(pool: &str, rows: f64) -> ReportSection {
    let facts = (FACTS * rows).max(20_000.0) as u64;
    let texts = [
        format!(
            "Exact: {facts} rows, whose key comes as Zipf 1.0 says, are loaded into 256 buckets of \
             the key. Their strips are divided among readers by bytes, as the first statement \
             does. The bytes of the reader that has most are compared with their mean; rows are \
             counted."
        ),
        format!(
            "Measured: {NODES} nodes of one worker, threads of this process, join these rows with \
             {SKEWED_KEYS} keys and group them, {STATEMENTS} times. The first statement divides by \
             bytes, and each later one by the processor time that the statement before has \
             measured for each bucket. The processor time of the worker that has most is compared \
             with the mean of all."
        ),
    ];
    let mut section = section("Skew", &texts.each_ref().map(|text| &**text));
    let place = place(pool, "istore-zipf");
    let (name, keys) = (place.name("facts"), place.name("keys"));
    let found = shares(&place, &name, facts);
    let worked = found.as_ref().ok().map(|_| worked(&place, [&name, &keys], facts));
    place.drop(&name);
    place.drop(&keys);
    let (mut by_bytes, mut by_work, mut later) = (vec![], vec![], None);
    match found {
        Ok(shares) => {
            let row =
                |(readers, share): (u32, f64)| vec![readers.to_string(), format!("{share:.3}")];
            by_bytes.extend(shares.into_iter().map(row));
        }
        Err(error) => section.text.push(format!("not measured: {error}")),
    }
    match worked {
        Some(Ok(statements)) => {
            later = median(statements[1..].to_vec());
            let row = |(at, share): (usize, &f64)| {
                let by = if at == 0 { "bytes" } else { "measured time" };
                vec![(at + 1).to_string(), by.to_owned(), format!("{share:.3}")]
            };
            by_work.extend(statements.iter().enumerate().map(row));
        }
        Some(Err(error)) => section.text.push(format!("not measured: {error}")),
        None => {}
    }
    let columns = ["readers", "bytes of most, of the mean"];
    section.tables.push(table("A skewed table by bytes", &columns, by_bytes));
    let columns = ["statement", "divided by", "processor time of most, of the mean"];
    section.tables.push(table("A skewed table on four nodes", &columns, by_work));
    section.bars.push(uneven_bar(later));
    section
}

fn uneven_bar(later: Option<f64>) -> Bar {
    Bar {
        what: format!("Zipf 1.0, {NODES} nodes: processor time of the one with most, of the mean"),
        needed: format!("≤ {UNEVEN_ASKED} times"),
        got: format!("{} times", cell(later, 3)),
        met: later.map(|share| share <= UNEVEN_ASKED),
    }
}

/// The processor time of the worker that has most, of the mean, for each statement of a session.
fn worked(place: &Place<'_>, [facts, keys]: [&str; 2], rows: u64) -> Result<Vec<f64>, Failed> {
    let options = place.options(FabricKind::Auto);
    let session = Session::builder().nodes(NODES).workers(1).pool(options);
    let mut session = session.build()?;
    let found = session.collect(&format!(
        "CREATE TABLE made (k BIGINT) WITH ('connector' = 'generator', 'rows' = '{SKEWED_KEYS}', \
         'fields.k.kind' = 'sequence');
         CREATE TABLE keys WITH ('connector' = 'pool', 'table' = '{keys}') AS \
         SELECT k, k % 5 AS w FROM made;
         CREATE TABLE facts WITH ('connector' = 'pool', 'table' = '{facts}');
         CREATE TABLE nowhere (g BIGINT, c BIGINT, s BIGINT) WITH ('connector' = 'blackhole');
         SELECT count(*) FROM facts JOIN keys ON facts.k = keys.k;"
    ))?;
    let batch = found.iter().find(|batch| batch.num_rows() > 0).ok_or("no count")?;
    let count = batch.column(0).as_primitive_opt::<Int64Type>().map(|count| count.value(0));
    if count != Some(rows as i64) {
        return Err(format!("{count:?} of {rows} rows found their key").into());
    }
    let statement = "INSERT INTO nowhere SELECT facts.k % 16, count(*), sum(facts.v * keys.w)
         FROM facts JOIN keys ON facts.k = keys.k GROUP BY facts.k % 16;";
    let mut shares = vec![];
    for _ in 0..STATEMENTS {
        let report = session.sql(statement)?.run(&RunOptions::default())?;
        let work: Vec<u64> = report.workers.iter().map(|worker| worker.counters.cpu_ns).collect();
        let most = work.iter().max().copied().unwrap_or_default() as f64;
        shares.push(most * f64::from(NODES) / work.iter().sum::<u64>() as f64);
    }
    Ok(shares)
}

/// The value in the middle.
fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}

fn shares(place: &Place<'_>, name: &str, facts: u64) -> Result<Vec<(u32, f64)>, Failed> {
    place.first(
        FabricKind::Auto,
        &format!(
            "CREATE TABLE made (k BIGINT, v BIGINT) WITH ('connector' = 'generator', \
             'rows' = '{facts}', 'fields.k.kind' = 'zipf', 'fields.k.max' = '{}', \
             'fields.v.kind' = 'sequence');
             CREATE TABLE kept DISTRIBUTED BY HASH(k) INTO 256 BUCKETS
             WITH ('connector' = 'pool', 'table' = '{name}') AS SELECT k, v FROM made;",
            SKEWED_KEYS - 1
        ),
    )?;
    let connector =
        PoolConnector::new(Arc::new(Client::new(place.options(FabricKind::Auto))?) as _);
    let columns = ["k", "v"].map(|name| Field::new(name, DataType::Int64, true));
    let def = TableDef {
        name: name.to_owned(),
        schema: Arc::new(Schema::new(columns.to_vec())),
        options: Options::new(),
        metadata: Default::default(),
        buckets: vec![],
    };
    let source = connector.source(&def, &[0, 1])?;
    let mut shares = vec![];
    for readers in READERS {
        let splits = source.splits(readers, None)?;
        let rows: u64 = splits.iter().filter_map(|split| split.rows).sum();
        if rows != facts {
            return Err(format!("{readers} readers have {rows} of {facts} rows").into());
        }
        let bytes: Vec<u64> = splits.iter().filter_map(|split| split.bytes).collect();
        let most = bytes.iter().max().copied().unwrap_or_default() as f64;
        let mean = bytes.iter().sum::<u64>() as f64 / f64::from(readers);
        shares.push((readers, most / mean));
    }
    Ok(shares)
}

/// A stream that looks its rows up in a table of a pool.
pub(super) fn probes(pool: &str, rows: f64) -> ReportSection {
    let [keys, stream] = [KEYS, STREAM].map(|of| (of * rows).max(20_000.0) as u64);
    let text = format!(
        "Measured: one worker looks up {stream} rows, and three times as many, among {keys} keys \
         of a table in two memory servers, which it has read before, in {PAIRS} pairs. The rate is \
         that of the rows by which the second stream is longer, the making of them included, by \
         the median difference of a pair. Each row has to find its partner."
    );
    let mut section = section("Streams", &[&text]);
    let place = place(pool, "istore-keys");
    let name = place.name("keys");
    let loaded = place.first(
        FabricKind::Auto,
        &format!(
            "CREATE TABLE made (k BIGINT) WITH ('connector' = 'generator', 'rows' = '{keys}', \
             'fields.k.kind' = 'sequence', 'fields.k.max' = '{}');
             CREATE TABLE kept WITH ('connector' = 'pool', 'table' = '{name}') AS \
             SELECT k, k % 7 AS v FROM made;",
            keys - 1
        ),
    );
    let mut rows = vec![];
    for (fabric, asked) in PROBES_ASKED {
        let probed = |rows| probed(&place, &name, fabric, [keys, rows]);
        let pair = |_| Ok([probed(stream)?, probed(3 * stream)?]);
        let pairs: Result<Vec<[f64; 2]>, Failed> = match &loaded {
            Ok(_) => (0..PAIRS).map(pair).collect(),
            Err(error) => Err(error.to_string().into()),
        };
        let rate = match pairs {
            Ok(pairs) => {
                let rate = pair_rate(2.0 * stream as f64, &pairs);
                if rate.is_none() {
                    section.text.push(format!(
                        "no rate: {fabric}: a stream of {} rows took no longer than one of \
                         {stream}",
                        3 * stream
                    ));
                }
                rows.push(vec![fabric.to_string(), cell(rate.map(|rate| rate * 1e-6), 2)]);
                rate
            }
            Err(error) => {
                section.text.push(format!("not measured: {fabric}: {error}"));
                None
            }
        };
        section.bars.push(stream_bar(keys, fabric, asked, rate));
    }
    place.drop(&name);
    section.tables.push(table("Rows that are looked up", &["fabric", "M rows/s"], rows));
    section
}

/// Rows a second of the `rows` rows by which the second stream of each pair is longer, by the
/// median difference of their seconds. `None` if that is no more than noise.
fn pair_rate(rows: f64, pairs: &[[f64; 2]]) -> Option<f64> {
    let difference = median(pairs.iter().map(|[short, long]| long - short).collect())?;
    let long = median(pairs.iter().map(|pair| pair[1]).collect())?;
    (difference > LONGER * long).then(|| rows / difference)
}

fn stream_bar(keys: u64, fabric: FabricKind, asked: f64, rate: Option<f64>) -> Bar {
    Bar {
        what: format!("a stream looks up {keys} keys of a pool, {fabric}"),
        needed: format!("≥ {} M rows/s", asked * 1e-6),
        got: format!("{} M rows/s", cell(rate.map(|rate| rate * 1e-6), 2)),
        met: rate.map(|rate| rate >= asked),
    }
}

/// Seconds of a stream of `rows` rows.
fn probed(
    place: &Place<'_>,
    name: &str,
    fabric: FabricKind,
    [keys, rows]: [u64; 2],
) -> Result<f64, Failed> {
    let sql = format!(
        "SET 'millstream.table_bytes' = '1 GiB';
         CREATE TABLE kept WITH ('connector' = 'pool', 'table' = '{name}');
         CREATE TABLE stream (k BIGINT) WITH ('connector' = 'generator', 'rows' = '{rows}', \
         'fields.k.kind' = 'uniform', 'fields.k.max' = '{}');
         SELECT count(*) AS found, sum(CASE WHEN kept.v = stream.k % 7 THEN 1 ELSE 0 END) AS same \
         FROM stream JOIN kept ON stream.k = kept.k;",
        keys - 1
    );
    let begins = Instant::now();
    let found = place.first(fabric, &sql)?;
    let seconds = begins.elapsed().as_secs_f64();
    if found != [rows as i64; 2] {
        return Err(format!("{found:?} of {rows} rows found their partner").into());
    }
    Ok(seconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_of_the_median_pair_or_of_none() {
        // One pair in which the machine was busy, and one in which both took as long.
        let pairs = [[1.0, 3.0], [1.0, 3.2], [1.0, 9.0], [2.0, 2.0], [1.0, 3.0]];
        assert_eq!(pair_rate(4e6, &pairs), Some(2e6));
        assert_eq!(pair_rate(4e6, &[[1.0, 1.0 + 1e-9]; 5]), None, "no longer");
        assert_eq!(pair_rate(4e6, &[[3.0, 1.0]; 5]), None, "less long");
        assert_eq!(pair_rate(4e6, &[]), None);
    }

    #[test]
    fn bars_are_missed_where_too_little_was_measured() {
        let met = |rate| stream_bar(10, FabricKind::Shm, 20e6, rate).met;
        assert_eq!([met(Some(20e6)), met(Some(19e6)), met(None)], [Some(true), Some(false), None]);
        let met = |share| uneven_bar(share).met;
        assert_eq!([met(Some(1.1)), met(Some(1.2)), met(None)], [Some(true), Some(false), None]);
    }
}
