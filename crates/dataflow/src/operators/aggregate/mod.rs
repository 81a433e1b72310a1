//! Windowed grouping on one worker (S3, S6): folds rows into partial states, brings the states of
//! one key together by an exchange, and fires a window when the clock of every worker has passed
//! its end (S11).
//!
//! All exchanges give the same rows. What differs is what travels:
//!
//! | exchange | where a row is folded | what travels |
//! |---|---|---|
//! | `forward` | here, by the only worker | nothing |
//! | `merge` | here | one delta per epoch and leader, of the groups that others lead ([`merge`]) |
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

mod ahead;
mod delta;
mod early;
mod emit;
mod fold;
mod frequent;
mod late;
mod merge;
mod sessions;

use std::cell::{Cell, RefCell, RefMut};
use std::rc::Rc;
use std::sync::Arc;

use arrow::array::Int64Array;
use arrow::datatypes::DataType;
use arrow::record_batch::RecordBatch;
use bytes::Bytes;
use state::epoch::{Leader, Progress};
use state::{Triggered, Partitioner, Slices, Spilled, Windowed};

use crate::error::DataflowError;
use crate::exchange::{Arrival, Member, Port, Shuffle, leader_of, said};
use crate::job::{Aggregation, Exchange, FINAL, Window};
use crate::operators::aggregate::delta::Deltas;
use crate::operators::aggregate::fold::Folder;
use crate::operators::aggregate::frequent::Front;
use crate::operators::aggregate::late::Sorted;
use crate::operators::aggregate::merge::Merge;
use crate::operators::downstream::Downstream;
use crate::rows::time::{last_tick, ticks};
use crate::runtime::frame::Frame;
use crate::runtime::ledger::Ledger;
use crate::runtime::metrics::Metrics;
use crate::runtime::net::{Message, Net};
use crate::runtime::place::{Place, Signals};
use crate::runtime::scheduler::Event;

/// Rows of complete windows that a grouping gives out after a stop. A row may be in so many windows
/// that giving out all of them would take longer than who asked for the end would wait.
const ROWS_AFTER_STOP_MAX: usize = 1 << 20;

/// A grouping on one worker.
pub(crate) struct Grouping<D> {
    tag: u32,
    worker: u32,
    spec: Aggregation,
    rows_max: usize,
    ledger: Rc<Ledger>,
    /// States by slice: of the keys that this worker leads, and what this epoch has brought of
    /// others.
    merged: RefCell<Windowed>,
    folder: RefCell<Folder>,
    exchange: Meeting,
    /// This worker as the leader of its keys: how far every worker's rows are known to be here.
    leader: RefCell<Leader>,
    clock_moved: Event,
    /// Whether a row was given out: see [`Grouping::emit_total_of_nothing`].
    emitted: Cell<bool>,
    /// Whether it is time to look at windows that have not ended.
    look: Cell<bool>,
    /// How many batches are not to be folded as they were read.
    pause: Cell<u32>,
    /// Whether this worker has no more rows.
    ended: Cell<bool>,
    /// Whether groups may go to a disk.
    spills: bool,
    /// What went to the disk, as far as it was published.
    spilled: Cell<Spilled>,
    signals: Arc<Signals>,
    net: Rc<Net>,
    behind: D,
    metrics: Arc<Metrics>,
}

/// How the states of one key come together.
enum Meeting {
    Forward,
    Merge(Box<Merge>),
    /// With what is in front of it, if rows of frequent keys are folded where they are read.
    Shuffle(Box<Shuffle>, Option<Box<Front>>),
}

impl<D: Downstream> Grouping<D> {
    pub(crate) fn new(
        tag: u32,
        spec: &Aggregation,
        place: &Place,
        net: Rc<Net>,
        behind: D,
        metrics: Arc<Metrics>,
    ) -> Self {
        let spec = &sessions::with_times(spec);
        let windows = spec.window.as_ref().map(|window| window.windows);
        let exchange = match spec.exchange {
            _ if place.workers == 1 => Meeting::Forward,
            Exchange::Forward => Meeting::Forward,
            Exchange::Merge => {
                let partitioner = Partitioner::in_blocks(place.workers);
                Meeting::Merge(Box::new(Merge::new(spec, place, partitioner)))
            }
            Exchange::Shuffle | Exchange::UpPar => {
                let port = Port::new(&spec.input_schema, &spec.keys, place);
                let port = port.halved(spec.exchange == Exchange::UpPar);
                let shuffle = Shuffle::new(vec![port], place.workers);
                Meeting::Shuffle(Box::new(shuffle), Front::of(spec, place).map(Box::new))
            }
        };
        let leader = leader_of(place, matches!(exchange, Meeting::Forward));
        let mut merged = Windowed::new(&spec.group_by, windows);
        if let Some(disk) = &place.disk {
            let merges = matches!(exchange, Meeting::Merge(_));
            let own = merges.then(|| (place.worker, Partitioner::in_blocks(place.workers)));
            merged.slices().spill_to(disk.clone(), own);
        }
        Self {
            tag,
            worker: place.worker,
            spec: spec.clone(),
            rows_max: place.settings.batch_rows_max,
            ledger: place.ledger.clone(),
            merged: RefCell::new(merged),
            folder: RefCell::new(Folder::new(spec)),
            exchange,
            leader: RefCell::new(leader),
            clock_moved: Event::default(),
            emitted: Cell::new(false),
            look: Cell::new(false),
            pause: Cell::new(0),
            ended: Cell::new(false),
            spills: place.disk.is_some(),
            spilled: Cell::default(),
            signals: place.signals.clone(),
            net,
            behind,
            metrics,
        }
    }

    /// The key of the slice of all rows of the span from one time to another, if it is one.
    pub(crate) fn slice_of(&self, (first, last): (i64, i64)) -> Option<i64> {
        let windows = &self.spec.window.as_ref()?.windows;
        let start = windows.slice_start(first);
        (windows.slice_start(last) == start).then(|| windows.slice_key(start))
    }

    /// The window's column, if nothing but its slice is ever asked of it here.
    pub(crate) fn only_time(&self) -> Option<usize> {
        let column = self.spec.window.as_ref()?.column;
        let read = self.spec.keys.contains(&column)
            || self.spec.args.iter().flatten().any(|&arg| arg == column);
        let sent = matches!(self.exchange, Meeting::Shuffle(..));
        (!read && !sent).then_some(column)
    }

    /// Takes rows of this worker's own flows; `met` gives the watermark that each row met, if some
    /// lag; `slice` the key of the slice of all, if that is known.
    ///
    /// # Errors
    /// When state cannot be updated or rows cannot travel.
    pub(crate) async fn push(
        &self,
        batch: &RecordBatch,
        met: Option<&Int64Array>,
        slice: Option<i64>,
    ) -> Result<(), DataflowError> {
        let window = self.spec.window.as_ref().filter(|window| !window.attached);
        if window.is_some_and(|window| batch.column(window.column).null_count() > 0) {
            let message = "the time of a window is NULL: leave such rows out in a view, WHERE … IS \
                           NOT NULL";
            return Err(DataflowError::Expression(message.into()));
        }
        let sorted = met.map(|met| self.sort_out(batch, met)).transpose()?;
        // Rows that travel are told apart by their time.
        let slice = slice.filter(|_| !matches!(self.exchange, Meeting::Shuffle(..)));
        if let Some(Sorted { on_time, rest, .. }) = sorted {
            self.push_on(&on_time, slice).await?;
            for (key, batch) in &rest {
                self.push_on(batch, Some(*key)).await?;
            }
        } else {
            self.push_on(batch, slice).await?;
        }
        self.account()?;
        match &self.exchange {
            // Groups of others are all that is left in memory: their leaders have room for them.
            Meeting::Merge(merge) if self.has_spilled() => merge.relieve(self).await,
            _ => Ok(()),
        }
    }

    /// Whether groups have gone to the disk since the last call.
    fn has_spilled(&self) -> bool {
        self.merged.borrow_mut().slices().take_spilled()
    }

    /// Takes rows to where they are folded; those of `key` are not of their slice.
    async fn push_on(&self, batch: &RecordBatch, key: Option<i64>) -> Result<(), DataflowError> {
        if batch.num_rows() == 0 {
            return Ok(());
        }
        match &self.exchange {
            Meeting::Forward | Meeting::Merge(_) => self.fold(batch, key, self.bounded().slices()),
            Meeting::Shuffle(shuffle, front) => {
                let front = front.as_ref().filter(|_| key.is_none());
                let frequent = front.map(|front| front.frequent());
                let apart = shuffle.push(self, 0, batch, key, frequent).await?;
                match (front, apart) {
                    (Some(front), Some(rows)) => front.push(self, &rows).await,
                    _ => Ok(()),
                }
            }
        }
    }

    /// Whether a window ends between what this worker has told and this watermark.
    pub(crate) fn awaits(&self, watermark: i64) -> bool {
        let told = self.leader.borrow().clock().of(self.worker);
        let told = told.map_or(i64::MIN, |told| told.watermark);
        self.spec.window.is_some() && self.crosses(told, watermark)
    }

    /// This worker's watermark has moved, or it fell idle.
    ///
    /// # Errors
    /// When state cannot be merged or cannot travel.
    pub(crate) async fn progress(&self, watermark: i64, idle: bool) -> Result<(), DataflowError> {
        match &self.exchange {
            Meeting::Forward => self.move_clock(self.worker, said(watermark, idle)),
            Meeting::Merge(merge) => merge.progress(self, watermark, idle).await?,
            Meeting::Shuffle(shuffle, _) if shuffle.announces(self, watermark, idle) => {
                self.deliver().await?;
                shuffle.progress(self, watermark, idle).await?;
            }
            Meeting::Shuffle(..) => {}
        }
        Ok(())
    }

    /// Ends an epoch that is long enough, of rows without a watermark.
    ///
    /// # Errors
    /// When state cannot travel.
    pub(crate) async fn end_long_epoch(&self) -> Result<(), DataflowError> {
        match &self.exchange {
            Meeting::Merge(merge) if merge.is_long(self) => merge.share(self).await,
            _ => Ok(()),
        }
    }

    /// This worker was idle and has rows again. Gives the watermark up to which windows have fired
    /// anywhere: rows before it are late.
    ///
    /// # Errors
    /// When state cannot travel.
    pub(crate) async fn resume(&self) -> Result<i64, DataflowError> {
        match &self.exchange {
            Meeting::Forward => Ok(self.least()),
            Meeting::Merge(merge) => merge.resume(self).await,
            Meeting::Shuffle(shuffle, _) => Ok(shuffle.resume(self).await),
        }
    }

    /// This worker has no more rows. `watermark` is `i64::MAX` if its input is complete.
    ///
    /// # Errors
    /// When state cannot be merged or cannot travel.
    pub(crate) async fn end_of_rows(&self, watermark: i64) -> Result<(), DataflowError> {
        self.ended.set(true);
        match &self.exchange {
            Meeting::Forward => {}
            Meeting::Merge(merge) => merge.end(self, watermark).await?,
            Meeting::Shuffle(shuffle, _) => {
                self.deliver().await?;
                shuffle.end(self, watermark).await?;
            }
        }
        self.move_clock(self.worker, Progress::ended(watermark));
        Ok(())
    }

    /// Takes a frame of another worker.
    ///
    /// # Errors
    /// When it is malformed, or state cannot be updated.
    pub(crate) fn receive(&self, from: u32, message: Message) -> Result<(), DataflowError> {
        match &self.exchange {
            Meeting::Merge(merge) => merge.receive(self, from, message),
            Meeting::Shuffle(shuffle, _) => shuffle.receive(self, from, message),
            Meeting::Forward => {
                let frame = message.envelope.frame;
                let detail = format!("{frame:?} does not belong to the exchange");
                Err(DataflowError::Frame { worker: from, detail })
            }
        }
    }

    /// Fires windows until no more rows can come.
    ///
    /// # Errors
    /// When a window cannot be evaluated or its rows cannot be written.
    pub(crate) async fn fire(&self) -> Result<(), DataflowError> {
        let mut left = ROWS_AFTER_STOP_MAX;
        loop {
            // Read before anything is awaited: the clock moves on while rows are written.
            let seen = self.time();
            loop {
                if self.signals.is_stopped() {
                    if left == 0 {
                        break;
                    }
                    left = left.saturating_sub(self.rows_max);
                }
                let ripe = self.ripe(seen.0)?;
                if ripe.is_empty() {
                    break;
                }
                // Lasts until it is dropped; nothing is inside it.
                let _firing = tracing::info_span!("window firing", windows = ripe.len());
                self.emit(ripe, FINAL).await?;
                self.account()?;
            }
            if self.look.take() {
                self.emit_early().await?;
            }
            self.behind.advance(self.complete(seen.0), false).await?;
            if self.time() == seen && seen.1 {
                break;
            }
            let due = || self.time() != seen || self.look.get();
            self.clock_moved.wait_for(|| due().then_some(())).await;
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

    /// Acks the other workers' epochs until all are answered; a coroutine of its own, because an
    /// answer may have to wait for credit.
    pub(crate) async fn answer(&self) {
        match &self.exchange {
            Meeting::Forward => {}
            Meeting::Merge(merge) => {
                let ack = |epoch, watermark| Frame::EpochAck { epoch, watermark };
                merge.acks().run(self, 0, ack).await;
            }
            Meeting::Shuffle(shuffle, _) => shuffle.acknowledge(self).await,
        }
    }

    /// What leads rows to other workers, if that is how they meet.
    pub(crate) fn shuffle(&self) -> Option<&Shuffle> {
        match &self.exchange {
            Meeting::Shuffle(shuffle, _) => Some(shuffle),
            Meeting::Forward | Meeting::Merge(_) => None,
        }
    }

    /// Waits until no other worker needs anything that this one keeps.
    pub(crate) async fn settle(&self) {
        if let Meeting::Merge(merge) = &self.exchange {
            merge.settle(self).await;
        }
    }

    /// Groups of the first windows that the watermark has passed: so many as make a batch.
    fn ripe(&self, watermark: i64) -> Result<Vec<Triggered>, DataflowError> {
        let mut merged = self.bounded();
        let mut ripe = Vec::new();
        let mut rows = 0;
        while rows < self.rows_max
            && let Some(fired) = merged.trigger(watermark)?
        {
            let windows =
                if self.spec.has_sessions() { fired.columns.rows() } else { fired.first.into() };
            self.metrics.count_windows(self.tag, windows);
            rows += fired.columns.rows();
            ripe.push(fired);
        }
        Ok(ripe)
    }

    fn sort_out(&self, batch: &RecordBatch, met: &Int64Array) -> Result<Sorted, DataflowError> {
        let of = |window: &Window| ticks(batch.column(window.column)).map(|t| (window.windows, t));
        let Some((windows, times)) = self.spec.window.as_ref().and_then(of) else {
            return Ok(Sorted { on_time: batch.clone(), rest: Vec::new(), late: 0 });
        };
        let sorted = late::sort_out(&windows, batch, times, met.values())?;
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

    /// Merges groups of another worker.
    fn merge_landed(
        &self,
        deltas: &Deltas,
        from: u32,
        payload: &Bytes,
    ) -> Result<(), DataflowError> {
        if payload.is_empty() {
            return Ok(());
        }
        let landed = deltas.read(payload);
        let landed = landed.map_err(|detail| DataflowError::Frame { worker: from, detail })?;
        for (start, groups) in landed.map(|groups| self.owned(groups)).runs() {
            self.bounded().slices().merge(start, &groups.keys, &groups.states)?;
            self.account()?;
        }
        Ok(())
    }

    /// The merged state, held to what the budget leaves for it.
    fn bounded(&self) -> RefMut<'_, Windowed> {
        let mut merged = self.merged.borrow_mut();
        let share = self.ledger.share(self.tag);
        let beside = match &self.exchange {
            // It grows between two looks at the state, which can make room for it.
            Meeting::Shuffle(_, Some(front)) if self.spills => front.reserved(share),
            _ => self.travelling_bytes(),
        };
        let left = share.saturating_sub(beside);
        // What is given away is copied, and travels while more comes.
        let copies = if self.spills && matches!(self.exchange, Meeting::Merge(_)) { 2 } else { 1 };
        merged.set_budget(left / copies);
        merged
    }

    /// Bytes of state on its way from one worker to another, or still to go it.
    fn travelling_bytes(&self) -> usize {
        match &self.exchange {
            Meeting::Merge(merge) => merge.bytes(),
            Meeting::Shuffle(_, Some(front)) => front.bytes(),
            Meeting::Forward | Meeting::Shuffle(_, None) => 0,
        }
    }

    /// Publishes the bytes of state, and holds them to their bound.
    fn account(&self) -> Result<(), DataflowError> {
        let mut merged = self.merged.borrow_mut();
        let spilled = merged.slices().spilled();
        self.metrics.count_spilled(self.tag, &self.spilled, spilled);
        self.metrics.set_key_modes(self.tag, merged.slices().key_modes());
        let bytes = merged.bytes() + self.travelling_bytes();
        Ok(self.ledger.set(self.tag, bytes)?)
    }
}

impl<D: Downstream> Member for Grouping<D> {
    fn tag(&self) -> u32 {
        self.tag
    }

    fn worker(&self) -> u32 {
        self.worker
    }

    fn net(&self) -> &Net {
        &self.net
    }

    fn leader(&self) -> (&RefCell<Leader>, &Event) {
        (&self.leader, &self.clock_moved)
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
        self.account()
    }

    fn take(&self, arrival: Arrival, batch: RecordBatch) -> Result<(), DataflowError> {
        self.keep(arrival, self.owned(batch))
    }

    fn take_groups(&self, from: u32, payload: &Bytes) -> Result<(), DataflowError> {
        match &self.exchange {
            Meeting::Shuffle(_, Some(front)) => front.receive(self, from, payload),
            _ => {
                let detail = "groups of frequent keys, which are not set apart here".into();
                Err(DataflowError::Frame { worker: from, detail })
            }
        }
    }
}
