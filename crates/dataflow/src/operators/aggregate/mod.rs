//! Windowed grouping on one worker (S3, S6): folds rows into partial states, brings the states of
//! one key together by an exchange, and fires a window when the clock of every worker has passed
//! its end (S11).
//!
//! All exchanges give the same rows. What differs is what travels:
//!
//! | exchange | where a row is folded | what travels |
//! |---|---|---|
//! | `forward` | here, by the only worker | nothing |
//! | `merge` | here | one delta per epoch and leader, of the groups that others lead ([`Merge`]) |
//! | `shuffle` | at its key's leader | each row ([`Shuffle`]) |
//! | `shuffle`, frequent keys | here | their groups, when a window may fire ([`frequent`]) |
//! | `uppar` | at its key's leader, one of half of the workers | each row; the others read |
//!
//! Sessions are windows too: see [`sessions`]. Windows may be looked at before they end: see
//! [`early`].
//!
//! The merged state is by slices, of which windows are put together where they fire
//! ([`state::Windowed`]); an exchange moves slices and does not look at windows.
//!
//! Groups that do not fit memory go to a disk, where there is one ([`state::Slices::spill_to`]).
//! With `merge` those of other leaders do not: they travel instead, for then the epoch ends.
//!
//! Late rows are counted here, before any exchange, so that they are the same rows whatever the
//! exchange.

mod early;
mod emit;
mod fold;
mod frequent;
mod fused;
mod late;
#[cfg(test)]
mod recovery_tests;
mod saved;
mod sessions;

use std::cell::{Cell, RefCell, RefMut};
use std::num::NonZeroU64;
use std::rc::Rc;
use std::sync::Arc;

use arrow::array::Int64Array;
use arrow::datatypes::DataType;
use arrow::record_batch::RecordBatch;
use bytes::Bytes;
use state::epoch::Progress;
use state::{
    ConsumedRows, GroupColumns, Partitioner, RowsByOwner, Slices, Spilled, Triggered, Windowed,
};

use crate::checkpoint::{OperatorSnapshot, StateCopies};
use crate::error::DataflowError;
use crate::exchange::{
    AnyExchange, Arrival, Deltas, Inputs, Instance, InstanceRounds, Member, Merge, Outgoing,
    Partition, Shuffle, Task, uppar,
};
use crate::job::{Aggregation, Exchange, FINAL, SavedParts, TimeWindow};
use crate::operators::aggregate::fold::Folder;
use crate::operators::aggregate::frequent::HeavyHitters;
use crate::operators::aggregate::late::Sorted;
use crate::operators::downstream::Downstream;
use crate::operators::operator::{
    Arriving, Fused, OneSlice, OperatorContext, OperatorTask, end_round,
};
use crate::operators::restoring::Restoring;
use crate::rows::time::{last_tick, ticks};
use crate::runtime::accounting::StateAccounting;
use crate::runtime::metrics::Metrics;
use crate::runtime::place::Signals;

/// Rows of complete windows that a grouping gives out after a stop. A row may be in so many windows
/// that giving out all of them would take longer than who asked for the end would wait.
const ROWS_AFTER_STOP_MAX: usize = 1 << 20;

/// A grouping on one worker.
pub(crate) struct Grouping<D> {
    instance: Instance,
    spec: Aggregation,
    /// The form of what is saved.
    form: SavedParts,
    rows_max: usize,
    accounting: Rc<StateAccounting>,
    /// States by slice: of the keys that this worker leads, and what this epoch has brought of
    /// others.
    merged: RefCell<Windowed>,
    folder: RefCell<Folder>,
    /// How groups travel, if they do.
    deltas: Option<Rc<Deltas>>,
    /// The pre-aggregation of frequent keys in front of a shuffle.
    front: Option<Box<HeavyHitters>>,
    /// Whether a row was emitted: see [`Grouping::emit_total_of_nothing`].
    emitted: Cell<bool>,
    /// Whether it is time to look at windows that have not ended.
    look: Cell<bool>,
    /// How many batches of a fused scan come without the fused loop.
    pause: Cell<u32>,
    /// Whether this worker has no more rows.
    ended: Cell<bool>,
    /// Whether groups may go to a disk.
    spills: bool,
    /// What went to the disk, as far as it was published.
    spilled: Cell<Spilled>,
    /// The copies of checkpoints that are being stored, where groups may go to a disk.
    copies: StateCopies,
    signals: Arc<Signals>,
    behind: D,
    metrics: Arc<Metrics>,
}

impl<D: Downstream> Grouping<D> {
    pub(crate) fn new(
        OperatorContext { tag, place, net, metrics, shuffle, .. }: OperatorContext<'_>,
        spec: &Aggregation,
        behind: D,
    ) -> Self {
        let form = spec.saved_parts();
        let spec = &spec.with_session_times();
        let windows = spec.window.as_ref().map(|window| window.windows);
        let alone = place.workers == 1 || spec.exchange == Exchange::Forward;
        let merges = !alone && spec.exchange == Exchange::Merge;
        let front = if alone { None } else { HeavyHitters::of(spec, place, shuffle.frequent_keys) };
        let deltas = (merges || front.is_some()).then(|| Rc::new(Deltas::new(&spec.group_by)));
        let inputs = match () {
            () if alone => Inputs::local(1, place),
            () if merges => {
                let merge = Merge::new(Partitioner::in_blocks(place.stateful()), place);
                Inputs::of(vec![AnyExchange::Merge(Box::new(merge))], place)
            }
            _ => {
                let partition = match spec.exchange {
                    Exchange::UpPar => uppar(&spec.keys, place.worker, place.workers),
                    _ => {
                        Partition::by_key(&spec.keys, place.worker, place.workers, place.stateful())
                    }
                };
                let exchange = Shuffle::new(0, &spec.input_schema, partition, place, shuffle);
                Inputs::of(vec![AnyExchange::Shuffle(Box::new(exchange))], place)
            }
        };
        let mut merged = Windowed::new(&spec.group_by, windows);
        if let Some(disk) = &place.disk {
            let own = merges.then(|| (place.worker, Partitioner::in_blocks(place.stateful())));
            merged.slices().spill_to(disk.clone(), own);
        }
        Self {
            instance: Instance::new(tag, place, net, inputs, alone),
            spec: spec.clone(),
            form,
            rows_max: place.settings.batch_rows_max,
            accounting: place.accounting.clone(),
            merged: RefCell::new(merged),
            folder: RefCell::new(Folder::new(spec)),
            deltas,
            front: front.map(Box::new),
            emitted: Cell::new(false),
            look: Cell::new(false),
            pause: Cell::new(0),
            ended: Cell::new(false),
            spills: place.disk.is_some(),
            spilled: Cell::default(),
            copies: StateCopies::default(),
            signals: place.signals.clone(),
            behind,
            metrics,
        }
    }

    /// Takes rows of this worker's own edges; `watermarks` are those that each row met, if some
    /// rows lag; `slice` is the key of the slice of all, if that is known.
    async fn push(
        &self,
        batch: RecordBatch,
        watermarks: Option<&Int64Array>,
        slice: Option<i64>,
    ) -> Result<(), DataflowError> {
        let window = self.spec.window.as_ref().filter(|window| !window.attached);
        if window.is_some_and(|window| batch.column(window.column).null_count() > 0) {
            let message = "the time of a window is NULL: leave such rows out in a view, WHERE … IS \
                           NOT NULL";
            return Err(DataflowError::Expression(message.into()));
        }
        let sorted = watermarks.map(|each| self.sort_out(&batch, each)).transpose()?;
        // Rows that travel are told apart by their time.
        let slice = slice.filter(|_| !self.sends_rows());
        if let Some(Sorted { on_time, rest, .. }) = sorted {
            self.push_on(on_time, slice).await?;
            for (key, batch) in rest {
                self.push_on(batch, Some(key)).await?;
            }
        } else {
            self.push_on(batch, slice).await?;
        }
        self.publish_bytes()?;
        // Groups of others are all that is left in memory: their leaders have room for them.
        if self.spills && self.has_spilled() {
            self.instance.inputs.relieve(self).await
        } else {
            Ok(())
        }
    }

    /// The key of the slice of all rows of the span from one time to another, if it is one.
    fn key_of(&self, (first, last): (i64, i64)) -> Option<i64> {
        let windows = &self.spec.window.as_ref()?.windows;
        let start = windows.slice_start(first);
        (windows.slice_start(last) == start).then(|| windows.slice_key(start))
    }

    /// The window's column, if nothing but its slice is ever asked of it here.
    fn only_time(&self) -> Option<usize> {
        let column = self.spec.window.as_ref()?.column;
        let read = self.spec.keys.contains(&column)
            || self.spec.args.iter().flatten().any(|&arg| arg == column);
        (!read && !self.sends_rows()).then_some(column)
    }

    /// Whether rows travel, and not only groups.
    fn sends_rows(&self) -> bool {
        self.instance.inputs.sends_rows(self)
    }

    /// Whether groups have gone to the disk since the last call.
    fn has_spilled(&self) -> bool {
        self.merged.borrow_mut().slices().take_spilled()
    }

    /// Takes rows to where they are folded; those of `key` are not of their slice.
    async fn push_on(&self, batch: RecordBatch, key: Option<i64>) -> Result<(), DataflowError> {
        if batch.num_rows() == 0 {
            return Ok(());
        }
        if !self.sends_rows() {
            return self.fold(&batch, key, self.bounded().slices());
        }
        let front = self.front.as_ref().filter(|_| key.is_none());
        let frequent = front.map(|front| front.frequent());
        let rows = Outgoing { port: 0, batch, slice: key, frequent };
        let apart = self.instance.inputs.push(self, rows).await?;
        match (front, apart) {
            (Some(front), Some(rows)) => front.push(self, &rows).await,
            _ => Ok(()),
        }
    }

    /// Ends an epoch that is long enough. With a watermark that is looked at when it moves; where
    /// none comes, when rows were taken.
    async fn end_long_epoch(&self) -> Result<(), DataflowError> {
        if self.instance.inputs.is_long(self) {
            self.instance.inputs.flush(self).await
        } else {
            Ok(())
        }
    }

    /// Fires windows until no more rows can come.
    async fn fire(&self) -> Result<(), DataflowError> {
        let mut left = ROWS_AFTER_STOP_MAX;
        loop {
            // Read before anything is awaited: the clock moves on while rows are written. When a
            // round is complete, it stands still.
            let completed = self.instance.completed();
            let seen = self.time();
            loop {
                if self.signals.is_stopped() {
                    if left == 0 {
                        break;
                    }
                    left = left.saturating_sub(self.rows_max);
                }
                if self.behind.is_satisfied() {
                    break;
                }
                let due = self.due_windows(seen.0)?;
                if due.is_empty() {
                    break;
                }
                // Lasts until it is dropped; nothing is inside it.
                let _firing = tracing::info_span!("window firing", windows = due.len());
                self.emit(due, FINAL).await?;
                self.publish_bytes()?;
            }
            if self.look.take() {
                self.emit_early().await?;
            }
            self.behind.advance(self.complete(seen.0), false).await?;
            if let Some(round) = completed {
                end_round(self, &self.behind, round).await?;
                continue;
            }
            if self.time() == seen && seen.1 {
                break;
            }
            let due =
                || self.time() != seen || self.look.get() || self.instance.completed().is_some();
            self.instance.clock_moved.wait_for(|| due().then_some(())).await;
        }
        self.emit_total_of_nothing().await?;
        self.behind.end(self.complete(self.least())).await
    }

    /// The watermark of what is given out when all windows up to `watermark` have fired: the least
    /// `window_time` that can come is the last millisecond of a later window.
    fn complete(&self, watermark: i64) -> i64 {
        let Some(window) = &self.spec.window else { return watermark };
        let DataType::Timestamp(unit, _) = &window.time_type else { return watermark };
        match watermark {
            i64::MIN | i64::MAX => watermark,
            _ if window.attached => watermark,
            _ if window.windows.gap().is_some() => {
                sessions::complete(&window.windows, watermark, *unit)
            }
            _ => watermark.saturating_sub(last_tick(*unit) - 1),
        }
    }

    /// Groups of the first windows that the watermark has passed: so many as make a batch.
    fn due_windows(&self, watermark: i64) -> Result<Vec<Triggered>, DataflowError> {
        let mut merged = self.bounded();
        let mut due = Vec::new();
        let mut rows = 0;
        while rows < self.rows_max
            && let Some(fired) = merged.trigger(watermark)?
        {
            let windows =
                if self.spec.has_sessions() { fired.columns.rows() } else { fired.first.into() };
            self.metrics.count_windows(self.instance.tag, windows);
            rows += fired.columns.rows();
            due.push(fired);
        }
        Ok(due)
    }

    fn sort_out(
        &self,
        batch: &RecordBatch,
        watermarks: &Int64Array,
    ) -> Result<Sorted, DataflowError> {
        let of =
            |window: &TimeWindow| ticks(batch.column(window.column)).map(|t| (window.windows, t));
        let Some((windows, times)) = self.spec.window.as_ref().and_then(of) else {
            return Ok(Sorted { on_time: batch.clone(), rest: Vec::new(), late: 0 });
        };
        let sorted = late::sort_out(&windows, batch, times, watermarks.values())?;
        Metrics::add(&self.metrics.late, sorted.late);
        Ok(sorted)
    }

    fn fold(
        &self,
        batch: &RecordBatch,
        key: Option<i64>,
        slices: &mut Slices,
    ) -> Result<(), DataflowError> {
        self.folder.borrow_mut().fold(batch, key, slices)
    }

    /// Rows that state may keep: arrays that stay must not hold the slot of a ring in which they
    /// landed, for then the sender would wait for it forever.
    fn owned(&self, landed: RecordBatch) -> RecordBatch {
        if self.spec.group_by.keeps_arrays() { crate::rows::wire::detach(&landed) } else { landed }
    }

    /// The merged state, held to what the budget leaves for it.
    fn bounded(&self) -> RefMut<'_, Windowed> {
        let mut merged = self.merged.borrow_mut();
        let share = self.accounting.share(self.instance.tag);
        let beside = match &self.front {
            // It grows between two looks at the state, which can make room for it.
            Some(front) if self.spills => front.reserved(share),
            _ => self.travelling_bytes(),
        };
        // Copies that a checkpoint has not stored yet.
        let left = share.saturating_sub(beside).saturating_sub(self.copies.bytes());
        // What is given away is copied, and travels while more comes.
        let gives_away = self.spills && !self.instance.inputs.is_local() && !self.sends_rows();
        let copies = if gives_away { 2 } else { 1 };
        merged.set_budget(left / copies);
        merged
    }

    /// Bytes of state on its way from one worker to another, or still to go it.
    fn travelling_bytes(&self) -> usize {
        let in_front = self.front.as_ref().map_or(0, |front| front.bytes());
        self.instance.inputs.bytes(self) + in_front + self.instance.kept_apart()
    }

    /// Publishes the bytes of state, and holds them to their bound.
    fn publish_bytes(&self) -> Result<(), DataflowError> {
        let mut merged = self.merged.borrow_mut();
        let spilled = merged.slices().spilled();
        self.metrics.count_spilled(self.instance.tag, &self.spilled, spilled);
        self.metrics.set_key_modes(self.instance.tag, merged.slices().key_modes());
        let bytes = merged.bytes() + self.travelling_bytes() + self.copies.bytes();
        Ok(self.accounting.set(self.instance.tag, bytes)?)
    }
}

impl<D: Downstream> OperatorTask for Grouping<D> {
    fn slice_of(&self, span: (i64, i64)) -> Option<OneSlice> {
        self.key_of(span).map(|key| OneSlice { key, unread: self.only_time() })
    }

    fn push(&self, Arriving { rows, slice, timed, .. }: Arriving) -> Task<'_> {
        Box::pin(async move {
            self.push(rows.batch, rows.watermarks.as_ref(), slice).await?;
            if timed { Ok(()) } else { self.end_long_epoch().await }
        })
    }

    fn fold(&self, fused: Fused<'_>) -> Result<ConsumedRows, DataflowError> {
        self.fold_fused(fused)
    }

    fn finish_fold(&self, timed: bool) -> Option<Task<'_>> {
        let inputs = &self.instance.inputs;
        if timed || !inputs.is_long(self) { None } else { Some(Box::pin(inputs.flush(self))) }
    }

    fn ends_window(&self, watermark: i64) -> bool {
        let announced = self.instance.leader.borrow().clock().of(self.instance.worker);
        let announced = announced.map_or(i64::MIN, |announced| announced.watermark);
        self.spec.window.is_some() && self.crosses(announced, watermark)
    }

    fn progress(&self, watermark: i64, idle: bool) -> Option<Task<'_>> {
        let announced = self.instance.inputs.progress(self, watermark, idle)?;
        if self.front.is_none() {
            return Some(announced);
        }
        Some(Box::pin(async move {
            self.deliver().await?;
            announced.await
        }))
    }

    fn resume(&self) -> Task<'_, i64> {
        Box::pin(self.instance.inputs.resume(self))
    }

    fn end(&self, watermark: i64) -> Task<'_> {
        self.ended.set(true);
        Box::pin(async move {
            self.deliver().await?;
            self.instance.inputs.end(self, watermark).await
        })
    }

    fn end_round(&self, round: u64, progress: Progress) -> Task<'_> {
        Box::pin(async move {
            self.deliver().await?;
            self.instance.inputs.end_round(self, round, progress).await
        })
    }

    fn is_satisfied(&self) -> bool {
        self.behind.is_satisfied()
    }

    /// Nothing where no more rows are needed: then a window may have been left half given out, and
    /// the limit behind is saved as one that has all of its rows.
    fn save(&self) -> Result<Option<OperatorSnapshot>, DataflowError> {
        let emits_early = self.spec.early_ns.is_some();
        let mut kept = saved::KeptGroups::default();
        if !self.behind.is_satisfied() {
            let copies = Some(&self.copies).filter(|_| self.spills);
            let round = self.instance.rounds.as_ref().map(InstanceRounds::save_round);
            let round = round.unwrap_or_default();
            kept = saved::save(&mut self.bounded(), round, &self.form, emits_early, copies)?;
        }
        let saved::KeptGroups { mut parts, stored } = kept;
        if self.is_total() && self.emitted.get() {
            parts.push(saved::save_emitted(&self.form)?);
        }
        let (operator, watermark) = (self.instance.tag, self.least());
        let version = self.form.version;
        self.publish_bytes()?;
        Ok(Some(OperatorSnapshot { operator, version, watermark, parts, stored }))
    }

    fn load(&self, from: &Restoring<'_>) -> Result<(), DataflowError> {
        let mut loading = saved::RestoredGroups::default();
        from.each(self.instance.tag, |saved| {
            loading.take(&mut self.bounded(), self.spec.keys.len(), &saved)?;
            self.publish_bytes()
        })?;
        loading.finish(&mut self.merged.borrow_mut(), from.watermark(self.instance.tag));
        self.emitted.set(loading.emitted);
        Ok(())
    }

    /// Ends when no other worker needs anything that this one keeps.
    fn run(&self) -> Task<'_> {
        Box::pin(async {
            self.fire().await?;
            self.instance.inputs.settle(self).await;
            Ok(())
        })
    }

    fn interval_ns(&self) -> Option<NonZeroU64> {
        self.spec.early_ns
    }

    fn interval(&self) -> Task<'_> {
        Box::pin(self.look_early())
    }
}

impl<D: Downstream> Member for Grouping<D> {
    fn instance(&self) -> &Instance {
        &self.instance
    }

    /// Whether windows end between the two watermarks.
    fn crosses(&self, from: i64, to: i64) -> bool {
        match &self.spec.window {
            _ if from == to => false,
            _ if from == i64::MIN || to == i64::MAX => true,
            Some(window) => window.windows.ends_between(from, to),
            None => false,
        }
    }

    fn keep(&self, arrival: Arrival, batch: RecordBatch) -> Result<(), DataflowError> {
        self.fold(&batch, arrival.slice, self.bounded().slices())?;
        self.publish_bytes()
    }

    fn take(&self, arrival: Arrival, batch: RecordBatch) -> Result<(), DataflowError> {
        self.keep(arrival, self.owned(batch))
    }

    fn take_groups(&self, from: u32, payload: &Bytes) -> Result<(), DataflowError> {
        let malformed = |detail| DataflowError::Frame { worker: from, detail };
        let Some(deltas) = &self.deltas else {
            return Err(malformed("groups of frequent keys, which are not set apart".into()));
        };
        if payload.is_empty() {
            return Ok(());
        }
        let landed = deltas.read(payload).map_err(malformed)?;
        for (start, groups) in landed.map(|groups| self.owned(groups)).runs() {
            self.bounded().slices().merge(start, &groups.keys, &groups.states)?;
            self.publish_bytes()?;
        }
        Ok(())
    }

    fn take_remote_groups(
        &self,
        partitioner: &mut Partitioner,
        give: &mut dyn FnMut(i64, &RowsByOwner, &GroupColumns) -> Result<(), DataflowError>,
    ) -> Result<usize, DataflowError> {
        self.bounded().slices().take_remote_groups(self.instance.worker, partitioner, give)
    }

    fn groups_max(&self) -> u64 {
        self.merged.borrow_mut().slices().groups_at_most() as u64
    }

    fn share(&self) -> usize {
        self.accounting.share(self.instance.tag)
    }

    fn account(&self) -> Result<(), DataflowError> {
        self.publish_bytes()
    }
}
