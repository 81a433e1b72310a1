//! The hash join of inputs that end: rows of the build side are in a hash table, and rows of the
//! probe side look them up.
//!
//! ```text
//! build ─▶ exchange ─▶ collected ── every worker has ended its build ──▶ hash table
//! probe ─▶ (waits until then) ─▶ exchange ─▶ lookup ─▶ rows with a partner, or without one
//!                  every worker has ended its probe ──▶ rows of the build without a partner
//! ```
//!
//! Rows of the probe side are not taken before the build is complete, which holds back their
//! sources. If a source or an operator on their path has several output edges, that could hold back
//! the build too: then they are taken, and kept ([`HashJoinRun::holds`]).
//!
//! Rows go from one join to the next on the same worker as a [`Selection`]: their columns are
//! copied behind the last join. Several joins run as one pass if they can: [`ChainRun`].
//!
//! If a build does not fit memory, both sides go to the disk, if there is one ([`spill`]).
//!
//! Workers announce the status of their inputs ([`InputStatus`]) by the progress of the operator: a
//! build is complete when all workers have announced its end.

mod build;
mod spill;
mod stage;
mod status;
mod waiting;

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use arrow::array::RecordBatch;
use state::{Disk, Spilled, StateError};

use self::spill::{DiskJoin, SpilledJoin};
use self::status::InputStatus;
use self::waiting::Waiting;
use crate::checkpoint::OperatorSnapshot;
use crate::error::DataflowError;
use crate::exchange::{Arrival, Inputs, Instance, Member, Outgoing, Port, Task};
use crate::job::hash_join::{BUILD, HashJoin, PROBE, Variant};
use crate::job::{Distribution, Exchange, MultiPartitioner};
use crate::operators::downstream::Downstream;
use crate::operators::keyed::TURN_BATCHES;
use crate::operators::operator::{Arriving, OperatorContext, OperatorTask, SelectionInput};
use crate::operators::probe_chain::ChainRun;
use crate::operators::probe_stage::{EmittedRows, ProbeOutput, ProbeStage};
use crate::operators::restoring::Restoring;
use crate::pairing::{Paired, Pairing, Terms};
use crate::rows::Rows;
use crate::rows::keys::columns_of;
use crate::rows::keys::nulls_of;
use crate::rows::selection::Selection;
use crate::rows::wire::compact;
use crate::runtime::accounting::StateAccounting;
use crate::runtime::builds::Listeners;
use crate::runtime::external::External;
use crate::runtime::metrics::{Metrics, OperatorMetrics};
use crate::runtime::place::Signals;
use crate::runtime::process::Process;
use crate::runtime::scheduler::{Timers, all, yield_now};

/// The largest build in bytes whose batches are concatenated, so that its rows are found faster.
const TOGETHER_BYTES_MAX: usize = 256 << 20;

/// Bytes that a row of a build takes in the table of keys, about, beside its own.
const TABLE_BYTES: usize = 24;

/// A hash join on one worker.
pub(crate) struct HashJoinRun<D> {
    instance: Instance,
    spec: HashJoin,
    rows_max: usize,
    process: Arc<Process>,
    accounting: Rc<StateAccounting>,
    signals: Arc<Signals>,
    /// Whether rows of the probe side are taken and kept before the build is complete.
    holds: bool,
    disk: Option<Arc<dyn Disk>>,
    /// The rows of the build that have come, until it is complete.
    build: RefCell<Waiting>,
    /// The rows of both sides, if the build does not fit memory.
    spilled: RefCell<Option<SpilledJoin>>,
    /// The part of the counters of spilled bytes that was published.
    published: Cell<Spilled>,
    metrics: Arc<Metrics>,
    timers: Rc<Timers>,
    external: Rc<External>,
    /// Of a pulled build whose parts have come together: whether that is all of it.
    gathered: Cell<Option<bool>>,
    /// The scans of the probe side that wait for the build.
    listeners: Listeners,
    /// The time since which rows of the probe side wait for the build.
    waits_since: Cell<Option<u64>>,
    /// The status of the inputs of this worker.
    status: Cell<InputStatus>,
    table: RefCell<Option<Table>>,
    /// Rows of the probe side that wait: in front of the exchange, and behind it within the receive
    /// window.
    held: RefCell<Waiting>,
    arrived: RefCell<Waiting<Arrival>>,
    /// If the join keeps rows of the probe side: whether its inputs have ended.
    ended: Cell<bool>,
    /// Whether rows were left out because the query was stopped.
    is_cut: Cell<bool>,
    /// The chain that it is the head of, if it is one.
    chain: Option<ChainRun>,
    behind: D,
}

/// A complete build.
struct Table {
    /// Nothing if the build is on a disk, or if rows of it are missing: then no row is emitted.
    pairing: Option<Pairing>,
    bytes: usize,
    /// The rows of the probe side that are looked up.
    passes: EmittedRows,
}

/// The routing of a build's rows to the processes that need them, in place of all.
fn cells_of(spec: &HashJoin) -> Option<Arc<dyn MultiPartitioner>> {
    let cells = spec.multicast.as_ref()?.cells.clone()?;
    Some(cells)
}

impl<D: Downstream> HashJoinRun<D> {
    /// `holds` says whether an operator on the path of the probe side has several output edges.
    pub(crate) fn new(
        OperatorContext { tag, place, net, metrics, shuffle, listeners, chain }: OperatorContext<
            '_,
        >,
        spec: &HashJoin,
        holds: bool,
        behind: D,
    ) -> Self {
        let stays = !spec.is_replicated() && spec.exchange == Exchange::Forward;
        let inputs = if place.workers == 1 || stays {
            Inputs::local(spec.sides.len(), place)
        } else {
            let port = |(number, side): (usize, &crate::job::HashJoinSide)| Port {
                schema: side.schema.clone(),
                keys: side.keys.clone(),
                distribution: match number {
                    BUILD if spec.is_pulled => Distribution::Local,
                    _ => side.distribution,
                },
                partitioner: None,
                multi_partitioner: cells_of(spec).filter(|_| number == BUILD),
                window: None,
                waits: number == PROBE,
            };
            let exchange = if spec.is_replicated() { Exchange::Shuffle } else { spec.exchange };
            let ports = spec.sides.iter().enumerate().map(port).collect();
            Inputs::of_rows(tag, ports, exchange, place, shuffle)
        };
        let alone = inputs.is_local();
        let rows_max = place.settings.batch_rows_max;
        Self {
            instance: Instance::new(tag, place, net, inputs, alone),
            spec: spec.clone(),
            rows_max,
            process: place.process.clone(),
            accounting: place.accounting.clone(),
            signals: place.signals.clone(),
            holds,
            disk: place.disk.clone(),
            build: RefCell::default(),
            spilled: RefCell::default(),
            published: Cell::default(),
            metrics,
            timers: place.timers.clone(),
            external: place.external.clone(),
            gathered: Cell::new(None),
            listeners,
            waits_since: Cell::new(None),
            status: Cell::default(),
            table: RefCell::default(),
            held: RefCell::default(),
            arrived: RefCell::default(),
            ended: Cell::new(false),
            is_cut: Cell::new(false),
            chain: ChainRun::new(chain, tag, place.rounds.is_some(), rows_max),
            behind,
        }
    }

    /// Adds to a counter of the operator.
    fn count(&self, counter: impl Fn(&OperatorMetrics) -> &AtomicU64, number: u64) {
        if let Some(of) = self.metrics.operators().get(self.instance.tag as usize) {
            Metrics::add(counter(of), number);
        }
    }

    /// Notes that rows of the probe side wait for the build.
    fn waits_for_build(&self) {
        if self.waits_since.get().is_none() && self.table.borrow().is_none() {
            self.waits_since.set(Some(self.timers.now_ns()));
        }
    }

    fn terms(&self) -> Terms<'_> {
        let HashJoin { kind, variant, on, schema, both, .. } = &self.spec;
        Terms { kind: *kind, marks: *variant == Variant::Mark, on: on.as_ref(), schema, both }
    }

    /// Whether rows of the probe side stay on their worker.
    fn probes_in_place(&self) -> bool {
        let stays = self.spec.sides[PROBE].distribution == Distribution::Local;
        stays || self.instance.inputs.is_local()
    }

    /// The status of all workers whose rows come here.
    fn status_of_all(&self) -> InputStatus {
        let leader = self.leader().0.borrow();
        let of = |worker: u32| leader.clock().of(worker).map_or(i64::MIN, |of| of.watermark);
        let own = InputStatus::of(of(self.worker()));
        if self.instance.inputs.is_local() {
            return own;
        }
        self.net().peers().fold(own, |all, worker| all.and(InputStatus::of(of(worker))))
    }

    /// Whether no more rows of the probe side will come to this worker.
    fn probe_has_ended(&self) -> bool {
        let own = || self.has_ended(self.worker());
        if self.probes_in_place() { own() } else { self.time().1 }
    }

    /// The next rows of the table in memory, if there is one.
    fn of_table(
        &self,
        next: impl FnOnce(&mut Pairing) -> Result<Option<Paired>, DataflowError>,
    ) -> Result<Option<Selection>, DataflowError> {
        let mut table = self.table.borrow_mut();
        let rows = table.as_mut().and_then(|of| of.pairing.as_mut()).map_or(Ok(None), next)?;
        Ok(rows.map(|(rows, _)| rows))
    }

    /// The next result rows of the partition that was taken.
    fn of_disk(&self) -> Result<Option<Selection>, DataflowError> {
        let join = self.disk_join();
        let rows = match &mut *self.spilled.borrow_mut() {
            Some(spilled) => spilled.next(join)?,
            None => None,
        };
        self.account()?;
        Ok(rows.map(|(rows, _)| rows))
    }

    /// Takes the next partition on the disk, unless nobody wants its rows; gives whether there was
    /// one.
    fn take_partition(&self) -> Result<bool, DataflowError> {
        if self.is_cut.get() || self.behind.is_satisfied() {
            return Ok(false);
        }
        let join = self.disk_join();
        let mut spilled = self.spilled.borrow_mut();
        spilled.as_mut().map_or(Ok(false), |spilled| spilled.take_partition(join))
    }

    fn disk_join(&self) -> DiskJoin<'_> {
        let share = self.accounting.share(self.instance.tag);
        DiskJoin { spec: &self.spec, terms: self.terms(), rows_max: self.rows_max, share }
    }

    /// Emits rows of a join, which is this one or the last of its chain, until there are no more,
    /// or the query is stopped.
    async fn give(
        &self,
        of: &dyn ProbeStage,
        mut next: impl FnMut() -> Result<ProbeOutput, DataflowError>,
    ) -> Result<(), DataflowError> {
        let mut given = 0;
        loop {
            let rows = match next()? {
                ProbeOutput::Rows(rows) => Some(rows),
                ProbeOutput::Yield => None,
                ProbeOutput::End => return Ok(()),
            };
            if self.signals.is_stopped() {
                self.is_cut.set(true);
                return Ok(());
            }
            if self.behind.is_satisfied() {
                return Ok(());
            }
            let Some(rows) = rows else {
                yield_now().await;
                continue;
            };
            of.emit(rows).await?;
            given += 1;
            // A row may have any number of partners.
            if given % TURN_BATCHES == 0 {
                yield_now().await;
            }
        }
    }

    /// Records the facts about the rows of a build that `NOT IN` needs.
    fn look_at(&self, batch: &RecordBatch) {
        if self.spec.variant == Variant::NullAware && batch.num_rows() > 0 {
            let nulls = nulls_of(&columns_of(batch, &self.spec.sides[BUILD].keys));
            self.status.set(self.status.get().with_rows(nulls.is_some()));
        }
    }

    /// Looks up rows of the probe side that have come by the exchange; gives whether there were
    /// any.
    async fn take_arrived(&self) -> Result<bool, DataflowError> {
        let arrived = self.arrived.borrow_mut().pop();
        let Some((arrival, batch)) = arrived else { return Ok(false) };
        self.account()?;
        self.probe(Selection::of(batch)).await?;
        self.instance.inputs.consumed(self, arrival);
        Ok(true)
    }

    /// Sends the rows of the probe side that were kept to the workers that look them up, and then
    /// announces the end. It runs beside [`HashJoinRun::join`]: it waits for room at workers that
    /// may wait for room here.
    async fn take_held(&self) -> Result<(), DataflowError> {
        let whole = || self.table.borrow().is_some().then_some(());
        self.instance.clock_moved.wait_for(whole).await;
        let mut taken = 0;
        loop {
            let more = || !self.held.borrow().batches.is_empty() || self.ended.get();
            self.instance.clock_moved.wait_for(|| more().then_some(())).await;
            let held = self.held.borrow_mut().pop();
            let Some(((), batch)) = held else { return self.announce_end().await };
            self.account()?;
            self.take_in(batch).await?;
            taken += 1;
            if taken % TURN_BATCHES == 0 {
                yield_now().await;
            }
        }
    }

    /// Sends rows of the probe side to the workers that look them up.
    async fn take_in(&self, batch: RecordBatch) -> Result<(), DataflowError> {
        if self.probes_in_place() {
            return self.probe(Selection::of(batch)).await;
        }
        self.instance.inputs.push(self, Outgoing::of(PROBE, batch)).await?;
        Ok(())
    }

    /// Makes the table, looks up the rows that come, and then emits rows of the build without a
    /// partner, or the results of the join on the disk.
    async fn join(&self) -> Result<(), DataflowError> {
        let whole = || (self.least() > i64::MIN).then_some(());
        self.instance.clock_moved.wait_for(whole).await;
        if self.spec.is_pulled {
            self.gather().await?;
        }
        self.finish_build()?;
        let mut given = 0;
        loop {
            if self.take_arrived().await? {
                given += 1;
                if given % TURN_BATCHES == 0 {
                    yield_now().await;
                }
                continue;
            }
            if self.probe_has_ended() {
                break;
            }
            let more = || !self.arrived.borrow().batches.is_empty() || self.probe_has_ended();
            self.instance.clock_moved.wait_for(|| more().then_some(())).await;
        }
        let status = if self.probes_in_place() { self.status.get() } else { self.status_of_all() };
        let whole = self.has_whole_build(self.status_of_all()) && status.is_whole_probe();
        if whole {
            let terms = || (self.terms(), self.rows_max);
            let rest = |pairing: &mut Pairing| pairing.next_of_table(terms().0, terms().1);
            self.give(self, || Ok(self.of_table(rest)?.into())).await?;
            self.finish_spilled()?;
            while self.take_partition()? {
                self.give(self, || Ok(self.of_disk()?.into())).await?;
                yield_now().await;
            }
        }
        *self.table.borrow_mut() = None;
        *self.spilled.borrow_mut() = None;
        self.account()?;
        let is_complete = whole && !self.is_cut.get();
        self.behind.end(if is_complete { i64::MAX } else { i64::MIN }).await
    }

    /// All rows of both sides were given to the spilled join, if there is one.
    fn finish_spilled(&self) -> Result<(), DataflowError> {
        if let Some(spilled) = &mut *self.spilled.borrow_mut() {
            spilled.finish(self.accounting.share(self.instance.tag))?;
        }
        self.account()
    }

    /// Takes rows of the build; all of them go to the disk if they do not fit memory.
    fn keep_build(&self, batch: RecordBatch) -> Result<(), DataflowError> {
        let share = self.accounting.share(self.instance.tag);
        if let Some(spilled) = &mut *self.spilled.borrow_mut() {
            return spilled.push(BUILD, batch, share);
        }
        let mut build = self.build.borrow_mut();
        build.push((), batch);
        let needed = build.bytes + build.rows * TABLE_BYTES;
        // A worker that writes its part of a pulled build to the disk would have no other one
        // there.
        let is_large = needed / self.parts() > share / 2 && !self.spec.is_pulled;
        let Some(disk) = self.disk.as_ref().filter(|_| is_large) else {
            return Ok(());
        };
        let mut spilled = SpilledJoin::new(disk.clone(), &self.spec);
        for ((), batch) in std::mem::take(&mut *build).batches {
            spilled.push(BUILD, batch, share)?;
        }
        *self.spilled.borrow_mut() = Some(spilled);
        Ok(())
    }

    /// The number of workers that share a build.
    fn parts(&self) -> usize {
        // The parts of a pulled build are of one worker each until they come together.
        let is_shared =
            self.spec.is_replicated() && (!self.spec.is_pulled || self.gathered.get().is_some());
        if is_shared { self.process.workers().len() } else { 1 }
    }

    /// Announces to the other workers that this one has no more rows.
    async fn announce_end(&self) -> Result<(), DataflowError> {
        self.instance.inputs.end(self, self.status.get().watermark()).await?;
        self.instance.clock_moved.notify();
        Ok(())
    }
}

impl<D: Downstream> OperatorTask for HashJoinRun<D> {
    /// Rows of the probe side wait until the build is complete.
    fn when_ready(&self, input: usize) -> Option<Task<'_>> {
        if input == BUILD || self.holds || self.table.borrow().is_some() {
            return None;
        }
        let whole = || self.table.borrow().is_some().then_some(());
        self.waits_for_build();
        Some(Box::pin(async move {
            self.instance.clock_moved.wait_for(whole).await;
            Ok(())
        }))
    }

    fn push(&self, Arriving { input, rows, .. }: Arriving) -> Task<'_> {
        let Rows { batch, .. } = rows;
        Box::pin(async move {
            if batch.num_rows() == 0 {
                return Ok(());
            }
            if input == BUILD {
                self.look_at(&batch);
                self.instance.inputs.push(self, Outgoing::of(BUILD, batch)).await?;
                return Ok(());
            }
            if self.holds {
                self.waits_for_build();
                self.held.borrow_mut().push((), compact(batch));
                self.instance.clock_moved.notify();
                return self.account();
            }
            self.take_in(batch).await
        })
    }

    fn selection_input(&self, input: usize) -> Option<&dyn SelectionInput> {
        (input == PROBE && !self.holds && self.probes_in_place()).then_some(self)
    }

    fn probe_stage(&self) -> Option<&dyn ProbeStage> {
        (!self.holds && self.probes_in_place()).then_some(self)
    }

    /// Records the end of an input; announces that of the build.
    fn end_input(&self, input: usize, watermark: i64) -> Option<Task<'_>> {
        let status = self.status.get();
        if input == PROBE {
            self.status.set(status.with_probe(watermark == i64::MAX));
            return None;
        }
        self.status.set(status.with_build(watermark == i64::MAX));
        self.instance.inputs.progress(self, self.status.get().build_watermark(), false)
    }

    fn resume(&self) -> Task<'_, i64> {
        Box::pin(std::future::ready(Ok(i64::MIN)))
    }

    fn end(&self, _: i64) -> Task<'_> {
        if self.holds {
            self.ended.set(true);
            self.instance.clock_moved.notify();
            return Box::pin(std::future::ready(Ok(())));
        }
        Box::pin(self.announce_end())
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
        if !self.holds {
            return Box::pin(self.join());
        }
        Box::pin(all(vec![Box::pin(self.join()), Box::pin(self.take_held())]))
    }
}

impl<D: Downstream> SelectionInput for HashJoinRun<D> {
    fn push_selection(&self, rows: Selection) -> Task<'_> {
        Box::pin(async move { if rows.len() == 0 { Ok(()) } else { self.probe(rows).await } })
    }
}

impl<D: Downstream> Member for HashJoinRun<D> {
    fn instance(&self) -> &Instance {
        &self.instance
    }

    fn crosses(&self, from: i64, to: i64) -> bool {
        from != to
    }

    fn pushes_beside(&self) -> bool {
        self.holds
    }

    fn keep(&self, arrival: Arrival, batch: RecordBatch) -> Result<(), DataflowError> {
        if arrival.port == BUILD {
            self.count(|of| &of.build_rows, batch.num_rows() as u64);
            self.keep_build(compact(batch))?;
        } else {
            self.arrived.borrow_mut().push(arrival, compact(batch));
            self.instance.clock_moved.notify();
        }
        self.account()
    }

    /// The workers of a process share a replicated build, and each accounts for an equal part of
    /// it.
    fn account(&self) -> Result<(), DataflowError> {
        let table = self.table.borrow().as_ref().map_or(0, |table| table.bytes);
        let build = (self.build.borrow().bytes + table).div_ceil(self.parts());
        let mut bytes = build + self.held.borrow().bytes + self.arrived.borrow().bytes;
        if let Some(spilled) = &*self.spilled.borrow() {
            bytes += spilled.bytes();
            self.metrics.count_spilled(self.instance.tag, &self.published, spilled.spilled());
        }
        match self.accounting.set(self.instance.tag, bytes) {
            Err(StateError::Budget { budget, .. })
                if (self.disk.is_none() || self.spec.is_pulled) && build > bytes / 2 =>
            {
                let side = self.spec.sides[BUILD].name.clone();
                Err(DataflowError::Build { side, bytes_max: budget })
            }
            set => Ok(set?),
        }
    }
}

#[cfg(test)]
mod tests;
