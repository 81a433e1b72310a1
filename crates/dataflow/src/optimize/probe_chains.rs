//! Decides which joins run as one pass: see [`ProbeChain`].
//!
//! ```text
//! rows ─▶ join ─▶ columns are chosen ─▶ join ─▶ columns are chosen ─▶ join    on one worker
//!        └───────── a chain: numbers of rows until here ──────────────────┘
//! ```
//!
//! A join is a stage of a chain if each row that comes to it gives rows by itself, with its own
//! columns and the build's: inner joins, and semi- and anti-joins of the probe side,
//! without a condition beside equal keys. It goes on with the chain of the join before if the rows
//! of that one stay on their worker, nothing else reads them, and columns are at most chosen on the
//! way.

use std::sync::Arc;

use arrow::datatypes::SchemaRef;

use crate::job::hash_join::{BUILD, PROBE, Variant};
use crate::job::step::chosen;
use crate::job::{
    ChainColumn, ChainStage, Distribution, Edge, Exchange, HashJoin, JobGraph, JoinKind, Lookup,
    NotChained, Operator, OperatorKind, ProbeChain,
};

/// Writes into the joins of a job on a number of workers which chain they are part of, or why they
/// are part of none.
pub fn chain(job: &mut JobGraph, workers: u32) {
    let pass = Pass { operators: &job.operators, shared: shared(&job.operators), workers };
    let mut chains: Vec<Found> = vec![];
    let mut apart = vec![NotChained::Alone; job.operators.len()];
    for (at, _) in job.operators.iter().enumerate() {
        let Some(stage) = pass.stage(at) else { continue };
        let before = pass.before(at);
        let stage = match stage {
            Ok(stage) => stage,
            Err(why) if before.is_some() => {
                apart[at] = why;
                continue;
            }
            Err(_) => continue,
        };
        let of_before = before
            .and_then(|from| chains.iter().position(|of| of.chain.joins.last() == Some(&from)));
        match of_before.map(|of| (of, pass.way(at))) {
            Some((of, Ok(way))) => chains[of].add(at, &stage, &way),
            Some((_, Err(why))) => {
                apart[at] = why;
                chains.push(Found::new(at, &stage));
            }
            None => chains.push(Found::new(at, &stage)),
        }
    }
    let mut found: Vec<Result<Arc<ProbeChain>, NotChained>> = apart.into_iter().map(Err).collect();
    for Found { chain, .. } in chains.into_iter().filter(|of| of.chain.joins.len() > 1) {
        let chain = Arc::new(chain);
        for &join in &chain.joins {
            found[join] = Ok(chain.clone());
        }
    }
    for (operator, chain) in job.operators.iter_mut().zip(found) {
        operator.chain = chain;
    }
}

/// By operator, whether it or an operator before it has several output edges: an operator that does
/// not take its rows may hold back the others.
pub(crate) fn shared(operators: &[Operator]) -> Vec<bool> {
    let edges = || operators.iter().flat_map(|operator| operator.inputs.iter().flatten());
    let mut shared: Vec<bool> = Vec::with_capacity(operators.len());
    for (at, operator) in operators.iter().enumerate() {
        let several = edges().filter(|edge| edge.from == at).count() > 1;
        let before = operator.inputs.iter().flatten().any(|edge| shared[edge.from]);
        shared.push(several || before);
    }
    shared
}

/// A join that can be a stage.
struct Stage {
    kind: JoinKind,
    keys: Vec<usize>,
    /// The columns of the probe side, and of the build.
    widths: [usize; 2],
    schema: SchemaRef,
}

/// A chain so far.
struct Found {
    chain: ProbeChain,
}

impl Found {
    fn new(at: usize, stage: &Stage) -> Self {
        let width = stage.widths[0];
        let columns = (0..width).map(|column| ChainColumn { build: None, column }).collect();
        let (joins, stages, schema) = (vec![], vec![], stage.schema.clone());
        let mut found = Self { chain: ProbeChain { joins, stages, width, columns, schema } };
        found.add(at, stage, &(0..width).collect::<Vec<_>>());
        found
    }

    /// Adds a join, to which these of the columns go.
    fn add(&mut self, at: usize, stage: &Stage, way: &[usize]) {
        let chain = &mut self.chain;
        let came: Vec<ChainColumn> = way.iter().map(|&column| chain.columns[column]).collect();
        let keys = stage.keys.iter().map(|&key| came[key]).collect();
        let width = if stage.kind.widens() { stage.widths[1] } else { 0 };
        let build = Some(chain.joins.len());
        let of_build = (0..width).map(|column| ChainColumn { build, column });
        chain.columns = came.into_iter().chain(of_build).collect();
        chain.joins.push(at);
        chain.stages.push(ChainStage { kind: stage.kind, keys, width });
        chain.schema = stage.schema.clone();
    }
}

struct Pass<'a> {
    operators: &'a [Operator],
    shared: Vec<bool>,
    workers: u32,
}

impl Pass<'_> {
    /// The stage that an operator is, if it is a join.
    fn stage(&self, at: usize) -> Option<Result<Stage, NotChained>> {
        match &self.operators[at].kind {
            OperatorKind::HashJoin(join) => Some(of_hash_join(join)),
            OperatorKind::Lookup(lookup) => Some(of_lookup(lookup)),
            _ => None,
        }
    }

    /// The edge by which all rows of the probe side come, if there is one.
    fn edge(&self, at: usize) -> Option<&Edge> {
        match &self.operators[at].inputs.get(PROBE)?[..] {
            [edge] => Some(edge),
            _ => None,
        }
    }

    /// The join from which rows come to a join.
    fn before(&self, at: usize) -> Option<usize> {
        let from = self.edge(at)?.from;
        self.stage(from).is_some().then_some(from)
    }

    /// The columns of the join before that come to a join, if their rows come as they are.
    fn way(&self, at: usize) -> Result<Vec<usize>, NotChained> {
        let edge = self.edge(at).ok_or(NotChained::Step)?;
        let edges = self.operators.iter().flat_map(|operator| operator.inputs.iter().flatten());
        if edges.filter(|other| other.from == edge.from).count() > 1 || edge.timed {
            return Err(NotChained::Step);
        }
        if let OperatorKind::HashJoin(join) = &self.operators[at].kind {
            let stays = !join.is_replicated() && join.exchange == Exchange::Forward;
            let is_local = join.sides[PROBE].distribution == Distribution::Local;
            if !stays && !is_local && self.workers > 1 {
                return Err(NotChained::Exchange);
            }
            // Such a join keeps its rows until its build is complete.
            if self.shared[edge.from] {
                return Err(NotChained::Step);
            }
        }
        let width = self.operators[edge.from].spec().schema().map_or(0, |of| of.fields().len());
        chosen(edge.step.as_ref(), width).ok_or(NotChained::Step)
    }
}

fn of_hash_join(join: &HashJoin) -> Result<Stage, NotChained> {
    if join.variant == Variant::Mark {
        return Err(NotChained::Mark);
    }
    let widths = join.sides.each_ref().map(|side| side.schema.fields().len());
    let keys = join.sides[PROBE].keys.clone();
    let has_condition = join.on.is_some();
    checked(Stage { kind: join.kind, keys, widths, schema: join.schema.clone() }, has_condition)
}

fn of_lookup(lookup: &Lookup) -> Result<Stage, NotChained> {
    if lookup.refresh_ns.is_some() {
        return Err(NotChained::Changing);
    }
    let widths = [lookup.width(), lookup.kept().fields().len()];
    let keys = lookup.keys[PROBE].clone();
    let has_condition = lookup.on.is_some();
    checked(Stage { kind: lookup.kind, keys, widths, schema: lookup.schema.clone() }, has_condition)
}

fn checked(stage: Stage, has_condition: bool) -> Result<Stage, NotChained> {
    if has_condition {
        return Err(NotChained::Condition);
    }
    let is_row_by_row = stage.kind.alone(BUILD).is_none() && stage.kind != JoinKind::Left;
    if is_row_by_row { Ok(stage) } else { Err(NotChained::Kind) }
}
