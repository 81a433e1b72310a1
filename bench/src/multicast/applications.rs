//! The whole applications (W11, W12), in SQL: ride hailing with a stream of drivers and the best
//! driver of all workers, and the stock exchange. Every worker is a receiver that is real.
//!
//! The result of each way is compared with that of one worker, which broadcasts nothing.

use std::sync::Arc;

use channel::broadcast::Shape;
use millstream::cluster::Control;
use millstream::{RunOptions, Script, Session};

use super::real::{MulticastPlan, Way};
use crate::BenchError;
use crate::checksums::{ChecksumSink, ChecksumTotals};
use crate::summary::MedianRange;

/// Runs of each way, in turns.
const RUNS: usize = 3;

/// The ways that are compared: where rows of a broadcast side go.
const WAYS: [Way; 3] = [Way::Adaptive, Way::Tree(Shape::Sequential), Way::Tree(Shape::Binomial)];

/// An application.
struct Application {
    name: &'static str,
    sql: &'static str,
    /// Rows of its stream, and of the one beside it, at scale 1.
    rows: [f64; 2],
}

const APPLICATIONS: [Application; 2] = [
    Application {
        name: "ride hailing",
        sql: include_str!("../../sql/whale-rides.sql"),
        rows: [200_000.0, 1_000.0],
    },
    Application {
        name: "stock exchange",
        sql: include_str!("../../sql/whale-stocks.sql"),
        rows: [200_000.0, 0.0],
    },
];

/// An application by one way.
#[derive(Debug, Clone, PartialEq)]
pub struct AppPoint {
    /// Its name.
    pub application: &'static str,
    /// The way of the side that is broadcast.
    pub way: Way,
    /// Rows that were read.
    pub rows: u64,
    /// Rows of the result.
    pub rows_out: u64,
    /// Rows a second.
    pub per_second: MedianRange,
    /// Processor nanoseconds of all workers for a row that was read.
    pub cpu_ns: f64,
    /// Bytes between processes.
    pub bytes_sent: u64,
}

impl Application {
    fn sql(&self, scale: f64) -> String {
        let [many, few] = self.rows.map(|rows| ((rows * scale) as u64).max(1).to_string());
        self.sql.replace("{many}", &many).replace("{few}", &few)
    }

    fn script(
        &self,
        plan: &MulticastPlan,
        way: Option<Way>,
        checksums: &ChecksumSink,
    ) -> Result<Script, BenchError> {
        let session = match way {
            Some(way) => Session::builder()
                .nodes(plan.nodes)
                .workers(plan.workers)
                .fabric(plan.fabric)
                .set("millstream.multicast_tree", &way.setting()),
            None => Session::builder().workers(1),
        };
        let session = session.connector(Arc::new(checksums.clone()));
        Ok(session.build()?.sql(&self.sql(plan.app_scale))?)
    }
}

/// Runs each application by each way. Node 0 gets figures, the others none.
///
/// # Errors
/// The first failure, and a result that is not that of one worker.
pub(super) fn run(plan: &MulticastPlan, control: &Control) -> Result<Vec<AppPoint>, BenchError> {
    let mut points = vec![];
    for application in &APPLICATIONS {
        points.extend(measured(application, plan, control)?);
    }
    Ok(points)
}

/// One way under measurement.
struct Measured {
    way: Way,
    script: Script,
    checksums: ChecksumSink,
    point: Option<AppPoint>,
    rates: Vec<f64>,
}

fn measured(
    application: &Application,
    plan: &MulticastPlan,
    control: &Control,
) -> Result<Vec<AppPoint>, BenchError> {
    let first = control.rank() == 0;
    let checksums = ChecksumSink::default();
    let alone = application.script(plan, None, &checksums)?;
    if first {
        alone.run(&RunOptions::default())?;
    }
    let right = checksums.take();
    let measured = |way: Way| -> Result<Measured, BenchError> {
        let checksums = ChecksumSink::default();
        let script = application.script(plan, Some(way), &checksums)?;
        Ok(Measured { way, script, checksums, point: None, rates: vec![] })
    };
    let mut all: Vec<Measured> = WAYS.into_iter().map(measured).collect::<Result<_, _>>()?;
    for _ in 0..RUNS {
        for one in &mut all {
            let options = RunOptions { control: Some(control), ..RunOptions::default() };
            let report = one.script.run(&options)?;
            let nodes = control.all_gather("sums", one.checksums.take().encode())?;
            let mut got = ChecksumTotals::default();
            let nodes = nodes.iter().filter_map(|bytes| ChecksumTotals::decode(bytes));
            nodes.for_each(|node| got.add(&node));
            if first && !right.agrees(&got) {
                let variant = format!("{} by {}", application.name, one.way.name());
                return Err(BenchError::Wrong { variant, got, right });
            }
            let rows = report.total.rows_in;
            one.rates.push(rows as f64 / report.elapsed.as_secs_f64());
            one.point = Some(AppPoint {
                application: application.name,
                way: one.way,
                rows,
                rows_out: got.rows,
                per_second: MedianRange::of(&one.rates),
                cpu_ns: report.total.cpu_ns as f64 / rows.max(1) as f64,
                bytes_sent: report.total.bytes_sent,
            });
        }
    }
    Ok(all.into_iter().filter_map(|one| one.point).filter(|_| first).collect())
}
