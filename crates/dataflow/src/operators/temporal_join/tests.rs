//! Random rows and versions against a look at all versions for each row.

use super::*;
use crate::job::JoinKind;
use crate::operators::keyed::fixtures::{Numbers, Row, SIDES, batch, both, rows_of, schema};

fn join(outer: bool, earlier: bool) -> TemporalJoin {
    let side = |name: &str| TimedSide { schema: schema(name), keys: vec![0], time: 2 };
    TemporalJoin { sides: SIDES.map(side), outer, earlier, schema: both() }
}

/// Left rows, with the version that each met.
fn given(batch: &RecordBatch) -> Vec<(Row, Option<Row>)> {
    let rows = rows_of(batch, JoinKind::Left).into_iter();
    rows.map(|(left, right)| (left.unwrap(), right)).collect()
}

fn expected(outer: bool, earlier: bool, left: &[Row], right: &[Row]) -> Vec<(Row, Option<Row>)> {
    let version = |l: &Row| {
        let of = right.iter().filter(|r| r.0.is_some() && r.0 == l.0);
        let of = of.filter(|r| r.2 < l.2 || (!earlier && r.2 == l.2));
        of.max_by_key(|r| (r.2, r.1)).copied()
    };
    let all = left.iter().map(|l| (*l, version(l)));
    let mut all: Vec<_> = all.filter(|(_, version)| outer || version.is_some()).collect();
    all.sort();
    all
}

#[test]
fn each_row_meets_the_version_of_its_time() {
    let mut numbers = Numbers(17);
    let mut met = 0;
    for round in 0..400 {
        let (outer, earlier) = (round % 2 == 0, round % 3 == 0);
        let mut state = join(outer, earlier).create();
        let (mut all, mut got) = ([vec![], vec![]], vec![]);
        let mut watermark = -50;
        for step in 0..40 {
            let side = numbers.below(2) as usize;
            let rows: Vec<Row> = (0..numbers.below(12))
                .map(|number| {
                    let key = numbers.below(4);
                    let time = watermark + numbers.below(40);
                    ((key > 0).then_some(key), 100 * step + number, time)
                })
                .collect();
            state.push(side, batch(SIDES[side], &rows)).unwrap();
            all[side].extend(rows);
            let next = if step == 39 { i64::MAX } else { watermark + numbers.below(20) };
            let rows_max = 1 + numbers.below(9) as usize;
            while let Some(batch) = state.advance(next, rows_max).unwrap() {
                let rows = given(&batch);
                assert!(!rows.is_empty() && rows.len() <= rows_max);
                assert!(rows.iter().all(|(l, _)| watermark <= l.2 && l.2 < next));
                got.extend(rows);
            }
            watermark = next;
        }
        met += got.iter().filter(|(_, version)| version.is_some()).count();
        got.sort();
        assert_eq!(got, expected(outer, earlier, &all[0], &all[1]), "round {round}");
        assert_eq!(state.bytes(), 0, "nothing is left behind");
    }
    assert!(met > 10_000, "too tame: {met}");
}

#[test]
fn versions_that_were_replaced_are_forgotten() {
    let mut state = join(false, false).create();
    let mut bytes = vec![];
    for step in 0..400 {
        let rows: Vec<Row> = (0..100).map(|at| (Some(at % 10), step, step * 100 + at)).collect();
        state.push(1, batch("right", &rows)).unwrap();
        assert!(state.advance(step * 100, 64).unwrap().is_none());
        bytes.push(state.bytes());
    }
    let early = bytes[..100].iter().max().unwrap();
    let late = bytes[300..].iter().max().unwrap();
    assert!(late < &(2 * early), "state grows with time: {early}, {late}");
    state.push(0, batch("left", &[(Some(3), 7, 39_950)])).unwrap();
    let rows = given(&state.advance(40_000, 64).unwrap().expect("a row"));
    assert_eq!(rows, [((Some(3), 7, 39_950), Some((Some(3), 399, 39_943)))]);
}
