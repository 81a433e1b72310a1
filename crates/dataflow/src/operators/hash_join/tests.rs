//! Joins in memory and on a disk, against the pairs of a nested loop.

mod chains;
mod passes;

use std::sync::Arc;

use arrow::array::AsArray;
use arrow::datatypes::{DataType, Field, SchemaBuilder};
use state::NullKeys;
use state::sim::{SimDisk, SimDiskOptions};

use super::spill::{DiskJoin, SpilledJoin};
use crate::job::hash_join::{BUILD, HashJoin, HashJoinSide, PROBE, Variant};
use crate::job::{Distribution, Exchange, JoinKind, Step};
use crate::operators::keyed::fixtures::{
    KINDS, Numbers, Pair, Passing, Row, SIDES, batch, both, given_out, rows_of, schema,
};
use crate::pairing::{Hashed, Paired, Pairing, ProbeSide, Terms};
use crate::rows::selection::Selection;

const ROWS_MAX: usize = 7;

/// The probe side is the left one.
fn join(kind: JoinKind, nulls: NullKeys, filtered: bool) -> HashJoin {
    let side = |name: &str| HashJoinSide {
        name: name.into(),
        schema: schema(name),
        keys: vec![0],
        distribution: Distribution::Hash,
    };
    let less = Passing(|left, right| left < right);
    HashJoin {
        sides: SIDES.map(side),
        is_pulled: false,
        multicast: None,
        exchange: Exchange::Forward,
        nulls,
        kind,
        variant: Variant::Plain,
        on: filtered.then(|| Arc::new(less) as Arc<dyn Step>),
        schema: given_out(kind),
        both: both(),
    }
}

fn terms(spec: &HashJoin) -> Terms<'_> {
    let HashJoin { kind, on, schema, both, .. } = spec;
    Terms { kind: *kind, marks: false, on: on.as_ref(), schema, both }
}

fn expected(spec: &HashJoin, left: &[Row], right: &[Row]) -> Vec<Pair> {
    let fits = |l: &Row, r: &Row| {
        let has_key = l.0.is_some() || spec.nulls == NullKeys::Equal;
        l.0 == r.0 && has_key && (spec.on.is_none() || l.1 < r.1)
    };
    let mut pairs = vec![];
    let (mut left_met, mut right_met) = (vec![false; left.len()], vec![false; right.len()]);
    for (i, l) in left.iter().enumerate() {
        for (j, r) in right.iter().enumerate().filter(|(_, r)| fits(l, r)) {
            (left_met[i], right_met[j]) = (true, true);
            pairs.push((Some(*l), Some(*r)));
        }
    }
    let of = |rows: &[Row], met: &[bool], with: bool| -> Vec<Row> {
        rows.iter().zip(met).filter(|(_, met)| **met == with).map(|(row, _)| *row).collect()
    };
    let lefts = |with| of(left, &left_met, with).into_iter().map(|row| (Some(row), None));
    let rights = |with| of(right, &right_met, with).into_iter().map(|row| (None, Some(row)));
    match spec.kind {
        JoinKind::Inner => {}
        JoinKind::Left => pairs.extend(lefts(false)),
        JoinKind::Right => pairs.extend(rights(false)),
        JoinKind::Full => pairs.extend(lefts(false).chain(rights(false))),
        JoinKind::LeftSemi => pairs = lefts(true).collect(),
        JoinKind::LeftAnti => pairs = lefts(false).collect(),
        JoinKind::RightSemi => pairs = rights(true).collect(),
        JoinKind::RightAnti => pairs = rights(false).collect(),
    }
    pairs.sort();
    pairs
}

/// Rows of a few keys, or of one key if `heavy`.
fn rows(numbers: &mut Numbers, most: i64, heavy: bool) -> Vec<Row> {
    let rows = numbers.below(most + 1);
    let row = |value| {
        let key = if heavy { 3 } else { numbers.below(9) };
        ((key > 0).then_some(key), value, 10)
    };
    (0..rows).map(row).collect()
}

fn taken(kind: JoinKind, mut next: impl FnMut() -> Option<Paired>, pairs: &mut Vec<Pair>) {
    while let Some((rows, _)) = next() {
        let batch = rows.materialized().expect("columns");
        assert!(batch.num_rows() <= ROWS_MAX);
        pairs.extend(rows_of(&batch, kind));
    }
}

fn in_memory(spec: &HashJoin, left: &[Row], right: &[Row]) -> Vec<Pair> {
    let batches = right.chunks(5).map(|rows| batch("right", rows)).collect();
    let hashed = Hashed::new(batches, &spec.sides[BUILD].schema, &[0], spec.nulls).expect("rows");
    let probe = ProbeSide { side: PROBE, keys: &[0] };
    let mut pairing = Pairing::new(probe, [], Arc::new(hashed), spec.kind);
    let mut pairs = vec![];
    for rows in left.chunks(4) {
        pairing.push(Selection::of(batch("left", rows)));
        taken(spec.kind, || pairing.next_probed(terms(spec), ROWS_MAX).expect("pairs"), &mut pairs);
    }
    taken(spec.kind, || pairing.next_of_table(terms(spec), ROWS_MAX).expect("rows"), &mut pairs);
    pairs.sort();
    pairs
}

fn on_disk(spec: &HashJoin, left: &[Row], right: &[Row], share: usize) -> Vec<Pair> {
    let mut spilled = SpilledJoin::new(SimDisk::new(SimDiskOptions::default()), spec);
    for rows in right.chunks(5) {
        spilled.push(BUILD, batch("right", rows), share).expect("a disk");
    }
    for rows in left.chunks(4) {
        spilled.push(PROBE, batch("left", rows), share).expect("a disk");
    }
    spilled.finish(share).expect("a disk");
    let mut pairs = vec![];
    let join = DiskJoin { spec, terms: terms(spec), rows_max: ROWS_MAX, share };
    while spilled.take_partition(join).expect("a disk") {
        taken(spec.kind, || spilled.next(join).expect("pairs"), &mut pairs);
    }
    assert!(left.is_empty() && right.is_empty() || spilled.spilled().bytes > 0);
    pairs.sort();
    pairs
}

#[test]
fn every_kind_gives_what_all_pairs_give_in_memory_and_on_a_disk() {
    let mut numbers = Numbers(11);
    for round in 0..320 {
        let kind = KINDS[round % 8];
        let nulls = [NullKeys::Nothing, NullKeys::Equal][round / 8 % 2];
        let spec = join(kind, nulls, round % 5 > 2);
        let heavy = round % 7 == 0;
        let left = rows(&mut numbers, 40, heavy);
        let right = rows(&mut numbers, 60, heavy);
        let expected = expected(&spec, &left, &right);
        assert_eq!(in_memory(&spec, &left, &right), expected, "round {round}: {kind}");
        for share in [64, 1 << 10, 1 << 20] {
            let given = on_disk(&spec, &left, &right, share);
            assert_eq!(given, expected, "round {round}: {kind}, share {share}");
        }
    }
}

#[test]
fn a_mark_says_of_each_row_whether_it_has_a_partner() {
    let mut numbers = Numbers(5);
    for round in 0..60 {
        let mut spec = join(JoinKind::LeftSemi, NullKeys::Nothing, round % 2 > 0);
        let (left, right) = (rows(&mut numbers, 30, false), rows(&mut numbers, 30, false));
        let with = expected(&spec, &left, &right).len();
        let mut columns = SchemaBuilder::from(schema("left").fields());
        columns.push(Field::new("mark", DataType::Boolean, false));
        spec.schema = Arc::new(columns.finish());
        let hashed = Hashed::new(vec![batch("right", &right)], &schema("right"), &[0], spec.nulls);
        let probe = ProbeSide { side: PROBE, keys: &[0] };
        let hashed = Arc::new(hashed.expect("rows"));
        let mut pairing = Pairing::new(probe, [batch("left", &left)], hashed, spec.kind);
        let (mut all, mut marked) = (0, 0);
        let terms = || Terms { marks: true, ..terms(&spec) };
        while let Some((rows, _)) = pairing.next_probed(terms(), ROWS_MAX).expect("rows") {
            let batch = rows.materialized().expect("columns");
            let marks = batch.column(3).as_boolean();
            (all, marked) = (all + batch.num_rows(), marked + marks.true_count());
        }
        assert_eq!((all, marked), (left.len(), with), "round {round}");
    }
}
