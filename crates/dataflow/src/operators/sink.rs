//! A sink on one worker: rows go to the sink here, or are gathered at worker 0 (Q8).
//!
//! The sinks of a job whose inputs all end are published [together](Together), when the last of
//! them has its rows: a file that one replaces is read by another as it was before.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use arrow::record_batch::RecordBatch;
use state::epoch::{END_OF_STREAM, Leader};

use crate::connector::gauge::SinkGauge;
use crate::connector::sink::{Placement, Sink, SinkWriter};
use crate::error::DataflowError;
use crate::exchange::{Arrival, Edge, GATHERER, Gather, Inputs, Member, Outgoing, leader_of};
use crate::job::Job;
use crate::runtime::metrics::Metrics;
use crate::runtime::net::Net;
use crate::runtime::place::Place;
use crate::runtime::scheduler::Event;

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
    inputs: Inputs,
    /// Which workers have ended, of those whose rows come here.
    leader: RefCell<Leader>,
    net: Rc<Net>,
    writer: RefCell<Option<Box<dyn SinkWriter>>>,
    gauge: Arc<SinkGauge>,
    /// Whether the writer measures what it hands on.
    hands_on: bool,
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
        let inputs = match placement {
            Placement::Gather if place.workers > 1 => {
                let gather = Gather::new(0, schema, place);
                Inputs::of(vec![Edge::Gather(Box::new(gather))], place)
            }
            _ => Inputs::local(1, place),
        };
        let alone = inputs.is_local() || worker != GATHERER;
        Ok(Self {
            tag,
            worker,
            inputs,
            leader: RefCell::new(leader_of(place, alone)),
            net,
            writer: RefCell::new(writer),
            gauge,
            hands_on,
            complete: Cell::new(false),
            ended: Event::default(),
            together,
        })
    }

    /// Writes rows, or sends them to the worker that writes.
    ///
    /// # Errors
    /// When the sink fails or the rows cannot travel.
    pub(crate) async fn emit(&self, batch: RecordBatch) -> Result<(), DataflowError> {
        if batch.num_rows() > 0 {
            self.inputs.push(self, Outgoing::of(0, batch)).await?;
        }
        Ok(())
    }

    /// Waits until this worker's rows are [`complete`](Self::complete) and all rows are written and
    /// published, where this worker writes them.
    ///
    /// # Errors
    /// When the sink fails.
    pub(crate) async fn finish(&self) -> Result<(), DataflowError> {
        self.ended.wait_for(|| self.complete.get().then_some(())).await;
        self.inputs.end(self, END_OF_STREAM).await?;
        self.ended.wait_for(|| self.time().1.then_some(())).await;
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
}

impl Member for Output {
    fn tag(&self) -> u32 {
        self.tag
    }

    fn worker(&self) -> u32 {
        self.worker
    }

    fn net(&self) -> &Net {
        &self.net
    }

    fn inputs(&self) -> &Inputs {
        &self.inputs
    }

    fn leader(&self) -> (&RefCell<Leader>, &Event) {
        (&self.leader, &self.ended)
    }

    /// Nothing is complete before the end.
    fn crosses(&self, _: i64, _: i64) -> bool {
        false
    }

    fn keep(&self, arrival: Arrival, batch: RecordBatch) -> Result<(), DataflowError> {
        self.write(&batch)?;
        self.inputs.consumed(self, arrival.source, batch.num_rows());
        Ok(())
    }

    /// A writer is done with the rows when it has them.
    fn take(&self, arrival: Arrival, batch: RecordBatch) -> Result<(), DataflowError> {
        self.keep(arrival, batch)
    }
}
