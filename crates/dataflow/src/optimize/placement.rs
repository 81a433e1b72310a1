//! Where the rows of a key are (A5): behind an exchange they are on one worker.
//!
//! Where the next operator's keys are those, or more, and no step between has changed them, rows
//! need not travel: its exchange is `forward`. An operator of several inputs asks for more: all
//! must have been led by the same function of the same types in the same order.
//!
//! An operator tells which of its output columns are columns of which input, and whether every
//! output row contains a row of that input. So behind a join the keys of either side say where a
//! row is; behind an outer join those of the side whose rows are always there; behind a full join
//! only the one of both that is not NULL. Behind a source that is stored by buckets of a column,
//! each worker has the rows that an exchange by it would lead there. Rows that are led to all
//! workers, in turn, by a function of the operator's own or not at all are placed by no key, but
//! for those that were already where their key leads.
//!
//! A scan that is [placed](crate::job::Scan::placed) gives a worker the buckets that their keys
//! lead to it, even or not. Where no operator makes use of that, its splits are assigned by cost
//! instead ([`release`]).

use arrow::datatypes::DataType;

use crate::job::{Distribution, Edge, Exchange, Operator, OperatorKind, OperatorSpec};

/// Of each operator of a job, where the rows of a key are that it gives out.
#[derive(Default)]
pub struct Placements(Vec<Option<Placed>>);

/// The worker of each output row of an operator.
#[derive(Clone)]
struct Placed {
    /// The keys that lead it, in the order of the function.
    keys: Vec<Key>,
    led: Led,
}

/// A value that leads rows, as seen from the columns behind it.
#[derive(Clone, Default)]
struct Key {
    /// It is the first of these columns that is not NULL: any of these lists has it.
    is: Vec<Vec<usize>>,
    /// Rows that are equal in one of these columns are equal in it.
    follows: Vec<usize>,
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
    /// Whether they do so themselves: else what leads rows follows from them.
    exact: bool,
}

impl Fit {
    /// The keys that lead the rows, by their number among the operator's, and how; `None` if what
    /// leads them only follows from its keys.
    pub(crate) fn leading(&self) -> Option<(&[usize], Exchange)> {
        self.exact.then_some((&self.keys, self.led.by))
    }
}

impl Key {
    fn column(column: usize) -> Self {
        Self { is: vec![vec![column]], follows: vec![] }
    }

    /// The same value as seen from behind, where columns are others, if they are there.
    fn behind(&self, column: impl Fn(usize) -> Option<usize>) -> Self {
        let list = |list: &Vec<usize>| list.iter().map(|&of| column(of)).collect();
        Self {
            is: self.is.iter().filter_map(list).collect(),
            follows: self.follows.iter().filter_map(|&of| column(of)).collect(),
        }
    }

    /// Of values that are equal wherever both are there, and of which one is.
    fn either(&self, other: &Self) -> Self {
        let pairs = self.is.iter().flat_map(|left| {
            let both =
                |right: &Vec<usize>| [[&left[..], right].concat(), [right, &left[..]].concat()];
            other.is.iter().flat_map(both)
        });
        Self { is: pairs.collect(), follows: vec![] }
    }

    /// The same where only what it follows from is known.
    fn followed(&self) -> Self {
        let single = self.is.iter().filter_map(|list| match list[..] {
            [column] => Some(column),
            _ => None,
        });
        Self { is: vec![], follows: self.follows.iter().copied().chain(single).collect() }
    }

    fn is_known(&self) -> bool {
        !self.is.is_empty() || !self.follows.is_empty()
    }

    /// The number of the key that it is; `arrived` are the columns that each is the first of.
    fn among(&self, arrived: &[Option<Vec<usize>>]) -> Option<usize> {
        arrived.iter().position(|key| key.as_ref().is_some_and(|key| self.is.contains(key)))
    }

    /// The number of a key that it follows from.
    fn told_by(&self, arrived: &[Option<Vec<usize>>]) -> Option<usize> {
        let tells = |key: &Vec<usize>| matches!(key[..], [one] if self.follows.contains(&one));
        arrived.iter().position(|key| key.as_ref().is_some_and(tells))
    }
}

impl Placements {
    /// Of all operators of a job.
    pub fn of(operators: &[Operator]) -> Self {
        let mut placements = Self::default();
        for operator in operators {
            placements.push(&operator.inputs, operator.spec());
        }
        placements
    }

    /// The same as if the scan with this index were not placed.
    fn without(operators: &[Operator], scan: usize) -> Self {
        let mut placements = Self::default();
        for (at, operator) in operators.iter().enumerate() {
            placements.push(&operator.inputs, operator.spec());
            if at == scan {
                placements.0[at] = None;
            }
        }
        placements
    }

    /// How the rows of an operator come to be where their keys are, without an exchange: all of
    /// them, and by input.
    fn in_use(&self, operator: &Operator) -> (Option<Fit>, Vec<bool>) {
        let (inputs, spec) = (&operator.inputs, operator.spec());
        let forwards = spec.led_by() == Some(Exchange::Forward);
        let fit = if forwards { self.fits(inputs, &keys_of(inputs, spec)) } else { None };
        let mut stay = self.stay(inputs, spec);
        for (number, stays) in stay.iter_mut().enumerate() {
            *stays &= spec.distribution(number) == Some(Distribution::Local);
        }
        (fit, stay)
    }

    /// Adds the next operator.
    pub fn push(&mut self, inputs: &[Vec<Edge>], spec: &dyn OperatorSpec) {
        let placed = match spec.led_by() {
            None if inputs.is_empty() => read_in_place(spec),
            None => self.in_place(inputs, spec),
            Some(exchange) => self.behind(inputs, spec, exchange),
        };
        self.0.push(placed);
    }

    /// The placement behind an operator whose rows meet by an exchange.
    fn behind(
        &self,
        inputs: &[Vec<Edge>],
        spec: &dyn OperatorSpec,
        exchange: Exchange,
    ) -> Option<Placed> {
        let types = spec.key_types()?;
        let keys = self.keys_behind(inputs, spec)?;
        let (keys, led) = match exchange {
            Exchange::Forward => {
                let Fit { keys: led_by, led, exact } = self.fits(inputs, &keys_of(inputs, spec))?;
                let led_by = led_by
                    .into_iter()
                    .map(|key| if exact { keys[key].clone() } else { keys[key].followed() });
                (led_by.collect(), led)
            }
            // All rows without a key meet on one worker, which says nothing of other keys.
            _ if keys.is_empty() => return None,
            by => (keys, Led { by, types }),
        };
        keys.iter().all(Key::is_known).then_some(Placed { keys, led })
    }

    /// Whether rows of equal `keys`, which are columns of each input, are together on all edges.
    pub fn fits(&self, inputs: &[Vec<Edge>], keys: &[&[usize]]) -> Option<Fit> {
        // Values that follow from equal ones in different ways are not equal.
        let alone = inputs.iter().map(Vec::len).sum::<usize>() == 1;
        let mut fits: Option<Fit> = None;
        for (edges, keys) in inputs.iter().zip(keys) {
            for edge in edges {
                let placed = self.0.get(edge.from)?.as_ref()?;
                let arrived: Vec<_> = keys.iter().map(|&key| first_of(edge, key)).collect();
                let itself: Option<Vec<usize>> =
                    placed.keys.iter().map(|key| key.among(&arrived)).collect();
                let exact = itself.is_some();
                let found = |key: &Key| key.among(&arrived).or_else(|| key.told_by(&arrived));
                let order = match itself {
                    None if alone => placed.keys.iter().map(found).collect(),
                    itself => itself,
                };
                let one = Fit { keys: order?, led: placed.led.clone(), exact };
                match &fits {
                    Some(other) if *other != one => return None,
                    _ => fits = Some(one),
                }
            }
        }
        fits
    }

    /// Of each input of an operator whether its rows are where its exchange would lead them.
    pub fn stay(&self, inputs: &[Vec<Edge>], spec: &dyn OperatorSpec) -> Vec<bool> {
        let led = spec.key_types().zip(spec.led_by()).map(|(types, by)| Led { by, types });
        let stays = |(number, edges): (usize, &Vec<Edge>)| {
            let keys = spec.keys(number);
            let fit = self.fits(std::slice::from_ref(edges), &[keys]);
            let in_order = |fit: &Fit| fit.keys.iter().copied().eq(0..keys.len());
            fit.is_some_and(|fit| fit.exact && in_order(&fit) && Some(fit.led) == led)
        };
        inputs.iter().enumerate().map(stays).collect()
    }

    /// The keys of an operator, in terms of its output columns; `None` if other values lead its
    /// rows.
    fn keys_behind(&self, inputs: &[Vec<Edge>], spec: &dyn OperatorSpec) -> Option<Vec<Key>> {
        let stay = self.stay(inputs, spec);
        let by_key =
            stay.iter().enumerate().all(|(number, stays)| match spec.distribution(number) {
                Some(Distribution::Hash) => true,
                Some(Distribution::Local) => *stays,
                _ => false,
            });
        if inputs.is_empty() || !by_key {
            return None;
        }
        let key = |at: usize| {
            let of = |(number, edges): (usize, &Vec<Edge>)| {
                let key = self.arriving(edges, spec.keys(number)[at]);
                key.behind(|column| spec.passes_on(number, column))
            };
            let of_inputs: Vec<Key> = inputs.iter().enumerate().map(of).collect();
            let always = of_inputs.iter().enumerate();
            let always: Vec<&Key> =
                always.filter_map(|(number, key)| spec.always_has(number).then_some(key)).collect();
            match (always.as_slice(), of_inputs.as_slice()) {
                ([], [left, right]) => left.either(right),
                (always, _) => Key {
                    is: always.iter().flat_map(|key| key.is.clone()).collect(),
                    follows: always.iter().flat_map(|key| key.follows.clone()).collect(),
                },
            }
        };
        Some((0..spec.keys(0).len()).map(key).collect())
    }

    /// A key of an input as seen from all of its columns: others may be equal to it, or be what the
    /// step before makes it of.
    fn arriving(&self, edges: &[Edge], key: usize) -> Key {
        let mut seen = Key::column(key);
        let [edge] = edges else { return seen };
        if let Some(list) = first_of(edge, key) {
            let placed = self.0.get(edge.from).and_then(Option::as_ref);
            let keys = placed.into_iter().flat_map(|placed| &placed.keys);
            let equal = keys.filter(|key| key.is.contains(&list)).cloned();
            let made = Key { is: vec![list.clone()], follows: vec![] };
            for of in equal.chain([made]).map(|key| key.behind(|of| passed_as(edge, of))) {
                seen.is.extend(of.is);
                seen.follows.extend(of.follows);
            }
        }
        if let Some(of) = edge.step.as_ref().and_then(|step| step.cast_of(key)) {
            seen.follows.extend(passed_as(edge, of));
        }
        seen
    }

    /// The placement behind an operator that moves no rows of one of its inputs, if the others are
    /// broadcast: the columns of that input that it passes on still determine the placement.
    fn in_place(&self, inputs: &[Vec<Edge>], spec: &dyn OperatorSpec) -> Option<Placed> {
        let distribution = |number: &usize| spec.distribution(*number);
        let stays = |number: &usize| distribution(number) == Some(Distribution::Local);
        let stay: Vec<usize> = (0..inputs.len()).filter(stays).collect();
        let [number] = stay[..] else { return None };
        let mut others = (0..inputs.len()).filter(|other| *other != number);
        if !others.all(|other| distribution(&other) == Some(Distribution::Broadcast)) {
            return None;
        }
        let [edge] = inputs[number].as_slice() else { return None };
        let placed = self.0.get(edge.from)?.as_ref()?;
        let passed = |column| passed_as(edge, column).and_then(|of| spec.passes_on(number, of));
        let keys: Vec<Key> = placed.keys.iter().map(|key| key.behind(passed)).collect();
        keys.iter().all(Key::is_known).then(|| Placed { keys, led: placed.led.clone() })
    }
}

/// Has the splits of scans assigned by cost where no operator makes use of their placement.
pub fn release(operators: &mut [Operator]) {
    for at in 0..operators.len() {
        let OperatorKind::Source(scan) = &operators[at].kind else { continue };
        if scan.placement.is_none() {
            continue;
        }
        let released = scan.released();
        let [with, without] = [Placements::of(operators), Placements::without(operators, at)];
        if operators.iter().all(|of| with.in_use(of) == without.in_use(of)) {
            operators[at].kind = OperatorKind::Source(released);
        }
    }
}

/// The placement behind a source of which each worker reads its own partitions.
fn read_in_place(spec: &dyn OperatorSpec) -> Option<Placed> {
    let (column, of) = spec.placed_by()?;
    let led = Led { by: Exchange::Shuffle, types: vec![of] };
    Some(Placed { keys: vec![Key::column(column)], led })
}

/// The columns before the step of an edge of which a column behind it is the first that is not
/// NULL.
fn first_of(edge: &Edge, column: usize) -> Option<Vec<usize>> {
    match &edge.step {
        Some(step) => step.first_of(column),
        None => Some(vec![column]),
    }
}

/// Which column behind the step of an edge is a column before it.
fn passed_as(edge: &Edge, column: usize) -> Option<usize> {
    let Some(step) = &edge.step else { return Some(column) };
    (0..step.schema().fields().len()).find(|&output| step.passes_on(output) == Some(column))
}

/// The keys of an operator, by input.
pub fn keys_of<'a>(inputs: &[Vec<Edge>], spec: &'a dyn OperatorSpec) -> Vec<&'a [usize]> {
    (0..inputs.len()).map(|input| spec.keys(input)).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::datatypes::{Field, Schema, SchemaRef};

    use super::*;
    use crate::connector::source::{Position, ReaderContext, Source, Split, SplitReader};
    use crate::error::{ConnectorError, DataflowError};
    use crate::job::{
        Description, LocalInput, LocalMemory, LocalOperator, LocalPlan, LocalRun, Scan, StopCheck,
    };

    fn schema() -> SchemaRef {
        Arc::new(Schema::new(vec![Field::new("k", DataType::Int64, true)]))
    }

    /// A table that is stored by buckets of its column; or one whose splits are assigned.
    struct Stored {
        is_placed: bool,
    }

    impl Source for Stored {
        fn schema(&self) -> SchemaRef {
            schema()
        }

        fn bounded(&self) -> bool {
            true
        }

        fn splits(&self, _: u32, _: Option<usize>) -> Result<Vec<Split>, ConnectorError> {
            Ok(vec![])
        }

        fn placed(&self, _: u32) -> Option<(Arc<dyn Source>, usize)> {
            (!self.is_placed).then(|| (Arc::new(Stored { is_placed: true }) as _, 0))
        }

        fn describe(&self) -> Option<String> {
            Some(if self.is_placed { "placed" } else { "assigned" }.into())
        }

        fn open(
            &self,
            split: &Split,
            _: Option<&Position>,
            _: &ReaderContext,
        ) -> Result<Box<dyn SplitReader>, ConnectorError> {
            panic!("{} is not read", split.name)
        }
    }

    /// A plan by the key of its input.
    struct ByKey;

    impl LocalPlan for ByKey {
        fn schema(&self) -> SchemaRef {
            schema()
        }

        fn open(&self, _: LocalMemory, _: StopCheck) -> Result<Box<dyn LocalRun>, DataflowError> {
            panic!("it does not run")
        }

        fn describe(&self, _: &[Vec<String>]) -> Description {
            Description { name: "ByKey", properties: vec![] }
        }
    }

    fn edge(from: usize) -> Vec<Edge> {
        vec![Edge { from, step: None, timed: false, lateness: 0 }]
    }

    /// How the sources are described, behind which rows of equal keys meet by these exchanges.
    fn released(exchanges: &[Exchange]) -> Vec<Option<String>> {
        let mut operators = vec![];
        for &exchange in exchanges {
            let scan = Scan::new("t", Arc::new(Stored { is_placed: false })).placed(2);
            assert_eq!(scan.placement.as_ref().map(|placement| placement.column), Some(0));
            let (plan, distribution) = (Arc::new(ByKey), Distribution::Hash);
            let inputs = vec![LocalInput { schema: schema(), keys: vec![0], distribution }];
            let local = OperatorKind::Local(LocalOperator { inputs, exchange, plan });
            let at = operators.len();
            operators.push(Operator::new("t", vec![], OperatorKind::Source(scan)));
            operators.push(Operator::new("p", vec![edge(at)], local));
        }
        release(&mut operators);
        let source = |operator: &Operator| match &operator.kind {
            OperatorKind::Source(scan) => {
                let described = scan.source.describe();
                assert_eq!(scan.placement.is_some(), described.as_deref() == Some("placed"));
                Some(described)
            }
            _ => None,
        };
        operators.iter().filter_map(source).collect()
    }

    #[test]
    fn a_scan_stays_placed_where_rows_of_a_key_meet_without_an_exchange() {
        let all = [Exchange::Shuffle, Exchange::Forward, Exchange::Merge];
        let described = released(&all).into_iter().flatten().collect::<Vec<_>>();
        assert_eq!(described, ["assigned", "placed", "assigned"]);
    }
}
