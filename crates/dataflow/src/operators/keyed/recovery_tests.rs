//! Operators that are cut at some watermark, saved, and taken up by other workers, against the same
//! without a cut.

mod described;
mod specs;

use std::collections::HashMap;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, BooleanArray, RecordBatch};
use arrow::compute::filter_record_batch;
use arrow::datatypes::{DataType, Int64Type, SchemaRef};
use arrow::ipc::reader::StreamReader;
use arrow::ipc::writer::StreamWriter;
use state::sim::{SimDisk, SimDiskOptions};
use state::{Disk, KeyRows};

use self::specs::{
    interval_join, keyed, over, ranking, rows_of, sessions, temporal_join, window_join,
};
use super::fixtures::{KINDS, Numbers, Row, SIDES, both, schema};
use super::held::HeldNumbers;
use super::spillable::{KeptRows, SpillableState};
use super::unread::{held_rows, stored_rows};
use crate::checkpoint::{
    OperatorSnapshot, Restored, RowsId, SavedRows, StoredRows, WorkerSnapshot,
};
use crate::error::DataflowError;
use crate::exchange::Partition;
use crate::job::worker_set::WorkerSet;
use crate::job::{
    Description, Distribution, Edge, Exchange, JobGraph, Keyed, KeyedOperator, KeyedState,
    MultiPartitioner, Operator, OperatorKind, OperatorSpec, SavedParts, SavedState, Settings,
    SpillSpec,
};
use crate::keyed::{JoinKind, JoinSide, WindowJoin};
use crate::operators::restoring::{Restoring, saved_here};

const WIDTH: i64 = 100;
const ROUNDS: i64 = 10;

/// Bytes that an operator may have: any without a disk, and less and less with one.
const SHARES: [usize; 4] = [usize::MAX, 1 << 30, 6 << 10, 0];

/// From how many workers to how many.
const MOVES: [[u32; 2]; 4] = [[1, 1], [1, 3], [3, 2], [2, 1]];

/// Batches by input and by the worker that reads them, of three; and the watermark behind them.
type Round = (Vec<(usize, usize, RecordBatch)>, i64);

/// Rows of all inputs up to some widths ahead of a watermark that moves by one.
fn rounds(spec: &Keyed, seed: u64, rows: i64, key: &DataType, exact: bool) -> Vec<Round> {
    let mut numbers = Numbers(seed);
    let inputs = spec.inputs.len();
    let mut next = 0;
    let mut one = |round: i64| {
        let mut batches = vec![];
        for at in 0..3 * inputs {
            let count = numbers.below(rows + 1);
            let mut row = |_| -> Row {
                next += 1;
                let (key, ahead) = (numbers.below(9), numbers.below(3 * WIDTH));
                let time = WIDTH * round + if exact { ahead / WIDTH * WIDTH } else { ahead };
                ((key > 0).then_some(key), next, time + WIDTH)
            };
            let rows: Vec<Row> = (0..count).map(&mut row).collect();
            let mut rows = rows_of(SIDES[at % inputs], key, &rows);
            if spec.inputs[at % inputs].schema.fields().len() > 3 {
                let given = rows.column(1).as_primitive::<Int64Type>();
                let given = given.iter().map(|number| number.map(|number| number % 3 == 0));
                let given: ArrayRef = Arc::new(given.collect::<BooleanArray>());
                let columns = rows.columns().iter().cloned().chain([given]).collect();
                let schema = spec.inputs[at % inputs].schema.clone();
                rows = RecordBatch::try_new(schema, columns).unwrap();
            }
            if rows.num_rows() > 0 {
                batches.push((at % inputs, at / inputs, rows));
            }
        }
        (batches, if round == ROUNDS - 1 { i64::MAX } else { WIDTH * round + WIDTH - 1 })
    };
    (0..ROUNDS).map(&mut one).collect()
}

/// The instances of an operator on some workers.
struct Bed<'a> {
    spec: &'a Keyed,
    share: usize,
    states: Vec<SpillableState>,
    numbers: Vec<HeldNumbers>,
    given: Vec<Vec<u8>>,
}

impl<'a> Bed<'a> {
    fn new(spec: &'a Keyed, workers: u32, share: usize) -> Self {
        let disk = || -> Option<Arc<dyn Disk>> {
            (share < usize::MAX).then(|| SimDisk::new(SimDiskOptions::default()) as _)
        };
        let states = (0..workers).map(|_| SpillableState::new(spec, disk())).collect();
        let numbers = (0..workers).map(|_| HeldNumbers::default()).collect();
        Self { spec, share, states, numbers, given: vec![] }
    }

    fn workers(&self) -> u32 {
        self.states.len() as u32
    }

    /// The workers of each row of an input.
    fn receivers(&self, input: usize, reader: usize, rows: &RecordBatch) -> Vec<WorkerSet> {
        let workers = self.workers();
        let of = &self.spec.inputs[input];
        if let Some(several) = self.spec.operator.multi_partitioner(input) {
            let mut sets = vec![];
            several.partition(rows, workers, &mut sets).unwrap();
            return sets;
        }
        let mut owners = vec![];
        match of.distribution {
            Distribution::Broadcast => {
                return vec![WorkerSet::all(0..workers); rows.num_rows()];
            }
            Distribution::Local | Distribution::RoundRobin | Distribution::Partner => {
                owners = vec![reader as u32 % workers; rows.num_rows()];
            }
            Distribution::Hash => {
                let partition = Partition::by_key(&of.keys, 0, workers, workers);
                partition.owners(rows, None, &mut owners).unwrap();
            }
        }
        owners.into_iter().map(|owner| [owner].into_iter().collect()).collect()
    }

    fn play(&mut self, rounds: &[Round]) {
        for (batches, watermark) in rounds {
            for (input, reader, rows) in batches {
                let receivers = self.receivers(*input, *reader, rows);
                for (worker, state) in (0..).zip(&mut self.states) {
                    let mine = receivers.iter().map(|set| Some(set.contains(worker))).collect();
                    let mine = filter_record_batch(rows, &mine).unwrap();
                    if mine.num_rows() > 0 {
                        state.push(*input, mine, self.share).unwrap();
                    }
                }
            }
            self.advance(*watermark);
        }
    }

    fn advance(&mut self, watermark: i64) {
        for state in &mut self.states {
            while let Some(rows) = state.advance(watermark, 7, self.share).unwrap() {
                let rows = KeyRows::exact(rows.columns()).unwrap();
                self.given.extend(rows.iter().map(|row| row.data().to_vec()));
            }
        }
    }

    fn job(&self) -> JobGraph {
        let inputs = vec![vec![]; self.spec.inputs.len()];
        let kind = OperatorKind::Keyed(self.spec.clone());
        let operators = vec![Operator::new("operator", inputs, kind)];
        JobGraph { operators, settings: Settings::default() }
    }

    fn save(&mut self, watermark: i64) -> Restored {
        self.states.iter_mut().for_each(SpillableState::settle);
        self.advance(watermark);
        let SavedState::Parts(form) = self.spec.saved_state() else { panic!("it is saved") };
        let workers = self.workers();
        let mut all = vec![];
        for (worker, state) in (0..).zip(&mut self.states) {
            let place = (worker, workers);
            let KeptRows { held, spilled } = state.save().unwrap();
            let (spec, form_parts) = (Arc::new(self.spec.clone()), form.parts.clone().into());
            let (mut parts, mut stored) = (vec![], vec![]);
            if spec.operator.loads_in_any_order() {
                let numbers = self.numbers[worker as usize].of(&held);
                let held = held.into_iter().zip(numbers);
                stored.extend(held.map(|batch| held_rows(&spec, place, &form_parts, batch)));
            } else {
                for SavedRows { part, rows } in held {
                    let of = &form.parts[part as usize];
                    if let Some(rows) = saved_here(self.spec, place, &of.owner, rows).unwrap() {
                        parts.push(SavedRows { part, rows: encoded(&rows) });
                    }
                }
            }
            let spilled = spilled.into_iter();
            stored.extend(spilled.map(|batch| stored_rows(&spec, place, &form_parts, batch)));
            let stored = stored.into_iter();
            let stored: Vec<_> =
                stored.filter_map(Result::transpose).collect::<Result<_, _>>().unwrap();
            if (0..spec.inputs.len()).all(|of| spec.operator.multi_partitioner(of).is_none()) {
                let rows = |stored: &StoredRows| stored.rows.read().unwrap().len();
                assert!(stored.iter().all(|of| rows(of) > 0), "it would be read each time");
            }
            let operators = vec![OperatorSnapshot {
                operator: 0,
                version: form.version,
                watermark,
                parts,
                stored,
            }];
            all.push(WorkerSnapshot { worker, operators, ..WorkerSnapshot::default() });
        }
        // They come in any order.
        all.reverse();
        Restored { round: 3, workers: all }
    }

    fn load(&mut self, restored: &Restored) {
        let (job, workers) = (self.job(), self.workers());
        for (worker, state) in (0..).zip(&mut self.states) {
            let from = Restoring::new(restored, &job, worker, workers);
            let share = self.share;
            from.each(0, |saved| state.load(saved, share)).unwrap();
        }
    }
}

/// Rows that were written and read.
fn encoded(rows: &RecordBatch) -> RecordBatch {
    let mut bytes = vec![];
    let mut writer = StreamWriter::try_new(&mut bytes, &rows.schema()).unwrap();
    writer.write(rows).unwrap();
    writer.finish().unwrap();
    drop(writer);
    StreamReader::try_new(&bytes[..], None).unwrap().next().unwrap().unwrap()
}

/// The output of an operator that is cut behind some of its rounds, in an order of its own; and how
/// many rows were saved.
fn cut(
    spec: &Keyed,
    rounds: &[Round],
    at: usize,
    [from, to]: [u32; 2],
    share: usize,
) -> (Vec<Vec<u8>>, usize) {
    let mut before = Bed::new(spec, from, share);
    before.play(&rounds[..at]);
    let watermark = at.checked_sub(1).map_or(i64::MIN, |last| rounds[last].1);
    let restored = before.save(watermark);
    // The saved state stays: it is saved once more.
    let restored_again = before.save(watermark);
    let rows = |restored: &Restored| {
        let mut count = 0;
        let mut add = |saved: SavedRows| {
            count += saved.rows.num_rows();
            Ok::<_, DataflowError>(())
        };
        let mut operators = restored.workers.iter().flat_map(|worker| &worker.operators);
        operators.try_for_each(|operator| operator.each(&mut add)).unwrap();
        count
    };
    assert_eq!(rows(&restored), rows(&restored_again));
    let mut after = Bed::new(spec, to, share);
    after.load(&restored);
    after.advance(watermark);
    after.play(&rounds[at..]);
    let mut given = before.given;
    given.extend(after.given);
    given.sort();
    (given, rows(&restored))
}

fn uncut(spec: &Keyed, rounds: &[Round]) -> Vec<Vec<u8>> {
    let mut bed = Bed::new(spec, 1, usize::MAX);
    bed.play(rounds);
    bed.given.sort();
    bed.given
}

/// Cuts everywhere give what no cut gives.
fn check(specs: &[Keyed], key: &DataType) {
    let mut saved_rows = 0;
    for (number, spec) in specs.iter().enumerate() {
        let name = spec.operator.describe(&[]).name;
        for (rows, exact) in [(0, false), (1, true), (8, false), (24, true)] {
            let seed = 31 * number as u64 + rows as u64;
            let rounds = rounds(spec, seed, rows, key, exact);
            let expected = uncut(spec, &rounds);
            let mut numbers = Numbers(seed + 7);
            for (turn, moved) in MOVES.into_iter().enumerate() {
                let share = SHARES[(turn + number + rows as usize) % SHARES.len()];
                let at = numbers.below(ROUNDS) as usize;
                let (given, saved) = cut(spec, &rounds, at, moved, share);
                let what = format!("{name} {number}, {rows} rows, {key}, {moved:?}");
                assert_eq!(given.len(), expected.len(), "{what}, cut at {at}, {share} bytes");
                assert!(given == expected, "{what}, cut at {at}, {share} bytes");
                saved_rows += saved;
            }
        }
    }
    assert!(saved_rows > 100, "too tame: {saved_rows}");
}

/// Rows that have a number are the same in each save, and most that are kept are in the next one.
#[test]
fn rows_that_are_kept_have_a_number_that_stands_for_them() {
    let key = &DataType::Int64;
    let specs: Vec<Keyed> = KINDS
        .into_iter()
        .flat_map(|kind| [window_join(kind, key), interval_join(kind, key)])
        .collect();
    let mut again = 0;
    for (number, spec) in specs.iter().enumerate() {
        let rounds = rounds(spec, 91 + number as u64, 8, key, number % 3 == 0);
        for share in [usize::MAX, 6 << 10] {
            let mut bed = Bed::new(spec, 2, share);
            let mut known = HashMap::<(u32, RowsId), Vec<RecordBatch>>::new();
            for round in &rounds[..ROUNDS as usize - 1] {
                bed.play(std::slice::from_ref(round));
                for WorkerSnapshot { worker, operators, .. } in bed.save(round.1).workers {
                    for StoredRows { rows, .. } in operators.into_iter().flat_map(|of| of.stored) {
                        let id = (worker, rows.id().unwrap());
                        let rows = rows.read().unwrap();
                        let before = known.insert(id, rows.clone());
                        assert!(before.as_ref().is_none_or(|before| *before == rows), "{number}");
                        again += u32::from(before.is_some());
                    }
                }
            }
        }
    }
    assert!(again > 200, "too tame: {again}");
}

/// A case for each type of key, and then again.
fn cases<T>(of: impl IntoIterator<Item = T>, spec: impl Fn(T, &DataType) -> Keyed) {
    let dictionary = DataType::Dictionary(Box::new(DataType::Int32), Box::new(DataType::Utf8));
    let keys = [DataType::Int64, DataType::Float64, dictionary];
    for (of, key) in of.into_iter().zip(keys.iter().cycle()) {
        check(&[spec(of, key)], key);
    }
}

#[test]
fn window_joins_go_on_elsewhere() {
    cases(KINDS, window_join);
}

#[test]
fn interval_joins_go_on_elsewhere() {
    cases(KINDS, interval_join);
}

#[test]
fn temporal_joins_go_on_elsewhere() {
    cases([true, false, true, false], temporal_join);
}

#[test]
fn rankings_go_on_elsewhere() {
    cases([None, Some(1), Some(3)], ranking);
}

#[test]
fn sessions_go_on_elsewhere() {
    let all = [(20, false), (150, true), (150, false), (20, true), (90, true), (90, false)];
    cases(all, |(gap, given), key| sessions(gap, given, key));
}

#[test]
fn frames_go_on_elsewhere() {
    cases([(), (), ()], |(), key| over(key));
}

/// Rows of the right side are everywhere, those of the left side on any worker: what is everywhere
/// is saved once.
#[test]
fn rows_that_are_everywhere_are_saved_once() {
    let key = &DataType::Int64;
    let of = |distribution: Distribution| {
        let inner = window_join(JoinKind::Inner, key);
        let all = [
            inner,
            window_join(JoinKind::Left, key),
            interval_join(JoinKind::Left, key),
            temporal_join(true, key),
        ];
        all.map(|mut spec| {
            spec.inputs[0].distribution = distribution;
            spec.inputs[1].distribution = Distribution::Broadcast;
            spec
        })
    };
    for distribution in [Distribution::Hash, Distribution::RoundRobin, Distribution::Local] {
        let specs = of(distribution);
        check(&specs, key);
        let rounds = rounds(&specs[3], 5, 20, key, false);
        let (_, once) = cut(&specs[3], &rounds, 5, [1, 1], usize::MAX);
        let (_, thrice) = cut(&specs[3], &rounds, 5, [3, 2], usize::MAX);
        // Each worker forgets versions when it looks.
        assert!(thrice < 2 * once, "{thrice} rows of {once}");
    }
}

/// A join whose right rows are led to two workers.
struct ToTwo(WindowJoin);

impl KeyedOperator for ToTwo {
    fn schema(&self) -> SchemaRef {
        self.0.schema()
    }

    fn create(&self) -> Box<dyn KeyedState> {
        self.0.create()
    }

    fn saved(&self) -> Option<SavedParts> {
        self.0.saved()
    }

    fn multi_partitioner(&self, input: usize) -> Option<Arc<dyn MultiPartitioner>> {
        (input == 1).then(|| Arc::new(OfKey) as _)
    }

    fn spill_spec(&self, input: usize) -> Option<SpillSpec> {
        self.0.spill_spec(input)
    }

    fn describe(&self, columns: &[Vec<String>]) -> Description {
        self.0.describe(columns)
    }
}

/// The leader of a row's key and the worker behind it; a row without key is for nobody.
struct OfKey;

impl MultiPartitioner for OfKey {
    fn partition(
        &self,
        rows: &RecordBatch,
        workers: u32,
        to: &mut Vec<WorkerSet>,
    ) -> Result<(), DataflowError> {
        assert_eq!(rows.num_columns(), 3, "the columns of the input");
        let mut owners = vec![];
        Partition::by_key(&[0], 0, workers, workers).owners(rows, None, &mut owners)?;
        let of_row = |(row, &owner): (usize, &u32)| {
            let to = [owner, (owner + 1) % workers].into_iter().collect();
            if rows.column(0).is_null(row) { WorkerSet::default() } else { to }
        };
        to.extend(owners.iter().enumerate().map(of_row));
        Ok(())
    }
}

#[test]
fn rows_for_some_workers_are_saved_by_the_first_of_them() {
    let key = &DataType::Int64;
    let side = |name: &str| JoinSide { schema: schema(name), keys: vec![0], window_end: 2 };
    let (sides, kind, both) = (SIDES.map(side), JoinKind::Inner, both());
    let join = WindowJoin { sides, kind, on: None, schema: both.clone(), both };
    check(&[keyed(ToTwo(join), 2, key)], key);
}

/// The saved state of an operator that has had some rows.
fn restored_of(spec: &Keyed, workers: u32) -> Restored {
    let rounds = rounds(spec, 3, 20, &DataType::Int64, false);
    let mut bed = Bed::new(spec, workers, usize::MAX);
    bed.play(&rounds[..4]);
    bed.save(rounds[3].1)
}

fn load(spec: &Keyed, restored: &Restored, workers: u32) -> Result<(), DataflowError> {
    let mut bed = Bed::new(spec, workers, usize::MAX);
    let job = bed.job();
    let from = Restoring::new(restored, &job, 0, workers);
    from.each(0, |saved| bed.states[0].load(saved, usize::MAX))
}

#[test]
fn rows_that_stay_where_they_are_read_do_not_go_elsewhere() {
    let mut spec = window_join(JoinKind::Inner, &DataType::Int64);
    let restored = restored_of(&spec, 2);
    spec.exchange = Exchange::Forward;
    load(&spec, &restored, 2).unwrap();
    let refused = load(&spec, &restored, 3).unwrap_err().to_string();
    assert!(refused.contains("'operator'") && refused.contains("2 workers"), "{refused}");
}

#[test]
fn what_is_not_the_operators_is_refused() {
    let key = &DataType::Int64;
    let spec = ranking(None, key);
    let restored = restored_of(&spec, 1);
    let refused = |change: &dyn Fn(&mut OperatorSnapshot), has: &str| {
        let mut restored = restored.clone();
        change(&mut restored.workers[0].operators[0]);
        let error = load(&spec, &restored, 1).unwrap_err();
        assert!(matches!(error, DataflowError::Recovery(_)), "{error}");
        let text = error.to_string();
        assert!(text.contains("operator 'operator'") && text.contains(has), "{text}");
    };
    refused(&|of| of.version = 9, "form 9");
    refused(&|of| of.parts[0].part = 7, "part 7");
    refused(&|of| of.parts[0].rows = of.parts[0].rows.project(&[0, 1]).unwrap(), "columns");
    let other = JobGraph { operators: vec![], settings: Settings::default() };
    let from = Restoring::new(&restored, &other, 0, 1);
    assert!(from.each(0, |_| Ok(())).is_err());
}

/// The state of an operator behind one that has brought the rows of a key together.
#[test]
fn rows_that_an_operator_before_has_led_follow_their_keys() {
    let key = DataType::Int64;
    let first = ranking(Some(2), &key);
    let mut second = first.clone();
    second.exchange = Exchange::Forward;
    let edge = Edge { from: 0, step: None, timed: true, lateness: 0 };
    let operators = vec![
        Operator::new("first", vec![vec![]], OperatorKind::Keyed(first)),
        Operator::new("second", vec![vec![edge]], OperatorKind::Keyed(second)),
    ];
    let job = JobGraph { operators, settings: Settings::default() };
    let rows: Vec<Row> = (0..200).map(|at| (Some(at % 40), at, WIDTH)).collect();
    let rows = rows_of("left", &key, &rows);
    let saved = |watermarks: [i64; 2]| {
        let snapshot = |worker: usize| {
            let rows = rows.slice(100 * worker, 100);
            let (operator, version, watermark) = (1, 1, watermarks[worker]);
            let parts = vec![SavedRows { part: 1, rows }];
            let stored = vec![];
            let snapshot = OperatorSnapshot { operator, version, watermark, parts, stored };
            let operators = vec![snapshot];
            let worker = worker as u32;
            WorkerSnapshot { worker, operators, ..WorkerSnapshot::default() }
        };
        Restored { round: 1, workers: vec![snapshot(0), snapshot(1)] }
    };
    let even = saved([7, 7]);
    let mut owners = vec![];
    Partition::by_key(&[0], 0, 3, 3).owners(&rows, None, &mut owners).unwrap();
    let numbers = |rows: &RecordBatch| rows.column(1).as_primitive::<Int64Type>().values().to_vec();
    for worker in 0..3 {
        let from = Restoring::new(&even, &job, worker, 3);
        let mut taken = vec![];
        from.each(1, |saved| {
            taken.extend(numbers(&saved.rows));
            Ok(())
        })
        .unwrap();
        let mine = (0..200).filter(|&at| owners[at as usize] == worker).collect::<Vec<i64>>();
        assert!(!mine.is_empty() && taken == mine, "worker {worker}");
        assert_eq!(from.watermark(1), 7);
    }
    // They have emitted the windows of different times: one worker cannot take up both.
    let uneven = saved([7, 9]);
    let error = Restoring::new(&uneven, &job, 0, 3).each(1, |_| Ok(())).unwrap_err();
    assert!(error.to_string().contains("'second'"), "{error}");
    let own = Restoring::new(&uneven, &job, 1, 2);
    own.each(1, |saved| {
        assert_eq!(numbers(&saved.rows), (100..200).collect::<Vec<_>>());
        Ok(())
    })
    .unwrap();
    assert_eq!(own.watermark(1), 9);
}
