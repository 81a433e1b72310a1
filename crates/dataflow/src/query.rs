//! A query on one worker: what reads, what folds, what fires, what writes.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use crate::aggregate::Grouping;
use crate::error::DataflowError;
use crate::frame::Kind;
use crate::job::{Query, Step};
use crate::metrics::Metrics;
use crate::net::{Message, Net};
use crate::output::Output;
use crate::reader::{Read, Reader, Rows};
use crate::scheduler::{Event, Scheduler, Timers, yield_now};
use crate::source::FlowContext;
use crate::worker::{Place, Signals};

/// How soon a source that waits looks for a stop.
const STOP_SEEN_WITHIN_NS: u64 = 50_000_000;

/// A query on one worker.
pub(crate) struct QueryRun {
    step: Option<Arc<dyn Step>>,
    reader: RefCell<Reader>,
    /// Whether windows are over the very column that the reader's watermark is of.
    windows_event_time: bool,
    grouping: Option<Rc<Grouping>>,
    output: Rc<Output>,
}

/// Waits until a query has ended on this worker.
pub(crate) struct End {
    ended: Rc<(Cell<bool>, Event)>,
}

impl End {
    pub(crate) async fn wait(&self) {
        self.ended.1.wait_for(|| self.ended.0.get().then_some(())).await;
    }
}

impl QueryRun {
    /// Opens source and sink.
    ///
    /// # Errors
    /// When either cannot be opened.
    pub(crate) fn new(
        tag: u32,
        query: &Query,
        place: &Place,
        net: &Rc<Net>,
        context: FlowContext,
        metrics: &Arc<Metrics>,
    ) -> Result<Self, DataflowError> {
        let output = Rc::new(Output::new(
            tag,
            place.worker,
            query.sink.as_ref(),
            &query.schema,
            net.clone(),
            metrics.clone(),
        )?);
        let reader = Reader::new(
            &query.input,
            place.worker,
            place.workers,
            place.settings.batch_rows_max,
            context,
            metrics.clone(),
        )?;
        let grouping = query.aggregate.as_ref().map(|aggregate| {
            let (net, output) = (net.clone(), output.clone());
            Rc::new(Grouping::new(tag, aggregate, place, net, output, metrics.clone()))
        });
        Ok(Self {
            step: query.step.clone(),
            reader: RefCell::new(reader),
            windows_event_time: windows_event_time(query),
            grouping,
            output,
        })
    }

    /// Makes the query's coroutines.
    pub(crate) fn spawn(
        self: &Rc<Self>,
        scheduler: &mut Scheduler,
        timers: &Rc<Timers>,
        signals: &Arc<Signals>,
    ) -> End {
        let ended = Rc::new((Cell::new(false), Event::default()));
        let end = End { ended: ended.clone() };
        scheduler.spawn(self.clone().read(timers.clone(), signals.clone()));
        let run = self.clone();
        scheduler.spawn(async move {
            if let Some(grouping) = &run.grouping {
                grouping.answer().await;
            }
            Ok(())
        });
        let run = self.clone();
        scheduler.spawn(async move {
            if let Some(grouping) = &run.grouping {
                grouping.fire().await?;
                run.output.finish().await?;
                grouping.settle().await;
            } else {
                run.output.finished_by_reader().await;
                run.output.finish().await?;
            }
            ended.0.set(true);
            ended.1.notify();
            Ok(())
        });
        end
    }

    /// Takes a frame of this query.
    ///
    /// # Errors
    /// When it is malformed, or state or sink fail.
    pub(crate) fn receive(&self, from: u32, message: Message) -> Result<(), DataflowError> {
        match (message.kind, &self.grouping) {
            (Kind::Gather | Kind::GatherEnd, _) => self.output.receive(from, message),
            (_, Some(grouping)) => grouping.receive(from, message),
            (kind, None) => {
                let detail = format!("a query without groups got a frame of kind {kind:?}");
                Err(DataflowError::Frame { worker: from, detail })
            }
        }
    }

    /// Makes rows visible that a reader should see now.
    ///
    /// # Errors
    /// When the sink fails.
    pub(crate) fn flush_output(&self) -> Result<(), DataflowError> {
        self.output.flush()
    }

    /// Reads all flows and pushes their rows.
    async fn read(
        self: Rc<Self>,
        timers: Rc<Timers>,
        signals: Arc<Signals>,
    ) -> Result<(), DataflowError> {
        let mut idle = false;
        loop {
            if signals.is_stopped() {
                return self.end_of_rows(false).await;
            }
            let read = self.reader.borrow_mut().next()?;
            match read {
                Read::Batch(flow, batch) => {
                    if std::mem::take(&mut idle)
                        && let Some(grouping) = &self.grouping
                    {
                        let reached = grouping.resume().await?;
                        self.reader.borrow_mut().catch_up(reached);
                    }
                    let rows = self.reader.borrow_mut().take(flow, batch)?;
                    if let Some(rows) = rows {
                        self.push(rows).await?;
                    }
                    self.progress(false).await?;
                    yield_now().await;
                }
                Read::Wait(until_ns) => {
                    idle = self.reader.borrow().is_idle();
                    self.progress(idle).await?;
                    // A stop must not wait for a source that has long nothing to say.
                    let soon = timers.now_ns().saturating_add(STOP_SEEN_WITHIN_NS);
                    timers.sleep_until(until_ns.min(soon)).await;
                }
                Read::End => return self.end_of_rows(true).await,
            }
        }
    }

    async fn push(&self, rows: Rows) -> Result<(), DataflowError> {
        let Rows { mut batch, mut met, span } = rows;
        let slice = span.zip(self.grouping.as_ref()).and_then(|(span, grouping)| {
            self.windows_event_time.then(|| grouping.slice_of(span)).flatten()
        });
        if let Some(step) = &self.step {
            // With the slice known, nobody asks when each row was.
            let unread = slice.zip(self.grouping.as_ref()).and_then(|(_, g)| g.only_time());
            let stepped = step.apply_for(&batch, unread)?;
            if let (Some(watermarks), Some(kept)) = (&met, &stepped.kept) {
                met = Some(crate::time::filter_ticks(watermarks, kept)?);
            }
            batch = stepped.batch;
        }
        match &self.grouping {
            Some(grouping) => grouping.push(&batch, met.as_ref(), slice).await,
            None => self.output.emit(&batch).await,
        }
    }

    async fn progress(&self, idle: bool) -> Result<(), DataflowError> {
        let watermark = self.reader.borrow_mut().watermark();
        match &self.grouping {
            Some(grouping) => grouping.progress(watermark, idle).await,
            None => Ok(()),
        }
    }

    async fn end_of_rows(&self, complete: bool) -> Result<(), DataflowError> {
        let watermark = self.reader.borrow_mut().watermark();
        match &self.grouping {
            Some(grouping) => {
                grouping.end_of_rows(if complete { i64::MAX } else { watermark }).await
            }
            None => {
                self.output.reader_finished();
                Ok(())
            }
        }
    }
}

fn windows_event_time(query: &Query) -> bool {
    let window = query.aggregate.as_ref().and_then(|aggregate| aggregate.window.as_ref());
    let (Some(window), Some(watermark)) = (window, query.input.watermark) else { return false };
    let column = match &query.step {
        Some(step) => step.passes_on(window.column),
        None => Some(window.column),
    };
    column == Some(watermark.column)
}
