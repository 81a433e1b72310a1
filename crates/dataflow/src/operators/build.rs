//! Makes the operators of a worker: the one place that knows all kinds.

use std::rc::Rc;
use std::sync::Arc;

use crate::connector::source::ReaderContext;
use crate::error::DataflowError;
use crate::job::hash_join::PROBE;
use crate::job::{Edge, JobGraph, Operator, OperatorKind, Scan};
use crate::operators::aggregate::Grouping;
use crate::operators::downstream::Downstream;
use crate::operators::hash_join::HashJoinRun;
use crate::operators::keyed::KeyedRun;
use crate::operators::limit::LimitRun;
use crate::operators::local_plan::LocalPlanRun;
use crate::operators::lookup::LookupRun;
use crate::operators::operator::{OperatorContext, OperatorTask};
use crate::operators::sink::{SinkTask, Together};
use crate::operators::sort::SortRun;
use crate::optimize::probe_chains::shared;
use crate::runtime::builds::{AwaitedBuilds, BuildsOfScans};
use crate::runtime::metrics::Metrics;
use crate::runtime::net::Net;
use crate::runtime::place::WorkerContext;

/// An operator that is ready to run.
pub(crate) enum Built<D> {
    /// It reads a table, once some builds are complete, and emits to what was given for that.
    Source(Scan, Option<Rc<AwaitedBuilds>>, D),
    /// It has inputs.
    Operator(Rc<dyn OperatorTask>),
}

/// Makes the operators of one worker.
pub(crate) struct Builder<'a> {
    place: &'a WorkerContext,
    net: &'a Rc<Net>,
    metrics: &'a Arc<Metrics>,
    context: &'a ReaderContext,
    together: Option<Rc<Together>>,
    /// By operator, whether it or an operator before it has several output edges.
    shared: Vec<bool>,
    builds: BuildsOfScans,
}

impl<'a> Builder<'a> {
    /// For the operators of a job.
    pub(crate) fn new(
        job: &JobGraph,
        place: &'a WorkerContext,
        net: &'a Rc<Net>,
        metrics: &'a Arc<Metrics>,
        context: &'a ReaderContext,
    ) -> Self {
        let (together, shared) = (Together::of(job), shared(&job.operators));
        let builds = BuildsOfScans::new(&job.operators);
        Self { place, net, metrics, context, together, shared, builds }
    }

    /// The operator of this number, which emits to `behind`.
    ///
    /// # Errors
    /// When a sink or the table of a lookup cannot be opened.
    pub(crate) fn build<D: Downstream + 'static>(
        &self,
        tag: u32,
        operator: &Operator,
        behind: D,
    ) -> Result<Built<D>, DataflowError> {
        let context = OperatorContext {
            tag,
            place: self.place,
            net: self.net.clone(),
            metrics: self.metrics.clone(),
            shuffle: operator.shuffle,
            listeners: self.builds.listeners(tag),
            chain: operator.chain.as_ref().ok(),
        };
        Ok(Built::Operator(match &operator.kind {
            OperatorKind::Source(input) => {
                let builds = self.builds.scans[tag as usize].clone();
                let input = match &builds {
                    Some(builds) => input.listening(builds.filters()),
                    None => input.clone(),
                };
                return Ok(Built::Source(input, builds, behind));
            }
            OperatorKind::Aggregate(spec) => Rc::new(Grouping::new(context, spec, behind)),
            OperatorKind::Keyed(spec) => Rc::new(KeyedRun::new(context, spec, behind)),
            OperatorKind::Local(spec) => {
                let holds: Vec<bool> = operator.inputs.iter().map(|of| self.holds(of)).collect();
                Rc::new(LocalPlanRun::new(context, spec, &holds, behind)?)
            }
            OperatorKind::Lookup(spec) => {
                Rc::new(LookupRun::new(context, spec, self.context, behind)?)
            }
            OperatorKind::HashJoin(spec) => {
                let holds = self.holds(&operator.inputs[PROBE]);
                Rc::new(HashJoinRun::new(context, spec, holds, behind))
            }
            OperatorKind::Sort(spec) => Rc::new(SortRun::new(context, spec, behind)),
            OperatorKind::Limit(spec) => Rc::new(LimitRun::new(context, spec, behind)),
            OperatorKind::Sink(spec) => {
                Rc::new(SinkTask::new(context, spec, self.together.as_ref())?)
            }
        }))
    }

    /// Whether rows of these edges cannot be held back without holding back others.
    fn holds(&self, edges: &[Edge]) -> bool {
        edges.iter().any(|edge| self.shared[edge.from])
    }
}
