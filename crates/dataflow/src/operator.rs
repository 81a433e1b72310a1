//! The operators of a job on one worker, and how rows go from one to the next.
//!
//! Rows are pushed: who reads a source, and who gives out results, calls the operators behind it,
//! through the steps of the edges, until the rows have come to rest in state, in a ring or in a
//! sink. What keeps rows and gives out results runs in a coroutine of its own ([`Node::run`]); a
//! lookup keeps none and hands on what it makes of a push at once.
//!
//! An operator has one watermark on each worker: the least of the edges that lead to it, of all its
//! inputs ([`Feeders`]).

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use state::epoch::{Presence, Progress, VectorClock};

use crate::aggregate::Grouping;
use crate::error::DataflowError;
use crate::exchange::said;
use crate::frame::Kind;
use crate::job::{Edge, Input, Job, OperatorKind, Step};
use crate::keyed::KeyedRun;
use crate::lookup::LookupRun;
use crate::metrics::Metrics;
use crate::net::{Message, Net};
use crate::output::Output;
use crate::reader::Rows;
use crate::scheduler::{Event, Gate, Timers};
use crate::source::FlowContext;
use crate::time::ticks_of;
use crate::worker::Place;

/// An operator with inputs, on one worker.
pub(crate) struct Node {
    work: Work,
    feeders: RefCell<Feeders>,
    /// Rows and watermarks of several edges must not interleave where one has to wait.
    gate: Gate,
    ended: Cell<bool>,
    end: Event,
}

enum Work {
    Grouping(Box<Grouping>),
    Keyed(Box<KeyedRun>),
    Lookup(Box<LookupRun>),
    Sink(Box<Output>),
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
                grouping.push(&batch, met.as_ref(), slice).await
            }
            Work::Keyed(keyed) => {
                let rows = route.apply(rows, None)?;
                keyed.push(route.input, &rows.batch, rows.met.as_ref()).await
            }
            Work::Lookup(lookup) => lookup.push(route.apply(rows, None)?).await,
            Work::Sink(output) => output.emit(&route.apply(rows, None)?.batch).await,
        }
    }

    /// The watermark of an edge has moved, or its rows have ceased for a while.
    async fn progress(&self, feeder: u32, watermark: i64, idle: bool) -> Result<(), DataflowError> {
        if matches!(self.work, Work::Sink(_)) {
            return Ok(());
        }
        let _turn = self.gate.enter().await;
        self.feeders.borrow_mut().clock.advance(feeder, said(watermark, idle));
        self.tell().await
    }

    /// An edge that was idle has rows again. Gives the watermark before which they are late.
    async fn resume(&self, feeder: u32) -> Result<i64, DataflowError> {
        let _turn = self.gate.enter().await;
        let was_idle = self.feeders.borrow().is_idle();
        self.feeders.borrow_mut().clock.advance(feeder, Progress::active(i64::MIN));
        match &self.work {
            _ if !was_idle => Ok(self.feeders.borrow().clock.least()),
            Work::Grouping(grouping) => grouping.resume().await,
            Work::Keyed(keyed) => Ok(keyed.resume().await),
            Work::Lookup(lookup) => Box::pin(lookup.routes.resume()).await,
            Work::Sink(_) => Ok(i64::MIN),
        }
    }

    /// An edge has no more rows. `watermark` is `i64::MAX` if they are complete.
    async fn end(&self, feeder: u32, watermark: i64) -> Result<(), DataflowError> {
        let _turn = self.gate.enter().await;
        self.feeders.borrow_mut().clock.advance(feeder, Progress::ended(watermark));
        if !self.feeders.borrow().clock.ended() {
            return self.tell().await;
        }
        let watermark = self.feeders.borrow().clock.least();
        match &self.work {
            Work::Grouping(grouping) => grouping.end_of_rows(watermark).await,
            Work::Keyed(keyed) => keyed.end_of_rows(watermark).await,
            Work::Lookup(lookup) => Box::pin(lookup.routes.end(watermark)).await,
            Work::Sink(output) => {
                output.complete();
                Ok(())
            }
        }
    }

    async fn tell(&self) -> Result<(), DataflowError> {
        let (watermark, idle) = {
            let feeders = self.feeders.borrow();
            (feeders.clock.least(), feeders.is_idle())
        };
        match &self.work {
            Work::Grouping(grouping) => grouping.progress(watermark, idle).await,
            Work::Keyed(keyed) => keyed.progress(watermark, idle).await,
            Work::Lookup(lookup) => Box::pin(lookup.routes.progress(watermark, idle)).await,
            Work::Sink(_) => Ok(()),
        }
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

    /// Answers other workers; a coroutine of its own, because an answer may have to wait for
    /// credit.
    pub(crate) async fn answer(self: Rc<Self>) -> Result<(), DataflowError> {
        match &self.work {
            Work::Grouping(grouping) => grouping.answer().await,
            Work::Keyed(keyed) => keyed.answer().await,
            Work::Lookup(_) | Work::Sink(_) => {}
        }
        Ok(())
    }

    /// Waits until [`Node::run`] is through.
    pub(crate) async fn wait(&self) {
        self.end.wait_for(|| self.ended.get().then_some(())).await;
    }

    /// Takes a frame of this operator.
    ///
    /// # Errors
    /// When it is malformed, or state or sink fail.
    pub(crate) fn receive(&self, from: u32, message: Message) -> Result<(), DataflowError> {
        match (message.kind, &self.work) {
            (Kind::Gather | Kind::GatherEnd, Work::Sink(output)) => output.receive(from, message),
            (Kind::Gather | Kind::GatherEnd, _) | (_, Work::Sink(_) | Work::Lookup(_)) => {
                let detail = format!("a frame of kind {:?} is not for this operator", message.kind);
                Err(DataflowError::Frame { worker: from, detail })
            }
            (_, Work::Grouping(grouping)) => grouping.receive(from, message),
            (_, Work::Keyed(keyed)) => keyed.receive(from, message),
        }
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

/// An edge as the operator sees it that gives out rows.
pub(crate) struct Route {
    to: Rc<Node>,
    input: usize,
    feeder: u32,
    step: Option<Arc<dyn Step>>,
    timed: bool,
    /// Whether windows are over the very column that a source's watermark is of.
    windows_event_time: bool,
}

impl Route {
    fn apply(&self, rows: Rows, unread: Option<usize>) -> Result<Rows, DataflowError> {
        let met = rows.met.filter(|_| self.timed);
        let Some(step) = &self.step else { return Ok(Rows { met, ..rows }) };
        let stepped = step.apply_for(&rows.batch, unread)?;
        let met = met.map(|met| ticks_of(&met, &stepped.origin)).transpose()?;
        Ok(Rows { batch: stepped.batch, met, span: None })
    }
}

/// All edges that lead away from an operator.
#[derive(Default)]
pub(crate) struct Routes(Vec<Route>);

impl Routes {
    /// Hands rows to all.
    ///
    /// # Errors
    /// When a step, state or a sink fails.
    pub(crate) async fn push(&self, rows: Rows) -> Result<(), DataflowError> {
        let Some((last, others)) = self.0.split_last() else { return Ok(()) };
        for route in others {
            route.to.push(route, rows.clone()).await?;
        }
        last.to.push(last, rows).await
    }

    /// No row before `watermark` will come.
    ///
    /// # Errors
    /// As [`Routes::push`].
    pub(crate) async fn progress(&self, watermark: i64, idle: bool) -> Result<(), DataflowError> {
        for route in self.0.iter().filter(|route| route.timed) {
            route.to.progress(route.feeder, watermark, idle).await?;
        }
        Ok(())
    }

    /// Rows come again after an idle time. Gives the watermark before which they are late anywhere.
    ///
    /// # Errors
    /// As [`Routes::push`].
    pub(crate) async fn resume(&self) -> Result<i64, DataflowError> {
        let mut reached = i64::MIN;
        for route in self.0.iter().filter(|route| route.timed) {
            reached = reached.max(route.to.resume(route.feeder).await?);
        }
        Ok(reached)
    }

    /// No more rows will come.
    ///
    /// # Errors
    /// As [`Routes::push`].
    pub(crate) async fn end(&self, watermark: i64) -> Result<(), DataflowError> {
        for route in &self.0 {
            let told = if route.timed || watermark == i64::MAX { watermark } else { i64::MIN };
            route.to.end(route.feeder, told).await?;
        }
        Ok(())
    }
}

/// The operators of a job on one worker.
pub(crate) struct Graph {
    /// By the operator's index; nothing where it is a source.
    pub(crate) nodes: Vec<Option<Rc<Node>>>,
    /// The sources, with the edges that lead away from each.
    pub(crate) sources: Vec<(Input, Routes)>,
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
        context: &FlowContext,
        timers: &Rc<Timers>,
    ) -> Result<Self, DataflowError> {
        let mut nodes: Vec<Option<Rc<Node>>> = vec![None; job.operators.len()];
        let mut sources = Vec::new();
        for (at, operator) in job.operators.iter().enumerate().rev() {
            let tag = at as u32;
            let routes = routes_from(job, at, &nodes);
            let work = match &operator.kind {
                OperatorKind::Source(input) => {
                    sources.push((input.clone(), routes));
                    continue;
                }
                OperatorKind::Aggregate(spec) => Work::Grouping(Box::new(Grouping::new(
                    tag,
                    spec,
                    place,
                    net.clone(),
                    routes,
                    metrics.clone(),
                ))),
                OperatorKind::Keyed(spec) => Work::Keyed(Box::new(KeyedRun::new(
                    tag,
                    spec,
                    place,
                    net.clone(),
                    routes,
                    metrics.clone(),
                ))),
                OperatorKind::Lookup(spec) => Work::Lookup(Box::new(LookupRun::new(
                    tag,
                    spec,
                    place,
                    context,
                    timers.clone(),
                    routes,
                )?)),
                OperatorKind::Sink { sink, schema } => Work::Sink(Box::new(Output::new(
                    tag,
                    place.worker,
                    sink.as_ref(),
                    schema,
                    net.clone(),
                    metrics.clone(),
                )?)),
            };
            nodes[at] = Some(Rc::new(Node {
                work,
                feeders: RefCell::new(
                    Feeders::new(edges_of(operator.inputs.iter()).count() as u32),
                ),
                gate: Gate::default(),
                ended: Cell::new(false),
                end: Event::default(),
            }));
        }
        sources.reverse();
        Ok(Self { nodes, sources })
    }
}

/// The edges of an operator with their inputs, in the order in which feeders are numbered.
fn edges_of<'a>(
    inputs: impl Iterator<Item = &'a Vec<Edge>>,
) -> impl Iterator<Item = (usize, &'a Edge)> {
    inputs.enumerate().flat_map(|(input, edges)| edges.iter().map(move |edge| (input, edge)))
}

fn routes_from(job: &Job, from: usize, nodes: &[Option<Rc<Node>>]) -> Routes {
    let mut routes = Vec::new();
    for (operator, node) in job.operators.iter().zip(nodes) {
        let Some(node) = node else { continue };
        let edges = edges_of(operator.inputs.iter()).enumerate();
        for (feeder, (input, edge)) in edges.filter(|(_, (_, edge))| edge.from == from) {
            routes.push(Route {
                to: node.clone(),
                input,
                feeder: feeder as u32,
                step: edge.step.clone(),
                timed: edge.timed,
                windows_event_time: windows_event_time(job, edge, &operator.kind),
            });
        }
    }
    Routes(routes)
}

fn windows_event_time(job: &Job, edge: &Edge, to: &OperatorKind) -> bool {
    let OperatorKind::Source(input) = &job.operators[edge.from].kind else { return false };
    let OperatorKind::Aggregate(aggregate) = to else { return false };
    let (Some(window), Some(watermark)) = (&aggregate.window, input.watermark) else {
        return false;
    };
    let column = match &edge.step {
        Some(step) => step.passes_on(window.column),
        None => Some(window.column),
    };
    edge.timed && column == Some(watermark.column)
}
