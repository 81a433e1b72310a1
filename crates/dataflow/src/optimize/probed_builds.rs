//! Decides which builds of hash joins and lookups say which rows of a scan are needed.
//!
//! ```text
//! scan ─▶ step ─▶ probe side of a join ─▶ step ─▶ probe side of a join     one way, without others
//!           the column that is looked up is a column of the scan, row by row
//! ```
//!
//! A grouping without a window may stand on the way, if its key is looked up: all rows of a group
//! have the same partners. Not so in a job that keeps checkpoints: its groups outlive the builds,
//! which may have other rows when the job goes on.
//!
//! A row without a partner in a build makes no difference if the join emits neither that row nor
//! the fact that it has none, and if no other operator reads the scan. All keys of the build must
//! be where the scan is read: the build is replicated, or there is one worker.
//!
//! A fused scan waits for no build: its loop finds the rows without a partner itself.

use crate::job::hash_join::{BUILD, PROBE};
use crate::job::{Edge, JobGraph, Operator, OperatorKind, ProbedBuild, SavedState};

/// Writes into the scans of a job on a number of workers the builds that say which of their rows
/// are needed. It is asked for behind [`fuse`](crate::fusion::fuse).
pub fn connect(job: &mut JobGraph, workers: u32) {
    let begins_anew = |of: &Operator| matches!(of.spec().saved_state(), SavedState::Rebuilt);
    let through_groups = job.operators.iter().any(begins_anew);
    let mut found: Vec<Vec<ProbedBuild>> = vec![vec![]; job.operators.len()];
    for (join, operator) in job.operators.iter().enumerate() {
        let Some([probe, build]) = looked_up(operator, workers) else { continue };
        let of = |input: usize| operator.spec().input_schema(input);
        let Some(schemas) = of(PROBE).zip(of(BUILD)) else { continue };
        for (key, (&of_probe, &of_build)) in probe.iter().zip(build).enumerate() {
            let fields = [schemas.0.field(of_probe), schemas.1.field(of_build)];
            if fields[0].data_type() != fields[1].data_type() {
                continue;
            }
            let path = Path { operators: &job.operators, through_groups };
            for (scan, column) in path.scans_of(&operator.inputs[PROBE], of_probe) {
                found[scan].push(ProbedBuild { join, key, column });
            }
        }
    }
    for (operator, builds) in job.operators.iter_mut().zip(found) {
        operator.builds = builds;
    }
}

/// The keys of the probe side and of the build of an operator that has the whole build on each
/// worker, and to which a row without a partner there makes no difference.
fn looked_up(operator: &Operator, workers: u32) -> Option<[&[usize]; 2]> {
    match &operator.kind {
        OperatorKind::HashJoin(join) => {
            let is_whole = join.is_replicated() || workers == 1;
            let keys = join.sides.each_ref().map(|side| side.keys.as_slice());
            (is_whole && join.drops_unmatched_probe()).then_some(keys)
        }
        OperatorKind::Lookup(lookup) => {
            let keys = lookup.keys.each_ref().map(Vec::as_slice);
            // A newer version of the table may have keys that this one has not.
            let is_fixed = lookup.refresh_ns.is_none();
            (is_fixed && lookup.kind.alone(PROBE) != Some(false)).then_some(keys)
        }
        _ => None,
    }
}

/// What may stand between a join and the scans of its probe side.
struct Path<'a> {
    operators: &'a [Operator],
    /// Whether groupings may.
    through_groups: bool,
}

impl Path<'_> {
    /// The scans of which `column` behind some edges is a column, and which nothing else reads.
    fn scans_of(&self, edges: &[Edge], column: usize) -> Vec<(usize, usize)> {
        edges.iter().filter_map(|edge| self.scans_before(edge, column)).flatten().collect()
    }

    fn scans_before(&self, edge: &Edge, column: usize) -> Option<Vec<(usize, usize)>> {
        let column = match &edge.step {
            Some(step) => step.passes_on(column)?,
            None => column,
        };
        if outputs(self.operators, edge.from) > 1 {
            return None;
        }
        let from = &self.operators[edge.from];
        let of_probe = match &from.kind {
            OperatorKind::Source(scan) => {
                let listens = from.fusion.is_err() && scan.may_leave_out_rows();
                return listens.then(|| vec![(edge.from, column)]);
            }
            OperatorKind::HashJoin(join) => join.probe_column(column),
            OperatorKind::Lookup(lookup) => (column < lookup.width()).then_some(column),
            OperatorKind::Aggregate(of) if self.through_groups && of.window.is_none() => {
                of.keys.get(column).copied()
            }
            _ => None,
        };
        Some(self.scans_of(&from.inputs[PROBE], of_probe?))
    }
}

/// The number of edges that lead away from an operator.
fn outputs(operators: &[Operator], from: usize) -> usize {
    let edges = operators.iter().flat_map(|operator| operator.inputs.iter().flatten());
    edges.filter(|edge| edge.from == from).count()
}
