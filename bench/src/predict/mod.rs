//! `millstream bench predict`: the planner's cost model ([`dataflow::cost`]) for clusters that are
//! not here, with cycles that were measured on this machine, and held to runs on it.
//!
//! A few runs of one and two processes give what the model's constants are here ([`calibrate`]).
//! With these it foretells runs of up to four processes that they were not taken from, and those
//! are then made: the ratio of what was foretold to what was measured stands beside
//! ([`Validated`]). Then come the clusters ([`cluster`]): nodes of this many workers, each on a
//! processor of its own, joined by links of this many gigabits.
//!
//! Its simplifications are in `docs/benchmarks.md`.

mod calibrate;
mod cluster;

use dataflow::cost::Costs;

use crate::paper::Runner;
use crate::report::{Bar, FigureReport, ReportSection, ReportTable};

use calibrate::processors;
pub use calibrate::{Calibrated, Validated, calibrate};
pub use cluster::{Foretold, PredictedCluster, foretell};

/// The factor by which the model may err.
const ERRS: f64 = 2.0;

/// The question.
#[derive(Debug, Clone, PartialEq)]
pub struct Question {
    /// Different keys of the workload: each number is foretold.
    pub keys: Vec<u64>,
    /// Links in gigabits a second: each is foretold.
    pub gigabits: Vec<f64>,
    /// One way over a link, in microseconds.
    pub latency_us: f64,
    /// Workers of a node, each on a processor of its own.
    pub workers: u32,
    /// Processes of the greatest run; 0 for no runs.
    pub nodes: u32,
    /// Rows of each worker in a run.
    pub rows: u64,
    /// Runs of each point.
    pub runs: u32,
    /// Constants that are given, by name; they take the place of those that were measured.
    pub overrides: Vec<(String, f64)>,
}

/// The model's constants, with those of a broadcast.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Constants {
    /// Cycles a second of a processor.
    pub hertz: f64,
    /// Of merge and shuffle.
    pub costs: Costs,
    /// Cycles for a record that arrives at a worker to which all records go.
    pub take: f64,
    /// Cycles of its source to send it to all.
    pub broadcast: f64,
    /// Bytes of a group in a delta.
    pub group_bytes: f64,
    /// Bytes of a record that travels.
    pub row_bytes: f64,
}

impl Default for Constants {
    fn default() -> Self {
        let (take, broadcast, group_bytes, row_bytes) = (60.0, 60.0, 4.0, 16.0);
        Self { hertz: 2.6e9, costs: Costs::default(), take, broadcast, group_bytes, row_bytes }
    }
}

impl Constants {
    /// The names of what may be given.
    pub const NAMES: [&str; 11] = [
        "ghz",
        "fold",
        "doubling",
        "open",
        "group",
        "route",
        "row",
        "row-byte",
        "take",
        "broadcast",
        "group-bytes",
    ];

    /// All of them, in the order of their names.
    pub fn values(&self) -> [f64; 11] {
        let Costs { fold, doubling, open, group, route, row, row_byte, .. } = self.costs;
        let Self { hertz, take, broadcast, group_bytes, .. } = *self;
        let ghz = hertz * 1e-9;
        [ghz, fold, doubling, open, group, route, row, row_byte, take, broadcast, group_bytes]
    }

    /// With one that is given; as it was if there is no such name.
    pub fn with(mut self, name: &str, value: f64) -> Self {
        let costs = &mut self.costs;
        match name {
            "ghz" => self.hertz = value * 1e9,
            "fold" => costs.fold = value,
            "doubling" => costs.doubling = value,
            "open" => costs.open = value,
            "group" => costs.group = value,
            "route" => costs.route = value,
            "row" => costs.row = value,
            "row-byte" => costs.row_byte = value,
            "take" => self.take = value,
            "broadcast" => self.broadcast = value,
            "group-bytes" => self.group_bytes = value,
            _ => {}
        }
        self
    }
}

/// Measures, holds the model to runs, and foretells.
pub fn predict(bench: &mut dyn Runner, asked: &Question) -> FigureReport {
    let (mut constants, mut sections) = (Constants::default(), vec![]);
    let mut about = vec![
        "ysb-keys: records of 16 bytes, whose key of 8 bytes is uniform, counted by key and \
         window; for broadcast, requests of 'bench multicast' that go to every worker."
            .into(),
    ];
    if asked.nodes > 0 {
        let calibrated = calibrate(bench, asked);
        constants = calibrated.constants;
        about.extend(calibrated.failed);
        sections.push(validated(&calibrated.validated));
    }
    constants = asked.overrides.iter().fold(constants, |all, (name, value)| all.with(name, *value));
    sections.insert(0, with(&constants));
    sections.push(clusters(asked, &constants));
    FigureReport { title: "What clusters would do".into(), about, sections }
}

fn section(title: &str, text: &str, tables: Vec<ReportTable>) -> ReportSection {
    ReportSection {
        title: title.into(),
        text: vec![text.into()],
        tables,
        ..ReportSection::default()
    }
}

fn table(title: &str, columns: &[&str], rows: Vec<Vec<String>>) -> ReportTable {
    let columns = columns.iter().map(|column| column.to_string()).collect();
    ReportTable { title: title.into(), columns, rows }
}

fn with(constants: &Constants) -> ReportSection {
    let rows = Constants::NAMES.iter().zip(constants.values());
    let rows = rows.map(|(name, value)| vec![name.to_string(), format!("{value:.2}")]).collect();
    let text = "Cycles of a processor for what is done, as bench predict measured them or was \
                given them with --cycles; the gigahertz are those of the time stamp counter.";
    section("Constants", text, vec![table("Of the model", &["name", "value"], rows)])
}

fn validated(all: &[Validated]) -> ReportSection {
    let row = |one: &Validated| {
        vec![
            one.exchange.into(),
            one.keys.map_or("–".into(), |keys| keys.to_string()),
            one.processes.to_string(),
            if one.taken_from { "taken from" } else { "predicted" }.into(),
            format!("{:.2}", one.predicted * 1e-6),
            format!("{:.2}", one.measured * 1e-6),
            format!("{:.2}", one.predicted / one.measured),
            one.cycles.map_or("–".into(), |[predicted, _]| format!("{predicted:.1}")),
            one.cycles.map_or("–".into(), |[_, measured]| format!("{measured:.1}")),
            one.cycles.map_or("–".into(), |[of, measured]| format!("{:.2}", of / measured)),
            one.bytes.map_or("–".into(), |[predicted, _]| format!("{predicted:.3}")),
            one.bytes.map_or("–".into(), |[_, measured]| format!("{measured:.3}")),
        ]
    };
    let columns = [
        "exchange",
        "keys",
        "processes",
        "constants",
        "predicted M/s",
        "measured",
        "ratio",
        "predicted cycles",
        "measured",
        "ratio",
        "predicted B/record",
        "measured",
    ];
    let text = "Runs on this machine. Processes that are more than its processors share them. From \
                the runs marked so the constants were taken; the others are predicted with them. \
                Records a second are those of processors that have nothing else to do; cycles are \
                of all processes for a record, and counted on the processor: on a machine that \
                does other work, they are what to compare.";
    let rows = all.iter().map(row).collect();
    let tables = vec![table("Runs", &columns, rows)];
    ReportSection {
        bars: vec![held(all, false), held(all, true)],
        ..section("Predicted and measured", text, tables)
    }
}

/// Whether the model errs by less than a factor in the runs that it has foretold: by their cycles,
/// which other work on the machine does not change. Processes that share a processor lose their
/// caches to each other, which it does not know: they are for themselves.
fn held(all: &[Validated], share: bool) -> Bar {
    let shares = |one: &Validated| processors(one.processes) < f64::from(one.processes);
    let foretold = all.iter().filter(|one| !one.taken_from && shares(one) == share);
    let ratios = foretold.filter_map(|one| one.cycles.map(|[of, measured]| of / measured));
    let range = ratios
        .map(|ratio| (ratio, ratio))
        .reduce(|(least, most), (ratio, _)| (least.min(ratio), most.max(ratio)));
    let whose = if share { "more processes than processors" } else { "a processor each" };
    Bar {
        what: format!("cycles predicted to measured, {whose}"),
        needed: format!("{:.2} to {ERRS:.2} times", 1.0 / ERRS),
        got: range.map_or("–".into(), |(least, most)| format!("{least:.2} to {most:.2} times")),
        met: range.map(|(least, most)| least >= 1.0 / ERRS && most <= ERRS),
    }
}

fn clusters(asked: &Question, constants: &Constants) -> ReportSection {
    let mut tables = vec![];
    for &keys in &asked.keys {
        for &gigabits in &asked.gigabits {
            let rows = [2, 4, 8, 16, 32, 64, 128, 256].map(|nodes| {
                let workers = asked.workers;
                let cluster =
                    PredictedCluster { nodes, workers, gigabits, latency_us: asked.latency_us };
                let [merge, shuffle, broadcast] = foretell(&cluster, keys, constants);
                let cell = |foretold: &Foretold| format!("{:.1}", foretold.rate * 1e-6);
                vec![
                    nodes.to_string(),
                    cell(&merge),
                    merge.limit.into(),
                    format!("{:.1}", merge.close_s * 1e3),
                    cell(&shuffle),
                    shuffle.limit.into(),
                    cell(&broadcast),
                    broadcast.limit.into(),
                    cluster.choice(keys, constants).to_string(),
                ]
            });
            let title = format!(
                "{keys} keys, {gigabits} Gb/s, {} workers a node: M records/s",
                asked.workers
            );
            let columns =
                ["nodes", "merge", "by", "end, ms", "shuffle", "by", "broadcast", "by", "planner"];
            tables.push(table(&title, &columns, rows.into()));
        }
    }
    let text = "All nodes together. 'by' says what holds it: the processors, the link, or the \
                slots of the rings and the time of a way. 'end' is what the last delta of a \
                window takes from the end of its rows until it is merged.";
    section("Clusters, predicted", text, tables)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_predicted_is_held_to_runs_of_each_kind_and_may_miss_them() {
        let run = |processes, taken_from, cycles| Validated {
            exchange: "merge",
            keys: None,
            processes,
            taken_from,
            predicted: 1.0,
            measured: 1.0,
            cycles,
            bytes: None,
        };
        // One process has a processor anywhere, and so many share what there are.
        let both = |taken_from, cycles| [1, u32::MAX].map(|of| run(of, taken_from, cycles));
        let met = |runs: &[Validated]| [false, true].map(|share| held(runs, share).met);
        for cycles in [[20.0, 10.0], [10.0, 20.0], [10.0, 10.0]] {
            assert_eq!(met(&both(false, Some(cycles))), [Some(true); 2], "{cycles:?}");
        }
        for cycles in [[21.0, 10.0], [10.0, 21.0], [10.0, 0.0]] {
            assert_eq!(met(&both(false, Some(cycles))), [Some(false); 2], "{cycles:?}");
        }
        let [alone, sharing] = both(false, Some([9.0, 1.0]));
        assert_eq!(met(&[alone]), [Some(false), None], "each kind is for itself");
        assert_eq!(met(&[alone, run(1, false, Some([1.0, 1.0])), sharing]), [Some(false); 2]);
        // Runs from which constants were taken, and those that came to nothing, show nothing.
        assert_eq!(met(&both(true, Some([1.0, 1.0]))), [None; 2]);
        assert_eq!([met(&both(false, None)), met(&[])], [[None; 2]; 2]);
    }
}
