//! Constants of the model from runs on this machine, and the model held to other runs.

use dataflow::cost::{Costs, Price};
use dataflow::job::Exchange;
use serde_json::Value;

use super::cluster::grouped;
use super::{Constants, Question};
use crate::paper::Runner;

/// Keys of a state that is in a cache.
const FEW: u64 = 10_000;
/// How many times the rows runs of few keys have: a record takes so little then that a run would be
/// of milliseconds, in which processes start and end, of which the model says nothing.
const FEW_TIMES: u64 = 4;

/// Rows of each process in a run with this many keys.
fn rows_of(keys: u64, rows: u64) -> u64 {
    if keys == FEW { rows * FEW_TIMES } else { rows }
}

/// Constants, and what they are worth.
#[derive(Debug, Clone, PartialEq)]
pub struct Calibrated {
    /// The constants; those that could not be measured are the model's own.
    pub constants: Constants,
    /// Runs with what the model says of them.
    pub validated: Vec<Validated>,
    /// The run that failed.
    pub failed: Vec<String>,
}

/// A run, and what the model says of it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Validated {
    /// How rows met.
    pub exchange: &'static str,
    /// Different keys.
    pub keys: Option<u64>,
    /// Processes of one worker.
    pub processes: u32,
    /// Whether constants were taken from this run.
    pub taken_from: bool,
    /// Records a second that the model says.
    pub predicted: f64,
    /// Records a second that were measured.
    pub measured: f64,
    /// Cycles of all processes for each record, on the processor: what the model says, and what was
    /// counted.
    pub cycles: Option<[f64; 2]>,
    /// Bytes sent for each record: what the model says, and what was counted.
    pub bytes: Option<[f64; 2]>,
}

/// The measurements of a run.
#[derive(Debug, Clone, Copy)]
struct Point {
    exchange: Exchange,
    keys: u64,
    processes: u32,
    rate: f64,
    /// Of all processes for a record, on the processor.
    cycles: f64,
    hertz: f64,
    /// Sent for a record.
    bytes: f64,
}

/// Makes the runs.
pub fn calibrate(bench: &mut dyn Runner, asked: &Question) -> Calibrated {
    let (mut failed, mut points, mut broadcasts) = (vec![], vec![], vec![]);
    for keys in [FEW, asked.rows / 16, asked.rows] {
        for processes in 1..=asked.nodes {
            match grouping(bench, asked, keys, processes) {
                Ok(measured) => points.extend(measured),
                Err(error) => failed.push(error),
            }
        }
    }
    for processes in 1..=asked.nodes {
        match broadcast(bench, processes) {
            Ok(rate) => broadcasts.push((processes, rate)),
            Err(error) => failed.push(error),
        }
    }
    let constants = constants(&points, &broadcasts, asked.rows);
    let groupings = points.iter().map(|point| of_grouping(point, &constants, asked.rows));
    let broadcasts = broadcasts.iter().map(|&(processes, measured)| Validated {
        exchange: "broadcast",
        keys: None,
        processes,
        taken_from: processes <= 2,
        predicted: cast_rate(processes, &constants),
        measured,
        cycles: None,
        bytes: None,
    });
    Calibrated { constants, validated: groupings.chain(broadcasts).collect(), failed }
}

/// Processors that this many processes have.
pub(super) fn processors(processes: u32) -> f64 {
    let all = std::thread::available_parallelism().map_or(1, |all| all.get() as u32);
    f64::from(processes.min(all))
}

fn run(bench: &mut dyn Runner, text: &str) -> Result<Vec<Value>, String> {
    let arguments: Vec<String> = text.split_whitespace().map(str::to_owned).collect();
    bench.run(&arguments).map_err(|error| format!("not measured: bench {text}: {error}"))
}

/// A run by merge and by shuffle.
fn grouping(
    bench: &mut dyn Runner,
    asked: &Question,
    keys: u64,
    processes: u32,
) -> Result<Vec<Point>, String> {
    let Question { runs, .. } = asked;
    let rows = rows_of(keys, asked.rows);
    let text = format!(
        "ysb --keys {keys} --nodes {processes} --exchange merge,shuffle --rows {rows} \
         --runs {runs} --json"
    );
    let values = run(bench, &text)?;
    let point = |exchange: Exchange| {
        let name = exchange.to_string();
        let value = values.iter().find(|value| value["variant"] == *name)?;
        let median = |field: &str| value[field]["median"].as_f64();
        let (rate, elapsed) = (median("rows_per_s")?, median("cycles_per_row")?);
        let cycles = median("busy_cycles_per_row").filter(|&busy| busy > 0.0).unwrap_or(elapsed);
        let hertz = elapsed * rate / f64::from(processes);
        let bytes = value["bytes_sent"].as_f64()? / value["rows"].as_f64()?;
        Some(Point { exchange, keys, processes, rate, cycles, hertz, bytes })
    };
    let exchanges: &[_] = match processes {
        1 => &[Exchange::Merge],
        _ => &[Exchange::Merge, Exchange::Shuffle],
    };
    let points: Option<Vec<_>> = exchanges.iter().map(|&exchange| point(exchange)).collect();
    points.ok_or_else(|| format!("not measured: bench {text}: no cycles were counted"))
}

/// Requests a second that reach every process.
fn broadcast(bench: &mut dyn Runner, processes: u32) -> Result<f64, String> {
    let text = format!(
        "multicast --nodes {processes} --instances 1 --seconds 0.2 --rate-seconds 0.05 --changes 1 \
         --json"
    );
    let values = run(bench, &text)?;
    let sections = values.iter().flat_map(|report| report["sections"].as_array()).flatten();
    let mut tables = sections.flat_map(|section| section["tables"].as_array()).flatten();
    let rate = tables.find_map(|table| {
        let at = |name: &str| table["columns"].as_array()?.iter().position(|one| one == name);
        let (way, rate) = (at("way")?, at("requests/s")?);
        let rows = table["rows"].as_array()?;
        let row = rows.iter().find(|row| row[way] == "sequential")?;
        with_unit(row[rate].as_str()?)
    });
    rate.ok_or_else(|| format!("not measured: bench {text}: it has no requests a second"))
}

/// `3.5 M` as a number.
fn with_unit(text: &str) -> Option<f64> {
    let (number, unit) = text.split_once(' ').unwrap_or((text, ""));
    let factor = match unit {
        "" => 1.0,
        "k" => 1e3,
        "M" => 1e6,
        "G" => 1e9,
        _ => return None,
    };
    Some(number.parse::<f64>().ok()? * factor)
}

/// The model's prediction for a grouping.
fn price(point: &Point, constants: &Constants, rows: u64) -> Price {
    let rows = rows_of(point.keys, rows);
    let mut of = grouped((point.processes, 1), point.keys, constants);
    of.epoch_rows = of.epoch_rows.min(rows as f64);
    of.window_rows = rows as f64;
    of.price(point.exchange, &constants.costs)
}

fn of_grouping(point: &Point, constants: &Constants, rows: u64) -> Validated {
    let Point { exchange, keys, processes, .. } = *point;
    let price = price(point, constants, rows);
    Validated {
        exchange: if exchange == Exchange::Merge { "merge" } else { "shuffle" },
        keys: Some(keys),
        processes,
        taken_from: takes_from(point, rows),
        predicted: processors(processes) * constants.hertz / price.cycles,
        measured: point.rate,
        cycles: Some([price.cycles, point.cycles]),
        bytes: Some([price.bytes, point.bytes]),
    }
}

/// Whether constants are taken from a run.
fn takes_from(point: &Point, rows: u64) -> bool {
    match (point.processes, point.exchange) {
        (1, _) => true,
        (2, Exchange::Shuffle) => point.keys == FEW,
        (2, _) => point.keys == rows,
        _ => false,
    }
}

/// Where a constant is.
type Constant = fn(&mut Costs) -> &mut f64;

/// The constants that make the model right for the runs from which they are taken.
fn constants(points: &[Point], broadcasts: &[(u32, f64)], rows: u64) -> Constants {
    let mut all = Constants::default();
    let taken = |processes: u32, exchange: Exchange, keys: u64| {
        let is = |point: &&Point| {
            (point.processes, point.exchange, point.keys) == (processes, exchange, keys)
        };
        points.iter().find(is).filter(|point| takes_from(point, rows))
    };
    if let Some(few) = taken(1, Exchange::Merge, FEW) {
        all.hertz = few.hertz;
    }
    // Each of these says most of one constant, and a little of the others: the third time round
    // there is nothing left to learn.
    for _ in 0..3 {
        let cycles_of: [(u64, Constant); 3] = [
            (FEW, |costs| &mut costs.fold),
            (rows / 16, |costs| &mut costs.doubling),
            (rows, |costs| &mut costs.open),
        ];
        for (keys, constant) in cycles_of {
            let Some(point) = taken(1, Exchange::Merge, keys) else { continue };
            let with = |value: f64| {
                let mut costs = all.costs;
                *constant(&mut costs) = value;
                price(point, &Constants { costs, ..all }, rows).cycles
            };
            let (none, each) = (with(0.0), with(1.0) - with(0.0));
            *constant(&mut all.costs) = ((point.cycles - none) / each.max(1e-9)).max(0.0);
        }
    }
    if let Some(few) = taken(2, Exchange::Shuffle, FEW) {
        all.row_bytes = few.bytes * 2.0;
        let modelled = price(few, &all, rows).cycles;
        let free = Costs { route: 0.0, row: 0.0, row_byte: 0.0, ..all.costs };
        let alone = price(few, &Constants { costs: free, ..all }, rows).cycles;
        let factor = ((few.cycles - alone) / (modelled - alone)).max(0.0);
        let Costs { route, row, row_byte, .. } = &mut all.costs;
        for cycles in [route, row, row_byte] {
            *cycles *= factor;
        }
    }
    if let Some(many) = taken(2, Exchange::Merge, rows) {
        let bytes = price(many, &Constants { group_bytes: 1.0, ..all }, rows).bytes;
        all.group_bytes = many.bytes / bytes;
        let free = Costs { group: 0.0, ..all.costs };
        let alone = price(many, &Constants { costs: free, ..all }, rows).cycles;
        // As many groups travel as bytes do where each has one.
        all.costs.group = ((many.cycles - alone) / bytes).max(0.0);
    }
    let rate = |of: u32| {
        broadcasts.iter().find(|(processes, _)| *processes == of).map(|broadcast| broadcast.1)
    };
    if let Some(one) = rate(1) {
        all.take = all.hertz / one;
    }
    if let Some(two) = rate(2) {
        // The source takes its own records too, beside the other where there is a second processor.
        let takers = 3.0 - processors(2);
        all.broadcast = (all.hertz / two - takers * all.take).max(0.0);
    }
    all
}

/// Records a second that one source sends to this many processes.
fn cast_rate(processes: u32, constants: &Constants) -> f64 {
    let Constants { hertz, take, broadcast, .. } = constants;
    let (own, all) = match processes {
        1 => (*take, *take),
        _ => (take + broadcast, f64::from(processes) * take + broadcast),
    };
    (hertz / own).min(processors(processes) * hertz / all)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// A machine that is as the model says, with other constants.
    struct Modelled(Constants);

    const ROWS: u64 = 4 << 20;

    impl Runner for Modelled {
        fn run(&mut self, arguments: &[String]) -> Result<Vec<Value>, String> {
            let after = |name: &str| {
                let at = arguments.iter().position(|argument| argument == name);
                at.and_then(|at| arguments[at + 1].parse::<u64>().ok())
            };
            let processes = after("--nodes").ok_or("no nodes")? as u32;
            if arguments[0] == "multicast" {
                let rate = cast_rate(processes, &self.0) * 1e-6;
                let table = json!({
                    "columns": ["way", "requests/s"],
                    "rows": [["sequential", format!("{rate} M")]],
                });
                return Ok(vec![json!({ "sections": [{ "tables": [table] }] })]);
            }
            let keys = after("--keys").ok_or("no keys")?;
            let value = |exchange: Exchange| {
                let (rate, cycles, hertz, bytes) = (0.0, 0.0, 0.0, 0.0);
                let point = Point { exchange, keys, processes, rate, cycles, hertz, bytes };
                let Price { cycles, bytes } = price(&point, &self.0, ROWS);
                let rate = processors(processes) * self.0.hertz / cycles;
                let rows = rows_of(keys, ROWS) * u64::from(processes);
                json!({
                    "variant": exchange.to_string(),
                    "rows": rows,
                    "rows_per_s": { "median": rate },
                    "cycles_per_row":
                        { "median": self.0.hertz * f64::from(processes) / rate },
                    "busy_cycles_per_row": { "median": cycles },
                    "bytes_sent": bytes * rows as f64,
                })
            };
            Ok(vec![value(Exchange::Merge), value(Exchange::Shuffle)])
        }
    }

    #[test]
    fn on_a_machine_that_is_as_the_model_says_all_is_foretold() {
        let mut truth = Constants::default();
        for (name, value) in
            Constants::NAMES.iter().zip([3.1, 5.0, 4.0, 25.0, 77.0, 20.0, 60.0, 2.0])
        {
            truth = truth.with(name, value);
        }
        let truth =
            Constants { take: 30.0, broadcast: 90.0, group_bytes: 3.0, row_bytes: 15.0, ..truth };
        let asked = Question {
            keys: vec![],
            gigabits: vec![],
            latency_us: 1.0,
            workers: 1,
            nodes: 4,
            rows: ROWS,
            runs: 1,
            overrides: vec![],
        };
        let calibrated = calibrate(&mut Modelled(truth), &asked);
        assert_eq!(calibrated.failed, Vec::<String>::new());
        // Three sizes by one process, and by three more with two exchanges; four broadcasts.
        assert_eq!(calibrated.validated.len(), 3 * (1 + 2 * 3) + 4);
        for one in &calibrated.validated {
            let ratio = one.predicted / one.measured;
            assert!((ratio - 1.0).abs() < 0.02, "{one:?}: {ratio}");
            if let Some([predicted, measured]) = one.bytes {
                assert!((predicted - measured).abs() <= 0.02 * measured, "{one:?}");
            }
        }
        let (found, truth) = (calibrated.constants.values(), truth.values());
        assert!(found.iter().zip(truth).all(|(a, b)| (a / b - 1.0).abs() < 0.1), "{found:?}");
    }

    #[test]
    fn a_run_that_fails_is_named_and_the_rest_goes_on() {
        struct Broken;
        impl Runner for Broken {
            fn run(&mut self, _: &[String]) -> Result<Vec<Value>, String> {
                Err("no memory".into())
            }
        }
        let asked = Question {
            keys: vec![10],
            gigabits: vec![100.0],
            latency_us: 1.0,
            workers: 1,
            nodes: 1,
            rows: ROWS,
            runs: 1,
            overrides: vec![("ghz".into(), 5.0)],
        };
        let report = super::super::predict(&mut Broken, &asked);
        assert!(report.about.iter().any(|line| line.contains("no memory")), "{:?}", report.about);
        let tables: Vec<usize> =
            report.sections.iter().flat_map(|s| &s.tables).map(|t| t.rows.len()).collect();
        assert_eq!(tables, [Constants::NAMES.len(), 0, 8]);
    }
}
