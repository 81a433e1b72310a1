//! The applications of Whale (W11) without SQL but for their tables, which are those of
//! `examples/whale`: each edge says where its rows go (W2).
//!
//! ```sh
//! cargo run --release -p millstream --example whale
//! ```

use std::sync::Arc;
use std::time::Duration;

use arrow::array::{ArrayRef, AsArray, BooleanArray, Float64Array, Int64Array, RecordBatch};
use arrow::datatypes::{DataType, Float64Type, Int32Type};
use arrow::util::pretty::pretty_format_batches;
use millstream::stream::{
    Agg, Columns, DataflowError, Exchange, JoinKind, MultiPartitioner, Order, RowPartitioner,
    Stream, Window, WorkerSet,
};
use millstream::{Error, Session};

type Application = fn(&mut Session) -> Result<Stream, Error>;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let scripts = [
        include_str!("../../../examples/whale/ride-hailing.sql"),
        include_str!("../../../examples/whale/stock-exchange.sql"),
    ];
    let applications =
        [(scripts[0], rides as Application), (scripts[0], rides_by_place), (scripts[1], volumes)];
    for (script, application) in applications {
        let mut session = Session::builder().nodes(2).workers(2).build()?;
        session.sql(tables(script))?;
        let stream = application(&mut session)?;
        let rows = session.rows(&stream)?;
        let first: Vec<RecordBatch> =
            rows.iter().map(|batch| batch.slice(0, batch.num_rows().min(5))).take(1).collect();
        println!("{}", pretty_format_batches(&first)?);
        println!("{} rows", rows.iter().map(RecordBatch::num_rows).sum::<usize>());
    }
    Ok(())
}

/// The statements of a script in front of its views.
pub fn tables(script: &str) -> &str {
    script.split("CREATE VIEW").next().unwrap_or_default()
}

/// Every ten seconds each request gets the nearest driver within two kilometres. Drivers go by
/// their number to one worker, which keeps the last place of each; requests go to all.
///
/// # Errors
/// When a table has other columns.
pub fn rides(session: &mut Session) -> Result<Stream, Error> {
    let window = Window::tumble(Duration::from_secs(10));
    let last = [Order::descending("ts"), Order::ascending("x"), Order::ascending("y")];
    let drivers = session.table("drivers")?.in_windows(&window)?;
    let located = drivers.key_by(&["driver"])?.top(1, &last, "n")?;
    let requests = session.table("requests")?.in_windows(&window)?;
    let (here, all) = (located.key_by(&[])?.in_place(), requests.key_by(&[])?.to_all());
    nearest(here.join(all, JoinKind::Inner)?)
}

/// The same rows otherwise: the last places of drivers lie on workers by stripes of the city, and a
/// request goes to those whose stripes it reaches, and not to all.
///
/// # Errors
/// When a table has other columns.
pub fn rides_by_place(session: &mut Session) -> Result<Stream, Error> {
    let window = Window::tumble(Duration::from_secs(10));
    let last = [Order::descending("ts"), Order::ascending("x"), Order::ascending("y")];
    let drivers = session.table("drivers")?.in_windows(&window)?;
    let located = drivers.key_by(&["driver"])?.top(1, &last, "n")?.route(Arc::new(Stripes));
    let requests = session.table("requests")?.in_windows(&window)?.spread(Arc::new(Stripes));
    let drivers = located.key_by(&[])?.exchange(Exchange::Forward);
    nearest(drivers.join(requests.key_by(&[])?, JoinKind::Inner)?)
}

/// How far a request reaches, in metres.
const REACH: f64 = 2_000.0;

/// Stripes of the city from north to south, each twice as wide as a request reaches: so that it
/// touches two of them.
struct Stripes;

fn stripe(x: f64, workers: u32) -> u32 {
    (x / (2.0 * REACH)).floor().rem_euclid(f64::from(workers)) as u32
}

impl RowPartitioner for Stripes {
    fn partition(
        &self,
        batch: &RecordBatch,
        workers: u32,
        to: &mut Vec<u32>,
    ) -> Result<(), DataflowError> {
        to.extend(reals(batch, "x").iter().map(|&x| stripe(x, workers)));
        Ok(())
    }
}

impl MultiPartitioner for Stripes {
    fn partition(
        &self,
        batch: &RecordBatch,
        workers: u32,
        to: &mut Vec<WorkerSet>,
    ) -> Result<(), DataflowError> {
        let reached = |&x: &f64| [x - REACH, x + REACH].map(|x| stripe(x, workers));
        to.extend(reals(batch, "x").iter().map(|x| reached(x).into_iter().collect()));
        Ok(())
    }
}

/// The nearest driver of each request, of the pairs of a window.
fn nearest(pairs: Stream) -> Result<Stream, Error> {
    let retained = ["window_start", "window_end", "window_time", "request", "driver"];
    let apart = pairs.map(Columns::of(&retained).and("apart", DataType::Float64), |batch| {
        let [x, y, to_x, to_y] = ["x", "y", "x_right", "y_right"].map(|name| reals(batch, name));
        let apart = (0..batch.num_rows()).map(|row| {
            let (dx, dy) = (x[row] - to_x[row], y[row] - to_y[row]);
            dx * dx + dy * dy
        });
        Ok(vec![Arc::new(Float64Array::from_iter_values(apart)) as ArrayRef])
    })?;
    let near = apart.filter(|batch| {
        let apart = reals(batch, "apart").iter();
        Ok(apart.map(|apart| Some(*apart < REACH * REACH)).collect::<BooleanArray>())
    });
    let nearest = [Order::ascending("apart"), Order::ascending("driver")];
    let best = near.key_by(&["request"])?.top(1, &nearest, "best")?;
    let columns = Columns::of(&["window_start", "request", "driver"]);
    Ok(best.map(columns.and("metres", DataType::Float64), |batch| {
        let metres = reals(batch, "apart").iter().map(|apart| apart.sqrt());
        Ok(vec![Arc::new(Float64Array::from_iter_values(metres)) as ArrayRef])
    })?)
}

/// The volume of each symbol every second, of orders that keep the rules: buyers stay where they
/// are, sellers go to all, and what they agree on goes by its symbol to one worker.
///
/// # Errors
/// When a table has other columns.
pub fn volumes(session: &mut Session) -> Result<Stream, Error> {
    let valid = session.table("orders")?.filter(|batch| {
        let [price, volume, symbol] = ["price", "volume", "symbol"].map(|name| whole(batch, name));
        let keeps = |row: usize| Some(price[row] > 0 && volume[row] > 0 && symbol[row] > 20);
        Ok((0..batch.num_rows()).map(keeps).collect::<BooleanArray>())
    });
    let kinds = valid.split(&["buy", "sell"], |row| row.get("kind"));
    let side = |kind: &str| {
        let second = Window::tumble(Duration::from_secs(1));
        kinds.branch(kind)?.in_windows(&second)?.key_by(&["symbol"])
    };
    let pairs = side("buy")?.in_place().join(side("sell")?.to_all(), JoinKind::Inner)?;
    let deals = pairs.filter(|batch| {
        let [pays, asks] = ["price", "price_right"].map(|name| whole(batch, name));
        Ok(pays.iter().zip(asks).map(|(pays, asks)| Some(pays >= asks)).collect::<BooleanArray>())
    });
    let retained = ["window_start", "window_end", "window_time", "symbol"];
    let traded = deals.map(Columns::of(&retained).and("traded", DataType::Int64), |batch| {
        let [bought, sold] = ["volume", "volume_right"].map(|name| whole(batch, name));
        let traded = bought.iter().zip(sold).map(|(bought, sold)| i64::from(*bought.min(sold)));
        Ok(vec![Arc::new(Int64Array::from_iter_values(traded)) as ArrayRef])
    })?;
    let sums = [Agg::count("deals"), Agg::sum("traded", "volume")];
    let volumes = traded.key_by(&["symbol"])?.same_windows()?.aggregate(&sums)?;
    Ok(volumes.select(&["window_start", "symbol", "deals", "volume"])?)
}

/// A column without NULLs.
fn reals<'a>(batch: &'a RecordBatch, name: &str) -> &'a [f64] {
    let column = batch.column_by_name(name).expect("a column of the stream");
    column.as_primitive::<Float64Type>().values()
}

/// A column without NULLs.
fn whole<'a>(batch: &'a RecordBatch, name: &str) -> &'a [i32] {
    let column = batch.column_by_name(name).expect("a column of the stream");
    column.as_primitive::<Int32Type>().values()
}
