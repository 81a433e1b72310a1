//! Rows for every worker, over whole clusters in the simulated network, against all pairs of rows:
//! windows of two streams that have no key in common, one side of which goes everywhere.
#![allow(missing_docs)]

mod groups;
mod spread;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use arrow::array::{ArrayRef, AsArray, Int64Array, StringArray, TimestampMillisecondArray};
use arrow::datatypes::{DataType, Field, Int64Type, Schema, SchemaRef, TimeUnit};
use arrow::record_batch::RecordBatch;
use channel::broadcast::Shape;
use channel::{Link, RingConfig};
use dataflow::error::{ConnectorError, DataflowError};
use dataflow::job::{
    Casting, Distribution, Edge, Exchange, JobGraph, Keyed, KeyedInput, KeyedOperator,
    MulticastChoice, Operator, OperatorKind, Scan, Settings, SinkSpec, TreeChoice, Watermark,
};
use dataflow::keyed::{JoinKind, JoinSide, WindowJoin};
use dataflow::metrics::Metrics;
use dataflow::process::Process;
use dataflow::sink::{Placement, Sink, SinkWriter, WriterContext};
use dataflow::source::{Next, Position, ReaderContext, Source, Split, SplitReader};
use dataflow::worker::{Status, Worker, WorkerConfig};
use fabric::multicast::{Group, GroupMember};
use fabric::sim::{Datagrams, SimNet, SimOptions};
use fabric::{Clock, Fabric, LinkId};

/// For how long a worker sleeps at most that misses being woken.
const SLEEP_NS_MAX: u64 = 50_000_000;

/// The number of a row, and the end of its window in milliseconds.
type Row = (i64, i64);

const WINDOW_MS: i64 = 10;

fn schema(side: &str) -> SchemaRef {
    let time = DataType::Timestamp(TimeUnit::Millisecond, None);
    Arc::new(Schema::new(vec![
        Field::new(format!("{side}_number"), DataType::Int64, true),
        Field::new(format!("{side}_end"), time, true),
        Field::new(format!("{side}_text"), DataType::Utf8, true),
    ]))
}

/// Flows of rows, in batches of a few.
#[derive(Clone)]
struct Table {
    schema: SchemaRef,
    flows: Vec<Vec<Row>>,
    text_bytes: usize,
}

struct Reading(Table, Vec<Row>);

impl Source for Table {
    fn schema(&self) -> SchemaRef {
        self.schema.clone()
    }

    fn bounded(&self) -> bool {
        true
    }

    fn splits(&self, _: u32, _: Option<usize>) -> Result<Vec<Split>, ConnectorError> {
        Ok(self.flows.iter().map(|_| Split::default()).collect())
    }

    fn open(
        &self,
        split: &Split,
        _: Option<&Position>,
        _: &ReaderContext,
    ) -> Result<Box<dyn SplitReader>, ConnectorError> {
        Ok(Box::new(Reading(self.clone(), self.flows[split.number].clone())))
    }
}

impl SplitReader for Reading {
    fn next(&mut self, _: usize) -> Result<Next, ConnectorError> {
        let Reading(table, rows) = self;
        if rows.is_empty() {
            return Ok(Next::End);
        }
        let rows: Vec<Row> = rows.drain(..rows.len().min(7)).collect();
        let text = "x".repeat(table.text_bytes);
        let columns: Vec<ArrayRef> = vec![
            Arc::new(Int64Array::from_iter_values(rows.iter().map(|row| row.0))),
            Arc::new(TimestampMillisecondArray::from_iter_values(rows.iter().map(|row| row.1))),
            Arc::new(StringArray::from_iter_values(rows.iter().map(|_| &text))),
        ];
        Ok(Next::Batch(RecordBatch::try_new(table.schema.clone(), columns).expect("they fit")))
    }

    fn position(&self) -> Position {
        Position::none("t")
    }
}

/// Pairs of numbers that were given out.
#[derive(Clone, Default)]
struct Pairs(Arc<Mutex<Vec<(i64, i64)>>>);

impl Sink for Pairs {
    fn placement(&self) -> Placement {
        Placement::Everywhere
    }

    fn open(&self, _: &WriterContext) -> Result<Box<dyn SinkWriter>, ConnectorError> {
        Ok(Box::new(self.clone()))
    }
}

impl SinkWriter for Pairs {
    fn write(&mut self, batch: &RecordBatch) -> Result<(), ConnectorError> {
        let numbers = |at: usize| batch.column(at).as_primitive::<Int64Type>().values();
        let pairs = numbers(0).iter().copied().zip(numbers(3).iter().copied());
        self.0.lock().unwrap().extend(pairs);
        Ok(())
    }

    fn flush(&mut self) -> Result<(), ConnectorError> {
        Ok(())
    }

    fn commit(self: Box<Self>) -> Result<(), ConnectorError> {
        Ok(())
    }
}

/// A clock on which everything takes time: each look at it a microsecond.
struct Ticking(Arc<dyn Clock>, AtomicU64);

impl Clock for Ticking {
    fn now_ns(&self) -> u64 {
        self.0.now_ns() + 1_000 * self.1.fetch_add(1, Ordering::Relaxed)
    }
}

/// A cluster, what is broadcast in it, and how.
struct Bed {
    nodes: u32,
    workers: u32,
    seed: u64,
    distribution: Distribution,
    casting: Casting,
    slots: u32,
    slot_bytes: u32,
    text_bytes: usize,
    flows: usize,
    rows: i64,
    /// A worker that takes no more turns after so many rounds.
    stops: Option<(u32, u64)>,
    ticking: bool,
    /// Whether each row of the right side goes to some workers, by [`spread::ByReach`].
    some: bool,
    datagrams: Datagrams,
    /// Of a thousand turns, how many workers sleep through, though something has come; and of a
    /// thousand datagrams for how many there is no room.
    dozes: u64,
    chokes: u64,
    /// Nothing happens in the network while a worker is busy.
    rests: bool,
}

impl Default for Bed {
    fn default() -> Self {
        Self {
            nodes: 2,
            workers: 2,
            seed: 1,
            distribution: Distribution::Local,
            casting: Casting::default(),
            slots: RingConfig::default().slots,
            slot_bytes: 1_024,
            text_bytes: 5,
            flows: 3,
            rows: 40,
            stops: None,
            ticking: false,
            some: false,
            datagrams: Datagrams::default(),
            dozes: 0,
            chokes: 0,
            rests: false,
        }
    }
}

struct Ran {
    pairs: Vec<(i64, i64)>,
    metrics: Vec<Arc<Metrics>>,
}

impl Ran {
    fn sum(&self, counter: impl Fn(&Metrics) -> &AtomicU64) -> u64 {
        self.metrics.iter().map(|metrics| counter(metrics).load(Ordering::Relaxed)).sum()
    }
}

impl Bed {
    fn tables(&self) -> [Table; 2] {
        ["left", "right"].map(|side| {
            let flow = |flow: i64| {
                let row = |row: i64| (row * self.flows as i64 + flow, (1 + row / 8) * WINDOW_MS);
                (0..self.rows).map(row).collect()
            };
            let flows = (0..self.flows as i64).map(flow).collect();
            let text_bytes = if side == "right" { self.text_bytes } else { 1 };
            Table { schema: schema(side), flows, text_bytes }
        })
    }

    fn expected(&self) -> Vec<(i64, i64)> {
        let [left, right] = self.tables();
        let mut pairs = vec![];
        for l in left.flows.iter().flatten() {
            let same = right.flows.iter().flatten().filter(|r| r.1 == l.1);
            pairs.extend(same.map(|r| (l.0, r.0)));
        }
        pairs.sort_unstable();
        pairs
    }

    fn job(&self, sink: Pairs) -> JobGraph {
        let [left, right] = self.tables();
        let fields: Vec<_> = [&left, &right].map(|t| t.schema.fields().to_vec()).concat();
        let both: SchemaRef = Arc::new(Schema::new(fields));
        let side =
            |table: &Table| JoinSide { schema: table.schema.clone(), keys: vec![], window_end: 1 };
        let operator = WindowJoin {
            sides: [side(&left), side(&right)],
            kind: JoinKind::Inner,
            on: None,
            schema: both.clone(),
            both: both.clone(),
        };
        let operator: Arc<dyn KeyedOperator> =
            if self.some { Arc::new(spread::ByReach(operator)) } else { Arc::new(operator) };
        let right_distribution =
            if self.some { Distribution::Hash } else { Distribution::Broadcast };
        let input = |table: &Table, distribution| KeyedInput {
            schema: table.schema.clone(),
            keys: vec![],
            distribution,
            time: Some(1),
            grace: 0,
        };
        let keyed = Keyed {
            inputs: vec![input(&left, self.distribution), input(&right, right_distribution)],
            exchange: Exchange::Shuffle,
            granularity: WINDOW_MS,
            operator,
        };
        // Rows carry the end of their window: they lag behind it by its length.
        let watermark = Some(Watermark { column: 1, delay: WINDOW_MS, idle_timeout_ns: None });
        let source = |name: &str, table: Table| {
            let source = Arc::new(table);
            let input = Scan { watermark, ..Scan::new(name, source) };
            Operator::new(name, vec![], OperatorKind::Source(input))
        };
        let edge = |from| vec![Edge { from, step: None, timed: true, lateness: 0 }];
        let sink = OperatorKind::Sink(SinkSpec { sink: Arc::new(sink), schema: both });
        let ring =
            RingConfig { slots: self.slots, slot_bytes: self.slot_bytes, ..RingConfig::default() };
        JobGraph {
            operators: vec![
                source("left", left),
                source("right", right),
                Operator::new("join", vec![edge(0), edge(1)], OperatorKind::Keyed(keyed)),
                Operator::new("out", vec![edge(2)], sink),
            ],
            settings: Settings { ring, casting: self.casting.clone(), ..Settings::default() },
        }
    }

    fn run(&self) -> Result<Ran, DataflowError> {
        let datagrams = self.datagrams.clone();
        let net = SimNet::new(SimOptions { datagrams, ..SimOptions::seeded(self.seed) });
        let pairs = Pairs::default();
        let job = Arc::new(self.job(pairs.clone()));
        let total = self.nodes * self.workers;
        let processes: Vec<_> =
            (0..self.nodes).map(|n| Process::new(n, self.workers).unwrap()).collect();
        let metrics: Vec<Arc<Metrics>> = (0..total).map(|_| Arc::default()).collect();
        let clock: Arc<dyn Clock> = if self.ticking {
            Arc::new(Ticking(net.clock(), AtomicU64::new(0)))
        } else {
            net.clock()
        };
        let mut workers = vec![];
        for (worker, links) in self.links(&net, job.settings.ring).into_iter().enumerate() {
            workers.push(Some(Worker::new(WorkerConfig {
                metrics: metrics[worker].clone(),
                multicast: self.member(&net, worker as u32),
                ..WorkerConfig::new(
                    worker as u32,
                    total,
                    processes[worker / self.workers as usize].clone(),
                    job.clone(),
                    links,
                    clock.clone(),
                )
            })?));
        }
        let mut chance = groups::Chance::new(self.seed);
        let mut asleep = vec![0; workers.len()];
        let mut round = 0;
        while workers.iter().any(Option::is_some) {
            round += 1;
            assert!(round < 3_000_000, "the job does not end");
            let (mut busy, mut wake) = (false, None);
            for (number, slot) in workers.iter_mut().enumerate() {
                let stopped = self.stops.is_some_and(|(w, at)| w == number as u32 && round > at);
                let Some(worker) = slot.as_mut().filter(|_| !stopped) else { continue };
                if asleep[number] > net.now_ns() {
                    wake = wake.into_iter().chain([asleep[number]]).min();
                    continue;
                }
                match worker.step()? {
                    // Others see it go.
                    Status::Done => (*slot, busy) = (None, true),
                    Status::Busy => busy = true,
                    Status::Idle { wake_ns } => wake = wake.into_iter().chain(wake_ns).min(),
                }
                if chance.is(self.dozes) {
                    asleep[number] = net.now_ns() + chance.below(SLEEP_NS_MAX);
                }
            }
            if busy && self.rests {
                continue;
            }
            if !net.step() && !busy {
                match wake {
                    Some(wake) => net.advance_to(wake.max(net.now_ns() + 1)),
                    None => assert!(workers.iter().all(Option::is_none), "nothing moves any more"),
                }
            }
        }
        let mut pairs = std::mem::take(&mut *pairs.0.lock().unwrap());
        pairs.sort_unstable();
        Ok(Ran { pairs, metrics })
    }

    /// In the group of the workers with the same place in their process.
    fn member(&self, net: &SimNet, worker: u32) -> Option<Box<dyn GroupMember>> {
        let fabric = net.fabric(worker / self.workers);
        let group = Group::new(*b"group of the job").branch(worker % self.workers);
        let member = fabric.multicast()?.join(group).unwrap();
        let chance = groups::Chance::new(self.seed + u64::from(worker));
        Some(Box::new(groups::Choking { member, chance, chokes: self.chokes }))
    }

    fn links(&self, net: &SimNet, ring: RingConfig) -> Vec<Vec<Option<Link>>> {
        let total = self.nodes * self.workers;
        let fabrics: Vec<_> = (0..self.nodes).map(|node| net.fabric(node)).collect();
        let fabric = |worker: u32| &fabrics[(worker / self.workers) as usize];
        let mut links: Vec<Vec<Option<Link>>> =
            (0..total).map(|_| (0..total).map(|_| None).collect()).collect();
        let pairs = (0..total).flat_map(|a| (a + 1..total).map(move |b| (a, b)));
        for (a, b) in pairs.filter(|(a, b)| a / self.workers != b / self.workers) {
            let offer = |local, remote| fabric(local).offer(LinkId { local, remote }).unwrap();
            let (here, there) = (offer(a, b), offer(b, a));
            let addresses = [there.address(), here.address()];
            let [mut here, mut there] = [(here, a, &addresses[0]), (there, b, &addresses[1])].map(
                |(offer, worker, address)| {
                    let endpoint = offer.connect(address).unwrap();
                    Link::new(fabric(worker).as_ref(), endpoint, ring, 1).unwrap()
                },
            );
            here.attach(&there.descriptor()).unwrap();
            there.attach(&here.descriptor()).unwrap();
            links[a as usize][b as usize] = Some(here);
            links[b as usize][a as usize] = Some(there);
        }
        links
    }
}

fn fixed(shape: Shape) -> Casting {
    Casting { tree: TreeChoice::Fixed(shape), ..Casting::default() }
}

#[test]
fn every_worker_gets_every_row_once_by_every_tree() {
    let trees = [Shape::Sequential, Shape::Binomial, Shape::Capped(1), Shape::Capped(2)];
    let mut seed = 0;
    for (nodes, workers) in [(1, 2), (1, 3), (2, 1), (2, 2), (3, 1), (4, 2), (5, 1)] {
        for tree in trees {
            for distribution in [Distribution::Local, Distribution::RoundRobin] {
                seed += 1;
                let bed = Bed {
                    nodes,
                    workers,
                    seed,
                    distribution,
                    casting: fixed(tree),
                    ..Bed::default()
                };
                let ran = bed.run().unwrap_or_else(|e| panic!("{nodes}x{workers} {tree:?}: {e}"));
                assert!(
                    ran.pairs == bed.expected(),
                    "{nodes}x{workers}, {tree:?}, {distribution:?}"
                );
            }
        }
    }
}

#[test]
fn a_row_larger_than_a_slot_travels_in_parts() {
    for (nodes, workers, tree) in
        [(2, 1, Shape::Sequential), (2, 2, Shape::Binomial), (4, 1, Shape::Capped(1))]
    {
        let (casting, text_bytes) = (fixed(tree), 5_000);
        let bed = Bed { nodes, workers, casting, text_bytes, rows: 20, ..Bed::default() };
        assert!(bed.run().unwrap().pairs == bed.expected(), "{nodes}x{workers}, {tree:?}");
    }
}

#[test]
fn a_batch_is_sent_once_to_each_process_however_many_workers_it_has() {
    // One flow, so that one worker gives out everything; the other side does not travel.
    let bytes = |nodes: u32, workers: u32, tree: Shape| {
        let bed = Bed { nodes, workers, flows: 1, casting: fixed(tree), ..Bed::default() };
        let ran = bed.run().unwrap();
        assert!(ran.pairs == bed.expected(), "{nodes}x{workers}");
        ran.sum(|metrics| &metrics.bytes_sent)
    };
    let once = bytes(2, 1, Shape::Sequential);
    assert!(once > 0);
    for tree in [Shape::Sequential, Shape::Capped(1)] {
        for workers in [1, 2, 4] {
            assert_eq!(bytes(1, workers, tree), 0, "a process of {workers}");
            assert_eq!(bytes(2, workers, tree), once, "two of {workers}");
            assert_eq!(bytes(4, workers, tree), 3 * once, "four of {workers}");
        }
    }
}

#[test]
fn without_a_tree_each_worker_of_another_process_gets_a_copy_of_its_own() {
    let copies = || Casting { tree: TreeChoice::Copies, ..Casting::default() };
    let mut seed = 40;
    for (nodes, workers) in [(1, 3), (2, 1), (2, 3), (4, 2)] {
        for (distribution, text_bytes, queue_frames) in [
            (Distribution::Local, 5, 64),
            (Distribution::RoundRobin, 5, 1),
            (Distribution::Local, 5_000, 2),
        ] {
            seed += 1;
            let (casting, rows) = (Casting { queue_frames, ..copies() }, 20);
            let bed = Bed {
                nodes,
                workers,
                seed,
                distribution,
                casting,
                text_bytes,
                rows,
                ..Bed::default()
            };
            let ran = bed.run().unwrap_or_else(|error| panic!("{nodes}x{workers}: {error}"));
            assert!(
                ran.pairs == bed.expected(),
                "{nodes}x{workers}, {distribution:?}, {text_bytes}"
            );
        }
    }
    // The same rows, once to each process and once to each worker of the other processes.
    let bytes = |casting| {
        let bed = Bed { nodes: 3, workers: 4, flows: 1, casting, ..Bed::default() };
        let ran = bed.run().unwrap();
        assert!(ran.pairs == bed.expected());
        assert_eq!(
            ran.sum(|metrics| &metrics.broadcast_bytes),
            ran.sum(|metrics| &metrics.bytes_sent)
        );
        (ran.sum(|metrics| &metrics.broadcast_bytes), ran.sum(|metrics| &metrics.broadcast_frames))
    };
    let (once, frames) = bytes(fixed(Shape::Capped(1)));
    assert_eq!(bytes(copies()), (4 * once, 4 * frames));
}

#[test]
fn with_a_tree_the_source_sends_to_its_children_only() {
    let sent = |tree: Shape| {
        let bed = Bed { nodes: 8, workers: 1, flows: 1, casting: fixed(tree), ..Bed::default() };
        let ran = bed.run().unwrap();
        assert!(ran.pairs == bed.expected(), "{tree:?}");
        let own = |worker: usize| ran.metrics[worker].bytes_sent.load(Ordering::Relaxed);
        let source = (0..8).max_by_key(|&worker| own(worker)).unwrap();
        (own(source), ran.sum(|metrics| &metrics.bytes_sent))
    };
    let (all, total) = sent(Shape::Sequential);
    assert_eq!(all, total);
    for (tree, children) in [(Shape::Binomial, 3), (Shape::Capped(2), 2), (Shape::Capped(1), 1)] {
        let (most, sum) = sent(tree);
        assert_eq!((most * 7, sum), (all * children, total), "{tree:?}");
    }
}

#[test]
fn trees_that_change_while_rows_flow_lose_and_double_nothing() {
    let mut changes = 0;
    for seed in 0..8 {
        let multicast =
            if seed % 2 == 0 { MulticastChoice::Tree } else { MulticastChoice::Hardware };
        let casting = Casting { queue_frames: 8, multicast, ..Casting::default() };
        let (nodes, workers) = (4 + (seed % 3) as u32, 1 + (seed % 2) as u32);
        // Rows so large that frames wait in the source.
        let (rows, text_bytes) = (200, 100);
        let bed = Bed {
            nodes,
            workers,
            seed,
            casting,
            ticking: true,
            rows,
            text_bytes,
            ..Bed::default()
        };
        let ran = bed.run().unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        assert!(ran.pairs == bed.expected(), "seed {seed}");
        changes += ran.sum(|metrics| &metrics.tree_changes);
    }
    assert!(changes > 10, "only {changes} changes");
}

#[test]
fn workers_rest_while_the_network_does_also_when_all_is_sent_and_nothing_has_left() {
    for (nodes, workers) in [(2, 1), (2, 2), (3, 2)] {
        let bed = Bed { nodes, workers, rests: true, ..Bed::default() };
        assert!(bed.run().unwrap().pairs == bed.expected(), "{nodes}x{workers}");
    }
}

#[test]
fn a_worker_that_takes_nothing_ends_the_job_with_an_error_that_names_it() {
    for casting in [fixed(Shape::Capped(1)), groups::by_network(Shape::Capped(1))] {
        let casting = Casting { stall_ns: 1_000_000_000, ..casting };
        let stops = Some((1, 50));
        let bed = Bed { nodes: 3, workers: 1, casting, rows: 4_000, stops, ..Bed::default() };
        let error = bed.run().err().expect("it cannot end");
        assert!(matches!(error, DataflowError::Stalled { worker: 1, after_ms: 1_000 }), "{error}");
        let text = error.to_string();
        assert!(text.contains("worker 1 has taken no broadcast rows for 1 s"), "{text}");
    }
}
