//! One thread that does what a workload does, by a loop written for it: what COST is counted
//! against (S15). It reads the same rows, from memory, in columns, and gives the same sums.
//!
//! Groups are an array by key, as a person would write it who knows that keys are small numbers.

use std::hint::black_box;
use std::time::Instant;

use arrow::array::{Array, AsArray};
use arrow::datatypes::{Float32Type, Int8Type, Int64Type, TimestampMillisecondType};
use arrow::record_batch::RecordBatch;
use millstream::Counters;

use crate::checksums::ChecksumTotals;
use crate::reference::TableRows;
use crate::run::BenchError;
use crate::summary::{AgainstLimits, MeasuredRun, Summary};
use crate::task::{WorkloadAggregate, WorkloadGroups, WorkloadTask};
use crate::workload::{Workload, WorkloadSize};

/// The rows of a workload, in memory.
pub(crate) struct Loop {
    shape: WorkloadGroups,
    batches: Vec<RecordBatch>,
    keys: usize,
    workload: Workload,
    size: WorkloadSize,
    runs: Vec<(MeasuredRun, ChecksumTotals)>,
}

impl Loop {
    /// Of a workload of one worker.
    ///
    /// # Errors
    /// [`BenchError::NoLoop`] for what is not groups in windows that do not overlap; when the
    /// generator refuses the size.
    pub(crate) fn new(workload: Workload, size: &WorkloadSize) -> Result<Self, BenchError> {
        let apart = |shape: &WorkloadGroups| shape.window.is_none_or(|w| w.size_ms == w.slide_ms);
        let shape = match workload.task() {
            WorkloadTask::Groups(shape) if apart(&shape) => shape,
            _ => return Err(BenchError::NoLoop(workload)),
        };
        let mut rows = TableRows::open(&workload.sql(size), shape.table, &shape.columns())?;
        let (mut batches, mut keys) = (Vec::new(), 0);
        while let Some(batch) = rows.next()? {
            let most = column(&batch, 0).iter().max().copied().unwrap_or(0);
            keys = keys.max(1 + (most / shape.key.1) as usize);
            batches.push(batch);
        }
        Ok(Self { shape, batches, keys, workload, size: *size, runs: Vec::new() })
    }

    /// Runs it once more. `bandwidth` is what memory gave right before.
    pub(crate) fn run(&mut self, bandwidth: f64) {
        let start = Instant::now();
        let sums = black_box(self.sums());
        let elapsed = start.elapsed();
        self.runs.push((MeasuredRun { elapsed, busy: elapsed, bandwidth }, sums));
    }

    /// The figures, if all results are right.
    pub(crate) fn check(
        self,
        right: ChecksumTotals,
        hertz: Option<f64>,
    ) -> Result<Summary, BenchError> {
        if let Some((_, got)) = self.runs.iter().find(|(_, got)| !right.agrees(got)) {
            let variant = format!("{} (loop)", self.workload);
            return Err(BenchError::Wrong { variant, got: *got, right });
        }
        let bytes = |batch: &RecordBatch| -> usize {
            let each = batch.columns().iter().map(|c| c.to_data().get_slice_memory_size());
            each.map(|bytes| bytes.unwrap_or(0)).sum()
        };
        let total = Counters {
            rows_in: self.size.rows(),
            bytes_in: self.batches.iter().map(bytes).sum::<usize>() as u64,
            rows_out: right.rows,
            ..Counters::default()
        };
        let runs = self.runs.into_iter().map(|(run, _)| run).collect();
        let (workload, size) = (self.workload, self.size);
        let variant = "loop".into();
        let against = AgainstLimits::default();
        Ok(Summary { workload, variant, size, runs, total, hertz, against })
    }

    fn sums(&self) -> ChecksumTotals {
        match (self.shape.answer, self.shape.filter) {
            (WorkloadAggregate::Count, Some((_, word))) => self.fold(
                0i64,
                |batch| {
                    let kinds = batch.column(2).as_dictionary::<Int8Type>();
                    let mut words = kinds.values().as_string::<i32>().iter();
                    let is = words.position(|value| value == Some(word)).map_or(-1, |at| at as i8);
                    (kinds.keys().values(), is)
                },
                |count, (kinds, is), row| *count += i64::from(kinds[row] == *is),
                |count| (count != 0).then_some(Ok(count)),
            ),
            (WorkloadAggregate::Count, None) => self.fold(
                0i64,
                |_| (),
                |count, (), _| *count += 1,
                |count| (count != 0).then_some(Ok(count)),
            ),
            (WorkloadAggregate::Max, _) => self.fold(
                i64::MIN,
                |batch| column(batch, batch.num_columns() - 1),
                |most, values, row| *most = (*most).max(values[row]),
                |most| (most != i64::MIN).then_some(Ok(most)),
            ),
            (WorkloadAggregate::Mean, _) => self.fold(
                (0.0f64, 0u64),
                |batch| {
                    let values = batch.column(batch.num_columns() - 1);
                    values.as_primitive::<Float32Type>().values()
                },
                |(sum, count), values, row| {
                    *sum += f64::from(values[row]);
                    *count += 1;
                },
                |(sum, count)| (count != 0).then_some(Err(sum / count as f64)),
            ),
        }
    }

    /// Folds rows into an array by key, and emits what is in it where a window ends.
    fn fold<'a, G: Copy, C>(
        &'a self,
        zero: G,
        columns: impl Fn(&'a RecordBatch) -> C,
        add: impl Fn(&mut G, &C, usize),
        result: impl Fn(G) -> Option<Result<i64, f64>>,
    ) -> ChecksumTotals {
        let mut groups = vec![zero; self.keys];
        let mut sums = ChecksumTotals::default();
        let mut give_out = |groups: &mut Vec<G>| {
            for (key, group) in groups.iter_mut().enumerate() {
                match result(std::mem::replace(group, zero)) {
                    Some(Ok(whole)) => sums.add_whole(key as i64, whole),
                    Some(Err(real)) => sums.add_real(key as i64, real),
                    None => {}
                }
            }
        };
        let (divisor, mut ends) = (self.shape.key.1, i64::MIN);
        for batch in &self.batches {
            let (keys, columns) = (column(batch, 0), columns(batch));
            let run =
                |groups: &mut Vec<G>, rows: std::ops::Range<usize>| match divisor {
                    1 => rows.for_each(|row| add(&mut groups[keys[row] as usize], &columns, row)),
                    // A constant is not divided by.
                    10 => rows
                        .for_each(|row| add(&mut groups[(keys[row] / 10) as usize], &columns, row)),
                    by => rows
                        .for_each(|row| add(&mut groups[(keys[row] / by) as usize], &columns, row)),
                };
            let Some(window) = self.shape.window else {
                run(&mut groups, 0..keys.len());
                continue;
            };
            let times = batch.column(1).as_primitive::<TimestampMillisecondType>().values();
            let mut from = 0;
            while from < times.len() {
                if times[from] >= ends {
                    give_out(&mut groups);
                    ends = (times[from].div_euclid(window.size_ms) + 1) * window.size_ms;
                }
                // Times are in order.
                let to = from + times[from..].partition_point(|time| *time < ends);
                run(&mut groups, from..to);
                from = to;
            }
        }
        give_out(&mut groups);
        sums
    }
}

fn column(batch: &RecordBatch, at: usize) -> &[i64] {
    batch.column(at).as_primitive::<Int64Type>().values()
}
