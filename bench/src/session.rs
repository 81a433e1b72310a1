//! The cost of a statement in a session (`millstream bench session`): of the first one, which makes
//! the connections of all workers (S2), and of those behind it, which use them again (Q6).
//!
//! ```text
//!   session ─▶ statement: connections are made ─▶ statement ─▶ statement ─▶ …
//!              └────────── first ────────────┘   └────── behind it ──────┘
//! ```
//!
//! A statement groups few rows, so that its time is what any statement costs: nodes agree, threads
//! of workers start, every worker says goodbye to every other one. It is planned before, and the
//! time of that stands beside it. Its rows are checked.

use std::time::{Duration, Instant};

use millstream::{Error, FabricKind, RunOptions, Session};

use crate::recovery::estimate::median;
use crate::report::{Bar, FigureReport, ReportSection, ReportTable};

/// What a statement behind the first one may cost.
pub const NEXT_MAX: Duration = Duration::from_millis(2);

/// Rows that a statement reads, and groups that it makes of them.
const ROWS: u64 = 64;
const GROUPS: u64 = 16;

/// What is measured.
#[derive(Debug, Clone)]
pub struct SessionPlan {
    /// Nodes, which are threads of this process, as in the shell.
    pub nodes: u32,
    /// Workers of each.
    pub workers: u32,
    /// Transports between them.
    pub fabrics: Vec<FabricKind>,
    /// Sessions; each gives one time of a first statement.
    pub sessions: usize,
    /// Statements of a session behind its first one.
    pub statements: usize,
    /// Options of each session.
    pub settings: Vec<(String, String)>,
}

/// The times of the statements of one transport, each a median.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StatementTimes {
    /// The first of a session.
    pub first: Duration,
    /// One behind it.
    pub next: Duration,
    /// Planning one behind it.
    pub planning: Duration,
}

impl StatementTimes {
    /// The median of one behind the first against what was asked of it.
    pub fn bar(&self, fabric: FabricKind, workers: &str) -> Bar {
        Bar {
            what: format!("a second statement on {workers} workers over {fabric}"),
            needed: format!("< {} ms", NEXT_MAX.as_millis()),
            got: format!("{} ms", ms(self.next)),
            met: Some(self.next < NEXT_MAX),
        }
    }
}

/// Measures all transports.
///
/// # Errors
/// The first failure of a statement. A wrong result is one.
pub fn measure(plan: &SessionPlan) -> Result<FigureReport, Error> {
    let workers = format!("{} × {}", plan.nodes, plan.workers);
    let mut section = ReportSection {
        title: format!("Statements of a session on {workers} workers"),
        text: vec![format!(
            "{ROWS} rows in {GROUPS} groups. The first statement makes the connections, the others \
             use them again. Planning is not in the times."
        )],
        ..ReportSection::default()
    };
    let mut table = ReportTable {
        title: "medians".into(),
        columns: ["transport", "first, ms", "second, ms", "planning, ms"].map(Into::into).into(),
        rows: Vec::new(),
    };
    for &fabric in &plan.fabrics {
        let times = times(plan, fabric)?;
        let cells = [times.first, times.next, times.planning].map(ms);
        table.rows.push([fabric.to_string()].into_iter().chain(cells).collect());
        section.bars.push(times.bar(fabric, &workers));
    }
    section.tables.push(table);
    let about = vec!["Nodes are threads of one process, as in the shell.".into()];
    Ok(FigureReport { title: "A session".into(), about, sections: vec![section] })
}

/// Measures one transport.
fn times(plan: &SessionPlan, fabric: FabricKind) -> Result<StatementTimes, Error> {
    let (mut first, mut next, mut planning) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..plan.sessions {
        let builder = Session::builder().nodes(plan.nodes).workers(plan.workers).fabric(fabric);
        let settings = plan.settings.iter();
        let mut session = settings.fold(builder, |to, (key, value)| to.set(key, value)).build()?;
        let rows = millstream::Collected::default();
        session.rows_to(millstream::RowTarget::Connector(std::sync::Arc::new(rows.clone())))?;
        for at in 0..=plan.statements {
            let start = Instant::now();
            let script = session.sql(&statement())?;
            let planned = start.elapsed();
            let start = Instant::now();
            script.run(&RunOptions::default())?;
            let ran = start.elapsed();
            check(rows.take().iter().map(|batch| batch.num_rows() as u64).sum())?;
            if at == 0 {
                first.push(ran.as_secs_f64());
            } else {
                next.push(ran.as_secs_f64());
                planning.push(planned.as_secs_f64());
            }
        }
    }
    let [first, next, planning] = [first, next, planning].map(|all| median(&all));
    let [first, next, planning] = [first, next, planning].map(Duration::from_secs_f64);
    Ok(StatementTimes { first, next, planning })
}

/// Few rows in few groups, whose rows meet on every node.
fn statement() -> String {
    let rows: Vec<_> = (0..ROWS).map(|row| format!("({}, {row})", row % GROUPS)).collect();
    format!("SELECT k, sum(n) FROM (VALUES {}) AS t (k, n) GROUP BY k", rows.join(", "))
}

fn check(groups: u64) -> Result<(), Error> {
    if groups == GROUPS {
        return Ok(());
    }
    let message = format!("{groups} groups are not {GROUPS}");
    Err(Error::Usage { message, hint: "this is a bug of the engine".into() })
}

fn ms(time: Duration) -> String {
    format!("{:.2}", time.as_secs_f64() * 1e3)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bar_fails_where_a_second_statement_takes_as_long_as_it_may_not() {
        let of = |next| {
            let (first, planning) = (Duration::from_millis(60), Duration::from_millis(1));
            StatementTimes { first, next, planning }.bar(FabricKind::Shm, "4 × 4")
        };
        let fast = of(Duration::from_micros(1_990));
        assert_eq!((fast.met, fast.got.as_str()), (Some(true), "1.99 ms"));
        for slow in [NEXT_MAX, Duration::from_millis(61)] {
            assert_eq!(of(slow).met, Some(false), "{slow:?}");
        }
    }

    #[test]
    fn all_transports_are_measured_and_their_rows_are_right() {
        let fabrics = vec![FabricKind::Shm, FabricKind::Tcp];
        let settings = vec![("millstream.slots".into(), "4".into())];
        let plan =
            SessionPlan { nodes: 2, workers: 2, fabrics, sessions: 2, statements: 2, settings };
        let report = measure(&plan).expect("it runs");
        assert_eq!((report.bars().count(), report.sections[0].tables[0].rows.len()), (2, 2));
        check(3).expect_err("a wrong result has no figures");
    }
}
