//! Which figures the report of the two shuffles has.

use std::time::Duration;

use crate::report::{Axis, Bar, FigureOrigin, Plot, ReportSection, ReportTable, Series};

use super::{Carrier, Gather, ShuffleCounts, ShuffleError, ShufflePlan, run};

/// Bytes at which chunks leave, to be compared (Q5).
const THRESHOLDS: [usize; 4] = [1 << 10, 4 << 10, 16 << 10, (64 << 10) - 64];
/// The paper's, at which carriers are compared.
const USUAL: usize = 16 << 10;
/// An integer leaves at once: the paper's sockets.
const AT_ONCE: usize = 8;

/// The workload.
pub struct Sweep {
    /// The transports to compare, with names: first of all sockets by which integers leave at once.
    pub carriers: Vec<(String, Carrier)>,
    /// This process.
    pub rank: usize,
    /// All processes.
    pub nodes: usize,
    /// Integers of each.
    pub rows: u64,
    /// How often each thing is measured.
    pub runs: usize,
}

impl Sweep {
    /// Runs everything in turns with all processes; each gets the section.
    ///
    /// # Errors
    /// When a process or a connection fails, and for a wrong result.
    pub fn run(&self, gather: &Gather<'_>) -> Result<ReportSection, ShuffleError> {
        let mut table = ReportTable {
            title: "Medians, by the threshold at which a chunk leaves".into(),
            columns: ["bytes", "by", "ms", "M integers/s", "CPU s", "chunks", "sleeps"]
                .map(String::from)
                .to_vec(),
            rows: Vec::new(),
        };
        let mut lines: Vec<Series> = self.carriers.iter().map(|(name, _)| line(name)).collect();
        let mut usual = Vec::new();
        let Self { rank, nodes, rows, .. } = *self;
        let size = |threshold_bytes| ShufflePlan { rank, nodes, rows, threshold_bytes };
        let right = size(USUAL).right();
        let baseline = ("sockets, each integer at once".to_owned(), Carrier::Sockets);
        for threshold_bytes in THRESHOLDS {
            let carriers = self.carriers.iter().map(|carrier| (carrier, threshold_bytes));
            let at_once = (threshold_bytes == USUAL).then_some((&baseline, AT_ONCE));
            let measured: Vec<_> = carriers.chain(at_once).collect();
            let mut runs = vec![Vec::new(); measured.len()];
            for _ in 0..self.runs {
                for (((_, carrier), threshold), runs) in measured.iter().zip(&mut runs) {
                    runs.push(run(carrier, &size(*threshold), right, gather)?);
                }
            }
            for (at, (((name, _), threshold), runs)) in measured.iter().zip(&mut runs).enumerate() {
                let (elapsed, total) = median(runs);
                let ms = elapsed.as_secs_f64() * 1e3;
                if let Some(line) = lines.get_mut(at) {
                    line.points.push((*threshold as f64, ms));
                }
                if threshold_bytes == USUAL {
                    usual.push((name.clone(), ms));
                }
                table.rows.push(row(*threshold, name, ms, &total));
            }
        }
        let plot = Plot {
            title: format!("{} processes", self.nodes),
            x: Axis::log("bytes of a chunk"),
            y: Axis::linear("ms"),
            series: lines,
        };
        Ok(ReportSection {
            title: format!("{} processes, {} integers each", self.nodes, self.rows),
            text: compared(&usual).into_iter().collect(),
            bars: bar(&usual).into_iter().collect(),
            plots: vec![plot],
            tables: vec![table],
        })
    }
}

/// The first carrier against the last, the paper's, by their milliseconds.
fn bar(ms: &[(String, f64)]) -> Option<Bar> {
    let ((first, own), (last, theirs)) = (ms.first()?, ms.last()?);
    let faster = theirs / own;
    Some(Bar {
        what: format!("{first}, chunks of 16 KiB, against {last}"),
        needed: "≥ 4 times as fast".into(),
        got: format!("{faster:.2} times"),
        met: Some(faster >= 4.0),
    })
}

/// The first carrier against the others of the same chunks.
fn compared(ms: &[(String, f64)]) -> Option<String> {
    let ((first, own), others) = ms.split_first()?;
    let (_, others) = others.split_last()?;
    let others =
        others.iter().map(|(name, other)| format!("{:.2} times as fast as {name}", other / own));
    let others: Vec<String> = others.collect();
    Some(format!("With chunks of 16 KiB for all, {first} are {}.", others.join(", ")))
}

fn row(threshold_bytes: usize, name: &str, ms: f64, total: &ShuffleCounts) -> Vec<String> {
    vec![
        threshold_bytes.to_string(),
        name.to_owned(),
        format!("{ms:.1}"),
        // Both shuffles.
        format!("{:.1}", total.integers as f64 * 2.0 / ms / 1e3),
        format!("{:.2}", total.cpu_s),
        total.chunks.to_string(),
        total.sleeps.to_string(),
    ]
}

fn line(name: &str) -> Series {
    Series { name: name.into(), origin: FigureOrigin::Measured, points: Vec::new() }
}

fn median(runs: &mut [(Duration, ShuffleCounts)]) -> (Duration, ShuffleCounts) {
    runs.sort_by_key(|run| run.0);
    runs.get(runs.len() / 2).copied().unwrap_or_default()
}
