//! Decides which scans are fused with the aggregate behind them.
//!
//! All that is known before the start decides: what reads the scan, how the step between makes the
//! key and the argument, the types of both, the aggregate function, the windows, the exchange. What
//! data alone can tell (a null, a late row, a key beyond the array) is left to each batch.

use arrow::datatypes::DataType;

use crate::job::{
    Aggregation, Edge, Exchange, FusedColumns, FusedLookup, Fusion, JobGraph, JoinKind, Lookup,
    NotFused, Operator, OperatorKind, OperatorSpec, Scan,
};

/// Writes into the scans of a job on a number of workers what they are fused with, or why they are
/// not.
pub fn fuse(job: &mut JobGraph, workers: u32) {
    let pass = Pass { operators: &job.operators, workers, spills: job.settings.spill.is_some() };
    let fusions: Vec<_> = (0..job.operators.len()).map(|at| pass.of(at)).collect();
    for (operator, fusion) in job.operators.iter_mut().zip(fusions) {
        operator.fusion = fusion;
    }
}

/// Whether the windows of an operator that takes the rows of an edge are over the very column that
/// a source's watermark is of.
pub(crate) fn windows_event_time(
    operators: &[Operator],
    edge: &Edge,
    to: &dyn OperatorSpec,
) -> bool {
    to.window_time().is_some_and(|column| is_event_time(operators, edge, column))
}

/// Whether a column of the rows of an edge is the one that a source's watermark is of.
fn is_event_time(operators: &[Operator], edge: &Edge, column: usize) -> bool {
    let column = match &edge.step {
        Some(step) => step.passes_on(column),
        None => Some(column),
    };
    let Some(column) = column.filter(|_| edge.timed) else { return false };
    let from = &operators[edge.from];
    if let Some(input) = from.spec().source() {
        return input.watermark.is_some_and(|of| of.column == column);
    }
    from.spec().passes_through(column).is_some_and(|column| {
        from.inputs.iter().flatten().all(|edge| is_event_time(operators, edge, column))
    })
}

struct Pass<'a> {
    operators: &'a [Operator],
    workers: u32,
    spills: bool,
}

impl Pass<'_> {
    fn of(&self, at: usize) -> Result<Fusion, NotFused> {
        let input = self.operators[at].spec().source().ok_or(NotFused::Unplanned)?;
        let (to, edge) = self.reader(at)?;
        match &self.operators[to].kind {
            OperatorKind::Aggregate(spec) => {
                let (key, arg) = self.folds(spec, edge)?;
                let columns = columns_of(edge, key, arg)?;
                if word_of(input, columns.key)? != spec.group_by.keys[0] {
                    return Err(NotFused::KeyType);
                }
                if arg.is_some() && columns.filtered {
                    return Err(NotFused::ArgFiltered);
                }
                if arg.is_some() && columns.divided {
                    return Err(NotFused::ArgBesideKey);
                }
                Ok(Fusion { aggregate: to, lookup: None, key, arg, columns })
            }
            OperatorKind::Lookup(lookup) => self.looked(input, to, lookup, edge),
            _ => Err(NotFused::NoAggregate),
        }
    }

    /// Of a scan with a lookup behind it.
    fn looked(
        &self,
        input: &Scan,
        at: usize,
        lookup: &Lookup,
        edge: &Edge,
    ) -> Result<Fusion, NotFused> {
        let (aggregate, behind) = self.reader(at)?;
        let OperatorKind::Aggregate(spec) = &self.operators[aggregate].kind else {
            return Err(NotFused::NoAggregate);
        };
        let (key, arg) = self.folds(spec, behind)?;
        if arg.is_some() {
            return Err(NotFused::ArgBesideKey);
        }
        let column = match &behind.step {
            Some(step) if step.keeps_rows() => step.passes_on(key),
            Some(_) => None,
            None => Some(key),
        };
        let column = column.and_then(|column| column.checked_sub(lookup.width()));
        let column = column.ok_or(NotFused::LookupColumn)?;
        // The loop keeps what it has made of the table.
        let Lookup {
            kind: JoinKind::Inner, on: None, keys: [stream, own], refresh_ns: None, ..
        } = lookup
        else {
            return Err(NotFused::LookupJoin);
        };
        let (&[key], &[own]) = (&stream[..], &own[..]) else { return Err(NotFused::LookupJoin) };
        let columns = columns_of(edge, key, None)?;
        let word = word_of(input, columns.key)?;
        if columns.divided {
            return Err(NotFused::KeyExpression);
        }
        let kept = lookup.kept();
        let (words, keys) = (kept.field(own).data_type(), kept.field(column).data_type());
        if *words != word || *keys != spec.group_by.keys[0] || !state::KeyMap::suits(words, keys) {
            return Err(NotFused::KeyType);
        }
        let lookup = Some(FusedLookup { operator: at, own, column });
        Ok(Fusion { aggregate, lookup, key, arg: None, columns })
    }

    /// The only operator that an operator gives its rows to, and the edge between them.
    fn reader(&self, from: usize) -> Result<(usize, &Edge), NotFused> {
        let edges = self.operators.iter().enumerate().flat_map(|(at, operator)| {
            operator.inputs.iter().flatten().map(move |edge| (at, edge))
        });
        let edges: Vec<_> = edges.filter(|(_, edge)| edge.from == from).collect();
        match edges[..] {
            [] => Err(NotFused::NoAggregate),
            [edge] => Ok(edge),
            _ => Err(NotFused::Readers(edges.len())),
        }
    }

    /// The columns of the key and the argument of an aggregate, if one loop can update its groups
    /// with the rows of this edge.
    fn folds(&self, spec: &Aggregation, edge: &Edge) -> Result<(usize, Option<usize>), NotFused> {
        let &[key] = &spec.keys[..] else { return Err(NotFused::Keys(spec.keys.len())) };
        let ([args], [function]) = (&spec.args[..], &spec.group_by.aggregates[..]) else {
            return Err(NotFused::Aggregates(spec.args.len()));
        };
        if args.len() > 1 || !function.is_fusible() {
            return Err(NotFused::Function);
        }
        if spec.has_sessions() {
            return Err(NotFused::Sessions);
        }
        if spec.window.is_some() && !windows_event_time(self.operators, edge, spec) {
            return Err(NotFused::TimeWindow);
        }
        if self.workers > 1 && matches!(spec.exchange, Exchange::Shuffle | Exchange::UpPar) {
            return Err(NotFused::Exchange);
        }
        if self.spills {
            return Err(NotFused::Spill);
        }
        let arg = args.first().copied();
        spec.group_by.fuses(arg.is_some()).then_some((key, arg)).ok_or(NotFused::KeyMode)
    }
}

/// How a key and an argument are made of the columns of a scan.
fn columns_of(edge: &Edge, key: usize, arg: Option<usize>) -> Result<FusedColumns, NotFused> {
    match &edge.step {
        Some(step) => step.fused(key, arg),
        None => Ok(FusedColumns::column(key)),
    }
}

/// The type of a column of a table, if its arrays are words of 64 bits as they lie in memory.
fn word_of(input: &Scan, column: usize) -> Result<DataType, NotFused> {
    let schema = input.columns();
    let data_type = schema.field(column).data_type();
    if state::is_word(data_type) { Ok(data_type.clone()) } else { Err(NotFused::KeyType) }
}
