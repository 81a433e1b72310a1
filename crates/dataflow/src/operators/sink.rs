//! A sink on one worker: rows go to the sink here, or are gathered at worker 0 (Q8).
//!
//! The sinks of a job whose inputs all end are published [together](Together), when the last of
//! them has its rows: a file that one replaces is read by another as it was before.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use arrow::record_batch::RecordBatch;
use channel::Class;

use crate::connector::gauge::SinkGauge;
use crate::connector::sink::{Placement, Sink, SinkWriter};
use crate::error::DataflowError;
use crate::job::Job;
use crate::rows::wire::{Decoder, Encoder};
use crate::runtime::frame::{Envelope, Frame};
use crate::runtime::metrics::Metrics;
use crate::runtime::net::{Message, Net};
use crate::runtime::place::Place;
use crate::runtime::scheduler::Event;

/// The worker at which rows are gathered.
const GATHERER: u32 = 0;

/// The sinks of a job that one worker publishes at the same time.
#[derive(Default)]
pub(crate) struct Together {
    /// Those that do not have all of their rows yet.
    open: Cell<u32>,
    whole: Event,
}

impl Together {
    /// Of the sinks of a job; none where an input never ends, and others need not wait for it.
    pub(crate) fn of(job: &Job) -> Option<Rc<Self>> {
        job.inputs().all(|input| input.source.bounded()).then(Rc::default)
    }

    /// A sink has all of its rows: waits until each other one has.
    async fn wait(&self) {
        self.open.set(self.open.get() - 1);
        self.whole.notify();
        self.whole.wait_for(|| (self.open.get() == 0).then_some(())).await;
    }
}

/// Where rows leave.
pub(crate) struct Output {
    tag: u32,
    worker: u32,
    placement: Placement,
    net: Rc<Net>,
    writer: RefCell<Option<Box<dyn SinkWriter>>>,
    gauge: Arc<SinkGauge>,
    /// Whether the writer measures what it hands on.
    hands_on: bool,
    encoder: RefCell<Encoder>,
    decoder: Decoder,
    /// Workers whose rows have not all arrived here, this one included.
    streams: Cell<u32>,
    /// Whether all rows of this worker have been emitted.
    complete: Cell<bool>,
    ended: Event,
    /// With which others it is published, if this worker writes it.
    together: Option<Rc<Together>>,
}

impl Output {
    /// Opens the sink if this worker writes it.
    ///
    /// # Errors
    /// When the sink cannot be opened.
    pub(crate) fn new(
        tag: u32,
        place: &Place,
        sink: &dyn Sink,
        schema: &SchemaRef,
        net: Rc<Net>,
        metrics: &Metrics,
        together: Option<&Rc<Together>>,
    ) -> Result<Self, DataflowError> {
        let (placement, worker) = (sink.placement(), place.worker);
        let writes = placement == Placement::Everywhere || worker == GATHERER;
        let mut writer = writes.then(|| sink.open(worker)).transpose()?;
        let together = together.filter(|_| writes).cloned();
        if let Some(together) = &together {
            together.open.set(together.open.get() + 1);
        }
        let gauge = Arc::new(SinkGauge::new(place.clock.clone()));
        let hands_on = writer.as_mut().is_some_and(|writer| writer.hands_on(&gauge));
        if let Some(operator) = metrics.operators().get(tag as usize) {
            operator.sink.get_or_init(|| gauge.clone());
        }
        let streams = match placement {
            Placement::Gather if worker == GATHERER => 1 + net.peers().count() as u32,
            _ => 1,
        };
        Ok(Self {
            tag,
            worker,
            placement,
            net,
            writer: RefCell::new(writer),
            gauge,
            hands_on,
            encoder: RefCell::new(Encoder::new(schema)),
            decoder: Decoder::new(schema),
            streams: Cell::new(streams),
            complete: Cell::new(false),
            ended: Event::default(),
            together,
        })
    }

    /// Writes rows, or sends them to who writes.
    ///
    /// # Errors
    /// When the sink fails or the rows cannot travel.
    pub(crate) async fn emit(&self, batch: &RecordBatch) -> Result<(), DataflowError> {
        if batch.num_rows() == 0 {
            return Ok(());
        }
        if self.placement == Placement::Everywhere || self.worker == GATHERER {
            return self.write(batch);
        }
        let envelope = self.envelope(Frame::Gather);
        self.net.send_rows(GATHERER, envelope, &self.encoder, batch).await
    }

    /// Takes a frame of gathered rows.
    ///
    /// # Errors
    /// When the sink fails or the frame is malformed.
    pub(crate) fn receive(&self, from: u32, message: Message) -> Result<(), DataflowError> {
        let malformed = |detail: String| DataflowError::Frame { worker: from, detail };
        if self.placement != Placement::Gather || self.worker != GATHERER {
            return Err(malformed("rows were gathered at the wrong worker".into()));
        }
        match message.envelope.frame {
            Frame::Gather => {
                let (batch, _) = message.load.rows(&self.decoder).map_err(malformed)?;
                self.write(&batch)
            }
            Frame::GatherEnd => self.end_stream(),
            frame => Err(malformed(format!("{frame:?} does not belong to a sink"))),
        }
    }

    /// Waits until this worker's rows are [`complete`](Self::complete) and all rows are written and
    /// published, where this worker writes them.
    ///
    /// # Errors
    /// When the sink fails.
    pub(crate) async fn finish(&self) -> Result<(), DataflowError> {
        self.ended.wait_for(|| self.complete.get().then_some(())).await;
        if self.placement == Placement::Gather && self.worker != GATHERER {
            self.net.send(GATHERER, Class::Data, self.envelope(Frame::GatherEnd)).await;
            return Ok(());
        }
        self.end_stream()?;
        self.ended.wait_for(|| (self.streams.get() == 0).then_some(())).await;
        if let Some(together) = &self.together {
            together.wait().await;
        }
        match self.writer.borrow_mut().take() {
            Some(writer) if self.hands_on => Ok(writer.commit()?),
            Some(writer) => Ok(self.gauge.commit(writer)?),
            None => Ok(()),
        }
    }

    /// All rows of this worker have been emitted.
    pub(crate) fn complete(&self) {
        self.complete.set(true);
        self.ended.notify();
    }

    /// Makes visible what a reader should see now.
    ///
    /// # Errors
    /// When the sink fails.
    pub(crate) fn flush(&self) -> Result<(), DataflowError> {
        match self.writer.borrow_mut().as_mut() {
            Some(writer) if self.hands_on => Ok(writer.flush()?),
            Some(writer) => Ok(self.gauge.flush(writer.as_mut())?),
            None => Ok(()),
        }
    }

    fn write(&self, batch: &RecordBatch) -> Result<(), DataflowError> {
        match self.writer.borrow_mut().as_mut() {
            Some(writer) if self.hands_on => Ok(writer.write(batch)?),
            Some(writer) => Ok(self.gauge.write(writer.as_mut(), batch)?),
            None => Ok(()),
        }
    }

    fn end_stream(&self) -> Result<(), DataflowError> {
        let left = self.streams.get().checked_sub(1).ok_or_else(|| DataflowError::Frame {
            worker: self.worker,
            detail: "a stream of results ended twice".into(),
        })?;
        self.streams.set(left);
        self.ended.notify();
        Ok(())
    }

    fn envelope(&self, frame: Frame) -> Envelope {
        let colour = self.net.colour();
        Envelope { operator: self.tag, port: 0, colour, more: false, frame }
    }
}
