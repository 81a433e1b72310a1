//! Where the rows of a key are (A5): behind an exchange they are on one worker.
//!
//! Where the next operator's keys are those, or more, and no step between has changed them, rows
//! need not travel: its exchange is `forward`. An operator of several inputs asks for more: all
//! must have been led by the same function of the same types in the same order.

use arrow::datatypes::DataType;

use crate::job::{Edge, Exchange, Lead, Operator, OperatorKind};

/// Of each operator of a job, where the rows of a key are that it gives out.
#[derive(Default)]
pub struct Placements(Vec<Option<Placed>>);

/// Columns that an operator gives out, whose values say on which worker a row is.
#[derive(Clone)]
struct Placed {
    keys: Vec<usize>,
    led: Led,
}

/// A function from keys to workers.
#[derive(Clone, PartialEq, Eq)]
struct Led {
    by: Exchange,
    types: Vec<DataType>,
}

/// How the inputs of an operator fit: which of its keys lead them, by their number among its keys.
#[derive(Clone, PartialEq, Eq)]
pub struct Fit {
    keys: Vec<usize>,
    led: Led,
}

impl Placements {
    /// Of operators that give out their keys first, if they group; of the others, as they say.
    pub fn of(operators: &[Operator]) -> Self {
        let mut placements = Self::default();
        for Operator { inputs, kind, .. } in operators {
            let keys = match kind {
                OperatorKind::Aggregate(spec) => Some((0..spec.keys.len()).collect::<Vec<_>>()),
                OperatorKind::Keyed(spec) => match spec.inputs.as_slice() {
                    [input] if input.lead == Lead::ByKey => spec.operator.keys_out(&input.keys),
                    _ => None,
                },
                _ => None,
            };
            placements.push(inputs, kind, keys.as_deref());
        }
        placements
    }

    /// Adds the next operator; `keys_out` says where its keys are among the columns that it gives
    /// out, in their order, if they are there.
    pub fn push(&mut self, inputs: &[Vec<Edge>], kind: &OperatorKind, keys_out: Option<&[usize]>) {
        let keyed = |out: &[usize], exchange: Exchange| match exchange {
            Exchange::Forward => {
                let Fit { keys, led } = self.fits(inputs, &keys_of(kind))?;
                Some(Placed { keys: keys.into_iter().map(|key| out[key]).collect(), led })
            }
            // All rows without a key meet on one worker, which says nothing of other keys.
            _ if out.is_empty() => None,
            by => Some(Placed { keys: out.to_vec(), led: Led { by, types: types_of(kind) } }),
        };
        let placed = match kind {
            OperatorKind::Lookup(_) => self.behind_lookup(inputs),
            OperatorKind::Aggregate(spec) => keys_out.and_then(|out| keyed(out, spec.exchange)),
            OperatorKind::Keyed(spec) => keys_out.and_then(|out| keyed(out, spec.exchange)),
            _ => None,
        };
        self.0.push(placed);
    }

    /// Whether rows of equal `keys`, which are columns of each input, are together on all edges.
    pub fn fits(&self, inputs: &[Vec<Edge>], keys: &[&[usize]]) -> Option<Fit> {
        let mut fits: Option<Fit> = None;
        for (edges, keys) in inputs.iter().zip(keys) {
            for edge in edges {
                let placed = self.0.get(edge.from)?.as_ref()?;
                let before = |key: &usize| match &edge.step {
                    Some(step) => step.passes_on(*key),
                    None => Some(*key),
                };
                let arrived: Vec<Option<usize>> = keys.iter().map(before).collect();
                let number = |key: &usize| arrived.iter().position(|at| at.as_ref() == Some(key));
                let order: Option<Vec<usize>> = placed.keys.iter().map(number).collect();
                let one = Fit { keys: order?, led: placed.led.clone() };
                match &fits {
                    Some(other) if *other != one => return None,
                    _ => fits = Some(one),
                }
            }
        }
        fits
    }

    /// A lookup lets the columns of its stream through as they are.
    fn behind_lookup(&self, inputs: &[Vec<Edge>]) -> Option<Placed> {
        let [edges] = inputs else { return None };
        let [edge] = edges.as_slice() else { return None };
        let placed = self.0.get(edge.from)?.as_ref()?;
        let columns = edge.step.as_ref().map_or(0, |step| step.schema().fields().len());
        let behind = |key: &usize| match &edge.step {
            Some(step) => (0..columns).find(|&output| step.passes_on(output) == Some(*key)),
            None => Some(*key),
        };
        let keys = placed.keys.iter().map(behind).collect::<Option<_>>()?;
        Some(Placed { keys, led: placed.led.clone() })
    }
}

/// The keys of an operator, by input.
pub fn keys_of(kind: &OperatorKind) -> Vec<&[usize]> {
    match kind {
        OperatorKind::Aggregate(spec) => vec![&spec.keys],
        OperatorKind::Keyed(spec) => {
            spec.inputs.iter().map(|input| input.keys.as_slice()).collect()
        }
        _ => vec![],
    }
}

fn types_of(kind: &OperatorKind) -> Vec<DataType> {
    match kind {
        OperatorKind::Aggregate(spec) => spec.group_by.keys.clone(),
        OperatorKind::Keyed(spec) => spec.inputs.first().map_or(vec![], |input| {
            let of = |&key: &usize| input.schema.field(key).data_type().clone();
            input.keys.iter().map(of).collect()
        }),
        _ => vec![],
    }
}
