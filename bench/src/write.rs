//! The rows of a workload in a file, for other engines: what is compared reads the same rows.

use std::fmt;
use std::path::Path;

use millstream::{RowTarget, RunOptions, Session};

use crate::reference;
use crate::run::BenchError;
use crate::tally::Sums;
use crate::task::Task;
use crate::workload::{Size, Workload};

/// What a file of rows holds, and what is to come out of it.
#[derive(Debug, Clone, Copy)]
pub struct Written {
    /// Rows in the file.
    pub rows: u64,
    /// Sums over the workload's result.
    pub result: Sums,
}

/// Writes the columns that a workload reads to `path`, in the order of event time. The extension
/// says how: `parquet`, `arrow`, `csv`, ….
///
/// # Errors
/// [`BenchError::Tables`] for joins of two tables; when the size is refused or the file cannot be
/// written.
pub fn write(workload: Workload, size: &Size, path: &Path) -> Result<Written, BenchError> {
    let target = RowTarget::File { path: path.display().to_string(), format: None };
    let mut session = Session::builder().workers(1).rows_to(target).build()?;
    let report = session.sql(&rows_sql(workload, size)?)?.run(&RunOptions::default())?;
    Ok(Written { rows: report.total.rows_out, result: reference::sums(workload, size)? })
}

/// SQL that gives out the columns that a workload reads.
fn rows_sql(workload: Workload, size: &Size) -> Result<String, BenchError> {
    let (table, columns) = match workload.task() {
        Task::Groups(shape) => (shape.table, shape.columns()),
        Task::Ratio(ratio) => (ratio.table, vec![ratio.key.0, ratio.window.time, ratio.kind]),
        Task::Meeting(_) => return Err(BenchError::Tables(workload)),
    };
    let sql = workload.sql(size).replace("'preload' = 'true'", "'preload' = 'false'");
    let made = sql.split_inclusive(';').next().unwrap_or_default();
    Ok(format!("{made}\nSELECT {} FROM {table};", columns.join(", ")))
}

impl Written {
    /// As a JSON object on a line.
    pub fn json(&self) -> String {
        let Self { rows, result } = self;
        let Sums { rows: result_rows, whole, real } = result;
        format!(
            "{{\"rows\":{rows},\"result_rows\":{result_rows},\"whole\":{whole},\"real\":{real:e}}}\n"
        )
    }
}

impl fmt::Display for Written {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Sums { rows, whole, real } = self.result;
        writeln!(f, "{} rows written; the result has {rows} (sums {whole} and {real:e})", self.rows)
    }
}
