//! Standard error: the line that shows progress, and lines above it.

use std::io::{IsTerminal, Write};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle as BarStyle};
use millstream::{JobProgress, finite_watermark};

use crate::args::ProgressStyle;
use crate::human;

/// Between two plain lines.
const PLAIN_EVERY: Duration = Duration::from_secs(5);
/// A watermark further behind than this belongs to old data; how far behind it is tells nothing.
const LAG_SHOWN_MAX: Duration = Duration::from_secs(7 * 86_400);
/// Waiting for a sink is shown from so much of the time on.
const WAIT_PERCENT_MIN: f64 = 10.0;
/// A checkpoint that has been under way for this time is shown with the workers that it waits for.
const PENDING_SHOWN_MIN: Duration = Duration::from_secs(2);
/// Parts of a bar.
const BAR_PARTS: u64 = 1000;

/// Standard error of a command. Clones show the same.
#[derive(Clone)]
pub(crate) struct Screen {
    style: ProgressStyle,
    bar: Option<ProgressBar>,
    last: Arc<Mutex<Last>>,
    sinks: Arc<Mutex<Vec<Sink>>>,
    /// The names of the operators of the job that runs.
    operators: Arc<Mutex<Vec<String>>>,
}

/// A sink of the job that runs.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Sink {
    /// Its place among the operators.
    at: usize,
    name: String,
    /// How long workers had waited for it when that was shown last.
    waited_ns: u64,
}

/// The last output.
#[derive(Debug, Clone, Copy, Default)]
struct Last {
    elapsed: Duration,
    rows_in: u64,
    rows_out: u64,
}

impl Screen {
    /// Shows progress in the given way; [`ProgressStyle::Auto`] looks whether standard error is a
    /// terminal.
    pub(crate) fn new(style: ProgressStyle) -> Self {
        let style = match style {
            ProgressStyle::Auto if std::io::stderr().is_terminal() => ProgressStyle::Bar,
            ProgressStyle::Auto => ProgressStyle::Plain,
            style => style,
        };
        let bar = (style == ProgressStyle::Bar).then(|| {
            let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
            begin(&bar);
            bar
        });
        Self { style, bar, last: Arc::default(), sinks: Arc::default(), operators: Arc::default() }
    }

    /// Writes a line above the progress.
    pub(crate) fn line(&self, text: &str) {
        self.without_progress(|| {
            // Standard error may be closed; there is nobody left to tell.
            let _ = writeln!(std::io::stderr().lock(), "{text}");
        });
    }

    /// Takes the progress line away while something else is written.
    pub(crate) fn without_progress<T>(&self, write: impl FnOnce() -> T) -> T {
        match &self.bar {
            Some(bar) => bar.suspend(write),
            None => write(),
        }
    }

    /// A job begins, with operators of these names, and these sinks: the place of each among them,
    /// and its name.
    pub(crate) fn begins<'a>(
        &self,
        operators: Vec<String>,
        sinks: impl Iterator<Item = (usize, &'a str)>,
    ) {
        *self.operators.lock().unwrap_or_else(|poisoned| poisoned.into_inner()) = operators;
        let sink = |(at, name): (usize, &str)| Sink { at, name: name.to_owned(), waited_ns: 0 };
        *self.sinks.lock().unwrap_or_else(|poisoned| poisoned.into_inner()) =
            sinks.map(sink).collect();
    }

    /// Shows how far the job is.
    pub(crate) fn show(&self, progress: &JobProgress) {
        let mut last = self.last.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let since = progress.elapsed.saturating_sub(last.elapsed);
        if self.style == ProgressStyle::None
            || (self.style == ProgressStyle::Plain && since < PLAIN_EVERY)
        {
            return;
        }
        let mut sinks = self.sinks.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let mut text = describe(progress, &last, since) + &waits(progress, &mut sinks, since);
        drop(sinks);
        let operators = self.operators.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        text.extend(checkpoint_waits(progress, &operators));
        drop(operators);
        let counters = &progress.counters;
        *last = Last {
            elapsed: progress.elapsed,
            rows_in: counters.rows_in,
            rows_out: counters.rows_out,
        };
        drop(last);
        if let Some(bar) = self.bar.as_ref().filter(|bar| bar.is_finished()) {
            // Of the job before.
            bar.reset();
            bar.unset_length();
            begin(bar);
        }
        match &self.bar {
            None => self.line(&text),
            Some(bar) => match progress.done {
                None => bar.set_message(text),
                Some(done) => {
                    if bar.length().is_none() {
                        let style = BarStyle::with_template("[{bar:20}] {percent:>3} %  {msg}");
                        bar.set_style(
                            style.unwrap_or(BarStyle::default_bar()).progress_chars("=> "),
                        );
                        bar.set_length(BAR_PARTS);
                    }
                    bar.set_position((done * BAR_PARTS as f64) as u64);
                    bar.set_message(text);
                }
            },
        }
    }

    /// Takes the progress line away, and makes ready for another job.
    pub(crate) fn clear(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
        *self.last.lock().unwrap_or_else(|poisoned| poisoned.into_inner()) = Last::default();
    }
}

/// A bar of a job that may have no end.
fn begin(bar: &ProgressBar) {
    bar.set_style(BarStyle::with_template("{msg}").unwrap_or(BarStyle::default_bar()));
}

fn describe(progress: &JobProgress, last: &Last, since: Duration) -> String {
    let counters = &progress.counters;
    let rate_in = human::rate(counters.rows_in.saturating_sub(last.rows_in), since);
    let rate_out = human::rate(counters.rows_out.saturating_sub(last.rows_out), since);
    let mut text = format!(
        "{} in ({rate_in}/s), {} out ({rate_out}/s)",
        human::counted(counters.rows_in, "row"),
        human::count(counters.rows_out)
    );
    if let Some(watermark_ms) = finite_watermark(counters.watermark_ms) {
        text.push_str(&format!(", watermark {}", human::time(watermark_ms)));
    }
    if let Some(lag) = progress.lag.filter(|lag| *lag <= LAG_SHOWN_MAX) {
        text.push_str(&format!(", lag {}", human::duration(lag)));
    }
    for (number, what) in [(counters.late, "late"), (progress.bad, "bad")] {
        if number > 0 {
            text.push_str(&format!(", {} {what}", human::count(number)));
        }
    }
    let checkpoint = progress.checkpoints.as_ref().and_then(human::checkpoint);
    text.extend(checkpoint.map(|checkpoint| format!(", {checkpoint}")));
    text
}

/// The waits of a checkpoint that has been under way for long.
fn checkpoint_waits(progress: &JobProgress, operators: &[String]) -> Option<String> {
    let pending = progress.checkpoints.as_ref()?.pending.as_ref()?;
    let waits = human::checkpoint_waits(progress, operators)?;
    let is_long = pending.since >= PENDING_SHOWN_MIN;
    is_long.then(|| format!(", checkpoint {} waits for {waits}", pending.round))
}

/// The sink that workers have waited for most since the last look, if that was a good part of the
/// time of one of them.
fn waits(progress: &JobProgress, sinks: &mut [Sink], since: Duration) -> String {
    let mut most = None;
    for sink in sinks {
        let operators = progress.workers.iter().filter_map(|one| one.operators.get(sink.at));
        let waited_ns = operators.map(|operator| operator.backpressured_ns).sum();
        let since_ns = waited_ns - std::mem::replace(&mut sink.waited_ns, waited_ns).min(waited_ns);
        most = most.max(Some((since_ns, &sink.name)));
    }
    let Some((waited_ns, name)) = most else { return String::new() };
    let percent = 100.0 * waited_ns as f64 / since.as_nanos().max(1) as f64;
    match percent {
        WAIT_PERCENT_MIN.. => format!(", waiting for {name} {:.0} %", percent.min(100.0)),
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use millstream::{
        CheckpointProgress, Counters, LastCheckpoint, OperatorCounters, PendingCheckpoint,
        WorkerCounters,
    };

    use super::*;

    #[test]
    fn progress_tells_rates_since_the_last_look() {
        let counters = Counters {
            rows_in: 3_000_000,
            rows_out: 50,
            late: 2,
            watermark_ms: 1_357_034_400_000,
            ..Counters::default()
        };
        let lag = Some(Duration::from_secs(3));
        let elapsed = Duration::from_secs(2);
        let progress = JobProgress { elapsed, counters, lag, ..JobProgress::default() };
        let last = Last { elapsed: Duration::from_secs(1), rows_in: 1_000_000, rows_out: 50 };
        assert_eq!(
            describe(&progress, &last, Duration::from_secs(1)),
            "3,000,000 rows in (2.00 M/s), 50 out (0/s), watermark 2013-01-01 10:00:00, lag 3.0 s, \
             2 late"
        );
    }

    #[test]
    fn the_age_of_the_last_checkpoint_is_shown_and_what_the_next_waits_for() {
        let mut progress =
            JobProgress { checkpoints: Some(CheckpointProgress::default()), ..Default::default() };
        let since = Duration::from_secs(1);
        let shown = |progress: &JobProgress| {
            let text = describe(progress, &Last::default(), since);
            let rest = text.strip_prefix("0 rows in (0/s), 0 out (0/s)").unwrap().to_owned();
            rest + &checkpoint_waits(progress, &["0 Scan t".into()]).unwrap_or_default()
        };
        assert_eq!(shown(&progress), "");
        let pending = |since| PendingCheckpoint { round: 413, since, nodes: vec![0] };
        let checkpoints = progress.checkpoints.as_mut().unwrap();
        checkpoints.pending = Some(pending(PENDING_SHOWN_MIN / 2));
        assert_eq!(shown(&progress), ", no checkpoint yet");
        let checkpoints = progress.checkpoints.as_mut().unwrap();
        let age = Duration::from_millis(61_200);
        checkpoints.last = Some(LastCheckpoint { number: 412, bytes: 9, age, duration: None });
        checkpoints.given_up_since = 3;
        assert_eq!(shown(&progress), ", checkpoint 412, 61.2 s ago, 3 given up since");
        let checkpoints = progress.checkpoints.as_mut().unwrap();
        (checkpoints.pending, checkpoints.given_up_since) = (Some(pending(PENDING_SHOWN_MIN)), 0);
        let worker = |worker| WorkerCounters {
            node: 0,
            worker,
            counters: Counters { saved_round: 412, ..Counters::default() },
            operators: vec![OperatorCounters { saved_round: 412, ..OperatorCounters::default() }],
        };
        progress.workers = (0..5).map(worker).collect();
        let waits = "0 Scan t on worker 0, 0 Scan t on worker 1, 0 Scan t on worker 2, 2 more";
        let expected = format!(", checkpoint 412, 61.2 s ago, checkpoint 413 waits for {waits}");
        assert_eq!(shown(&progress), expected);
    }

    #[test]
    fn a_sink_that_workers_wait_for_is_named() {
        let worker = |waited_ns| WorkerCounters {
            operators: vec![
                OperatorCounters { backpressured_ns: 9_000, ..OperatorCounters::default() },
                OperatorCounters { backpressured_ns: waited_ns, ..OperatorCounters::default() },
            ],
            node: 0,
            worker: 0,
            counters: Counters::default(),
        };
        let (counters, elapsed) = (Counters::default(), Duration::from_secs(2));
        let workers = vec![worker(600_000_000), worker(0)];
        let progress = JobProgress { elapsed, counters, workers, ..JobProgress::default() };
        let mut sinks = [Sink { at: 1, name: "SELECT".into(), waited_ns: 100_000_000 }];
        let since = Duration::from_secs(1);
        assert_eq!(waits(&progress, &mut sinks, since), ", waiting for SELECT 50 %");
        assert_eq!(waits(&progress, &mut sinks, since), "", "not since then");
        assert_eq!(waits(&progress, &mut [], since), "");
    }

    #[test]
    fn the_lag_of_old_data_is_not_shown() {
        let counters = Counters { watermark_ms: 0, ..Counters::default() };
        let lag = Some(LAG_SHOWN_MAX + Duration::from_secs(1));
        let elapsed = Duration::ZERO;
        let progress = JobProgress { elapsed, counters, lag, ..JobProgress::default() };
        let text = describe(&progress, &Last::default(), Duration::from_secs(1));
        assert_eq!(text, "0 rows in (0/s), 0 out (0/s), watermark 1970-01-01 00:00:00");
    }
}
