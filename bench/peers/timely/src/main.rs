//! A workload as somebody would write it by hand on timely dataflow: a source that filters and
//! looks up keys, an exchange by key, a hash table for each window, given out when the frontier has
//! passed it. Rows are structures in memory, those of worker `i` of `n` every `n`-th. Speaks as
//! `../peer.py` says.
#![forbid(unsafe_code)]

mod join;

use std::error::Error;
use std::fs::File;
use std::io::BufRead;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use arrow_array::cast::AsArray;
use arrow_array::types::{Float64Type, Int64Type};
use arrow_cast::cast;
use arrow_schema::{DataType, TimeUnit};
use foldhash::fast::FixedState;
use hashbrown::HashMap;
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use timely::dataflow::channels::pact::Exchange;
use timely::dataflow::operators::Operator;
use timely::dataflow::operators::generic::operator::source;

/// Rows that the source gives out in one turn.
const ROWS_PER_TURN: usize = 64 << 10;

/// The allocator that Millstream has too: rows that travel whole are allocated one by one.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

#[derive(Clone, Copy)]
enum Aggregate {
    Count,
    Max,
    Mean,
}

/// As in `../peer.py`.
#[derive(Clone, Copy)]
struct Workload {
    key: &'static str,
    lookup: Option<Lookup>,
    aggregate: Aggregate,
    value: Option<&'static str>,
    time: Option<&'static str>,
    window: i64,
    filter: Option<(&'static str, &'static str)>,
}

/// A table that rows are joined with: its name, key, and the column of the group's key.
type Lookup = (&'static str, &'static str, &'static str);

/// A row as the program keeps it.
#[derive(Clone, Copy)]
struct Row {
    time: i64,
    key: u64,
    value: i64,
    keep: bool,
}

/// What is known of a key in a window. A mean's sum is a floating-point number in `sum`.
#[derive(Clone, Copy, Default)]
struct Group {
    count: u64,
    max: i64,
    sum: f64,
}

#[derive(Clone, Copy, Default)]
struct Sums {
    rows: u64,
    whole: u64,
    real: f64,
}

/// Rows of each thread, and the keys of groups by those of rows, if there is a table of them.
struct Input {
    rows: Vec<Vec<Row>>,
    beside: Option<HashMap<u64, u64, FixedState>>,
}

type Groups = HashMap<u64, Group, FixedState>;

fn workload(name: &str) -> Option<Workload> {
    let ysb = Workload {
        key: "ad_id",
        lookup: Some(("ads", "ad_id", "campaign_id")),
        aggregate: Aggregate::Count,
        value: None,
        time: Some("event_time"),
        window: 10_000,
        filter: Some(("event_type", "view")),
    };
    Some(match name {
        "ysb" => ysb,
        "ysb-keys" => Workload { key: "key", lookup: None, window: 600_000, ..ysb },
        "ro" => Workload { key: "key", lookup: None, time: None, window: 1, filter: None, ..ysb },
        "cm" => Workload {
            key: "job_id",
            lookup: None,
            aggregate: Aggregate::Mean,
            value: Some("cpu"),
            window: 2_000,
            filter: None,
            ..ysb
        },
        "nb7" => Workload {
            key: "auction",
            lookup: None,
            aggregate: Aggregate::Max,
            value: Some("price"),
            time: Some("date_time"),
            window: 60_000,
            filter: None,
        },
        _ => return None,
    })
}

fn main() -> Result<(), Box<dyn Error>> {
    let option = |name: &str| {
        let mut arguments = std::env::args().skip_while(|argument| argument != name);
        arguments.nth(1).ok_or_else(|| format!("{name} is missing"))
    };
    let name = option("--workload")?;
    let threads: usize = option("--threads")?.parse()?;
    let path = option("--rows")?;
    let version = option("--version")?;
    if let Some(workload) = join::workload(&name) {
        let rows = Arc::new(join::read(&workload, &path)?);
        let numbers = std::env::args().any(|argument| argument == "--numbers");
        return serve(&version, || join::run(workload, &rows, threads, numbers));
    }
    let workload = workload(&name).ok_or_else(|| format!("no workload {name}"))?;
    let rows = read(&workload, &path, threads)?;
    let beside = workload.lookup.map(|lookup| table(lookup, &path)).transpose()?;
    let input = Arc::new(Input { rows, beside });
    serve(&version, || run(workload, &input, threads))
}

/// Runs when told, and says what came out.
fn serve(version: &str, run: impl Fn() -> Result<Sums, String>) -> Result<(), Box<dyn Error>> {
    println!("{{\"version\":\"{version}\"}}");
    for line in std::io::stdin().lock().lines() {
        line?;
        let begin = Instant::now();
        let sums = run()?;
        let seconds = begin.elapsed().as_secs_f64();
        let Sums { rows, whole, real } = sums;
        println!("{{\"seconds\":{seconds},\"rows\":{rows},\"whole\":{whole},\"real\":{real:e}}}");
    }
    Ok(())
}

/// The rows of each thread.
fn read(workload: &Workload, path: &str, threads: usize) -> Result<Vec<Vec<Row>>, Box<dyn Error>> {
    let file = ParquetRecordBatchReaderBuilder::try_new(File::open(path)?)?;
    let filter = workload.filter.map(|(column, _)| column);
    let wanted = [Some(workload.key), workload.time, filter, workload.value];
    let mask = ProjectionMask::columns(file.parquet_schema(), wanted.iter().copied().flatten());
    let mut rows = vec![Vec::new(); threads];
    let mut next = 0;
    for batch in file.with_projection(mask).with_batch_size(64 << 10).build()? {
        let batch = batch?;
        let column = |name: Option<&str>, to: &DataType| {
            let column = name.and_then(|name| batch.column_by_name(name));
            column.map(|column| cast(column, to)).transpose()
        };
        let millis = DataType::Timestamp(TimeUnit::Millisecond, None);
        let times = column(workload.time, &millis)?;
        let times = times.map(|times| cast(&times, &DataType::Int64)).transpose()?;
        let keys = column(Some(workload.key), &DataType::Int64)?.ok_or("no key")?;
        let words = column(filter, &DataType::Utf8)?;
        let value_type = match workload.aggregate {
            Aggregate::Mean => DataType::Float64,
            _ => DataType::Int64,
        };
        let values = column(workload.value, &value_type)?;
        for row in 0..batch.num_rows() {
            let whole =
                |column: &arrow_array::ArrayRef| column.as_primitive::<Int64Type>().value(row);
            let value = match (&values, workload.aggregate) {
                (Some(values), Aggregate::Mean) => {
                    values.as_primitive::<Float64Type>().value(row).to_bits() as i64
                }
                (Some(values), _) => whole(values),
                (None, _) => 0,
            };
            let word = words.as_ref().map(|words| words.as_string::<i32>().value(row));
            rows[next % threads].push(Row {
                time: times.as_ref().map_or(0, whole),
                key: whole(&keys) as u64,
                value,
                keep: word == workload.filter.map(|(_, word)| word),
            });
            next += 1;
        }
    }
    Ok(rows)
}

/// The keys of groups by those of rows, of the table beside those in `path`.
fn table(
    (table, key, column): Lookup,
    path: &str,
) -> Result<HashMap<u64, u64, FixedState>, Box<dyn Error>> {
    let path = Path::new(path).with_extension(format!("{table}.parquet"));
    let mut keys = HashMap::default();
    for batch in ParquetRecordBatchReaderBuilder::try_new(File::open(path)?)?.build()? {
        let batch = batch?;
        let numbers = |name: &str| {
            let column = batch.column_by_name(name).ok_or_else(|| format!("no column {name}"))?;
            Ok::<_, String>(column.as_primitive::<Int64Type>().values())
        };
        let pairs = numbers(key)?.iter().zip(numbers(column)?);
        keys.extend(pairs.map(|(&key, &of)| (key as u64, of as u64)));
    }
    Ok(keys)
}

fn run(workload: Workload, input: &Arc<Input>, threads: usize) -> Result<Sums, String> {
    let input = Arc::clone(input);
    let total = Arc::new(Mutex::new(Sums::default()));
    let result = Arc::clone(&total);
    let config = timely::Config::process(threads);
    let guards = timely::execute(config, move |worker| {
        let (input, total) = (Arc::clone(&input), Arc::clone(&total));
        let own = worker.index();
        worker.dataflow::<u64, _, _>(move |scope| {
            let rows = source(scope, "rows", |capability, info| {
                let activator = scope.activator_for(info.address);
                let mut capability = Some(capability);
                let mut at = 0;
                move |output| {
                    let rows = &input.rows[own];
                    let Some(held) = capability.as_mut() else { return };
                    let turn = (at + ROWS_PER_TURN).min(rows.len());
                    while at < turn {
                        // Rows come in the order of event time.
                        let window = rows[at].time.div_euclid(workload.window);
                        let before = (window + 1) * workload.window;
                        let same = rows[at..turn].partition_point(|row| row.time < before);
                        held.downgrade(&(window as u64));
                        let mut session = output.session(&held);
                        let retained = rows[at..at + same].iter().filter(|row| row.keep);
                        match &input.beside {
                            None => retained.for_each(|row| session.give((row.key, row.value))),
                            Some(keys) => {
                                let checked = retained.filter_map(|row| {
                                    keys.get(&row.key).map(|&key| (key, row.value))
                                });
                                checked.for_each(|row| session.give(row));
                            }
                        }
                        at += same;
                    }
                    if at == rows.len() {
                        capability = None;
                    } else {
                        activator.activate();
                    }
                }
            })
            .container::<Vec<(u64, i64)>>();
            let by_key = Exchange::new(|row: &(u64, i64)| row.0);
            rows.unary_frontier(by_key, "groups", move |_, _| {
                    let mut windows = Vec::new();
                    move |(input, frontier), output| {
                        input.for_each_time(|time, batches| {
                            let at = windows.iter().position(|(held, _): &(_, Groups)| {
                                timely::dataflow::operators::Capability::time(held) == time.time()
                            });
                            let at = at.unwrap_or_else(|| {
                                windows
                                    .push((time.retain(output.output_index()), Groups::default()));
                                windows.len() - 1
                            });
                            for batch in batches {
                                fold(workload.aggregate, &mut windows[at].1, batch);
                            }
                        });
                        windows.retain(|(held, groups)| {
                            let open = frontier.less_equal(held.time());
                            if !open {
                                give_out(workload.aggregate, groups, &total);
                                output.session(held).give(groups.len());
                            }
                            open
                        });
                    }
                })
                .container::<Vec<usize>>();
        });
    })?;
    guards.join().into_iter().collect::<Result<Vec<()>, _>>()?;
    let sums = *result.lock().map_err(|error| error.to_string())?;
    Ok(sums)
}

fn fold(aggregate: Aggregate, groups: &mut Groups, rows: &[(u64, i64)]) {
    for &(key, value) in rows {
        let group = groups.entry(key).or_default();
        group.max = if group.count == 0 { value } else { group.max.max(value) };
        group.count += 1;
        if let Aggregate::Mean = aggregate {
            group.sum += f64::from_bits(value as u64);
        }
    }
}

fn give_out(aggregate: Aggregate, groups: &Groups, total: &Mutex<Sums>) {
    let mut sums = Sums { rows: groups.len() as u64, ..Sums::default() };
    for (&key, group) in groups {
        let weight = key.wrapping_add(1);
        match aggregate {
            Aggregate::Count => {
                sums.whole = sums.whole.wrapping_add(weight.wrapping_mul(group.count))
            }
            Aggregate::Max => {
                sums.whole = sums.whole.wrapping_add(weight.wrapping_mul(group.max as u64));
            }
            Aggregate::Mean => sums.real += weight as f64 * (group.sum / group.count as f64),
        }
    }
    let mut total = total.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    total.rows += sums.rows;
    total.whole = total.whole.wrapping_add(sums.whole);
    total.real += sums.real;
}
