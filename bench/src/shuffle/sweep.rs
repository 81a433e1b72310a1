//! Which figures the report of the two shuffles has.

use std::time::Duration;

use crate::report::{Axis, Bar, Origin, Plot, Section, Series, Table};

use super::{Carrier, Gather, Outcome, ShuffleError, Size, run};

/// Bytes at which chunks leave, to be compared (Q5).
const THRESHOLDS: [usize; 4] = [1 << 10, 4 << 10, 16 << 10, (64 << 10) - 64];
/// The paper's, at which carriers are compared.
const USUAL: usize = 16 << 10;

/// What is measured.
pub struct Sweep {
    /// What is compared, with names; the last one is the baseline.
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
    pub fn run(&self, gather: &Gather<'_>) -> Result<Section, ShuffleError> {
        let mut table = Table {
            title: "Medians, by the threshold at which a chunk leaves".into(),
            columns: ["bytes", "by", "ms", "M integers/s", "CPU s", "chunks", "sleeps"]
                .map(String::from)
                .to_vec(),
            rows: Vec::new(),
        };
        let mut lines: Vec<Series> = self.carriers.iter().map(|(name, _)| line(name)).collect();
        let mut usual = Vec::new();
        let Self { rank, nodes, rows, .. } = *self;
        let right = Size { rank, nodes, rows, threshold_bytes: USUAL }.right();
        for threshold_bytes in THRESHOLDS {
            let size = Size { rank, nodes, rows, threshold_bytes };
            let mut runs = vec![Vec::new(); self.carriers.len()];
            for _ in 0..self.runs {
                for ((_, carrier), runs) in self.carriers.iter().zip(&mut runs) {
                    runs.push(run(carrier, &size, right, gather)?);
                }
            }
            for (((name, _), runs), line) in self.carriers.iter().zip(&mut runs).zip(&mut lines) {
                let (elapsed, total) = median(runs);
                let ms = elapsed.as_secs_f64() * 1e3;
                line.points.push((threshold_bytes as f64, ms));
                if threshold_bytes == USUAL {
                    usual.push(ms);
                }
                table.rows.push(vec![
                    threshold_bytes.to_string(),
                    name.clone(),
                    format!("{ms:.1}"),
                    // Both shuffles: five of each two.
                    format!("{:.1}", (rows * nodes as u64) as f64 * 2.5 / ms / 1e3),
                    format!("{:.2}", total.cpu_s),
                    total.chunks.to_string(),
                    total.sleeps.to_string(),
                ]);
            }
        }
        let plot = Plot {
            title: format!("{} processes", self.nodes),
            x: Axis::log("bytes of a chunk"),
            y: Axis::linear("ms"),
            series: lines,
        };
        Ok(Section {
            title: format!("{} processes, {} integers each", self.nodes, self.rows),
            bars: self.bar(&usual).into_iter().collect(),
            plots: vec![plot],
            tables: vec![table],
            ..Section::default()
        })
    }

    /// The first carrier against the last.
    fn bar(&self, ms: &[f64]) -> Option<Bar> {
        let (first, last) = (self.carriers.first()?, self.carriers.last()?);
        let faster = ms.last()? / ms.first()?;
        Some(Bar {
            what: format!("{} against {}, chunks of 16 KiB", first.0, last.0),
            needed: "≥ 4 times as fast".into(),
            got: format!("{faster:.2} times"),
            met: Some(faster >= 4.0),
        })
    }
}

fn line(name: &str) -> Series {
    Series { name: name.into(), origin: Origin::Measured, points: Vec::new() }
}

fn median(runs: &mut [(Duration, Outcome)]) -> (Duration, Outcome) {
    runs.sort_by_key(|run| run.0);
    runs.get(runs.len() / 2).copied().unwrap_or_default()
}
