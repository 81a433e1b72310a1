//! Joins of random rows and bounds against all pairs of rows.

use super::*;
use crate::operators::keyed::fixtures::{
    KINDS, Numbers, Pair, Passing, Row, SIDES, batch, both, given_out, rows_of, schema,
};

#[derive(Clone, Copy, Debug)]
struct Case {
    kind: JoinKind,
    apart: [i64; 2],
    keyed: bool,
    filtered: bool,
}

fn join(case: Case) -> IntervalJoin {
    let Case { kind, apart, keyed, filtered } = case;
    let keys = if keyed { vec![0] } else { vec![] };
    let side = |name: &str| TimedSide { schema: schema(name), keys: keys.clone(), time: 2 };
    let even = Passing(|left, right| (left + right) % 2 == 0);
    let on = filtered.then(|| Arc::new(even) as Arc<dyn Step>);
    IntervalJoin { sides: SIDES.map(side), apart, kind, on, schema: given_out(kind), both: both() }
}

fn expected(case: Case, left: &[Row], right: &[Row]) -> Vec<Pair> {
    let Case { kind, apart, keyed, filtered } = case;
    let fits = |l: &Row, r: &Row| {
        let equal = !keyed || (l.0.is_some() && l.0 == r.0);
        let near = apart[0] <= l.2 - r.2 && l.2 - r.2 <= apart[1];
        equal && near && (!filtered || (l.1 + r.1) % 2 == 0)
    };
    let mut pairs: Vec<Pair> = vec![];
    for l in left {
        let of = right.iter().filter(|r| fits(l, r));
        pairs.extend(of.map(|r| (Some(*l), Some(*r))));
    }
    let lefts = |with: bool| {
        let of = left.iter().filter(move |l| right.iter().any(|r| fits(l, r)) == with);
        of.map(|row| (Some(*row), None))
    };
    let rights = |with: bool| {
        let of = right.iter().filter(move |r| left.iter().any(|l| fits(l, r)) == with);
        of.map(|row| (None, Some(*row)))
    };
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

/// Rows in batches, and watermarks that no later row lies before.
enum Event {
    Rows(usize, Vec<Row>),
    Watermark(i64),
}

fn events(numbers: &mut Numbers) -> Vec<Event> {
    let (mut watermark, mut events) = (-50, vec![]);
    for round in 0..12 {
        let rows = numbers.below(8);
        let mut row = |number| {
            let key = numbers.below(4);
            ((key > 0).then_some(key), 100 * round + number, watermark + numbers.below(40))
        };
        let rows: Vec<Row> = (0..rows).map(&mut row).collect();
        events.push(Event::Rows(numbers.below(2) as usize, rows));
        if numbers.below(3) > 0 {
            watermark += numbers.below(30);
            events.push(Event::Watermark(watermark));
        }
    }
    events.push(Event::Watermark(i64::MAX));
    events
}

#[test]
fn every_kind_gives_what_all_pairs_give() {
    let mut numbers = Numbers(11);
    let (mut early, mut alone) = (0, 0);
    for round in 0..640 {
        let least = numbers.below(60) - 40;
        let apart = [least, least + numbers.below(3) * numbers.below(30)];
        let (keyed, filtered) = (round % 3 > 0, round % 5 > 2);
        let case = Case { kind: KINDS[round % 8], apart, keyed, filtered };
        let mut state = join(case).create();
        let (mut all, mut got) = ([vec![], vec![]], vec![]);
        let (mut watermark, mut complete) = (i64::MIN, i64::MIN);
        for event in events(&mut numbers) {
            match event {
                Event::Rows(side, rows) => {
                    let name = SIDES[side];
                    state.push(side, batch(name, &rows)).unwrap();
                    all[side].extend(rows);
                }
                Event::Watermark(at) => watermark = at,
            }
            let rows_max = 1 + numbers.below(9) as usize;
            let before = got.len();
            while let Some(batch) = state.advance(watermark, rows_max).unwrap() {
                let rows = rows_of(&batch, case.kind);
                assert!(!rows.is_empty() && rows.len() <= rows_max);
                let times = rows.iter().flat_map(|(l, r)| l.iter().chain(r)).map(|row| row.2);
                assert!(times.min() >= Some(complete), "{case:?}: before the watermark given out");
                got.extend(rows);
            }
            assert!(!state.ready());
            early += usize::from(watermark < i64::MAX && got.len() > before);
            // No time is so early.
            complete = state.complete(watermark.max(-1_000));
        }
        alone += got.iter().filter(|(l, r)| l.is_none() || r.is_none()).count();
        got.sort();
        assert_eq!(got, expected(case, &all[0], &all[1]), "{case:?} in round {round}");
        assert_eq!(state.bytes(), 0, "nothing is left behind");
    }
    assert!(early > 500 && alone > 1_000, "too tame: {early}, {alone}");
}

#[test]
fn state_is_dropped_when_time_has_passed_it() {
    for kind in KINDS {
        let case = Case { kind, apart: [-10, 20], keyed: true, filtered: false };
        let mut state = join(case).create();
        let mut most = 0;
        for step in 0..200 {
            let rows: Vec<Row> =
                (0..20).map(|at| (Some(at % 5), at, step * 10 + at % 10)).collect();
            state.push(step as usize % 2, batch(SIDES[step as usize % 2], &rows)).unwrap();
            while state.advance(step * 10, 64).unwrap().is_some() {}
            if step == 20 {
                most = state.bytes();
            }
            assert!(step < 20 || state.bytes() <= 2 * most, "{kind:?}: state grows with time");
        }
        assert!(most > 0);
    }
}

#[test]
fn keys_that_never_come_back_are_forgotten_and_others_still_meet() {
    let case = Case { kind: JoinKind::Inner, apart: [-10, 20], keyed: true, filtered: false };
    let mut state = join(case).create();
    let (mut bytes, mut pairs) = (vec![], 0);
    for step in 0..300 {
        // One key comes always, the others once.
        let key = |at: i64| if at == 0 { 1 } else { (step + 1) * 100 + at };
        let rows: Vec<Row> = (0..100).map(|at| (Some(key(at)), at, step * 10)).collect();
        for (side, columns) in SIDES.into_iter().enumerate() {
            state.push(side, batch(columns, &rows)).unwrap();
        }
        while let Some(batch) = state.advance(step * 10, 64).unwrap() {
            pairs += batch.num_rows();
        }
        bytes.push(state.bytes());
    }
    // A left row meets those of its own step, of the two before, and of the one behind.
    assert_eq!(pairs, 300 * 100 + 299 + 298 + 299);
    let (early, late) = (bytes[..150].iter().max().unwrap(), bytes[150..].iter().max().unwrap());
    assert!(late * 2 < early * 3, "state grows with keys: {early}, {late}");
}
