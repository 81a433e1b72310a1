//! The rows of a workload in a file, for other engines: what is compared reads the same rows.

use std::fmt;
use std::path::Path;

use millstream::{RowTarget, RunOptions, Session};

use crate::checksums::ChecksumTotals;
use crate::reference;
use crate::run::BenchError;
use crate::task::{WorkloadInput, WorkloadTask};
use crate::workload::{Workload, WorkloadSize};

/// The content of files of rows, and the expected result.
#[derive(Debug, Clone, Copy)]
pub struct Written {
    /// Rows in the files.
    pub rows: u64,
    /// Sums over the workload's result.
    pub result: ChecksumTotals,
}

/// Writes the columns that a workload reads to `path`, in the order of event time. The extension
/// says how: `parquet`, `arrow`, `csv`, …. Where a workload reads two streams there is a file for
/// each, with the table's name in front of the extension: `rows.bids.parquet`; so there is for a
/// table that a stream is joined with, whose rows are not counted.
///
/// # Errors
/// When the size is refused or a file cannot be written.
pub fn write(workload: Workload, size: &WorkloadSize, path: &Path) -> Result<Written, BenchError> {
    let sql = workload.sql(size).replace("'preload' = 'true'", "'preload' = 'false'");
    let streams = streams(workload);
    let tables = streams.iter().chain(&table_beside(workload)).cloned().collect::<Vec<_>>();
    let mut rows = 0;
    for (at, ((table, columns), made)) in tables.iter().zip(sql.split_inclusive(';')).enumerate() {
        let is_stream = at < streams.len();
        let path = match path.extension() {
            Some(extension) if streams.len() > 1 || !is_stream => {
                path.with_extension(format!("{table}.{}", extension.display()))
            }
            _ => path.to_owned(),
        };
        let target = RowTarget::File { path: path.display().to_string(), format: None };
        let mut session = Session::builder().workers(1).rows_to(target).build()?;
        let script = format!("{made}\nSELECT {} FROM {table};", columns.join(", "));
        let written = session.sql(&script)?.run(&RunOptions::default())?.total.rows_out;
        rows += if is_stream { written } else { 0 };
    }
    Ok(Written { rows, result: reference::sums(workload, size)? })
}

/// A table with the columns that are read.
type Table = (&'static str, Vec<&'static str>);

/// The table that a workload joins its stream with, which its SQL makes behind that.
fn table_beside(workload: Workload) -> Option<Table> {
    matches!(workload, Workload::Ysb | Workload::YsbStar)
        .then(|| ("ads", vec!["ad_id", "campaign_id"]))
}

/// The streams that a workload reads, as its SQL makes them.
fn streams(workload: Workload) -> Vec<Table> {
    match workload.task() {
        WorkloadTask::Groups(shape) => vec![(shape.table, shape.columns())],
        WorkloadTask::Ratio(ratio) => {
            vec![(ratio.table, vec![ratio.key.0, ratio.window.time, ratio.kind])]
        }
        WorkloadTask::Join(join) => {
            let columns = |side: WorkloadInput, value: Option<&'static str>| {
                let known = [side.key, side.time].into_iter().chain(value);
                (side.table, known.chain(side.others.iter().copied()).collect())
            };
            vec![columns(join.left, Some(join.value)), columns(join.right, None)]
        }
    }
}

impl Written {
    /// As a JSON object on a line.
    pub fn json(&self) -> String {
        let Self { rows, result } = self;
        let ChecksumTotals { rows: result_rows, whole, real } = result;
        format!(
            "{{\"rows\":{rows},\"result_rows\":{result_rows},\"whole\":{whole},\"real\":{real:e}}}\n"
        )
    }
}

impl fmt::Display for Written {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ChecksumTotals { rows, whole, real } = self.result;
        writeln!(f, "{} rows written; the result has {rows} (sums {whole} and {real:e})", self.rows)
    }
}
