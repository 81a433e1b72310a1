//! `LIMIT` and `OFFSET` on one worker: rows go to worker 0 as they come, which emits the range.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::ready;
use std::rc::Rc;
use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, RecordBatch, UInt64Array};
use arrow::datatypes::UInt64Type;
use state::epoch::{END_OF_STREAM, Progress};

use crate::checkpoint::{OperatorSnapshot, SavedRows};
use crate::error::DataflowError;
use crate::exchange::{
    AnyExchange, Arrival, GATHERER, Gather, Inputs, Instance, Member, Outgoing, Task,
};
use crate::job::{Limit, RowRange};
use crate::operators::downstream::Downstream;
use crate::operators::operator::{Arriving, OperatorContext, OperatorTask, end_round};
use crate::operators::restoring::Restoring;
use crate::rows::Rows;
use crate::runtime::external::External;
use crate::runtime::place::Signals;

/// Rows that are still to be skipped and to be emitted.
pub(crate) struct RowCut {
    skip: usize,
    left: usize,
}

impl RowCut {
    /// The complete range.
    pub(crate) fn of(RowRange { skip, fetch }: RowRange) -> Self {
        Self { skip, left: fetch.unwrap_or(usize::MAX) }
    }

    /// The rows of a batch that are emitted, if there are any.
    pub(crate) fn take(&mut self, batch: RecordBatch) -> Option<RecordBatch> {
        let skipped = self.skip.min(batch.num_rows());
        let taken = (batch.num_rows() - skipped).min(self.left);
        self.skip -= skipped;
        self.left -= taken;
        (taken > 0).then(|| batch.slice(skipped, taken))
    }

    /// The rest of the range, as a row.
    fn save(&self) -> Result<RecordBatch, DataflowError> {
        let count = |rows: usize| -> ArrayRef { Arc::new(UInt64Array::from(vec![rows as u64])) };
        let columns = [("skip", count(self.skip)), ("left", count(self.left))];
        Ok(RecordBatch::try_from_iter(columns)?)
    }

    /// The rest of the range.
    fn load(&mut self, rows: &RecordBatch) -> Result<(), DataflowError> {
        let count = |at: usize| rows.column(at).as_primitive::<UInt64Type>().values().first();
        if let (Some(&skip), Some(&left)) = (count(0), count(1)) {
            self.skip = self.skip.min(usize::try_from(skip).unwrap_or(usize::MAX));
            self.left = self.left.min(usize::try_from(left).unwrap_or(usize::MAX));
        }
        Ok(())
    }

    /// Whether no more rows are emitted.
    pub(crate) fn is_full(&self) -> bool {
        self.left == 0
    }
}

/// A limit on one worker.
pub(crate) struct LimitRun<D> {
    instance: Instance,
    /// On worker 0: the range that it emits. On another worker: the rows that worker 0 may need.
    cut: RefCell<RowCut>,
    /// On worker 0: rows of other workers that are not emitted yet.
    arrived: RefCell<VecDeque<(Arrival, RecordBatch)>>,
    /// Whether all rows of this worker have come.
    complete: Cell<bool>,
    external: Rc<External>,
    signals: Arc<Signals>,
    behind: D,
}

impl<D: Downstream> LimitRun<D> {
    pub(crate) fn new(
        OperatorContext { tag, place, net, .. }: OperatorContext<'_>,
        Limit { schema, range }: &Limit,
        behind: D,
    ) -> Self {
        let inputs = match place.workers {
            1 => Inputs::local(1, place),
            _ => Inputs::of(
                vec![AnyExchange::Gather(Box::new(Gather::new(0, schema, place)))],
                place,
            ),
        };
        let alone = inputs.is_local() || place.worker != GATHERER;
        let range = match place.worker {
            GATHERER => *range,
            _ => RowRange { skip: 0, fetch: range.needed() },
        };
        Self {
            instance: Instance::new(tag, place, net, inputs, alone),
            cut: RefCell::new(RowCut::of(range)),
            arrived: RefCell::default(),
            complete: Cell::new(false),
            external: place.external.clone(),
            signals: place.signals.clone(),
            behind,
        }
    }

    /// Takes rows of this worker.
    async fn take_own(&self, batch: RecordBatch) -> Result<(), DataflowError> {
        if self.instance.worker == GATHERER {
            return self.emit(batch).await;
        }
        let rows = self.cut.borrow_mut().take(batch);
        if let Some(rows) = rows.filter(|_| !self.instance.inputs.is_satisfied(self)) {
            self.instance.inputs.push(self, Outgoing::of(0, rows)).await?;
        }
        Ok(())
    }

    /// Emits the rows of the range, on worker 0. When it has all, that is reported to all workers.
    async fn emit(&self, batch: RecordBatch) -> Result<(), DataflowError> {
        let (rows, is_full) = {
            let mut cut = self.cut.borrow_mut();
            let was_full = cut.is_full();
            let rows = cut.take(batch);
            (rows, cut.is_full() && !was_full)
        };
        if let Some(rows) = rows {
            self.behind.push(Rows::on_time(rows)).await?;
        }
        if is_full {
            self.instance.inputs.satisfied(self);
            self.satisfied();
        }
        Ok(())
    }

    /// Emits the rows of other workers, until no more come.
    async fn finish(&self) -> Result<(), DataflowError> {
        // No row may be wanted at all.
        if self.instance.worker == GATHERER && self.cut.borrow().is_full() {
            self.instance.inputs.satisfied(self);
            self.satisfied();
        }
        self.emit_arrived_until(|| self.complete.get()).await?;
        self.instance.inputs.end(self, END_OF_STREAM).await?;
        self.emit_arrived_until(|| self.time().1).await?;
        let watermark = if self.signals.is_stopped() { i64::MIN } else { i64::MAX };
        self.behind.end(watermark).await
    }

    async fn emit_arrived_until(&self, is_over: impl Fn() -> bool) -> Result<(), DataflowError> {
        loop {
            let completed = || self.instance.completed();
            let waits = || !self.arrived.borrow().is_empty() || completed().is_some();
            self.instance.clock_moved.wait_for(|| (waits() || is_over()).then_some(())).await;
            let first = self.arrived.borrow_mut().pop_front();
            let Some((arrival, batch)) = first else {
                let Some(round) = completed() else { return Ok(()) };
                end_round(self, &self.behind, round).await?;
                continue;
            };
            self.emit(batch).await?;
            self.instance.inputs.consumed(self, arrival);
        }
    }
}

impl<D: Downstream> OperatorTask for LimitRun<D> {
    fn push(&self, Arriving { rows, .. }: Arriving) -> Task<'_> {
        Box::pin(self.take_own(rows.batch))
    }

    fn resume(&self) -> Task<'_, i64> {
        Box::pin(ready(Ok(i64::MIN)))
    }

    /// All rows of this worker have come.
    fn end(&self, _: i64) -> Task<'_> {
        self.complete.set(true);
        self.instance.clock_moved.notify();
        Box::pin(ready(Ok(())))
    }

    fn end_round(&self, round: u64, progress: Progress) -> Task<'_> {
        Box::pin(self.instance.inputs.end_round(self, round, progress))
    }

    /// The rows that worker 0 still skips and emits. What other workers may need to send is found
    /// again.
    fn save(&self) -> Result<Option<OperatorSnapshot>, DataflowError> {
        if self.instance.worker != GATHERER {
            return Ok(None);
        }
        let rows = self.cut.borrow().save()?;
        let (operator, watermark) = (self.instance.tag, self.least());
        let parts = vec![SavedRows { part: 0, rows }];
        Ok(Some(OperatorSnapshot { operator, version: 1, watermark, parts, stored: vec![] }))
    }

    fn load(&self, from: &Restoring<'_>) -> Result<(), DataflowError> {
        from.each(self.instance.tag, |saved| self.cut.borrow_mut().load(&saved.rows))
    }

    fn run(&self) -> Task<'_> {
        Box::pin(self.finish())
    }

    /// True when worker 0 has all rows of the range. A worker that has sent as many itself goes on
    /// until then: rows that it reads may be exchanged, and come to worker 0 from other workers.
    fn is_satisfied(&self) -> bool {
        let is_full = match self.instance.worker {
            GATHERER => self.cut.borrow().is_full(),
            _ => self.instance.inputs.is_satisfied(self),
        };
        is_full || self.behind.is_satisfied()
    }
}

impl<D: Downstream> Member for LimitRun<D> {
    fn instance(&self) -> &Instance {
        &self.instance
    }

    /// Nothing is complete before the end.
    fn crosses(&self, _: i64, _: i64) -> bool {
        false
    }

    fn keep(&self, arrival: Arrival, batch: RecordBatch) -> Result<(), DataflowError> {
        self.arrived.borrow_mut().push_back((arrival, batch));
        self.instance.clock_moved.notify();
        Ok(())
    }

    /// Wakes the sources that wait for rows, which end then.
    fn satisfied(&self) {
        self.external.waker().wake();
    }
}
