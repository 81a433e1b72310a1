//! Reads the flows of a source on one worker and keeps their watermarks.
//!
//! A flow's watermark is the greatest event time seen in it, less the delay. The worker's watermark
//! is the least over the flows that can still hold a row back: those that are open and not idle,
//! and those that wait to be opened. It never goes back.
//!
//! **Late rows.** A row is late when *its own flow's* watermark had passed the end of its window
//! before the row came, or when the worker had announced a watermark beyond that end (only possible
//! after the flow was idle). So what is late does not depend on how many workers there are, how
//! flows are spread, or how workers meet: every run of the same input gives the same rows. The
//! reader attaches the watermark to each row of a batch in which some row lags behind it; a batch
//! without such a row cannot hold a late one and carries nothing.

mod counting;
mod lagging;
mod places;
mod widths;

use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use arrow::array::{Array, BooleanArray};
use arrow::compute::filter_record_batch;
use arrow::datatypes::TimeUnit;
use arrow::record_batch::RecordBatch;

use state::{Times, vector};

use self::lagging::row_watermarks;
use self::places::{mark_new, places};
use self::widths::Widths;
use crate::checkpoint::SplitSnapshot;
use crate::connector::bad::BadRow;
use crate::connector::origins::{Origins, Reading};
use crate::connector::peers::NeededPeer;
use crate::connector::source::{NewSplits, Next, ReaderContext, Split, SplitReader};
use crate::error::{ConnectorError, DataflowError};
use crate::job::{OnBad, Scan, TimeColumn};
use crate::rows::time::{ticks, to_millis};
use crate::rows::{FusedRows, Rows};
use crate::runtime::metrics::Metrics;

/// What a reader has to give.
pub(crate) enum Read {
    /// Rows of the open flow of this number, for [`Reader::take`].
    Batch(usize, RecordBatch),
    /// Nothing before this time, if there is one, or before another thread wakes the worker.
    Wait(Option<u64>),
    /// All flows have ended.
    End,
}

/// The flows of one worker.
pub(crate) struct Reader {
    input: Scan,
    context: ReaderContext,
    rows_max: usize,
    infos: Vec<Split>,
    pending: VecDeque<usize>,
    open: Vec<OpenFlow>,
    turn: usize,
    announced: i64,
    metrics: Arc<Metrics>,
    /// The number of the source among the operators of the job, if it has one.
    operator: Option<usize>,
    /// The counters of the blocks that it reads, and which operator's they are.
    blocks_of: Option<(Arc<Metrics>, usize)>,
    widths: Widths,
    reading: Rc<Reading>,
    /// For how many readers the table is cut into splits.
    readers: u32,
    /// Which of them this is.
    share: Share,
    /// The splits that the table gets while it is read, if it may get some.
    new_splits: Option<Box<dyn NewSplits>>,
    /// By split, where to go on that was not opened yet.
    from: BTreeMap<usize, SplitSnapshot>,
    /// Where splits stood at their end.
    ended: Vec<SplitSnapshot>,
    /// Its input, if that can be lost and is not read to its end.
    unread: Option<Arc<NeededPeer>>,
}

/// The part of a source that one reader has: split `n` belongs to reader `n % of`, where `n` is the
/// owner that it names, or its number.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Share {
    /// The reader's number among all of them; `None` if it has no flows.
    pub(crate) number: Option<u32>,
    /// How many readers there are.
    pub(crate) of: u32,
}

impl Share {
    fn has(&self, split: &Split) -> bool {
        self.owns(split.owner.unwrap_or(split.number as u64))
    }

    fn owns(&self, owner: u64) -> bool {
        self.number.is_some_and(|number| owner % u64::from(self.of) == u64::from(number))
    }
}

struct OpenFlow {
    index: usize,
    flow: Box<dyn SplitReader>,
    greatest: i64,
    /// When the flow last had rows, or some that were to come.
    last_row_ns: u64,
    /// When the flow last said that it has nothing, since its last row.
    silent_ns: Option<u64>,
    rows: u64,
}

impl Reader {
    /// Reads a share of the flows. Opens all of them if the source is unbounded, else one after
    /// another; the first of a scan that waits for builds when it is read.
    ///
    /// # Errors
    /// When the input is missing or cannot be read.
    pub(crate) fn new(
        input: &Scan,
        share: Share,
        rows_max: usize,
        context: ReaderContext,
        metrics: Arc<Metrics>,
    ) -> Result<Self, DataflowError> {
        Self::going_on(input, share, rows_max, context, metrics, &[])
    }

    /// The same behind the rows that had been given when the splits stood where `saved` says, of
    /// all workers.
    ///
    /// # Errors
    /// As [`Reader::new`], and when the table does not have these splits any more.
    pub(crate) fn going_on(
        input: &Scan,
        share: Share,
        rows_max: usize,
        context: ReaderContext,
        metrics: Arc<Metrics>,
        saved: &[SplitSnapshot],
    ) -> Result<Self, DataflowError> {
        let readers = saved.first().map_or(share.of, |saved| saved.readers);
        let by_cost = context.by_cost && saved.is_empty();
        let mut infos =
            if by_cost { input.splits_by_cost(readers)? } else { input.splits(readers)? };
        infos.iter_mut().enumerate().for_each(|(number, split)| split.number = number);
        if !input.bounded() {
            mark_new(&mut infos, saved);
        }
        let new_splits = input.new_splits(context.waker.clone())?;
        // Each reader counts its own blocks and records.
        let (blocks, backlog) = (Arc::default(), Arc::default());
        let context = ReaderContext { blocks, backlog, ..context };
        let is_elsewhere =
            |split: &str| input.owner_of(split).is_some_and(|owner| !share.owns(owner));
        let (from, ended) = places(&infos, saved, |split| share.has(&infos[split]), is_elsewhere)?;
        let is_left = |flow: &usize| share.has(&infos[*flow]) && !ended.contains_key(flow);
        let pending = (0..infos.len()).filter(is_left).collect();
        let mut reader = Self {
            input: input.clone(),
            context,
            rows_max,
            pending,
            infos,
            open: Vec::new(),
            turn: 0,
            announced: i64::MIN,
            metrics,
            operator: None,
            blocks_of: None,
            widths: Widths::new(&input.columns()),
            reading: Rc::default(),
            readers,
            share,
            new_splits,
            from,
            ended: ended.into_values().collect(),
            unread: None,
        };
        let at_once = if input.bounded() { usize::from(!input.is_listening()) } else { usize::MAX };
        while reader.open.len() < at_once && reader.open_next()? {}
        Ok(reader)
    }

    /// The same, which counts what it skips as that of an operator of the job.
    pub(crate) fn counted_as(self, operator: usize) -> Self {
        let metrics = self.metrics.clone();
        if let Some(of) = metrics.operators().get(operator) {
            of.backlog.get_or_init(|| Arc::clone(&self.context.backlog));
        }
        Self { operator: Some(operator), ..self }.with_blocks_of(metrics, operator)
    }

    /// The same, which counts the blocks that it reads as those of an operator of the job. That
    /// operator fails if the input is lost before it was read.
    pub(crate) fn with_blocks_of(self, metrics: Arc<Metrics>, operator: usize) -> Self {
        let check = self.input.source.peer_check().filter(|_| self.has_unread());
        let unread = check.map(|peer| self.context.peers.add(peer, operator));
        Self { blocks_of: Some((metrics, operator)), unread, ..self }
    }

    /// Whether it needs more of its input.
    fn has_unread(&self) -> bool {
        !self.pending.is_empty() || self.open.iter().any(|flow| flow.flow.has_unread())
    }

    /// The next rows of some flow; flows take turns. A worker that was idle catches up before it
    /// [takes](Self::take) them.
    ///
    /// # Errors
    /// When the input cannot be read any further.
    pub(crate) fn next(&mut self) -> Result<Read, DataflowError> {
        let mut until: Option<u64> = None;
        let mut asked = 0;
        self.open_new()?;
        if self.open.is_empty() {
            self.open_next()?;
        }
        while asked < self.open.len() {
            let at = self.turn % self.open.len();
            self.on_the_way(at, 0);
            let next = self.open[at].flow.next(self.rows_max)?;
            self.count_skipped();
            self.count_blocks();
            if self.unread.is_some() && !self.has_unread() {
                self.unread = None;
            }
            match next {
                Next::Batch(batch) => {
                    self.turn = at + 1;
                    return Ok(Read::Batch(at, batch));
                }
                answer @ (Next::Pending | Next::Wait { .. }) => {
                    let (now, flow) = (self.context.clock.now_ns(), &mut self.open[at]);
                    if flow.flow.owes() {
                        (flow.last_row_ns, flow.silent_ns) = (now, None)
                    } else {
                        flow.silent_ns = Some(now)
                    }
                    if let Next::Wait { until_ns } = answer {
                        until = Some(until.map_or(until_ns, |u| u.min(until_ns)));
                    }
                    self.turn = at + 1;
                    asked += 1;
                }
                Next::End => {
                    self.end(at)?;
                    asked = 0;
                }
            }
        }
        if self.has_ended() {
            return Ok(Read::End);
        }
        let now = self.context.clock.now_ns();
        let idle_at = self.next_idle_ns(now);
        Ok(Read::Wait(until.into_iter().chain(idle_at).min()))
    }

    /// The worker's watermark: no row that is read from now on counts if it belongs before it.
    /// `i64::MAX` when all flows have ended.
    pub(crate) fn watermark(&mut self) -> i64 {
        if self.input.watermark.is_none() {
            return if self.has_ended() { i64::MAX } else { i64::MIN };
        }
        self.announced = self.reachable(None);
        let millis = to_millis(self.announced, self.time_unit());
        self.metrics.watermark_ms.store(millis, Ordering::Relaxed);
        self.announced
    }

    /// How many rows of a batch of an open flow, if they are in order, come before the first that
    /// brings a watermark that is `awaited`; `None` if there is no such row or it is the first.
    pub(crate) fn rows_before(
        &self,
        at: usize,
        batch: &RecordBatch,
        awaited: impl Fn(i64) -> bool,
    ) -> Option<usize> {
        let times = self.times(batch)?;
        let last = *times.last()?;
        if !awaited(self.reachable(Some((at, last)))) {
            return None;
        }
        let rows = times.partition_point(|&time| !awaited(self.reachable(Some((at, time)))));
        (0 < rows && rows < times.len()).then_some(rows)
    }

    /// The watermark in front of a batch of an open flow, if it is `awaited` and the rows are in
    /// order: what ends with them need not wait until they are where they belong.
    pub(crate) fn watermark_before(
        &mut self,
        at: usize,
        batch: &RecordBatch,
        awaited: impl Fn(i64) -> bool,
    ) -> Option<i64> {
        let spec = self.input.watermark?;
        let times = self.times(batch)?;
        let (first, reached) = (*times.first()?, self.reached(at));
        if !awaited(self.reachable(Some((at, first)))) {
            return None;
        }
        in_order(times, reached, spec.delay)?;
        self.open[at].greatest = reached.max(first);
        Some(self.watermark())
    }

    /// The event times of a batch, if all are there.
    fn times<'a>(&self, batch: &'a RecordBatch) -> Option<&'a [i64]> {
        let column = batch.column(self.input.watermark?.column);
        ticks(column).filter(|_| column.null_count() == 0).map(|times| &times[..])
    }

    /// The watermark by what was read; of an open flow also by a row of this time.
    fn reachable(&self, row: Option<(usize, i64)>) -> i64 {
        let Some(spec) = self.input.watermark else { return self.announced };
        let flows = self.open.iter().enumerate();
        let active = flows.filter(|(_, flow)| !is_idle(flow, spec.idle_timeout_ns));
        let greatest = active.map(|(at, flow)| match row {
            Some((of, time)) if of == at => flow.greatest.max(time),
            _ => flow.greatest,
        });
        let read = greatest.map(|greatest| greatest.saturating_sub(spec.delay));
        let unread = self.pending.iter().map(|&i| {
            let read = self.from.get(&i).and_then(|saved| saved.greatest);
            read.or(self.infos[i].event_time_min)
                .map_or(i64::MIN, |min| min.saturating_sub(spec.delay))
        });
        match read.chain(unread).min() {
            Some(least) => self.announced.max(least),
            None if self.has_ended() => i64::MAX,
            None => self.announced,
        }
    }

    /// Says that `rows` rows of an open flow, those that it takes next, are on their way.
    pub(crate) fn on_the_way(&self, at: usize, rows: usize) {
        let flow = &self.open[at];
        self.reading.at(flow.index, flow.rows, rows as u64);
    }

    /// Says that no rows are on their way.
    pub(crate) fn at_rest(&self) {
        self.reading.idle();
    }

    /// Which rows are on their way.
    pub(crate) fn reading(&self) -> Rc<Reading> {
        Rc::clone(&self.reading)
    }

    /// The greatest event time that was read of an open flow, in milliseconds.
    pub(crate) fn reached_ms(&self, at: usize) -> i64 {
        to_millis(self.open[at].greatest, self.time_unit())
    }

    /// Whether there is nothing more to read, ever.
    fn has_ended(&self) -> bool {
        self.open.is_empty() && self.pending.is_empty() && self.new_splits.is_none()
    }

    /// True when the worker has flows, or may get some, but none that can hold a watermark back.
    pub(crate) fn is_idle(&self) -> bool {
        let timeout = self.input.watermark.and_then(|w| w.idle_timeout_ns);
        self.pending.is_empty()
            && !self.has_ended()
            && self.open.iter().all(|flow| is_idle(flow, timeout))
    }

    /// Raises the announced watermark to what the job had reached while this worker was idle.
    pub(crate) fn catch_up(&mut self, watermark: i64) {
        self.announced = self.announced.max(watermark);
    }

    fn time_unit(&self) -> TimeUnit {
        self.input.time_unit().unwrap_or(TimeUnit::Millisecond)
    }

    /// How many rows could not be read.
    pub(crate) fn bad(&self) -> u64 {
        self.context.bad.count()
    }

    /// Where the splits stand, of which rows were read: behind the last that was given.
    pub(crate) fn snapshot(&self) -> Vec<SplitSnapshot> {
        let open = (0..self.open.len()).map(|at| self.snapshot_of(at, false));
        self.ended.iter().chain(self.from.values()).cloned().chain(open).collect()
    }

    fn snapshot_of(&self, at: usize, ended: bool) -> SplitSnapshot {
        let greatest = Some(self.reached(at)).filter(|&greatest| greatest > i64::MIN);
        SplitSnapshot {
            operator: self.operator.unwrap_or(0) as u32,
            position: self.open[at].flow.position(),
            greatest,
            ended,
            readers: self.readers,
        }
    }

    /// Opens its share of the splits that the table has got.
    fn open_new(&mut self) -> Result<(), DataflowError> {
        let Some(new_splits) = &mut self.new_splits else { return Ok(()) };
        for split in new_splits.poll()? {
            let number = self.infos.len();
            self.infos.push(Split { number, is_new: true, ..split });
            if self.share.has(&self.infos[number]) {
                self.pending.push_back(number);
                self.open_next()?;
            }
        }
        Ok(())
    }

    fn open_next(&mut self) -> Result<bool, DataflowError> {
        let Some(index) = self.pending.pop_front() else { return Ok(false) };
        let origins = Arc::<Origins>::default();
        let context = ReaderContext { origins: Arc::clone(&origins), ..self.context.clone() };
        self.reading.open(index, &self.infos[index].name, &origins);
        self.reading.at(index, 0, 0);
        let from = self.from.remove(&index);
        let position = from.as_ref().map(|from| &from.position);
        let flow = self.input.open(&self.infos[index], position, &context)?;
        self.reading.idle();
        let last_row_ns = self.context.clock.now_ns();
        let greatest = from.and_then(|from| from.greatest).unwrap_or(i64::MIN);
        let (silent_ns, rows) = (None, 0);
        self.open.push(OpenFlow { index, flow, greatest, last_row_ns, silent_ns, rows });
        Ok(true)
    }

    fn end(&mut self, at: usize) -> Result<(), DataflowError> {
        let snapshot = self.snapshot_of(at, true);
        self.ended.push(snapshot);
        self.open.remove(at);
        self.count_blocks();
        Metrics::add(&self.metrics.splits_done, 1);
        if self.input.bounded() {
            self.open_next()?;
        }
        Ok(())
    }

    /// A batch of an open flow for a fused scan, if its rows may be in order.
    pub(crate) fn fusible<'a>(&self, at: usize, batch: &'a RecordBatch) -> Option<FusedRows<'a>> {
        let Some(spec) = self.input.watermark else {
            return self.untimed(batch).is_none().then_some(FusedRows { batch, times: None });
        };
        let each = self.times(batch)?;
        let (&first, &last) = (each.first()?, each.last()?);
        let in_order = self.reached(at).saturating_sub(spec.delay) <= first && first <= last;
        in_order.then_some(FusedRows { batch, times: Some(Times { each, last }) })
    }

    /// A fused scan has consumed the first `rows` of a batch: counts them and moves their flow's
    /// watermark. Gives the others.
    pub(crate) fn consumed(
        &mut self,
        at: usize,
        batch: RecordBatch,
        rows: usize,
    ) -> Option<RecordBatch> {
        let Some(last) = rows.checked_sub(1) else { return Some(batch) };
        let times = self.input.watermark.and_then(|spec| ticks(batch.column(spec.column)));
        if let Some(times) = times {
            self.open[at].greatest = self.reached(at).max(times[last]);
        }
        if rows == batch.num_rows() {
            self.count(at, &batch);
            return None;
        }
        self.count(at, &batch.slice(0, rows));
        Some(batch.slice(rows, batch.num_rows() - rows))
    }

    /// The greatest event time that counts as read of an open flow.
    fn reached(&self, at: usize) -> i64 {
        let delay = self.input.watermark.map_or(0, |spec| spec.delay);
        // After an idle time the worker may have announced more than the flow itself has reached.
        self.open[at].greatest.max(self.announced.saturating_add(delay))
    }

    fn count(&mut self, at: usize, batch: &RecordBatch) {
        let flow = &mut self.open[at];
        (flow.last_row_ns, flow.silent_ns) = (self.context.clock.now_ns(), None);
        flow.rows += batch.num_rows() as u64;
        Metrics::add(&self.metrics.rows_in, batch.num_rows() as u64);
        Metrics::add(&self.metrics.bytes_in, self.widths.bytes(batch));
    }

    /// Counts a batch and moves its flow's watermark; `None` if no row is left.
    ///
    /// # Errors
    /// When the time column is no time.
    pub(crate) fn take(
        &mut self,
        at: usize,
        batch: RecordBatch,
    ) -> Result<Option<Rows>, DataflowError> {
        self.count(at, &batch);
        let batch = match self.untimed(&batch) {
            None => batch,
            Some(time) => self.refuse_nulls(at, batch, time)?,
        };
        if batch.num_rows() == 0 {
            return Ok(None);
        }
        let Some(spec) = self.input.watermark else {
            return Ok(Some(Rows::on_time(batch)));
        };
        let Some(times) = ticks(batch.column(spec.column)) else {
            let message = "the time column is not a timestamp";
            return Err(DataflowError::Expression(message.into()));
        };
        let reached = self.reached(at);
        let flow = &mut self.open[at];
        if let Some((first, last)) = in_order(times, reached, spec.delay) {
            flow.greatest = reached.max(last);
            return Ok(Some(Rows { batch, watermarks: None, span: Some((first, last)) }));
        }
        let (greatest, watermarks) = row_watermarks(times, reached, spec.delay);
        flow.greatest = greatest;
        Ok(Some(Rows { batch, watermarks, span: None }))
    }

    /// The event time of a batch, if some of its rows have none.
    fn untimed(&self, batch: &RecordBatch) -> Option<TimeColumn> {
        self.input.time.filter(|time| batch.column(time.column).null_count() > 0)
    }

    /// Rows without an event time belong to no window: they are bad, not silently gone, and so they
    /// are where no window asks for them.
    fn refuse_nulls(
        &self,
        at: usize,
        batch: RecordBatch,
        time: TimeColumn,
    ) -> Result<RecordBatch, DataflowError> {
        let times = batch.column(time.column);
        let flow = &self.open[at];
        let first = flow.rows - batch.num_rows() as u64;
        for row in (0..batch.num_rows()).filter(|&row| times.is_null(row)) {
            let name = batch.schema_ref().field(time.column).name().clone();
            let reason = format!("event time '{name}' is NULL");
            let place = self.reading.place_of(flow.index, first + row as u64).unwrap_or_default();
            let table = self.input.table.clone();
            match time.on_bad {
                OnBad::Show => {
                    self.context.bad.add(BadRow { table, place, reason, text: String::new() });
                }
                OnBad::Count => self.context.bad.count_more(1),
                OnBad::Fail => {
                    let hint = "with 'on_bad' = 'skip' such rows are counted and skipped";
                    let hint = Some(hint.into());
                    return Err(ConnectorError::Io { place, message: reason, hint }.into());
                }
            }
        }
        let keep: BooleanArray =
            (0..batch.num_rows()).map(|row| Some(times.is_valid(row))).collect();
        Ok(filter_record_batch(&batch, &keep)?)
    }

    fn next_idle_ns(&self, now: u64) -> Option<u64> {
        let timeout = self.input.watermark?.idle_timeout_ns?;
        let ends = self.open.iter().map(|flow| flow.last_row_ns.saturating_add(timeout));
        ends.filter(|&at| at > now).min()
    }
}

/// Whether a flow was asked when the time was over, and had nothing. One that a busy worker has not
/// asked for long is not idle.
fn is_idle(flow: &OpenFlow, timeout: Option<u64>) -> bool {
    let Some((timeout, silent)) = timeout.zip(flow.silent_ns) else { return false };
    silent >= flow.last_row_ns.saturating_add(timeout)
}

/// The first and the last time, if no row lags behind its own watermark because each is at or after
/// the one in front of it: most batches of most sources.
fn in_order(times: &[i64], reached: i64, delay: i64) -> Option<(i64, i64)> {
    let (&first, &last) = (times.first()?, times.last()?);
    (first >= reached.saturating_sub(delay) && vector::ascends(times)).then_some((first, last))
}

#[cfg(test)]
mod tests;
