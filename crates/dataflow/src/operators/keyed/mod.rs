//! A keyed operator on one worker: rows of one key meet here, and leave when time has passed them.
//!
//! Each row travels to the worker that leads its key; what is made of the rows there is the
//! operator's ([`crate::job::KeyedState`]). Late rows are counted before they travel,
//! so that they are the same rows however many workers there are.

#[cfg(test)]
pub(crate) mod fixtures;
mod held;
#[cfg(test)]
mod recovery_tests;
mod run;
mod spillable;
mod unread;

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, Int64Array};
use arrow::datatypes::{DataType, Field};
use arrow::record_batch::RecordBatch;
use state::Spilled;
use state::epoch::Progress;

use self::held::HeldNumbers;
pub(crate) use self::run::Run;
use self::spillable::{KeptRows, SpillableState};
use self::unread::{held_rows, stored_rows};
use crate::checkpoint::{OperatorSnapshot, SavedRows};
use crate::error::DataflowError;
use crate::exchange::{Arrival, Inputs, Instance, Member, Outgoing, Port, Task};
use crate::job::{
    Exchange, Keyed, KeyedInput, LAGGING, OperatorSpec, SavedPart, SavedParts, SavedState,
};
use crate::operators::downstream::Downstream;
use crate::operators::operator::{Arriving, OperatorContext, OperatorTask, end_round};
use crate::operators::restoring::{Restoring, saved_here};
use crate::rows::Rows;
use crate::rows::time::{last_tick, ticks, without_late};
use crate::rows::wire::compact;
use crate::runtime::accounting::StateAccounting;
use crate::runtime::metrics::Metrics;
use crate::runtime::scheduler::yield_now;

/// Batches that are given out before it is the turn of others. More than one: what comes due at
/// once must leave faster than rows come, else it piles up.
pub(crate) const TURN_BATCHES: usize = 8;

/// A keyed operator on one worker.
pub(crate) struct KeyedRun<D> {
    instance: Instance,
    spec: Arc<Keyed>,
    workers: u32,
    rows_max: usize,
    accounting: Rc<StateAccounting>,
    state: RefCell<SpillableState>,
    /// The numbers of the batches that it keeps.
    numbers: RefCell<HeldNumbers>,
    /// Batches of inputs with windows that wait to be passed on, with the rows left of each.
    waiting: RefCell<VecDeque<(Arrival, usize)>>,
    /// What went to the disk, as far as it was published.
    spilled: Cell<Spilled>,
    behind: D,
    metrics: Arc<Metrics>,
}

impl<D: Downstream> KeyedRun<D> {
    pub(crate) fn new(
        OperatorContext { tag, place, net, metrics, shuffle, .. }: OperatorContext<'_>,
        spec: &Keyed,
        behind: D,
    ) -> Self {
        let multi_partitioner = |number: usize| spec.operator.multi_partitioner(number);
        let partitions = (0..spec.inputs.len()).any(|number| multi_partitioner(number).is_some());
        let apart = place.workers > 1 && spec.exchange != Exchange::Forward;
        // Who is alone must be asked for whom rows are too: some may be for nobody.
        let inputs = if apart || partitions {
            let port = |(number, input): (usize, &KeyedInput)| Port {
                schema: input.schema.clone(),
                keys: input.keys.clone(),
                distribution: input.distribution,
                partitioner: spec.operator.partitioner(number),
                multi_partitioner: multi_partitioner(number),
                window: spec.operator.window_end(number),
                waits: spec.waits(number),
            };
            let ports = spec.inputs.iter().enumerate().map(port).collect();
            Inputs::of_rows(tag, ports, spec.exchange_of_rows(), place, shuffle)
        } else {
            Inputs::local(spec.inputs.len(), place)
        };
        let alone = inputs.is_local();
        Self {
            instance: Instance::new(tag, place, net, inputs, alone),
            workers: place.workers,
            rows_max: place.settings.batch_rows_max,
            accounting: place.accounting.clone(),
            state: RefCell::new(SpillableState::new(spec, place.disk.clone())),
            numbers: RefCell::default(),
            waiting: RefCell::default(),
            spilled: Cell::default(),
            spec: Arc::new(spec.clone()),
            behind,
            metrics,
        }
    }

    /// Emits what has become complete, until no more rows can come.
    async fn fire(&self) -> Result<(), DataflowError> {
        loop {
            // Read before anything is awaited: the clock moves on while rows are written. When a
            // round is complete, it stands still.
            let completed = self.instance.completed();
            let seen = self.time();
            if completed.is_some() {
                self.state.borrow_mut().settle();
            }
            let mut given = 0;
            while let Some(batch) = self.advance(seen.0)? {
                let rows = batch.num_rows();
                self.behind.push(self.rows_of(batch)).await?;
                self.forwarded(rows);
                self.publish_bytes()?;
                given += 1;
                if given % TURN_BATCHES == 0 {
                    yield_now().await;
                }
            }
            self.publish_bytes()?;
            let complete = self.complete(seen.0);
            self.behind.advance(complete, false).await?;
            if let Some(round) = completed {
                end_round(self, &self.behind, round).await?;
                continue;
            }
            if self.time() == seen && seen.1 {
                return self.behind.end(complete).await;
            }
            let more = || {
                let ready = self.state.borrow().ready();
                self.time() != seen || ready || self.instance.completed().is_some()
            };
            self.instance.clock_moved.wait_for(|| more().then_some(())).await;
        }
    }

    /// Counts this many of the rows that wait as passed on.
    fn forwarded(&self, mut rows: usize) {
        let mut waiting = self.waiting.borrow_mut();
        while let Some((arrival, left)) = waiting.front_mut() {
            if *left > rows {
                *left -= rows;
                break;
            }
            rows -= *left;
            self.instance.inputs.consumed(self, *arrival);
            waiting.pop_front();
        }
    }

    fn advance(&self, watermark: i64) -> Result<Option<RecordBatch>, DataflowError> {
        let share = self.accounting.share(self.instance.tag);
        let mut state = self.state.borrow_mut();
        let batch = state.advance(watermark, self.rows_max, share)?;
        self.metrics.count_windows(self.instance.tag, state.windows_over());
        Ok(batch)
    }

    fn complete(&self, watermark: i64) -> i64 {
        self.state.borrow().complete(watermark)
    }

    fn without_late(
        &self,
        input: usize,
        batch: &RecordBatch,
        watermarks: &Int64Array,
    ) -> Result<RecordBatch, DataflowError> {
        let KeyedInput { time: Some(time), grace, .. } = &self.spec.inputs[input] else {
            return Ok(batch.clone());
        };
        let Some(times) = ticks(batch.column(*time)) else { return Ok(batch.clone()) };
        let (on_time, late) = without_late(batch, times, watermarks.values(), *grace)?;
        Metrics::add(&self.metrics.late, late);
        Ok(on_time)
    }

    /// Rows with the watermarks that they met, as a column.
    fn lagging(
        &self,
        batch: &RecordBatch,
        watermarks: &Int64Array,
    ) -> Result<RecordBatch, DataflowError> {
        let watermarks: ArrayRef = Arc::new(watermarks.clone());
        let columns = batch.columns().iter().cloned().chain([watermarks]).collect();
        Ok(RecordBatch::try_new(self.spec.inputs[LAGGING].schema.clone(), columns)?)
    }

    /// Rows that are emitted: on time, or with the watermarks that they brought.
    fn rows_of(&self, batch: RecordBatch) -> Rows {
        let last = batch.num_columns().saturating_sub(1);
        let carried = self.spec.operator.carries_watermarks()
            && batch.num_columns() > self.spec.operator.schema().fields().len();
        let watermarks = if carried { batch.column(last).as_primitive_opt() } else { None };
        let Some(watermarks) = watermarks.cloned() else { return Rows::on_time(batch) };
        let mut batch = batch;
        batch.remove_column(last);
        Rows { watermarks: Some(watermarks), ..Rows::on_time(batch) }
    }

    /// Publishes the bytes of state, and holds them to their bound.
    fn publish_bytes(&self) -> Result<(), DataflowError> {
        let state = self.state.borrow();
        self.metrics.count_spilled(self.instance.tag, &self.spilled, state.spilled());
        let kept = self.instance.kept_apart() + self.instance.inputs.bytes(self);
        let bytes = state.bytes() + kept;
        Ok(self.accounting.set(self.instance.tag, bytes)?)
    }
}

impl<D: Downstream> OperatorTask for KeyedRun<D> {
    fn push(&self, Arriving { input, rows, .. }: Arriving) -> Task<'_> {
        Box::pin(async move {
            let (input, batch) = match &rows.watermarks {
                Some(watermarks) if self.spec.operator.carries_watermarks() => {
                    (LAGGING, self.lagging(&rows.batch, watermarks)?)
                }
                Some(watermarks) => (input, self.without_late(input, &rows.batch, watermarks)?),
                None => (input, rows.batch),
            };
            if batch.num_rows() > 0 {
                self.instance.inputs.push(self, Outgoing::of(input, batch)).await?;
                // Rows of one watermark may be more than memory holds.
                if self.instance.inputs.is_long(self) {
                    self.instance.inputs.flush(self).await?;
                }
            }
            Ok(())
        })
    }

    fn progress(&self, watermark: i64, idle: bool) -> Option<Task<'_>> {
        self.instance.inputs.progress(self, watermark, idle)
    }

    fn resume(&self) -> Task<'_, i64> {
        Box::pin(self.instance.inputs.resume(self))
    }

    fn end(&self, watermark: i64) -> Task<'_> {
        Box::pin(self.instance.inputs.end(self, watermark))
    }

    fn end_round(&self, round: u64, progress: Progress) -> Task<'_> {
        Box::pin(self.instance.inputs.end_round(self, round, progress))
    }

    fn is_satisfied(&self) -> bool {
        self.behind.is_satisfied()
    }

    fn save(&self) -> Result<Option<OperatorSnapshot>, DataflowError> {
        let SavedState::Parts(SavedParts { version, parts: of }) = self.spec.saved_state() else {
            let message = "an operator does not say what it keeps: the job cannot be saved";
            return Err(DataflowError::Recovery(message.into()));
        };
        let (operator, watermark) = (self.instance.tag, self.least());
        let place = (self.instance.worker, self.workers);
        let of: Arc<[SavedPart]> = of.into();
        let KeptRows { held, spilled } = self.state.borrow_mut().save()?;
        let (mut parts, mut stored) = (vec![], vec![]);
        if self.spec.operator.loads_in_any_order() {
            let numbers = self.numbers.borrow_mut().of(&held);
            for batch in held.into_iter().zip(numbers) {
                stored.extend(held_rows(&self.spec, place, &of, batch)?);
            }
        } else {
            for SavedRows { part, rows } in held {
                let Some(of_part) = of.get(part as usize) else { return Err(no_part(part)) };
                let rows = saved_here(&self.spec, place, &of_part.owner, rows)?;
                parts.extend(rows.map(|rows| SavedRows { part, rows }));
            }
        }
        for batch in spilled {
            stored.extend(stored_rows(&self.spec, place, &of, batch)?);
        }
        Ok(Some(OperatorSnapshot { operator, version, watermark, parts, stored }))
    }

    fn load(&self, from: &Restoring<'_>) -> Result<(), DataflowError> {
        let share = self.accounting.share(self.instance.tag);
        from.each(self.instance.tag, |saved| {
            self.state.borrow_mut().load(saved, share)?;
            self.publish_bytes()
        })
    }

    fn run(&self) -> Task<'_> {
        Box::pin(self.fire())
    }
}

impl<D: Downstream> Member for KeyedRun<D> {
    fn instance(&self) -> &Instance {
        &self.instance
    }

    fn crosses(&self, from: i64, to: i64) -> bool {
        if from == i64::MIN || to == i64::MAX {
            from != to
        } else {
            let every = self.spec.granularity.max(1);
            from.div_euclid(every) != to.div_euclid(every)
        }
    }

    fn account(&self) -> Result<(), DataflowError> {
        self.publish_bytes()
    }

    fn share(&self) -> usize {
        self.accounting.share(self.instance.tag)
    }

    fn keep(&self, arrival: Arrival, batch: RecordBatch) -> Result<(), DataflowError> {
        self.adopt(arrival, compact(batch))
    }

    fn adopt(&self, arrival: Arrival, batch: RecordBatch) -> Result<(), DataflowError> {
        if arrival.bytes > 0 {
            self.waiting.borrow_mut().push_back((arrival, batch.num_rows()));
        }
        self.state.borrow_mut().push(arrival.port, batch, self.share())?;
        if self.state.borrow().ready() {
            self.instance.clock_moved.notify();
        }
        self.publish_bytes()
    }
}

/// Refuses to save what is not at rest.
pub(crate) fn at_rest(is: bool) -> Result<(), DataflowError> {
    let message = "an operator is to be saved while it emits";
    if is { Ok(()) } else { Err(DataflowError::Recovery(message.into())) }
}

/// Saved rows of a part that an operator does not have.
pub(crate) fn no_part(part: u32) -> DataflowError {
    DataflowError::Recovery(format!("an operator has saved rows of a part {part} that it has not"))
}

/// The watermark of the `window_time` of windows that end at `watermark` or later: of their last
/// millisecond.
pub(crate) fn before_windows(watermark: i64, end: &Field) -> i64 {
    match end.data_type() {
        DataType::Timestamp(unit, _) => watermark.saturating_sub(last_tick(*unit) - 1),
        _ => watermark,
    }
}
