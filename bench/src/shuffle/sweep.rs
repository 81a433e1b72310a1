//! Which figures the report of the two shuffles has.

use std::time::Duration;

use fabric::Publish;

use crate::report::{Axis, Bar, FigureOrigin, Plot, ReportSection, ReportTable, Series};

use super::{Carrier, Gather, ShuffleCounts, ShuffleError, ShufflePlan, run};

/// Bytes at which chunks leave, to be compared (Q5).
const THRESHOLDS: [usize; 4] = [1 << 10, 4 << 10, 16 << 10, (64 << 10) - 64];
/// The paper's, at which carriers are compared.
const USUAL: usize = 16 << 10;
/// An integer leaves at once: the paper's sockets.
const AT_ONCE: usize = 8;
/// Words of the wider rows, 64 and 256 bytes.
const WIDE_WORDS: [usize; 2] = [8, 32];
/// How many times as fast rings over shared memory must carry these as sockets with the same
/// chunks.
const WIDE_ASKED: f64 = 1.5;
/// The processes from which on that is asked.
const WIDE_NODES: usize = 4;

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
        let size =
            |threshold_bytes| ShufflePlan { rank, nodes, rows, row_words: 1, threshold_bytes };
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
        let (wide, bars) = self.wide(gather)?;
        Ok(ReportSection {
            title: format!("{} processes, {} integers each", self.nodes, self.rows),
            text: compared(&usual).into_iter().collect(),
            bars: bar(&usual).into_iter().chain(bars).collect(),
            plots: vec![plot],
            tables: vec![table, wide],
        })
    }

    /// Rows of more words, as many bytes in all, in chunks of 16 KiB over each carrier in turns;
    /// the paper's sockets, to which each row is written at once, stand beside them.
    fn wide(&self, gather: &Gather<'_>) -> Result<(ReportTable, Vec<Bar>), ShuffleError> {
        let columns =
            ["bytes of a row", "by", "ms", "M rows/s", "CPU s", "sockets' ms ÷ it", "CPU s ÷ it"];
        let mut table = ReportTable {
            title: "Rows that are longer, chunks of 16 KiB".into(),
            columns: columns.map(String::from).to_vec(),
            rows: vec![],
        };
        let mut bars = vec![];
        for row_words in WIDE_WORDS {
            let rows = (self.rows / row_words as u64).max(1);
            let of = |threshold_bytes| {
                let Self { rank, nodes, .. } = *self;
                ShufflePlan { rank, nodes, rows, row_words, threshold_bytes }
            };
            let at_once = ("sockets, each row at once".to_owned(), Carrier::Sockets);
            let carriers = self.carriers.iter().map(|carrier| (carrier, of(USUAL)));
            let carriers: Vec<_> = carriers.chain([(&at_once, of(AT_ONCE))]).collect();
            let mut runs = vec![vec![]; carriers.len()];
            let right = of(USUAL).right();
            for _ in 0..self.runs {
                for (((_, carrier), size), runs) in carriers.iter().zip(&mut runs) {
                    runs.push(run(carrier, size, right, gather)?);
                }
            }
            let medians: Vec<_> = runs.iter_mut().map(|runs| median(runs)).collect();
            let sockets = self.carriers.iter().position(|of| matches!(of.1, Carrier::Sockets));
            let sockets = sockets.map(|at| (medians[at].0.as_secs_f64(), medians[at].1.cpu_s));
            for (((name, _), _), (elapsed, total)) in carriers.iter().zip(&medians) {
                let seconds = elapsed.as_secs_f64();
                let times = |of: f64, own: f64| format!("{:.2}", of / own.max(1e-9));
                let against = sockets.map_or(["–".into(), "–".into()], |(theirs, cpu_s)| {
                    [times(theirs, seconds), times(cpu_s, total.cpu_s)]
                });
                let cells = [
                    (row_words * 8).to_string(),
                    name.clone(),
                    format!("{:.1}", seconds * 1e3),
                    // Both shuffles.
                    format!("{:.2}", total.rows as f64 * 2.0 / seconds.max(1e-9) / 1e6),
                    format!("{:.3}", total.cpu_s),
                ];
                table.rows.push(cells.into_iter().chain(against).collect());
            }
            if let (Some((name, Carrier::Rings(fabric))), Some((theirs, cpu_s))) =
                (self.carriers.first(), sockets)
            {
                let (elapsed, total) = medians[0];
                let own = [elapsed.as_secs_f64(), total.cpu_s];
                let in_memory = fabric.caps().publish == Publish::InOrderPoll;
                let is_asked = in_memory && self.nodes >= WIDE_NODES;
                let what = format!("{name}, rows of {} bytes", row_words * 8);
                bars.extend(is_asked.then(|| like_for_like(&what, own, [theirs, cpu_s])));
            }
        }
        Ok((table, bars))
    }
}

/// Rings against sockets with the same chunks, by seconds and seconds of processors: where shared
/// memory carries the rings, and of four processes and more, so much is asked.
fn like_for_like(what: &str, own: [f64; 2], sockets: [f64; 2]) -> Bar {
    let [times, cpu] = [0, 1].map(|of| sockets[of] / own[of]);
    Bar {
        what: format!("{what}, against sockets with the same chunks"),
        needed: format!(
            "≥ {WIDE_ASKED} times as fast over shared memory, {WIDE_NODES} processes and more"
        ),
        got: format!("{times:.2} times, and {cpu:.2} times in processor seconds"),
        met: Some(times >= WIDE_ASKED),
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
        format!("{:.1}", total.rows as f64 * 2.0 / ms / 1e3),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_bar_is_met_and_missed() {
        let ms = |own: f64, theirs: f64| {
            let of = |name: &str, ms| (name.to_owned(), ms);
            bar(&[of("rings", own), of("sockets, each", theirs)]).and_then(|bar| bar.met)
        };
        assert_eq!([ms(1.0, 4.0), ms(1.0, 3.9)], [Some(true), Some(false)]);
        assert!(bar(&[]).is_none());
        let wide = |own| like_for_like("rings", [own, 1.0], [1.5, 1.0]).met;
        assert_eq!([wide(1.0), wide(1.1)], [Some(true), Some(false)]);
        assert_eq!(wide(f64::NAN), Some(false), "what was not measured is not met");
    }
}
