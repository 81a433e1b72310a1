//! `ORDER BY` of an input that ends, on one worker: each worker sorts its own rows, and worker 0
//! merges the sorted streams of all.
//!
//! ```text
//! rows of this worker ─▶ the first of them ([`top`]), or sorted runs ([`runs`])
//!        when its input has ended ─▶ sorted ─▶ gather ─▶ merge ([`merge`]), on worker 0
//! ```
//!
//! If the query asks for few rows, a worker keeps about twice as many at most, and sends no more
//! than the query asks for. The window of the gather exchange bounds the rows of another worker
//! that worker 0 holds: each worker is held back until its rows have been merged.
//!
//! A query that is stopped has read only a part of its rows: it emits nothing.

mod merge;
mod order;
mod runs;
#[cfg(test)]
mod tests;
mod top;

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::ready;
use std::rc::Rc;
use std::sync::Arc;

use arrow::array::RecordBatch;
use state::epoch::END_OF_STREAM;
use state::{Disk, Spilled, StateError};

use self::merge::{Merge, Merged};
use self::order::Order;
use self::runs::{Runs, Sorted};
use self::top::Top;
use crate::checkpoint::OperatorSnapshot;
use crate::error::DataflowError;
use crate::exchange::{
    AnyExchange, Arrival, GATHERER, Gather, Inputs, Instance, Member, Outgoing, Task,
};
use crate::job::Sort;
use crate::operators::downstream::Downstream;
use crate::operators::limit::RowCut;
use crate::operators::operator::{Arriving, OperatorContext, OperatorTask};
use crate::operators::restoring::Restoring;
use crate::rows::Rows;
use crate::rows::size::row_bytes;
use crate::rows::wire::{bytes_of, compact};
use crate::runtime::accounting::StateAccounting;
use crate::runtime::metrics::Metrics;
use crate::runtime::place::{Signals, WorkerContext};
use crate::runtime::scheduler::yield_now;

/// The most first rows that a worker keeps without sorted runs.
const TOP_ROWS_MAX: usize = 1 << 16;
/// The part of its share of memory that they may take: they are copied when some are dropped.
const TOP_PART: usize = 4;

/// The part of the bound on state that a batch of the merge may take, and the part that the rows of
/// all other workers may take before they are merged: worker 0 holds them beside its own rows.
const BATCH_PART: usize = 32;
const WINDOW_PART: usize = 16;
/// The least number of rows of a batch.
const BATCH_ROWS_MIN: usize = 64;

/// The sizes of batches and windows, by the estimated width of a row.
struct InFlightRows {
    /// Rows of a batch.
    batch: usize,
    /// Bytes of the window of a sender to worker 0.
    window: usize,
}

impl InFlightRows {
    /// The sizes for a sort; they are the same on each worker.
    fn of(spec: &Sort, place: &WorkerContext) -> Self {
        let settings = &place.settings;
        let state = settings.state_bytes_max;
        let width = usize::try_from(row_bytes(&spec.schema)).unwrap_or(usize::MAX).max(1);
        let least = width.saturating_mul(2 * BATCH_ROWS_MIN);
        let most = usize::try_from(settings.receive_bytes).unwrap_or(usize::MAX);
        let window = (state / WINDOW_PART / place.workers as usize).max(least).min(most);
        let most = settings.batch_rows_max.min(window / 2 / width).max(BATCH_ROWS_MIN);
        Self { batch: (state / BATCH_PART / width).clamp(BATCH_ROWS_MIN, most), window }
    }
}

/// A sort on one worker.
pub(crate) struct SortRun<D> {
    instance: Instance,
    spec: Sort,
    order: Rc<Order>,
    /// The most rows of a batch that is made.
    rows_max: usize,
    disk: Option<Arc<dyn Disk>>,
    accounting: Rc<StateAccounting>,
    signals: Arc<Signals>,
    /// This worker's rows.
    own: RefCell<Own>,
    /// On worker 0: the rows of each other worker that are not merged yet; and their bytes.
    arrived: RefCell<Vec<VecDeque<(Arrival, RecordBatch)>>>,
    arrived_bytes: Cell<usize>,
    /// Bytes of the rows that are merged here.
    merged_bytes: Cell<usize>,
    spilled: Cell<Spilled>,
    behind: D,
    metrics: Arc<Metrics>,
}

/// The rows of a worker.
enum Own {
    /// The first rows.
    Top(Top),
    /// All rows, or too many first rows for [`Top`].
    Runs(Box<Runs>),
    /// Rows are being written to a disk; the bytes of all.
    Spilling(usize),
    /// The input has ended.
    Sorted(Box<Sorted>),
    /// The rows are not needed any more.
    Over,
}

impl Own {
    fn bytes(&self) -> usize {
        match self {
            Own::Top(top) => top.bytes(),
            Own::Runs(runs) => runs.bytes(),
            Own::Sorted(sorted) => sorted.bytes(),
            Own::Spilling(bytes) => *bytes,
            Own::Over => 0,
        }
    }

    fn spilled(&self) -> Option<Spilled> {
        match self {
            Own::Runs(runs) => Some(runs.spilled()),
            Own::Sorted(sorted) => Some(sorted.spilled()),
            Own::Top(_) | Own::Spilling(_) | Own::Over => None,
        }
    }
}

impl<D: Downstream> SortRun<D> {
    pub(crate) fn new(
        OperatorContext { tag, place, net, metrics, .. }: OperatorContext<'_>,
        spec: &Sort,
        behind: D,
    ) -> Self {
        let rows = InFlightRows::of(spec, place);
        let inputs = match place.workers {
            1 => Inputs::local(1, place),
            _ => {
                let gather = Gather::with_window(0, &spec.schema, place, rows.window as u64);
                Inputs::of(vec![AnyExchange::Gather(Box::new(gather))], place)
            }
        };
        let alone = inputs.is_local() || place.worker != GATHERER;
        let order = Rc::new(Order::of(spec));
        let rows_max = rows.batch;
        let needed = spec.range.needed();
        let own = match needed.filter(|&needed| needed <= TOP_ROWS_MAX) {
            Some(most) => Own::Top(Top::new(order.clone(), most)),
            None => {
                let disk = place.disk.clone();
                Own::Runs(Box::new(Runs::new(order.clone(), needed, rows_max, disk)))
            }
        };
        Self {
            instance: Instance::new(tag, place, net, inputs, alone),
            spec: spec.clone(),
            order,
            rows_max,
            disk: place.disk.clone(),
            accounting: place.accounting.clone(),
            signals: place.signals.clone(),
            own: RefCell::new(own),
            arrived: RefCell::new(vec![VecDeque::new(); place.workers as usize]),
            arrived_bytes: Cell::new(0),
            merged_bytes: Cell::new(0),
            spilled: Cell::default(),
            behind,
            metrics,
        }
    }

    /// Takes rows of this worker.
    async fn add(&self, batch: RecordBatch) -> Result<(), DataflowError> {
        let share = self.accounting.share(self.instance.tag);
        let mut own = self.own.replace(Own::Over);
        match &mut own {
            Own::Top(top) => top.push(batch)?,
            Own::Runs(runs) => runs.push(compact(batch), share)?,
            Own::Spilling(_) | Own::Sorted(_) | Own::Over => {}
        }
        own = match own {
            Own::Top(top) if self.disk.is_some() && top.bytes() > share / TOP_PART => {
                Own::Runs(self.runs(top, share)?)
            }
            Own::Runs(mut runs) if runs.spills(share) => {
                self.own.replace(Own::Spilling(runs.bytes()));
                runs.spill(share, || self.signals.is_stopped()).await?;
                Own::Runs(runs)
            }
            own => own,
        };
        self.own.replace(own);
        self.publish_bytes()
    }

    /// Moves the first rows to runs.
    fn runs(&self, top: Top, share: usize) -> Result<Box<Runs>, DataflowError> {
        let (order, most, disk) = (self.order.clone(), top.most(), self.disk.clone());
        let mut runs = Box::new(Runs::new(order, Some(most), self.rows_max, disk));
        for batch in top.into_gathered() {
            runs.push(batch, share)?;
        }
        Ok(runs)
    }

    /// Sorts the rows of this worker, whose input has ended.
    fn sort(&self) -> Result<(), DataflowError> {
        let runs = match self.own.replace(Own::Over) {
            Own::Top(top) => self.runs(top, usize::MAX)?,
            Own::Runs(runs) => runs,
            Own::Spilling(_) | Own::Sorted(_) | Own::Over => return Ok(()),
        };
        self.own.replace(Own::Sorted(Box::new(runs.sorted()?)));
        Ok(())
    }

    /// The next of this worker's rows in order.
    fn next(&self) -> Result<Option<RecordBatch>, DataflowError> {
        let next = match &mut *self.own.borrow_mut() {
            Own::Sorted(sorted) => sorted.next()?,
            _ => None,
        };
        self.publish_bytes()?;
        Ok(next)
    }

    /// Emits the rows in order, when the input has ended.
    async fn emit(&self) -> Result<(), DataflowError> {
        let ended = || match &*self.own.borrow() {
            Own::Sorted(_) | Own::Over => Some(()),
            Own::Top(_) | Own::Runs(_) | Own::Spilling(_) => None,
        };
        self.instance.clock_moved.wait_for(ended).await;
        if self.instance.worker == GATHERER {
            self.merge().await?;
        } else {
            while let Some(batch) = self.next()?.filter(|_| !self.is_over()) {
                self.instance.inputs.push(self, Outgoing::of(0, batch)).await?;
                yield_now().await;
            }
        }
        self.own.replace(Own::Over);
        self.publish_bytes()?;
        self.instance.inputs.end(self, END_OF_STREAM).await?;
        // Other workers may still send rows, which are not needed.
        let over = || {
            self.drop_arrived();
            self.time().1.then_some(())
        };
        self.instance.clock_moved.wait_for(over).await;
        self.publish_bytes()?;
        let watermark = if self.signals.is_stopped() { i64::MIN } else { i64::MAX };
        self.behind.end(watermark).await
    }

    /// Whether no more rows are needed: the query was stopped, or has all rows that it needs.
    fn is_over(&self) -> bool {
        self.signals.is_stopped()
            || self.behind.is_satisfied()
            || self.instance.inputs.is_satisfied(self)
    }

    /// Merges the rows of all workers and emits the range.
    async fn merge(&self) -> Result<(), DataflowError> {
        let workers = self.arrived.borrow().len();
        let mut merge = Merge::new(self.order.clone(), workers, self.rows_max);
        let mut cut = RowCut::of(self.spec.range);
        while !cut.is_full() && !self.is_over() {
            match merge.next()? {
                Merged::Needs(stream) => {
                    let rows = self.next_of(stream as u32).await?;
                    merge.push(stream, rows)?;
                }
                Merged::Rows(rows) => {
                    if let Some(rows) = cut.take(rows) {
                        self.behind.push(Rows::on_time(rows)).await?;
                    }
                    yield_now().await;
                }
                Merged::End => break,
            }
            self.merged_bytes.set(merge.bytes());
            self.publish_bytes()?;
        }
        self.merged_bytes.set(0);
        self.instance.inputs.satisfied(self);
        Ok(())
    }

    /// Waits for the next rows of a worker; `None` if there are no more.
    async fn next_of(&self, worker: u32) -> Result<Option<RecordBatch>, DataflowError> {
        if worker == self.instance.worker {
            return self.next();
        }
        let next = || {
            let batch = self.arrived.borrow_mut()[worker as usize].pop_front();
            (batch.is_some() || self.has_ended(worker)).then_some(batch)
        };
        let batch = self.instance.clock_moved.wait_for(next).await;
        if let Some((arrival, batch)) = &batch {
            self.consumed(*arrival, batch);
        }
        Ok(batch.map(|(_, batch)| batch))
    }

    /// Counts rows of another worker as processed.
    fn consumed(&self, arrival: Arrival, batch: &RecordBatch) {
        self.arrived_bytes.set(self.arrived_bytes.get() - bytes_of(batch));
        self.instance.inputs.consumed(self, arrival);
    }

    /// Drops the rows of other workers that wait.
    fn drop_arrived(&self) {
        let arrived: Vec<VecDeque<(Arrival, RecordBatch)>> =
            self.arrived.borrow_mut().iter_mut().map(std::mem::take).collect();
        for (arrival, batch) in arrived.iter().flatten() {
            self.consumed(*arrival, batch);
        }
    }

    /// Publishes the bytes of state, and holds them to their bound.
    fn publish_bytes(&self) -> Result<(), DataflowError> {
        let own = self.own.borrow();
        if let Some(spilled) = own.spilled() {
            self.metrics.count_spilled(self.instance.tag, &self.spilled, spilled);
        }
        let bytes = own.bytes() + self.arrived_bytes.get() + self.merged_bytes.get();
        self.accounting.set(self.instance.tag, bytes).map_err(|error| match error {
            StateError::Budget { bytes, budget } => {
                DataflowError::Sort { bytes, bytes_max: budget }
            }
            error => error.into(),
        })
    }
}

impl<D: Downstream> OperatorTask for SortRun<D> {
    fn push(&self, Arriving { rows, .. }: Arriving) -> Task<'_> {
        Box::pin(self.add(rows.batch))
    }

    fn resume(&self) -> Task<'_, i64> {
        Box::pin(ready(Ok(i64::MIN)))
    }

    /// All rows of this worker have come, unless the query was stopped.
    fn end(&self, _: i64) -> Task<'_> {
        let sorted = if self.signals.is_stopped() {
            self.own.replace(Own::Over);
            Ok(())
        } else {
            self.sort()
        };
        self.instance.clock_moved.notify();
        Box::pin(ready(sorted))
    }

    fn is_satisfied(&self) -> bool {
        self.behind.is_satisfied()
    }

    /// Nothing is saved: see [`SavedState::Rebuilt`](crate::job::SavedState::Rebuilt).
    fn save(&self) -> Result<Option<OperatorSnapshot>, DataflowError> {
        Ok(None)
    }

    fn load(&self, _: &Restoring<'_>) -> Result<(), DataflowError> {
        Ok(())
    }

    fn run(&self) -> Task<'_> {
        Box::pin(self.emit())
    }
}

impl<D: Downstream> Member for SortRun<D> {
    fn instance(&self) -> &Instance {
        &self.instance
    }

    /// Nothing is complete before the end.
    fn crosses(&self, _: i64, _: i64) -> bool {
        false
    }

    /// Rows of another worker, which are merged in their turn.
    fn keep(&self, arrival: Arrival, batch: RecordBatch) -> Result<(), DataflowError> {
        self.arrived_bytes.set(self.arrived_bytes.get() + bytes_of(&batch));
        self.arrived.borrow_mut()[arrival.source as usize].push_back((arrival, batch));
        self.instance.clock_moved.notify();
        self.publish_bytes()
    }
}
