//! The outputs of an operator on one worker: the edges that lead from it, and the steps on them.

use std::rc::Rc;
use std::sync::Arc;

use arrow::array::{Int64Array, RecordBatch};
use state::ConsumedRows;

use super::{Counted, Node};
use crate::error::DataflowError;
use crate::exchange::Task;
use crate::job::fault::at_row;
use crate::job::step::chosen;
use crate::job::{Fusion, RawBatch, RawColumns, Step};
use crate::operators::downstream::Downstream;
use crate::operators::operator::Fused;
use crate::operators::probe_stage::ProbeStage;
use crate::rows::selection::Selection;
use crate::rows::time::ticks_of;
use crate::rows::{FusedRows, Rows};

/// An edge, as the operator in front of it sees it.
pub(super) struct OutputEdge {
    pub(super) to: Rc<Node>,
    /// The number of that operator in the job.
    pub(super) operator: usize,
    pub(super) input: usize,
    /// Its number among all edges that lead to that operator.
    pub(super) number: u32,
    pub(super) step: Option<Arc<dyn Step>>,
    pub(super) timed: bool,
    pub(super) lateness: i64,
    /// Whether windows are over the very column that a source's watermark is of.
    pub(super) windows_event_time: bool,
}

impl OutputEdge {
    pub(super) fn apply(&self, rows: Rows, unread: Option<usize>) -> Result<Rows, DataflowError> {
        let behind = |each: Int64Array| match self.lateness {
            0 => each,
            _ => each.unary(|watermark| self.behind(watermark)),
        };
        let watermarks = rows.watermarks.filter(|_| self.timed).map(behind);
        let Some(step) = &self.step else { return Ok(Rows { watermarks, ..rows }) };
        let stepped = step.apply_for(&rows.batch, unread);
        let stepped = stepped.map_err(|error| at_row(step.as_ref(), &rows.batch, error))?;
        let watermarks = watermarks.map(|each| ticks_of(&each, &stepped.origin)).transpose()?;
        Ok(Rows { batch: stepped.batch, watermarks, span: None })
    }

    /// The rows behind the edge, before their columns are copied, if the step chooses columns
    /// alone.
    fn selection(&self, rows: &Selection) -> Option<Selection> {
        let columns = chosen(self.step.as_ref(), rows.width())?;
        let schema = self.step.as_ref().map_or_else(|| rows.schema(), |step| step.schema());
        Some(rows.project(&columns, schema))
    }

    /// The columns of a batch from which a fused scan computes key and argument.
    pub(super) fn raw(
        &self,
        batch: &RecordBatch,
        &Fusion { key, arg, .. }: &Fusion,
    ) -> Result<Option<RawBatch>, DataflowError> {
        match &self.step {
            Some(step) => {
                let raw = step.raw(batch, key, arg);
                raw.map_err(|error| at_row(step.as_ref(), batch, error))
            }
            None => Ok(Some(RawBatch::of(batch, key, arg))),
        }
    }

    /// The watermark behind the edge.
    fn behind(&self, watermark: i64) -> i64 {
        match watermark {
            i64::MIN | i64::MAX => watermark,
            _ => watermark.saturating_sub(self.lateness),
        }
    }

    /// The watermark before the edge that is this one behind it.
    fn before(&self, watermark: i64) -> i64 {
        match watermark {
            i64::MIN | i64::MAX => watermark,
            _ => watermark.saturating_add(self.lateness),
        }
    }
}

/// All edges that lead away from an operator.
pub(crate) struct Outputs {
    pub(super) to: Vec<OutputEdge>,
    pub(super) counted: Counted,
}

impl Downstream for Outputs {
    fn count_read(&self, rows: usize) {
        self.counted.add_in(rows);
    }

    async fn push(&self, rows: Rows) -> Result<(), DataflowError> {
        self.counted.add_out(rows.batch.num_rows());
        let Some((last, others)) = self.to.split_last() else { return Ok(()) };
        for edge in others {
            let pushed = edge.to.push(edge, rows.clone()).await;
            pushed.map_err(|error| error.of_operator(edge.operator))?;
        }
        let pushed = last.to.push(last, rows).await;
        pushed.map_err(|error| error.of_operator(last.operator))
    }

    async fn push_selection(&self, rows: Selection) -> Result<(), DataflowError> {
        let taken = match &self.to[..] {
            [edge] => edge.selection(&rows).map(|selection| (edge, selection)),
            _ => None,
        };
        let Some((edge, selection)) = taken else {
            return self.push(Rows::on_time(rows.materialized()?)).await;
        };
        self.counted.add_out(rows.len());
        let pushed = edge.to.push_selection(edge, selection).await;
        pushed.map_err(|error| error.of_operator(edge.operator))
    }

    async fn fold(&self, rows: FusedRows<'_>, fusion: &Fusion) -> Result<usize, DataflowError> {
        let [edge] = &self.to[..] else { return Ok(0) };
        let folded = edge.to.fold(edge, rows, fusion).await;
        let rows = folded.map_err(|error| error.of_operator(edge.operator))?.rows;
        self.counted.add_out(rows);
        Ok(rows)
    }

    fn fold_looked(
        &self,
        rows: FusedRows<'_>,
        raw: RawColumns<'_>,
    ) -> Result<ConsumedRows, DataflowError> {
        let [edge] = &self.to[..] else { return Ok(ConsumedRows::default()) };
        if edge.to.is_held(edge.number) {
            return Ok(ConsumedRows::default());
        }
        let Some(_guard) = edge.to.mutex.try_lock() else { return Ok(ConsumedRows::default()) };
        let folded = edge.to.fold_raw(Fused { rows, lookup: None, raw });
        let folded = folded.map_err(|error| error.of_operator(edge.operator))?;
        self.counted.add_out(folded.passed);
        Ok(folded)
    }

    fn finish_fold(&self) -> Option<Task<'_>> {
        let [edge] = &self.to[..] else { return None };
        let finished = edge.to.operator.finish_fold(edge.timed)?;
        Some(Box::pin(async move {
            let _guard = edge.to.mutex.lock().await;
            finished.await
        }))
    }

    fn next_stage(&self) -> Option<&dyn ProbeStage> {
        match &self.to[..] {
            [edge] => edge.to.operator.probe_stage(),
            _ => None,
        }
    }

    fn is_satisfied(&self) -> bool {
        !self.to.is_empty() && self.to.iter().all(|edge| edge.to.operator.is_satisfied())
    }

    fn ends_window(&self, watermark: i64) -> bool {
        let mut timed = self.to.iter().filter(|edge| edge.timed);
        timed.any(|edge| edge.to.ends_window(edge.number, edge.behind(watermark)))
    }

    async fn advance(&self, watermark: i64, idle: bool) -> Result<(), DataflowError> {
        self.counted.set_watermark(watermark);
        for edge in self.to.iter().filter(|edge| edge.timed) {
            edge.to.progress(edge.number, edge.behind(watermark), idle).await?;
        }
        Ok(())
    }

    fn advance_or_wait(&self, watermark: i64, idle: bool) -> Option<Task<'_>> {
        let mut timed = self.to.iter().filter(|edge| edge.timed);
        let one = match (timed.next(), timed.next()) {
            (Some(edge), None) if !edge.to.is_held(edge.number) => {
                edge.to.mutex.try_lock().map(|guard| (edge, guard))
            }
            _ => None,
        };
        let Some((edge, guard)) = one else {
            return Some(Box::pin(self.advance(watermark, idle)));
        };
        self.counted.set_watermark(watermark);
        let announced = edge.to.progress_locked(edge.number, edge.behind(watermark), idle)?;
        Some(Box::pin(async move {
            let _guard = guard;
            announced.await
        }))
    }

    async fn resume(&self) -> Result<i64, DataflowError> {
        let mut reached = i64::MIN;
        for edge in self.to.iter().filter(|edge| edge.timed) {
            reached = reached.max(edge.before(edge.to.resume(edge.number).await?));
        }
        Ok(reached)
    }

    async fn mark(&self, round: u64) -> Result<(), DataflowError> {
        for edge in &self.to {
            let marked = edge.to.mark(edge.number, round).await;
            marked.map_err(|error| error.of_operator(edge.operator))?;
        }
        Ok(())
    }

    async fn end(&self, watermark: i64) -> Result<(), DataflowError> {
        self.counted.set_watermark(watermark);
        for edge in &self.to {
            let announced = if edge.timed || watermark == i64::MAX { watermark } else { i64::MIN };
            edge.to.end(edge, edge.behind(announced)).await?;
        }
        Ok(())
    }
}
