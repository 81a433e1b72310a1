//! Figures for a reader, and for a program.

use std::fmt;
use std::time::Duration;

use millstream::Counters;

use crate::report::Bar;
use crate::workload::{Workload, WorkloadSize};

/// Median, least and greatest of some measurements.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct MedianRange {
    /// The middle one; of an even number, the lower of the two in the middle.
    pub median: f64,
    /// The least.
    pub least: f64,
    /// The greatest.
    pub greatest: f64,
}

impl MedianRange {
    /// Of these values; zeros if there are none.
    #[expect(clippy::ptr_arg, reason = "passed as a function over lists of lists")]
    pub fn of(values: &Vec<f64>) -> Self {
        let mut sorted = values.clone();
        sorted.sort_by(f64::total_cmp);
        let at = |index: usize| sorted.get(index).copied().unwrap_or(0.0);
        let last = sorted.len().saturating_sub(1);
        Self { median: at(last / 2), least: at(0), greatest: at(last) }
    }

    /// In another unit.
    pub fn times(self, factor: f64) -> Self {
        Self {
            median: self.median * factor,
            least: self.least * factor,
            greatest: self.greatest * factor,
        }
    }

    /// `least to greatest`.
    pub fn range(&self, digits: usize) -> String {
        format!("{:.digits$} to {:.digits$}", self.least, self.greatest)
    }

    /// As a JSON object.
    pub fn json(&self) -> String {
        let Self { median, least, greatest } = self;
        format!("{{\"median\":{median:e},\"least\":{least:e},\"greatest\":{greatest:e}}}")
    }
}

impl fmt::Display for MedianRange {
    /// The median.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.median, f)
    }
}

/// One run.
#[derive(Debug, Clone, Copy)]
pub struct MeasuredRun {
    /// From when all workers of all nodes had opened their flows until all had ended.
    pub elapsed: Duration,
    /// Processor time of the workers in between, all together.
    pub busy: Duration,
    /// Bytes a second that as many threads read from memory right before.
    pub bandwidth: f64,
}

/// The runs of one thing that is compared.
#[derive(Debug, Clone)]
pub struct Summary {
    /// The workload.
    pub workload: Workload,
    /// The exchange, or `alone` for one worker by itself.
    pub variant: String,
    /// How large it was.
    pub size: WorkloadSize,
    /// The runs.
    pub runs: Vec<MeasuredRun>,
    /// Counters of the last run: those of all runs are alike.
    pub total: Counters,
    /// Cycles a second.
    pub hertz: Option<f64>,
    /// The limits that were measured in turns with it.
    pub against: AgainstLimits,
}

/// A summary against what the machine gave in the same turns: ratios of rates, of each run and the
/// one of the limit in the same turn.
#[derive(Debug, Clone, Default)]
pub struct AgainstLimits {
    /// How many times as fast as one worker alone.
    pub one_worker: Option<MedianRange>,
    /// The share of what as many unrelated processes reach together.
    pub unrelated: Option<MedianRange>,
    /// The targets of these measurements.
    pub bars: Vec<Bar>,
}

/// The name of one worker by itself.
pub(crate) const ALONE: &str = "alone";
/// The name of processes that have nothing to do with each other.
pub(crate) const UNRELATED: &str = "unrelated";

impl Summary {
    fn each(&self, of: impl Fn(&MeasuredRun) -> f64) -> MedianRange {
        MedianRange::of(&self.runs.iter().map(of).collect())
    }

    /// Whether others are held to it.
    pub(crate) fn is_limit(&self) -> bool {
        [ALONE, UNRELATED].contains(&&*self.variant)
    }

    /// Compares with one worker alone, and with as many unrelated processes.
    pub(crate) fn compare(&mut self, alone: Option<&Summary>, unrelated: Option<&Summary>) {
        let [one_worker, unrelated] = [alone, unrelated].map(|of| of.map(|of| self.ratio(of)));
        self.against = AgainstLimits { one_worker, unrelated, bars: Vec::new() };
    }

    /// Its rates in those of another that was measured in turns with it.
    fn ratio(&self, other: &Summary) -> MedianRange {
        let rate = |of: &Summary, run: &MeasuredRun| of.rows() / run.elapsed.as_secs_f64();
        let pairs = self.runs.iter().zip(&other.runs);
        MedianRange::of(&pairs.map(|(own, theirs)| rate(self, own) / rate(other, theirs)).collect())
    }

    fn rows(&self) -> f64 {
        self.size.rows() as f64
    }

    /// Rows a second, of all workers.
    pub fn rate(&self) -> MedianRange {
        self.each(|run| self.rows() / run.elapsed.as_secs_f64())
    }

    /// Cycles of all workers for each row, by the wall clock.
    pub fn cycles(&self) -> Option<MedianRange> {
        let workers = self.size.workers as f64;
        let hertz = self.hertz?;
        Some(self.each(|run| run.elapsed.as_secs_f64() * hertz * workers / self.rows()))
    }

    /// Cycles of all workers for each row, by the time that their threads had a processor: on a
    /// machine that does other work, the better figure.
    pub fn cycles_busy(&self) -> Option<MedianRange> {
        let hertz = self.hertz?;
        Some(self.each(|run| run.busy.as_secs_f64() * hertz / self.rows()))
    }

    /// Hardware counters of all workers for each row, and their names; nothing
    /// where the kernel gives no such counters.
    fn counted(&self) -> impl Iterator<Item = (&'static str, f64)> {
        let Counters { cycles, instructions, l1_misses, llc_misses, branch_misses, .. } =
            self.total;
        let each = [
            ("processor_cycles", cycles),
            ("instructions", instructions),
            ("l1_misses", l1_misses),
            ("llc_misses", llc_misses),
            ("branch_misses", branch_misses),
        ];
        let rows = self.rows();
        each.into_iter().filter(|of| of.1 > 0).map(move |(name, count)| (name, count as f64 / rows))
    }

    /// Bytes of all rows as they lie in memory: of columns those that are read, of records all.
    fn bytes_read(&self) -> f64 {
        match self.size.record_bytes {
            Some(bytes) => (bytes * self.workload.reads()) as f64 * self.rows(),
            None => self.total.bytes_in as f64,
        }
    }

    /// Bytes of a row as it is read.
    pub fn row_bytes(&self) -> f64 {
        self.bytes_read() / self.rows()
    }

    /// Bytes of input a second.
    pub fn read_rate(&self) -> MedianRange {
        self.each(|run| self.bytes_read() / run.elapsed.as_secs_f64())
    }

    /// Bytes a second that memory gave as many threads.
    pub fn bandwidth(&self) -> MedianRange {
        self.each(|run| run.bandwidth)
    }

    /// The share of the bandwidth that input alone took.
    pub fn share(&self) -> MedianRange {
        self.each(|run| self.bytes_read() / run.elapsed.as_secs_f64() / run.bandwidth)
    }

    /// As one JSON object.
    pub fn json(&self) -> String {
        let total = &self.total;
        let mut fields = vec![
            format!("\"workload\":\"{}\"", self.workload),
            format!("\"variant\":\"{}\"", self.variant),
            format!("\"workers\":{}", self.size.workers),
            format!("\"rows\":{}", self.size.rows()),
            format!("\"keys\":{}", self.size.keys),
            format!("\"distribution\":\"{}\"", self.size.distribution),
            format!("\"rows_per_s\":{}", self.rate().json()),
        ];
        if let Some(bytes) = self.size.record_bytes {
            fields.push(format!("\"record_bytes\":{bytes}"));
        }
        let cycles =
            [("cycles_per_row", self.cycles()), ("busy_cycles_per_row", self.cycles_busy())];
        for (name, range) in cycles {
            fields.extend(range.map(|range| format!("\"{name}\":{}", range.json())));
        }
        for (name, count) in self.counted() {
            fields.push(format!("\"{name}_per_row\":{count:.4}"));
        }
        let AgainstLimits { one_worker, unrelated, bars } = &self.against;
        let ratios = [("times_one_worker", one_worker), ("share_of_unrelated", unrelated)];
        for (name, range) in ratios {
            fields.extend(range.as_ref().map(|range| format!("\"{name}\":{}", range.json())));
        }
        if !bars.is_empty() {
            let bars: Vec<String> = bars.iter().map(|bar| bar.json().to_string()).collect();
            fields.push(format!("\"bars\":[{}]", bars.join(",")));
        }
        fields.push(format!("\"bytes_per_row\":{:.3}", self.row_bytes()));
        fields.push(format!("\"bandwidth_bytes_per_s\":{}", self.bandwidth().json()));
        fields.push(format!("\"share_of_bandwidth\":{}", self.share().json()));
        for (name, value) in [
            ("rows_out", total.rows_out),
            ("windows", total.windows),
            ("late", total.late),
            ("epochs", total.epochs),
            ("bytes_sent", total.bytes_sent),
            ("local_bytes", total.local_bytes),
            ("work_requests", total.frames_sent),
            ("state_bytes_peak", total.state_bytes_peak),
        ] {
            fields.push(format!("\"{name}\":{value}"));
        }
        format!("{{{}}}", fields.join(","))
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let WorkloadSize { workers, keys, distribution, record_bytes, .. } = self.size;
        let (rows, total) = (self.rows() / 1e6, &self.total);
        write!(f, "{}, {}: {workers} worker(s), {rows:.0} M rows", self.workload, self.variant)?;
        if self.workload.has_keys() {
            write!(f, ", {keys} keys, {distribution}")?;
        }
        match record_bytes {
            Some(bytes) => writeln!(f, ", records of {bytes} bytes")?,
            None => writeln!(f)?,
        }
        let mut line = |name: &str, unit: &str, range: MedianRange, digits: usize| {
            let spread = range.range(digits);
            writeln!(f, "  {name:<28}{range:>9.digits$}  {unit:<8}({spread})")
        };
        let rate = self.rate().times(1e-6);
        line("records a second", "M/s", rate, 1)?;
        line("  of each worker", "M/s", rate.times(1.0 / workers as f64), 1)?;
        if let Some(times) = self.against.one_worker {
            line("  times one worker", "", times, 2)?;
        }
        if let Some(share) = self.against.unrelated {
            line("  of unrelated processes", "%", share.times(100.0), 0)?;
        }
        if let (Some(cycles), Some(busy)) = (self.cycles(), self.cycles_busy()) {
            line("cycles a record", "", cycles, 1)?;
            line("  on the processor", "", busy, 1)?;
        }
        line("input read", "GB/s", self.read_rate().times(1e-9), 2)?;
        line("memory gives", "GB/s", self.bandwidth().times(1e-9), 2)?;
        line("  share taken by input", "%", self.share().times(100.0), 0)?;
        let counted = self.counted().map(|(name, count)| {
            format!("{count:.*} {}", if count < 10.0 { 4 } else { 1 }, name.replace('_', " "))
        });
        let counted: Vec<String> = counted.collect();
        if !counted.is_empty() {
            writeln!(f, "  the processor counts for a record: {}", counted.join(", "))?;
        }
        let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
        writeln!(
            f,
            "  {:.1} bytes a record; {} rows out of {} windows, {:.0} MiB of state, {} epochs, \
             {:.1} MiB sent, {:.1} MiB passed by reference; {} runs, results checked",
            self.row_bytes(),
            total.rows_out,
            total.windows,
            mib(total.state_bytes_peak),
            total.epochs,
            mib(total.bytes_sent),
            mib(total.local_bytes),
            self.runs.len()
        )?;
        self.against.bars.iter().try_for_each(|bar| writeln!(f, "  {bar}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::KeyDistribution;

    #[test]
    fn the_median_of_an_even_number_is_the_lower_one() {
        let range = MedianRange::of(&vec![4.0, 1.0, 3.0, 2.0]);
        assert_eq!((range.median, range.least, range.greatest), (2.0, 1.0, 4.0));
        assert_eq!(MedianRange::of(&vec![7.0]).median, 7.0);
        assert_eq!(MedianRange::of(&Vec::new()), MedianRange::default());
    }

    #[test]
    fn what_processors_count_is_told_for_each_row_where_they_do() {
        let (none, second) = (Counters::default(), Duration::from_secs(1));
        let size = WorkloadSize {
            rows_per_worker: 1_000,
            workers: 1,
            keys: 10,
            distribution: KeyDistribution::Uniform,
            interval_ns: None,
            record_bytes: None,
        };
        let counted = Counters { cycles: 4_000, instructions: 10_000, ..none };
        let summary = |total| Summary {
            workload: Workload::Ro,
            variant: "auto".into(),
            size,
            runs: vec![MeasuredRun { elapsed: second, busy: second, bandwidth: 1e10 }],
            total,
            hertz: None,
            against: AgainstLimits::default(),
        };
        let [reported, silent] = [counted, none].map(|of| summary(of).json());
        assert!(reported.contains("\"instructions_per_row\":10.0000"), "{reported}");
        assert!(reported.contains("\"processor_cycles_per_row\":4.0000"), "{reported}");
        assert!(!silent.contains("instructions") && !silent.contains("misses"), "{silent}");
        assert!(summary(counted).to_string().contains("4.0000 processor cycles, 10.0 instr"));
    }

    #[test]
    fn a_share_is_of_the_run_in_the_same_turn() {
        let size = WorkloadSize {
            rows_per_worker: 1_000,
            workers: 2,
            keys: 10,
            distribution: KeyDistribution::Uniform,
            interval_ns: None,
            record_bytes: None,
        };
        let of = |seconds: &[u64]| {
            let run = |&seconds: &u64| MeasuredRun {
                elapsed: Duration::from_secs(seconds),
                busy: Duration::from_secs(seconds),
                bandwidth: 1e10,
            };
            Summary {
                workload: Workload::Ro,
                variant: "auto".into(),
                size,
                runs: seconds.iter().map(run).collect(),
                total: Counters::default(),
                hertz: None,
                against: AgainstLimits::default(),
            }
        };
        // The machine was slow in the second turn, for both.
        let mut own = of(&[2, 20, 4]);
        own.compare(None, Some(&of(&[1, 18, 3])));
        let share = own.against.unrelated.unwrap();
        assert_eq!((share.least, share.median, share.greatest), (0.5, 0.75, 0.9));
        assert!(own.json().contains("\"share_of_unrelated\":{\"median\":7.5e-1"), "{}", own.json());
        let line = "  of unrelated processes           75  %       (50 to 90)";
        let shown: Vec<String> = own.to_string().lines().map(|one| one.trim().into()).collect();
        assert!(shown.iter().any(|one| one == line.trim()), "{own}");
    }
}
