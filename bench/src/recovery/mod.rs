//! Recovery: the cost of checkpoints, the stall of workers while one is taken, and the time that a
//! job needs to go on from one.
//!
//! ```text
//! input ─ reads, marks ─▶ the job ─▶ checksums          as a user's job, through SQL
//!                            └ checkpoints ─▶ store     records and bytes, with their times
//! ```
//!
//! Jobs run in this process, so that its processor time is theirs. The command measures failures of
//! processes, since it starts them.

mod cost;
pub mod estimate;
pub mod input;
mod job;
mod load;
mod stall;
pub mod store;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use self::job::Jobs;
use crate::report::{ReportSection, ReportTable};
use crate::run::BenchError;

/// Bytes of a group in the state of the jobs: its window, its key and its count. A checkpoint has
/// fewer, for its columns are narrow.
pub const GROUP_BYTES: f64 = 24.0;

/// A part of the measurements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RecoveryPart {
    /// Processor time with and without checkpoints.
    Cost,
    /// Stalls of workers, and the time until a checkpoint is stored.
    Stall,
    /// The load of a checkpoint.
    Load,
}

/// The extent of the measurements.
#[derive(Debug, Clone)]
pub struct RecoveryPlan {
    /// Groups and bytes, in parts of what the targets are for.
    pub scale: f64,
    /// Seconds of processor time of each run of a pair.
    pub seconds: f64,
    /// Pairs of runs.
    pub pairs: u32,
    /// Seconds between two checkpoints where stalls are measured.
    pub stall_seconds: f64,
    /// Checkpoints of each run where stalls are measured.
    pub checkpoints: u32,
    /// Loads of a checkpoint.
    pub loads: u32,
    /// Threads of each job.
    pub workers: u32,
    /// The directory of the checkpoints, which are removed at the end.
    pub directory: PathBuf,
}

/// Measures a part.
///
/// # Errors
/// The first failure of a job, and results that checkpoints change.
pub fn measure(plan: &RecoveryPlan, part: RecoveryPart) -> Result<ReportSection, BenchError> {
    match part {
        RecoveryPart::Cost => cost(plan),
        RecoveryPart::Stall => stalls(plan),
        RecoveryPart::Load => load(plan),
    }
}

fn cost(plan: &RecoveryPlan) -> Result<ReportSection, BenchError> {
    let mut section = ReportSection {
        title: "Cost of checkpoints".into(),
        text: vec![
            "Processor time of the process, from the first row that is read to the end of the job: \
             with checkpoints against without, over the same rows, in alternating pairs."
                .into(),
            "The interval has the median with a probability of 95 %; its upper end is what counts."
                .into(),
        ],
        ..ReportSection::default()
    };
    let mut rows = Vec::new();
    for case in cost::CASES {
        // Rows of one case are not kept for the next.
        let outcome = cost::measure(plan, &Jobs::default(), case)?;
        section.bars.push(outcome.bar());
        rows.push(outcome.row());
    }
    section.tables.push(table(&cost::COLUMNS, rows));
    Ok(section)
}

fn stalls(plan: &RecoveryPlan) -> Result<ReportSection, BenchError> {
    let mut section = ReportSection {
        title: "Stalls and times of checkpoints".into(),
        text: vec![
            "All groups change between two checkpoints. Times are milliseconds; a stall is the \
             greatest gap between two reads near a mark, less the usual gap. The processor time \
             of the worker in it stands beside it: what is more is waiting, or taken by others."
                .into(),
            format!(
                "A group has {GROUP_BYTES} bytes in the state; those of a checkpoint are fewer."
            ),
        ],
        ..ReportSection::default()
    };
    let mut rows = Vec::new();
    for (groups, limit_ms) in stall::STALLS {
        let groups = (groups * plan.scale).max(100.0) as u64;
        let outcome = stall::measure(plan, &Jobs::default(), groups)?;
        section.bars.push(outcome.stall_bar(limit_ms));
        rows.push(outcome.row());
    }
    let (bytes, limit_ms) = stall::STORED;
    let groups = (bytes * plan.scale / GROUP_BYTES).max(100.0) as u64;
    let outcome = stall::measure(plan, &Jobs::default(), groups)?;
    section.bars.push(outcome.stored_bar(limit_ms));
    rows.push(outcome.row());
    section.tables.push(table(&stall::COLUMNS, rows));
    Ok(section)
}

fn load(plan: &RecoveryPlan) -> Result<ReportSection, BenchError> {
    let jobs = Jobs::default();
    let (bytes, limit) = load::LOADED;
    let groups = (bytes * plan.scale / GROUP_BYTES).max(1000.0) as u64;
    let outcome = load::measure(plan, &jobs, groups)?;
    Ok(ReportSection {
        title: "Load of a checkpoint".into(),
        text: vec![
            "From the start of a run that goes on from a checkpoint to the first row that it \
             reads. The files were written by the run before, and may lie in the memory of the \
             system."
                .into(),
        ],
        bars: vec![outcome.bar(limit)],
        ..ReportSection::default()
    })
}

fn table(columns: &[&str], rows: Vec<Vec<String>>) -> ReportTable {
    let columns = columns.iter().map(|column| (*column).to_owned()).collect();
    ReportTable { title: String::new(), columns, rows }
}

/// A directory for the checkpoints of a job, which is removed at the end.
#[derive(Debug)]
pub struct StateDirectory(PathBuf);

impl StateDirectory {
    /// Makes one within another.
    ///
    /// # Errors
    /// A directory that cannot be made.
    pub fn new(within: &Path) -> Result<Self, BenchError> {
        // Relaxed: the number is unlike all others of this process, and orders nothing.
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("millstream-bench-recovery-{}-{number}", std::process::id());
        let directory = within.join(name);
        match std::fs::create_dir_all(&directory) {
            Ok(()) => Ok(Self(directory)),
            Err(error) => Err(BenchError::Directory { directory, error }),
        }
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for StateDirectory {
    fn drop(&mut self) {
        // If that fails, the files stay.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
