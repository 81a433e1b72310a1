//! Joins of random windows against all pairs of rows. The time of a row is the end of its window.

use super::*;
use crate::job::Step;
use crate::operators::keyed::fixtures::{
    KINDS, Numbers, Pair, Passing, Row, SIDES, batch, both, given_out, rows_of, schema,
};

fn join(kind: JoinKind, keyed: bool, filtered: bool) -> WindowJoin {
    let side = |name: &str| JoinSide {
        schema: schema(name),
        keys: if keyed { vec![0] } else { vec![] },
        window_end: 2,
    };
    let less = Passing(|left, right| left < right);
    let on = filtered.then(|| Arc::new(less) as Arc<dyn Step>);
    let sides = SIDES.map(side);
    WindowJoin { sides, kind, on, schema: given_out(kind), both: both() }
}

fn expected(kind: JoinKind, keyed: bool, filtered: bool, left: &[Row], right: &[Row]) -> Vec<Pair> {
    let fits = |l: &Row, r: &Row| {
        let equal = !keyed || (l.0.is_some() && l.0 == r.0);
        l.2 == r.2 && equal && (!filtered || l.1 < r.1)
    };
    let mut pairs = vec![];
    let (mut left_met, mut right_met) = (vec![false; left.len()], vec![false; right.len()]);
    for (i, l) in left.iter().enumerate() {
        for (j, r) in right.iter().enumerate().filter(|(_, r)| fits(l, r)) {
            (left_met[i], right_met[j]) = (true, true);
            pairs.push((Some(*l), Some(*r)));
        }
    }
    let alone = |rows: &[Row], met: &[bool], with: bool| -> Vec<Row> {
        let of = rows.iter().zip(met).filter(|(_, met)| **met == with);
        of.map(|(row, _)| *row).collect()
    };
    let lefts = |with| alone(left, &left_met, with).into_iter().map(|row| (Some(row), None));
    let rights = |with| alone(right, &right_met, with).into_iter().map(|row| (None, Some(row)));
    match kind {
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

fn rows(numbers: &mut Numbers, most: i64) -> Vec<Row> {
    let rows = numbers.below(most + 1);
    (0..rows)
        .map(|value| {
            let key = numbers.below(6);
            ((key > 0).then_some(key), value, 10 * (1 + numbers.below(4)))
        })
        .collect()
}

#[test]
fn every_kind_gives_what_all_pairs_give() {
    let mut numbers = Numbers(7);
    for round in 0..240 {
        let (kind, keyed, filtered) = (KINDS[round % 8], round % 3 > 0, round % 5 > 2);
        let (left, right) = (rows(&mut numbers, 30), rows(&mut numbers, 30));
        let mut state = join(kind, keyed, filtered).create();
        for (side, name, rows) in [(0, "left", &left), (1, "right", &right)] {
            for part in rows.chunks(7) {
                state.push(side, batch(name, part)).unwrap();
            }
        }
        let mut got = vec![];
        for watermark in [5, 20, 25, i64::MAX] {
            let rows_max = 1 + numbers.below(9) as usize;
            while let Some(batch) = state.advance(watermark, rows_max).unwrap() {
                let rows = rows_of(&batch, kind);
                assert!(!rows.is_empty() && rows.len() <= rows_max);
                let ended = |row: &Row| row.2 <= watermark;
                assert!(rows.iter().all(|(l, r)| l.iter().chain(r).all(ended)));
                got.extend(rows);
            }
        }
        got.sort();
        assert_eq!(
            got,
            expected(kind, keyed, filtered, &left, &right),
            "{kind:?} in round {round}"
        );
        assert_eq!(state.bytes(), 0, "nothing is left behind");
    }
}

#[test]
fn windows_of_few_rows_fire_together() {
    let rows: Vec<Row> = (0..1_000).map(|at| (Some(at % 3), at, at)).collect();
    let mut state = join(JoinKind::Inner, true, false).create();
    for (side, name) in SIDES.into_iter().enumerate() {
        rows.chunks(50).for_each(|part| state.push(side, batch(name, part)).unwrap());
    }
    let given = std::iter::from_fn(|| state.advance(i64::MAX, 256).unwrap());
    assert_eq!(given.map(|batch| batch.num_rows()).collect::<Vec<_>>(), [256, 256, 256, 232]);
    assert_eq!(state.bytes(), 0);
}

/// Small windows meet together, and are counted one by one when all of theirs was given out.
#[test]
fn windows_that_are_over_are_counted() {
    let spec = join(JoinKind::Inner, true, false);
    let mut state = spec.create();
    let row = |end| (Some(1), 7, end);
    state.push(0, batch("left", &[row(10), row(20), row(20)])).unwrap();
    state.push(1, batch("right", &[row(20), row(30)])).unwrap();
    let given = |state: &mut dyn KeyedState, watermark| {
        while state.advance(watermark, 100).unwrap().is_some() {}
        state.windows_over()
    };
    assert_eq!(given(&mut *state, 9), 0);
    assert_eq!(given(&mut *state, 20), 2);
    assert_eq!(given(&mut *state, 20), 0, "once");
    assert_eq!(given(&mut *state, i64::MAX), 1);
}
