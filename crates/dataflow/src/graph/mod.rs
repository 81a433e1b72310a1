//! The operators of a job on one worker, and how rows go from one to the next.
//!
//! Rows are pushed: who reads a source, and who gives out results, calls the operators behind it,
//! through the steps of the edges, until the rows have come to rest in state, in a ring or in a
//! sink. What keeps rows and gives out results runs in a coroutine of its own ([`Node::run`]); a
//! lookup keeps none and hands on what it makes of a push at once.
//!
//! An operator has one watermark on each worker: the least of the edges that lead to it, of all its
//! inputs ([`Feeders`]).

mod routes;

use std::cell::{Cell, RefCell};
use std::num::NonZeroU64;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use arrow::datatypes::{DataType, TimeUnit};
use state::Folded;
use state::epoch::{Presence, Progress, VectorClock};

pub(crate) use self::routes::Routes;
use self::routes::{Onward, Route};
use crate::connector::source::ReaderContext;
use crate::error::DataflowError;
use crate::exchange::{Connected, progress_of};
use crate::job::{Edge, Fusion, Input, Job, OperatorKind, RawColumns};
use crate::operators::aggregate::Grouping;
use crate::operators::downstream::Downstream;
use crate::operators::keyed::KeyedRun;
use crate::operators::lookup::LookupRun;
use crate::operators::sink::{Output, Together};
use crate::optimize::fusion::windows_event_time;
use crate::rows::time::to_millis;
use crate::rows::{FusedRows, Rows};
use crate::runtime::metrics::{Metrics, OperatorMetrics};
use crate::runtime::net::{Message, Net};
use crate::runtime::place::Place;
use crate::runtime::scheduler::{Event, Gate, Timers, Turn};

/// An operator with inputs, on one worker.
pub(crate) struct Node {
    work: Work,
    /// The exchanges of its inputs.
    connected: Rc<dyn Connected>,
    counted: Counted,
    feeders: RefCell<Feeders>,
    /// Rows and watermarks of several edges must not interleave where one has to wait.
    gate: Gate,
    ended: Cell<bool>,
    /// Nothing more is relayed.
    relayed: Cell<bool>,
    end: Event,
}

enum Work {
    Grouping(Rc<Grouping<Routes>>),
    Keyed(Rc<KeyedRun<Routes>>),
    Lookup(Rc<LookupRun<Routes>>),
    Sink(Rc<Output>),
}

impl Work {
    fn connected(&self) -> Rc<dyn Connected> {
        match self {
            Work::Grouping(grouping) => grouping.clone(),
            Work::Keyed(keyed) => keyed.clone(),
            Work::Lookup(lookup) => lookup.clone(),
            Work::Sink(output) => output.clone(),
        }
    }
}

/// The edges that lead to an operator, and how far each is.
struct Feeders {
    clock: VectorClock,
    count: u32,
}

impl Feeders {
    fn new(count: u32) -> Self {
        Self { clock: VectorClock::new(count), count }
    }

    /// Whether those that have not ended are all idle.
    fn is_idle(&self) -> bool {
        let presence = |feeder| self.clock.of(feeder).map(|said| said.presence);
        let mut all = (0..self.count).map(presence);
        !self.clock.ended() && all.all(|presence| presence != Some(Presence::Active))
    }
}

impl Node {
    /// Takes rows of an edge.
    async fn push(&self, route: &Route, rows: Rows) -> Result<(), DataflowError> {
        let _turn = self.gate.enter().await;
        match &self.work {
            Work::Grouping(grouping) => {
                let slice = match rows.span {
                    Some(span) if route.windows_event_time => grouping.slice_of(span),
                    _ => None,
                };
                // With the slice known, nobody asks when each row was.
                let unread = slice.and_then(|_| grouping.only_time());
                let Rows { batch, met, .. } = route.apply(rows, unread)?;
                self.counted.add_in(batch.num_rows());
                grouping.push(batch, met.as_ref(), slice).await?;
                heed_length(grouping, route).await
            }
            Work::Keyed(keyed) => {
                let rows = route.apply(rows, None)?;
                self.counted.add_in(rows.batch.num_rows());
                keyed.push(route.input, rows.batch, rows.met.as_ref()).await
            }
            Work::Lookup(lookup) => {
                let rows = route.apply(rows, None)?;
                self.counted.add_in(rows.batch.num_rows());
                lookup.push(rows).await
            }
            Work::Sink(output) => {
                let rows = route.apply(rows, None)?;
                self.counted.add_in(rows.batch.num_rows());
                self.counted.add_out(rows.batch.num_rows());
                output.emit(rows.batch).await
            }
        }
    }

    /// Folds rows of a fused scan, from the first on: gives how many.
    async fn fold(
        &self,
        route: &Route,
        rows: FusedRows<'_>,
        fusion: &Fusion,
    ) -> Result<usize, DataflowError> {
        let raw = || route.raw(rows.batch, fusion);
        let (Work::Lookup(lookup), Some(fused)) = (&self.work, &fusion.lookup) else {
            return Ok(self.fold_raw(route, rows, &raw).await?.rows);
        };
        let _turn = self.gate.enter().await;
        let folded = lookup.fold(rows, fused, &raw).await?;
        self.counted.add_in(folded.passed + folded.missed);
        Ok(folded.rows)
    }

    /// The same in the aggregate that ends the loop; `raw` says what the rows are made of.
    async fn fold_raw(
        &self,
        route: &Route,
        rows: FusedRows<'_>,
        raw: RawColumns<'_>,
    ) -> Result<Folded, DataflowError> {
        let Work::Grouping(grouping) = &self.work else { return Ok(Folded::default()) };
        let _turn = self.gate.enter().await;
        let folded = grouping.fold_fused(raw, rows)?;
        self.counted.add_in(folded.passed);
        heed_length(grouping, route).await?;
        Ok(folded)
    }

    /// Whether a window ends here, or behind a lookup, when an edge has this watermark.
    fn awaits(&self, feeder: u32, watermark: i64) -> bool {
        let least = self.feeders.borrow().clock.least_with(feeder, watermark);
        match &self.work {
            Work::Grouping(grouping) => grouping.awaits(least),
            Work::Lookup(lookup) => lookup.behind.awaits(least),
            Work::Keyed(_) | Work::Sink(_) => false,
        }
    }

    /// The watermark of an edge has moved, or its rows have ceased for a while. Gives what is to be
    /// told further on.
    async fn progress(
        &self,
        feeder: u32,
        watermark: i64,
        idle: bool,
    ) -> Result<Option<Onward<'_>>, DataflowError> {
        if matches!(self.work, Work::Sink(_)) {
            return Ok(None);
        }
        let turn = self.gate.enter().await;
        self.feeders.borrow_mut().clock.advance(feeder, progress_of(watermark, idle));
        self.tell(turn).await
    }

    /// An edge that was idle has rows again. Gives the watermark before which they are late.
    async fn resume(&self, feeder: u32) -> Result<i64, DataflowError> {
        let _turn = self.gate.enter().await;
        let was_idle = self.feeders.borrow().is_idle();
        self.feeders.borrow_mut().clock.advance(feeder, Progress::active(i64::MIN));
        match &self.work {
            _ if !was_idle => Ok(self.feeders.borrow().clock.least()),
            Work::Grouping(grouping) => grouping.resume().await,
            Work::Keyed(keyed) => keyed.resume().await,
            Work::Lookup(lookup) => Box::pin(lookup.behind.resume()).await,
            Work::Sink(_) => Ok(i64::MIN),
        }
    }

    /// An edge has no more rows. `watermark` is `i64::MAX` if they are complete.
    async fn end(&self, feeder: u32, watermark: i64) -> Result<(), DataflowError> {
        let turn = self.gate.enter().await;
        self.feeders.borrow_mut().clock.advance(feeder, Progress::ended(watermark));
        if !self.feeders.borrow().clock.ended() {
            return match self.tell(turn).await? {
                Some(onward) => Box::pin(onward.go()).await,
                None => Ok(()),
            };
        }
        let watermark = self.feeders.borrow().clock.least();
        match &self.work {
            Work::Grouping(grouping) => grouping.end_of_rows(watermark).await,
            Work::Keyed(keyed) => keyed.end_of_rows(watermark).await,
            Work::Lookup(lookup) => Box::pin(lookup.behind.end(watermark)).await,
            Work::Sink(output) => {
                output.complete();
                Ok(())
            }
        }
    }

    async fn tell<'a>(&'a self, turn: Turn<'a>) -> Result<Option<Onward<'a>>, DataflowError> {
        let (watermark, idle) = {
            let feeders = self.feeders.borrow();
            (feeders.clock.least(), feeders.is_idle())
        };
        match &self.work {
            Work::Grouping(grouping) => grouping.progress(watermark, idle).await?,
            Work::Keyed(keyed) => keyed.progress(watermark, idle).await?,
            Work::Lookup(lookup) => {
                return Ok(Some(Onward { routes: &lookup.behind, watermark, idle, turn }));
            }
            Work::Sink(_) => {}
        }
        Ok(None)
    }

    /// Gives out results until there will be no more, here or for anybody else.
    pub(crate) async fn run(self: Rc<Self>) -> Result<(), DataflowError> {
        match &self.work {
            Work::Grouping(grouping) => {
                grouping.fire().await?;
                grouping.settle().await;
            }
            Work::Keyed(keyed) => keyed.fire().await?,
            Work::Lookup(lookup) => lookup.load().await?,
            Work::Sink(output) => output.finish().await?,
        }
        self.ended.set(true);
        self.end.notify();
        Ok(())
    }

    /// Acknowledges what other workers wait for; a coroutine of its own, because an acknowledgement
    /// may have to wait for credit.
    pub(crate) async fn acknowledge(self: Rc<Self>) -> Result<(), DataflowError> {
        self.connected.acknowledge().await
    }

    /// Nanoseconds after which [`Node::at_intervals`] has something to do, if ever.
    pub(crate) fn interval_ns(&self) -> Option<NonZeroU64> {
        match &self.work {
            Work::Grouping(grouping) => grouping.early_ns(),
            _ => None,
        }
    }

    /// Does every so often what is to be done so; for ever. Who was held up for longer than an
    /// interval makes up for none.
    pub(crate) async fn at_intervals(
        self: Rc<Self>,
        every_ns: NonZeroU64,
        timers: Rc<Timers>,
    ) -> Result<(), DataflowError> {
        let Work::Grouping(grouping) = &self.work else { return Ok(()) };
        loop {
            timers.sleep_until(timers.now_ns().saturating_add(every_ns.get())).await;
            let _turn = self.gate.enter().await;
            grouping.interval().await?;
        }
    }

    /// Sends rows that have waited long enough for others (W4), forever.
    pub(crate) async fn send_due(self: Rc<Self>, timers: Rc<Timers>) -> Result<(), DataflowError> {
        loop {
            let due_ns = self.connected.buffered().wait_for(|| self.connected.due()).await;
            timers.sleep_until(due_ns).await;
            let _turn = self.gate.enter().await;
            self.connected.send_due(timers.now_ns()).await?;
        }
    }

    /// Sends what waits for links and passes on what others send; a coroutine of its own, because
    /// it waits for all links.
    pub(crate) async fn relay(self: Rc<Self>) -> Result<(), DataflowError> {
        self.connected.relay().await?;
        self.relayed.set(true);
        self.end.notify();
        Ok(())
    }

    /// Until when another worker must have taken something, if it has been waited for.
    ///
    /// # Errors
    /// [`DataflowError::Stalled`] when that time has come.
    pub(crate) fn deadline(&self, now_ns: u64) -> Result<Option<u64>, DataflowError> {
        self.connected.deadline(now_ns)
    }

    /// Takes rows that came without a frame.
    ///
    /// # Errors
    /// When they are malformed, or state fails.
    pub(crate) fn poll(&self) -> Result<(), DataflowError> {
        self.connected.poll()
    }

    /// Waits until [`Node::run`] and [`Node::relay`] are through: what the latter sends at the end
    /// is received only before the goodbye.
    pub(crate) async fn wait(&self) {
        self.end.wait_for(|| (self.ended.get() && self.relayed.get()).then_some(())).await;
    }

    /// Takes a frame of this operator.
    ///
    /// # Errors
    /// When it is malformed, or state or sink fail.
    pub(crate) fn receive(&self, from: u32, message: Message) -> Result<(), DataflowError> {
        self.connected.receive(from, message)
    }

    /// Makes rows visible that a reader should see now.
    ///
    /// # Errors
    /// When the sink fails.
    pub(crate) fn flush(&self) -> Result<(), DataflowError> {
        match &self.work {
            Work::Sink(output) => output.flush(),
            _ => Ok(()),
        }
    }
}

/// A grouping looks how long an epoch is when it is told of a watermark; where none comes, when it
/// has taken rows.
async fn heed_length(grouping: &Grouping<Routes>, route: &Route) -> Result<(), DataflowError> {
    if route.timed { Ok(()) } else { grouping.end_long_epoch().await }
}

/// Where the rows of an operator are counted.
#[derive(Clone)]
struct Counted {
    metrics: Arc<Metrics>,
    operator: usize,
    /// Of its watermarks.
    unit: TimeUnit,
}

impl Counted {
    fn operator(&self) -> Option<&OperatorMetrics> {
        self.metrics.operators().get(self.operator)
    }

    fn add_in(&self, rows: usize) {
        if let Some(operator) = self.operator() {
            Metrics::add(&operator.rows_in, rows as u64);
        }
    }

    fn add_out(&self, rows: usize) {
        if let Some(operator) = self.operator() {
            Metrics::add(&operator.rows_out, rows as u64);
        }
    }

    fn tell(&self, watermark: i64) {
        if let Some(operator) = self.operator() {
            operator.watermark_ms.store(to_millis(watermark, self.unit), Ordering::Relaxed);
        }
    }
}

/// A source of a job on one worker.
pub(crate) struct Scan {
    /// Its number in the job.
    pub(crate) operator: usize,
    pub(crate) input: Input,
    /// What it is fused with, if it is.
    pub(crate) fusion: Option<Fusion>,
    /// The edges that lead away from it.
    pub(crate) behind: Routes,
}

/// The operators of a job on one worker.
pub(crate) struct Graph {
    /// By the operator's index; nothing where it is a source.
    pub(crate) nodes: Vec<Option<Rc<Node>>>,
    /// The sources.
    pub(crate) scans: Vec<Scan>,
}

impl Graph {
    /// Opens the operators of a job, sinks first.
    ///
    /// # Errors
    /// When a sink or the table of a lookup cannot be opened.
    pub(crate) fn new(
        job: &Job,
        place: &Place,
        net: &Rc<Net>,
        metrics: &Arc<Metrics>,
        context: &ReaderContext,
        timers: &Rc<Timers>,
    ) -> Result<Self, DataflowError> {
        let mut nodes: Vec<Option<Rc<Node>>> = vec![None; job.operators.len()];
        let mut scans = Vec::new();
        let together = Together::of(job);
        for (at, operator) in job.operators.iter().enumerate().rev() {
            let tag = at as u32;
            let counted =
                Counted { metrics: metrics.clone(), operator: at, unit: unit_of(job, at) };
            let routes = routes_from(job, &counted, &nodes);
            let work = match &operator.kind {
                OperatorKind::Source(input) => {
                    let (input, fusion) = (input.clone(), operator.fusion.ok());
                    scans.push(Scan { operator: at, input, fusion, behind: routes });
                    continue;
                }
                OperatorKind::Aggregate(spec) => Work::Grouping(Rc::new(Grouping::new(
                    tag,
                    spec,
                    place,
                    net.clone(),
                    routes,
                    metrics.clone(),
                ))),
                OperatorKind::Keyed(spec) => Work::Keyed(Rc::new(KeyedRun::new(
                    tag,
                    spec,
                    place,
                    net.clone(),
                    routes,
                    metrics.clone(),
                ))),
                OperatorKind::Lookup(spec) => Work::Lookup(Rc::new(
                    LookupRun::new(
                        tag,
                        spec,
                        place,
                        (context, timers.clone()),
                        net.clone(),
                        routes,
                    )
                    .map_err(|error| error.of_operator(at))?,
                )),
                OperatorKind::Sink { sink, schema } => {
                    let (net, together) = (net.clone(), together.as_ref());
                    let output =
                        Output::new(tag, place, sink.as_ref(), schema, net, metrics, together);
                    Work::Sink(Rc::new(output.map_err(|error| error.of_operator(at))?))
                }
            };
            nodes[at] = Some(Rc::new(Node {
                connected: work.connected(),
                work,
                counted,
                feeders: RefCell::new(
                    Feeders::new(edges_of(operator.inputs.iter()).count() as u32),
                ),
                gate: Gate::default(),
                ended: Cell::new(false),
                relayed: Cell::new(false),
                end: Event::default(),
            }));
        }
        scans.reverse();
        Ok(Self { nodes, scans })
    }
}

/// The edges of an operator with their inputs, in the order in which feeders are numbered.
fn edges_of<'a>(
    inputs: impl Iterator<Item = &'a Vec<Edge>>,
) -> impl Iterator<Item = (usize, &'a Edge)> {
    inputs.enumerate().flat_map(|(input, edges)| edges.iter().map(move |edge| (input, edge)))
}

fn routes_from(job: &Job, counted: &Counted, nodes: &[Option<Rc<Node>>]) -> Routes {
    let from = counted.operator;
    let mut routes = Vec::new();
    for (at, (operator, node)) in job.operators.iter().zip(nodes).enumerate() {
        let Some(node) = node else { continue };
        let edges = edges_of(operator.inputs.iter()).enumerate();
        for (feeder, (input, edge)) in edges.filter(|(_, (_, edge))| edge.from == from) {
            routes.push(Route {
                to: node.clone(),
                operator: at,
                input,
                feeder: feeder as u32,
                step: edge.step.clone(),
                timed: edge.timed,
                lateness: edge.lateness,
                windows_event_time: match &operator.kind {
                    OperatorKind::Aggregate(to) => windows_event_time(&job.operators, edge, to),
                    _ => false,
                },
            });
        }
    }
    Routes { to: routes, counted: counted.clone() }
}

/// The unit of the watermarks of an operator: that of the source that they come from.
fn unit_of(job: &Job, at: usize) -> TimeUnit {
    let operator = &job.operators[at];
    if let OperatorKind::Source(Input { source, watermark: Some(watermark), .. }) = &operator.kind
        && let DataType::Timestamp(unit, _) = source.schema().field(watermark.column).data_type()
    {
        return *unit;
    }
    let timed = operator.inputs.iter().flatten().find(|edge| edge.timed);
    timed.map_or(TimeUnit::Millisecond, |edge| unit_of(job, edge.from))
}
