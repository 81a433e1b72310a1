//! Workers in the simulated network that push numbers through an exchange and write down what
//! arrives, and in which order.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, Int64Array, StringArray};
use arrow::datatypes::{DataType, Field, Int64Type, Schema, SchemaRef};
use arrow::record_batch::RecordBatch;
use bytes::Bytes;
use channel::{Link, RingConfig, SharedRegion, Transfer};
use fabric::sim::{SimNet, SimOptions};
use fabric::{Fabric, LinkId};
use state::epoch::Progress;
use state::{GroupBy, GroupColumns, Partitioner, RowsByOwner, StateOptions};

use super::Case;
use crate::error::DataflowError;
use crate::exchange::{Arrival, Connected, Deltas, Instance, Member, Outgoing};
use crate::job::{JobGraph, Settings};
use crate::runtime::accounting::StateAccounting;
use crate::runtime::external::External;
use crate::runtime::frame::{Colour, Envelope, Frame};
use crate::runtime::metrics::Metrics;
use crate::runtime::net::Net;
use crate::runtime::place::WorkerContext;
use crate::runtime::process::Process;
use crate::runtime::scheduler::{Event, Scheduler, Timers};

/// The number of the operator.
pub(super) const TAG: u32 = 0;

/// The receive window.
pub(super) const RECEIVE_BYTES: u64 = 2_048;

/// The numbers of worker *w* begin at `w * BASE`.
pub(super) const BASE: i64 = 1_000_000;

/// An event at an operator.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Seen {
    /// A number, of the worker that pushed it. Groups have no colour.
    Row(u32, i64, Option<Colour>),
    /// A worker's progress counts.
    Progress(u32, Progress),
}

/// An operator that writes down what it sees.
pub(super) struct Probe {
    instance: Instance,
    pub(super) seen: RefCell<Vec<Seen>>,
    /// Numbers of this worker that are folded here, where groups travel and not rows.
    folded: RefCell<Vec<i64>>,
    deltas: Option<Rc<Deltas>>,
    /// Whether progress comes with epochs.
    merges: bool,
    /// Frames that were received.
    pub(super) frames: RefCell<Vec<(u32, Envelope)>>,
    /// Batches that were pushed.
    pub(super) pushed: Cell<usize>,
    /// Whether it processes no rows for now.
    pub(super) holds: Cell<bool>,
    /// The rows that wait to be processed.
    pub(super) held: RefCell<VecDeque<Arrival>>,
}

pub(super) fn schema() -> SchemaRef {
    Arc::new(Schema::new(vec![Field::new("number", DataType::Int64, true)]))
}

pub(super) fn batch_of(numbers: &[i64]) -> RecordBatch {
    let numbers: ArrayRef = Arc::new(Int64Array::from(numbers.to_vec()));
    RecordBatch::try_new(schema(), vec![numbers]).expect("one column")
}

/// Of numbers, each with a text.
pub(super) fn text_schema() -> SchemaRef {
    let number = Field::new("number", DataType::Int64, true);
    Arc::new(Schema::new(vec![number, Field::new("text", DataType::Utf8, true)]))
}

/// How the groups of numbers travel: each with a count.
pub(super) fn deltas() -> Rc<Deltas> {
    Rc::new(Deltas::new(&GroupBy {
        keys: vec![DataType::Int64],
        aggregates: vec![state::aggregates::count()],
        options: StateOptions::default(),
    }))
}

impl Member for Probe {
    fn instance(&self) -> &Instance {
        &self.instance
    }

    fn crosses(&self, from: i64, to: i64) -> bool {
        from != to
    }

    fn keep(&self, arrival: Arrival, batch: RecordBatch) -> Result<(), DataflowError> {
        let numbers = batch.column(0).as_primitive::<Int64Type>().values();
        if self.deltas.is_some() {
            self.folded.borrow_mut().extend(numbers);
            return Ok(());
        }
        let Arrival { source, colour, .. } = arrival;
        let rows = numbers.iter().map(|&number| Seen::Row(source, number, Some(colour)));
        self.seen.borrow_mut().extend(rows);
        self.held.borrow_mut().push_back(arrival);
        self.process();
        Ok(())
    }

    fn take_groups(&self, from: u32, payload: &Bytes) -> Result<(), DataflowError> {
        let malformed = |detail| DataflowError::Frame { worker: from, detail };
        let deltas = self.deltas.as_ref().ok_or_else(|| malformed("no groups here".into()))?;
        if payload.is_empty() {
            return Ok(());
        }
        for (_, groups) in deltas.read(payload).map_err(malformed)?.runs() {
            let numbers = groups.keys[0].as_primitive::<Int64Type>().values().clone();
            let rows = numbers.iter().map(|&number| Seen::Row(from, number, None));
            self.seen.borrow_mut().extend(rows);
        }
        Ok(())
    }

    fn take_remote_groups(
        &self,
        partitioner: &mut Partitioner,
        give: &mut dyn FnMut(i64, &RowsByOwner, &GroupColumns) -> Result<(), DataflowError>,
    ) -> Result<usize, DataflowError> {
        let numbers = self.folded.take();
        let keys: ArrayRef = Arc::new(Int64Array::from(numbers));
        let counts: ArrayRef = Arc::new(Int64Array::from(vec![1; keys.len()]));
        let groups = GroupColumns { keys: vec![keys], states: vec![counts] };
        let mut split = RowsByOwner::default();
        partitioner.split(&groups, &mut split)?;
        let own = split.select(self.instance.worker, &groups)?;
        let rows = own.keys[0].as_primitive::<Int64Type>().values();
        let rows = rows.iter().map(|&number| Seen::Row(self.instance.worker, number, None));
        self.seen.borrow_mut().extend(rows);
        give(0, &split, &groups)?;
        Ok(own.rows())
    }

    fn move_clock(&self, worker: u32, progress: Progress) {
        self.seen.borrow_mut().push(Seen::Progress(worker, progress));
        if self.instance.leader.borrow_mut().advance(worker, progress) {
            self.instance.clock_moved.notify();
        }
    }
}

impl Probe {
    /// Processes the rows that wait for it, unless it processes none.
    pub(super) fn process(&self) {
        while !self.holds.get()
            && let Some(arrival) = self.held.borrow_mut().pop_front()
        {
            self.instance.inputs.consumed(self, arrival);
        }
    }

    /// Writes down the progress of a worker that its epochs have brought.
    fn observe(&self, from: u32) {
        let progress = self.instance.leader.borrow().clock().of(from);
        let Some(progress) = progress.filter(|_| self.merges) else { return };
        let mut seen = self.seen.borrow_mut();
        let last = seen.iter().rev().find_map(|seen| match seen {
            Seen::Progress(of, last) if *of == from => Some(*last),
            _ => None,
        });
        let first = Progress::active(i64::MIN);
        if last.unwrap_or(first) != progress {
            seen.push(Seen::Progress(from, progress));
        }
    }
}

/// How many workers there are, how rows are pushed, and by how little they are held back.
#[derive(Clone, Copy)]
pub(super) struct Shape {
    pub(super) processes: u32,
    /// Workers of each.
    pub(super) workers: u32,
    pub(super) seed: u64,
    /// Batches that each worker pushes, and the numbers in each.
    pub(super) batches: usize,
    pub(super) rows: usize,
    /// Batches between two announcements of progress.
    pub(super) every: usize,
    /// Bytes of the text beside each number; without any there is no such column.
    pub(super) text_bytes: usize,
    /// Slots of the region of a worker, where rings have one.
    pub(super) region_slots: u32,
}

pub(super) const SHAPE: Shape = Shape {
    processes: 1,
    workers: 1,
    seed: 1,
    batches: 40,
    rows: 13,
    every: 6,
    text_bytes: 0,
    region_slots: 4,
};

impl Shape {
    pub(super) fn total(&self) -> u32 {
        self.processes * self.workers
    }

    /// A batch of these numbers.
    fn batch_of(&self, numbers: &[i64]) -> RecordBatch {
        if self.text_bytes == 0 {
            return batch_of(numbers);
        }
        let texts = numbers.iter().map(|number| Some(format!("{number:0>0$}", self.text_bytes)));
        let texts: ArrayRef = Arc::new(texts.collect::<StringArray>());
        let numbers = batch_of(numbers).column(0).clone();
        RecordBatch::try_new(text_schema(), vec![numbers, texts]).expect("two columns")
    }

    /// The numbers of a batch of a worker.
    pub(super) fn numbers(&self, worker: u32, batch: usize) -> Vec<i64> {
        let first = i64::from(worker) * BASE + (batch * self.rows) as i64;
        (first..first + self.rows as i64).collect()
    }

    /// The round in which a worker pushes a batch: each its own, with one change.
    pub(super) fn round(&self, worker: u32, batch: usize) -> u64 {
        (1 << 16) + u64::from(worker) * 16 + u64::from(batch >= self.batches / 2)
    }
}

/// A worker of the bed.
pub(super) struct Actor {
    pub(super) probe: Rc<Probe>,
    scheduler: Scheduler,
    timers: Rc<Timers>,
}

/// The workers, and what joins them.
pub(super) struct Bed {
    pub(super) net: SimNet,
    pub(super) actors: Vec<Actor>,
}

impl Bed {
    pub(super) fn new(case: &Case, shape: Shape) -> Self {
        let net = SimNet::new(SimOptions::seeded(shape.seed));
        let ring = RingConfig { slots: 4, slot_bytes: 1_024, ..RingConfig::default() };
        let mut settings = Settings { ring, receive_bytes: RECEIVE_BYTES, ..Settings::default() };
        case.settings(&mut settings);
        let processes: Vec<_> =
            (0..shape.processes).map(|rank| Process::new(rank, shape.workers).unwrap()).collect();
        let links = links(&net, shape, settings.ring);
        let actor = |(worker, links): (u32, Vec<Option<Link>>)| {
            let process = processes[(worker / shape.workers) as usize].clone();
            let place = place(worker, shape, process, &net, &settings);
            Actor::new(case, &place, links)
        };
        let actors = (0..).zip(links).map(actor).collect();
        Self { net, actors }
    }

    /// Lets each worker push its script and end.
    pub(super) fn start(&mut self, shape: Shape) {
        for actor in &mut self.actors {
            actor.start(shape);
        }
    }

    /// Runs until nothing moves any more; workers of which that is said take no turns.
    pub(super) fn run(&mut self, stands: impl Fn(u32) -> bool) -> Result<(), DataflowError> {
        let mut quiet = 0;
        while quiet < 3 {
            let mut busy = false;
            let mut wake: Option<u64> = None;
            for (worker, actor) in (0..).zip(&mut self.actors) {
                if !stands(worker) {
                    busy |= actor.step(self.net.now_ns())?;
                    wake = wake.into_iter().chain(actor.timers.next_ns()).min();
                }
            }
            if self.net.step() || busy {
                quiet = 0;
            } else if let Some(wake_ns) = wake {
                self.net.advance_to(wake_ns.max(self.net.now_ns() + 1));
            } else {
                quiet += 1;
            }
        }
        Ok(())
    }

    /// Whether all coroutines of all workers are through.
    pub(super) fn is_over(&self) -> bool {
        self.actors.iter().all(|actor| actor.scheduler.running() == 0)
    }
}

impl Actor {
    fn new(case: &Case, place: &WorkerContext, links: Vec<Option<Link>>) -> Self {
        let metrics = Arc::new(Metrics::default());
        metrics.count_operators(1);
        let net = Rc::new(Net::new(links, None, None, place, metrics));
        let deltas = case.groups.then(deltas);
        let inputs = (case.inputs)(place);
        let alone = inputs.is_local() || (case.gathers && place.worker != 0);
        let probe = Rc::new(Probe {
            instance: Instance::new(TAG, place, net, inputs, alone),
            seen: RefCell::default(),
            folded: RefCell::default(),
            deltas,
            merges: case.merges,
            frames: RefCell::default(),
            pushed: Cell::new(0),
            holds: Cell::new(false),
            held: RefCell::default(),
        });
        Self { probe, scheduler: Scheduler::new(), timers: Rc::new(Timers::default()) }
    }

    fn start(&mut self, shape: Shape) {
        let over = Rc::new((Cell::new(0), Event::default()));
        let done = |over: &(Cell<u32>, Event)| {
            over.0.set(over.0.get() + 1);
            over.1.notify();
        };
        let (probe, ended) = (self.probe.clone(), over.clone());
        self.scheduler.spawn(async move {
            push(&probe, shape).await?;
            done(&ended);
            Ok(())
        });
        let (probe, ended) = (self.probe.clone(), over.clone());
        self.scheduler.spawn(async move {
            probe.relay().await?;
            done(&ended);
            Ok(())
        });
        let probe = self.probe.clone();
        self.scheduler.spawn(async move { probe.acknowledge().await });
        let (probe, timers) = (self.probe.clone(), self.timers.clone());
        self.scheduler.spawn_beside(0, async move {
            loop {
                let due_ns = probe.buffered().wait_for(|| probe.due()).await;
                timers.sleep_until(due_ns).await;
                probe.send_due(timers.now_ns()).await?;
            }
        });
        for from in self.probe.instance.net.peers() {
            let probe = self.probe.clone();
            self.scheduler.spawn(async move {
                while let Some(message) = probe.instance.net.recv(from).await? {
                    probe.frames.borrow_mut().push((from, message.envelope));
                    probe.receive(from, message)?;
                    probe.observe(from);
                }
                Ok(())
            });
        }
        let probe = self.probe.clone();
        self.scheduler.spawn(async move {
            over.1.wait_for(|| (over.0.get() == 2).then_some(())).await;
            probe.instance.net.bye().await;
            Ok(())
        });
    }

    /// True when anything happened.
    fn step(&mut self, now_ns: u64) -> Result<bool, DataflowError> {
        self.timers.advance(now_ns);
        let moved = self.probe.instance.net.poll()?;
        self.probe.poll()?;
        self.scheduler.turn(|_| {})?;
        self.probe.instance.net.flush();
        Ok(moved || self.probe.instance.net.take_exchanged() || self.scheduler.has_ready())
    }
}

/// Pushes all batches of a worker, announces progress in between, and the end; waits until all
/// workers have ended and nothing is kept for them.
async fn push(probe: &Probe, shape: Shape) -> Result<(), DataflowError> {
    let worker = probe.instance.worker;
    for batch in 0..shape.batches {
        probe.instance.begin_round(shape.round(worker, batch));
        let numbers = shape.numbers(worker, batch);
        let watermark = numbers[numbers.len() - 1] + 1;
        let changes = shape.round(worker, batch + 1) != shape.round(worker, batch);
        probe.instance.inputs.push(probe, Outgoing::of(0, shape.batch_of(&numbers))).await?;
        probe.pushed.set(probe.pushed.get() + 1);
        if (changes || (batch + 1).is_multiple_of(shape.every))
            && let Some(announced) = probe.instance.inputs.progress(probe, watermark, false)
        {
            announced.await?;
        }
    }
    probe.instance.inputs.end(probe, i64::MAX).await?;
    probe.instance.clock_moved.wait_for(|| probe.time().1.then_some(())).await;
    probe.instance.inputs.settle(probe).await;
    Ok(())
}

fn place(
    worker: u32,
    shape: Shape,
    process: Arc<Process>,
    net: &SimNet,
    settings: &Settings,
) -> WorkerContext {
    let job = JobGraph { operators: vec![], settings: settings.clone() };
    let accounting = Rc::new(StateAccounting::of(&job, false, Arc::default()));
    let external = Rc::new(External::new(process.parker(worker)));
    WorkerContext {
        worker,
        workers: shape.total(),
        process,
        clock: net.clock(),
        settings: settings.clone(),
        accounting,
        disk: None,
        signals: Arc::default(),
        timers: Rc::default(),
        external,
        checkpoints: None,
        restored: None,
        watermarks: vec![],
        round: 0,
        rounds: None,
        staged_last: Rc::default(),
        peers: Arc::default(),
    }
}

fn links(net: &SimNet, shape: Shape, ring: RingConfig) -> Vec<Vec<Option<Link>>> {
    let total = shape.total();
    let fabrics: Vec<_> = (0..shape.processes).map(|rank| net.fabric(rank)).collect();
    let fabric = |worker: u32| &fabrics[(worker / shape.workers) as usize];
    let region = |worker: u32| {
        let fabric: Arc<dyn Fabric> = fabric(worker).clone();
        SharedRegion::new(&fabric, &ring, shape.region_slots).unwrap()
    };
    let lends = ring.transfer == Transfer::Region;
    let regions: Vec<_> = (0..total).map(|worker| lends.then(|| region(worker))).collect();
    let mut links: Vec<Vec<Option<Link>>> =
        (0..total).map(|_| (0..total).map(|_| None).collect()).collect();
    let pairs = (0..total).flat_map(|a| (a + 1..total).map(move |b| (a, b)));
    for (a, b) in pairs.filter(|(a, b)| a / shape.workers != b / shape.workers) {
        let offer = |local, remote| fabric(local).offer(LinkId { local, remote }).unwrap();
        let (here, there) = (offer(a, b), offer(b, a));
        let addresses = [there.address(), here.address()];
        let [mut here, mut there] = [(here, a, &addresses[0]), (there, b, &addresses[1])].map(
            |(offer, worker, address)| {
                let endpoint = offer.connect(address).unwrap();
                let link = Link::new(fabric(worker).as_ref(), endpoint, ring, 1).unwrap();
                match &regions[worker as usize] {
                    Some(region) => link.lending(region.clone()),
                    None => link,
                }
            },
        );
        here.attach(&there.descriptor()).unwrap();
        there.attach(&here.descriptor()).unwrap();
        links[a as usize][b as usize] = Some(here);
        links[b as usize][a as usize] = Some(there);
    }
    links
}

/// A frame of the operator's first input, as another worker may send it.
pub(super) fn envelope(frame: Frame) -> Envelope {
    Envelope { operator: TAG, ..Envelope::of_link(frame) }
}
