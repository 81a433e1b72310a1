//! Chains of joins in one pass, whose stages change places, against nested loops.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use state::NullKeys;

use super::chains::{
    ROWS_MAX, Stage, Values, batch, expected, joined, schema, some_rows, stage, values_of,
};
use crate::exchange::Task;
use crate::job::{ChainColumn, ChainStage, JoinKind, ProbeChain};
use crate::operators::keyed::fixtures::Numbers;
use crate::operators::probe_chain::{ChainRun, TURN_LOOKUPS};
use crate::operators::probe_stage::{EmittedRows, ProbeBuild, ProbeOutput, ProbeStage};
use crate::pairing::Hashed;
use crate::rows::selection::Selection;
use crate::runtime::metrics::{Metrics, OperatorMetrics};

/// A join of a chain without an operator around it.
struct TestStage {
    tag: usize,
    hashed: Option<Arc<Hashed>>,
    passes: EmittedRows,
    metrics: Arc<Metrics>,
    next: Option<Box<TestStage>>,
    emitted: RefCell<Vec<Selection>>,
}

impl ProbeStage for TestStage {
    fn build(&self) -> Option<ProbeBuild> {
        Some(ProbeBuild { hashed: self.hashed.clone()?, passes: self.passes })
    }

    fn counters(&self) -> Option<&OperatorMetrics> {
        self.metrics.operators().get(self.tag)
    }

    fn next(&self) -> Option<&dyn ProbeStage> {
        self.next.as_deref().map(|next| next as _)
    }

    fn emit(&self, rows: Selection) -> Task<'_> {
        self.emitted.borrow_mut().push(rows);
        Box::pin(std::future::ready(Ok(())))
    }
}

/// The chain of some joins, each of which is given the columns that the one before kept.
fn chain_of(stages: &[Stage], width: usize) -> ProbeChain {
    let mut columns: Vec<ChainColumn> =
        (0..width).map(|column| ChainColumn { build: None, column }).collect();
    let mut chained = vec![];
    for (at, stage) in stages.iter().enumerate() {
        let keys = vec![columns[stage.key]];
        let added = if stage.kind.shows(1) { 2 } else { 0 };
        let of_build = |column| ChainColumn { build: Some(at), column };
        columns.extend((0..added).map(of_build));
        columns = stage.kept.iter().map(|&column| columns[column]).collect();
        chained.push(ChainStage { kind: stage.kind, keys, width: added });
    }
    let schema = schema(columns.len());
    ProbeChain { joins: (0..stages.len()).collect(), stages: chained, width, columns, schema }
}

/// The joins of a chain, the first one around the others.
fn stages_of(stages: &[Stage], metrics: &Arc<Metrics>, first: usize) -> Option<Box<TestStage>> {
    let stage = stages.get(first)?;
    let builds = stage.build.chunks(4).map(|rows| batch(2, rows)).collect();
    let hashed = Hashed::new(builds, &schema(2), &[0], stage.nulls).expect("rows");
    Some(Box::new(TestStage {
        tag: first,
        hashed: Some(Arc::new(hashed)),
        passes: EmittedRows::All,
        metrics: metrics.clone(),
        next: stages_of(stages, metrics, first + 1),
        emitted: RefCell::default(),
    }))
}

/// The results of rows that come in batches of 50.
fn passed(run: &ChainRun, head: &TestStage, probe: &[Values], width: usize) -> Vec<Values> {
    let mut rows = vec![];
    for values in probe.chunks(50) {
        let batch = Selection::of(batch(width, values));
        let mut pass = run.pass(head, &batch).expect("columns").expect("complete builds");
        loop {
            let selection = match pass.next().expect("rows") {
                ProbeOutput::Rows(selection) => selection,
                ProbeOutput::Yield => continue,
                ProbeOutput::End => break,
            };
            assert!((1..=ROWS_MAX).contains(&selection.len()));
            rows.extend(values_of(&selection.materialized().expect("columns")));
        }
    }
    rows
}

fn sorted(mut rows: Vec<Values>) -> Vec<Values> {
    rows.sort();
    rows
}

fn counted(metrics: &Metrics, of: impl Fn(&OperatorMetrics) -> u64) -> Vec<u64> {
    metrics.operators().iter().map(of).collect()
}

#[test]
fn chains_in_one_pass_give_what_nested_loops_give_in_any_order() {
    let mut numbers = Numbers(31);
    let mut changes = 0;
    for round in 0..200 {
        let (width, mut columns) = (3, 3);
        let probe = some_rows(&mut numbers, width, 900);
        let mut stages = vec![];
        for _ in 0..2 + numbers.below(3) {
            let mut stage = stage(&mut numbers, columns);
            stage.filtered = false;
            if stage.kind == JoinKind::Left {
                stage.kind = JoinKind::Inner;
            }
            let shown = if stage.kind.shows(1) { columns + 2 } else { columns };
            stage.kept.retain(|&column| column < shown);
            if stage.kept.is_empty() {
                stage.kept.push(0);
            }
            columns = stage.kept.len();
            stages.push(stage);
        }
        let metrics = Arc::new(Metrics::default());
        metrics.count_operators(stages.len());
        let head = stages_of(&stages, &metrics, 0).expect("a join");
        let chain = Arc::new(chain_of(&stages, width));
        let run = ChainRun::new(Some(&chain), 0, false, ROWS_MAX).expect("a head");
        let rows = passed(&run, &head, &probe, width);
        let expected = stages.iter().fold(probe, |rows, stage| expected(stage, &rows));
        assert_eq!(sorted(rows), sorted(expected), "round {round}: {}", chain.text());
        changes += counted(&metrics, |of| of.order_changes.load(Ordering::Relaxed))[0];
    }
    assert!(changes > 20, "{changes} changes of an order");
}

/// Joins by the columns 0, 1 and 2 of the rows, whose builds have the keys from 1 to each of
/// `keys`; all columns are kept.
fn by_column(keys: [i64; 3]) -> Vec<Stage> {
    let stage = |(at, keys): (usize, &i64)| Stage {
        kind: JoinKind::Inner,
        nulls: NullKeys::Nothing,
        key: at,
        build: (1..=*keys).map(|key| vec![Some(key), Some(10 * key)]).collect(),
        filtered: false,
        kept: (0..5 + 2 * at).collect(),
    };
    keys.iter().enumerate().map(stage).collect()
}

/// Rows whose columns have values from 1 to 8, evenly.
fn even_rows(rows: i64) -> Vec<Values> {
    let row = |row: i64| vec![Some(1 + row % 8), Some(1 + row / 8 % 8), Some(1 + row / 64 % 8)];
    (0..rows).map(row).collect()
}

#[test]
fn the_build_that_drops_most_is_looked_up_first_and_the_rows_stay_the_same() {
    let (stages, probe) = (by_column([8, 4, 1]), even_rows(5120));
    let metrics = Arc::new(Metrics::default());
    metrics.count_operators(3);
    let head = stages_of(&stages, &metrics, 0).expect("joins");
    let chain = Arc::new(chain_of(&stages, 3));
    assert_eq!(chain.text(), "[0], [1], [2] look up in one pass; their order may change");
    let run = ChainRun::new(Some(&chain), 0, false, ROWS_MAX).expect("a head");
    let rows = passed(&run, &head, &probe, 3);

    // The order of the plan, join by join.
    let selections = probe.chunks(50).map(|rows| Selection::of(batch(3, rows))).collect();
    let (fixed, _) = stages.iter().fold((selections, 3), |(rows, width), stage| {
        (joined(stage, rows, width), stage.kept.len())
    });
    let fixed = fixed.iter().flat_map(|rows| values_of(&rows.materialized().expect("columns")));
    let fixed: Vec<Values> = fixed.collect();
    assert_eq!(fixed.len(), 5120 / 16);
    assert_eq!(fixed[0].len(), 9);
    assert_eq!(sorted(rows), sorted(fixed));

    assert_eq!(counted(&metrics, |of| of.order_changes.load(Ordering::Relaxed)), [1, 0, 0]);
    // Two batches of 50 rows in the order of the plan, and all others beginning with the last join.
    let looked_up = counted(&metrics, |of| of.chain_rows.load(Ordering::Relaxed));
    assert!(looked_up[2] >= 5120 - 100, "{looked_up:?}");
    assert!(looked_up[0] < 5120 / 8 && looked_up[1] < 5120 / 4, "{looked_up:?}");
}

/// Two joins: a row of the probe side has `partners` partners in the first one, of which the second
/// one keeps those from the number `from` on.
fn multiplied(partners: i64, from: i64) -> Vec<Stage> {
    let stage = |kind, key, build, kept| {
        let nulls = NullKeys::Nothing;
        Stage { kind, nulls, key, build, filtered: false, kept }
    };
    let many = (1..=partners).map(|number| vec![Some(1), Some(number)]).collect();
    let few = (from..=partners).map(|number| vec![Some(number), None]).collect();
    vec![stage(JoinKind::Inner, 0, many, vec![1, 3]), stage(JoinKind::LeftSemi, 1, few, vec![0, 1])]
}

#[test]
fn a_stage_that_drops_what_another_multiplies_gives_turns_before_the_end() {
    let partners = 1000;
    // None is left, the last one of each row is, and all are.
    for from in [partners + 1, partners, 1] {
        let stages = multiplied(partners, from);
        let metrics = Arc::new(Metrics::default());
        metrics.count_operators(stages.len());
        let head = stages_of(&stages, &metrics, 0).expect("joins");
        let chain = Arc::new(chain_of(&stages, 2));
        assert_eq!(chain.text(), "[0], [1] look up in one pass; in this order");
        let run = ChainRun::new(Some(&chain), 0, false, ROWS_MAX).expect("a head");
        let probe = [[Some(1), Some(7)].to_vec(), [Some(1), Some(8)].to_vec()];
        let rows = Selection::of(batch(2, &probe));
        let mut pass = run.pass(&*head, &rows).expect("columns").expect("complete builds");

        let (mut given, mut turns, mut before) = (vec![], 0, 0);
        loop {
            let output = pass.next().expect("rows");
            let came = counted(&metrics, |of| of.chain_rows.load(Ordering::Relaxed))[1];
            let looked_up = came - before;
            before = came;
            assert!(looked_up <= (TURN_LOOKUPS * ROWS_MAX) as u64, "{looked_up} rows in a call");
            match output {
                ProbeOutput::Rows(rows) => {
                    given.extend(values_of(&rows.materialized().expect("columns")));
                }
                ProbeOutput::Yield => turns += 1,
                ProbeOutput::End => break,
            }
        }
        let pairs = probe.len() * partners as usize;
        assert_eq!(before, pairs as u64);
        let expected = stages.iter().fold(probe.to_vec(), |rows, stage| expected(stage, &rows));
        assert_eq!(expected.len() as i64, 2 * (partners + 1 - from));
        assert_eq!(sorted(given), sorted(expected));
        // No batch is without a row if all are left.
        let lookups = pairs / ROWS_MAX;
        let at_least = if from == 1 { 0 } else { lookups / TURN_LOOKUPS - 2 };
        assert!((at_least..=lookups / TURN_LOOKUPS).contains(&turns), "{turns} turns");
        assert_eq!(turns == 0, from == 1, "{turns} turns");
    }
}

#[test]
fn a_build_that_is_not_there_takes_no_row_and_not_in_has_its_own_rows() {
    let metrics = Arc::new(Metrics::default());
    metrics.count_operators(3);
    let stages = by_column([8, 8, 8]);
    let chain = Arc::new(chain_of(&stages, 3));
    let mut head = stages_of(&stages, &metrics, 0).expect("joins");
    let rows = Selection::of(batch(3, &even_rows(50)));
    let run = ChainRun::new(Some(&chain), 0, false, ROWS_MAX).expect("a head");
    let next = |head: &mut TestStage, hashed| {
        let next = head.next.as_mut().expect("a join");
        std::mem::replace(&mut next.hashed, hashed)
    };
    let hashed = next(&mut head, None);
    assert!(run.pass(&*head, &rows).expect("columns").is_none());
    next(&mut head, hashed);
    assert!(run.pass(&*head, &rows).expect("columns").is_some());
    // The chain has one head, and rows that markers follow go from join to join.
    assert!(ChainRun::new(Some(&chain), 1, false, ROWS_MAX).is_none());
    assert!(ChainRun::new(Some(&chain), 0, true, ROWS_MAX).is_none());

    let with_null = [even_rows(16), vec![vec![Some(1), None, Some(1)]]].concat();
    for (passes, left) in [(EmittedRows::All, 1), (EmittedRows::WithKey, 0), (EmittedRows::None, 0)]
    {
        let mut stages = by_column([8, 8, 8]);
        stages[1].kind = JoinKind::LeftAnti;
        stages[1].kept = (0..5).collect();
        stages[2].kept = (0..7).collect();
        let chain = Arc::new(chain_of(&stages, 3));
        let mut head = stages_of(&stages, &metrics, 0).expect("joins");
        head.next.as_mut().expect("a join").passes = passes;
        let run = ChainRun::new(Some(&chain), 0, false, ROWS_MAX).expect("a head");
        assert_eq!(passed(&run, &head, &with_null, 3).len(), left, "{passes:?}");
    }
}
