//! A sink on one worker: rows go to the sink here, or are gathered at worker 0 (Q8).
//!
//! The sinks of a job whose inputs all end are published [together](Together), when the last of
//! them has its rows: a file that one replaces is read by another as it was before.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::ready;
use std::rc::Rc;
use std::sync::Arc;

use arrow::record_batch::RecordBatch;
use state::epoch::{END_OF_STREAM, Progress};

use crate::checkpoint::OperatorSnapshot;
use crate::checkpoint::{SinkSnapshot, WorkerSnapshot};
use crate::connector::gauge::SinkGauge;
use crate::connector::peers::NeededPeer;
use crate::connector::sink::{
    Placement, Room, Sink, SinkVisibility, SinkWriter, StagedOutput, StagingContext, WriterContext,
};
use crate::error::DataflowError;
use crate::exchange::{
    AnyExchange, Arrival, GATHERER, Gather, Inputs, Instance, Member, Outgoing, Task, begin_next,
};
use crate::job::{JobGraph, Scan, SinkSpec};
use crate::operators::operator::{Arriving, OperatorContext, OperatorTask};
use crate::operators::restoring::Restoring;
use crate::rows::wire::{bytes_of, detach};
use crate::runtime::accounting::StateAccounting;
use crate::runtime::external::External;
use crate::runtime::metrics::Metrics;
use crate::runtime::place::{Signals, WorkerContext};
use crate::runtime::scheduler::{Event, Timers};

/// How long a reader may take nothing after the job was told to stop. What is left is dropped then.
const STOP_TIMEOUT_NS: u64 = 3_000_000_000;

/// How long a writer without room is left alone at most: it may give its reader up by the time.
const ROOM_ASKED_AGAIN_NS: u64 = 50_000_000;

/// Since when a job that was told to stop waits for a reader.
#[derive(Default)]
struct StopWait {
    stopped_ns: Option<u64>,
}

/// The sinks of a job that one worker publishes at the same time.
#[derive(Default)]
pub(crate) struct Together {
    /// Those that do not have all of their rows yet.
    open: Cell<u32>,
    whole: Event,
}

impl Together {
    /// Of the sinks of a job; none where an input never ends, and others need not wait for it.
    pub(crate) fn of(job: &JobGraph) -> Option<Rc<Self>> {
        job.inputs().all(Scan::bounded).then(Rc::default)
    }

    /// A sink has all of its rows: waits until each other one has.
    async fn wait(&self) {
        self.open.set(self.open.get() - 1);
        self.whole.notify();
        self.whole.wait_for(|| (self.open.get() == 0).then_some(())).await;
    }
}

/// Where rows leave.
pub(crate) struct SinkTask {
    /// The leader knows which workers have ended.
    instance: Instance,
    writer: RefCell<Option<Box<dyn SinkWriter>>>,
    /// The peers that the writer needs, until it ends: the errors of its end say more.
    peer: RefCell<Option<Arc<NeededPeer>>>,
    gauge: Arc<SinkGauge>,
    /// Whether the writer measures what it hands on.
    hands_on: bool,
    /// Whether rows were written since the last flush.
    wrote: Cell<bool>,
    /// Whether all rows of this worker have been emitted.
    complete: Cell<bool>,
    /// Rows of other workers for which there was no room, and their bytes.
    held: RefCell<VecDeque<(Arrival, RecordBatch)>>,
    held_bytes: Cell<usize>,
    /// Whether its rows are staged for a checkpoint, and published by others.
    stages: bool,
    /// Takes what is staged at the end.
    staged_last: Rc<RefCell<Vec<SinkSnapshot>>>,
    /// With which others it is published, if this worker writes it.
    together: Option<Rc<Together>>,
    accounting: Rc<StateAccounting>,
    timers: Rc<Timers>,
    external: Rc<External>,
    signals: Arc<Signals>,
    metrics: Arc<Metrics>,
}

/// What the writer of a sink stages for on a worker; `None` if it does not.
fn staging(tag: u32, sink: &dyn Sink, place: &WorkerContext) -> Option<StagingContext> {
    let keeps = matches!(sink.staging(), SinkVisibility::ByCheckpoint | SinkVisibility::Retained);
    if !keeps && !sink.publishes_end() {
        return None;
    }
    let run = place.checkpoints.as_ref()?.run();
    let (worker, workers) = (place.worker, place.workers);
    let takes = |before: &&WorkerSnapshot| match sink.placement() {
        Placement::Gather => worker == GATHERER,
        Placement::Everywhere => before.worker % workers == worker,
    };
    let before = place.restored.iter().flat_map(|restored| &restored.workers).filter(takes);
    let before = before.flat_map(|before| &before.sinks).filter(|sink| sink.operator == tag);
    let goes_on = place.restored.is_some();
    Some(StagingContext { run, goes_on, before: before.map(|sink| sink.staged.clone()).collect() })
}

impl SinkTask {
    /// Opens the sink if this worker writes it.
    ///
    /// # Errors
    /// When the sink cannot be opened.
    pub(crate) fn new(
        OperatorContext { tag, place, net, metrics, .. }: OperatorContext<'_>,
        SinkSpec { sink, schema }: &SinkSpec,
        together: Option<&Rc<Together>>,
    ) -> Result<Self, DataflowError> {
        let (placement, worker) = (sink.placement(), place.worker);
        let writes = placement == Placement::Everywhere || worker == GATHERER;
        let staging = staging(tag, &**sink, place);
        let stages = staging.is_some();
        let context = WriterContext { worker, waker: place.external.waker(), staging };
        let mut writer = writes.then(|| sink.open(&context)).transpose()?;
        let check = writer.as_ref().and_then(|writer| writer.peer_check());
        let peer = check.map(|check| place.peers.add(check, tag as usize));
        let together = together.filter(|_| writes).cloned();
        if let Some(together) = &together {
            together.open.set(together.open.get() + 1);
        }
        let gauge = Arc::new(SinkGauge::new(place.clock.clone()));
        let hands_on = writer.as_mut().is_some_and(|writer| writer.hands_on(&gauge));
        if let Some(operator) = metrics.operators().get(tag as usize) {
            operator.sink.get_or_init(|| gauge.clone());
        }
        let inputs = match placement {
            Placement::Gather if place.workers > 1 => {
                let gather = Gather::new(0, schema, place);
                Inputs::of(vec![AnyExchange::Gather(Box::new(gather))], place)
            }
            _ => Inputs::local(1, place),
        };
        let alone = inputs.is_local() || worker != GATHERER;
        Ok(Self {
            instance: Instance::new(tag, place, net, inputs, alone),
            writer: RefCell::new(writer),
            peer: RefCell::new(peer),
            gauge,
            hands_on,
            wrote: Cell::new(false),
            complete: Cell::new(false),
            held: RefCell::default(),
            held_bytes: Cell::new(0),
            stages,
            staged_last: place.staged_last.clone(),
            together,
            accounting: place.accounting.clone(),
            timers: place.timers.clone(),
            external: place.external.clone(),
            signals: place.signals.clone(),
            metrics,
        })
    }

    /// Writes rows, or sends them to the worker that writes, when there is room for them.
    async fn emit(&self, batch: RecordBatch) -> Result<(), DataflowError> {
        if let Some(operator) = self.metrics.operators().get(self.instance.tag as usize) {
            Metrics::add(&operator.rows_out, batch.num_rows() as u64);
        }
        if batch.num_rows() > 0 {
            if self.writes() {
                self.room().await;
            }
            self.instance.inputs.push(self, Outgoing::of(0, batch)).await?;
        }
        Ok(())
    }

    /// Waits until this worker's rows are complete and all rows are written and published, where
    /// this worker writes them.
    async fn finish(&self) -> Result<(), DataflowError> {
        self.write_held_until(|| self.complete.get()).await?;
        self.instance.inputs.end(self, END_OF_STREAM).await?;
        self.write_held_until(|| self.time().1).await?;
        let mut stop_wait = StopWait::default();
        loop {
            let seen = self.external.notifications();
            if self.drain()? == Room::Ready {
                break;
            }
            self.wait_for_reader(seen, &mut stop_wait).await;
        }
        self.gauge.hold_back(false);
        if self.stages {
            return self.stage_last();
        }
        if let Some(rounds) = &self.instance.rounds {
            rounds.end();
        }
        if let Some(together) = &self.together {
            together.wait().await;
        }
        *self.peer.borrow_mut() = None;
        match self.writer.borrow_mut().take() {
            Some(writer) if self.hands_on => Ok(writer.commit()?),
            Some(writer) => Ok(self.gauge.commit(writer)?),
            None => Ok(()),
        }
    }

    /// Stages what was written since the last time, for the checkpoint that a round ends with, if
    /// this worker writes the sink and it stages its rows.
    pub(crate) fn stage(
        &self,
        round: u64,
        last: bool,
    ) -> Result<Option<SinkSnapshot>, DataflowError> {
        let mut writer = self.writer.borrow_mut();
        let Some(writer) = writer.as_mut().filter(|_| self.stages) else { return Ok(None) };
        let StagedOutput { staged, unsynced } = self.gauge.stage(writer.as_mut(), round, last)?;
        Ok(Some(SinkSnapshot { operator: self.instance.tag, staged, unsynced }))
    }

    /// All rows are written, and published by others.
    fn stage_last(&self) -> Result<(), DataflowError> {
        *self.peer.borrow_mut() = None;
        let round = self.instance.round();
        let staged = self.stage(round, true)?;
        match &self.instance.rounds {
            Some(rounds) => rounds.of_worker().end(self.instance.tag, round, staged),
            None => self.staged_last.borrow_mut().extend(staged),
        }
        *self.writer.borrow_mut() = None;
        Ok(())
    }

    /// All rows of a round are written: stages them, or waits until their reader has them.
    async fn save_round(&self, round: u64) -> Result<(), DataflowError> {
        let mut stop_wait = StopWait::default();
        loop {
            let seen = self.external.notifications();
            if self.stages || self.settle()? == Room::Ready {
                break;
            }
            self.wait_for_reader(seen, &mut stop_wait).await;
        }
        self.gauge.hold_back(false);
        if let Some(rounds) = &self.instance.rounds {
            rounds.save(round, || Ok((None, self.stage(round, false)?)))?;
        }
        begin_next(self)
    }

    fn write(&self, batch: &RecordBatch) -> Result<(), DataflowError> {
        self.wrote.set(true);
        match self.writer.borrow_mut().as_mut() {
            Some(writer) if self.hands_on => Ok(writer.write(batch)?),
            Some(writer) => Ok(self.gauge.write(writer.as_mut(), batch)?),
            None => Ok(()),
        }
    }

    /// Whether this worker writes what it emits.
    fn writes(&self) -> bool {
        self.writer.borrow().is_some()
    }

    fn drain(&self) -> Result<Room, DataflowError> {
        match self.writer.borrow_mut().as_mut() {
            Some(writer) if self.hands_on => Ok(writer.drain()?),
            Some(writer) => Ok(self.gauge.drain(writer.as_mut())?),
            None => Ok(Room::Ready),
        }
    }

    fn settle(&self) -> Result<Room, DataflowError> {
        match self.writer.borrow_mut().as_mut() {
            Some(writer) if self.hands_on => Ok(writer.settle()?),
            Some(writer) => Ok(self.gauge.settle(writer.as_mut())?),
            None => Ok(Room::Ready),
        }
    }

    fn has_room(&self) -> bool {
        self.writer.borrow_mut().as_mut().is_none_or(|writer| writer.room() == Room::Ready)
    }

    /// Waits for room.
    async fn room(&self) {
        let mut stop_wait = StopWait::default();
        loop {
            let seen = self.external.notifications();
            if self.has_room() {
                break;
            }
            self.wait_for_reader(seen, &mut stop_wait).await;
        }
        self.gauge.hold_back(false);
    }

    /// Writes the rows of other workers that are held, as there is room, until it is over and none
    /// are held.
    async fn write_held_until(&self, is_over: impl Fn() -> bool) -> Result<(), DataflowError> {
        loop {
            let completed = || self.instance.completed();
            let waits = || !self.held.borrow().is_empty() || completed().is_some();
            self.instance.clock_moved.wait_for(|| (waits() || is_over()).then_some(())).await;
            if self.held.borrow().is_empty() {
                if let Some(round) = completed() {
                    self.save_round(round).await?;
                    continue;
                }
                return Ok(());
            }
            self.room().await;
            let Some((arrival, batch)) = self.held.borrow_mut().pop_front() else { continue };
            self.held_bytes.set(self.held_bytes.get() - bytes_of(&batch));
            self.account()?;
            self.write(&batch)?;
            self.instance.inputs.consumed(self, arrival);
        }
    }

    /// Takes rows: those of this worker, for which there is room, and those of others, which are
    /// held where there is none.
    fn receive_rows(
        &self,
        arrival: Arrival,
        batch: RecordBatch,
        kept: impl Fn(&RecordBatch) -> RecordBatch,
    ) -> Result<(), DataflowError> {
        let is_own = arrival.source == self.instance.worker;
        if is_own || self.held.borrow().is_empty() && self.has_room() {
            self.write(&batch)?;
            self.instance.inputs.consumed(self, arrival);
        } else {
            let batch = kept(&batch);
            self.held_bytes.set(self.held_bytes.get() + bytes_of(&batch));
            self.held.borrow_mut().push_back((arrival, batch));
            self.account()?;
            self.instance.clock_moved.notify();
        }
        Ok(())
    }

    /// Waits until another thread notifies the worker more often than `seen` times: that the writer
    /// has room, or that the job stops. Drops the writer if its reader takes nothing for
    /// long after a stop.
    async fn wait_for_reader(&self, seen: u64, StopWait { stopped_ns }: &mut StopWait) {
        self.gauge.hold_back(true);
        let now = self.timers.now_ns();
        if self.signals.is_stopped() {
            let since = *stopped_ns.get_or_insert(now);
            if now.saturating_sub(since) >= STOP_TIMEOUT_NS {
                tracing::warn!(
                    operator = self.instance.tag,
                    "a sink's reader takes nothing: rows are lost"
                );
                *self.writer.borrow_mut() = None;
                return;
            }
        }
        let again = now.saturating_add(ROOM_ASKED_AGAIN_NS);
        self.external.notified_or_at(seen, &self.timers, Some(again)).await;
    }
}

impl OperatorTask for SinkTask {
    fn push(&self, Arriving { rows, .. }: Arriving) -> Task<'_> {
        Box::pin(self.emit(rows.batch))
    }

    fn resume(&self) -> Task<'_, i64> {
        Box::pin(ready(Ok(i64::MIN)))
    }

    /// All rows of this worker have been emitted.
    fn end(&self, _: i64) -> Task<'_> {
        self.complete.set(true);
        self.instance.clock_moved.notify();
        Box::pin(ready(Ok(())))
    }

    fn end_round(&self, round: u64, progress: Progress) -> Task<'_> {
        Box::pin(self.instance.inputs.end_round(self, round, progress))
    }

    /// Its rows are staged, and are no state.
    fn save(&self) -> Result<Option<OperatorSnapshot>, DataflowError> {
        Ok(None)
    }

    fn load(&self, _: &Restoring<'_>) -> Result<(), DataflowError> {
        Ok(())
    }

    fn run(&self) -> Task<'_> {
        Box::pin(self.finish())
    }

    /// Makes visible what a reader should see now, if there is room for it.
    fn flush(&self) -> Result<(), DataflowError> {
        if !self.has_room() {
            return Ok(());
        }
        match self.writer.borrow_mut().as_mut() {
            // To measure it asks the system four times, and a worker that waits comes here again
            // and again.
            Some(writer) if self.hands_on || !self.wrote.take() => Ok(writer.flush()?),
            Some(writer) => Ok(self.gauge.flush(writer.as_mut())?),
            None => Ok(()),
        }
    }
}

impl Member for SinkTask {
    fn instance(&self) -> &Instance {
        &self.instance
    }

    /// Nothing is complete before the end.
    fn crosses(&self, _: i64, _: i64) -> bool {
        false
    }

    /// Rows that are held count as state.
    fn account(&self) -> Result<(), DataflowError> {
        let bytes = self.held_bytes.get() + self.instance.kept_apart();
        Ok(self.accounting.set(self.instance.tag, bytes)?)
    }

    fn keep(&self, arrival: Arrival, batch: RecordBatch) -> Result<(), DataflowError> {
        self.receive_rows(arrival, batch, RecordBatch::clone)
    }

    /// A writer is done with the rows when it has them. What lies in a ring's slot is copied where
    /// it has to wait: the link has other operators.
    fn take(&self, arrival: Arrival, batch: RecordBatch) -> Result<(), DataflowError> {
        self.receive_rows(arrival, batch, detach)
    }
}
