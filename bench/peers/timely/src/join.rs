//! Two tables that are joined by key in windows: two sources, an exchange by key, and for each
//! window a hash table of both sides, in which each row looks for those that came before it.
//!
//! Rows travel whole, and what comes out are whole rows of both sides, as in a dataflow that runs
//! in several processes and whose results somebody reads. Or they stay where they are in memory,
//! and their numbers travel: threads of one process share it, and no row is put together.

use std::error::Error;
use std::fs::File;
use std::hint::black_box;
use std::io::{BufReader, Read};
use std::sync::{Arc, Mutex};

use foldhash::fast::FixedState;
use hashbrown::HashMap;
use serde::{Deserialize, Serialize};
use timely::ExchangeData;
use timely::dataflow::channels::pact::{Exchange, Pipeline};
use timely::dataflow::operators::Operator;
use timely::dataflow::operators::generic::operator::source;
use timely::dataflow::{Scope, Stream};

use crate::{ROWS_PER_TURN, Sums};

/// A row; its other columns are one text.
#[derive(Clone, Serialize, Deserialize)]
pub struct Event {
    time: i64,
    key: u64,
    value: i64,
    text: String,
}

/// What is joined.
#[derive(Clone, Copy)]
pub struct Workload {
    /// The left table and the right one.
    tables: [&'static str; 2],
    /// Milliseconds.
    window: i64,
}

/// The rows of both tables, in the order of event time.
pub type Tables = [Vec<Event>; 2];

/// Of each key its rows, or their numbers, of both sides.
type Keys<T> = HashMap<u64, [Vec<T>; 2], FixedState>;

/// The windows that are open.
type Windows<T> = HashMap<u64, Keys<T>, FixedState>;

/// Pairs of rows, or of their numbers.
type Pairs<'scope, T> = Stream<'scope, u64, Vec<(T, T)>>;

/// The workload of that name, if it is one.
pub fn workload(name: &str) -> Option<Workload> {
    let nb8 = Workload { tables: ["auctions", "persons"], window: 12 * 3_600_000 };
    (name == "nb8").then_some(nb8)
}

/// The rows as `../pack.py` wrote them.
pub fn read(workload: &Workload, rows: &str) -> Result<Tables, Box<dyn Error>> {
    let stem = rows.strip_suffix(".rows").ok_or("not the name of packed rows")?;
    let [left, right] = workload.tables.map(|table| table_in(&format!("{stem}.{table}.rows")));
    Ok([left?, right?])
}

fn table_in(path: &str) -> Result<Vec<Event>, Box<dyn Error>> {
    let file = File::open(path)?;
    let bytes = file.metadata()?.len();
    let mut input = BufReader::with_capacity(1 << 20, file);
    let mut rows = Vec::new();
    let mut read = 0;
    while read < bytes {
        let mut words = [0; 24];
        input.read_exact(&mut words)?;
        let mut length = [0; 4];
        input.read_exact(&mut length)?;
        let mut text = vec![0; u32::from_le_bytes(length) as usize];
        input.read_exact(&mut text)?;
        read += 28 + text.len() as u64;
        let [time, key, value] = [0, 8, 16].map(|at| {
            let word = words[at..at + 8].try_into();
            word.map(i64::from_le_bytes).unwrap_or_default()
        });
        rows.push(Event { time, key: key as u64, value, text: String::from_utf8(text)? });
    }
    Ok(rows)
}

/// Joins, and adds up what came out; `numbers` is whether rows' numbers travel in their place.
pub fn run(
    workload: Workload,
    rows: &Arc<Tables>,
    threads: usize,
    numbers: bool,
) -> Result<Sums, String> {
    let rows = Arc::clone(rows);
    let total = Arc::new(Mutex::new(Sums::default()));
    let result = Arc::clone(&total);
    let config = timely::Config::process(threads);
    let guards = timely::execute(config, move |worker| {
        let (rows, total) = (Arc::clone(&rows), Arc::clone(&total));
        let own = (worker.index(), threads);
        worker.dataflow::<u64, _, _>(move |scope| {
            let table = |side| (Arc::clone(&rows), side, own);
            if numbers {
                let number = |_: &Event, number: usize| number as u64;
                let left = source_of(scope, workload, table(0), number);
                let right = source_of(scope, workload, table(1), number);
                let pair = move |&(left, right): &(u64, u64)| {
                    let [left, right] = [&rows[0][left as usize], &rows[1][right as usize]];
                    (left.value, right.key)
                };
                add_up(meet(left, right), pair, total);
            } else {
                let whole = |row: &Event, _: usize| row.clone();
                let left = source_of(scope, workload, table(0), whole);
                let right = source_of(scope, workload, table(1), whole);
                let pair = |(left, right): &(Event, Event)| {
                    black_box((left.text.len(), right.text.len()));
                    (left.value, right.key)
                };
                add_up(meet(left, right), pair, total);
            }
        });
    })?;
    guards.join().into_iter().collect::<Result<Vec<()>, _>>()?;
    let sums = *result.lock().map_err(|error| error.to_string())?;
    Ok(sums)
}

/// The rows of both sides that have the same key and lie in the same window.
fn meet<'scope, T: ExchangeData + Clone>(
    left: Stream<'scope, u64, Vec<(u64, T)>>,
    right: Stream<'scope, u64, Vec<(u64, T)>>,
) -> Pairs<'scope, T> {
    let by_key = || Exchange::new(|row: &(u64, T)| row.0);
    left.binary_frontier(right, by_key(), by_key(), "join", |_, _| {
        let mut windows = Windows::<T>::default();
        move |(left, of_left), (right, of_right), output| {
            left.for_each_time(|time, batches| {
                let keys = windows.entry(*time.time()).or_default();
                let mut session = output.session(&time);
                for (key, row) in batches.flat_map(|batch| batch.drain(..)) {
                    let rows = keys.entry(key).or_default();
                    rows[1].iter().for_each(|other| session.give((row.clone(), other.clone())));
                    rows[0].push(row);
                }
            });
            right.for_each_time(|time, batches| {
                let keys = windows.entry(*time.time()).or_default();
                let mut session = output.session(&time);
                for (key, row) in batches.flat_map(|batch| batch.drain(..)) {
                    let rows = keys.entry(key).or_default();
                    rows[0].iter().for_each(|other| session.give((other.clone(), row.clone())));
                    rows[1].push(row);
                }
            });
            windows.retain(|time, _| of_left.less_equal(time) || of_right.less_equal(time));
        }
    })
}

/// Adds up what `pair` says of each pair: the left one's value and the right one's key.
fn add_up<T: ExchangeData>(
    pairs: Pairs<'_, T>,
    pair: impl Fn(&(T, T)) -> (i64, u64) + 'static,
    total: Arc<Mutex<Sums>>,
) {
    pairs.sink(Pipeline, "sums", move |(input, _)| {
        let mut sums = Sums::default();
        input.for_each_time(|_, batches| {
            for (value, key) in batches.flat_map(|batch| batch.iter()).map(&pair) {
                sums.rows += 1;
                sums.whole = sums.whole.wrapping_add((key + 1).wrapping_mul(value as u64));
            }
        });
        let mut total = total.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        total.rows += sums.rows;
        total.whole = total.whole.wrapping_add(sums.whole);
    });
}

/// The key, and what `of` makes of a row and its number, of every n-th row of a table.
fn source_of<'scope, T: ExchangeData>(
    scope: Scope<'scope, u64>,
    workload: Workload,
    (rows, side, (own, threads)): (Arc<Tables>, usize, (usize, usize)),
    of: impl Fn(&Event, usize) -> T + 'static,
) -> Stream<'scope, u64, Vec<(u64, T)>> {
    source(scope, "rows", |capability, info| {
        let activator = scope.activator_for(info.address);
        let mut capability = Some(capability);
        let mut at = own;
        move |output| {
            let rows = &rows[side];
            let Some(held) = capability.as_mut() else { return };
            let turn = (at + ROWS_PER_TURN * threads).min(rows.len());
            while at < turn {
                let window = rows[at].time.div_euclid(workload.window);
                held.downgrade(&(window as u64));
                let mut session = output.session(&held);
                let before = (window + 1) * workload.window;
                while at < turn && rows[at].time < before {
                    session.give((rows[at].key, of(&rows[at], at)));
                    at += threads;
                }
            }
            if at >= rows.len() {
                capability = None;
            } else {
                activator.activate();
            }
        }
    })
}
