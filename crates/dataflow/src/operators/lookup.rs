//! The join of a stream with a small table that every process has whole (A3).
//!
//! The table is read once, its flows by all workers together, and its rows are broadcast as any
//! others are ([`Inputs`], W1): encoded once, sent once to each process, and handed to the workers
//! there by reference. A table in memory that several processes share is read whole by each, and no
//! row travels (I7). When all of them are there, the first worker of a process puts them into a
//! hash table, which its workers share.
//!
//! A table of which there are versions may be read anew while the stream goes on
//! ([`Lookup::refresh_ns`]): one worker of each process reads a newer one, and the others take it
//! between two batches.
//!
//! No row of the stream is let through before. Then batches are probed where they are, on their way
//! from one operator to the next: no row travels, none waits, and times and watermarks go along
//! unchanged. Rows that no watermark goes with are passed on as a [`Selection`]: their columns are
//! copied behind the last of several joins. Where the next counts rows by a column of the table,
//! its loop looks keys up itself ([`LookupRun::fold_looked`]).

mod stage;

use std::cell::{Cell, OnceCell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;

use arrow::array::{ArrayRef, AsArray, Int64Array, RecordBatch, UInt32Array, UInt64Array};
use arrow::compute::concat_batches;
use arrow::datatypes::UInt64Type;
use state::epoch::{END_OF_STREAM, Progress};
use state::{ConsumedRows, KeyMap, KeyOf, NullKeys};

use crate::checkpoint::{OperatorSnapshot, SavedRows};
use crate::connector::source::ReaderContext;
use crate::error::DataflowError;
use crate::exchange::{Arrival, Inputs, Instance, Member, Outgoing, Port, Task};
use crate::job::{Distribution, Exchange, FusedLookup, Lookup, Origin, RawBatch, RawColumns, Scan};
use crate::operators::downstream::Downstream;
use crate::operators::operator::{
    Arriving, Fused, OperatorContext, OperatorTask, SelectionInput, end_round,
};
use crate::operators::probe_chain::ChainRun;
use crate::operators::probe_stage::ProbeStage;
use crate::operators::restoring::Restoring;
use crate::pairing::{Hashed, Pairing, ProbeSide, Terms};
use crate::rows::Rows;
use crate::rows::selection::Selection;
use crate::rows::time::ticks_of;
use crate::rows::wire::bytes_of;
use crate::runtime::accounting::StateAccounting;
use crate::runtime::builds::Listeners;
use crate::runtime::external::External;
use crate::runtime::metrics::Metrics;
use crate::runtime::place::Signals;
use crate::runtime::process::Process;
use crate::runtime::reader::{Read, Reader, Share};
use crate::runtime::scheduler::{Event, Timers, yield_now};

/// A lookup on one worker.
pub(crate) struct LookupRun<D> {
    /// The table comes by its inputs; the leader knows which workers have read their parts of it.
    instance: Instance,
    spec: Lookup,
    /// Whether the workers of this process read all of the table.
    pulls: bool,
    rows_max: usize,
    process: Arc<Process>,
    /// The scans of the stream that wait for the table.
    listeners: Listeners,
    accounting: Rc<StateAccounting>,
    timers: Rc<Timers>,
    external: Rc<External>,
    /// Of this worker's part of the table, until it is read.
    reader: RefCell<Option<Reader>>,
    /// What is here of the table, until it is whole; and its bytes.
    rows: RefCell<Vec<RecordBatch>>,
    bytes: Cell<usize>,
    table: RefCell<Option<Arc<Hashed>>>,
    /// The rows of the table and the sum of their hashes, when that was asked for; and those of
    /// the table that the job was saved with.
    fingerprint: OnceCell<(u64, u64)>,
    saved: Cell<Option<(u64, u64)>>,
    read: Event,
    /// The number of that table among the versions that this process has read.
    version: Cell<u64>,
    /// Whether no more rows of the stream come, so that no newer version is asked for.
    has_ended: Cell<bool>,
    context: ReaderContext,
    /// Of a fused scan: the key of the aggregate beside the table's own, if its rows allow it.
    map: OnceCell<Option<Arc<KeyMap>>>,
    signals: Arc<Signals>,
    /// Whether rows were dropped, because the query was stopped.
    is_cut: Cell<bool>,
    metrics: Arc<Metrics>,
    /// The chain that it is the head of, if it is one.
    chain: Option<ChainRun>,
    /// The operators that take its rows.
    behind: D,
}

impl<D: Downstream> LookupRun<D> {
    /// # Errors
    /// When the table cannot be read.
    pub(crate) fn new(
        OperatorContext { tag, place, net, metrics, shuffle, listeners, chain }: OperatorContext<
            '_,
        >,
        spec: &Lookup,
        context: &ReaderContext,
        behind: D,
    ) -> Result<Self, DataflowError> {
        let rows_max = place.settings.batch_rows_max;
        // Counters speak of the stream.
        let counters = Arc::new(Metrics::default());
        // Where the processes share the memory that it lies in, each reads all of it.
        let own = place.process.workers();
        let pulls = own.len() < place.workers as usize && spec.is_pulled;
        let share = if pulls {
            Share { number: Some(place.worker - own.start), of: own.len() as u32 }
        } else {
            Share { number: Some(place.worker), of: place.workers }
        };
        let reader = Reader::new(&spec.table, share, rows_max, context.clone(), counters)?;
        let reader = reader.with_blocks_of(metrics.clone(), tag as usize);
        let table = Port {
            schema: spec.kept(),
            keys: vec![],
            distribution: Distribution::Broadcast,
            partitioner: None,
            multi_partitioner: None,
            window: None,
            waits: false,
        };
        let inputs = match place.workers {
            1 => Inputs::local(1, place),
            _ if pulls => Inputs::local(1, place),
            _ => Inputs::of_rows(tag, vec![table], Exchange::Shuffle, place, shuffle),
        };
        let alone = inputs.is_local();
        Ok(Self {
            instance: Instance::new(tag, place, net, inputs, alone).passing(),
            spec: spec.clone(),
            pulls,
            rows_max,
            process: place.process.clone(),
            listeners,
            accounting: place.accounting.clone(),
            timers: place.timers.clone(),
            external: place.external.clone(),
            reader: RefCell::new(Some(reader)),
            rows: RefCell::default(),
            bytes: Cell::new(0),
            table: RefCell::new(None),
            version: Cell::new(0),
            has_ended: Cell::new(false),
            context: context.clone(),
            fingerprint: OnceCell::new(),
            saved: Cell::new(None),
            read: Event::default(),
            map: OnceCell::new(),
            signals: place.signals.clone(),
            is_cut: Cell::new(false),
            metrics,
            chain: ChainRun::new(chain, tag, place.rounds.is_some(), rows_max),
            behind,
        })
    }

    /// Reads this worker's part of the table, and waits until all of it is here. If the query is
    /// stopped meanwhile, rows that wait for the table are dropped.
    async fn read_table(&self) -> Result<(), DataflowError> {
        let Some(mut reader) = self.reader.take() else { return Ok(()) };
        let stopped = || self.signals.is_stopped();
        let mut watermark = END_OF_STREAM;
        loop {
            let seen = self.external.notifications();
            if stopped() {
                watermark = i64::MIN;
                break;
            }
            match reader.next()? {
                Read::Batch(flow, batch) => {
                    if let Some(batch) = self.kept_of(reader.take(flow, batch)?)? {
                        self.give(batch).await?;
                    }
                    yield_now().await;
                }
                Read::Wait(until_ns) => {
                    self.external.notified_or_at(seen, &self.timers, until_ns).await;
                }
                Read::End => break,
            }
        }
        drop(reader);
        self.instance.inputs.end(self, watermark).await?;
        self.instance.clock_moved.wait_for(|| self.time().1.then_some(())).await;
        let mut rows = if self.pulls { self.gathered().await? } else { self.rows.take() };
        // A worker that was stopped before the end of its part.
        let is_cut = self.least() < END_OF_STREAM;
        if is_cut {
            rows.clear();
        }
        let table = self.process.table(self.instance.tag, || {
            let kept = self.spec.kept();
            let rows = vec![concat_batches(&kept, &rows)?];
            Hashed::unless(&stopped, rows, &kept, &self.spec.keys[1], NullKeys::Nothing)
        })?;
        drop(rows);
        if is_cut || table.is_cut {
            self.is_cut.set(true);
            self.listeners.announce(|_| Ok(None))?;
            *self.table.borrow_mut() = Some(table);
            self.read.notify();
            return Ok(());
        }
        self.compare_with_saved(&table);
        self.publish_bytes(table.bytes())?;
        self.listeners.announce(|key| table.filter(self.spec.keys[1][key]))?;
        *self.table.borrow_mut() = Some(table);
        self.read.notify();
        Ok(())
    }

    /// Reads the table anew whenever there is a newer version, until the stream ends. One worker of
    /// a process does that for all of them.
    async fn refresh(&self, every_ns: u64) -> Result<(), DataflowError> {
        let mut newest = self.spec.table.clone();
        while self.sleeps_until(self.timers.now_ns().saturating_add(every_ns)).await {
            let Some(mut asked) = newest.source.newest(self.external.waker()) else { break };
            let answer = loop {
                let seen = self.external.notifications();
                if self.has_ended.get() {
                    return Ok(());
                }
                match asked.poll() {
                    Poll::Ready(answer) => break answer?,
                    Poll::Pending => self.external.notified_or_at(seen, &self.timers, None).await,
                }
            };
            let Some(source) = answer else { continue };
            newest.source = source;
            let Some(rows) = self.all_rows(&newest).await? else { return Ok(()) };
            let kept = self.spec.kept();
            let rows = vec![concat_batches(&kept, &rows)?];
            let table = Hashed::new(rows, &kept, &self.spec.keys[1], NullKeys::Nothing)?;
            self.process.refresh(self.instance.tag, Arc::new(table));
        }
        Ok(())
    }

    /// Waits until a time; gives whether the stream goes on.
    async fn sleeps_until(&self, until_ns: u64) -> bool {
        loop {
            let seen = self.external.notifications();
            if self.has_ended.get() {
                return false;
            }
            if self.timers.now_ns() >= until_ns {
                return true;
            }
            self.external.notified_or_at(seen, &self.timers, Some(until_ns)).await;
        }
    }

    /// All rows of a version of the table; `None` if the stream ends meanwhile.
    async fn all_rows(&self, table: &Scan) -> Result<Option<Vec<RecordBatch>>, DataflowError> {
        let share = Share { number: Some(0), of: 1 };
        let counters = Arc::new(Metrics::default());
        let reader = Reader::new(table, share, self.rows_max, self.context.clone(), counters)?;
        let tag = self.instance.tag as usize;
        let mut reader = reader.with_blocks_of(self.metrics.clone(), tag);
        let (mut rows, mut bytes) = (vec![], 0);
        loop {
            let seen = self.external.notifications();
            if self.has_ended.get() {
                return Ok(None);
            }
            match reader.next()? {
                Read::Batch(flow, batch) => {
                    if let Some(batch) = self.kept_of(reader.take(flow, batch)?)? {
                        bytes += bytes_of(&batch);
                        self.check_bytes(bytes)?;
                        rows.push(batch);
                    }
                    yield_now().await;
                }
                Read::Wait(until_ns) => {
                    self.external.notified_or_at(seen, &self.timers, until_ns).await;
                }
                Read::End => return Ok(Some(rows)),
            }
        }
    }

    /// The columns that are kept of rows of the table.
    fn kept_of(&self, rows: Option<Rows>) -> Result<Option<RecordBatch>, DataflowError> {
        let Some(Rows { batch, .. }) = rows else { return Ok(None) };
        Ok(Some(match &self.spec.step {
            Some(step) => step.apply(&batch)?.batch,
            None => batch,
        }))
    }

    /// Takes the newest version that this process has read, if it is another.
    fn take_newest(&self) -> Result<(), DataflowError> {
        if self.spec.refresh_ns.is_none() {
            return Ok(());
        }
        let newest = self.process.refreshed(self.instance.tag, self.version.get());
        let Some((version, table)) = newest else { return Ok(()) };
        self.publish_bytes(table.bytes())?;
        self.version.set(version);
        *self.table.borrow_mut() = Some(table);
        Ok(())
    }

    /// Says that the table has changed since the job was saved: rows that come from now on are
    /// joined with the rows that it has now, as they are with each version that is read while the
    /// job runs. Output of a checkpoint is never made anew.
    fn compare_with_saved(&self, table: &Hashed) {
        let Some(saved) = self.saved.take() else { return };
        let is = self.fingerprint_of(table);
        // Every worker has all of the table, and one line is enough.
        if saved == is || self.instance.worker != 0 {
            return;
        }
        tracing::warn!(
            "table '{}' has changed since the job was saved: it had {} rows, and has {}; rows are \
             joined with those that it has now",
            self.spec.table.table,
            saved.0,
            is.0
        );
    }

    fn fingerprint_of(&self, table: &Hashed) -> (u64, u64) {
        *self.fingerprint.get_or_init(|| table.fingerprint())
    }

    /// The rows of the table, when each worker of this process has read its part.
    async fn gathered(&self) -> Result<Vec<RecordBatch>, DataflowError> {
        let tag = self.instance.tag;
        self.process.gather(tag, Some(self.rows.take()), self.external.waker());
        loop {
            let seen = self.external.notifications();
            if let Some(rows) = self.process.gathered(tag) {
                let rows = rows.unwrap_or_default();
                self.check_bytes(rows.iter().map(bytes_of).sum())?;
                return Ok(rows);
            }
            self.external.notified_or_at(seen, &self.timers, None).await;
        }
    }

    /// Refuses more bytes of the table's rows than it may have.
    fn check_bytes(&self, bytes: usize) -> Result<(), DataflowError> {
        if bytes <= self.spec.bytes_max {
            return Ok(());
        }
        let table = self.spec.table.table.clone();
        Err(DataflowError::Table { table, bytes_max: self.spec.bytes_max })
    }

    /// Gives rows of the table to every worker.
    async fn give(&self, batch: RecordBatch) -> Result<(), DataflowError> {
        if batch.num_rows() > 0 {
            self.instance.inputs.push(self, Outgoing::of(0, batch)).await?;
        }
        Ok(())
    }

    /// The workers of a process have the table together, and each writes down its part of it.
    fn publish_bytes(&self, bytes: usize) -> Result<(), DataflowError> {
        let part = bytes.div_ceil(self.process.workers().len());
        Ok(self.accounting.set(self.instance.tag, part)?)
    }

    /// Joins rows of the stream, with the watermarks that they met, and hands on what comes of
    /// them; waits until the table is read.
    async fn join(
        &self,
        rows: Selection,
        watermarks: Option<Int64Array>,
    ) -> Result<(), DataflowError> {
        self.read.wait_for(|| self.table.borrow().is_some().then_some(())).await;
        self.take_newest()?;
        let Some(table) = self.table.borrow().clone() else { return Ok(()) };
        if self.is_cut.get() {
            return Ok(());
        }
        if let Some(chain) = self.chain.as_ref().filter(|_| watermarks.is_none())
            && let Some(mut pass) = chain.pass(self, &rows)?
        {
            let last = pass.last();
            return self.emit_all(|| pass.next(), |rows| last.emit(rows)).await;
        }
        let probe = ProbeSide { side: 0, keys: &self.spec.keys[0] };
        let mut pairing = Pairing::new(probe, [], table, self.spec.kind);
        pairing.push(rows);
        let next = || Ok(pairing.next(terms_of(&self.spec), self.rows_max)?.into());
        match watermarks {
            Some(each) => {
                self.emit_all(next, |(joined, from)| self.emit_late(joined, from, &each)).await
            }
            None => self.emit_all(next, |(joined, _)| self.emit(joined)).await,
        }
    }

    /// Emits joined rows, each with the watermark of the row of the stream that it is made of.
    fn emit_late<'a>(
        &'a self,
        joined: Selection,
        from: UInt32Array,
        watermarks: &Int64Array,
    ) -> Task<'a> {
        let watermarks = ticks_of(watermarks, &Origin::Taken(from));
        Box::pin(async move {
            let (batch, watermarks) = (joined.materialized()?, Some(watermarks?));
            let pushed = self.behind.push(Rows { batch, watermarks, span: None }).await;
            pushed.map_err(DataflowError::of_made_rows)
        })
    }

    /// Folds rows of a fused scan, from the first on, into the aggregate behind it.
    fn fold_looked(
        &self,
        Fused { rows, raw, .. }: Fused<'_>,
        lookup: FusedLookup,
        table: &Hashed,
    ) -> Result<ConsumedRows, DataflowError> {
        let raw = || self.raw(table, &lookup, raw);
        let mut folded = self.behind.fold_looked(rows, &raw)?;
        // Rows without a partner have come to the lookup too.
        folded.passed += std::mem::take(&mut folded.missed);
        Ok(folded)
    }

    /// The column that gives the key of the aggregate, if the table's rows allow a [`KeyMap`].
    fn raw(
        &self,
        table: &Hashed,
        &FusedLookup { own, column, .. }: &FusedLookup,
        of_stream: RawColumns<'_>,
    ) -> Result<Option<RawBatch>, DataflowError> {
        let map = match self.map.get() {
            Some(map) => map,
            None => {
                let map = table.map(own, column)?;
                // Each worker has one.
                let maps = map.as_ref().map_or(0, KeyMap::bytes) * self.process.workers().len();
                self.publish_bytes(table.bytes() + maps)?;
                self.map.get_or_init(|| map.map(Arc::new))
            }
        };
        let Some(map) = map else { return Ok(None) };
        Ok(of_stream()?.map(|raw| RawBatch { by: KeyOf::Mapped(map.clone()), ..raw }))
    }
}

impl<D: Downstream> OperatorTask for LookupRun<D> {
    fn push(&self, Arriving { rows, .. }: Arriving) -> Task<'_> {
        let Rows { batch, watermarks, .. } = rows;
        Box::pin(self.join(Selection::of(batch), watermarks))
    }

    fn probe_stage(&self) -> Option<&dyn ProbeStage> {
        Some(self)
    }

    fn selection_input(&self, _: usize) -> Option<&dyn SelectionInput> {
        Some(self)
    }

    /// Waits until the table is read.
    fn prepare_fold(&self) -> Option<Task<'_>> {
        if self.table.borrow().is_some() {
            return None;
        }
        Some(Box::pin(async {
            self.read.wait_for(|| self.table.borrow().is_some().then_some(())).await;
            Ok(())
        }))
    }

    fn fold(&self, fused: Fused<'_>) -> Result<ConsumedRows, DataflowError> {
        match (fused.lookup, &*self.table.borrow()) {
            (Some(lookup), Some(table)) => self.fold_looked(fused, lookup, table),
            _ => Ok(ConsumedRows::default()),
        }
    }

    fn finish_fold(&self, _: bool) -> Option<Task<'_>> {
        self.behind.finish_fold()
    }

    fn is_satisfied(&self) -> bool {
        self.behind.is_satisfied()
    }

    fn ends_window(&self, watermark: i64) -> bool {
        !self.is_cut.get() && self.behind.ends_window(watermark)
    }

    /// Passes the watermark on.
    fn progress(&self, watermark: i64, idle: bool) -> Option<Task<'_>> {
        if self.is_cut.get() { None } else { self.behind.advance_or_wait(watermark, idle) }
    }

    /// The marker passes through, when the table is read.
    fn end_round(&self, round: u64, _: Progress) -> Task<'_> {
        Box::pin(async move {
            self.read.wait_for(|| self.table.borrow().is_some().then_some(())).await;
            if let Some(rounds) = &self.instance.rounds {
                rounds.sent(self);
            }
            end_round(self, &self.behind, round).await
        })
    }

    fn resume(&self) -> Task<'_, i64> {
        Box::pin(self.behind.resume())
    }

    fn end(&self, watermark: i64) -> Task<'_> {
        self.has_ended.set(true);
        self.external.waker().wake();
        Box::pin(self.behind.end(if self.is_cut.get() { i64::MIN } else { watermark }))
    }

    /// What its table looks like, if it has read it: else no row has come through yet.
    fn save(&self) -> Result<Option<OperatorSnapshot>, DataflowError> {
        // A table that is read anew may be another one when the job goes on.
        let is_one = self.spec.refresh_ns.is_none() && !self.is_cut.get();
        let table = self.table.borrow().clone().filter(|_| is_one);
        let Some(table) = table else { return Ok(None) };
        let (rows, hash) = self.fingerprint_of(&table);
        let number = |value: u64| -> ArrayRef { Arc::new(UInt64Array::from(vec![value])) };
        let rows = RecordBatch::try_from_iter([("rows", number(rows)), ("hash", number(hash))])?;
        let parts = vec![SavedRows { part: 0, rows }];
        let (operator, watermark) = (self.instance.tag, i64::MIN);
        Ok(Some(OperatorSnapshot { operator, version: 1, watermark, parts, stored: vec![] }))
    }

    fn load(&self, from: &Restoring<'_>) -> Result<(), DataflowError> {
        from.each(self.instance.tag, |SavedRows { rows, .. }| {
            let number = |at: usize| rows.column(at).as_primitive::<UInt64Type>().value(0);
            self.saved.set(Some((number(0), number(1))));
            Ok(())
        })
    }

    fn run(&self) -> Task<'_> {
        let is_first = self.instance.worker == self.process.workers().start;
        let Some(every_ns) = self.spec.refresh_ns.filter(|_| is_first) else {
            return Box::pin(self.read_table());
        };
        Box::pin(async move {
            self.read_table().await?;
            self.refresh(every_ns).await
        })
    }
}

impl<D: Downstream> SelectionInput for LookupRun<D> {
    fn push_selection(&self, rows: Selection) -> Task<'_> {
        Box::pin(self.join(rows, None))
    }
}

impl<D: Downstream> Member for LookupRun<D> {
    fn instance(&self) -> &Instance {
        &self.instance
    }

    /// Nothing is complete before the end.
    fn crosses(&self, _: i64, _: i64) -> bool {
        false
    }

    fn keep(&self, _: Arrival, batch: RecordBatch) -> Result<(), DataflowError> {
        let bytes = self.bytes.get() + bytes_of(&batch);
        self.bytes.set(bytes);
        self.check_bytes(bytes)?;
        self.rows.borrow_mut().push(batch);
        self.publish_bytes(bytes)
    }
}

fn terms_of(spec: &Lookup) -> Terms<'_> {
    let Lookup { kind, on, schema, both, .. } = spec;
    Terms { kind: *kind, marks: false, on: on.as_ref(), schema, both }
}
