//! The closing lines on standard error.

use std::time::Duration;

use millstream::{CheckpointProgress, Counters, LastCheckpoint, Report};

use crate::human;

/// The summary reports waiting for a sink from this part of the time on.
const WAIT_MIN: Duration = Duration::from_secs(1);
/// See [`WAIT_MIN`].
const WAIT_PART: u32 = 4;
/// Bad rows shown.
const BAD_ROWS_SHOWN: usize = 5;

/// The summary of a job, in a line or more.
pub(crate) fn summary(report: &Report) -> String {
    let total = &report.total;
    let mut text = format!(
        "{} in, {} out in {} ({} rows/s)",
        human::counted(total.rows_in, "row"),
        human::count(total.rows_out),
        human::duration(report.elapsed),
        human::rate(total.rows_in, report.elapsed)
    );
    let restored = report.checkpoints.as_ref().and_then(|of| of.restored.as_ref());
    let (late_before, bad_before) = restored.map_or((0, 0), |of| (of.late, of.bad));
    for (rows, before, what) in [
        (total.late, late_before, "late and dropped"),
        (report.bad, bad_before, "could not be read"),
    ] {
        if rows > 0 || before > 0 {
            text.push_str(&format!("; {} {what}", human::counted(rows, "row")));
        }
        if before > 0 {
            text.push_str(&format!(
                ", {} since the job began",
                human::count(rows.saturating_add(before))
            ));
        }
    }
    if total.spilled_bytes > 0 {
        let (runs, bytes) = (human::counted(total.spilled_runs, "run"), total.spilled_bytes);
        let (bytes, back) = (human::bytes(bytes), human::bytes(total.unspilled_bytes));
        text.push_str(&format!("; spilled {bytes} in {runs}, read back {back}"));
    }
    if total.pool_blocks > 0 {
        let (blocks, bytes) = (human::counted(total.pool_blocks, "block"), total.pool_bytes);
        text.push_str(&format!("; {blocks} of the pool, {}", human::bytes(bytes)));
        if total.pool_pruned_blocks > 0 {
            text.push_str(&format!(", {} pruned", human::count(total.pool_pruned_blocks)));
        }
    }
    text.extend(report.checkpoints.as_ref().and_then(|of| checkpoints(of, total)));
    if let Some((sink, waited)) = longest_wait(report) {
        text.push_str(&format!("; waited {} for {sink}", human::duration(waited)));
    }
    if report.cancelled {
        text.push_str("; ended early, as asked");
    }
    for row in report.bad_rows.iter().take(BAD_ROWS_SHOWN) {
        text.push_str(&format!("\n  bad row {} ({}): {}", row.place, row.table, row.reason));
    }
    let shown = report.bad_rows.len().min(BAD_ROWS_SHOWN) as u64;
    if report.bad > shown && shown > 0 {
        text.push_str(&format!("\n  … and {} more", human::count(report.bad - shown)));
    }
    text
}

/// The checkpoints of a job that took some, or was started again.
fn checkpoints(of: &CheckpointProgress, total: &Counters) -> Option<String> {
    let CheckpointProgress { last, stored, given_up, restarts, .. } = of;
    if (*stored, *given_up, *restarts) == (0, 0, 0) {
        return None;
    }
    let mut text = format!("; {}", human::counted(*stored, "checkpoint"));
    if let Some(LastCheckpoint { number, bytes, .. }) = last {
        text += &format!(", the last, {number}, of {}", human::bytes(*bytes));
    }
    if *given_up > 0 {
        text += &format!(", {} given up", human::count(*given_up));
    }
    let longest = |ns: u64| human::duration(Duration::from_nanos(ns));
    if total.align_peak_ns > 0 {
        text += &format!(", aligned within {}", longest(total.align_peak_ns));
    }
    if total.save_peak_ns > 0 {
        text += &format!(", saved within {}", longest(total.save_peak_ns));
    }
    if *restarts > 0 {
        let restarts = human::counted((*restarts).into(), "time");
        text += &format!("; started again {restarts}, the counts are of the last start");
    }
    Some(text)
}

/// The sink that was waited for longest, if that took a good part of the time.
fn longest_wait(report: &Report) -> Option<(&str, Duration)> {
    let longest = report.sinks.iter().max_by_key(|sink| sink.waited)?;
    let matters = longest.waited >= WAIT_MIN && longest.waited >= report.elapsed / WAIT_PART;
    matters.then_some((longest.sink.as_str(), longest.waited))
}

/// The messages that even `--quiet` prints.
pub(crate) fn warning(report: &Report) -> Option<String> {
    let Report { total, bad, .. } = report;
    let nothing = total.rows_in == 0 && *bad > 0;
    let rows = human::counted(*bad, "row");
    nothing.then(|| format!("warning: none of {rows} of the input could be read"))
}

#[cfg(test)]
mod tests {
    use millstream::{BadRow, RestoredCheckpoint, SinkWait};

    use super::*;

    fn report(bad: u64) -> Report {
        let row = |n| BadRow {
            table: "flights".into(),
            place: format!("flights.csv:{n}"),
            reason: "'x' is no INT".into(),
            text: "1,x".into(),
        };
        Report {
            elapsed: Duration::from_millis(500),
            total: Counters { rows_in: 336_776, rows_out: 20, ..Counters::default() },
            bad,
            bad_rows: (1..=bad.min(100)).map(row).collect(),
            ..Report::default()
        }
    }

    #[test]
    fn a_good_run_takes_one_line() {
        let text = summary(&report(0));
        assert_eq!(text, "336,776 rows in, 20 out in 500 ms (674 K rows/s)");
    }

    #[test]
    fn the_first_bad_rows_are_shown_and_the_rest_counted() {
        let text = summary(&report(7));
        let lines: Vec<_> = text.lines().collect();
        assert!(lines[0].ends_with("; 7 rows could not be read"), "{text}");
        assert_eq!(lines[1], "  bad row flights.csv:1 (flights): 'x' is no INT");
        assert_eq!((lines.len(), lines[6]), (7, "  … and 2 more"));
        assert_eq!(summary(&report(1)).lines().count(), 2);
    }

    #[test]
    fn an_input_of_bad_rows_alone_is_worth_a_warning() {
        assert_eq!(warning(&report(7)), None);
        let mut report = report(7);
        report.total.rows_in = 0;
        let expected = "warning: none of 7 rows of the input could be read";
        assert_eq!(warning(&report).as_deref(), Some(expected));
    }

    #[test]
    fn a_sink_that_held_the_job_up_is_named() {
        let wait =
            |sink: &str, ms| SinkWait { sink: sink.into(), waited: Duration::from_millis(ms) };
        let mut report = report(0);
        report.elapsed = Duration::from_secs(8);
        report.sinks = vec![wait("SELECT", 1_999), wait("INSERT INTO a", 20)];
        assert_eq!(summary(&report), "336,776 rows in, 20 out in 8.0 s (42.1 K rows/s)");
        report.sinks.push(wait("INSERT INTO b", 6_000));
        assert!(summary(&report).ends_with("; waited 6.0 s for INSERT INTO b"));
    }

    #[test]
    fn what_went_to_disk_is_told() {
        let mut report = report(0);
        let total = &mut report.total;
        (total.spilled_runs, total.spilled_bytes, total.unspilled_bytes) = (2, 3 << 20, 1 << 20);
        let text = summary(&report);
        assert!(text.ends_with("; spilled 3 MiB in 2 runs, read back 1 MiB"), "{text}");
    }

    #[test]
    fn checkpoints_and_restarts_are_told() {
        let last = |number| LastCheckpoint {
            number,
            bytes: 41_216,
            age: Duration::from_secs(1),
            duration: None,
        };
        let mut report = report(0);
        report.checkpoints = Some(CheckpointProgress::default());
        assert_eq!(summary(&report), "336,776 rows in, 20 out in 500 ms (674 K rows/s)");
        let (last, stored) = (Some(last(412)), 12);
        report.checkpoints = Some(CheckpointProgress { last, stored, ..Default::default() });
        assert!(summary(&report).ends_with("; 12 checkpoints, the last, 412, of 40.2 KiB"));
        let checkpoints = report.checkpoints.as_mut().unwrap();
        (checkpoints.given_up, checkpoints.restarts) = (3, 1);
        (report.total.align_peak_ns, report.total.save_peak_ns) = (12_000_000, 1_500_000_000);
        let text = summary(&report);
        let end = ", 3 given up, aligned within 12 ms, saved within 1.5 s; started again 1 time, \
                   the counts are of the last start";
        assert!(text.ends_with(end), "{text}");
    }

    #[test]
    fn rows_that_earlier_runs_have_dropped_are_told_beside_those_of_this_one() {
        let mut report = report(7);
        report.bad_rows.clear();
        let restored = RestoredCheckpoint { late: 5, bad: 1000, ..Default::default() };
        report.checkpoints =
            Some(CheckpointProgress { restored: Some(restored), ..Default::default() });
        let text = summary(&report);
        let end = "; 0 rows late and dropped, 5 since the job began; 7 rows could not be read, \
                   1,007 since the job began";
        assert!(text.ends_with(end), "{text}");
    }

    #[test]
    fn late_rows_and_an_early_end_are_told() {
        let mut report = report(0);
        report.total.late = 1;
        report.cancelled = true;
        let text = summary(&report);
        assert!(text.ends_with("; 1 row late and dropped; ended early, as asked"), "{text}");
    }
}
