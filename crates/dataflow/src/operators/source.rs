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
use crate::runtime::scheduler::{Timers, yield_now};

/// A source on one worker.
pub(crate) struct SourceRun {
    fusion: Option<Fusion>,
    alignment: Option<SourceAlignment>,
    builds: Option<Rc<AwaitedBuilds>>,
    timers: Rc<Timers>,
    external: Rc<External>,
    signals: Arc<Signals>,
}

impl SourceRun {
    /// Of a scan that is fused so, or not, keeps in step with the sources whose rows meet its own,
    /// if there are some, and is read when some builds are complete, if it waits for any.
    pub(crate) fn new(
        fusion: Option<Fusion>,
        alignment: Option<SourceAlignment>,
        builds: Option<Rc<AwaitedBuilds>>,
        place: &WorkerContext,
    ) -> Self {
        let (timers, external) = (place.timers.clone(), place.external.clone());
        Self { fusion, alignment, builds, timers, external, signals: place.signals.clone() }
    }

    /// Reads all splits and pushes their rows, until they end or a stop is asked for. Rows of a
    /// fused scan are folded as they were read, as far as the data allows it.
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
        loop {
            if let Some(alignment) = &self.alignment {
                alignment.wait().await;
            }
            let seen = self.external.notifications();
            if self.signals.is_stopped() {
                self.alignment = None;
                return behind.end(reader.watermark()).await;
            }
            if behind.is_satisfied() {
                self.alignment = None;
                return behind.end(i64::MAX).await;
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
                        self.external.notified_or_at(seen, &self.timers, until_ns).await;
                    }
                }
                Read::End => {
                    self.alignment = None;
                    return behind.end(i64::MAX).await;
                }
            }
        }
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
