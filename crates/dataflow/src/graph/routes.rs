//! The edges of a job on one worker: where the rows of an operator go, and what is done to them on
//! the way.

use std::rc::Rc;
use std::sync::Arc;

use arrow::array::RecordBatch;
use state::Folded;

use super::{Counted, Node};
use crate::error::DataflowError;
use crate::job::fault::at_row;
use crate::job::{Fusion, RawBatch, RawColumns, Step};
use crate::operators::downstream::Downstream;
use crate::operators::operator::Fused;
use crate::rows::time::ticks_of;
use crate::rows::{FusedRows, Rows};

/// An edge as the operator sees it that gives out rows.
pub(super) struct Route {
    pub(super) to: Rc<Node>,
    /// The number of that operator in the job.
    pub(super) operator: usize,
    pub(super) input: usize,
    pub(super) feeder: u32,
    pub(super) step: Option<Arc<dyn Step>>,
    pub(super) timed: bool,
    pub(super) lateness: i64,
    /// Whether windows are over the very column that a source's watermark is of.
    pub(super) windows_event_time: bool,
}

impl Route {
    pub(super) fn apply(&self, rows: Rows, unread: Option<usize>) -> Result<Rows, DataflowError> {
        let met = rows.met.filter(|_| self.timed).map(|met| match self.lateness {
            0 => met,
            _ => met.unary(|watermark| self.behind(watermark)),
        });
        let Some(step) = &self.step else { return Ok(Rows { met, ..rows }) };
        let stepped = step.apply_for(&rows.batch, unread);
        let stepped = stepped.map_err(|error| at_row(step.as_ref(), &rows.batch, error))?;
        let met = met.map(|met| ticks_of(&met, &stepped.origin)).transpose()?;
        Ok(Rows { batch: stepped.batch, met, span: None })
    }

    /// What a fused scan makes the key and the argument of a batch of.
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

    /// What the operator is told of a watermark.
    fn behind(&self, watermark: i64) -> i64 {
        match watermark {
            i64::MIN | i64::MAX => watermark,
            _ => watermark.saturating_sub(self.lateness),
        }
    }

    /// The watermark of which the operator was told so.
    fn ahead(&self, told: i64) -> i64 {
        match told {
            i64::MIN | i64::MAX => told,
            _ => told.saturating_add(self.lateness),
        }
    }
}

/// All edges that lead away from an operator.
pub(crate) struct Routes {
    pub(super) to: Vec<Route>,
    pub(super) counted: Counted,
}

impl Downstream for Routes {
    fn count_read(&self, rows: usize) {
        self.counted.add_in(rows);
    }

    async fn push(&self, rows: Rows) -> Result<(), DataflowError> {
        self.counted.add_out(rows.batch.num_rows());
        let Some((last, others)) = self.to.split_last() else { return Ok(()) };
        for route in others {
            let pushed = route.to.push(route, rows.clone()).await;
            pushed.map_err(|error| error.of_operator(route.operator))?;
        }
        let pushed = last.to.push(last, rows).await;
        pushed.map_err(|error| error.of_operator(last.operator))
    }

    async fn fold(&self, rows: FusedRows<'_>, fusion: &Fusion) -> Result<usize, DataflowError> {
        let [route] = &self.to[..] else { return Ok(0) };
        let folded = route.to.fold(route, rows, fusion).await;
        let rows = folded.map_err(|error| error.of_operator(route.operator))?.rows;
        self.counted.add_out(rows);
        Ok(rows)
    }

    async fn fold_looked(
        &self,
        rows: FusedRows<'_>,
        raw: RawColumns<'_>,
    ) -> Result<Folded, DataflowError> {
        let [route] = &self.to[..] else { return Ok(Folded::default()) };
        let folded = route.to.fold_raw(route, Fused { rows, lookup: None, raw }).await;
        let folded = folded.map_err(|error| error.of_operator(route.operator))?;
        self.counted.add_out(folded.passed);
        Ok(folded)
    }

    fn awaits(&self, watermark: i64) -> bool {
        let mut timed = self.to.iter().filter(|route| route.timed);
        timed.any(|route| route.to.awaits(route.feeder, route.behind(watermark)))
    }

    async fn advance(&self, watermark: i64, idle: bool) -> Result<(), DataflowError> {
        self.counted.tell(watermark);
        for route in self.to.iter().filter(|route| route.timed) {
            route.to.progress(route.feeder, route.behind(watermark), idle).await?;
        }
        Ok(())
    }

    async fn resume(&self) -> Result<i64, DataflowError> {
        let mut reached = i64::MIN;
        for route in self.to.iter().filter(|route| route.timed) {
            reached = reached.max(route.ahead(route.to.resume(route.feeder).await?));
        }
        Ok(reached)
    }

    async fn end(&self, watermark: i64) -> Result<(), DataflowError> {
        self.counted.tell(watermark);
        for route in &self.to {
            let told = if route.timed || watermark == i64::MAX { watermark } else { i64::MIN };
            route.to.end(route.feeder, route.behind(told)).await?;
        }
        Ok(())
    }
}
