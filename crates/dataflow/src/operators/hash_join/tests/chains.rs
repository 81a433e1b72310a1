//! Joins one behind another, whose rows stay a selection from the first to the last, against nested
//! loops.

use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, BooleanArray, Int64Array, RecordBatch, RecordBatchOptions,
};
use arrow::datatypes::{DataType, Field, Int64Type, Schema, SchemaRef};
use state::NullKeys;

use crate::error::DataflowError;
use crate::job::{FILTER, JoinKind, Origin, Property, Step, Stepped};
use crate::operators::keyed::fixtures::Numbers;
use crate::pairing::{Hashed, Pairing, ProbeSide, Terms};
use crate::rows::selection::Selection;

const KINDS: [JoinKind; 4] =
    [JoinKind::Inner, JoinKind::Left, JoinKind::LeftSemi, JoinKind::LeftAnti];
pub(super) const ROWS_MAX: usize = 5;

/// The values of the columns of a row.
pub(super) type Values = Vec<Option<i64>>;

/// A join whose probe side is all that came before: its key is the column `key` there, and the
/// first one of the build.
pub(super) struct Stage {
    pub(super) kind: JoinKind,
    pub(super) nulls: NullKeys,
    pub(super) key: usize,
    pub(super) build: Vec<Values>,
    /// Whether the first column of a pair must be less than the last one.
    pub(super) filtered: bool,
    /// The columns that the next join is given.
    pub(super) kept: Vec<usize>,
}

/// Passes pairs whose first column is less than the last one.
struct Less(SchemaRef);

impl Step for Less {
    fn schema(&self) -> SchemaRef {
        self.0.clone()
    }

    fn apply_for(&self, batch: &RecordBatch, _: Option<usize>) -> Result<Stepped, DataflowError> {
        let rows = values_of(batch);
        let kept: BooleanArray = rows.iter().map(|row| Some(is_less(row))).collect();
        Ok(Stepped { batch: batch.clone(), origin: Origin::Mask(kept) })
    }

    fn passes_on(&self, output: usize) -> Option<usize> {
        Some(output)
    }

    fn describe(&self) -> Vec<Property> {
        vec![(FILTER, "a condition".into())]
    }
}

fn is_less(row: &Values) -> bool {
    let ends = row.first().zip(row.last());
    ends.is_some_and(|(first, last)| first.is_some() && last.is_some() && first < last)
}

pub(super) fn schema(columns: usize) -> SchemaRef {
    let of = |at: usize| Field::new(format!("c{at}"), DataType::Int64, true);
    Arc::new(Schema::new((0..columns).map(of).collect::<Vec<_>>()))
}

pub(super) fn batch(columns: usize, rows: &[Values]) -> RecordBatch {
    let column = |at: usize| Arc::new(Int64Array::from_iter(rows.iter().map(|row| row[at]))) as _;
    let arrays: Vec<ArrayRef> = (0..columns).map(column).collect();
    let options = RecordBatchOptions::new().with_row_count(Some(rows.len()));
    RecordBatch::try_new_with_options(schema(columns), arrays, &options).expect("a batch")
}

pub(super) fn values_of(batch: &RecordBatch) -> Vec<Values> {
    let value = |column: &ArrayRef, row: usize| {
        column.is_valid(row).then(|| column.as_primitive::<Int64Type>().value(row))
    };
    let row = |row| batch.columns().iter().map(|column| value(column, row)).collect();
    (0..batch.num_rows()).map(row).collect()
}

pub(super) fn some_rows(numbers: &mut Numbers, columns: usize, most: i64) -> Vec<Values> {
    let rows = numbers.below(most + 1);
    let mut value = || Some(numbers.below(7)).filter(|value| *value > 0);
    (0..rows).map(|_| (0..columns).map(|_| value()).collect()).collect()
}

/// The rows behind a join, by nested loops.
pub(super) fn expected(stage: &Stage, left: &[Values]) -> Vec<Values> {
    let mut rows: Vec<Values> = vec![];
    for l in left {
        let fits = |r: &&Values| {
            let has_key = r[0].is_some() || stage.nulls == NullKeys::Equal;
            let pair = [l.as_slice(), r.as_slice()].concat();
            l[stage.key] == r[0] && has_key && (!stage.filtered || is_less(&pair))
        };
        let partners: Vec<&Values> = stage.build.iter().filter(fits).collect();
        let pairs = partners.iter().map(|r| [l.as_slice(), r.as_slice()].concat());
        match stage.kind {
            JoinKind::Left if partners.is_empty() => rows.push([l.as_slice(), &[None; 2]].concat()),
            JoinKind::Inner | JoinKind::Left => rows.extend(pairs),
            JoinKind::LeftSemi => rows.extend((!partners.is_empty()).then(|| l.clone())),
            _ => rows.extend(partners.is_empty().then(|| l.clone())),
        }
    }
    let kept = |row: &Values| stage.kept.iter().map(|&column| row[column]).collect();
    rows.iter().map(kept).collect()
}

/// The same by the join of the engine.
pub(super) fn joined(stage: &Stage, left: Vec<Selection>, columns: usize) -> Vec<Selection> {
    let builds = stage.build.chunks(4).map(|rows| batch(2, rows)).collect();
    let hashed = Hashed::new(builds, &schema(2), &[0], stage.nulls).expect("rows");
    let probe = ProbeSide { side: 0, keys: &[stage.key] };
    let mut pairing = Pairing::new(probe, [], Arc::new(hashed), stage.kind);
    let with_build = if stage.kind.shows(1) { columns + 2 } else { columns };
    let (both, schema_out) = (schema(columns + 2), schema(with_build));
    let on: Option<Arc<dyn Step>> = stage.filtered.then(|| Arc::new(Less(both.clone())) as _);
    let terms =
        Terms { kind: stage.kind, marks: false, on: on.as_ref(), schema: &schema_out, both: &both };
    let mut rows = vec![];
    for selection in left {
        pairing.push(selection);
        while let Some((selection, _)) = pairing.next_probed(terms, ROWS_MAX).expect("rows") {
            assert!(selection.len() <= ROWS_MAX);
            rows.push(selection.project(&stage.kept, schema(stage.kept.len())));
        }
    }
    rows
}

pub(super) fn stage(numbers: &mut Numbers, columns: usize) -> Stage {
    let kind = KINDS[numbers.below(4) as usize];
    let nulls = [NullKeys::Nothing, NullKeys::Equal][numbers.below(2) as usize];
    let with_build = if kind.shows(1) { columns + 2 } else { columns };
    let kept: Vec<usize> = (0..with_build).filter(|_| numbers.below(4) > 0).collect();
    let kept = if kept.is_empty() { vec![with_build - 1] } else { kept };
    let key = numbers.below(columns as i64) as usize;
    let filtered = numbers.below(4) == 0;
    Stage { kind, nulls, key, build: some_rows(numbers, 2, 9), filtered, kept }
}

#[test]
fn chains_of_joins_give_what_nested_loops_give() {
    let mut numbers = Numbers(23);
    for round in 0..300 {
        let mut columns = 3;
        let probe = some_rows(&mut numbers, columns, 25);
        let mut rows: Vec<Selection> =
            probe.chunks(6).map(|rows| Selection::of(batch(columns, rows))).collect();
        let mut all = probe;
        for number in 0..1 + numbers.below(4) {
            let stage = stage(&mut numbers, columns);
            rows = joined(&stage, rows, columns);
            all = expected(&stage, &all);
            columns = stage.kept.len();
            let given = rows.iter().map(|rows| rows.materialized().expect("columns"));
            let mut given: Vec<Values> = given.flat_map(|batch| values_of(&batch)).collect();
            let mut sorted = all.clone();
            given.sort();
            sorted.sort();
            assert_eq!(given, sorted, "round {round}, join {number}: {}", stage.kind);
        }
    }
}
