//! The operators of a job on one worker, and how rows go from one to the next.
//!
//! Rows are pushed: a source and an operator that emits results call the operators behind them,
//! through the steps of the edges, until the rows have come to rest in state, in a ring or in a
//! sink. An operator that keeps rows emits its results in a coroutine of its own ([`Node::run`]); a
//! lookup keeps none and passes on at once what it makes of a push.
//!
//! An operator has one watermark on each worker: the least of the edges that lead to it, of all its
//! inputs ([`InputWatermarks`]).

mod outputs;

use std::cell::{Cell, RefCell};
use std::num::NonZeroU64;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use arrow::datatypes::TimeUnit;
use state::ConsumedRows;
use state::epoch::{Presence, Progress, VectorClock};

use self::outputs::OutputEdge;
pub(crate) use self::outputs::Outputs;
use crate::connector::source::ReaderContext;
use crate::error::DataflowError;
use crate::exchange::{InstanceRounds, Task, progress_of};
use crate::job::{Edge, Fusion, JobGraph, Scan};
use crate::operators::build::{Builder, Built};
use crate::operators::operator::{Arriving, Fused, OperatorTask};
use crate::operators::restoring::Restoring;
use crate::optimize::fusion::windows_event_time;
use crate::rows::selection::Selection;
use crate::rows::time::to_millis;
use crate::rows::{FusedRows, Rows};
use crate::runtime::builds::AwaitedBuilds;
use crate::runtime::metrics::{Metrics, OperatorMetrics};
use crate::runtime::net::{Message, Net};
use crate::runtime::place::WorkerContext;
use crate::runtime::scheduler::{AsyncMutex, AsyncMutexGuard, Event, Timers};

/// An operator with inputs, on one worker.
pub(crate) struct Node {
    operator: Rc<dyn OperatorTask>,
    /// Whether the job has rounds.
    has_rounds: bool,
    counted: Counted,
    inputs: RefCell<InputWatermarks>,
    /// Rows and watermarks of several edges must not interleave where one has to wait.
    mutex: AsyncMutex,
    ended: Cell<bool>,
    /// Nothing more is relayed.
    relayed: Cell<bool>,
    end: Event,
}

/// The edges that lead to an operator, and how far each is.
struct InputWatermarks {
    clock: VectorClock,
    /// The input of each edge.
    inputs: Vec<usize>,
    count: u32,
}

impl InputWatermarks {
    /// Rows before `least` are late.
    fn new(inputs: Vec<usize>, least: i64) -> Self {
        let count = inputs.len() as u32;
        Self { clock: VectorClock::beginning_at(count, least), inputs, count }
    }

    /// The watermark of an input, if all of its edges have ended: `i64::MAX` if their rows are
    /// complete.
    fn ended(&self, input: usize) -> Option<i64> {
        let edges = self.inputs.iter().enumerate().filter(|(_, of)| **of == input);
        let progress = |(number, _): (usize, _)| {
            let progress = self.clock.of(number as u32)?;
            (progress.presence == Presence::Ended).then_some(progress.watermark)
        };
        let watermarks: Option<Vec<i64>> = edges.map(progress).collect();
        watermarks?.into_iter().min()
    }

    /// Whether those that have not ended are all idle.
    fn is_idle(&self) -> bool {
        let presence = |number| self.clock.of(number).map(|progress| progress.presence);
        let mut all = (0..self.count).map(presence);
        !self.clock.ended() && all.all(|presence| presence != Some(Presence::Active))
    }
}

impl Node {
    /// Its rounds, if the job has some.
    fn rounds(&self) -> Option<&InstanceRounds> {
        if self.has_rounds { self.operator.rounds() } else { None }
    }

    /// Whether an edge has marked a round that is not over: it waits before the lock of the node,
    /// which others need.
    fn is_held(&self, number: u32) -> bool {
        self.rounds().is_some_and(|rounds| !rounds.passes(number))
    }

    /// Waits until an edge may pass.
    async fn when_passes(&self, number: u32) {
        if let Some(rounds) = self.rounds() {
            rounds.when_passes(number).await;
        }
    }

    /// An edge has given all rows of a round.
    async fn mark(&self, number: u32, round: u64) -> Result<(), DataflowError> {
        let Some(rounds) = self.rounds() else { return Ok(()) };
        rounds.when_passes(number).await;
        let _guard = self.mutex.lock().await;
        if rounds.mark_edge(number, round)? { self.end_round(rounds).await } else { Ok(()) }
    }

    /// All edges have marked the round or ended. The caller has locked the node.
    async fn end_round(&self, rounds: &InstanceRounds) -> Result<(), DataflowError> {
        let (watermark, idle) = self.time();
        self.operator.end_round(rounds.round(), progress_of(watermark, idle)).await
    }

    /// Takes rows of an edge.
    async fn push(&self, edge: &OutputEdge, rows: Rows) -> Result<(), DataflowError> {
        self.when_passes(edge.number).await;
        if let Some(ready) = self.operator.when_ready(edge.input) {
            ready.await?;
        }
        let _guard = self.mutex.lock().await;
        let span = rows.span.filter(|_| edge.windows_event_time);
        let slice = span.and_then(|span| self.operator.slice_of(span));
        // Where the slice is known, the times of the rows are not read.
        let rows = edge.apply(rows, slice.as_ref().and_then(|slice| slice.unread))?;
        self.counted.add_in(rows.batch.num_rows());
        let (input, timed) = (edge.input, edge.timed);
        let slice = slice.map(|slice| slice.key);
        self.operator.push(Arriving { input, rows, slice, timed }).await
    }

    /// Takes rows on time behind the step of an edge. Their columns are copied here, unless the
    /// operator reads some of them only.
    async fn push_selection(
        &self,
        edge: &OutputEdge,
        rows: Selection,
    ) -> Result<(), DataflowError> {
        self.when_passes(edge.number).await;
        if let Some(ready) = self.operator.when_ready(edge.input) {
            ready.await?;
        }
        let _guard = self.mutex.lock().await;
        self.counted.add_in(rows.len());
        let &OutputEdge { input, timed, .. } = edge;
        match self.operator.selection_input(input) {
            Some(input) => input.push_selection(rows).await,
            None => {
                let rows = Rows::on_time(rows.materialized()?);
                self.operator.push(Arriving { input, rows, slice: None, timed }).await
            }
        }
    }

    /// Folds rows of a fused scan, from the first on.
    async fn fold(
        &self,
        edge: &OutputEdge,
        rows: FusedRows<'_>,
        fusion: &Fusion,
    ) -> Result<ConsumedRows, DataflowError> {
        self.when_passes(edge.number).await;
        let _guard = self.mutex.lock().await;
        if let Some(prepared) = self.operator.prepare_fold() {
            prepared.await?;
        }
        let raw = || edge.raw(rows.batch, fusion);
        let folded = self.fold_raw(Fused { rows, lookup: fusion.lookup, raw: &raw })?;
        if let Some(finished) = self.operator.finish_fold(edge.timed) {
            finished.await?;
        }
        Ok(folded)
    }

    /// The same in the operator that the loop goes through, or that ends it. The caller has locked
    /// the node.
    fn fold_raw(&self, fused: Fused<'_>) -> Result<ConsumedRows, DataflowError> {
        let folded = self.operator.fold(fused)?;
        self.counted.add_in(folded.passed);
        Ok(folded)
    }

    /// Whether a window ends here, or behind a lookup, when an edge has this watermark.
    fn ends_window(&self, number: u32, watermark: i64) -> bool {
        self.operator.ends_window(self.inputs.borrow().clock.least_with(number, watermark))
    }

    /// The watermark of an edge has moved, or its rows have ceased for a while.
    async fn progress(&self, number: u32, watermark: i64, idle: bool) -> Result<(), DataflowError> {
        self.when_passes(number).await;
        let _guard = self.mutex.lock().await;
        match self.progress_locked(number, watermark, idle) {
            Some(announced) => announced.await,
            None => Ok(()),
        }
    }

    /// The same where the caller has locked the node. Gives what has to be waited for, if something
    /// has.
    fn progress_locked(&self, number: u32, watermark: i64, idle: bool) -> Option<Task<'_>> {
        self.inputs.borrow_mut().clock.advance(number, progress_of(watermark, idle));
        self.announce()
    }

    /// An edge that was idle has rows again. Gives the watermark before which they are late.
    async fn resume(&self, number: u32) -> Result<i64, DataflowError> {
        self.when_passes(number).await;
        let _guard = self.mutex.lock().await;
        let was_idle = self.inputs.borrow().is_idle();
        self.inputs.borrow_mut().clock.advance(number, Progress::active(i64::MIN));
        if was_idle { self.operator.resume().await } else { Ok(self.inputs.borrow().clock.least()) }
    }

    /// An edge has no more rows. `watermark` is `i64::MAX` if they are complete.
    async fn end(&self, edge: &OutputEdge, watermark: i64) -> Result<(), DataflowError> {
        self.when_passes(edge.number).await;
        let _guard = self.mutex.lock().await;
        self.inputs.borrow_mut().clock.advance(edge.number, Progress::ended(watermark));
        let of_input = self.inputs.borrow().ended(edge.input);
        let ended = of_input.and_then(|watermark| self.operator.end_input(edge.input, watermark));
        if let Some(ended) = ended {
            ended.await?;
        }
        let rounds = self.rounds();
        if !self.inputs.borrow().clock.ended() {
            if let Some(announced) = self.announce() {
                announced.await?;
            }
            return match rounds.filter(|_| self.operator.end_edge(edge.number)) {
                Some(rounds) => self.end_round(rounds).await,
                None => Ok(()),
            };
        }
        let watermark = self.inputs.borrow().clock.least();
        self.operator.end(watermark).await?;
        // Behind the rows that were sent with the end: a round may be complete now.
        if rounds.is_some() {
            self.operator.end_edge(edge.number);
        }
        rounds.filter(|rounds| rounds.is_passing()).inspect(|rounds| rounds.end());
        Ok(())
    }

    /// The watermark of all edges, and whether all of them are idle.
    fn time(&self) -> (i64, bool) {
        let inputs = self.inputs.borrow();
        (inputs.clock.least(), inputs.is_idle())
    }

    /// Announces the watermark of all edges to the operator.
    fn announce(&self) -> Option<Task<'_>> {
        let (watermark, idle) = self.time();
        self.operator.progress(watermark, idle)
    }

    /// Gives out results until there will be no more, here or for anybody else.
    pub(crate) async fn run(self: Rc<Self>) -> Result<(), DataflowError> {
        self.operator.run().await?;
        // An operator that only passes markers on has ended when its edges have.
        self.rounds().filter(|rounds| !rounds.is_passing()).inspect(|rounds| rounds.end());
        self.ended.set(true);
        self.end.notify();
        Ok(())
    }

    /// Acknowledges what other workers wait for; a coroutine of its own, because an acknowledgement
    /// may have to wait for credit.
    pub(crate) async fn acknowledge(self: Rc<Self>) -> Result<(), DataflowError> {
        self.operator.acknowledge().await
    }

    /// Nanoseconds between two actions of [`Node::at_intervals`], if there are any.
    pub(crate) fn interval_ns(&self) -> Option<NonZeroU64> {
        self.operator.interval_ns()
    }

    /// Runs the periodic action of the operator forever. Missed intervals are skipped.
    pub(crate) async fn at_intervals(
        self: Rc<Self>,
        every_ns: NonZeroU64,
        timers: Rc<Timers>,
    ) -> Result<(), DataflowError> {
        loop {
            timers.sleep_until(timers.now_ns().saturating_add(every_ns.get())).await;
            let _guard = self.lock_loud().await;
            self.operator.interval().await?;
        }
    }

    /// Locks the node, when nothing is sent behind a marker of a round that is not over.
    async fn lock_loud(&self) -> AsyncMutexGuard<'_> {
        let Some(rounds) = self.rounds() else { return self.mutex.lock().await };
        loop {
            rounds.when_loud().await;
            let guard = self.mutex.lock().await;
            if !rounds.is_quiet() {
                return guard;
            }
        }
    }

    /// Sends rows that have waited long enough for others (W4), forever.
    pub(crate) async fn send_due(self: Rc<Self>, timers: Rc<Timers>) -> Result<(), DataflowError> {
        loop {
            let due_ns = self.operator.buffered().wait_for(|| self.operator.due()).await;
            timers.sleep_until(due_ns).await;
            let _guard = self.mutex.lock().await;
            self.operator.send_due(timers.now_ns()).await?;
        }
    }

    /// Sends what waits for links and passes on what others send; a coroutine of its own, because
    /// it waits for all links.
    pub(crate) async fn relay(self: Rc<Self>) -> Result<(), DataflowError> {
        self.operator.relay().await?;
        self.relayed.set(true);
        self.end.notify();
        Ok(())
    }

    /// Takes up the saved state that belongs to this worker.
    ///
    /// # Errors
    /// When it does not fit.
    pub(crate) fn load(&self, from: &Restoring<'_>) -> Result<(), DataflowError> {
        self.operator.load(from)
    }

    /// Until when another worker must have taken something, if it has been waited for.
    ///
    /// # Errors
    /// [`DataflowError::Stalled`] when that time has come.
    pub(crate) fn deadline(&self, now_ns: u64) -> Result<Option<u64>, DataflowError> {
        self.operator.deadline(now_ns)
    }

    /// Takes rows that came without a frame.
    ///
    /// # Errors
    /// When they are malformed, or state fails.
    pub(crate) fn poll(&self) -> Result<(), DataflowError> {
        self.operator.poll()
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
        self.operator.receive(from, message)
    }

    /// Makes rows visible that a reader should see now.
    ///
    /// # Errors
    /// When the sink fails.
    pub(crate) fn flush(&self) -> Result<(), DataflowError> {
        self.operator.flush()
    }
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

    fn set_watermark(&self, watermark: i64) {
        if let Some(operator) = self.operator() {
            operator.watermark_ms.store(to_millis(watermark, self.unit), Ordering::Relaxed);
        }
    }
}

/// A source of a job on one worker.
pub(crate) struct ScanTask {
    /// Its number in the job.
    pub(crate) operator: usize,
    pub(crate) input: Scan,
    /// The builds that it waits for, if it waits for any.
    pub(crate) builds: Option<Rc<AwaitedBuilds>>,
    /// The loop that it is fused into, if it is.
    pub(crate) fusion: Option<Fusion>,
    /// The edges that lead away from it.
    pub(crate) behind: Outputs,
}

/// The operators of a job on one worker.
pub(crate) struct Graph {
    /// By the operator's index; nothing where it is a source.
    pub(crate) nodes: Vec<Option<Rc<Node>>>,
    /// The sources.
    pub(crate) scans: Vec<ScanTask>,
}

impl Graph {
    /// Opens the operators of a job, sinks first.
    ///
    /// # Errors
    /// When a sink or the table of a lookup cannot be opened.
    pub(crate) fn new(
        job: &JobGraph,
        place: &WorkerContext,
        net: &Rc<Net>,
        metrics: &Arc<Metrics>,
        context: &ReaderContext,
    ) -> Result<Self, DataflowError> {
        let builder = Builder::new(job, place, net, metrics, context);
        let mut nodes: Vec<Option<Rc<Node>>> = vec![None; job.operators.len()];
        let mut scans = Vec::new();
        for (at, operator) in job.operators.iter().enumerate().rev() {
            let counted =
                Counted { metrics: metrics.clone(), operator: at, unit: job.time_unit(at) };
            let outputs = outputs_of(job, &counted, &nodes);
            let built = builder.build(at as u32, operator, outputs);
            let built = built.map_err(|error| place.peers.reported(error.of_operator(at)))?;
            let (fusion, edges) = (operator.fusion.ok(), edges_of(operator.inputs.iter()));
            let edges = edges.map(|(input, _)| input).collect();
            let operator = match built {
                Built::Source(input, builds, behind) => {
                    scans.push(ScanTask { operator: at, input, builds, fusion, behind });
                    continue;
                }
                Built::Operator(operator) => operator,
            };
            nodes[at] = Some(Rc::new(Node {
                operator,
                has_rounds: place.rounds.is_some(),
                counted,
                inputs: RefCell::new(InputWatermarks::new(edges, place.watermark(at as u32))),
                mutex: AsyncMutex::default(),
                ended: Cell::new(false),
                relayed: Cell::new(false),
                end: Event::default(),
            }));
        }
        scans.reverse();
        Ok(Self { nodes, scans })
    }
}

/// The edges of an operator with their inputs, in the order of their numbers.
fn edges_of<'a>(
    inputs: impl Iterator<Item = &'a Vec<Edge>>,
) -> impl Iterator<Item = (usize, &'a Edge)> {
    inputs.enumerate().flat_map(|(input, edges)| edges.iter().map(move |edge| (input, edge)))
}

fn outputs_of(job: &JobGraph, counted: &Counted, nodes: &[Option<Rc<Node>>]) -> Outputs {
    let from = counted.operator;
    let mut outputs = Vec::new();
    for (at, (operator, node)) in job.operators.iter().zip(nodes).enumerate() {
        let Some(node) = node else { continue };
        let edges = edges_of(operator.inputs.iter()).enumerate();
        for (number, (input, edge)) in edges.filter(|(_, (_, edge))| edge.from == from) {
            outputs.push(OutputEdge {
                to: node.clone(),
                operator: at,
                input,
                number: number as u32,
                step: edge.step.clone(),
                timed: edge.timed,
                lateness: edge.lateness,
                windows_event_time: windows_event_time(&job.operators, edge, operator.spec()),
            });
        }
    }
    Outputs { to: outputs, counted: counted.clone() }
}
