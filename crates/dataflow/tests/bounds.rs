//! What a peer can make a worker keep is bounded: a worker of the merge exchange against a helper
//! that is played frame by frame.
#![allow(missing_docs)]

use std::sync::Arc;

use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use arrow::record_batch::RecordBatch;
use channel::{Class, Header, Link};
use dataflow::error::{ConnectorError, DataflowError};
use dataflow::frame::{Envelope, Frame};
use dataflow::job::{
    Aggregation, Edge, Exchange, JobGraph, Operator, OperatorKind, Scan, Settings, SinkSpec,
};
use dataflow::process::Process;
use dataflow::sink::{Placement, Sink, SinkWriter, WriterContext};
use dataflow::source::{Next, Position, ReaderContext, Source, Split, SplitReader};
use dataflow::worker::{Worker, WorkerConfig};
use fabric::sim::{SimNet, SimOptions};
use fabric::{Fabric, LinkId};
use state::epoch::Progress;
use state::{GroupBy, StateError, StateOptions};

const CHUNKS: u32 = 1_000;
const BUDGET: usize = 16 << 10;

/// The index of the aggregate among the operators.
const AGGREGATE: u32 = 1;

/// A table without rows that never ends, and takes none.
struct Silence;

impl Source for Silence {
    fn schema(&self) -> SchemaRef {
        Arc::new(Schema::new(vec![Field::new("key", DataType::Int64, false)]))
    }

    fn bounded(&self) -> bool {
        false
    }

    fn splits(&self, _: u32, _: Option<usize>) -> Result<Vec<Split>, ConnectorError> {
        Ok(vec![Split::default()])
    }

    fn open(
        &self,
        _: &Split,
        _: Option<&Position>,
        _: &ReaderContext,
    ) -> Result<Box<dyn SplitReader>, ConnectorError> {
        Ok(Box::new(Silence))
    }
}

impl SplitReader for Silence {
    fn next(&mut self, _: usize) -> Result<Next, ConnectorError> {
        Ok(Next::Pending)
    }

    fn position(&self) -> Position {
        Position::none("t")
    }
}

impl Sink for Silence {
    fn placement(&self) -> Placement {
        Placement::Everywhere
    }

    fn open(&self, _: &WriterContext) -> Result<Box<dyn SinkWriter>, ConnectorError> {
        Ok(Box::new(Silence))
    }
}

impl SinkWriter for Silence {
    fn write(&mut self, _: &RecordBatch) -> Result<(), ConnectorError> {
        Ok(())
    }

    fn flush(&mut self) -> Result<(), ConnectorError> {
        Ok(())
    }

    fn commit(self: Box<Self>) -> Result<(), ConnectorError> {
        Ok(())
    }
}

fn job() -> JobGraph {
    let keys = vec![DataType::Int64];
    let aggregates = vec![state::aggregates::count()];
    let fields = ["key", "rows"].map(|name| Field::new(name, DataType::Int64, true));
    let schema = Arc::new(Schema::new(fields.to_vec()));
    let aggregate = Aggregation {
        input_schema: Silence.schema(),
        group_by: Arc::new(GroupBy { keys, aggregates, options: StateOptions::default() }),
        keys: vec![0],
        args: vec![vec![]],
        window: None,
        exchange: Exchange::Merge,
        early_ns: None,
        schema: schema.clone(),
    };
    let input = Scan::new("t", Arc::new(Silence));
    let after = |at: usize, name: &str, kind: OperatorKind| {
        let edge = |from| vec![Edge { from, step: None, timed: false, lateness: 0 }];
        let inputs = at.checked_sub(1).map(edge).into_iter().collect();
        Operator::new(name, inputs, kind)
    };
    let operators = vec![
        after(0, "t", OperatorKind::Source(input)),
        after(AGGREGATE as usize, "q", OperatorKind::Aggregate(Box::new(aggregate))),
        after(2, "q", OperatorKind::Sink(SinkSpec { sink: Arc::new(Silence), schema })),
    ];
    let settings = Settings { state_bytes_max: BUDGET, ..Settings::default() };
    JobGraph { operators, settings }
}

/// Sends a worker the headers, each as a frame without payload, and gives its first failure.
fn tell(headers: impl Iterator<Item = Header>) -> Result<(), DataflowError> {
    let net = SimNet::new(SimOptions::default());
    let job = Arc::new(job());
    let (here, there) = (net.fabric(0), net.fabric(1));
    let offers = [
        here.offer(LinkId { local: 0, remote: 1 }).unwrap(),
        there.offer(LinkId { local: 1, remote: 0 }).unwrap(),
    ];
    let addresses = [offers[1].address(), offers[0].address()];
    let fabrics: [&dyn Fabric; 2] = [&*here, &*there];
    let mut links: Vec<Link> = offers
        .into_iter()
        .zip(addresses)
        .zip(fabrics)
        .map(|((offer, peer), fabric)| {
            Link::new(fabric, offer.connect(&peer).unwrap(), job.settings.ring, 1).unwrap()
        })
        .collect();
    let descriptors = [links[1].descriptor(), links[0].descriptor()];
    links.iter_mut().zip(descriptors).for_each(|(link, peer)| link.attach(&peer).unwrap());
    let mut helper = links.pop().unwrap();
    let mut worker = Worker::new(WorkerConfig::new(
        0,
        2,
        Process::new(0, 1).unwrap(),
        job,
        vec![None, links.pop()],
        net.clock(),
    ))?;
    let mut headers = headers.peekable();
    let mut quiet = 0;
    while quiet < 100 {
        if let Some(&header) = headers.peek()
            && let Some(slot) = helper.reserve(Class::Data)
        {
            slot.publish(header, 0);
            headers.next();
        }
        helper.flush();
        helper.poll().unwrap();
        while helper.recv().unwrap().is_some() {}
        worker.step()?;
        quiet = if net.step() || headers.peek().is_some() { 0 } else { quiet + 1 };
    }
    Ok(())
}

fn delta(epoch: u64, chunk: u32, last: bool) -> Header {
    let progress = Progress::active(0);
    let frame = Frame::Delta { epoch, chunk, last, progress };
    Envelope { operator: AGGREGATE, ..Envelope::of_link(frame) }.encode()
}

#[test]
fn chunks_of_an_epoch_that_does_not_end_are_held_to_the_budget() {
    let failed = tell((0..CHUNKS).map(|chunk| delta(1, chunk, false))).expect_err("without an end");
    let &DataflowError::State(StateError::Budget { bytes, budget }) = failed.cause() else {
        panic!("{failed}");
    };
    assert_eq!(budget, BUDGET);
    assert!(bytes > BUDGET && bytes < 2 * BUDGET, "{bytes} bytes");
}

#[test]
fn chunks_of_epochs_that_end_are_given_back() {
    let epochs = 1..=u64::from(CHUNKS / 10);
    let chunks = epochs.flat_map(|epoch| (0..10).map(move |chunk| delta(epoch, chunk, chunk == 9)));
    tell(chunks).expect("each epoch ends");
}
