//! Standard error: the line that shows progress, and lines above it.

use std::io::{IsTerminal, Write};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle as BarStyle};
use millstream::Progress;

use crate::args::ProgressStyle;
use crate::human;

/// Between two plain lines.
const PLAIN_EVERY: Duration = Duration::from_secs(5);
/// A watermark further behind than this belongs to old data; how far behind it is tells nothing.
const LAG_SHOWN_MAX: Duration = Duration::from_secs(7 * 86_400);
/// Parts of a bar.
const BAR_PARTS: u64 = 1000;

/// Standard error of a command. Clones show the same.
#[derive(Clone)]
pub(crate) struct Screen {
    style: ProgressStyle,
    bar: Option<ProgressBar>,
    last: Arc<Mutex<Last>>,
}

/// What was shown last.
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
        Self { style, bar, last: Arc::default() }
    }

    /// Writes a line above the progress.
    pub(crate) fn line(&self, text: &str) {
        self.aside(|| {
            // Standard error may be closed; there is nobody left to tell.
            let _ = writeln!(std::io::stderr().lock(), "{text}");
        });
    }

    /// Takes the progress line away while something else is written.
    pub(crate) fn aside<T>(&self, write: impl FnOnce() -> T) -> T {
        match &self.bar {
            Some(bar) => bar.suspend(write),
            None => write(),
        }
    }

    /// Shows how far the job is.
    pub(crate) fn show(&self, progress: &Progress) {
        let mut last = self.last.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let since = progress.elapsed.saturating_sub(last.elapsed);
        if self.style == ProgressStyle::None
            || (self.style == ProgressStyle::Plain && since < PLAIN_EVERY)
        {
            return;
        }
        let text = describe(progress, &last, since);
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

fn describe(progress: &Progress, last: &Last, since: Duration) -> String {
    let counters = &progress.counters;
    let rate_in = human::rate(counters.rows_in.saturating_sub(last.rows_in), since);
    let rate_out = human::rate(counters.rows_out.saturating_sub(last.rows_out), since);
    let mut text = format!(
        "{} in ({rate_in}/s), {} out ({rate_out}/s)",
        human::counted(counters.rows_in, "row"),
        human::count(counters.rows_out)
    );
    if counters.watermark_ms != i64::MIN && counters.watermark_ms != i64::MAX {
        text.push_str(&format!(", watermark {}", human::time(counters.watermark_ms)));
    }
    if let Some(lag) = progress.lag.filter(|lag| *lag <= LAG_SHOWN_MAX) {
        text.push_str(&format!(", lag {}", human::duration(lag)));
    }
    for (number, what) in [(counters.late, "late"), (counters.bad, "bad")] {
        if number > 0 {
            text.push_str(&format!(", {} {what}", human::count(number)));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use millstream::Counters;

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
        let progress = Progress { elapsed, counters, workers: vec![], done: None, lag };
        let last = Last { elapsed: Duration::from_secs(1), rows_in: 1_000_000, rows_out: 50 };
        assert_eq!(
            describe(&progress, &last, Duration::from_secs(1)),
            "3,000,000 rows in (2.00 M/s), 50 out (0/s), watermark 2013-01-01 10:00:00, lag 3.0 s, \
             2 late"
        );
    }

    #[test]
    fn the_lag_of_old_data_is_not_shown() {
        let counters = Counters { watermark_ms: 0, ..Counters::default() };
        let lag = Some(LAG_SHOWN_MAX + Duration::from_secs(1));
        let elapsed = Duration::ZERO;
        let progress = Progress { elapsed, counters, workers: vec![], done: None, lag };
        let text = describe(&progress, &Last::default(), Duration::from_secs(1));
        assert_eq!(text, "0 rows in (0/s), 0 out (0/s), watermark 1970-01-01 00:00:00");
    }
}
