//! The applications of `examples/whale`, in SQL and as streams, on clusters of several sizes,
//! against loops over all pairs.

#[path = "../../crates/millstream/examples/whale.rs"]
#[expect(dead_code, reason = "the example's main is not called here")]
mod example;

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::array::{AsArray, RecordBatch};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Float64Type, Int64Type};
use connectors::Generator;
use dataflow::connector::Connector;
use millstream::stream::Stream;
use millstream::{Error, Session};
use plan::{Planner, Stage, Workers};
use tests::cluster::Cluster;
use tests::memory::Memory;
use tests::rows::sorted;

const SIZES: [(u32, u32); 4] = [(1, 1), (1, 3), (2, 2), (4, 1)];

/// Price and volume.
type Order = (i64, i64);

fn example(name: &str) -> String {
    let path = format!("{}/../examples/whale/{name}.sql", env!("CARGO_MANIFEST_DIR"));
    std::fs::read_to_string(path).expect("it is in the repository")
}

/// Runs the last statement of a script on a cluster; each row as its values joined by `|`.
fn run(script: &str, (nodes, workers): (u32, u32)) -> Vec<String> {
    let memory = Memory::new(None);
    let sink = Arc::new(memory.clone());
    let connectors: Vec<Arc<dyn Connector>> = vec![Arc::new(Generator), sink.clone()];
    let mut planner = Planner::new(connectors, Workers { nodes, per_node: workers });
    planner.set_default_sink(sink, Default::default());
    let planned = planner.plan(script);
    let mut stages = planned.unwrap_or_else(|errors| panic!("{errors:?}: {script}"));
    let Stage { job, explain, .. } = stages.remove(0);
    if nodes * workers > 1 && script.contains("BROADCAST") {
        assert!(explain.text().contains("broadcast: hint BROADCAST("), "{}", explain.text());
    }
    let cluster = Cluster::seeded(nodes, workers, u64::from(nodes * 7 + workers));
    cluster.run(&Arc::new(job)).unwrap_or_else(|error| panic!("{nodes}x{workers}: {error}"));
    sorted(&memory.all_committed())
}

/// The rows of a table of a script, value by value.
fn table(script: &str, name: &str) -> Vec<Vec<String>> {
    let tables = script.split("CREATE VIEW").next().expect("tables stand first");
    let rows = run(&format!("{tables} SELECT * FROM {name};"), (1, 1));
    rows.iter().map(|row| row.split('|').map(str::to_owned).collect()).collect()
}

/// The window of so many seconds in which a time of one day lies: its start in seconds.
fn window(time: &str, seconds: u64) -> u64 {
    let clock = &time[time.find('T').expect("a timestamp") + 1..];
    let parts: Vec<f64> = clock.split(':').map(|part| part.parse().expect("a number")).collect();
    let of_day = (parts[0] * 3_600.0 + parts[1] * 60.0 + parts[2]).floor() as u64;
    of_day / seconds * seconds
}

fn number<T: std::str::FromStr>(text: &str) -> T {
    text.parse().unwrap_or_else(|_| panic!("'{text}' is no number"))
}

/// The rows of an application as streams, over the tables of a script.
fn streamed(
    script: &str,
    application: fn(&mut Session) -> Result<Stream, Error>,
    (nodes, workers): (u32, u32),
) -> Vec<RecordBatch> {
    let session = Session::builder().nodes(nodes).workers(workers).build();
    let mut session = session.expect("it is a size");
    session.sql(example::tables(script)).expect("the tables of the script");
    let stream = application(&mut session).unwrap_or_else(|error| panic!("{error}"));
    session.rows(&stream).unwrap_or_else(|error| panic!("{nodes}x{workers}: {error}"))
}

/// The values of some columns, as 64 bits.
fn columns<const N: usize>(batches: &[RecordBatch], names: [&str; N]) -> Vec<[i64; N]> {
    let of = |batch: &RecordBatch, name: &str| -> Vec<i64> {
        let column = batch.column_by_name(name).expect("a column of the result");
        match column.data_type() {
            DataType::Float64 => {
                let values = column.as_primitive::<Float64Type>().values();
                values.iter().map(|value| value.to_bits() as i64).collect()
            }
            _ => {
                let whole = cast(column, &DataType::Int64).expect("whole numbers and times");
                whole.as_primitive::<Int64Type>().values().to_vec()
            }
        }
    };
    let mut rows: Vec<[i64; N]> = vec![];
    for batch in batches {
        let columns = names.map(|name| of(batch, name));
        rows.extend((0..batch.num_rows()).map(|row| columns.each_ref().map(|column| column[row])));
    }
    rows.sort_unstable();
    rows
}

#[test]
fn each_request_gets_the_nearest_driver() {
    let script = example("ride-hailing")
        .replace("'rows' = '100000', 'interval' = '400us'", "'rows' = '4000', 'interval' = '10ms'")
        .replace("'rows' = '500'", "'rows' = '200'")
        .replace("'5999999'", "'999'");
    // The last place of each driver in each window: ties go to the least place.
    let mut places: BTreeMap<(u64, i64), (String, f64, f64)> = BTreeMap::new();
    for row in table(&script, "drivers") {
        let (x, y) = (number::<f64>(&row[2]), number::<f64>(&row[3]));
        let place = places.entry((window(&row[0], 10), number(&row[1])));
        let kept = place.or_insert_with(|| (row[0].clone(), x, y));
        if row[0] > kept.0 || (row[0] == kept.0 && (x, y) < (kept.1, kept.2)) {
            *kept = (row[0].clone(), x, y);
        }
    }
    let mut expected = vec![];
    for row in table(&script, "requests") {
        let (start, x, y) = (window(&row[0], 10), number::<f64>(&row[2]), number::<f64>(&row[3]));
        let apart = |(&(_, driver), &(_, dx, dy)): (&(u64, i64), &(String, f64, f64))| {
            ((dx - x) * (dx - x) + (dy - y) * (dy - y), driver)
        };
        let near = places.iter().filter(|((of, _), _)| *of == start).map(apart);
        let near = near.filter(|(apart, _)| *apart < 4_000_000.0);
        if let Some((apart, driver)) = near.min_by(|a, b| a.partial_cmp(b).expect("numbers")) {
            expected.push((number::<i64>(&row[1]), driver, apart.sqrt().to_bits()));
        }
    }
    expected.sort_unstable();
    assert!(expected.len() > 100, "only {} matches", expected.len());
    for size in SIZES {
        let rows = run(&script, size);
        let split = |row: &String| -> (i64, i64, u64) {
            let values: Vec<&str> = row.split('|').collect();
            (number(values[1]), number(values[2]), number::<f64>(values[3]).to_bits())
        };
        let mut got: Vec<_> = rows.iter().map(split).collect();
        got.sort_unstable();
        assert!(got == expected, "{size:?}: {} rows, not {}", got.len(), expected.len());
        for application in [example::rides, example::rides_by_place] {
            let rows = streamed(&script, application, size);
            let got = columns(&rows, ["request", "driver", "metres"]);
            let same = |got: &[i64; 3], &(request, driver, metres): &(i64, i64, u64)| {
                *got == [request, driver, metres as i64]
            };
            let pairs = || got.iter().zip(&expected);
            let all = got.len() == expected.len() && pairs().all(|(g, e)| same(g, e));
            assert!(all, "streams, {size:?}: {} rows, not {}", got.len(), expected.len());
        }
    }
}

#[test]
fn buyers_meet_sellers_who_ask_no_more() {
    let script = example("stock-exchange")
        .replace("'rows' = '200000', 'interval' = '50us'", "'rows' = '6000', 'interval' = '1ms'");
    let mut orders: BTreeMap<(u64, i64), [Vec<Order>; 2]> = BTreeMap::new();
    for row in table(&script, "orders") {
        let [symbol, price, volume] = [1, 3, 4].map(|at| number::<i64>(&row[at]));
        if price > 0 && volume > 0 && symbol > 20 {
            let sides = orders.entry((window(&row[0], 1), symbol)).or_default();
            sides[usize::from(row[2] == "sell")].push((price, volume));
        }
    }
    let mut expected = vec![];
    for ((start, symbol), [buyers, sellers]) in orders {
        let met = |&(price, volume): &(i64, i64)| {
            let fits = sellers.iter().filter(move |seller| price >= seller.0);
            fits.map(move |seller| volume.min(seller.1)).collect::<Vec<_>>()
        };
        let deals: Vec<i64> = buyers.iter().flat_map(met).collect();
        if !deals.is_empty() {
            expected.push((start, symbol, deals.len() as i64, deals.iter().sum::<i64>()));
        }
    }
    expected.sort_unstable();
    assert!(expected.len() > 100, "only {} symbols", expected.len());
    for size in SIZES {
        let split = |row: &String| {
            let values: Vec<&str> = row.split('|').collect();
            (window(values[0], 1), number(values[1]), number(values[2]), number(values[3]))
        };
        let mut got: Vec<(u64, i64, i64, i64)> = run(&script, size).iter().map(split).collect();
        got.sort_unstable();
        assert!(got == expected, "{size:?}: {} rows, not {}", got.len(), expected.len());
        let rows = streamed(&script, example::volumes, size);
        let got = columns(&rows, ["window_start", "symbol", "deals", "volume"]);
        // Milliseconds of the generator's one day.
        let of_day = |start: i64| (start / 1_000).rem_euclid(86_400) as u64;
        let got: Vec<(u64, i64, i64, i64)> =
            got.into_iter().map(|[start, symbol, n, v]| (of_day(start), symbol, n, v)).collect();
        assert!(got == expected, "streams, {size:?}: {} rows, not {}", got.len(), expected.len());
    }
}
