//! Reads a source on one worker and pushes its rows, until it ends or no operator needs more rows.
//!
//! Who waits for the end of a window does not wait for the rows behind it: a batch that reaches
//! there is cut, once, and the watermark in front of its second part goes ahead of that.

use std::rc::Rc;
use std::sync::Arc;

use arrow::record_batch::RecordBatch;

use crate::error::DataflowError;
use crate::job::Fusion;
use crate::operators::downstream::Downstream;
use crate::runtime::alignment::SourceAlignment;
use crate::runtime::builds::AwaitedBuilds;
use crate::runtime::external::External;
use crate::runtime::place::{Signals, WorkerContext};
use crate::runtime::reader::{Read, Reader};
use crate::runtime::rounds::WorkerRounds;
use crate::runtime::scheduler::{Timers, either, yield_now};

/// A source on one worker.
pub(crate) struct SourceRun {
    fusion: Option<Fusion>,
    alignment: Option<SourceAlignment>,
    builds: Option<Rc<AwaitedBuilds>>,
    timers: Rc<Timers>,
    external: Rc<External>,
    signals: Arc<Signals>,
    /// The rounds of the worker, and the one that is under way, if the job has rounds.
    rounds: Option<SourceRounds>,
    /// Whether rows before the clocks of the operators behind are late.
    goes_on: bool,
}

/// The rounds of a source on one worker.
struct SourceRounds {
    operator: u32,
    round: u64,
    of_worker: Rc<WorkerRounds>,
}

impl SourceRun {
    /// Of a scan that is fused so, or not, keeps in step with the sources whose rows meet its own,
    /// if there are some, and is read when some builds are complete, if it waits for any.
    pub(crate) fn new(
        operator: usize,
        fusion: Option<Fusion>,
        alignment: Option<SourceAlignment>,
        builds: Option<Rc<AwaitedBuilds>>,
        place: &WorkerContext,
    ) -> Self {
        let (timers, external) = (place.timers.clone(), place.external.clone());
        let rounds = place.rounds.clone().map(|of_worker| SourceRounds {
            operator: operator as u32,
            round: of_worker.first(),
            of_worker,
        });
        let (signals, goes_on) = (place.signals.clone(), place.restored.is_some());
        Self { fusion, alignment, builds, timers, external, signals, rounds, goes_on }
    }

    /// Reads all splits and pushes their rows, until they end or a stop is asked for. Rows of a
    /// fused scan are folded as they were read, as far as the data allows it. Between two batches,
    /// and whatever it waits for, it marks the rounds that are to be ended.
    ///
    /// # Errors
    /// When the source or what is behind it fails.
    pub(crate) async fn run(
        mut self,
        mut reader: Reader,
        behind: impl Downstream,
    ) -> Result<(), DataflowError> {
        let mut idle = false;
        if let Some(builds) = self.builds.take() {
            builds.wait(&self.timers).await;
        }
        if self.goes_on {
            reader.catch_up(behind.resume().await?);
        }
        loop {
            let seen = self.external.notifications();
            if self.is_round_due() {
                self.mark(&reader, &behind).await?;
                continue;
            }
            if self.rests() {
                self.or_received(self.notified(seen)).await;
                continue;
            }
            if let Some(alignment) = &self.alignment
                && !alignment.may_go()
            {
                self.or_received(either(alignment.wait(), self.notified(seen))).await;
                continue;
            }
            if self.signals.is_stopped() {
                let watermark = reader.watermark();
                return self.end(&reader, &behind, watermark).await;
            }
            if behind.is_satisfied() {
                return self.end(&reader, &behind, i64::MAX).await;
            }
            match reader.next()? {
                Read::Batch(flow, batch) => {
                    if std::mem::take(&mut idle) {
                        reader.catch_up(behind.resume().await?);
                    }
                    let awaited = |watermark| behind.ends_window(watermark);
                    let mut rest = batch;
                    if let Some(rows) = reader.rows_before(flow, &rest, awaited) {
                        let first = rest.slice(0, rows);
                        rest = rest.slice(rows, rest.num_rows() - rows);
                        self.take(&mut reader, flow, first, &behind).await?;
                    }
                    self.take(&mut reader, flow, rest, &behind).await?;
                    yield_now().await;
                }
                Read::Wait(until_ns) => {
                    let was_idle = std::mem::replace(&mut idle, reader.is_idle());
                    if was_idle && !idle {
                        // Rows are known to come, and hold the watermark back from now on.
                        reader.catch_up(behind.resume().await?);
                    }
                    if let Some(alignment) = &self.alignment {
                        alignment.reached(None);
                    }
                    behind.advance(reader.watermark(), idle).await?;
                    if until_ns.is_some_and(|until_ns| until_ns <= self.timers.now_ns()) {
                        yield_now().await;
                    } else {
                        let notified = self.external.notified_or_at(seen, &self.timers, until_ns);
                        self.or_received(notified).await;
                    }
                }
                Read::End => {
                    // Also where there was nothing to read: what a worker without splits counts
                    // must not hold the watermark of the job back.
                    let watermark = reader.watermark();
                    return self.end(&reader, &behind, watermark).await;
                }
            }
        }
    }

    /// Says that no more rows come, where the splits stand.
    async fn end(
        &mut self,
        reader: &Reader,
        behind: &impl Downstream,
        watermark: i64,
    ) -> Result<(), DataflowError> {
        self.alignment = None;
        if let Some(SourceRounds { operator, round, of_worker }) = &self.rounds {
            of_worker.end_source(*operator, *round, (reader.snapshot(), reader.bad()));
        }
        behind.end(watermark).await
    }

    /// Whether the round is to be ended.
    fn is_round_due(&self) -> bool {
        self.rounds.as_ref().is_some_and(|of| of.of_worker.is_due(of.round))
    }

    /// Whether nothing is read any more, for the job ends with the round before.
    fn rests(&self) -> bool {
        let rests = |of: &SourceRounds| self.signals.rests_in(of.round);
        self.rounds.as_ref().is_some_and(rests) && !self.signals.is_stopped()
    }

    /// Waits until another thread notifies the worker, where a round may be ended.
    async fn notified(&self, seen: u64) {
        match self.rounds {
            Some(_) => self.external.notified_or_at(seen, &self.timers, None).await,
            None => std::future::pending().await,
        }
    }

    /// Waits for something, but not longer than until a peer has marked the round.
    async fn or_received(&self, waits: impl Future) {
        match &self.rounds {
            Some(SourceRounds { round, of_worker, .. }) => {
                either(waits, of_worker.received(*round)).await;
            }
            None => _ = waits.await,
        }
    }

    /// Ends the round where the splits stand: all rows that were read are pushed.
    async fn mark(
        &mut self,
        reader: &Reader,
        behind: &impl Downstream,
    ) -> Result<(), DataflowError> {
        let Some(SourceRounds { operator, round, of_worker }) = &mut self.rounds else {
            return Ok(());
        };
        of_worker.save_splits(*operator, *round, (reader.snapshot(), reader.bad()));
        let ended = std::mem::replace(round, *round + 1);
        behind.mark(ended).await
    }

    /// Takes rows of a split to where they belong.
    async fn take(
        &self,
        reader: &mut Reader,
        flow: usize,
        batch: RecordBatch,
        behind: &impl Downstream,
    ) -> Result<(), DataflowError> {
        behind.count_read(batch.num_rows());
        reader.on_the_way(flow, batch.num_rows());
        let awaited = |watermark| behind.ends_window(watermark);
        if let Some(watermark) = reader.watermark_before(flow, &batch, awaited) {
            behind.advance(watermark, false).await?;
            yield_now().await;
        }
        let fused = self.fusion.and_then(|fusion| Some((fusion, reader.fusible(flow, &batch)?)));
        let rest = match fused {
            Some((fusion, rows)) => {
                let folded = behind.fold(rows, &fusion).await;
                let rows =
                    folded.map_err(|error| error.of_record(|row| reader.reading().place(row)))?;
                reader.consumed(flow, batch, rows)
            }
            None => Some(batch),
        };
        let count = rest.as_ref().map_or(0, RecordBatch::num_rows);
        reader.on_the_way(flow, count);
        let rows = match rest {
            Some(batch) => reader.take(flow, batch)?,
            None => None,
        };
        if let Some(alignment) = &self.alignment {
            alignment.reached(Some(reader.reached_ms(flow)));
        }
        if let Some(rows) = rows {
            // Rows without event time were left out, and the others moved up.
            let whole = rows.batch.num_rows() == count;
            behind.push(rows).await.map_err(|error| {
                error.of_record(|row| reader.reading().place(row.filter(|_| whole)))
            })?;
        }
        reader.at_rest();
        behind.advance(reader.watermark(), false).await
    }
}
