//! Groups that are cut at some watermark, saved, and taken up by the leaders of other workers,
//! against the same without a cut.

use std::num::NonZeroU64;
use std::sync::Arc;

use arrow::array::{
    ArrayRef, Float64Array, Int64Array, RecordBatch, StringArray, TimestampMillisecondArray,
};
use arrow::compute::filter_record_batch;
use arrow::datatypes::{DataType, Field, Schema, TimeUnit};
use state::sim::{SimDisk, SimDiskOptions};
use state::{
    GroupBy, KeyMode, KeyRows, SaveRound, StateOptions, Triggered, Windowed, Windows, aggregates,
};

use super::fold::Folder;
use super::saved::{self, KeptGroups, RestoredGroups};
use crate::checkpoint::{OperatorSnapshot, Restored, SavedRows, WorkerSnapshot};
use crate::error::DataflowError;
use crate::exchange::{Partition, uppar};
use crate::job::{Aggregation, Exchange, JobGraph, Operator, OperatorKind, Settings, TimeWindow};
use crate::operators::keyed::fixtures::Numbers;
use crate::operators::restoring::Restoring;

const WIDTH: i64 = 100;
const ROUNDS: i64 = 10;
const MOVES: [[u32; 2]; 4] = [[1, 1], [1, 3], [3, 2], [2, 1]];

/// Columns of the rows: two numbers, a float, a text, a value and a time.
const TIME: usize = 4;

fn schema() -> Arc<Schema> {
    let time = DataType::Timestamp(TimeUnit::Millisecond, None);
    let columns = [
        ("number", DataType::Int64),
        ("float", DataType::Float64),
        ("text", DataType::Utf8),
        ("value", DataType::Int64),
        ("time", time),
    ];
    Arc::new(Schema::new(columns.map(|(name, of)| Field::new(name, of, true)).to_vec()))
}

/// The grouping, and the exchange by which its groups meet.
#[derive(Debug, Clone, Copy)]
struct Case {
    keys: &'static [usize],
    windows: Option<Windows>,
    exchange: Exchange,
    key_mode: Option<KeyMode>,
    early: bool,
    spills: bool,
}

fn aggregation(case: &Case) -> Aggregation {
    let of = DataType::Int64;
    let all = [
        (aggregates::count(), vec![]),
        (aggregates::count_of(&of), vec![3]),
        (aggregates::sum(&of).unwrap(), vec![3]),
        (aggregates::min(&of).unwrap(), vec![3]),
        (aggregates::max(&of).unwrap(), vec![0]),
        (aggregates::avg(&of).unwrap(), vec![3]),
    ];
    let (aggregates, args) = all.into_iter().unzip();
    let schema = schema();
    let keys = case.keys.iter().map(|&key| schema.field(key).data_type().clone()).collect();
    let options = StateOptions { key_mode: case.key_mode, ..StateOptions::default() };
    let time_type = schema.field(TIME).data_type().clone();
    let window = |windows| TimeWindow { column: TIME, time_type, windows, attached: false };
    Aggregation {
        input_schema: schema.clone(),
        group_by: Arc::new(GroupBy { keys, aggregates, options }),
        keys: case.keys.to_vec(),
        args,
        window: case.windows.map(window),
        exchange: case.exchange,
        early_ns: NonZeroU64::new(u64::from(case.early)),
        // It is not asked for.
        schema,
    }
}

fn rows(numbers: &mut Numbers, count: i64, round: i64) -> RecordBatch {
    let count = numbers.below(count + 1);
    let mut column =
        |limit: i64| -> Vec<i64> { (0..count).map(|_| numbers.below(limit)).collect() };
    let (keys, texts, values, times) = (column(150), column(4), column(90), column(4 * WIDTH));
    let some = |value: &i64| (*value > 0).then_some(*value);
    let float = |key: &i64| match key % 7 {
        0 => None,
        1 => Some(0.0),
        2 => Some(-0.0),
        3 => Some(f64::NAN),
        4 => Some(-f64::NAN),
        other => Some(other as f64 / 4.0),
    };
    let text = |text: &i64| some(text).map(|text| format!("a text of some length, {text}"));
    let columns: Vec<ArrayRef> = vec![
        Arc::new(keys.iter().map(some).collect::<Int64Array>()),
        Arc::new(keys.iter().map(float).collect::<Float64Array>()),
        Arc::new(texts.iter().map(text).collect::<StringArray>()),
        Arc::new(values.iter().map(some).collect::<Int64Array>()),
        Arc::new(TimestampMillisecondArray::from_iter_values(
            times.iter().map(|time| WIDTH * round + time),
        )),
    ];
    RecordBatch::try_new(schema(), columns).unwrap()
}

/// Rows that are not late, and the watermark behind them.
fn rounds(seed: u64, count: i64) -> Vec<(RecordBatch, i64)> {
    let mut numbers = Numbers(seed);
    let mut round = |round: i64| {
        let rows = rows(&mut numbers, count, round);
        (rows, if round == ROUNDS - 1 { i64::MAX } else { WIDTH * round + WIDTH / 2 })
    };
    (0..ROUNDS).map(&mut round).collect()
}

/// The leaders of groups on some workers.
struct Bed {
    spec: Aggregation,
    of: Aggregation,
    merged: Vec<(Windowed, Folder)>,
    given: Vec<Vec<u8>>,
}

impl Bed {
    fn new(case: &Case, workers: u32) -> Self {
        let of = aggregation(case);
        let spec = of.with_session_times();
        let merged = |_| {
            let windows = spec.window.as_ref().map(|window| window.windows);
            let mut merged = Windowed::new(&spec.group_by, windows);
            if case.spills {
                merged.slices().spill_to(SimDisk::new(SimDiskOptions::default()), None);
                merged.set_budget(40 << 10);
            }
            (merged, Folder::new(&spec))
        };
        Self { merged: (0..workers).map(merged).collect(), spec, of, given: vec![] }
    }

    fn workers(&self) -> u32 {
        self.merged.len() as u32
    }

    fn play(&mut self, rounds: &[(RecordBatch, i64)], early: bool) {
        let workers = self.workers();
        let partition = match self.of.exchange {
            Exchange::Merge => Partition::in_blocks(&self.of.keys, 0, workers, workers),
            Exchange::UpPar if workers > 1 => uppar(&self.of.keys, 0, workers),
            _ => Partition::by_key(&self.of.keys, 0, workers, workers),
        };
        for (rows, watermark) in rounds {
            let mut owners = vec![];
            partition.owners(rows, None, &mut owners).unwrap();
            for (worker, (merged, folder)) in (0..).zip(&mut self.merged) {
                let mine = owners.iter().map(|&owner| Some(owner == worker)).collect();
                let mine = filter_record_batch(rows, &mine).unwrap();
                if mine.num_rows() > 0 {
                    folder.fold(&mine, None, merged.slices()).unwrap();
                }
            }
            self.advance(*watermark, early);
        }
    }

    /// Early results are final where nothing has come since: they are looked at, and not kept.
    fn advance(&mut self, watermark: i64, early: bool) {
        for (merged, _) in &mut self.merged {
            while let Some(triggered) = merged.trigger(watermark).unwrap() {
                self.given.extend(bytes_of(triggered));
            }
            while early && merged.early().unwrap().is_some() {}
        }
    }

    fn job(&self) -> JobGraph {
        let kind = OperatorKind::Aggregate(Box::new(self.of.clone()));
        let operators = vec![Operator::new("groups", vec![vec![]], kind)];
        JobGraph { operators, settings: Settings::default() }
    }

    fn save(&mut self, watermark: i64) -> Restored {
        let (form, early) = (self.of.saved_parts(), self.of.early_ns.is_some());
        let save = |(worker, (merged, _)): (u32, &mut (Windowed, Folder))| {
            let KeptGroups { parts, stored } =
                saved::save(merged, SaveRound::default(), &form, early, None).unwrap();
            let (operator, version) = (0, form.version);
            let snapshot = OperatorSnapshot { operator, version, watermark, parts, stored };
            let operators = vec![snapshot];
            WorkerSnapshot { worker, operators, ..WorkerSnapshot::default() }
        };
        let workers = (0..).zip(&mut self.merged).map(save).collect();
        Restored { round: 1, workers }
    }

    fn load(&mut self, restored: &Restored) {
        let (job, workers, keys) = (self.job(), self.workers(), self.spec.keys.len());
        for (worker, (merged, _)) in (0..).zip(&mut self.merged) {
            let from = Restoring::new(restored, &job, worker, workers);
            let mut loading = RestoredGroups::default();
            from.each(0, |saved| loading.take(merged, keys, &saved)).unwrap();
            loading.finish(merged, from.watermark(0));
        }
    }
}

/// Rows with the bounds of their window.
fn bytes_of(Triggered { window, columns, .. }: Triggered) -> Vec<Vec<u8>> {
    let bounds = window.map(|window| [window.start, window.end]);
    let rows = columns.rows();
    let bound = |at: usize| -> ArrayRef {
        Arc::new(Int64Array::from(vec![bounds.map(|bounds| bounds[at]); rows]))
    };
    let all = columns.keys.into_iter().chain(columns.states).chain([bound(0), bound(1)]);
    let rows = KeyRows::of(&all.collect::<Vec<_>>()).unwrap();
    rows.iter().map(|row| row.data().to_vec()).collect()
}

fn cut(case: &Case, rounds: &[(RecordBatch, i64)], at: usize, [from, to]: [u32; 2]) -> Cut {
    let mut before = Bed::new(case, from);
    before.play(&rounds[..at], case.early);
    let watermark = at.checked_sub(1).map_or(i64::MIN, |last| rounds[last].1);
    let restored = before.save(watermark);
    let mut after = Bed::new(case, to);
    after.load(&restored);
    let mut again = 0;
    for (merged, _) in &mut after.merged {
        while case.early && merged.early().unwrap().is_some() {
            again += 1;
        }
    }
    after.play(&rounds[at..], case.early);
    let mut given = before.given;
    given.extend(after.given);
    given.sort();
    let mut saved = 0;
    for operator in restored.workers.iter().flat_map(|worker| &worker.operators) {
        let count = |SavedRows { part, rows }| {
            saved += if part == 0 { rows.num_rows() } else { 0 };
            Ok::<_, DataflowError>(())
        };
        operator.each(count).unwrap();
    }
    Cut { given, saved, again }
}

struct Cut {
    given: Vec<Vec<u8>>,
    /// Groups that were saved.
    saved: usize,
    /// Early results that were emitted again though nothing had come.
    again: usize,
}

fn check(case: &Case) {
    let mut saved = 0;
    for (seed, count) in [(1, 0), (2, 1), (3, 40), (4, 300)] {
        let rounds = rounds(seed, count);
        let mut whole = Bed::new(&Case { spills: false, early: false, ..*case }, 1);
        whole.play(&rounds, false);
        whole.given.sort();
        let mut numbers = Numbers(seed + 10);
        for moved in [MOVES[seed as usize % 4], MOVES[(seed as usize + case.keys.len()) % 4]] {
            let at = numbers.below(ROUNDS) as usize;
            let cut = cut(case, &rounds, at, moved);
            let what = format!("{case:?}, {count} rows, {moved:?}, cut at {at}");
            assert_eq!(cut.given.len(), whole.given.len(), "{what}");
            assert!(cut.given == whole.given, "{what}");
            assert_eq!(cut.again, 0, "{what}: nothing has come since");
            saved += cut.saved;
        }
    }
    assert!(saved > 0, "too tame: {case:?}");
}

const EXCHANGES: [Exchange; 3] = [Exchange::Merge, Exchange::Shuffle, Exchange::UpPar];
const NO_KEYS: &[usize] = &[];
const KEYS: [&[usize]; 5] = [NO_KEYS, &[0], &[1], &[2], &[0, 2]];

fn windows() -> [Option<Windows>; 6] {
    [
        None,
        Windows::tumbling(WIDTH, 0),
        Windows::hopping(5 * WIDTH, WIDTH, 3),
        Windows::hopping(WIDTH, 2 * WIDTH, 0),
        Windows::cumulating(6 * WIDTH, WIDTH, 0),
        Windows::sessions(WIDTH / 4),
    ]
}

#[test]
fn groups_go_on_elsewhere() {
    for keys in KEYS {
        for windows in windows() {
            for exchange in EXCHANGES {
                let base =
                    Case { keys, windows, exchange, key_mode: None, early: false, spills: false };
                check(&base);
            }
        }
    }
}

#[test]
fn groups_on_a_disk_go_on_elsewhere() {
    for keys in [KEYS[1], KEYS[4]] {
        for windows in windows() {
            let exchange = Exchange::Merge;
            check(&Case { keys, windows, exchange, key_mode: None, early: false, spills: true });
        }
    }
}

#[test]
fn early_results_are_not_emitted_again() {
    for key_mode in [None, Some(KeyMode::Hash), Some(KeyMode::Array)] {
        for windows in windows() {
            for spills in [false, true] {
                let (keys, exchange) = (KEYS[1], Exchange::Shuffle);
                check(&Case { keys, windows, exchange, key_mode, early: true, spills });
            }
        }
    }
}

/// The loader of a group does not trust its saver.
#[test]
fn groups_go_to_the_leaders_of_their_keys() {
    let case = Case {
        keys: KEYS[1],
        windows: Windows::tumbling(WIDTH, 0),
        exchange: Exchange::Shuffle,
        key_mode: None,
        early: false,
        spills: false,
    };
    let rounds = rounds(9, 200);
    let mut whole = Bed::new(&case, 1);
    whole.play(&rounds, false);
    whole.given.sort();
    let mut before = Bed::new(&case, 3);
    before.play(&rounds[..5], false);
    let mut restored = before.save(rounds[4].1);
    // Each says that it was another.
    restored.workers.iter_mut().for_each(|worker| worker.worker = (worker.worker + 1) % 3);
    let merge = Case { exchange: Exchange::Merge, ..case };
    let mut after = Bed::new(&merge, 3);
    after.load(&restored);
    after.play(&rounds[5..], false);
    let mut given = before.given;
    given.extend(after.given);
    given.sort();
    assert!(given == whole.given);
}
