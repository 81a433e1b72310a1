//! From streams to the operators of a job.
//!
//! A stream knows the nodes that emit its rows, and these know theirs, so that streams are
//! values that can be used any number of times. Lowering numbers the nodes that are reached, each
//! once, sources first.
//!
//! Where rows of equal keys are together already, they do not travel: see [`dataflow::placement`].

use std::collections::HashMap;
use std::sync::Arc;

use dataflow::cost::{Costs, Grouped, WorkerCounts, decide};
use dataflow::fragment::Fragment;
use dataflow::job::{
    Distribution, Edge, Exchange, Labels, Operator, OperatorKind, Reason, Statistics, Step,
};
use dataflow::placement::{Placements, keys_of};
use state::epoch::LengthBounds;
use state::{GroupBy, StateOptions};

use crate::error::StreamError;
use crate::{Output, Stream};

/// The target of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Setup {
    /// Workers of the whole job.
    pub workers: u32,
    /// Workers of each process.
    pub beside: u32,
    /// How rows of different workers meet in an aggregate, where the stream does not say; `None`
    /// for `forward` where the partitioning fits, and else `merge`, or `shuffle` where that is
    /// cheaper ([`dataflow::cost`]). With one chosen, `forward` is not used where it is not said.
    pub exchange: Option<Exchange>,
    /// How long epochs are, where workers merge.
    pub epoch: LengthBounds,
    /// Bytes of groups that a worker may hold.
    pub state_bytes_max: usize,
    /// Bytes of a table that each worker may hold for a static join.
    pub table_bytes_max: usize,
}

/// An operator of a stream.
pub(crate) struct StreamNode {
    pub(crate) name: String,
    pub(crate) inputs: Vec<Vec<InputEdge>>,
    pub(crate) kind: OperatorKind,
    pub(crate) choice: Choice,
    /// Facts for EXPLAIN that its kind does not contain.
    pub(crate) labels: Labels,
}

impl StreamNode {
    /// Whether it reads a table, or looks up in another what it has read.
    pub(crate) fn is_read(&self) -> bool {
        !self.kind.spec().waits_for_rows()
            && self.inputs.iter().flatten().all(|edge| edge.from.is_read())
    }
}

/// Rows on their way into a node.
#[derive(Clone)]
pub(crate) struct InputEdge {
    pub(crate) from: Arc<StreamNode>,
    pub(crate) step: Option<Arc<dyn Step>>,
    pub(crate) timed: bool,
    /// Ticks by which watermarks are behind.
    pub(crate) lateness: i64,
}

/// A node, and what is done with the rows that it emits.
pub(crate) type Upstream = (Arc<StreamNode>, Option<Arc<dyn Step>>);

/// The chooser of the exchange.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Choice {
    /// The node is as it is.
    Fixed,
    /// Lowering.
    Auto,
    /// The author of the stream.
    Exchange(Exchange),
}

/// The operators of a job with these outputs.
///
/// # Errors
/// [`StreamError::Refused`] when an exchange was asked for that gives wrong results.
pub fn job(outputs: &[Output], setup: &Setup) -> Result<Vec<Operator>, StreamError> {
    let mut lowering = Lowering::new(setup);
    for output in outputs {
        lowering.node(&output.0)?;
    }
    Ok(lowering.operators)
}

/// A stream as operators, to be continued.
///
/// # Errors
/// As [`job`].
pub fn fragment(stream: &Stream, setup: &Setup) -> Result<Fragment, StreamError> {
    let mut lowering = Lowering::new(setup);
    let from = stream.from.iter().map(|(node, step)| Ok((lowering.node(node)?, step.clone())));
    let from = from.collect::<Result<_, StreamError>>()?;
    Ok(Fragment {
        operators: lowering.operators,
        from,
        schema: stream.schema.clone(),
        time: stream.time,
        window: stream.window,
        lateness: stream.lateness,
        bounded: stream.bounded,
    })
}

/// The nodes that emit the rows of a fragment.
pub(crate) fn nodes_of(fragment: &Fragment) -> Vec<Upstream> {
    let mut nodes: Vec<Arc<StreamNode>> = vec![];
    for Operator { name, inputs, kind, labels, .. } in &fragment.operators {
        let edge = |edge: &Edge| InputEdge {
            from: nodes[edge.from].clone(),
            step: edge.step.clone(),
            timed: edge.timed,
            lateness: edge.lateness,
        };
        let inputs = inputs.iter().map(|edges| edges.iter().map(edge).collect()).collect();
        nodes.push(Arc::new(StreamNode {
            name: name.clone(),
            inputs,
            kind: kind.clone(),
            choice: Choice::Fixed,
            labels: labels.clone(),
        }));
    }
    fragment.from.iter().map(|(at, step)| (nodes[*at].clone(), step.clone())).collect()
}

struct Lowering<'a> {
    setup: &'a Setup,
    operators: Vec<Operator>,
    placements: Placements,
    known: HashMap<*const StreamNode, usize>,
}

impl<'a> Lowering<'a> {
    fn new(setup: &'a Setup) -> Self {
        Self { setup, operators: vec![], placements: Placements::default(), known: HashMap::new() }
    }

    /// The number of a node, whose inputs are lowered first.
    fn node(&mut self, node: &Arc<StreamNode>) -> Result<usize, StreamError> {
        if let Some(&known) = self.known.get(&Arc::as_ptr(node)) {
            return Ok(known);
        }
        let mut inputs = vec![];
        for input_edges in &node.inputs {
            let mut edges = vec![];
            for &InputEdge { ref from, ref step, timed, lateness } in input_edges {
                let (from, step) = (self.node(from)?, step.clone());
                edges.push(Edge { from, step, timed, lateness });
            }
            inputs.push(edges);
        }
        let kind = self.decided(node, &inputs)?;
        self.placements.push(&inputs, kind.spec());
        let labels = labels_of(node, &kind, self.setup.workers);
        self.operators.push(Operator::new(&node.name, inputs, kind).labelled(labels));
        self.known.insert(Arc::as_ptr(node), self.operators.len() - 1);
        Ok(self.operators.len() - 1)
    }

    /// A node's operator with its exchange.
    fn decided(
        &self,
        node: &StreamNode,
        inputs: &[Vec<Edge>],
    ) -> Result<OperatorKind, StreamError> {
        let mut kind = node.kind.clone();
        let fits = self.placements.fits(inputs, &keys_of(inputs, kind.spec())).is_some();
        let decided = self.exchange(node, inputs, fits)?;
        if let Some(exchange) = kind.spec_mut().exchange_mut() {
            *exchange = decided;
        }
        let chosen_here = node.choice != Choice::Fixed;
        match &mut kind {
            OperatorKind::Lookup(lookup) if chosen_here => {
                lookup.bytes_max = self.setup.table_bytes_max;
            }
            OperatorKind::Aggregate(spec) if chosen_here => {
                spec.group_by = Arc::new(GroupBy {
                    keys: spec.group_by.keys.clone(),
                    aggregates: spec.group_by.aggregates.clone(),
                    options: StateOptions {
                        budget_bytes: self.setup.state_bytes_max,
                        ..StateOptions::default()
                    },
                });
            }
            OperatorKind::Keyed(spec)
                if (node.choice, self.setup.exchange) == (Choice::Auto, None)
                    && spec.exchange == Exchange::Shuffle =>
            {
                let stay = self.placements.stay(inputs, spec);
                let stay = spec.inputs.iter_mut().zip(stay).filter(|(_, stays)| *stays);
                stay.for_each(|(input, _)| input.distribution = Distribution::Local);
            }
            _ => {}
        }
        Ok(kind)
    }

    /// How rows meet that are not together.
    fn cheaper(&self, kind: &OperatorKind, inputs: &[Vec<Edge>]) -> Exchange {
        let OperatorKind::Aggregate(spec) = kind else { return Exchange::Shuffle };
        let Setup { workers, beside, epoch, state_bytes_max, .. } = *self.setup;
        let rows = Statistics::along(&inputs[0], &Statistics::of(&self.operators, workers));
        let workers = WorkerCounts { total: workers, per_process: beside };
        let grouped = Grouped::of(spec, &rows, workers, epoch);
        let costs = Costs::default();
        let decided = |of| decide(Exchange::Merge, &of, &costs, state_bytes_max).exchange;
        grouped.map_or(Exchange::Merge, decided)
    }

    fn exchange(
        &self,
        node: &StreamNode,
        inputs: &[Vec<Edge>],
        fits: bool,
    ) -> Result<Exchange, StreamError> {
        let spec = node.kind.spec();
        // Those of operators without an exchange are never asked for.
        let Some(exchange) = spec.exchange() else { return Ok(Exchange::Forward) };
        let merges = spec.merges();
        let routed =
            (0..inputs.len()).any(|input| spec.distribution(input) != Some(Distribution::Hash));
        Ok(match (node.choice, self.setup.exchange) {
            (Choice::Fixed, _) => exchange,
            (Choice::Exchange(Exchange::Merge), _) if !merges => Exchange::Shuffle,
            (Choice::Exchange(exchange), _) => exchange,
            _ if self.setup.workers == 1 => Exchange::Forward,
            (Choice::Auto, None) if fits && !routed => Exchange::Forward,
            (Choice::Auto, None) => self.cheaper(&node.kind, inputs),
            (Choice::Auto, Some(Exchange::Forward)) if fits && !routed => Exchange::Forward,
            (Choice::Auto, Some(Exchange::Forward)) => {
                return Err(StreamError::refused(
                    format!(
                        "exchange 'forward' cannot bring the rows of {} workers together in '{}'",
                        self.setup.workers, node.name
                    ),
                    "SET 'millstream.exchange' = 'auto'",
                ));
            }
            (Choice::Auto, Some(exchange)) if merges => exchange,
            (Choice::Auto, Some(Exchange::UpPar)) => Exchange::UpPar,
            (Choice::Auto, Some(_)) => Exchange::Shuffle,
        })
    }
}

/// The labels of a node for EXPLAIN. They include the reason for its exchange if the author of the
/// stream chose it or its rows are together already.
fn labels_of(node: &StreamNode, kind: &OperatorKind, workers: u32) -> Labels {
    let mut labels = node.labels.clone();
    let Some(exchange) = kind.spec().exchange() else { return labels };
    let reason = match node.choice {
        Choice::Exchange(_) => Reason::Planner("the stream asks for it".into()),
        Choice::Auto if exchange == Exchange::Forward && workers > 1 => Reason::together(),
        Choice::Auto | Choice::Fixed => return labels,
    };
    labels.inputs.resize(node.inputs.len(), Default::default());
    labels.inputs.iter_mut().for_each(|input| input.reason = Some(reason.clone()));
    labels
}
